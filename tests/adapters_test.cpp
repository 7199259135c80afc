// Adapters: they compute what a model computes that has them written out; runs end with the same bits in any memory, with frozen weights as
// they are or in few bits; the new model is the sum. models/lora.py has PEFT as the judge.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "graph/onnx/writer.h"
#include "tests/adapter_job.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace fs = std::filesystem;

struct AdapterRuns : AdapterJob {
  // Training goes on from an adapter's file with the loss that the merged model has. `o`: of the run of (IA)3 that wrote the file.
  void expect_goes_on_as_merged(Options o, const std::string& file, const std::string& merged) {
    o.ia3_target.clear(), o.ia3_feedforward.clear(), o.adapter_only = false, o.max_steps = 1;
    Options of_merged = o;
    of_merged.model = merged;
    o.adapter = fs::path(file).parent_path();
    EXPECT_NEAR(train(of_merged).losses[0], train(o).losses[0], 1e-5);
  }
};

// W + scale * B A of a weight [rows, columns], in float64; `transposed`: of a weight that is stored [in, out].
std::vector<float> sum_of(const std::vector<float>& w, const std::vector<float>& a, const std::vector<float>& b, bool transposed) {
  const size_t rank = AdapterJob::kRank, in = a.size() / rank, out = b.size() / rank;
  std::vector<float> sum = w;
  for (size_t o = 0; o < out; ++o) {
    for (size_t i = 0; i < in; ++i) {
      double delta = 0;
      for (size_t k = 0; k < rank; ++k) delta += static_cast<double>(b[o * rank + k]) * static_cast<double>(a[k * in + i]);
      float& number = sum[transposed ? i * out + o : o * in + i];
      number = static_cast<float>(static_cast<double>(number) + 2 * delta);
    }
  }
  return sum;
}

TEST_F(AdapterRuns, TheNewModelIsTheSum) {
  Options o = options();
  const Run merged = train(o);
  o.adapter_only = true;
  const Run apart = train(o);
  EXPECT_EQ(apart.losses, merged.losses);
  EXPECT_EQ(merged.plan.trainable_parameters, kRank * (kIn + 5 * kInner));
  const int64_t state = 2 * 4 * merged.plan.trainable_parameters;  // of AdamW; frozen weights have none
  EXPECT_THAT(merged.plan.at_peak.optimizer, testing::AllOf(testing::Ge(state), testing::Lt(state + (64 << 10))));
  for (const auto& [name, transposed] : {std::pair("first", false), {"second", true}}) {
    const std::string module = name, file = apart.summary.model_path;
    const std::vector<float> a = matrix(file, module + ".lora_A.weight"), b = matrix(file, module + ".lora_B.weight");
    ASSERT_FALSE(a.empty() || b.empty()) << name;
    EXPECT_TRUE(std::any_of(b.begin(), b.end(), [](float x) { return x != 0; })) << name;
    const std::vector<float> expected = sum_of(weight(o.model, module + ".weight"), a, b, transposed),
                             is = weight(merged.summary.model_path, module + ".weight");
    ASSERT_EQ(is.size(), expected.size());
    for (size_t i = 0; i < is.size(); ++i) ASSERT_NEAR(is[i], expected[i], 1e-7) << name << " " << i;
  }
  for (const char* name : {"first.bias", "head.weight"}) EXPECT_EQ(weight(merged.summary.model_path, name), weight(o.model, name));
}

