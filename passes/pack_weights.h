// pack_weights: small weights become one parameter, which is streamed, updated and saved as a whole; what read them reads views into it.
//
//   before   y = LayerNormalization(x, scale, bias) … AdamW(scale, dscale, …) ; AdamW(bias, dbias, …)         two of 3 KiB
//   after    scale = PackMember{byte_offset 0}(pack) ; bias = PackMember{byte_offset 3072}(pack) ; y = LayerNormalization(x, scale, bias)
//            dpack = Pack(dscale, dbias) … AdamW(pack, dpack, …)
//
// What is packed depends on the model, its loss and the optimizer alone, so that all entries and all budgets have the same packs and the
// same sums.

#pragma once

#include <map>
#include <vector>

#include "passes/pipeline.h"

namespace ort_train {

// A pack has at most so many bytes, and what is as large is in none.
inline constexpr int64_t kPackBytes = int64_t{64} << 10;

// Of an optimized forward graph, the names of what goes into each pack: float32 parameters that get a gradient, are used once and aren't
// divided, neighbours in the order of their use, of one parameter group and one weight decay, with state of the same types. A pack has two
// members at least. None where the optimizer's granularity forbids it.
Packs choose_packs(const Graph& forward, const LossSpec& loss, const Optimizer& optimizer = make_optimizer());

// Makes options.packs in a job's graph, which has its backward pass but no update. `gradients`: parameter -> those of its uses; the packs'
// stand there afterwards. Adds to job.slices.
bool pack_weights(EntryGraph& job, std::map<ValueId, std::vector<ValueId>>& gradients, const PassOptions& options);

}  // namespace ort_train
