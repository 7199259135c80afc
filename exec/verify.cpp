// verify: the proof that a Program does what its graphs say, made by replaying it over a map of the arena's bytes.
//
// The map says of each range which content it holds: a number that is new for each value made or changed, and the same for a view. A node
// must find its input's content, whole, wherever it reads it. The disk has a map of its own: transfers carry contents from one to the
// other, and until one is waited for, what it touches is out of bounds. What the planner thinks of lifetimes enters nowhere in the replay;
// the stated storages, from which reports are made, are checked against it afterwards.

#include <algorithm>
#include <iterator>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "exec/kernel_table.h"
#include "exec/program.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

using Content = int64_t;
constexpr Content kGarbage = -1, kUnknown = -2;

bool overlap(const Place& a, const Place& b) { return a.bytes > 0 && b.bytes > 0 && a.offset < b.end() && b.offset < a.end(); }

template <typename... Args> [[noreturn]] void fail_program(fmt::format_string<Args...> format, Args&&... args) {
  throw error(ErrorCode::device, "internal error: the plan is wrong: {}; please report this",
              fmt::format(format, std::forward<Args>(args)...));
}

// What the arena's bytes hold.
class ByteMap {
 public:
  void write(const Place& place, Content content) {
    if (place.bytes == 0) return;
    cut(place.offset);
    cut(place.end());
    const auto begin = ranges_.lower_bound(place.offset), end = ranges_.lower_bound(place.end());
    const auto hint = ranges_.erase(begin, end);
    ranges_.emplace_hint(hint, place.offset, Range{place.end(), content});
  }
  // What the place holds as a whole; kGarbage where that is nothing or pieces.
  Content content(const Place& place) const {
    const auto at = ranges_.find(place.offset);
    return at != ranges_.end() && at->second.end == place.end() ? at->second.content : kGarbage;
  }
  bool is_free(const Place& place) const {
    auto at = ranges_.lower_bound(place.end());
    return at == ranges_.begin() || std::prev(at)->second.end <= place.offset;
  }

 private:
  struct Range {
    int64_t end;
    Content content;
  };
  // Makes a range that covers `offset` end there; its pieces are whole no more.
  void cut(int64_t offset) {
    auto at = ranges_.lower_bound(offset);
    if (at == ranges_.begin()) return;
    --at;
    if (at->second.end <= offset) return;
    const int64_t end = at->second.end;
    at->second = {offset, kGarbage};
    ranges_.emplace_hint(std::next(at), offset, Range{end, kGarbage});
  }
  std::map<int64_t, Range> ranges_;
};

class EntryVerifier {
 public:
  EntryVerifier(const Program& program, const Entry& entry, const Graph& graph, KernelTable& kernels)
      : program_(program),
        entry_(entry),
        graph_(graph),
        kernels_(kernels),
        content_(graph.value_count(), kUnknown),
        persistent_of_(graph.value_count(), -1),
        last_place_(graph.value_count()),
        within_(graph.value_count()) {}

  void run() {
    check_code();
    place_persistents();
    place_inputs();
    for (at_ = 0; at_ < static_cast<int32_t>(entry_.code.size()); ++at_) {
      const Instruction& instruction = entry_.code[at_];
      if (instruction.action == Action::compute)
        replay(instruction);
      else if (instruction.action == Action::wait)
        finish(instruction.transfer);
      else
        start(instruction);
    }
    check_end();
    check_storages();
    check_peak();
  }

 private:
  template <typename... Args> [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    const bool within = at_ >= 0 && at_ < static_cast<int32_t>(entry_.code.size());
    if (within) {
      const NodeId node = entry_.code[at_].node;
      fail_program("entry '{}', instruction {}, {}: {}", entry_.name, at_, node < graph_.node_count() ? describe(graph_, node) : "transfer",
                   what);
    }
    fail_program("entry '{}': {}", entry_.name, what);
  }

  // Every node once.
  void check_code() {
    if (entry_.value_places.size() != graph_.value_count())
      fail("it has places for {} values, the graph has {}", entry_.value_places.size(), graph_.value_count());
    const std::unordered_set<NodeId> wanted(graph_.order().begin(), graph_.order().end());
    std::unordered_set<NodeId> seen;
    for (const Instruction& instruction : entry_.code) {
      if (instruction.action != Action::compute) continue;
      if (!wanted.count(instruction.node)) fail("it runs node {}, which isn't in the graph's order", instruction.node);
      if (!seen.insert(instruction.node).second) fail("{} runs twice", describe(graph_, instruction.node));
    }
    for (NodeId node : graph_.order()) {
      if (!seen.count(node)) fail("{} is left out", describe(graph_, node));
    }
  }

