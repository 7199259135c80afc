#include "passes/plan/drafts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "exec/kernel_specs.h"
#include "graph/op_def.h"
#include "passes/schedule.h"

namespace ort_train {
namespace {

constexpr int64_t kLeastMovable = int64_t{64} << 10;  // bytes of an activation: smaller ones always stay in memory

// The kernels that nodes run by: those of the device, and the host's where it may update.
class NodeKernels {
 public:
  NodeKernels(const KernelTable& table, int threads) : specs_(table, threads) {
    if (&table != &cpu_kernels()) host_.emplace(cpu_kernels(), threads);
  }

  const KernelTable& table() const { return specs_.table(); }
  // Bytes that do wherever the node is computed. Throws Error(unsupported) where there is no kernel for it.
  int64_t workspace(const Graph& graph, const Node& node) {
    const auto bytes = [&](KernelSpecs& specs) { return specs.workspace(specs.add(*node.op, make_spec(graph, node))); };
    const bool may_be_hosts = host_ && updates_state(node);
    return std::max(bytes(specs_), may_be_hosts ? bytes(*host_) : 0);
  }

 private:
  KernelSpecs specs_;
  std::optional<KernelSpecs> host_;  // none: the device is the host
};

// Gives the graph its planned order.
Draft make_draft(const PlanEntry& entry, NodeKernels& kernels) {
  Graph& graph = *entry.graph;
  std::vector<int64_t> workspaces;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    try {
      workspaces.push_back(kernels.workspace(graph, node));
    } catch (const Error& e) {
      throw error(e.code(), "[{}] {}", describe(graph, id), e.what());
    }
  }
  std::vector<ValueId> keep = graph.outputs;
  keep.insert(keep.end(), entry.keep.begin(), entry.keep.end());
  std::sort(keep.begin(), keep.end());
  keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
  Draft draft{.name = entry.name,
              .role = entry.role,
              .graph = &graph,
              .keep = keep,
              .runs_per_step = entry.runs_per_step,
              .model = make_memory_model(graph, keep, workspaces, kernels.table())};
  if (entry.ordered) {
    draft.order.resize(draft.model.steps.size());
    std::iota(draft.order.begin(), draft.order.end(), 0u);
  } else {
    draft.order = schedule(draft.model);
  }
  simulate(draft.model, draft.order, &draft.buffers);
  draft.workspaces = std::move(workspaces);
  for (const MemoryStep& step : draft.model.steps) draft.background.push_back(kernels.table().find(*graph.node(step.node).op)->background);
  std::vector<NodeId> nodes;
  for (uint32_t step : draft.order) nodes.push_back(draft.model.steps[step].node);
  graph.set_order(std::move(nodes));
  return draft;
}

// Sets the draft's numbers of what lives across runs.
void number_persistents(Draft& draft, PersistentValues& persistents) {
  for (const MemoryClass& c : draft.model.classes) {
    draft.persistent_of_class.push_back(c.persistent ? persistents.add(draft.name, draft.graph->value(c.root)) : 0);
    if (c.persistent && c.kept) persistents.keep(draft.persistent_of_class.back());
  }
  for (const MemoryStep& step : draft.model.steps) {
    for (const PersistentUse& use : step.persistents) {
      if (use.changes) persistents.change(draft.persistent_of_class[use.of]);
    }
  }
}

}  // namespace

JobDraft draft_job(const std::vector<PlanEntry>& entries, const KernelTable& kernels, int threads) {
  NodeKernels node_kernels(kernels, threads);
  JobDraft job;
  for (const PlanEntry& entry : entries) {
    job.drafts.push_back(make_draft(entry, node_kernels));
    number_persistents(job.drafts.back(), job.persistents);
  }
  return job;
}

std::vector<std::vector<ValueId>> values_by_class(const Graph& graph, const MemoryModel& model) {
  std::vector<std::vector<ValueId>> values(model.classes.size());
  for (ValueId value = 0; value < graph.value_count(); ++value) {
    if (model.class_of[value] != kNone && graph.value(value).producer == kNone) values[model.class_of[value]].push_back(value);
  }
  for (NodeId id : graph.order()) {
    for (ValueId value : graph.node(id).outputs) {
      if (value != kNone) values[model.class_of[value]].push_back(value);
    }
  }
  return values;
}

