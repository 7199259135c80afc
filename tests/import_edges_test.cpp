// Import where the standard, its versions and files leave room for mistakes.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <onnx/checker.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "exec/kernel.h"
#include "frontend/adapters.h"
#include "frontend/export.h"
#include "graph/half.h"
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

// onnx.helper.make_tensor() stores numbers of 16 bits as integers, unless it is told to store bytes: w and v are weights, k is one in a
// Constant node, c is a constant, and s a weight of the branch that is taken.
pb::ModelProto with_integers(pb::TensorProto::DataType type) {
  const char* const name = type == pb::TensorProto::FLOAT16 ? "float16" : "bfloat16";
  pb::ModelProto model = model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
    g ({0}[n, 64] x) => ({0}[n, 2] y) {{
      h = MatMul (x, v)
      k = Constant ()
      i = Add (h, k)
      yes = Constant <value = bool {{1}}> ()
      j = If (yes) <then_branch = a () => ({0}[n, 128] p) {{ p = Mul (i, s) }}, else_branch = b () => ({0}[n, 128] q) {{ q = Neg (i) }}>
      l = Mul (j, c)
      y = MatMul (l, w)
    }})",
                                              name));
  const auto fill = [&](pb::TensorProto& tensor, const char* called, std::vector<int64_t> dims, int first) {
    tensor.set_name(called);
    tensor.set_data_type(type);
    int64_t count = 1;
    for (const int64_t dim : dims) tensor.add_dims(dim), count *= dim;
    for (int64_t i = 0; i < count; ++i) {  // of one byte, two and three
      const int64_t bits = i % 7 == 0 ? i % 2 : first + i % 97 + i % 2 * 0x8000;
      tensor.add_int32_data(static_cast<int32_t>(bits));
    }
  };
  pb::GraphProto& graph = *model.mutable_graph();
  fill(*graph.add_initializer(), "v", {64, 128}, 0x3c00);
  fill(*graph.add_initializer(), "w", {128, 2}, 0x3800);
  fill(*graph.add_initializer(), "c", {1}, 0x4000);
  pb::AttributeProto& value = *graph.mutable_node(1)->add_attribute();
  value.set_name("value");
  value.set_type(pb::AttributeProto::TENSOR);
  fill(*value.mutable_t(), "", {1, 128}, 0x3000);
  for (auto& attribute : *graph.mutable_node(4)->mutable_attribute()) {
    if (attribute.name() == "then_branch") fill(*attribute.mutable_g()->add_initializer(), "s", {128}, 0x3a00);
  }
  return model;
}

float number_of(pb::TensorProto::DataType type, uint16_t bits) {
  return type == pb::TensorProto::FLOAT16 ? to_float(float16{bits}) : to_float(bfloat16{bits});
}

// Every tensor of a graph and of those nested in it, by name.
std::map<std::string, const pb::TensorProto*> tensors_of(const pb::GraphProto& graph) {
  std::map<std::string, const pb::TensorProto*> tensors;
  for (const auto& tensor : graph.initializer()) tensors[tensor.name()] = &tensor;
  for (const auto& node : graph.node()) {
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_t()) tensors[node.output(0)] = &attribute.t();
      if (attribute.has_g()) tensors.merge(tensors_of(attribute.g()));
    }
  }
  return tensors;
}

TEST_F(ImportEdges, HalvesStoredAsIntegersAreRead) {
  for (const auto type : {pb::TensorProto::FLOAT16, pb::TensorProto::BFLOAT16}) {
    const pb::ModelProto model = with_integers(type);
    const auto tensors = tensors_of(model.graph());
    const Imported imported = import_file(write_model(folder, model), {.shapes = {{"n", 1}}});
    ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
    EXPECT_EQ(parameter_names(imported), (Names{"v", "w", "k", "s"}));
    for (const Weight& weight : imported.weights) {
      const std::vector<float> numbers = floats(weight_tensor(imported, weight));
      const auto& bits = tensors.at(weight.parameter)->int32_data();
      ASSERT_EQ(static_cast<int>(numbers.size()), bits.size());
      for (int i = 0; i < bits.size(); ++i)
        ASSERT_EQ(numbers[static_cast<size_t>(i)], number_of(type, static_cast<uint16_t>(bits[i]))) << weight.parameter << " " << i;
      // Also in the middle of it, over where a block of the index begins.
      if (weight.parameter != "v") continue;
      std::vector<float> part(4100);
      read_weight(weight.places[0], 3000, DType::float32, std::as_writable_bytes(std::span(part)));
      EXPECT_TRUE(std::equal(part.begin(), part.end(), numbers.begin() + 3000));
    }
  }
}

