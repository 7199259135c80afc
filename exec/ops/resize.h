// Resize (ONNX 10 to 19) and Upsample (7, 9) as a chain of ops that have kernels and gradients of their own: see resize.cpp.

#pragma once

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

void lower_resize(Lowering& l);
void lower_upsample(Lowering& l);

ORT_TRAIN_OPS_END
