// The public face: Trainer's calls and the few functions beside them.

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cmath>
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
#include "frontend/run_start.h"
#include "frontend/runtime.h"
#include "graph/error.h"

namespace ort_train {
namespace {

Options checked(Options options) {
  check_options(options);
  if (options.data.empty()) throw error(ErrorCode::usage, "no data is given: `data` is a file or a folder");
  if (gpu_number(options.device) >= 0) options.budget_is_process = false;  // it is the GPU's
  return options;
}

}  // namespace

// The four parts of a trainer, one made from the other: what is computed (Job), how (PlannedJob), in which memory (Runtime), and the run
// (Loop).
struct Trainer::Impl {
  Impl(const Options& options_, Callbacks callbacks_, const DeviceChoice& on)
      : options(checked(options_)),  // before threads are started
        choice(on),
        callbacks(boundary.guarded(std::move(callbacks_))),
        workers(options_.threads > 0 ? options_.threads : available_processors()) {}

  void build();
  Loop& running();  // throws Error(usage) where a second plan was refused
  template <typename Body> auto replanning_once(Body&& body) -> decltype(body());
  template <typename Body> auto call(Body&& body) -> decltype(body());  // any but train()

  const Options options;
  const DeviceChoice choice;
  Boundary boundary;
  const Callbacks callbacks;
  const Note note = [this](const std::string& text) {
    if (callbacks.on_note) callbacks.on_note(text);
  };
  std::atomic<bool> stop{false};  // asked for, and not seen to yet
  Workers workers;
  CpuDevice device{workers};
  std::unique_ptr<Gpu> gpu;       // null: the processor
  int64_t kept_by_libraries = 0;  // bytes of its memory besides a plan's, where they turned out to be more than was set aside
  RunStart start;
  std::optional<Job> job;
  PlannedJob planned;
  PlanReport report;
  std::optional<Runtime> runtime;
  std::optional<Loop> loop;
};

void Trainer::Impl::build() {
  const auto begin = std::chrono::steady_clock::now();
  loop.reset();
  runtime.reset();
  planned = PlannedJob{};
  DeviceChoice on = choice;
  start = choose_start(options);
  refuse_foreign_reports(options);
  if (const int number = gpu_number(options.device); number >= 0 && gpu == nullptr) {
    refuse_other_arithmetic();
    gpu = open_gpu(number);
  }
  job.emplace(options, start, on.part_bytes, gpu ? &gpu->kernels() : on.kernels, workers, note);
  if (gpu) {
    job->read_model();
    on = on_gpu(*gpu, options, /*halves=*/is_half(job->products), kept_by_libraries, workers.threads(), note);
  }
  if (on.algorithms != nullptr) on.algorithms->restore(algorithms_of_run(start, options, on.makes_products));
  MachineRates rates(options, device, note);
  planned = plan_job(*job, start, on, device, rates, note);
  report = describe_plan(*job, planned, rates, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  report.text = plan_text(*job, planned, rates, report);
  if (!options.plan_json.empty()) write_plan_json(*job, planned, report);
  if (!options.plan_svg.empty()) write_plan_svg(*job, planned, rates);
  runtime.emplace(*job, planned, device, note);
  if (on.algorithms != nullptr) note_own_kernels(*on.algorithms, note);
  loop.emplace(*job, planned, *runtime, report, start, callbacks, stop);
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
bool Trainer::can_sample() const { return impl_->job && impl_->job->data.vocabulary != nullptr; }
std::string Trainer::sample(const std::string& prompt, int64_t length, double temperature, uint64_t seed) {
  return impl_->call([&] { return impl_->running().sample({prompt, length, temperature, seed}); });
}
std::map<std::string, std::vector<float>> Trainer::predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                           const std::map<std::string, std::vector<float>>& reals) {
  return impl_->call([&] { return impl_->running().predict(integers, reals); });
}
void Trainer::request_stop() noexcept { impl_->stop.store(true, std::memory_order_relaxed); }

namespace {

int64_t bytes_in(const std::string& text) {
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  constexpr const char* letters = "KMGT";
  for (int i = 0; i < 4; ++i) {
    if (unit == std::string(1, letters[i]) + "B") factor = std::pow(1000.0, i + 1);
    if (unit == std::string(1, letters[i]) + "IB") factor = std::pow(1024.0, i + 1);
  }
  if (code != std::errc() || factor == 0 || !(number >= 0) || number * factor > 9e18) {
    throw error(ErrorCode::usage, "'{}' is no number of bytes: write 12GB, 12GiB, 300MB or plain bytes", text);
  }
  return static_cast<int64_t>(std::llround(number * factor));
}

}  // namespace

int64_t parse_bytes(const std::string& text) {
  return in_library([&] { return bytes_in(text); });
}

std::vector<std::string> losses() {
  return in_library([] { return loss_names(); });
}

std::vector<OptimizerChoice> optimizers() {
  return in_library([] {
    std::vector<OptimizerChoice> choices;
    for (const OptimizerDef* def : all_optimizers()) {
      OptimizerChoice& choice =
          choices.emplace_back(OptimizerChoice{.name = std::string(def->name), .synonyms = {def->synonyms.begin(), def->synonyms.end()}});
      for (const OptimizerOption& option : def->options) {
        choice.options.push_back(
            {.name = std::string(option.name), .value = option.value, .help = std::string(option.help), .flag = option.flag});
      }
    }
    return choices;
  });
}

std::vector<OptimizerChoice::Option> eight_bit_options() {
  return in_library([] {
    std::vector<OptimizerChoice::Option> options;
    for (const OptimizerOption& option : quantized_options())
      options.push_back({.name = std::string(option.name), .value = option.value, .help = std::string(option.help)});
    return options;
  });
}

std::vector<ScheduleChoice> schedules() {
  return in_library([] {
    std::vector<ScheduleChoice> choices;
    for (const ScheduleDef& def : all_schedules()) {
      ScheduleChoice& choice = choices.emplace_back(ScheduleChoice{.name = std::string(def.name)});
      for (const ScheduleArgument& argument : def.arguments)
        choice.arguments.push_back(
            {.name = std::string(argument.name), .value = default_text(argument), .help = std::string(argument.help)});
    }
    return choices;
  });
}

std::string version() { return ORT_TRAIN_VERSION; }

}  // namespace ort_train
