// Import: what becomes of dimensions, weights, branches, functions, and of what can't be imported.

#include "frontend/import.h"

#include <gtest/gtest.h>
#include <onnx/checker.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "frontend/export.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace testing;
namespace pb = ort_train_onnx;

const char* const kLayer = R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "pen", producer_version: "2">
layer (float[batch, 3] x) => (float[batch, 2] y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}> {
  [fc] y = Gemm (x, w, b)
})";

std::vector<std::string> parameter_names(const Imported& imported) {
  std::vector<std::string> names;
  for (ValueId id : imported.graph.parameters()) names.push_back(imported.graph.value(id).name);
  return names;
}

std::vector<std::string> op_names(const Graph& graph) {
  std::vector<std::string> names;
  for (NodeId id : graph.order()) names.emplace_back(graph.node(id).op->name);
  return names;
}

std::vector<float> floats(const Tensor& tensor) { return {tensor.data<float>().begin(), tensor.data<float>().end()}; }

std::vector<float> counted(size_t n, float first = 1) {
  std::vector<float> values(n);
  std::iota(values.begin(), values.end(), first);
  return values;
}

using Names = std::vector<std::string>;

// --- weights and their places ---------------------------------------------------------------------------------------------------------

TEST(Import, LocatesWeightsInTheFile) {
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

// As PyTorch's dynamo exporter writes opset 17.
TEST(Import, ToleratesASpareCountOnSplit) {
  const TestFolder folder;
  constexpr const char* text = R"(<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 6] x) => (float[2, 3] b) {{ a, b = Split <axis = 1, num_outputs = {}> (x) }})";
  const auto model = [&](int count) { return write_model(folder, fmt::format(text, count)); };
  const Imported imported = import_file(model(2));
  EXPECT_TRUE(imported.obstacles.empty());
  EXPECT_EQ(floats(run_imported(imported, {{"x", make_tensor<float>({2, 6}, counted(12))}}).at("b")),
            (std::vector<float>{counted(12)[3], counted(12)[4], counted(12)[5], counted(12)[9], counted(12)[10], counted(12)[11]}));
  EXPECT_EQ(import_file(model(3)).obstacles.size(), 1u);
}

TEST(Import, ReadsExternalData) {
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

TEST(Import, LargeWeightsStayInTheFile) {
  const TestFolder folder;
  pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 500] x) => (float[1, 40] y) { y = MatMul (x, w) })");
  *model.mutable_graph()->add_initializer() = tensor_of("w", {500, 40}, counted(20'000));
  const Imported imported = import_file(write_model(folder, model));
  EXPECT_EQ(floats(weight_tensor(imported, imported.weights.at(0))), counted(20'000));
}

TEST(Import, ConstantNodesThatFeedProductsAreWeights) {
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

TEST(Import, WhatTheStandardCallsNotDifferentiableIsNoWeight) {
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

TEST(Import, HalfPrecisionWeightsAreObstacles) {
  const TestFolder folder;
  pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float16[2, 2] x) => (float16[2, 2] y) { y = MatMul (x, w) })");
  pb::TensorProto& w = *model.mutable_graph()->add_initializer();
  w.set_name("w");
  w.set_data_type(pb::TensorProto::FLOAT16);
  w.add_dims(2);
  w.add_dims(2);
  w.set_raw_data(std::string(8, '\0'));
  const Imported imported = import_file(write_model(folder, model));
  ASSERT_EQ(imported.obstacles.size(), 1u);
  EXPECT_EQ(imported.obstacles[0].node, "weight 'w'");
  EXPECT_HAS(imported.obstacles[0].reason, "float16");
  EXPECT_TRUE(imported.obstacles[0].blocks);
  EXPECT_TRUE(imported.graph.outputs.empty());
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

TEST(Import, TiesLargeTransposedMatricesBlockByBlock) {
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

TEST(Import, UntieGivesEachUseItsOwnCopy) {
  const TestFolder folder;
  const std::string path = write_model(folder, kShared);
  const Imported together = import_file(path);
  EXPECT_EQ(parameter_names(together), (Names{"b"}));
  EXPECT_TRUE(together.info.edits.empty());
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

// The file that an untied model becomes: ONNX's checker accepts it, and it is the same model with weights of its own for each use.
TEST(Import, AnUntiedModelIsExportedWithItsCopies) {
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

TEST(Import, OnePlaceInAFileIsOneParameter) {
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

// --- dimensions -----------------------------------------------------------------------------------------------------------------------

const char* const kTwoInputs = R"(<ir_version: 8, opset_import: ["" : 17]>
  g (int64[batch, sequence] ids, float[batch, sequence, 0] mask) => (float[batch, sequence, n] y) <float[4] b = {1, 2, 3, 4}> {
    f = Cast <to = 1> (ids)
    axes = Constant <value_ints = [2]> ()
    g = Unsqueeze (f, axes)
    m = Mul (g, mask)
    y = Add (m, b)
  })";

TEST(Import, NamesEveryOpenDimension) {
  const TestFolder folder;
  const std::string path = write_model(folder, kTwoInputs);
  const Error e = error_of([&] { import_file(path); });
  EXPECT_EQ(e.code(), ErrorCode::usage);
  EXPECT_HAS(e.what(), "'batch' of ids, mask; 'mask.2' of mask; 'sequence' of ids, mask");
  EXPECT_HAS(e.what(), "--shape batch=8,mask.2=128,sequence=128");

  const Error unknown = error_of([&] { import_file(path, {.shapes = {{"bach", 2}}, .bound_inputs = {}}); });
  EXPECT_EQ(unknown.code(), ErrorCode::usage);
  EXPECT_HAS(unknown.what(), "no free dimension 'bach'; it has batch, ids.0");
}

TEST(Import, BoundInputsBecomeConstantsAndBindDimensions) {
  const TestFolder folder;
  const std::string path = write_model(folder, kTwoInputs);
  Tensor mask(DType::float32, {2, 3, 1});
  std::fill(mask.data<float>().begin(), mask.data<float>().end(), 1.0f);
  const Imported imported = import_file(path, {.shapes = {}, .bound_inputs = {{"mask", mask}}});
  ASSERT_EQ(imported.graph.inputs.size(), 1u);
  EXPECT_EQ(to_string(imported.graph.value(imported.graph.inputs[0]).type()), "int64 [2, 3]");
  EXPECT_EQ(imported.graph.value(imported.graph.outputs[0]).shape, (Shape{2, 3, 4}));
  const Error contradiction = error_of([&] { import_file(path, {.shapes = {{"batch", 5}}, .bound_inputs = {{"mask", mask}}}); });
  EXPECT_EQ(contradiction.code(), ErrorCode::usage);
  EXPECT_HAS(contradiction.what(), "dimension 'batch' is 5");
}

TEST(Import, SaysWhatAModelDeclares) {
  const TestFolder folder;
  const Declared model = declared(write_model(folder, kTwoInputs));
  ASSERT_EQ(model.inputs.size(), 2u);
  EXPECT_EQ(model.inputs[0].name, "ids");
  EXPECT_EQ(model.inputs[0].dtype, DType::int64);
  EXPECT_EQ(model.inputs[1].dims, (Names{"batch", "sequence", ""}));
  EXPECT_EQ(model.outputs.at(0).dims, (Names{"batch", "sequence", "n"}));
}

TEST(Import, FoldsShapeArithmetic) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 6] x) => (float[batch, 2, 3] y) <int64[1] first = {0}, int64[2] rest = {2, 3}, float[1] b = {1}> {
      s = Shape (x)
      n = Gather (s, first)
      shape = Concat <axis = 0> (n, rest)
      z = Reshape (x, shape)
      y = Add (z, b)
    })"),
                                        {.shapes = {{"batch", 5}}, .bound_inputs = {}});
  EXPECT_EQ(op_names(imported.graph), (Names{"Reshape", "Add"}));
  EXPECT_EQ(imported.graph.value(imported.graph.outputs[0]).shape, (Shape{5, 2, 3}));
  EXPECT_TRUE(imported.graph.values_of(ValueKind::constant).empty());
}

TEST(Import, AnOutputIsAValueOfItsOwn) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y, float[2] z, float[2] w) <float[2] w = {1, 2}> {
      y = Identity (x)
      z = Identity (y)
    })"));
  Names names;
  for (ValueId id : imported.graph.outputs) names.push_back(imported.graph.value(id).name);
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(names[0], "y");
  EXPECT_EQ(names[1], "z");
  EXPECT_EQ(names[2], "w");
  EXPECT_EQ(imported.graph.value(imported.graph.find_value("x")).kind, ValueKind::input);
}

