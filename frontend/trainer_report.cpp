// The plan as numbers, as text for people and as JSON for programs.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "frontend/budget.h"
#include "frontend/file.h"
#include "frontend/parameter_groups.h"
#include "frontend/trainer_impl.h"
#include "frontend/units.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "passes/cost.h"
#include "passes/plan_report.h"

namespace ort_train {
namespace {

// One run of an entry, everything in memory.
NodeWork entry_work(const Graph& graph, const Entry& entry, int threads, const ComputeRates& rates) {
  NodeWork sum;
  for (const Instruction& instruction : entry.code) {
    if (instruction.action != Action::compute || is_view(graph.node(instruction.node), instruction)) continue;
    const NodeWork work = work_of(graph, graph.node(instruction.node), threads, rates);
    sum.flops += work.flops;
    sum.seconds += work.seconds;
  }
  return sum;
}

std::string shown(int64_t bytes) { return shown_bytes(static_cast<double>(bytes)); }

std::string shown_moves(const std::vector<PlanMoves>& rows) {
  std::string text;
  const auto cell = [](int64_t count, int64_t bytes) { return count == 0 ? std::string("-") : fmt::format("{}, {}", count, shown(bytes)); };
  const auto amount = [](int64_t bytes) { return bytes == 0 ? std::string("-") : shown(bytes); };
  text += fmt::format("{:12}{:>18}{:>18}{:>18}{:>12}{:>12} a step\n", "tensors", "kept", "recomputed", "on the disk", "read", "written");
  for (const PlanMoves& row : rows) {
    if (row.kept + row.moved + row.recomputed == 0) continue;
    text +=
        fmt::format("  {:10}{:>18}{:>18}{:>18}{:>12}{:>12}\n", row.kind, cell(row.kept, row.kept_bytes),
                    cell(row.recomputed, row.recomputed_bytes), cell(row.moved, row.moved_bytes), amount(row.read), amount(row.written));
  }
  return text;
}

}  // namespace

void Trainer::Impl::describe(double seconds) {
  report = {};
  report.budget = options.budget;
  report.arena_bytes = program.memory().bytes;
  report.minimum_budget = least.budget;
  report.minimum_op = least.op;
  report.minimum_entry = least.entry;
  report.seconds = seconds;
  report.batch = binding.batch;
  report.sequence = binding.sequence;
  report.train_samples = train_range.count;
  report.valid_samples = valid_range.count;
  report.total_steps = total_steps;
  report.groups = report_groups;
  report.machine_flops = device.rates.flops;
  report.machine_bytes_per_second = device.rates.bytes_per_second;

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
                    .gaps = whole_pages(program.memory().bytes) - peak.live,
                    .total = reserve + whole_pages(program.memory().bytes)};

  const Graph& train = entries[0]->job.graph;
  std::map<std::string, int64_t> padded;  // bytes of parts and packs that are the model's
  for (const auto& [weight, slices] : entries[0]->job.slices) {
    for (const Slice& slice : slices) padded[slice.name] += slice.bytes;
    if (slices.size() == 1) continue;
    ++report.divided;
    report.parts += static_cast<int64_t>(slices.size());
    for (const Slice& slice : slices) report.part_bytes = std::max(report.part_bytes, slice.bytes);
  }
  for (ValueId id : train.parameters()) {
    const Value& value = train.value(id);
    const auto found = padded.find(value.name);
    const int64_t elements = found == padded.end() ? element_count(value.shape) : found->second / size_of(value.dtype);
    report.parameters += elements;
    if (value.trainable) report.trainable_parameters += elements;
  }
  describe_step();
  describe_moves();
  const MemoryFrame frame{.title = std::filesystem::path(options.model).filename().string(), .reserve = reserve, .budget = options.budget};
  report.text = plan_text(memory_table(program, graphs, frame));
  if (!options.plan_json.empty()) write_plan_json(memory_json(program, graphs));
  if (!options.plan_svg.empty()) {
    make_folders(folder_of(options.plan_svg));
    MemoryFrame picture = frame;
    std::optional<Timeline> timeline;
    if (program.file().bytes > 0) {
      picture.entry = main_entry();
      picture.timeline =
          &timeline.emplace(make_timeline(program, program.entries[picture.entry], *graphs[picture.entry], device.rates, stream_rates()));
    }
    replace_file(options.plan_svg, memory_svg(program, graphs, picture));
  }
}

