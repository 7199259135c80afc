#include "frontend/run_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "frontend/checkpoint.h"
#include "frontend/checkpoint_folder.h"
#include "frontend/log.h"
#include "graph/error.h"
#include "offload/file_system.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

// "a, b and c", of many the first few.
std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kShown = 4;
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i >= kShown && i + 1 < names.size()) return text + fmt::format(" and {} more", names.size() - i);
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

// Checkpoints from which the run may go on: where the newest turns out to be damaged, it is the one before.
std::vector<std::string> candidates(const RunStart& start, const Options& options) {
  if (!start.is_resumed()) return {};
  if (start.is_named) return {start.checkpoint};
  return checkpoints_newer_than(options.output_dir, {});
}

}  // namespace

RunStart choose_start(const Options& options) {
  RunStart start;
  const std::string& from = options.resume_from_checkpoint;
  if (options.resume && !from.empty())
    throw error(ErrorCode::usage, "`resume` goes on from the newest checkpoint, `resume_from_checkpoint` from {}: give one of them", from);
  start.is_named = !from.empty() && from != "auto";
  if (start.is_named) {
    if (!is_our_checkpoint(from))
      throw error(ErrorCode::usage, "{}: is no checkpoint of ort-train: name a folder OUTPUT_DIR/checkpoint-STEP, or auto for the newest",
                  from);
    const fs::path folder =
        fs::path(from).filename().empty() ? fs::path(from).parent_path() : fs::path(from);  // without a slash at its end
    std::error_code code;
    const bool is_here = fs::equivalent(fs::absolute(folder).parent_path(), options.output_dir, code);
    start.checkpoint = folder.string();
    start.is_branch = !is_here || !checkpoints_newer_than(options.output_dir, start.checkpoint).empty();
  } else if (options.resume || from == "auto") {
    const std::vector<std::string> all = checkpoints_newer_than(options.output_dir, {});
    if (!all.empty()) start.checkpoint = all.front();
    if (all.empty() && options.resume)
      throw error(ErrorCode::usage,
                  "{}: there is no checkpoint to resume from (`resume_from_checkpoint` auto begins afresh where there is none)",
                  options.output_dir);
  }
  for (const std::string& checkpoint : candidates(start, options)) {
    if (const std::optional<RunState> state = saved_state(checkpoint)) start.cursors.push_back({state->step, state->index});
  }
  return start;
}

Algorithms algorithms_of_run(const RunStart& start, const Options& options, const std::string& makes_products) {
  for (const std::string& checkpoint : candidates(start, options)) {
    if (const std::optional<Algorithms> saved = saved_algorithms(checkpoint, makes_products)) return *saved;
  }
  return {};
}

int64_t kept_checkpoints(const Options& options, bool in_slots) {
  if (options.save_total_limit > 0) return options.save_total_limit;
  return in_slots ? 1 : 2;
}

int state_slots(const Options& options) { return static_cast<int>(kept_checkpoints(options, /*in_slots=*/true)) + 1; }

void check_output_dir(const Options& options, const RunStart& start, int64_t total_steps) {
  // What earlier runs have left is replaced only where the user says so. A run that is resumed goes on with its own.
  if (!options.overwrite && (!start.is_resumed() || start.is_branch)) {
    std::vector<std::string> replaced;
    for (const std::string& path : checkpoints_newer_than(options.output_dir, start.checkpoint))
      replaced.push_back(fs::path(path).filename().string());
    // That it is ours is known by now.
    if (const fs::path model = fs::path(options.output_dir) / "model.onnx"; exists(model.string()))
      replaced.push_back(model.filename().string());
    if (!replaced.empty()) {
      throw error(ErrorCode::usage,
                  "{}: has {} of an earlier run: go on from there (`resume`), replace {} (`overwrite`), or choose another `output_dir`",
                  options.output_dir, listed(replaced), replaced.size() == 1 ? "it" : "them");
    }
  }
  int64_t first = start.is_resumed() ? total_steps : 0;
  for (const CheckpointFolder& folder : find_checkpoints(options.output_dir)) first = std::min(first, folder.step);
  if (start.is_named) first = 0;
  refuse_foreign_names(options.output_dir, first, total_steps);
  StepLog::refuse_foreign(options.log_file);
}

}  // namespace ort_train
