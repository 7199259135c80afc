// The op test table: one case says what to run an op on; tests/ops_test.cpp makes of it the float32 kernel against float64, guard bytes,
// in-place runs, thread counts, the gradient check in double and timing. Each family's cases live in tests/op_cases_FAMILY.cpp.
//
//   {.name = "same_shape", .op = "Add", .inputs = {random({3, 5}), random({3, 5})}}
//   {.name = "rows", .op = "Gather", .attributes = {{"axis", int64_t{0}}}, .inputs = {random({7, 4}), ints({3}, {6, 0, 6})}}
//
// Floating inputs are made as float32 (or rounded to 16 bits) and widened for the runs in double, so both see the same numbers.

#pragma once

#include <iosfwd>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "graph/attributes.h"
#include "graph/types.h"

namespace ort_train::fixtures {

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct OpInput {
  DType dtype = DType::float32;  // float32 stands for "floating": the double runs make float64 of it
  Shape shape = {};
  double low = -1, high = 1;        // uniform, where `values` is empty; integers: low .. high inclusive
  std::vector<double> values = {};  // explicit elements, row-major; one value fills the shape
  bool present = true;
  bool constant = false;      // known at compile time: for host_inputs
  bool differentiate = true;  // check the gradient with respect to it, where it is floating
  bool statistic = false;     // float32 where the others are of 16 bits: a sum, a mean, a loss
};

struct OpCase {
  std::string name;  // unique for its op: "same_shape"
  std::string op;
  Attributes attributes = {};
  std::vector<OpInput> inputs = {};
  size_t outputs = 1;

  double tolerance = 1e-6;           // |float32 - float64| <= tolerance * |float64|, in the 2-norm of each output
  double gradient_tolerance = 1e-6;  // |analytic - numeric| <= this * max(|numeric|, 1), in the 2-norm for each input
  double step = 1e-5;                // of the central differences
  // Outputs that the gradient check's scalar depends on; empty: all floating ones.
  std::vector<size_t> project = {};
  bool gradient = true;                         // false: no gradient check (the point is not differentiable, or another case does it)
  bool float64 = true;                          // false: the op has no float64 kernel and no gradient (optimizers, quantized forms)
  std::optional<Attributes> attributes64 = {};  // where the attributes differ in double (Cast's `to`)
  // The right outputs where they are easily written down, compared exactly in float32 and integers; an empty list is not compared.
  std::vector<std::vector<double>> expected = {};
  int ulps = 0;  // `expected` may differ by so many units in the last place
};

// Uniform random numbers; deterministic, different for each input of a case.
inline OpInput random(Shape shape, double low = -1, double high = 1) { return {.shape = std::move(shape), .low = low, .high = high}; }
inline OpInput random_ints(Shape shape, int64_t low, int64_t high, DType dtype = DType::int64) {
  return {.dtype = dtype, .shape = std::move(shape), .low = double(low), .high = double(high)};
}
inline OpInput random_bools(Shape shape) { return {.dtype = DType::boolean, .shape = std::move(shape), .low = 0, .high = 1}; }
inline OpInput floats(Shape shape, std::vector<double> values) { return {.shape = std::move(shape), .values = std::move(values)}; }
// 0, 1, 2, …
inline OpInput counting(Shape shape) {
  std::vector<double> values(static_cast<size_t>(element_count(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  return floats(std::move(shape), values);
}
inline OpInput ints(Shape shape, std::vector<double> values, DType dtype = DType::int64) {
  return {.dtype = dtype, .shape = std::move(shape), .values = std::move(values)};
}
inline OpInput bools(Shape shape, std::vector<double> values) {
  return {.dtype = DType::boolean, .shape = std::move(shape), .values = std::move(values)};
}
inline Attribute text(const char* value) { return std::string(value); }
inline OpInput absent() { return {.present = false}; }
inline OpInput constant(OpInput input) {
  input.constant = true;
  return input;
}
inline OpInput fixed(OpInput input) {
  input.differentiate = false;
  return input;
}  // not differentiated

inline OpInput statistic(OpInput input) {
  input.statistic = true;
  return input;
}

// The families, each in tests/op_cases_FAMILY.cpp.
std::vector<OpCase> elementwise_op_cases();    // arithmetic, unary functions, activations
std::vector<OpCase> normalization_op_cases();  // softmax, layer and RMS normalisation
std::vector<OpCase> shape_op_cases();          // data movement, reductions, comparisons, integer ops
std::vector<OpCase> quantization_op_cases();   // codes and scales
std::vector<OpCase> index_op_cases();          // gathering, scattering and sorting by index, tensors made of positions
std::vector<OpCase> product_op_cases();        // MatMul, attention
std::vector<OpCase> nn_op_cases();             // losses, optimizers, dropout
std::vector<OpCase> convolution_op_cases();    // convolutions, pools, batch normalisation

std::vector<OpCase> all_op_cases();

void PrintTo(const OpCase& op_case, std::ostream* out);

}  // namespace ort_train::fixtures
