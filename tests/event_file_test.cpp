// TensorBoard's event files: their bytes, that a resumed run has each step once, and what becomes of a run that can't write them.

#include "frontend/event_file.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <ctime>
#include <map>

#include "tests/chain_model.h"
#include "tests/failures.h"
#include "tests/io_faults.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

// Bit by bit, by the reflected polynomial 1EDC6F41.
uint32_t bitwise_crc32c(const std::string& bytes) {
  uint32_t sum = 0xffffffff;
  for (const char byte : bytes) {
    sum ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) sum = (sum >> 1) ^ ((sum & 1) != 0 ? 0x82f63b78 : 0);
  }
  return ~sum;
}
uint32_t masked_crc32c(const std::string& bytes) {
  const uint32_t sum = bitwise_crc32c(bytes);
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8;
}

template <typename T> T number_at_front(std::string& bytes) {
  T number{};
  if (bytes.size() < sizeof number) throw std::runtime_error("the bytes end in a number");
  std::memcpy(&number, bytes.data(), sizeof number);
  bytes.erase(0, sizeof number);
  return number;
}
std::string bytes_at_front(std::string& bytes, uint64_t count) {
  if (bytes.size() < count) throw std::runtime_error("the bytes end too early");
  std::string front = bytes.substr(0, count);
  bytes.erase(0, count);
  return front;
}

// The payloads of a file's records, each of whose checksums fits.
std::vector<std::string> records_of_events(const std::string& path) {
  std::string bytes = read_file(path);
  std::vector<std::string> records;
  while (!bytes.empty()) {
    const std::string length = bytes.substr(0, 8);
    const auto count = number_at_front<uint64_t>(bytes);
    EXPECT_EQ(number_at_front<uint32_t>(bytes), masked_crc32c(length)) << path;
    records.push_back(bytes_at_front(bytes, count));
    EXPECT_EQ(number_at_front<uint32_t>(bytes), masked_crc32c(records.back())) << path;
  }
  return records;
}

uint64_t varint_at_front(std::string& bytes) {
  uint64_t number = 0;
  for (int shift = 0;; shift += 7) {
    const auto byte = number_at_front<unsigned char>(bytes);
    number |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return number;
  }
}

struct ReadEvent {
  double wall_time = 0;
  int64_t step = 0;
  std::string version;
  bool starts_session = false;
  std::map<std::string, float> scalars;
};

ReadEvent read_event(std::string bytes) {
  ReadEvent event;
  while (!bytes.empty()) {
    switch (const uint64_t key = varint_at_front(bytes); key) {
      case 1 << 3 | 1:
        event.wall_time = number_at_front<double>(bytes);
        break;
      case 2 << 3 | 0:
        event.step = static_cast<int64_t>(varint_at_front(bytes));
        break;
      case 3 << 3 | 2:
        event.version = bytes_at_front(bytes, varint_at_front(bytes));
        break;
      case 5 << 3 | 2: {
        std::string summary = bytes_at_front(bytes, varint_at_front(bytes));
        while (!summary.empty()) {
          EXPECT_EQ(varint_at_front(summary), 1u << 3 | 2);
          std::string value = bytes_at_front(summary, varint_at_front(summary));
          EXPECT_EQ(varint_at_front(value), 1u << 3 | 2);
          const std::string tag = bytes_at_front(value, varint_at_front(value));
          EXPECT_EQ(varint_at_front(value), 2u << 3 | 5);
          EXPECT_TRUE(event.scalars.emplace(tag, number_at_front<float>(value)).second) << tag;
          EXPECT_THAT(value, IsEmpty());
        }
        break;
      }
      case 7 << 3 | 2:
        EXPECT_EQ(bytes_at_front(bytes, varint_at_front(bytes)), "\x08\x01");
        event.starts_session = true;
        break;
      default:
        throw std::runtime_error(fmt::format("an event has a field of key {}", key));
    }
  }
  return event;
}

std::vector<ReadEvent> events_of(const std::string& path) {
  std::vector<ReadEvent> events;
  for (const std::string& record : records_of_events(path)) events.push_back(read_event(record));
  return events;
}

// What TensorBoard shows of a folder's files: a session that starts drops what earlier ones have of its first step and later ones.
std::map<std::string, std::vector<std::pair<int64_t, float>>> shown_by_tensorboard(const std::string& folder) {
  std::map<std::string, std::vector<std::pair<int64_t, float>>> shown;
  for (const std::string& name : names_in(folder)) {
    for (const ReadEvent& event : events_of(folder + "/" + name)) {
      for (auto& [tag, points] : shown) {
        if (event.starts_session) std::erase_if(points, [&](const auto& point) { return point.first >= event.step; });
      }
      for (const auto& [tag, value] : event.scalars) shown[tag].emplace_back(event.step, value);
    }
  }
  return shown;
}

