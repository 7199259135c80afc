#include "passes/plan/emit.h"

#include <algorithm>
#include <map>
#include <span>
#include <utility>

#include "passes/addresses.h"
#include "passes/plan/emit_code.h"
#include "passes/plan/waits.h"

namespace ort_train {
namespace {

using planning::Stay;

// Makes an Entry: the instructions (emit_code.h), a storage for each stay and block, the places of operands and copies, waits (waits.h),
// and from these the storages' lifetimes and the peaks.
class EntryMaker {
 public:
  EntryMaker(const Draft& draft, const std::vector<Persistent>& persistents, const EntryPlan& plan, Program& program)
      : draft_(draft), graph_(*draft.graph), persistents_(persistents), plan_(plan), program_(program), levels_(plan.levels.size()) {}

  Entry make() {
    entry_ = {.name = draft_.name, .role = draft_.role, .value_places = std::vector<Place>(graph_.value_count()), .keep = draft_.keep};
    code_ = lay_code(draft_, plan_, program_.queues);
    entry_.code = std::move(code_.code);
    for (size_t l = 0; l < levels_.size(); ++l) add_storages(l);
    place_values();
    place_copies();
    find_waits();
    set_lifetimes();
    set_peaks();
    return std::move(entry_);
  }

 private:
  // A memory of the plan, and what of it is in the entry.
  struct LevelStorages {
    std::vector<int32_t> storage_of_stay{};          // by stay
    std::vector<int32_t> storage_of_buffer{};        // of blocks; -1: none
    std::map<int32_t, std::vector<size_t>> stays{};  // by value
    std::map<int32_t, int32_t> workspace_of{};       // by step
  };
  // What instructions do with a storage.
  struct Life {
    int32_t first = std::numeric_limits<int32_t>::max(), last = -1;
    std::vector<int32_t> copies{};
    bool is_whole = false;  // its first instruction takes all its bytes
    void use(int32_t at) {
      first = std::min(first, at);
      last = std::max(last, at);
    }
  };

  // --- storages ---------------------------------------------------------------------------------------------------------------------

  std::span<const uint32_t> classes_of(const PieceOf& of) const {
    return of.is_buffer ? std::span(draft_.buffers[of.index].classes) : std::span(&of.index, 1);
  }
  std::vector<ValueId> values_of(const PieceOf& of) {
    if (by_class_.empty()) by_class_ = values_by_class(graph_, draft_.model);
    std::vector<ValueId> all;
    for (uint32_t c : classes_of(of)) all.insert(all.end(), by_class_[c].begin(), by_class_[c].end());
    return all;
  }
  ValueId root_of(const PieceOf& of) const { return draft_.model.classes[classes_of(of)[0]].root; }

  int32_t add_storage(const PieceOf& of, size_t level, int64_t bytes) {
    const Value& root = graph_.value(root_of(of));
    entry_.storages.push_back({.name = root.name,
                               .purpose = purpose_of(root.kind),
                               .place = {.bytes = bytes, .space = kSpaceOfLevel[level]},
                               .values = values_of(of)});
    lives_.emplace_back();
    return static_cast<int32_t>(entry_.storages.size()) - 1;
  }

  // The blocks of a level, in the order of the plan; in the backing memory first those that are fed from there.
  std::vector<RunDraft::BlockOf> blocks_of(size_t level) const {
    const RunDraft& draft = *plan_.run_draft;
    if (level == 0) return draft.blocks;
    std::vector<RunDraft::BlockOf> blocks;
    for (size_t b = 0; b < draft.blocks.size(); ++b) {
      if (plan_.levels[0].run->blocks[b].fed) blocks.push_back(draft.blocks[b]);
    }
    blocks.insert(blocks.end(), draft.backing_blocks.begin(), draft.backing_blocks.end());
    return blocks;
  }

