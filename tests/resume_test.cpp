// Runs that are resumed with other batches than they were saved with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "frontend/file.h"
#include "tests/arrays.h"
#include "tests/chain_model.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

struct Resume : TrainerRuns {
  static constexpr int64_t kIn = 8, kOut = 4;

  Options options(int64_t samples) const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{ y = MatMul (x, w) }})", kIn, kOut));
    *model.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kOut}, numbers(kIn * kOut, 7919));
    Options o{.model = write_model(folder, model)};
    o.data = write_data(samples, 104'729);
    o.loss = "mse";
    o.threads = 1;
    o.profile = profile;
    o.output_dir = folder / "out";
    return o;
  }

  std::string write_data(int64_t samples, int64_t seed) const {
    Arrays arrays;
    for (const auto& [name, width] : {std::pair("x", kIn), {"labels", kOut}})
      arrays.add(name, {samples, width}, numbers(samples * width, seed + width));
    return arrays.write(folder / "data.safetensors");
  }

  // Stops after a step and resumes: how many samples each step has from there on, and what was said.
  struct Resumed {
    std::vector<int64_t> samples{};
    std::string notes{};
  };
  static Resumed resume(
      const Options& begun, Options resumed, int64_t stop_after, const std::function<void()>& between = [] {}) {
    Trainer* running = nullptr;
    Trainer first(begun, {.on_step = [&](const StepReport& step) {
                    if (step.step == stop_after) running->request_stop();
                  }});
    running = &first;
    EXPECT_TRUE(first.train().stopped);
    between();
    resumed.resume = true;
    Resumed result;
    Trainer(resumed,
            {.on_step =
                 [&](const StepReport& step) { result.samples.push_back(std::lround(step.tokens_per_second * step.milliseconds / 1000)); },
             .on_note = [&](const std::string& text) { result.notes += text + "\n"; }})
        .train();
    return result;
  }
};

TEST_F(Resume, WithBatchesOfAnotherSizeBeginsAtOneOfThem) {
  Options begun = options(10);
  begun.max_steps = 6;
  Options other = begun;
  begun.batch_size = 4;
  other.batch_size = 3;
  const Resumed resumed = resume(begun, other, 1);
  EXPECT_THAT(resumed.samples, ElementsAre(3, 3, 1, 3, 3)) << "the rest of the epoch, from sample 3 on, and the next one";
  EXPECT_THAT(resumed.notes, HasSubstr("batch_size 3 instead of 4"));
  EXPECT_THAT(resumed.notes, HasSubstr("1 sample of this epoch is used again"));
}

TEST_F(Resume, WithFewerMicroBatchesReachesTheEndOfAnEpoch) {
  Options begun = options(21);
  begun.batch_size = 2;
  begun.max_steps = 8;
  Options other = begun;  // whose epoch has 11 steps, more than the run
  begun.gradient_accumulation_steps = 4;
  EXPECT_THAT(resume(begun, other, 2).samples, ElementsAre(2, 2, 1, 2, 2, 2));
}

TEST_F(Resume, WithOtherDataOfTheSameNameAndSizeSaysSo) {
  Options begun = options(8);
  begun.max_steps = 4;
  EXPECT_THAT(resume(begun, begun, 2).notes, Not(HasSubstr("differs")));
  begun.overwrite = true;
  const Resumed resumed = resume(begun, begun, 2, [&] { write_data(8, 15'485'863); });
  EXPECT_THAT(resumed.notes, HasSubstr(begun.data + ": holds other data than when the run was saved"));
}

TEST_F(Resume, DataThatIsWrittenToInMidRunIsNoticedAtTheNextCheckpoint) {
  Options o = options(8);
  o.max_steps = 4;
  o.save_steps = 1;
  std::string notes;
  Trainer(o, {.on_step =
                  [&](const StepReport& step) {
                    if (step.step == 1) std::filesystem::last_write_time(o.data, std::filesystem::file_time_type::clock::now());
                    if (step.step != 2) return;
                    EXPECT_THAT(notes, Not(HasSubstr("was written to"))) << "the same bytes at another time";
                    std::fstream file(o.data, std::ios::in | std::ios::out | std::ios::binary);
                    file.seekp(-1, std::ios::end);
                    file.put('A');
                  },
              .on_note = [&](const std::string& text) { notes += text + "\n"; }})
      .train();
  const std::string note = o.data + ": was written to during the run";
  EXPECT_THAT(notes, HasSubstr(note));
  EXPECT_EQ(notes.find(note), notes.rfind(note)) << "once";
}

TEST_F(Resume, OfLargeDataSomeMegabytesTellItFromOthers) {
  constexpr int64_t kSize = int64_t{96} << 20;
  const std::string path = folder / "large.bin";
  { std::ofstream make(path); }
  File file = File::open(path, Access::update);
  file.resize(kSize);
  const uint64_t zeros = hash_sampled(file);
  EXPECT_EQ(hash_sampled(file), zeros);
  const std::byte zero{0}, one{1};
  for (const int64_t at : {int64_t{0}, kSize - 1, (kSize - (int64_t{1} << 20)) / 63 * 31 + 512}) {
    file.write(at, std::span(&one, 1));
    EXPECT_NE(hash_sampled(file), zeros) << at;
    file.write(at, std::span(&zero, 1));
    EXPECT_EQ(hash_sampled(file), zeros);
  }
  file.resize(kSize - 1);
  EXPECT_NE(hash_sampled(file), zeros) << "a byte less at the end";
}

struct MovedCheckpoints : TrainerRuns {};

// It shares its state file with the run, which goes on writing there.
TEST_F(MovedCheckpoints, OfStreamedRunsAreTold) {
  Options o = chain_job(folder / "chain", 4, 64, 512);
  o.profile = profile;
  o.output_dir = folder / "out";
  o.nvme_path = folder / "nvme";
  std::filesystem::create_directory(o.nvme_path);
  o.overwrite = true;
  o.max_steps = 4;
  o.save_steps = 1;
  o.budget = Trainer(o).plan().minimum_budget;
  for (const bool moves : {false, true}) {
    int64_t told = 0;
    Trainer trainer(o,
                    {.on_step =
                         [&](const StepReport& step) {
                           if (moves && step.step == 2) std::filesystem::rename(folder / "out/checkpoint-1", folder / "kept");
                         },
                     .on_note = [&](const std::string& note) { told += note.find("a checkpoint was moved out of") != std::string::npos; }});
    EXPECT_GT(trainer.train().disk_bytes_read, 0);
    EXPECT_EQ(told, moves ? 1 : 0);
  }
}

}  // namespace
}  // namespace ort_train
