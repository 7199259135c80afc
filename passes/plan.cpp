#include "passes/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "exec/kernel_table.h"
#include "passes/memory_model.h"
#include "passes/pack.h"
#include "passes/schedule.h"

namespace ort_train {
namespace {

Purpose purpose_of(ValueKind kind) {
  switch (kind) {
    case ValueKind::input:
      return Purpose::inputs;
    case ValueKind::parameter:
      return Purpose::weights;
    case ValueKind::activation:
      return Purpose::activations;
    case ValueKind::gradient:
    case ValueKind::accumulator:
      return Purpose::gradients;
    case ValueKind::optimizer_state:
      return Purpose::optimizer;
    case ValueKind::constant:
      return Purpose::constants;
  }
  return Purpose::activations;
}

// What lives across runs, collected from all entries and then laid at the bottom of the arena.
class PersistentValues {
 public:
  // The number of the value, known already or new.
  size_t add(const std::string& entry, const Value& value) {
    if (value.constant) return add_constant(value);
    const auto [at, is_new] = by_name_.emplace(value.name, values_.size());
    if (is_new) {
      values_.push_back({.name = value.name, .purpose = purpose_of(value.kind), .type = value.type(), .place = {}, .initial = nullptr});
    } else if (const Persistent& known = values_[at->second]; known.type != value.type() || known.purpose != purpose_of(value.kind)) {
      throw error(ErrorCode::device, "internal error: '{}' is {} ({}) in entry '{}' but {} ({}) in one before it; please report this",
                  value.name, to_string(value.type()), to_string(purpose_of(value.kind)), entry, to_string(known.type),
                  to_string(known.purpose));
    }
    return at->second;
  }

  // Gives each its place; returns the bytes that they take.
  int64_t lay_out() {
    int64_t bytes = 0;
    for (Purpose purpose : {Purpose::weights, Purpose::optimizer, Purpose::gradients, Purpose::constants}) {
      for (Persistent& value : values_) {
        if (value.purpose != purpose) continue;
        value.place = {.offset = bytes, .bytes = value.type.bytes()};
        bytes += aligned(value.place.bytes);
      }
    }
    return bytes;
  }

  const Place& place(size_t i) const { return values_[i].place; }
  std::vector<Persistent> take() {  // by address
    std::stable_sort(values_.begin(), values_.end(),
                     [](const Persistent& a, const Persistent& b) { return a.place.offset < b.place.offset; });
    return std::move(values_);
  }

