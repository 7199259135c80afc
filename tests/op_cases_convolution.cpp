// Cases of the op test table: convolutions, pools, batch normalisation.

#include <fmt/format.h>

#include "tests/op_cases.h"

namespace ort_train::fixtures {
namespace {

using Numbers = std::vector<int64_t>;

struct Window {
  Numbers kernel, strides = {}, pads = {}, dilations = {};
};

Attributes attributes_of(const Window& window) {
  Attributes attributes{{"kernel_shape", window.kernel}};
  if (!window.strides.empty()) attributes.set("strides", window.strides);
  if (!window.pads.empty()) attributes.set("pads", window.pads);
  if (!window.dilations.empty()) attributes.set("dilations", window.dilations);
  return attributes;
}

// Elements of an output along each axis.
Shape windowed(const Window& window, Shape shape) {
  const size_t axes = shape.size();
  for (size_t i = 0; i < axes; ++i) {
    const int64_t stride = window.strides.empty() ? 1 : window.strides[i], dilation = window.dilations.empty() ? 1 : window.dilations[i];
    const int64_t padding = window.pads.empty() ? 0 : window.pads[i] + window.pads[axes + i];
    shape[i] = (shape[i] + padding - dilation * (window.kernel[i] - 1) - 1) / stride + 1;
  }
  return shape;
}

void conv_cases(std::vector<OpCase>& cases) {
  struct Form {
    std::string name;
    int64_t batch, channels, outputs, groups;
    Shape size;
    Window window;
    bool bias = false;
  };
  std::vector<Form> forms{
      {"plain", 2, 3, 4, 1, {5, 6}, {{3, 2}}, true},
      {"same", 2, 3, 5, 1, {6, 5}, {{3, 3}, {}, {1, 1, 1, 1}}},
      {"strides", 2, 3, 4, 1, {7, 9}, {{3, 3}, {2, 3}, {1, 1, 1, 1}}, true},
      {"dilations", 1, 2, 3, 1, {9, 8}, {{3, 2}, {}, {}, {2, 3}}},
      {"uneven_pads", 2, 2, 3, 1, {5, 4}, {{3, 3}, {2, 1}, {0, 2, 1, 0}}, true},
      {"wide_pads", 1, 1, 2, 1, {2, 3}, {{3, 3}, {1, 2}, {4, 3, 3, 5}}},
      {"all", 2, 4, 6, 2, {9, 10}, {{3, 2}, {2, 3}, {2, 1, 1, 2}, {2, 2}}, true},
      {"groups", 2, 6, 4, 2, {5, 5}, {{3, 3}, {}, {1, 1, 1, 1}}},
      {"depthwise", 2, 5, 5, 5, {6, 6}, {{3, 3}, {}, {1, 1, 1, 1}}, true},
      {"depthwise_twice", 1, 3, 6, 3, {5, 7}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}},
      {"one_tap", 2, 7, 5, 1, {4, 6}, {{1, 1}}, true},
      {"one_tap_strides", 2, 5, 4, 1, {6, 7}, {{1, 1}, {2, 2}}},
      {"one_tap_strides_large", 3, 18, 34, 1, {29, 43}, {{1, 1}, {2, 2}}, true},
      {"one_tap_groups", 2, 6, 4, 2, {3, 5}, {{1, 1}}, true},
      {"one_axis", 2, 3, 4, 1, {11}, {{3}, {2}, {1, 2}}, true},
      {"one_axis_dilations", 2, 4, 4, 2, {13}, {{3}, {1}, {2, 2}, {2}}},
      {"whole", 3, 2, 4, 1, {4, 4}, {{4, 4}}, true},
      {"no_samples", 0, 3, 4, 1, {5, 5}, {{3, 3}}, true},
      // Several tiles of windows and channels, several pieces of the batch, blocks of depth.
      {"windows", 1, 6, 9, 1, {40, 41}, {{3, 3}, {}, {1, 1, 1, 1}}, true},
      {"channels", 2, 130, 70, 1, {6, 7}, {{3, 3}, {}, {1, 1, 1, 1}}},
      {"pieces", 19, 5, 8, 1, {6, 6}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}, true},
      {"last_piece", 20, 8, 8, 1, {14, 14}, {{3, 3}}},  // of fewer samples, and so of another depth
      {"small_last_piece", 100, 8, 8, 1, {8, 8}, {{3, 3}}},
      {"one_tap_tiles", 3, 210, 100, 1, {25, 23}, {{1, 1}}, true},
      {"seven", 2, 3, 16, 1, {33, 35}, {{7, 7}, {2, 2}, {3, 3, 3, 3}}},
      {"large", 1, 150, 600, 1, {5, 5}, {{3, 3}, {}, {1, 1, 1, 1}}},
      {"images", 2, 64, 48, 1, {28, 28}, {{3, 3}, {}, {1, 1, 1, 1}}, true},
      {"images_strides", 3, 32, 40, 1, {28, 28}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}, true},
      {"images_groups", 2, 48, 72, 3, {15, 14}, {{3, 3}, {}, {1, 1, 1, 1}}, true},
      {"images_depthwise", 5, 40, 40, 40, {29, 28}, {{5, 5}, {2, 2}, {2, 2, 2, 2}}, true},
      {"images_dilations", 2, 18, 24, 1, {17, 19}, {{3, 3}, {2, 1}, {2, 4, 1, 3}, {2, 3}}, true},
      {"images_wide_pads", 2, 17, 33, 1, {6, 9}, {{3, 2}, {}, {4, 3, 3, 5}}},
      {"images_shared", 1, 20, 100, 1, {40, 41}, {{3, 5}, {1, 2}, {1, 2, 1, 2}}},  // several tasks have a band's windows
      {"images_shared_groups", 2, 96, 200, 2, {9, 7}, {{3, 3}, {2, 1}, {1, 1, 1, 1}}, true},
      {"images_shared_plain", 3, 100, 100, 1, {7, 7}, {{1, 1}}, true},
      {"images_windows", 3, 20, 50, 1, {40, 41}, {{3, 5}, {1, 2}, {1, 2, 1, 2}}},
      {"depthwise_lanes", 3, 37, 37, 37, {30, 31}, {{7, 7}, {}, {3, 3, 3, 3}}, true},
      {"depthwise_strides", 2, 19, 19, 19, {12, 17}, {{3, 5}, {2, 3}, {0, 2, 1, 1}}},
      {"depthwise_dilations", 2, 16, 16, 16, {14, 12}, {{3, 3}, {2, 1}, {4, 1, 3, 2}, {2, 2}}, true},
      {"depthwise_wide_pads", 1, 3, 3, 3, {4, 5}, {{3, 2}, {2, 2}, {5, 3, 4, 4}}},
      {"depthwise_long", 2, 18, 18, 18, {2600}, {{5}, {}, {1100, 2}}, true},  // several strips, one of padding alone
      {"depthwise_long_strides", 1, 3, 3, 3, {2600}, {{4}, {3}, {2, 1}}},
      {"few_tiles", 4, 150, 83, 1, {7, 7}, {{3, 3}, {}, {1, 1, 1, 1}}, true},  // and many channels
      {"few_uneven_tiles", 5, 90, 101, 1, {5, 9}, {{3, 3}, {}, {1, 1, 1, 1}}},
      {"images_blocks", 4, 8, 400, 1, {14, 14}, {{3, 3}, {}, {1, 1, 1, 1}}},  // sums over channels of y in two blocks
      {"images_shared_pads", 2, 16, 24, 1, {29, 28}, {{3, 3}, {}, {1, 1, 1, 1}}},
      {"images_plain", 3, 96, 80, 2, {14, 14}, {{1, 1}}, true},
      {"many_taps", 3, 9, 8, 1, {23, 24}, {{21, 20}, {}, {1, 0, 1, 2}}, true},  // a channel's taps are several blocks
  };
  // Rows of windows that end inside a vector, and with the last element of x.
  for (const int64_t windows : {5, 9, 12, 16, 17, 23, 33})
    forms.push_back({fmt::format("one_tap_strides_{}", windows), 8, 18, 34, 1, {3, 2 * windows - 1}, {{1, 1}, {2, 2}}, true});
  for (const Form& f : forms) {
    Shape x{f.batch, f.channels}, w{f.outputs, f.channels / f.groups}, y{f.batch, f.outputs};
    x.insert(x.end(), f.size.begin(), f.size.end());
    w.insert(w.end(), f.window.kernel.begin(), f.window.kernel.end());
    const Shape size = windowed(f.window, f.size);
    y.insert(y.end(), size.begin(), size.end());
    Attributes attributes = attributes_of(f.window);
    attributes.set("group", f.groups);
    const bool is_small = element_count(x) * f.outputs < 40'000;
    OpCase forward{.name = f.name, .op = "Conv", .attributes = attributes, .inputs = {random(x), random(w)}, .gradient = is_small};
    if (f.bias) forward.inputs.push_back(random({f.outputs}));
    cases.push_back(std::move(forward));
    attributes.set("shape", x);
    cases.push_back({.name = f.name, .op = "ConvInputGrad", .attributes = attributes, .inputs = {random(y), random(w)}});
    cases.push_back(
        {.name = f.name, .op = "ConvTranspose", .attributes = attributes, .inputs = {random(y), random(w)}, .gradient = is_small});
    attributes.set("shape", w);
    cases.push_back({.name = f.name, .op = "ConvWeightGrad", .attributes = attributes, .inputs = {random(y), random(x)}});
    if (f.groups > 1) continue;
    // A part of the weight, neither the first nor the last where there are enough channels; then the last.
    const int64_t count = f.outputs / 2, first = f.outputs / 3;
    Shape part = w;
    part[0] = count;
    attributes.set("first", first);
    attributes.set("rows", count);
    cases.push_back({.name = f.name + "_part", .op = "ConvWeightGrad", .attributes = attributes, .inputs = {random(y), random(x)}});
    attributes.set("total", f.outputs);
    cases.push_back({.name = f.name,
                     .op = "ConvPart",
                     .attributes = attributes,
                     .inputs = {random(x), random(part), f.bias ? random({f.outputs}) : absent(), random(y)}});
    attributes.set("shape", x);
    const Shape products{f.batch, element_count(Shape(w.begin() + 1, w.end())), element_count(size)};
    for (const auto& [name, from] : {std::pair("_part", first), {"_last", f.outputs - count}}) {
      attributes.set("first", from);
      cases.push_back({.name = f.name + std::string(name),
                       .op = "ConvInputGrad",
                       .attributes = attributes,
                       .inputs = {random(y), random(part), statistic(random(products))}});
    }
  }
  // So many products that they are made of some samples, or of some channels, at a time.
  for (const auto& [name, x] : {std::pair("samples_at_a_time", Shape{3, 64, 52, 52}), {"channels_at_a_time", Shape{1, 80, 90, 90}}}) {
    cases.push_back({.name = name,
                     .op = "ConvInputGrad",
                     .attributes = {{"kernel_shape", Numbers{3, 3}}, {"pads", Numbers{1, 1, 1, 1}}, {"group", int64_t{2}}, {"shape", x}},
                     .inputs = {random({x[0], 4, x[2], x[3]}), random({4, x[1] / 2, 3, 3})}});
  }
  cases.push_back({.name = "numbers",
                   .op = "Conv",
                   .attributes = {{"kernel_shape", Numbers{2, 2}}, {"strides", Numbers{1, 2}}, {"pads", Numbers{0, 1, 0, 0}}},
                   .inputs = {floats({1, 1, 2, 3}, {1, 2, 3, 4, 5, 6}), floats({1, 1, 2, 2}, {1, 10, 100, 1000}), floats({1}, {0.5})},
                   .expected = {{4010.5, 6532.5}}});
}

