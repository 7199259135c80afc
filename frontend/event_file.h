// EventFile: a run's numbers as TensorBoard reads them, in a folder of event files: Options::logging_dir.
//
// Each call of train() has a file of its own there, `events.out.tfevents.TIME.HOST.PROCESS`; TensorBoard reads them in the order of their
// names. A file begins by saying at which step it takes over: what earlier files have of that step and later ones doesn't count any more,
// so a resumed run has each step once. Each step's event reaches the file at once, in one write. One that can't be written (a full disk)
// ends the file, not the run: it is the owner's to ask failure() and to save first, as of StepLog.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "frontend/file.h"
#include "frontend/ort_train.h"

namespace ort_train {

// The folder that `logging_dir` and `report_to` ask for; empty: no events are written. Throws Error(usage).
std::string event_folder(const Options& options);

// CRC-32C (Castagnoli), of which each record has two.
uint32_t crc32c(std::span<const std::byte> bytes);

class EventFile {
 public:
  // Makes the folder and a new file in it, which takes over at that step. An empty path: writes nothing. Throws Error(io).
  EventFile(const std::string& folder, int64_t first_step);

  bool is_on() const { return file_.has_value(); }
  // A step's numbers, from its line of the log (StepLog::line_of); a number that isn't finite is NaN. `eval_loss`: of the evaluation behind
  // it, if there was one. `resident_bytes`: of the process.
  void step(const std::string& line, std::optional<double> eval_loss, int64_t resident_bytes);
  // Why the file ends; empty: it doesn't.
  const std::string& failure() const { return failure_; }

 private:
  void append(const std::string& event);
  std::optional<File> file_;
  int64_t end_ = 0;  // bytes that it has
  std::string failure_;
};

}  // namespace ort_train
