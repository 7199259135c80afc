#include "tests/paging_planner.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "exec/kernel_specs.h"
#include "graph/error.h"
#include "graph/op_def.h"

namespace ort_train::fixtures {
namespace {

constexpr int64_t kDeviceAlignment = 256;
constexpr size_t kSpaces = 3;

int64_t rounded(int64_t bytes, int64_t to) { return (bytes + to - 1) / to * to; }

QueueId queue_between(SpaceId from, SpaceId to) {
  if (from == kHost) return to == kMemory ? kUp : kWrite;
  return from == kMemory ? kDown : kRead;
}

// Adds instructions with all waits that they need, by what each touches.
class Emitter {
 public:
  Emitter(const Program& program, Entry& entry) : program_(program), entry_(entry), accesses_(kSpaces) {}

  int32_t emit(Instruction instruction) {
    std::vector<std::pair<Place, bool>> touched;  // writes?
    if (is_copy(instruction)) {
      Place from = instruction.from, to = instruction.to;
      if (uses_file(instruction)) from.bytes = to.bytes = whole_sectors(from.bytes);
      touched = {{from, false}, {to, true}};
    }
    for (const Place& place : instruction.inputs) touched.emplace_back(place, false);
    for (const Place& place : instruction.outputs) touched.emplace_back(place, true);
    touched.emplace_back(instruction.workspace, true);

    const auto self = static_cast<int32_t>(entry_.code.size());
    std::map<QueueId, int32_t> nodes;  // the last to wait for, by queue
    for (const auto& [place, writes] : touched) {
      for (const Access& access : accesses_[place.space]) {
        if (place.bytes == 0 || access.begin >= place.end() || access.end <= place.offset || !(writes || access.writes)) continue;
        const Instruction& other = entry_.code[static_cast<size_t>(access.instruction)];
        if (is_copy(other)) {  // each is waited for: until then its places are taken
          if (!std::count(instruction.waits.begin(), instruction.waits.end(), access.instruction))
            instruction.waits.push_back(access.instruction);
        } else if (other.queue != instruction.queue) {
          int32_t& last = nodes.try_emplace(other.queue, access.instruction).first->second;
          last = std::max(last, access.instruction);
        }
      }
    }
    for (const auto& [queue, last] : nodes) instruction.waits.push_back(last);
    for (const auto& [place, writes] : touched) {
      if (place.bytes == 0) continue;
      auto& accesses = accesses_[place.space];
      if (writes)
        std::erase_if(accesses, [&](const Access& a) { return a.begin >= place.offset && a.end <= place.end() && a.instruction != self; });
      accesses.push_back({.begin = place.offset, .end = place.end(), .instruction = self, .writes = writes});
    }
    entry_.code.push_back(std::move(instruction));
    return self;
  }

 private:
  struct Access {
    int64_t begin, end;
    int32_t instruction;
    bool writes;
  };
  const Program& program_;
  Entry& entry_;
  std::vector<std::vector<Access>> accesses_;  // by space
};

class EntryPager {
 public:
  EntryPager(Program& program, const PagedEntry& wanted, const PagingOptions& options, KernelSpecs& kernels, int64_t& file_end)
      : program_(program),
        graph_(*wanted.graph),
        options_(options),
        kernels_(kernels),
        file_end_(file_end),
        random_(options.seed + 17),
        emitter_(program, entry_) {
    entry_.name = wanted.name;
    entry_.role = wanted.role;
    entry_.keep = graph_.outputs;
    entry_.keep.insert(entry_.keep.end(), wanted.keep.begin(), wanted.keep.end());
    std::sort(entry_.keep.begin(), entry_.keep.end());
    entry_.keep.erase(std::unique(entry_.keep.begin(), entry_.keep.end()), entry_.keep.end());
    limit_ = {options.device_bytes, 0, options.host_bytes};
  }

  Entry make() {
    find_pieces();
    const auto& order = graph_.order();
    for (position_ = 0; position_ < order.size(); ++position_) compute(order[position_]);
    bring_home();
    place_kept();
    settle();
    return std::move(entry_);
  }

 private:
  // Where a piece is in a space.
  struct Copy {
    Place place{};
    bool is_there = false;  // has a place
    bool is_good = false;   // … and holds what the piece is now
    bool is_home = false;   // … which it never gives up
    int32_t storage = -1;
    int64_t used = 0;
  };
  // A value, or those that are written over each other in place.
  struct Piece {
    int64_t bytes = 0;
    std::array<Copy, kSpaces> at{};
    std::vector<ValueId> values{};
    SpaceId home = kFile;
    bool lives_on = false, is_kept = false;
    size_t last_use = 0;
    int pinned = 0;
  };
  struct Pin {
    Piece& piece;
    explicit Pin(Piece& p) : piece(p) { ++piece.pinned; }
    Pin(const Pin& other) : Pin(other.piece) {}
    ~Pin() { --piece.pinned; }
  };

