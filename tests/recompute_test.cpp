// Recompute: what the graph becomes, what memory that takes, and that no bit of any result depends on it.

#include "passes/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "exec/workers.h"
#include "frontend/budget.h"
#include "frontend/ort_train.h"
#include "graph/op_def.h"
#include "passes/memory_model.h"
#include "passes/optimizer.h"
#include "passes/plan.h"
#include "passes/saved_tensors.h"
#include "test_paths.h"
#include "tests/fastest_candidate.h"
#include "tests/plan_support.h"
#include "tests/problem_file.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using fixtures::gpt_training;
using fixtures::GptShape;

constexpr GptShape kTiny{.layers = 4, .heads = 2, .width = 8, .vocabulary = 11, .batch = 2, .length = 5};

std::vector<std::string> again(const Graph& graph) {
  std::vector<std::string> names;
  for (NodeId id : graph.order()) {
    if (graph.node(id).name.ends_with(" again")) names.push_back(std::string(graph.node(id).op->name) + " " + graph.node(id).name);
  }
  return names;
}

// x -> MatMul -> Gelu -> MatMul -> Gelu -> MatMul -> squared error
Graph perceptron() {
  Graph graph;
  graph.name = "perceptron";
  Builder b(graph);
  ValueId x = graph.add_value({.name = "x", .shape = {64, 32}, .kind = ValueKind::input});
  graph.inputs = {x};
  for (const char* name : {"one", "two", "three"}) {
    const ValueId weight =
        graph.add_value({.name = std::string(name) + ".weight", .shape = {32, 32}, .kind = ValueKind::parameter, .trainable = true});
    x = b.named(std::string("/") + name).emit("MatMul", {x, weight});
    if (std::string(name) != "three") x = b.named(std::string("/gelu.") + name).emit("Gelu", {x}, {{"approximate", "tanh"}});
  }
  graph.outputs = {x};
  return graph;
}

TEST(Recompute, RunsAgainRightBeforeTheReader) {
  Graph graph = build_train_graph(perceptron(), {.terms = {{.kind = "mse"}}}, {}, {}).graph;
  const Graph before = graph;
  EXPECT_FALSE(recompute(graph, {}));
  EXPECT_EQ(graph.to_text(), before.to_text());

  Recomputed result;
  ASSERT_TRUE(recompute(graph, {.groups = 1}, &result));
  graph.verify("recompute");
  EXPECT_EQ(again(graph), std::vector<std::string>{"Gelu /gelu.one again"});  // the cheapest and the earliest
  EXPECT_EQ(result.again, 1);
  EXPECT_EQ(result.again_bytes, 64 * 32 * 4);
  EXPECT_EQ(result.nodes.size(), 1u);
  const Node& copy = graph.node(result.nodes[0]);
  EXPECT_EQ(copy.stage, Stage::backward);
  const auto at = std::find(graph.order().begin(), graph.order().end(), result.nodes[0]);
  const Node& reader = graph.node(*(at + 1));
  EXPECT_THAT(reader.inputs, ::testing::Contains(copy.outputs[0]));
  EXPECT_EQ(reader.op->name, "MatMul");
  // Its original serves the forward pass alone.
  const ValueId original = graph.find_value(graph.value(copy.outputs[0]).name.substr(0, graph.value(copy.outputs[0]).name.find(".again")));
  ASSERT_NE(original, kNone);
  const auto readers = graph.readers();
  for (NodeId id : readers[original]) EXPECT_EQ(graph.node(id).stage, Stage::forward);
  EXPECT_EQ(graph.order().size(), before.order().size() + 1);
}

