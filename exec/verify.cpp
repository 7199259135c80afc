// verify: the proof that a Program does what its graphs say, made by replaying it over a map of the bytes of each space.
//
// The replay takes the instructions in the order of the list. That the result is the same in every order in which the queues may really run
// them is proven beside it: of any two that touch the same bytes, where one writes them, the later must know that the earlier is complete,
// by its queue, by what it waits for, or by what these knew (happens-before: a vector clock for each instruction, with a component for each
// queue).
//
// The map says of each range which content it holds: a number that is new for each value made or changed, and the same for a view or a
// copy. A node must find its input's content, whole, wherever it reads it. What the planner thinks of lifetimes enters nowhere in the
// replay; the stated storages, from which reports are made, are checked against it afterwards.

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "exec/kernel_specs.h"
#include "exec/program.h"
#include "exec/verify_maps.h"
#include "exec/verify_program.h"
#include "graph/op_def.h"

namespace ort_train {

using namespace verifying;

namespace {

class EntryVerifier {
 public:
  EntryVerifier(const Program& program, const Entry& entry, const Graph& graph, SpaceKernels& kernels)
      : program_(program),
        entry_(entry),
        graph_(graph),
        kernels_(kernels),
        bytes_(program.spaces.size()),
        accesses_(program.spaces.size()),
        content_(graph.value_count(), kUnknown),
        persistent_of_(graph.value_count(), -1),
        last_place_(graph.value_count()),
        within_(graph.value_count()) {}

  void run() {
    check_code();
    check_role();
    check_waits();
    before_.emplace(program_.queues, entry_.code);
    place_persistents();
    place_inputs();
    for (at_ = 0; at_ < static_cast<int32_t>(entry_.code.size()); ++at_) {
      const Instruction& instruction = entry_.code[at_];
      if (instruction.action == Action::compute)
        replay(instruction);
      else
        copy(instruction);
    }
    check_end();
    check_storages();
    check_peaks();
  }

