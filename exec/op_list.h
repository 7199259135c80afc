// The explicit list of all ops: one declaration a line here, one line in the table of op_list.cpp, grouped by file under exec/ops.

#pragma once

#include <vector>

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

// reshape.cpp, transpose.cpp
extern const OpDef kReshape;
extern const OpDef kTranspose;
// concat_split.cpp
extern const OpDef kConcat;
extern const OpDef kSplit;
// slice_pad.cpp
extern const OpDef kSlice;
extern const OpDef kSliceGrad;
extern const OpDef kPad;
extern const OpDef kPadGrad;
// expand_tile.cpp
extern const OpDef kExpand;
extern const OpDef kTile;
// gather.cpp
extern const OpDef kGather;
extern const OpDef kGatherGrad;
extern const OpDef kGatherElements;
extern const OpDef kGatherND;
extern const OpDef kGatherNDGrad;
// scatter.cpp
extern const OpDef kScatterElements;
extern const OpDef kScatterElementsReduce;
extern const OpDef kScatterND;
extern const OpDef kScatterNDReduce;
// generate.cpp
extern const OpDef kRange;
extern const OpDef kConstantOfShape;
extern const OpDef kOneHot;
extern const OpDef kNonZero;
extern const OpDef kTrilu;
extern const OpDef kCumSum;
// compare.cpp
extern const OpDef kEqual;
extern const OpDef kGreater;
extern const OpDef kGreaterOrEqual;
extern const OpDef kLess;
extern const OpDef kLessOrEqual;
extern const OpDef kAnd;
extern const OpDef kOr;
extern const OpDef kXor;
extern const OpDef kNot;
extern const OpDef kMod;
// where_cast.cpp
extern const OpDef kWhere;
extern const OpDef kCast;
// reduce.cpp
extern const OpDef kReduceSum;
extern const OpDef kReduceMean;
extern const OpDef kReduceMax;
extern const OpDef kReduceMin;
extern const OpDef kReduceProd;
extern const OpDef kReduceProdGrad;
extern const OpDef kReduceL2;
extern const OpDef kReduceSumSquare;
// arg.cpp
extern const OpDef kArgMax;
extern const OpDef kArgMin;
extern const OpDef kTopK;

const std::vector<const OpDef*>& ops();

ORT_TRAIN_OPS_END
