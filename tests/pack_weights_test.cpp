// Packs of small weights: what goes into one, what the pass makes of a graph, that a packed model computes what it computes with each
// weight by itself, and that the verifier knows where in its pack each of them has to lie.

#include "passes/pack_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "exec/workers.h"
#include "graph/op_def.h"
#include "passes/plan.h"
#include "tests/graph_ops.h"
#include "tests/plan_support.h"
#include "tests/stream_support.h"

namespace ort_train {
namespace {

using namespace fixtures;

constexpr GptShape kTiny{.layers = 2, .heads = 2, .width = 8, .vocabulary = 37, .batch = 2, .length = 5};

TEST(PackWeights, NeighboursOfOneClassThatGetAGradient) {
  WeightModel m;
  Builder b(m.graph);
  const ValueId late = m.weight("late", {6}), a = m.weight("a", {6}), frozen = m.weight("frozen", {6}), twice = m.weight("twice", {6}),
                large = m.weight("large", {16384, 6}), matrix = m.weight("matrix", {6, 6}), other = m.weight("other", {1, 6}),
                unused = m.weight("unused", {6}), elsewhere = m.weight("elsewhere", {6}), divided = m.weight("divided", {6, 6}),
                ids = m.graph.add_value({.name = "ids", .dtype = DType::int64, .shape = {3}, .kind = ValueKind::input});
  m.graph.inputs.push_back(ids);
  m.graph.value(frozen).trainable = false;
  m.graph.value(divided).part_rows = 3;
  EXPECT_NE(unused, kNone);
  ValueId y = b.emit("Add", {m.x, a});
  y = b.emit("Add", {b.emit("Mul", {y, frozen}), twice});
  y = b.emit("MatMul", {b.emit("MatMul", {b.emit("Mul", {y, twice}), matrix}), divided});
  y = b.emit("Add", {b.emit("Add", {y, b.emit("Gather", {large, ids}, {{"axis", int64_t{0}}})}), other});
  const ValueId loss = b.emit("Mul", {y, late});
  m.graph.outputs = {loss, b.emit("Add", {y, elsewhere})};
  EXPECT_EQ(choose_packs(m.graph, {}), (Packs{{"a", "late"}, {"matrix", "other"}})) << "in the order of use";
  const std::string second = m.graph.value(m.graph.outputs[1]).name;
  EXPECT_EQ(choose_packs(m.graph, {.terms = {{.outputs = {second}}}}), (Packs{{"a", "elsewhere"}, {"matrix", "other"}}))
      << "'late' has no gradient then";
}

TEST(PackWeights, APackEndsBeforeItIsTooLarge) {
  WeightModel m;
  Builder b(m.graph);
  constexpr int64_t kHalf = kPackBytes / 2 / 4;  // elements
  ValueId y = b.emit("ReduceSum", {m.x}, {{"axes", Shape{0, 1}}, {"keepdims", int64_t{0}}});
  const auto use = [&](const char* name, int64_t elements) { y = b.emit("Add", {b.emit("Mul", {y, m.weight(name, {elements})}), y}); };
  const auto flat = [&] { y = b.emit("ReduceSum", {y}, {{"axes", Shape{0}}, {"keepdims", int64_t{0}}}); };
  for (const auto& [name, elements] : {std::pair("a", kHalf),
                                       {"b", kHalf},
                                       {"c", kHalf - 15},
                                       {"d", kHalf + 1},
                                       {"e", int64_t{1}},
                                       {"f", 2 * kHalf - 1},
                                       {"g", 2 * kHalf},
                                       {"h", int64_t{3}}}) {
    use(name, elements);
    flat();
  }
  m.graph.outputs = {y};
  // a and b fill a pack; c, which is padded, and d are too much for one; g is as large as a pack.
  EXPECT_EQ(choose_packs(m.graph, {.terms = {{.kind = "output"}}}), (Packs{{"a", "b"}, {"d", "e"}}));
}

// Node by node, as the head of the pass says.
TEST(PackWeights, MembersAreViewsIntoThePack) {
  const Graph forward = gpt_forward(kTiny);
  const Packs packs = choose_packs(forward, {});
  ASSERT_EQ(packs.size(), 2u) << "vectors, matrices";
  const EntryGraph job = gpt_training(kTiny, {.weight_decay = 0.1}, int64_t{1} << 30, /*packed=*/true);
  const Graph& graph = job.graph;
  const size_t members = packs[0].size() + packs[1].size();
  EXPECT_EQ(members, forward.parameters().size() - 1) << "all but the embedding, which the head uses, too";
  EXPECT_EQ(count_ops(graph, "PackMember"), members);
  EXPECT_EQ(count_ops(graph, "Pack"), 2u);
  EXPECT_EQ(count_ops(graph, "AdamW"), 3u);
  EXPECT_EQ(count_ops(graph, "SumSquares"), 3u);
  EXPECT_EQ(graph.parameters().size(), 3u);
  EXPECT_EQ(job.slices.size(), members);
  for (const std::vector<std::string>& names : packs) {
    const ValueId pack = graph.find_value(names.front() + ".." + names.back());
    ASSERT_NE(pack, kNone);
    int64_t end = 0;
    for (const std::string& name : names) {
      const std::vector<Slice>& slices = job.slices.at(name);
      ASSERT_EQ(slices.size(), 1u);
      EXPECT_EQ(slices[0].name, graph.value(pack).name);
      EXPECT_EQ(slices[0].offset, aligned(end)) << name;
      EXPECT_EQ(slices[0].bytes, forward.value(forward.find_value(name)).bytes());
      end = slices[0].offset + slices[0].bytes;
      const Value& member = graph.value(graph.find_value(name));
      const Node& maker = graph.node(member.producer);
      EXPECT_EQ(maker.op->name, "PackMember");
      EXPECT_EQ(maker.inputs, std::vector<ValueId>{pack});
      EXPECT_EQ(view_offset(maker), slices[0].offset);
      EXPECT_EQ(member.shape, forward.value(forward.find_value(name)).shape);
    }
    EXPECT_EQ(graph.value(pack).bytes(), aligned(end));
  }
  for (const Node& node : nodes_named(graph, "AdamW")) {
    const bool vectors = graph.value(node.inputs[0]).name.find(packs[0].front()) == 0;
    EXPECT_EQ(node.attributes.get("weight_decay", -1.0f), vectors ? 0.0f : 0.1f) << graph.value(node.inputs[0]).name;
  }
}

// What is loaded, trained and written is the same in every entry, whatever it reads of it.
TEST(PackWeights, AllEntriesHaveTheSamePacks) {
  const Graph forward = gpt_forward(kTiny);
  const PassOptions options{.packs = choose_packs(forward, {})};
  const OptimizerSpec optimizer{.deferred = true};
  const EntryGraph train = build_train_graph(forward, {}, optimizer, options);
  GptShape other = kTiny;
  other.batch = 1;
  const Graph smaller = gpt_forward(other);
  std::vector<EntryGraph> jobs{build_train_graph(smaller, {}, optimizer, options), build_evaluate_graph(forward, {}, options),
                               build_predict_graph(smaller, smaller.outputs.size(), options),
                               build_deferred_graph(train, optimizer, options), build_update_graph(train, optimizer, options)};
  const auto weights = [](const EntryGraph& job) {
    std::map<std::string, TensorType> all;
    for (const ValueId id : job.graph.parameters()) all[job.graph.value(id).name] = job.graph.value(id).type();
    return all;
  };
  EXPECT_EQ(weights(train).size(), 3u);
  for (const EntryGraph& job : jobs) {
    EXPECT_EQ(job.slices, train.slices) << job.graph.name;
    EXPECT_TRUE(weights(job) == weights(train)) << job.graph.name;
  }
}

TEST(PackWeights, ANameThatIsTakenIsSaid) {
  Graph forward = gpt_forward(kTiny);
  const Packs packs = choose_packs(forward, {});
  forward.rename(forward.find_value("wte.weight"), packs[0].front() + ".." + packs[0].back());
  try {
    build_predict_graph(forward, forward.outputs.size(), {.packs = packs});
    FAIL() << "two weights of one name";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported);
    EXPECT_NE(std::string(e.what()).find("rename it"), std::string::npos) << e.what();
  }
}

// Results, and by the model's names weights and state, after an optimizer step; the padding of packs.
struct Left {
  std::vector<double> results;
  std::map<std::string, std::vector<float>> tensors;
  std::vector<float> padding;
};

Left left_by(const OptimizerSpec& optimizer, bool packed) {
  const EntryGraph train = gpt_training(kTiny, optimizer, int64_t{1} << 30, packed);
  std::vector<EntryGraph> jobs{train};
  if (optimizer.accumulate) jobs.push_back(train);
  if (optimizer.deferred) jobs.push_back(build_deferred_graph(train, optimizer, {}));
  if (optimizer.accumulate || optimizer.deferred) jobs.push_back(build_update_graph(train, optimizer, {}));
  Workers workers(1);
  Reference reference(workers);
  const Graph whole = gpt_forward(kTiny);
  const auto slice_of = [&](const std::string& name) {
    const auto found = train.slices.find(name);
    return found == train.slices.end() ? Slice{.name = name} : found->second.at(0);
  };
  for (const ValueId id : whole.parameters()) {
    const Tensor numbers = random_tensor(whole.value(id).type(), id);
    const Slice slice = slice_of(whole.value(id).name);
    const Value& home = train.graph.value(train.graph.find_value(slice.name));
    Tensor& tensor = reference.state.try_emplace(slice.name, Tensor(home.dtype, home.shape)).first->second;
    std::copy(numbers.bytes.begin(), numbers.bytes.end(), tensor.bytes.begin() + slice.offset);
  }
  Left left;
  for (size_t run = 0; run < jobs.size(); ++run) {
    const EntryGraph& job = jobs[run];
    const auto values = reference.run(job.graph, step_inputs(job.graph, optimizer, kTiny.vocabulary, static_cast<uint32_t>(run)));
    for (const ValueId id : job.graph.outputs) {
      for (const double x : values.at(id).to_double()) left.results.push_back(x);
    }
  }
  std::map<std::string, std::vector<bool>> taken;
  for (const ValueId id : whole.parameters()) {
    const std::string& name = whole.value(id).name;
    const Slice slice = slice_of(name);
    const auto first = slice.offset / 4, count = element_count(whole.value(id).shape);
    for (const char* suffix : {"", ".grad", ".exp_avg", ".exp_avg_sq", ".momentum_buffer"}) {
      const auto found = reference.state.find(slice.name + suffix);
      if (found == reference.state.end()) continue;
      const auto all = found->second.data<float>();
      left.tensors[name + suffix].assign(all.begin() + first, all.begin() + first + count);
      std::vector<bool>& known = taken[found->first];
      known.resize(all.size());
      std::fill_n(known.begin() + first, count, true);
    }
  }
  for (const auto& [name, known] : taken) {
    for (size_t i = 0; i < known.size(); ++i) {
      if (!known[i]) left.padding.push_back(reference.state.at(name).data<float>()[i]);
    }
  }
  return left;
}

double norm(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return std::sqrt(sum);
}

TEST(PackWeights, APackedModelComputesWhatItDoesWithoutPacks) {
  for (const char* optim : {"adamw", "sgd"}) {
    for (const int mode : {0, 1, 2, 3, 4}) {  // plain, accumulating, all deferred, most, all of an accumulating step
      for (const double clip : {0.0, 0.5}) {
        const OptimizerSpec optimizer{.optimizer = calm_optimizer(optim),
                                      .weight_decay = 0.1,
                                      .max_grad_norm = clip,
                                      .accumulate = mode == 1 || mode == 4,
                                      .deferred = mode >= 2,
                                      .at_once = mode == 3 ? std::set<std::string>{"h.1.ln_1.bias"} : std::set<std::string>{}};
        const Left apart = left_by(optimizer, false), packed = left_by(optimizer, true);
        EXPECT_TRUE(apart.padding.empty());
        EXPECT_GT(packed.padding.size(), 50u);
        EXPECT_TRUE(std::all_of(packed.padding.begin(), packed.padding.end(), [](float x) { return x == 0; }));
        ASSERT_EQ(packed.results.size(), apart.results.size());
        for (size_t i = 0; i < apart.results.size(); ++i)
          EXPECT_NEAR(packed.results[i], apart.results[i], 1e-6 * std::abs(apart.results[i])) << i;
        for (const auto& [name, numbers] : apart.tensors) {
          if (mode == 3 && name.ends_with(".grad")) continue;  // what is updated at once is stored nowhere
          ASSERT_TRUE(packed.tensors.contains(name)) << name;
          const std::vector<float>& found = packed.tensors.at(name);
          if (clip == 0) {  // the norm's sum is another, but it enters nowhere
            EXPECT_TRUE(found == numbers) << name << ' ' << mode << ' ' << optim;
          } else {
            EXPECT_LE(norm(found, numbers), 2e-6 * norm(numbers, std::vector<float>(numbers.size()))) << name << ' ' << mode;
          }
        }
      }
    }
  }
}

// --- places -----------------------------------------------------------------------------------------------------------------------------

constexpr GptShape kWide{.layers = 4, .heads = 2, .width = 512, .vocabulary = 40, .batch = 1, .length = 4};

struct Planned {
  EntryGraph job;
  Program program;
  explicit Planned(int64_t limit) : job(gpt_training(kWide, {}, int64_t{1} << 30, /*packed=*/true)) {
    const Planner planner({{.name = "train", .graph = &job.graph}}, {.threads = 2});
    program = limit < 0 ? planner.all_in_memory() : planner.streamed(limit, {}, {}).program;
  }
};

// A pack goes to the disk and comes back as a whole, and less stays in memory.
TEST(PackWeights, LowersTheLeastMemory) {
  const auto least = [&](bool packed) {
    EntryGraph job = gpt_training(kWide, {}, int64_t{1} << 30, packed);
    const Planner planner({{.name = "train", .graph = &job.graph}}, {.threads = 1});
    const Program program = planner.streamed(0, {}, {}).program;
    verify(program, {&job.graph});
    return program;
  };
  const Program apart = least(false), packed = least(true);
  EXPECT_LT(packed.memory().bytes + 150'000, apart.memory().bytes) << "of 4 * 13 * 512 numbers and their state, 320 KB";
  EXPECT_LT(packed.memory().persistent_bytes * 2, apart.memory().persistent_bytes);
  const auto is_pack = [](const Persistent& value) { return is_in_file(value) && value.name.find("..") != std::string::npos; };
  EXPECT_GE(std::count_if(packed.persistent.begin(), packed.persistent.end(), is_pack), 3) << "a pack and its state";
}

// Anything that a member's place can be but the stated piece of its pack is refused: at the view, at a reader, at all of them.
TEST(PackWeights, TheVerifierKnowsWhereAMemberLies) {
  for (const int64_t limit : {int64_t{-1}, int64_t{0}}) {
    const Planned planned(limit);
    const Graph& graph = planned.job.graph;
    ASSERT_EQ(complaint(planned.program, graph), "");
    const auto expect_caught = [&](const char* what, const std::function<void(Program&)>& change) {
      Program mutant = planned.program;
      change(mutant);
      EXPECT_NE(complaint(mutant, graph), "") << what << ' ' << limit;
    };
    const auto& code = planned.program.entries[0].code;
    int views = 0;
    for (size_t at = 0; at < code.size(); ++at) {
      if (code[at].action != Action::compute || graph.node(code[at].node).op->name != "PackMember") continue;
      ++views;
      ASSERT_TRUE(is_view(graph.node(code[at].node), code[at]));
      const ValueId member = graph.node(code[at].node).outputs[0];
      for (const int64_t by : {-2048, -64, 64, 2048}) {
        expect_caught("the view", [&](Program& p) { p.entries[0].code[at].outputs[0].offset += by; });
        expect_caught("the pack", [&](Program& p) { p.entries[0].code[at].inputs[0].offset += by; });
        expect_caught("view and pack", [&](Program& p) {
          p.entries[0].code[at].outputs[0].offset += by;
          p.entries[0].code[at].inputs[0].offset += by;
        });
        const auto shift_readers = [&](Program& p) {
          for (Instruction& instruction : p.entries[0].code) {
            if (instruction.action != Action::compute) continue;
            const Node& node = graph.node(instruction.node);
            for (size_t i = 0; i < node.inputs.size(); ++i) instruction.inputs[i].offset += node.inputs[i] == member ? by : 0;
          }
          p.entries[0].value_places[member].offset += by;
        };
        expect_caught("the readers", shift_readers);
        expect_caught("view and readers", [&](Program& p) {
          shift_readers(p);
          p.entries[0].code[at].outputs[0].offset += by;
        });
      }
      expect_caught("a shorter view", [&](Program& p) { p.entries[0].code[at].outputs[0].bytes -= 64; });
    }
    EXPECT_EQ(views, static_cast<int>(planned.job.slices.size()));
    // The graph is what counts: of one that asks for other places, the program isn't a program.
    Graph other = graph;
    Node& member = other.node(other.value(nodes_named(other, "PackMember").back().outputs[0]).producer);
    member.attributes.set("byte_offset", view_offset(member) - 64);
    EXPECT_NE(complaint(planned.program, other), "");
  }
}

}  // namespace
}  // namespace ort_train
