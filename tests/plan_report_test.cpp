// The plan as table, JSON and picture: that the figures add up, and that the files are sound.

#include "passes/plan_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "passes/plan.h"
#include "tests/plan_support.h"

namespace ort_train {
namespace {

struct PlannedGpt {
  explicit PlannedGpt(const fixtures::GptShape& shape) : train(fixtures::gpt_training(shape)) {
    train.graph.node(train.graph.order()[0]).name = "/wte \"<&>\" ü";  // names are the user's
    program = plan({{.name = "train", .graph = &train.graph, .keep = {}}}, {.threads = 2});
  }
  std::vector<const Graph*> graphs() const { return {&train.graph}; }
  EntryGraph train;
  Program program;
};

const fixtures::GptShape kSmall{.layers = 2, .heads = 2, .width = 64, .vocabulary = 500, .batch = 4, .length = 32};

TEST(PlanReport, PeakIsTheSumOfItsPurposes) {
  const PlannedGpt job(kSmall);
  const MemoryPeak peak = memory_peak(job.program, job.graphs());
  EXPECT_EQ(std::accumulate(peak.bytes.begin(), peak.bytes.end(), int64_t{0}), peak.live);
  EXPECT_EQ(peak.live, job.program.entries[0].peak().bytes);
  EXPECT_EQ(peak.live + peak.gaps, job.program.memory().bytes);
  int64_t parameters = 0;
  for (ValueId id : job.train.graph.parameters()) parameters += aligned(job.train.graph.value(id).bytes());
  EXPECT_EQ(peak.bytes[static_cast<size_t>(Purpose::weights)], parameters);
  EXPECT_EQ(peak.bytes[static_cast<size_t>(Purpose::optimizer)], 2 * parameters);

  const auto live = live_bytes(job.program, job.program.entries[0]);
  ASSERT_EQ(live.size(), job.program.entries[0].code.size());
  int64_t highest = 0;
  for (const PurposeBytes& bytes : live) highest = std::max(highest, std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  EXPECT_EQ(highest, peak.live);
}

TEST(PlanReport, TableHasAColumnForWhatIsThere) {
  const PlannedGpt job(kSmall);
  const std::string table = memory_table(job.program, job.graphs(), {.title = "", .reserve = 70'000'000, .budget = 90'000'000});
  for (const char* wanted :
       {"program", "weights", "gradients", "optimizer", "activations", "workspace", "total", "70.0", "MB of 90.0, at ", " in 'train'\n"})
    EXPECT_NE(table.find(wanted), std::string::npos) << wanted << "\n" << table;
  EXPECT_EQ(memory_table(job.program, job.graphs(), {}).find("program"), std::string::npos);
}

TEST(PlanReport, JsonHoldsEveryStorage) {
  const PlannedGpt job(kSmall);
  const nlohmann::ordered_json json = memory_json(job.program, job.graphs());
  EXPECT_EQ(json["arena_bytes"], job.program.memory().bytes);
  EXPECT_EQ(json["persistent"].size(), job.program.persistent.size());
  const auto& entry = json["entries"][0];
  ASSERT_EQ(entry["storages"].size(), job.program.entries[0].storages.size());
  int64_t live = job.program.memory().persistent_bytes;
  for (const auto& storage : entry["storages"]) {
    if (storage["first"] <= entry["peak_instruction"] && entry["peak_instruction"] <= storage["last"]) live += aligned(storage["bytes"]);
  }
  EXPECT_EQ(live, entry["peak_live_bytes"]);
  EXPECT_EQ(nlohmann::ordered_json::parse(json.dump()), json);
}

// Every tag that opens closes, nothing in a text or attribute is markup.
void expect_sound(const std::string& svg) {
  ASSERT_EQ(svg.rfind("<svg ", 0), 0u);
  std::vector<std::string> open;
  for (size_t at = 0; at < svg.size();) {
    if (svg[at] != '<') {
      if (svg[at] == '&') {
        ASSERT_LT(svg.find(';', at), at + 7);
      }
      ++at;
      continue;
    }
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    const std::string name = tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      ASSERT_EQ(open.back(), tag.substr(1));
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end + 1;
  }
  EXPECT_TRUE(open.empty());
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf\""), std::string::npos);
}

TEST(PlanReport, PictureIsSound) {
  const PlannedGpt job(kSmall);
  for (int64_t budget : {int64_t{0}, job.program.memory().bytes + 80'000'000, int64_t{12'000'000'000}}) {
    for (int64_t reserve : {0, 70'000'000}) {
      const std::string svg = memory_svg(job.program, job.graphs(), {.title = "a<b>&\"c\" ü", .reserve = reserve, .budget = budget});
      expect_sound(svg);
      for (const char* wanted :
           {"forward", "backward", "update", "activations", "gradients", "optimizer", "a&lt;b&gt;&amp;&quot;c&quot; ü"})
        EXPECT_NE(svg.find(wanted), std::string::npos) << wanted;
      EXPECT_EQ(svg.find("budget") != std::string::npos, budget > 0);
      EXPECT_EQ(svg.find("not to scale") != std::string::npos, true);
    }
  }
}

// The timeline is made from the program alone: it says what the planner's simulation said.
TEST(PlanReport, TimelineIsTheForecast) {
  PlannedGpt job(kSmall);
  const Planner planner({{.name = "train", .graph = &job.train.graph, .keep = {}}}, {.threads = 2});
  const int64_t most = planner.all_in_memory().memory().bytes, least = planner.streamed(0, {}, {}).program.memory().bytes;
  const ComputeRates compute{.flops = 1e11, .element_flops = 5e10, .bytes_per_second = 4e10, .far_bytes_per_second = 2e10};
  const StreamRates disk{.read = 3e8, .write = 2e8};
  const PlannedProgram made = planner.streamed((most + least) / 2, compute, disk);
  const Timeline timeline = make_timeline(made.program, made.program.entries[0], job.train.graph, compute, disk);
  const StreamForecast& forecast = made.forecasts[0];
  EXPECT_NEAR(timeline.seconds(), forecast.seconds, 1e-9);
  EXPECT_GE(timeline.seconds(), made.bound * (1 - 1e-9));
  double waited = 0;
  for (const auto& [begin, end] : timeline.waits) waited += end - begin;
  EXPECT_NEAR(waited, forecast.stalled, 1e-9);
  EXPECT_GT(waited, 0);
  int64_t read = 0, written = 0, read_by_purpose = 0, written_by_purpose = 0;
  for (const TimelineTransfer& transfer : timeline.transfers) (transfer.write ? written : read) += transfer.bytes;
  EXPECT_EQ(read, forecast.bytes_read);
  EXPECT_EQ(written, forecast.bytes_written);
  for (const DiskTraffic& of : disk_traffic(made.program, made.program.entries[0])) {
    read_by_purpose += of.read;
    written_by_purpose += of.written;
  }
  EXPECT_EQ(read_by_purpose, read);
  EXPECT_EQ(written_by_purpose, written);
  const DiskPeak peak = disk_peak(made.program, made.program.entries[0], job.train.graph);
  EXPECT_GT(peak.bytes, 0);
  EXPECT_LE(peak.bytes, made.program.file().bytes);
  const std::map<int32_t, int64_t> levels = disk_levels(made.program, made.program.entries[0]);
  int64_t always = 0, fullest = 0;
  for (const Persistent& value : made.program.persistent) always += file_bytes(value);
  for (const auto& [at, bytes] : levels) fullest = std::max(fullest, bytes);
  EXPECT_EQ(levels.begin()->first, 0);
  EXPECT_EQ(levels.begin()->second, always);
  EXPECT_EQ(levels.rbegin()->second, always) << "activations don't outlive the run";
  EXPECT_EQ(fullest, peak.bytes);

  const std::string svg = memory_svg(made.program, job.graphs(), {.title = "streamed", .reserve = 0, .budget = 0, .timeline = &timeline});
  expect_sound(svg);
  for (const char* wanted : {"it computes", "it reads", "it writes", "the disk", "waits ", "milliseconds"})
    EXPECT_NE(svg.find(wanted), std::string::npos) << wanted;
  EXPECT_EQ(svg.find(">instruction<"), std::string::npos);
}

TEST(PlanReport, PictureOfManyStoragesStaysSmall) {
  const PlannedGpt job({.layers = 50, .heads = 25, .width = 1600, .batch = 1, .length = 1024});
  EXPECT_GT(job.program.entries[0].storages.size(), 4000u);
  const std::string svg = memory_svg(job.program, job.graphs(), {.title = "gpt2-xl.onnx"});
  expect_sound(svg);
  EXPECT_LT(svg.size(), 1'000'000u);
}

TEST(PlanReport, EmptyEntriesAreDrawn) {
  Graph graph;
  graph.inputs = graph.outputs = {graph.add_value({.name = "x", .shape = {4}, .kind = ValueKind::input})};
  const Program program = plan({{.name = "run", .graph = &graph, .keep = {}}}, {});
  verify(program, {&graph});
  expect_sound(memory_svg(program, {&graph}, {}));
  EXPECT_EQ(memory_peak(program, {&graph}).live, 64);
  EXPECT_NE(program.to_text({&graph}).find("run@0"), std::string::npos);
}

}  // namespace
}  // namespace ort_train
