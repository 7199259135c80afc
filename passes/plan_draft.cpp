#include "passes/plan_draft.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "graph/op_def.h"
#include "passes/schedule.h"

namespace ort_train {
namespace {

// Bytes: what is smaller always stays in memory. Of what lives across runs that is less: packs of small weights (passes/pack_weights.h) end
// where the next one would take them beyond 64 KiB.
constexpr int64_t kMovable = int64_t{64} << 10, kMovableState = int64_t{32} << 10;

}  // namespace

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

size_t PersistentValues::add(const std::string& entry, const Value& value) {
  if (value.constant) return add_constant(value);
  const auto [at, is_new] = by_name_.emplace(value.name, values_.size());
  if (is_new) {
    values_.push_back({.name = value.name, .purpose = purpose_of(value.kind), .type = value.type(), .fill = value.fill});
  } else if (const Persistent& known = values_[at->second]; known.type != value.type() || known.purpose != purpose_of(value.kind)) {
    throw error(ErrorCode::device, "internal error: '{}' is {} ({}) in entry '{}' but {} ({}) in one before it; please report this",
                value.name, to_string(value.type()), to_string(purpose_of(value.kind)), entry, to_string(known.type),
                to_string(known.purpose));
  }
  return at->second;
}

bool PersistentValues::movable(size_t i) const {
  return !values_[i].initial && values_[i].type.bytes() >= kMovableState && !kept_.count(i);
}

std::vector<Persistent> PersistentValues::lay_out(const std::vector<bool>& on_disk, Program& program) const {
  std::vector<Persistent> values = values_;
  for (Purpose purpose : {Purpose::weights, Purpose::optimizer, Purpose::gradients, Purpose::constants}) {
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].purpose != purpose) continue;
      const int64_t bytes = values[i].type.bytes();
      if (on_disk[i]) {
        values[i].home = {.offset = program.file().bytes, .bytes = bytes, .space = kFile};
        program.file().bytes += whole_sectors(bytes);
      } else {
        values[i].home = {.offset = program.memory().persistent_bytes, .bytes = bytes};
        program.memory().persistent_bytes += aligned(bytes);
      }
    }
  }
  return values;
}

size_t PersistentValues::add_constant(const Value& value) {
  const auto& bytes = value.constant->bytes;
  const size_t hash = std::hash<std::string_view>{}({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto [begin, end] = constants_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (*values_[at->second].initial == *value.constant) return at->second;
  }
  constants_.emplace(hash, values_.size());
  values_.push_back({.name = value.name, .purpose = Purpose::constants, .type = value.type(), .initial = value.constant});
  return values_.size() - 1;
}

Draft make_draft(const PlanEntry& entry, KernelSpecs& kernels) {
  Graph& graph = *entry.graph;
  std::vector<int64_t> workspaces;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    try {
      workspaces.push_back(kernels.workspace(kernels.add(*node.op, make_spec(graph, node))));
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
              .weight = entry.weight,
              .model = make_memory_model(graph, keep, workspaces)};
  if (entry.ordered) {
    draft.order.resize(draft.model.steps.size());
    std::iota(draft.order.begin(), draft.order.end(), 0u);
  } else {
    draft.order = schedule(draft.model);
  }
  simulate(draft.model, draft.order, &draft.chains);
  std::vector<NodeId> nodes;
  for (uint32_t step : draft.order) {
    nodes.push_back(draft.model.steps[step].node);
    draft.workspaces.push_back(workspaces[step]);
  }
  graph.set_order(std::move(nodes));
  return draft;
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

RunDraft make_run_draft(const Draft& draft, const PersistentValues& persistents, int threads, const ComputeRates& rates) {
  const MemoryModel& model = draft.model;
  const auto steps = static_cast<int32_t>(draft.order.size());
  std::vector<uint32_t> chain_of(model.classes.size(), kNone);
  std::vector<bool> stays(draft.chains.size(), false);
  for (uint32_t i = 0; i < draft.chains.size(); ++i) {
    stays[i] = draft.chains[i].bytes < kMovable;
    for (uint32_t c : draft.chains[i].classes) {
      chain_of[c] = i;
      if (model.classes[c].fed || model.classes[c].kept) stays[i] = true;
    }
  }
  std::vector<std::vector<planning::Use>> chain_uses(draft.chains.size()), class_uses(model.classes.size());
  const auto use = [](std::vector<planning::Use>& uses, int32_t step, bool reads, bool changes) {
    if (uses.empty() || uses.back().step != step) uses.push_back({.step = step, .reads = false, .changes = false});
    uses.back().reads |= reads;
    uses.back().changes |= changes;
  };
  RunDraft result{.run = {.name = draft.name, .weight = draft.weight}, .pieces = {}};
  planning::Run& run = result.run;
  for (int32_t at = 0; at < steps; ++at) {
    const MemoryStep& step = model.steps[draft.order[static_cast<size_t>(at)]];
    for (uint32_t c : step.reads) use(chain_uses[chain_of[c]], at, true, false);
    for (uint32_t c : step.defines) use(chain_uses[chain_of[c]], at, false, true);
    for (const PersistentUse& u : step.persistents) use(class_uses[u.of], at, u.reads, u.changes);
    const Node& node = draft.graph->node(step.node);
    const ValueId source = viewed(node);
    const bool is_view = source != kNone && model.class_of[node.outputs[0]] == model.class_of[source];
    run.seconds.push_back(is_view ? 0 : work_of(*draft.graph, node, threads, rates).seconds);
  }
  const auto name_of = [&](uint32_t c) { return draft.graph->value(model.classes[c].root).name; };
  for (uint32_t i = 0; i < draft.chains.size(); ++i) {
    const Chain& chain = draft.chains[i];
    const bool has_gap = std::any_of(chain_uses[i].begin(), chain_uses[i].end(),
                                     [&](const planning::Use& u) { return &u != chain_uses[i].data() && u.step > (&u - 1)->step + 1; });
    if (stays[i] || !has_gap) {
      run.blocks.push_back({.bytes = chain.bytes, .first = chain.first, .last = std::min(chain.last, steps - 1)});
      continue;
    }
    run.pieces.push_back({.name = name_of(chain.classes[0]), .bytes = whole_sectors(chain.bytes), .uses = std::move(chain_uses[i])});
    result.pieces.push_back({.is_chain = true, .index = i});
  }
  for (int32_t at = 0; at < steps; ++at) {
    const int64_t bytes = draft.workspaces[static_cast<size_t>(at)];
    if (bytes > 0) run.blocks.push_back({.bytes = aligned(bytes), .first = at, .last = at});
  }
  for (uint32_t c = 0; c < model.classes.size(); ++c) {
    if (!model.classes[c].persistent || class_uses[c].empty()) continue;
    const size_t number = draft.persistent_of_class[c];
    if (!persistents.movable(number)) continue;
    run.pieces.push_back({.name = name_of(c),
                          .bytes = whole_sectors(persistents[number].type.bytes()),
                          .lasting = static_cast<int32_t>(number),
                          .uses = std::move(class_uses[c])});
    result.pieces.push_back({.is_chain = false, .index = c});
  }
  return result;
}

}  // namespace ort_train
