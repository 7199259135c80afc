// Attention, MultiHeadAttention, GroupQueryAttention, RotaryEmbedding and EmbedLayerNormalization as ONNX Runtime's optimizer and its model
// builder write them, as chains of ops: see contrib_attention.cpp.

#pragma once

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

// All of the domain com.microsoft.
void lower_contrib_attention(Lowering& l);
void lower_multi_head_attention(Lowering& l);
void lower_group_query_attention(Lowering& l);
void lower_contrib_rotary_embedding(Lowering& l);
void lower_embed_layer_normalization(Lowering& l);

ORT_TRAIN_OPS_END
