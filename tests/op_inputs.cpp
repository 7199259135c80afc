#include "tests/op_inputs.h"

#include <cmath>
#include <ostream>

#include "graph/error.h"
#include "graph/half.h"
#include "graph/op_def.h"
#include "tests/prepared_op.h"

namespace ort_train::fixtures {

void PrintTo(const OpCase& op_case, std::ostream* out) { *out << op_case.op << " " << op_case.name; }

namespace {

template <typename Body> void with_type(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::float32:
      return body(float{});
    case DType::float64:
      return body(double{});
    case DType::float16:
      return body(float16{});
    case DType::bfloat16:
      return body(bfloat16{});
    case DType::int64:
      return body(int64_t{});
    case DType::int32:
      return body(int32_t{});
    case DType::int16:
      return body(int16_t{});
    case DType::int8:
      return body(int8_t{});
    case DType::uint8:
      return body(uint8_t{});
    case DType::boolean:
      return body(bool{});
    default:
      throw error(ErrorCode::usage, "no numbers of type {}", to_string(dtype));
  }
}

}  // namespace

Tensor tensor_of(DType dtype, const Shape& shape, const std::vector<double>& values) {
  Tensor tensor(dtype, shape);
  with_type(dtype, [&]<typename T>(T) {
    for (int64_t i = 0; i < tensor.size(); ++i)
      tensor.data<T>()[i] = store<T>(static_cast<Compute<T>>(values[values.size() == 1 ? 0 : static_cast<size_t>(i)]));
  });
  return tensor;
}

namespace {

// The numbers of an input, as both precisions see them.
std::vector<double> values_of(const OpCase& op_case, size_t index) {
  const OpInput& input = op_case.inputs[index];
  std::vector<double> values = input.values;
  const size_t n = static_cast<size_t>(element_count(input.shape));
  if (values.size() == 1) values.assign(n, values[0]);
  if (input.values.empty()) {
    SeededNumbers numbers(op_case.op + "/" + op_case.name, index);
    for (size_t i = 0; i < n; ++i) {
      const double u = numbers.uniform();
      values.push_back(is_floating(input.dtype) ? input.low + u * (input.high - input.low)
                                                : std::floor(input.low + u * (input.high - input.low + 1)));
    }
  }
  if (values.size() != n)
    throw error(ErrorCode::usage, "{} {}: input {} has {} values for {}", op_case.op, op_case.name, index, values.size(),
                to_string(input.shape));
  if (is_floating(input.dtype)) {
    for (double& value : values) value = static_cast<float>(value);
  }
  return values;
}

}  // namespace

std::vector<Tensor> inputs_of(const OpCase& op_case, DType floating) {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < op_case.inputs.size(); ++i) {
    const OpInput& input = op_case.inputs[i];
    const DType dtype = input.dtype != DType::float32 ? input.dtype : input.statistic ? compute_type(floating) : floating;
    tensors.push_back(input.present ? tensor_of(dtype, input.shape, values_of(op_case, i)) : Tensor{});
  }
  return tensors;
}

std::vector<const Tensor*> views_of(const OpCase& op_case, const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> views;
  for (size_t i = 0; i < tensors.size(); ++i) views.push_back(op_case.inputs[i].present ? &tensors[i] : nullptr);
  return views;
}

KernelSpec spec_of(const OpCase& op_case, DType floating, const std::vector<Tensor>& tensors) {
  std::vector<bool> constant;
  for (const OpInput& input : op_case.inputs) constant.push_back(input.constant);
  const Attributes& attributes = floating == DType::float64 && op_case.attributes64 ? *op_case.attributes64 : op_case.attributes;
  return spec_of(op_named(op_case.op), attributes, views_of(op_case, tensors), constant, op_case.outputs);
}

std::vector<Tensor> widened(const std::vector<Tensor>& tensors) {
  std::vector<Tensor> wide = tensors;
  for (Tensor& tensor : wide) {
    if (is_floating(tensor.dtype)) tensor = tensor_of(DType::float64, tensor.shape, tensor.to_double());
  }
  return wide;
}

}  // namespace ort_train::fixtures
