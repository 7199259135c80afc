// Import: which weights a model has, where they stand in its files, and which of them are one.

#include <fmt/format.h>
#include <fmt/printf.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/checker.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "frontend/export.h"
#include "frontend/import.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace pb = ort_train_onnx;

std::vector<float> counted(size_t n, float first = 1) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

// --- their places ---------------------------------------------------------------------------------------------------------------------

TEST(ImportWeights, LocatesWeightsInTheFile) {
  const TestFolder folder;
  pb::ModelProto model = model_of(kLayer);
  for (const bool raw : {false, true}) {
    if (raw) {
      for (auto& tensor : *model.mutable_graph()->mutable_initializer()) store_raw(tensor);
    }
    const Imported imported = import_file(write_model(folder, model), {.shapes = {{"batch", 4}}, .bound_inputs = {}});
    ASSERT_TRUE(imported.obstacles.empty());
    EXPECT_EQ(parameter_names(imported), (Names{"w", "b"}));
    ASSERT_EQ(imported.weights.size(), 2u);
    EXPECT_EQ(floats(weight_tensor(imported, imported.weights[0])), counted(6));
    EXPECT_EQ(floats(weight_tensor(imported, imported.weights[1])), (std::vector<float>{0.5f, -0.5f}));
    EXPECT_EQ(imported.weights[0].places[0].name, "w");
    EXPECT_EQ(imported.weights[0].places[0].shape, (Shape{3, 2}));
    EXPECT_EQ(imported.info.opset, 17);
    EXPECT_EQ(imported.info.producer, "pen 2");
    EXPECT_EQ(imported.info.nodes, 1);
    const Graph& graph = imported.graph;
    ASSERT_EQ(graph.inputs.size(), 1u);
    EXPECT_EQ(to_string(graph.value(graph.inputs[0]).type()), "float32 [4, 3]");
    ASSERT_EQ(graph.outputs.size(), 1u);
    EXPECT_EQ(graph.value(graph.outputs[0]).name, "y");
    EXPECT_EQ(to_string(graph.value(graph.outputs[0]).type()), "float32 [4, 2]");
    const auto y = run_imported(imported, {{"x", make_tensor<float>({4, 3}, {1, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 1})}}).at("y");
    EXPECT_EQ(floats(y), (std::vector<float>{1.5f, 1.5f, 3.5f, 3.5f, 5.5f, 5.5f, 9.5f, 11.5f}));
  }
}

TEST(ImportWeights, ReadsExternalData) {
  const TestFolder folder;
  std::filesystem::create_directory(folder / "data");
  write_file(folder / "data/weights.bin", std::string(16, 'x') + bytes_of(counted(6)));
  pb::ModelProto model = model_of(kLayer);
  store_externally(*model.mutable_graph()->mutable_initializer(0), "data/weights.bin", 16, 24);
  const Imported imported = import_file(write_model(folder, model), {.shapes = {{"batch", 1}}, .bound_inputs = {}});
  EXPECT_EQ(floats(weight_tensor(imported, imported.weights[0])), counted(6));
  EXPECT_EQ(imported.weights[0].places[0].bytes.path, folder / "data/weights.bin");
  EXPECT_EQ(imported.info.external_files, (Names{"data/weights.bin"}));
}