  // --- what there is ----------------------------------------------------------------------------------------------------------------

  void find_pieces() {
    piece_of_.assign(graph_.value_count(), -1);
    entry_.value_places.assign(graph_.value_count(), {});
    for (ValueId id = 0; id < graph_.value_count(); ++id) {
      const Value& value = graph_.value(id);
      if (value.producer != kNone || value.bytes() == 0) continue;
      if (value.kind == ValueKind::input) {
        Piece& piece = new_piece(id);
        Copy& copy = allocate(piece, kHost);
        copy.is_good = true;
        ++piece.pinned;  // until all inputs have their places
        entry_.value_places[id] = copy.place;
      } else if (const Persistent* const found = persistent_of(value)) {
        Piece& piece = new_piece(id);
        piece.lives_on = true;
        piece.home = found->home.space;
        piece.at[piece.home] = {.place = found->home, .is_there = true, .is_good = true, .is_home = true};
        if (piece.home != kFile) entry_.value_places[id] = found->home;
      }
    }
    for (const auto& piece : pieces_) piece->pinned = 0;
    for (size_t at = 0; at < graph_.order().size(); ++at) {
      const Node& node = graph_.node(graph_.order()[at]);
      for (const ValueId input : node.inputs) {
        if (input != kNone && piece_of_[input] >= 0) piece(input).last_use = at;
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        const ValueId output = node.outputs[i];
        if (output == kNone || graph_.value(output).bytes() == 0) continue;
        const ValueId before = written_over(node, i);
        if (before == kNone) {
          new_piece(output).last_use = at;
          continue;
        }
        piece_of_[output] = piece_of_[before];
        piece(output).values.push_back(output);
        piece(output).last_use = at;
      }
    }
    for (const ValueId value : entry_.keep) {
      if (piece_of_[value] < 0) continue;
      piece(value).is_kept = true;
      if (is_input(value)) ++piece(value).pinned;  // it stays where it is in the beginning
    }
  }

  const Persistent* persistent_of(const Value& value) const {
    for (const Persistent& one : program_.persistent) {
      if (value.constant ? one.initial && *one.initial == *value.constant : !one.initial && one.name == value.name) return &one;
    }
    return nullptr;
  }

  // The input whose place output `i` has to have.
  static ValueId written_over(const Node& node, size_t i) {
    for (const Alias& write : node.op->writes) {
      if (static_cast<size_t>(write.output) == i) return node.inputs[static_cast<size_t>(write.input)];
    }
    return kNone;
  }

  Piece& new_piece(ValueId value) {
    piece_of_[value] = static_cast<int>(pieces_.size());
    pieces_.push_back(std::make_unique<Piece>(Piece{.bytes = graph_.value(value).bytes(), .values = {value}}));
    return *pieces_.back();
  }
  Piece& piece(ValueId value) { return *pieces_[static_cast<size_t>(piece_of_[value])]; }

  bool is_input(ValueId value) const { return graph_.value(value).producer == kNone && graph_.value(value).kind == ValueKind::input; }
  bool is_needed(const Piece& piece) const { return piece.lives_on || piece.is_kept || piece.last_use > position_; }

  // --- memory -----------------------------------------------------------------------------------------------------------------------

  // Room that nobody has, after evictions.
  Place find_room(SpaceId space, int64_t bytes) {
    const int64_t alignment = space == kHost ? kSector : kDeviceAlignment;
    bytes = rounded(bytes, alignment);
    while (true) {
      int64_t at = rounded(program_.spaces[space].persistent_bytes, alignment);
      for (const auto& [begin, end] : taken_[space]) {
        if (begin - at >= bytes) break;
        at = end;
      }
      if (at + bytes <= limit_[space]) {
        taken_[space].emplace(at, at + bytes);
        highest_[space] = std::max(highest_[space], at + bytes);
        return {.offset = at, .bytes = bytes, .space = space};
      }
      evict_one(space);
    }
  }

  Copy& allocate(Piece& piece, SpaceId space) {
    Copy& copy = piece.at[space];
    if (copy.is_there) return copy;
    const Pin pin(piece);
    const Place room = find_room(space, piece.bytes);
    copy = {.place = {.offset = room.offset, .bytes = piece.bytes, .space = space}, .is_there = true, .used = ++clock_};
    copy.storage = new_storage(room, graph_.value(piece.values[0]).name, Purpose::activations);
    return copy;
  }

