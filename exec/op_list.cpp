// The table of all ops; exec/dispatch.cpp chooses between its copies, one for each instruction set.

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN

const std::vector<const OpDef*>& ops() {
  static const std::vector<const OpDef*> table{
      // reshape.cpp, transpose.cpp
      &kReshape,
      &kTranspose,
      // concat_split.cpp
      &kConcat,
      &kSplit,
      // slice_pad.cpp
      &kSlice,
      &kSliceGrad,
      &kPad,
      &kPadGrad,
      // expand_tile.cpp
      &kExpand,
      &kTile,
      // gather.cpp
      &kGather,
      &kGatherGrad,
      &kGatherElements,
      &kGatherND,
      &kGatherNDGrad,
      // scatter.cpp
      &kScatterElements,
      &kScatterElementsReduce,
      &kScatterND,
      &kScatterNDReduce,
      // generate.cpp
      &kRange,
      &kConstantOfShape,
      &kOneHot,
      &kNonZero,
      &kTrilu,
      &kCumSum,
      // compare.cpp
      &kEqual,
      &kGreater,
      &kGreaterOrEqual,
      &kLess,
      &kLessOrEqual,
      &kAnd,
      &kOr,
      &kXor,
      &kNot,
      &kMod,
      // where_cast.cpp
      &kWhere,
      &kCast,
      // reduce.cpp
      &kReduceSum,
      &kReduceMean,
      &kReduceMax,
      &kReduceMin,
      &kReduceProd,
      &kReduceProdGrad,
      &kReduceL2,
      &kReduceSumSquare,
      // arg.cpp
      &kArgMax,
      &kArgMin,
      &kTopK,
  };
  return table;
}

ORT_TRAIN_OPS_END
