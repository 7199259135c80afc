// Learning-rate schedules: those of Hugging Face's Trainer (transformers.get_scheduler), number for number. Each is one entry of the table
// in schedule.cpp: its name, its arguments, and its function.

#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ort_train {

struct Schedule;

// What a schedule that follows the loss has seen. Belongs to the state of a run; the others leave it as it is.
struct ScheduleState {
  int64_t step = 0;              // of the last evaluation that it has seen
  std::optional<double> best{};  // of the losses; none: no finite one yet
  int64_t bad = 0;               // evaluations since then without a better one
  int64_t cooldown = 0;          // evaluations that don't count yet
  int64_t reductions = 0;        // of the learning rate
};

struct ScheduleArgument {
  std::string_view name{}, help{};
  double value = std::numeric_limits<double>::quiet_NaN();  // by default; NaN: it isn't given. Of a word: its place in `words`
  std::vector<std::string_view> words{};                    // what it can be, where it is no number
  bool (*fits)(double) = nullptr;
  std::string_view wrong{};  // of a number that doesn't fit: "is negative"
};

struct ScheduleDef {
  std::string_view name{};                   // as in Hugging Face's `lr_scheduler_type`
  std::vector<std::string_view> synonyms{};  // that mean the same
  std::vector<ScheduleArgument> arguments{};
  bool warms_up = true;
  // What the learning rate is multiplied by after `step` updates, a whole number. Null where it follows the loss.
  double (*factor)(const Schedule&, double step) = nullptr;
  // Of one that follows the loss: takes note of a held-out loss; what becomes of a learning rate.
  void (*observe)(const Schedule&, ScheduleState&, double loss) = nullptr;
  double (*reduced)(const Schedule&, const ScheduleState&, double rate) = nullptr;
  // What is wrong with the arguments and the job's length together, as a sentence; empty: nothing. Null: nothing can be.
  std::string (*check)(const Schedule&) = nullptr;
};

struct Schedule {
  const ScheduleDef* def = nullptr;
  std::vector<double> values{};              // by def->arguments
  double learning_rate = 0;                  // the highest, of parameters in no group of their own
  double warmup_steps = 0, total_steps = 0;  // whole numbers
  bool is_over = false;                      // no update is left to be made

  double value(std::string_view argument) const;
  bool given(std::string_view argument) const;
  bool follows_loss() const { return def->observe != nullptr; }

  // The job's length; `warmup` below 1 is a share of `total`, rounded up. Throws Error(usage) where it doesn't go with the arguments; of a
  // run that is over, which may have been shortened to the steps that it has made, no length is wrong.
  void begin(double rate, double warmup, int64_t total, bool over = false);
  // The learning rate of the next update, after so many, of parameters whose highest is `rate`.
  double at(int64_t updates, double rate, const ScheduleState& state = {}) const;
};

const std::vector<ScheduleDef>& all_schedules();
// What it is by default, as it would be given; empty: nothing.
std::string default_text(const ScheduleArgument& argument);

// By a name or synonym, with the arguments given, as text, the others as they are by default. Throws Error(usage) for a name or an argument
// that isn't known, or a value that doesn't fit.
Schedule make_schedule(std::string_view type, const std::map<std::string, std::string>& arguments = {});

}  // namespace ort_train
