#include "passes/plan_entry.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "passes/pack.h"

namespace ort_train {
namespace {

using planning::Stay;

class EntryMaker {
 public:
  EntryMaker(const Draft& draft, const std::vector<Persistent>& persistents, const PlannedRun* planned)
      : draft_(draft),
        graph_(*draft.graph),
        persistents_(persistents),
        pieces_(planned ? *planned->pieces : std::vector<PieceOf>{}),
        plan_(planned ? planned->plan : nullptr),
        stays_(planned ? planned->plan->stays : std::vector<Stay>{}) {}

  Entry make(Program& program) {
    entry_ = {.name = draft_.name, .role = draft_.role, .value_places = std::vector<Place>(graph_.value_count()), .keep = draft_.keep};
    unwaited_.resize(program.queues.size());
    waited_computing_.assign(program.queues.size(), -1);
    lay_code();
    add_storages();
    place_storages(program.memory().persistent_bytes);
    place_values();
    place_spills(program);
    return std::move(entry_);
  }

 private:
  // The instructions, without places: computing steps, copies between them. At each step, in this order: writes begin, writes are waited
  // for, reads begin, reads are waited for.
  void lay_code() {
    const size_t steps = draft_.order.size(), count = stays_.size();
    std::vector<std::vector<size_t>> issues(steps + 1), needs(steps + 1), begins(steps + 1), waits(steps + 1);
    read_at_.assign(count, -1);
    write_at_.assign(count, -1);
    write_over_.assign(count, -1);
    for (size_t i = 0; i < count; ++i) {
      const Stay& stay = stays_[i];
      if (stay.reads) {
        issues[static_cast<size_t>(stay.issue)].push_back(i);
        needs[static_cast<size_t>(stay.first)].push_back(i);
      }
      if (!stay.writes) continue;
      begins[static_cast<size_t>(stay.last) + 1].push_back(i);
      waits[static_cast<size_t>(stay.released)].push_back(i);
    }
    for (size_t t = 0; t <= steps; ++t) {
      for (size_t i : begins[t]) write_at_[i] = add(Action::copy, kWrite);
      for (size_t i : waits[t]) write_over_[i] = wait(write_at_[i]);
      for (size_t i : issues[t]) read_at_[i] = add(Action::copy, kRead);
      for (size_t i : needs[t]) wait(read_at_[i]);
      if (t == steps) break;
      step_at_.push_back(add(Action::compute, kCompute));
      entry_.code.back().node = draft_.model.steps[draft_.order[t]].node;
    }
  }

  // Begins when the computing before it is done, and all that was waited for.
  int32_t add(Action action, QueueId queue) {
    Instruction instruction{.action = action, .queue = queue};
    std::swap(instruction.waits, unwaited_[queue]);
    const int32_t computed = step_at_.empty() ? -1 : step_at_.back();
    if (queue != kCompute && computed > waited_computing_[queue]) {
      instruction.waits.push_back(computed);
      waited_computing_[queue] = computed;
    }
    entry_.code.push_back(std::move(instruction));
    return static_cast<int32_t>(entry_.code.size()) - 1;
  }

  // What comes next, on any queue, begins when the copy is complete. The last instruction before that.
  int32_t wait(int32_t copy) {
    for (std::vector<int32_t>& waits : unwaited_) waits.push_back(copy);
    return static_cast<int32_t>(entry_.code.size()) - 1;
  }