namespace {

// A use of a value by a step, here or in the backing memory.
struct ValueUse {
  planning::Use use;
  bool backing = false;
};

void add_use(std::vector<ValueUse>& uses, int32_t step, bool reads, bool changes, bool backing) {
  if (uses.empty() || uses.back().use.step != step)
    uses.push_back({.use = {.step = step, .reads = false, .changes = false}, .backing = backing});
  uses.back().use.reads |= reads;
  uses.back().use.changes |= changes;
}

// A value as pieces: one, or one between any two steps that use it in the backing memory.
void add_pieces(planning::Run& run, const planning::Piece& like, const std::vector<ValueUse>& uses) {
  planning::Piece piece = like;
  for (const ValueUse& of : uses) {
    if (!of.backing) {
      if (piece.uses.empty()) piece.starts_in_store = like.lasting < 0 && &of != uses.data() && of.use.reads;
      piece.uses.push_back(of.use);
      continue;
    }
    run.backing_uses.push_back({.value_number = like.value_number, .bytes = like.bytes, .lasting = like.lasting, .use = of.use});
    if (!piece.uses.empty()) {
      piece.used_in_store_later = like.lasting < 0 && of.use.reads;
      piece.written_by_step = of.use.step;
      run.pieces.push_back(std::move(piece));
    }
    piece = like;
    piece.first_readable_step = of.use.last() + 1;
  }
  if (!piece.uses.empty()) run.pieces.push_back(std::move(piece));
}

}  // namespace

std::vector<bool> backing_steps(const Draft& draft, const PersistentValues& persistents, const BackingCompute& backing,
                                std::vector<bool>& used) {
  std::vector<bool> result(draft.order.size());
  if (!backing.wanted) return result;
  const MemoryModel& model = draft.model;
  // Values read after the run must stay in this memory. Fed inputs keep their original contents in the backing memory, so a step there
  // must not read one that was overwritten in place.
  std::vector<bool> stays(model.classes.size());
  for (const Buffer& buffer : draft.buffers) {
    for (uint32_t c : buffer.classes) stays[c] = buffer.kept || (buffer.fed && buffer.classes.size() > 1);
  }
  for (size_t at = 0; at < result.size(); ++at) {
    const MemoryStep& step = model.steps[draft.order[at]];
    const auto number = [&](const PersistentUse& u) { return draft.persistent_of_class[u.of]; };
    result[at] = backing.wanted(*draft.graph, draft.graph->node(step.node)) &&
                 std::all_of(step.persistents.begin(), step.persistents.end(),
                             [&](const PersistentUse& u) { return persistents.may_move(number(u)); }) &&
                 std::none_of(step.reads.begin(), step.reads.end(), [&](uint32_t c) { return stays[c]; });
    for (const PersistentUse& u : step.persistents) used[number(u)] = used[number(u)] || result[at];
  }
  return result;
}

namespace {

// Makes a RunDraft. What is used where (collect_uses) decides what becomes a piece and what a block.
class RunDrafter {
 public:
  RunDrafter(const Draft& draft, const PersistentValues& persistents, const JobMachine& machine, const std::vector<bool>& in_backing_memory)
      : draft_(draft),
        persistents_(persistents),
        machine_(machine),
        steps_(static_cast<int32_t>(draft.order.size())),
        made_{.run = {.name = draft.name, .runs_per_step = draft.runs_per_step}, .values = {}, .backing = in_backing_memory},
        buffer_uses_(draft.buffers.size()),
        class_uses_(draft.model.classes.size()) {}

  RunDraft make(const std::vector<bool>& used_in_backing) {
    collect_uses();
    for (uint32_t i = 0; i < draft_.buffers.size(); ++i) add_buffer(i);
    add_workspaces();
    add_persistents(used_in_backing);
    return std::move(made_);
  }

 private:
  bool in_backing(int32_t step) const { return made_.backing[static_cast<size_t>(step)]; }
  std::string name_of(uint32_t c) const { return draft_.graph->value(draft_.model.classes[c].root).name; }
  int32_t new_value(bool is_buffer, uint32_t index) {
    made_.values.push_back({.is_buffer = is_buffer, .index = index});
    return static_cast<int32_t>(made_.values.size()) - 1;
  }

