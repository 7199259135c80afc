// Where a run begins, and what it saves: which checkpoint it goes on from, what it may replace in its output folder, the space that it
// needs there, each checkpoint, and a step's gradients.

#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <new>
#include <nlohmann/json.hpp>

#include "exec/loss_scale.h"
#include "frontend/checkpoint_folder.h"
#include "frontend/export.h"
#include "frontend/file.h"
#include "frontend/log.h"
#include "frontend/trainer_impl.h"
#include "graph/error.h"

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

int64_t bytes_in(const std::string& folder) {
  int64_t bytes = 0;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().filename() == kStateLink) continue;  // of the state file
    const auto size = entry.file_size(code);
    if (!code) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

template <typename T> void write_divided(std::span<const std::byte> bytes, float inverse, int64_t offset, const ByteSink& sink) {
  std::array<T, 4096> buffer;
  for (size_t done = 0; done < bytes.size();) {
    const size_t count = std::min(bytes.size() - done, sizeof(buffer));
    std::memcpy(buffer.data(), bytes.data() + done, count);
    for (T& number : buffer) number = ort_train::store<T>(load(number) * inverse);
    sink(offset + static_cast<int64_t>(done), std::as_bytes(std::span(buffer)).first(count));
    done += count;
  }
}

// Gradients without the loss scale. They are float32, or of the 16 bits that the weight itself has.
void write_unscaled(std::span<const std::byte> bytes, DType dtype, float loss_scale, int64_t offset, const ByteSink& sink) {
  if (loss_scale == 1) return sink(offset, bytes);
  (dtype == DType::bfloat16 ? write_divided<bfloat16> : write_divided<float>)(bytes, inverse_loss_scale(loss_scale), offset, sink);
}

}  // namespace

int64_t Trainer::Impl::kept_checkpoints(bool in_slots) const {
  if (options.save_total_limit > 0) return options.save_total_limit;
  return in_slots ? 1 : 2;
}

void Trainer::Impl::choose_start() {
  const std::string& from = options.resume_from_checkpoint;
  if (options.resume && !from.empty())
    throw error(ErrorCode::usage, "`resume` goes on from the newest checkpoint, `resume_from_checkpoint` from {}: give one of them", from);
  resume_named = !from.empty() && from != "auto";
  if (resume_named) {
    if (!is_our_checkpoint(from))
      throw error(ErrorCode::usage, "{}: is no checkpoint of ort-train: name a folder OUTPUT_DIR/checkpoint-STEP, or auto for the newest",
                  from);
    const fs::path folder =
        fs::path(from).filename().empty() ? fs::path(from).parent_path() : fs::path(from);  // without a slash at its end
    std::error_code code;
    const bool is_here = fs::equivalent(fs::absolute(folder).parent_path(), options.output_dir, code);
    resume_folder = folder.string();
    is_branch = !is_here || !checkpoints_newer_than(options.output_dir, resume_folder).empty();
  } else if (options.resume || from == "auto") {
    const std::vector<std::string> all = checkpoints_newer_than(options.output_dir, {});
    if (!all.empty()) resume_folder = all.front();
    if (all.empty() && options.resume)
      throw error(ErrorCode::usage,
                  "{}: there is no checkpoint to resume from (`resume_from_checkpoint` auto begins afresh where there is none)",
                  options.output_dir);
  }
}

