#include "exec/verify_program.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

namespace ort_train::verifying {
namespace {

void check_spaces(const Program& program) {
  if (program.spaces.size() <= kFile || program.spaces[kMemory].kind == SpaceKind::file || program.spaces[kFile].kind != SpaceKind::file)
    fail_program("its first spaces aren't memory and a file");
  for (const Space& space : program.spaces) {
    if (space.alignment < 1 || space.bytes < 0 || space.persistent_bytes < 0 || space.persistent_bytes > space.bytes)
      fail_program("what lives across runs is larger than the {}", space.name);
  }
  for (const Queue& queue : program.queues) {
    if (queue.from >= program.spaces.size() || queue.to >= program.spaces.size())
      fail_program("queue {} copies from or to no space", queue.name);
    if (queue.computes() && program.spaces[queue.from].kind == SpaceKind::file) fail_program("queue {} computes in a file", queue.name);
  }
}

void check_persistents(const Program& program) {
  std::vector<const Persistent*> by_place;
  std::unordered_set<std::string_view> names;
  for (const Persistent& value : program.persistent) {
    const Place& home = value.home;
    if (home.space >= program.spaces.size()) fail_program("'{}' lives in space {}, which isn't there", value.name, home.space);
    const Space& space = program.spaces[home.space];
    const bool file = space.kind == SpaceKind::file;
    if (home.bytes != value.type.bytes() || (value.initial && (value.initial->type() != value.type || file)))
      fail_program("'{}' has a home that is not of its size", value.name);
    if (!value.initial && !names.insert(value.name).second) fail_program("'{}' lives across runs twice", value.name);
    if (home.bytes == 0) continue;
    const int64_t end = file ? home.offset + whole_sectors(home.bytes) : home.end();
    if (home.offset % space.alignment != 0 || home.offset < 0 || end > (file ? space.bytes : space.persistent_bytes))
      fail_program("'{}' is misaligned or outside the {}", value.name, space.name);
    by_place.push_back(&value);
  }
  std::sort(by_place.begin(), by_place.end(), [](const auto* a, const auto* b) {
    return std::pair(a->home.space, a->home.offset) < std::pair(b->home.space, b->home.offset);
  });
  for (size_t i = 1; i < by_place.size(); ++i) {
    const Place &before = by_place[i - 1]->home, &after = by_place[i]->home;
    if (before.space == after.space &&
        before.offset + (program.spaces[before.space].kind == SpaceKind::file ? whole_sectors(before.bytes) : before.bytes) > after.offset)
      fail_program("'{}' and '{}' overlap in the {}", by_place[i - 1]->name, by_place[i]->name, program.spaces[after.space].name);
  }
}

// What the executor touches between runs: the host's memory, above what lives then, large enough for each tensor that the host can't touch
// where it lives.
void check_staging(const Program& program) {
  const auto inside = [&](const Place& place) {
    if (place.space >= program.spaces.size() || place.bytes < 0 || place.offset % kSector != 0 || place.bytes % kSector != 0) return false;
    const Space& space = program.spaces[place.space];
    return place.bytes == 0 || (space.kind == SpaceKind::host && place.offset >= space.persistent_bytes && place.end() <= space.bytes);
  };
  if (!inside(program.staging[0]) || !inside(program.staging[1]) || !inside(program.spare))
    fail_program("memory that is used between runs lies over what lives then, or outside the arena");
  bool staged_in_memory = false;  // what is staged while the spare memory is used
  for (const Persistent& value : program.persistent) {
    if (!is_far(program, value.home) || value.home.bytes == 0) continue;
    const int64_t bytes = whole_sectors(value.home.bytes);
    if (value.initial) {  // the host only writes it, once
      if (program.spare.bytes == 0)
        fail_program("there is no memory to bring '{}' to the {} by", value.name, program.spaces[value.home.space].name);
      continue;
    }
    staged_in_memory |= !is_in_file(value);
    if (bytes > program.staging[0].bytes) fail_program("'{}' doesn't fit in the staging area", value.name);
    if (value.purpose != Purpose::gradients) continue;
    if (bytes > program.staging[1].bytes ||
        (program.staging[0].space == program.staging[1].space && program.staging[0].offset + bytes > program.staging[1].offset))
      fail_program("'{}' doesn't fit beside another", value.name);
  }
  if (staged_in_memory && overlap(program.staging[0], program.spare)) fail_program("the spare memory lies over the staging area");
}

// What an entry leaves to be done, another does.
void check_updates(const Program& program) {
  const auto& entries = program.entries;
  const bool left = std::any_of(entries.begin(), entries.end(), [](const Entry& entry) { return entry.role.leaves_update; });
  const bool made = std::any_of(entries.begin(), entries.end(),
                                [](const Entry& entry) { return entry.role.completes_update && !entry.role.leaves_update; });
  if (left && !made) fail_program("gradients are left for an update that no entry makes");
}

}  // namespace

void check_program(const Program& program) {
  check_spaces(program);
  check_persistents(program);
  check_staging(program);
  check_updates(program);
}

void check_kept(const Program& program, const Entry& entry, const Graph& graph) {
  bool staged = false, covered = false;
  for (const auto* values : {&graph.outputs, &entry.keep}) {
    for (const ValueId value : *values) {
      const Place& place = entry.value_places[value];
      if (place.bytes == 0) continue;
      covered |= overlap(place, program.staging[0]);
      if (!is_far(program, place)) continue;
      staged = true;
      if (place.bytes > program.staging[0].bytes)
        fail_program("'{}', which '{}' keeps, doesn't fit in the staging area", graph.value(value).name, entry.name);
    }
  }
  if (staged && covered) fail_program("the staging area lies over what '{}' keeps", entry.name);
}

}  // namespace ort_train::verifying