 private:
  template <typename... Args> [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    const bool within = at_ >= 0 && at_ < static_cast<int32_t>(entry_.code.size());
    if (within) {
      const NodeId node = entry_.code[at_].node;
      fail_program("entry '{}', instruction {}, {}: {}", entry_.name, at_, node < graph_.node_count() ? describe(graph_, node) : "copy",
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

  // What the graph does with accumulators: it makes the update if it uses what the entry before left in one; it leaves gradients if it
  // writes any to one, and adds them up if that keeps what the entry before left. Only training changes anything.
  void check_role() const {
    EntryRole found{.kind = entry_.role.kind};
    bool changes = false;
    for (NodeId id : graph_.order()) {
      const Node& node = graph_.node(id);
      changes |= !node.op->writes.empty();
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        if (node.inputs[i] == kNone || graph_.value(node.inputs[i]).kind != ValueKind::accumulator) continue;
        const bool written = std::any_of(node.op->writes.begin(), node.op->writes.end(),
                                         [&](const Alias& write) { return static_cast<size_t>(write.input) == i; });
        const bool left = graph_.value(node.inputs[i]).producer == kNone;
        const bool fed = written && node.inputs.size() > 1;  // or it is cleared
        found.completes_update |= left && !written;
        found.leaves_update |= fed;
        found.adds_up |= left && fed && !node.op->overwrites;
      }
    }
    if (changes && (found.kind == EntryKind::evaluate || found.kind == EntryKind::predict)) fail("it changes what lives across runs");
    if (found != entry_.role) fail("it does something else with accumulators than its role says");
  }

  // Each instruction on a queue of its kind; what it waits for comes before it, so that nothing waits for ever.
  void check_waits() {
    for (at_ = 0; at_ < static_cast<int32_t>(entry_.code.size()); ++at_) {
      const Instruction& instruction = entry_.code[at_];
      if (instruction.queue >= program_.queues.size()) fail("it is on queue {}, which isn't there", instruction.queue);
      if (is_copy(instruction) == program_.queues[instruction.queue].computes()) fail("it is on a queue of another kind");
      for (const int32_t earlier : instruction.waits) {
        if (earlier < 0 || earlier >= at_) fail("it waits for instruction {}, which doesn't come before it", earlier);
      }
    }
  }

  // Inside its space, which is one of memory.
  void check_place(const Place& place, int64_t bytes, const char* what) const {
    if (place.space >= program_.spaces.size() || program_.spaces[place.space].kind == SpaceKind::file) fail("{} isn't in memory", what);
    const Space& space = program_.spaces[place.space];
    if (place.bytes != bytes) fail("{} has {} bytes of memory, but needs {}", what, place.bytes, bytes);
    if (bytes == 0) return;
    if (place.offset % space.alignment != 0) fail("{} is misaligned at {}", what, place.offset);
    if (place.offset < 0 || place.end() > space.bytes)
      fail("{} lies at {} to {}, outside the {} of {} bytes", what, place.offset, place.end(), space.name, space.bytes);
  }

  // … and in the space of the node's queue.
  void check_operand(const Instruction& instruction, const Place& place, int64_t bytes, const char* what) const {
    check_place(place, bytes, what);
    const SpaceId space = program_.queues[instruction.queue].from;
    if (bytes > 0 && place.space != space)
      fail("{} is in the {}, its queue computes in the {}", what, program_.spaces[place.space].name, program_.spaces[space].name);
  }

  // All of them are there before the first instruction, also those that this entry has no use for.
  void place_persistents() {
    std::unordered_map<std::string_view, size_t> by_name;
    std::map<std::pair<SpaceId, int64_t>, size_t> constant_at;
    for (size_t i = 0; i < program_.persistent.size(); ++i) {
      const Persistent& value = program_.persistent[i];
      state_.push_back(next_++);
      bytes_[value.home.space].write(value.home, state_[i]);
      if (!value.initial)
        by_name.emplace(value.name, i);
      else if (value.home.bytes > 0)
        constant_at.emplace(std::pair(value.home.space, value.home.offset), i);
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
        const auto at = constant_at.find({place.space, place.offset});
        if (at != constant_at.end()) found = at->second;
      } else if (const auto at = by_name.find(value.name); at != by_name.end()) {
        found = at->second;
      }
      if (found == program_.persistent.size()) fail("'{}' has no memory that lives across runs", value.name);
      const Persistent& persistent = program_.persistent[found];
      const bool elsewhere = persistent.home.space != place.space;  // nodes see a copy of it
      if (persistent.type != value.type() || (persistent.home != place && !elsewhere))
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
      if (program_.spaces[place.space].kind != SpaceKind::host) fail("the host can't fill the input '{}'", value.name);
      if (!bytes_[place.space].is_free(place)) fail("the input '{}' lies over something else", value.name);
      content_[id] = next_++;
      bytes_[place.space].write(place, content_[id]);
    }
    for (ValueId id : graph_.inputs) {
      if (graph_.value(id).bytes() > 0 && entry_.value_places[id].bytes == 0) fail("the input '{}' has no place", graph_.value(id).name);
    }
  }

  // Of two accesses to the same bytes, one of which writes, the later knows that the earlier is complete.
  void touch(const Place& place, bool writes) {
    AccessMap& accesses = accesses_[place.space];
    const int32_t other = writes ? accesses.write(place, at_, *before_) : accesses.read(place, at_, *before_);
    if (other != AccessMap::kNobody)
      fail("it {} bytes at {} that instruction {} may still be {}", writes ? "writes" : "reads", place.offset, other,
           writes ? "using" : "writing");
  }

  bool is_file(const Place& place) const { return program_.spaces[place.space].kind == SpaceKind::file; }
  bool is_persistent(const Place& place) const { return place.offset < program_.spaces[place.space].persistent_bytes; }

  // The place that a copy uses: to or from a file it moves whole sectors.
  Place moved(const Instruction& instruction, Place place) const {
    if (is_file(instruction.from) || is_file(instruction.to)) place.bytes = whole_sectors(place.bytes);
    return place;
  }

  void copy(const Instruction& instruction) {
    const Queue& queue = program_.queues[instruction.queue];
    if (instruction.from.space != queue.from || instruction.to.space != queue.to)
      fail("it copies from space {} to space {}, its queue from {} to {}", instruction.from.space, instruction.to.space, queue.from,
           queue.to);
    if (instruction.from.bytes <= 0 || instruction.from.bytes != instruction.to.bytes)
      fail("it copies {} bytes to {}", instruction.from.bytes, instruction.to.bytes);
    const bool sectors = is_file(instruction.from) || is_file(instruction.to);
    if (sectors && (instruction.from.offset % kSector != 0 || instruction.to.offset % kSector != 0))
      fail("it copies from {} to {}, not in sectors", instruction.from.offset, instruction.to.offset);
    const Place from = moved(instruction, instruction.from), to = moved(instruction, instruction.to);
    for (const Place& place : {from, to}) {
      if (!is_file(place)) {
        check_place(place, place.bytes, "what it copies");
      } else if (const int64_t bytes = program_.spaces[place.space].bytes; place.offset < 0 || place.end() > bytes) {
        fail("it ends at {}, outside the {}'s {} bytes", place.end(), program_.spaces[place.space].name, bytes);
      }
    }
    if (is_file(to)) {
      for (const Persistent& value : program_.persistent) {
        if (value.read_only && overlap(value.home, to)) fail("it writes '{}' to the file, which is read-only", value.name);
      }
    }
    touch(from, false);
    touch(to, true);
    const Content content = bytes_[from.space].content(instruction.from);
    if (content == kGarbage) fail("there is nothing whole at {}", from.offset);
    if (!is_file(to) && is_persistent(to) && !brings_home(instruction.to, content)) fail("it copies something over what lives across runs");
    bytes_[to.space].write(to, kGarbage);
    bytes_[to.space].write(instruction.to, content);
  }

  // Whether the place is a persistent value's, and the content what it is by now.
  bool brings_home(const Place& place, Content content) const {
    for (size_t i = 0; i < program_.persistent.size(); ++i) {
      if (program_.persistent[i].home == place) return state_[i] == content;
    }
    return false;
  }

  void replay(const Instruction& instruction) {
    const Node& node = graph_.node(instruction.node);
    if (instruction.inputs.size() != node.inputs.size() || instruction.outputs.size() != node.outputs.size())
      fail("it has not as many places as its node has inputs and outputs");
    for (size_t i = 0; i < node.inputs.size(); ++i) {
      const ValueId value = node.inputs[i];
      check_operand(instruction, instruction.inputs[i], value == kNone ? 0 : graph_.value(value).bytes(), "an input");
      if (instruction.inputs[i].bytes == 0) continue;
      last_place_[value] = instruction.inputs[i];
      if (node.op->overwrites && declared(node.op->writes, 0, i)) continue;  // whatever it holds
      if (content_[value] == kUnknown) fail("'{}' is read before it is written", graph_.value(value).name);
      touch(instruction.inputs[i], false);
      if (bytes_[instruction.inputs[i].space].content(whole_of(value, instruction.inputs[i])) != content_[value])
        fail("'{}' was overwritten before it is read, or is elsewhere", graph_.value(value).name);
    }
    check_workspace(node, instruction);
    for (size_t i = 0; i < node.outputs.size(); ++i) check_output(node, instruction, i);
    bytes_[instruction.workspace.space].write(instruction.workspace, kGarbage);
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
    return {.offset = place.offset - inside.offset, .bytes = inside.bytes, .space = place.space};
  }

  void check_workspace(const Node& node, const Instruction& instruction) {
    KernelSpecs& kernels = kernels_of(instruction);
    const int64_t wanted = kernels.workspace(kernels.add(*node.op, make_spec(graph_, node)));
    const Place& workspace = instruction.workspace;
    check_operand(instruction, workspace, wanted, "the workspace");
    if (wanted > 0 && is_persistent(workspace)) fail("the workspace lies over what lives across runs");
    touch(workspace, true);
    for (const auto* places : {&instruction.inputs, &instruction.outputs}) {
      for (const Place& place : *places) {
        if (overlap(workspace, place)) fail("the workspace lies over an input or output");
      }
    }
  }

  template <size_t most> static bool declared(const List<Alias, most>& pairs, size_t output, size_t input) {
    return std::any_of(pairs.begin(), pairs.end(),
                       [&](const Alias& a) { return static_cast<size_t>(a.output) == output && static_cast<size_t>(a.input) == input; });
  }

  KernelSpecs& kernels_of(const Instruction& instruction) {
    const Space& space = program_.spaces[program_.queues[instruction.queue].from];
    KernelSpecs* const kernels = kernels_.of(space.kind);
    if (kernels == nullptr) fail("nothing is computed in the {}", space.name);
    return *kernels;
  }
  bool may_overwrite(const Node& node, const Instruction& instruction, size_t output, size_t input) {
    return declared(kernels_of(instruction).table().find(*node.op)->in_place, output, input);
  }

  void check_output(const Node& node, const Instruction& instruction, size_t i) {
    const ValueId value = node.outputs[i];
    const Place& place = instruction.outputs[i];
    check_operand(instruction, place, value == kNone ? 0 : graph_.value(value).bytes(), "an output");
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
      const bool allowed = view || (place == instruction.inputs[j] && (changes || may_overwrite(node, instruction, i, j)));
      if (!allowed) fail("'{}' lies over the input '{}'", graph_.value(value).name, graph_.value(node.inputs[j]).name);
    }
    if (shared > 1) fail("'{}' lies over more than one input", graph_.value(value).name);
    if (!is_view(node, instruction)) touch(place, true);
    if (place.bytes > 0 && !state && !is_view(node, instruction) && is_persistent(place))
      fail("'{}' lies over what lives across runs", graph_.value(value).name);
  }

