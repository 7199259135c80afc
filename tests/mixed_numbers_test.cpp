// Mixed precision where 16 bits don't do: positions and angles, numbers that the type hasn't, products that stand for something else,
// counts that gradients are divided by, vectors of any rank; and that a batch of one sample changes no type.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "graph/autodiff.h"
#include "passes/build.h"
#include "passes/pipeline.h"
#include "tests/graph_ops.h"
#include "tests/mixed_graph.h"
#include "tests/onnx_models.h"
#include "tests/projected_loss.h"

namespace ort_train {
namespace {

using fixtures::mixed;
using fixtures::nodes_named;
using fixtures::typed_ops;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Not;
using DTypeList = std::vector<DType>;

DType made_type(const Graph& graph, const Node& node) { return graph.value(node.outputs[0]).dtype; }
bool rounds_operands(const Node& node) { return get_type(node.attributes, kComputeType, DType::float32) != DType::float32; }

// What import makes of a model, in mixed precision.
struct MixedImports : ::testing::Test {
  const TestFolder folder;

  Imported import(const std::string& text, const ImportOptions& options = {}) const {
    const std::string path = fixtures::write_model(folder, R"(<ir_version: 10, opset_import: ["" : 20]> )" + text);
    return fixtures::import_whole(path, options);
  }
  // Of a model that has a weight `w`.
  Graph graph_of(const std::string& text, DType low = DType::bfloat16) const { return mixed(import(text, {.train = {"w"}}).graph, low); }
  // A weight's numbers.
  static std::string values(int n) {
    std::vector<float> numbers;
    for (int i = 0; i < n; ++i) numbers.push_back(static_cast<float>(i * 37 % 101) / 64 - 0.75f);
    return fmt::format("{}", fmt::join(numbers, ", "));
  }
};

// --- positions ------------------------------------------------------------------------------------------------------------------------

constexpr const char* kAngles = R"(g (int64[2, 300] positions) => (float[2, 4, 300] y) <float[2, 4, 1] frequencies> {
    p = Cast<to = 0>(positions)
    r = Reshape<shape = [2, 1, 300]>(p)
    a = MatMul(frequencies, r)
    y = Cos(a)
  })";

Graph without_training(std::string_view text) {
  Graph graph = parse_graph(text);
  for (const ValueId id : graph.parameters()) graph.value(id).trainable = false;
  return graph;
}

TEST(MixedNumbers, AnglesOfPositionsAreFloat32) {
  for (const DType low : {DType::bfloat16, DType::float16}) {
    const Graph graph = mixed(without_training(kAngles), low);
    EXPECT_THAT(typed_ops(graph), ElementsAre("Cast float32", "Reshape float32", "MatMul float32", "Cos float32"));
    EXPECT_FALSE(rounds_operands(nodes_named(graph, "MatMul").at(0)));
  }
  EXPECT_TRUE(rounds_operands(nodes_named(mixed(kAngles), "MatMul").at(0))) << "of a trained weight it is a layer, as any other";
}

TEST_F(MixedImports, RotaryAnglesAreThoseOfFloat32) {
  Imported imported = import(R"(g (int64[1, 3] positions) => (float[1, 2, 3] y) {
    both = Constant <value_floats = [1.0, 0.01]> ()
    shape = Constant <value_ints = [1, 2, 1]> ()
    f = Reshape (both, shape)
    p = Cast <to = 1> (positions)
    one = Constant <value_ints = [1]> ()
    r = Unsqueeze (p, one)
    a = MatMul (f, r)
    y = Sin (a)
  })");
  imported.graph = mixed(std::move(imported.graph));
  const Tensor y = fixtures::run_imported(imported, {{"positions", make_tensor<int64_t>({1, 3}, {257, 1001, 1003})}}).at("y");
  const double wanted[] = {std::sin(257.0), std::sin(1001.0), std::sin(1003.0), std::sin(2.57), std::sin(10.01), std::sin(10.03)};
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(y.to_double()[i], wanted[i], 1e-5) << i;
}

TEST(MixedNumbers, ProductsWithoutWeightsAreFloat32) {
  const Graph graph = mixed(R"(g (float[2, 5] x, float[5, 3] mask) => (float[2, 4] y) <float[3, 4] w> {
    m = MatMul(x, mask)
    y = MatMul(m, w)
  })");
  const std::vector<Node> products = nodes_named(graph, "MatMul");
  EXPECT_FALSE(rounds_operands(products.at(0)));
  EXPECT_TRUE(rounds_operands(products.at(1)));
}