// The same model with its adapters written out as nodes, which is trained without them.
TEST_F(AdapterRuns, TheyComputeWhatTheSameNodesCompute) {
  Options o = options();
  o.adapter_only = true;
  o.max_steps = 1;
  o.learning_rate = 0;
  const std::string begun = train(o).summary.model_path;
  o.learning_rate = 1e-2;
  o.max_steps = 6;
  const Run run = train(o);
  ort_train_onnx::ModelProto model = with_dots(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
           h0 = Gemm <transB = 1> (x, first_weight, first_bias)
           u0 = Gemm <transB = 1> (x, a0)
           v0 = Gemm <transB = 1, alpha = 2.0> (u0, b0)
           s0 = Add (h0, v0)
           h1 = Tanh (s0)
           h2 = MatMul (h1, second_weight)
           u1 = Gemm <transB = 1> (h1, a1)
           v1 = Gemm <transB = 1, alpha = 2.0> (u1, b1)
           s1 = Add (h2, v1)
           h3 = Tanh (s1)
           h4 = MatMul (h3, third_weight)
           u2 = Gemm <transB = 1> (h3, a2)
           v2 = Gemm <transB = 1, alpha = 2.0> (u2, b2)
           s2 = Add (h4, v2)
           y = MatMul (s2, head_weight) }})",
      kIn, kOut));
  const auto add = [&](const char* name, std::vector<int64_t> dims, const std::vector<float>& values) {
    *model.mutable_graph()->add_initializer() = tensor_of(name, dims, values);
  };
  const std::pair<const char*, std::vector<int64_t>> weights[] = {{"first.weight", {kInner, kIn}},
                                                                  {"first.bias", {kInner}},
                                                                  {"second.weight", {kInner, kInner}},
                                                                  {"third.weight", {kInner, kInner}},
                                                                  {"head.weight", {kInner, kOut}}};
  for (const auto& [name, dims] : weights) add(name, dims, weight(o.model, name));
  add("a0", {kRank, kIn}, matrix(begun, "first.lora_A.weight"));
  add("b0", {kInner, kRank}, matrix(begun, "first.lora_B.weight"));
  add("a1", {kRank, kInner}, matrix(begun, "second.lora_A.weight"));
  add("b1", {kInner, kRank}, matrix(begun, "second.lora_B.weight"));
  add("a2", {kRank, kInner}, matrix(begun, "third.lora_A.weight"));
  add("b2", {kInner, kRank}, matrix(begun, "third.lora_B.weight"));
  Options written = with_data(write_model(folder, model, "written.onnx"));
  written.lora_rank = 0;
  written.lora_alpha = 0;
  written.freeze = {"*.weight", "*.bias"};
  const Run other = train(written);
  EXPECT_EQ(other.losses, run.losses);
  EXPECT_EQ(weight(other.summary.model_path, "a1"), matrix(run.summary.model_path, "second.lora_A.weight"));
  EXPECT_EQ(weight(other.summary.model_path, "b0"), matrix(run.summary.model_path, "first.lora_B.weight"));
}

