// A plan as text for people, as JSON for programs, and as a picture.

#include <fmt/ranges.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "frontend/parameter_groups.h"
#include "frontend/plan_description.h"
#include "frontend/report_files.h"
#include "frontend/units.h"
#include "graph/error.h"
#include "passes/plan_report.h"

namespace ort_train {
namespace {

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

MemoryFrame frame_of(const Job& job, const PlannedJob& planned) {
  return {.title = std::filesystem::path(job.options.model).filename().string(), .reserve = planned.reserve, .budget = planned.budget};
}

}  // namespace

std::string plan_text(const Job& job, const PlannedJob& planned, const MachineRates& rates, const PlanReport& report) {
  constexpr double kTogether = 1.05;  // of a disk that reads and writes at once: less is not worth a word
  const Options& options = job.options;
  const ComputeRates& compute = rates.compute();
  const int threads = planned.footprint.threads;
  const std::string machine = report.device.empty() ? fmt::format("{} {}", threads, threads == 1 ? "thread" : "threads") : report.device;
  std::string text =
      fmt::format("machine     {} · {:.0f} GFLOP/s · {:.0f} GB/s", machine, report.machine_flops / 1e9, compute.bytes_per_second / 1e9);
  if (report.disk_bytes > 0)
    text += fmt::format(
        " · disk {}/s read, {}/s written{}, beside computing {}/s, {}/s", shown_bytes(planned.disk.read), shown_bytes(planned.disk.write),
        planned.disk.duplex >= kTogether ? fmt::format(" ({:.1f} x at once)", planned.disk.duplex) : "",
        shown_bytes(planned.disk.read * planned.disk.while_computing), shown_bytes(planned.disk.write * planned.disk.while_computing));
  text += fmt::format("\nplan        in {:.1f} s · batch {}{} · {} · smallest budget {} bytes", report.seconds, job.data.binding.batch,
                      job.data.binding.sequence > 0 ? fmt::format(" x {}", job.data.binding.sequence) : "",
                      planned.set.entries.size() == 1 ? "1 entry point" : fmt::format("{} entry points", planned.set.entries.size()),
                      report.minimum_budget);
  if (!report.minimum_op.empty()) text += fmt::format(", set by {}", planned.least.set_by());
  text += "\n" + memory_table(planned.program, planned.set.graphs(), frame_of(job, planned));
  if (report.host_bytes > 0)
    text += fmt::format("  pinned  {} of the host's memory · {} to the GPU and {} back a step\n", shown(report.host_bytes),
                        shown(report.up_per_step), shown(report.down_per_step));
  if (report.disk_bytes > 0) {
    text += fmt::format("  NVMe    {} on {}, in use at once {}{}\n", shown(report.disk_bytes), options.nvme_path,
                        shown(report.disk_peak_bytes), report.disk_peak_op.empty() ? "" : ", at " + report.disk_peak_op);
    if (report.state_bytes > 0)
      text += fmt::format("          of these {} for the state file: {} slots for each weight and its optimizer state\n",
                          shown(report.state_bytes),
                          report.state_slots == 2   ? "two"
                          : report.state_slots == 3 ? "three"
                                                    : grouped(report.state_slots));
  }
  text += shown_moves(report.moves);
  if (report.parts > 0)
    text += fmt::format("parts       {} weight{} in {} parts of up to {}\n", report.divided, report.divided == 1 ? "" : "s", report.parts,
                        shown(report.part_bytes));
  if (planned.set.strategy.joined_batches > 1)
    text += fmt::format("order       vertical: {} micro-batches of {} go through the model together\n", planned.set.strategy.joined_batches,
                        options.gradient_accumulation_steps);
  if (!report.lengths.empty()) {
    std::vector<std::string> shares;
    for (const LengthReport& of : report.lengths) shares.push_back(fmt::format("{} for {:.0f} %", of.length, 100 * of.share));
    text += fmt::format("lengths     {} of the batches\n", fmt::join(shares, ", "));
  }
  if (report.groups.size() > 1) text += shown_groups(report.groups);
  if (planned.set.strategy.defer == Deferral::most)
    text += "updates     most in the next step, each before the first use of its weight; the others in their own step\n";
  else if (planned.set.strategy.is_deferred())
    text += "updates     in the next step, each before the first use of its weight\n";
  text += fmt::format("step        {} predicted, {:.3g} GFLOP · {} steps\n", shown_duration(report.predicted_milliseconds),
                      report.flops_per_step / 1e9, job.data.total_steps);
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

void write_plan_json(const Job& job, const PlannedJob& planned, const PlanReport& report) {
  const Options& options = job.options;
  const nlohmann::ordered_json memory = memory_json(planned.program, planned.set.graphs());
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
  Json lengths = Json::array();
  for (const LengthReport& row : report.lengths) lengths.push_back({{"length", row.length}, {"share", row.share}});
  Json of_groups = Json::array();
  for (const GroupReport& row : report.groups) {
    of_groups.push_back({{"name", row.name},
                         {"tensors", row.tensors},
                         {"elements", row.elements},
                         {"learning_rate", row.learning_rate},
                         {"weight_decay", row.weight_decay},
                         {"decayed", row.decayed}});
  }
  Json peaks{{"RAM", report.arena_bytes}, {"NVMe", report.disk_bytes}};
  if (!report.device.empty()) peaks = {{"GPU", peak.total}, {"RAM", report.host_bytes}, {"NVMe", report.disk_bytes}};
  Json json{
      {"model", options.model},
      {"budget_bytes", report.budget},
      {"minimum_budget_bytes", report.minimum_budget},
      {"minimum", {{"op", report.minimum_op}, {"entry", report.minimum_entry}}},
      {"planned_peak_bytes", std::move(peaks)},
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
       {{"resident_when_planned", planned.rss_after_planning},
        {"threads", planned.footprint.threads},
        {"instructions", planned.footprint.instructions},
        {"kernels", planned.footprint.kernels},
        {"file_nodes", planned.footprint.file_nodes},
        {"tensors", planned.footprint.parameters},
        {"constant_bytes", planned.footprint.constant_bytes},
        {"data_bytes", planned.footprint.data_bytes}}},
      {"parameters", report.parameters},
      {"trainable_parameters", report.trainable_parameters},
      {"groups", of_groups},
      {"batch", report.batch},
      {"sequence", report.sequence},
      {"lengths", lengths},
      {"train_samples", report.train_samples},
      {"valid_samples", report.valid_samples},
      {"total_steps", report.total_steps},
      {"flops_per_step", report.flops_per_step},
      {"predicted_ms_per_step", report.predicted_milliseconds},
      {"machine",
       {{"threads", planned.footprint.threads}, {"flops", report.machine_flops}, {"bytes_per_second", report.machine_bytes_per_second}}},
      {"memory", memory}};
  write_report(options.plan_json, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

void write_plan_svg(const Job& job, const PlannedJob& planned, const MachineRates& rates) {
  const std::vector<const Graph*> graphs = planned.set.graphs();
  MemoryFrame picture = frame_of(job, planned);
  std::optional<Timeline> timeline;
  if (planned.program.file().bytes > 0) {
    picture.entry = main_entry(planned, rates.compute());
    picture.timeline = &timeline.emplace(
        make_timeline(planned.program, planned.program.entries[picture.entry], *graphs[picture.entry], rates.compute(), rates.stream()));
  }
  write_report(job.options.plan_svg, memory_svg(planned.program, graphs, picture));
}

}  // namespace ort_train
