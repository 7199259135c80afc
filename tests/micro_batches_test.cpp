// Micro-batches that go through the model together: the same bits as one after the other.

#include "passes/micro_batches.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "exec/workers.h"
#include "graph/op_def.h"
#include "passes/optimizer.h"
#include "passes/plan.h"
#include "passes/recompute.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

using namespace fixtures;

constexpr GptShape kFourLayers{.layers = 4, .heads = 2, .width = 8, .vocabulary = 11, .batch = 2, .length = 5};
constexpr size_t kBatches = 3;

Tensor input_of(const Graph& graph, ValueId id, uint32_t seed) {
  Tensor tensor = random_tensor(graph.value(id).type(), seed, kFourLayers.vocabulary);
  const auto scalars = make_optimizer().scalars(2, 1e-2);
  if (graph.value(id).name == kScalarsInput) std::copy(scalars.begin(), scalars.end(), tensor.data<float>().begin());
  return tensor;
}

void set_parameters(const Graph& graph, Reference& reference) {
  for (ValueId id : graph.parameters()) reference.state[graph.value(id).name] = random_tensor(graph.value(id).type(), id);
}

std::map<std::string, std::vector<double>> numbers(const Reference& reference) {
  std::map<std::string, std::vector<double>> all;
  for (const auto& [name, tensor] : reference.state) all[name] = tensor.to_double();
  return all;
}