// --- numbers --------------------------------------------------------------------------------------------------------------------------

std::string with_number(const std::string& op, const std::string& inputs, const std::string& number) {
  return fmt::format(R"(g (float[2, 8] x) => (float[2, 4] y) <float[8, 4] v, float[4, 4] w, float k = {{{}}}> {{
    a = MatMul(x, v)
    m = {}({})
    y = MatMul(m, w)
  }})",
                     number, op, inputs);
}

TEST(MixedNumbers, ANumberThatTheTypeHasntIsUsedAsItIs) {
  for (const auto& [op, inputs] :
       {std::pair{"Mul", "a, k"}, {"Mul", "k, a"}, {"Div", "a, k"}, {"Div", "k, a"}, {"Add", "a, k"}, {"Sub", "k, a"}}) {
    const Graph graph = mixed(with_number(op, inputs, "0.22"));
    EXPECT_THAT(typed_ops(graph), ElementsAre("Cast bfloat16", "MatMul bfloat16", "Cast float32", std::string(op) + " float32",
                                              "Cast bfloat16", "MatMul bfloat16", "Cast float32"));
    const std::vector<Node> nodes = nodes_named(graph, op);
    int constants = 0;
    for (const ValueId input : nodes.at(0).inputs) {
      const Tensor* const number = graph.constant(input);
      if (number == nullptr) continue;
      ++constants;
      EXPECT_EQ(number->to_double(), std::vector<double>{double{0.22f}});
    }
    EXPECT_EQ(constants, 1);
  }
  const std::string low[] = {"Cast bfloat16", "MatMul bfloat16", "", "MatMul bfloat16", "Cast float32"};
  for (const auto& [op, number] : {std::pair{"Mul", "0.5"}, {"Add", "3"}, {"Max", "0.22"}, {"Min", "0.22"}}) {
    EXPECT_THAT(typed_ops(mixed(with_number(op, "a, k", number))),
                ElementsAre(low[0], low[1], std::string(op) + " bfloat16", low[3], low[4]));
  }
}

// The nodes around it are one in the end.
TEST(MixedNumbers, CastsAroundANumberAreFused) {
  EntryGraph job{.graph = mixed(with_number("Mul", "a, k", "0.22"))};
  EXPECT_TRUE(fuse_elementwise(job, {}));
  EXPECT_THAT(typed_ops(job.graph),
              ElementsAre("Cast bfloat16", "MatMul bfloat16", "FusedElementwise bfloat16", "MatMul bfloat16", "Cast float32"));
}

TEST(MixedNumbers, WhatIsOutOfRangeMakesFloat32) {
  for (const auto& [op, number] : {std::pair{"Mul", "1e6"}, {"Mul", "1e-8"}, {"Div", "1e-8"}, {"Div", "-1e6"}, {"Add", "1e-8"}}) {
    const Graph graph = mixed(with_number(op, "a, k", number), DType::float16);
    EXPECT_THAT(typed_ops(graph), ElementsAre("Cast float16", "MatMul float32", std::string(op) + " float32", "Cast float16",
                                              "MatMul float16", "Cast float32"))
        << number;
    const Node node = nodes_named(graph, op).at(0);
    EXPECT_EQ(graph.constant(node.inputs[1])->data<float>()[0], std::stof(number));
  }
  const Graph masked = mixed(with_number("Add", "a, k", "-3e38"), DType::float16);  // hides something
  EXPECT_THAT(typed_ops(masked), Contains("Add float16"));
  EXPECT_EQ(masked.constant(nodes_named(masked, "Add").at(0).inputs[1])->to_double(), std::vector<double>{-65504});
}

TEST(MixedNumbers, ABatchOfOneChangesNoType) {
  for (const int batch : {1, 2}) {
    const Graph graph = mixed(fmt::format(R"(g (float[{0}, 8] x, float[{0}, 1] d) => (float[{0}, 4] y) <float[8, 4] v, float[4, 4] w> {{
      a = MatMul(x, v)
      q = Div(a, d)
      y = MatMul(q, w)
    }})",
                                          batch));
    EXPECT_THAT(typed_ops(graph), Contains("Div float32")) << batch;
  }
  // Nothing fed has a part in these.
  const Graph graph = mixed(R"(g (float[2, 8] x) => (float[2, 4] y) <float[8, 4] v, float[4, 4] w, float[1, 1] s, float[1] one = {1.0}> {
    a = MatMul(x, v)
    t = Add(s, one)
    q = Div(a, t)
    y = MatMul(q, w)
  })");
  EXPECT_THAT(typed_ops(graph), Contains("Div bfloat16"));
}

