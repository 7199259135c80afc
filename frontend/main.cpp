// The command line: a thin client of the public API.

#include <fmt/format.h>
#include <signal.h>
#include <tbb/global_control.h>
#include <unistd.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

#include "frontend/cli_options.h"
#include "frontend/cli_progress.h"
#include "frontend/units.h"

namespace ort_train {
namespace {

std::atomic<Trainer*> running{nullptr};
std::atomic<int> caught{0};
std::atomic<bool> ends{false};  // the run is over: saved, or failed

// The first signal asks for an end, the second makes one; before there is anything to save the first does. Of a run that ends anyway the
// first changes nothing.
extern "C" void on_signal(int number) {
  Trainer* trainer = running.load();
  const bool is_first = caught.exchange(number) == 0;
  if (is_first && ends) return;
  if (is_first && trainer == nullptr) {
    constexpr std::string_view kStopped = "\nstopped     before there was anything to save\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kStopped.data(), kStopped.size());
  }
  if (!is_first || trainer == nullptr) _exit(128 + number);
  trainer->request_stop();
}

// The end of a terminal session (SIGHUP), of the CPU time (SIGXCPU) and what batch systems send before they end a job (SIGUSR1) count, too,
// but none that whoever started the program has it ignore, as nohup does. Where the output goes to a reader that has gone (SIGPIPE), or a
// file may grow no more (SIGXFSZ), writing fails, which is told.
void catch_signals() {
  struct sigaction action {
  }, before{};
  action.sa_handler = on_signal;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_RESTART;
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGXCPU, SIGUSR1}) {
    if (sigaction(number, nullptr, &before) == 0 && before.sa_handler == SIG_IGN) continue;
    sigaction(number, &action, nullptr);
  }
  action.sa_handler = SIG_IGN;
  for (const int number : {SIGPIPE, SIGXFSZ}) sigaction(number, &action, nullptr);
}

// What isn't told in the course of a run.
void print(const std::string& text) {
  if (const std::string failure = write_out(text); !failure.empty()) throw Error(ErrorCode::io, failure);
}

int check_model(const CommandLine& line) {
  const CheckReport report = check(line.options);
  print(with_options(report.text));
  return report.trainable ? 0 : static_cast<int>(ErrorCode::unsupported);
}

int export_model(const CommandLine& line) {
  print(fmt::format("model       {} ({} with {})\n", export_merged(line.options), line.options.model, line.options.adapter));
  return 0;
}

void show_short_plan(const PlanReport& plan, Progress& progress) {
  const std::string where = plan.disk_bytes == 0 ? "everything resident"
                                                 : fmt::format("disk {}: {} read, {} written a step", megabytes(plan.disk_bytes),
                                                               megabytes(plan.disk_read_per_step), megabytes(plan.disk_written_per_step));
  progress.line("plan", fmt::format("{}{} (program {}, arena {}), {} · {} a step predicted", megabytes(plan.at_peak.total),
                                    plan.budget > 0 ? " of " + megabytes(plan.budget) : "", megabytes(plan.at_peak.program),
                                    megabytes(plan.arena_bytes), where, shown_duration(plan.predicted_milliseconds)));
}

void show_summary(const CommandLine& line, const Summary& summary, const PlanReport& plan, Progress& progress) {
  std::string done = fmt::format("{} steps in {:.1f} s{} · training loss {:.4g} -> {:.4g}", grouped(summary.steps), summary.seconds,
                                 summary.skipped_steps > 0 ? fmt::format(", {} of them skipped", grouped(summary.skipped_steps)) : "",
                                 summary.first_loss, summary.last_loss);
  if (std::isfinite(summary.eval_loss)) done += fmt::format(", held-out {:.4g}", summary.eval_loss);
  done += fmt::format(" · {} a step (predicted {}, median {})", shown_duration(summary.milliseconds_per_step),
                      shown_duration(summary.predicted_milliseconds), shown_duration(summary.median_milliseconds));
  progress.line("done", done);
  if (summary.planned_device_bytes > 0)
    progress.line("GPU", fmt::format("{} planned{}, {} in use · {} pinned", megabytes(summary.planned_device_bytes),
                                     plan.budget > 0 ? " of " + megabytes(plan.budget) : "", megabytes(summary.measured_device_bytes),
                                     megabytes(summary.planned_host_bytes)));
  progress.line("memory", fmt::format("arena {} planned, {} used · process {}{}", megabytes(summary.planned_peak_bytes),
                                      megabytes(summary.measured_peak_bytes), megabytes(summary.rss_peak_bytes),
                                      plan.budget > 0 && plan.device.empty() ? " of " + megabytes(plan.budget) : ""));
  if (summary.planned_disk_bytes > 0) {
    progress.line("disk", fmt::format("{} read and {} written a step (planned {} and {}) · in all {} and {}",
                                      shown_bytes(static_cast<double>(summary.read_per_step)),
                                      shown_bytes(static_cast<double>(summary.written_per_step)),
                                      shown_bytes(static_cast<double>(summary.planned_read_per_step)),
                                      shown_bytes(static_cast<double>(summary.planned_written_per_step)),
                                      shown_bytes(static_cast<double>(summary.disk_bytes_read)),
                                      shown_bytes(static_cast<double>(summary.disk_bytes_written))));
    progress.line("time", fmt::format("a step computes {} (planned {}) and waits {} for the disk (planned {})",
                                      shown_duration(summary.computing_milliseconds),
                                      shown_duration(plan.computing_milliseconds + plan.slowed_milliseconds),
                                      shown_duration(summary.waiting_milliseconds), shown_duration(plan.stalled_milliseconds)));
  }
  if (!summary.stopped)
    progress.line("model", line.options.adapter_only
                               ? fmt::format("{} (an adapter of {})", summary.model_path, line.options.model)
                               : fmt::format("{} (same graph, names and layout as {}{})", summary.model_path, line.options.model,
                                             line.options.control.empty() ? "" : ", and the copy"));
}