// The entry in which an optimizer step computes longest.
size_t Trainer::Impl::main_entry() const {
  std::vector<double> seconds;
  for (size_t i = 0; i < entries.size(); ++i)
    seconds.push_back(runs_per_step(*entries[i]) *
                      entry_work(entries[i]->job.graph, program.entries[i], program.threads, device.rates).seconds);
  return static_cast<size_t>(std::max_element(seconds.begin(), seconds.end()) - seconds.begin());
}

// What an optimizer step takes, and what bounds it.
void Trainer::Impl::describe_step() {
  StreamForecast step;
  for (size_t index = 0; index < entries.size(); ++index) {
    const double times = runs_per_step(*entries[index]);
    if (times == 0) continue;
    const NodeWork work = entry_work(entries[index]->job.graph, program.entries[index], program.threads, device.rates);
    report.flops_per_step += times * work.flops;
    step.compute += times * work.seconds;
    if (forecasts.empty()) continue;
    const StreamForecast& forecast = forecasts[index];
    step.stalled += times * forecast.stalled;
    step.slowed += times * forecast.slowed;
    step.read += times * forecast.read;
    step.write += times * forecast.write;
    report.disk_read_per_step += static_cast<int64_t>(times * static_cast<double>(forecast.bytes_read));
    report.disk_written_per_step += static_cast<int64_t>(times * static_cast<double>(forecast.bytes_written));
  }
  report.computing_milliseconds = step.compute * 1e3;
  report.stalled_milliseconds = step.stalled * 1e3;
  report.reading_milliseconds = step.read * 1e3;
  report.writing_milliseconds = step.write * 1e3;
  report.slowed_milliseconds = step.slowed * 1e3;
  report.predicted_milliseconds = report.computing_milliseconds + report.stalled_milliseconds + report.slowed_milliseconds;
  report.bounded_by = step.compute >= step.read + step.write ? "compute" : "disk";
  report.bound_milliseconds = forecasts.empty() ? report.computing_milliseconds : bound * 1e3;
  report.micro_batches_together = together;
  report.updates_in_next_step = deferred;
  const DiskNeed need = disk_need(program, state_slots());
  report.disk_bytes = need.total();
  report.state_bytes = need.state;
  report.state_slots = need.state > 0 ? state_slots() : 0;
  if (program.file().bytes > 0) {
    for (size_t i = 0; i < program.entries.size(); ++i) {
      const DiskPeak peak = disk_peak(program, program.entries[i], entries[i]->job.graph);
      if (peak.bytes <= report.disk_peak_bytes) continue;
      report.disk_peak_bytes = peak.bytes;
      report.disk_peak_op = peak.op.empty() ? "" : fmt::format("{} in '{}'", peak.op, program.entries[i].name);
    }
  }
  report.disk_written_in_all = written_in_all();
  if (options.nvme_endurance > 0)
    report.endurance_share = static_cast<double>(report.disk_written_in_all) / static_cast<double>(options.nvme_endurance);
}

// Weights that live on the disk go there before the first step; what of the state lives in memory, at each checkpoint.
int64_t Trainer::Impl::written_in_all() const {
  int64_t first = 0, checkpoint = 0;
  for (const Persistent& value : program.persistent) {
    if (value.purpose == Purpose::weights) first += file_bytes(value);
    if (!is_in_file(value) && (value.purpose == Purpose::weights || value.purpose == Purpose::optimizer))
      checkpoint += whole_sectors(value.home.bytes);
  }
  const int64_t every = options.save_steps > 0 ? options.save_steps : total_steps;
  const int64_t checkpoints = every > 0 ? (total_steps + every - 1) / every : 0;  // the last at the end
  return report.disk_written_per_step * total_steps + first + (report.state_bytes > 0 ? checkpoints * checkpoint : 0);
}

