#include "frontend/load_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

namespace ort_train {
namespace {

// What isn't there is at its default.
std::string differences(const std::map<std::string, std::string>& now, const std::map<std::string, std::string>& then) {
  std::map<std::string, std::string> all = then;
  all.insert(now.begin(), now.end());
  const auto shown = [](const std::map<std::string, std::string>& settings, const std::string& name) {
    const auto found = settings.find(name);
    return found == settings.end() || found->second.empty() ? std::string("none") : found->second;
  };
  std::string text;
  for (const auto& [name, either] : all) {
    const std::string is = shown(now, name), was = shown(then, name);
    if (is != was) text += fmt::format("{}{} {} instead of {}", text.empty() ? "" : ", ", name, is, was);
  }
  return text;
}

// By hashes of the data to train on and, behind them, of a validation file, where one was opened.
bool is_other_data(const std::string& hash, const std::string& saved) {
  const size_t both = std::min(hash.size(), saved.size());
  return hash.compare(0, both, saved, 0, both) != 0;
}

void note_differences(const Job& job, std::map<std::string, std::string> settings, std::map<std::string, std::string> saved,
                      const Note& note) {
  // Checkpoints of earlier versions have none.
  const auto hash = settings.extract(kDataHashSetting), saved_hash = saved.extract(kDataHashSetting);
  if (saved_hash && is_other_data(hash.mapped(), saved_hash.mapped()) && saved["data"] == settings["data"]) {
    note(fmt::format("{}: holds other data than when the run was saved: from here on the run differs from an uninterrupted one",
                     job.data.sets.name));
  }
  if (const std::string changed = differences(settings, saved); !changed.empty())
    note(fmt::format("from here on the run differs from the one that was saved: {}", changed));
}

// Moves the data cursor where the data or the batch size has changed.
void settle_cursor(RunState& state, const JobData& data, const Note& note) {
  if (state.index >= data.train_samples.count) {  // the data has become smaller
    ++state.epoch;
    state.index = 0;
  }
  if (const int64_t again = state.index % data.binding.batch; again > 0) {  // batches are counted from the epoch's beginning
    state.index -= again;
    note(fmt::format("the batch size has changed: {} sample{} of this epoch {} used again", again, again == 1 ? "" : "s",
                     again == 1 ? "is" : "are"));
  }
}

}  // namespace

RunState load_run(const Job& job, RunFolder& folder, Runtime& runtime, const Note& note) {
  const RunStart& start = folder.start();
  RunState state;
  if (!start.is_resumed()) {
    runtime.open_files(start, {});
    runtime.load_weights(Runtime::Weights::all);
    return state;
  }
  const Loaded loaded = folder.load(runtime, note);
  note_differences(job, runtime.content().settings, loaded.settings, note);
  state = loaded.state;
  settle_cursor(state, job.data, note);
  note(fmt::format("resumed from {} after step {}", loaded.path, state.step));
  return state;
}

}  // namespace ort_train