// They are written back as bytes: nothing else of the file changes, and of weights that aren't written not a byte.
TEST_F(ImportEdges, HalvesStoredAsIntegersAreWrittenAsBytes) {
  for (const auto type : {pb::TensorProto::FLOAT16, pb::TensorProto::BFLOAT16}) {
    const pb::ModelProto model = with_integers(type);
    const auto before = tensors_of(model.graph());
    const Imported imported = import_file(write_model(folder, model), {.shapes = {{"n", 1}}});
    const WeightBytes numbers = [&](const std::string& name, const ByteSink& sink) {
      const Weight& weight = weight_named(imported.weights, name);
      const std::vector<float> trained(static_cast<size_t>(element_count(weight.places[0].shape)), 1.5f);
      return sink(0, std::as_bytes(std::span(trained))), true;
    };
    std::vector<Weight> written = imported.weights;
    std::erase_if(written, [](const Weight& weight) { return weight.parameter == "w"; });
    const std::string out = folder / (type == pb::TensorProto::FLOAT16 ? "out" : "out16");
    std::filesystem::create_directory(out);
    pb::ModelProto trained;
    ASSERT_TRUE(trained.ParseFromString(read_file(export_model(imported.info, written, numbers, out))));
    pb::checker::check_model(trained);
    const auto after = tensors_of(trained.graph());
    const uint16_t bits = type == pb::TensorProto::FLOAT16 ? to_float16(1.5f).bits : to_bfloat16(1.5f).bits;
    for (const char* const name : {"v", "k", "s"}) {
      EXPECT_EQ(after.at(name)->int32_data_size(), 0) << name;
      std::string wanted;
      for (int i = 0; i < before.at(name)->int32_data_size(); ++i) wanted.append(reinterpret_cast<const char*>(&bits), sizeof bits);
      EXPECT_EQ(after.at(name)->raw_data(), wanted) << name;
      auto& back = const_cast<pb::TensorProto&>(*after.at(name));  // as it was
      back.clear_raw_data();
      *back.mutable_int32_data() = before.at(name)->int32_data();
    }
    EXPECT_EQ(trained.SerializeAsString(), model.SerializeAsString());
  }
}

// The other changes to a file go with them.
TEST_F(ImportEdges, HalvesStoredAsIntegersAreUntied) {
  pb::ModelProto model = with_integers(pb::TensorProto::FLOAT16);
  model.mutable_graph()->mutable_node(6)->set_op_type("Gemm");  // y = l w + c2
  model.mutable_graph()->mutable_node(6)->add_input("c2");
  auto& bias = *model.mutable_graph()->add_initializer();
  bias.set_name("c2"), bias.set_data_type(pb::TensorProto::FLOAT16), bias.add_dims(2), bias.add_int32_data(0x3c00), bias.add_int32_data(1);
  auto& twice = *model.mutable_graph()->add_node();
  twice.set_op_type("Add"), twice.add_input("y"), twice.add_input("c2"), twice.add_output("z");
  model.mutable_graph()->mutable_output(0)->set_name("z");
  const Imported imported = import_file(write_model(folder, model), {.shapes = {{"n", 1}}, .untie = true});
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
  const WeightBytes numbers = [&](const std::string& name, const ByteSink& sink) {
    const Weight& weight = weight_named(imported.weights, name);
    const std::vector<float> trained(static_cast<size_t>(element_count(weight.places[0].shape)), name == "c2.use2" ? 3.0f : 1.5f);
    return sink(0, std::as_bytes(std::span(trained))), true;
  };
  std::filesystem::create_directory(folder / "out");
  const std::string path = export_model(imported.info, imported.weights, numbers, folder / "out");
  pb::ModelProto trained;
  ASSERT_TRUE(trained.ParseFromString(read_file(path)));
  pb::checker::check_model(trained);
  const Imported again = import_file(path, {.shapes = {{"n", 1}}});
  for (const Weight& weight : again.weights)
    EXPECT_EQ(floats(weight_tensor(again, weight))[0], weight.parameter == "c2.use2" ? 3.0f : 1.5f) << weight.parameter;
}

