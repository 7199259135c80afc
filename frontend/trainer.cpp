// Trainer: the calls of the public API. build() is what happens before a run's first step, in order; train() is Loop's.

#include <atomic>
#include <chrono>
#include <optional>

#include "exec/cpu_device.h"
#include "frontend/boundary.h"
#include "frontend/check_options.h"
#include "frontend/gpu_choice.h"
#include "frontend/job.h"
#include "frontend/loop.h"
#include "frontend/machine.h"
#include "frontend/machine_rates.h"
#include "frontend/plan_description.h"
#include "frontend/plan_job.h"
#include "frontend/report_files.h"
#include "frontend/run_folder.h"
#include "frontend/run_start.h"
#include "frontend/runtime.h"
#include "graph/error.h"

namespace ort_train {
namespace {

using Clock = std::chrono::steady_clock;

Options checked(Options options) {
  check_options(options);
  if (options.data.empty() && !options.train_samples)
    throw error(ErrorCode::usage, "no data is given: `data` is a file or a folder, `train_samples` are samples of the program itself");
  if (gpu_number(options.device) >= 0) options.budget_is_process = false;  // it is the GPU's
  return options;
}

}  // namespace

// The parts of a trainer, each made from the ones before it.
struct Trainer::Impl {
  Impl(const Options& options_, Callbacks callbacks_, const DeviceChoice& on)
      : options(checked(boundary.guarded(options_))),  // before threads are started
        choice(on),
        callbacks(boundary.guarded(std::move(callbacks_))),
        workers(options_.threads > 0 ? options_.threads : available_processors()) {}

  void build();
  void discard_run();
  void open_gpu_of_options();
  DeviceChoice settle_device();
  void make_plan(const DeviceChoice& on, Clock::time_point begin);
  Loop& running();  // throws Error(usage) where a second plan was refused
  template <typename Body> auto replanning_once(Body&& body) -> decltype(body());
  template <typename Body> auto call(Body&& body) -> decltype(body());  // any but train()

  Boundary boundary;
  const Options options;
  const DeviceChoice choice;
  const Callbacks callbacks;
  const Note note = [this](const std::string& text) {
    if (callbacks.on_note) callbacks.on_note(text);
  };
  std::atomic<bool> stop{false};  // asked for, and not seen to yet
  Workers workers;
  CpuDevice device{workers};
  std::unique_ptr<Gpu> gpu;         // null: the processor
  int64_t kept_by_libraries = 0;    // bytes of its memory besides a plan's, where they turned out to be more than was set aside
  RunStart start;                   // where the run begins
  std::optional<Job> job;           // what is computed: data, model, graphs
  PlannedJob planned;               // where every byte lives
  PlanReport report;                // the plan, for people
  std::optional<Runtime> runtime;   // the plan in memory
  std::optional<RunFolder> folder;  // the output folder
  std::optional<Loop> loop;         // the steps
};

void Trainer::Impl::build() {
  const auto begin = Clock::now();
  discard_run();
  start = choose_start(options);
  refuse_foreign_reports(options);
  open_gpu_of_options();
  job.emplace(options, start, choice.part_bytes, gpu ? &gpu->kernels() : choice.kernels, workers, note);
  const DeviceChoice on = settle_device();
  make_plan(on, begin);
  runtime.emplace(*job, planned, device, note);
  if (on.algorithms != nullptr) note_own_kernels(*on.algorithms, note);
  folder.emplace(*job, start);
  loop.emplace(*job, planned, *runtime, *folder, report, callbacks, stop);
}

// Frees what an earlier build() made. Its job is freed where the next one is made.
void Trainer::Impl::discard_run() {
  loop.reset();
  folder.reset();
  runtime.reset();
  planned = PlannedJob{};
}

void Trainer::Impl::open_gpu_of_options() {
  const int number = gpu_number(options.device);
  if (number < 0 || gpu != nullptr) return;
  refuse_other_arithmetic();
  gpu = open_gpu(number);
}

// What the plan is for. On a GPU the model is read first: its number types say which libraries are loaded, and what they take.
DeviceChoice Trainer::Impl::settle_device() {
  DeviceChoice on = choice;
  if (gpu) {
    job->model.read();
    on = on_gpu(*gpu, options, /*halves=*/is_half(job->model.product_type), kept_by_libraries, workers.threads(), note);
  }
  if (on.algorithms != nullptr) on.algorithms->restore(algorithms_of_run(start, options, on.makes_products));
  return on;
}

// Plans, and shows the plan as the options ask. `begin`: of all that is done before the first step.
void Trainer::Impl::make_plan(const DeviceChoice& on, Clock::time_point begin) {
  MachineRates rates(options, device, note);
  planned = plan_job(*job, start, on, device, rates, note);
  report = describe_plan(*job, planned, rates, std::chrono::duration<double>(Clock::now() - begin).count());
  report.text = plan_text(*job, planned, rates, report);
  if (!options.plan_json.empty()) write_plan_json(*job, planned, report);
  if (!options.plan_svg.empty()) write_plan_svg(*job, planned, rates);
}

// The first call allocates memory. If the GPU's libraries then hold more than was reserved, plan again with what they hold set aside, and
// retry once.
template <typename Body> auto Trainer::Impl::replanning_once(Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const LibrariesOverBudget& late) {
    kept_by_libraries = late.kept();
    note("the GPU's libraries keep more memory than was set aside for them: planning once more");
  }
  build();
  return body();
}

