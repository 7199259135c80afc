// Runs during which the power fails: from what a drive had kept for sure, or may have kept, the next run goes on from the last checkpoint
// that was reported as saved (or a later one), and ends with the bits of a run that nobody interrupted.
//
// ORT_TRAIN_SOAK=1 tries every moment, and more chances of what was not synced; otherwise a choice of them.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <set>

#include "tests/chain_model.h"
#include "tests/disk_record.h"
#include "tests/io_faults.h"
#include "tests/sanitized.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using Survives = DiskRecord::Survives;

enum class Killed { in_memory, streamed, streamed_to_another_file_system };

struct PowerLoss : TrainerRuns, ::testing::WithParamInterface<Killed> {
  static constexpr int64_t kLayers = 6, kWidth = 128, kSamples = 384, kSteps = 3;
  const TestFolder quick = TestFolder(quick_folder());
  const UringRefused threads = UringRefused(EPERM);  // what the kernel does by itself can't be recorded
  const LinksRefused no_links = LinksRefused(GetParam() == Killed::streamed_to_another_file_system);
  const std::string in = quick / "in", root = quick / "root", out = root + "/new/out", disk = root + "/disk";
  Options options;
  std::vector<double> losses;  // of the run that nobody interrupts, and gradient norms
  std::string hash;
  std::map<std::string, std::string> wanted;

  void SetUp() override {
    options = chain_job(in, kLayers, kWidth, kSamples);
    options.save_steps = 1;
    options.max_steps = kSteps;
    options.profile = nominal_machine(quick);
    const Run plain = train(options);
    losses = plain.losses;
    hash = plain.summary.weights_hash;
    wanted = chain_files(fs::path(plain.summary.model_path).parent_path());
    fs::create_directory(root);
    fs::create_directory(disk);
    options.output_dir = out;
    if (GetParam() == Killed::in_memory) return;
    options.nvme_path = disk;
    options.budget = Trainer(options).plan().minimum_budget;
  }

  // What a run has said, and when: the number of calls until then.
  struct Promise {
    size_t calls = 0;
    int64_t saved = 0;  // the step of the last checkpoint
    bool exported = false;
  };

  struct Result {
    int64_t from = 0;  // the step of the checkpoint that it went on from
    std::vector<double> losses;
    std::string hash;
  };
  Result run(bool resume, const std::function<void(const std::string&)>& on_note = nullptr) const {
    Options o = options;
    o.resume = resume;
    Result result;
    Trainer trainer(o, {.on_step =
                            [&](const StepReport& step) {
                              result.losses.insert(result.losses.end(), {step.loss, step.grad_norm});
                            },
                        .on_note =
                            [&](const std::string& note) {
                              const size_t at = note.find(" after step ");
                              if (note.starts_with("resumed from ") && at != std::string::npos)
                                result.from = std::stoll(note.substr(at + 12));
                              if (on_note) on_note(note);
                            }});
    result.hash = trainer.train().weights_hash;
    return result;
  }

  // Goes on from what is there, to the end.
  void expect_to_go_on(const Promise& promise) const {
    Result result;
    try {
      result = run(true);
    } catch (const Error& problem) {
      ASSERT_EQ(problem.code(), ErrorCode::usage) << problem.what();  // there is no checkpoint
      ASSERT_EQ(promise.saved, 0) << problem.what();
      result = run(false);
    }
    EXPECT_GE(result.from, promise.saved);
    EXPECT_EQ(result.losses, std::vector<double>(losses.begin() + 2 * result.from, losses.end()));
    EXPECT_EQ(result.hash, hash);
    EXPECT_TRUE(chain_files(out) == wanted);
  }
};

TEST_P(PowerLoss, LosesNothingThatWasSaved) {
  const bool all = std::getenv("ORT_TRAIN_SOAK") != nullptr;
  DiskRecord record(root);
  std::vector<Promise> promises(1);
  run(false, [&](const std::string& note) {
    const size_t at = note.rfind("checkpoint-");
    if (note.starts_with("saved ") && at != std::string::npos)
      promises.push_back({.calls = record.calls(), .saved = std::stoll(note.substr(at + 11))});
  });
  promises.push_back({.calls = record.calls(), .saved = kSteps, .exported = true});
  record.stop();
  ASSERT_EQ(promises.size(), 2u + kSteps);
  ASSERT_EQ(promises[kSteps].saved, kSteps);
  // The record is complete: it says what is really there.
  ASSERT_EQ(DiskRecord::hash(record.after(record.calls(), Survives::everything)), DiskRecord::hash(record.now()));

  std::set<std::pair<uint64_t, int64_t>> tried;
  size_t moments = 0;
  for (size_t calls = 0; calls <= record.calls(); ++calls) {
    // Where transfers follow each other, few moments differ in what may go wrong.
    const bool few = calls > 0 && calls < record.calls() && record.is_transfer(calls - 1) && record.is_transfer(calls);
    if ((few || (kSanitized && calls % 3 != 0)) && !all) continue;
    const Promise promise = *std::find_if(promises.rbegin(), promises.rend(), [&](const Promise& made) { return made.calls <= calls; });
    std::vector<std::pair<Survives, uint64_t>> chances{{Survives::synced, 0}};
    if (all || calls % 4 == 0) chances.insert(chances.end(), {{Survives::names, 0}, {Survives::contents, 0}});
    if (all || calls % 8 == 0) chances.insert(chances.end(), {{Survives::everything, 0}, {Survives::some, calls}});
    for (uint64_t seed = 1; all && seed < 4; ++seed) chances.push_back({Survives::some, calls + seed * 1'000'003});
    for (const auto& [survives, seed] : chances) {
      const DiskRecord::Tree tree = record.after(calls, survives, seed);
      if (!tried.insert({DiskRecord::hash(tree), promise.saved + promise.exported}).second) continue;
      SCOPED_TRACE(fmt::format("after call {} of {}, {}; kind {}, seed {}", calls, record.calls(),
                               calls > 0 ? record.what(calls - 1) : "the beginning", static_cast<int>(survives), seed));
      record.restore(tree);
      EXPECT_TRUE(!promise.exported || chain_files(out) == wanted);
      fs::create_directories(disk);  // the user's
      ASSERT_NO_FATAL_FAILURE(expect_to_go_on(promise));
      if (HasFailure()) return;
      ++moments;
    }
  }
  RecordProperty("moments", static_cast<int>(moments));
  EXPECT_GT(moments, kSanitized ? 7u : 20u);
}

std::string name_of(const ::testing::TestParamInfo<Killed>& info) {
  constexpr std::array names{"InMemory", "Streamed", "StreamedToAnotherFileSystem"};
  return names[static_cast<size_t>(info.param)];
}
INSTANTIATE_TEST_SUITE_P(Runs, PowerLoss, ::testing::Values(Killed::in_memory, Killed::streamed, Killed::streamed_to_another_file_system),
                         name_of);

}  // namespace
}  // namespace ort_train