TEST_F(ImportEdges, HalvesStoredAsOtherNumbersOfIntegersAreRefused) {
  pb::ModelProto model = with_integers(pb::TensorProto::FLOAT16);
  model.mutable_graph()->mutable_initializer(0)->add_int32_data(1);
  const Error problem = error_of([&] { import_file(write_model(folder, model), {.shapes = {{"n", 1}}}); });
  EXPECT_EQ(problem.code(), ErrorCode::unsupported);
  EXPECT_HAS(problem.what(), "tensor 'v' is float16 [64, 128], but the file holds another number of elements of it");
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
  const Imported imported = imported_of(18, "(uint8[8] x) => (uint8[2, 2, 3] y) { y = ImageDecoder (x) }");
  ASSERT_EQ(imported.obstacles.size(), 1u);
  EXPECT_HAS(imported.obstacles[0].hint, "opset_version=20 or newer");
}

// Before opset 21 GroupNormalization's scale and bias have a number for each group, from then on for each channel.
TEST_F(ImportEdges, GroupsWereScaledBeforeChannels) {
  const auto normalized = [&](int opset, const char* numbers, const char* scale, const char* bias) {
    std::vector<float> x;
    for (int i = 0; i < 24; ++i) x.push_back(static_cast<float>(i * i % 17) + 100);
    return floats(output_of(opset,
                            fmt::format("(float[2, 4, 3] x) => (float[2, 4, 3] y) <float[{0}] s = {{{1}}}, float[{0}] b = {{{2}}}> "
                                        "{{ y = GroupNormalization <num_groups = 2, epsilon = 0.001> (x, s, b) }}",
                                        numbers, scale, bias),
                            {{"x", make_tensor<float>({2, 4, 3}, x)}}));
  };
  const std::vector<float> of_groups = normalized(18, "2", "1, 2", "3, -4");
  EXPECT_EQ(of_groups, normalized(20, "2", "1, 2", "3, -4"));
  EXPECT_EQ(of_groups, normalized(21, "4", "1, 1, 2, 2", "3, 3, -4, -4"));
  double sum = 0, squares = 0;  // of the first group
  for (int i = 0; i < 6; ++i) sum += of_groups[static_cast<size_t>(i)] - 3, squares += std::pow(of_groups[static_cast<size_t>(i)] - 3, 2);
  EXPECT_NEAR(sum, 0, 1e-4);
  EXPECT_NEAR(squares / 6, 1, 1e-3);
  for (const auto& [opset, numbers] : {std::pair(18, 4), {21, 2}}) {
    const Imported wrong = imported_of(opset, fmt::format("(float[2, 4, 3] x, float[{0}] s, float[{0}] b) => (float[2, 4, 3] y) "
                                                          "{{ y = GroupNormalization <num_groups = 2> (x, s, b) }}",
                                                          numbers));
    ASSERT_EQ(wrong.obstacles.size(), 1u);
    EXPECT_HAS(wrong.obstacles[0].reason, opset == 18 ? "scale [4] and bias [4] would have to be [2]: a number for each group"
                                                      : "scale [2] and bias [2] would have to be [4]: a number for each channel");
  }
}

