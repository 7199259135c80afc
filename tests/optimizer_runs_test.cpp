// Whole runs with each optimizer and each set of states that its options make: streamed, in parts and resumed, they leave the bits of the
// run that has everything in memory; and the plan counts what state there is.

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;

constexpr int64_t kSamples = 14, kIn = 512, kInner = 400, kOut = 4;

struct Case {
  const char* name;
  const char* optim;
  std::map<std::string, double> args;
  int64_t matrix = 0, vector = 0;  // states: of a matrix and of a vector, in copies of it
  bool factored = false;           // of a matrix, rows and columns besides
};

const Case kCases[] = {
    {"AdamW", "adamw", {}, 2, 2},
    {"Adam", "adam", {}, 2, 2},
    {"Sgd", "sgd", {}, 0, 0},
    {"SgdNesterov", "sgd", {{"momentum", 0.9}, {"nesterov", 1}}, 1, 1},
    {"SgdDampening", "sgd", {{"momentum", 0.9}, {"dampening", 0.5}}, 1, 1},
    {"Adafactor", "adafactor", {}, 0, 1, true},
    {"AdafactorRelative",
     "adafactor",
     {{"adafactor_relative_step", 1}, {"adafactor_scale_parameter", 1}, {"adafactor_beta1", 0.9}},
     1,
     2,
     true},
    {"AdafactorTorch", "adafactor_torch", {}, 0, 1, true},
    {"Lion", "lion_32bit", {}, 1, 1},
    {"Lamb", "lamb", {}, 2, 2},
    {"LambOfAll", "lamb", {{"lamb_use_nvlamb", 1}, {"lamb_bias_correction", 0}}, 2, 2},
    {"Lars", "lars", {{"lars_trust_coefficient", 0.1}}, 1, 1},
    {"LarsWithoutMomentum", "lars", {{"momentum", 0}}, 0, 0},
    {"Adagrad", "adagrad", {{"adagrad_initial_accumulator_value", 0.1}, {"adagrad_lr_decay", 0.1}}, 1, 1},
    {"Rmsprop", "rmsprop", {}, 1, 1},
    {"RmspropCentered", "rmsprop", {{"rmsprop_centered", 1}, {"momentum", 0.9}}, 3, 3},
};

struct OptimizerRuns : TrainerRuns, ::testing::WithParamInterface<Case> {
  Options options() const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
             h0 = MatMul (x, w)
             h1 = Add (h0, a)
             h2 = Tanh (h1)
             h3 = Mul (h2, b)
             y = MatMul (h3, v) }})",
        kIn, kOut));
    *model.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kInner}, numbers(kIn * kInner, 7919));
    for (const auto& [name, step] : {std::pair("a", 613), {"b", 617}})
      *model.mutable_graph()->add_initializer() = tensor_of(name, {kInner}, numbers(kInner, step));
    *model.mutable_graph()->add_initializer() = tensor_of("v", {kInner, kOut}, numbers(kInner * kOut, 7907));
    Options o{.model = write_model(folder, model)};
    Arrays arrays;
    for (const auto& [name, width] : {std::pair("x", kIn), {"labels", kOut}})
      arrays.add(name, {kSamples, width}, numbers(kSamples * width, 104'729 + width));
    o.data = arrays.write(folder / "data.safetensors");
    o.loss = "mse";
    o.batch_size = 4;
    o.learning_rate = 1e-3;
    o.weight_decay = 0.1;
    o.max_steps = 6;
    o.threads = 2;
    o.profile = profile;
    o.optim = GetParam().optim;
    o.optim_args = GetParam().args;
    return o;
  }
  static inline const DeviceChoice kInParts{.part_bytes = 300'000};
  Options streamed() const {
    Options o = options();
    o.nvme_path = folder / "disk";
    std::filesystem::create_directory(o.nvme_path);
    o.threads = 1;
    o.budget = fixtures::TrainerOn(kInParts, o).plan().minimum_budget;
    return o;
  }
};

TEST_P(OptimizerRuns, StreamedInPartsAndResumedLeaveTheSameBits) {
  const Run plain = train(options());
  EXPECT_NE(plain.losses.front(), plain.losses.back());
  const Options in_parts = streamed();
  on = kInParts;
  const Run parts = train(in_parts);
  EXPECT_EQ(parts.losses, plain.losses);
  EXPECT_EQ(parts.summary.weights_hash, plain.summary.weights_hash);
  EXPECT_GT(parts.plan.disk_read_per_step, 0);
  for (const bool disk_first : {false, true}) {
    Options first = disk_first ? in_parts : options(), second = disk_first ? options() : in_parts;
    first.output_dir = second.output_dir = folder / (disk_first ? "there" : "back");
    first.save_steps = 3;
    {
      Trainer* running = nullptr;
      fixtures::TrainerOn trainer(disk_first ? kInParts : DeviceChoice{}, first, {.on_step = [&](const StepReport& step) {
                                    if (step.step == 3) running->request_stop();
                                  }});
      running = &trainer;
      EXPECT_TRUE(trainer.train().stopped);
    }
    second.resume = true;
    EXPECT_EQ(fixtures::TrainerOn(disk_first ? DeviceChoice{} : kInParts, second).train().weights_hash, plain.summary.weights_hash)
        << disk_first;
  }
}

TEST_P(OptimizerRuns, ThePlanCountsTheState) {
  const Case& of = GetParam();
  const PlanReport plan = Trainer(options()).plan();
  const int64_t matrices = kIn * kInner + kInner * kOut, sides = kIn + 2 * kInner + kOut;
  const int64_t bytes = 4 * (of.matrix * matrices + (of.factored ? sides : 0) + of.vector * 2 * kInner);
  EXPECT_GE(plan.at_peak.optimizer, bytes);
  EXPECT_LE(plan.at_peak.optimizer, bytes + 2048) << "tensors begin at multiples of 64 bytes";
}

INSTANTIATE_TEST_SUITE_P(All, OptimizerRuns, ::testing::ValuesIn(kCases), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ort_train