  void add_storages(size_t number) {
    LevelStorages& level = levels_[number];
    const size_t begin = entry_.storages.size();
    level.storage_of_buffer.assign(draft_.buffers.size(), -1);
    for (const RunDraft::BlockOf& block : blocks_of(number)) {
      if (block.buffer >= 0) {
        const int64_t bytes = graph_.value(root_of({.is_buffer = true, .index = static_cast<uint32_t>(block.buffer)})).bytes();
        const int32_t storage = add_storage({.is_buffer = true, .index = static_cast<uint32_t>(block.buffer)}, number, bytes);
        level.storage_of_buffer[static_cast<size_t>(block.buffer)] = storage;
        set_block_life(number, block.buffer, lives_[static_cast<size_t>(storage)]);
        continue;
      }
      const int32_t at = code_.step_at[static_cast<size_t>(block.step)];
      level.workspace_of[block.step] = static_cast<int32_t>(entry_.storages.size());
      entry_.storages.push_back(
          {.name = describe(graph_, entry_.code[static_cast<size_t>(at)].node),
           .purpose = Purpose::workspace,
           .place = {.bytes = draft_.workspaces[draft_.order[static_cast<size_t>(block.step)]], .space = kSpaceOfLevel[number]},
           .values = {}});
      lives_.emplace_back().use(at);
    }
    const std::vector<Stay>& stays = stays_of(plan_, number);
    const size_t first_stay = entry_.storages.size();
    for (size_t i = 0; i < stays.size(); ++i) {
      const planning::Piece& piece = plan_.levels[number].run->pieces[stays[i].piece];
      const PieceOf& of = plan_.run_draft->values[static_cast<size_t>(piece.value_number)];
      level.stays[piece.value_number].push_back(i);
      level.storage_of_stay.push_back(add_storage(of, number, whole_sectors(graph_.value(root_of(of)).bytes())));
      Life& life = lives_.back();
      life.is_whole = true;
      if (number == 0) {
        life.use(code_.step_at[static_cast<size_t>(stays[i].first)]);
        life.use(code_.step_at[static_cast<size_t>(stays[i].last)]);
      }
    }
    place_storages(number, begin, first_stay);
  }

  // Graph inputs are there before the first copy; what is kept is there after the last one.
  void set_block_life(size_t level, int32_t buffer, Life& life) const {
    const Buffer& of = draft_.buffers[static_cast<size_t>(buffer)];
    const auto steps = static_cast<int32_t>(code_.step_at.size()), end = std::max(0, static_cast<int32_t>(entry_.code.size()) - 1);
    const bool fed_here = level + 1 == levels_.size() && of.fed;
    if (fed_here || steps == 0) life.use(0);
    if (level == 0) {  // else by its copies and the steps that use it there
      if (of.first < steps && (!of.fed || levels_.size() == 1))
        life.use(of.first <= 0 ? (levels_.size() == 1 ? 0 : code_.step_at[0]) : code_.step_at[static_cast<size_t>(of.first)]);
      life.use(of.last >= steps - 1 ? end : code_.step_at[static_cast<size_t>(of.last)]);
    } else if (of.kept) {
      life.use(end);
    }
  }

  // Addresses above the persistent values. The storages are the plan's blocks and, after those, its stays.
  void place_storages(size_t number, size_t begin, size_t first_stay) {
    const int64_t persistent_bytes = program_.spaces[kSpaceOfLevel[number]].persistent_bytes;
    const planning::RunPlan& plan = *plan_.levels[number].plan;
    for (size_t i = begin; i < entry_.storages.size(); ++i)
      entry_.storages[i].place.offset =
          persistent_bytes + (i < first_stay ? plan.block_offsets[i - begin] : plan.stays[i - first_stay].offset);
  }

  // --- places -----------------------------------------------------------------------------------------------------------------------

  // The last stay of a value that has begun by a step, in a level; -1: none.
  int32_t stay_at(size_t level, int32_t value, int32_t step) const {
    const auto found = levels_[level].stays.find(value);
    if (found == levels_[level].stays.end()) return -1;
    size_t last = found->second.front();
    for (size_t i : found->second) last = stays_of(plan_, level)[i].first <= step ? i : last;
    return static_cast<int32_t>(last);
  }

  Place place_of(ValueId value, int32_t step, size_t level) const {
    const uint32_t c = value == kNone ? kNone : draft_.model.class_of[value];
    if (c == kNone) return {};
    const int64_t bytes = graph_.value(value).bytes();
    if (bytes == 0) return {};
    const int64_t inside = draft_.model.offset_of[value];
    const auto in = [&](const Place& whole) { return Place{.offset = whole.offset + inside, .bytes = bytes, .space = whole.space}; };
    const Persistent* const persistent = draft_.model.classes[c].persistent ? &persistents_[draft_.persistent_of_class[c]] : nullptr;
    if (persistent && persistent->home.space == kSpaceOfLevel[level]) return in(persistent->home);
    const int32_t found = storage_at(c, step, level);
    return found < 0 ? Place{} : in(storage(found).place);
  }
  // The storage of a class at a step, in a level; -1: none.
  int32_t storage_at(uint32_t c, int32_t step, size_t level) const {
    if (c == kNone) return -1;
    const int32_t stay = value_of_class_[c] < 0 ? -1 : stay_at(level, value_of_class_[c], step);
    if (stay >= 0) return levels_[level].storage_of_stay[static_cast<size_t>(stay)];
    return draft_.model.classes[c].persistent ? -1 : levels_[level].storage_of_buffer[buffer_of_[c]];
  }
  const Storage& storage(int32_t number) const { return entry_.storages[static_cast<size_t>(number)]; }