  int32_t new_storage(const Place& room, std::string name, Purpose purpose) {
    entry_.storages.push_back({.name = std::move(name), .purpose = purpose, .place = room, .values = {}, .first = now(), .last = now()});
    return static_cast<int32_t>(entry_.storages.size()) - 1;
  }

  void free(Piece& piece, SpaceId space) {
    Copy& copy = piece.at[space];
    if (!copy.is_there || copy.is_home) return;
    if (space != kFile) taken_[space].erase(copy.place.offset);
    if (space != kFile) entry_.storages[static_cast<size_t>(copy.storage)].values = piece.values;
    copy = {};
  }

  void evict_one(SpaceId space) {
    Piece* oldest = nullptr;
    for (const auto& piece : pieces_) {
      const Copy& copy = piece->at[space];
      if (copy.is_there && !copy.is_home && piece->pinned == 0 && (oldest == nullptr || copy.used < oldest->at[space].used))
        oldest = piece.get();
    }
    if (oldest == nullptr) throw error(ErrorCode::budget, "{} bytes of the {} are too few", limit_[space], program_.spaces[space].name);
    const auto is_good_elsewhere = [&] {
      for (SpaceId other = 0; other < kSpaces; ++other) {
        if (other != space && oldest->at[other].is_good) return true;
      }
      return false;
    };
    if (oldest->at[space].is_good && is_needed(*oldest) && !is_good_elsewhere()) {
      const Pin pin(*oldest);
      bring(*oldest, space == kMemory ? kHost : oldest->lives_on && oldest->home == kMemory ? kMemory : kFile);
    }
    free(*oldest, space);
  }

  // Makes the piece good in a space.
  Copy& bring(Piece& piece, SpaceId space) {
    const Pin pin(piece);
    Copy& to = piece.at[space];
    if (!to.is_good) {
      const SpaceId from = space == kHost ? (piece.at[kMemory].is_good ? kMemory : kFile) : kHost;
      if (space != kHost) bring(piece, kHost);
      require(piece.at[from].is_good, "a piece that is nowhere");
      if (space == kFile && !to.is_there) {
        to = {.place = {.offset = file_end_, .bytes = piece.bytes, .space = kFile}, .is_there = true};
        file_end_ += whole_sectors(piece.bytes);
      } else {
        allocate(piece, space);
      }
      emitter_.emit({.action = Action::copy, .queue = queue_between(from, space), .from = piece.at[from].place, .to = to.place});
      touched(piece.at[from]);
      touched(to);
      to.is_good = true;
    }
    to.used = ++clock_;
    return to;
  }

  int32_t now() const { return static_cast<int32_t>(entry_.code.size()); }
  // By the instruction that was emitted last.
  void touched(const Copy& copy) {
    if (copy.storage >= 0) touches_.emplace_back(copy.storage, now() - 1);
  }

  // --- instructions -----------------------------------------------------------------------------------------------------------------

  void compute(NodeId id) {
    const Node& node = graph_.node(id);
    const bool on_host = options_.on_host && options_.on_host(node);
    const SpaceId space = on_host ? kHost : kMemory;
    Instruction instruction{.action = Action::compute, .queue = on_host ? kHostCompute : kCompute, .node = id};
    std::vector<std::unique_ptr<Pin>> pins;
    const auto pin = [&](ValueId value) { pins.push_back(std::make_unique<Pin>(piece(value))); };
    const auto is_there = [&](ValueId value) { return value != kNone && piece_of_[value] >= 0; };
    for (const ValueId input : node.inputs) {
      if (is_there(input)) pin(input);
    }
    for (const ValueId input : node.inputs) instruction.inputs.push_back(is_there(input) ? bring(piece(input), space).place : Place{});
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      const ValueId output = node.outputs[i];
      if (!is_there(output)) {
        instruction.outputs.emplace_back();
        continue;
      }
      pin(output);
      instruction.outputs.push_back(allocate(piece(output), space).place);
    }
    std::optional<Place> room;
    if (const int64_t wanted = kernels_.workspace(kernels_.add(*node.op, make_spec(graph_, node))); wanted > 0) {
      room = find_room(space, wanted);
      instruction.workspace = {.offset = room->offset, .bytes = wanted, .space = space};
      new_storage(instruction.workspace, describe(graph_, id), Purpose::workspace);
    }
    emitter_.emit(std::move(instruction));
    if (room) taken_[space].erase(room->offset);
    for (const ValueId input : node.inputs) {
      if (is_there(input)) meet(input, space);
    }
    for (const ValueId output : node.outputs) {
      if (!is_there(output)) continue;
      meet(output, space);
      for (SpaceId other = 0; other < kSpaces; ++other) piece(output).at[other].is_good = other == space;
    }
    pins.clear();
    for (const auto* values : {&node.inputs, &node.outputs}) {
      for (const ValueId value : *values) {
        if (!is_there(value) || is_needed(piece(value))) continue;
        for (SpaceId other = 0; other < kSpaces; ++other) free(piece(value), other);
      }
    }
  }

