// Weights in parts: what the pass makes of products and lookups, and that a model in parts computes what it computes in one piece.

#include "passes/split_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "exec/workers.h"
#include "graph/op_def.h"
#include "passes/plan.h"
#include "tests/graph_ops.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

using namespace fixtures;

constexpr GptShape kSmallGpt{.layers = 2, .heads = 2, .width = 8, .vocabulary = 37, .batch = 2, .length = 5};

TEST(SplitWeights, OnlyMatricesWithKnownUsesAreDivided) {
  WeightModel m;
  Builder b(m.graph);
  const ValueId small = m.weight("small", {6, 6}), large = m.weight("large", {6, 40}), twice = m.weight("twice", {40, 40}),
                frozen = m.weight("frozen", {40, 40}), vector = m.weight("vector", {400});
  m.graph.value(frozen).trainable = false;
  ValueId y = b.emit("MatMul", {b.emit("MatMul", {m.x, small}), large});
  y = b.emit(
      "MatMul",
      {b.emit("MatMul", {b.emit("Mul", {y, b.emit("Slice", {vector}, {{"starts", Shape{0}}, {"ends", Shape{40}}})}), twice}), frozen});
  m.graph.outputs = {b.emit("Add", {y, b.emit("ReduceSum", {twice}, {{"axes", Shape{0}}, {"keepdims", int64_t{0}}})})};
  EXPECT_TRUE(mark_parts(m.graph, {.part_bytes = 480, .part_rows = 1}));
  EXPECT_EQ(m.graph.value(small).part_rows, 0) << "144 bytes";
  EXPECT_EQ(m.graph.value(large).part_rows, 3) << "960 bytes: two parts";
  EXPECT_EQ(m.graph.value(twice).part_rows, 0) << "its sum is asked for, too";
  EXPECT_EQ(m.graph.value(frozen).part_rows, 3) << "frozen, it is read all the same";
  EXPECT_EQ(m.graph.value(vector).part_rows, 0);
  EXPECT_FALSE(mark_parts(m.graph, {.part_bytes = 3201, .part_rows = 1}));
}