  void place_values() {
    buffer_of_.assign(draft_.model.classes.size(), 0);
    value_of_class_.assign(draft_.model.classes.size(), -1);
    for (size_t i = 0; i < draft_.buffers.size(); ++i) {
      for (uint32_t c : draft_.buffers[i].classes) buffer_of_[c] = i;
    }
    for (size_t v = 0; v < plan_.run_draft->values.size(); ++v) {
      const PieceOf& of = plan_.run_draft->values[v];
      for (uint32_t c : classes_of(of)) value_of_class_[c] = static_cast<int32_t>(v);
    }
    const size_t far = levels_.size() - 1;
    const auto is_input = [&](ValueId value) {
      return graph_.value(value).producer == kNone && graph_.value(value).kind == ValueKind::input;
    };
    for (ValueId value = 0; value < graph_.value_count(); ++value) {
      for (size_t l = is_input(value) ? far : 0; l < levels_.size() && entry_.value_places[value].bytes == 0; ++l)
        entry_.value_places[value] = place_of(value, 0, l);
    }
    for (int32_t t = 0; t < static_cast<int32_t>(code_.step_at.size()); ++t) {
      const int32_t at = code_.step_at[static_cast<size_t>(t)];
      Instruction& instruction = entry_.code[static_cast<size_t>(at)];
      const Node& node = graph_.node(instruction.node);
      const size_t level = level_of_step(plan_, t);
      const auto place = [&](ValueId value) {
        const Place found = place_of(value, t, level);
        if (value != kNone && !(far > 0 && is_input(value))) entry_.value_places[value] = found;
        const int32_t backing = value == kNone || level == 0 ? -1 : storage_at(draft_.model.class_of[value], t, level);
        if (backing >= 0) lives_[static_cast<size_t>(backing)].use(at);
        return found;
      };
      for (ValueId value : node.inputs) instruction.inputs.push_back(place(value));
      for (ValueId value : node.outputs) instruction.outputs.push_back(place(value));
      if (const auto workspace = levels_[level].workspace_of.find(t); workspace != levels_[level].workspace_of.end())
        instruction.workspace = storage(workspace->second).place;
    }
  }

  // Where copies go from and to: in the backing memory to where the value is then, in the file to its home, or to a place of the entry's
  // own.
  void place_copies() {
    std::map<int32_t, Place> spilled;  // by value
    int64_t end = 0;
    for (const Persistent& value : persistents_) end = std::max(end, is_in_file(value) ? value.home.offset + file_bytes(value) : 0);
    for (size_t l = 0; l < levels_.size(); ++l) {
      const std::vector<Stay>& stays = stays_of(plan_, l);
      for (size_t i = 0; i < stays.size(); ++i) {
        const int32_t read = code_.read_at[l][i], write = code_.write_at[l][i];
        if (read < 0 && write < 0) continue;  // it never leaves
        const int32_t value = plan_.levels[l].run->pieces[stays[i].piece].value_number;
        const PieceOf& of = plan_.run_draft->values[static_cast<size_t>(value)];
        const int64_t bytes = graph_.value(root_of(of)).bytes();
        const Persistent* const persistent = of.is_buffer ? nullptr : &persistents_[draft_.persistent_of_class[of.index]];
        const int32_t here = levels_[l].storage_of_stay[i];
        // Its place in the store, at a step.
        const auto there = [&](int32_t step) -> std::pair<Place, int32_t> {
          if (persistent && persistent->home.space == store_of(plan_, l)) return {persistent->home, -1};
          if (store_of(plan_, l) != kFile) {
            const int32_t stay = stay_at(l + 1, value, step);
            const int32_t held = levels_[l + 1].storage_of_stay.at(static_cast<size_t>(stay));
            return {storage(held).place, held};
          }
          const auto [at, is_new] = spilled.emplace(value, Place{.offset = end, .bytes = bytes, .space = kFile});
          if (is_new) end += whole_sectors(bytes);
          return {at->second, -1};
        };
        if (read >= 0) copy(read, there(stays[i].issue), {storage(here).place, here}, bytes);
        if (write >= 0) copy(write, {storage(here).place, here}, there(stays[i].last + 1), bytes);
      }
    }
    program_.file().bytes = std::max(program_.file().bytes, end);
    for (size_t buffer = 0; buffer < code_.fed_at.size(); ++buffer) {
      if (code_.fed_at[buffer] < 0) continue;
      const int32_t from = levels_[1].storage_of_buffer[buffer], to = levels_[0].storage_of_buffer[buffer];
      copy(code_.fed_at[buffer], {storage(from).place, from}, {storage(to).place, to}, storage(from).place.bytes);
    }
  }

