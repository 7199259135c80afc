// Loss scaling against torch.amp.GradScaler (tests/golden/loss_scale, written by models/golden_loss_scale.py), clipping of each weight by
// itself, and the promises with both: the same bits with any power of two, streamed, in parts, deferred, and resumed between skipped steps.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "frontend/file.h"
#include "frontend/loss_scaling.h"
#include "frontend/safetensors.h"
#include "test_paths.h"
#include "tests/chain_model.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Json = nlohmann::json;
using fixtures::error_of;

const std::string kScalerGolden = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/loss_scale/";

struct Golden {
  Golden() : file(File::open(kScalerGolden + "golden.safetensors")) {
    SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);
    metadata = std::move(header.metadata);
    for (const SafetensorsEntry& entry : header.entries) entries.emplace(entry.name, entry);
  }
  std::vector<double> operator[](const std::string& name) const {
    const SafetensorsEntry& entry = entries.at(name);
    const auto read = [&](auto zero) {
      std::vector<decltype(zero)> values(static_cast<size_t>(entry.bytes) / sizeof zero);
      file.read(entry.offset, std::as_writable_bytes(std::span(values)));
      return std::vector<double>(values.begin(), values.end());
    };
    return entry.element == Element::float32 ? read(0.0f) : entry.element == Element::float64 ? read(0.0) : read(int64_t{0});
  }
  File file;
  std::map<std::string, std::string> metadata;
  std::map<std::string, SafetensorsEntry> entries;
};

void set_scaler(const Json& scaler, Options& o) {
  o.loss_scale = "dynamic";
  o.loss_scale_init = scaler.value("init_scale", 65536.0);
  o.loss_scale_growth = scaler.value("growth_factor", 2.0);
  o.loss_scale_backoff = scaler.value("backoff_factor", 0.5);
  o.loss_scale_window = scaler.value("growth_interval", int64_t{2000});
}

TEST(LossScaling, ChangesAsTorchGradScaler) {
  const Golden golden;
  int cases = 0;
  for (const auto& [name, text] : golden.metadata) {
    if (!name.starts_with("updates/")) continue;
    ++cases;
    Options options;
    set_scaler(Json::parse(text), options);
    const LossScaling scaling(options);
    ASSERT_TRUE(scaling.is_on());
    LossScaleState state;
    scaling.begin(state);
    const auto found = golden[name + "/found"], scale = golden[name + "/scale"], tracker = golden[name + "/tracker"];
    int64_t skipped = 0;
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(scaling.update(state, found[i] == 0), "");
      skipped += found[i] != 0;
      ASSERT_EQ(static_cast<double>(state.scale), scale[i]) << name << " step " << i;
      ASSERT_EQ(static_cast<double>(state.finite_steps), tracker[i]) << name << " step " << i;
      ASSERT_EQ(state.skipped, skipped);
    }
  }
  EXPECT_GE(cases, 3);
}

TEST(LossScaling, AutoIsNoneInFloat32AndAFixedOneStays) {
  EXPECT_FALSE(LossScaling(Options{}).is_on());
  EXPECT_FALSE(LossScaling({.loss_scale = "none"}).is_on());
  const LossScaling fixed({.loss_scale = "1024"});
  LossScaleState state;
  fixed.begin(state);
  for (int i = 0; i < 5000; ++i) EXPECT_EQ(fixed.update(state, i % 100 < 2), "");
  EXPECT_EQ(state.scale, 1024);
  EXPECT_EQ(state.skipped, 4900);
}

TEST(LossScaling, WhatCanNotBeIsRefused) {
  const auto refusal = [](const Options& options) {
    const Error problem = error_of([&] { LossScaling scaling(options); });
    EXPECT_EQ(problem.code(), ErrorCode::usage);
    return std::string(problem.what());
  };
  EXPECT_THAT(refusal({.loss_scale = "big"}), HasSubstr("`loss_scale` big: is not known"));
  EXPECT_THAT(refusal({.loss_scale = "12x"}), HasSubstr("`loss_scale` 12x: is not known"));
  EXPECT_THAT(refusal({.loss_scale = ""}), HasSubstr("is not known"));
  for (const char* scale : {"0", "-1", "nan", "inf", "1e39", "1e-39"}) EXPECT_THAT(refusal({.loss_scale = scale}), HasSubstr(scale));
  EXPECT_THAT(refusal({.loss_scale = "dynamic", .loss_scale_init = 0}), HasSubstr("`loss_scale_init` 0"));
  EXPECT_THAT(refusal({.loss_scale = "1024", .loss_scale_window = 3}), HasSubstr("`loss_scale_window` goes with a `loss_scale` that is"));
  EXPECT_THAT(refusal({.loss_scale_init = 1e9}), HasSubstr("choose `loss_scale` dynamic"));
  EXPECT_THAT(refusal({.loss_scale_growth = 1}), HasSubstr("`loss_scale_growth` 1"));
  EXPECT_THAT(refusal({.loss_scale_backoff = 1}), HasSubstr("`loss_scale_backoff` 1"));
  EXPECT_THAT(refusal({.loss_scale_window = 0}), HasSubstr("`loss_scale_window` 0"));
}

