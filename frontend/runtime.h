// Runtime: a planned job in memory. It has the memory of each space, the weights, the files on the disk and the executor, and runs entries.
//
// It refers to all that it is made of. One thread at a time. What fails half way leaves it unusable: check_usable() says so from then on.

#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/cpu_device.h"
#include "exec/executor.h"
#include "frontend/checkpoint.h"
#include "frontend/export.h"
#include "frontend/op_times.h"
#include "frontend/plan_job.h"
#include "frontend/run_disk.h"
#include "frontend/timeline.h"

namespace ort_train {

// What the process keeps of a device's memory besides the plan's, once libraries have loaded all their kernels, is more than was set aside,
// and the budget is passed.
class LibrariesOverBudget : public Error {
 public:
  LibrariesOverBudget(const std::string& message, int64_t kept) : Error(ErrorCode::budget, message), kept_(kept) {}
  int64_t kept() const { return kept_; }  // bytes

 private:
  int64_t kept_;
};

class Runtime {
 public:
  // Prepares all kernels.
  Runtime(Job& job, PlannedJob& planned, CpuDevice& device, const Note& note);

  // --- before the first run, in this order
  // Takes the memory. Throws Error(budget) where there isn't so much.
  void allocate();
  // Opens the files on the disk, and attaches the executor. Throws LibrariesOverBudget. True where the run goes on with its checkpoint's
  // state file, so that nothing has to be read.
  bool open_files(const RunStart& start, const SavedSlots& saved);
  // From the model's file: all of them, or those that the job doesn't change, where the others come from a checkpoint.
  enum class Weights : uint8_t { all, unchanged };
  void load_weights(Weights which);
  // Frees what only loading needed.
  void end_loading();
  // Nothing of what was taken is kept: not the memory, nor files that another trainer may want.
  void release();

  // --- runs
  // False where `until` ended it. Adds to spent().
  bool run(size_t entry, const std::atomic<bool>* until = nullptr);
  struct Spent {
    double computing = 0, waiting = 0;  // milliseconds
  };
  Spent& spent() { return spent_; }
  // Around the runs of a training step: they may be traced for Options::timeline.
  void begin_step(int64_t step, bool is_last);
  void end_step(bool is_last);
  RunTimeline* timeline() { return timeline_ ? &*timeline_ : nullptr; }  // null: nobody wants it
  void fail(const std::string& why) { failure_ = why; }
  // Throws Error(usage) where it has failed.
  void check_usable() const;

  // --- what is in memory
  std::span<std::byte> place(size_t entry, ValueId value) const;  // of an input; empty where nobody reads it
  // Where the next run of an entry finds its random numbers (exec/random.h), if it draws any: in step `step`, 0 outside training, with so
  // many samples of that behind those before. `input`: of a micro-batch that goes with others, where the graph has several.
  void set_random(size_t entry, int64_t step, int64_t first, int64_t samples, ValueId input = kNone) const;
  std::span<const std::byte> bytes(size_t entry, ValueId value) const { return executor_.bytes(entry, value); }
  float scalar(size_t entry, ValueId value) const;
  std::span<std::byte> persistent(const std::string& name, int area = 0) const { return executor_.persistent(name, area); }
  std::span<std::byte> blank(const std::string& name) const { return executor_.blank(name); }  // to be written as a whole
  const TensorType& type_of(const std::string& name) const;                                    // of a persistent value
  void changed(const std::string& name, int area = 0) const { executor_.changed(name, area); }
  // Where a parameter of the model is: itself, its parts in order, or a piece of a pack; or nowhere.
  std::vector<Slice> slices_of(const std::string& parameter) const;
  bool read_parameter(const std::string& name, const ByteSink& sink) const;  // as WeightBytes; false where no entry holds it
  bool is_unchanged(const Weight& weight) const;                             // by the job
  // As in the model's file, in float32, where the run stores it in fewer bits (is_narrowed) and doesn't change it; else as
  // read_parameter().
  bool read_original(const Weight& weight, const ByteSink& sink) const;
  std::string weights_hash() const;
  const CheckpointContent& content() const { return content_; }
  // Writes the tensors that live in memory to the state file. Null where the run has none, or it was deleted (then a note says so, and the
  // checkpoint is written in full).
  StateFile* fill_slots();

  SpillDisk* disk() const { return disk_.get(); }  // null: there is none
  bool has_state_file() const { return disk_ != nullptr && disk_->state() != nullptr; }
  void watch(NodeWatch* watch) { executor_.watch(watch); }
  int32_t failed_instruction() const { return executor_.failed(); }  // of the last run
  int64_t measured_peak_bytes() const { return executor_.measured_peak_bytes(); }
  // What runs took so far, to Options::op_times.
  void write_op_times() const { op_times_.value().write(job_.options.op_times); }
  int64_t used_device_bytes() const { return device().used_bytes(); }

 private:
  Device& device() const { return planned_.discrete_device ? *planned_.discrete_device : processor_; }
  void collect_tensors();
  DiskOptions disk_engine() const;
  void check_device_memory() const;
  int64_t bytes_beside_arena() const;  // that the process takes of the device's memory

  Job& job_;
  PlannedJob& planned_;
  CpuDevice& processor_;
  const Note& note_;
  mutable Executor executor_;
  std::vector<std::unique_ptr<Memory>> memory_;  // by space; null for the disk
  std::unique_ptr<SpillDisk> disk_;
  CheckpointContent content_;
  std::string failure_;  // why it can't be used any more
  Spent spent_;
  std::optional<OpTimes> op_times_;
  std::optional<RunTimeline> timeline_;
};

}  // namespace ort_train