// Three products of the same x: their matrices A are multiplied as one, and stay parameters of their own, to which any optimizer, rate and
// file is what it is without.
TEST_F(AdapterRuns, TargetsThatShareAnInputShareItsProduct) {
  ort_train_onnx::ModelProto model = with_dots(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
           h = Gemm <transB = 1> (x, first_weight)
           q = MatMul (h, q_weight)
           k = Gemm <transB = 1> (h, k_weight)
           v = MatMul (h, v_weight)
           a = Tanh (q)
           b = Mul (a, k)
           c = Add (b, v)
           y = MatMul (c, head_weight) }})",
      kIn, kOut));
  const std::pair<const char*, std::vector<int64_t>> weights[] = {{"first.weight", {kInner, kIn}},
                                                                  {"q.weight", {kInner, kInner}},
                                                                  {"k.weight", {kInner, kInner}},
                                                                  {"v.weight", {kInner, kInner}},
                                                                  {"head.weight", {kInner, kOut}}};
  for (const auto& [name, dims] : weights) {
    std::vector<float> values = numbers(element_count(dims), 7907 + 2 * static_cast<int64_t>(model.graph().initializer_size()));
    for (float& value : values) value /= 64;
    *model.mutable_graph()->add_initializer() = tensor_of(name, dims, values);
  }
  Options shared = with_data(write_model(folder, model, "shared.onnx"));
  shared.adapter_only = true;
  const auto products = [&](Options o) {
    o.dump_after["join_adapters"] = folder / "joined.onnx";
    Trainer trainer(o);
    std::map<std::string, int64_t> count;
    const Graph graph = read_graph(folder / "joined.onnx");
    for (const NodeId id : graph.order()) ++count[std::string(graph.node(id).op->name)];
    return std::pair(count["MatMul"], count["Concat"]);
  };
  EXPECT_EQ(products(shared), std::pair(int64_t{5 + 1 + 1 + 4}, int64_t{1}));  // the model's, first's A, the others', all B
  Options dropped = shared;
  dropped.lora_dropout = 0.1;  // each reads an x of its own
  EXPECT_EQ(products(dropped), std::pair(int64_t{5 + 4 + 4}, int64_t{0}));

  fs::create_directory(folder / "disk");
  const auto close = [](const auto& is, const auto& expected, double tolerance) {
    ASSERT_EQ(is.size(), expected.size());
    for (size_t i = 0; i < is.size(); ++i) ASSERT_NEAR(is[i], expected[i], tolerance * std::max(1.0, std::abs(double{expected[i]}))) << i;
  };
  for (const std::string kind :
       {"adamw", "lamb", "adafactor", "adamw, DoRA", "adamw, nf4"}) {  // lamb and adafactor take a matrix as a whole
    SCOPED_TRACE(kind);
    Options o = shared;
    o.optim = kind.substr(0, kind.find(','));
    o.use_dora = kind.ends_with("DoRA");
    if (kind.ends_with("nf4")) o.base_dtype = "nf4";
    o.lora_plus_ratio = 4;
    const Run joined = train(o);
    Options streamed = o;
    streamed.nvme_path = folder / "disk";
    streamed.budget = least_budget(streamed);
    streamed.threads = 1;
    const Run again = train(streamed);
    EXPECT_EQ(again.losses, joined.losses);
    EXPECT_EQ(again.summary.weights_hash, joined.summary.weights_hash);
    streamed.output_dir = folder / ("resumed-" + kind);
    EXPECT_EQ(train_in_two(streamed, 3).weights_hash, joined.summary.weights_hash);

    o.skip_passes = {"join_adapters"};
    const Run apart = train(o);
    close(joined.losses, apart.losses, 1e-5);
    for (const char* name : {"first.lora_A.weight", "q.lora_A.weight", "k.lora_A.weight", "v.lora_A.weight", "v.lora_B.weight"})
      close(matrix(joined.summary.model_path, name), matrix(apart.summary.model_path, name), 1e-4);
    EXPECT_EQ(joined.plan.groups.size(), apart.plan.groups.size());
  }
}

// DoRA's magnitudes are the norms of the rows, or columns, of the new weights.
TEST_F(AdapterRuns, DoraTrainsNormsAndDirections) {
  Options o = options();
  const double first_loss = train(o).losses[0];
  o.use_dora = true;
  const Run merged = train(o);
  EXPECT_NEAR(merged.losses[0], first_loss, 1e-6 * first_loss);
  EXPECT_EQ(merged.plan.trainable_parameters, kRank * (kIn + 5 * kInner) + 3 * kInner);
  o.adapter_only = true;
  const std::string file = train(o).summary.model_path;
  for (const auto& [name, transposed] : {std::pair("first", false), {"second", true}}) {
    const std::string module = name;
    const std::vector<float> a = matrix(file, module + ".lora_A.weight"), b = matrix(file, module + ".lora_B.weight"),
                             m = matrix(file, module + ".lora_magnitude_vector"), w = weight(o.model, module + ".weight"),
                             sum = sum_of(w, a, b, transposed), is = weight(merged.summary.model_path, module + ".weight");
    ASSERT_EQ(m.size(), static_cast<size_t>(kInner));
    const size_t in = sum.size() / m.size();
    double moved = 0;
    for (size_t output = 0; output < m.size(); ++output) {
      const auto at = [&](size_t i) { return transposed ? i * m.size() + output : output * in + i; };
      double norm = 0, before = 0;
      for (size_t i = 0; i < in; ++i) norm += double{sum[at(i)]} * double{sum[at(i)]}, before += double{w[at(i)]} * double{w[at(i)]};
      moved = std::max(moved, std::abs(double{m[output]} - std::sqrt(before)));
      for (size_t i = 0; i < in; ++i) ASSERT_NEAR(is[at(i)], double{m[output]} * double{sum[at(i)]} / std::sqrt(norm), 1e-6) << name;
    }
    EXPECT_GT(moved, 0.01) << name;
  }
  // The magnitudes begin as the norms of what is stored, so the first step computes what it computes without adapters.
  for (const char* base : {"int8", "nf4"}) {
    Options few = options();
    few.base_dtype = base;
    few.max_steps = 1;
    const double expected = train(few).losses[0];
    few.use_dora = true;
    EXPECT_NEAR(train(few).losses[0], expected, 2e-6 * expected) << base;
    few.bf16 = true;
    EXPECT_NEAR(train(few).losses[0], expected, 1e-2 * expected) << base;
  }
}