// What is kept, moved and computed again.
void Trainer::Impl::describe_moves() {
  const Graph& train = entries[0]->job.graph;
  const double batches = static_cast<double>(options.gradient_accumulation_steps);
  // Counted in the graph of one micro-batch.
  report.saved_kept = together * recomputed.kept;
  report.saved_kept_bytes = together * recomputed.kept_bytes;
  report.saved_recomputed = together * recomputed.again;
  report.saved_recomputed_bytes = together * recomputed.again_bytes;
  for (NodeId id : recomputed.nodes) {
    if (viewed(train.node(id)) == kNone)
      report.recompute_milliseconds += work_of(train, train.node(id), program.threads, device.rates).seconds * batches * 1e3;
  }
  std::array<DiskTraffic, kPurposes> traffic{};
  for (size_t index = 0; index < entries.size(); ++index) {
    const auto times = static_cast<int64_t>(runs_per_step(*entries[index]));
    if (times == 0) continue;
    const auto of_run = disk_traffic(program, program.entries[index]);
    for (size_t i = 0; i < kPurposes; ++i) {
      if (of_run[i].bytes > traffic[i].bytes) std::tie(traffic[i].tensors, traffic[i].bytes) = std::tie(of_run[i].tensors, of_run[i].bytes);
      traffic[i].read += times * of_run[i].read;
      traffic[i].written += times * of_run[i].written;
    }
  }
  for (const Purpose purpose : {Purpose::weights, Purpose::gradients, Purpose::optimizer, Purpose::activations}) {
    const DiskTraffic& of = traffic[static_cast<size_t>(purpose)];
    PlanMoves row{
        .kind = std::string(to_string(purpose)), .moved = of.tensors, .moved_bytes = of.bytes, .read = of.read, .written = of.written};
    for (const Persistent& value : program.persistent) {
      if (value.purpose != purpose || is_in_file(value)) continue;
      ++row.kept;
      row.kept_bytes += value.home.bytes;
    }
    if (purpose == Purpose::activations) {
      row.kept = std::max<int64_t>(0, report.saved_kept - of.tensors);
      row.kept_bytes = std::max<int64_t>(0, report.saved_kept_bytes - of.bytes);
      row.recomputed = report.saved_recomputed;
      row.recomputed_bytes = report.saved_recomputed_bytes;
    }
    report.moves.push_back(std::move(row));
  }
}

// For people.
std::string Trainer::Impl::plan_text(const std::string& memory) const {
  std::string text =
      fmt::format("machine     {} {} · {:.0f} GFLOP/s · {:.0f} GB/s", workers.threads(), workers.threads() == 1 ? "thread" : "threads",
                  device.rates.flops / 1e9, device.rates.bytes_per_second / 1e9);
  if (report.disk_bytes > 0)
    text += fmt::format(" · disk {}/s read, {}/s written, beside computing {}/s, {}/s", shown_bytes(disk_rates.read),
                        shown_bytes(disk_rates.write), shown_bytes(disk_rates.read * disk_rates.beside),
                        shown_bytes(disk_rates.write * disk_rates.beside));
  text += fmt::format("\nplan        in {:.1f} s · batch {}{} · {} entry points · smallest budget {} bytes", report.seconds, binding.batch,
                      binding.sequence > 0 ? fmt::format(" x {}", binding.sequence) : "", entries.size(), report.minimum_budget);
  if (!report.minimum_op.empty()) text += fmt::format(", set by {}", least.set_by());
  text += "\n" + memory;
  if (report.disk_bytes > 0) {
    text += fmt::format("  NVMe    {} on {}, in use at once {}{}\n", shown(report.disk_bytes), options.nvme_path,
                        shown(report.disk_peak_bytes), report.disk_peak_op.empty() ? "" : ", at " + report.disk_peak_op);
    if (report.state_bytes > 0)
      text += fmt::format("          of these {} for {} slots of each weight and its optimizer state, so that checkpoints copy nothing{}\n",
                          shown(report.state_bytes),
                          report.state_slots == 2   ? "two"
                          : report.state_slots == 3 ? "three"
                                                    : grouped(report.state_slots),
                          report.state_slots > 2 ? fmt::format(" and {} are kept", report.state_slots - 1) : "");
  }
  text += shown_moves(report.moves);
  if (report.parts > 0)
    text += fmt::format("parts       {} weight{} in {} parts of up to {}\n", report.divided, report.divided == 1 ? "" : "s", report.parts,
                        shown(report.part_bytes));
  if (together > 1)
    text += fmt::format("order       vertical: {} micro-batches of {} go through the model together\n", together,
                        options.gradient_accumulation_steps);
  if (report.groups.size() > 1) text += shown_groups(report.groups);
  if (deferred) text += "updates     in the next step, each before the first use of its weight\n";
  text += fmt::format("step        {} predicted, {:.3g} GFLOP · {} steps\n", shown_duration(report.predicted_milliseconds),
                      report.flops_per_step / 1e9, total_steps);
  const std::string disk =
      fmt::format("reads {} + writes {}", shown_duration(report.reading_milliseconds), shown_duration(report.writing_milliseconds));
  text += fmt::format("            bounded by {}", report.bounded_by == "compute"
                                                       ? fmt::format("compute: {}", shown_duration(report.computing_milliseconds))
                                                       : "the disk: " + disk);
  if (report.saved_recomputed > 0) text += fmt::format(", of these {} computing again", shown_duration(report.recompute_milliseconds));
  if (report.disk_bytes > 0) {
    text += report.bounded_by == "compute" ? " · the disk: " + disk
                                           : fmt::format(" · compute: {}", shown_duration(report.computing_milliseconds));
    text += fmt::format(" · waiting {}, slowed by transfers {}\n", shown_duration(report.stalled_milliseconds),
                        shown_duration(report.slowed_milliseconds));
    if (report.bound_milliseconds > 0) {
      text += fmt::format("            lower bound {}: the plan is {:.1f} % above it\n", shown_duration(report.bound_milliseconds),
                          100 * (report.predicted_milliseconds / report.bound_milliseconds - 1));
    }
    text += fmt::format("disk        {} read, {} written a step · {} written in all", shown(report.disk_read_per_step),
                        shown(report.disk_written_per_step), shown(report.disk_written_in_all));
    if (report.endurance_share > 0)
      text += fmt::format(", {:.2g} % of the drive's {}", 100 * report.endurance_share, shown(options.nvme_endurance));
  }
  return text + "\n";
}

