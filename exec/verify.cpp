// verify: the proof that a Program does what its graphs say, made by replaying it over a map of the arena's bytes.
//
// The map says of each range which content it holds: a number that is new for each value made or changed, and the same for a view. A read
// must find its value's content, whole and in place. What the planner thinks of lifetimes enters nowhere in the replay; the stated
// storages, from which reports are made, are checked against it afterwards.

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
  // Whether the place holds that content from its first byte to its last.
  bool holds(const Place& place, Content content) const {
    const auto at = ranges_.find(place.offset);
    return at != ranges_.end() && at->second.end == place.end() && at->second.content == content;
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
      : program_(program), entry_(entry), graph_(graph), kernels_(kernels), content_(graph.value_count(), kUnknown) {
    touched_first_.assign(graph.value_count(), -1);
    touched_last_.assign(graph.value_count(), -1);
  }

  void run() {
    check_code();
    place_persistents();
    place_inputs();
    for (at_ = 0; at_ < static_cast<int32_t>(entry_.code.size()); ++at_) replay(entry_.code[at_]);
    check_end();
    check_storages();
    check_peak();
  }

 private:
  template <typename... Args> [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    const bool within = at_ >= 0 && at_ < static_cast<int32_t>(entry_.code.size()) && entry_.code[at_].node < graph_.node_count();
    if (within) fail_program("entry '{}', instruction {}, {}: {}", entry_.name, at_, describe(graph_, entry_.code[at_].node), what);
    fail_program("entry '{}': {}", entry_.name, what);
  }

  // Every node once.
  void check_code() {
    if (entry_.value_places.size() != graph_.value_count())
      fail("it has places for {} values, the graph has {}", entry_.value_places.size(), graph_.value_count());
    const std::unordered_set<NodeId> wanted(graph_.order().begin(), graph_.order().end());
    std::unordered_set<NodeId> seen;
    for (const Instruction& instruction : entry_.code) {
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
      bytes_.write(value.place, state_[i]);
      if (!value.initial)
        by_name.emplace(value.name, i);
      else if (value.place.bytes > 0)
        constant_at.emplace(value.place.offset, i);
    }
    for (ValueId id = 0; id < graph_.value_count(); ++id) {
      const Value& value = graph_.value(id);
      const Place& place = entry_.value_places[id];
      if (value.producer != kNone || value.kind == ValueKind::input) continue;
      if (place.bytes == 0) {  // constants that only rules of shape read need none; weights and state are saved
        const bool state =
            value.kind == ValueKind::parameter || value.kind == ValueKind::optimizer_state || value.kind == ValueKind::accumulator;
        if (state && value.bytes() > 0) fail("'{}' has no place", value.name);
        continue;
      }
      size_t found = program_.persistent.size();
      if (value.constant) {
        const auto at = constant_at.find(place.offset);
        if (at != constant_at.end()) found = at->second;
      } else if (const auto at = by_name.find(value.name); at != by_name.end()) {
        found = at->second;
      }
      if (found == program_.persistent.size()) fail("'{}' has no memory that lives across runs", value.name);
      const Persistent& persistent = program_.persistent[found];
      if (persistent.place != place || persistent.type != value.type()) fail("'{}' isn't where it lives across runs", value.name);
      if (value.constant && value.constant != persistent.initial && *value.constant != *persistent.initial)
        fail("'{}' is where another constant lives", value.name);
      content_[id] = state_[found];
      persistent_of_.emplace(place.offset, found);
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
      touch(id, 0);
    }
    for (ValueId id : graph_.inputs) {
      if (graph_.value(id).bytes() > 0 && entry_.value_places[id].bytes == 0) fail("the input '{}' has no place", graph_.value(id).name);
    }
  }

  void touch(ValueId value, int32_t at) {
    if (touched_first_[value] < 0) touched_first_[value] = at;
    touched_last_[value] = at;
  }

  void check_holds(ValueId value, const char* what) const {
    if (graph_.value(value).bytes() == 0) return;
    if (!bytes_.holds(entry_.value_places[value], content_[value])) fail("'{}' {}", graph_.value(value).name, what);
  }

  void replay(const Instruction& instruction) {
    const Node& node = graph_.node(instruction.node);
    if (instruction.inputs.size() != node.inputs.size() || instruction.outputs.size() != node.outputs.size())
      fail("it has not as many places as its node has inputs and outputs");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId value = node.inputs[i];
      check_place(instruction.inputs[i], value == kNone ? 0 : graph_.value(value).bytes(), "an input");
      if (value == kNone) continue;
      if (instruction.inputs[i] != entry_.value_places[value]) fail("'{}' isn't read where it lives", graph_.value(value).name);
      if (content_[value] == kUnknown && graph_.value(value).bytes() > 0)
        fail("'{}' is read before it is written", graph_.value(value).name);
      check_holds(value, "was overwritten before it is read");
      touch(value, at_);
    }
    check_workspace(node, instruction);
    for (size_t i = 0; i < node.outputs.size(); ++i) check_output(node, instruction, i);
    bytes_.write(instruction.workspace, kGarbage);
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != kNone) write_output(node, instruction, i);
    }
  }

  void check_workspace(const Node& node, const Instruction& instruction) {
    const int64_t wanted = kernels_.workspace(kernels_.add(*node.op, make_spec(graph_, node, program_.threads)));
    const Place& workspace = instruction.workspace;
    check_place(workspace, wanted, "the workspace");
    if (wanted > 0 && workspace.offset < program_.persistent_bytes) fail("the workspace lies over what lives across runs");
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
    if (place != entry_.value_places[value]) fail("'{}' isn't written where it lives", graph_.value(value).name);
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
      const bool allowed = changes || declared(node.op->in_place, i, j) || is_view(node, instruction);
      if (!allowed || place != instruction.inputs[j])
        fail("'{}' lies over the input '{}'", graph_.value(value).name, graph_.value(node.inputs[j]).name);
    }
    if (shared > 1) fail("'{}' lies over more than one input", graph_.value(value).name);
    if (place.bytes > 0 && !state && !is_view(node, instruction) && place.offset < program_.persistent_bytes)
      fail("'{}' lies over what lives across runs", graph_.value(value).name);
  }

  void write_output(const Node& node, const Instruction& instruction, size_t i) {
    const ValueId value = node.outputs[i];
    touch(value, at_);
    if (is_view(node, instruction)) {
      content_[value] = content_[node.inputs[node.op->alias[0].input]];
      return;
    }
    content_[value] = next_++;
    bytes_.write(instruction.outputs[i], content_[value]);
    const bool state =
        std::any_of(node.op->writes.begin(), node.op->writes.end(), [&](const Alias& a) { return static_cast<size_t>(a.output) == i; });
    if (!state) return;
    if (const auto at = persistent_of_.find(instruction.outputs[i].offset); at != persistent_of_.end())
      state_[at->second] = content_[value];
  }

  void check_end() {
    for (const auto* values : {&graph_.outputs, &entry_.keep}) {
      for (ValueId value : *values) {
        if (value >= graph_.value_count()) fail("it is to keep a value that isn't there");
        if (content_[value] == kUnknown && graph_.value(value).bytes() > 0)
          fail("it is to keep '{}', which nothing makes", graph_.value(value).name);
        check_holds(value, "isn't intact at the end");
        touch(value, std::max(at_ - 1, 0));
      }
    }
    for (size_t i = 0; i < program_.persistent.size(); ++i) {
      const Persistent& value = program_.persistent[i];
      if (value.place.bytes > 0 && !bytes_.holds(value.place, state_[i]))
        fail("'{}', which lives across runs, was overwritten", value.name);
    }
  }

  // The stated storages: each transient value in one that covers its uses, each workspace in one, no two that live at once overlap.
  void check_storages() {
    std::vector<int32_t> storage_of(graph_.value_count(), -1), workspace_of(entry_.code.size(), -1);
    const auto end = static_cast<int32_t>(entry_.code.size());
    for (int32_t s = 0; s < static_cast<int32_t>(entry_.storages.size()); ++s) {
      const Storage& storage = entry_.storages[s];
      if (storage.first < 0 || storage.last < storage.first || storage.last >= std::max(end, 1))
        fail("the storage '{}' lives from {} to {}", storage.name, storage.first, storage.last);
      check_place(storage.place, storage.place.bytes, "a storage");
      if (storage.place.bytes > 0 && storage.place.offset < program_.persistent_bytes)
        fail("the storage '{}' lies over what lives across runs", storage.name);
      for (ValueId value : storage.values) {
        if (value >= graph_.value_count() || storage_of[value] >= 0) fail("the storage '{}' has a value that isn't its own", storage.name);
        storage_of[value] = s;
        if (touched_first_[value] < storage.first || touched_last_[value] > storage.last)
          fail("'{}' is used outside the life of its storage", graph_.value(value).name);
        if (entry_.value_places[value] != storage.place) fail("'{}' isn't where its storage is", graph_.value(value).name);
      }
      if (storage.purpose != Purpose::workspace) continue;
      if (storage.first != storage.last || workspace_of[storage.first] >= 0 || entry_.code[storage.first].workspace != storage.place)
        fail("the storage '{}' isn't its instruction's workspace", storage.name);
      workspace_of[storage.first] = s;
    }
    for (ValueId value = 0; value < graph_.value_count(); ++value) {
      const Place& place = entry_.value_places[value];
      if (place.bytes > 0 && place.offset >= program_.persistent_bytes && storage_of[value] < 0)
        fail("'{}' has a place but no storage", graph_.value(value).name);
    }
    for (int32_t at = 0; at < end; ++at) {
      if (entry_.code[at].workspace.bytes > 0 && workspace_of[at] < 0) fail("the workspace of instruction {} has no storage", at);
    }
    check_overlaps();
  }

  void check_overlaps() const {
    std::vector<std::vector<int32_t>> opening(entry_.code.size() + 1), closing(entry_.code.size() + 1);
    for (int32_t s = 0; s < static_cast<int32_t>(entry_.storages.size()); ++s) {
      if (entry_.storages[s].place.bytes == 0) continue;
      opening[entry_.storages[s].first].push_back(s);
      closing[entry_.storages[s].last].push_back(s);
    }
    std::map<int64_t, int32_t> live;  // offset -> storage
    for (size_t at = 0; at < opening.size(); ++at) {
      for (int32_t s : opening[at]) {
        const auto [place, is_new] = live.emplace(entry_.storages[s].place.offset, s);
        const auto clash = [&](int32_t other) { return overlap(entry_.storages[s].place, entry_.storages[other].place); };
        if (!is_new || (place != live.begin() && clash(std::prev(place)->second)) ||
            (std::next(place) != live.end() && clash(std::next(place)->second)))
          fail("the storage '{}' overlaps another that lives at instruction {}", entry_.storages[s].name, at);
      }
      for (int32_t s : closing[at]) live.erase(entry_.storages[s].place.offset);
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
  std::vector<Content> content_;                       // by ValueId: what its place must hold for its readers
  std::vector<Content> state_;                         // by persistent: what its place must hold at the end
  std::unordered_map<int64_t, size_t> persistent_of_;  // by offset
  std::vector<int32_t> touched_first_, touched_last_;  // by ValueId
  Content next_ = 0;
  int32_t at_ = -1;
};

void check_persistents(const Program& program) {
  if (program.persistent_bytes < 0 || program.persistent_bytes > program.arena_bytes)
    fail_program("what lives across runs is larger than the arena");
  std::vector<const Persistent*> by_offset;
  std::unordered_set<std::string_view> names;
  for (const Persistent& value : program.persistent) {
    const Place& place = value.place;
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
