// A language model with a mask, for tests of samples of different lengths.

#pragma once

#include <fmt/format.h>

#include "tests/onnx_models.h"

namespace ort_train::fixtures {

// The logits of a position come from its own token and from the sum over all tokens that the mask keeps: padding changes those of no token.
// A test adds the weights: embedding [vocabulary, width], w [width, width] and v [width, vocabulary].
inline ort_train_onnx::ModelProto masked_model(int64_t vocabulary) {
  return model_of(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]>
        g (int64[batch, seq] input_ids, float[batch, seq] attention_mask) => (float[batch, seq, {}] logits) {{
             axes = Constant <value_ints = [1]> ()
             last = Constant <value_ints = [2]> ()
             e = Gather (embedding, input_ids)
             m = Unsqueeze (attention_mask, last)
             kept = Mul (e, m)
             sum = ReduceSum (kept, axes)
             h = MatMul (e, w)
             mixed = Add (h, sum)
             t = Tanh (mixed)
             logits = MatMul (t, v) }})",
      vocabulary));
}

}  // namespace ort_train::fixtures