  // Collects the steps' seconds, too.
  void collect_uses() {
    const MemoryModel& model = draft_.model;
    std::vector<uint32_t> buffer_of(model.classes.size(), kNone);
    for (uint32_t i = 0; i < draft_.buffers.size(); ++i) {
      for (uint32_t c : draft_.buffers[i].classes) buffer_of[c] = i;
    }
    for (int32_t at = 0; at < steps_; ++at) {
      const MemoryStep& step = model.steps[draft_.order[static_cast<size_t>(at)]];
      const Node& node = draft_.graph->node(step.node);
      for (uint32_t c : step.reads) add_use(buffer_uses_[buffer_of[c]], at, true, false, in_backing(at));
      for (uint32_t c : step.defines) add_use(buffer_uses_[buffer_of[c]], at, false, true, in_backing(at));
      for (const PersistentUse& u : step.persistents) add_use(class_uses_[u.of], at, u.reads, u.changes, in_backing(at));
      const ValueId source = viewed(node);
      const bool is_view = source != kNone && model.class_of[node.outputs[0]] == model.class_of[source];
      const auto seconds = [&](const ComputeRates& of) { return is_view ? 0 : work_of(*draft_.graph, node, machine_.threads, of).seconds; };
      made_.run.seconds.push_back(in_backing(at) ? 0 : seconds(machine_.rates));
      if (machine_.backing.wanted) made_.run.backing_seconds.push_back(in_backing(at) ? seconds(machine_.backing.rates) : 0);
    }
  }

  // Pieces, if the buffer moves; else a block, here or in the backing memory, or one in each.
  void add_buffer(uint32_t i) {
    const Buffer& buffer = draft_.buffers[i];
    const std::vector<ValueUse>& uses = buffer_uses_[i];
    const bool has_gap =
        std::any_of(uses.begin(), uses.end(), [&](const ValueUse& u) { return &u != uses.data() && u.use.step > (&u - 1)->use.step + 1; });
    const auto used_here = std::count_if(uses.begin(), uses.end(), [](const ValueUse& u) { return !u.backing; });
    const bool used_in_backing = used_here < std::ssize(uses);
    if (used_in_backing ? !buffer.fed : machine_.moves && has_gap && buffer.bytes >= kLeastMovable && !buffer.fed && !buffer.kept) {
      add_pieces(made_.run,
                 {.name = name_of(buffer.classes[0]), .bytes = whole_sectors(buffer.bytes), .uses = {}, .value_number = new_value(true, i)},
                 uses);
      return;
    }
    const planning::Block block{.bytes = buffer.bytes,
                                .first = buffer.first,
                                .last = std::min(buffer.last, steps_ - 1),
                                .fed = buffer.fed && !used_in_backing && !buffer.kept};
    planning::Block there = block;
    there.fed = false;
    if (buffer.kept) there.last = steps_;  // the end of a run of the backing memory
    if (!used_in_backing || used_here > 0) {
      made_.run.blocks.push_back(block);
      made_.blocks.push_back({.buffer = static_cast<int32_t>(i)});
    }
    // What is fed is in the backing memory already, where it stays for who uses it there, or looks at it when the run is over.
    if (used_in_backing || (buffer.fed && buffer.kept)) {
      made_.run.backing_blocks.push_back(there);
      made_.backing_blocks.push_back({.buffer = static_cast<int32_t>(i)});
    }
  }

  void add_workspaces() {
    for (int32_t at = 0; at < steps_; ++at) {
      const int64_t bytes = draft_.workspaces[draft_.order[static_cast<size_t>(at)]];
      if (bytes == 0) continue;
      (in_backing(at) ? made_.run.backing_blocks : made_.run.blocks).push_back({.bytes = aligned(bytes), .first = at, .last = at});
      (in_backing(at) ? made_.backing_blocks : made_.blocks).push_back({.step = at});
    }
  }

  void add_persistents(const std::vector<bool>& used_in_backing) {
    for (uint32_t c = 0; c < draft_.model.classes.size(); ++c) {
      if (!draft_.model.classes[c].persistent || class_uses_[c].empty()) continue;
      const size_t number = draft_.persistent_of_class[c];
      if (!(machine_.moves && persistents_.worth_moving(number)) && !used_in_backing[number]) continue;
      add_pieces(made_.run,
                 {.name = name_of(c),
                  .bytes = whole_sectors(persistents_[number].type.bytes()),
                  .lasting = static_cast<int32_t>(number),
                  .uses = {},
                  .value_number = new_value(false, c)},
                 class_uses_[c]);
    }
  }

  const Draft& draft_;
  const PersistentValues& persistents_;
  const JobMachine& machine_;
  const int32_t steps_;
  RunDraft made_;
  std::vector<std::vector<ValueUse>> buffer_uses_, class_uses_;  // in the order of steps
};

}  // namespace

RunDraft make_run_draft(const Draft& draft, const PersistentValues& persistents, const JobMachine& machine,
                        const std::vector<bool>& in_backing_memory, const std::vector<bool>& used) {
  return RunDrafter(draft, persistents, machine, in_backing_memory).make(used);
}

}  // namespace ort_train
