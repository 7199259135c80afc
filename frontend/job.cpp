#include "frontend/job.h"

#include <fmt/format.h>

#include "frontend/parameter_groups.h"

namespace ort_train {
namespace {

// The learning rates, once it is known how long the run is and how large its batches are.
Schedule schedule_of(const Options& options, const Optimizer& optimizer, const JobData& data, const RunStart& start, const Note& note) {
  Schedule schedule = make_schedule(options.lr_scheduler_type, options.lr_scheduler_kwargs);
  const double rate = scaled_rate(options, data.binding.batch);
  if (!options.scale_lr.empty())
    note(fmt::format("the learning rate is {:.6g}: `learning_rate` {} for a step of {} samples, by `scale_lr` {} for one of {}", rate,
                     options.learning_rate, options.base_batch_size, options.scale_lr,
                     data.binding.batch * options.gradient_accumulation_steps));
  const bool is_over = !start.cursors.empty() && start.cursors.front().step >= data.total_steps;  // to make the model of a checkpoint
  schedule.begin(rate, options.warmup_steps, data.total_steps, is_over);
  if (!schedule.def->warms_up && options.warmup_steps > 0)
    note(fmt::format("`lr_scheduler_type` {} has no warm-up: `warmup_steps` {} changes nothing", schedule.def->name, options.warmup_steps));
  else if (options.warmup_steps >= data.total_steps && !is_over)
    note(fmt::format("`warmup_steps` {} of {}: the run ends before the learning rate has reached `learning_rate`", options.warmup_steps,
                     data.total_steps));
  if (optimizer.learning_rate(1, /*scheduled=*/0) != 0)
    note(
        "the optimizer sets the learning rate itself: `learning_rate`, `lr_scheduler_type`, `warmup_steps` and the rates of groups of "
        "weights change nothing");
  return schedule;
}

}  // namespace

Job::Job(const Options& options_, const RunStart& start, int64_t part_bytes, const KernelTable* kernels, Workers& workers, const Note& note)
    : options(options_),
      optimizer(make_optimizer(options.optim, options.optim_args)),
      adapting(adapter_settings(options)),
      data(options, start, note),
      schedule(schedule_of(options, optimizer, data, start, note)),
      model({.options = options,
             .optimizer = optimizer,
             .adapting = adapting,
             .data = data,
             .schedule = schedule,
             .part_bytes = part_bytes,
             .kernels = kernels,
             .workers = workers,
             .note = note}),
      graphs(options, optimizer, data, model, note) {}

}  // namespace ort_train