// Operands of different types, rounded when they are read; results of 16 bits and of float32.
void rounded_conv_cases(std::vector<OpCase>& cases) {
  const Window window{{3, 3}, {2, 1}, {1, 1, 1, 1}, {1, 2}};
  const Shape x{2, 8, 13, 14}, w{16, 4, 3, 3}, y{2, 16, 7, 12};
  for (const DType compute : {DType::float16, DType::bfloat16})
    for (const DType to : {compute, DType::float32}) {
      Attributes attributes = attributes_of(window);
      attributes.set("group", int64_t{2});
      attributes.set("compute", static_cast<int64_t>(compute));
      attributes.set("to", static_cast<int64_t>(to));
      const auto add = [&](const char* op, const Shape& shape, std::vector<OpInput> inputs) {
        if (!shape.empty()) attributes.set("shape", shape);
        cases.push_back({.name = fmt::format("rounded_to_{}_{}", to_string(compute), to_string(to)),
                         .op = op,
                         .attributes = attributes,
                         .inputs = std::move(inputs),
                         .tolerance = 1e-2,
                         .gradient = false,
                         .float64 = false});
      };
      add("Conv", {}, {random(x), statistic(random(w)), statistic(random({16}))});
      add("ConvInputGrad", x, {random(y), statistic(random(w))});
      add("ConvWeightGrad", w, {random(y), random(x)});
    }
}

