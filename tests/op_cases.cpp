#include "tests/op_cases.h"

namespace ort_train::fixtures {

std::vector<OpCase> all_op_cases() {
  std::vector<OpCase> all;
  for (const auto& family : {elementwise_op_cases, normalization_op_cases, shape_op_cases, quantization_op_cases, index_op_cases,
                             product_op_cases, nn_op_cases, convolution_op_cases}) {
    for (OpCase& op_case : family()) all.push_back(std::move(op_case));
  }
  return all;
}

}  // namespace ort_train::fixtures
