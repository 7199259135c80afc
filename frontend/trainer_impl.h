// Trainer::Impl: what a trainer has decided and holds. Private to frontend/trainer*.cpp.
//
// Life: build() (import, plan, prove, budget), prepare() (memory, weights, checkpoint), then runs of entries. What the program calls comes
// in through call().

#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/cpu_device.h"
#include "exec/executor.h"
#include "exec/program.h"
#include "frontend/anomaly_watch.h"
#include "frontend/attach_model.h"
#include "frontend/binding.h"
#include "frontend/boundary.h"
#include "frontend/budget.h"
#include "frontend/checkpoint.h"
#include "frontend/data_set.h"
#include "frontend/device_choice.h"
#include "frontend/export.h"
#include "frontend/feed.h"
#include "frontend/import.h"
#include "frontend/log.h"
#include "frontend/loss_scaling.h"
#include "frontend/ort_train.h"
#include "frontend/precision.h"
#include "frontend/schedule.h"
#include "offload/calibration.h"
#include "offload/spill_disk.h"
#include "passes/micro_batches.h"
#include "passes/pipeline.h"
#include "passes/plan.h"
#include "passes/recompute.h"

namespace ort_train {

// One entry point: its graph, and what feeds it.
// Which of the entry points.
struct EntryWanted {
  EntryKind kind = EntryKind::train;
  bool completes_update = false;  // of those that train: makes the update that the step before left behind
  bool joined = false;            // runs several micro-batches as the one beside it runs one
  bool remainder = false;         // for the smaller batch at the end of an epoch
};

struct JobEntry {
  std::string name;
  bool joined = false, remainder = false;
  JobGraph job;
  int64_t batch = 0;
  std::unique_ptr<Feed> feed;
  MicroBatches together{};  // where several go together: each micro-batch's values, by those of one
};

// Samples [begin, begin + count) of a data set.
struct SampleRange {
  DataSet* data = nullptr;
  int64_t begin = 0, count = 0;
};

// The micro-batches of one optimizer step.
struct Window {
  std::vector<std::vector<int64_t>> batches;  // sample numbers
  int64_t epoch = 0, index = 0;               // the cursor behind it
  int64_t samples = 0;
};

// What a step's update is made with.
struct UpdateNumbers {
  int64_t t = 0;                         // of the optimizer, from 1
  std::vector<double> learning_rates{};  // by group
  float loss_scale = 1;
};

struct StepResult {
  double loss = 0, grad_norm = 0;  // as they are without loss scaling
  bool counts = true;              // false: all labels were ignored
};

// The means of a job's losses: of an optimizer step, of an evaluation.
struct LossMeans {
  explicit LossMeans(const std::vector<JobLoss>& of) : losses(of), sums(of.size()), counted(of.size()) {}

  // What counts in a batch whatever its labels; `own` is how much a mean counts that the model says itself.
  void count_batch(int64_t samples, double own) {
    for (size_t i = 0; i < losses.size(); ++i) {
      if (losses[i].counted == Counted::samples) counted[i] += losses[i].per_sample * static_cast<double>(samples);
      if (losses[i].counted == Counted::batches) counted[i] += own;
    }
  }
  void add_labels(std::span<const double> labels) {
    for (size_t i = 0; i < losses.size(); ++i) counted[i] += labels[i];
  }
  bool counts() const {
    return std::any_of(counted.begin(), counted.end(), [](double count) { return count > 0; });
  }
  double loss() const {
    double sum = 0;
    for (size_t i = 0; i < losses.size(); ++i) sum += counted[i] > 0 ? losses[i].weight * (sums[i] / counted[i]) : 0;
    return sum;
  }

  const std::vector<JobLoss>& losses;
  std::vector<double> sums, counted;  // by loss
};

// The state file in the folder of the disk tier to which the checkpoints in the output folder refer.
struct StateBefore {
  int64_t size = 0;  // of the file, all its slots
  int64_t held = 0;  // bytes that it takes; of all, where there are several
};

// What a program takes on the disk.
struct DiskNeed {
  int64_t state = 0;  // the state file: `slots` for each tensor that survives; 0 where none of them lives on the disk
  int64_t spill = 0;  // the rest
  int64_t total() const { return state + spill; }
};
DiskNeed disk_need(const Program& program, int slots);
// Of a plan without addresses; `other` is any program of the job.
DiskNeed disk_need(const StreamOutlook& outlook, const Program& other, int slots);

// Which updates wait for the next step: none, those that it need not wait for itself (OptimizerSpec::at_once), or all.
enum class Deferral : uint8_t { none, most, all };

struct Trainer::Impl {
  Impl(const Options& options, Callbacks callbacks, const DeviceChoice& on);  // build() comes next

  Options options;
  const DeviceChoice on;
  Optimizer optimizer;
  LossScaling scaling;  // none until the model has been read
  Boundary boundary;
  Callbacks callbacks;
  std::atomic<bool> stop{false};  // asked for, and not seen to yet
  Workers workers;
  CpuDevice device{workers};

