// Loop: the run of a job: where it begins, its steps, and what happens between them: evaluation, checkpoints, reports, the end.

#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "frontend/anomaly_watch.h"
#include "frontend/file.h"
#include "frontend/job.h"
#include "frontend/plan_job.h"
#include "frontend/predict.h"
#include "frontend/run_start.h"
#include "frontend/runtime.h"
#include "frontend/steps.h"

namespace ort_train {

class Loop {
 public:
  // All of these outlive it. `stop` may be set by any thread or signal handler; the call that ends because of it clears it. Everything else
  // is for one thread at a time.
  Loop(const Job& job, PlannedJob& planned, Runtime& runtime, const PlanReport& report, const RunStart& start, const Callbacks& callbacks,
       std::atomic<bool>& stop);

  // As the Trainer's calls.
  Summary train();
  EvalReport evaluate();
  std::string sample(const Continuation& wanted);
  std::map<std::string, std::vector<float>> predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                    const std::map<std::string, std::vector<float>>& reals);
  bool has_trained() const { return trained_; }   // train() was called
  bool is_training() const { return training_; }  // and hasn't returned

 private:
  class Training;  // a call of train()

  void prepare();  // takes the memory, once; throws, too, where that has failed before
  void begin();
  void resume();
  void prepare_to_read_weights();  // prepares, and makes the deferred update, so that readers see the weights after the last step
  void check_newest() const;
  void check_space() const;
  void save(bool note_it);
  // Both return a note for the user, or nothing.
  std::string reclaim_output_dir();
  std::string check_data();
  void report_to_schedule(const EvalReport& evaluated);
  void note(const std::string& text) const;
  Error error_with_last_save(ErrorCode code, int64_t step, const std::string& why) const;  // says what was saved last
  std::string why_not_finite(const StepResult& result, int64_t step) const;                // empty: all is finite

  const Job& job_;
  const Options& options_;
  PlannedJob& planned_;
  Runtime& runtime_;
  const PlanReport& report_;
  const RunStart& start_;
  const Callbacks& callbacks_;
  std::atomic<bool>& stop_;
  Steps steps_;
  std::unique_ptr<AnomalyWatch> anomalies_;  // null where nobody asks
  RunState state_;
  std::string checkpoint_;          // the last that was saved or read
  std::optional<FolderLock> lock_;  // while it trains
  enum class Preparation : uint8_t { none, under_way, done };
  Preparation preparation_ = Preparation::none;
  bool trained_ = false, training_ = false;
  bool data_has_changed_ = false;
  bool has_told_of_links_ = false;
};

}  // namespace ort_train