// With a base product of its own behind Dropout, as PEFT has it; out of training there is none.
TEST_F(AdapterRuns, DoraBehindDropout) {
  Options o = options();
  o.use_dora = true;
  o.eval_steps = 1, o.max_steps = 1, o.learning_rate = 0, o.validation_split = 0.34;
  const Run plain = train(o);
  o.lora_dropout = 0.5;
  const Run dropped = train(o);
  EXPECT_NEAR(dropped.losses[0], plain.losses[0], 1e-6 * plain.losses[0]);  // at first both products have the factor 1
  EXPECT_NEAR(dropped.summary.eval_loss, plain.summary.eval_loss, 1e-6 * plain.summary.eval_loss);
  EXPECT_NE(dropped.losses[1], plain.losses[1]);
}

TEST_F(AdapterRuns, Ia3ScalesInputsAndOutputs) {
  Options o = options();
  o.lora_rank = 0, o.lora_alpha = 0;
  o.ia3_target = {"first", "third"};
  o.ia3_feedforward = {"second"};
  const Run merged = train(o);
  EXPECT_EQ(merged.plan.trainable_parameters, 3 * kInner);
  o.adapter_only = true;
  const std::string file = train(o).summary.model_path;
  const auto factors = [&](const char* module) { return matrix(file, std::string(module) + ".ia3_l"); };
  const auto expect = [&](const char* name, const auto& factor) {
    const std::vector<float> was = weight(o.model, name), is = weight(merged.summary.model_path, name);
    for (size_t i = 0; i < was.size(); ++i) ASSERT_EQ(is[i], was[i] * factor(i)) << name << " " << i;
  };
  const std::vector<float> first = factors("first"), second = factors("second"), third = factors("third");
  ASSERT_TRUE(std::any_of(second.begin(), second.end(), [](float x) { return std::abs(x - 1) > 0.01f; }));
  expect("first.weight", [&](size_t i) { return first[i / kIn]; });
  expect("first.bias", [&](size_t i) { return first[i]; });
  expect("second.weight", [&](size_t i) { return second[i / kInner]; });
  expect("third.weight", [&](size_t i) { return third[i % kInner]; });
  // It goes on from the file, and `export` makes the same model of it.
  expect_goes_on_as_merged(o, file, merged.summary.model_path);
  EXPECT_TRUE(read_file(export_merged({.model = o.model, .output_dir = folder / "exported", .adapter = fs::path(file).parent_path()})) ==
              read_file(merged.summary.model_path));
}

// A bias that the same layer adds in each of its uses is scaled in all of them.
TEST_F(AdapterRuns, Ia3OfALayerThatIsUsedTwice) {
  constexpr int64_t kWide = 8;
  ort_train_onnx::ModelProto model = with_dots(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {0}] x) => (float[batch, {0}] y) {{
           a = Gemm <transB = 1> (x, layer_weight, layer_bias)
           t = Tanh (a)
           y = Gemm <transB = 1> (t, layer_weight, layer_bias) }})",
      kWide));
  *model.mutable_graph()->add_initializer() = tensor_of("layer.weight", {kWide, kWide}, numbers(kWide * kWide, 7919));
  *model.mutable_graph()->add_initializer() = tensor_of("layer.bias", {kWide}, numbers(kWide, 613));
  Options o = with_data(write_model(folder, model, "twice.onnx"));
  Arrays arrays;
  arrays.add("x", {kSamples, kWide}, numbers(kSamples * kWide, 617)).add("labels", {kSamples, kWide}, numbers(kSamples * kWide, 619));
  o.data = arrays.write(folder / "twice.safetensors");
  o.lora_rank = 0, o.lora_alpha = 0;
  o.ia3_target = {"layer"};
  const Run run = train(o);
  EXPECT_EQ(run.plan.trainable_parameters, kWide);
  o.adapter_only = true;
  const std::string file = train(o).summary.model_path;
  const std::vector<float> factors = matrix(file, "layer.ia3_l");
  ASSERT_EQ(factors.size(), static_cast<size_t>(kWide));
  EXPECT_TRUE(std::any_of(factors.begin(), factors.end(), [](float x) { return std::abs(x - 1) > 0.01f; }));
  for (const auto& [name, each] : {std::pair("layer.weight", size_t{kWide}), {"layer.bias", size_t{1}}}) {
    const std::vector<float> was = weight(o.model, name), is = weight(run.summary.model_path, name);
    for (size_t i = 0; i < was.size(); ++i) ASSERT_EQ(is[i], was[i] * factors[i / each]) << name << " " << i;
  }
  expect_goes_on_as_merged(o, file, run.summary.model_path);
}

