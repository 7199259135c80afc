// Import where the standard, its versions and files leave room for mistakes.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>
#include <set>
#include <tuple>

#include "exec/kernel.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace pb = ort_train_onnx;

struct ImportEdges : ::testing::Test {
  const TestFolder folder;

  // The only output of a graph's text at this opset.
  Tensor output_of(int opset, const std::string& text, const std::map<std::string, Tensor>& inputs) const {
    const Imported imported = imported_of(opset, text);
    EXPECT_TRUE(imported.obstacles.empty()) << (imported.obstacles.empty() ? "" : imported.obstacles[0].reason);
    return run_imported(imported, inputs).begin()->second;
  }
  Imported imported_of(int opset, const std::string& text, const ImportOptions& options = {}) const {
    return import_file(write_model(folder, model(opset, text)), options);
  }
  static pb::ModelProto model(int opset, const std::string& text) {
    return model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : {}]> g {})", opset, text));
  }
};

// onnx.helper.make_tensor() stores numbers of 16 bits as integers, unless it is told to store bytes.
TEST_F(ImportEdges, HalvesStoredAsIntegersAreRefused) {
  for (const auto type : {pb::TensorProto::FLOAT16, pb::TensorProto::BFLOAT16}) {
    pb::ModelProto model = this->model(17, fmt::format("({0}[n, 64] x) => ({0}[n, 2] y) {{ h = MatMul (x, v) y = MatMul (h, w) }}",
                                                       type == pb::TensorProto::FLOAT16 ? "float16" : "bfloat16"));
    for (const auto& [name, rows, columns] : {std::tuple("v", 64, 32), {"w", 32, 2}}) {
      auto& weight = *model.mutable_graph()->add_initializer();
      weight.set_name(name), weight.set_data_type(type), weight.add_dims(rows), weight.add_dims(columns);
      for (int i = 0; i < rows * columns; ++i) weight.add_int32_data(0x3c00 + i % 97 + i % 2 * 0x8000);
    }
    const Error problem = error_of([&] { import_file(write_model(folder, model), {.shapes = {{"n", 1}}}); });
    EXPECT_EQ(problem.code(), ErrorCode::unsupported);
    EXPECT_HAS(problem.what(), "are stored as integers of their bits (int32_data)");
    EXPECT_HAS(problem.what(), "v");
  }
}

// Types of 16 bits stand for float32 in such a model, also in attributes and in inputs that are bound.
TEST_F(ImportEdges, SixteenBitModelsAreFloat32Throughout) {
  pb::ModelProto model = this->model(17, R"((float16[n, 2] x, float16[2] bound) => (float16[n, 2] y) {
    p = MatMul (x, w)
    shape = Shape (p)
    ones = ConstantOfShape <value = float16[1] {1}> (shape)
    q = Add (p, ones)
    y = Add (q, bound)
  })");
  auto& w = *model.mutable_graph()->add_initializer();
  w.set_name("w"), w.set_data_type(pb::TensorProto::FLOAT16), w.add_dims(2), w.add_dims(2);
  const std::vector<uint16_t> bits{0x3c00, 0, 0, 0x3c00};
  w.set_raw_data(bits.data(), bits.size() * sizeof(uint16_t));
  Tensor bound(DType::float16, {2});
  const std::vector<uint16_t> halves{0x3c00, 0x4000};  // 1, 2
  std::memcpy(bound.bytes.data(), halves.data(), bound.bytes.size());
  const Imported imported = import_file(write_model(folder, model), {.shapes = {{"n", 1}}, .bound_inputs = {{"bound", bound}}});
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
  for (ValueId id = 0; id < imported.graph.value_count(); ++id) EXPECT_NE(imported.graph.value(id).dtype, DType::float16) << id;
}

TEST_F(ImportEdges, OneHotCountsFromTheEndSinceOpset11) {
  const std::map<std::string, Tensor> inputs{{"i", make_tensor<int64_t>({3}, {0, -1, 2})}, {"values", make_tensor<float>({2}, {0, 1})}};
  const auto one_hot = [&](int opset) {
    return floats(
        output_of(opset, "(int64[3] i, float[2] values) => (float[3, 3] y) <int64 d = {3}> { y = OneHot (i, d, values) }", inputs));
  };
  EXPECT_EQ(one_hot(11), (std::vector<float>{1, 0, 0, 0, 0, 1, 0, 0, 1}));
  EXPECT_EQ(one_hot(9), (std::vector<float>{1, 0, 0, 0, 0, 0, 0, 0, 1}));
}