  void check_place(const Place& place, int64_t bytes, const char* what) const {
    if (place.bytes != bytes) fail("{} has {} bytes of memory, but needs {}", what, place.bytes, bytes);
    if (bytes == 0) return;
    if (place.offset % kPlaceAlignment != 0) fail("{} is misaligned at {}", what, place.offset);
    if (place.offset < 0 || place.end() > program_.arena_bytes)
      fail("{} lies at {} to {}, outside the arena of {} bytes", what, place.offset, place.end(), program_.arena_bytes);
  }

  // All of them are there before the first instruction, also those that this entry has no use for.
  void place_persistents() {
    std::unordered_map<std::string_view, size_t> by_name;
    std::unordered_map<int64_t, size_t> constant_at;
    for (size_t i = 0; i < program_.persistent.size(); ++i) {
      const Persistent& value = program_.persistent[i];
      state_.push_back(next_++);
      (value.disk.bytes > 0 ? disk_ : bytes_).write(home(value), state_[i]);
      if (!value.initial)
        by_name.emplace(value.name, i);
      else if (value.place.bytes > 0)
        constant_at.emplace(value.place.offset, i);
    }
    for (ValueId id = 0; id < graph_.value_count(); ++id) {
      const Value& value = graph_.value(id);
      const Place& place = entry_.value_places[id];
      if (value.producer != kNone || value.kind == ValueKind::input || value.bytes() == 0) continue;
      const bool state =
          value.kind == ValueKind::parameter || value.kind == ValueKind::optimizer_state || value.kind == ValueKind::accumulator;
      if (place.bytes == 0 && !state) continue;  // nobody reads it, or only rules of shape
      size_t found = program_.persistent.size();
      if (value.constant) {
        const auto at = constant_at.find(place.offset);
        if (at != constant_at.end()) found = at->second;
      } else if (const auto at = by_name.find(value.name); at != by_name.end()) {
        found = at->second;
      }
      if (found == program_.persistent.size()) fail("'{}' has no memory that lives across runs", value.name);
      const Persistent& persistent = program_.persistent[found];
      if (persistent.type != value.type() || (persistent.disk.bytes == 0 && persistent.place != place))
        fail("'{}' isn't where it lives across runs", value.name);
      if (value.constant && value.constant != persistent.initial && *value.constant != *persistent.initial)
        fail("'{}' is where another constant lives", value.name);
      content_[id] = state_[found];
      persistent_of_[id] = static_cast<int32_t>(found);
    }
  }

  void place_inputs() {
    for (ValueId id = 0; id < graph_.value_count(); ++id) {
      const Value& value = graph_.value(id);
      const bool given = value.producer == kNone && value.kind == ValueKind::input && entry_.value_places[id].bytes > 0;
      if (!given) continue;
      const Place& place = entry_.value_places[id];
      check_place(place, value.bytes(), "an input");
      if (!bytes_.is_free(place)) fail("the input '{}' lies over something else", value.name);
      content_[id] = next_++;
      bytes_.write(place, content_[id]);
    }
    for (ValueId id : graph_.inputs) {
      if (graph_.value(id).bytes() > 0 && entry_.value_places[id].bytes == 0) fail("the input '{}' has no place", graph_.value(id).name);
    }
  }

  // Memory that a transfer uses: nobody may write it, and what is being read from the disk isn't there yet.
  void check_still(const Place& place, bool written) const {
    for (const auto& [number, transfer] : in_flight_) {
      if ((written || transfer->action == Action::read) && overlap(place, moved(transfer->memory)))
        fail("instruction {} is still moving the bytes at {}", number, place.offset);
    }
  }

  static Place moved(const Place& place) { return {.offset = place.offset, .bytes = whole_sectors(place.bytes)}; }

