// Mixed precision: what the pass makes of a graph, what it saves of a plan's memory, and how near its gradients are to those in double,
// beside PyTorch's under autocast (tests/golden/autocast.json).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "exec/kernel.h"
#include "exec/ops/sgd.h"
#include "exec/random.h"
#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "graph/autodiff.h"
#include "graph/onnx/writer.h"
#include "graph/op_def.h"
#include "passes/cost.h"
#include "passes/pipeline.h"
#include "tests/arrays.h"
#include "tests/failures.h"
#include "tests/golden_model.h"
#include "tests/mixed_graph.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using fixtures::mixed;
using fixtures::typed_ops;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kRoot = ORT_TRAIN_SOURCE_DIR;

// --- the pass ---------------------------------------------------------------------------------------------------------------------------

constexpr const char* kBlock =
    R"(g (float[2, 8] x) => (float[2, 8] y) <float[8] s, float[8] b, float[8, 16] w, float[16] c, float[16, 8] v> {
  n, mean, inverse = LayerNormalization(x, s, b)
  h = MatMul(n, w, c)
  a = Gelu(h)
  p = MatMul(a, v)
  y = Add(x, p)
})";

TEST(MixedPrecision, ABlockStoresWhatItSavesIn16BitsAndKeepsItsSums) {
  const Graph graph = mixed(kBlock);
  EXPECT_THAT(typed_ops(graph),
              ElementsAre("LayerNormalization bfloat16", "MatMul bfloat16", "Gelu bfloat16", "MatMul float32", "Add float32"))
      << graph.to_text();
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.op->traits.precision.rounds) continue;
    EXPECT_EQ(get_type(node.attributes, kComputeType, DType::float32), DType::bfloat16);
  }
  for (const ValueId weight : graph.parameters()) EXPECT_EQ(graph.value(weight).dtype, DType::float32);
}

TEST(MixedPrecision, GradientsOfWeightsAreFloat32) {
  Graph graph = mixed(R"(g (float[2, 8] x) => (float y) <float[8] s, float[8] b, float[8, 16] w, float[16] c, float[16, 8] v> {
    n, mean, inverse = LayerNormalization(x, s, b)
    h = MatMul(n, w, c)
    a = Gelu(h)
    p = MatMul(a, v)
    z = Add(x, p)
    y = ReduceSum<axes = [0, 1], keepdims = 0>(z)
  })");
  const auto gradients = differentiate(graph, graph.outputs[0]);
  graph.verify("autodiff");
  EXPECT_EQ(gradients.size(), 5u);
  for (const auto& [parameter, gradient] : gradients) EXPECT_EQ(graph.value(gradient).dtype, DType::float32) << graph.value(parameter).name;
  for (const NodeId id : graph.order()) {  // biases' gradients are sums of 16-bit numbers, rounded once
    const Node& node = graph.node(id);
    if (node.op->name != "ReduceSum" || node.stage != Stage::backward) continue;
    EXPECT_EQ(graph.value(node.outputs[0]).dtype, DType::float32) << graph.to_text();
  }
}

TEST(MixedPrecision, OneCastOfAnActivationServesAllThatReadIt) {
  const Graph graph = mixed(R"(g (float[2, 8] x) => (float[2, 8] r, float[2, 4] q, float[2, 4] k) <float[8, 4] v, float[8, 4] w> {
    r = Exp(x)
    a = MatMul(r, v)
    b = MatMul(r, w)
    q = Neg(a)
    k = Neg(b)
  })");
  EXPECT_THAT(typed_ops(graph), ElementsAre("Exp float32", "Cast bfloat16", "MatMul bfloat16", "MatMul bfloat16", "Neg bfloat16",
                                            "Neg bfloat16", "Cast float32", "Cast float32"));
}

// As a pooled classifier has it.
TEST(MixedPrecision, ASumOfFloat32KeepsItsType) {
  const Graph graph = mixed(R"(g (float[2, 3, 8] x) => (float[2, 4] y) <float[8, 4] w> {
    e = Exp(x)
    m = ReduceMean<axes = [1], keepdims = 0>(e)
    y = MatMul(m, w)
  })");
  EXPECT_THAT(typed_ops(graph), ElementsAre("Exp float32", "ReduceMean float32", "Cast bfloat16", "MatMul bfloat16", "Cast float32"));
}

