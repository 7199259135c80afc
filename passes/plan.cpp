#include "passes/plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <set>
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

constexpr int64_t kMovable = int64_t{64} << 10;  // bytes: what is smaller always stays in memory

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

  // What a caller looks at after a run is where the run left it: it never moves.
  void keep(size_t i) { kept_.insert(i); }
  bool movable(size_t i) const { return !values_[i].initial && values_[i].type.bytes() >= kMovable && !kept_.count(i); }

  size_t size() const { return values_.size(); }
  const Persistent& operator[](size_t i) const { return values_[i]; }

  // Gives each its place: in the arena, or on the disk where `on_disk` says so. Sets the bytes that they take there.
  std::vector<Persistent> lay_out(const std::vector<bool>& on_disk, Program& program) const {
    std::vector<Persistent> values = values_;
    for (Purpose purpose : {Purpose::weights, Purpose::optimizer, Purpose::gradients, Purpose::constants}) {
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i].purpose != purpose) continue;
        const int64_t bytes = values[i].type.bytes();
        if (on_disk[i]) {
          values[i].disk = {.offset = program.disk_bytes, .bytes = bytes};
          program.disk_bytes += whole_sectors(bytes);
        } else {
          values[i].place = {.offset = program.persistent_bytes, .bytes = bytes};
          program.persistent_bytes += aligned(bytes);
        }
      }
    }
    return values;
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
  std::set<size_t> kept_;
  std::map<std::string, size_t, std::less<>> by_name_;
  std::unordered_multimap<size_t, size_t> constants_;
};

// One entry on its way: what is known before addresses are.
struct Draft {
  std::string name;
  const Graph* graph = nullptr;
  std::vector<ValueId> keep;
  double weight = 1;
  MemoryModel model;
  StepOrder order;
  std::vector<Chain> chains;                // transient storages, by step of the order
  std::vector<int64_t> workspaces;          // by position in the order, as the kernels want them
  std::vector<size_t> persistent_of_class;  // by class; meaningful where the class is persistent
};

Draft make_draft(const PlanEntry& entry, KernelTable& kernels, int threads) {
  Graph& graph = *entry.graph;
  std::vector<int64_t> workspaces;
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (!node.op->kernel.cpu)
      throw error(ErrorCode::unsupported, "[{}] can't be run: the op {} has no kernel", describe(graph, id), node.op->name);
    workspaces.push_back(kernels.workspace(kernels.add(*node.op, make_spec(graph, node, threads))));
  }
  std::vector<ValueId> keep = graph.outputs;
  keep.insert(keep.end(), entry.keep.begin(), entry.keep.end());
  std::sort(keep.begin(), keep.end());
  keep.erase(std::unique(keep.begin(), keep.end()), keep.end());
  Draft draft{
      .name = entry.name, .graph = &graph, .keep = keep, .weight = entry.weight, .model = make_memory_model(graph, keep, workspaces)};
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

// A piece's memory in terms of the draft: a chain, or a persistent class.
struct PieceOf {
  bool is_chain = true;
  uint32_t index = 0;
};

struct StreamDraft {
  StreamEntry entry;
  std::vector<PieceOf> pieces;
};

