// What Transpose moves where, for the kernels of every device.

#pragma once

#include <vector>

#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN

inline std::vector<int64_t> permutation_of(const Attributes& attributes, size_t rank) {
  std::vector<int64_t> reversed(rank);
  for (size_t i = 0; i < rank; ++i) reversed[i] = static_cast<int64_t>(rank - 1 - i);
  std::vector<int64_t> perm = attributes.get("perm", reversed);
  std::vector<bool> seen(rank);
  bool valid = perm.size() == rank;
  for (size_t i = 0; valid && i < rank; ++i) {
    valid = perm[i] >= 0 && perm[i] < static_cast<int64_t>(rank) && !seen[perm[i]];
    if (valid) seen[perm[i]] = true;
  }
  if (!valid) throw error(ErrorCode::unsupported, "{} is no permutation of {} axes", to_string(perm), rank);
  return perm;
}

inline CopyLayout transpose_layout(const KernelSpec& spec) {
  const Shape& out = spec.outputs[0].shape;
  const std::vector<int64_t> perm = permutation_of(spec.attributes, out.size()), own = strides_of(spec.inputs[0].shape);
  std::vector<int64_t> in_strides(perm.size());
  for (size_t i = 0; i < perm.size(); ++i) in_strides[i] = own[perm[i]];
  return {.element_bytes = size_of(spec.outputs[0].dtype), .dims = out, .out_strides = strides_of(out), .in_strides = in_strides};
}

ORT_TRAIN_OPS_END