TEST(MixedPrecision, CastsMoveBeforeAReshape) {
  const Graph graph = mixed(R"(g (float[2, 3, 8] x) => (float[2, 3, 8] y) <float[8] s, float[8] b, float[8, 8] w> {
    n, mean, inverse = LayerNormalization(x, s, b)
    r = Reshape<shape = [6, 8]>(n)
    a = MatMul(r, w)
    v = Reshape<shape = [2, 3, 8]>(a)
    y = Add(x, v)
  })");
  EXPECT_THAT(typed_ops(graph),
              ElementsAre("LayerNormalization bfloat16", "Reshape bfloat16", "MatMul float32", "Reshape float32", "Add float32"));
}

TEST(MixedPrecision, ACastThereAndBackIsNone) {
  const Graph graph = mixed(R"(g (float[2, 8] x) => (float[2, 4] y) <float[8, 4] v, float[4, 4] w, float[4, 4] u> {
    a = MatMul(x, v)
    n = Neg(a)
    f = Cast<to = 0>(n)
    b = MatMul(f, w)
    y = MatMul(b, u)
  })");
  EXPECT_THAT(typed_ops(graph),
              ElementsAre("Cast bfloat16", "MatMul bfloat16", "Neg bfloat16", "MatMul bfloat16", "MatMul bfloat16", "Cast float32"));
}

TEST(MixedPrecision, FiniteConstantsStayFiniteAndSingleOnesDoNotWiden) {
  const Graph graph = mixed(R"(g (float[2, 8] x, bool[2, 4] c) => (float[2, 4] y)
    <float[8, 4] v, float[4, 4] w, float low = {-3.4028234e38}, float two = {2.0}> {
    a = MatMul(x, v)
    m = Where(c, a, low)
    d = Mul(m, two)
    y = MatMul(d, w)
  })");
  EXPECT_THAT(typed_ops(graph),
              ElementsAre("Cast bfloat16", "MatMul bfloat16", "Where bfloat16", "Mul bfloat16", "MatMul bfloat16", "Cast float32"));
  for (const ValueId id : graph.values_of(ValueKind::constant))
    EXPECT_TRUE(std::isfinite(graph.constant(id)->to_double()[0])) << graph.value(id).name;
}

TEST(MixedPrecision, TheListChangesOpsAndNodes) {
  constexpr const char* text = R"(g (float[2, 8] x) => (float[2, 4] y) <float[8, 4] v, float[4, 4] w> {
    [first] a = MatMul(x, v)
    [second] e = Exp(a)
    [third] y = MatMul(e, w)
  })";
  const auto with = [&](std::vector<AutocastRule> rules) { return typed_ops(mixed(text, DType::float16, std::move(rules))); };
  EXPECT_THAT(with({}), ElementsAre("Cast float16", "MatMul float32", "Exp float32", "Cast float16", "MatMul float16", "Cast float32"));
  EXPECT_THAT(with({{"Exp", Precision::follow}}),
              ElementsAre("Cast float16", "MatMul float16", "Exp float16", "MatMul float16", "Cast float32"));
  EXPECT_THAT(with({{"MatMul", Precision::float32}}), ElementsAre("MatMul float32", "Exp float32", "MatMul float32"));
  EXPECT_THAT(with({{"MatMul", Precision::float32}, {"thi*", Precision::low}}),
              ElementsAre("MatMul float32", "Exp float32", "Cast float16", "MatMul float16", "Cast float32"));
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { with({{"Sofmax", Precision::low}}); }), HasSubstr("'Sofmax' is no op and no node"));
}

// What others have become is no op that a rule changes along with its like.
TEST(MixedPrecision, AListNamesOpsAsTheyAre) {
  const auto refused = [](const std::vector<AutocastRule>& rules) {
    return error_of(ErrorCode::usage, [&] { mixed(kBlock, DType::bfloat16, rules); });
  };
  for (const char* name : {"Gemm", "STFT", "Einsum"}) {
    const std::string text = refused({{name, Precision::float32}});
    EXPECT_THAT(text, HasSubstr(std::string("'") + name + "' is no op of the model as it is after the fusions"));
    EXPECT_THAT(text, HasSubstr("such nodes become others, 'MatMul' for example"));
  }
  EXPECT_THAT(refused({{"Mean", Precision::low}}), HasSubstr("'Add' for example"));
}

