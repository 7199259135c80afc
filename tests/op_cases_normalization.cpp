// Cases of the op test table: softmax, layer and RMS normalisation.

#include <fmt/format.h>

#include <string_view>

#include "tests/op_cases.h"

namespace ort_train::fixtures {
namespace {

void softmax_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    Shape shape;
    int64_t axis;
  };
  const std::vector<Form> forms{
      {"last", {3, 5, 37}, -1},     {"short_rows", {101, 3}, 1}, {"long_rows", {3, 40001}, -1},    {"one", {4, 1}, 1},
      {"first", {7, 11}, 0},        {"middle", {2, 9, 131}, 1},  {"wide_middle", {3, 4, 300}, -2}, {"vector", {19}, 0},
      {"many_rows", {2100, 17}, 1}, {"none", {0, 5}, 1},         {"even_rows", {5, 1032}, 1},      {"long_even_rows", {3, 6152}, 1},
  };
  for (const char* op : {"Softmax", "LogSoftmax"}) {
    for (const Form& form : forms) {
      const Attributes axis{{"axis", form.axis}};
      cases.push_back({.name = form.name, .op = op, .attributes = axis, .inputs = {random(form.shape, -4, 4)}});
      cases.push_back({.name = form.name,
                       .op = std::string(op) + "Grad",
                       .attributes = axis,
                       .inputs = {random(form.shape), random(form.shape, -3, 0)},
                       .tolerance = 2e-6});
      if (element_count(form.shape) > 20000) cases[cases.size() - 2].gradient = false;  // too many differences
    }
  }
  const auto exact = [&](const char* name, const char* op, int64_t axis, Shape shape, std::vector<double> x, std::vector<double> y) {
    cases.push_back({.name = name,
                     .op = op,
                     .attributes = {{"axis", axis}},
                     .inputs = {floats(std::move(shape), std::move(x))},
                     .gradient = false,
                     .expected = {std::move(y)}});
  };
  for (const int64_t axis : {1, 0}) {
    const char* name = axis == 1 ? "masked" : "masked_columns";
    const Shape shape = axis == 1 ? Shape{1, 4} : Shape{4, 1};
    exact(name, "Softmax", axis, shape, {0, -kInfinity, 0, -kInfinity}, {0.5, 0, 0.5, 0});
    exact(name, "LogSoftmax", axis, shape, {5, -kInfinity, -kInfinity, -kInfinity}, {0, -kInfinity, -kInfinity, -kInfinity});
  }
  exact("masked_side_by_side", "Softmax", 0, {2, 2}, {0, -kInfinity, -kInfinity, -kInfinity}, {1, kNaN, 0, kNaN});
  exact("large", "Softmax", -1, {2}, {3e38, 3e38}, {0.5, 0.5});
  exact("all_masked", "Softmax", -1, {2}, {-kInfinity, -kInfinity}, {kNaN, kNaN});
  exact("nan", "Softmax", -1, {3}, {0, kNaN, 1}, {kNaN, kNaN, kNaN});
}

