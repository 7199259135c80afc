// The number types that a job computes in and keeps its weights in, by its options.

#pragma once

#include <vector>

#include "frontend/ort_train.h"
#include "passes/passes.h"

namespace ort_train {

struct NumberTypes {
  DType low = DType::float32;  // of products and what follows them (passes/mixed_precision.cpp); float32: all is float32
  bool low_weights = false;    // so are trained weights, which are updated with stochastic rounding
  std::vector<AutocastRule> autocast{};
};

// Reads the list that `autocast_list` names. Throws Error(usage) where options contradict each other, or ask for what the device hasn't;
// Error(io), Error(data) for the list.
// `model`: the 16-bit type in which the model comes, which is what it computes in unless an option says otherwise; float32: none.
NumberTypes number_types(const Options& options, DType model = DType::float32);

// Options::base_dtype; none: as in the file. Throws Error(usage).
std::optional<DType> base_type(const Options& options);

}  // namespace ort_train
