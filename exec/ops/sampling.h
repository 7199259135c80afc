// GridSample (ONNX 16, 20), RoiAlign (10, 16) and DeformConv (19) as chains of ops that have kernels and gradients: see sampling.cpp.

#pragma once

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

void lower_grid_sample(Lowering& l);
void lower_roi_align(Lowering& l);
void lower_deform_conv(Lowering& l);

ORT_TRAIN_OPS_END