void layer_cases(std::vector<OpCase>& cases) {
  const auto shapes = [&](const char* name, Shape x, int64_t axis, double gradient_tolerance = 1e-6) {
    const int64_t rank = static_cast<int64_t>(x.size()), first = axis < 0 ? axis + rank : axis;
    const Shape scale(x.begin() + first, x.end());
    Shape statistics = x;
    for (int64_t i = first; i < rank; ++i) statistics[i] = 1;
    const Attributes attributes{{"axis", axis}, {"epsilon", 1e-5f}};
    const bool large = element_count(x) > 20000;
    cases.push_back({.name = name,
                     .op = "LayerNormalization",
                     .attributes = attributes,
                     .inputs = {random(x, -1, 3), random(scale, 0.5, 1.5), random(scale)},
                     .outputs = 3,
                     .gradient_tolerance = gradient_tolerance,
                     .project = {0},
                     .gradient = !large});
    cases.push_back({.name = name,
                     .op = "RMSNormalization",
                     .attributes = attributes,
                     .inputs = {random(x, -1, 3), random(scale, 0.5, 1.5)},
                     .outputs = 2,
                     .gradient_tolerance = gradient_tolerance,
                     .project = {0},
                     .gradient = !large});
    cases.push_back({.name = name,
                     .op = "LayerNormalizationGrad",
                     .attributes = attributes,
                     .inputs = {random(x), random(x, -1, 3), random(scale, 0.5, 1.5), statistic(random(statistics, 0.9, 1.1)),
                                statistic(random(statistics, 0.8, 1))},
                     .outputs = 3});
    cases.push_back({.name = name,
                     .op = "RMSNormalizationGrad",
                     .attributes = attributes,
                     .inputs = {random(x), random(x, -1, 3), random(scale, 0.5, 1.5), statistic(random(statistics, 0.6, 0.7))},
                     .outputs = 2});
  };
  shapes("rows", {5, 37}, -1);
  shapes("batches", {2, 9, 64}, -1);
  shapes("two_axes", {3, 4, 11}, 1);
  shapes("all_axes", {4, 9}, 0);
  shapes("short_rows", {600, 3}, 1, 1e-5);
  shapes("row_blocks", {150, 7}, -1);
  shapes("many_rows", {700, 130}, -1);
  shapes("one_row", {1, 45}, -1);
  shapes("long_row", {2, 70001}, -1);
  shapes("even_rows", {1101, 264}, -1);
  shapes("long_even_rows", {3, 6152}, -1);

  const Attributes last{{"axis", int64_t{-1}}};
  const auto layer = [&](const char* name, std::vector<OpInput> inputs, std::vector<size_t> project) {
    cases.push_back({.name = name,
                     .op = "LayerNormalization",
                     .attributes = last,
                     .inputs = std::move(inputs),
                     .outputs = 3,
                     .project = std::move(project)});
  };
  layer("no_bias", {random({5, 37}), random({37})}, {0});
  layer("frozen_scale", {random({5, 37}), fixed(random({37})), fixed(random({37}))}, {0});
  layer("frozen_scale_live_bias", {random({5, 37}), fixed(random({37})), random({37})}, {0});
  layer("frozen_input", {fixed(random({5, 37})), random({37}), random({37})}, {0});
  layer("statistics_read", {random({5, 37}), random({37}), random({37})}, {0, 1, 2});
  layer("only_statistics_read", {random({5, 37}), random({37}), random({37})}, {1, 2});
  layer("far_from_zero", {random({5, 64}, 999, 1001), random({64}), random({64})}, {0});
  cases.back().tolerance = 1e-4;  // x itself has but three digits after the point
  cases.back().gradient_tolerance = 1e-5;
  cases.push_back(
      {.name = "statistics_read", .op = "RMSNormalization", .attributes = last, .inputs = {random({5, 37}), random({37})}, .outputs = 2});
  cases.push_back({.name = "frozen_scale",
                   .op = "RMSNormalization",
                   .attributes = last,
                   .inputs = {random({5, 37}), fixed(random({37}))},
                   .outputs = 2,
                   .project = {0}});
  cases.push_back({.name = "only_dx",
                   .op = "LayerNormalizationGrad",
                   .attributes = last,
                   .inputs = {random({5, 37}), random({5, 37}), random({37}), statistic(random({5, 1})), statistic(random({5, 1}))}});
  // As mixed precision has them: scale and bias of float32, y of 16 bits where x is float32.
  const auto wide = [](OpInput input) { return statistic(std::move(input)); };
  for (const Shape& x : {Shape{5, 37}, Shape{300, 20}}) {
    const Shape row{x[1]}, rows{x[0], 1};
    cases.push_back({.name = fmt::format("wide_scale_{}", x[0]),
                     .op = "LayerNormalization",
                     .attributes = last,
                     .inputs = {random(x, -1, 3), wide(random(row, 0.5, 1.5)), wide(random(row))},
                     .outputs = 3,
                     .project = {0}});
    cases.push_back({.name = fmt::format("wide_scale_{}", x[0]),
                     .op = "RMSNormalization",
                     .attributes = last,
                     .inputs = {random(x, -1, 3), wide(random(row, 0.5, 1.5))},
                     .outputs = 2,
                     .project = {0}});
    cases.push_back({.name = fmt::format("wide_scale_{}", x[0]),
                     .op = "LayerNormalizationGrad",
                     .attributes = last,
                     .inputs = {random(x), random(x, -1, 3), wide(random(row, 0.5, 1.5)), statistic(random(rows, 0.9, 1.1)),
                                statistic(random(rows, 0.8, 1))},
                     .outputs = 3});
    cases.push_back({.name = fmt::format("wide_scale_{}", x[0]),
                     .op = "RMSNormalizationGrad",
                     .attributes = last,
                     .inputs = {random(x), random(x, -1, 3), wide(random(row, 0.5, 1.5)), statistic(random(rows, 0.6, 0.7))},
                     .outputs = 2});
  }
  for (const char* op : {"LayerNormalization", "RMSNormalization"}) {
    const bool layer = std::string_view(op) == "LayerNormalization";
    cases.push_back({.name = "to_bfloat16",
                     .op = op,
                     .attributes = {{"to", static_cast<int64_t>(DType::bfloat16)}},
                     .inputs = {random({5, 37}, -1, 3), random({37}, 0.5, 1.5)},
                     .outputs = layer ? size_t{3} : size_t{2},
                     .tolerance = 0x1p-8,
                     .gradient = false,
                     .attributes64 = Attributes{}});
  }
  cases.push_back({.name = "constant_row",
                   .op = "LayerNormalization",
                   .attributes = {{"epsilon", 0.25f}},
                   .inputs = {floats({1, 4}, {7}), floats({4}, {1}), floats({4}, {3})},
                   .outputs = 3,
                   .gradient = false,
                   .expected = {{3, 3, 3, 3}, {7}, {2}}});
}

}  // namespace

std::vector<OpCase> normalization_op_cases() {
  std::vector<OpCase> cases;
  softmax_cases(cases);
  layer_cases(cases);
  return cases;
}

}  // namespace ort_train::fixtures