// In memory, from a disk, in parts, with the base in few bits, killed and resumed.
TEST_F(AdapterRuns, AnyMemoryEndsWithTheSameBits) {
  fs::create_directory(folder / "disk");
  for (const std::string kind : {"float32", "bfloat16", "int8", "nf4", "nf4+", "float32, DoRA", "nf4+, DoRA", "int8, (IA)3"}) {
    Options o = options();
    const std::string base = kind.substr(0, kind.find(','));
    if (kind.ends_with("(IA)3")) {
      o.lora_rank = 0, o.lora_alpha = 0;
      o.ia3_target = {"first", "third"};
      o.ia3_feedforward = {"second"};
      o.base_target = {"head"};
    } else {
      o.lora_dropout = 0.25;
      o.use_dora = kind.ends_with("DoRA");
    }
    o.base_dtype = base.starts_with("nf4") ? "nf4" : base;
    o.double_quant = base == "nf4+";
    on.part_bytes = 0;
    const Run plain = train(o);
    Options again = o;
    again.output_dir = folder / ("resumed-" + kind);
    EXPECT_EQ(train_in_two(again, 3).weights_hash, plain.summary.weights_hash) << kind;
    for (const int64_t part : {int64_t{0}, int64_t{1} << 18}) {
      Options streamed = o;
      streamed.nvme_path = folder / "disk";
      on.part_bytes = part;
      streamed.budget = least_budget(streamed);
      streamed.threads = 1;
      const Run run = train(streamed);
      if (!o.base_dtype.starts_with("nf4")) {  // whose matrices aren't much beside what an operation needs
        EXPECT_GT(run.plan.disk_read_per_step, 0) << kind;
      }
      EXPECT_EQ(run.losses, plain.losses) << kind << ", parts of " << part;
      EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << kind << ", parts of " << part;
      EXPECT_TRUE(read_file(run.summary.model_path) == read_file(plain.summary.model_path)) << kind;
    }
  }
}

// Which takes less, and is near.
TEST_F(AdapterRuns, FewBitsOfTheBaseTakeFewBytes) {
  Options o = options();
  const Run plain = train(o);
  const int64_t matrices = kInner * (kIn + 2 * kInner);
  int64_t before = plain.plan.at_peak.weights;
  for (const auto& [base, bits, bound] : {std::tuple("bfloat16", 16.0, 0.01), {"int8", 8.5, 0.02}, {"nf4", 4.5, 0.2}}) {
    o.base_dtype = base;
    const Run run = train(o);
    EXPECT_NEAR(static_cast<double>(plain.plan.at_peak.weights - run.plan.at_peak.weights), static_cast<double>(matrices) * (4 - bits / 8),
                4096)
        << base;
    EXPECT_LT(run.plan.at_peak.weights, before) << base;
    before = run.plan.at_peak.weights;
    for (size_t i = 0; i < run.losses.size(); i += 2) EXPECT_NEAR(run.losses[i], plain.losses[i], bound * plain.losses[i]) << base;
    // The numbers of the file are what the new model's weights are made of.
    const std::vector<float> is = weight(run.summary.model_path, "head.weight");
    EXPECT_EQ(is, weight(o.model, "head.weight"));
    const std::vector<float> was = weight(o.model, "first.weight"), now = weight(run.summary.model_path, "first.weight");
    double change = 0;
    for (size_t i = 0; i < was.size(); ++i) change = std::max(change, std::abs(static_cast<double>(now[i] - was[i])));
    EXPECT_LT(change, 0.05) << base;
  }
}