// What ends a run that was told to stop: a signal's number + 128, or output that nobody reads.
int stopped_code(const Summary& summary, const Progress& progress) {
  if (caught != 0) return 128 + caught;
  if (progress.failure().empty()) return 0;
  throw Error(ErrorCode::io, fmt::format("{}; the run is saved after step {} in {}: go on with --resume", progress.failure(), summary.steps,
                                         summary.checkpoint_path));
}

int train_model(const CommandLine& line) {
  // On a GPU the budget is of another memory than what steps tell of.
  Progress progress(line.options.device == "cpu" ? line.options.budget : 0, line.logging_steps);
  // oneTBB's number of threads belongs to programs, not to libraries.
  std::optional<tbb::global_control> threads;
  if (line.options.threads > static_cast<int>(tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism))) {
    threads.emplace(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(line.options.threads));
  }
  catch_signals();
  std::string rate = "tok/s";
  const auto stop_unless_read = [&] {
    if (Trainer* const trainer = running.load(); trainer != nullptr && !progress.failure().empty()) trainer->request_stop();
  };
  Trainer trainer(line.options, {.on_step =
                                     [&](const StepReport& report) {
                                       progress.step(report, rate);
                                       stop_unless_read();
                                     },
                                 .on_eval = [&](const EvalReport& report) { progress.eval(report); },
                                 .on_note = [&](const std::string& text) { progress.note(with_options(text)); }});
  const bool is_plan = line.command == CommandLine::Command::plan;
  if (is_plan) {
    progress.print(with_options(trainer.plan().text));
    if (!line.options.plan_svg.empty()) progress.line("picture", line.options.plan_svg);
  } else {
    show_short_plan(trainer.plan(), progress);
  }
  if (!progress.failure().empty()) throw Error(ErrorCode::io, progress.failure());
  if (is_plan) return 0;
  if (trainer.plan().sequence == 0) rate = "samples/s";
  running = &trainer;
  const auto end = [] {
    ends = true;
    running = nullptr;
  };
  try {
    const Summary summary = trainer.train();
    if (summary.steps > 0) show_summary(line, summary, trainer.plan(), progress);
    if (summary.stopped) {
      progress.line("stopped", fmt::format("after step {}, saved {}; go on with --resume", summary.steps, summary.checkpoint_path));
    } else if (trainer.can_sample() && line.sample_length > 0) {
      const int caught_before = caught;
      try {
        const std::string text = trainer.sample("", line.sample_length, 0.8, line.options.seed);
        progress.line("sample", "");
        progress.print(text + "\n");
      } catch (const Error& problem) {  // the run is done all the same
        progress.note(with_options(fmt::format("no text could be written: {}", problem.what())));
      }
      end();
      if (caught != caught_before) return 128 + caught;
    }
    end();
    if (summary.stopped) return stopped_code(summary, progress);
    if (!progress.failure().empty())
      throw Error(ErrorCode::io, fmt::format("{}; the run is done: {}", progress.failure(), summary.model_path));
    return 0;
  } catch (...) {
    end();
    progress.end();
    throw;
  }
}

int run(int argc, const char* const* argv) {
  const CommandLine line = parse_command_line(argc, argv);
  if (!line.text.empty()) {
    print(line.text);
    return 0;
  }
  if (line.command == CommandLine::Command::check) return check_model(line);
  return line.command == CommandLine::Command::export_merged ? export_model(line) : train_model(line);
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) {
  // Not fmt::print: it throws where nobody reads.
  const auto complain = [](const std::string& what) { std::fputs(fmt::format("error: {}\n", what).c_str(), stderr); };
  try {
    return ort_train::run(argc, argv);
  } catch (const ort_train::Error& problem) {
    std::fflush(stdout);
    complain(ort_train::with_options(problem.what()));
    return static_cast<int>(problem.code());
  } catch (const std::bad_alloc&) {
    std::fputs("error: the machine is out of memory\n", stderr);
    return static_cast<int>(ort_train::ErrorCode::budget);
  } catch (const std::exception& problem) {
    complain(problem.what());
    return 1;
  }
}
