// Jobs of one weight: whatever waits for its gradient, its update or the next step waits for nothing else. Streamed, too, they give the
// bits of the run that has everything in memory.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "exec/workers.h"
#include "passes/pipeline.h"
#include "passes/plan.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/stream_support.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;

struct OneWeight : TrainerRuns {
  OneWeight() { on.part_bytes = 1 << 20; }  // six parts
  static constexpr int64_t kSamples = 22, kIn = 1024, kOut = 1536;

  Options options() const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{ y = MatMul (x, w) }})", kIn, kOut));
    *model.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kOut}, numbers(kIn * kOut, 7919));
    Options o{.model = write_model(folder, model)};
    o.data = Arrays()
                 .add("x", {kSamples, kIn}, numbers(kSamples * kIn, 104'729))
                 .add("labels", {kSamples, kOut}, numbers(kSamples * kOut, 1'299'709))
                 .write(folder / "data.safetensors");
    o.loss = "mse";
    o.batch_size = 4;  // the last batch of an epoch has two
    o.learning_rate = 1e-3;
    o.max_steps = 7;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
};

TEST_F(OneWeight, StreamsWithTheSameBits) {
  for (const int64_t accumulation : {1, 3}) {
    for (const double clip : {0.0, 1.0}) {
      Options o = options();
      o.gradient_accumulation_steps = accumulation;
      o.max_grad_norm = clip;
      const Run plain = train(o);
      const int64_t most = plain.plan.at_peak.total;
      o.nvme_path = folder / "disk";
      std::filesystem::create_directory(o.nvme_path);
      const int64_t least = least_budget(o);
      ASSERT_LT(least, most);
      for (const int64_t budget : {least, (least + most) / 2}) {
        o.budget = budget;
        const Run run = train(o);
        EXPECT_EQ(run.losses, plain.losses) << accumulation << " micro-batches, norm " << clip << ", budget " << budget;
        EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash);
        EXPECT_GT(run.plan.disk_read_per_step, 0);
      }
    }
  }
}

// Its update waits for the next step.
TEST(OneWeightGraphs, UpdateLater) {
  Graph forward;
  forward.inputs = {forward.add_value({.name = "x", .shape = {4, 64}, .kind = ValueKind::input})};
  const ValueId w = forward.add_value({.name = "w", .shape = {64, 512}, .kind = ValueKind::parameter, .trainable = true});
  forward.outputs = {Builder(forward).emit("MatMul", {forward.inputs[0], w})};
  EXPECT_EQ(used_soon(forward), std::set<std::string>{"w"});
  const LossSpec loss{.terms = {{.kind = "mse"}}};
  Workers workers(2);
  const auto left_by = [&](const Program& program, const std::vector<const Graph*>& graphs, const std::vector<size_t>& runs, Disk* disk) {
    StreamMachine machine(program, graphs, workers, disk);
    machine.set_parameters(3);
    std::vector<std::byte> kept, left;
    for (const size_t entry : runs) machine.run(entry, 5, 2, kept);
    machine.append_state(left);
    return left;
  };
  for (const double norm : {0.0, 0.5}) {
    EntryGraph plain = build_train_graph(forward, loss, {.max_grad_norm = norm}, {});
    const Program now = plan({{.name = "train", .graph = &plain.graph, .keep = {}}}, {.threads = 2});
    const std::vector<std::byte> wanted = left_by(now, {&plain.graph}, {0, 0, 0}, nullptr);
    const OptimizerSpec later{.max_grad_norm = norm, .deferred = true};
    EntryGraph first = build_train_graph(forward, loss, later, {});
    EntryGraph pending = build_deferred_graph(first, later, {}), update = build_update_graph(first, later, {});
    const Planner planner({{.name = "train", .graph = &pending.graph, .role = pending.role},
                           {.name = "train-first", .graph = &first.graph, .runs_per_step = 0.01, .role = first.role},
                           {.name = "update", .graph = &update.graph, .runs_per_step = 0.01, .role = update.role}},
                          {.threads = 2});
    const std::vector<const Graph*> graphs{&pending.graph, &first.graph, &update.graph};
    const int64_t most = planner.all_in_memory().memory().bytes;
    for (const int64_t limit : {int64_t{0}, most * 3 / 4, 2 * most}) {
      const Program program = planner.streamed(limit, {}, {}).program;
      verify(program, graphs);
      LazyDisk disk(program.file().bytes, 1);
      std::vector<std::byte> left = left_by(program, graphs, {1, 0, 0, 2}, &disk);
      ASSERT_GE(left.size(), sizeof(float) + wanted.size());
      left.erase(left.begin(), left.begin() + sizeof(float));  // the norm comes first, what waits last
      left.resize(wanted.size());
      EXPECT_TRUE(left == wanted) << norm << ' ' << limit;
      EXPECT_EQ(disk.bytes_read() > 0, limit < most);
    }
  }
}

}  // namespace
}  // namespace ort_train