  void write_output(const Node& node, const Instruction& instruction, size_t i) {
    const ValueId value = node.outputs[i];
    last_place_[value] = instruction.outputs[i];
    if (is_view(node, instruction)) {
      const ValueId source = viewed(node);
      const Place inside = within(source);
      content_[value] = content_[source];
      within_[value] = {.offset = inside.offset + view_offset(node), .bytes = inside.bytes};
      return;
    }
    content_[value] = next_++;
    bytes_[instruction.outputs[i].space].write(instruction.outputs[i], content_[value]);
    for (const Alias& write : node.op->writes) {
      if (static_cast<size_t>(write.output) != i || node.inputs[write.input] == kNone) continue;
      persistent_of_[value] = persistent_of_[node.inputs[write.input]];
      if (persistent_of_[value] < 0) continue;
      const auto number = static_cast<size_t>(persistent_of_[value]);
      if (program_.persistent[number].read_only) fail("it changes '{}', which is read-only", program_.persistent[number].name);
      state_[number] = content_[value];
    }
  }

  void check_end() {
    std::vector<bool> checked(graph_.value_count());  // inputs, and, by what is there, what is kept
    for (ValueId value = 0; value < graph_.value_count(); ++value)
      checked[value] = graph_.value(value).producer == kNone && graph_.value(value).kind == ValueKind::input;
    for (const auto* values : {&graph_.outputs, &entry_.keep}) {
      for (ValueId value : *values) {
        if (value >= graph_.value_count()) fail("it is to keep a value that isn't there");
        if (graph_.value(value).bytes() == 0) continue;
        if (content_[value] == kUnknown) fail("it is to keep '{}', which nothing makes", graph_.value(value).name);
        check_place(entry_.value_places[value], graph_.value(value).bytes(), "what it is to keep");
        checked[value] = true;
        if (bytes_[entry_.value_places[value].space].content(whole_of(value, entry_.value_places[value])) != content_[value])
          fail("'{}' isn't intact at the end", graph_.value(value).name);
      }
    }
    for (ValueId value = 0; value < graph_.value_count(); ++value) {
      const bool at_home = persistent_of_[value] >= 0 && !is_file(entry_.value_places[value]) &&
                           entry_.value_places[value] == program_.persistent[static_cast<size_t>(persistent_of_[value])].home;
      if (!checked[value] && !at_home && last_place_[value].bytes > 0 && entry_.value_places[value] != last_place_[value])
        fail("'{}' isn't where it is said to be", graph_.value(value).name);
    }
    for (size_t i = 0; i < program_.persistent.size(); ++i) {
      const Persistent& value = program_.persistent[i];
      if (value.type.bytes() > 0 && bytes_[value.home.space].content(value.home) != state_[i])
        fail("'{}', which lives across runs, was overwritten", value.name);
    }
  }

