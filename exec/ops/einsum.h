// Einsum (ONNX Einsum-12 and later), which lowers to products and data movement: see einsum.cpp.

#pragma once

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

void lower_einsum(Lowering& l);

ORT_TRAIN_OPS_END
