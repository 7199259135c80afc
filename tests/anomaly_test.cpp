// Options::detect_anomaly: the first node that makes NaN or infinities is named; what only hands them on isn't, nor are masks.

#include "exec/anomaly.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "graph/builder.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Of every type: what is found in one output of a node, and where.
TEST(AnomalyDetector, CountsInEveryType) {
  for (const DType dtype : {DType::float32, DType::float64, DType::float16, DType::bfloat16}) {
    Graph graph;
    const ValueId x = graph.add_value({.name = "x", .dtype = dtype, .shape = {3, 5000}, .kind = ValueKind::input});
    graph.inputs = {x};
    const ValueId y = Builder(graph, Stage::backward).named("here").emit("Neg", {x});
    const NodeId node = graph.value(y).producer;
    AnomalyDetector detector(graph);
    Tensor good(dtype, {3, 5000}), bad = good;
    const auto set = [&](size_t element, double value) {
      const size_t size = bad.bytes.size() / 15000;
      const auto put = [&](auto number) { std::memcpy(bad.bytes.data() + element * size, &number, size); };
      const auto bits = std::bit_cast<uint32_t>(static_cast<float>(value));
      if (dtype == DType::float64) put(value);
      if (dtype == DType::float32) put(static_cast<float>(value));
      if (dtype == DType::bfloat16) put(static_cast<uint16_t>(bits >> 16));
      if (dtype == DType::float16)
        put(static_cast<uint16_t>(std::isnan(value) ? 0x7e01 : value < 0 ? 0xfc00 : value > 1e5 ? 0x7c00 : 0x7bff));
    };
    const void* inputs[] = {good.bytes.data()};
    void* outputs[] = {good.bytes.data()};
    detector.begin();
    EXPECT_EQ(detector.before(node, inputs), "");
    EXPECT_EQ(detector.behind(node, outputs), "");
    set(4, 65504);  // the largest of float16
    outputs[0] = bad.bytes.data();
    EXPECT_EQ(detector.behind(node, outputs), "");
    set(7002, std::numeric_limits<double>::quiet_NaN());
    set(7003, kInfinity);
    set(14999, -kInfinity);
    EXPECT_THAT(detector.behind(node, outputs),
                AllOf(HasSubstr("Neg 'here' backward] makes 1 NaN and 2 infinities among 15000 numbers, the first at [1, 2002]"),
                      HasSubstr("in output 0")));
    inputs[0] = bad.bytes.data();
    detector.begin();
    EXPECT_THAT(detector.before(node, inputs), StartsWith("the input 'x' has 1 NaN and 2 infinities"));
    EXPECT_EQ(detector.behind(node, outputs), "");  // it hands on what came in
  }
}

struct Anomalies : TrainerRuns {
  static constexpr int64_t kSamples = 6;