TEST(Recompute, AllKeepsTheBoundariesAndRunsEachNodeOnce) {
  const Graph before = gpt_training(kTiny).graph;
  const SavedTensors saved(before);
  EXPECT_GE(saved.boundaries(), 3u);  // one a block, at the least
  for (const RecomputeChoice choice : {recompute_mode("all"), recompute_mode("sqrt")}) {
    Graph graph = before;
    Recomputed result;
    ASSERT_TRUE(recompute(graph, choice, &result));
    graph.verify("recompute");
    const std::vector<std::string> names = again(graph);
    EXPECT_EQ(names.size(), result.nodes.size());
    size_t forward = 0;
    for (NodeId id : before.order()) forward += before.node(id).stage == Stage::forward;
    EXPECT_LT(names.size(), forward);
    EXPECT_GT(names.size(), forward / 2);
    EXPECT_GT(result.again_bytes, 2 * result.kept_bytes);
    // A node that changes state has no copy, and there is one copy of each other at most.
    std::set<ValueId> made;
    for (NodeId id : result.nodes) {
      EXPECT_TRUE(graph.node(id).op->writes.empty());
      for (ValueId output : graph.node(id).outputs) EXPECT_TRUE(made.insert(output).second);
    }
  }
  Graph none = before, root = before, all = before;
  Recomputed of_root, of_all;
  recompute(root, recompute_mode("sqrt"), &of_root);
  recompute(all, recompute_mode("all"), &of_all);
  EXPECT_LT(of_root.kept_bytes, of_all.kept_bytes);
  EXPECT_THROW(recompute_mode("some"), Error);
}

TEST(Recompute, TheLadderGetsSteadilyDearerAndKeepsLess) {
  const Graph before = gpt_training(kTiny).graph;
  const std::vector<RecomputeChoice> ladder = recompute_ladder(before);
  ASSERT_GT(ladder.size(), 10u);
  EXPECT_EQ(ladder[0], RecomputeChoice{});
  EXPECT_EQ(ladder.back().groups, kAllGroups);
  int64_t kept = INT64_MAX;
  for (const RecomputeChoice& choice : ladder) {
    Graph graph = before;
    Recomputed result;
    recompute(graph, choice, &result);
    EXPECT_LT(result.kept_bytes, kept);
    kept = result.kept_bytes;
  }
  const SavedTensors saved(before);
  for (size_t i = 1; i < saved.groups().size(); ++i) EXPECT_GE(saved.groups()[i].cost, saved.groups()[i - 1].cost);
}

// What reads state that changes before the backward pass is over can't run again: it would read the new one.
TEST(Recompute, ReadersOfChangedStateStay) {
  Graph graph;
  Builder forward(graph), backward(graph, Stage::backward);
  const auto value = [&](const char* name, ValueKind kind) { return graph.add_value({.name = name, .shape = {64, 64}, .kind = kind}); };
  const ValueId x = value("x", ValueKind::input), w = value("w", ValueKind::parameter), sum = value("sum", ValueKind::optimizer_state);
  graph.inputs = {x};
  const ValueId scaled = forward.named("scale").emit("Mul", {x, sum});
  const ValueId product = forward.named("product").emit("MatMul", {scaled, w});
  const ValueId soft = forward.named("soft").emit("Gelu", {product}, {{"approximate", "tanh"}});
  ValueId busy = soft;
  for (int i = 0; i < 20; ++i) busy = forward.named("busy").emit("MatMul", {busy, w});
  graph.value(backward.named("add").emit("Accumulate", {sum, busy})).kind = ValueKind::optimizer_state;
  graph.outputs = {backward.named("both").emit("Add", {backward.emit("Mul", {scaled, soft}), busy})};
  graph.verify("building");
  Recomputed result;
  ASSERT_TRUE(recompute(graph, {.groups = kAllGroups}, &result));
  graph.verify("recompute");
  EXPECT_EQ(again(graph), (std::vector<std::string>{"MatMul product again", "Gelu soft again"}));
  make_memory_model(graph, graph.outputs, std::vector<int64_t>(graph.order().size(), 0));
}

