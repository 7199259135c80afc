// What spectra are made of (ONNX DFT-17 and -20, STFT-17, MelWeightMatrix-17), as products with constant matrices: see fourier.cpp.

#pragma once

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

void lower_dft(Lowering& l);
void lower_stft(Lowering& l);
void lower_mel_weight_matrix(Lowering& l);

ORT_TRAIN_OPS_END