  // The stated storages: whatever an instruction touches lies in one that is live then and has that value, workspaces and copies
  // included; no two that live at once overlap.
  void check_storages() {
    first_waits_ = first_waits(entry_);
    const auto end = static_cast<int32_t>(entry_.code.size());
    opening_.resize(static_cast<size_t>(std::max(end, 1)));
    closing_.resize(opening_.size());
    for (int32_t s = 0; s < static_cast<int32_t>(entry_.storages.size()); ++s) {
      const Storage& storage = entry_.storages[s];
      if (storage.first < 0 || storage.last < storage.first || storage.last >= std::max(end, 1))
        fail("the storage '{}' lives from {} to {}", storage.name, storage.first, storage.last);
      check_place(storage.place, storage.place.bytes, "a storage");
      if (storage.place.bytes > 0 && is_persistent(storage.place)) fail("the storage '{}' lies over what lives across runs", storage.name);
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
      for (int32_t s : closing_[at_]) live_.erase(at(entry_.storages[s].place));
    }
    at_ = -1;
  }

  static std::pair<SpaceId, int64_t> at(const Place& place) { return {place.space, place.offset}; }

  void open(int32_t s) {
    const auto [place, is_new] = live_.emplace(at(entry_.storages[s].place), s);
    const auto clash = [&](int32_t other) { return overlap(entry_.storages[s].place, entry_.storages[other].place); };
    if (!is_new || (place != live_.begin() && clash(std::prev(place)->second)) ||
        (std::next(place) != live_.end() && clash(std::next(place)->second)))
      fail("the storage '{}' overlaps another that lives then", entry_.storages[s].name);
  }

