// Recurrent networks (ONNX LSTM, GRU and RNN, 7 to 22) as a chain of ops that have kernels and gradients of their own: see recurrent.cpp.

#pragma once

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

void lower_lstm(Lowering& l);
void lower_gru(Lowering& l);
void lower_rnn(Lowering& l);

ORT_TRAIN_OPS_END