void pool_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    Shape x;
    Window window;
    bool ceil = false, padding = false;
  };
  const std::vector<Form> forms{
      {"two", {2, 3, 6, 4}, {{2, 2}, {2, 2}}},
      {"three", {2, 3, 7, 8}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}},
      {"three_padding", {2, 3, 7, 8}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}, false, true},
      {"overlapping", {1, 2, 6, 6}, {{3, 2}}},
      {"uneven_pads", {1, 2, 5, 6}, {{3, 3}, {1, 2}, {0, 1, 2, 0}}, false, true},
      {"ceil", {2, 2, 6, 7}, {{3, 3}, {2, 2}}, true},
      {"ceil_padding", {2, 2, 6, 7}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}, true, true},
      {"ceil_beyond", {2, 3, 4, 5}, {{7, 9}, {7, 9}}, true},
      {"ceil_behind", {1, 1, 3, 3}, {{1, 1}, {2, 3}, {0, 0, 0, 1}}, true},
      {"dilations", {1, 2, 9, 8}, {{2, 3}, {2, 1}, {}, {3, 2}}},
      {"one_axis", {2, 3, 11}, {{3}, {2}, {1, 0}}, true, true},
      {"whole", {2, 3, 4, 5}, {{4, 5}}},
      {"planes", {3, 40, 17, 19}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}},
      {"no_samples", {0, 3, 4, 4}, {{2, 2}, {2, 2}}},
      {"large_windows", {2, 5, 19, 23}, {{5, 7}, {1, 2}, {2, 3, 2, 3}}},
      {"images", {2, 16, 56, 56}, {{3, 3}, {2, 2}, {1, 1, 1, 1}}},
  };
  for (const Form& f : forms) {
    Attributes attributes = attributes_of(f.window);
    if (f.ceil) attributes.set("ceil_mode", int64_t{1});
    Shape y = f.x;
    const Shape size = windowed(f.window, Shape(f.x.begin() + 2, f.x.end()));
    std::copy(size.begin(), size.end(), y.begin() + 2);
    const bool is_small = element_count(f.x) < 5000;
    cases.push_back({.name = f.name, .op = "MaxPool", .attributes = attributes, .inputs = {random(f.x)}, .gradient = is_small});
    if (!f.ceil) cases.push_back({.name = f.name, .op = "MaxPoolGrad", .attributes = attributes, .inputs = {random(y), random(f.x)}});
    if (f.padding) attributes.set("count_include_pad", int64_t{1});
    cases.push_back({.name = f.name, .op = "AveragePool", .attributes = attributes, .inputs = {random(f.x)}, .gradient = is_small});
    attributes.set("shape", f.x);
    if (!f.ceil) cases.push_back({.name = f.name, .op = "AveragePoolGrad", .attributes = attributes, .inputs = {random(y)}});
  }
  // The first of equal elements gets the gradient; NaN is the largest, the last of several.
  const Attributes pairs{{"kernel_shape", Numbers{2}}, {"strides", Numbers{2}}, {"pads", Numbers{1, 1}}};
  cases.push_back({.name = "equal",
                   .op = "MaxPoolGrad",
                   .attributes = {{"kernel_shape", Numbers{2, 2}}},
                   .inputs = {floats({1, 1, 2, 1}, {1, 10}), floats({1, 1, 3, 2}, {7, 7, 7, 7, 7, 8})},
                   .expected = {{1, 0, 0, 0, 0, 10}}});
  cases.push_back({.name = "nan",
                   .op = "MaxPool",
                   .attributes = pairs,
                   .inputs = {floats({1, 1, 4}, {-5, kNaN, 3, -kInfinity})},
                   .gradient = false,
                   .expected = {{-5, kNaN, -kInfinity}}});
  cases.push_back({.name = "nan",
                   .op = "MaxPoolGrad",
                   .attributes = pairs,
                   .inputs = {floats({1, 1, 3}, {1, 2, 4}), floats({1, 1, 4}, {-5, kNaN, kNaN, -kInfinity})},
                   .expected = {{1, 0, 2, 4}}});
  cases.push_back(
      {.name = "numbers", .op = "AveragePool", .attributes = pairs, .inputs = {floats({1, 1, 4}, {6, 2, 4, 8})}, .expected = {{6, 3, 8}}});
}