TEST(MicroBatches, TogetherGiveTheBitsOfOneByOne) {
  const EntryGraph job = gpt_training(kFourLayers, {.accumulate = true}, /*part_bytes=*/64);
  for (const RecomputeChoice& choice : {RecomputeChoice{}, RecomputeChoice{.groups = 5}, recompute_mode("sqrt")}) {
    Graph graph = job.graph;
    recompute(graph, choice);
    Workers workers(1);
    Reference apart(workers), joined(workers);
    set_parameters(graph, apart);
    set_parameters(graph, joined);
    std::map<ValueId, Tensor> shared{{job.losses[0].inverse_count, input_of(graph, job.losses[0].inverse_count, 1)}}, all = shared;
    Graph together = graph;
    const MicroBatches batches = join_micro_batches(together, kBatches, {job.losses[0].inverse_count});
    together.verify("micro_batches");
    ASSERT_EQ(batches.size(), kBatches);
    std::vector<std::vector<double>> wanted;
    for (size_t batch = 0; batch < kBatches; ++batch) {
      std::map<ValueId, Tensor> inputs = shared;
      for (ValueId id : graph.inputs) {
        if (id != job.losses[0].inverse_count)
          all[batches[batch][id]] = inputs[id] = input_of(graph, id, static_cast<uint32_t>(100 * batch + id));
      }
      const auto values = apart.run(graph, inputs);
      for (ValueId id : graph.outputs) wanted.push_back(values.at(id).to_double());
    }
    const auto values = joined.run(together, all);
    EXPECT_EQ(together.outputs.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_EQ(values.at(together.outputs[i]).to_double(), wanted[i]) << i;
    EXPECT_NE(wanted[0], wanted[2]) << "batches differ";
    EXPECT_EQ(numbers(joined), numbers(apart));
  }
}

// Two steps of three micro-batches: each with its update behind it, or that of the first in the second; one by one, or together.
TEST(MicroBatches, AnUpdateInTheNextStepGivesTheSameBits) {
  const auto fed = [](const Graph& graph, size_t micro_batch) {
    std::map<ValueId, Tensor> inputs;
    for (const ValueId id : graph.inputs) {
      const std::string& name = graph.value(id).name;
      Tensor& tensor = inputs[id] =
          random_tensor(graph.value(id).type(), static_cast<uint32_t>(100 * micro_batch + id), kFourLayers.vocabulary);
      if (name == kInverseCountInput) tensor.data<float>()[0] = 0.1f;
      if (name != kScalarsInput && name != kDeferredScalarsInput) continue;
      const size_t step = micro_batch / kBatches + (name == kScalarsInput ? 1 : 0);
      const auto scalars = make_optimizer().scalars(static_cast<int64_t>(step), 1e-2 / static_cast<double>(step));
      std::copy(scalars.begin(), scalars.end(), tensor.data<float>().begin());
    }
    return inputs;
  };
  const auto losses = [](const std::map<ValueId, Tensor>& values, ValueId loss, std::vector<double>& all) {
    all.push_back(values.at(loss).to_double()[0]);
  };
  Workers workers(1);
  const auto by_name = [](const Reference& reference) {
    auto all = numbers(reference);
    all.erase("ort_train.grad_norm");
    return all;
  };
  for (const int64_t part_bytes : {int64_t{64}, int64_t{1} << 30}) {
    OptimizerSpec optimizer{.max_grad_norm = 0.05, .accumulate = true};
    const EntryGraph plain = gpt_training(kFourLayers, optimizer, part_bytes), update = build_update_graph(plain, optimizer, {});
    Reference wanted(workers);
    set_parameters(plain.graph, wanted);
    std::vector<double> wanted_losses, wanted_norms;
    for (size_t batch = 0; batch < 2 * kBatches; ++batch) {
      losses(wanted.run(plain.graph, fed(plain.graph, batch)), plain.losses[0].sum, wanted_losses);
      if (batch % kBatches + 1 < kBatches) continue;
      losses(wanted.run(update.graph, fed(update.graph, batch)), update.grad_norm, wanted_norms);
    }
    EXPECT_GT(wanted_norms[0], 0.05) << "clipped";

    optimizer.deferred = true;
    const EntryGraph first = gpt_training(kFourLayers, optimizer, part_bytes), pending = build_deferred_graph(first, optimizer, {});
    const EntryGraph flush = build_update_graph(first, optimizer, {});
    Reference apart(workers), joined(workers);
    set_parameters(first.graph, apart);
    set_parameters(first.graph, joined);
    std::vector<double> found_losses, found_norms;
    for (size_t batch = 0; batch < 2 * kBatches; ++batch) {
      const EntryGraph& job = batch == kBatches ? pending : first;
      const auto values = apart.run(job.graph, fed(job.graph, batch));
      losses(values, job.losses[0].sum, found_losses);
      if (batch % kBatches + 1 == kBatches) losses(values, job.grad_norm, found_norms);
    }
    EXPECT_NE(by_name(apart), by_name(wanted)) << "an update waits";
    apart.run(flush.graph, fed(flush.graph, 2 * kBatches));
    EXPECT_EQ(found_losses, wanted_losses);
    EXPECT_EQ(found_norms, wanted_norms);
    EXPECT_EQ(by_name(apart), by_name(wanted));

    found_losses.clear(), found_norms.clear();
    for (size_t step = 0; step < 2; ++step) {
      const EntryGraph& job = step == 0 ? first : pending;
      Graph together = job.graph;
      std::vector<ValueId> shared = job.deferred_scalars;
      shared.push_back(job.losses[0].inverse_count);
      const MicroBatches batches = join_micro_batches(together, kBatches, shared);
      together.verify("micro_batches");
      std::map<ValueId, Tensor> inputs;
      for (size_t batch = 0; batch < kBatches; ++batch) {
        for (const auto& [id, tensor] : fed(job.graph, step * kBatches + batch)) inputs.try_emplace(batches[batch][id], tensor);
      }
      const auto values = joined.run(together, inputs);
      for (size_t batch = 0; batch < kBatches; ++batch) losses(values, batches[batch][job.losses[0].sum], found_losses);
      losses(values, job.grad_norm, found_norms);
      for (const char* once : {"AdamW", "SumSquares", "Clear"}) {
        const auto count = [&](const Graph& graph) {
          return std::count_if(graph.order().begin(), graph.order().end(), [&](NodeId id) { return graph.node(id).op->name == once; });
        };
        EXPECT_EQ(count(together), count(job.graph)) << once;
      }
    }
    joined.run(flush.graph, fed(flush.graph, 2 * kBatches));
    EXPECT_EQ(found_losses, wanted_losses);
    EXPECT_EQ(found_norms, wanted_norms);
    EXPECT_EQ(by_name(joined), by_name(wanted));
  }
}

// No block is left for the next one before all micro-batches have passed it, and come back to only in the backward pass.
TEST(MicroBatches, GoFromBlockToBlock) {
  EntryGraph job = gpt_training(kFourLayers, {.accumulate = true});
  join_micro_batches(job.graph, kBatches, {job.losses[0].inverse_count});
  std::vector<int> forward, backward;
  for (NodeId id : job.graph.order()) {
    const Node& node = job.graph.node(id);
    if (node.op->name == "MatMul" && node.name.starts_with("/h."))
      (node.stage == Stage::forward ? forward : backward).push_back(node.name[3] - '0');
  }
  EXPECT_TRUE(std::is_sorted(forward.begin(), forward.end()));
  EXPECT_TRUE(std::is_sorted(backward.rbegin(), backward.rend()));
  EXPECT_EQ(forward.back(), 3);
}

// What weights cost to bring is paid once.
TEST(MicroBatches, MoveLessThanOneByOne) {
  constexpr GptShape kShape{.layers = 4, .heads = 4, .width = 512, .vocabulary = 300, .batch = 1, .length = 8};
  const EntryGraph job = gpt_training(kShape, {.accumulate = true});
  Graph apart = job.graph, together = job.graph;
  join_micro_batches(together, 4, {job.losses[0].inverse_count});
  const auto moved = [&](Graph& graph, bool ordered, int64_t limit) {
    EntryGraph update = build_update_graph(job, {.accumulate = true}, {});
    const Planner planner({{.name = "train", .graph = &graph, .ordered = ordered, .role = job.role},
                           {.name = "update", .graph = &update.graph, .role = update.role}},
                          {.threads = 2});
    const PlannedProgram made = planner.streamed(limit, {}, {});
    verify(made.program, {&graph, &update.graph});
    EXPECT_LE(made.program.memory().bytes, limit);
    return made.forecasts[0].bytes_read + made.forecasts[0].bytes_written;
  };
  constexpr int64_t kLimit = int64_t{28} << 20;
  const int64_t one = moved(apart, false, kLimit), all = moved(together, true, kLimit);
  EXPECT_GT(one, int64_t{100} << 20);
  EXPECT_LT(all * 5, one * 4 * 2) << all << " instead of 4 x " << one;
}

}  // namespace
}  // namespace ort_train