StreamDraft make_stream_draft(const Draft& draft, const PersistentValues& persistents, int threads, const ComputeRates& rates) {
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
  std::vector<std::vector<StreamUse>> chain_uses(draft.chains.size()), class_uses(model.classes.size());
  const auto use = [](std::vector<StreamUse>& uses, int32_t step, bool reads, bool changes) {
    if (uses.empty() || uses.back().step != step) uses.push_back({.step = step, .reads = false, .changes = false});
    uses.back().reads |= reads;
    uses.back().changes |= changes;
  };
  StreamDraft result;
  for (int32_t at = 0; at < steps; ++at) {
    const MemoryStep& step = model.steps[draft.order[static_cast<size_t>(at)]];
    for (uint32_t c : step.reads) use(chain_uses[chain_of[c]], at, true, false);
    for (uint32_t c : step.defines) use(chain_uses[chain_of[c]], at, false, true);
    for (const PersistentUse& u : step.persistents) use(class_uses[u.of], at, u.reads, u.changes);
    result.entry.seconds.push_back(work_of(*draft.graph, draft.graph->node(step.node), threads, rates).seconds);
  }
  result.entry.weight = draft.weight;
  result.entry.fixed.assign(static_cast<size_t>(steps), 0);
  for (int32_t at = 0; at < steps; ++at) result.entry.fixed[static_cast<size_t>(at)] = aligned(draft.workspaces[static_cast<size_t>(at)]);
  for (uint32_t i = 0; i < draft.chains.size(); ++i) {
    const Chain& chain = draft.chains[i];
    const bool has_gap = std::any_of(chain_uses[i].begin(), chain_uses[i].end(),
                                     [&](const StreamUse& u) { return &u != chain_uses[i].data() && u.step > (&u - 1)->step + 1; });
    if (!stays[i] && has_gap) {
      result.entry.pieces.push_back({.bytes = whole_sectors(chain.bytes), .uses = std::move(chain_uses[i])});
      result.pieces.push_back({.is_chain = true, .index = i});
      continue;
    }
    for (int32_t at = chain.first; at <= chain.last && at < steps; ++at) result.entry.fixed[static_cast<size_t>(at)] += chain.bytes;
  }
  for (uint32_t c = 0; c < model.classes.size(); ++c) {
    if (!model.classes[c].persistent || class_uses[c].empty()) continue;
    const size_t number = draft.persistent_of_class[c];
    if (!persistents.movable(number)) continue;
    result.entry.pieces.push_back({.bytes = whole_sectors(persistents[number].type.bytes()),
                                   .uses = std::move(class_uses[c]),
                                   .persistent = static_cast<int32_t>(number)});
    result.pieces.push_back({.is_chain = false, .index = c});
  }
  return result;
}

// From a draft (and what stream.h decided of it) to an entry of a program whose persistent values have their places.
class EntryMaker {
 public:
  EntryMaker(const Draft& draft, const std::vector<Persistent>& persistents, const StreamDraft* stream, const std::vector<Visit>* visits)
      : draft_(draft), graph_(*draft.graph), persistents_(persistents), stream_(stream), visits_(visits) {}

  Entry make(Program& program) {
    entry_ = {.name = draft_.name, .value_places = std::vector<Place>(graph_.value_count()), .keep = draft_.keep};
    lay_code();
    add_storages();
    pack_storages(program.persistent_bytes);
    place_values();
    place_spills(program);
    return std::move(entry_);
  }

 private:
  // The instructions, without places: computing steps, transfers between them.
  void lay_code() {
    const size_t steps = draft_.order.size(), count = visits_ ? visits_->size() : 0;
    std::vector<std::vector<size_t>> issues(steps + 1), needs(steps + 1), begins(steps + 1), waits(steps + 1);
    read_at_.assign(count, -1);
    read_wait_at_.assign(count, -1);
    write_at_.assign(count, -1);
    write_wait_at_.assign(count, -1);
    for (size_t v = 0; v < count; ++v) {
      const Visit& visit = (*visits_)[v];
      if (visit.issue >= 0) {
        issues[static_cast<size_t>(visit.issue)].push_back(v);
        needs[static_cast<size_t>(visit.first)].push_back(v);
      }
      if (visit.written < 0) continue;
      begins[static_cast<size_t>(visit.last) + 1].push_back(v);
      waits[static_cast<size_t>(visit.written)].push_back(v);
    }
    const auto add = [&](Action action, int32_t transfer = -1) {
      entry_.code.push_back({.action = action, .transfer = transfer});
      return static_cast<int32_t>(entry_.code.size()) - 1;
    };
    for (size_t t = 0; t <= steps; ++t) {
      for (size_t v : begins[t]) write_at_[v] = add(Action::write);
      for (size_t v : waits[t]) write_wait_at_[v] = add(Action::wait, write_at_[v]);
      for (size_t v : issues[t]) read_at_[v] = add(Action::read);
      for (size_t v : needs[t]) read_wait_at_[v] = add(Action::wait, read_at_[v]);
      if (t == steps) break;
      step_at_.push_back(add(Action::compute));
      entry_.code.back().node = draft_.model.steps[draft_.order[t]].node;
    }
  }

