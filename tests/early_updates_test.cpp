// Updates in the backward pass: where no update waits for all gradients, none is kept; with the same bits, and less memory.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "graph/op_def.h"
#include "passes/passes.h"
#include "passes/recompute.h"
#include "tests/chain_model.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

using namespace fixtures;

constexpr GptShape kShape{.layers = 4, .heads = 2, .width = 32, .vocabulary = 61, .batch = 2, .length = 8};

// Of the bytes of gradients, the most that are wanted at a time.
int64_t most_gradients(const EntryGraph& job) {
  const std::vector<NodeId>& order = job.graph.order();
  std::vector<int64_t> change(order.size() + 1, 0);
  for (const auto& [parameter, gradient] : job.gradients) {
    size_t made = 0, last = 0;
    for (size_t at = 0; at < order.size(); ++at) {
      const Node& node = job.graph.node(order[at]);
      if (job.graph.value(gradient).producer == order[at]) made = at;
      if (std::find(node.inputs.begin(), node.inputs.end(), gradient) != node.inputs.end()) last = at;
    }
    change[made] += job.graph.value(gradient).bytes();
    change[last + 1] -= job.graph.value(gradient).bytes();
  }
  int64_t live = 0, most = 0;
  for (const int64_t bytes : change) most = std::max(most, live += bytes);
  return most;
}

TEST(EarlyUpdates, KeepNoGradient) {
  const auto spec = [](double norm, bool per_layer, bool scaled = false) {
    return OptimizerSpec{.max_grad_norm = norm, .clip_per_layer = per_layer, .loss_scaling = scaled};
  };
  int64_t all = 0, largest = 0;
  {
    const EntryGraph job = gpt_training(kShape, spec(1, false));
    for (const auto& [parameter, gradient] : job.gradients) {
      all += job.graph.value(gradient).bytes();
      largest = std::max(largest, job.graph.value(gradient).bytes());
    }
  }
  struct Case {
    OptimizerSpec spec;
    bool early;
  };
  for (const Case& c : {Case{spec(0, false), true}, Case{spec(1, true), true}, Case{spec(1, false), false},
                        Case{spec(0, false, true), false}, Case{spec(1, true, true), false}}) {
    SCOPED_TRACE(fmt::format("norm {}, per layer {}, scaled {}", c.spec.max_grad_norm, c.spec.clip_per_layer, c.spec.loss_scaling));
    EntryGraph job = gpt_training(kShape, c.spec);
    EXPECT_EQ(most_gradients(job), all);
    early_updates(job.graph, {});
    job.graph.verify("early_updates");
    if (c.early)
      EXPECT_LE(most_gradients(job), 2 * largest);
    else
      EXPECT_EQ(most_gradients(job), all);
    EXPECT_FALSE(early_updates(job.graph, {})) << "there is nothing left to do";
  }
}

// Also where layers are computed again, and weights are in parts, whose gradients have one norm.
TEST(EarlyUpdates, ChangeNoBit) {
  Workers workers(2);
  for (const char* name : {"adamw", "sgd", "adafactor"}) {
    for (const bool per_layer : {false, true}) {
      for (const int64_t part_bytes : {int64_t{1} << 30, int64_t{1} << 10}) {
        SCOPED_TRACE(fmt::format("{}, per layer {}, parts of {}", name, per_layer, part_bytes));
        const OptimizerSpec spec{
            .optimizer = calm_optimizer(name), .weight_decay = 0.1, .max_grad_norm = per_layer ? 1e-3 : 0, .clip_per_layer = per_layer};
        EntryGraph plain = gpt_training(kShape, spec, part_bytes), early = plain;
        recompute(early.graph, recompute_mode("all"), nullptr);
        EXPECT_TRUE(early_updates(early.graph, {}));
        std::map<std::string, Tensor> left[2];
        const EntryGraph* jobs[] = {&plain, &early};
        for (int i = 0; i < 2; ++i) {
          Reference reference(workers);
          for (const ValueId id : plain.graph.parameters())
            reference.state[plain.graph.value(id).name] = random_tensor(plain.graph.value(id).type(), static_cast<uint32_t>(id));
          for (uint32_t step = 0; step < 2; ++step) reference.run(jobs[i]->graph, step_inputs(jobs[i]->graph, spec, 61, step));
          left[i] = reference.state;
        }
        ASSERT_EQ(left[0].size(), left[1].size());
        for (const auto& [state, tensor] : left[0]) EXPECT_TRUE(tensor.bytes == left[1].at(state).bytes) << state;
      }
    }
  }
}