TEST(ImportWeights, LargeWeightsStayInTheFile) {
  const TestFolder folder;
  pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 500] x) => (float[1, 40] y) { y = MatMul (x, w) })");
  *model.mutable_graph()->add_initializer() = tensor_of("w", {500, 40}, counted(20'000));
  const Imported imported = import_file(write_model(folder, model));
  EXPECT_EQ(floats(weight_tensor(imported, imported.weights.at(0))), counted(20'000));
}

TEST(ImportWeights, ConstantNodesThatFeedProductsAreWeights) {
  const TestFolder folder;
  pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 15]>
    g (float[?, 2] x) => (float[?, 2] y) {
      w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
      flat = Constant <value = float[2] {10, 20}> ()
      shape = Constant <value = int64[2] {1, 2}> ()
      half = Constant <value = float {0.5}> ()
      three = Constant <value_float = 3.0> ()
      p = MatMul (x, w)
      b = Reshape (flat, shape)
      q = Add (p, b)
      r = Mul (q, half)
      y = Mul (r, three)
    })");
  const Imported imported = import_file(write_model(folder, model), {.shapes = {{"x.0", 1}}, .bound_inputs = {}});
  EXPECT_EQ(parameter_names(imported), (Names{"w", "flat"}));
  const auto y = run_imported(imported, {{"x", make_tensor<float>({1, 2}, {1, 1})}}).at("y");
  EXPECT_EQ(floats(y), (std::vector<float>{21, 39}));
}

// Those that PyTorch's exporter names where it has traced a model's code; but not where its weights are such nodes, too.
TEST(ImportWeights, ConstantsOfTracedCodeAreNoWeights) {
  const TestFolder folder;
  const auto imported_names = [&](const char* initializers, const char* constants) {
    pb::ModelProto model = model_of(fmt::sprintf(R"(<ir_version: 8, opset_import: ["" : 15]>
      g (float[?, 2] x) => (float[?, 2] y) %s {
        %s
        table = Constant <value = float[2] {10, 20}> ()
        p = MatMul (x, w)
        y = Add (p, table)
      })",
                                                 initializers, constants));
    const auto rename = [](std::string& name) {
      if (name == "table") name = "/encoder/Constant_1_output_0";
    };
    for (pb::NodeProto& node : *model.mutable_graph()->mutable_node()) {
      for (std::string& name : *node.mutable_input()) rename(name);
      for (std::string& name : *node.mutable_output()) rename(name);
    }
    return parameter_names(import_file(write_model(folder, model), {.shapes = {{"x.0", 1}}, .bound_inputs = {}}));
  };
  EXPECT_EQ(imported_names("<float[2, 2] w = {1, 2, 3, 4}>", ""), (Names{"w"}));
  EXPECT_EQ(imported_names("<float[2, 2] v = {5, 6, 7, 8}>", "z = MatMul (x, v)\n w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()"),
            (Names{"v", "w"}))
      << "a file that was not frozen, with a filter in a node";
  EXPECT_EQ(imported_names("", "w = Constant <value = float[2, 2] {1, 2, 3, 4}> ()"), (Names{"w", "/encoder/Constant_1_output_0"}));
}

TEST(ImportWeights, OfOneElementSlopesAreTrainedAndNamedOnesNoted) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 3] y) <float[1] slope = {0.25}, float temperature = {0.07}, float val_12 = {2}> {
      p = PRelu (x, slope)
      q = Mul (p, val_12)
      y = Mul (q, temperature)
    })"));
  EXPECT_EQ(parameter_names(imported), (Names{"slope"}));
  ASSERT_EQ(imported.info.notes.size(), 1u);
  EXPECT_THAT(imported.info.notes[0], ::testing::StartsWith("'temperature' has one element"));
}

TEST(ImportWeights, OfLayersOfOneChannelAreTrained) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 1, 2, 2] x) => (float[2, 1] y)
    <float[1, 1, 1, 1] w = {2}, float[1] scale = {1.5}, float[1] b = {0.25}, float[1] mean = {0}, float[1] variance = {1}, float[1] factor = {3}> {
      c = Conv (x, w)
      n = BatchNormalization (c, scale, b, mean, variance)
      m = Mul (n, factor)
      f = Flatten (m)
      v = Constant <value = float[4, 1] {1, 2, 3, 4}> ()
      bias = Constant <value = float[1] {0.5}> ()
      y = Gemm (f, v, bias)
    })"));
  EXPECT_EQ(parameter_names(imported), (Names{"w", "scale", "b", "mean", "variance", "v", "bias"}));
  EXPECT_THAT(imported.info.notes, ::testing::Contains(::testing::StartsWith("'factor' has one element")));
}

TEST(ImportWeights, WhatTheStandardCallsNotDifferentiableIsNoWeight) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 3] y)
    <float[1] exponent = {2}, float[3] scale = {1, 2, 3}, float[3] bias = {0, 0, 1}, float[3] mean = {0, 1, 0}, float[3] variance = {1, 1, 4}, float[3] nobody = {1, 1, 1}> {
      p = Pow (x, exponent)
      y = BatchNormalization (p, scale, bias, mean, variance)
    })"));
  EXPECT_EQ(parameter_names(imported), (Names{"scale", "bias", "mean", "variance"}));
  for (ValueId id : imported.graph.parameters()) {
    const Value& value = imported.graph.value(id);
    EXPECT_EQ(value.trainable, value.name == "scale" || value.name == "bias") << value.name;
  }
}

