#include "frontend/plan_description.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "exec/pages.h"
#include "frontend/run_disk.h"
#include "graph/op_def.h"
#include "passes/cost.h"
#include "passes/plan_report.h"
#include "passes/timeline.h"

namespace ort_train {
namespace {

class Description {
 public:
  Description(const Job& job, const PlannedJob& planned, const ComputeRates& compute)
      : job_(job), options_(job.options), planned_(planned), set_(planned.set), compute_(compute) {}
  PlanReport describe(double seconds);

 private:
  void describe_step();
  void describe_moves();
  int64_t written_in_all() const;

  const Job& job_;
  const Options& options_;
  const PlannedJob& planned_;
  const EntrySet& set_;
  const ComputeRates& compute_;
  PlanReport report_{};
};

PlanReport Description::describe(double seconds) {
  report_.budget = planned_.budget;
  report_.arena_bytes = planned_.program.memory().bytes;
  report_.device = planned_.device;
  if (!planned_.device.empty()) report_.host_bytes = planned_.program.spaces[kHost].bytes;
  report_.minimum_budget = planned_.least.budget;
  report_.minimum_op = planned_.least.op;
  report_.minimum_entry = planned_.least.entry;
  report_.seconds = seconds;
  report_.batch = job_.data.binding.batch;
  report_.sequence = job_.data.binding.sequence;
  report_.train_samples = job_.data.train_samples.count;
  report_.valid_samples = job_.data.valid_samples.count;
  report_.total_steps = job_.data.total_steps;
  report_.lengths = job_.data.lengths;
  report_.groups = job_.model.group_reports;
  report_.machine_flops = is_half(job_.model.product_type) && compute_.half_flops > 0 ? compute_.half_flops : compute_.flops;
  report_.machine_bytes_per_second = compute_.bytes_per_second;

  const std::vector<const Graph*> graphs = set_.graphs();
  const MemoryPeak peak = memory_peak(planned_.program, graphs);
  const auto bytes = [&](Purpose purpose) { return peak.bytes[static_cast<size_t>(purpose)]; };
  report_.peak_live_bytes = peak.live;
  report_.peak_entry = planned_.program.entries[peak.entry].name;
  report_.peak_op = peak.op;
  report_.at_peak = {.program = planned_.reserve,
                     .weights = bytes(Purpose::weights),
                     .gradients = bytes(Purpose::gradients),
                     .optimizer = bytes(Purpose::optimizer),
                     .activations = bytes(Purpose::activations) + bytes(Purpose::inputs) + bytes(Purpose::constants),
                     .workspace = bytes(Purpose::workspace),
                     .gaps = whole_pages(planned_.program.memory().bytes) - peak.live,
                     .total = planned_.reserve + whole_pages(planned_.program.memory().bytes)};

  const Graph& train = set_.entries[0].built.graph;
  std::map<std::string, int64_t> padded;  // bytes of parts and packs that are the model's
  for (const auto& [weight, slices] : set_.entries[0].built.slices) {
    for (const Slice& slice : slices) padded[slice.name] += slice.bytes;
    if (slices.size() == 1) continue;
    ++report_.divided;
    report_.parts += static_cast<int64_t>(slices.size());
    for (const Slice& slice : slices) report_.part_bytes = std::max(report_.part_bytes, slice.bytes);
  }
  for (ValueId id : train.parameters()) {
    const Value& value = train.value(id);
    const auto found = padded.find(value.name);
    const bool is_whole = found == padded.end() || is_quantized(value.dtype);
    const int64_t elements = is_whole ? element_count(value.shape) : found->second / size_of(value.dtype);
    report_.parameters += elements;
    if (value.trainable) report_.trainable_parameters += elements;
  }
  describe_step();
  describe_moves();
  return std::move(report_);
}

// What an optimizer step takes, and what bounds it.
void Description::describe_step() {
  StreamForecast step;
  for (size_t index = 0; index < set_.entries.size(); ++index) {
    const double times = set_.runs_per_step(set_.entries[index]);
    if (times == 0) continue;
    const NodeWork work = run_work(planned_.program, planned_.program.entries[index], set_.entries[index].built.graph, compute_);
    report_.flops_per_step += times * work.flops;
    step.compute += times * work.seconds;
    if (planned_.forecasts.empty()) continue;
    const StreamForecast& forecast = planned_.forecasts[index];
    step.stalled += times * forecast.stalled;
    step.contention += times * forecast.contention;
    step.read += times * forecast.read;
    step.write += times * forecast.write;
    report_.up_per_step += static_cast<int64_t>(times * static_cast<double>(forecast.bytes_up));
    report_.down_per_step += static_cast<int64_t>(times * static_cast<double>(forecast.bytes_down));
    report_.disk_read_per_step += static_cast<int64_t>(times * static_cast<double>(forecast.bytes_read));
    report_.disk_written_per_step += static_cast<int64_t>(times * static_cast<double>(forecast.bytes_written));
  }
  report_.computing_milliseconds = step.compute * 1e3;
  report_.stalled_milliseconds = step.stalled * 1e3;
  report_.reading_milliseconds = step.read * 1e3;
  report_.writing_milliseconds = step.write * 1e3;
  report_.slowed_milliseconds = step.contention * 1e3;
  report_.predicted_milliseconds = report_.computing_milliseconds + report_.stalled_milliseconds + report_.slowed_milliseconds;
  const double disk = std::max({step.read, step.write, (step.read + step.write) / planned_.disk.duplex});
  report_.bounded_by = step.compute >= disk ? "compute" : "disk";
  report_.bound_milliseconds = planned_.forecasts.empty() ? report_.computing_milliseconds : planned_.bound * 1e3;
  report_.micro_batches_together = set_.strategy.joined_batches;
  report_.updates_in_next_step = set_.strategy.is_deferred();
  const DiskNeed need = disk_need(planned_.program, state_slots(options_));
  report_.disk_bytes = need.total();
  report_.state_bytes = need.state;
  report_.state_slots = need.state > 0 ? state_slots(options_) : 0;
  if (planned_.program.file().bytes > 0) {
    for (size_t i = 0; i < planned_.program.entries.size(); ++i) {
      const DiskPeak peak = disk_peak(planned_.program, planned_.program.entries[i], set_.entries[i].built.graph);
      if (peak.bytes <= report_.disk_peak_bytes) continue;
      report_.disk_peak_bytes = peak.bytes;
      report_.disk_peak_op = peak.op.empty() ? "" : fmt::format("{} in '{}'", peak.op, planned_.program.entries[i].name);
    }
  }
  report_.disk_written_in_all = written_in_all();
  if (options_.nvme_endurance > 0)
    report_.endurance_share = static_cast<double>(report_.disk_written_in_all) / static_cast<double>(options_.nvme_endurance);
}

// Weights that live on the disk go there before the first step; what of the state lives in memory, at each checkpoint.
int64_t Description::written_in_all() const {
  int64_t first = 0, checkpoint = 0;
  for (const Persistent& value : planned_.program.persistent) {
    if (value.purpose == Purpose::weights) first += file_bytes(value);
    if (!is_in_file(value) && (value.purpose == Purpose::weights || value.purpose == Purpose::optimizer))
      checkpoint += whole_sectors(value.home.bytes);
  }
  const int64_t every = job_.data.save_steps > 0 ? job_.data.save_steps : job_.data.total_steps;
  const int64_t checkpoints = every > 0 ? (job_.data.total_steps + every - 1) / every : 0;  // the last at the end
  return report_.disk_written_per_step * job_.data.total_steps + first + (report_.state_bytes > 0 ? checkpoints * checkpoint : 0);
}

// What is kept, moved and computed again.
void Description::describe_moves() {
  const Graph& train = set_.entries[0].built.graph;
  const double batches = static_cast<double>(options_.gradient_accumulation_steps);
  // Counted in the graph of one micro-batch.
  report_.saved_kept = set_.strategy.joined_batches * planned_.recomputed.kept;
  report_.saved_kept_bytes = set_.strategy.joined_batches * planned_.recomputed.kept_bytes;
  report_.saved_recomputed = set_.strategy.joined_batches * planned_.recomputed.again;
  report_.saved_recomputed_bytes = set_.strategy.joined_batches * planned_.recomputed.again_bytes;
  for (NodeId id : planned_.recomputed.nodes) {
    if (viewed(train.node(id)) == kNone)
      report_.recompute_milliseconds += work_of(train, train.node(id), planned_.program.threads, compute_).seconds * batches * 1e3;
  }
  std::array<DiskTraffic, kPurposes> traffic{};
  for (size_t index = 0; index < set_.entries.size(); ++index) {
    const double times = set_.runs_per_step(set_.entries[index]);
    if (times == 0) continue;
    const auto of_run = disk_traffic(planned_.program, planned_.program.entries[index]);
    for (size_t i = 0; i < kPurposes; ++i) {
      if (of_run[i].bytes > traffic[i].bytes) std::tie(traffic[i].tensors, traffic[i].bytes) = std::tie(of_run[i].tensors, of_run[i].bytes);
      traffic[i].read += static_cast<int64_t>(times * static_cast<double>(of_run[i].read));
      traffic[i].written += static_cast<int64_t>(times * static_cast<double>(of_run[i].written));
    }
  }
  for (const Purpose purpose : {Purpose::weights, Purpose::gradients, Purpose::optimizer, Purpose::activations}) {
    const DiskTraffic& of = traffic[static_cast<size_t>(purpose)];
    PlanMoves row{
        .kind = std::string(to_string(purpose)), .moved = of.tensors, .moved_bytes = of.bytes, .read = of.read, .written = of.written};
    for (const Persistent& value : planned_.program.persistent) {
      if (value.purpose != purpose || is_in_file(value)) continue;
      ++row.kept;
      row.kept_bytes += value.home.bytes;
    }
    if (purpose == Purpose::activations) {
      row.kept = std::max<int64_t>(0, report_.saved_kept - of.tensors);
      row.kept_bytes = std::max<int64_t>(0, report_.saved_kept_bytes - of.bytes);
      row.recomputed = report_.saved_recomputed;
      row.recomputed_bytes = report_.saved_recomputed_bytes;
    }
    report_.moves.push_back(std::move(row));
  }
}

}  // namespace

PlanReport describe_plan(const Job& job, const PlannedJob& planned, const MachineRates& rates, double seconds) {
  return Description(job, planned, rates.compute()).describe(seconds);
}

// The entry in which an optimizer step computes longest.
size_t main_entry(const PlannedJob& planned, const ComputeRates& compute) {
  std::vector<double> seconds;
  for (size_t i = 0; i < planned.set.entries.size(); ++i)
    seconds.push_back(planned.set.runs_per_step(planned.set.entries[i]) *
                      run_work(planned.program, planned.program.entries[i], planned.set.entries[i].built.graph, compute).seconds);
  return static_cast<size_t>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
}

}  // namespace ort_train
