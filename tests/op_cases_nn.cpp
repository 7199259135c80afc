// Cases of the op test table: losses, optimizers, dropout.

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "exec/ops/adafactor.h"
#include "exec/ops/adagrad.h"
#include "exec/ops/adamw.h"
#include "exec/ops/lamb.h"
#include "exec/ops/lars.h"
#include "exec/ops/lion.h"
#include "exec/ops/rmsprop.h"
#include "exec/ops/sgd.h"
#include "exec/random.h"
#include "graph/op_def.h"
#include "tests/op_cases.h"

namespace ort_train::fixtures {
namespace {

void loss_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    Shape labels;
    int64_t classes;
  };
  for (const Form& f : {Form{"rows", {5}, 7}, Form{"sequences", {2, 3}, 17}, Form{"one_row", {}, 4}, Form{"many_rows", {3001}, 5},
                        Form{"many_classes", {3}, 50257}, Form{"even_classes", {3}, 34824}, Form{"some_classes", {11}, 3001}}) {
    Shape logits = f.labels;
    logits.push_back(f.classes);
    const Attributes attributes{{"ignore_index", int64_t{3}}};
    for (const auto& [smoothing, z_loss] : {std::pair{0.1f, 0.0f}, {0.0f, 0.25f}, {0.3f, 0.01f}}) {
      cases.push_back({.name = fmt::format("{}_smoothed_{}_z_{}", f.name, static_cast<int>(smoothing * 10), static_cast<int>(z_loss * 100)),
                       .op = "SoftmaxCrossEntropy",
                       .attributes = {{"ignore_index", int64_t{3}}, {"smoothing", smoothing}, {"z_loss", z_loss}},
                       .inputs = {random(logits, -3, 3), random_ints(f.labels, 0, f.classes - 1)},
                       .outputs = 2,
                       .project = {0},
                       .gradient = f.classes < 100 && element_count(f.labels) < 100});
    }
    cases.push_back({.name = f.name,
                     .op = "SoftmaxCrossEntropy",
                     .attributes = attributes,
                     .inputs = {random(logits, -3, 3), random_ints(f.labels, 0, f.classes - 1)},
                     .outputs = 2,
                     .project = {0},
                     .gradient = f.classes < 100 && element_count(f.labels) < 100});
    cases.push_back({.name = f.name,
                     .op = "SoftmaxCrossEntropyGrad",
                     .attributes = attributes,
                     .inputs = {statistic(floats({}, {0.3})), random(logits, -3, 3), statistic(random(f.labels, 3, 5)),
                                random_ints(f.labels, 0, f.classes - 1)},
                     .tolerance = 2e-6});
    cases.push_back({.name = f.name, .op = "CountLabels", .attributes = attributes, .inputs = {random_ints(f.labels, 0, 4)}});
    Shape state = f.labels;
    state.push_back(5);
    const Attributes part{
        {"ignore_index", int64_t{3}}, {"smoothing", 0.1f}, {"z_loss", 0.01f}, {"from", int64_t{256}}, {"classes", 256 + f.classes}};
    const OpInput labels = random_ints(f.labels, 0, 255 + f.classes),
                  before{.dtype = DType::float64, .shape = state, .low = 0.5, .high = 2, .differentiate = false};
    cases.push_back({.name = f.name,
                     .op = "SoftmaxCrossEntropyPart",
                     .attributes = part,
                     .inputs = {random(logits, -3, 3), labels},
                     .gradient = false});
    cases.push_back({.name = f.name + std::string("_goes_on"),
                     .op = "SoftmaxCrossEntropyPart",
                     .attributes = part,
                     .inputs = {random(logits, -3, 3), labels, before},
                     .gradient = false});
    cases.push_back({.name = f.name,
                     .op = "SoftmaxCrossEntropyOfParts",
                     .attributes = part,
                     .inputs = {before, labels},
                     .outputs = 2,
                     .gradient = false});
    cases.push_back({.name = f.name + std::string("_part"),
                     .op = "SoftmaxCrossEntropyGrad",
                     .attributes = part,
                     .inputs = {statistic(floats({}, {0.3})), random(logits, -3, 3), statistic(random(f.labels, 3, 5)), labels},
                     .tolerance = 2e-6});
    const OpInput weights = statistic(fixed(random({f.classes}, 0.1, 2)));
    for (const auto& [smoothing, z_loss] : {std::pair{0.0f, 0.0f}, {0.3f, 0.01f}}) {
      cases.push_back({.name = fmt::format("{}_weighted_{}", f.name, static_cast<int>(smoothing * 10)),
                       .op = "SoftmaxCrossEntropy",
                       .attributes = {{"ignore_index", int64_t{3}}, {"smoothing", smoothing}, {"z_loss", z_loss}},
                       .inputs = {random(logits, -3, 3), random_ints(f.labels, 0, f.classes - 1), weights},
                       .outputs = 2,
                       .project = {0},
                       .gradient = f.classes < 100 && element_count(f.labels) < 100});
      OpCase slope{.name = fmt::format("{}_smoothed_{}", f.name, static_cast<int>(smoothing * 10)),
                   .op = "SoftmaxCrossEntropyGrad",
                   .attributes = {{"ignore_index", int64_t{3}}, {"smoothing", smoothing}, {"z_loss", z_loss}},
                   .inputs = {statistic(floats({}, {0.3})), random(logits, -3, 3), statistic(random(f.labels, 3, 5)),
                              random_ints(f.labels, 0, f.classes - 1)},
                   .tolerance = 2e-6};
      if (smoothing != 0) cases.push_back(slope);
      slope.name = fmt::format("{}_weighted_{}", f.name, static_cast<int>(smoothing * 10));
      slope.inputs.push_back(weights);
      cases.push_back(slope);
    }
    cases.push_back({.name = fmt::format("{}_weighted", f.name),
                     .op = "CountLabels",
                     .attributes = attributes,
                     .inputs = {random_ints(f.labels, 0, f.classes - 1), weights}});
  }
  // Labels of several lengths, with repetitions (which need a blank between them); as many time steps as they need at the least, and more.
  const OpInput sequences = ints({3, 4}, {1, 2, 2, 1, 3, -100, -100, -100, -1, 0, 0, 0});
  for (const int64_t blank : {0, 4}) {
    for (const bool has_lengths : {false, true}) {
      OpCase ctc{.name = fmt::format("blank_{}{}", blank, has_lengths ? "_lengths" : ""),
                 .op = "CtcLoss",
                 .attributes = {{"blank", blank}},
                 .inputs = {random({3, 7, 5}, -4, 0), sequences},
                 .outputs = 2,
                 .tolerance = 3e-6,
                 .project = {0}};
      if (has_lengths) ctc.inputs.push_back(ints({3}, {5, 4, 7}));
      cases.push_back(ctc);
    }
  }
  cases.push_back({.name = "many_labels",
                   .op = "CtcLoss",
                   .inputs = {random({3, 170, 11}, -4, 0), random_ints({3, 70}, 1, 10)},
                   .outputs = 2,
                   .tolerance = 3e-6,
                   .gradient = false});
  // Four labels and a repetition in four steps: no path spells them.
  cases.push_back({.name = "impossible",
                   .op = "CtcLoss",
                   .attributes = {{"zero_infinity", int64_t{1}}},
                   .inputs = {random({1, 4, 5}, -4, 0), ints({1, 4}, {1, 2, 2, 1})},
                   .outputs = 2,
                   .gradient = false,
                   .expected = {{0}, std::vector<double>(20, 0)}});
  cases.push_back({.name = "ignored",
                   .op = "SoftmaxCrossEntropy",
                   .attributes = {{"ignore_index", int64_t{-100}}},
                   .inputs = {floats({3, 2}, {0, 0, 0, 0, 1000, 0}), ints({3}, {1, -100, 0})},
                   .outputs = 2,
                   .gradient = false,
                   .expected = {{std::log(2)}, {std::log(2), std::log(2), 1000}},
                   .ulps = 1});
  cases.push_back(
      {.name = "ignored",
       .op = "SoftmaxCrossEntropyGrad",
       .attributes = {{"ignore_index", int64_t{-100}}},
       .inputs = {statistic(floats({}, {2})), floats({2, 2}, {0, 0, 0, 0}), statistic(floats({2}, {std::log(2)})), ints({2}, {1, -100})},
       .expected = {{1, -1, 0, 0}},
       .ulps = 1});
  cases.push_back({.name = "ignored",
                   .op = "CountLabels",
                   .attributes = {{"ignore_index", int64_t{-100}}},
                   .inputs = {ints({4}, {1, -100, 0, -100})},
                   .expected = {{2}}});
  cases.push_back({.name = "matrix", .op = "SquaredError", .inputs = {random({5, 7}), random({5, 7})}});
  cases.push_back(
      {.name = "numbers", .op = "SquaredError", .inputs = {floats({3}, {1, 2, 3}), floats({3}, {1, 4, 0})}, .expected = {{13}}});
  cases.push_back({.name = "blocks", .op = "SquaredError", .inputs = {random({3, 50021}), random({3, 50021})}, .gradient = false});
}