// --- branches and functions -----------------------------------------------------------------------------------------------------------

const char* const kBranches = R"(<ir_version: 8, opset_import: ["" : 17]>
  g (float[batch, 2] x, bool given) => (float[batch, 2] y) <int64[1] zero = {0}, int64[] two = {2}> {
    s = Shape (x)
    n = Gather (s, two_or_zero)
    large = Greater (n, one)
    y = If (COND) <
      then_branch = big () => (float[n, 2] p) <float[2] w = {10, 20}> { p = Add (x, w) },
      else_branch = small () => (float[n, 2] q) <float[2] v = {5, 6}> { k = Mul (x, x)
                                                                        q = Sub (k, v) }
    >
  })";

std::string branches(const std::string& condition) {
  std::string text = kBranches;
  const auto replace = [&](const std::string& from, const std::string& to) { text.replace(text.find(from), from.size(), to); };
  replace("COND", condition);
  replace("two_or_zero", "zero");
  replace("int64[] two = {2}", "int64[1] one = {1}");
  return text;
}

TEST(Import, AConstantConditionChoosesTheBranch) {
  const TestFolder folder;
  const std::string path = write_model(folder, branches("large"));
  const Tensor given = make_tensor<bool>({}, {true});
  const Imported big = import_file(path, {.shapes = {{"batch", 2}}, .bound_inputs = {{"given", given}}});
  ASSERT_TRUE(big.obstacles.empty()) << big.obstacles[0].reason;
  EXPECT_EQ(parameter_names(big), (Names{"w"}));
  EXPECT_EQ(floats(run_imported(big, {{"x", make_tensor<float>({2, 2}, {1, 2, 3, 4})}}).at("y")), (std::vector<float>{11, 22, 13, 24}));
  const Imported small = import_file(path, {.shapes = {{"batch", 1}}, .bound_inputs = {{"given", given}}});
  EXPECT_EQ(parameter_names(small), (Names{"v"}));
  EXPECT_EQ(floats(run_imported(small, {{"x", make_tensor<float>({1, 2}, {3, 4})}}).at("y")), (std::vector<float>{4, 10}));
}