  // --- trainer.cpp: the program's calls
  template <typename Body> auto call(Body&& body) -> decltype(body());  // any but train()
  // What has become of the trainer's memory.
  enum class Life : uint8_t { planned, preparing, ready, failed };
  Life life = Life::planned;
  std::string failure;  // why it can't be used any more
  void fail(const std::string& why);
  void check_usable() const;  // throws where it has failed

  // --- trainer_build.cpp: what is decided before any memory is taken
  void build();
  static const Options& checked(const Options& options);
  void divide_samples();
  void settle_schedule();
  void build_entries(Deferral defer);
  void check_live_layers(const Graph& forward, int64_t batch) const;
  JobEntry& add_entry(const std::string& name, JobGraph job, int64_t batch, SampleRange* range);
  OptimizerSpec optimizer_spec(Deferral defer) const;
  LossSpec loss_spec() const;
  // trainer_plan.cpp: what is recomputed, and where every byte lives
  struct Trial {
    RecomputeChoice recompute{};
    std::vector<std::unique_ptr<Graph>> graphs;  // of the entries, with what is recomputed
    std::unique_ptr<Planner> planner;
    int64_t instructions = 0;
    double seconds = 0;  // of computing, for an optimizer step
    std::vector<const Graph*> pointers() const {
      std::vector<const Graph*> all;
      for (const auto& graph : graphs) all.push_back(graph.get());
      return all;
    }
  };
  struct Least {
    int64_t budget = 0;
    std::string op{}, entry{};  // that sets it; no entry where it is planning itself
    RecomputeChoice recompute{};
    std::string set_by() const { return entry.empty() ? op : fmt::format("{} in '{}'", op, entry); }
  };
  std::vector<PlanEntry> wanted_entries() const;
  void plan_memory();
  void plan_here();   // on the processor
  void plan_apart();  // on a device with memory of its own
  void recompute_entries(const RecomputeChoice& choice);
  std::unique_ptr<Planner> adopt(const RecomputeChoice& choice);  // on the entries' own graphs
  std::unique_ptr<Planner> adopt_first();                         // where nothing asks for another choice
  void adopt_as(const Trial& trial);
  Trial try_out(const RecomputeChoice& choice, double beat = INFINITY) const;  // on copies; no planner if it can't take less than `beat`
  void recompute_to_fit(std::unique_ptr<Planner> planner);
  PlanOptions plan_options() const;
  std::vector<const Graph*> graph_pointers() const;
  static Least least_of(int64_t budget, const Program& made, const std::vector<const Graph*>& graphs);
  MicroBatches finish_train(const JobEntry& entry, Graph& graph, const RecomputeChoice& choice, Recomputed* counted,
                            const PassOptions& passes) const;
  int64_t most_together() const;
  void add_together(int64_t count);
  void use(Program made);
  void use(StreamedProgram made);
  void limit_to_machine();  // where there is no budget
  [[noreturn]] void refuse_budget();
  void measure(int64_t memory);
  void measure_disk_of_job();
  StreamRates stream_rates() const;
  void keep_profile() const;
  DiskOptions disk_engine() const;
  void settle_reserve(bool with_disk = false);
  int64_t reserve_with(int64_t instructions) const;  // what it would be
  int64_t instructions() const;                      // of all entries
  // trainer_stream.cpp: plans with a disk
  class Streaming;
  void stream(std::unique_ptr<Planner> planner);
  Least least_with_disk();
  // trainer_report.cpp: the plan as numbers and as text
  void describe(double seconds);
  void describe_step();
  void describe_moves();
  size_t main_entry() const;
  int64_t written_in_all() const;
  std::string plan_text(const std::string& memory) const;
  void write_plan_json(const nlohmann::ordered_json& memory) const;
  int find_entry(const EntryWanted& wanted) const;    // -1 where it isn't planned
  double runs_per_step(const JobEntry& entry) const;  // how often an optimizer step runs it

  DataSets data;
  SampleRange train_range, valid_range;
  Binding binding;
  ModelInfo info;
  std::vector<Weight> weights;
  std::vector<std::unique_ptr<JobEntry>> entries;  // index = the program's entry
  NumberTypes types;
  bool model_read = false;                 // weights and info are there
  std::optional<Packs> packs;              // of small weights, chosen for the first of these
  std::map<int64_t, Graph> forwards;       // by batch, ready to be made into entries; while planning
  std::vector<ParameterGroup> groups;      // by Value::group
  std::vector<GroupReport> report_groups;  // the same
  LossSpec losses;
  std::vector<Attachment> attached;  // other models that the losses read
  size_t model_outputs = 0;          // how many outputs the trained model has itself
  int64_t total_steps = 0;
  Schedule schedule;
  Program program;
  std::unique_ptr<Device> apart;  // with memory of its own, for that program; null: there is none
  Device& computing() { return apart ? *apart : device; }
  std::unique_ptr<Executor> executor;
  std::unique_ptr<AnomalyWatch> anomalies;  // null where nobody asks
  MachineProfile profile;
  DiskRates disk_rates;                   // zero where there is no disk
  int64_t together = 1;                   // micro-batches that go through the model together
  bool deferred = false;                  // updates wait for the next step
  std::vector<StreamForecast> forecasts;  // by entry; empty where everything is in memory
  double bound = 0;                       // seconds of an optimizer step, with the disk
  Least least;                            // the smallest budget that would do
  std::vector<Graph> drafts;              // the entries' graphs before recompute; while planning
  RecomputeChoice recompute_choice;
  Recomputed recomputed;  // of the first entry
  JobSize job_size;
  bool limited_by_machine = false;            // options.budget is what the machine had left, not the user's
  int64_t reserve = 0, resident_planned = 0;  // resident: when everything is planned, without the arena
  bool roomy = false;                         // there is memory for several plans at a time
  int64_t pinning = 0;                        // of the reserve: what the kernel takes to pin the arena; 0 where it isn't pinned
  PlanReport report;