// Small ones with numbers that are easily computed; large ones of several tasks, of rows shorter and longer than the lanes of a sum.
void adafactor_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const char* name, const char* op, Attributes attributes, std::vector<OpInput> inputs, size_t outputs,
                       std::vector<std::vector<double>> expected = {}) {
    cases.push_back({.name = name,
                     .op = op,
                     .attributes = std::move(attributes),
                     .inputs = std::move(inputs),
                     .outputs = outputs,
                     .float64 = false,
                     .expected = std::move(expected)});
  };
  const auto doubles = [](Shape shape, std::vector<double> values) {
    return OpInput{.dtype = DType::float64, .shape = std::move(shape), .values = std::move(values)};
  };
  // rate, decay rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon
  const OpInput half = floats({}, {0.5}), scalars = floats({kAdafactorScalars}, {0.5, 0.125, 0.5, 0.5, 0.5, 0.5, 0}),
                g = floats({2, 2}, {1, 2, 3, 4}), factor = floats({2}, {0.5, 2}), rates = floats({2}, {0.5, 0.25});
  const Attributes rows{{"rows", int64_t{2}}}, decay{{"weight_decay", 0.5f}, {"rows", int64_t{2}}};
  Attributes floored = decay;
  floored.set("floor", 2.0f);
  add("numbers", "AdafactorRows", {}, {g, floats({2}, {2, 4}), half, scalars}, 3, {{1.3125, 3.5625}, {2.5, 5}, {4.875}});
  add("goes_on", "AdafactorRows", {}, {g, floats({2}, {2, 4}), half, scalars, doubles({1, 2}, {10, 20}), doubles({1}, {1})}, 3,
      {{1.3125, 3.5625}, {12.5, 25}, {5.875}});
  add("numbers", "AdafactorColumns", rows, {floats({2}, {2, 0.25}), doubles({1, 2}, {12, 0.5}), half, scalars}, 2, {{4, 0.25}, {0.5, 2}});
  add("numbers", "AdafactorSquares", rows, {g, floats({2}, {1, 4}), doubles({1}, {8}), factor, half}, 1, {{32.8125}});
  const Attributes scale{{"clip_threshold", 2.0f}, {"elements", int64_t{4}}};
  add("numbers", "AdafactorScale", scale, {scalars, doubles({1}, {32}), doubles({2}, {16, 16})}, 1, {{0.5, 0.25}});
  add("below", "AdafactorScale", scale, {scalars, doubles({1}, {15})}, 1, {{0.5, 0.5}});
  Attributes scaled = scale;
  scaled.set("scale_epsilon", 1.0f);
  add("scaled", "AdafactorScale", scaled, {scalars, doubles({1}, {32}), doubles({1}, {32}), doubles({1}, {15}), doubles({1}, {1})}, 1,
      {{1, 0.5}});
  scaled.set("decay_by_rate", int64_t{1});
  add("scaled by the least", "AdafactorScale", scaled, {scalars, doubles({1}, {64}), doubles({1}, {1})}, 1, {{0.125, 0.25}});
  const std::vector<OpInput> of_matrix{
      floats({2, 2}, {4, 8, 12, 16}), g, floats({2}, {1, 4}), doubles({1}, {8}), factor, half, rates, scalars};
  add("numbers", "AdafactorFactored", decay, of_matrix, 1, {{2.875, 5, 8.8125, 11}});
  add("floor", "AdafactorFactored", floored, of_matrix, 1, {{2.9375, 5.875, 8.8125, 11.75}});
  std::vector<OpInput> with_mean = of_matrix;
  with_mean.push_back(floats({2, 2}, {1, 1, 1, 1}));
  add("mean", "AdafactorFactored", decay, with_mean, 2, {{2.4375, 5, 8.40625, 11}, {0.5625, 1, 0.59375, 1}});
  add("numbers", "AdafactorMoment", {}, {floats({2}, {1, 2}), floats({2}, {0.25, 7}), half, scalars}, 2, {{0.25, 4}, {1.25}});
  add("floor", "AdafactorMoment", {{"floor", 1.0f}}, {floats({2}, {1, 2}), floats({2}, {0.25, 7}), half, scalars}, 2, {{0.25, 4}, {0.5}});
  std::vector<OpInput> of_vector{floats({2}, {4, 8}), floats({2}, {1, 2}), floats({2}, {0.25, 4}), half, rates, scalars};
  add("numbers", "AdafactorPlain", {{"weight_decay", 0.5f}}, of_vector, 1, {{2.75, 5.875}});
  of_vector.push_back(floats({2}, {1, 1}));
  add("mean", "AdafactorPlain", {{"weight_decay", 0.5f}}, of_vector, 2, {{2.375, 5.4375}, {0.625, 0.5625}});
  for (const auto& [name, shape] : {std::pair{"matrix", Shape{1000, 301}}, {"wide", {3, 70'000}}, {"kernels", {64, 300, 3, 3}}}) {
    const int64_t count = shape[shape.size() - 2], batch = element_count(shape.before(shape.size() - 2));
    Shape columns = shape.before(shape.size() - 2);
    columns.push_back(shape.back());
    const OpInput row = random(shape.before(shape.size() - 1), 0.1, 1), sum = doubles({batch}, {0.5 * static_cast<double>(count)});
    const Attributes of{{"rows", count}};
    add(name, "AdafactorRows", {}, {random(shape), row, half, scalars}, 3);
    add(name, "AdafactorColumns", of, {random(columns, 0.1, 1), doubles({batch, shape.back()}, {3}), half, scalars}, 2);
    add(name, "AdafactorSquares", of, {random(shape), row, sum, random(columns, 0.1, 1), half}, 1);
    add(name, "AdafactorFactored", of, {random(shape), random(shape), row, sum, random(columns, 0.1, 1), half, rates, scalars}, 1);
  }
  add("rows of mean", "AdafactorFactored", {{"rows", int64_t{40}}, {"weight_decay", 0.5f}},
      {random({40, 64}), random({40, 64}), random({40}, 0.1, 1), doubles({1}, {20}), random({64}, 0.1, 1), half, rates, scalars,
       random({40, 64})},
      2);
  add("blocks", "AdafactorMoment", {}, {random({200'003}), random({200'003}, 0.1, 1), half, scalars}, 2);
  add("blocks", "AdafactorPlain", {}, {random({200'003}), random({200'003}), random({200'003}, 0.1, 1), half, rates, scalars}, 1);
}

void trust_ratio_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const char* name, const char* op, Attributes attributes, std::vector<OpInput> inputs, size_t outputs,
                       std::vector<std::vector<double>> expected = {}) {
    cases.push_back({.name = name,
                     .op = op,
                     .attributes = std::move(attributes),
                     .inputs = std::move(inputs),
                     .outputs = outputs,
                     .float64 = false,
                     .expected = std::move(expected)});
  };
  const auto squares = [](std::vector<double> values) {
    const auto n = static_cast<int64_t>(values.size());
    return OpInput{.dtype = DType::float64, .shape = {n}, .values = std::move(values)};
  };
  // rate, trust ratio, beta1, gain1, beta2, 1 - beta2, both corrections, epsilon
  const OpInput lamb = floats({kLambScalars}, {0.5, 1, 0.5, 0.5, 0, 1, 2, 0.5, 0}), half = floats({}, {0.5});
  add("numbers", "LambSquares", {{"weight_decay", 0.5f}},
      {floats({2}, {1, -2}), floats({2}, {2, 4}), half, lamb, floats({2}, {1, 2}), floats({2}, {9, 9})}, 2, {{29.25}, {5}});
  for (const auto& [name, shape] : {std::pair{"matrix", Shape{1000, 301}}, {"wide", {3, 70'000}}, {"vector", {200'003}}, {"one", {1}}})
    add(name, "LambSquares", {{"weight_decay", 0.5f}}, {random(shape), random(shape), half, lamb, random(shape), random(shape, 0, 1)}, 2);
  add("two parts", "LambTrust", {}, {lamb, squares({16}), squares({0, 48}), squares({1, 2}), squares({1})}, 1,
      {{0.5, 0.25, 0.5, 0.5, 0, 1, 2, 0.5, 0}});
  add("no update", "LambTrust", {}, {lamb, squares({0}), squares({1})}, 1, {{0.5, 1, 0.5, 0.5, 0, 1, 2, 0.5, 0}});
  const Attributes of{{"trust_coefficient", 0.5f}, {"epsilon", 1.0f}, {"weight_decay", 0.25f}};
  const OpInput lars = floats({kLarsScalars}, {0.5, 1, 0.75});
  add("two parts", "LarsTrust", of, {lars, half, squares({16}), squares({20}), squares({0}), squares({16})}, 1, {{0.5, 0.4, 0.75}});
  add("no weight", "LarsTrust", of, {lars, half, squares({16}), squares({0})}, 1, {{0.5, 1, 0.75}});
}

void optimizer_cases(std::vector<OpCase>& cases) {
  adafactor_cases(cases);
  trust_ratio_cases(cases);
  for (const int64_t n : {1, 17, 65536, 200003}) {
    const std::string name = std::to_string(n);
    cases.push_back({.name = name, .op = "SumSquares", .inputs = {random({n})}});
    // Each of which the numbers of a step are all between 0.001 and 0.1.
    const auto update = [&](const std::string& of, const char* op, int64_t scalars, size_t states, Attributes attributes = {}) {
      std::vector<OpInput> inputs{random({n}), random({n}), floats({}, {0.5}), random({scalars}, 0.001, 0.1)};
      for (size_t i = 0; i < states; ++i) inputs.push_back(random({n}, 0, 1));
      attributes.set("weight_decay", 0.1f);
      cases.push_back({.name = of + name,
                       .op = op,
                       .attributes = std::move(attributes),
                       .inputs = std::move(inputs),
                       .outputs = 1 + states,
                       .float64 = false});
    };
    update("", "AdamW", kAdamWScalars, 2);
    update("", "Adam", kAdamWScalars, 2);
    update("plain_", "SGD", kSgdScalars, 0);
    update("", "SGD", kSgdScalars, 1);
    update("nesterov_", "SGD", kSgdScalars, 1, {{"nesterov", int64_t{1}}});
    update("", "Lion", kLionScalars, 1);
    update("", "Lamb", kLambScalars, 2);
    update("plain_", "Lars", kLarsScalars, 0);
    update("", "Lars", kLarsScalars, 1);
    update("", "Adagrad", kAdagradScalars, 1);
    update("", "RMSprop", kRmspropScalars, 1);
    update("momentum_", "RMSprop", kRmspropScalars, 2);
    update("centered_", "RMSprop", kRmspropScalars, 2, {{"centered", int64_t{1}}});
    update("centered_momentum_", "RMSprop", kRmspropScalars, 3, {{"centered", int64_t{1}}});
    cases.push_back({.name = name, .op = "Accumulate", .inputs = {random({n}), random({n})}});
    cases.push_back({.name = name, .op = "Store", .inputs = {floats({n}, std::vector<double>(static_cast<size_t>(n))), random({n})}});
    cases.push_back({.name = name, .op = "Clear", .inputs = {random({n})}, .expected = {std::vector<double>(static_cast<size_t>(n))}});
  }
  cases.push_back({.name = "numbers", .op = "SumSquares", .inputs = {floats({2, 2}, {1, -2, 3, 4})}, .expected = {{30}}});
  cases.push_back({.name = "rows", .op = "SumSquares", .inputs = {random({1000, 700})}});
  cases.push_back({.name = "wide rows", .op = "SumSquares", .inputs = {random({3, 70'000})}});
  cases.push_back({.name = "blocks of rows",  // 64 of them each
                   .op = "SumSquares",
                   .inputs = {floats({130, 1}, std::vector<double>(130, 2.0))},
                   .expected = {{256, 256, 8}}});
  const OpInput nine{.dtype = DType::float64, .shape = {1}, .values = {9}},
      sixteen{.dtype = DType::float64, .shape = {2}, .values = {12, 4}};
  cases.push_back({.name = "two", .op = "GlobalNorm", .inputs = {nine, sixteen}, .float64 = false, .expected = {{5}}});
  cases.push_back({.name = "one", .op = "GlobalNorm", .inputs = {nine}, .float64 = false, .expected = {{3}}});
  std::vector<OpInput> many;
  for (int64_t i = 0; i < 300; ++i) many.push_back({.dtype = DType::float64, .shape = {i == 200 ? 5000 : i % 4}, .low = 0, .high = 1});
  cases.push_back({.name = "many", .op = "GlobalNorm", .inputs = std::move(many), .float64 = false});
  const auto clip = [&](const char* name, double norm, double coefficient) {
    cases.push_back({.name = name,
                     .op = "UpdateFactor",
                     .attributes = {{"max_norm", 2.0f}},
                     .inputs = {floats({}, {norm})},
                     .float64 = false,
                     .expected = {{coefficient}},
                     .ulps = 1});
  };
  clip("above", 8, 2 / (8 + 1e-6));
  clip("below", 1.5, 1);
  clip("zero", 0, 1);
  clip("infinite", kInfinity, std::numeric_limits<double>::quiet_NaN());
  const auto scaled = [&](const char* name, float max_norm, double norm, double scale, double factor) {
    cases.push_back({.name = name,
                     .op = "UpdateFactor",
                     .attributes = {{"max_norm", max_norm}},
                     .inputs = {floats({}, {norm}), floats({}, {scale})},
                     .float64 = false,
                     .expected = {{factor}},
                     .ulps = 1});
  };
  scaled("scaled, above", 2, 8 * 1024, 1024, 2 / (8 + 1e-6) / 1024);
  scaled("scaled, below", 2, 1.5 * 1024, 1024, 1.0 / 1024);
  scaled("scaled by no power of two", 0, 7, 3, 1.0 / 3);
  scaled("scaled, infinite", 0, kInfinity, 1024, std::numeric_limits<double>::quiet_NaN());
  scaled("scaled down, beyond float32", 2, 1e30, 1e-30, std::numeric_limits<double>::quiet_NaN());
}

void dropout_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const char* name, Shape shape, float ratio, std::vector<double> random_numbers, int64_t shared = 0) {
    cases.push_back({.name = name,
                     .op = "Dropout",
                     .attributes = {{"ratio", ratio}, {"ordinal", int64_t{17}}, {"shared", shared}},
                     .inputs = {random(std::move(shape)), ints({kRandomNumbers}, std::move(random_numbers))}});
  };
  add("tenth", {3, 7, 11}, 0.1f, {42, 1, 0, 3});
  add("half", {2, 32771}, 0.5f, {42, 900000, 0, 2});
  add("most", {5, 13}, 0.9f, {-1, 1, 6, 5});
  add("later", {3, 50021}, 0.25f, {7, 3, 1000000, 3});
  add("shared", {4, 9}, 0.3f, {7, 3, 5, 2}, 1);
  add("empty", {0, 9}, 0.3f, {7, 3, 0, 1});
}

void draw_cases(std::vector<OpCase>& cases) {
  const auto add = [&](std::string name, Shape shape, bool normal, std::vector<double> random_numbers, int64_t shared = 0,
                       DType type = DType::float32) {
    const auto attributes = [&](DType to) {
      Attributes made{{"normal", int64_t{normal}}, {"offset", 0.5f}, {"factor", 1.75f}, {"shape", shape}, {"ordinal", int64_t{17}}};
      made.set("shared", shared);
      made.set("seed", int64_t{normal ? 0x3f800000 : 0});
      set_type(made, kResultType, to);
      return made;
    };
    const bool is_float32 = type == DType::float32;
    cases.push_back({.name = std::move(name),
                     .op = "DrawNumbers",
                     .attributes = attributes(type),
                     .inputs = {ints({kRandomNumbers}, std::move(random_numbers))},
                     .float64 = is_float32,
                     .attributes64 = is_float32 ? std::optional(attributes(DType::float64)) : std::nullopt});
  };
  for (const bool normal : {false, true}) {
    const std::string what = normal ? "normal" : "uniform";
    add(what, {3, 7, 11}, normal, {42, 1, 0, 3});
    add(what + "_large", {2, 32771}, normal, {42, 900000, 0, 2});
    add(what + "_negative_seed", {5, 13}, normal, {-1, 1, 6, 5});
    add(what + "_later", {3, 50021}, normal, {7, 3, 1000000, 3});
    add(what + "_shared", {4, 9}, normal, {7, 0, 5, 2}, 1);
    add(what + "_single", {}, normal, {7, 3, 0, 1});
    add(what + "_empty", {0, 9}, normal, {7, 3, 0, 1});
    add(what + "_float64", {3, 7, 11}, normal, {42, 1, 2, 3}, 0, DType::float64);
    add(what + "_float16", {3, 7, 11}, normal, {42, 1, 2, 3}, 0, DType::float16);
    add(what + "_bfloat16", {3, 4099}, normal, {42, 1, 3, 3}, 0, DType::bfloat16);
  }
}

void lstm_cases(std::vector<OpCase>& cases) {
  for (const auto& [name, batch, hidden] : {std::tuple("small", 3, 5), {"odd", 1, 67}, {"large", 9, 1030}, {"empty", 0, 4}}) {
    const Shape gates{batch, 4 * hidden}, state{batch, hidden};
    for (const bool mixes : {false, true}) {
      const OpInput c = mixes ? statistic(random(state)) : random(state);
      const std::string of = mixes ? fmt::format("{}, state in float32", name) : name;
      cases.push_back(
          {.name = of, .op = "LstmCell", .inputs = {random(gates, -2, 2), random(gates, -2, 2), c}, .outputs = 3, .project = {0, 1}});
      cases.push_back(
          {.name = of, .op = "LstmCellGrad", .inputs = {random(state), c, random(gates, 0, 1), c, c}, .outputs = 2, .gradient = false});
    }
  }
}

}  // namespace

std::vector<OpCase> nn_op_cases() {
  std::vector<OpCase> cases;
  loss_cases(cases);
  optimizer_cases(cases);
  dropout_cases(cases);
  draw_cases(cases);
  lstm_cases(cases);
  return cases;
}

}  // namespace ort_train::fixtures
