// Streamed runs in which a call to the kernel fails or does half of its work: at every kind of call, early and late. They end in one
// sentence, or with the bits of the run in which all went well; what the user gave, what was exported and what was saved stays whole, and
// the disk holds what a checkpoint needs.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "offload/disk_folder.h"
#include "tests/chain_model.h"
#include "tests/io_faults.h"
#include "tests/sanitized.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

enum class Way { uring, threads, apart };  // apart: checkpoints on another file system than the disk tier

struct RunFaults : TrainerRuns, ::testing::WithParamInterface<Way> {
  const TestFolder quick = TestFolder(quick_folder());
  const std::string in = quick / "in", disk = quick / "disk", kept = quick / "kept";
  const std::string out = GetParam() == Way::apart ? folder / "out" : quick / "out";
  std::optional<UringRefused> refused;
  Options options;
  static constexpr int64_t kLayers = 6, kWidth = 128, kSamples = 384;
  static constexpr int64_t kSteps = 5, kSaved = 2;  // in all, and by the run before
  std::vector<double> losses;                       // of the run without a disk, and gradient norms
  std::string hash;
  using Files = std::map<std::string, std::string>;
  Files given, exported, wanted;  // the user's files; what the run before wrote of them; what this one writes

  void SetUp() override {
    if (GetParam() == Way::threads) refused.emplace(EPERM);
    if (GetParam() == Way::apart && quick_folder() == fs::temp_directory_path())
      GTEST_SKIP() << "temporary files are on the file system of /dev/shm here, or there is none, and the test is about two";
    options = chain_job(in, kLayers, kWidth, kSamples);
    options.save_steps = kSaved;
    options.max_steps = kSteps;
    options.profile = nominal_machine(quick);
    given = chain_files(in);
    const Run plain = train(options);
    losses = plain.losses;
    hash = plain.summary.weights_hash;
    wanted = chain_files(fs::path(plain.summary.model_path).parent_path());

    fs::create_directory(disk);
    options.nvme_path = disk;
    options.output_dir = out;
    const PlanReport least = Trainer(options).plan();
    options.budget = least.minimum_budget;
    const PlanReport plan = Trainer(options).plan();
    for (const char* kind : {"weights", "optimizer", "activations"}) {
      const auto row = std::find_if(plan.moves.begin(), plan.moves.end(), [&](const PlanMoves& moves) { return moves.kind == kind; });
      ASSERT_NE(row, plan.moves.end());
      ASSERT_GT(row->moved, 0) << kind << " stay in memory";
    }
    options.max_steps = kSaved;
    const Result before = run(false);
    ASSERT_FALSE(before.problem) << before.problem->what();
    if (before.on_threads && GetParam() == Way::uring) GTEST_SKIP() << "the kernel refuses io_uring here";
    ASSERT_TRUE(before.on_threads || GetParam() != Way::threads);
    exported = chain_files(out);
    ASSERT_NE(exported, wanted);
    options.max_steps = kSteps;
    fs::create_directory(kept);
    fs::copy(out, kept + "/out", fs::copy_options::recursive);
    fs::copy(disk, kept + "/disk", fs::copy_options::recursive);
  }

  // As the run before left it, or without its checkpoint.
  void restore(bool checkpoint) {
    fs::remove_all(out);
    fs::remove_all(disk);
    fs::copy(kept + "/out", out, fs::copy_options::recursive);
    fs::create_directory(disk);
    const std::string saved = out + fmt::format("/checkpoint-{}", kSaved);
    if (!checkpoint) {
      fs::remove_all(saved);
      return;
    }
    fs::copy(kept + "/disk", disk);
    // It is a name of the file on the disk, and not a copy.
    if (fs::remove(saved + "/state.bin")) fs::create_hard_link(disk + "/" + names_in(disk).at(0), saved + "/state.bin");
  }

  struct Result {
    std::optional<Error> problem;
    std::vector<std::string> trace, notes;
    std::vector<std::string> struck;  // calls; where the fault lasts, that came later too
    std::vector<double> losses;       // and gradient norms
    std::string hash;
    bool on_threads = false;
  };
  Result run(bool resume, Fault fault = Fault::none, int64_t n = 0, bool lasts = false) const {
    Result result;
    Options o = options;
    o.resume = resume;
    o.overwrite = !resume;  // the model of the run before
    const IoFaults faults(fault, n, lasts);
    try {
      Trainer trainer(o, {.on_step =
                              [&](const StepReport& step) {
                                result.losses.insert(result.losses.end(), {step.loss, step.grad_norm});
                              },
                          .on_note = [&](const std::string& note) { result.notes.push_back(note); }});
      result.hash = trainer.train().weights_hash;
    } catch (const Error& problem) {
      result.problem = problem;
    }
    result.trace = IoFaults::trace();
    if (faults.happened()) result.struck.assign(result.trace.begin() + n - 1, lasts ? result.trace.end() : result.trace.begin() + n);
    result.on_threads = std::any_of(result.notes.begin(), result.notes.end(),
                                    [](const std::string& note) { return note.find("uses threads in its place") != std::string::npos; });
    return result;
  }