  void add_storages() {
    const auto values = values_by_class(graph_, draft_.model);
    std::vector<bool> moves(draft_.chains.size(), false);
    for (const PieceOf& piece : stream_ ? stream_->pieces : std::vector<PieceOf>{}) {
      if (piece.is_chain) moves[piece.index] = true;
    }
    storage_of_chain_.assign(draft_.chains.size(), -1);
    const auto chain_values = [&](const Chain& chain) {
      std::vector<ValueId> all;
      for (uint32_t c : chain.classes) all.insert(all.end(), values[c].begin(), values[c].end());
      return all;
    };
    for (size_t i = 0; i < draft_.chains.size(); ++i) {
      if (moves[i]) continue;
      const Chain& chain = draft_.chains[i];
      const Value& first = graph_.value(draft_.model.classes[chain.classes[0]].root);
      storage_of_chain_[i] = static_cast<int32_t>(entry_.storages.size());
      entry_.storages.push_back({.name = first.name,
                                 .purpose = purpose_of(first.kind),
                                 .place = {.bytes = first.bytes()},
                                 .values = chain_values(chain),
                                 .first = at_step(chain.first, true),
                                 .last = at_step(chain.last, false)});
    }
    for (int32_t at = 0; at < static_cast<int32_t>(draft_.workspaces.size()); ++at) {
      if (draft_.workspaces[at] == 0) continue;
      entry_.storages.push_back({.name = describe(graph_, graph_.order()[at]),
                                 .purpose = Purpose::workspace,
                                 .place = {.bytes = draft_.workspaces[at]},
                                 .values = {},
                                 .first = step_at_[at],
                                 .last = step_at_[at]});
    }
    visits_of_.resize(draft_.model.classes.size());
    for (size_t v = 0; visits_ && v < visits_->size(); ++v) {
      const Visit& visit = (*visits_)[v];
      const PieceOf& piece = stream_->pieces[visit.piece];
      const Chain* chain = piece.is_chain ? &draft_.chains[piece.index] : nullptr;
      const Value& first = graph_.value(draft_.model.classes[chain ? chain->classes[0] : piece.index].root);
      for (uint32_t c : chain ? chain->classes : std::vector<uint32_t>{piece.index}) visits_of_[c].push_back(v);
      storage_of_visit_.push_back(entry_.storages.size());
      entry_.storages.push_back({.name = first.name,
                                 .purpose = purpose_of(first.kind),
                                 .place = {.bytes = whole_sectors(first.bytes())},
                                 .values = chain ? chain_values(*chain) : values[piece.index],
                                 .first = read_at_[v] >= 0 ? read_at_[v] : step_at_[visit.first],
                                 .last = write_wait_at_[v] >= 0 ? write_wait_at_[v] : step_at_[visit.last]});
    }
  }

  // Graph inputs are there before the first transfer; what is kept is there after the last one.
  int32_t at_step(int32_t step, bool begins) const {
    const auto steps = static_cast<int32_t>(step_at_.size());
    if (begins && step == 0) return 0;
    if (!begins && step >= steps - 1) return std::max(0, static_cast<int32_t>(entry_.code.size()) - 1);
    return step_at_[step];
  }

  // Addresses above the persistent values, and the peak.
  void pack_storages(int64_t persistent_bytes) {
    std::vector<Block> blocks;
    for (const Storage& storage : entry_.storages)
      blocks.push_back({.bytes = storage.place.bytes, .first = storage.first, .last = storage.last});
    for (size_t storage : storage_of_visit_) blocks[storage].alignment = kSector;
    entry_.peak_live_bytes = max_live_bytes(blocks, &entry_.peak_instruction) + persistent_bytes;
    pack(blocks);
    for (size_t i = 0; i < blocks.size(); ++i) entry_.storages[i].place.offset = blocks[i].offset + persistent_bytes;
  }

