#include "passes/plan/make_program.h"

#include <algorithm>
#include <utility>

#include "passes/plan/emit.h"
#include "passes/plan/staging.h"

namespace ort_train {
namespace {

// Where each value that lives across runs does.
std::vector<SpaceId> homes(const Instance& instance, const planning::HierarchyPlan& plan) {
  std::vector<SpaceId> result(instance.movable.size(), kMemory);
  for (size_t i = 0; i < result.size(); ++i) {
    if (!instance.movable[i] || plan.plans[0].resident[i]) continue;
    result[i] = plan.plans.size() > 1 && plan.plans[1].resident[i] ? kHost : kFile;
  }
  return result;
}

// The spaces with the persistent values alone.
void set_persistent_bytes(bool whole, Program& program) {
  for (Space& space : program.spaces) {
    if (space.kind == SpaceKind::file) continue;
    if (whole) space.persistent_bytes = whole_sectors(space.persistent_bytes);
    space.bytes = space.persistent_bytes;
  }
}

void add_entry(Entry entry, Program& program) {
  program.entries.push_back(std::move(entry));
  for (const Storage& storage : program.entries.back().storages) {
    int64_t& bytes = program.spaces[storage.place.space].bytes;
    bytes = std::max(bytes, aligned(storage.place.end()));
  }
}

// By their offsets in memory, what is in the file first.
void sort_by_offset(std::vector<Persistent>& values) {
  const auto memory_offset = [](const Persistent& value) { return is_in_file(value) ? 0 : value.home.offset; };
  std::stable_sort(values.begin(), values.end(),
                   [&](const Persistent& a, const Persistent& b) { return memory_offset(a) < memory_offset(b); });
}

}  // namespace

Program make_program(const JobDraft& job, const Instance& instance, const planning::HierarchyPlan& plan) {
  Program program = plan.plans.size() > 1 ? discrete_program() : Program{};
  program.threads = instance.machine.threads;
  std::vector<Persistent> values = job.persistents.lay_out(homes(instance, plan), program);
  set_persistent_bytes(/*whole=*/instance.machine.moves, program);
  program.spaces[kMemory].bytes += aligned(plan.plans[0].bytes);  // what a plan is given, whether its addresses reach there or not
  for (size_t i = 0; i < job.drafts.size(); ++i) {
    const EntryPlan entry{.run_draft = &instance.run_drafts[i], .levels = plan.of_run(instance.problem, i)};
    add_entry(make_entry(job.drafts[i], values, entry, program), program);
  }
  add_staging(job.drafts, values, program);
  sort_by_offset(values);
  program.persistent = std::move(values);
  return program;
}

}  // namespace ort_train