  // --- trainer_save.cpp: where a run begins, and what it saves
  void choose_start();  // by build()
  bool is_resumed() const { return !resume_folder.empty(); }
  void check_output_dir() const;  // before anything there is changed
  void check_space() const;
  void resume();
  void save(bool note_it);
  void save_gradients(size_t index, const JobEntry& entry, float loss_scale);
  int64_t kept_checkpoints(bool in_slots) const;
  int state_slots() const { return static_cast<int>(kept_checkpoints(/*in_slots=*/true)) + 1; }
  std::string resume_folder;  // the newest checkpoint, or the one that was named; empty: the run begins afresh
  bool resume_named = false;  // that one and no other
  bool is_branch = false;     // the run goes on beside checkpoints that aren't its own

  // --- trainer_state.cpp: memory, weights
  void prepare();  // takes the memory, once; throws, too, where that has failed before
  void take_memory();
  void give_up(const std::string& why);
  void settle();  // prepares and makes the update that waits: what only reads then sees the weights behind the last step
  void load_weights();
  std::vector<Slice> slices_of(const std::string& parameter) const;  // where it is: itself, its parts in order, or a piece of a pack; or {}
  bool read_parameter(const std::string& name, const ByteSink& sink) const;  // as WeightBytes; false where no entry holds it
  std::string weights_hash() const;
  std::map<std::string, std::string> settings() const;
  // trainer_disk.cpp: files on the disk
  void tidy_disk() const;
  StateBefore state_before() const;
  // Makes them and gives the executor its memory; true where the run goes on with the state file, at `path`, of the checkpoint that has
  // `table`. `before`: the tables of earlier checkpoints that are kept in it, too.
  bool start_disk(const SlotTable* table, const std::string& path, const std::vector<SlotTable>& before = {});
  std::unique_ptr<StateFile> take_over(const SlotTable& table, const std::string& path, const std::vector<SlotTable>& before) const;
  StateFile* fill_slots();

  std::vector<std::unique_ptr<Memory>> memory;  // by space; null for the disk
  std::unique_ptr<SpillDisk> disk;
  CheckpointContent content;
  RunState state;
  std::string checkpoint_path;

  // --- trainer_loop.cpp
  Summary train();
  EvalReport evaluate();                      // loss NaN where `stop` ended it
  void observe(const EvalReport& evaluated);  // by a schedule that follows the loss
  Window next_window(int64_t epoch, int64_t index) const;
  StepResult run_step(const Window& window, int64_t step, const UpdateNumbers& update, bool save_gradients);
  JobEntry& entry_for(EntryWanted wanted, size_t samples, size_t* index) const;  // the entry itself, or that of the remainder
  // Runs an entry; false where `until` ended it. One of a step's makes the update that waits, if one does; before another runs, settle()
  // has.
  bool run_entry(size_t index, const std::atomic<bool>* until = nullptr);
  // Micro-batches of an accumulating step, together. Adds up their losses in `means`.
  void run_together(size_t index, std::span<const std::vector<int64_t>> batches, int64_t step, int64_t first, LossMeans& means,
                    float loss_scale);
  void flush();  // makes the update that waits, if one does
  // Inputs; kNone: nothing.
  void set_number(size_t index, ValueId input, float number);
  void set_seed(size_t index, const JobEntry& entry, const LossMeans& means, float loss_scale);
  void set_update(size_t index, const std::vector<ValueId>& scalars, ValueId loss_scale, const UpdateNumbers& update);
  void set_random(size_t index, ValueId input, int64_t step, int64_t first, int64_t samples);
  void save_optimizer_state();
  std::string why_not_finite(const StepResult& result) const;  // empty where it is
  Error diverged(int64_t step, const std::string& why) const;
  std::span<std::byte> place(size_t entry, ValueId value) const;
  float scalar(size_t entry, ValueId value) const;
  void note(const std::string& text) const;
  bool trained = false, training = false;  // train() has begun; is under way
  std::optional<UpdateNumbers> pending;    // the update that waits
  struct Spent {
    double computing = 0, waiting = 0;  // milliseconds
  };
  Spent spent;  // by entries since the step began

  // --- trainer_predict.cpp
  std::string sample(const std::string& prompt, int64_t length, double temperature, uint64_t seed);
  std::map<std::string, std::vector<float>> predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                    const std::map<std::string, std::vector<float>>& reals);
};

}  // namespace ort_train
