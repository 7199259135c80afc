// Values and gradients at the points where ops have kinks, poles or borders: those of PyTorch, which a central difference doesn't give.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "graph/autodiff.h"
#include "graph/builder.h"
#include "tests/onnx_models.h"
#include "tests/projected_loss.h"

namespace ort_train {
namespace {

using namespace fixtures;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Edge {
  std::string name;
  std::string x;                           // "double[2]"
  std::vector<double> at;                  // x's elements
  std::string nodes, y;                    // what is made of x, in ONNX's text; y's shape
  std::vector<double> value{}, slope{};    // y's elements; the gradient of their sum. Empty: not compared
  std::string constants{}, more_inputs{};  // initializers; inputs that are all zeros
};

std::ostream& operator<<(std::ostream& out, const Edge& edge) { return out << edge.name; }

class EdgeGradients : public ::testing::TestWithParam<Edge> {};

testing::Matcher<std::vector<double>> near(const std::vector<double>& wanted) {
  std::vector<testing::Matcher<double>> each;
  for (const double number : wanted) each.push_back(testing::NanSensitiveDoubleNear(number, 1e-12));
  return testing::ElementsAreArray(each);
}

TEST_P(EdgeGradients, ArePyTorchs) {
  const Edge& edge = GetParam();
  const TestFolder folder;
  Imported imported = import_whole(
      write_model(folder, fmt::format(R"(<ir_version: 10, opset_import: ["" : 22]> g ({} x{}) => (double[{}] y) <{}> {{ {} }})", edge.x,
                                      edge.more_inputs, edge.y, edge.constants, edge.nodes)));
  if (HasFailure()) return;
  Graph& graph = imported.graph;
  std::map<std::string, Tensor> inputs;
  for (const ValueId id : graph.inputs) inputs[graph.value(id).name] = Tensor(graph.value(id).dtype, graph.value(id).shape);
  const ValueId x = graph.find_value("x"), y = graph.outputs.at(0);
  std::copy(edge.at.begin(), edge.at.end(), inputs.at("x").data<double>().begin());
  if (!edge.value.empty()) {
    EXPECT_THAT(run_imported(imported, inputs).at("y").to_double(), near(edge.value));
  }
  if (edge.slope.empty()) return;

  train_input(graph, x);
  Builder builder(graph);
  const ValueId sum = builder.named("tested").emit("ReduceSum", {builder.reshape(y, {element_count(graph.value(y).shape)})},
                                                   {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
  const ValueId gradient = differentiate(graph, sum).at(x);
  graph.outputs.push_back(gradient);
  const Tensor* const known = graph.constant(gradient);
  const Tensor slope = known != nullptr ? *known : run_imported(imported, inputs).at(graph.value(gradient).name);
  EXPECT_THAT(slope.to_double(), near(edge.slope));
}

// Behind an infinite slope.
std::vector<Edge> selected() {
  const std::string root = "\ny = Sqrt (z)";
  return {
      {"relu", "double[3]", {-1, 0, 4}, "z = Relu (x)" + root, "3", {0, 0, 2}, {0, 0, 0.25}},
      {"clip", "double[2]", {-1, 4}, "z = Clip (x, zero)" + root, "2", {0, 2}, {0, 0.25}, "double zero = {0}"},
      {"hard_sigmoid", "double[2]", {-5, 0}, "z = HardSigmoid <alpha = 0.25, beta = 0.25> (x)" + root, "2", {0, 0.5}, {0, 0.25}},
      {"hard_swish", "double[1]", {-4}, "z = HardSwish (x)" + root, "1", {}, {0}},
      {"max", "double[2]", {-1, 4}, "z = Max (x, zero)" + root, "2", {0, 2}, {0, 0.25}, "double zero = {0}"},
      {"min", "double[2]", {1, -4}, "w = Min (x, zero)\nz = Neg (w)" + root, "2", {0, 2}, {0, -0.25}, "double zero = {0}"},
  };
}

std::vector<Edge> at_kinks() {
  const std::string bounds = ", double low, double high";
  return {
      {"relu_zero", "double[2]", {0, std::nan("")}, "y = Relu (x)", "2", {0, std::nan("")}, {0, 1}},
      {"prelu", "double[3]", {0, -2, 3}, "y = PRelu (x, w)", "3", {0, -0.5, 3}, {0.25, 0.25, 1}, "double[1] w = {0.25}"},
      {"prelu_slope",
       "double[1]",
       {0.25},
       "z = Add (data, data)\ny = PRelu (z, x)",
       "2",
       {kInfinity, -0.5},
       {-2},
       "double[2] data = {1.7e308, -1}"},
      {"clip_bounds", "double[3]", {0, 6, 7}, "y = Clip (x, low, high)", "3", {0, 6, 6}, {1, 1, 0}, "double low = {0}, double high = {6}"},
      {"clip_computed", "double[3]", {0, -1, 1}, "y = Clip (x, low, high)", "3", {0, 0, 0}, {1, 0, 0}, "", bounds},
      {"maximum", "double[3]", {0, 1, std::nan("")}, "y = Max (x, zero)", "3", {}, {0.5, 1, 1}, "double zero = {0}"},
      {"global_max_pool",
       "double[1, 2, 2, 2]",
       {0, 3, 3, 1, 5, 5, 5, 5},
       "y = GlobalMaxPool (x)",
       "1, 2, 1, 1",
       {3, 5},
       {0, 1, 0, 0, 1, 0, 0, 0}},
      {"global_max_pool_of_volumes",
       "double[1, 1, 1, 2, 1, 2]",
       {2, 4, 4, 4},
       "y = GlobalMaxPool (x)",
       "1, 1, 1, 1, 1, 1",
       {4},
       {0, 1, 0, 0}},
      {"reduce_max", "double[1, 4]", {2, 4, 4, 1}, "y = ReduceMax (x, axes)", "1, 1", {4}, {0, 0.5, 0.5, 0}, "int64[1] axes = {1}"},
  };
}

std::vector<Edge> at_poles() {
  return {
      {"log_sum_exp",
       "double[3, 2]",
       {-kInfinity, -kInfinity, 0, 0, 3, kInfinity},
       "y = ReduceLogSumExp <keepdims = 0> (x, axes)",
       "3",
       {-kInfinity, std::log(2), kInfinity},
       {},
       "int64[1] axes = {1}"},
      {"log_sum_exp_of_nothing",
       "double[2, 2]",
       {-kInfinity, -kInfinity, 0, 0},
       "y = ReduceLogSumExp <keepdims = 0> (x, axes)",
       "2",
       {},
       {0, 0, 0.5, 0.5},
       "int64[1] axes = {1}"},
      {"lp_pool",
       "double[1, 1, 4]",
       {0, 0, 3, 4},
       "y = LpPool <kernel_shape = [2], strides = [2]> (x)",
       "1, 1, 2",
       {0, 5},
       {0, 0, 0.6, 0.8}},
      {"global_lp_pool", "double[1, 2, 2]", {0, 0, 2, 0}, "y = GlobalLpPool <p = 3> (x)", "1, 2, 1", {0, 2}, {0, 0, 1, 0}},
  };
}

std::vector<Edge> at_borders() {
  return {
      {"pad_value", "double", {2}, "y = Pad (data, pads, x)", "n", {2, 5, 5, 2, 2}, {3}, "double[2] data = {5, 5}, int64[2] pads = {1, 2}"},
      // From corner to corner: only the one in the middle is inside.
      {"grid_border",
       "double[1, 1, 3, 2]",
       {-1, 0, 0, 0, 1, 0},
       "y = GridSample <align_corners = 1, padding_mode = \"border\"> (picture, x)",
       "1, 1, 1, 3",
       {1, 4, 9},
       {0, 0, 5, 0, 0, 0},
       "double[1, 1, 1, 3] picture = {1, 4, 9}"},
      {"resize_scales",
       "double[1, 1, 10]",
       {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
       "y = Resize <mode = \"nearest\", coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"> (x, , scales)",
       "n, c, w",
       {0, 1, 2, 4, 5, 7, 8},
       {1, 1, 1, 0, 1, 1, 0, 1, 1, 0},
       "float[3] scales = {1, 1, 0.7}"},
      {"resize_of_tensorflow",
       "double[1, 1, 2]",
       {3, 4},
       "y = Resize <mode = \"nearest\", coordinate_transformation_mode = \"tf_half_pixel_for_nn\", nearest_mode = \"floor\"> (x, , scales)",
       "n, c, w",
       {3, 4, 4},
       {1, 2},
       "float[3] scales = {1, 1, 1.5}"},
      {"resize_a_fifth",
       "double[1, 1, 10]",
       {0, 1, 2, 3, 4, 5, 6, 7, 8, 9},
       "y = Resize <mode = \"nearest\", coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"> (x, , scales)",
       "n, c, w",
       {0, 5},
       {1, 0, 0, 0, 0, 1, 0, 0, 0, 0},
       "float[3] scales = {1, 1, 0.2}"},
      // Rows that no window reaches hold the bias alone.
      {"transposed_padding",
       "double[1, 1, 3]",
       {1, 2, 3},
       "y = ConvTranspose <strides = [2], dilations = [3], output_padding = [2]> (x, w, b)",
       "1, 1, 10",
       {1.5, 0.5, 2.5, 10.5, 3.5, 20.5, 0.5, 30.5, 0.5, 0.5},
       {11, 11, 11},
       "double[1, 1, 2] w = {1, 10}, double[1] b = {0.5}"},
      {"transposed_padding_and_pads",
       "double[1, 1, 3]",
       {1, 2, 3},
       "y = ConvTranspose <strides = [2], dilations = [4], output_padding = [3], pads = [1, 1]> (x, w, b)",
       "1, 1, 10",
       {0.5, 2.5, 0.5, 13.5, 0.5, 20.5, 0.5, 30.5, 0.5, 0.5},
       {10, 11, 11},
       "double[1, 1, 2] w = {1, 10}, double[1] b = {0.5}"},
      // Padding comes before each element.
      {"max_pool_indices",
       "double[1, 1, 1, 3]",
       {7, -kInfinity, -kInfinity},
       "p, at = MaxPool <kernel_shape = [2, 1], pads = [1, 0, 0, 0]> (x)\ny = Cast <to = 11> (at)",
       "1, 1, 1, 3",
       {0, 1, 2}},
  };
}

std::string name_of(const ::testing::TestParamInfo<Edge>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Selected, EdgeGradients, ::testing::ValuesIn(selected()), name_of);
INSTANTIATE_TEST_SUITE_P(Kinks, EdgeGradients, ::testing::ValuesIn(at_kinks()), name_of);
INSTANTIATE_TEST_SUITE_P(Poles, EdgeGradients, ::testing::ValuesIn(at_poles()), name_of);
INSTANTIATE_TEST_SUITE_P(Borders, EdgeGradients, ::testing::ValuesIn(at_borders()), name_of);

}  // namespace
}  // namespace ort_train