Loop& Trainer::Impl::running() {
  if (!loop) throw error(ErrorCode::usage, "this trainer has no plan: make another one, with more memory");
  return *loop;
}

// evaluate(), sample() and predict() ignore a stop request that was made before them. It is restored afterwards, for a train() that is
// running (the call comes from a callback) or still to come.
template <typename Body> auto Trainer::Impl::call(Body&& body) -> decltype(body()) {
  struct Request {
    Impl& trainer;
    const bool earlier;
    ~Request() {
      if (earlier) trainer.stop.store(true, std::memory_order_relaxed);
      if (trainer.loop && trainer.loop->has_trained() && !trainer.loop->is_training()) trainer.stop.store(false, std::memory_order_relaxed);
    }
  };
  return boundary.call([&] {
    const Request request{*this, stop.exchange(false, std::memory_order_relaxed)};
    return replanning_once(body);
  });
}

Trainer::Trainer(const Options& options, Callbacks callbacks) : Trainer(options, std::move(callbacks), DeviceChoice{}) {}
Trainer::Trainer(const Options& options, Callbacks callbacks, const DeviceChoice& on)
    : impl_(in_library([&] { return std::make_unique<Impl>(options, std::move(callbacks), on); })) {
  impl_->boundary.call([&] { impl_->build(); });
}
Trainer::~Trainer() = default;
const PlanReport& Trainer::plan() const { return impl_->report; }
Summary Trainer::train() {
  return impl_->boundary.call([&] { return impl_->replanning_once([&] { return impl_->running().train(); }); });
}
double Trainer::evaluate() {
  return impl_->call([&] { return impl_->running().evaluate().loss; });
}
bool Trainer::can_sample() const { return impl_->job && impl_->job->graphs.text_output; }
std::string Trainer::sample(const std::string& prompt, int64_t length, double temperature, uint64_t seed) {
  return impl_->call([&] { return impl_->running().sample({prompt, length, temperature, seed}); });
}
std::map<std::string, std::vector<float>> Trainer::predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                           const std::map<std::string, std::vector<float>>& reals) {
  return impl_->call([&] { return impl_->running().predict(integers, reals); });
}
void Trainer::request_stop() noexcept { impl_->stop.store(true, std::memory_order_relaxed); }

}  // namespace ort_train