// --- whole runs -----------------------------------------------------------------------------------------------------------------------

struct LossScaleRuns : TrainerRuns {
  struct Seen {
    std::vector<StepReport> steps;
    std::vector<std::string> rows, notes;  // of each step, as text: infinities and NaN compare as what isn't finite
    Summary summary;
    PlanReport plan;
    int64_t skipped() const {
      return std::count_if(steps.begin(), steps.end(), [](const StepReport& step) { return step.skipped; });
    }
  };
  static std::string number(double value) { return std::isfinite(value) ? fmt::format("{}", value) : "not finite"; }
  static Callbacks watched(Seen& seen) {
    return {.on_step =
                [&seen](const StepReport& r) {
                  seen.steps.push_back(r);
                  seen.rows.push_back(fmt::format("{}: {} {} {} {} {}", r.step, number(r.loss), number(r.grad_norm), r.learning_rate,
                                                  r.loss_scale, r.skipped));
                },
            .on_eval = {},
            .on_note = [&seen](const std::string& note) { seen.notes.push_back(note); }};
  }
  Seen run(Options o) {
    Seen seen;
    if (o.output_dir == "out") o.output_dir = folder / fmt::format("run{}", count_++);
    fixtures::TrainerOn trainer(on, o, watched(seen));
    seen.plan = trainer.plan();
    seen.summary = trainer.train();
    EXPECT_LE(seen.summary.measured_peak_bytes, seen.summary.planned_peak_bytes);
    return seen;
  }

  Options golden_job(const Golden& golden, const std::string& name) const {
    const Json settings = Json::parse(golden.metadata.at(name));
    Options o{.model = kScalerGolden + "model.onnx", .data = kScalerGolden + settings.at("data").get<std::string>() + ".safetensors"};
    o.loss = "mse";
    o.batch_size = settings.at("batch");
    o.learning_rate = settings.at("rate");
    o.weight_decay = settings.at("decay");
    o.max_grad_norm = settings.at("max_norm");
    o.max_steps = settings.at("steps");
    o.gradient_accumulation_steps = settings.at("micro_batches");
    o.shuffle = false;
    o.profile = profile;
    if (settings.at("scaler").is_null())
      o.clip_per_layer = true;
    else
      set_scaler(settings.at("scaler"), o);
    return o;
  }