// A smaller batch's graph may lack what a rule fits.
TEST(MixedPrecision, ARuleHasToFitTheMainGraphAlone) {
  const std::vector<AutocastRule> rules{{"Exp", Precision::low}};
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { mixed(kBlock, DType::bfloat16, rules); }), HasSubstr("'Exp' is no op and no node"));
  Graph graph = parse_graph(kBlock);
  EXPECT_TRUE(mixed_precision(graph, {.precision = DType::bfloat16, .autocast = rules, .refuses_idle_rules = false}));
}

TEST(MixedPrecision, ProductsAreOfTheTypeThatIsMultiplied) {
  EXPECT_EQ(half_products_of(parse_graph(kBlock)), DType::float32);
  EXPECT_EQ(half_products_of(mixed(kBlock)), DType::bfloat16);
  EXPECT_EQ(half_products_of(mixed(kBlock, DType::float16)), DType::float16);
  EXPECT_EQ(half_products_of(mixed(kBlock, DType::bfloat16, {{"MatMul", Precision::float32}})), DType::float32);
}

TEST(MixedPrecision, NormsAndStatisticsOfImages) {
  const Graph graph = mixed(R"(g (float[2, 3, 8, 8] x) => (float[2, 4] y)
    <float[4, 3, 3, 3] w, float[4] s, float[4] b, float[4] m, float[4] v, float[4, 4] u> {
    c = Conv<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(x, w)
    n = BatchNormalization(c, s, b, m, v)
    r = Relu(n)
    p = ReduceMean<axes = [2, 3], keepdims = 0>(r)
    y = MatMul(p, u)
  })");
  EXPECT_THAT(typed_ops(graph), ElementsAre("Cast bfloat16", "Conv bfloat16", "BatchNormalization bfloat16", "Relu bfloat16",
                                            "ReduceMean bfloat16", "MatMul bfloat16", "Cast float32"));
  for (const ValueId weight : graph.parameters()) EXPECT_EQ(graph.value(weight).dtype, DType::float32);
}

// --- gradients, beside PyTorch's ---------------------------------------------------------------------------------------------------------

std::map<std::string, std::vector<double>> tensors_of(const std::string& path, std::map<std::string, std::string>& metadata) {
  const std::string bytes = read_file(path);
  const SafetensorsHeader header = read_safetensors_header(File::open(path), ErrorCode::data);
  metadata = header.metadata;
  std::map<std::string, std::vector<double>> tensors;
  for (const SafetensorsEntry& entry : header.entries) {
    if (entry.element != Element::float32) continue;
    std::vector<float> values(entry.bytes / sizeof(float));
    std::memcpy(values.data(), bytes.data() + entry.offset, entry.bytes);
    tensors[entry.name] = {values.begin(), values.end()};
  }
  return tensors;
}

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> difference;
  for (size_t i = 0; i < a.size(); ++i) difference.push_back(a[i] - b.at(i));
  return norm(difference);
}
double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.at(values.size() / 2);
}

// Of gradients, as models/golden_autocast.py measures it.
struct GradientError {
  double all = 0, median = 0;
};

struct MixedGolden : TrainerRuns {
  Options options(const std::string& name) {
    std::map<std::string, std::string> metadata;
    truth = tensors_of(kGolden + name + ".golden.safetensors", metadata);
    Options o = golden_options(name);
    o.max_steps = 1;
    o.lr_scheduler_type = "constant";
    o.shuffle = false;
    o.profile = profile;
    o.save_gradients = folder / "gradients.safetensors";
    return o;
  }
  GradientError error_of(const Options& o) {
    train(o);
    std::map<std::string, std::string> none;
    const auto ours = tensors_of(o.save_gradients, none);
    std::vector<double> norms, shares;
    double differences = 0, all = 0;
    for (const auto& [key, gradient] : truth) {
      if (key.starts_with("gradient/")) norms.push_back(norm(gradient));
    }
    const double least = 1e-3 * median(norms);
    for (const auto& [key, gradient] : truth) {
      if (!key.starts_with("gradient/")) continue;
      const double difference = distance(ours.at(key.substr(9)), gradient), size = norm(gradient);
      differences += difference * difference;
      all += size * size;
      if (size >= least) shares.push_back(difference / size);
    }
    return {.all = std::sqrt(differences / all), .median = median(shares)};
  }

  std::map<std::string, std::vector<double>> truth;
};