TEST(ImportWeights, WhatIsComputedOfPositionsAloneIsNoWeight) {
  const TestFolder folder;
  const auto import = [&](const std::string& cosines, const std::string& mask, const std::string& frequencies) {
    return import_file(write_model(folder, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[2, 4] x) => (float[2, 4] y)
      <float[2, 4] cosines = {{{}}}, float[2, 4] sines = {{0, 0, 0, 0, 0.6, 0.8, -1.0, 0.28}},
       float[2, 4] mask = {{{}}}, float[4] frequencies = {{{}}}, float[2, 4] w = {{1, 0, 0, 0, 1, 0, 0, 0}}> {{
        a = Mul (x, cosines)
        b = Mul (x, sines)
        c = Add (a, b)
        d = Add (c, mask)
        e = Mul (d, frequencies)
        y = Mul (e, w)
      }})",
                                                       cosines, mask, frequencies)));
  };
  const std::string cosines = "1, 1, 1, 1, 0.8, 0.6, 0, 0.96", mask = "0, -3e38, -3e38, -3e38, 0, 0, -3e38, -3e38";
  const Imported fixed = import(cosines, mask, "1, 0.1, 0.01, 0.001");
  EXPECT_EQ(parameter_names(fixed), (Names{"w"}));
  EXPECT_EQ(fixed.info.notes, (Names{"'mask' is a mask, no weight: left as it is",
                                     "2 tensors are cosines and sines of positions, no weights: left as they are ('cosines', 'sines')",
                                     "'frequencies' has the frequencies of a rotary embedding, no weight: left as it is"}));
  const auto y = run_imported(fixed, {{"x", make_tensor<float>({2, 4}, {2, 1, 1, 1, 1, 1, 1, 1})}}).at("y");
  EXPECT_FLOAT_EQ(floats(y)[0], 2.0f);
  EXPECT_FLOAT_EQ(floats(y)[4], 1.4f);

  // A mask as older models have it, and other frequencies.
  EXPECT_EQ(parameter_names(import(cosines, "0, 0, -10000, 0, 0, 0, 0, 0", "1, 0.5, 0.25, 0.125")), (Names{"w"}));

  // One element makes them weights; one number throughout doesn't.
  EXPECT_EQ(parameter_names(import(cosines, mask, "1, 0.5, 0.25, 0.02")), (Names{"frequencies", "w"}));
  EXPECT_EQ(parameter_names(import("1, 1, 1, 1, 0.8, 0.6, 0, 0.97", mask, "1, 0.1, 0.01, 0.001")), (Names{"cosines", "sines", "w"}));
  EXPECT_EQ(parameter_names(import(cosines, "0, -3e38, -3e38, -3e38, 0, 0, 0.5, -3e38", "1, 0.1, 0.01, 0.001")), (Names{"mask", "w"}));
  EXPECT_EQ(parameter_names(import(cosines, "0, 0, 0, 0, 0, 0, 0, 0", "1, 1, 1, 1")), (Names{"w"}));
}