TEST(Import, AConditionThatDependsOnInputsIsAnObstacle) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, branches("given")), {.shapes = {{"batch", 2}}, .bound_inputs = {}});
  ASSERT_EQ(imported.obstacles.size(), 1u);
  EXPECT_EQ(imported.obstacles[0].node, "If 'y'");
  EXPECT_HAS(imported.obstacles[0].reason, "condition");
}

const char* const kFunctions = R"(<ir_version: 9, opset_import: ["" : 17, "mine" : 1]>
  g (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
    [first] a = mine.Twice <factor = 3.0> (x, w)
    [second] y = mine.Twice (a, w)
  }
  <domain: "mine", opset_import: ["" : 13, "mine" : 1]> Scaled <factor: float = 2.0> (p) => (q) {
    k = Constant <value_float : float = @factor> ()
    q = Mul (p, k)
  }
  <domain: "mine", opset_import: ["" : 12, "mine" : 1]> Twice <factor: float = 10.0> (p, r) => (q) {
    m = mine.Scaled <factor : float = @factor> (p)
    t = mine.Scaled (m)
    u = Unsqueeze <axes = [0]> (t)
    v = Squeeze <axes = [0]> (u)
    q = Add (v, r)
  })";

TEST(Import, ExpandsFunctionsAtTheirOwnOpset) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, kFunctions));
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].node << imported.obstacles[0].reason;
  // ((x * 3) * 2 + w) * 10 * 2 + w
  EXPECT_EQ(floats(run_imported(imported, {{"x", make_tensor<float>({2}, {1, 1})}}).at("y")), (std::vector<float>{141, 162}));
  EXPECT_EQ(imported.graph.node(imported.graph.order().front()).name, "first");
  EXPECT_EQ(imported.graph.node(imported.graph.order().back()).name, "second");
}