  void meet(ValueId value, SpaceId space) {
    const Copy& copy = piece(value).at[space];
    touched(copy);
    const bool at_home = piece(value).lives_on && piece(value).home != kFile;
    if (!is_input(value)) entry_.value_places[value] = at_home ? piece(value).at[piece(value).home].place : copy.place;
  }

  void bring_home() {
    for (const auto& piece : pieces_) {
      if (piece->lives_on) bring(*piece, piece->home);
    }
  }

  // In the host's memory, but some in the device's.
  void place_kept() {
    for (const ValueId value : entry_.keep) {
      if (piece_of_[value] < 0) continue;
      const bool stays = random_() % 3 == 0 && !is_input(value);
      const bool at_home = piece(value).lives_on && graph_.value(value).producer == kNone && piece(value).home != kFile;
      Copy& copy = bring(piece(value), at_home ? piece(value).home : stays ? kMemory : kHost);
      entry_.value_places[value] = copy.place;
      ++piece(value).pinned;  // for ever
      if (copy.storage >= 0) touches_.emplace_back(copy.storage, kEnd);
    }
  }

  // What is known when all code is there: how long storages live, and peaks.
  void settle() {
    const int32_t end = std::max(now(), 1) - 1;
    for (const auto& piece : pieces_) {
      for (const SpaceId space : {kMemory, kHost}) free(*piece, space);
    }
    const std::vector<int32_t> waits = first_waits(entry_);
    for (const auto& [storage, at] : touches_) {
      Storage& one = entry_.storages[static_cast<size_t>(storage)];
      const bool copies = at != kEnd && is_copy(entry_.code[static_cast<size_t>(at)]);
      one.last = std::max(one.last, at == kEnd ? end : copies ? std::max(at, waits[static_cast<size_t>(at)] - 1) : at);
    }
    std::vector<int32_t> first(entry_.storages.size(), kEnd);
    for (const auto& [storage, at] : touches_) first[static_cast<size_t>(storage)] = std::min(first[static_cast<size_t>(storage)], at);
    for (size_t s = 0; s < entry_.storages.size(); ++s) {
      Storage& one = entry_.storages[s];
      const bool given = std::any_of(one.values.begin(), one.values.end(), [&](ValueId value) {
        return one.place.space == kHost && entry_.value_places[value].offset == one.place.offset && one.first == 0 && is_input(value);
      });
      if (one.purpose != Purpose::workspace && !given && first[s] != kEnd) one.first = first[s];
    }
    entry_.peaks.assign(program_.spaces.size(), {});
    for (const SpaceId space : {kMemory, kHost}) {
      std::vector<int64_t> change(static_cast<size_t>(end) + 2);
      for (const Storage& storage : entry_.storages) {
        if (storage.place.space != space) continue;
        change[static_cast<size_t>(storage.first)] += aligned(storage.place.bytes);
        change[static_cast<size_t>(storage.last) + 1] -= aligned(storage.place.bytes);
      }
      SpacePeak& peak = entry_.peaks[space];
      int64_t live = program_.spaces[space].persistent_bytes;
      for (size_t at = 0; at < change.size(); ++at) {
        live += change[at];
        if (live > peak.bytes) peak = {.bytes = live, .instruction = static_cast<int32_t>(at)};
      }
      program_.spaces[space].bytes = std::max({program_.spaces[space].bytes, highest_[space], program_.spaces[space].persistent_bytes});
    }
  }

  static constexpr int32_t kEnd = std::numeric_limits<int32_t>::max();