 private:
  size_t add_constant(const Value& value) {
    const auto& bytes = value.constant->bytes;
    const size_t hash = std::hash<std::string_view>{}({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    const auto [begin, end] = constants_.equal_range(hash);
    for (auto at = begin; at != end; ++at) {
      if (*values_[at->second].initial == *value.constant) return at->second;
    }
    constants_.emplace(hash, values_.size());
    values_.push_back({.name = value.name, .purpose = Purpose::constants, .type = value.type(), .place = {}, .initial = value.constant});
    return values_.size() - 1;
  }

  std::vector<Persistent> values_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::unordered_multimap<size_t, size_t> constants_;
};

// One entry on its way: what is known before addresses are.
struct Draft {
  const Graph* graph = nullptr;
  MemoryModel model;
  std::vector<Chain> chains;                // transient storages
  std::vector<int64_t> workspaces;          // by position in the new order, as the kernels want them
  std::vector<size_t> persistent_of_class;  // by class; meaningful where the class is persistent
};

Draft make_draft(const PlanEntry& entry, const std::vector<ValueId>& keep, KernelTable& kernels, int threads) {
  Graph& graph = *entry.graph;
  std::vector<int64_t> workspaces;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.op->kernel.cpu)
      throw error(ErrorCode::unsupported, "[{}] can't be run: the op {} has no kernel", describe(graph, id), node.op->name);
    workspaces.push_back(kernels.workspace(kernels.add(*node.op, make_spec(graph, node, threads))));
  }
  Draft draft{
      .graph = &graph, .model = make_memory_model(graph, keep, workspaces), .chains = {}, .workspaces = {}, .persistent_of_class = {}};
  const StepOrder order = schedule(draft.model);
  simulate(draft.model, order, &draft.chains);
  std::vector<NodeId> nodes;
  for (uint32_t step : order) {
    nodes.push_back(draft.model.steps[step].node);
    draft.workspaces.push_back(workspaces[step]);
  }
  graph.set_order(std::move(nodes));
  return draft;
}

// Values by class, in the order in which they come to be.
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

// Storages with addresses from 0, and the peak of the transient bytes.
void pack_storages(const Draft& draft, Entry& entry) {
  const Graph& graph = *draft.graph;
  const auto values = values_by_class(graph, draft.model);
  for (const Chain& chain : draft.chains) {
    const Value& first = graph.value(draft.model.classes[chain.classes[0]].root);
    Storage storage{.name = first.name,
                    .purpose = purpose_of(first.kind),
                    .place = {.bytes = first.bytes()},
                    .values = {},
                    .first = chain.first,
                    .last = chain.last};
    for (uint32_t c : chain.classes) storage.values.insert(storage.values.end(), values[c].begin(), values[c].end());
    entry.storages.push_back(std::move(storage));
  }
  for (int32_t at = 0; at < static_cast<int32_t>(draft.workspaces.size()); ++at) {
    if (draft.workspaces[at] == 0) continue;
    entry.storages.push_back({.name = describe(graph, graph.order()[at]),
                              .purpose = Purpose::workspace,
                              .place = {.bytes = draft.workspaces[at]},
                              .values = {},
                              .first = at,
                              .last = at});
  }
  std::vector<Block> blocks;
  for (const Storage& storage : entry.storages)
    blocks.push_back({.bytes = storage.place.bytes, .first = storage.first, .last = storage.last});
  entry.peak_live_bytes = max_live_bytes(blocks, &entry.peak_instruction);
  pack(blocks);
  for (size_t i = 0; i < blocks.size(); ++i) entry.storages[i].place.offset = blocks[i].offset;
}

Entry finish_entry(const PlanEntry& from, std::vector<ValueId> keep, const Draft& draft, const PersistentValues& persistents,
                   int64_t persistent_bytes) {
  const Graph& graph = *draft.graph;
  Entry entry{
      .name = from.name, .code = {}, .storages = {}, .value_places = std::vector<Place>(graph.value_count()), .keep = std::move(keep)};
  pack_storages(draft, entry);
  entry.peak_live_bytes += persistent_bytes;
  std::vector<Place> workspaces(graph.order().size());
  for (Storage& storage : entry.storages) {
    storage.place.offset += persistent_bytes;
    if (storage.purpose == Purpose::workspace) workspaces[storage.first] = storage.place;
    for (ValueId value : storage.values) entry.value_places[value] = storage.place;
  }
  for (ValueId value = 0; value < graph.value_count(); ++value) {
    const uint32_t c = draft.model.class_of[value];
    if (c != kNone && draft.model.classes[c].persistent) entry.value_places[value] = persistents.place(draft.persistent_of_class[c]);
  }
  for (size_t at = 0; at < graph.order().size(); ++at) {
    const Node& node = graph.node(graph.order()[at]);
    Instruction instruction{.node = graph.order()[at], .inputs = {}, .outputs = {}, .workspace = workspaces[at]};
    for (ValueId value : node.inputs) instruction.inputs.push_back(value == kNone ? Place{} : entry.value_places[value]);
    for (ValueId value : node.outputs) instruction.outputs.push_back(value == kNone ? Place{} : entry.value_places[value]);
    entry.code.push_back(std::move(instruction));
  }
  return entry;
}

}  // namespace

Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options) {
  KernelTable kernels;
  PersistentValues persistents;
  std::vector<Draft> drafts;
  std::vector<std::vector<ValueId>> keeps;
  for (const PlanEntry& entry : entries) {
    std::vector<ValueId> keep = entry.graph->outputs;
    keep.insert(keep.end(), entry.keep.begin(), entry.keep.end());
    std::sort(keep.begin(), keep.end());
    keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
    Draft draft = make_draft(entry, keep, kernels, options.threads);
    for (const MemoryClass& c : draft.model.classes) {
      draft.persistent_of_class.push_back(c.persistent ? persistents.add(entry.name, entry.graph->value(c.root)) : 0);
    }
    drafts.push_back(std::move(draft));
    keeps.push_back(std::move(keep));
  }
  Program program;
  program.threads = options.threads;
  program.persistent_bytes = persistents.lay_out();
  program.arena_bytes = program.persistent_bytes;
  for (size_t i = 0; i < entries.size(); ++i) {
    program.entries.push_back(finish_entry(entries[i], std::move(keeps[i]), drafts[i], persistents, program.persistent_bytes));
    for (const Storage& storage : program.entries.back().storages)
      program.arena_bytes = std::max(program.arena_bytes, aligned(storage.place.end()));
  }
  program.persistent = persistents.take();
  return program;
}

}  // namespace ort_train