  // Places with the storages that they are; -1: what lives across runs, or the file.
  void copy(int32_t at, const std::pair<Place, int32_t>& from, const std::pair<Place, int32_t>& to, int64_t bytes) {
    Instruction& instruction = entry_.code[static_cast<size_t>(at)];
    instruction.from = from.first;
    instruction.to = to.first;
    instruction.from.bytes = instruction.to.bytes = bytes;
    for (const int32_t storage : {from.second, to.second}) {
      if (storage < 0) continue;
      lives_[static_cast<size_t>(storage)].use(at);
      lives_[static_cast<size_t>(storage)].copies.push_back(at);
    }
  }

  void find_waits() {
    std::vector<WaitsBesides> besides(entry_.code.size());
    for (size_t s = 0; s < lives_.size(); ++s) {
      if (lives_[s].is_whole && lives_[s].last >= 0)
        besides[static_cast<size_t>(lives_[s].first)].writes.push_back(entry_.storages[s].place);
    }
    for (size_t l = 0; l < levels_.size(); ++l) {
      const std::vector<Stay>& stays = stays_of(plan_, l);
      for (size_t i = 0; i < stays.size(); ++i) {  // by then a plan counts on its place
        if (stays[i].writes && static_cast<size_t>(stays[i].released) < code_.step_at.size())
          besides[static_cast<size_t>(code_.step_at[static_cast<size_t>(stays[i].released)])].earlier.push_back(code_.write_at[l][i]);
      }
    }
    add_waits(entry_.code, program_.queues, besides);
  }

  void set_lifetimes() {
    const std::vector<int32_t> waits = first_waits(entry_);
    for (size_t s = 0; s < lives_.size(); ++s) {
      Life& life = lives_[s];
      for (const int32_t at : life.copies) life.last = std::max(life.last, waits[static_cast<size_t>(at)] - 1);
      entry_.storages[s].first = life.last < 0 ? 0 : life.first;
      entry_.storages[s].last = std::max(life.last, 0);
    }
  }

  void set_peaks() {
    entry_.peaks.resize(program_.spaces.size());
    for (size_t l = 0; l < levels_.size(); ++l) {
      const SpaceId space = kSpaceOfLevel[l];
      std::vector<AddressBlock> blocks;
      for (const Storage& storage : entry_.storages) {
        if (storage.place.space == space) blocks.push_back({.bytes = storage.place.bytes, .first = storage.first, .last = storage.last});
      }
      SpacePeak& peak = entry_.peaks[space];
      peak.bytes = max_live_bytes(blocks, &peak.instruction) + program_.spaces[space].persistent_bytes;
    }
  }

  const Draft& draft_;
  const Graph& graph_;
  const std::vector<Persistent>& persistents_;
  const EntryPlan& plan_;
  Program& program_;
  std::vector<LevelStorages> levels_;
  Entry entry_;
  std::vector<Life> lives_;              // by storage
  EntryCode code_;                       // but for the instructions, which are the entry's
  std::vector<size_t> buffer_of_;        // by class
  std::vector<int32_t> value_of_class_;  // of the plan's pieces, by class; -1: none
  std::vector<std::vector<ValueId>> by_class_;
};

}  // namespace

Entry make_entry(const Draft& draft, const std::vector<Persistent>& persistents, const EntryPlan& plan, Program& program) {
  return EntryMaker(draft, persistents, plan, program).make();
}

}  // namespace ort_train
