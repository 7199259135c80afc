// Import: what becomes of dimensions, branches, functions, and of what can't be imported.

#include "frontend/import.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/graph_ops.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;

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
  EXPECT_HAS(e.what(), "`shapes` batch=8,mask.2=128,sequence=128");

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
    g (float[batch, 6] x) => (float[batch, 2, 3] y) <int64[1] first = {0}, int64[2] rest = {2, 3}, float[3] b = {1, 2, 3}> {
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
  for (ValueId id : imported.graph.outputs) names.push_back(imported.graph.output_name(id));
  EXPECT_EQ(names.size(), 3u);
  EXPECT_EQ(names[0], "y");
  EXPECT_EQ(names[1], "z");
  EXPECT_EQ(names[2], "w");
  EXPECT_EQ(imported.graph.value(imported.graph.find_value("x")).kind, ValueKind::input);
  EXPECT_NE(imported.graph.find_value("w"), imported.graph.outputs[2]);  // the initializer keeps its name
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

// They are no weights, which is said.
TEST(Import, TensorsInFunctionsAreListed) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 9, opset_import: ["" : 17, "mine" : 1]>
    g (float[1, 2] x) => (float[1, 2] y) <float[2] w = {1, 2}> {
      a = mine.Fixed (x)
      y = Add (a, w)
    }
    <domain: "mine", opset_import: ["" : 17]> Fixed (p) => (q) {
      k = Constant <value = float[2, 2] {1, 2, 3, 4}> ()
      q = MatMul (p, k)
    })"));
  const auto& tensors = imported.info.tensors;
  const auto found = std::find_if(tensors.begin(), tensors.end(), [](const TensorFate& tensor) { return tensor.name == "Fixed/k"; });
  ASSERT_NE(found, tensors.end());
  EXPECT_EQ(found->treatment, Treatment::constant);
  EXPECT_EQ(found->why, "in the body of a function, where nothing is trained");
  EXPECT_HAS(fmt::format("{}", fmt::join(imported.info.notes, "\n")), "1 tensor is in bodies of functions and stays as it is ('Fixed/k')");
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

TEST(Import, FindsEveryObstacleAtOnce) {
  const TestFolder folder;
  const std::string path = write_model(folder, kObstacles);
  const Imported first = import_file(path);
  Names nodes;
  std::vector<bool> blocks;
  for (const Obstacle& obstacle : first.obstacles) nodes.push_back(obstacle.node), blocks.push_back(obstacle.blocks);
  EXPECT_EQ(nodes, (Names{"MaxRoiPool 'pooled'", "Spectral 'spectral'", "NonMaxSuppression 'nms'"}));
  EXPECT_EQ(blocks, (std::vector<bool>{true, true, false}));
  EXPECT_HAS(first.obstacles[1].reason, "their.ops");
  for (const Obstacle& obstacle : first.obstacles) EXPECT_FALSE(obstacle.hint.empty());
  // What does not depend on them is there.
  ASSERT_EQ(first.graph.outputs.size(), 1u);
  EXPECT_EQ(first.graph.value(first.graph.outputs[0]).name, "z");
  EXPECT_EQ(op_names(first.graph), (Names{"Add", "Mul"}));

  const Imported second = import_file(path, {.shapes = {}, .bound_inputs = {}, .retie = true, .untie = false, .outputs = {"z"}});
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
  EXPECT_HAS(reason("y = SequenceConstruct (x)"), "output 'y': is a sequence of tensors");
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

// As PyTorch's dynamo exporter writes opset 17.
TEST(Import, ToleratesASpareCountOnSplit) {
  const TestFolder folder;
  constexpr const char* text = R"(<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 6] x) => (float[2, 3] b) {{ a, b = Split <axis = 1, num_outputs = {}> (x) }})";
  const auto model = [&](int count) { return write_model(folder, fmt::format(text, count)); };
  const Imported imported = import_file(model(2));
  EXPECT_TRUE(imported.obstacles.empty());
  EXPECT_EQ(floats(run_imported(imported, {{"x", make_tensor<float>({2, 6}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11})}}).at("b")),
            (std::vector<float>{3, 4, 5, 9, 10, 11}));
  EXPECT_EQ(import_file(model(3)).obstacles.size(), 1u);
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
