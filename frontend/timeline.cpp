#include "frontend/timeline.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <numeric>

#include "graph/error.h"
#include "graph/op_def.h"
#include "passes/plan_report.h"

namespace ort_train {
namespace {

constexpr size_t kTextPiece = size_t{64} << 10;  // that is written at once

// Track numbers; Perfetto shows them in this order.
constexpr int kStepTrack = 1, kEntryTrack = 2, kKernelTrack = 3, kBackgroundTrack = 4, kReadTrack = 100, kWriteTrack = 200;

std::string json_text(std::string_view text) { return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

// The format's microseconds, exactly.
std::string microseconds(int64_t nanoseconds) { return fmt::format("{}.{:03}", nanoseconds / 1000, nanoseconds % 1000); }

// Of the steps that this process makes: the first one fills caches.
constexpr int64_t kFirstByDefault = 2, kLastByDefault = 4;

// By instruction: what a copy of the file moves; null elsewhere.
std::vector<const Storage*> moved_storages(const Entry& entry) {
  std::map<std::pair<SpaceId, int64_t>, const Storage*> live;  // by place
  std::multimap<int32_t, const Storage*> begins;
  for (const Storage& storage : entry.storages) begins.emplace(storage.first, &storage);
  std::vector<const Storage*> moved(entry.code.size());
  for (size_t at = 0; at < entry.code.size(); ++at) {
    for (auto [i, end] = begins.equal_range(static_cast<int32_t>(at)); i != end; ++i)
      live[{i->second->place.space, i->second->place.offset}] = i->second;
    if (!uses_file(entry.code[at])) continue;
    const Place& memory = memory_of(entry.code[at]);
    moved[at] = live.at({memory.space, memory.offset});
  }
  return moved;
}

bool read_step(std::string_view text, int64_t& step) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), step);
  return code == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::pair<int64_t, int64_t> timeline_steps(const Options& options) {
  const std::string& text = options.timeline_steps;
  if (text.empty()) return {0, 0};
  if (options.timeline.empty())
    throw error(ErrorCode::usage, "`timeline_steps` {} goes with `timeline`, the file that they are written to", text);
  const size_t dash = text.find('-');
  int64_t first = 0, last = 0;
  const bool is_read = read_step(text.substr(0, dash), first) && (dash == std::string::npos || read_step(text.substr(dash + 1), last));
  if (dash == std::string::npos) last = first;
  if (!is_read || first < 1 || last < first)
    throw error(ErrorCode::usage, "`timeline_steps` {}: is neither the number of a step nor FIRST-LAST, from 1 up", text);
  if (last - first >= kMostTimelineSteps)
    throw error(ErrorCode::usage, "`timeline_steps` {}: are {} steps, and a timeline has {} at most", text, last - first + 1,
                kMostTimelineSteps);
  return {first, last};
}

RunTimeline::RunTimeline(const Options& options, const Program& program, std::vector<const Graph*> graphs)
    : options_(options), program_(program), graphs_(std::move(graphs)), wanted_(timeline_steps(options)) {
  // Now, so that it counts in what the process takes.
  size_t longest = 0;
  for (const Entry& entry : program.entries) {
    longest = std::max(longest, entry.code.size());
    PlanOf& plan = plans_.emplace_back();
    if (entry.role.kind != EntryKind::train && entry.role.kind != EntryKind::update) continue;
    for (const PurposeBytes& bytes : live_bytes(program, entry))
      plan.arena.push_back(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
    plan.disk = disk_levels(program, entry);
    plan.moved = moved_storages(entry);
  }
  trace_.instructions.resize(longest);
  copies_.reserve(longest);
  text_.reserve(kTextPiece + (size_t{4} << 10));
}

// --- steps ------------------------------------------------------------------------------------------------------------------------------

template <typename Body> void RunTimeline::guarded(Body body) {
  if (!failure_.empty()) return;
  const RunClock::time_point begin = RunClock::now();
  try {
    body();
  } catch (const Error& problem) {
    if (problem.code() != ErrorCode::io) throw;
    failure_ = problem.what();
  }
  left_out_ += RunClock::now() - begin;
}

bool RunTimeline::begin_step(int64_t step, bool is_last) {
  ++begun_;
  const bool by_default = (begun_ >= kFirstByDefault && begun_ <= kLastByDefault) || (begun_ == 1 && is_last);
  if (!(wanted_.first == 0 ? by_default : step >= wanted_.first && step <= wanted_.second)) return false;
  guarded([&] {
    if (file_) return;
    file_.emplace(options_.timeline);
    text_ = R"({"otherData":{"producer":"ort-train"},"displayTimeUnit":"ms","traceEvents":[)";
    event(R"({"name":"process_name","ph":"M","pid":1,"args":{"name":"ort-train"}})");
    for (const auto& [track, name] :
         {std::pair(kStepTrack, "steps"), {kEntryTrack, "entries"}, {kKernelTrack, "kernels"}, {kBackgroundTrack, "background"}})
      name_track(track, name);
  });
  if (!failure_.empty()) return false;
  const RunClock::time_point now = RunClock::now();
  if (first_ == 0) origin_ = now - left_out_;
  if (first_ == 0) first_ = step;
  last_ = step;
  step_begin_ = at(now);
  is_in_step_ = true;
  return true;
}

void RunTimeline::end_step(bool is_last) {
  if (!std::exchange(is_in_step_, false)) return;
  const int64_t end = at(RunClock::now());
  guarded([&] {
    const std::string name = fmt::format("step {}", last_);
    put({.track = kStepTrack, .name = name, .category = "step", .times = {.begin = step_begin_, .end = end}});
    if (is_last || last_ == wanted_.second || (wanted_.first == 0 && begun_ == kLastByDefault)) publish();
  });
}

void RunTimeline::publish() {
  text_ += "\n]}\n";
  flush();
  file_->publish();
  is_published_ = true;
}

void RunTimeline::finish() {
  if (failure_.empty() && file_ && !is_published_) publish();
  if (!failure_.empty()) throw Error(ErrorCode::io, failure_);
}

// --- a run ------------------------------------------------------------------------------------------------------------------------------

void RunTimeline::add(size_t entry, std::vector<TransferRecord> transfers) {
  if (plans_[entry].arena.empty()) return;  // what is asked of the weights when a step has failed
  guarded([&] { write_run(entry, transfers); });
}

void RunTimeline::write_run(size_t entry, std::vector<TransferRecord>& transfers) {
  const PlanOf& plan = plans_[entry];
  put({.track = kEntryTrack, .name = program_.entries[entry].name, .category = "entry", .times = at(trace_.run)});
  copies_.clear();
  for (size_t i = 0; i < program_.entries[entry].code.size(); ++i) write_instruction(entry, i, plan);
  put_wait(trace_.last_wait);
  write_transfers(transfers, plan);
}

void RunTimeline::write_instruction(size_t entry, size_t number, const PlanOf& plan) {
  const Instruction& instruction = program_.entries[entry].code[number];
  const TracedInstruction& traced = trace_.instructions[number];
  put_wait(traced.wait);
  const int64_t issued = at(traced.wait.end);
  count("arena", issued, plan.arena[number]);
  if (const auto level = plan.disk.find(static_cast<int32_t>(number)); level != plan.disk.end() && program_.file().bytes > 0)
    count("disk", issued, level->second);
  if (uses_file(instruction)) {
    if (traced.ticket != 0) copies_.emplace_back(traced.ticket, number);
    return put({.track = kKernelTrack,
                .name = is_read(instruction) ? "begin a read" : "begin a write",
                .category = "wait",
                .times = at(traced.work),
                .arguments = fmt::format("\"tensor\":{}", json_text(plan.moved[number]->name))});
  }
  if (is_copy(instruction)) return put({.track = kKernelTrack, .name = "copy", .category = "copy", .times = at(traced.work)});
  const Node& node = graphs_[entry]->node(instruction.node);
  if (is_view(node, instruction)) return;
  put({.track = traced.in_background ? kBackgroundTrack : kKernelTrack,
       .name = node.op->name,
       .category = to_string(node.stage),
       .times = at(traced.work),
       .arguments = fmt::format("\"node\":{},\"instruction\":{}", json_text(node.name), number)});
}

// Each on the first track of its direction that is free when it begins.
void RunTimeline::write_transfers(std::vector<TransferRecord>& transfers, const PlanOf& plan) {
  std::sort(transfers.begin(), transfers.end(),
            [](const TransferRecord& a, const TransferRecord& b) { return a.span.begin < b.span.begin; });
  for (const TransferRecord& transfer : transfers) {
    const Times times = at(transfer.span);
    std::vector<Lane>& lanes = lanes_[transfer.write];
    auto lane = std::find_if(lanes.begin(), lanes.end(), [&](const Lane& of) { return of.end <= times.begin; });
    if (lane == lanes.end()) {
      const auto others = static_cast<int>(lanes.size());
      const char* const what = transfer.write ? "disk writes" : "disk reads";
      name_track((transfer.write ? kWriteTrack : kReadTrack) + others,
                 others == 0 ? std::string(what) : fmt::format("{} {}", what, others + 1));
      lane = lanes.insert(lanes.end(), {.track = (transfer.write ? kWriteTrack : kReadTrack) + others});
    }
    lane->end = times.end;
    const std::pair ticket(static_cast<int64_t>(transfer.ticket), size_t{0});
    const auto copy = std::lower_bound(copies_.begin(), copies_.end(), ticket);
    const bool is_known = copy != copies_.end() && copy->first == ticket.first;  // else somebody looks at a tensor between runs
    const Storage* const moved = is_known ? plan.moved[copy->second] : nullptr;
    put({.track = lane->track,
         .name = moved != nullptr ? std::string_view(moved->name) : "a tensor",
         .category = moved != nullptr ? to_string(moved->purpose) : "other",
         .times = times,
         .arguments = fmt::format("\"bytes\":{}", transfer.bytes)});
  }
}

// --- events (Chromium's "Trace Event Format")
// ----------------------------------------------------------------------------------------------

int64_t RunTimeline::at(RunClock::time_point time) const {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time - origin_ - left_out_).count();
}

void RunTimeline::put(const Slice& slice) {
  event(fmt::format(R"({{"name":{},"cat":"{}","ph":"X","pid":1,"tid":{},"ts":{},"dur":{},"args":{{{}}}}})", json_text(slice.name),
                    slice.category, slice.track, microseconds(slice.times.begin), microseconds(slice.times.end - slice.times.begin),
                    slice.arguments));
}

void RunTimeline::put_wait(const RunSpan& span) {
  if (program_.file().bytes > 0 && !span.is_empty())
    put({.track = kKernelTrack, .name = "wait for the disk", .category = "wait", .times = at(span)});
}

void RunTimeline::count(const char* counter, int64_t time, int64_t bytes) {
  const auto [found, is_new] = counted_.try_emplace(counter, bytes);
  if (!is_new && std::exchange(found->second, bytes) == bytes) return;
  event(fmt::format(R"({{"name":"{}","ph":"C","pid":1,"ts":{},"args":{{"bytes":{}}}}})", counter, microseconds(time), bytes));
}

void RunTimeline::name_track(int track, std::string_view name) {
  event(fmt::format(R"({{"name":"thread_name","ph":"M","pid":1,"tid":{},"args":{{"name":"{}"}}}})", track, name));
  event(fmt::format(R"({{"name":"thread_sort_index","ph":"M","pid":1,"tid":{0},"args":{{"sort_index":{0}}}}})", track));
}

void RunTimeline::event(std::string_view text) {
  text_ += std::exchange(has_events_, true) ? ",\n" : "\n";
  text_ += text;
  if (text_.size() >= kTextPiece) flush();
}

void RunTimeline::flush() {
  file_->append(text_);
  text_.clear();
}

}  // namespace ort_train
