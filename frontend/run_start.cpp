#include "frontend/run_start.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "frontend/checkpoint.h"
#include "frontend/checkpoint_folder.h"
#include "graph/error.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

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

}  // namespace ort_train