  // A chain of products in which three samples overflow, whatever the scale.
  Options overflowing_chain() const {
    constexpr int64_t kWidth = 128, kSamples = 640;
    Options o = chain_job(folder / "chain", 4, kWidth, kSamples);
    auto labels = numbers(kSamples * kWidth, 104'743);
    for (const int64_t sample : {3, 300, 477}) labels[static_cast<size_t>(sample * kWidth + 7)] = std::numeric_limits<float>::infinity();
    o.data = Arrays{}
                 .add("x", {kSamples, kWidth}, numbers(kSamples * kWidth, 104'729))
                 .add("labels", {kSamples, kWidth}, labels)
                 .write(folder / "overflows.safetensors");
    o.loss_scale = "dynamic";
    o.loss_scale_window = 3;
    o.lr_scheduler_type = "linear";
    o.batch_size = 64;
    o.max_steps = 12;
    o.profile = profile;
    return o;
  }

 private:
  int count_ = 0;
};

std::vector<float> weight_of(const std::string& model, const std::string& name) {
  const Imported imported = fixtures::import_file(model, {.shapes = {{"batch", 1}}});
  for (const Weight& weight : imported.weights) {
    if (weight.parameter == name) return fixtures::floats(fixtures::weight_tensor(imported, weight));
  }
  ADD_FAILURE() << name;
  return {};
}

TEST_F(LossScaleRuns, StepsAreThoseOfTorch) {
  const Golden golden;
  int cases = 0;
  for (const auto& [name, text] : golden.metadata) {
    if (name.starts_with("updates/")) continue;
    SCOPED_TRACE(name);
    ++cases;
    const Seen seen = run(golden_job(golden, name));
    const auto losses = golden[name + "/losses"], norms = golden[name + "/norms"], scales = golden[name + "/scales"],
               skipped = golden[name + "/skipped"], rates = golden[name + "/rates"];
    ASSERT_EQ(seen.steps.size(), losses.size());
    const bool is_scaled = !Json::parse(text).at("scaler").is_null();
    for (size_t i = 0; i < losses.size(); ++i) {
      SCOPED_TRACE(i + 1);
      const StepReport& step = seen.steps[i];
      EXPECT_EQ(step.skipped, skipped[i] != 0);
      EXPECT_EQ(step.loss_scale, is_scaled ? scales[i] : 0);
      EXPECT_NEAR(step.learning_rate, rates[i], 1e-15);
      if (std::isfinite(losses[i])) {
        EXPECT_NEAR(step.loss, losses[i], 2e-5 * losses[i]);
      }
      EXPECT_EQ(std::isfinite(step.grad_norm), std::isfinite(norms[i]));
      if (std::isfinite(norms[i])) {
        EXPECT_NEAR(step.grad_norm, norms[i], 2e-5 * norms[i]);
      }
    }
    for (const char* weight : {"w1", "b1", "w2", "b2"}) {
      const auto wanted = golden[fmt::format("{}/final/{}", name, weight)];
      const auto found = weight_of(seen.summary.model_path, weight);
      ASSERT_EQ(found.size(), wanted.size());
      for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(static_cast<double>(found[i]), wanted[i], 1e-5) << weight << ' ' << i;
    }
    EXPECT_EQ(seen.summary.skipped_steps, seen.skipped());
  }
  EXPECT_GE(cases, 5);
}

TEST_F(LossScaleRuns, APowerOfTwoChangesNoBit) {
  Options o{.model = std::string(ORT_TRAIN_SOURCE_DIR) + "/models/char-gpt.onnx",
            .data = std::string(ORT_TRAIN_SOURCE_DIR) + "/models/tinyshakespeare.txt",
            .task = "causal-lm",
            .batch_size = 2,
            .seq_length = 32};
  o.learning_rate = 1e-3;
  o.max_steps = 4;
  o.profile = profile;
  for (const double clip : {1.0, 0.0}) {
    for (const int64_t micro_batches : {1, 2}) {
      o.max_grad_norm = clip;
      o.gradient_accumulation_steps = micro_batches;
      std::string hash, gradients;
      std::vector<double> seen_before;
      for (const char* scale : {"none", "65536", "2", "dynamic"}) {
        SCOPED_TRACE(fmt::format("clip {}, {} micro-batches, scale {}", clip, micro_batches, scale));
        o.loss_scale = scale;
        o.save_gradients = folder / "gradients.safetensors";
        const Seen seen = run(o);
        std::vector<double> numbers;
        for (const StepReport& step : seen.steps) numbers.insert(numbers.end(), {step.loss, step.grad_norm});
        const std::string saved = read_file(o.save_gradients);
        if (hash.empty()) hash = seen.summary.weights_hash, gradients = saved, seen_before = numbers;
        EXPECT_EQ(seen.summary.weights_hash, hash);
        EXPECT_EQ(numbers, seen_before);
        EXPECT_TRUE(saved == gradients);
        EXPECT_EQ(seen.skipped(), 0);
      }
    }
  }
}

TEST_F(LossScaleRuns, SkippedStepsAreSkippedAlikeInLittleMemory) {
  int64_t streamed = 0, deferred = 0, again = 0, together = 0;
  for (const int64_t micro_batches : {1, 2}) {
    for (const bool per_layer : {false, true}) {
      Options o = overflowing_chain();
      o.gradient_accumulation_steps = micro_batches;
      o.clip_per_layer = per_layer;
      o.max_grad_norm = 0.01;
      const Seen plain = run(o);
      EXPECT_GE(plain.skipped(), 2);
      EXPECT_LE(plain.skipped(), 6);
      o.nvme_path = folder / "nvme";
      fs::create_directory(o.nvme_path);
      for (const int way : {0, 1, 2}) {
        SCOPED_TRACE(fmt::format("{} micro-batches, per layer {}, way {}", micro_batches, per_layer, way));
        Options small = o;
        on.part_bytes = way == 1 ? 20'000 : 0;
        small.recompute = way == 2 ? "all" : "auto";
        small.micro_batches = way == 0 ? "auto" : way == 1 ? "horizontal" : "vertical";
        small.budget = fixtures::TrainerOn(on, small).plan().minimum_budget;
        if (way == 2) small.budget += 100'000;
        const Seen seen = run(small);
        EXPECT_EQ(seen.rows, plain.rows);
        EXPECT_EQ(seen.summary.weights_hash, plain.summary.weights_hash);
        streamed += seen.summary.disk_bytes_read > 0;
        deferred += seen.plan.updates_in_next_step;
        again += seen.plan.saved_recomputed > 0;
        together += seen.plan.micro_batches_together > 1;
      }
    }
  }
  EXPECT_GE(streamed, 8);
  EXPECT_GE(deferred, 1);
  EXPECT_GE(again, 2);
  EXPECT_GE(together, 1);
}

TEST_F(LossScaleRuns, ResumesInTheMiddleOfTheCount) {
  Options o = overflowing_chain();
  const Seen whole = run(o);
  for (const int64_t stop : {1, 2, 3, 4, 5, 7, 10}) {
    for (const bool from_disk : {false, true}) {
      Options parts = o;
      parts.output_dir = folder / fmt::format("stopped{}{}", stop, from_disk);
      if (from_disk) {
        parts.nvme_path = folder / "nvme";
        fs::create_directory(parts.nvme_path);
        parts.budget = Trainer(parts).plan().minimum_budget;
      }
      Seen seen;
      {
        Trainer* running = nullptr;
        Callbacks callbacks = watched(seen);
        const auto record = callbacks.on_step;
        callbacks.on_step = [&](const StepReport& step) {
          record(step);
          if (step.step == stop) running->request_stop();
        };
        Trainer trainer(parts, callbacks);
        running = &trainer;
        EXPECT_TRUE(trainer.train().stopped);
      }
      parts.resume = true;
      const Summary summary = Trainer(parts, watched(seen)).train();
      EXPECT_EQ(seen.rows, whole.rows) << stop;
      EXPECT_EQ(summary.weights_hash, whole.summary.weights_hash);
      EXPECT_EQ(summary.skipped_steps, whole.summary.skipped_steps);
    }
  }
}

// Gradients that overflow are nobody's; and a run in which all did says so.
TEST_F(LossScaleRuns, SavedGradientsAreOfAStepThatCounts) {
  Options o = overflowing_chain();
  o.data = chain_job(folder / "fine", 4, 128, 640).data;
  o.save_gradients = folder / "gradients.safetensors";
  o.fp16 = true;
  o.loss_scale_init = 1e30;
  o.loss_scale_backoff = 1e-30;
  o.max_steps = 3;
  const Seen some = run(o);
  EXPECT_EQ(some.skipped(), 1);
  EXPECT_THAT(some.notes, Contains(HasSubstr("wrote the gradients of step 2 to")));
  const std::string bytes = read_file(o.save_gradients);
  const SafetensorsHeader header = read_safetensors_header(File::open(o.save_gradients), ErrorCode::data);
  std::vector<float> numbers(static_cast<size_t>(header.entries.at(0).bytes) / sizeof(float));
  std::memcpy(numbers.data(), bytes.data() + header.entries[0].offset, header.entries[0].bytes);
  EXPECT_TRUE(std::all_of(numbers.begin(), numbers.end(), [](float x) { return std::isfinite(x); }));
  o.loss_scale_backoff = 0.5;
  const Seen none = run(o);
  EXPECT_EQ(none.skipped(), 3);
  EXPECT_THAT(none.notes, Contains(HasSubstr("no step had finite gradients")));
  EXPECT_THAT(none.notes, Contains(HasSubstr("all steps were skipped")));
  EXPECT_FALSE(std::filesystem::exists(o.save_gradients));
}

// A run goes on with another way of scaling, or without: what was skipped stays skipped.
TEST_F(LossScaleRuns, ARunMayGoOnWithAnother) {
  Options o = overflowing_chain();
  o.output_dir = folder / "out";
  o.max_steps = 6;
  const Seen first = run(o);
  ASSERT_GT(first.skipped(), 0);
  o.resume = true;
  o.max_steps = 12;
  o.loss_scale = "512";
  o.loss_scale_window = Options().loss_scale_window;
  const Seen second = run(o);
  EXPECT_EQ(second.steps.front().loss_scale, 512);
  EXPECT_EQ(second.steps.front().step, 7);
  EXPECT_EQ(second.summary.skipped_steps, first.skipped() + second.skipped());
  EXPECT_THAT(fmt::format("{}", fmt::join(second.notes, "\n")), HasSubstr("loss_scale 512 instead of dynamic"));
}

TEST_F(LossScaleRuns, EndlessOverflowEndsTheRun) {
  Options o = overflowing_chain();
  o.output_dir = folder / "out";
  o.save_steps = 1;
  o.max_steps = 2;
  o.shuffle = false;
  o.data = chain_job(folder / "fine", 4, 128, 640).data;
  const Seen fine = run(o);
  EXPECT_EQ(fine.skipped(), 0);
  o.data = Arrays{}
               .add("x", {64, 128}, numbers(64 * 128, 7))
               .add("labels", {64, 128}, std::vector<float>(64 * 128, std::numeric_limits<float>::infinity()))
               .write(folder / "bad.safetensors");
  o.resume = true;
  o.save_steps = 0;
  o.max_steps = 500;
  for (const char* scale : {"dynamic", "1e6"}) {
    o.loss_scale = scale;
    o.loss_scale_window = Options().loss_scale_window;
    Seen seen;
    const Error problem = error_of([&] { Trainer(o, watched(seen)).train(); });
    EXPECT_EQ(problem.code(), ErrorCode::diverged);
    EXPECT_THAT(problem.what(), AllOf(HasSubstr("steps in a row"), HasSubstr("checkpoint-2 (`resume`)")));
    EXPECT_THAT(problem.what(), HasSubstr(std::string(scale) == "dynamic" ? "however small the loss scale" : "`loss_scale` 1000000"));
    EXPECT_EQ(seen.skipped(), static_cast<int64_t>(seen.steps.size()));
    EXPECT_GE(seen.steps.size(), 90u);
    EXPECT_LE(seen.steps.size(), 150u);
  }
}

// Without loss scaling, a step whose gradients aren't finite ends the run; where there is clipping, it has changed nothing.
TEST_F(LossScaleRuns, DivergenceLeavesClippedWeightsAsTheyWere) {
  Options o = overflowing_chain();
  o.loss_scale = "none";
  o.max_steps = 3;
  o.shuffle = false;  // the first batch has one that overflows
  o.predict_batch_size = 1;
  o.output_dir = folder / "out";
  Trainer trainer(o);
  const std::vector<float> x = numbers(128, 5);
  const auto before = trainer.predict({}, {{"x", x}});
  const Error problem = error_of([&] { trainer.train(); });
  EXPECT_EQ(problem.code(), ErrorCode::diverged);
  EXPECT_THAT(problem.what(), AllOf(HasSubstr("step 1: the loss is inf"), HasSubstr("nothing was saved before")));
  EXPECT_EQ(trainer.predict({}, {{"x", x}}), before);
}

TEST_F(LossScaleRuns, TheLogHasTheScale) {
  Options o = overflowing_chain();
  o.log_file = folder / "log.jsonl";
  const Seen seen = run(o);
  std::ifstream file(o.log_file);
  std::vector<Json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
  ASSERT_EQ(lines.size(), seen.steps.size() + 1);
  for (size_t i = 0; i < seen.steps.size(); ++i) {
    EXPECT_EQ(lines[i].at("loss_scale"), seen.steps[i].loss_scale);
    EXPECT_EQ(lines[i].at("skipped"), seen.steps[i].skipped);
  }
  EXPECT_EQ(lines.back().at("summary").at("skipped_steps"), seen.skipped());
  o.loss_scale = "none";
  o.data = chain_job(folder / "fine", 4, 128, 640).data;
  run(o);
  std::ifstream plain(o.log_file);
  std::string line;
  std::getline(plain, line);
  EXPECT_FALSE(Json::parse(line).contains("loss_scale"));
}

}  // namespace
}  // namespace ort_train
