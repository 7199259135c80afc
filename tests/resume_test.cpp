// Runs that are resumed with other batches than they were saved with.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Resume : TrainerRuns {
  static constexpr int64_t kIn = 8, kOut = 4;

  Options options(int64_t samples) const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{ y = MatMul (x, w) }})", kIn, kOut));
    *model.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kOut}, numbers(kIn * kOut, 7919));
    Options o{.model = write_model(folder, model)};
    Arrays arrays;
    for (const auto& [name, width] : {std::pair("x", kIn), {"labels", kOut}})
      arrays.add(name, {samples, width}, numbers(samples * width, 104'729 + width));
    o.data = arrays.write(folder / "data.safetensors");
    o.loss = "mse";
    o.threads = 1;
    o.profile = profile;
    o.output_dir = folder / "out";
    return o;
  }

  // Stops after a step and resumes: how many samples each step has from there on, and what was said.
  struct Resumed {
    std::vector<int64_t> samples{};
    std::string notes{};
  };
  static Resumed resume(const Options& begun, Options resumed, int64_t stop_after) {
    Trainer* running = nullptr;
    Trainer first(begun, {.on_step = [&](const StepReport& step) {
                    if (step.step == stop_after) running->request_stop();
                  }});
    running = &first;
    EXPECT_TRUE(first.train().stopped);
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
  EXPECT_THAT(resumed.notes, HasSubstr("1 sample of this epoch comes once more"));
}

TEST_F(Resume, WithFewerMicroBatchesReachesTheEndOfAnEpoch) {
  Options begun = options(21);
  begun.batch_size = 2;
  begun.max_steps = 8;
  Options other = begun;  // whose epoch has 11 steps, more than the run
  begun.gradient_accumulation_steps = 4;
  EXPECT_THAT(resume(begun, other, 2).samples, ElementsAre(2, 2, 1, 2, 2, 2));
}

}  // namespace
}  // namespace ort_train
