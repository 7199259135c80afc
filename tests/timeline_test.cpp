// The measured timeline of steps: that it is a trace as Perfetto reads it, that it has each node and each transfer once, with the figures
// of the reports, and that tracing changes nothing.

#include "frontend/timeline.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "exec/workers.h"
#include "tests/chain_model.h"
#include "tests/failures.h"
#include "tests/io_faults.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using TraceJson = nlohmann::json;

struct TraceSlice {
  std::string name, category, track;
  int64_t begin = 0, end = 0;  // nanoseconds
  TraceJson arguments;
  bool is_within(const TraceSlice& other) const { return begin >= other.begin && end <= other.end; }
};

struct ReadTimeline {
  std::vector<TraceSlice> slices;
  std::map<std::string, std::vector<int64_t>> counters;

  std::vector<TraceSlice> where(const std::function<bool(const TraceSlice&)>& wanted) const {
    std::vector<TraceSlice> found;
    std::copy_if(slices.begin(), slices.end(), std::back_inserter(found), wanted);
    return found;
  }
  std::vector<TraceSlice> on(const std::string& track) const {
    return where([&](const TraceSlice& slice) { return slice.track.starts_with(track); });
  }
  std::vector<std::string> steps() const {
    std::vector<std::string> names;
    for (const TraceSlice& step : on("steps")) names.push_back(step.name);
    return names;
  }
  TraceSlice step(int64_t number) const {
    for (const TraceSlice& step : on("steps")) {
      if (step.name == fmt::format("step {}", number)) return step;
    }
    ADD_FAILURE() << "no step " << number;
    return {};
  }
  std::vector<TraceSlice> nodes_of(const TraceSlice& step) const {
    return where([&](const TraceSlice& slice) {
      const bool is_node = slice.category == "forward" || slice.category == "backward" || slice.category == "update";
      return is_node && slice.is_within(step);
    });
  }
  int64_t bytes_on(const std::string& track, const TraceSlice& step) const {
    int64_t bytes = 0;
    for (const TraceSlice& transfer : on(track)) bytes += transfer.is_within(step) ? transfer.arguments.at("bytes").get<int64_t>() : 0;
    return bytes;
  }
};

int64_t nanoseconds_of(const TraceJson& microseconds) { return std::llround(microseconds.get<double>() * 1e3); }

ReadTimeline read_timeline(const std::string& path) {
  const TraceJson json = TraceJson::parse(read_file(path));
  EXPECT_EQ(json.at("otherData").at("producer"), "ort-train");
  ReadTimeline timeline;
  std::map<int, std::string> tracks;
  std::map<std::string, int64_t> counted_at;
  for (const TraceJson& event : json.at("traceEvents")) {
    EXPECT_EQ(event.at("pid"), 1);
    const std::string kind = event.at("ph");
    if (kind == "M") {
      if (event.at("name") == "thread_name") {
        EXPECT_TRUE(tracks.emplace(event.at("tid"), event.at("args").at("name")).second) << event;
      }
      continue;
    }
    const int64_t begin = nanoseconds_of(event.at("ts"));
    if (kind == "C") {
      const std::string name = event.at("name");
      EXPECT_GE(begin, counted_at[name]) << event;
      counted_at[name] = begin;
      timeline.counters[name].push_back(event.at("args").at("bytes"));
      continue;
    }
    EXPECT_EQ(kind, "X");
    EXPECT_GE(begin, 0) << event;
    EXPECT_GE(event.at("dur"), 0) << event;
    timeline.slices.push_back({.name = event.at("name"),
                               .category = event.at("cat"),
                               .track = tracks.at(event.at("tid")),
                               .begin = begin,
                               .end = nanoseconds_of(event.at("ts").get<double>() + event.at("dur").get<double>()),
                               .arguments = event.at("args")});
  }
  return timeline;
}