std::vector<int64_t> steps_of(const std::vector<std::pair<int64_t, float>>& points) {
  std::vector<int64_t> steps;
  for (const auto& point : points) steps.push_back(point.first);
  return steps;
}

TEST(EventRecords, HaveTheChecksumOfCastagnoli) {
  const auto sum = [](const std::string& bytes) { return crc32c(std::as_bytes(std::span(bytes))); };
  EXPECT_EQ(sum("123456789"), 0xe3069283u);
  EXPECT_EQ(sum(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  EXPECT_EQ(sum(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(sum(""), 0u);
  for (const char* const text : {"a", "brain.Event:2", "train/loss"}) EXPECT_EQ(sum(text), bitwise_crc32c(text)) << text;
}

TEST(EventRecords, AreThoseOfTensorFlowByteForByte) {
  const TestFolder folder;
  const std::string runs = folder / "logs/runs";
  EventFile file(runs, /*first_step=*/300);
  ASSERT_THAT(names_in(runs), ElementsAre(::testing::MatchesRegex("events[.]out[.]tfevents[.][0-9]+[.].+[.][0-9]+")));
  file.step(R"({"step":300,"epoch":0.5,"loss":2.5,"grad_norm":null,"ms":7.5})", 0.25, 1 << 20);
  file.step("no line of a log", std::nullopt, 1);
  EXPECT_EQ(file.failure(), "");
  const std::vector<std::string> records = records_of_events(runs + "/" + names_in(runs)[0]);
  ASSERT_EQ(records.size(), 3u);
  const auto begin_of = [](const std::string& record) { return record.substr(0, 9) + "\x10\xac\x02"; };  // its time, step 300
  EXPECT_EQ(records[0], begin_of(records[0]) + "\x1a\x0d" + "brain.Event:2");
  EXPECT_EQ(records[1], begin_of(records[1]) + "\x3a\x02\x08\x01");
  const auto value = [](const std::string& tag, float number) {
    const auto size = [](size_t count) { return std::string(1, static_cast<char>(count)); };
    return "\x0a" + size(tag.size() + 7) + "\x0a" + size(tag.size()) + tag + "\x15" + bytes_of(number);
  };
  const std::string values = value("train/loss", 2.5f) + value("train/grad_norm", std::nanf("")) + value("train/epoch", 0.5f) +
                             value("train/memory_bytes", 1048576.0f) + value("eval/loss", 0.25f);
  ASSERT_LT(values.size(), 128u);  // a varint of one byte
  EXPECT_EQ(records[2], begin_of(records[2]) + "\x2a" + static_cast<char>(values.size()) + values);
  EXPECT_EQ(records[2][0], '\x09');
  const double now = static_cast<double>(std::time(nullptr)), written = read_event(records[2]).wall_time;
  EXPECT_NEAR(written, now, 600);
}

TEST(EventRecords, AreInFilesWhoseNamesHaveTheOrderOfRuns) {
  const TestFolder folder;
  for (int64_t run = 0; run < 3; ++run) {
    const EventFile file(folder.path, 1 + run);
    const std::vector<std::string> names = names_in(folder.path);
    ASSERT_EQ(std::ssize(names), 1 + run);
    EXPECT_EQ(events_of(folder / names.back()).at(1).step, 1 + run) << "the last name is the newest run's";
  }
  write_file(folder / "events.out.tfevents.4000000000.other.1", "");  // of a clock that was ahead
  const EventFile last(folder.path, 9);
  EXPECT_THAT(names_in(folder.path).back(), ::testing::StartsWith("events.out.tfevents.4000000001."));
}

struct EventRuns : TrainerRuns {
  const std::string out = folder / "out", logs = folder / "logs";

  Options job() const {
    Options o = chain_job(folder / "job", /*layers=*/2, /*width=*/32, /*samples=*/96);
    o.batch_size = 8;
    o.max_steps = 6;
    o.eval_steps = 2;
    o.validation_split = 0.25;
    o.threads = 1;
    o.profile = profile;
    o.output_dir = out;
    o.logging_dir = logs;
    return o;
  }
  Summary go(const Options& o, Callbacks callbacks = {}) const { return Trainer(o, std::move(callbacks)).train(); }
  // Of a run that nobody disturbs, without events.
  Summary expected(Options o) const {
    o.output_dir = folder / "whole";
    o.report_to = "none";
    const Summary summary = go(o);
    EXPECT_FALSE(fs::exists(logs));
    EXPECT_FALSE(fs::exists(o.output_dir + "/runs"));
    fs::remove_all(o.output_dir);
    return summary;
  }
};

TEST_F(EventRuns, HaveTheNumbersOfTheReports) {
  Options o = job();
  const Summary plain = expected(o);
  o.logging_dir.clear();
  o.report_to = "tensorboard";
  std::map<std::string, std::vector<std::pair<int64_t, float>>> reported;
  const Summary summary = go(
      o, {.on_step =
              [&](const StepReport& step) {
                const auto add = [&](const char* tag, double value) { reported[tag].emplace_back(step.step, static_cast<float>(value)); };
                add("train/loss", step.loss);
                add("train/grad_norm", step.grad_norm);
                add("train/learning_rate", step.learning_rate);
                add("train/epoch", step.epoch);
                add("train/tokens_per_second", step.tokens_per_second);
              },
          .on_eval = [&](const EvalReport& eval) { reported["eval/loss"].emplace_back(eval.step, static_cast<float>(eval.loss)); }});
  EXPECT_EQ(summary.weights_hash, plain.weights_hash);
  EXPECT_EQ(summary.last_loss, plain.last_loss);
  auto shown = shown_by_tensorboard(out + "/runs");
  EXPECT_THAT(steps_of(shown["train/memory_bytes"]), ElementsAre(1, 2, 3, 4, 5, 6));
  for (const auto& [step, bytes] : shown["train/memory_bytes"]) EXPECT_GT(bytes, 1e6f) << step;
  shown.erase("train/memory_bytes");
  EXPECT_THAT(steps_of(shown["eval/loss"]), ElementsAre(2, 4, 6));
  EXPECT_EQ(shown, reported) << "no loss_scale either";
}

TEST_F(EventRuns, TellOfTheLossScale) {
  Options o = job();
  o.loss_scale = "1024";
  go(o);
  EXPECT_THAT(shown_by_tensorboard(logs)["train/loss_scale"],
              ElementsAre(Pair(1, 1024.f), Pair(2, 1024.f), Pair(3, 1024.f), Pair(4, 1024.f), Pair(5, 1024.f), Pair(6, 1024.f)));
}

TEST_F(EventRuns, HaveEachStepOnceWhenTheyAreResumed) {
  Options o = job();
  o.save_steps = 2;
  o.save_total_limit = 3;
  go(o);
  const auto whole = shown_by_tensorboard(logs);
  fs::remove_all(out);
  fs::remove_all(logs);
  const auto stop_after = [&](int64_t step, Options stopped) {
    Trainer* running = nullptr;
    Trainer trainer(stopped, {.on_step = [&](const StepReport& report) {
                      if (report.step == step) running->request_stop();
                    }});
    running = &trainer;
    EXPECT_TRUE(trainer.train().stopped);
  };
  stop_after(5, o);
  EXPECT_EQ(names_in(logs).size(), 1u);
  Options resumed = o;  // from two steps before: what the first session has beyond is another's now
  resumed.resume_from_checkpoint = out + "/checkpoint-4";
  resumed.overwrite = true;
  stop_after(5, resumed);
  resumed = o;
  resumed.resume = true;
  go(resumed);
  const std::vector<std::string> files = names_in(logs);
  ASSERT_EQ(files.size(), 3u);
  std::vector<int64_t> starts;
  for (const std::string& file : files) {
    const std::vector<ReadEvent> events = events_of(logs + "/" + file);
    EXPECT_EQ(events.at(0).version, "brain.Event:2");
    EXPECT_TRUE(events.at(1).starts_session);
    starts.push_back(events.at(1).step);
  }
  EXPECT_THAT(starts, ElementsAre(1, 4, 6)) << "checkpoint-4 is from before the evaluation after that step";
  auto shown = shown_by_tensorboard(logs);
  for (const char* const tag : {"train/loss", "train/grad_norm", "train/learning_rate", "train/epoch", "eval/loss"})
    EXPECT_EQ(shown[tag], whole.at(tag)) << tag;
}

// The checkpoint is written before the evaluation that is due after the same step: who resumes makes that, and the step's point comes anew.
TEST_F(EventRuns, HaveTheEvaluationThatWasStillDue) {
  Options o = job();
  o.save_steps = 2;
  Trainer* running = nullptr;
  {
    Trainer trainer(o, {.on_note = [&](const std::string& note) {
                      if (note.find("checkpoint-4") != std::string::npos) running->request_stop();
                    }});
    running = &trainer;
    EXPECT_TRUE(trainer.train().stopped);
  }
  EXPECT_THAT(steps_of(shown_by_tensorboard(logs)["eval/loss"]), ElementsAre(2));
  o.resume = true;
  go(o);
  EXPECT_EQ(events_of(logs + "/" + names_in(logs).back()).at(1).step, 4);
  auto shown = shown_by_tensorboard(logs);
  EXPECT_THAT(steps_of(shown["train/loss"]), ElementsAre(1, 2, 3, 4, 5, 6));
  EXPECT_THAT(steps_of(shown["eval/loss"]), ElementsAre(2, 4, 6));
}

// A run that starts afresh takes the place of what the folder has of an earlier one.
TEST_F(EventRuns, BeginAgainInTheFolderOfAnEarlierRun) {
  Options o = job();
  go(o);
  o.overwrite = true;
  o.max_steps = 3;
  go(o);
  EXPECT_EQ(names_in(logs).size(), 2u);
  EXPECT_THAT(steps_of(shown_by_tensorboard(logs)["train/loss"]), ElementsAre(1, 2, 3));
}

TEST_F(EventRuns, AreSavedWhereTheDiskIsFull) {
  Options o = job();
  o.eval_steps = 0;
  const std::string hash = expected(o).weights_hash;
  int64_t call = 0;
  {
    const IoFaults none(Fault::none, 1);
    go(o);
    int64_t writes = 0;  // of the version, the start, step 1, step 2
    for (size_t i = 0; i < IoFaults::trace().size() && call == 0; ++i) {
      if (IoFaults::trace()[i].find("tfevents") != std::string::npos && ++writes == 4) call = static_cast<int64_t>(i) + 1;
    }
  }
  ASSERT_GT(call, 0);
  fs::remove_all(out);
  fs::remove_all(logs);
  const Struck struck = with_fault(Fault::full, call, [&] { go(o); });
  ASSERT_TRUE(struck.happened && struck.problem);
  EXPECT_EQ(struck.problem->code(), ErrorCode::io);
  EXPECT_THAT(struck.problem->what(), AllOf(HasSubstr("TensorBoard's events can't be written: can't write"), HasSubstr("tfevents"),
                                            HasSubstr("No space left on device; after step 2 of 6, the run is saved in " + out +
                                                      "/checkpoint-2: go on with `resume`")));
  EXPECT_THAT(steps_of(shown_by_tensorboard(logs)["train/loss"]), ElementsAre(1));
  o.resume = true;
  EXPECT_EQ(go(o).weights_hash, hash);
  EXPECT_THAT(steps_of(shown_by_tensorboard(logs)["train/loss"]), ElementsAre(1, 3, 4, 5, 6)) << "the point that had no room is missing";
}

TEST_F(EventRuns, AreRefusedWhereNoEventsCanBe) {
  const auto refusal = [&](ErrorCode code, const std::function<void(Options&)>& change) {
    Options o = job();
    change(o);
    int64_t steps = 0;
    const std::string sentence = error_of(code, [&] { go(o, {.on_step = [&](const StepReport&) { ++steps; }}); });
    EXPECT_EQ(steps, 0);
    EXPECT_FALSE(fs::exists(out + "/model.onnx"));
    return sentence;
  };
  EXPECT_EQ(refusal(ErrorCode::usage, [](Options& o) { o.report_to = "wandb"; }),
            "`report_to` wandb: is not known: tensorboard (event files in `logging_dir`) or none");
  const std::string file = write_file(folder / "notes.txt", "notes");
  EXPECT_EQ(refusal(ErrorCode::usage, [&](Options& o) { o.logging_dir = file; }),
            "`logging_dir` " + file + ": '" + file + "' is no folder; choose another one");
  EXPECT_EQ(refusal(ErrorCode::usage, [&](Options& o) { o.logging_dir = file + "/runs"; }),
            "`logging_dir` " + file + "/runs: '" + file + "' is no folder; choose another one");
  EXPECT_EQ(refusal(ErrorCode::usage, [&](Options& o) { o.logging_dir = out + "/checkpoint-2/runs"; }),
            "`logging_dir` " + out + "/checkpoint-2/runs: is where checkpoints go; choose another folder");
  EXPECT_THAT(refusal(ErrorCode::io, [](Options& o) { o.logging_dir = "/proc/ort-train-events"; }),
              HasSubstr("`logging_dir` /proc/ort-train-events: "));
  EXPECT_EQ(read_file(file), "notes");
}

}  // namespace
}  // namespace ort_train