TEST_F(MixedGolden, GradientsAreAsNearToDoubleAsPyTorchsUnderAutocast) {
  const nlohmann::json known = nlohmann::json::parse(read_file(kGolden + "autocast.json"));
  ASSERT_GE(known.size(), 18u);
  for (const auto& [name, of_types] : known.items()) {
    Options o = options(name);
    o.bf16 = true;
    const GradientError ours = error_of(o);
    const double all = of_types.at("bfloat16").at("all"), of_median = of_types.at("bfloat16").at("median");
    EXPECT_LE(ours.all, 1.2 * all) << name;
    EXPECT_LE(ours.median, 1.2 * of_median) << name;
    EXPECT_GT(ours.all, 0.02 * all) << name << ": it isn't low at all";
    std::printf("%-28s ours %.5f %.5f  PyTorch %.5f %.5f  ratio %.2f %.2f\n", name.c_str(), ours.all, ours.median, all, of_median,
                ours.all / all, ours.median / of_median);
  }
}

// --- 16-bit weights ---------------------------------------------------------------------------------------------------------------------

TEST(MixedPrecision, SumsOf16BitNumbersMayBeFloat32) {
  Workers workers(1);
  Tensor x(DType::bfloat16, {300, 40});
  std::vector<double> sums(40);
  for (size_t i = 0; i < 300 * 40; ++i) {
    x.data<bfloat16>()[i] = to_bfloat16(static_cast<float>(i % 97) / 97 - 0.3f);
    sums[i % 40] += static_cast<double>(to_float(x.data<bfloat16>()[i]));
  }
  Attributes attributes{{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}};
  set_type(attributes, kResultType, DType::float32);
  const Tensor wide = evaluate(op_named("ReduceSum"), attributes, {&x}, 1, workers)[0];
  ASSERT_EQ(wide.dtype, DType::float32);
  for (size_t i = 0; i < 40; ++i) EXPECT_NEAR(static_cast<double>(wide.data<float>()[i]), sums[i], 1e-6 * std::abs(sums[i]) + 1e-6);
}

// p - rate * g, by SGD, on weights of bfloat16.
struct RoundedUpdate {
  int64_t ordinal = 3, first = 0, step = 7;
  float rate = 0, gradient = 0, weight = 1;

  std::vector<float> run(int64_t n) const {
    Workers workers(2);
    Tensor p(DType::bfloat16, {n}), g(DType::float32, {n}), scalars(DType::float32, {kSgdScalars + kStepNumbers});
    for (bfloat16& x : p.data<bfloat16>()) x = to_bfloat16(weight);
    for (float& x : g.data<float>()) x = gradient;
    scalars.data<float>()[kSgdRate] = rate;
    scalars.data<float>()[kSgdScalars] = 0;
    scalars.data<float>()[kSgdScalars + 1] = static_cast<float>(step);
    const Tensor factor = scalar_tensor(1.0f);
    const Tensor updated = evaluate(op_named("SGD"), {{"seed", int64_t{42}}, {"ordinal", ordinal}, {"first", first}},
                                    {&p, &g, &factor, &scalars}, 1, workers)[0];
    std::vector<float> values;
    for (const bfloat16 x : updated.data<bfloat16>()) values.push_back(to_float(x));
    return values;
  }
};

