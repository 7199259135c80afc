// Runs of a model whose small weights are in packs (passes/pack_weights.h), which leave the memory: the bits are those of the run that has
// everything there, files have the model's own names, and a checkpoint of other packs is refused.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "frontend/file.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;

struct PackedRuns : TrainerRuns {
  PackedRuns() { on.part_bytes = 1 << 20; }
  static constexpr int64_t kSamples = 14, kIn = 512, kInner = 4001, kOut = 4;

  // Vectors of 16,004 bytes: four make a pack. `a`, `b` and `c` are on the way to both outputs, `d` to y, `e` and `f` to z.
  Options options() const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y, float[batch, {}] z) {{
             h0 = MatMul (x, w)
             h1 = Mul (h0, a)
             h2 = Add (h1, b)
             h3 = Tanh (h2)
             h4 = Mul (h3, c)
             h5 = Mul (h4, d)
             y = MatMul (h5, v)
             z0 = Mul (h4, e)
             z = Add (z0, f) }})",
        kIn, kOut, kInner));
    *model.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kInner}, numbers(kIn * kInner, 7919));
    for (const auto& [name, step] : {std::pair("a", 613), {"b", 617}, {"c", 619}, {"d", 631}, {"e", 641}, {"f", 643}})
      *model.mutable_graph()->add_initializer() = tensor_of(name, {kInner}, numbers(kInner, step));
    *model.mutable_graph()->add_initializer() = tensor_of("v", {kInner, kOut}, numbers(kInner * kOut, 7907));
    Options o{.model = write_model(folder, model)};
    Arrays arrays;
    for (const auto& [name, width] : {std::pair("x", kIn), {"labels", kOut}, {"wide", kInner}})
      arrays.add(name, {kSamples, width}, numbers(kSamples * width, 104'729 + width));
    o.data = arrays.write(folder / "data.safetensors");
    o.loss = "mse";
    o.output = "y";
    o.batch_size = 4;  // the last batch of an epoch has two
    o.learning_rate = 1e-3;
    o.weight_decay = 0.1;
    o.max_steps = 6;
    o.threads = 2;
    o.profile = profile;
    return o;
  }

  Options on_disk(Options o) const {
    o.nvme_path = folder / "disk";
    std::filesystem::create_directory(o.nvme_path);
    return o;
  }
};

TEST_F(PackedRuns, StreamWithTheSameBits) {
  for (const int64_t accumulation : {1, 3}) {
    Options o = options();
    o.gradient_accumulation_steps = accumulation;
    o.max_steps = 12 / accumulation;
    o.eval_steps = 2;
    o.save_gradients = folder / "plain.safetensors";
    const Run plain = train(o);
    EXPECT_EQ(plain.plan.parameters, kInner * (6 + kIn + kOut)) << "padding is none";
    const std::string gradients = read_file(o.save_gradients);
    for (const char* name : {"\"a\"", "\"b\"", "\"c\"", "\"d\"", "\"v\"", "\"w\""}) EXPECT_HAS(gradients.substr(0, 1000), name);
    for (const char* name : {"\"e\"", "\"f\"", ".."}) EXPECT_EQ(gradients.substr(0, 1000).find(name), std::string::npos) << name;
    const std::string model = read_file(plain.summary.model_path);
    o = on_disk(o);
    o.save_gradients = folder / "streamed.safetensors";
    const int64_t most = plain.plan.at_peak.total, least = fixtures::TrainerOn(on, o).plan().minimum_budget;
    ASSERT_LT(least, most);
    for (const int64_t budget : {least, (3 * least + most) / 4}) {
      o.budget = budget;
      const Run run = train(o);
      EXPECT_EQ(run.losses, plain.losses) << accumulation << " micro-batches, budget " << budget;
      EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash);
      EXPECT_EQ(run.summary.eval_loss, plain.summary.eval_loss);
      EXPECT_TRUE(read_file(o.save_gradients) == gradients);
      EXPECT_TRUE(read_file(run.summary.model_path) == model);
      EXPECT_GT(run.plan.disk_read_per_step, 0);
      if (budget > least || accumulation == 1) continue;  // without sums of gradients there is room for the pack
      const auto row = std::find_if(run.plan.moves.begin(), run.plan.moves.end(), [](const PlanMoves& r) { return r.kind == "weights"; });
      ASSERT_NE(row, run.plan.moves.end());
      EXPECT_EQ(row->kept_bytes, 2 * kInner * 4) << "'e' and 'f', which have no gradient; the pack is on the disk";
    }
  }
}