TEST(Import, ARecursiveFunctionIsAnObstacle) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 9, opset_import: ["" : 17, "mine" : 1]>
    g (float[2] x) => (float[2] y) { y = mine.Self (x) }
    <domain: "mine", opset_import: ["" : 17, "mine" : 1]> Self (p) => (q) { q = mine.Self (p) })"));
  ASSERT_EQ(imported.obstacles.size(), 1u);
  EXPECT_HAS(imported.obstacles[0].reason, "calls itself");
}

TEST(Import, ExpandsFunctionsOfTheStandard) {
  const TestFolder folder;
  struct Case {
    const char* node;
    double (*function)(double);
  };
  const std::vector<Case> cases{
      {"y = Celu <alpha = 2.0> (x)", [](double x) { return std::max(0.0, x) + std::min(0.0, 2 * (std::exp(x / 2) - 1)); }},
      {"y = Mish (x)", [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }},
      {"y = Selu (x)", [](double x) { return 1.0507009873554805 * (x > 0 ? x : 1.6732632423543772 * (std::exp(x) - 1)); }},
      {"y = Softsign (x)", [](double x) { return x / (1 + std::abs(x)); }},
      {"y = ThresholdedRelu <alpha = 0.5> (x)", [](double x) { return x > 0.5 ? x : 0.0; }},
      {"y = Shrink <bias = 0.25, lambd = 0.5> (x)", [](double x) { return x < -0.5  ? x + 0.25
                                                                          : x > 0.5 ? x - 0.25
                                                                                    : 0.0; }},
  };
  const std::vector<float> x{-2, -1, -0.25f, 0, 0.25f, 1, 3};
  for (const Case& c : cases) {
    const Imported imported = import_file(write_model(
        folder, fmt::format("<ir_version: 9, opset_import: [\"\" : 22]> g (float[7] x) => (float[7] y) {{ [here] {} }}", c.node)));
    ASSERT_TRUE(imported.obstacles.empty()) << c.node << ": " << imported.obstacles[0].reason;
    const std::vector<float> y = floats(run_imported(imported, {{"x", make_tensor<float>({7}, x)}}).at("y"));
    for (size_t i = 0; i < x.size(); ++i)
      EXPECT_NEAR(y[i], c.function(x[i]), 2e-6 * std::max(1.0, std::abs(c.function(x[i])))) << c.node << " of " << x[i];
    for (NodeId id : imported.graph.order()) EXPECT_EQ(imported.graph.node(id).name, "here");
  }
}

// --- what can't be imported -----------------------------------------------------------------------------------------------------------

const char* const kObstacles = R"(<ir_version: 8, opset_import: ["" : 17, "their.ops" : 1]>
  g (float[2, 3, 3] x, float[4, 4] boxes) => (float[2] y, float[2, 3, 3] z, int64[n, 3] picked) <float[3] w = {1, 2, 3}, float[2] v = {1, 2}> {
    a = Add (x, w)
    [det] d = Det (a)
    e = Add (d, v)
    [spectral] f = their.ops.Spectral (e)
    y = Add (f, v)
    z = Mul (a, w)
    shape = Constant <value_ints = [1, 4, 4]> ()
    three = Reshape (boxes, shape)
    scores = Constant <value = float[1, 1, 4] {1, 2, 3, 4}> ()
    [nms] picked = NonMaxSuppression (three, scores)
  })";

