// The plan as numbers, as text for people and as JSON for programs.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "frontend/budget.h"
#include "frontend/file.h"
#include "frontend/trainer_impl.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "passes/cost.h"
#include "passes/plan_report.h"

namespace ort_train {
namespace {

// One run of an entry, everything in memory.
NodeWork entry_work(const Graph& graph, const Entry& entry, int threads, const ComputeRates& machine) {
  NodeWork sum;
  for (const Instruction& instruction : entry.code) {
    if (instruction.action != Action::compute || is_view(graph.node(instruction.node), instruction)) continue;
    const NodeWork work = work_of(graph, graph.node(instruction.node), threads, machine);
    sum.flops += work.flops;
    sum.seconds += work.seconds;
  }
  return sum;
}

std::string shown(double number) {
  return number >= 100 ? fmt::format("{:.0f}", number) : number >= 10 ? fmt::format("{:.1f}", number) : fmt::format("{:.2f}", number);
}

}  // namespace

void Trainer::Impl::describe(double seconds) {
  report = {};
  report.budget = options.budget;
  report.arena_bytes = program.arena_bytes;
  report.minimum_budget = least_budget;
  report.seconds = seconds;
  report.batch = binding.batch;
  report.sequence = binding.sequence;
  report.train_samples = train_range.count;
  report.valid_samples = valid_range.count;
  report.total_steps = total_steps;
  report.machine_flops = machine.flops;
  report.machine_bytes_per_second = machine.bytes_per_second;

  std::vector<const Graph*> graphs;
  for (const auto& entry : entries) graphs.push_back(&entry->job.graph);
  const MemoryPeak peak = memory_peak(program, graphs);
  const auto bytes = [&](Purpose purpose) { return peak.bytes[static_cast<size_t>(purpose)]; };
  report.peak_live_bytes = peak.live;
  report.peak_entry = program.entries[peak.entry].name;
  report.peak_op = peak.op;
  report.at_peak = {.program = reserve,
                    .weights = bytes(Purpose::weights),
                    .gradients = bytes(Purpose::gradients),
                    .optimizer = bytes(Purpose::optimizer),
                    .activations = bytes(Purpose::activations) + bytes(Purpose::inputs) + bytes(Purpose::constants),
                    .workspace = bytes(Purpose::workspace),
                    .gaps = whole_pages(program.arena_bytes) - peak.live,
                    .total = reserve + whole_pages(program.arena_bytes)};

  const Graph& train = entries[0]->job.graph;
  for (ValueId id : train.parameters()) {
    report.parameters += element_count(train.value(id).shape);
    if (train.value(id).trainable) report.trainable_parameters += element_count(train.value(id).shape);
  }
  const NodeWork batch = entry_work(train, program.entries[0], program.threads, machine);
  const double batches = static_cast<double>(options.gradient_accumulation_steps);
  report.flops_per_step = batch.flops * batches;
  report.predicted_milliseconds = batch.seconds * batches * 1e3;
  if (const int update = find_entry("update"); update >= 0 && !deferred) {
    const auto index = static_cast<size_t>(update);
    const NodeWork more = entry_work(entries[index]->job.graph, program.entries[index], program.threads, machine);
    report.flops_per_step += more.flops;
    report.predicted_milliseconds += more.seconds * 1e3;
  }

  const DiskNeed disk_bytes = disk_need(program);
  report.disk_bytes = disk_bytes.total();
  report.state_bytes = disk_bytes.state;
  if (!forecasts.empty()) {
    const auto add = [&](int entry, double times) {
      if (entry < 0) return;
      const StreamForecast& forecast = forecasts[static_cast<size_t>(entry)];
      report.disk_read_per_step += static_cast<int64_t>(times * static_cast<double>(forecast.bytes_read));
      report.disk_written_per_step += static_cast<int64_t>(times * static_cast<double>(forecast.bytes_written));
      report.stalled_milliseconds += times * forecast.stalled * 1e3;
    };
    add(0, batches);
    if (!deferred) add(find_entry("update"), 1);
    report.predicted_milliseconds += report.stalled_milliseconds;
  }

  report.saved_kept = recomputed.kept;
  report.saved_kept_bytes = recomputed.kept_bytes;
  report.saved_recomputed = recomputed.again;
  report.saved_recomputed_bytes = recomputed.again_bytes;
  for (NodeId id : recomputed.nodes) {
    if (train.node(id).op->alias.empty())
      report.recompute_milliseconds += work_of(train, train.node(id), program.threads, machine).seconds * batches * 1e3;
  }

  report.text = fmt::format("machine     {} {} · {:.0f} GFLOP/s · {:.0f} GB/s\n", workers.threads(),
                            workers.threads() == 1 ? "thread" : "threads", machine.flops / 1e9, machine.bytes_per_second / 1e9);
  report.text += fmt::format("plan        in {:.1f} s · batch {}{} · {} entry points · smallest budget {} bytes\n", seconds, binding.batch,
                             binding.sequence > 0 ? fmt::format(" x {}", binding.sequence) : "", entries.size(), report.minimum_budget);
  const MemoryFrame frame{.title = std::filesystem::path(options.model).filename().string(), .reserve = reserve, .budget = options.budget};
  report.text += memory_table(program, graphs, frame);
  if (report.disk_bytes > 0) {
    const auto gigabytes = [](double bytes) { return fmt::format("{:.3g} GB", bytes / 1e9); };
    report.text += fmt::format(
        "disk        {} on {}{} · {} read, {} written a step ({} in all)\n", gigabytes(static_cast<double>(report.disk_bytes)),
        options.nvme_path,
        report.state_bytes > 0
            ? fmt::format(" ({} are two slots for all weights and optimizer state)", gigabytes(static_cast<double>(report.state_bytes)))
            : "",
        gigabytes(static_cast<double>(report.disk_read_per_step)), gigabytes(static_cast<double>(report.disk_written_per_step)),
        gigabytes(static_cast<double>(report.disk_written_per_step) * static_cast<double>(total_steps)));
  }
  if (report.saved_recomputed > 0) {
    report.text += fmt::format("recompute   {} of {} saved tensors ({:.2f} of {:.2f} GB) · {} ms a step\n", report.saved_recomputed,
                               report.saved_recomputed + report.saved_kept, static_cast<double>(report.saved_recomputed_bytes) / 1e9,
                               static_cast<double>(report.saved_recomputed_bytes + report.saved_kept_bytes) / 1e9,
                               shown(report.recompute_milliseconds));
  }
  report.text += fmt::format("step        {} ms predicted, {:.3g} GFLOP · {} steps\n", shown(report.predicted_milliseconds),
                             report.flops_per_step / 1e9, total_steps);
  if (!options.plan_json.empty()) write_plan_json(memory_json(program, graphs));
  if (!options.plan_svg.empty()) {
    make_folders(folder_of(options.plan_svg));
    replace_file(options.plan_svg, memory_svg(program, graphs, frame));
  }
}

void Trainer::Impl::write_plan_json(const nlohmann::ordered_json& memory) const {
  using Json = nlohmann::ordered_json;
  const MemoryTable& peak = report.at_peak;
  Json json{
      {"model", options.model},
      {"budget_bytes", report.budget},
      {"minimum_budget_bytes", report.minimum_budget},
      {"planned_peak_bytes", {{"RAM", report.arena_bytes}, {"NVMe", report.disk_bytes}}},
      {"disk", {{"state_file_bytes", report.state_bytes}, {"spill_bytes", report.disk_bytes - report.state_bytes}}},
      {"disk_read_per_step", report.disk_read_per_step},
      {"disk_written_per_step", report.disk_written_per_step},
      {"stalled_ms_per_step", report.stalled_milliseconds},
      {"recompute",
       {{"kept", report.saved_kept},
        {"kept_bytes", report.saved_kept_bytes},
        {"recomputed", report.saved_recomputed},
        {"recomputed_bytes", report.saved_recomputed_bytes},
        {"ms_per_step", report.recompute_milliseconds}}},
      {"peak_live_bytes", report.peak_live_bytes},
      {"peak",
       {{"entry", report.peak_entry},
        {"op", report.peak_op},
        {"program", peak.program},
        {"weights", peak.weights},
        {"gradients", peak.gradients},
        {"optimizer", peak.optimizer},
        {"activations", peak.activations},
        {"workspace", peak.workspace},
        {"gaps", peak.gaps},
        {"total", peak.total}}},
      {"program",
       {{"resident_when_planned", resident_planned},
        {"threads", job_size.threads},
        {"instructions", job_size.instructions},
        {"kernels", job_size.kernels},
        {"file_nodes", job_size.file_nodes},
        {"tensors", job_size.parameters},
        {"constant_bytes", job_size.constant_bytes},
        {"data_bytes", job_size.data_bytes}}},
      {"parameters", report.parameters},
      {"trainable_parameters", report.trainable_parameters},
      {"batch", report.batch},
      {"sequence", report.sequence},
      {"train_samples", report.train_samples},
      {"valid_samples", report.valid_samples},
      {"total_steps", report.total_steps},
      {"flops_per_step", report.flops_per_step},
      {"predicted_ms_per_step", report.predicted_milliseconds},
      {"machine", {{"threads", workers.threads()}, {"flops", report.machine_flops}, {"bytes_per_second", report.machine_bytes_per_second}}},
      {"memory", memory}};
  make_folders(folder_of(options.plan_json));
  replace_file(options.plan_json, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace ort_train