  Place place_of(ValueId value, int32_t step) const {
    const uint32_t c = value == kNone ? kNone : draft_.model.class_of[value];
    if (c == kNone) return {};
    const int64_t bytes = graph_.value(value).bytes();
    if (bytes == 0) return {};
    const Persistent* const persistent = draft_.model.classes[c].persistent ? &persistents_[draft_.persistent_of_class[c]] : nullptr;
    if (persistent && persistent->disk.bytes == 0) return persistent->place;
    if (!visits_of_[c].empty()) {
      size_t found = visits_of_[c].front();  // of several: the last that has begun
      for (size_t v : visits_of_[c]) found = (*visits_)[v].first <= step ? v : found;
      return {.offset = entry_.storages[storage_of_visit_[found]].place.offset, .bytes = bytes};
    }
    if (persistent) return {};  // on the disk, and this entry has no use for it
    return {.offset = entry_.storages[static_cast<size_t>(storage_of_chain_[chain_of_[c]])].place.offset, .bytes = bytes};
  }

  void place_values() {
    chain_of_.assign(draft_.model.classes.size(), 0);
    for (size_t i = 0; i < draft_.chains.size(); ++i) {
      for (uint32_t c : draft_.chains[i].classes) chain_of_[c] = i;
    }
    for (ValueId value = 0; value < graph_.value_count(); ++value) entry_.value_places[value] = place_of(value, 0);
    for (int32_t t = 0; t < static_cast<int32_t>(step_at_.size()); ++t) {
      Instruction& instruction = entry_.code[static_cast<size_t>(step_at_[t])];
      const Node& node = graph_.node(instruction.node);
      const auto place = [&](ValueId value) {
        const Place found = place_of(value, t);
        if (value != kNone) entry_.value_places[value] = found;
        return found;
      };
      for (ValueId value : node.inputs) instruction.inputs.push_back(place(value));
      for (ValueId value : node.outputs) instruction.outputs.push_back(place(value));
    }
    for (const Storage& storage : entry_.storages) {
      if (storage.purpose == Purpose::workspace) entry_.code[static_cast<size_t>(storage.first)].workspace = storage.place;
    }
  }

  // Where transfers go: persistent values to their places on the disk, the entry's own pieces behind those.
  void place_spills(Program& program) {
    std::map<uint32_t, Place> spilled;  // by chain
    int64_t end = 0;
    for (const Persistent& value : persistents_) end = std::max(end, value.disk.offset + whole_sectors(value.disk.bytes));
    for (size_t v = 0; visits_ && v < visits_->size(); ++v) {
      if (read_at_[v] < 0 && write_at_[v] < 0) continue;  // it never leaves
      const PieceOf& piece = stream_->pieces[(*visits_)[v].piece];
      const Storage& storage = entry_.storages[storage_of_visit_[v]];
      Place disk;
      if (piece.is_chain) {
        const auto [at, is_new] = spilled.emplace(piece.index, Place{.offset = end, .bytes = 0});
        if (is_new) {
          at->second.bytes = graph_.value(draft_.model.classes[draft_.chains[piece.index].classes[0]].root).bytes();
          end += whole_sectors(at->second.bytes);
        }
        disk = at->second;
      } else {
        disk = persistents_[draft_.persistent_of_class[piece.index]].disk;
      }
      const Place memory{.offset = storage.place.offset, .bytes = disk.bytes};
      for (int32_t at : {read_at_[v], write_at_[v]}) {
        if (at < 0) continue;
        entry_.code[static_cast<size_t>(at)].memory = memory;
        entry_.code[static_cast<size_t>(at)].disk = disk;
      }
    }
    program.disk_bytes = std::max(program.disk_bytes, end);
  }

  const Draft& draft_;
  const Graph& graph_;
  const std::vector<Persistent>& persistents_;
  const StreamDraft* stream_;  // null: everything is in memory
  const std::vector<Visit>* visits_;
  Entry entry_;
  std::vector<int32_t> step_at_;                                            // instruction of each step
  std::vector<int32_t> read_at_, read_wait_at_, write_at_, write_wait_at_;  // instructions of each visit; -1: none
  std::vector<int32_t> storage_of_chain_;                                   // -1: it moves
  std::vector<size_t> chain_of_;                                            // by class
  std::vector<size_t> storage_of_visit_;
  std::vector<std::vector<size_t>> visits_of_;  // by class
};

}  // namespace

struct Planner::Impl {
  PlanOptions options;
  KernelTable kernels;
  PersistentValues persistents;
  std::vector<Draft> drafts;