  // transfers: reads and writes of the state file and the spill file, early, in the middle and late. others: the first call of each kind
  // on each file, and the last fsync and rename. first_checkpoint: the first of each kind, and all that make the run's first checkpoint.
  enum class Calls { transfers, others, first_checkpoint };
  std::vector<int64_t> chosen(const std::vector<std::string>& trace, Calls which) const {
    std::map<std::string, std::vector<int64_t>> kinds;
    std::set<int64_t> numbers;
    bool saving = false;
    for (size_t i = 0; i < trace.size(); ++i) {
      std::string kind = trace[i];
      if (kind.ends_with(options.profile)) continue;  // without it the machine is measured again: slow, and no failure
      for (const std::string_view prefix : {kSpillPrefix, kStatePrefix, std::string_view(".ort-train-tmp-")}) {
        if (const size_t at = kind.find(prefix); at != std::string::npos) kind.resize(at + prefix.size());
      }
      std::erase_if(kind, [](char c) { return c >= '0' && c <= '9'; });  // of any checkpoint
      kinds[kind].push_back(static_cast<int64_t>(i) + 1);
      saving = saving || kind.starts_with("fsync ");
      if (which == Calls::first_checkpoint && saving) numbers.insert(static_cast<int64_t>(i) + 1);
      if (which == Calls::first_checkpoint && trace[i] == "fsync " + out) break;
    }
    for (const auto& [kind, calls] : kinds) {
      const bool own = kind.find("/ort-train-s") != std::string::npos || kind.ends_with("/state.bin");
      const bool transfer = own && (kind.starts_with("read ") || kind.starts_with("write "));
      if (which != Calls::transfers || transfer) numbers.insert(calls.front());
      if (which == Calls::others && (kind.starts_with("fsync ") || kind.starts_with("rename ") || kind.starts_with("unlink ")))
        numbers.insert(calls.back());
      if (which != Calls::transfers || !transfer) continue;
      for (const size_t part : {1, 2}) numbers.insert(calls[calls.size() * part / 3]);
      numbers.insert(calls.back());
    }
    std::vector<int64_t> list(numbers.begin(), numbers.end());
    if (kSanitized) std::erase_if(list, [i = 0](int64_t) mutable { return i++ % 3 != 0; });
    return list;
  }
  static Calls usual_calls() { return GetParam() == Way::apart ? Calls::others : Calls::transfers; }

  // What holds whatever has happened. Where names could not be removed (not `tidy`), the next run removes them.
  void expect_whole(bool tidy = true) const {
    EXPECT_TRUE(chain_files(in) == given);
    std::set<std::string> checkpoints, states, others;
    for (const std::string& name : names_in(out)) (name.starts_with("checkpoint-") ? checkpoints : others).insert(name);
    if (tidy) {
      EXPECT_THAT(others, ::testing::ElementsAre(".ort-train-lock", ".ort-train-model.json", "model.onnx", "weights.data"));
    }
    const bool over = checkpoints.contains(fmt::format("checkpoint-{}", kSteps));
    for (const auto& [name, bytes] : chain_files(out))
      EXPECT_TRUE(bytes == exported.at(name) || (over && bytes == wanted.at(name))) << name;
    for (const std::string& name : checkpoints) {
      const std::string text = read_file(out + "/" + name + "/state.json");
      if (text.empty()) {
        ADD_FAILURE() << name << " has no manifest, but " << ::testing::PrintToString(names_in(out + "/" + name));
        continue;
      }
      const auto manifest = nlohmann::json::parse(text);
      states.insert(fs::path(manifest.at("body").at("slots").at("path").get<std::string>()).filename());
    }
    if (tidy) {
      EXPECT_THAT(names_in(disk), ::testing::ElementsAreArray(states));
      EXPECT_LE(states.size(), 1u);
    }
  }

  // A run that went on after the step `from`, to the end.
  void expect_over(const Result& result, int64_t from, bool tidy = true) const {
    ASSERT_FALSE(result.problem) << result.problem->what();
    expect_steps(result.losses, true, from);
    EXPECT_EQ(result.hash, hash);
    EXPECT_TRUE(chain_files(out) == wanted);
    EXPECT_EQ(newest(), kSteps);
    expect_whole(tidy);
  }
  // The step of the newest checkpoint; 0: there is none.
  int64_t newest() const {
    int64_t step = 0;
    for (const std::string& name : names_in(out)) {
      if (name.starts_with("checkpoint-")) step = std::max<int64_t>(step, std::stoll(name.substr(11)));
    }
    return step;
  }
  // Whether a sentence says what a call was about: the file, or for its space the folder.
  static bool names(const std::string& sentence, const std::string& call) {
    const size_t at = call.find(' ') + 1;
    fs::path path = call.substr(at, call.find(' ', at) - at);
    const std::string file = path.filename();
    const bool unnamed = file.starts_with(".ort-train-tmp-") || (!call.starts_with("write ") && file.starts_with("ort-train-s"));
    if (unnamed) path = path.parent_path();
    return sentence.find(path.string()) != std::string::npos;
  }