// Two steps of everything: loss, norm, gradients, weights, state.
std::map<std::string, std::vector<double>> two_steps(const Graph& graph, const std::vector<ValueId>& watched) {
  Workers workers(1);
  fixtures::Reference reference(workers);
  std::map<ValueId, Tensor> inputs;
  for (ValueId id : graph.inputs) {
    inputs[id] = fixtures::random_tensor(graph.value(id).type(), id, 11);
    const auto scalars = make_optimizer().scalars(2, 1e-2);
    if (graph.value(id).name == kScalarsInput || graph.value(id).name == kDeferredScalarsInput)
      std::copy(scalars.begin(), scalars.end(), inputs[id].data<float>().begin());
  }
  for (ValueId id : graph.parameters()) reference.state[graph.value(id).name] = fixtures::random_tensor(graph.value(id).type(), id);
  std::map<std::string, std::vector<double>> numbers;
  for (const char* step : {"first ", "second "}) {
    const std::map<ValueId, Tensor> values = reference.run(graph, inputs);
    for (ValueId id : watched) numbers[step + graph.value(id).name] = values.at(id).to_double();
  }
  for (const auto& [name, tensor] : reference.state) numbers[name] = tensor.to_double();
  return numbers;
}

TEST(Recompute, NoRungChangesABit) {
  for (const bool deferred : {false, true}) {
    EntryGraph job = gpt_training(kTiny, {.weight_decay = 0.1, .max_grad_norm = 0.5, .deferred = deferred});
    if (deferred) job = build_deferred_graph(job, {.deferred = true}, {});  // weights change before their first use
    std::vector<ValueId> watched = job.graph.outputs;
    for (const auto& [parameter, gradient] : job.gradients) watched.push_back(gradient);
    const auto plain = two_steps(job.graph, watched);
    EXPECT_GT(plain.size(), 100u);
    for (const auto& [name, numbers] : plain) ASSERT_TRUE(std::isfinite(numbers[0])) << name;
    std::vector<RecomputeChoice> choices = recompute_ladder(job.graph);
    choices.push_back(recompute_mode("sqrt"));
    for (const RecomputeChoice& choice : choices) {
      Graph graph = job.graph;
      recompute(graph, choice);
      graph.verify("recompute");
      ASSERT_TRUE(two_steps(graph, watched) == plain) << choice.groups << " groups, every " << choice.every;
    }
  }
}

struct Planned {
  int64_t arena = 0, transient = 0;
  Recomputed result;
};

Planned planned(const Graph& before, const RecomputeChoice& choice) {
  Graph graph = before;
  Planned made;
  recompute(graph, choice, &made.result);
  const Program program = plan({{.name = "train", .graph = &graph, .keep = {}}}, {.threads = 2});
  verify(program, {&graph});
  made.arena = program.memory().bytes;
  made.transient = program.memory().bytes - program.memory().persistent_bytes;
  return made;
}