// A sine and a cosine of each angle, as torch's tutorials, fairseq and MAE lay them out; looked up or added.
TEST(ImportWeights, TablesOfPositionsAreNoWeights) {
  constexpr int64_t kRows = 6, kWidth = 8;
  const TestFolder folder;
  const auto parameters = [&](const auto& element, const char* read) {
    pb::ModelProto model = model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[6, 8] x, int64[6] at) => (float[6, 8] y) {{
        a = MatMul (x, w)
        p = {}
        y = Add (a, p)
      }})",
                                                read));
    std::vector<float> values;
    for (int64_t row = 0; row < kRows; ++row) {
      for (int64_t i = 0; i < kWidth; ++i) values.push_back(static_cast<float>(element(row, i)));
    }
    *model.mutable_graph()->add_initializer() = tensor_of("w", {8, 8}, counted(64));
    *model.mutable_graph()->add_initializer() = tensor_of("table", {kRows, kWidth}, values);
    return parameter_names(import_file(write_model(folder, model)));
  };
  const auto angle = [](int64_t row, int64_t pair) { return static_cast<double>(row) / std::pow(100.0, 0.25 * static_cast<double>(pair)); };
  const auto neighbours = [&](int64_t row, int64_t i) { return i % 2 == 0 ? std::sin(angle(row, i / 2)) : std::cos(angle(row, i / 2)); };
  const auto halves = [&](int64_t row, int64_t i) {
    return row == 1 ? 0.0 : i < kWidth / 2 ? std::sin(angle(row, i)) : std::cos(angle(row, i - kWidth / 2));
  };
  const auto axes = [&](int64_t row, int64_t i) {
    const int64_t at = i < kWidth / 2 ? row / 3 : row % 3, pair = i % 4;
    return row == 0 ? 0.0 : pair < 2 ? std::sin(angle(at, pair)) : std::cos(angle(at, pair - 2));
  };
  for (const char* read : {"Identity (table)", "Gather (table, at)"}) {
    EXPECT_EQ(parameters(neighbours, read), (Names{"w"}));
    EXPECT_EQ(parameters(halves, read), (Names{"w"}));
    EXPECT_EQ(parameters(axes, read), (Names{"w"}));
    EXPECT_EQ(parameters([&](int64_t row, int64_t i) { return neighbours(row, i) + (row == 5 && i == 6 ? 0.01 : 0); }, read),
              (Names{"w", "table"}));
    EXPECT_EQ(parameters([](int64_t, int64_t i) { return i % 2; }, read), (Names{"w", "table"})) << "angles of zero alone";
    EXPECT_EQ(parameters([](int64_t, int64_t i) { return i % 2 == 0 ? 0.6 : 0.8; }, read), (Names{"w", "table"})) << "one angle";
  }
}

TEST(ImportWeights, ZerosAndOnesThatMultiplyAreAMask) {
  const TestFolder folder;
  const auto parameters = [&](const char* op, float last) {
    pb::ModelProto model = model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[8, 8] x) => (float[8, 8] y) <int64[2] from = {{0, 0}}, int64[2] to = {{8, 8}}> {{
        a = MatMul (x, w)
        m = Slice (mask, from, to)
        y = {} (a, m)
      }})",
                                                op));
    std::vector<float> values;
    for (int i = 0; i < 64; ++i) values.push_back(i % 8 <= i / 8 ? 1.0f : 0.0f);
    values.back() = last;
    *model.mutable_graph()->add_initializer() = tensor_of("w", {8, 8}, counted(64));
    *model.mutable_graph()->add_initializer() = tensor_of("mask", {8, 8}, values);
    return parameter_names(import_file(write_model(folder, model)));
  };
  EXPECT_EQ(parameters("Mul", 1), (Names{"w"}));
  EXPECT_EQ(parameters("Mul", 0.5), (Names{"w", "mask"}));
  EXPECT_EQ(parameters("Add", 1), (Names{"w", "mask"}));
}

TEST(ImportWeights, ZerosThatASoftmaxTakesForAllHeadsAreAMask) {
  const TestFolder folder;
  const auto parameters = [&](const char* shape, const char* zeros, const char* last) {
    return parameter_names(import_file(write_model(folder, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[1, 2, 2, 2] x) => (float[1, 2, 2, 2] y)
      <float{} zeros = {{{}}}, float[2, 2] w = {{1, 0, 0, 1}}> {{
        a = MatMul (x, w)
        b = Add (zeros, a)
        c = Identity (b)
        y = {} (c)
      }})",
                                                                       shape, zeros, last))));
  };
  EXPECT_EQ(parameters("[1, 1, 2, 2]", "0, 0, 0, 0", "Softmax"), (Names{"w"}));
  EXPECT_EQ(parameters("[1, 1, 1, 2]", "0, 0", "Softmax"), (Names{"w"}));
  EXPECT_EQ(parameters("[1, 1, 2, 2]", "0, 0, 0, 0", "Tanh"), (Names{"w"}));  // one number, and no layer's bias
  EXPECT_EQ(parameters("[1, 1, 2, 2]", "0, 0, 0.5, 0", "Softmax"), (Names{"zeros", "w"}));
  EXPECT_EQ(parameters("[1, 2, 1, 1]", "0, 0.5", "Softmax"), (Names{"zeros", "w"}));  // one for each head
  EXPECT_EQ(parameters("[2, 2]", "0, 0, 0.5, 0", "Softmax"), (Names{"zeros", "w"}));
  EXPECT_EQ(parameters("[2]", "0, 0", "Softmax"), (Names{"zeros", "w"}));  // a fresh bias of the product
}