TEST_F(AdapterRuns, AnAdapterIsGoneOnFrom) {
  Options o = options();
  o.adapter_only = true;
  o.use_rslora = true;
  o.use_dora = true;
  const Run first = train(o);
  Options next = o;
  next.lora_rank = 0, next.lora_alpha = 0, next.use_rslora = false, next.use_dora = false, next.adapter_only = false;
  next.adapter = fs::path(first.summary.model_path).parent_path();
  const Run second = train(next);
  o.adapter_only = false;
  const Run merged = train(o);
  // What `export` makes of the adapter is what the run itself made of it.
  Options only{.model = o.model, .output_dir = folder / "exported", .adapter = next.adapter};
  EXPECT_TRUE(read_file(export_merged(only)) == read_file(merged.summary.model_path));
  EXPECT_HAS(error_of([&] { export_merged(only); }).what(), "is there already: replace it (`overwrite`)");
  only.overwrite = true;
  EXPECT_TRUE(read_file(export_merged(only)) == read_file(merged.summary.model_path));
  EXPECT_HAS(error_of([&] { export_merged({.model = o.model}); }).what(), "no adapter is given");
  // What the first run ended with is what the second begins with: the loss of the merged model.
  Options of_merged = next;
  of_merged.adapter.clear();
  of_merged.model = merged.summary.model_path;
  of_merged.learning_rate = 0;
  of_merged.max_steps = 1;
  EXPECT_NEAR(train(of_merged).losses[0], second.losses[0], 1e-5);
}

TEST_F(AdapterRuns, TheFilesDropoutIsOneOfItsOwn) {
  Options o = options();
  o.lora_dropout = 0.5;
  o.adapter_only = true;
  o.max_steps = 1;
  Options next{.model = o.model, .adapter = fs::path(train(o).summary.model_path).parent_path()};
  EXPECT_EQ(adapter_settings(next).dropout, 0.5);
  for (const double other : {0.25, 0.0}) {
    next.lora_dropout = other;
    EXPECT_EQ(adapter_settings(next).dropout, other);
  }
}

TEST_F(AdapterRuns, PatternsChooseWeights) {
  Options o = options();
  o.lora_target = {"second"};
  EXPECT_EQ(Trainer(o).plan().trainable_parameters, kRank * 2 * kInner);
  o.lora_target = {"*.weight"};
  EXPECT_EQ(Trainer(o).plan().trainable_parameters, kRank * (kIn + 6 * kInner + kOut));
  o.lora_target = {"first"};
  o.train = {"head.weight"};
  EXPECT_EQ(Trainer(o).plan().trainable_parameters, kRank * (kIn + kInner) + kInner * kOut);
  o.lora_plus_ratio = 16;
  const PlanReport plan = Trainer(o).plan();
  ASSERT_EQ(plan.groups.size(), 2U);
  EXPECT_DOUBLE_EQ(plan.groups[1].learning_rate, 16 * o.learning_rate);
  EXPECT_EQ(plan.groups[1].elements, kRank * kInner);
}

// By default; one that a pattern names is refused.
TEST_F(AdapterRuns, WeightsThatAreTooSmallForTheRankHaveNone) {
  Options o = options();
  o.lora_rank = 200;
  std::string notes;
  const Trainer trainer(o, {.on_note = [&](const std::string& text) { notes += text + "\n"; }});
  EXPECT_EQ(trainer.plan().trainable_parameters, 200 * 4 * kInner);
  const std::string note = "1 weight has fewer rows or columns than `lora_rank` 200, and so no adapter: 'first.weight' [1024, 128]";
  EXPECT_HAS(notes, note);
  EXPECT_THAT(check(o).notes, testing::Contains(note));
}