void Trainer::Impl::write_plan_json(const nlohmann::ordered_json& memory) const {
  using Json = nlohmann::ordered_json;
  const MemoryTable& peak = report.at_peak;
  Json moves = Json::array();
  for (const PlanMoves& row : report.moves) {
    moves.push_back({{"kind", row.kind},
                     {"kept", row.kept},
                     {"kept_bytes", row.kept_bytes},
                     {"moved", row.moved},
                     {"moved_bytes", row.moved_bytes},
                     {"recomputed", row.recomputed},
                     {"recomputed_bytes", row.recomputed_bytes},
                     {"read", row.read},
                     {"written", row.written}});
  }
  Json of_groups = Json::array();
  for (const GroupReport& row : report.groups) {
    of_groups.push_back({{"name", row.name},
                         {"tensors", row.tensors},
                         {"elements", row.elements},
                         {"learning_rate", row.learning_rate},
                         {"weight_decay", row.weight_decay},
                         {"decayed", row.decayed}});
  }
  Json json{
      {"model", options.model},
      {"budget_bytes", report.budget},
      {"minimum_budget_bytes", report.minimum_budget},
      {"minimum", {{"op", report.minimum_op}, {"entry", report.minimum_entry}}},
      {"planned_peak_bytes", {{"RAM", report.arena_bytes}, {"NVMe", report.disk_bytes}}},
      {"disk",
       {{"state_file_bytes", report.state_bytes},
        {"state_slots", report.state_slots},
        {"spill_bytes", report.disk_bytes - report.state_bytes}}},
      {"disk_read_per_step", report.disk_read_per_step},
      {"disk_written_per_step", report.disk_written_per_step},
      {"disk_peak", {{"bytes", report.disk_peak_bytes}, {"op", report.disk_peak_op}}},
      {"disk_written_per_run", report.disk_written_in_all},
      {"disk_endurance_share", report.endurance_share},
      {"stalled_ms_per_step", report.stalled_milliseconds},
      {"slowed_ms_per_step", report.slowed_milliseconds},
      {"computing_ms_per_step", report.computing_milliseconds},
      {"disk_ms_per_step", {{"read", report.reading_milliseconds}, {"write", report.writing_milliseconds}}},
      {"bounded_by", report.bounded_by},
      {"lower_bound_ms_per_step", report.bound_milliseconds},
      {"planning_seconds", report.seconds},
      {"moves", moves},
      {"recompute",
       {{"kept", report.saved_kept},
        {"kept_bytes", report.saved_kept_bytes},
        {"recomputed", report.saved_recomputed},
        {"recomputed_bytes", report.saved_recomputed_bytes},
        {"ms_per_step", report.recompute_milliseconds}}},
      {"micro_batches", {{"of_step", options.gradient_accumulation_steps}, {"together", report.micro_batches_together}}},
      {"parts", {{"weights", report.divided}, {"parts", report.parts}, {"largest_bytes", report.part_bytes}}},
      {"updates_in_next_step", report.updates_in_next_step},
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
      {"groups", of_groups},
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