// An output without a name isn't there.
TEST_F(ImportEdges, OldBatchNormsAreLiveWhereTheyGiveStatistics) {
  const auto ops = [&](const std::string& outputs) {
    const Imported imported = imported_of(9, fmt::format(R"((float[2, 2, 3] x) => (float[2, 2, 3] y)
      <float[2] s = {{1, 2}}, float[2] b = {{3, 4}}, float[2] m = {{5, 6}}, float[2] v = {{7, 8}}>
      {{ {} = BatchNormalization (x, s, b, m, v) }})",
                                                         outputs));
    std::set<std::string_view> names;
    for (const NodeId id : imported.graph.order()) names.insert(imported.graph.node(id).op->name);
    return names;
  };
  EXPECT_FALSE(ops("y, , , , ").contains("LiveBatchNormalization"));
  EXPECT_TRUE(ops("y, mean, var, a, c").contains("LiveBatchNormalization"));
}

TEST_F(ImportEdges, DequantizedTypesAreOnnxs) {
  const std::map<std::string, Tensor> inputs{{"x", make_tensor<float>({2}, {1, 1})}};
  const Tensor y = output_of(23, R"((float[2] x) => (float[2] y) <int8[2] codes = {3, -4}, float s = {0.5}> {
    d = DequantizeLinear <output_dtype = 1> (codes, s)
    y = Add (x, d) })",
                             inputs);
  EXPECT_EQ(floats(y), (std::vector<float>{2.5f, -1}));
}

// Labels below zero are of no class, unless they are ignored.
TEST_F(ImportEdges, NoClassIsCountedFromTheEnd) {
  const auto loss = [&](int64_t label) {
    return floats(
        output_of(17, R"((float[2, 3] x, int64[2] labels) => (float loss)
      { loss = NegativeLogLikelihoodLoss <ignore_index = -100> (x, labels) })",
                  {{"x", make_tensor<float>({2, 3}, {-1, -2, -3, -4, -5, -6})}, {"labels", make_tensor<int64_t>({2}, {1, label})}}))[0];
  };
  EXPECT_EQ(loss(2), 4);
  EXPECT_EQ(loss(-100), 2);
  EXPECT_EQ(error_of([&] { loss(-1); }).code(), ErrorCode::data);
}

TEST_F(ImportEdges, AnOperatorThatCameLaterIsNamedWithItsOpset) {
  const Imported imported = imported_of(18, R"((float[2, 4, 3] x) => (float[2, 4, 3] y) <float[2] s = {1, 2}, float[2] b = {3, 4}>
    { y = GroupNormalization <num_groups = 2> (x, s, b) })");
  ASSERT_EQ(imported.obstacles.size(), 1u);
  EXPECT_HAS(imported.obstacles[0].hint, "opset_version=21 or newer");
}

// A dimension whose name is a number has that size.
TEST_F(ImportEdges, NumbersAreNoNames) {
  pb::ModelProto model = this->model(17, "(float[n, 2] x) => (float[n, 2] y) { y = Tanh (x) }");
  model.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0)->set_dim_param("8");
  const Imported imported = import_file(write_model(folder, model));
  EXPECT_EQ(imported.graph.value(imported.graph.inputs[0]).shape, (Shape{8, 2}));
}

TEST_F(ImportEdges, BranchesDoNotShareBytesUnderAnotherShape) {
  pb::ModelProto model = this->model(
      17, R"((float[2, 4] x, bool c) => (float[2, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> {
    p = MatMul (x, w)
    y = If (c) <then_branch = a () => (float[2, 4] q) <float[16] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}>
                  { s = Constant <value_ints = [4, 4]> () r = Reshape (v, s) q = MatMul (p, r) },
                else_branch = b () => (float[2, 4] t) { t = Tanh (p) }>
  })");
  std::vector<float> numbers;
  for (int i = 1; i <= 16; ++i) numbers.push_back(static_cast<float>(i));
  write_file(folder / "w.bin", bytes_of(numbers));
  store_externally(*model.mutable_graph()->mutable_initializer(0), "w.bin", 0, 64);
  for (auto& attribute : *model.mutable_graph()->mutable_node(1)->mutable_attribute()) {
    if (attribute.name() == "then_branch") store_externally(*attribute.mutable_g()->mutable_initializer(0), "w.bin", 0, 64);
  }
  const ImportOptions options{.bound_inputs = {{"c", scalar_tensor(true)}}};
  const Imported imported = import_file(write_model(folder, model), options);
  ASSERT_EQ(imported.obstacles.size(), 1u);
  EXPECT_HAS(imported.obstacles[0].reason, "'w' and 'v' share bytes of");
}

}  // namespace
}  // namespace ort_train