  // The steps that were done are those of the run without a disk.
  void expect_steps(const std::vector<double>& done, bool to_the_end, int64_t from) const {
    const auto begin = losses.begin() + 2 * from;
    if (to_the_end)
      EXPECT_EQ(done, std::vector<double>(begin, losses.end()));
    else
      EXPECT_TRUE(done.size() <= losses.size() - 2 * from && std::equal(done.begin(), done.end(), begin));
  }

  void expect_nothing_lost(bool saved, Fault counted, Calls which);
};

// A call fails, once or from then on.
void RunFaults::expect_nothing_lost(bool saved, Fault counted, Calls which) {
  restore(saved);
  const int64_t before = saved ? kSaved : 0;
  const bool names_count = counted == Fault::name_error;
  const Result good = run(saved, counted);
  expect_over(good, before);
  const std::vector<int64_t> calls = chosen(good.trace, which);
  size_t failed = 0;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Fault fault = counted != Fault::none ? counted : i % 2 == 0 ? Fault::error : Fault::full;
    const bool lasts = i % 4 > 1;
    restore(saved);
    const Result result = run(saved, fault, calls[i], lasts);
    const std::string call = result.struck.empty() ? "none" : result.struck[0];
    SCOPED_TRACE(fmt::format("call {} of {}, fault {}{}: {}", calls[i], good.trace.size(), static_cast<int>(fault),
                             lasts ? " from then on" : "", call));
    ASSERT_NE(call, "none");
    if (result.problem) {
      const std::string sentence = result.problem->what();
      ++failed;
      EXPECT_EQ(result.problem->code(), ErrorCode::io) << sentence;
      EXPECT_THAT(sentence,
                  ::testing::ContainsRegex(fault == Fault::full ? "No space left on device|bytes are free" : "Input/output error"));
      EXPECT_TRUE(std::any_of(result.struck.begin(), result.struck.end(), [&](const std::string& one) { return names(sentence, one); }))
          << sentence;
      EXPECT_EQ(std::count(sentence.begin(), sentence.end(), '\n'), 0) << sentence;
      expect_steps(result.losses, false, before);
    } else {
      // Giving space back, looking at what other runs have left, and removing an old checkpoint, which the next one does again: a run
      // does without.
      const bool removes = call.starts_with("rename ") && call.find("/.tmp-old-checkpoint-") != std::string::npos;
      const bool spare = call.starts_with("read ") || call.starts_with("reserve ") || call.starts_with("unlink ") ||
                         call.starts_with("rmdir ") || call.starts_with("link ");  // a file without a second name stays under its first
      EXPECT_TRUE(removes || spare) << "the failure is not noticed";
      expect_over(result, before, /*tidy=*/!names_count);
    }
    expect_whole(/*tidy=*/!names_count);
    const int64_t step = newest();
    ASSERT_GE(step, before);
    expect_over(run(/*resume=*/step > 0), step);
  }
  EXPECT_GE(failed * 3, calls.size() * (names_count ? 1 : 2));
}

TEST_P(RunFaults, AFailedWriteIsOneSentenceAndLosesNothing) { expect_nothing_lost(true, Fault::none, usual_calls()); }
TEST_P(RunFaults, AFailedReadIsOneSentenceAndLosesNothing) { expect_nothing_lost(true, Fault::read_error, usual_calls()); }
TEST_P(RunFaults, AFailedNameIsOneSentenceAndLosesNothing) { expect_nothing_lost(true, Fault::name_error, Calls::others); }
TEST_P(RunFaults, AFailureBeforeTheFirstCheckpointLeavesNothing) { expect_nothing_lost(false, Fault::none, Calls::first_checkpoint); }
TEST_P(RunFaults, AFailedNameBeforeTheFirstCheckpointLeavesNothing) { expect_nothing_lost(false, Fault::name_error, Calls::others); }

// A transfer moves half of its bytes, or a call is interrupted.
TEST_P(RunFaults, WhatIsNotWholeIsCompleted) {
  for (const Fault fault : {Fault::short_write, Fault::short_read, Fault::interrupt}) {
    restore(true);
    const Result good = run(true, fault);
    expect_over(good, kSaved);
    for (const int64_t n : chosen(good.trace, usual_calls())) {
      const std::string& call = good.trace[static_cast<size_t>(n - 1)];
      const bool has_half = call.starts_with("read ") || call.starts_with("write ");
      if (!has_half && !(call.starts_with("reserve ") && fault == Fault::interrupt)) continue;
      restore(true);
      const Result result = run(true, fault, n);
      SCOPED_TRACE(fmt::format("call {}, fault {}: {}", n, static_cast<int>(fault), call));
      ASSERT_FALSE(result.struck.empty());
      expect_over(result, kSaved);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, RunFaults, ::testing::Values(Way::uring, Way::threads, Way::apart), [](const auto& info) {
  return info.param == Way::uring ? "Uring" : info.param == Way::threads ? "Threads" : "TwoFileSystems";
});

}  // namespace
}  // namespace ort_train