// The products whose results are logits, by what follows them: (outputs, nodes from h to these), and which outputs a loss reads.
TEST(AdaptedHeads, AreFoundBehindWhatShowsThem) {
  struct Case {
    std::string outputs, nodes;
    std::set<size_t> read;
    bool is_head;
  };
  const std::string logits = "l = MatMul (h, w)\n", loss = "float loss", picked = "float loss, float[4, 6] l";
  const auto by_hand = [](const std::string& nodes) { return nodes + "s = Mul (l, l) loss = ReduceMean <keepdims = 0> (s)"; };
  const TestFolder folder;
  for (const Case& c :
       {Case{"float[4, 6] y", "y = MatMul (h, w)", {0}, true},
        {"float[4, 6] y", logits + "y = Softmax (l)", {0}, true},
        {"float[4, 6] y", logits + "y = LogSoftmax (l)", {0}, true},
        {"float[4, 6] y", logits + "b = Add (l, bias) y = Sigmoid (b)", {0}, true},
        {"float[4, 6] y", logits + "d = Div (l, cap) t = Tanh (d) y = Mul (cap, t)", {0}, true},
        {"float[2, 6] y", logits + "y = Slice (l, first, last)", {0}, true},
        {"float[4, 6] y", logits + "y = Exp (l)", {0}, false},
        {"float[4, 6] y", logits + "d = Div (cap, l) y = Softmax (d)", {0}, false},
        {"float[4, 6] y", logits + "r = MatMul (l, v) y = Add (l, r)", {0}, false},
        // Losses in the model.
        {loss, logits + "loss = SoftmaxCrossEntropyLoss (l, labels)", {0}, true},
        {loss, logits + "d = Div (l, cap) t = Tanh (d) m = Mul (t, cap) loss = SoftmaxCrossEntropyLoss (m, labels)", {0}, true},
        {loss, logits + "p = LogSoftmax (l) loss = NegativeLogLikelihoodLoss (p, labels)", {0}, true},
        {loss, logits + "s = Slice (l, first, last) c = Slice (labels, first, last) loss = SoftmaxCrossEntropyLoss (s, c)", {0}, true},
        {loss, by_hand(logits), {0}, false},
        // Outputs that no loss reads.
        {picked, by_hand(logits), {0}, true},
        {"float loss, float[6, 4] k", by_hand(logits) + "\nk = Transpose (l)", {0}, false},
        {"float loss, float[4, 6] p", by_hand(logits) + "\np = Softmax (l)", {0}, true}}) {
    SCOPED_TRACE(c.outputs + ": " + c.nodes);
    Imported imported =
        import_file(write_model(folder, fmt::format(
                                            R"(<ir_version: 8, opset_import: ["" : 17]> g (float[4, 6] x, int64[4] labels) => ({})
           <float[6, 6] u = {{1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4, 5, 6, 7, 8, 9, 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3}},
            float[6, 6] w = {{2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4, 5, 2, 3, 5, 3, 6, 0, 2, 8, 7, 4, 7, 1, 3, 5, 2, 6, 6, 2, 4, 9}},
            float[6, 6] v = {{1, 4, 1, 4, 2, 1, 3, 5, 6, 2, 3, 7, 3, 0, 9, 5, 0, 4, 8, 8, 0, 1, 6, 8, 8, 7, 2, 4, 2, 0, 9, 6, 9, 8, 0, 7}},
            float[6] bias = {{1, 2, 3, 4, 5, 6}}, float cap = {{30}}, int64[1] first = {{0}}, int64[1] last = {{2}}> {{
             a = MatMul (x, u)
             h = Tanh (a)
             {} }})",
                                            c.outputs, c.nodes)));
    ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
    simplify(imported.graph, {});
    std::map<std::string, bool> heads;
    for (const Adaptable& weight : find_adaptable(imported.graph, c.read)) heads[weight.weight] = weight.is_head;
    EXPECT_FALSE(heads.at("u"));
    EXPECT_EQ(heads.at("w"), c.is_head);
  }
}