void Trainer::Impl::check_output_dir() const {
  // What earlier runs have left is replaced only where the user says so. A run that is resumed goes on with its own.
  if (!options.overwrite && (!is_resumed() || is_branch)) {
    std::vector<std::string> replaced;
    for (const std::string& path : checkpoints_newer_than(options.output_dir, resume_folder))
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
  int64_t first = is_resumed() ? total_steps : 0;
  for (const CheckpointFolder& folder : find_checkpoints(options.output_dir)) first = std::min(first, folder.step);
  if (resume_named) first = 0;
  refuse_foreign_names(options.output_dir, first, total_steps);
  StepLog::refuse_foreign(options.log_file);
}

void Trainer::Impl::check_space() const {
  struct statvfs status;
  if (::statvfs(options.output_dir.c_str(), &status) != 0) return;
  const int64_t free = static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize);
  const bool in_slots = disk && disk->state() != nullptr;
  const int64_t kept = kept_checkpoints(in_slots), each = checkpoint_bytes(content, in_slots), model = export_bytes(info);
  const int64_t every = options.save_steps > 0 ? options.save_steps : total_steps;
  const int64_t saves = state.step >= total_steps ? 0 : total_steps / every - state.step / every + (total_steps % every != 0 ? 1 : 0);
  int64_t own = 0, others = 0;
  for (const CheckpointFolder& folder : find_checkpoints(options.output_dir)) {
    bool mine = false;
    try {
      mine = read_manifest(folder.path).at("state").at("run").get<int64_t>() == state.run;
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {  // broken: nobody's
    }
    if (mine)
      ++own;
    else
      others += bytes_in(folder.path);
  }
  const int64_t wanted = space_needed(each, kept, saves, std::min(own, kept), others, model);
  if (free < wanted) {
    throw error(
        ErrorCode::io,
        "{}: the disk has {} bytes left, and this run needs {}: its checkpoints take {} bytes each, of which {} are kept and one more is "
        "there while it is written, and the new model takes {}: free some, keep fewer (`save_total_limit`), or choose another `output_dir`",
        options.output_dir, free, wanted, each, kept, model);
  }
}

void Trainer::Impl::resume() {
  const Loaded loaded = load_checkpoint(
      options.output_dir, content, [&](const std::string& text) { note(text); }, options.nvme_path,
      [&](const SlotTable* table, const std::string& path, const std::string& folder) {
        const auto kept = static_cast<size_t>(kept_checkpoints(/*in_slots=*/true));
        return start_disk(table, path, table == nullptr ? std::vector<SlotTable>() : tables_before(options.output_dir, folder, kept));
      },
      resume_named ? resume_folder : std::string());
  std::string changed;
  for (const auto& [name, now] : content.settings) {
    const auto then = loaded.settings.find(name);
    if (then != loaded.settings.end() && then->second != now)
      changed += fmt::format("{}{} {} instead of {}", changed.empty() ? "" : ", ", name, now.empty() ? "none" : now,
                             then->second.empty() ? "none" : then->second);
  }
  if (!changed.empty()) note(fmt::format("from here on the run differs from the one that was saved: {}", changed));
  const int64_t run = state.run;
  state = loaded.state;
  if (is_branch) state.run = run;  // the newest from here on, whatever else is in the folder
  checkpoint_path = loaded.path;
  if (state.index >= train_range.count) {  // the data has become smaller
    ++state.epoch;
    state.index = 0;
  }
  note(fmt::format("resumed from {} after step {}", loaded.path, state.step));
}

void Trainer::Impl::save(bool note_it) {
  check_usable();
  flush();
  state.seed = options.seed;
  StateFile* const slots = fill_slots();
  checkpoint_path = save_checkpoint(options.output_dir, state, content, static_cast<size_t>(kept_checkpoints(slots != nullptr)), slots);
  if (note_it) note(fmt::format("saved {}", checkpoint_path));
}

void Trainer::Impl::save_gradients(size_t index, const JobEntry& entry, float loss_scale) {
  const Graph& graph = entry.job.graph;
  std::map<std::string, ValueId> gradients;
  std::map<std::string, std::string> accumulated;  // parameter -> accumulator
  for (const auto& [parameter, whole] : entry.job.gradients) {
    if (entry.job.accumulators.empty()) gradients[graph.value(parameter).name] = whole;
  }
  for (const auto& [parameter, uses] : entry.job.accumulators) {
    // Added up where they are: the first holds the sum, the others zero, which leaves the sum that the update makes what it is.
    const std::string& first = graph.value(uses[0]).name;
    for (size_t use = 1; use < uses.size(); ++use) {
      const std::string& other = graph.value(uses[use]).name;
      const auto sum = executor->persistent(first), from = executor->persistent(other, 1);
      float* to = reinterpret_cast<float*>(sum.data());
      const float* more = reinterpret_cast<const float*>(from.data());
      for (size_t i = 0; i < sum.size() / sizeof(float); ++i) to[i] += more[i];
      std::memset(from.data(), 0, from.size());
      executor->changed(first);
      executor->changed(other, 1);
    }
    accumulated[graph.value(parameter).name] = first;
  }
  std::vector<Weight> as_summed = weights;  // of the types that the gradients have
  const auto type_of = [&](const std::string& slice) {
    const auto sum = accumulated.find(slice);
    const auto found = gradients.find(slice);
    return sum != accumulated.end()   ? graph.value(graph.find_value(sum->second)).dtype
           : found != gradients.end() ? graph.value(found->second).dtype
                                      : DType::float32;
  };
  for (Weight& weight : as_summed) {
    if (const std::vector<Slice> slices = slices_of(weight.parameter); !slices.empty()) weight.dtype = type_of(slices[0].name);
  }
  write_layouts(options.save_gradients, as_summed, [&](const std::string& name, const ByteSink& sink) {
    int64_t offset = 0;
    const std::vector<Slice> slices = slices_of(name);
    const auto weight = std::find_if(weights.begin(), weights.end(), [&](const Weight& w) { return w.parameter == name; });
    for (const Slice& slice : slices) {
      const auto sum = accumulated.find(slice.name);
      const auto found = gradients.find(slice.name);
      if (sum == accumulated.end() && found == gradients.end()) return false;
      if (!sink) continue;
      const DType dtype = type_of(slice.name);
      const auto in_gradient = [&](int64_t bytes) { return static_cast<size_t>(bytes / size_of(weight->dtype) * size_of(dtype)); };
      const std::span<const std::byte> bytes =
          sum != accumulated.end() ? executor->persistent(sum->second) : executor->bytes(index, found->second);
      write_unscaled(bytes.subspan(in_gradient(slice.offset), in_gradient(slice.bytes)), dtype, loss_scale, offset, sink);
      offset += static_cast<int64_t>(in_gradient(slice.bytes));
    }
    return !slices.empty();
  });
}

}  // namespace ort_train