// --- vectors --------------------------------------------------------------------------------------------------------------------------

TEST(MixedNumbers, VectorsOfAnyRankStayFloat32) {
  Graph graph = parse_graph(R"(g (float[2, 3, 8, 8] x) => (float[2, 4, 8, 8] y)
    <float[4, 3, 3, 3] w, float[4, 1, 1] scale, float[1, 1, 1, 8] place, float[4] bias> {
    c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w, bias)
    s = Mul(c, scale)
    y = Add(s, place)
  })");
  mixed_precision(graph, {.precision = DType::bfloat16, .low_weights = true});
  const auto type_of = [&](const char* name) { return graph.value(graph.find_value(name)).dtype; };
  EXPECT_EQ(type_of("w"), DType::bfloat16);
  for (const char* name : {"scale", "place", "bias"}) EXPECT_EQ(type_of(name), DType::float32) << name;
}

// --- ops that become products -----------------------------------------------------------------------------------------------------------

TEST_F(MixedImports, TransformsAreFloat32) {
  for (const char* node : {"d = DFT <onesided = 1> (h, , axis)", "d = STFT (h, step, , frame)"}) {
    const Graph graph = graph_of(fmt::format(R"(g (float[2, 3] x) => (float y)
      <float[3, 16] w = {{{}}}, int64[3] shape = {{2, 16, 1}}, int64 axis = {{1}}, int64 step = {{4}}, int64 frame = {{8}}> {{
        a = MatMul (x, w)
        h = Reshape (a, shape)
        {}
        y = ReduceSum <keepdims = 0> (d)
      }})",
                                             values(48), node));
    const std::vector<Node> products = nodes_named(graph, "MatMul");
    ASSERT_EQ(products.size(), 2u) << node;
    EXPECT_TRUE(rounds_operands(products[0])) << node;
    EXPECT_FALSE(rounds_operands(products[1])) << node;
    for (const ValueId operand : products[1].inputs) EXPECT_EQ(graph.value(operand).dtype, DType::float32) << node;
    EXPECT_FALSE(products[1].attributes.has(kRunsIn));
  }
}

TEST_F(MixedImports, CountsOfNGramsAreFloat32) {
  const Graph graph = graph_of(fmt::format(R"(g (float[2, 3] x) => (float[2, 2] y) <float[3, 4] w = {{{}}}> {{
    a = MatMul (x, w)
    i = Cast <to = 7> (a)
    y = TfIdfVectorizer <mode = "TF", min_gram_length = 1, max_gram_length = 1, max_skip_count = 0, ngram_counts = [0],
                         ngram_indexes = [0, 1], pool_int64s = [5, 7]> (i)
  }})",
                                           values(12)));
  EXPECT_FALSE(rounds_operands(nodes_named(graph, "MatMul").at(1)));
}

// The weights between neighbours are no numbers of 16 bits; results are.
TEST_F(MixedImports, AResizedPictureHasItsType) {
  for (const char* scales : {"1.0, 1.0, 1.75, 1.0", "1.0, 1.0, 1.0, 1.75"}) {
    const Graph graph = graph_of(fmt::format(R"(g (float[1, 2, 4, 4] x) => (float[1, 2, n, m] y)
      <float[2, 2, 1, 1] w = {{{}}}, float[4] scales = {{{}}}> {{
        c = Conv (x, w)
        r = Resize <mode = "linear"> (c, , scales)
        y = Conv (r, w)
      }})",
                                             values(4), scales));
    const Node product = nodes_named(graph, "MatMul").at(0);
    EXPECT_EQ(made_type(graph, product), DType::bfloat16);
    EXPECT_FALSE(rounds_operands(product));
    DTypeList types;
    for (const ValueId operand : product.inputs) types.push_back(graph.value(operand).dtype);
    std::sort(types.begin(), types.end());
    EXPECT_THAT(types, ElementsAre(std::min(DType::float32, DType::bfloat16), std::max(DType::float32, DType::bfloat16)));
  }
}