TEST(ImportWeights, WeightsOfAModelIn16BitsBecomeFloat32) {
  const TestFolder folder;
  for (const auto type : {pb::TensorProto::FLOAT16, pb::TensorProto::BFLOAT16}) {
    pb::ModelProto model = model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
      g ({0}[2, 2] x) => ({0}[2, 2] y) {{ y = MatMul (x, w) }})",
                                                type == pb::TensorProto::FLOAT16 ? "float16" : "bfloat16"));
    pb::TensorProto& w = *model.mutable_graph()->add_initializer();
    w.set_name("w");
    w.set_data_type(type);
    w.add_dims(2);
    w.add_dims(2);
    w.set_raw_data(std::string(8, '\0'));
    const Imported imported = import_file(write_model(folder, model));
    EXPECT_TRUE(imported.obstacles.empty());
    EXPECT_EQ(imported.info.low, type == pb::TensorProto::FLOAT16 ? DType::float16 : DType::bfloat16);
    ASSERT_EQ(imported.weights.size(), 1u);
    EXPECT_EQ(imported.weights[0].places.at(0).dtype, imported.info.low);  // as it is written back
    EXPECT_EQ(imported.graph.value(imported.graph.find_value("w")).dtype, DType::float32);
  }
}

// --- tied weights ---------------------------------------------------------------------------------------------------------------------

class Ties : public ::testing::Test {
 protected:
  // y = x w1, z = x w2 with 3 x 5 matrices, v = x' w3 with a 5 x 3 one
  Imported import(const std::vector<float>& w1, const std::vector<float>& w2, const std::vector<float>& w3,
                  const ImportOptions& options = {}) {
    pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[1, 3] x, float[1, 5] u) => (float[1, 5] y, float[1, 5] z, float[1, 3] v) {
        y = MatMul (x, w1)
        z = MatMul (x, w2)
        v = MatMul (u, w3)
      })");
    *model.mutable_graph()->add_initializer() = tensor_of("w1", {3, 5}, w1);
    *model.mutable_graph()->add_initializer() = tensor_of("w2", {3, 5}, w2);
    *model.mutable_graph()->add_initializer() = tensor_of("w3", {5, 3}, w3);
    return import_file(write_model(folder_, model), options);
  }
  static std::vector<float> transposed(const std::vector<float>& w, size_t rows, size_t columns) {
    std::vector<float> result(w.size());
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) result[j * rows + i] = w[i * columns + j];
    }
    return result;
  }
  TestFolder folder_;
};

TEST_F(Ties, EqualAndTransposedMatricesAreOneParameter) {
  const std::vector<float> w = counted(15);
  const Imported imported = import(w, w, transposed(w, 3, 5));
  EXPECT_EQ(parameter_names(imported), (Names{"w1"}));
  ASSERT_EQ(imported.weights[0].places.size(), 3u);
  EXPECT_EQ(imported.weights[0].places[1].name, "w2");
  EXPECT_FALSE(imported.weights[0].places[1].transposed);
  EXPECT_EQ(imported.weights[0].places[2].name, "w3");
  EXPECT_TRUE(imported.weights[0].places[2].transposed);
  EXPECT_EQ(imported.weights[0].places[2].shape, (Shape{5, 3}));
  ASSERT_EQ(imported.info.notes.size(), 2u);
  EXPECT_EQ(imported.info.notes[1], "tied 'w3' with 'w1' (stored twice, transposed)");
  const auto results =
      run_imported(imported, {{"x", make_tensor<float>({1, 3}, {1, 0, 0})}, {"u", make_tensor<float>({1, 5}, {0, 1, 0, 0, 0})}});
  EXPECT_EQ(floats(results.at("z")), (std::vector<float>{1, 2, 3, 4, 5}));
  EXPECT_EQ(floats(results.at("v")), (std::vector<float>{2, 7, 12}));
}

TEST_F(Ties, OneDifferentElementIsEnough) {
  std::vector<float> w = counted(15), near = w;
  near[7] += 1;
  EXPECT_EQ(parameter_names(import(w, near, transposed(near, 3, 5))), (Names{"w1", "w2"}));
  std::vector<float> far = transposed(w, 3, 5);
  far[14] += 1;
  EXPECT_EQ(parameter_names(import(w, near, far)), (Names{"w1", "w2", "w3"}));
}