  // A model of one input (batch, 4) and one weight (4, 4).
  Options job(const std::string& body, const std::vector<float>& x) const {
    ort_train_onnx::ModelProto model =
        model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 4] x) => (float[batch, 4] y) {{ {} }})", body));
    *model.mutable_graph()->add_initializer() = tensor_of("w", {4, 4}, numbers(16, 7919));
    Options o{.model = write_model(folder, model)};
    o.data = Arrays().add("x", {kSamples, 4}, x).add("labels", {kSamples, 4}, numbers(4 * kSamples, 31)).write(folder / "data.safetensors");
    o.loss = "mse";
    o.batch_size = 2;
    o.max_steps = 3;
    o.shuffle = false;
    o.profile = profile;
    o.output_dir = folder / "out";
    o.overwrite = true;
    o.detect_anomaly = true;
    return o;
  }
  std::string found(const Options& o) {
    const Error problem = error_of([&] { Trainer(o).train(); });
    EXPECT_EQ(problem.code(), ErrorCode::diverged);
    return problem.what();
  }
  static std::vector<float> samples() { return numbers(4 * kSamples, 104'729); }
};

TEST_F(Anomalies, OfTheForwardPass) {
  EXPECT_THAT(
      found(job("[product] a = MatMul (x, w)\n[root] b = Sqrt (a)\n[last] y = MatMul (b, w)", samples())),
      AllOf(StartsWith("step 1: [Sqrt 'root'] makes "), HasSubstr("NaN among 8 numbers, the first at ["), HasSubstr("of finite inputs")));
}

TEST_F(Anomalies, OfALaterStep) {
  std::vector<float> x = samples();
  x[5 * 4 + 2] = 3e38f;  // the third step's
  EXPECT_THAT(found(job("[product] a = MatMul (x, w)\n[twice] b = Add (a, a)\n[last] y = MatMul (b, w)", x)),
              AllOf(StartsWith("step 3: ["), HasSubstr("infinit")));
}

TEST_F(Anomalies, OfTheBackwardPass) {
  std::vector<float> x(4 * kSamples, 0.0f);  // the root's slope at zero
  EXPECT_THAT(found(job("[product] a = MatMul (x, w)\n[root] y = Sqrt (a)", x)),
              AllOf(StartsWith("step 1: ["), HasSubstr("'root'"), HasSubstr("backward] makes 8 infinities among 8 numbers")));
}

TEST_F(Anomalies, OfTheData) {
  std::vector<float> x = samples();
  x[4 * 4 + 1] = std::numeric_limits<float>::quiet_NaN();
  const std::string sentence = found(job("[product] y = MatMul (x, w)", x));
  EXPECT_THAT(sentence, HasSubstr("step 3: the input 'x' has 1 NaN among 8 numbers, the first at [0, 1]"));
}

// Infinite labels make infinities first, which might be a mask's; where these make NaN, the input is told.
TEST_F(Anomalies, OfLabels) {
  const Options o = job("[product] y = MatMul (x, w)", samples());
  std::vector<float> labels = numbers(4 * kSamples, 31);
  labels[1] = labels[5] = kInfinity;
  Arrays().add("x", {kSamples, 4}, samples()).add("labels", {kSamples, 4}, labels).write(o.data);
  EXPECT_THAT(found(o), AllOf(HasSubstr("of its inputs, some are infinite"),
                              HasSubstr("the input 'labels' has 2 infinities among 8 numbers, the first at [0, 1]")));
}

TEST_F(Anomalies, MasksAreNone) {
  const std::string body =
      "[product] a = MatMul (x, w)\nabove = Greater (x, zero)\n[choice] m = Where (above, a, low)\n"
      "limits = Relu (x)\n[mask] n = Log (limits)\n[masked] s = Add (a, n)\n"
      "first = Softmax <axis = 1> (m)\nsecond = Softmax <axis = 1> (s)\n[last] y = Add (first, second)";
  std::vector<float> x = samples();
  for (size_t i = 0; i < x.size(); i += 4) x[i] = 0.5f;  // each row has something left
  Options o = job("y = MatMul (x, w)", x);
  ort_train_onnx::ModelProto model = model_of(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 4] x) => (float[batch, 4] y) <float[1] zero = {{0}}> {{ {} }})", body));
  *model.mutable_graph()->add_initializer() = tensor_of("w", {4, 4}, numbers(16, 7919));
  *model.mutable_graph()->add_initializer() = tensor_of("low", {1}, {-kInfinity});
  o.model = write_model(folder, model);
  EXPECT_EQ(Trainer(o).train().steps, 3);
}

// The column of a feature that is always zero has a mean square of zero, whose root an update divides by.
TEST_F(Anomalies, FactorsOfAnUpdateAreNone) {
  std::vector<float> x = samples();
  for (size_t i = 1; i < x.size(); i += 4) x[i] = 0;
  Options o = job("[product] y = Gemm <transB = 1> (x, w)", x);
  o.optim = "adafactor_torch";
  EXPECT_EQ(Trainer(o).train().steps, 3);
}

// The second update of a weight that has become large.
TEST_F(Anomalies, OfAnUpdate) {
  Options o = job("[product] a = MatMul (x, w)\ny = Tanh (a)", samples());
  o.optim = "sgd";
  o.weight_decay = 1;
  o.learning_rate = 1e20;
  EXPECT_THAT(found(o), AllOf(StartsWith("step 2: ["), HasSubstr("update] makes "), HasSubstr("infinit")));
}

// With loss scaling, what overflows in the backward pass has a step skipped, and is told; the forward pass has no such excuse.
TEST_F(Anomalies, AreToldWithLossScaling) {
  std::vector<std::string> notes;
  std::vector<float> x = samples();
  for (float& number : x) number *= 1000;
  Options o = job("[product] y = MatMul (x, w)", x);
  o.loss_scale = "dynamic";
  o.loss_scale_init = 3e38;
  const Summary summary = Trainer(o, {.on_note = [&](const std::string& note) { notes.push_back(note); }}).train();
  EXPECT_GT(summary.skipped_steps, 0);
  EXPECT_THAT(fmt::format("{}", fmt::join(notes, "\n")), AllOf(HasSubstr("step 1 is skipped: ["), HasSubstr("infinit")));
  o = job("[product] a = MatMul (x, w)\n[root] b = Sqrt (a)\n[last] y = MatMul (b, w)", samples());
  o.loss_scale = "dynamic";
  EXPECT_THAT(found(o), StartsWith("step 1: [Sqrt 'root'] makes "));
}

// It looks, and changes nothing.
TEST_F(Anomalies, LookingChangesNoBit) {
  std::string hash;
  for (const bool look : {false, true}) {
    Options o = job("[product] a = MatMul (x, w)\nb = Tanh (a)\ny = MatMul (b, w)", samples());
    o.detect_anomaly = look;
    const std::string now = Trainer(o).train().weights_hash;
    if (hash.empty()) hash = now;
    EXPECT_EQ(now, hash);
  }
}

}  // namespace
}  // namespace ort_train