void batch_normalization_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    Shape x;
    float epsilon = 1e-5f;
  };
  // Channels of one, of few and of many elements; several blocks of a channel, several pieces of a batch.
  const std::vector<Form> forms{
      {"images", {3, 4, 5, 6}},        {"matrix", {7, 5}},         {"many_channels", {9, 150}, 0.1f}, {"one_axis", {4, 3, 11}},
      {"few_elements", {5, 70, 2, 3}}, {"blocks", {2, 3, 37, 61}}, {"pieces", {300, 2, 20, 20}},      {"one_channel", {6, 1, 4, 4}},
      {"no_samples", {0, 3, 2, 2}},    {"lines", {9, 20, 7, 8}},   {"large", {24, 8, 28, 28}}};
  for (const Form& f : forms) {
    const Shape channels{f.x[1]};
    Attributes attributes{{"epsilon", f.epsilon}};
    const bool is_small = element_count(f.x) < 3000;
    cases.push_back({.name = f.name,
                     .op = "BatchNormalization",
                     .attributes = attributes,
                     .inputs = {random(f.x), random(channels), random(channels), fixed(random(channels)), fixed(random(channels, 0.2, 2))},
                     .gradient = is_small});
    cases.push_back({.name = f.name,
                     .op = "LiveBatchNormalization",
                     .attributes = attributes,
                     .inputs = {random(f.x, -1, 3), random(channels), random(channels)},
                     .outputs = 3,
                     .gradient = is_small});
    if (f.x.size() == 4) {  // y * a number of each channel, then what of it isn't negative
      Attributes fused = attributes;
      fused.set("ops", text("Mul Relu"));
      fused.set("operands", std::vector<int64_t>{2, 0, 1, 1, -1});
      const OpInput factors = random({f.x[1], 1, 1});
      fused.set("own_inputs", int64_t{5});
      cases.push_back({.name = f.name,
                       .op = "FusedBatchNormalization",
                       .attributes = fused,
                       .inputs = {random(f.x), random(channels), random(channels), random(channels), random(channels, 0.2, 2), factors}});
      fused.set("own_inputs", int64_t{3});
      cases.push_back({.name = f.name,
                       .op = "FusedLiveBatchNormalization",
                       .attributes = fused,
                       .inputs = {random(f.x, -1, 3), random(channels), random(channels), factors},
                       .outputs = 3});
    }
    for (const int64_t live : {0, 1}) {
      attributes.set("live", live);
      for (const size_t outputs : {1, 2, 3}) {
        cases.push_back({.name = std::string(f.name) + (live ? "_live" : "_frozen") + std::to_string(outputs),
                         .op = "BatchNormalizationGrad",
                         .attributes = attributes,
                         .inputs = {random(f.x), random(f.x), random(channels), random(channels), random(channels, 0.2, 2)},
                         .outputs = outputs});
      }
    }
  }
  cases.push_back({.name = "numbers",
                   .op = "LiveBatchNormalization",
                   .attributes = {{"epsilon", 0.0f}},
                   .inputs = {floats({2, 1, 2}, {1, 3, 5, 7}), floats({1}, {10}), floats({1}, {1})},
                   .outputs = 3,
                   .gradient = false,
                   .expected = {{}, {4}, {5}}});
  for (const int64_t n : {1, 70}) {
    cases.push_back({.name = std::to_string(n),
                     .op = "RunningStatistics",
                     .attributes = {{"momentum", 0.9f}},
                     .inputs = {random({n}), random({n}, 0, 2), random({n}), random({n}, 0, 2)},
                     .outputs = 2});
  }
  cases.push_back({.name = "numbers",
                   .op = "RunningStatistics",
                   .attributes = {{"momentum", 0.75f}},
                   .inputs = {floats({2}, {4, 8}), floats({2}, {1, 2}), floats({2}, {8, 0}), floats({2}, {5, 6})},
                   .outputs = 2,
                   .expected = {{5, 6}, {2, 3}}});
  // A layer that is applied several times.
  OpCase applied{.name = "applied_again", .op = "RunningStatistics", .attributes = {{"momentum", 0.9f}}, .outputs = 2};
  for (int batch = 0; batch < 7; ++batch) {
    applied.inputs.push_back(random({70}));
    applied.inputs.push_back(random({70}, 0, 2));
  }
  cases.push_back(applied);
  cases.push_back({.name = "numbers_again",
                   .op = "RunningStatistics",
                   .attributes = {{"momentum", 0.5f}},
                   .inputs = {floats({1}, {4}), floats({1}, {1}), floats({1}, {8}), floats({1}, {5}), floats({1}, {2}), floats({1}, {1})},
                   .outputs = 2,
                   .expected = {{4}, {2}}});
}

}  // namespace

std::vector<OpCase> convolution_op_cases() {
  std::vector<OpCase> cases;
  conv_cases(cases);
  rounded_conv_cases(cases);
  pool_cases(cases);
  batch_normalization_cases(cases);
  return cases;
}

}  // namespace ort_train::fixtures
