#include "frontend/run_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "frontend/checkpoint_slots.h"
#include "graph/error.h"
#include "offload/disk_folder.h"
#include "offload/file_system.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

// Bytes at the front of the program's disk that belong to tensors which survive; 0: none is there.
int64_t homes_end(const Program& program) {
  int64_t end = 0, others = program.file().bytes;
  for (const Persistent& value : program.persistent) {
    if (!is_in_file(value)) continue;
    if (survives(value))
      end = std::max(end, value.home.offset + file_bytes(value));
    else
      others = std::min(others, value.home.offset);
  }
  require(end <= others, "what survives a run lies at the front of its disk");
  return end;
}

// By name: the same file whatever the plan.
std::vector<StateFile::Tensor> tensors_of(const Program& program) {
  std::vector<StateFile::Tensor> tensors;
  for (const Persistent& value : program.persistent) {
    if (survives(value)) tensors.push_back({.name = value.name, .bytes = value.type.bytes()});
  }
  std::sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return tensors;
}

bool has_tensors(const SlotTable& table, const std::vector<StateFile::Tensor>& tensors, int slots) {
  return table.entries.size() == tensors.size() && std::all_of(tensors.begin(), tensors.end(), [&](const StateFile::Tensor& tensor) {
           const SlotEntry* const entry = table.find(tensor.name);
           return entry != nullptr && entry->bytes == tensor.bytes && entry->slots.size() == static_cast<size_t>(slots);
         });
}

// Goes on with the state file of a checkpoint where it lies in this run's folder, has this run's tensors and slots, and no checkpoint needs
// it that this run doesn't know of: in another output folder, or newer than the one that was named.
std::unique_ptr<StateFile> take_over(const Options& options, const Program& program, const RunStart& start, const SavedSlots& saved) {
  if (start.is_branch) return nullptr;
  const SlotTable& table = *saved.table;
  const fs::path here = fs::path(options.nvme_path) / fs::path(table.path).filename();
  if (!exists(here) && !exists(table.path)) link_file(saved.path, here);  // only the checkpoint has a name of it
  if (!same_file(here, saved.path) || !has_tensors(table, tensors_of(program), state_slots(options))) return nullptr;
  const StateHeader header = read_state_header(here.string());
  if (header.failed != 0)
    throw error(ErrorCode::io, "'{}' can't be read: {}", here.string(), std::generic_category().message(header.failed));
  const std::string& owner = header.owner;
  if (!same_file(owner, options.output_dir) && !owner.empty() && refers_to_state(owner, table.id)) return nullptr;  // this is its copy
  return std::make_unique<StateFile>(here.string(), table, fs::absolute(options.output_dir).string(), saved.before);
}

// The plan may count on the checkpoint's file where the run can't go on in it: the newest checkpoint is damaged, and the one before it is
// in no state file, for example.
void check_budget(const Options& options, const DiskNeed& need) {
  if (options.nvme_budget == 0) return;
  const int64_t held = state_before(options).held();
  if (need.total() + held <= options.nvme_budget) return;
  throw error(ErrorCode::budget,
              "'{}': the run can't go on in the state file of its newest checkpoint, and makes another: that takes {} bytes, beside {} of "
              "what is there, more than `nvme_budget` {}: raise that",
              options.nvme_path, need.total(), held, options.nvme_budget);
}

}  // namespace

DiskNeed disk_need(const Program& program, int slots) {
  DiskNeed need;
  const int64_t end = homes_end(program);
  if (end > 0) need.state = StateFile::file_bytes(tensors_of(program), slots);
  need.spill = program.file().bytes - end;
  return need;
}

DiskNeed disk_need(const PlanEstimate& estimate, const Program& other, int slots) {
  return {.state = estimate.state_bytes > 0 ? StateFile::file_bytes(tensors_of(other), slots) : 0,
          .spill = estimate.disk_bytes - estimate.state_bytes};
}

StateBefore state_before(const Options& options) {
  StateBefore before;
  const std::vector<std::string> checkpoints = checkpoints_newer_than(options.output_dir, {});
  const std::string newest = checkpoints.empty() ? std::string() : state_id(checkpoints.front());
  std::error_code failure;
  for (const auto& entry : fs::directory_iterator(options.nvme_path, failure)) {
    const std::string path = entry.path().string();
    if (!entry.path().filename().string().starts_with(kStatePrefix)) continue;
    int code = 0;
    const std::optional<File> file = File::find(path, Access::read, code);
    const StateHeader header = file ? read_state_header(*file) : StateHeader{};
    if (header.id.empty() || !same_file(header.owner, options.output_dir) || !refers_to_state(options.output_dir, header.id)) continue;
    before.files.push_back({.size = file->size(), .held = file->held(), .has_newest = header.id == newest});
  }
  return before;
}

int64_t StateBefore::held() const {
  int64_t bytes = 0;
  for (const Found& file : files) bytes += file.held;
  return bytes;
}

int64_t most_on_disk(const DiskNeed& need, const StateBefore& before, const RunStart& start) {
  int64_t goes_on = 0;  // held by the file that the run goes on in
  for (const StateBefore::Found& file : before.files) {
    if (need.state > 0 && file.size == need.state && file.has_newest) goes_on = file.held;
  }
  return need.total() + before.held() - (start.is_resumed() && !start.is_branch ? goes_on : 0);
}

void tidy_disk(const Options& options, const Note& note) {
  if (options.nvme_path.empty()) return;
  if (const int64_t bytes = remove_leftovers(options.nvme_path); bytes > 0)
    note(fmt::format("removed {} bytes that earlier runs had left in '{}'", bytes, options.nvme_path));
  for (const KeptFile& kept : kept_state_files(options.nvme_path)) {
    if (refers_to_state(kept.header.owner, kept.header.id) || refers_to_state(options.output_dir, kept.header.id)) continue;
    note(fmt::format("'{}' takes {} bytes for checkpoints that are not in '{}' any more: remove it, unless they were moved", kept.path,
                     kept.bytes, kept.header.owner));
  }
}

OpenedDisk open_disk(const Options& options, const Program& program, const RunStart& start, const DiskOptions& engine,
                     const SavedSlots& saved) {
  OpenedDisk opened;
  if (program.file().bytes == 0) return opened;
  std::unique_ptr<StateFile> file;
  std::vector<StateHome> homes;
  const int slots = state_slots(options);
  if (const DiskNeed need = disk_need(program, slots); need.state > 0) {
    if (saved.table != nullptr) file = take_over(options, program, start, saved);
    opened.in_place = file != nullptr;
    if (!file) {
      if (start.is_resumed()) check_budget(options, need);
      file = std::make_unique<StateFile>(options.nvme_path, tensors_of(program), fs::absolute(options.output_dir).string(), slots);
    }
    for (const Persistent& value : program.persistent) {
      if (survives(value) && is_in_file(value)) homes.push_back({.offset = value.home.offset, .name = value.name});
    }
  }
  opened.disk =
      std::make_unique<SpillDisk>(SpillOptions{.folder = options.nvme_path, .engine = engine, .checksums = options.nvme_checksums},
                                  program.file().bytes, homes_end(program), std::move(file), homes);
  return opened;
}

}  // namespace ort_train