void expect_order(const ReadTimeline& timeline) {
  std::map<std::string, std::vector<TraceSlice>> tracks;
  for (const TraceSlice& slice : timeline.slices) tracks[slice.track].push_back(slice);
  for (auto& [track, slices] : tracks) {
    std::stable_sort(slices.begin(), slices.end(),
                     [](const auto& a, const auto& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
    for (size_t i = 1; i < slices.size(); ++i)
      EXPECT_LE(slices[i - 1].end, slices[i].begin) << track << ": " << slices[i - 1].name << " and " << slices[i].name;
  }
  const std::vector<TraceSlice> steps = timeline.on("steps"), entries = timeline.on("entries");
  const auto is_within_one = [](const TraceSlice& slice, const std::vector<TraceSlice>& others) {
    return std::count_if(others.begin(), others.end(), [&](const TraceSlice& other) { return slice.is_within(other); }) == 1;
  };
  for (const TraceSlice& slice : timeline.slices) {
    if (slice.track == "steps") continue;
    EXPECT_TRUE(is_within_one(slice, steps)) << slice.track << " " << slice.name;
    if (slice.track == "entries") continue;
    EXPECT_TRUE(is_within_one(slice, entries)) << slice.track << " " << slice.name;
  }
}

using OpOfNode = std::pair<std::string, std::string>;

struct Timelines : TrainerRuns {
  const std::string file = folder / "timeline.json", nvme = folder / "disk";

  Options job() const {
    Options o = chain_job(folder / "job", /*layers=*/4, /*width=*/256, /*samples=*/512);
    o.batch_size = 64;
    o.max_steps = 6;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
  // In as little memory as there may be.
  Options streamed(Options o) const {
    fs::create_directories(nvme);
    o.nvme_path = nvme;
    o.budget = least_budget(o);
    return o;
  }
  Options traced(Options o, const std::string& steps = "") const {
    o.timeline = file;
    o.timeline_steps = steps;
    return o;
  }
  // Op and name of each node that the entries of this name run a kernel for, by --op-times.
  std::multiset<OpOfNode> nodes_of_entry(Options o, const std::string& entry) {
    o.op_times = folder / "times.json";
    o.output_dir = folder / "times";
    Trainer(o).train();
    std::multiset<OpOfNode> nodes;
    const TraceJson times = TraceJson::parse(read_file(o.op_times));
    for (const TraceJson& of : times.at("entries")) {
      if (of.at("entry") != entry) continue;
      for (const TraceJson& node : of.at("nodes")) nodes.emplace(node.at("op"), node.at("node"));
    }
    fs::remove_all(o.output_dir);
    return nodes;
  }
};

TEST_F(Timelines, HaveEachNodeOnceAndChangeNothing) {
  for (const int threads : {1, 2}) {
    SCOPED_TRACE(threads);
    Options o = job();
    o.threads = threads;
    const std::multiset<OpOfNode> expected = nodes_of_entry(o, "train");
    ASSERT_GT(expected.size(), 12u);
    const Run plain = train(o), run = train(traced(o));
    EXPECT_EQ(run.losses, plain.losses);
    EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash);
    EXPECT_EQ(run.summary.measured_peak_bytes, plain.summary.measured_peak_bytes);
    const ReadTimeline timeline = read_timeline(file);
    EXPECT_THAT(timeline.steps(), ElementsAre("step 2", "step 3", "step 4"));
    expect_order(timeline);
    for (const int64_t step : {2, 3, 4}) {
      std::multiset<OpOfNode> nodes;
      std::set<int64_t> instructions;
      std::set<std::string> stages;
      for (const TraceSlice& node : timeline.nodes_of(timeline.step(step))) {
        nodes.emplace(node.name, node.arguments.at("node"));
        stages.insert(node.category);
        EXPECT_TRUE(instructions.insert(node.arguments.at("instruction").get<int64_t>()).second) << node.name;
      }
      EXPECT_EQ(nodes, expected) << step;
      EXPECT_THAT(stages, ElementsAre("backward", "forward", "update")) << step;
    }
    // One thread computes nothing beside what it is at.
    const std::vector<TraceSlice> background = timeline.on("background");
    EXPECT_EQ(background.empty(), threads == 1);
    for (const TraceSlice& slice : background) EXPECT_NE(slice.category, "forward") << slice.name;  // updates and sums of squares
    // The plan's bytes: the peak of the step, which is the job's.
    ASSERT_EQ(run.plan.peak_entry, "train");
    const std::vector<int64_t>& arena = timeline.counters.at("arena");
    EXPECT_EQ(*std::max_element(arena.begin(), arena.end()), run.plan.peak_live_bytes);
    EXPECT_EQ(timeline.counters.count("disk"), 0u);
    EXPECT_THAT(timeline.where([](const TraceSlice& slice) { return slice.category == "wait"; }), IsEmpty());
  }
}

TEST_F(Timelines, HaveEachTransferWithTheReportsBytes) {
  for (const bool with_threads : {false, true}) {  // by io_uring, where the kernel has it, and without
    SCOPED_TRACE(with_threads);
    std::optional<UringRefused> refused;
    if (with_threads) refused.emplace(ENOSYS);
    const Options o = streamed(job());
    const Run plain = train(o);
    std::map<int64_t, double> waited;
    Options with = traced(o, "3-6");
    with.output_dir = folder / fmt::format("traced {}", with_threads);
    std::vector<double> losses;
    const Summary summary = Trainer(with, {.on_step =
                                               [&](const StepReport& step) {
                                                 waited[step.step] = step.waiting_milliseconds;
                                                 losses.insert(losses.end(), {step.loss, step.grad_norm});
                                               }})
                                .train();
    EXPECT_EQ(losses, plain.losses);
    EXPECT_EQ(summary.weights_hash, plain.summary.weights_hash);
    const ReadTimeline timeline = read_timeline(file);
    EXPECT_THAT(timeline.steps(), ElementsAre("step 3", "step 4", "step 5", "step 6"));
    expect_order(timeline);
    ASSERT_GT(summary.read_per_step, 0);
    ASSERT_GT(summary.written_per_step, 0);
    EXPECT_EQ(timeline.bytes_on("disk reads", timeline.step(6)), summary.read_per_step);
    EXPECT_EQ(timeline.bytes_on("disk writes", timeline.step(6)), summary.written_per_step);
    for (const int64_t number : {3, 4, 5, 6}) {
      const TraceSlice step = timeline.step(number);
      EXPECT_GT(timeline.bytes_on("disk reads", step), 0) << number;
      EXPECT_GT(timeline.nodes_of(step).size(), 12u) << number;
      double milliseconds = 0;
      for (const TraceSlice& wait : timeline.where([&](const TraceSlice& s) { return s.category == "wait" && s.is_within(step); }))
        milliseconds += static_cast<double>(wait.end - wait.begin) * 1e-6;
      EXPECT_NEAR(milliseconds, waited.at(number), 1e-2) << number;
    }
    std::set<std::string> purposes;
    for (const char* const track : {"disk reads", "disk writes"}) {
      for (const TraceSlice& transfer : timeline.on(track)) {
        purposes.insert(transfer.category);
        EXPECT_NE(transfer.name, "a tensor");
        EXPECT_EQ(transfer.arguments.at("bytes").get<int64_t>() % 4096, 0) << transfer.name;
      }
    }
    EXPECT_THAT(purposes, AllOf(Contains("weights"), Contains("optimizer"), Not(Contains("other"))));
    for (const auto& [counter, limit] : {std::pair("arena", plain.plan.arena_bytes), {"disk", plain.plan.disk_bytes}}) {
      const std::vector<int64_t>& bytes = timeline.counters.at(counter);
      EXPECT_GT(bytes.front(), 0) << counter;
      EXPECT_LE(*std::max_element(bytes.begin(), bytes.end()), limit) << counter;
    }
  }
}

// An accumulating step is several runs of entries, one after the other.
TEST_F(Timelines, HaveAllMicroBatchesOfAStep) {
  Options o = job();
  o.gradient_accumulation_steps = 3;
  o.micro_batches = "horizontal";
  const Run plain = train(o), run = train(traced(o, "2"));
  EXPECT_EQ(run.losses, plain.losses);
  EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash);
  const ReadTimeline timeline = read_timeline(file);
  expect_order(timeline);
  EXPECT_THAT(timeline.steps(), ElementsAre("step 2"));
  std::map<std::string, int> entries;
  for (const TraceSlice& entry : timeline.on("entries")) ++entries[entry.name];
  int64_t micro_batches = 0;
  for (const auto& [name, runs] : entries) micro_batches += name.starts_with("train") ? runs : 0;
  EXPECT_EQ(micro_batches, 3) << ::testing::PrintToString(entries);
}

TEST_F(Timelines, AreOfTheStepsThatWereAskedFor) {
  Options o = job();
  o.max_steps = 1;
  train(traced(o));
  EXPECT_THAT(read_timeline(file).steps(), ElementsAre("step 1")) << "there is no second";
  o.max_steps = 6;
  const auto stop_after = [&](Options stopped, int64_t step) {
    Trainer* running = nullptr;
    Trainer trainer(stopped, {.on_step = [&](const StepReport& report) {
                      if (report.step == step) running->request_stop();
                    }});
    running = &trainer;
    EXPECT_TRUE(trainer.train().stopped);
  };
  Options both = traced(o, "2-5");
  both.output_dir = folder / "both";
  stop_after(both, 3);
  EXPECT_THAT(read_timeline(file).steps(), ElementsAre("step 2", "step 3")) << "what there is of them";
  both.resume = true;
  both.timeline_steps.clear();
  std::vector<std::string> notes;
  const auto go = [&] {
    notes.clear();
    Trainer(both, {.on_note = [&](const std::string& note) { notes.push_back(note); }}).train();
  };
  go();
  EXPECT_THAT(read_timeline(file).steps(), ElementsAre("step 5", "step 6")) << "step 4 is this trainer's first";
  EXPECT_THAT(notes, Contains("wrote the timeline of steps 5 to 6 to " + file));
  fs::remove(file);
  both.resume = false;
  both.overwrite = true;
  both.timeline_steps = "8-9";
  go();
  EXPECT_FALSE(fs::exists(file));
  EXPECT_THAT(notes, Contains("no step was made that `timeline` is of, so " + file + " isn't written"));
}

TEST_F(Timelines, ThatCantBeWrittenHideNoResult) {
  Options o = traced(job());
  const std::string hash = train(o).summary.weights_hash;
  EXPECT_EQ(train(o).summary.weights_hash, hash) << "an earlier timeline is replaced";
  o.output_dir = folder / "full";
  o.timeline = "/dev/full";
  EXPECT_THAT(error_of(ErrorCode::io, [&] { Trainer(o).train(); }),
              HasSubstr("'/dev/full' can't be written; all steps are done, and the result is in " + o.output_dir + "/model.onnx"));
  o.output_dir = folder / "foreign";
  o.timeline = write_file(folder / "trace.json", R"({"traceEvents":[]})");
  EXPECT_EQ(
      error_of(ErrorCode::usage, [&] { Trainer(o).train(); }),
      "`timeline` " + o.timeline + ": is there already and isn't known as such a file of ort-train: move it away; choose another file");
  EXPECT_EQ(read_file(o.timeline), R"({"traceEvents":[]})");
}

TEST_F(Timelines, AreRefusedWhereTheyCantBe) {
  const auto refusal = [&](const std::function<void(Options&)>& change) {
    Options o = traced(job());
    change(o);
    return error_of(ErrorCode::usage, [&] { Trainer trainer(o); });
  };
  EXPECT_EQ(refusal([](Options& o) { o.device = "cuda"; }),
            "`timeline` tells when each node was computed, and a GPU goes on computing after work was issued: use `device` cpu for it, or "
            "`op_times`");
  EXPECT_EQ(refusal([](Options& o) { o.timeline.clear(), o.timeline_steps = "2"; }),
            "`timeline_steps` 2 goes with `timeline`, the file that they are written to");
  for (const char* const steps : {"0", "x", "3-2", "-2", "2-", "2-3-4", "2..3", "99999999999999999999"})
    EXPECT_EQ(refusal([&](Options& o) { o.timeline_steps = steps; }),
              fmt::format("`timeline_steps` {}: is neither the number of a step nor FIRST-LAST, from 1 up", steps));
  EXPECT_EQ(refusal([](Options& o) { o.timeline_steps = "2-34"; }), "`timeline_steps` 2-34: are 33 steps, and a timeline has 32 at most");
  Options o{.timeline = file, .timeline_steps = "2-33"};
  EXPECT_EQ(timeline_steps(o), std::pair(int64_t{2}, int64_t{33}));
  o.timeline_steps = "7";
  EXPECT_EQ(timeline_steps(o), std::pair(int64_t{7}, int64_t{7}));
  o.timeline_steps.clear();
  EXPECT_EQ(timeline_steps(o), std::pair(int64_t{0}, int64_t{0}));
}

// What is put aside is written down when it is done, in order.
TEST(LoopsPutAside, TellWhenTheyRan) {
  Workers workers(2);
  std::atomic<int64_t> done{0};
  const auto put_two = [&] {
    for (const int32_t number : {4, 9}) workers.put_aside(number, 8, [&done](int64_t, int) { ++done; });
    workers.parallel_for(16, [&](int64_t, int) { ++done; });
    workers.finish_aside();
  };
  put_two();
  EXPECT_THAT(workers.aside_spans(), IsEmpty()) << "nobody has asked";
  workers.record_aside(true);
  const RunClock::time_point before = RunClock::now();
  put_two();
  const std::span<const AsideSpan> spans = workers.aside_spans();
  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].number, 4);
  EXPECT_EQ(spans[1].number, 9);
  EXPECT_LE(before, spans[0].span.begin);
  EXPECT_LE(spans[0].span.begin, spans[0].span.end);
  EXPECT_LE(spans[0].span.end, spans[1].span.begin);
  EXPECT_LE(spans[1].span.end, RunClock::now());
  workers.record_aside(false);
  put_two();
  EXPECT_THAT(workers.aside_spans(), IsEmpty());
  EXPECT_EQ(done, 3 * 32);
}

}  // namespace
}  // namespace ort_train