  const Storage& storage_at(const Place& place, const char* what) const {
    const auto found = live_.find(at(place));
    if (found == live_.end() || entry_.storages[found->second].place.bytes < place.bytes)
      fail("{} at {} has no storage", what, place.offset);
    return entry_.storages[found->second];
  }

  void check_value(ValueId value, const Place& place) const {
    if (place.bytes == 0 || is_persistent(place)) return;
    const Storage& storage = storage_at(whole_of(value, place), graph_.value(value).name.c_str());
    if (std::find(storage.values.begin(), storage.values.end(), value) == storage.values.end())
      fail("the storage '{}' isn't that of '{}'", storage.name, graph_.value(value).name);
  }

  void check_touched(const Instruction& instruction) {
    if (is_copy(instruction)) {
      for (const Place& place : {instruction.from, instruction.to}) {
        if (is_file(place) || is_persistent(place)) continue;
        const Storage& storage = storage_at(moved(instruction, place), "what it copies");
        if (storage.last < first_waits_[at_] - 1) fail("the storage '{}' ends before its copy is complete", storage.name);
      }
      return;
    }
    const Node& node = graph_.node(instruction.node);
    for (size_t i = 0; i < node.inputs.size(); ++i) check_value(node.inputs[i], instruction.inputs[i]);
    for (size_t i = 0; i < node.outputs.size(); ++i) check_value(node.outputs[i], instruction.outputs[i]);
    if (instruction.workspace.bytes > 0 && storage_at(instruction.workspace, "the workspace").purpose != Purpose::workspace)
      fail("the workspace is another's storage");
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

  void check_peaks() const {
    if (entry_.peaks.size() != program_.spaces.size())
      fail("it states {} peaks for {} spaces", entry_.peaks.size(), program_.spaces.size());
    for (SpaceId space = 0; space < program_.spaces.size(); ++space) {
      if (program_.spaces[space].kind != SpaceKind::file) check_peak(space, entry_.peaks[space]);
    }
  }

  void check_peak(SpaceId space, const SpacePeak& said) const {
    std::vector<int64_t> change(entry_.code.size() + 2);
    for (const Storage& storage : entry_.storages) {
      if (storage.place.space != space) continue;
      change[storage.first] += aligned(storage.place.bytes);
      change[storage.last + 1] -= aligned(storage.place.bytes);
    }
    int64_t live = program_.spaces[space].persistent_bytes, peak = live, stated = live;
    for (size_t at = 0; at < change.size(); ++at) {
      live += change[at];
      peak = std::max(peak, live);
      if (static_cast<int32_t>(at) == said.instruction) stated = live;
    }
    if (said.instruction < 0 || peak != said.bytes || stated != peak)
      fail("its peak in the {} is {} bytes, not {} at instruction {}", program_.spaces[space].name, peak, said.bytes, said.instruction);
  }

  const Program& program_;
  const Entry& entry_;
  const Graph& graph_;
  SpaceKernels& kernels_;
  std::vector<ByteMap> bytes_;  // by space
  std::vector<AccessMap> accesses_;
  std::optional<HappensBefore> before_;
  std::vector<Content> content_;                         // by ValueId: what its place must hold for its readers
  std::vector<Content> state_;                           // by persistent: what its home must hold at the end
  std::vector<int32_t> persistent_of_;                   // by ValueId; -1: of none
  std::vector<Place> last_place_;                        // by ValueId: where an instruction met it last
  std::vector<Place> within_;                            // by ValueId, of views: see within()
  std::vector<std::vector<int32_t>> opening_, closing_;  // storages by instruction
  std::map<std::pair<SpaceId, int64_t>, int32_t> live_;  // space and offset -> storage
  std::vector<int32_t> first_waits_;                     // by copy
  Content next_ = 0;
  int32_t at_ = -1;
};

}  // namespace

void verify(const Program& program, const std::vector<const Graph*>& graphs, const KernelTables& tables) {
  if (graphs.size() != program.entries.size()) fail_program("it has {} entry points for {} graphs", program.entries.size(), graphs.size());
  if (program.threads < 1) fail_program("its workspaces are for {} threads", program.threads);
  check_program(program);
  SpaceKernels kernels(tables, program.threads);
  for (size_t i = 0; i < graphs.size(); ++i) {
    EntryVerifier(program, program.entries[i], *graphs[i], kernels).run();
    check_kept(program, program.entries[i], *graphs[i]);
  }
}

}  // namespace ort_train