  void start(const Instruction& instruction) {
    const Place memory = moved(instruction.memory), disk = moved(instruction.disk);
    if (instruction.memory.bytes <= 0 || instruction.disk.bytes != instruction.memory.bytes)
      fail("it moves {} bytes to or from {}", instruction.memory.bytes, instruction.disk.bytes);
    if (memory.offset % kSector != 0 || disk.offset % kSector != 0) fail("it begins at {} and {}", memory.offset, disk.offset);
    check_place(memory, memory.bytes, "what it moves");
    if (memory.offset < program_.persistent_bytes) fail("it moves what lives across runs");
    if (disk.offset < 0 || disk.end() > program_.disk_bytes)
      fail("it ends at {}, outside the disk's {} bytes", disk.end(), program_.disk_bytes);
    const bool reads = instruction.action == Action::read;
    check_still(memory, reads);
    for (const auto& [number, transfer] : in_flight_) {
      const bool both_read = reads && transfer->action == Action::read;
      if (!both_read && overlap(disk, moved(transfer->disk))) fail("instruction {} is still busy with the same place of the disk", number);
    }
    if (reads) {
      if (disk_.content(instruction.disk) == kGarbage) fail("the disk has nothing whole at {}", disk.offset);
      bytes_.write(memory, kGarbage);
    } else {
      if (bytes_.content(instruction.memory) == kGarbage) fail("there is nothing whole at {}", memory.offset);
      disk_.write(disk, kGarbage);
    }
    in_flight_.emplace(at_, &instruction);
  }

  void finish(int32_t number) {
    const auto found = in_flight_.find(number);
    if (found == in_flight_.end()) fail("it waits for instruction {}, which moves nothing now", number);
    const Instruction& transfer = *found->second;
    in_flight_.erase(found);
    if (transfer.action == Action::read)
      bytes_.write(transfer.memory, disk_.content(transfer.disk));
    else
      disk_.write(transfer.disk, bytes_.content(transfer.memory));
  }

