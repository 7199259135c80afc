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
      &kGatherPart,
      &kGatherGrad,
      &kGatherElements,
      &kGatherND,
      &kGatherNDGrad,
      // scatter.cpp
      &kScatterElements,
      &kScatterElementsReduce,
      &kScatterND,
      &kScatterNDReduce,
      // pack.cpp
      &kPackMember,
      &kPack,
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
      // arithmetic.cpp
      &kAdd,
      &kSub,
      &kMul,
      &kDiv,
      &kMin,
      &kMax,
      &kMaxSlope,
      // pow.cpp
      &kPow,
      &kPowSlope,
      &kPowExponentSlope,
      // unary.cpp
      &kNeg,
      &kAbs,
      &kSqrt,
      &kSqrtGrad,
      &kReciprocal,
      &kReciprocalGrad,
      &kExp,
      &kLog,
      &kErf,
      &kErfGrad,
      &kSign,
      &kFloor,
      &kCeil,
      &kRound,
      &kIsNaN,
      &kIsInf,
      // trigonometry.cpp
      &kSin,
      &kCos,
      &kTan,
      &kAsin,
      &kAcos,
      &kAtan,
      &kSinh,
      &kCosh,
      &kAsinh,
      &kAcosh,
      &kAtanh,
      // activation.cpp
      &kTanh,
      &kTanhGrad,
      &kSigmoid,
      &kSigmoidGrad,
      &kRelu,
      &kReluGrad,
      &kLeakyRelu,
      &kLeakyReluGrad,
      &kElu,
      &kEluGrad,
      &kSoftplus,
      &kSoftplusGrad,
      &kHardSigmoid,
      &kHardSigmoidGrad,
      &kHardSwish,
      &kHardSwishGrad,
      &kSwish,
      &kSwishGrad,
      // gelu.cpp
      &kGelu,
      &kGeluGrad,
      // clip.cpp
      &kClip,
      &kClipGrad,
      // dropout.cpp
      &kDropout,
      // softmax.cpp
      &kSoftmax,
      &kSoftmaxGrad,
      &kLogSoftmax,
      &kLogSoftmaxGrad,
      // layer_normalization.cpp
      &kLayerNormalization,
      &kLayerNormalizationGrad,
      // rms_normalization.cpp
      &kRMSNormalization,
      &kRMSNormalizationGrad,
      // batch_normalization.cpp
      &kBatchNormalization,
      &kLiveBatchNormalization,
      &kBatchNormalizationGrad,
      &kRunningStatistics,
      // conv.cpp, pool.cpp
      &kConv,
      &kConvInputGrad,
      &kConvWeightGrad,
      &kMaxPool,
      &kMaxPoolGrad,
      &kAveragePool,
      &kAveragePoolGrad,
      // matmul.cpp
      &kMatMul,
      &kMatMulPart,
      // attention.cpp
      &kAttention,
      &kAttentionGrad,
      // cross_entropy.cpp, mean_squared_error.cpp
      &kSoftmaxCrossEntropy,
      &kSoftmaxCrossEntropyGrad,
      &kCountLabels,
      &kSquaredError,
      // optimizer.cpp
      &kSumSquares,
      &kGlobalNorm,
      &kClipCoefficient,
      &kAdamW,
      &kSGD,
      &kAccumulate,
      &kClear,
      &kStore,
  };
  return table;
}

ORT_TRAIN_OPS_END
