// The standard's optimizers as nodes of a model (ai.onnx.preview.training: Adagrad-1, Adam-1, Momentum-1): see onnx_training.cpp.

#pragma once

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr std::string_view kTrainingDomain = "ai.onnx.preview.training";

void lower_onnx_adagrad(Lowering& l);
void lower_onnx_adam(Lowering& l);
void lower_onnx_momentum(Lowering& l);

ORT_TRAIN_OPS_END
