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
extern const OpDef kGatherPart;
extern const OpDef kGatherGrad;
extern const OpDef kGatherElements;
extern const OpDef kGatherND;
extern const OpDef kGatherNDGrad;
// scatter.cpp
extern const OpDef kScatterElements;
extern const OpDef kScatterElementsReduce;
extern const OpDef kScatterND;
extern const OpDef kScatterNDReduce;
// pack.cpp
extern const OpDef kPackMember;
extern const OpDef kPack;
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
// arithmetic.cpp
extern const OpDef kAdd;
extern const OpDef kSub;
extern const OpDef kMul;
extern const OpDef kDiv;
extern const OpDef kMin;
extern const OpDef kMax;
extern const OpDef kMaxSlope;
// pow.cpp
extern const OpDef kPow;
extern const OpDef kPowSlope;
extern const OpDef kPowExponentSlope;
// unary.cpp
extern const OpDef kNeg;
extern const OpDef kAbs;
extern const OpDef kSqrt;
extern const OpDef kSqrtGrad;
extern const OpDef kReciprocal;
extern const OpDef kReciprocalGrad;
extern const OpDef kExp;
extern const OpDef kLog;
extern const OpDef kErf;
extern const OpDef kErfGrad;
extern const OpDef kSign;
extern const OpDef kFloor;
extern const OpDef kCeil;
extern const OpDef kRound;
extern const OpDef kIsNaN;
extern const OpDef kIsInf;
// trigonometry.cpp
extern const OpDef kSin;
extern const OpDef kCos;
extern const OpDef kTan;
extern const OpDef kAsin;
extern const OpDef kAcos;
extern const OpDef kAtan;
extern const OpDef kSinh;
extern const OpDef kCosh;
extern const OpDef kAsinh;
extern const OpDef kAcosh;
extern const OpDef kAtanh;
// activation.cpp
extern const OpDef kTanh;
extern const OpDef kTanhGrad;
extern const OpDef kSigmoid;
extern const OpDef kSigmoidGrad;
extern const OpDef kRelu;
extern const OpDef kReluGrad;
extern const OpDef kLeakyRelu;
extern const OpDef kLeakyReluGrad;
extern const OpDef kElu;
extern const OpDef kEluGrad;
extern const OpDef kSoftplus;
extern const OpDef kSoftplusGrad;
extern const OpDef kHardSigmoid;
extern const OpDef kHardSigmoidGrad;
extern const OpDef kHardSwish;
extern const OpDef kHardSwishGrad;
extern const OpDef kSwish;
extern const OpDef kSwishGrad;
// gelu.cpp
extern const OpDef kGelu;
extern const OpDef kGeluGrad;
// clip.cpp
extern const OpDef kClip;
extern const OpDef kClipGrad;
// dropout.cpp
extern const OpDef kDropout;
// softmax.cpp
extern const OpDef kSoftmax;
extern const OpDef kSoftmaxGrad;
extern const OpDef kLogSoftmax;
extern const OpDef kLogSoftmaxGrad;
// layer_normalization.cpp
extern const OpDef kLayerNormalization;
extern const OpDef kLayerNormalizationGrad;
// rms_normalization.cpp
extern const OpDef kRMSNormalization;
extern const OpDef kRMSNormalizationGrad;
// batch_normalization.cpp
extern const OpDef kBatchNormalization;
extern const OpDef kLiveBatchNormalization;
extern const OpDef kBatchNormalizationGrad;
extern const OpDef kRunningStatistics;
// conv.cpp, pool.cpp
extern const OpDef kConv;
extern const OpDef kConvInputGrad;
extern const OpDef kConvWeightGrad;
extern const OpDef kMaxPool;
extern const OpDef kMaxPoolGrad;
extern const OpDef kAveragePool;
extern const OpDef kAveragePoolGrad;
// matmul.cpp
extern const OpDef kMatMul;
extern const OpDef kMatMulPart;
// attention.cpp
extern const OpDef kAttention;
extern const OpDef kAttentionGrad;
// cross_entropy.cpp, mean_squared_error.cpp
extern const OpDef kSoftmaxCrossEntropy;
extern const OpDef kSoftmaxCrossEntropyGrad;
extern const OpDef kCountLabels;
extern const OpDef kSquaredError;
// optimizer.cpp
extern const OpDef kSumSquares;
extern const OpDef kGlobalNorm;
extern const OpDef kClipCoefficient;
extern const OpDef kAdamW;
extern const OpDef kSGD;
extern const OpDef kAccumulate;
extern const OpDef kClear;
extern const OpDef kStore;

const std::vector<const OpDef*>& ops();

ORT_TRAIN_OPS_END