// GPT-2 of 124 million parameters, 4 x 512 tokens: 2.2 GB of activations at the peak.
TEST(RecomputePlan, Gpt2) {
  const Graph graph = gpt_training({.batch = 4, .length = 512}).graph;
  const SavedTensors saved(graph);
  EXPECT_EQ(saved.boundaries(), 12u);
  const Planned none = planned(graph, {}), all = planned(graph, recompute_mode("all")), root = planned(graph, recompute_mode("sqrt"));
  EXPECT_GT(none.transient, 2'200'000'000);
  EXPECT_LT(all.transient, 700'000'000);  // 411 of which are the logits, 75 the boundaries
  EXPECT_LT(root.transient, 900'000'000);
  EXPECT_EQ(all.result.kept + all.result.again, none.result.kept);
  // A rung gives back what it promises: the schedule doesn't undo it.
  int64_t last = none.transient;
  const size_t groups = saved.groups().size();
  for (size_t part = 1; part <= 4; ++part) {
    const Planned rung = planned(graph, {.groups = groups * part / 6});
    EXPECT_LT(rung.transient, last) << part;
    EXPECT_LE(rung.transient, none.transient - rung.result.again_bytes * 4 / 5) << part;
    last = rung.transient;
  }
}

TEST(RecomputePlan, DeepAndNarrow) {
  const Graph graph = gpt_training({.layers = 24, .heads = 4, .width = 128, .vocabulary = 512, .batch = 8, .length = 128}).graph;
  const int64_t none = planned(graph, {}).transient, all = planned(graph, recompute_mode("all")).transient;
  EXPECT_LT(all * 5, none);
}

// --- trainers -------------------------------------------------------------------------------------------------------------------------

const std::string kGolden = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/";

struct RecomputeTraining : TrainerRuns {
  // 4,096 tokens a batch: more activations than anything else.
  Options options(const std::string& model = "gpt2-dynamo-20-folded") {
    std::vector<uint16_t> tokens;
    for (int i = 0; i < 16 * 700 + 1; ++i) tokens.push_back(static_cast<uint16_t>(i * i * 7 % 61));
    Options o{.model = kGolden + model + ".onnx", .data = write_file(folder / "tokens.bin", bytes_of(tokens)), .task = "causal-lm"};
    o.seq_length = 16;
    o.batch_size = 256;
    o.learning_rate = 1e-3;
    o.max_steps = 4;  // the third is the remainder of 700
    o.threads = 2;
    o.profile = profile;
    return o;
  }
};

TEST_F(RecomputeTraining, NoModeChangesABit) {
  for (const char* model : {"gpt2-dynamo-20-folded", "gpt2-torchscript-23-eager", "gpt2-dynamo-23-sdpa"}) {
    for (const int64_t accumulation : {1, 2}) {
      Options o = options(model);
      o.gradient_accumulation_steps = accumulation;
      o.recompute = "none";
      const Run plain = train(o);
      EXPECT_EQ(plain.plan.saved_recomputed, 0);
      for (const char* mode : {"sqrt", "all"}) {
        o.recompute = mode;
        const Run run = train(o);
        EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << model << " " << mode;
        EXPECT_EQ(run.losses, plain.losses) << model << " " << mode;
        EXPECT_GT(run.plan.saved_recomputed, run.plan.saved_kept);
        EXPECT_EQ(run.plan.saved_recomputed + run.plan.saved_kept, plain.plan.saved_kept);
        EXPECT_LT(run.plan.arena_bytes, plain.plan.arena_bytes * 3 / 4) << model << " " << mode;
        EXPECT_GT(run.plan.recompute_milliseconds, 0);
      }
    }
  }
}

TEST_F(RecomputeTraining, TheBudgetChoosesTheRung) {
  Options o = options();
  o.recompute = "none";
  const Run plain = train(o);
  const int64_t most = plain.plan.minimum_budget;
  o.recompute = "auto";
  const int64_t least = Trainer(o).plan().minimum_budget;
  ASSERT_LT(least, most - (3 << 20));
  std::set<int64_t> rungs;
  int64_t last = -1;
  for (const int64_t budget : {most, most - kPage, least + (most - least) * 3 / 4, (most + least) / 2, least + (most - least) / 4, least}) {
    o.budget = budget;
    const Run run = train(o);
    EXPECT_EQ(run.plan.minimum_budget, least);
    EXPECT_LE(run.plan.at_peak.total, budget);
    EXPECT_LE(run.summary.measured_peak_bytes + run.plan.at_peak.program, budget);
    EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << budget;
    EXPECT_EQ(run.losses, plain.losses) << budget;
    EXPECT_GE(run.plan.saved_recomputed, last);  // no more than it takes
    EXPECT_EQ(run.plan.text.find("computing again") != std::string::npos, run.plan.saved_recomputed > 0);
    last = run.plan.saved_recomputed;
    rungs.insert(last);
  }
  EXPECT_GE(rungs.size(), 4u);
  EXPECT_EQ(*rungs.begin(), 0);
  o.budget = least - kPage;
  try {
    Trainer trainer(o);
    ADD_FAILURE() << "a page below the smallest budget was accepted";
  } catch (const Error& refused) {
    EXPECT_EQ(refused.code(), ErrorCode::budget);
    EXPECT_THAT(refused.what(), ::testing::HasSubstr("(`budget` " + std::to_string(least) + ")"));
  }
}

// With a disk it is the forecast that chooses, between moving tensors and computing them again; here by what this machine can do.
TEST_F(RecomputeTraining, TheSmallestBudgetWithADiskIsExact) {
  Options o = options();
  o.profile = folder / "measured.json";
  o.recompute = "none";
  const Run plain = train(o);
  o.recompute = "auto";
  o.nvme_path = folder / "disk";
  std::filesystem::create_directory(o.nvme_path);
  const int64_t least = Trainer(o).plan().minimum_budget;
  for (const int64_t budget : {least, least + (1 << 20), least + (3 << 20)}) {
    o.budget = budget;
    const Run run = train(o);
    EXPECT_EQ(run.plan.minimum_budget, least);
    EXPECT_LE(run.plan.at_peak.total, budget);
    EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << budget;
    EXPECT_EQ(run.losses, plain.losses) << budget;
  }
  o.budget = least - kPage;
  EXPECT_THROW(Trainer{o}, Error);
  const std::optional<MachineProfile> measured = load_profile(o.profile);
  ASSERT_TRUE(measured.has_value());
  EXPECT_GT(measured->disks.at(disk_key(o.nvme_path, 2)).read, 0);
}

// What is recomputed is chosen among problems that hold all that the choice depends on: a program without the model comes to the same plan.
TEST_F(RecomputeTraining, TheAlternativesOfADiskAreDumped) {
  Options o = options();
  o.nvme_path = folder / "disk";
  std::filesystem::create_directory(o.nvme_path);
  o.budget = Trainer(o).plan().minimum_budget + (4 << 20);
  o.dump_problem = folder / "problems.json";
  const PlanReport plan = Trainer(o).plan();
  const std::vector<planning::Problem> problems = planning::read_problems(o.dump_problem);
  std::set<std::string> names;
  std::set<double> computing;
  for (const planning::Problem& problem : problems) {
    names.insert(problem.name);
    if (problem.memory >= planning::floor_bytes(problem))
      computing.insert(planning::step_seconds(problem, [&](size_t r) { return planning::computing(problem.runs[r]); }));
  }
  EXPECT_EQ(names.size(), problems.size());
  EXPECT_GE(computing.size(), 3u);  // what is recomputed costs
  const planning::Fastest chosen = planning::fastest_of(std::span(problems).first(1));
  ASSERT_TRUE(chosen.problem);
  EXPECT_LE(1e3 * chosen.plan.seconds, plan.predicted_milliseconds * (1 + 1e-6));
  EXPECT_GE(1e3 * chosen.plan.seconds, plan.predicted_milliseconds * 0.998);  // it may be one for a slower disk
  EXPECT_NEAR(1e3 * chosen.bound, plan.bound_milliseconds, 1e-6 * plan.bound_milliseconds);
  const planning::Fastest fastest = planning::fastest_of(problems);
  EXPECT_LE(fastest.plan.seconds, chosen.plan.seconds);
  EXPECT_GT(fastest.plan.seconds, 0.98 * chosen.plan.seconds);  // they were compared by an estimate, without addresses
}

TEST_F(RecomputeTraining, UnknownModesAreUsage) {
  Options o = options();
  o.recompute = "sometimes";
  try {
    Trainer trainer(o);
    ADD_FAILURE();
  } catch (const Error& refused) {
    EXPECT_EQ(refused.code(), ErrorCode::usage);
    EXPECT_THAT(refused.what(), ::testing::HasSubstr("`recompute` sometimes: is not known: auto, none, sqrt or all"));
  }
}

TEST_F(RecomputeTraining, TheGraphCanBeLookedAt) {
  Options o = options();
  o.recompute = "all";
  o.dump_after["recompute"] = folder / "recompute.onnx";
  Trainer trainer(o);
  EXPECT_THAT(read_file(folder / "recompute.onnx"), ::testing::HasSubstr(" again"));
}

}  // namespace
}  // namespace ort_train