TEST(Import, FindsEveryObstacleAtOnce) {
  const TestFolder folder;
  const std::string path = write_model(folder, kObstacles);
  const Imported first = import_file(path);
  Names nodes;
  std::vector<bool> blocks;
  for (const Obstacle& obstacle : first.obstacles) nodes.push_back(obstacle.node), blocks.push_back(obstacle.blocks);
  EXPECT_EQ(nodes, (Names{"Det 'det'", "Spectral 'spectral'", "NonMaxSuppression 'nms'"}));
  EXPECT_EQ(blocks, (std::vector<bool>{true, true, false}));
  EXPECT_HAS(first.obstacles[1].reason, "their.ops");
  for (const Obstacle& obstacle : first.obstacles) EXPECT_FALSE(obstacle.hint.empty());
  // What does not depend on them is there.
  ASSERT_EQ(first.graph.outputs.size(), 1u);
  EXPECT_EQ(first.graph.value(first.graph.outputs[0]).name, "z");
  EXPECT_EQ(op_names(first.graph), (Names{"Add", "Mul"}));

  const Imported second = import_file(path, {.shapes = {}, .bound_inputs = {}, .retie = true, .untie = false, .output = "z"});
  for (const Obstacle& obstacle : second.obstacles) EXPECT_FALSE(obstacle.blocks) << obstacle.node;
}

TEST(Import, TellsWhatIsWrongWithANode) {
  const TestFolder folder;
  const auto reason = [&](const std::string& node, const std::string& opsets = "\"\" : 17") {
    const Imported imported = import_file(write_model(
        folder, fmt::format("<ir_version: 8, opset_import: [{}]> g (float[2, 3] x, float[5] u, bool c) => (float[n] y) {{ [here] {} }}",
                            opsets, node)));
    EXPECT_EQ(imported.obstacles.size(), 1u) << node;
    return imported.obstacles.empty()
               ? ""
               : imported.obstacles[0].node + ": " + imported.obstacles[0].reason + "; " + imported.obstacles[0].hint;
  };
  EXPECT_HAS(reason("y = Add (x, u)"), "Add 'here': the shapes [2, 3] and [5] can't be broadcast together");
  EXPECT_HAS(reason("y = Relu <alpha = 1.0> (x)"), "is not a valid node: Unrecognized attribute: alpha");
  EXPECT_HAS(reason("y = Relu (x, u)"), "is not a valid node");
  EXPECT_HAS(reason("y = Nonsense (x)"), "is no operator of opset 17");
  EXPECT_HAS(reason("y = other.Op (x)"), "the model does not import");
  EXPECT_HAS(reason("y = com.microsoft.MatMulNBits (x, u, u)", "\"\" : 17, \"com.microsoft\" : 1"), "quantized");
  EXPECT_HAS(reason("y = SequenceConstruct (x)"), "sequences");
}

TEST(Import, RefusesNodesOutOfOrder) {
  const TestFolder folder;
  const auto message = [&](const std::string& nodes) {
    return std::string(
        error_of([&] {
          import_file(write_model(
              folder, fmt::format("<ir_version: 8, opset_import: [\"\" : 17]> g (float[2] x) => (float[2] y) {{ {} }}", nodes)));
        }).what());
  };
  EXPECT_HAS(message("y = Relu (a) a = Relu (x)"), "reads 'a', which nothing before it gives");
  EXPECT_HAS(message("y = Relu (x) y = Neg (x)"), "gives 'y', which something before it gives already");
  EXPECT_HAS(message("a = Relu (x)"), "nothing gives the model's output 'y'");
}

TEST(Import, CoreOperatorsHaveAForm) {
  // reference: what language and vision models are made of
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 4] x) => (float[2, 4] y) <float[4] s = {1, 1, 1, 2}, float[4] b = {0, 1, 0, 1}> {
      two = Constant <value_float = 2.0> ()
      a = Pow (x, two)
      [norm] n = LayerNormalization <axis = -1> (a, s, b)
      [drop] d, mask = Dropout (n)
      e = Erf (d)
      y = Softmax (e)
    })"));
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].node << ": " << imported.obstacles[0].reason;
  EXPECT_EQ(imported.info.notes, (Names{"1 Dropout node is in evaluation mode: kept, dropping nothing"}));
}

}  // namespace
}  // namespace ort_train
