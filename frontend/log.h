// StepLog: the JSON-lines file of a run, one object a step and one `summary` at the end; each line reaches the file at once.
//
// A resumed run goes on in the same file: what a stopped run had logged beyond its checkpoint is cut off first, so that each step stands
// there once. A step that is evaluated has its line when its evaluation is over, which may be in the resumed run alone: a checkpoint that
// is saved before then has the line (HeldOutState::log_line). A line that can't be written (a full disk) ends the log, not the run: it is
// the owner's to ask failure() and to save first.

#pragma once

#include <fstream>
#include <optional>
#include <string>

#include "frontend/ort_train.h"

namespace ort_train {

class StepLog {
 public:
  // `done`: steps that are done already; 0 begins a new file. `last_follows`: the next call of step() is for the last of these.
  StepLog(const std::string& path, int64_t done, bool last_follows = false);

  // Throws Error(usage) where a file is there that has something in it, and it isn't such a log.
  static void refuse_foreign(const std::string& path);

  static std::string line_of(const StepReport& report);
  // `eval_loss`: of the evaluation behind the step, if there was one.
  void step(const std::string& line, std::optional<double> eval_loss = std::nullopt);
  void summary(const Summary& summary);
  // Why the log ends; empty: it doesn't.
  const std::string& failure() const { return failure_; }

 private:
  void line(const std::string& text);
  std::string path_, failure_;
  bool skips_next_ = false;  // the steps before that one aren't in this file
  std::ofstream file_;
};

}  // namespace ort_train