  Program& program_;
  const Graph& graph_;
  const PagingOptions& options_;
  KernelSpecs& kernels_;
  int64_t& file_end_;
  std::mt19937 random_;
  Entry entry_;
  Emitter emitter_;
  std::array<int64_t, kSpaces> limit_{}, highest_{};
  std::array<std::map<int64_t, int64_t>, kSpaces> taken_;  // begin -> end
  std::vector<std::unique_ptr<Piece>> pieces_;
  std::vector<int> piece_of_;                         // by ValueId; -1: it has no bytes, or nobody made it
  std::vector<std::pair<int32_t, int32_t>> touches_;  // storage, instruction
  size_t position_ = 0;
  int64_t clock_ = 0;
};

// Finds what lives across runs, and gives each its home: by turns, where less than a part of the limit is taken.
int64_t place_persistents(Program& program, const std::vector<PagedEntry>& entries, const PagingOptions& options) {
  std::mt19937 random(options.seed);
  int64_t file_end = 0;
  for (const PagedEntry& entry : entries) {
    for (ValueId id = 0; id < entry.graph->value_count(); ++id) {
      const Value& value = entry.graph->value(id);
      if (value.producer != kNone || value.kind == ValueKind::input || value.bytes() == 0) continue;
      const bool state =
          value.kind == ValueKind::parameter || value.kind == ValueKind::optimizer_state || value.kind == ValueKind::accumulator;
      if (!state && !value.constant) continue;
      const bool known = std::any_of(program.persistent.begin(), program.persistent.end(), [&](const Persistent& one) {
        return value.constant ? one.initial && *one.initial == *value.constant : !one.initial && one.name == value.name;
      });
      if (known) continue;
      const Purpose purpose = value.constant                             ? Purpose::constants
                              : value.kind == ValueKind::parameter       ? Purpose::weights
                              : value.kind == ValueKind::optimizer_state ? Purpose::optimizer
                                                                         : Purpose::gradients;
      auto space = static_cast<SpaceId>(value.constant ? random() % 2 * kHost : random() % kSpaces);
      const auto is_full = [&](SpaceId s, int64_t limit) { return program.spaces[s].persistent_bytes + value.bytes() > limit / 4; };
      if (space == kMemory && is_full(kMemory, options.device_bytes)) space = kHost;
      if (space == kHost && !value.constant && is_full(kHost, options.host_bytes)) space = kFile;
      int64_t& end = space == kFile ? file_end : program.spaces[space].persistent_bytes;
      Place home{.offset = end, .bytes = value.bytes(), .space = space};
      end += space == kFile ? whole_sectors(value.bytes()) : rounded(value.bytes(), space == kHost ? kSector : kDeviceAlignment);
      program.persistent.push_back({.name = value.name, .purpose = purpose, .type = value.type(), .home = home, .initial = value.constant});
    }
  }
  return file_end;
}

// In the host's memory, behind everything else.
void place_staging(Program& program, const std::vector<PagedEntry>& entries) {
  int64_t largest = kSector;
  for (const Persistent& value : program.persistent) largest = std::max(largest, whole_sectors(value.home.bytes));
  for (size_t e = 0; e < entries.size(); ++e) {
    for (const Place& place : program.entries[e].value_places) largest = std::max(largest, whole_sectors(place.bytes));
  }
  int64_t& end = program.spaces[kHost].bytes;
  end = whole_sectors(end);
  for (Place* place : {&program.staging[0], &program.staging[1], &program.spare}) {
    *place = {.offset = end, .bytes = place == &program.spare ? 2 * kSector : largest, .space = kHost};
    end = place->end();
  }
}

}  // namespace

const KernelTable* kernels_of_pages(SpaceKind where) { return where == SpaceKind::file ? nullptr : &cpu_kernels(); }

Program page(const std::vector<PagedEntry>& entries, const PagingOptions& options) {
  Program program = discrete_program();
  program.threads = options.threads;
  program.memory().alignment = kDeviceAlignment;
  const int64_t homes_end = place_persistents(program, entries, options);
  KernelSpecs kernels(cpu_kernels(), options.threads);
  for (const PagedEntry& entry : entries) {
    int64_t file_end = homes_end;
    program.entries.push_back(EntryPager(program, entry, options, kernels, file_end).make());
    program.file().bytes = std::max(program.file().bytes, file_end);
  }
  place_staging(program, entries);
  return program;
}

int64_t least_limit(const std::vector<PagedEntry>& entries, PagingOptions options, int64_t PagingOptions::*limit) {
  for (int64_t bytes = kSector;; bytes += rounded(bytes / 16 + 1, kSector)) {
    options.*limit = bytes;
    try {
      page(entries, options);
      return bytes;
    } catch (const Error& problem) {
      if (problem.code() != ErrorCode::budget) throw;
    }
  }
}

}  // namespace ort_train::fixtures