TEST_F(PackedRuns, APlanShowsTheEntryThatRunsAndAllItsMicroBatches) {
  Options o = options();
  o.gradient_accumulation_steps = 3;
  const PlanReport one_by_one = fixtures::TrainerOn(on, o).plan();
  o = on_disk(o);
  o.micro_batches = "vertical";
  o.plan_svg = folder / "plan.svg";
  const PlanReport resident = fixtures::TrainerOn(on, o).plan();
  EXPECT_EQ(resident.saved_kept, 3 * one_by_one.saved_kept);
  o.budget = (3 * resident.minimum_budget + resident.at_peak.total) / 4;
  const PlanReport streamed = fixtures::TrainerOn(on, o).plan();
  EXPECT_EQ(streamed.micro_batches_together, 3);
  EXPECT_EQ(streamed.saved_kept + streamed.saved_recomputed, 3 * one_by_one.saved_kept);
  EXPECT_HAS(read_file(o.plan_svg), "peak of 'train-together'");
}

// What was read into packs comes out of them as it was.
TEST_F(PackedRuns, GiveBackTheWeightsThatTheyWereGiven) {
  Options o = options();
  o.learning_rate = 0;
  o.weight_decay = 0;
  o.max_steps = 2;
  const std::string model = read_file(o.model);
  EXPECT_TRUE(read_file(train(o).summary.model_path) == model);
  o = on_disk(o);
  o.budget = fixtures::TrainerOn(on, o).plan().minimum_budget;
  const Run run = train(o);
  EXPECT_TRUE(read_file(run.summary.model_path) == model);
  const auto written = static_cast<double>(run.summary.disk_bytes_written);
  EXPECT_NEAR(static_cast<double>(run.plan.disk_written_in_all), written, 0.02 * written);
}

TEST_F(PackedRuns, ResumeInAnotherBudget) {
  Options o = options();
  const Run whole = train(o);
  for (const bool disk_first : {false, true}) {
    Options first = options(), second = options();
    Options& streamed = disk_first ? first : second;
    streamed = on_disk(streamed);
    streamed.budget = fixtures::TrainerOn(on, streamed).plan().minimum_budget;
    first.output_dir = second.output_dir = folder / (disk_first ? "there" : "back");
    first.save_steps = 3;
    {
      Trainer* running = nullptr;
      fixtures::TrainerOn trainer(on, first, {.on_step = [&](const StepReport& step) {
                                    if (step.step == 3) running->request_stop();
                                  }});
      running = &trainer;
      EXPECT_TRUE(trainer.train().stopped);
    }
    second.resume = true;
    EXPECT_EQ(fixtures::TrainerOn(on, second).train().weights_hash, whole.summary.weights_hash) << disk_first;
  }
}

// The loss decides which weights have a gradient, and so what a pack holds.
TEST_F(PackedRuns, ACheckpointOfOtherPacksIsRefused) {
  Options o = options();
  o.output_dir = folder / "y";
  o.max_steps = 2;
  o.save_steps = 1;
  fixtures::TrainerOn(on, o).train();
  o.resume = true;
  o.max_steps = 3;
  o.output = "z";
  o.labels = "wide";
  const Error refused = error_of([&] { fixtures::TrainerOn(on, o).train(); });
  EXPECT_EQ(refused.code(), ErrorCode::usage);
  EXPECT_HAS(refused.what(), "is the checkpoint of another model");
  o.optim = "adafactor";  // which has no packs
  EXPECT_HAS(error_of([&] { fixtures::TrainerOn(on, o).train(); }).what(), "was saved with `optim` adamw, not adafactor");
}

}  // namespace
}  // namespace ort_train
