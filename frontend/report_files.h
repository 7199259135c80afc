// The files that a user names for what a run tells beside its model: plans, pictures, times, gradients, optimizer state, graphs. Each has
// something at its beginning by which the next run knows it for one of ours; what hasn't is never replaced. (Event files, which have names
// of their own, replace none.)

#pragma once

#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "frontend/file.h"
#include "frontend/ort_train.h"

namespace ort_train {

// In the metadata of safetensors files: who wrote them, and what they hold.
inline constexpr const char *kProducerKey = "producer", *kProducer = "ort-train", *kContentKey = "content", *kGradients = "gradients",
                            *kOptimizerState = "optimizer state";

// Throws Error(usage) where one of them would replace a file that isn't such a report, or that the run reads or writes otherwise, and where
// `logging_dir` can be no folder of the run's; Error(io) where that can't be written. Called before the model is read.
void refuse_foreign_reports(const Options& options);

// Where such a file is written: of a link what it leads to. Makes the folders.
std::string report_target(const std::string& path);
// Replaces what is there. Into what is no regular file (a device, a pipe) it is written.
void write_report(const std::string& path, std::string_view text);

// A report that is written piece by piece, and takes its place as a whole; unless it is published, it replaces nothing. Throws Error(io).
class ReportFile {
 public:
  explicit ReportFile(const std::string& path);
  void append(std::string_view text);
  void publish();

 private:
  std::string path_;
  std::optional<NewFile> file_;
  int64_t bytes_ = 0;   // that it has
  std::ofstream into_;  // of what is no regular file
};

}  // namespace ort_train