  void replay(const Instruction& instruction) {
    const Node& node = graph_.node(instruction.node);
    if (instruction.inputs.size() != node.inputs.size() || instruction.outputs.size() != node.outputs.size())
      fail("it has not as many places as its node has inputs and outputs");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId value = node.inputs[i];
      check_place(instruction.inputs[i], value == kNone ? 0 : graph_.value(value).bytes(), "an input");
      if (instruction.inputs[i].bytes == 0) continue;
      last_place_[value] = instruction.inputs[i];
      if (node.op->overwrites && declared(node.op->writes, 0, i)) continue;  // whatever it holds
      if (content_[value] == kUnknown) fail("'{}' is read before it is written", graph_.value(value).name);
      check_still(instruction.inputs[i], false);
      if (bytes_.content(whole_of(value, instruction.inputs[i])) != content_[value])
        fail("'{}' was overwritten before it is read, or is elsewhere", graph_.value(value).name);
    }
    check_workspace(node, instruction);
    for (size_t i = 0; i < node.outputs.size(); ++i) check_output(node, instruction, i);
    bytes_.write(instruction.workspace, kGarbage);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != kNone) write_output(node, instruction, i);
    }
  }

  // Where in the content that it shows a value begins, and how large that content is.
  Place within(ValueId value) const {
    return within_[value].bytes > 0 ? within_[value] : Place{.offset = 0, .bytes = graph_.value(value).bytes()};
  }

  // Where the content has to lie, as a whole, that a value at `place` shows a part of.
  Place whole_of(ValueId value, const Place& place) const {
    const Place inside = within(value);
    return {.offset = place.offset - inside.offset, .bytes = inside.bytes};
  }

  void check_workspace(const Node& node, const Instruction& instruction) {
    const int64_t wanted = kernels_.workspace(kernels_.add(*node.op, make_spec(graph_, node, program_.threads)));
    const Place& workspace = instruction.workspace;
    check_place(workspace, wanted, "the workspace");
    if (wanted > 0 && workspace.offset < program_.persistent_bytes) fail("the workspace lies over what lives across runs");
    check_still(workspace, true);
    for (const auto* places : {&instruction.inputs, &instruction.outputs}) {
      for (const Place& place : *places) {
        if (overlap(workspace, place)) fail("the workspace lies over an input or output");
      }
    }
  }

  static bool declared(const std::vector<Alias>& pairs, size_t output, size_t input) {
    return std::any_of(pairs.begin(), pairs.end(),
                       [&](const Alias& a) { return static_cast<size_t>(a.output) == output && static_cast<size_t>(a.input) == input; });
  }

  void check_output(const Node& node, const Instruction& instruction, size_t i) const {
    const ValueId value = node.outputs[i];
    const Place& place = instruction.outputs[i];
    check_place(place, value == kNone ? 0 : graph_.value(value).bytes(), "an output");
    if (value == kNone) return;
    if (content_[value] != kUnknown) fail("'{}' is written twice", graph_.value(value).name);
    for (size_t j = 0; j < i; ++j) {
      if (overlap(place, instruction.outputs[j])) fail("outputs {} and {} overlap", j, i);
    }
    bool state = false;
    int shared = 0;
    for (size_t j = 0; j < node.inputs.size(); ++j) {
      if (node.inputs[j] == kNone) continue;
      const bool changes = declared(node.op->writes, i, j);
      state |= changes;
      if (changes && place != instruction.inputs[j]) fail("it changes '{}', but not in its place", graph_.value(node.inputs[j]).name);
      if (!overlap(place, instruction.inputs[j])) continue;
      ++shared;
      const bool view = is_view(node, instruction) && static_cast<size_t>(node.op->alias[0].input) == j;
      const bool allowed = view || ((changes || declared(node.op->in_place, i, j)) && place == instruction.inputs[j]);
      if (!allowed) fail("'{}' lies over the input '{}'", graph_.value(value).name, graph_.value(node.inputs[j]).name);
    }
    if (shared > 1) fail("'{}' lies over more than one input", graph_.value(value).name);
    if (!is_view(node, instruction)) check_still(place, true);
    if (place.bytes > 0 && !state && !is_view(node, instruction) && place.offset < program_.persistent_bytes)
      fail("'{}' lies over what lives across runs", graph_.value(value).name);
  }

  void write_output(const Node& node, const Instruction& instruction, size_t i) {
    const ValueId value = node.outputs[i];
    last_place_[value] = instruction.outputs[i];
    if (is_view(node, instruction)) {
      const ValueId viewed = node.inputs[node.op->alias[0].input];
      const Place inside = within(viewed);
      content_[value] = content_[viewed];
      within_[value] = {.offset = inside.offset + view_offset(node), .bytes = inside.bytes};
      return;
    }
    content_[value] = next_++;
    bytes_.write(instruction.outputs[i], content_[value]);
    for (const Alias& write : node.op->writes) {
      if (static_cast<size_t>(write.output) != i || node.inputs[write.input] == kNone) continue;
      persistent_of_[value] = persistent_of_[node.inputs[write.input]];
      if (persistent_of_[value] >= 0) state_[static_cast<size_t>(persistent_of_[value])] = content_[value];
    }
  }

  void check_end() {
    for (ValueId value = 0; value < graph_.value_count(); ++value) {
      if (last_place_[value].bytes > 0 && entry_.value_places[value] != last_place_[value])
        fail("'{}' isn't where it is said to be", graph_.value(value).name);
    }
    if (!in_flight_.empty()) fail("nobody waits for the transfer of instruction {}", in_flight_.begin()->first);
    for (const auto* values : {&graph_.outputs, &entry_.keep}) {
      for (ValueId value : *values) {
        if (value >= graph_.value_count()) fail("it is to keep a value that isn't there");
        if (graph_.value(value).bytes() == 0) continue;
        if (content_[value] == kUnknown) fail("it is to keep '{}', which nothing makes", graph_.value(value).name);
        if (bytes_.content(whole_of(value, entry_.value_places[value])) != content_[value])
          fail("'{}' isn't intact at the end", graph_.value(value).name);
      }
    }
    for (size_t i = 0; i < program_.persistent.size(); ++i) {
      const Persistent& value = program_.persistent[i];
      const ByteMap& map = value.disk.bytes > 0 ? disk_ : bytes_;
      if (value.type.bytes() > 0 && map.content(home(value)) != state_[i])
        fail("'{}', which lives across runs, was overwritten", value.name);
    }
  }

  static const Place& home(const Persistent& value) { return value.disk.bytes > 0 ? value.disk : value.place; }

  // The stated storages: whatever an instruction touches lies in one that is live then and has that value, workspaces and transfers
  // included; no two that live at once overlap.
  void check_storages() {
    const auto end = static_cast<int32_t>(entry_.code.size());
    opening_.resize(static_cast<size_t>(std::max(end, 1)));
    closing_.resize(opening_.size());
    for (int32_t s = 0; s < static_cast<int32_t>(entry_.storages.size()); ++s) {
      const Storage& storage = entry_.storages[s];
      if (storage.first < 0 || storage.last < storage.first || storage.last >= std::max(end, 1))
        fail("the storage '{}' lives from {} to {}", storage.name, storage.first, storage.last);
      check_place(storage.place, storage.place.bytes, "a storage");
      if (storage.place.bytes > 0 && storage.place.offset < program_.persistent_bytes)
        fail("the storage '{}' lies over what lives across runs", storage.name);
      if (storage.purpose == Purpose::workspace && (storage.first != storage.last || entry_.code[storage.first].workspace != storage.place))
        fail("the storage '{}' isn't its instruction's workspace", storage.name);
      if (storage.place.bytes == 0) continue;
      opening_[storage.first].push_back(s);
      closing_[storage.last].push_back(s);
    }
    for (at_ = 0; at_ < std::max(end, 1); ++at_) {
      for (int32_t s : opening_[at_]) open(s);
      if (at_ == 0) check_given();
      if (at_ < end) check_touched(entry_.code[at_]);
      if (at_ + 1 >= end) check_kept();
      for (int32_t s : closing_[at_]) live_.erase(entry_.storages[s].place.offset);
    }
    at_ = -1;
  }

  void open(int32_t s) {
    const auto [place, is_new] = live_.emplace(entry_.storages[s].place.offset, s);
    const auto clash = [&](int32_t other) { return overlap(entry_.storages[s].place, entry_.storages[other].place); };
    if (!is_new || (place != live_.begin() && clash(std::prev(place)->second)) ||
        (std::next(place) != live_.end() && clash(std::next(place)->second)))
      fail("the storage '{}' overlaps another that lives then", entry_.storages[s].name);
  }

  const Storage& storage_at(const Place& place, const char* what) const {
    const auto found = live_.find(place.offset);
    if (found == live_.end() || entry_.storages[found->second].place.bytes < place.bytes)
      fail("{} at {} has no storage", what, place.offset);
    return entry_.storages[found->second];
  }

  void check_value(ValueId value, const Place& place) const {
    if (place.bytes == 0 || place.offset < program_.persistent_bytes) return;
    const Storage& storage = storage_at(whole_of(value, place), graph_.value(value).name.c_str());
    if (std::find(storage.values.begin(), storage.values.end(), value) == storage.values.end())
      fail("the storage '{}' isn't that of '{}'", storage.name, graph_.value(value).name);
  }

  void check_touched(const Instruction& instruction) {
    switch (instruction.action) {
      case Action::compute: {
        const Node& node = graph_.node(instruction.node);
        for (size_t i = 0; i < node.inputs.size(); ++i) check_value(node.inputs[i], instruction.inputs[i]);
        for (size_t i = 0; i < node.outputs.size(); ++i) check_value(node.outputs[i], instruction.outputs[i]);
        if (instruction.workspace.bytes == 0) break;
        if (storage_at(instruction.workspace, "the workspace").purpose != Purpose::workspace) fail("the workspace is another's storage");
        break;
      }
      case Action::read:
      case Action::write:
        moving_[at_] = &storage_at(moved(instruction.memory), "what it moves");
        break;
      case Action::wait:
        if (&storage_at(moved(entry_.code[instruction.transfer].memory), "what it waits for") != moving_[instruction.transfer])
          fail("the storage of instruction {} ends before its transfer", instruction.transfer);
        break;
    }
  }

  void check_given() const {
    for (ValueId value = 0; value < graph_.value_count(); ++value) {
      if (graph_.value(value).producer == kNone && graph_.value(value).kind == ValueKind::input)
        check_value(value, entry_.value_places[value]);
    }
  }

  void check_kept() const {
    for (const auto* values : {&graph_.outputs, &entry_.keep}) {
      for (ValueId value : *values) check_value(value, entry_.value_places[value]);
    }
  }

  void check_peak() const {
    std::vector<int64_t> change(entry_.code.size() + 2);
    for (const Storage& storage : entry_.storages) {
      change[storage.first] += aligned(storage.place.bytes);
      change[storage.last + 1] -= aligned(storage.place.bytes);
    }
    int64_t live = program_.persistent_bytes, peak = live, stated = live;
    for (size_t at = 0; at < change.size(); ++at) {
      live += change[at];
      peak = std::max(peak, live);
      if (static_cast<int32_t>(at) == entry_.peak_instruction) stated = live;
    }
    if (peak != entry_.peak_live_bytes || stated != peak)
      fail("its peak is {} bytes, not {} at instruction {}", peak, entry_.peak_live_bytes, entry_.peak_instruction);
  }

  const Program& program_;
  const Entry& entry_;
  const Graph& graph_;
  KernelTable& kernels_;
  ByteMap bytes_;
  ByteMap disk_;
  std::vector<Content> content_;                         // by ValueId: what its place must hold for its readers
  std::vector<Content> state_;                           // by persistent: what its home must hold at the end
  std::vector<int32_t> persistent_of_;                   // by ValueId; -1: of none
  std::vector<Place> last_place_;                        // by ValueId: where an instruction met it last
  std::vector<Place> within_;                            // by ValueId, of views: see within()
  std::map<int32_t, const Instruction*> in_flight_;      // transfers that were started and not waited for, by number
  std::vector<std::vector<int32_t>> opening_, closing_;  // storages by instruction
  std::map<int64_t, int32_t> live_;                      // offset -> storage
  std::map<int32_t, const Storage*> moving_;             // by transfer
  Content next_ = 0;
  int32_t at_ = -1;
};