TEST_F(Ties, EqualElementsThroughoutAreNoEvidence) {
  const std::vector<float> ones(15, 1.0f);
  EXPECT_EQ(parameter_names(import(ones, ones, ones)), (Names{"w1", "w2", "w3"}));
}

TEST_F(Ties, CanBeSwitchedOff) {
  const std::vector<float> w = counted(15);
  EXPECT_EQ(parameter_names(import(w, w, transposed(w, 3, 5), {.shapes = {}, .bound_inputs = {}, .retie = false})),
            (Names{"w1", "w2", "w3"}));
}

TEST(ImportWeights, TiesLargeTransposedMatricesBlockByBlock) {
  const TestFolder folder;
  constexpr size_t kRows = 1501, kColumns = 203;  // no multiple of anything; more than one block
  std::vector<float> w(kRows * kColumns), t(kRows * kColumns), almost;
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t j = 0; j < kColumns; ++j) w[i * kColumns + j] = t[j * kRows + i] = static_cast<float>((i * 7919 + j * 104'729) % 10'007);
  }
  almost = t;
  almost.back() += 1;
  pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 1501] x) => (float[1, 1501] y, float[1, 1501] z) {
      p = MatMul (x, w)
      y = MatMul (p, t)
      z = MatMul (p, almost)
    })");
  *model.mutable_graph()->add_initializer() = tensor_of("w", {kRows, kColumns}, w);
  *model.mutable_graph()->add_initializer() = tensor_of("almost", {kColumns, kRows}, almost);
  *model.mutable_graph()->add_initializer() = tensor_of("t", {kColumns, kRows}, t);
  const Imported imported = import_file(write_model(folder, model));
  EXPECT_EQ(parameter_names(imported), (Names{"w", "almost"}));
  EXPECT_TRUE(imported.weights[0].places.at(1).transposed);
}

const char* const kShared = R"(<ir_version: 3, opset_import: ["" : 17]>
  g (float[2, 2] x, float[2] b) => (float[2, 2] y) <float[2] b = {1, 2}> {
    p = Add (x, b)
    [branch] q = Mul (p, b)
    y = Sub (q, b)
  })";

TEST(ImportWeights, UntieGivesEachUseItsOwnCopy) {
  const TestFolder folder;
  const std::string path = write_model(folder, kShared);
  const Imported together = import_file(path);
  EXPECT_EQ(parameter_names(together), (Names{"b"}));
  EXPECT_TRUE(together.info.edit.empty());
  ASSERT_EQ(together.info.notes.size(), 1u);
  EXPECT_HAS(together.info.notes[0], "'b' (3)");
  const Imported apart = import_file(path, {.shapes = {}, .bound_inputs = {}, .retie = true, .untie = true});
  EXPECT_EQ(parameter_names(apart), (Names{"b", "b.use2", "b.use3"}));
  EXPECT_FALSE(apart.weights[0].places[0].added);
  EXPECT_TRUE(apart.weights[1].places[0].added);
  EXPECT_EQ(floats(weight_tensor(apart, apart.weights[2])), (std::vector<float>{1, 2}));
  EXPECT_EQ(apart.graph.node(apart.graph.order()[1]).inputs[1], apart.graph.find_value("b.use2"));
  EXPECT_EQ(apart.graph.node(apart.graph.order()[2]).inputs[1], apart.graph.find_value("b.use3"));
}

// As PyTorch traces two fresh layers: equal tensors are one, which Identity nodes hand on.
TEST(ImportWeights, UntieTellsStatisticsBehindIdentityNodes) {
  const TestFolder folder;
  const std::string path = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 2, 3] x) => (float[2, 2, 3] y) <float[2] scale = {1, 1}, float[2] bias = {0, 0}> {
      variance = Identity (scale)
      mean = Identity (bias)
      y = BatchNormalization (x, scale, bias, mean, variance)
    })");
  const Imported together = import_file(path);
  ASSERT_EQ(together.obstacles.size(), 1u);
  EXPECT_HAS(together.obstacles[0].reason, "is a trained weight as well");
  const Imported apart = import_file(path, {.shapes = {}, .bound_inputs = {}, .retie = true, .untie = true});
  EXPECT_TRUE(apart.obstacles.empty());
  for (const auto& [name, is_trained] : {std::pair("scale", false), {"bias", false}, {"scale.use2", true}, {"bias.use2", true}})
    EXPECT_EQ(apart.graph.value(apart.graph.find_value(name)).trainable, is_trained) << name;
}

