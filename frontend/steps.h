// Steps: runs one optimizer step, or one evaluation. In go batches, which it brings into the inputs of a runtime's entries; out come the
// loss and the gradient norm, and the weights in the runtime are updated. It owns the feeds, refers to job, plan and runtime, and is for
// one thread at a time.

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "frontend/job.h"
#include "frontend/loss_means.h"
#include "frontend/plan_job.h"
#include "frontend/runtime.h"
#include "graph/error_type.h"

namespace ort_train {

// What a step's update is made with.
struct UpdateNumbers {
  int64_t t = 0;                         // of the optimizer, from 1
  std::vector<double> learning_rates{};  // by group
  float loss_scale = 1;
};

struct StepResult {
  double loss = 0, grad_norm = 0;  // as they are without loss scaling
  bool any_label_counted = true;
};

struct Evaluated {
  double loss = 0;  // NaN where it was ended, or no label counts
  int64_t batches = 0;
};

class Steps {
 public:
  // All three outlive it.
  Steps(const Job& job, const PlannedJob& planned, Runtime& runtime);

  // The optimizer step of that number. Its update may be deferred: what reads weights then calls apply_deferred() first. `save_gradients`:
  // writes Options::save_gradients.
  StepResult step(std::span<const Batch> batches, int64_t number, const UpdateNumbers& update, bool save_gradients);
  // The step that was made counts: what fails from here on fails behind it.
  void end_step() { has_begun_ = has_changed_state_ = false; }
  // Makes the update that is deferred, if one is.
  void apply_deferred();
  // On the held-out samples; `stop` ends it.
  Evaluated evaluate(const std::atomic<bool>& stop);

  // After a failure: whether weights, optimizer state and running statistics are those that the last step left, so that they can be saved.
  // False also where that isn't known.
  bool are_whole(const Error& failure) const;
  // Whether a step has begun to run its entries, and hasn't ended.
  bool has_begun() const { return has_begun_; }

 private:
  const JobEntry& entry_for(EntryWanted wanted, const Batch& batch, size_t* index) const;  // the entry itself, or that of the remainder
  bool run(size_t index, const std::atomic<bool>* until = nullptr);
  bool changes_state(size_t index) const { return first_changes_[index] < planned_.program.entries[index].code.size(); }
  Feed::Places places(size_t index) const;
  std::function<float(ValueId)> scalars(size_t index) const;
  EntryWanted train_entry() const { return {.kind = EntryKind::train, .completes_update = deferred_.has_value()}; }
  LossMeans count_labels(std::span<const Batch> batches);
  // One micro-batch, or several that go together; which entry ran. `first`: samples of the step before them.
  size_t run_batch(const Batch& batch, int64_t number, int64_t first, const UpdateNumbers& update, LossMeans& means);
  size_t run_joined(std::span<const Batch> batches, int64_t number, int64_t first, float loss_scale, LossMeans& means);
  StepResult finish_step(size_t index, const UpdateNumbers& update, bool save, const LossMeans& means);
  // Inputs; kNone: nothing.
  void set_scalar(size_t index, ValueId input, float number);
  void set_loss_gradients(size_t index, const LossMeans& means, int64_t samples, float loss_scale);
  void set_update(size_t index, const std::vector<ValueId>& scalars, ValueId loss_scale, const UpdateNumbers& update);

  const Job& job_;
  const PlannedJob& planned_;
  Runtime& runtime_;
  const std::vector<std::unique_ptr<Feed>> feeds_;  // by entry
  const std::vector<size_t> first_changes_;         // by entry: the instruction that first changes what a checkpoint has
  std::optional<UpdateNumbers> deferred_;           // the update that is yet to be made
  std::optional<size_t> running_;                   // the entry that runs, or failed
  bool has_begun_ = false;                          // the step has run an entry
  bool has_changed_state_ = false;                  // one of those that change state, or has left its update to the next step
};

}  // namespace ort_train
