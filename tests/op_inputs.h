// The tensors of an op case (op_cases.h): the same numbers everywhere, made from the case's name.

#pragma once

#include <string_view>
#include <vector>

#include "exec/kernel.h"
#include "graph/types.h"
#include "tests/op_cases.h"

namespace ort_train::fixtures {

// SplitMix64: the same numbers everywhere.
class SeededNumbers {
 public:
  explicit SeededNumbers(std::string_view name, uint64_t salt) : state_(salt) {
    for (char c : name) state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  }
  double uniform() {  // in [0, 1)
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return static_cast<double>((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }

 private:
  uint64_t state_;
};

Tensor tensor_of(DType dtype, const Shape& shape, const std::vector<double>& values);
// The case's inputs, with this type for "floating".
std::vector<Tensor> inputs_of(const OpCase& op_case, DType floating);
// They, null where absent.
std::vector<const Tensor*> views_of(const OpCase& op_case, const std::vector<Tensor>& tensors);
// Of the case on these. Throws Error(unsupported) where the op isn't of that type.
KernelSpec spec_of(const OpCase& op_case, DType floating, const std::vector<Tensor>& tensors);
// The same numbers as double, where they are floating.
std::vector<Tensor> widened(const std::vector<Tensor>& tensors);

}  // namespace ort_train::fixtures
