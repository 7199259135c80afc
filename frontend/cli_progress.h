// What a person sees while a run goes on: one line in place on a terminal, a line each so many steps elsewhere.
//
// Output that fails (the reader of a pipe is gone, the disk under a file is full, the terminal hung up) is remembered, not thrown: the run
// can be saved first. Nothing is printed after that.

#pragma once

#include <cstdint>
#include <string>

#include "frontend/ort_train.h"

namespace ort_train {

class Progress {
 public:
  Progress(int64_t budget, int64_t logging_steps);

  void step(const StepReport& report, const std::string& rate);  // `rate`: of what tokens_per_second counts
  void eval(const EvalReport& report);
  void note(const std::string& text);
  void line(const std::string& label, const std::string& text);  // "label       text"
  void end();                                                    // of the line in place
  void print(const std::string& text);                           // as it stands
  // Why nothing is printed any more; empty: all is well.
  const std::string& failure() const { return failure_; }

 private:
  int64_t budget_, logging_steps_;
  bool terminal_;
  bool open_ = false;  // a line in place that has no end yet
  std::string failure_;
};

// To the standard output, as it stands. Returns why it couldn't be written; empty: it is.
std::string write_out(const std::string& text);

std::string megabytes(int64_t bytes);  // "102 MB", "3.99 GB"

}  // namespace ort_train