// The norm by which a weight is clipped is that of all its parts.
TEST(EarlyUpdates, PartsOfAWeightAreClippedAsOne) {
  constexpr GptShape kLarge{.layers = 1, .heads = 2, .width = 160, .vocabulary = 1500, .batch = 2, .length = 24};
  Workers workers(2);
  const OptimizerSpec spec{.optimizer = calm_optimizer("sgd"), .max_grad_norm = 1e-3, .clip_per_layer = true};
  std::map<std::string, std::vector<std::byte>> wholes[2];
  for (const bool divided : {false, true}) {
    EntryGraph job = gpt_training(kLarge, spec, divided ? 200'000 : int64_t{1} << 30);
    EXPECT_EQ(job.slices.empty(), !divided);
    // Each weight by its name and, of a part, its place.
    std::map<std::pair<std::string, int64_t>, std::string> pieces;
    Reference reference(workers);
    for (const ValueId id : job.graph.parameters()) {
      const Value& value = job.graph.value(id);
      pieces[value.whole.empty() ? std::pair{value.name, int64_t{0}} : std::pair{value.whole, value.whole_offset}] = value.name;
      Tensor tensor(value.dtype, value.shape);
      const int64_t first = value.whole_offset / 4;
      for (size_t i = 0; i < tensor.data<float>().size(); ++i)
        tensor.data<float>()[i] = static_cast<float>((static_cast<int64_t>(i) + first) * 7919 % 2003) / 1000 - 1;
      reference.state[value.name] = tensor;
    }
    early_updates(job.graph, {});
    reference.run(job.graph, step_inputs(job.graph, spec, 61));
    for (const auto& [place, name] : pieces) {
      auto& whole = wholes[divided][place.first];
      const Tensor& piece = reference.state.at(name);
      whole.insert(whole.end(), piece.bytes.begin(), piece.bytes.end());
    }
  }
  for (const auto& [name, bytes] : wholes[0]) EXPECT_TRUE(bytes == wholes[1][name]) << name;
}

struct EarlyUpdateRuns : TrainerRuns {};

TEST_F(EarlyUpdateRuns, TakeLessMemory) {
  constexpr int64_t kLayers = 10, kWidth = 160, kWeight = kWidth * kWidth * 4;
  Options o = chain_job(folder / "chain", kLayers, kWidth, 128);
  o.batch_size = 4;
  o.max_steps = 3;
  o.profile = profile;
  const Run clipped = train(o);
  o.clip_per_layer = true;
  const Run per_layer = train(o);
  o.clip_per_layer = false;
  o.max_grad_norm = 0;
  const Run plain = train(o);
  o.budget = plain.plan.minimum_budget;
  const Run tight = train(o);
  EXPECT_GE(clipped.plan.at_peak.gradients, kLayers * kWeight);
  for (const Run* run : {&per_layer, &plain, &tight}) {  // without a budget, updates may lag behind by some gradients
    const int64_t kept = run == &tight ? 2 : 5;
    EXPECT_LE(run->plan.at_peak.gradients, kept * kWeight);
    EXPECT_LE(run->plan.arena_bytes, clipped.plan.arena_bytes - (kLayers - kept) * kWeight);
  }
  EXPECT_EQ(tight.summary.weights_hash, plain.summary.weights_hash);
  // Streamed, with the same bits.
  o.nvme_path = folder / "nvme";
  std::filesystem::create_directory(o.nvme_path);
  for (const bool by_layer : {false, true}) {
    o.clip_per_layer = by_layer;
    o.max_grad_norm = by_layer ? 1 : 0;
    o.budget = 0;
    o.budget = Trainer(o).plan().minimum_budget;
    const Run streamed = train(o), &resident = by_layer ? per_layer : plain;
    EXPECT_GT(streamed.summary.disk_bytes_read, 0);
    EXPECT_EQ(streamed.losses, resident.losses);
    EXPECT_EQ(streamed.summary.weights_hash, resident.summary.weights_hash);
  }
}

TEST_F(EarlyUpdateRuns, PerLayerGoesWithANorm) {
  Options o = chain_job(folder / "chain", 2, 32, 128);
  o.profile = profile;
  o.clip_per_layer = true;
  o.max_grad_norm = 0;
  const Error refusal = error_of([&] { Trainer trainer(o); });
  EXPECT_EQ(refusal.code(), ErrorCode::usage);
  EXPECT_HAS(refusal.what(), "`clip_per_layer` needs a `max_grad_norm` above 0");
}

}  // namespace
}  // namespace ort_train
