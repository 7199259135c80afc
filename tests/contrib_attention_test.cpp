// Attention of com.microsoft beside the graph of standard operators that it stands for: outputs and gradients. Of what ONNX Runtime's
// kernels for processors don't run (packed queries and keys, norms of heads), this is the judge; the rest is compared with it, too
// (models/golden_ops.py), and with central differences (lowered_gradients_test.cpp). Then what is refused, and what layers share.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "graph/autodiff.h"
#include "graph/builder.h"
#include "tests/onnx_models.h"
#include "tests/projected_loss.h"

namespace ort_train {
namespace {

using namespace fixtures;

std::string contrib_model(const std::string& inputs, const std::string& outputs, const std::string& constants, const std::string& nodes) {
  return fmt::format(R"(<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]> g ({}) => ({}) <{}> {{ {} }})", inputs, outputs,
                     constants, nodes);
}

// The same for a name and a shape, whatever the model.
Tensor numbers_named(const std::string& name, const Shape& shape) {
  Tensor tensor(DType::float32, shape);
  uint32_t seed = 7;
  for (const char c : name) seed = seed * 31 + static_cast<unsigned char>(c);
  for (float& x : tensor.data<float>()) {
    seed = seed * 1664525 + 1013904223;
    x = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  return tensor;
}

// A model's outputs and, by "d NAME", the gradients of its inputs under the sum of its outputs times fixed numbers.
std::map<std::string, Tensor> values_and_gradients(const std::string& text) {
  const TestFolder folder;
  Imported imported = import_whole(write_model(folder, text));
  if (!imported.obstacles.empty()) return {};
  Graph& graph = imported.graph;
  std::map<std::string, Tensor> inputs;
  for (const ValueId id : std::vector(graph.inputs)) {
    const Value& value = graph.value(id);
    inputs[value.name] = numbers_named(value.name, value.shape);
    train_input(graph, id);
  }
  Builder builder(graph);
  const ValueId loss = projected_loss(builder, [&](ValueId id) { return numbers_named(graph.output_name(id), graph.value(id).shape); });
  const std::map<ValueId, ValueId> gradients = differentiate(graph, loss);
  graph.verify("differentiate");
  for (const auto& [parameter, gradient] : gradients) {
    graph.outputs.push_back(builder.emit("Mul", {gradient, builder.scalar_like(gradient, 1)}));
    graph.name_output(graph.outputs.back(), "d " + graph.value(parameter).name);
  }
  EXPECT_EQ(gradients.size(), inputs.size());
  return run_imported(imported, inputs);
}

void expect_equivalent(const std::string& inputs, const std::string& outputs, const std::string& constants, const std::string& nodes,
                       const std::string& standard) {
  const auto found = values_and_gradients(contrib_model(inputs, outputs, constants, nodes));
  const auto wanted = values_and_gradients(contrib_model(inputs, outputs, constants, standard));
  ASSERT_EQ(found.size(), wanted.size());
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(found.contains(name)) << name;
    ASSERT_EQ(to_string(found.at(name).type()), to_string(tensor.type())) << name;
    const std::vector<double> a = found.at(name).to_double(), b = tensor.to_double();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < a.size(); ++i) {
      difference += (a[i] - b[i]) * (a[i] - b[i]);
      norm += b[i] * b[i];
    }
    EXPECT_LE(std::sqrt(difference), 1e-6 * std::sqrt(norm)) << name;
    EXPECT_GT(norm, 0) << name;
  }
}

TEST(ContribAttention, IsProjectionsAndAttention) {
  const std::string inputs = "float[2, 4, 6] x, float[6, 20] w, float[20] b", outputs = "float[n, s, e] y",
                    heads = "m = MatMul (x, w) a = Add (m, b) q, k, v = Split <axis = 2> (a, sizes) ", sizes = "int64[3] sizes = {8, 8, 4}";
  const std::string node = "y = com.microsoft.Attention <num_heads = 2, qkv_hidden_sizes = [8, 8, 4]{}> (x, w, b{})",
                    standard = heads + "y = Attention <q_num_heads = 2, kv_num_heads = 2{}> (q, k, v{})";
  expect_equivalent(inputs, outputs, sizes, fmt::format(fmt::runtime(node), "", ""), fmt::format(fmt::runtime(standard), "", ""));
  expect_equivalent(inputs, outputs, sizes, fmt::format(fmt::runtime(node), ", scale = 0.3, unidirectional = 1", ""),
                    fmt::format(fmt::runtime(standard), ", scale = 0.3, is_causal = 1", ""));
  const std::string masks =
      ", int32[2, 4] mask = {1, 1, 1, 0, 1, 0, 1, 1}, bool[2, 1, 1, 4] shows = {1, 1, 1, 0, 1, 0, 1, 1}, int32[4] ends = {3, 4, 0, 1}, "
      "bool[2, 1, 1, 4] between = {1, 1, 1, 0, 0, 1, 1, 1}";
  expect_equivalent(inputs, outputs, sizes + masks, fmt::format(fmt::runtime(node), ", unidirectional = 1", ", mask"),
                    fmt::format(fmt::runtime(standard), ", is_causal = 1", ", shows"));
  expect_equivalent(inputs, outputs, sizes + masks, fmt::format(fmt::runtime(node), "", ", ends"),
                    fmt::format(fmt::runtime(standard), "", ", between"));
  // Without a bias, as ONNX Runtime's kernels for GPUs take it.
  expect_equivalent("float[2, 4, 6] x, float[6, 12] w", outputs, "int64[3] sizes = {4, 4, 4}",
                    "y = com.microsoft.Attention <num_heads = 2> (x, w)",
                    "m = MatMul (x, w) q, k, v = Split <axis = 2> (m, sizes) y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, v)");
}

TEST(ContribAttention, UnpacksQueriesAndKeys) {
  const std::string outputs = "float[n, s, e] y", attention = "y = Attention <q_num_heads = 2, kv_num_heads = 2> ({}, {}, {})";
  const std::string parts = "int64[3] flat = {0, 0, -1}, int64[1] three = {3}";
  expect_equivalent(
      "float[2, 4, 2, 3, 5] x, float[30] b", outputs, parts, "y = com.microsoft.MultiHeadAttention <num_heads = 2> (x, , , b)",
      "q0, k0, v0 = Split <axis = 3, num_outputs = 3> (x) q1 = Reshape (q0, flat) k1 = Reshape (k0, flat) v1 = Reshape (v0, flat) "
      "bq, bk, bv = Split <num_outputs = 3> (b) q = Add (q1, bq) k = Add (k1, bk) v = Add (v1, bv) " +
          fmt::format(fmt::runtime(attention), "q", "k", "v"));
  expect_equivalent("float[2, 4, 10] q, float[2, 3, 2, 2, 5] x", outputs, parts,
                    "y = com.microsoft.MultiHeadAttention <num_heads = 2> (q, x)",
                    "k0, v0 = Split <axis = 3, num_outputs = 2> (x) k = Reshape (k0, flat) v = Reshape (v0, flat) " +
                        fmt::format(fmt::runtime(attention), "q", "k", "v"));
}

TEST(ContribAttention, NormsAndTurnsHeadsOfGroups) {
  const std::string inputs =
                        "float[2, 5, 32] q, float[2, 5, 16] k, float[2, 5, 16] v, float[8] a, float[8] b, float[7, 2] c, float[7, 2] s",
                    outputs = "float[n, s, e] y, float[n, h, s, d] pk, float[n, h, s, d] pv";
  const std::string constants =
      "int32[2] last = {4, 4}, int32[1] length = {5}, int64[4] four = {0, 0, 4, 8}, int64[4] two = {0, 0, 2, 8}, int64[2, 5] places = "
      "{0, 1, 2, 3, 4, 0, 1, 2, 3, 4}";
  for (const int interleaved : {0, 1}) {
    expect_equivalent(
        inputs, outputs, constants,
        fmt::format(
            "y, pk, pv = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2, do_rotary = 1, rotary_interleaved = {}, "
            "qk_norm_epsilon = 0.001> (q, k, v, , , last, length, c, s, , , , , , a, b)",
            interleaved),
        fmt::format("q4 = Reshape (q, four) k4 = Reshape (k, two) v4 = Reshape (v, two) "
                    "qn = RMSNormalization <epsilon = 0.001> (q4, a) kn = RMSNormalization <epsilon = 0.001> (k4, b) "
                    "qt = Transpose <perm = [0, 2, 1, 3]> (qn) kt = Transpose <perm = [0, 2, 1, 3]> (kn) "
                    "pv = Transpose <perm = [0, 2, 1, 3]> (v4) "
                    "qr = RotaryEmbedding <rotary_embedding_dim = 4, interleaved = {0}> (qt, c, s, places) "
                    "pk = RotaryEmbedding <rotary_embedding_dim = 4, interleaved = {0}> (kt, c, s, places) "
                    "y4 = Attention <is_causal = 1> (qr, pk, pv) yt = Transpose <perm = [0, 2, 1, 3]> (y4) "
                    "flat = Constant <value_ints = [0, 0, -1]> () y = Reshape (yt, flat)",
                    interleaved));
  }
}

// The graph of a model without parameters, by op.
std::map<std::string, int> counts_of_ops(const std::string& text) {
  const TestFolder folder;
  const Imported imported = import_whole(write_model(folder, text));
  std::map<std::string, int> counts;
  for (const NodeId id : imported.graph.order()) ++counts[std::string(imported.graph.node(id).op->name)];
  return counts;
}

TEST(ContribAttention, LayersShareTheirMask) {
  const std::string three =
      "y0 = com.microsoft.Attention <num_heads = 2, unidirectional = 1, mask_filter_value = -3.4028235e38> (x, w, b, m) "
      "y1 = com.microsoft.Attention <num_heads = 2, unidirectional = 1, mask_filter_value = -3.4028235e38> (y0, w, b, m) "
      "y = com.microsoft.Attention <num_heads = 2, unidirectional = 1, mask_filter_value = -3.4028235e38> (y1, w, b, m)";
  auto counts = counts_of_ops(contrib_model("float[2, 3, 4] x, float[4, 12] w, float[12] b, int32[2, 3] m", "float[n, s, e] y", "", three));
  EXPECT_EQ(counts["Attention"], 3);
  EXPECT_EQ(counts["Greater"], 1);
  EXPECT_EQ(counts["Where"], 2);  // the mask's numbers, and what is after each row
  const std::string windows =
      "y0 = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, local_window_size = 2> (x, x, x, , , last, length) "
      "y = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, local_window_size = 2> (y0, x, x, , , last, length)";
  counts = counts_of_ops(contrib_model("float[2, 4, 8] x, int32[2] last", "float[n, s, e] y", "int32 length = {4}", windows));
  EXPECT_EQ(counts["Attention"], 2);
  EXPECT_EQ(counts["Where"], 1);
}

TEST(ContribAttention, WhatHidesNothingIsNoMask) {
  const auto inputs_of_attention = [](const std::string& constants, const std::string& node) {
    const TestFolder folder;
    const Imported imported = import_whole(
        write_model(folder, contrib_model("float[2, 3, 8] x, float[8, 24] w, float[24] b", "float[n, s, e] y", constants, node)));
    size_t inputs = 0;
    for (const NodeId id : imported.graph.order()) {
      const Node& of = imported.graph.node(id);
      if (of.op->name == "Attention") inputs = of.inputs.size();
    }
    return inputs;
  };
  const std::string
      attention = "y = com.microsoft.Attention <num_heads = 2> (x, w, b, m)",
      group = "y = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, local_window_size = {}> (x, x, x, , , m, n)";
  EXPECT_EQ(inputs_of_attention("int32[2, 3] m = {1, 1, 1, 2, 1, 1}", attention), 3u);
  EXPECT_EQ(inputs_of_attention("int32[2, 3] m = {1, 1, 1, 1, 0, 1}", attention), 4u);
  EXPECT_EQ(inputs_of_attention("int32[2] m = {3, 5}", attention), 3u);
  EXPECT_EQ(inputs_of_attention("int32[2, 1] m = {1, 0}", attention), 3u);
  EXPECT_EQ(inputs_of_attention("int32[2] m = {2, 2}, int32 n = {3}", fmt::format(fmt::runtime(group), 3)), 3u);
  EXPECT_EQ(inputs_of_attention("int32[2] m = {2, 2}, int32 n = {3}", fmt::format(fmt::runtime(group), 2)), 4u);
  EXPECT_EQ(inputs_of_attention("int32[2] m = {2, 1}, int32 n = {3}", fmt::format(fmt::runtime(group), -1)), 4u);
  EXPECT_EQ(inputs_of_attention("int32[2] m = {2, 2}, int32 n = {3}, float[2, 1, 0, 8] e = {}",
                                "y = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1> (x, x, x, e, e, m, n)"),
            3u);
}

TEST(ContribAttention, TablesOfAnglesAndMasksAreNoWeights) {
  const TestFolder folder;
  const auto fates = [&](const std::string& inputs, const std::string& constants, const std::string& node) {
    const Imported imported = import_whole(write_model(folder, contrib_model(inputs, "float[n, s, e] y", constants, node)));
    std::map<std::string, Treatment> fates;
    for (const TensorFate& fate : imported.info.tensors) fates[fate.name] = fate.treatment;
    return fates;
  };
  auto found =
      fates("float[1, 2, 4] x, int32[1] last",
            "int32 n = {2}, float[2, 2] c = {0.1, 0.9, 0.4, 0.3}, float[2, 2] s = {0.5, 0.2, 0.7, 0.8}, float[1] z = {0.25}, "
            "float[1, 1, 2, 2] mask = {0, -1e9, 0, 0}",
            "y = com.microsoft.GroupQueryAttention <num_heads = 1, kv_num_heads = 1, do_rotary = 1> (x, x, x, , , last, n, c, s, , "
            "mask, z)");
  EXPECT_EQ(found["c"], Treatment::constant);
  EXPECT_EQ(found["s"], Treatment::constant);
  EXPECT_EQ(found["mask"], Treatment::constant);
  EXPECT_EQ(found["z"], Treatment::trained);
  found = fates("float[1, 2, 2] x, int64[1, 2] i", "float[2, 1] c = {0.1, 0.9}, float[2, 1] s = {0.5, 0.2}",
                "y = com.microsoft.RotaryEmbedding (x, i, c, s)");
  EXPECT_EQ(found["c"], Treatment::constant);
  EXPECT_EQ(found["s"], Treatment::constant);
  found =
      fates("float[1, 2, 2] x, int32[1, 2] m",
            "float[2, 6] w = {1, 2, 3, 4, 5, 6, 6, 5, 4, 3, 2, 1}, float[6] b = {0, 0, 0, 0, 0, 0}, float[1, 1, 2, 2] bias = {1, 2, 0, 4}",
            "y = com.microsoft.Attention <num_heads = 1> (x, w, b, m, , bias)");
  EXPECT_EQ(found["w"], Treatment::trained);
  EXPECT_EQ(found["b"], Treatment::trained);
  EXPECT_EQ(found["bias"], Treatment::trained);
}

TEST(ContribAttention, SaysWhatIsNotSupported) {
  const auto complaint = [](const std::string& node, const std::string& inputs = "", const std::string& constants = "") {
    const TestFolder folder;
    const Imported imported = import_file(
        write_model(folder, contrib_model("float[2, 3, 8] x, float[8, 24] w, float[24] b" + inputs, "float[n, s, e] y", constants, node)));
    return imported.obstacles.empty() ? "" : imported.obstacles[0].reason;
  };
  const auto attention = [&](const std::string& attributes, const std::string& rest, const std::string& inputs = "") {
    return complaint(fmt::format("y = com.microsoft.Attention <num_heads = 2{}> (x, w, b{})", attributes, rest), inputs);
  };
  EXPECT_EQ(attention("", ""), "");
  EXPECT_HAS(attention("", ", , p", ", float[2, 2, 2, 3, 4] p"),
             "export without a cache, or fix it to an array without rows (`bind` p=@FILE.npy)");
  EXPECT_HAS(attention("", ", m", ", int32[2, 1, 3, 3] m"), "four axes");
  EXPECT_HAS(attention("", ", m", ", int32[2, 4] m"), "fits no 2 samples of 3 x 3 scores");
  EXPECT_HAS(attention("", ", , , a", ", float[2, 2, 3, 4] a"), "attention bias [2, 2, 3, 4] can't be added");
  EXPECT_HAS(attention(", do_rotary = 1", ""), "do_rotary");
  EXPECT_HAS(attention(", qkv_hidden_sizes = [8, 8, 4]", ""), "don't come of weights");
  EXPECT_HAS(complaint("y = com.microsoft.Attention <num_heads = 3> (x, w, b)"), "can't be divided into 3 heads");
  EXPECT_HAS(complaint("y = com.microsoft.Attention (x, w, b)"), "no attribute 'num_heads'");
  const auto several = [&](const std::string& inputs_of_node, const std::string& inputs = "") {
    return complaint(fmt::format("y = com.microsoft.MultiHeadAttention <num_heads = 2, unidirectional = 1> ({})", inputs_of_node), inputs);
  };
  EXPECT_EQ(several("x, x, x"), "");
  EXPECT_HAS(several("x, k, k", ", float[2, 4, 8] k"), "unidirectional from 3 queries to 4 keys");
  EXPECT_HAS(several("x"), "does not have the shape [batch, length, 2, 3, size]");
  EXPECT_HAS(several("x, x, x, c", ", float[8] c"), "its bias [8]");
  EXPECT_HAS(several("x, k, k", ", float[2, 4, 3, 4] k"), "have not 2 heads");
  EXPECT_HAS(several("x, x, x, , , , p, p", ", float[2, 2, 5, 4] p"), "export without a cache");
  EXPECT_HAS(complaint("y, k, v, qk = com.microsoft.MultiHeadAttention <num_heads = 2> (x, x, x) z = Add (qk, qk)"), "is not supported");
  const auto group = [&](const std::string& attributes, const std::string& rest, const std::string& inputs = "", int total = 3) {
    return complaint(
        fmt::format("y = com.microsoft.GroupQueryAttention <num_heads = 2, kv_num_heads = 1{}> (x, k, k, , , last, n{})", attributes, rest),
        ", float[2, 3, 4] k" + inputs, fmt::format("int32[2] last = {{2, 2}}, int32 n = {{{}}}", total));
  };
  EXPECT_EQ(group("", ""), "");
  EXPECT_HAS(group("", "", "", 9), "is not the 3 positions");
  EXPECT_HAS(group(", causal = 0, local_window_size = 2", ""), "goes with causal");
  EXPECT_HAS(group(", do_rotary = 1", ""), "input 7 is missing");
  EXPECT_HAS(group(", do_rotary = 1", ", c, c", ", float[2, 2] c"), "have 2 positions");
  EXPECT_HAS(group(", do_rotary = 1", ", c, c", ", float[3, 3] c"), "no 3 pairs to turn");
  EXPECT_HAS(
      complaint("y = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 3> (x, x, x, , , last, last)", ", int32[2] last"),
      "can't share");
  EXPECT_HAS(complaint("y = com.microsoft.RotaryEmbedding <num_heads = 2> (x, i, c, c)", ", int64[2, 3] i, float[5, 3] c"),
             "do not turn heads");
  EXPECT_HAS(complaint("y = com.microsoft.RotaryEmbedding (x, i, c, c)", ", int64[1, 3] i, float[5, 2] c"), "position_ids are [1, 3]");
  EXPECT_HAS(complaint("y, m = com.microsoft.EmbedLayerNormalization (i, i, w, w, , b, b)", ", int32[2, 3] i"), "input 4 is missing");
  EXPECT_HAS(complaint("y, m = com.microsoft.EmbedLayerNormalization (i, , w, w, , b, b)", ", int32[2, 9] i"),
             "its table [8, 24] has no 9 rows");
  EXPECT_HAS(complaint("t = ConstantOfShape (two) y, m = com.microsoft.EmbedLayerNormalization (i, , w, t, , b, b)", ", int32[2, 9] i",
                       "int64[2] two = {2, 24}"),
             "its table [2, 24] has no 9 rows");
}

}  // namespace
}  // namespace ort_train