// A dimension whose name is a number has that size.
TEST_F(ImportEdges, NumbersAreNoNames) {
  pb::ModelProto model = this->model(17, "(float[n, 2] x) => (float[n, 2] y) { y = Tanh (x) }");
  model.mutable_graph()->mutable_input(0)->mutable_type()->mutable_tensor_type()->mutable_shape()->mutable_dim(0)->set_dim_param("8");
  const Imported imported = import_file(write_model(folder, model));
  EXPECT_EQ(imported.graph.value(imported.graph.inputs[0]).shape, (Shape{8, 2}));
}

// Tensors of branches, taken or not, and of functions lie in one place with a weight of the graph only if they are the same.
struct SharedBytes : ImportEdges {
  pb::ModelProto file;
  SharedBytes()
      : file(model(17,
                   R"((float[2, 4] x, bool c) => (float[2, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> {
    p = MatMul (x, w)
    y = If (c) <then_branch = a () => (float[2, 4] q) <float[16] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}>
                  { s = Constant <value_ints = [4, 4]> () r = Reshape (v, s) q = MatMul (p, r) },
                else_branch = b () => (float[2, 4] t) { t = Tanh (p) }>
  })")) {
    std::vector<float> numbers;
    for (int i = 1; i <= 16; ++i) numbers.push_back(static_cast<float>(i));
    write_file(folder / "w.bin", bytes_of(numbers));
    store_externally(*file.mutable_graph()->mutable_initializer(0), "w.bin", 0, 64);
    store_externally(of_branch(), "w.bin", 0, 64);
  }
  pb::TensorProto& of_branch() {
    for (auto& attribute : *file.mutable_graph()->mutable_node(1)->mutable_attribute()) {
      if (attribute.name() == "then_branch") return *attribute.mutable_g()->mutable_initializer(0);
    }
    throw std::runtime_error("no branch");
  }
  Imported import(bool taken) const { return import_file(write_model(folder, file), {.bound_inputs = {{"c", scalar_tensor(taken)}}}); }
};

TEST_F(SharedBytes, AreRefusedUnderAnotherShape) {
  for (const bool taken : {true, false}) {
    const Error problem = error_of([&] { import(taken); });
    EXPECT_EQ(problem.code(), ErrorCode::unsupported);
    EXPECT_HAS(problem.what(), "'w' and 'v' share bytes of");
  }
}

TEST_F(SharedBytes, AreRefusedWhereTheyOverlap) {
  of_branch().set_dims(0, 4);
  store_externally(of_branch(), "w.bin", 48, 16);
  EXPECT_HAS(error_of([&] { import(false); }).what(), "'w' and 'v' share bytes of");
}

TEST_F(SharedBytes, OfTheSameTensorAreOneWeight) {
  of_branch().set_dims(0, 4);
  of_branch().add_dims(4);
  EXPECT_EQ(parameter_names(import(true)), (Names{"w"}));
  const Imported untaken = import(false);
  EXPECT_EQ(parameter_names(untaken), (Names{"w"}));
  const auto& tensors = untaken.info.tensors;
  const auto v = std::find_if(tensors.begin(), tensors.end(), [](const TensorFate& tensor) { return tensor.name == "v"; });
  ASSERT_NE(v, tensors.end());
  EXPECT_EQ(v->treatment, Treatment::trained);
  EXPECT_EQ(v->why, "stored in the same place as 'w'");
  EXPECT_THAT(untaken.info.notes, ::testing::Not(::testing::Contains(::testing::HasSubstr("branch"))));
}