TEST_F(MixedImports, FoldedColumnsHaveTheirType) {
  const Graph graph = graph_of(fmt::format(R"(g (float[1, 4, 9] x) => (float[1, 1, 4, 4] y)
    <float[9, 9] w = {{{}}}, int64[2] image = {{4, 4}}, int64[2] block = {{2, 2}}> {{
      a = MatMul (x, w)
      y = Col2Im (a, image, block)
    }})",
                                           values(81)));
  EXPECT_FALSE(rounds_operands(nodes_named(graph, "ConvTranspose").at(0)));
  EXPECT_EQ(graph.value(nodes_named(graph, "ConvTranspose").at(0).inputs[0]).dtype, DType::bfloat16);
}

TEST_F(MixedImports, PlacesInAPictureAreFloat32) {
  const Graph graph = graph_of(fmt::format(R"(g (float[1, 2, 300, 300] p, float[1, 3] x) => (float[1, 2, 2, 1] y)
    <float[3, 4] w = {{{}}}, int64[4] shape = {{1, 2, 1, 2}}> {{
      a = MatMul (x, w)
      grid = Reshape (a, shape)
      y = GridSample (p, grid)
    }})",
                                           values(12)));
  for (const Node& node : nodes_named(graph, "Floor")) EXPECT_EQ(made_type(graph, node), DType::float32);
  EXPECT_THAT(typed_ops(graph), Not(Contains("Floor bfloat16")));
  EXPECT_THAT(typed_ops(graph), Contains("Floor float32"));
}

TEST_F(MixedImports, RegionsThatAModelPredicts) {
  for (const DType low : {DType::bfloat16, DType::float16}) {
    const Graph graph = graph_of(fmt::format(R"(g (float[1, 2, 8, 8] p, float[1, 3] x) => (float[1, 2, 2, 2] y)
      <float[3, 4] w = {{{}}}, int64[1] samples = {{0}}> {{
        boxes = MatMul (x, w)
        y = RoiAlign <output_height = 2, output_width = 2, sampling_ratio = 2> (p, boxes, samples)
      }})",
                                             values(12)),
                                 low);
    EXPECT_THAT(typed_ops(graph), Contains("BitCast float32"));
  }
}

// --- what gradients are divided by ------------------------------------------------------------------------------------------------------

// The gradient of the only element that a reduction of n equal numbers gives.
std::vector<double> gradient_of_equals(const char* op, DType type, int64_t n, const std::string& attributes = "") {
  Imported imported;
  Graph& graph = imported.graph;
  graph = parse_graph(fmt::format("g ({0}[1, 1, {1}] x) => ({0}[1, 1, 1] y) {{ y = {2}<axes = [2], keepdims = 1{3}>(x) }}",
                                  type == DType::float16 ? "float16" : "bfloat16", n, op, attributes));
  const ValueId x = graph.inputs[0];
  fixtures::train_input(graph, x);
  const ValueId gradient = differentiate(graph, graph.outputs[0]).at(x);
  graph.verify("autodiff");
  Tensor ones(type, {1, 1, n});
  for (int64_t i = 0; i < n; ++i) {
    if (type == DType::float16)
      ones.data<float16>()[static_cast<size_t>(i)] = to_float16(1);
    else
      ones.data<bfloat16>()[static_cast<size_t>(i)] = to_bfloat16(1);
  }
  if (const Tensor* const known = graph.constant(gradient)) return known->to_double();
  graph.outputs = {gradient};
  return fixtures::run_imported(imported, {{"x", ones}}).at(graph.output_name(gradient)).to_double();
}

TEST(MixedNumbers, GradientsAreDividedByCountsThatAreNoneOf16Bits) {
  for (const char* op : {"ReduceMean", "ReduceMax", "ReduceMin"}) {
    EXPECT_THAT(gradient_of_equals(op, DType::float16, 65536), Each(0x1p-16)) << op;
    EXPECT_THAT(gradient_of_equals(op, DType::bfloat16, 257), Each(double{to_float(to_bfloat16(1.0f / 257))})) << op;
  }
}

TEST(MixedNumbers, TheFirstOfTheLargestHasTheGradient) {
  std::vector<double> wanted(300);
  wanted[0] = 1;
  EXPECT_EQ(gradient_of_equals("ReduceMax", DType::bfloat16, 300, ", first = 1"), wanted);
}

}  // namespace
}  // namespace ort_train
