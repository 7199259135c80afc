#include "passes/plan/staging.h"

#include <algorithm>

namespace ort_train {
namespace {

constexpr int64_t kLeastSpare = 16 * kSector;  // where something is brought to a device by it

// Bytes of the largest tensors that have to be looked at.
struct Largest {
  int64_t of_all = 0, accumulator = 0;
  void add(int64_t bytes, Purpose purpose) {
    of_all = std::max(of_all, whole_sectors(bytes));
    if (purpose == Purpose::gradients) accumulator = std::max(accumulator, whole_sectors(bytes));
  }
};

Largest far_persistents(const std::vector<Persistent>& values, const Program& program) {
  Largest largest;
  for (const Persistent& value : values) {
    if (is_far(program, value.home) && !value.initial) largest.add(value.home.bytes, value.purpose);
  }
  return largest;
}

// Both areas, and the bytes of their space that they need.
void set_areas(const Place& first, const Place& second, Program& program) {
  program.staging[0] = first;
  program.staging[1] = second;
  int64_t& bytes = program.spaces[first.space].bytes;
  for (const Place& area : program.staging) bytes = std::max(bytes, area.bytes > 0 ? area.end() : 0);
}

// All whole sectors from there on.
void set_spare(SpaceId space, int64_t begin, Program& program) {
  const int64_t bytes = program.spaces[space].bytes - begin;
  program.spare = {.offset = begin, .bytes = std::max<int64_t>(0, bytes) / kSector * kSector, .space = space};
}

// One memory and a file: both areas are in that memory, which steps don't use then, and the spare memory may be over them.
void add_staging_in_memory(const std::vector<Persistent>& values, Program& program) {
  const Largest largest = far_persistents(values, program);
  const int64_t begin = whole_sectors(program.memory().persistent_bytes);
  set_areas({.offset = begin, .bytes = largest.of_all, .space = kMemory},
            {.offset = begin + largest.accumulator, .bytes = largest.accumulator, .space = kMemory}, program);
  set_spare(kMemory, begin, program);
}

// A device and its host: areas and spare memory are one after the other in the host's memory, above what is looked at after a run and is
// there already.
void add_staging_on_host(const std::vector<Draft>& drafts, const std::vector<Persistent>& values, Program& program) {
  Space& host = program.spaces[kHost];
  Largest largest = far_persistents(values, program);
  int64_t begin = whole_sectors(host.persistent_bytes);
  for (size_t i = 0; i < drafts.size(); ++i) {
    for (const ValueId value : drafts[i].keep) {
      const Place& place = program.entries[i].value_places[value];
      if (is_far(program, place))
        largest.of_all = std::max(largest.of_all, whole_sectors(place.bytes));
      else
        begin = std::max(begin, whole_sectors(place.end()));
    }
  }
  set_areas({.offset = begin, .bytes = largest.of_all, .space = kHost},
            {.offset = begin + largest.of_all, .bytes = largest.accumulator, .space = kHost}, program);
  const int64_t end = program.staging[1].end();
  const bool fills_device = std::any_of(values.begin(), values.end(), [&](const Persistent& value) {  // first by the spare memory
    return is_far(program, value.home) && !is_in_file(value);
  });
  if (fills_device) host.bytes = std::max(host.bytes, end + kLeastSpare);
  set_spare(kHost, end, program);
}

}  // namespace

void add_staging(const std::vector<Draft>& drafts, const std::vector<Persistent>& values, Program& program) {
  if (program.memory().kind == SpaceKind::device)
    add_staging_on_host(drafts, values, program);
  else
    add_staging_in_memory(values, program);
}

int64_t most_staging_bytes(const JobDraft& job) {
  Largest largest;
  for (size_t i = 0; i < job.persistents.size(); ++i) largest.add(job.persistents[i].type.bytes(), job.persistents[i].purpose);
  for (const Draft& draft : job.drafts) {
    for (const ValueId value : draft.keep) largest.of_all = std::max(largest.of_all, whole_sectors(draft.graph->value(value).bytes()));
  }
  return largest.of_all + largest.accumulator + kLeastSpare;
}

}  // namespace ort_train