TEST(StochasticRounding, KeepsOnAverageWhatRoundingToNearestLoses) {
  // 1 - 1e-4: the numbers below 1 are 2^-8 apart.
  const std::vector<float> values = RoundedUpdate{.rate = 1, .gradient = 1e-4f}.run(200'000);
  double sum = 0;
  for (const float value : values) {
    EXPECT_TRUE(value == 1 || value == 1 - 0x1p-8f) << value;
    sum += static_cast<double>(value);
  }
  const double n = static_cast<double>(values.size()), share = 1e-4 / 0x1p-8, deviation = 0x1p-8 * std::sqrt(share * (1 - share) / n);
  EXPECT_NEAR(sum / n, 1 - 1e-4, 5 * deviation);
  EXPECT_EQ(RoundedUpdate{}.run(1000), std::vector<float>(1000, 1)) << "what bfloat16 has stays";
}

TEST(StochasticRounding, PartsDrawWhatTheWholeDraws) {
  const RoundedUpdate update{.rate = 1, .gradient = 1e-3f};
  const std::vector<float> whole = update.run(100'003);
  for (const auto& [first, count] : {std::pair{0, 31}, {31, 70'001}, {70'032, 29'971}}) {
    RoundedUpdate part = update;
    part.first = first;
    EXPECT_EQ(part.run(count), std::vector<float>(whole.begin() + first, whole.begin() + first + count)) << first;
  }
  for (auto change : {+[](RoundedUpdate& u) { ++u.step; }, +[](RoundedUpdate& u) { ++u.ordinal; }}) {
    RoundedUpdate other = update;
    change(other);
    EXPECT_NE(other.run(100'003), whole);
  }
}

// --- memory -----------------------------------------------------------------------------------------------------------------------------

using MixedMemory = TrainerRuns;

int64_t saved_bytes(const Options& o) {
  const Trainer trainer(o);
  return trainer.plan().saved_kept_bytes;
}

TEST_F(MixedMemory, SavedActivationsShrink) {
  Options gpt{.model = kRoot + "/models/char-gpt.onnx", .data = kRoot + "/models/tinyshakespeare.txt", .task = "causal-lm"};
  gpt.batch_size = 16;
  gpt.seq_length = 64;
  Options cnn{.model = kGolden + "cnn-torchscript-17-live.onnx", .data = kGolden + "cnn-torchscript-17-live.data.safetensors"};
  cnn.batch_size = 4;
  for (Options* o : {&gpt, &cnn}) {
    o->profile = profile;
    o->output_dir = folder / "out";
    o->recompute = "none";
    const int64_t wide = saved_bytes(*o);
    o->bf16 = true;
    const int64_t low = saved_bytes(*o);
    std::printf("saved activations: %ld -> %ld bytes, %.3f\n", static_cast<long>(wide), static_cast<long>(low),
                static_cast<double>(low) / static_cast<double>(wide));
    EXPECT_LE(static_cast<double>(low), (o == &gpt ? 0.62 : 0.55) * static_cast<double>(wide));
  }
}

// --- options ----------------------------------------------------------------------------------------------------------------------------

using MixedOptions = TrainerRuns;

// The last batch of an epoch has one sample, of which a mean over the batch is the sample itself.
TEST_F(MixedOptions, ARemaindersGraphMayLackWhatAListNames) {
  Options o{.model = fixtures::write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 3] x) => (float[batch, 2] y)
    <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
      a = MatMul (x, w)
      m = ReduceMean <axes = [0]> (a)
      y = Sub (a, m)
    })")};
  o.data = Arrays().add("x", {9, 3}, numbers(27, 389)).add("labels", {9, 2}, numbers(18, 31)).write(folder / "data.safetensors");
  o.loss = "mse";
  o.batch_size = 4;
  o.max_steps = 3;
  o.profile = profile;
  o.bf16 = true;
  o.autocast_list = write_file(folder / "list", "ReduceMean low\n");
  EXPECT_EQ(train(o).losses.size(), 6u);
}

TEST_F(MixedOptions, WhatCannotBeIsASentence) {
  Options o{.model = kRoot + "/models/char-gpt.onnx", .data = kRoot + "/models/tinyshakespeare.txt", .task = "causal-lm", .seq_length = 16};
  o.profile = profile;
  o.output_dir = folder / "out";
  const auto refused = [&](auto change, ErrorCode code = ErrorCode::usage) {
    Options changed = o;
    change(changed);
    return error_of(code, [&] { Trainer trainer(changed); });
  };
  EXPECT_THAT(refused([](Options& c) { c.bf16 = c.fp16 = true; }), HasSubstr("give one of them"));
  EXPECT_THAT(refused([](Options& c) { c.tf32 = true; }), HasSubstr("some GPUs have, and that isn't used here"));
  const std::string list = write_file(folder / "list", "# ops\nSoftmax  float32\n/h.*/mlp/* low # nodes\n");
  EXPECT_THAT(refused([&](Options& c) { c.autocast_list = list; }), HasSubstr("goes with `bf16` or `fp16`"));
  const auto with_list = [&](const std::string& text) {
    const std::string path = write_file(folder / "other", text);
    return [path](Options& c) {
      c.bf16 = true;
      c.autocast_list = path;
    };
  };
  EXPECT_THAT(refused(with_list("MatMul half\n"), ErrorCode::data), HasSubstr("line 1 is 'MatMul half'"));
  EXPECT_THAT(refused(with_list("# nothing\n"), ErrorCode::data), HasSubstr("has no line"));
  EXPECT_THAT(refused(with_list("Softmaxx low\n")), HasSubstr("'Softmaxx' is no op and no node"));
  EXPECT_THAT(refused(
                  [&](Options& c) {
                    c.bf16 = true;
                    c.autocast_list = folder / "missing";
                  },
                  ErrorCode::io),
              HasSubstr("missing"));
}

}  // namespace
}  // namespace ort_train