// The gradient of a product of a transposed factor has the weight on the left, where blocks aren't read: such a weight stays as it is. An
// output that is a residual sum makes no head of what is added.
TEST_F(AdapterRuns, ProductsOfTransposedFactorsAndResidualOutputs) {
  Options o = options();
  ort_train_onnx::ModelProto model = with_dots(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 8, 128] x) => (float[batch, 128, 512] y) {
      t = Transpose <perm = [0, 2, 1]> (x)
      a = MatMul (t, first_weight)
      h = Tanh (a)
      b = MatMul (h, second_weight)
      y = Add (h, b)
    })");
  *model.mutable_graph()->add_initializer() = tensor_of("first.weight", {8, 512}, numbers(8 * 512, 7919));
  *model.mutable_graph()->add_initializer() = tensor_of("second.weight", {512, 512}, numbers(512 * 512, 7907));
  o.model = write_model(folder, model, "turned.onnx");
  Arrays arrays;
  arrays.add("x", {4, 8, 128}, numbers(4 * 8 * 128, 613)).add("labels", {4, 128, 512}, numbers(4 * 128 * 512, 617));
  o.data = arrays.write(folder / "turned.safetensors");
  const Run plain = train(o);
  EXPECT_EQ(plain.plan.trainable_parameters, kRank * (8 + 3 * 512));
  o.base_dtype = "nf4";
  const Run few = train(o);
  EXPECT_NEAR(static_cast<double>(plain.plan.at_peak.weights - few.plan.at_peak.weights), 512 * 512 * (4 - 4.5 / 8), 4096);
}

// An Einsum of three factors becomes two products, each with an adapter.
TEST_F(AdapterRuns, EachProductDropsNumbersOfItsOwn) {
  ort_train_onnx::ModelProto model = with_dots(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
           h = Einsum <equation = "bi,ij,jk->bk"> (x, first_weight, second_weight)
           t = Tanh (h)
           y = MatMul (t, head_weight) }})",
      kIn, kOut));
  *model.mutable_graph()->add_initializer() = tensor_of("first.weight", {kIn, kIn}, numbers(kIn * kIn, 7919));
  *model.mutable_graph()->add_initializer() = tensor_of("second.weight", {kIn, kIn}, numbers(kIn * kIn, 7907));
  *model.mutable_graph()->add_initializer() = tensor_of("head.weight", {kIn, kOut}, numbers(kIn * kOut, 619));
  Options o = with_data(write_model(folder, model, "einsum.onnx"));
  o.lora_dropout = 0.5;
  o.dump_after["adapters"] = folder / "adapted.onnx";
  Trainer trainer(o);
  const Graph graph = read_graph(folder / "adapted.onnx");
  std::set<uint32_t> streams;
  for (const NodeId id : graph.order()) {
    if (graph.node(id).op->name != "Dropout") continue;
    EXPECT_TRUE(streams.insert(graph.node(id).ordinal).second);
  }
  EXPECT_EQ(streams.size(), 2U);
}

// A table of the exporter's that is too large for a constant of the graph is no weight: no adapter, and no fewer bits.
TEST_F(AdapterRuns, LargeConstantsStayAsTheyAre) {
  constexpr int64_t kWide = 2100;
  ort_train_onnx::ModelProto model = with_dots(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
           p = Concat <axis = 1> (x, zeros)
           h = MatMul (p, table)
           g = MatMul (h, first_weight)
           t = Tanh (g)
           y = MatMul (t, head_weight) }})",
      kIn, kOut));
  const std::vector<float> table = numbers(kWide * kWide, 7919);
  *model.mutable_graph()->add_initializer() = tensor_of("zeros", {4, kWide - kIn}, std::vector<float>(4 * (kWide - kIn)));
  *model.mutable_graph()->add_initializer() = tensor_of("table", {kWide, kWide}, table);
  *model.mutable_graph()->add_initializer() = tensor_of("first.weight", {kWide, kIn}, numbers(kWide * kIn, 7907));
  *model.mutable_graph()->add_initializer() = tensor_of("head.weight", {kIn, kOut}, numbers(kIn * kOut, 619));
  for (const char* name : {"zeros", "table"}) describe(model, name, kKind, "BUFFER");
  Options o = with_data(write_model(folder, model, "table.onnx"));
  o.base_dtype = "nf4";
  for (const std::vector<std::string>& targets : {std::vector<std::string>{}, {"*"}}) {
    o.lora_target = targets;
    const Run run = train(o);
    EXPECT_EQ(run.plan.trainable_parameters, kRank * (kWide + kIn) + (targets.empty() ? 0 : kRank * (kIn + kOut)));
    EXPECT_EQ(weight(run.summary.model_path, "table"), table);
  }
  o.lora_target = {"table"};
  EXPECT_THAT(refusal(o), testing::HasSubstr("`lora_target` 'table' fits no product, convolution or embedding of the model"));
}

}  // namespace
}  // namespace ort_train