TEST_F(SharedBytes, OfFunctionsAreRefused) {
  pb::ModelProto called = model_of(R"(<ir_version: 9, opset_import: ["" : 17, "mine" : 1]>
    g (float[1, 2] x) => (float[1, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
      a = mine.Fixed (x)
      y = MatMul (a, w)
    }
    <domain: "mine", opset_import: ["" : 17]> Fixed (p) => (q) {
      k = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
      q = MatMul (p, k)
    })");
  write_file(folder / "k.bin", bytes_of(std::vector<float>{1, 2, 3, 4}));
  store_externally(*called.mutable_functions(0)->mutable_node(0)->mutable_attribute(0)->mutable_t(), "k.bin", 0, 16);
  EXPECT_EQ(parameter_names(import_file(write_model(folder, called))), (Names{"w"}));
  store_externally(*called.mutable_graph()->mutable_initializer(0), "k.bin", 0, 16);
  EXPECT_HAS(error_of([&] { import_file(write_model(folder, called)); }).what(), "'w' and 'Fixed/k' share bytes of");
}

// Weights of a branch that isn't taken are listed, and said to stay as they are.
TEST_F(ImportEdges, UntakenBranchesAreListed) {
  const pb::ModelProto model = this->model(
      17, R"((float[2, 4] x, bool c) => (float[2, 4] y) <float[4, 4] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16}> {
    p = MatMul (x, w)
    y = If (c) <then_branch = a () => (float[2, 4] q) <float[4] v = {1, 2, 3, 4}>
                  { no = Constant <value = bool {0}> ()
                    k = Constant <value = float[4] {1, 2, 3, 5}> ()
                    half = Constant <value = float {0.5}> ()
                    m = Mul (p, half)
                    o = Add (m, k)
                    q = If (no) <then_branch = d () => (float[2, 4] r) <float[4] u = {5, 6, 7, 9}> { r = Mul (o, u) },
                                 else_branch = e () => (float[2, 4] s) { s = Add (o, v) }> },
                else_branch = b () => (float[2, 4] t) { t = Tanh (p) }>
  })");
  const auto imported = [&](bool taken, const ImportOptions& options) {
    ImportOptions with = options;
    with.bound_inputs = {{"c", scalar_tensor(taken)}};
    return import_file(write_model(folder, model), with);
  };
  const auto listed = [](const Imported& of) {
    std::map<std::string, std::string> left;
    for (const TensorFate& tensor : of.info.tensors) {
      if (tensor.treatment == Treatment::constant) left[tensor.name] = tensor.why;
    }
    return left;
  };
  const char* const kWhy = "in a branch that isn't taken";
  const Imported without = imported(false, {}), with = imported(true, {});
  EXPECT_EQ(parameter_names(without), (Names{"w"}));
  EXPECT_EQ(listed(without), (std::map<std::string, std::string>{{"v", kWhy}, {"k", kWhy}, {"u", "in a body that isn't run"}}));
  EXPECT_THAT(without.info.notes,
              ::testing::Contains("3 tensors ('v', …) are in branches or bodies that aren't run: they stay as they are"));
  EXPECT_EQ(parameter_names(with), (Names{"w", "v", "k"}));
  EXPECT_EQ(listed(with), (std::map<std::string, std::string>{{"u", kWhy}}));
  EXPECT_THAT(with.info.notes, ::testing::Contains("'u' is in a branch that isn't taken: it stays as it is"));
  const Error problem = error_of([&] { imported(false, {.train = {"v"}}); });
  EXPECT_EQ(problem.code(), ErrorCode::usage);
  EXPECT_HAS(problem.what(), "`train` 'v': 'v' is in a branch that isn't taken");
}

TEST_F(ImportEdges, TheBodyOfALoopThatRepeatsNoTimeIsListed) {
  const Imported imported = imported_of(17, R"((float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1, 2, 3, 4}> {
    p = MatMul (x, w)
    none = Constant <value = int64 {0}> ()
    y = Loop (none, , p) <body = step (int64 i, bool go, float[2, 2] h) => (bool on, float[2, 2] next) <float[2, 2] u = {5, 6, 7, 9}> {
      on = Identity (go)
      next = MatMul (h, u)
    }>
  })");
  EXPECT_EQ(parameter_names(imported), (Names{"w"}));
  EXPECT_THAT(imported.info.notes, ::testing::Contains("'u' is in a body that isn't run: it stays as it is"));
}

}  // namespace
}  // namespace ort_train