// Where blocks of a product's depth end, and at multiples of 256 elements.
TEST(SplitWeights, PartsBeginWhereThatChangesNoBit) {
  struct Case {
    Shape shape;
    int64_t part_bytes, rows, of_head;  // the latter where the products are the model's output: logits
    const char* why;
  };
  for (const Case& c : {Case{{1000, 768}, 300'000, 384, 768, "three blocks of a depth of 1,000"},
                        Case{{1600, 4800}, 4'000'000, 320, 320, "five of a depth of 1,600"},
                        Case{{1600, 4800}, 15'000'000, 640, 640, "31 MB in three parts, of whole blocks"},
                        Case{{5000, 6}, 3000, 384, 768, "128 rows of six are 3 x 256 numbers"},
                        Case{{5000, 7}, 3000, 768, 768, "two blocks: 256 rows of seven are, too"},
                        Case{{768, 50256}, 16'000'000, 64, 64, "wide matrices have blocks of 64 rows"},
                        Case{{768, 50257}, 16'000'000, 64, 64, "so does this one: 256 rows would be 51 MB"},
                        Case{{384, 5000}, 3'000'000, 0, 0, "one block of a depth"}, Case{{2000, 8}, 3000, 0, 0, "it may go into a pack"}}) {
    Graph graph;
    const ValueId w = graph.add_value({.name = "w", .shape = c.shape, .kind = ValueKind::parameter, .trainable = true});
    graph.inputs = {graph.add_value({.name = "x", .shape = {3, c.shape[1]}, .kind = ValueKind::input})};
    Builder b(graph);
    graph.outputs = {b.emit("Tanh", {b.emit("MatMul", {graph.inputs[0], w}, {{"trans_b", int64_t{1}}})})};
    EXPECT_EQ(mark_parts(graph, {.part_bytes = c.part_bytes}), c.rows > 0) << c.why;
    EXPECT_EQ(graph.value(w).part_rows, c.rows) << c.why;
    const bool too_large = c.shape[1] == 50257;
    EXPECT_EQ(graph.value(w).part_rows * c.shape[1] % 256 == 0, !too_large) << c.why;
    mark_parts(graph, {.part_bytes = int64_t{1} << 40});
    EXPECT_EQ(graph.value(w).part_rows, 0) << "asked again";
    graph.outputs = {graph.node(graph.order()[0]).outputs[0]};
    mark_parts(graph, {.part_bytes = c.part_bytes});
    EXPECT_EQ(graph.value(w).part_rows, c.of_head) << "parts of logits: " << c.why;
  }
}

// Node by node, as the head of the pass says.
TEST(SplitWeights, AProductBecomesAChainInPlace) {
  WeightModel m;
  Builder b(m.graph);
  const ValueId w = m.weight("w", {10, 6}), bias = m.weight("bias", {10});
  const ValueId y = b.named("head", 7).emit("MatMul", {m.x, w, bias}, {{"trans_b", int64_t{1}}});
  m.graph.outputs = {y};
  ASSERT_TRUE(mark_parts(m.graph, {.part_bytes = 96, .part_rows = 1}));
  EntryGraph job{.graph = m.graph};
  std::map<ValueId, std::vector<ValueId>> none;
  EXPECT_TRUE(split_weights(job, none));
  job.graph.verify("split_weights");
  EXPECT_EQ(job.slices.at("w"), (std::vector<Slice>{{"w[0:4]", 0, 96}, {"w[4:8]", 0, 96}, {"w[8:10]", 0, 48}}));
  ASSERT_EQ(job.graph.order().size(), 3u);
  EXPECT_EQ(job.graph.outputs, (std::vector<ValueId>{y})) << "the same value";
  for (size_t i = 0; i < 3; ++i) {
    const Node& node = job.graph.node(job.graph.order()[i]);
    EXPECT_EQ(node.op->name, "MatMulPart");
    EXPECT_EQ(node.name, "head");
    EXPECT_EQ(node.ordinal, 7u);
    EXPECT_EQ(job.graph.value(node.inputs[1]).name, job.slices.at("w")[i].name);
    EXPECT_EQ(node.attributes.get("y_from", int64_t{-1}), static_cast<int64_t>(4 * i));
    EXPECT_EQ(node.inputs[3], i == 0 ? kNone : job.graph.node(job.graph.order()[i - 1]).outputs[0]);
  }
  EXPECT_EQ(job.graph.parameters().size(), 4u) << "three parts and the bias";
  EXPECT_FALSE(split_weights(job, none)) << "nothing is left to divide";
}

// What a weight's use becomes that the pass did not foresee when the weight was marked.
TEST(SplitWeights, AnyOtherUseGetsTheWeightPutTogether) {
  WeightModel m;
  Builder b(m.graph);
  const ValueId w = m.weight("w", {6, 6});
  const ValueId y = b.emit("MatMul", {m.x, w});
  m.graph.outputs = {y};
  ASSERT_TRUE(mark_parts(m.graph, {.part_bytes = 48, .part_rows = 1}));
  m.graph.outputs.push_back(b.emit("Tanh", {w}));
  m.graph.outputs.push_back(b.emit("MatMul", {w, w}));
  const ValueId gradient = b.emit("Neg", {m.graph.outputs[1]});
  Workers workers(1);
  Reference whole(workers), parts(workers);
  const Tensor x = random_tensor({DType::float32, {3, 6}}, 1), weight = random_tensor({DType::float32, {6, 6}}, 2);
  whole.state["w"] = weight;
  EntryGraph job{.graph = m.graph};
  std::map<ValueId, std::vector<ValueId>> gradients{{w, {gradient}}};
  split_weights(job, gradients);
  job.graph.verify("split_weights");
  EXPECT_EQ(gradients.size(), 3u) << "one for each part";
  size_t row = 0;
  for (const Slice& slice : job.slices.at("w")) {
    Tensor& part = parts.state[slice.name] = Tensor(DType::float32, {2, 6});
    std::copy_n(weight.data<float>().begin() + static_cast<std::ptrdiff_t>(row), 12, part.data<float>().begin());
    row += 12;
  }
  const auto wanted = whole.run(m.graph, {{m.x, x}}), found = parts.run(job.graph, {{m.x, x}});
  EXPECT_EQ(found.at(m.graph.outputs[1]), wanted.at(m.graph.outputs[1]));
  EXPECT_EQ(found.at(m.graph.outputs[2]), wanted.at(m.graph.outputs[2]));
  size_t at = 0;
  for (const auto& [part, uses] : gradients) {
    ASSERT_EQ(uses.size(), 1u);
    for (const float g : found.at(uses[0]).data<float>()) EXPECT_EQ(g, wanted.at(gradient).data<float>()[at++]);
  }
  EXPECT_EQ(at, 36u);
}

double norm(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// Loss, gradient norm and, by the model's names, weights and state after an optimizer step.
struct LeftBySplit {
  std::vector<double> results;
  std::map<std::string, std::vector<double>> tensors;
  size_t parts = 0;
};

LeftBySplit left_by(const GptShape& shape, const OptimizerSpec& optimizer, int64_t part_bytes) {
  const EntryGraph train = gpt_training(shape, optimizer, part_bytes);
  std::vector<EntryGraph> jobs{train};
  if (optimizer.accumulate) jobs.push_back(train);  // adds to what the first micro-batch left
  if (optimizer.deferred) jobs.push_back(build_deferred_graph(train, optimizer, {}));
  if (optimizer.accumulate || optimizer.deferred) jobs.push_back(build_update_graph(train, optimizer, {}));
  Workers workers(1);
  Reference reference(workers);
  const Graph whole = gpt_forward(shape);
  for (const ValueId id : whole.parameters()) {  // the same numbers, divided or not
    const Value& value = whole.value(id);
    Tensor all = random_tensor(value.type(), id);
    const auto divided = train.slices.find(value.name);
    if (divided == train.slices.end()) {
      reference.state[value.name] = std::move(all);
      continue;
    }
    auto from = all.data<float>().begin();
    for (const Slice& slice : divided->second) {
      Tensor& part = reference.state[slice.name] = Tensor(value.dtype, train.graph.value(train.graph.find_value(slice.name)).shape);
      std::copy_n(from, part.data<float>().size(), part.data<float>().begin());
      from += static_cast<std::ptrdiff_t>(part.data<float>().size());
    }
  }
  LeftBySplit left;
  for (const EntryGraph& job : jobs) {
    job.graph.verify("building");
    EXPECT_EQ(job.slices, train.slices);
    const auto values = reference.run(job.graph, step_inputs(job.graph, optimizer, shape.vocabulary));
    for (const ValueId id : job.graph.outputs) {
      for (const double x : values.at(id).to_double()) left.results.push_back(x);
    }
  }
  for (const auto& [name, tensor] : reference.state) {
    const size_t open = name.find('[');
    left.parts += open != std::string::npos;
    const std::string of = open == std::string::npos ? name : name.substr(0, open) + name.substr(name.find(']') + 1);
    // Parts come in the order of their names, not of their rows.
    const size_t first = open == std::string::npos ? 0 : std::stoul(name.substr(open + 1));
    const size_t width = tensor.shape.size() == 2 ? static_cast<size_t>(tensor.shape[1]) : 1;
    std::vector<double>& all = left.tensors[of];
    const std::vector<double> part = tensor.to_double();
    all.resize(std::max(all.size(), first * width + part.size()));
    std::copy(part.begin(), part.end(), all.begin() + static_cast<std::ptrdiff_t>(first * width));
  }
  return left;
}

TEST(SplitWeights, AModelInPartsComputesWhatItDoesInOnePiece) {
  for (const char* name : {"adamw", "sgd", "adafactor", "lamb", "lars"}) {
    for (const int mode : {0, 1, 2, 3}) {  // plain, accumulating, all deferred, most
      const OptimizerSpec optimizer{.optimizer = calm_optimizer(name),
                                    .weight_decay = 0.1,
                                    .max_grad_norm = 0.5,
                                    .accumulate = mode == 1,
                                    .deferred = mode >= 2,
                                    .at_once = mode == 3 ? used_soon(gpt_forward(kSmallGpt), 0.3) : std::set<std::string>{}};
      const LeftBySplit whole = left_by(kSmallGpt, optimizer, int64_t{1} << 30);
      EXPECT_EQ(whole.parts, 0u);
      for (const int64_t part_bytes : {200, 64}) {
        const LeftBySplit parts = left_by(kSmallGpt, optimizer, part_bytes);
        EXPECT_GT(parts.parts, 50u);
        ASSERT_EQ(parts.results.size(), whole.results.size());
        for (size_t i = 0; i < whole.results.size(); ++i)
          EXPECT_NEAR(parts.results[i], whole.results[i], 1e-5 * std::abs(whole.results[i])) << i;
        ASSERT_EQ(parts.tensors.size(), whole.tensors.size());
        for (const auto& [of, numbers] : whole.tensors) {
          ASSERT_EQ(parts.tensors.at(of).size(), numbers.size()) << of;
          const double size = norm(numbers, std::vector<double>(numbers.size()));
          EXPECT_LE(norm(parts.tensors.at(of), numbers), 2e-5 * size + 1e-9) << of << ' ' << mode << ' ' << name;
        }
      }
    }
  }
}

// Where parts begin where blocks do, to the bit: products along their rows, too, and the norm that all updates are clipped by.
TEST(SplitWeights, AModelInPartsOfAnySizeComputesTheSameBits) {
  constexpr GptShape kShape{.layers = 1, .heads = 2, .width = 160, .vocabulary = 1500, .batch = 2, .length = 24};
  for (const int mode : {0, 1, 2}) {  // plain, accumulating, deferred
    for (const char* name : {"adamw", "adafactor", "adafactor_torch", "lamb", "lars", "adamw_8bit"}) {
      const OptimizerSpec optimizer{
          .optimizer = make_optimizer(name), .weight_decay = 0.1, .max_grad_norm = 0.01, .accumulate = mode == 1, .deferred = mode == 2};
      const LeftBySplit whole = left_by(kShape, optimizer, int64_t{1} << 30);
      EXPECT_EQ(whole.parts, 0u);
      size_t parts = 0;
      for (const int64_t part_bytes : {400'000, 200'000}) {
        const LeftBySplit divided = left_by(kShape, optimizer, part_bytes);
        EXPECT_GT(divided.parts, parts) << part_bytes;
        parts = divided.parts;
        EXPECT_EQ(divided.results, whole.results) << name << part_bytes;
        EXPECT_EQ(divided.tensors, whole.tensors) << name << part_bytes;
      }
    }
  }
}

// No product, no gradient and no update of a divided weight sees more than a part of it.
TEST(SplitWeights, NothingIsLeftOfTheWhole) {
  const EntryGraph job = gpt_training(kSmallGpt, {}, 64);
  EXPECT_EQ(job.slices.size(), 9u) << "the table, and four matrices in each of two layers";
  for (const NodeId id : job.graph.order()) {
    const Node& node = job.graph.node(id);
    if (node.op->name != "AdamW" || job.graph.value(node.inputs[0]).shape.size() < 2) continue;
    if (job.graph.value(node.inputs[0]).name.find('[') == std::string::npos) continue;
    EXPECT_LE(job.graph.value(node.inputs[1]).bytes(), 128) << "a row at least: " << job.graph.value(node.inputs[0]).name;
  }
  EXPECT_EQ(count_ops(job.graph, "Slice"), 0u) << "gradients are made in parts";
  EXPECT_EQ(count_ops(job.graph, "Concat"), count_ops(gpt_training(kSmallGpt).graph, "Concat"));
}

// What a step only reads comes from the disk in parts, and never goes back to it: under any memory, in a frozen model's every entry.
TEST(SplitWeights, PartsOfFrozenWeightsAreReadAndNeverWritten) {
  constexpr GptShape kShape{.layers = 2, .heads = 2, .width = 160, .vocabulary = 1500, .batch = 1, .length = 16};
  Graph forward = gpt_forward(kShape);
  size_t frozen = 0;
  for (const ValueId id : forward.parameters()) {
    Value& weight = forward.value(id);
    if (weight.shape.size() != 2 || ++frozen % 3 == 0) continue;  // a third of the matrices is trained
    weight.trainable = false;
  }
  mark_parts(forward, {.part_bytes = 64 << 10});
  EntryGraph train = build_train_graph(forward, {}, {}, {}), evaluate = build_evaluate_graph(forward, {}, {});
  const Planner planner(
      {{.name = "train", .graph = &train.graph}, {.name = "evaluate", .graph = &evaluate.graph, .role = {.kind = EntryKind::evaluate}}},
      {.threads = 1});
  const int64_t least = planner.streamed(0, {}, {}).program.memory().bytes, most = planner.all_in_memory().memory().bytes;
  size_t parts_read = 0, trained_written = 0;
  for (const int64_t limit : {least, least + (most - least) / 4, least + (most - least) / 2}) {
    const Program program = planner.streamed(limit, {}, {}).program;
    verify(program, {&train.graph, &evaluate.graph});
    std::map<int64_t, const Value*> frozen_at;  // by place in the file
    for (const Persistent& value : program.persistent) {
      const Value& weight = train.graph.value(train.graph.find_value(value.name));
      if (is_in_file(value) && weight.kind == ValueKind::parameter && !weight.trainable) frozen_at[value.home.offset] = &weight;
    }
    for (const Entry& entry : program.entries) {
      for (const Instruction& instruction : entry.code) {
        if (!is_copy(instruction)) continue;
        const auto found = frozen_at.find(file_of(instruction).offset);
        const bool is_part = found != frozen_at.end() && found->second->name.find('[') != std::string::npos;
        parts_read += is_read(instruction) && is_part;
        trained_written += is_write(instruction);
        if (is_write(instruction)) {
          EXPECT_EQ(found, frozen_at.end()) << found->second->name;
        }
      }
    }
  }
  EXPECT_GT(parts_read, 20u);
  EXPECT_GT(trained_written, 20u);
}

// What parts are for: less memory at least, and a plan near its bound where whole weights would not let it be.
TEST(SplitWeights, LowersTheLeastMemory) {
  constexpr GptShape kShape{.layers = 2, .heads = 2, .width = 64, .vocabulary = 5000, .batch = 1, .length = 16};
  const auto least = [&](int64_t part_bytes) {
    EntryGraph job = gpt_training(kShape, {}, part_bytes);
    const Planner planner({{.name = "train", .graph = &job.graph}}, {.threads = 1});
    const Program program = planner.streamed(0, {}, {}).program;
    verify(program, {&job.graph});
    return program.memory().bytes;
  };
  const int64_t whole = least(int64_t{1} << 30), parts = least(int64_t{128} << 10);
  EXPECT_GT(whole, 3 * 5000 * 64 * 4);
  EXPECT_LT(3 * parts, whole) << whole;
}

}  // namespace
}  // namespace ort_train