void check_persistents(const Program& program) {
  if (program.persistent_bytes < 0 || program.persistent_bytes > program.arena_bytes)
    fail_program("what lives across runs is larger than the arena");
  std::vector<const Persistent*> by_offset, on_disk;
  std::unordered_set<std::string_view> names;
  for (const Persistent& value : program.persistent) {
    const Place& place = value.place;
    if (value.disk.bytes > 0) {
      if (place.bytes != 0 || value.disk.bytes != value.type.bytes() || value.initial)
        fail_program("'{}' lives in two places, or in one that is not of its size", value.name);
      if (!names.insert(value.name).second) fail_program("'{}' lives across runs twice", value.name);
      if (value.disk.offset < 0 || value.disk.offset % kSector != 0 ||
          value.disk.offset + whole_sectors(value.disk.bytes) > program.disk_bytes)
        fail_program("'{}' is misaligned or outside the disk", value.name);
      on_disk.push_back(&value);
      continue;
    }
    if (place.bytes != value.type.bytes() || (value.initial && value.initial->type() != value.type))
      fail_program("'{}' has not the memory of its type", value.name);
    if (!value.initial && !names.insert(value.name).second) fail_program("'{}' lives across runs twice", value.name);
    if (place.bytes == 0) continue;
    if (place.offset % kPlaceAlignment != 0 || place.offset < 0 || place.end() > program.persistent_bytes)
      fail_program("'{}' is misaligned or outside the arena's persistent part", value.name);
    by_offset.push_back(&value);
  }
  std::sort(by_offset.begin(), by_offset.end(), [](const auto* a, const auto* b) { return a->place.offset < b->place.offset; });
  for (size_t i = 1; i < by_offset.size(); ++i) {
    if (overlap(by_offset[i - 1]->place, by_offset[i]->place))
      fail_program("'{}' and '{}' overlap", by_offset[i - 1]->name, by_offset[i]->name);
  }
  std::sort(on_disk.begin(), on_disk.end(), [](const auto* a, const auto* b) { return a->disk.offset < b->disk.offset; });
  for (size_t i = 1; i < on_disk.size(); ++i) {
    if (on_disk[i - 1]->disk.offset + whole_sectors(on_disk[i - 1]->disk.bytes) > on_disk[i]->disk.offset)
      fail_program("'{}' and '{}' overlap on the disk", on_disk[i - 1]->name, on_disk[i]->name);
  }
}

}  // namespace

void verify(const Program& program, const std::vector<const Graph*>& graphs) {
  if (graphs.size() != program.entries.size()) fail_program("it has {} entry points for {} graphs", program.entries.size(), graphs.size());
  if (program.threads < 1) fail_program("its workspaces are for {} threads", program.threads);
  check_persistents(program);
  KernelTable kernels;
  for (size_t i = 0; i < graphs.size(); ++i) EntryVerifier(program, program.entries[i], *graphs[i], kernels).run();
}

}  // namespace ort_train