  Program make(const std::vector<bool>& on_disk, const std::vector<StreamDraft>* streams, const StreamPlan* streamed) const {
    Program program;
    program.threads = options.threads;
    std::vector<Persistent> values = persistents.lay_out(on_disk, program);
    if (streams) program.persistent_bytes = whole_sectors(program.persistent_bytes);
    program.arena_bytes = program.persistent_bytes;
    for (size_t i = 0; i < drafts.size(); ++i) {
      EntryMaker maker(drafts[i], values, streams ? &(*streams)[i] : nullptr, streamed ? &streamed->visits[i] : nullptr);
      program.entries.push_back(maker.make(program));
      for (const Storage& storage : program.entries.back().storages)
        program.arena_bytes = std::max(program.arena_bytes, aligned(storage.place.end()));
    }
    // Between runs a tensor of the disk is looked at above what always stays; of accumulators, two.
    for (const Persistent& value : values) {
      if (value.disk.bytes == 0) continue;
      const int64_t desks = value.purpose == Purpose::gradients ? 2 : 1;
      program.arena_bytes = std::max(program.arena_bytes, program.persistent_bytes + desks * whole_sectors(value.disk.bytes));
    }
    std::stable_sort(values.begin(), values.end(),
                     [](const Persistent& a, const Persistent& b) { return a.place.offset < b.place.offset; });
    program.persistent = std::move(values);
    return program;
  }
};

Planner::Planner(const std::vector<PlanEntry>& entries, const PlanOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->options = options;
  for (const PlanEntry& entry : entries) {
    Draft draft = make_draft(entry, impl_->kernels, options.threads);
    for (const MemoryClass& c : draft.model.classes) {
      draft.persistent_of_class.push_back(c.persistent ? impl_->persistents.add(entry.name, entry.graph->value(c.root)) : 0);
      if (c.persistent && c.kept) impl_->persistents.keep(draft.persistent_of_class.back());
    }
    impl_->drafts.push_back(std::move(draft));
  }
}
Planner::~Planner() = default;

Program Planner::resident() const { return impl_->make(std::vector<bool>(impl_->persistents.size(), false), nullptr, nullptr); }

StreamedProgram Planner::streamed(int64_t limit, const ComputeRates& compute, const StreamRates& disk) const {
  constexpr int kTries = 12;
  std::vector<StreamDraft> streams;
  std::vector<StreamEntry> entries;
  std::vector<bool> movable(impl_->persistents.size(), false);
  for (const Draft& draft : impl_->drafts) {
    streams.push_back(make_stream_draft(draft, impl_->persistents, impl_->options.threads, compute));
    for (const StreamPiece& piece : streams.back().entry.pieces) {
      if (piece.persistent >= 0) movable[static_cast<size_t>(piece.persistent)] = true;
    }
    entries.push_back(streams.back().entry);
  }
  int64_t always = 0;  // persistent values that never leave
  for (size_t i = 0; i < movable.size(); ++i) always += movable[i] ? 0 : aligned(impl_->persistents[i].type.bytes());
  for (StreamEntry& entry : entries) {
    for (int64_t& bytes : entry.fixed) bytes += whole_sectors(always);
  }
  const int64_t floor = stream_floor(entries);
  int64_t target = std::max(limit, floor);
  for (int round = 0;; ++round) {
    StreamPlan plan = plan_streams(entries, movable.size(), target, disk);
    std::vector<bool> on_disk(movable.size());
    for (size_t i = 0; i < movable.size(); ++i) on_disk[i] = movable[i] && !plan.resident[i];
    StreamedProgram result{.program = impl_->make(on_disk, &streams, &plan), .forecasts = std::move(plan.forecasts)};
    // Addresses took more than live bytes: aim lower by as much.
    if (result.program.arena_bytes <= limit || target == floor) return result;
    const int64_t over = result.program.arena_bytes - limit;
    target = round + 1 >= kTries ? floor : std::max(floor, target - over - over / 8 - kSector);
  }
}

Program plan(const std::vector<PlanEntry>& entries, const PlanOptions& options) { return Planner(entries, options).resident(); }

}  // namespace ort_train
