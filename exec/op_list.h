// The list of all ops, once, grouped by file under exec/ops. Each name NAME stands for its meaning kNAME (an OpDef) and its kernel on the
// CPU kNAMEKernel (a Kernel).
//
// Op files are compiled once per instruction set. One of these compilations defines the meanings (ORT_TRAIN_MEANINGS); in the others they
// are constants that nothing uses, and are left out by the compiler.

#pragma once

#include "exec/kernel.h"

// clang-format off
#define ORT_TRAIN_EACH_OP(op) \
  /* reshape.cpp, transpose.cpp */ op(Reshape) op(Transpose) \
  /* concat_split.cpp */ op(Concat) op(Split) \
  /* slice_pad.cpp */ op(Slice) op(SliceGrad) op(Pad) op(PadGrad) \
  /* expand_tile.cpp */ op(Expand) op(Tile) \
  /* quantization.cpp */ op(Dequantize) \
  /* gather.cpp */ op(Gather) op(GatherPart) op(GatherGrad) op(AccumulateGatherGrad) op(GatherElements) op(GatherND) op(GatherNDGrad) \
  /* scatter.cpp */ op(ScatterElements) op(ScatterElementsReduce) op(ScatterND) op(ScatterNDReduce) \
  /* pack.cpp */ op(PackMember) op(Pack) \
  /* selection.cpp, cumprod.cpp */ op(Unique) op(NonMaxSuppression) op(CumProd) op(CumProdGrad) \
  /* selected.cpp */ op(FindSelected) op(KeepFirst) op(RepeatLast) \
  /* generate.cpp */ op(Range) op(ConstantOfShape) op(OneHot) op(NonZero) op(Trilu) op(CumSum) \
  /* compare.cpp */ op(Equal) op(Greater) op(GreaterOrEqual) op(Less) op(LessOrEqual) op(And) op(Or) op(Xor) op(Not) op(Mod) \
  /* bitwise.cpp */ op(BitwiseAnd) op(BitwiseOr) op(BitwiseXor) op(BitwiseNot) op(BitShift) \
  /* where_cast.cpp */ op(Where) op(Cast) op(BitCast) \
  /* reduce.cpp */ op(ReduceSum) op(ReduceMean) op(ReduceMax) op(ReduceMin) op(ReduceProd) op(ReduceProdGrad) op(ReduceL2) \
    op(ReduceSumSquare) \
  /* arg.cpp */ op(ArgMax) op(ArgMin) op(TopK) \
  /* arithmetic.cpp */ op(Add) op(Sub) op(Mul) op(Div) op(Min) op(Max) op(MaxSlope) op(MulUnlessZero) \
  /* pow.cpp */ op(Pow) op(PowSlope) op(PowExponentSlope) \
  /* unary.cpp */ op(Neg) op(Abs) op(Sqrt) op(SqrtGrad) op(Reciprocal) op(ReciprocalGrad) op(Exp) op(Log) op(Erf) op(ErfGrad) op(Sign) \
    op(Floor) op(Ceil) op(Round) op(IsNaN) op(IsInf) \
  /* trigonometry.cpp */ op(Sin) op(Cos) op(Tan) op(Asin) op(Acos) op(Atan) op(Sinh) op(Cosh) op(Asinh) op(Acosh) op(Atanh) \
  /* activation.cpp */ op(Tanh) op(TanhGrad) op(Sigmoid) op(SigmoidGrad) op(Relu) op(ReluGrad) op(LeakyRelu) op(LeakyReluGrad) op(Elu) \
    op(EluGrad) op(Softplus) op(SoftplusGrad) op(HardSigmoid) op(HardSigmoidGrad) op(HardSwish) op(HardSwishGrad) op(Swish) \
    op(SwishGrad) \
  /* gelu.cpp */ op(Gelu) op(GeluGrad) \
  /* clip.cpp */ op(Clip) op(ClipGrad) \
  /* fused_elementwise.cpp */ op(FusedElementwise) \
  /* dropout.cpp, draw.cpp, lstm_cell.cpp */ op(Dropout) op(DrawNumbers) op(LstmCell) op(LstmCellGrad) \
  /* softmax.cpp */ op(Softmax) op(SoftmaxGrad) op(LogSoftmax) op(LogSoftmaxGrad) \
  /* layer_normalization.cpp */ op(LayerNormalization) op(LayerNormalizationGrad) \
  /* rms_normalization.cpp */ op(RMSNormalization) op(RMSNormalizationGrad) \
  /* batch_normalization.cpp */ op(BatchNormalization) op(LiveBatchNormalization) op(BatchNormalizationGrad) op(RunningStatistics) \
    op(FusedBatchNormalization) op(FusedLiveBatchNormalization) \
  /* conv*.cpp, pool.cpp */ op(Conv) op(ConvPart) op(ConvTranspose) op(ConvInputGrad) op(ConvWeightGrad) op(MaxPool) op(MaxPoolGrad) op(AveragePool) \
    op(AveragePoolGrad) \
  /* matmul.cpp, det.cpp */ op(MatMul) op(MatMulPart) op(AccumulateMatMul) op(Det) op(DetGrad) \
  /* dora.cpp */ op(DoraScale) \
  /* attention.cpp, attention_gradient.cpp */ op(Attention) op(AttentionGrad) \
  /* cross_entropy.cpp, mean_squared_error.cpp, ctc.cpp */ op(SoftmaxCrossEntropy) op(SoftmaxCrossEntropyGrad) op(CountLabels) \
    op(SoftmaxCrossEntropyPart) op(SoftmaxCrossEntropyOfParts) op(SquaredError) op(CtcLoss) \
  /* optimizer.cpp */ op(SumSquares) op(GlobalNorm) op(UpdateFactor) op(Accumulate) op(Clear) op(Store) \
  /* adamw.cpp, sgd.cpp, lion.cpp, adagrad.cpp, rmsprop.cpp */ op(AdamW) op(Adam) op(SGD) op(Lion) op(Adagrad) op(RMSprop) \
  /* lamb.cpp, lars.cpp */ op(LambSquares) op(LambTrust) op(Lamb) op(LarsTrust) op(Lars) \
  /* adafactor.cpp */ op(AdafactorRows) op(AdafactorColumns) op(AdafactorSquares) op(AdafactorScale) op(AdafactorFactored) \
    op(AdafactorMoment) op(AdafactorPlain)
// clang-format on

ORT_TRAIN_OPS_BEGIN

#ifdef ORT_TRAIN_MEANINGS
#define ORT_TRAIN_DECLARE_OP(name) \
  extern const OpDef k##name;      \
  extern const Kernel k##name##Kernel;
#else
#define ORT_TRAIN_DECLARE_OP(name) extern const Kernel k##name##Kernel;
#endif
ORT_TRAIN_EACH_OP(ORT_TRAIN_DECLARE_OP)
#undef ORT_TRAIN_DECLARE_OP

ORT_TRAIN_OPS_END