  void add_storages() {
    const auto values = values_by_class(graph_, draft_.model);
    std::vector<bool> moves(draft_.chains.size(), false);
    for (const PieceOf& piece : pieces_) {
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
    stays_of_.resize(draft_.model.classes.size());
    first_stay_ = entry_.storages.size();
    for (size_t i = 0; i < stays_.size(); ++i) {
      const Stay& stay = stays_[i];
      const PieceOf& piece = pieces_[stay.piece];
      const Chain* chain = piece.is_chain ? &draft_.chains[piece.index] : nullptr;
      const Value& first = graph_.value(draft_.model.classes[chain ? chain->classes[0] : piece.index].root);
      for (uint32_t c : chain ? chain->classes : std::vector<uint32_t>{piece.index}) stays_of_[c].push_back(i);
      entry_.storages.push_back({.name = first.name,
                                 .purpose = purpose_of(first.kind),
                                 .place = {.bytes = whole_sectors(first.bytes())},
                                 .values = chain ? chain_values(*chain) : values[piece.index],
                                 .first = read_at_[i] >= 0 ? read_at_[i] : step_at_[stay.first],
                                 .last = write_over_[i] >= 0 ? write_over_[i] : step_at_[stay.last]});
    }
  }

  // Graph inputs are there before the first copy; what is kept is there after the last one.
  int32_t at_step(int32_t step, bool begins) const {
    const auto steps = static_cast<int32_t>(step_at_.size());
    if (begins && step == 0) return 0;
    if (!begins && step >= steps - 1) return std::max(0, static_cast<int32_t>(entry_.code.size()) - 1);
    return step_at_[step];
  }

  // Addresses above the persistent values, and the peak. The storages are the plan's blocks and, behind those, its stays.
  void place_storages(int64_t persistent_bytes) {
    std::vector<Block> blocks;
    for (const Storage& storage : entry_.storages)
      blocks.push_back({.bytes = storage.place.bytes, .first = storage.first, .last = storage.last});
    for (size_t i = first_stay_; i < blocks.size(); ++i) blocks[i].alignment = kSector;
    entry_.peaks.resize(kFile + 1);
    SpacePeak& peak = entry_.peaks[kMemory];
    peak.bytes = max_live_bytes(blocks, &peak.instruction) + persistent_bytes;
    if (!plan_) pack(blocks);
    for (size_t i = 0; plan_ && i < blocks.size(); ++i)
      blocks[i].offset = i < first_stay_ ? plan_->block_offsets[i] : stays_[i - first_stay_].offset;
    for (size_t i = 0; i < blocks.size(); ++i) entry_.storages[i].place.offset = blocks[i].offset + persistent_bytes;
  }

  Place place_of(ValueId value, int32_t step) const {
    const uint32_t c = value == kNone ? kNone : draft_.model.class_of[value];
    if (c == kNone) return {};
    const int64_t bytes = graph_.value(value).bytes();
    if (bytes == 0) return {};
    const Persistent* const persistent = draft_.model.classes[c].persistent ? &persistents_[draft_.persistent_of_class[c]] : nullptr;
    const int64_t inside = draft_.model.offset_of[value];
    if (persistent && !is_in_file(*persistent)) return {.offset = persistent->home.offset + inside, .bytes = bytes};
    if (!stays_of_[c].empty()) {
      size_t found = stays_of_[c].front();  // of several: the last that has begun
      for (size_t i : stays_of_[c]) found = stays_[i].first <= step ? i : found;
      return {.offset = entry_.storages[first_stay_ + found].place.offset + inside, .bytes = bytes};
    }
    if (persistent) return {};  // on the disk, and this entry has no use for it
    return {.offset = entry_.storages[static_cast<size_t>(storage_of_chain_[chain_of_[c]])].place.offset + inside, .bytes = bytes};
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
    for (const Persistent& value : persistents_) end = std::max(end, is_in_file(value) ? value.home.offset + file_bytes(value) : 0);
    for (size_t i = 0; i < stays_.size(); ++i) {
      if (read_at_[i] < 0 && write_at_[i] < 0) continue;  // it never leaves
      const PieceOf& piece = pieces_[stays_[i].piece];
      const Storage& storage = entry_.storages[first_stay_ + i];
      Place disk;
      if (piece.is_chain) {
        const auto [at, is_new] = spilled.emplace(piece.index, Place{.offset = end, .bytes = 0, .space = kFile});
        if (is_new) {
          at->second.bytes = graph_.value(draft_.model.classes[draft_.chains[piece.index].classes[0]].root).bytes();
          end += whole_sectors(at->second.bytes);
        }
        disk = at->second;
      } else {
        disk = persistents_[draft_.persistent_of_class[piece.index]].home;
      }
      const Place memory{.offset = storage.place.offset, .bytes = disk.bytes};
      const auto copy = [&](int32_t at, const Place& from, const Place& to) {
        if (at < 0) return;
        entry_.code[static_cast<size_t>(at)].from = from;
        entry_.code[static_cast<size_t>(at)].to = to;
      };
      copy(read_at_[i], disk, memory);
      copy(write_at_[i], memory, disk);
    }
    program.file().bytes = std::max(program.file().bytes, end);
  }

  const Draft& draft_;
  const Graph& graph_;
  const std::vector<Persistent>& persistents_;
  const std::vector<PieceOf> pieces_;
  const planning::RunPlan* const plan_;  // null: everything is in memory
  const std::vector<Stay> stays_;
  Entry entry_;
  std::vector<int32_t> step_at_;                // instruction of each step
  std::vector<std::vector<int32_t>> unwaited_;  // by queue: copies that its next instruction waits for
  std::vector<int32_t> waited_computing_;       // by queue: the last computing step that it has waited for; -1: none
  std::vector<int32_t> read_at_, write_at_;     // instructions of each stay; -1: none
  std::vector<int32_t> write_over_;             // the last instruction before its write is waited for
  std::vector<int32_t> storage_of_chain_;       // -1: it moves
  std::vector<size_t> chain_of_;                // by class
  size_t first_stay_ = 0;                       // of the storages
  std::vector<std::vector<size_t>> stays_of_;   // by class
};

}  // namespace

Entry make_entry(const Draft& draft, const std::vector<Persistent>& persistents, const PlannedRun* planned, Program& program) {
  return EntryMaker(draft, persistents, planned).make(program);
}

}  // namespace ort_train
