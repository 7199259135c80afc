// Loop: the steps of a run, and what is asked of its weights between them. In go a job in memory (Runtime) and the output folder; out come
// the reports of steps and evaluations, checkpoints, and in the end the new model.
//
// A step reads its batches, runs the entries that compute and update, settles the loss scale, reports, saves and evaluates where that is
// due (loop_training.cpp).

#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "frontend/anomaly_watch.h"
#include "frontend/job.h"
#include "frontend/plan_job.h"
#include "frontend/predict.h"
#include "frontend/run_folder.h"
#include "frontend/runtime.h"
#include "frontend/steps.h"

namespace ort_train {

class Loop {
 public:
  // All of these outlive it. `stop` may be set by any thread or signal handler; the call that ends because of it clears it. Everything else
  // is for one thread at a time.
  Loop(const Job& job, const PlannedJob& planned, Runtime& runtime, RunFolder& folder, const PlanReport& report, const Callbacks& callbacks,
       std::atomic<bool>& stop);

  // As the Trainer's calls. The first one takes the memory and loads the weights.
  Summary train();
  EvalReport evaluate();
  std::string sample(const Continuation& wanted);
  std::map<std::string, std::vector<float>> predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                    const std::map<std::string, std::vector<float>>& reals);
  bool has_trained() const { return trained_; }   // train() was called
  bool is_training() const { return training_; }  // and hasn't returned

 private:
  class Training;  // a call of train()

  void prepare();                  // takes the memory and loads the run into it, once; throws, too, where that has failed before
  void prepare_to_read_weights();  // prepares, and makes the deferred update, so that readers see the weights after the last step
  struct SaveOptions {
    bool in_own_files = false;     // also where the run has a state file
    bool ends_run = false;         // it is the last
    bool may_fail = false;         // and the run goes on, where it can
    bool although_failed = false;  // the runtime has failed, but what is saved is as the last step left it (Steps::are_whole)
  };
  struct SaveOutcome {
    std::vector<std::string> notes{};  // for the user
    std::string failure{};             // why it couldn't be written; empty: it was
  };
  // Throws Error: io, unless it may fail; usage, where the runtime can't be used any more.
  SaveOutcome save(const SaveOptions& how);
  void load_best();                 // the weights and optimizer state of the lowest held-out loss
  std::string note_changed_data();  // for the user, once, or nothing
  void note(const std::string& text) const;
  std::string last_save() const;  // what was saved last, as the end of a sentence
  Error error_with_last_save(ErrorCode code, int64_t step, const std::string& why) const;

  const Job& job_;
  const Options& options_;
  const PlannedJob& planned_;
  Runtime& runtime_;
  RunFolder& folder_;
  const PlanReport& report_;
  const Callbacks& callbacks_;
  std::atomic<bool>& stop_;
  Steps steps_;
  std::unique_ptr<AnomalyWatch> anomalies_;  // null where nobody asks
  RunState state_;
  enum class Preparation : uint8_t { none, under_way, done };
  Preparation preparation_ = Preparation::none;
  bool trained_ = false, training_ = false;
  bool data_has_changed_ = false;
};

}  // namespace ort_train
