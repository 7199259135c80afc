// Operators of ONNX that are no op of ours but a chain of some: each is imported in double at the attributes that matter, and the gradients
// of its inputs, made by autodiff, are compared with central differences of what the imported graph computes.

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "graph/autodiff.h"
#include "graph/builder.h"
#include "tests/onnx_models.h"
#include "tests/projected_loss.h"

namespace ort_train {
namespace {

using namespace fixtures;

struct Lowered {
  std::string name;
  std::string inputs;  // of the model, in ONNX's text: those of type double are differentiated, elements of others are 1, 2, …
  std::string node, outputs;
  std::string constants{};  // its initializers
  double low = -1, high = 1;
  int opset = 22;
};

std::ostream& operator<<(std::ostream& out, const Lowered& lowered) { return out << lowered.name; }

class LoweredGradients : public ::testing::TestWithParam<Lowered> {};

double uniform(uint32_t& seed) {
  seed = seed * 1664525 + 1013904223;
  return static_cast<double>(seed >> 8) * 0x1p-24;
}

std::vector<double> run_projected(const Imported& imported, const std::map<std::string, Tensor>& inputs,
                                  const std::map<std::string, Tensor>& weights) {
  std::vector<double> sums;
  for (const auto& [name, output] : run_imported(imported, inputs)) {
    const std::vector<double> y = output.to_double(), w = weights.at(name).to_double();
    long double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += static_cast<long double>(y[i]) * w[i];
    sums.push_back(static_cast<double>(sum));
  }
  return sums;
}

TEST_P(LoweredGradients, AreThoseOfCentralDifferences) {
  const Lowered& lowered = GetParam();
  const TestFolder folder;
  const std::string path =
      write_model(folder, fmt::format(R"(<ir_version: 10, opset_import: ["" : {}, "com.microsoft" : 1]> g ({}) => ({}) <{}> {{ {} }})",
                                      lowered.opset, lowered.inputs, lowered.outputs, lowered.constants, lowered.node));
  const Imported imported = import_whole(path);
  if (HasFailure()) return;

  // A second copy gets the loss and the backward nodes.
  Imported trained = import_file(path);
  Graph& graph = trained.graph;
  uint32_t seed = 17;
  std::map<std::string, Tensor> inputs, weights;
  std::vector<ValueId> differentiated;
  for (const ValueId id : std::vector(graph.inputs)) {
    Value& value = graph.value(id);
    Tensor tensor(value.dtype, value.shape);
    if (value.dtype == DType::float64) {
      for (double& x : tensor.data<double>()) x = lowered.low + (lowered.high - lowered.low) * uniform(seed);
      differentiated.push_back(id);
    } else if (value.dtype == DType::int32) {
      std::iota(tensor.data<int32_t>().begin(), tensor.data<int32_t>().end(), 1);
    } else {
      std::iota(tensor.data<int64_t>().begin(), tensor.data<int64_t>().end(), int64_t{1});
    }
    inputs[value.name] = std::move(tensor);
  }
  for (const ValueId id : differentiated) train_input(graph, id);
  Builder builder(graph);
  builder.named("tested");
  for (const ValueId id : graph.outputs) ASSERT_EQ(graph.value(id).dtype, DType::float64);
  const ValueId loss = projected_loss(builder, [&](ValueId id) {
    const Value& output = graph.value(id);
    Tensor& weight = weights[output.name] = Tensor(output.dtype, output.shape);
    for (double& w : weight.data<double>()) w = uniform(seed) * 2 - 1;
    return weight;
  });
  const std::map<ValueId, ValueId> gradients = differentiate(graph, loss);
  graph.verify("differentiate");
  for (const auto& [parameter, gradient] : gradients) graph.outputs.push_back(gradient);
  std::map<std::string, Tensor> computed = run_imported(trained, inputs);

  for (const ValueId id : differentiated) {
    const std::string name = graph.value(id).name;
    ASSERT_TRUE(gradients.contains(id)) << name;
    const ValueId gradient = gradients.at(id);
    const std::vector<double> analytic =
        graph.constant(gradient) ? graph.constant(gradient)->to_double() : computed.at(graph.value(gradient).name).to_double();
    const std::vector<double> start = inputs[name].to_double();
    ASSERT_EQ(analytic.size(), start.size()) << name;
    constexpr double kStep = 1e-5;
    double difference = 0, norm = 0;
    for (size_t j = 0; j < start.size(); j += 1 + start.size() / 60) {
      double ends[2];
      for (const int end : {0, 1}) {
        inputs[name].data<double>()[j] = start[j] + (end ? kStep : -kStep);
        ends[end] = 0;
        for (const double sum : run_projected(imported, inputs, weights)) ends[end] += sum;
      }
      inputs[name].data<double>()[j] = start[j];
      const double numeric = (ends[1] - ends[0]) / (2 * kStep);
      difference += (numeric - analytic[j]) * (numeric - analytic[j]);
      norm += numeric * numeric;
    }
    EXPECT_GT(norm, 0) << name << " has no influence";
    EXPECT_LE(std::sqrt(difference), 1e-7 * std::max(1.0, std::sqrt(norm))) << name << ", of norm " << std::sqrt(norm);
  }
}

std::vector<Lowered> recurrent_cases() {
  std::vector<Lowered> cases;
  for (const int directions : {1, 2}) {
    for (const char* direction : {"forward", "reverse", "bidirectional"}) {
      if ((directions == 2) != (std::string(direction) == "bidirectional")) continue;
      const auto inputs = [&](int gates) {
        return fmt::format("double[4, 2, 3] x, double[{0}, {1}, 3] w, double[{0}, {1}, 2] r, double[{0}, {2}] b, double[{0}, 2, 2] h",
                           directions, 2 * gates, 4 * gates);
      };
      const auto c = fmt::format(", double[{0}, 2, 2] c, double[{0}, 6] p", directions);
      cases.push_back({fmt::format("lstm_{}", direction), inputs(4) + c,
                       fmt::format("y, yh, yc = LSTM <hidden_size = 2, direction = \"{}\"> (x, w, r, b, , h, c, p)", direction),
                       "double[s, d, n, e] y, double[d, n, e] yh, double[d, n, e] yc"});
      for (const int after : {0, 1}) {
        cases.push_back(
            {fmt::format("gru_{}_{}", direction, after), inputs(3),
             fmt::format("y, yh = GRU <hidden_size = 2, direction = \"{}\", linear_before_reset = {}> (x, w, r, b, , h)", direction, after),
             "double[s, d, n, e] y, double[d, n, e] yh"});
      }
      cases.push_back({fmt::format("rnn_{}", direction), inputs(1),
                       fmt::format("y, yh = RNN <hidden_size = 2, direction = \"{}\"> (x, w, r, b, , h)", direction),
                       "double[s, d, n, e] y, double[d, n, e] yh"});
    }
  }
  cases.push_back({"lstm_lengths", "double[4, 3, 3] x, double[2, 8, 3] w, double[2, 8, 2] r, double[2, 16] b",
                   "y, yh, yc = LSTM <hidden_size = 2, direction = \"bidirectional\"> (x, w, r, b, lengths)",
                   "double[s, d, n, e] y, double[d, n, e] yh, double[d, n, e] yc", "int32[3] lengths = {4, 1, 3}"});
  cases.push_back({"lstm_batch_first_coupled",
                   "double[2, 4, 3] x, double[1, 8, 3] w, double[1, 8, 2] r, double[2, 1, 2] h, double[2, 1, 2] c",
                   "y, yh, yc = LSTM <hidden_size = 2, layout = 1, input_forget = 1> (x, w, r, , , h, c)",
                   "double[n, s, d, e] y, double[n, d, e] yh, double[n, d, e] yc"});
  cases.push_back({"gru_activations", "double[3, 2, 3] x, double[1, 6, 3] w, double[1, 6, 2] r, double[1, 12] b",
                   "y = GRU <hidden_size = 2, activations = [\"HardSigmoid\", \"ScaledTanh\"], activation_alpha = [0.3, 0.9], "
                   "activation_beta = [0.4, 1.1], clip = 5.0> (x, w, r, b)",
                   "double[s, d, n, e] y"});
  return cases;
}

std::vector<Lowered> image_cases() {
  std::vector<Lowered> cases{
      {"instance_normalization", "double[2, 3, 4, 2] x, double[3] s, double[3] b", "y = InstanceNormalization (x, s, b)",
       "double[n, c, h, w] y"},
      {"group_normalization", "double[2, 4, 3, 2] x, double[4] s, double[4] b",
       "y = GroupNormalization <num_groups = 2, stash_type = 11> (x, s, b)", "double[n, c, h, w] y"},
      {"group_normalization_by_groups", "double[2, 4, 3, 2] x, double[2] s, double[2] b",
       "y = GroupNormalization <num_groups = 2> (x, s, b)", "double[n, c, h, w] y", "", -1, 1, 18},
      {"response", "double[2, 6, 2, 2] x", "y = LRN <size = 4, alpha = 0.5, beta = 0.6, bias = 1.5> (x)", "double[n, c, h, w] y"},
      {"average_over_three_axes", "double[1, 2, 4, 5, 4] x",
       "y = AveragePool <kernel_shape = [2, 3, 2], strides = [1, 2, 2], pads = [0, 1, 0, 1, 1, 0]> (x)", "double[n, c, d, h, w] y"},
      {"largest_over_three_axes", "double[1, 2, 4, 4, 4] x", "y = MaxPool <kernel_shape = [2, 2, 3], pads = [0, 0, 1, 0, 0, 1]> (x)",
       "double[n, c, d, h, w] y"},
      {"norm_of_windows", "double[1, 2, 4, 5] x", "y = LpPool <kernel_shape = [2, 3], p = 3, pads = [0, 1, 1, 0]> (x)",
       "double[n, c, h, w] y"},
      {"norm_of_planes", "double[1, 2, 4, 5] x", "y = GlobalLpPool <p = 3> (x)", "double[n, c, h, w] y"},
      {"transposed", "double[2, 4, 3, 5] x, double[4, 3, 3, 2] w, double[3] b",
       "y = ConvTranspose <strides = [2, 3], pads = [1, 0, 0, 1], output_padding = [1, 2]> (x, w, b)", "double[n, c, h, w] y"},
      {"transposed_beyond", "double[1, 2, 3, 2] x, double[2, 3, 2, 2] w, double[3] b",
       "y = ConvTranspose <strides = [2, 1], dilations = [3, 4], output_padding = [2, 3], pads = [1, 2, 0, 1]> (x, w, b)",
       "double[n, c, h, w] y"},
      {"transposed_groups", "double[2, 4, 3, 4] x, double[4, 2, 2, 3] w",
       "y = ConvTranspose <group = 2, dilations = [2, 1], strides = [1, 2]> (x, w)", "double[n, c, h, w] y"},
      {"transposed_line", "double[1, 2, 6] x, double[2, 3, 4] w, double[3] b",
       "y = ConvTranspose <strides = [2], auto_pad = \"SAME_UPPER\"> (x, w, b)", "double[n, c, w] y"},
      {"transposed_to_shape", "double[1, 2, 3, 3] x, double[2, 1, 3, 3] w",
       "y = ConvTranspose <strides = [3, 2], output_shape = [10, 8]> (x, w)", "double[n, c, h, w] y"},
  };
  for (const char* mode : {"linear", "cubic"}) {
    for (const char* padding : {"zeros", "border", "reflection"}) {
      for (const int corners : {0, 1}) {
        cases.push_back(
            {fmt::format("grid_{}_{}_{}", mode, padding, corners), "double[2, 2, 4, 5] x, double[2, 3, 4, 2] grid",
             fmt::format("y = GridSample <mode = \"{}\", padding_mode = \"{}\", align_corners = {}> (x, grid)", mode, padding, corners),
             "double[n, c, h, w] y", "", -1.6, 1.7});
      }
    }
  }
  cases.push_back({"grid_nearest", "double[1, 2, 4, 5] x", "y = GridSample <mode = \"nearest\", padding_mode = \"reflection\"> (x, grid)",
                   "double[n, c, h, w] y", "double[1, 2, 2, 2] grid = {-0.9, 0.3, 0.2, -1.4, 1.3, 0.7, 0.1, 0.05}"});
  cases.push_back({"grid_volume", "double[1, 2, 3, 4, 3] x, double[1, 2, 2, 2, 3] grid", "y = GridSample (x, grid)",
                   "double[n, c, d, h, w] y", "", -1.2, 1.2});
  for (const char* mode : {"avg", "max"}) {
    cases.push_back({fmt::format("region_{}", mode), "double[2, 2, 6, 7] x",
                     fmt::format("y = RoiAlign <mode = \"{}\", output_height = 2, output_width = 3, sampling_ratio = 2, spatial_scale = "
                                 "0.5> (x, regions, samples)",
                                 mode),
                     "double[r, c, h, w] y",
                     "double[2, 4] regions = {1.2, 0.5, 9.1, 8.3, -3.0, 2.2, 15.5, 10.1}, int64[2] samples = {1, 0}"});
  }
  for (const int parts : {1, 2}) {
    cases.push_back(
        {fmt::format("deformed_{}", parts),
         fmt::format("double[2, 4, 5, 4] x, double[4, 2, 2, 3] w, double[2, {}, 3, 2] o, double[4] b, double[2, {}, 3, 2] m", parts * 12,
                     parts * 6),
         fmt::format(
             "y = DeformConv <group = 2, offset_group = {}, strides = [2, 2], pads = [1, 1, 0, 1], dilations = [1, 1]> (x, w, o, b, m)",
             parts),
         "double[n, c, h, w] y"});
  }
  cases.push_back({"volume", "double[2, 4, 4, 3, 5] x, double[6, 2, 3, 2, 3] w, double[6] b",
                   "y = Conv <group = 2, strides = [2, 1, 2], pads = [1, 0, 1, 2, 1, 0], dilations = [1, 2, 1]> (x, w, b)",
                   "double[n, c, d, h, w] y"});
  cases.push_back({"transposed_volume", "double[1, 4, 2, 3, 2] x, double[4, 2, 3, 2, 3] w, double[4] b",
                   "y = ConvTranspose <group = 2, strides = [2, 1, 2], pads = [1, 0, 1, 0, 1, 0], dilations = [1, 2, 1], output_padding = "
                   "[1, 0, 0]> (x, w, b)",
                   "double[n, c, d, h, w] y"});
  cases.push_back({"transposed_volume_beyond", "double[1, 2, 2, 2, 2] x, double[2, 1, 2, 2, 2] w",
                   "y = ConvTranspose <dilations = [2, 3, 2], output_padding = [1, 2, 0], pads = [0, 1, 0, 0, 1, 1]> (x, w)",
                   "double[n, c, d, h, w] y"});
  cases.push_back({"folded", "double[2, 6, 12] x", "y = Col2Im <strides = [2, 1], pads = [0, 1, 1, 0]> (x, image, block)",
                   "double[n, c, h, w] y", "int64[2] image = {6, 5}, int64[2] block = {2, 3}"});
  cases.push_back({"folded_volume", "double[1, 24, 16] x", "y = Col2Im <dilations = [1, 2, 1], strides = [2, 1, 1]> (x, image, block)",
                   "double[n, c, d, h, w] y", "int64[3] image = {4, 4, 5}, int64[3] block = {2, 2, 2}"});
  cases.push_back(
      {"unpooled", "double[1, 2, 4, 6] x",
       "y0, i = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (x) y = MaxUnpool <kernel_shape = [2, 2], strides = [2, 2]> (y0, i)",
       "double[n, c, h, w] y"});
  for (const char* mode : {"nearest", "linear", "cubic"}) {
    for (const char* place : {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric"}) {
      cases.push_back({fmt::format("resize_{}_{}", mode, place), "double[1, 2, 4, 5] x",
                       fmt::format("y = Resize <mode = \"{}\", coordinate_transformation_mode = \"{}\"> (x, , scales)", mode, place),
                       "double[n, c, h, w] y", "float[4] scales = {1.0, 1.0, 1.75, 0.6}"});
    }
  }
  for (const char* nearest : {"round_prefer_ceil", "floor", "ceil"}) {
    cases.push_back({fmt::format("resize_{}", nearest), "double[1, 2, 4, 5] x",
                     fmt::format("y = Resize <nearest_mode = \"{}\"> (x, , , sizes)", nearest), "double[n, c, h, w] y",
                     "int64[4] sizes = {1, 2, 9, 7}"});
  }
  cases.push_back({"resize_repeats", "double[1, 2, 3, 2] x",
                   "y = Resize <coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"> (x, , scales)",
                   "double[n, c, h, w] y", "float[4] scales = {1.0, 1.0, 2.0, 3.0}"});
  for (const char* mode : {"linear", "cubic"}) {
    cases.push_back({fmt::format("resize_antialias_{}", mode), "double[1, 1, 8, 6] x",
                     fmt::format("y = Resize <mode = \"{}\", antialias = 1, exclude_outside = 1, axes = [2, 3]> (x, , scales)", mode),
                     "double[n, c, h, w] y", "float[2] scales = {0.4, 1.5}"});
  }
  cases.push_back({"resize_crops", "double[1, 1, 5, 6] x",
                   "y = Resize <mode = \"linear\", coordinate_transformation_mode = \"tf_crop_and_resize\", extrapolation_value = 10.0> "
                   "(x, roi, , sizes)",
                   "double[n, c, h, w] y", "double[8] roi = {0.0, 0.0, 0.3, 0.5, 1.0, 1.0, 0.9, 1.4}, int64[4] sizes = {1, 1, 4, 5}"});
  return cases;
}

std::vector<Lowered> other_cases() {
  return {
      {"einsum_attention", "double[2, 3, 2, 4] q, double[2, 5, 2, 4] k", "y = Einsum <equation = \"bihd,bjhd->bhij\"> (q, k)",
       "double[b, h, i, j] y"},
      {"einsum_three", "double[3, 4] a, double[4, 2] b, double[2, 5] c", "y = Einsum <equation = \"ij,jk,kl->il\"> (a, b, c)",
       "double[i, l] y"},
      {"einsum_diagonal", "double[4, 4] a, double[4] b", "y = Einsum <equation = \"ii,i->i\"> (a, b)", "double[i] y"},
      {"einsum_ellipsis", "double[2, 1, 3, 4] a, double[5, 4, 2] b", "y = Einsum <equation = \"...ij,...jk->...ik\"> (a, b)",
       "double[x, y, i, k] y"},
      {"einsum_sum", "double[3, 4] a", "y = Einsum <equation = \"ij->\"> (a)", "double y"},
      {"compress", "double[3, 4] x", "y = Compress <axis = 1> (x, keeps)", "double[n, m] y", "bool[4] keeps = {1, 0, 1, 1}"},
      {"reverse_sequence", "double[4, 3, 2] x", "y = ReverseSequence <time_axis = 0, batch_axis = 1> (x, lengths)", "double[t, n, m] y",
       "int64[3] lengths = {4, 1, 3}"},
      {"hard_maximum_times", "double[3, 4] x", "h = Hardmax (x) y = Mul (h, x)", "double[n, m] y"},
      {"unit_length", "double[3, 4] x", "y = LpNormalization <axis = 1, p = 2> (x)", "double[n, m] y"},
      {"unit_sum", "double[3, 4] x", "y = LpNormalization <axis = 0, p = 1> (x)", "double[n, m] y", "", 0.1, 1},
      {"spectrum", "double[1, 8, 1] x", "y = DFT <onesided = 1> (x, , axis)", "double[n, m, c] y", "int64 axis = {1}"},
      {"remainder", "double[3, 4] a, double[3, 4] b", "y = Mod <fmod = 1> (a, b)", "double[n, m] y", "", 0.5, 2},
      {"shrunk", "double[3, 4] x", "y = Shrink <lambd = 0.3, bias = 0.1> (x)", "double[n, m] y"},
  };
}

std::vector<Lowered> contrib_attention_cases() {
  const std::string own = "double[2, 4, 4] x, double[4, 12] w, double[12] b", y = "double[n, s, e] y",
                    cross = "double[2, 3, 4] q, double[2, 4, 4] k, double[2, 4, 6] v, double[14] b",
                    group = "double[2, 4, 8] q, double[2, 4, 4] k, double[2, 4, 4] v",
                    present = ", double[n, g, s, d] pk, double[n, g, s, d] pv";
  const std::string length = "int32 length = {4}", all = length + ", int32[2] last = {3, 3}", tables = "double[6, 1] c, double[6, 1] s";
  const auto attention = [](const std::string& attributes, const std::string& rest) {
    return fmt::format("y = com.microsoft.Attention <num_heads = 2{}> (x, w, b{})", attributes, rest);
  };
  const auto several = [](const std::string& inputs) {
    return fmt::format("y = com.microsoft.MultiHeadAttention <num_heads = 2> ({})", inputs);
  };
  const auto grouped = [](const std::string& attributes, const std::string& inputs) {
    return fmt::format("y, pk, pv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2{}> ({})", attributes, inputs);
  };
  return {
      {"ms_attention", own, "y, p = com.microsoft.Attention <num_heads = 2, unidirectional = 1> (x, w, b)",
       y + ", double[k, n, h, s, d] p"},
      {"ms_attention_ends", own + ", int32[2] ends", attention("", ", ends"), y},
      {"ms_attention_mask", own, attention(", unidirectional = 1", ", mask"), y, "int32[2, 4] mask = {1, 0, 1, 1, 1, 1, 0, 0}"},
      {"ms_attention_mask_lowest", own, attention(", unidirectional = 1, mask_filter_value = -3.4028235e38", ", mask"), y,
       "int32[2, 4] mask = {1, 0, 1, 1, 1, 1, 0, 0}"},
      {"ms_attention_hides_all", own, attention(", mask_filter_value = -20.0", ", mask"), y, "int32[2, 4] mask = {1, 0, 1, 1, 0, 0, 0, 0}"},
      {"ms_attention_bias", own + ", double[1, 2, 4, 4] a", attention("", ", ends, , a"), y, "int32[4] ends = {4, 2, 1, 0}"},
      {"ms_several", cross, several("q, k, v, b, mask"), y, "int32[2, 4] mask = {1, 0, 1, 1, 1, 1, 0, 0}"},
      {"ms_several_scores", cross + ", double[2, 1, 3, 4] a", several("q, k, v, b, mask, a"), y,
       "int32[2, 3, 4] mask = {1, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 0, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1}"},
      {"ms_several_packed", "double[2, 3, 2, 3, 2] q, double[12] b", several("q, , , b"), y},
      {"ms_several_packed_keys", "double[2, 3, 4] q, double[2, 4, 2, 2, 2] k", several("q, k"), y},
      {"ms_several_in_heads", "double[2, 3, 4] q, double[2, 2, 4, 2] k, double[2, 2, 4, 3] v, double[14] b", several("q, k, v, b"), y},
      {"ms_group", group, grouped("", "q, k, v, , , last, length"), y + present, all},
      {"ms_group_lengths", group + ", int32[2] last", grouped(", local_window_size = 2", "q, k, v, , , last, length"), y + present, length},
      {"ms_group_packed", "double[2, 4, 16] q, " + tables, grouped(", do_rotary = 1", "q, , , , , last, length, c, s"), y + present, all},
      {"ms_group_positions", "double[2, 4, 24] q, double[2, 4, 12] k, double[2, 4, 12] v, double[8, 1] c, double[8, 1] s",
       grouped(", do_rotary = 1, rotary_interleaved = 1", "q, k, v, , , last, length, c, s, places"), y + present,
       all + ", int64[2, 4] places = {2, 3, 4, 5, 1, 2, 3, 4}"},
      {"ms_group_softcap", group + ", int32[2] last", grouped(", softcap = 0.5, local_window_size = 3", "q, k, v, , , last, length"),
       y + present, length},
      {"ms_group_smooth", group + ", int32[2] last", grouped(", smooth_softmax = 1, causal = 0", "q, k, v, , , last, length"), y + present,
       length},
      {"ms_group_sink", group + ", double[2, 1, 4, 4] a, double[4] z", grouped("", "q, k, v, , , last, length, , , , a, z"), y + present,
       all},
      {"ms_group_norms", group + ", double[2] nq, double[2] nk, " + tables,
       grouped(", do_rotary = 1, qk_norm_epsilon = 0.01", "q, k, v, , , last, length, c, s, , , , , , nq, nk"), y + present, all},
      {"ms_rotary", "double[2, 3, 10] x, double[7, 1] c, double[7, 1] s, int64[2, 3] ids",
       "y = com.microsoft.RotaryEmbedding <num_heads = 2, rotary_embedding_dim = 2> (x, ids, c, s)", y},
      {"ms_rotary_first", "double[2, 3, 3, 4] x, double[4, 2] c, double[4, 2] s, int64[1] first",
       "y = com.microsoft.RotaryEmbedding <interleaved = 1> (x, first, c, s)", "double[n, h, s, d] y"},
      {"ms_embedding", "double[7, 4] w, double[3, 4] p, double[2, 4] g, double[4] s, double[4] b, int32[2, 3] ids",
       "y, ends, sum = com.microsoft.EmbedLayerNormalization (ids, segments, w, p, g, s, b)", y + ", double[n, s, e] sum",
       "int32[2, 3] segments = {0, 1, 1, 0, 0, 1}"},
      {"ms_embedding_positions", "double[7, 4] w, double[3, 4] p, double[4] s, double[4] b, int32[2, 3] ids",
       "y = com.microsoft.EmbedLayerNormalization <epsilon = 0.01> (ids, , w, p, , s, b, , places)", y, "int32[1, 3] places = {2, 0, 1}"},
  };
}

// Of two axes scaled by 0.6, what ONNX's test of opset 10 and ONNX Runtime have.
TEST(OldResize, WhereAnAxisShrinksTheElementBehindIsTaken) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 8, opset_import: ["" : 10]>
    g (float[1, 1, 2, 4] x) => (float[1, 1, n, m] y, float[1, 1, 2, k] z)
    <float[4] scales = {1.0, 1.0, 0.6, 0.6}, float[4] others = {1.0, 1.0, 1.0, 1.5}> {
      y = Resize <mode = "nearest"> (x, scales)
      z = Resize <mode = "nearest"> (x, others)
    })"));
  const auto results = run_imported(imported, {{"x", make_tensor<float>({1, 1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8})}});
  EXPECT_EQ(results.at("y").shape, (Shape{1, 1, 1, 2}));
  EXPECT_EQ(results.at("y").to_double(), (std::vector<double>{1, 3}));
  EXPECT_EQ(results.at("z").to_double(), (std::vector<double>{1, 1, 2, 3, 3, 4, 5, 5, 6, 7, 7, 8}));
}

// Of a cubic, each of the sixteen elements is clamped to the picture, not the place: what PyTorch 2.13 and ONNX Runtime 1.31 give. (The
// standard's reference evaluator clamps the place; none of its tests tells.)
TEST(GridSample, ACubicAtTheBorderIsThatOfPyTorch) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 9, opset_import: ["" : 20]>
    g (float[1, 1, 4, 5] x, float[1, 1, 3, 2] grid) => (float[1, 1, 1, 3] y) { y = GridSample <mode = "cubic", padding_mode = "border"> (x, grid) })"));
  std::vector<float> x;
  for (int i = 0; i < 20; ++i) x.push_back(std::pow(static_cast<float>(i), 1.5f));
  const auto y = floats(run_imported(imported, {{"x", make_tensor<float>({1, 1, 4, 5}, x)},
                                                {"grid", make_tensor<float>({1, 1, 3, 2}, {-1.1f, 0.2f, 0.95f, -1.05f, -0.98f, 1.3f})}})
                            .at("y"));
  const float expected[] = {28.24845f, 6.927629f, 57.49185f};
  ASSERT_EQ(y.size(), 3u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(y[i], expected[i], 2e-5f * expected[i]);
}

std::string name_of(const ::testing::TestParamInfo<Lowered>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Recurrent, LoweredGradients, ::testing::ValuesIn(recurrent_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Images, LoweredGradients, ::testing::ValuesIn(image_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Attention, LoweredGradients, ::testing::ValuesIn(contrib_attention_cases()), name_of);
INSTANTIATE_TEST_SUITE_P(Others, LoweredGradients, ::testing::ValuesIn(other_cases()), name_of);

}  // namespace
}  // namespace ort_train
