// TfIdfVectorizer (ONNX 9) as a chain of ops: see ngrams.cpp.

#pragma once

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

void lower_tf_idf(Lowering& l);

ORT_TRAIN_OPS_END