TEST(ImportWeights, WhatIsClippedOrSquaredIsAWeightAndABoundIsNone) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 3] y)
    <float[3] logit_scale = {1, 2, 3}, float[3] width = {4, 5, 7}, float[3] exponent = {2, 3, 5}, float two = {2}, float most = {4.6}> {
      s = Clip (logit_scale, , most)
      w = Pow (width, two)
      p = Pow (x, exponent)
      q = Mul (p, s)
      y = Add (q, w)
    })"));
  EXPECT_EQ(parameter_names(imported), (Names{"logit_scale", "width"}));
}

// The file that an untied model becomes: ONNX's checker accepts it, and it is the same model with weights of its own for each use.
TEST(ImportWeights, AnUntiedModelIsExportedWithItsCopies) {
  const TestFolder folder;
  const std::string path = write_model(folder, kShared);
  const Imported apart = import_file(path, {.shapes = {}, .bound_inputs = {}, .retie = true, .untie = true});
  const std::map<std::string, std::vector<float>> trained{{"b", {0, 1}}, {"b.use2", {10, 0}}, {"b.use3", {20, 3}}};
  std::filesystem::create_directory(folder / "out");
  const WeightBytes bytes_of = [&](const std::string& name, const ByteSink& sink) {
    return sink(0, std::as_bytes(std::span(trained.at(name)))), true;
  };
  const std::string written = export_model(apart.info, apart.weights, bytes_of, folder / "out");
  const std::string bytes = read_file(written);
  pb::ModelProto model;
  ASSERT_TRUE(model.ParseFromString(bytes));
  pb::checker::check_model(model);
  EXPECT_EQ(model.graph().node(1).name(), "branch");
  EXPECT_EQ(model.graph().node(1).input(1), "b.use2");
  const Imported imported = import_file(written);
  EXPECT_EQ(parameter_names(imported), (Names{"b", "b.use2", "b.use3"}));
  for (const Weight& weight : imported.weights) EXPECT_EQ(floats(weight_tensor(imported, weight)), trained.at(weight.parameter));
  const auto y = run_imported(imported, {{"x", make_tensor<float>({2, 2}, {1, 2, 3, 4})}}).at("y");
  EXPECT_EQ(floats(y), (std::vector<float>{-10, -3, 10, -3}));
}

// scikit-learn's StandardScaler, as skl2onnx writes it.
TEST(Import, AScalerIsArithmetic) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17, "ai.onnx.ml" : 1]>
    g (int64[2, 3] x) => (float[2, 3] y) <float[3] w = {1, 1, 2}> {
      z = ai.onnx.ml.Scaler <offset = [1.0, 2.0, 0.5], scale = [2.0, 0.5, 4.0]> (x)
      y = Mul (z, w)
    })"));
  EXPECT_TRUE(imported.obstacles.empty());
  const auto y = run_imported(imported, {{"x", make_tensor<int64_t>({2, 3}, {1, 2, 3, 4, 5, 6})}}).at("y");
  EXPECT_EQ(floats(y), (std::vector<float>{0, 0, 20, 6, 1.5f, 44}));
}

TEST(ImportWeights, OnePlaceInAFileIsOneParameter) {
  const TestFolder folder;
  write_file(folder / "w.bin", bytes_of(counted(5)));
  const auto import = [&](int64_t offset, int64_t elements) {
    pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[1] x) => (float[n] y) { p = Add (x, v)
                                        q = ReduceSum (p)
                                        y = Add (q, w) })");
    *model.mutable_graph()->add_initializer() = tensor_of("v", {4}, {});
    *model.mutable_graph()->add_initializer() = tensor_of("w", {elements}, {});
    store_externally(*model.mutable_graph()->mutable_initializer(0), "w.bin", 0, 16);
    store_externally(*model.mutable_graph()->mutable_initializer(1), "w.bin", offset, 4 * elements);
    return import_file(write_model(folder, model));
  };
  const Imported tied = import(0, 4);
  EXPECT_EQ(parameter_names(tied), (Names{"v"}));
  EXPECT_EQ(tied.weights[0].places.size(), 1u);
  const Error overlap = error_of([&] { import(8, 3); });
  EXPECT_EQ(overlap.code(), ErrorCode::unsupported);
  EXPECT_HAS(overlap.what(), "share bytes");
}

}  // namespace
}  // namespace ort_train
