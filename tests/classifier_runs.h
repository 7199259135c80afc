// Runs of a small classifier of ids, on data that tests spoil and mend.

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {

struct ClassifierRuns : TrainerRuns {
  static constexpr int64_t kIds = 8, kWidth = 6, kClasses = 4, kBatch = 4, kTrained = 32, kHeldOut = 16;
  const std::string out = folder / "out", log = folder / "log.jsonl";  // of job()

  struct Samples {
    std::vector<int64_t> ids, labels;
  };
  static Samples trained() {
    Samples samples;
    for (int64_t i = 0; i < kTrained; ++i) {
      samples.ids.push_back(i % kIds);
      samples.labels.push_back(i % kClasses);
    }
    return samples;
  }
  // Half of the labels contradict those that are trained on: the loss falls first, and rises when the model becomes sure of itself.
  static Samples held_out() {
    Samples samples;
    for (int64_t i = 0; i < kHeldOut; ++i) {
      samples.ids.push_back(i % kIds);
      samples.labels.push_back((i + (i < kHeldOut / 2 ? 0 : 1)) % kClasses);
    }
    return samples;
  }
  // The folder of both.
  std::string write_data(const Samples& trained, const Samples& held_out) const {
    const std::string data = folder / "data";
    std::filesystem::create_directories(data);
    for (const auto& [name, samples] : {std::pair("/train.safetensors", &trained), {"/valid.safetensors", &held_out}}) {
      const auto count = static_cast<int64_t>(samples->ids.size());
      Arrays().add("ids", {count}, samples->ids).add("labels", {count}, samples->labels).write(data + name);
    }
    return data;
  }

  std::string write_classifier(const std::string& name, const std::string& text, const std::string& ends = "") const {
    ort_train_onnx::ModelProto model =
        fixtures::model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g {} {{ e = Gather (table, ids) {} }})",
                                       ends.empty() ? fmt::format("(int64[batch] ids) => (float[batch, {}] y)", kClasses) : ends, text));
    for (const auto& [weight, rows, columns, step] : {std::tuple("table", kIds, kWidth, 7919), {"w", kWidth, kClasses, 104'729}}) {
      std::vector<float> values = numbers(rows * columns, step);
      for (float& value : values) value /= 2;
      *model.mutable_graph()->add_initializer() = fixtures::tensor_of(weight, {rows, columns}, values);
    }
    return fixtures::write_model(folder, model, name);
  }

  // Step s reads the samples 4 (s - 1), ... 4 (s - 1) + 3 of those that are trained on, again and again.
  Options options() const {
    Options o{.model = write_classifier("model.onnx", "y = MatMul (e, w)"), .data = write_data(trained(), held_out())};
    o.batch_size = kBatch;
    o.shuffle = false;
    o.learning_rate = 0.05;
    o.lr_scheduler_type = "constant";
    o.max_steps = 16;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
  Options job() const {
    Options o = options();
    o.output_dir = out;
    o.log_file = log;
    return o;
  }

  // What a run reports, or several that go on from each other.
  struct Seen {
    Summary summary{};                   // of the last run
    std::map<int64_t, double> losses{};  // held-out, by step
    std::vector<int64_t> steps{};
    std::map<int64_t, double> rates{};  // learning rates, by step
    std::string notes{};
    std::vector<int64_t> evaluated() const {
      std::vector<int64_t> all;
      for (const auto& [step, loss] : losses) all.push_back(step);
      return all;
    }
  };
  // `stop_after` a step: before its evaluation; below 0: not.
  static void add_run(const Options& o, Seen& seen, int64_t stop_after = -1) {
    Trainer* self = nullptr;
    Trainer trainer(o, {.on_step =
                            [&](const StepReport& report) {
                              seen.steps.push_back(report.step);
                              seen.rates[report.step] = report.learning_rate;
                              if (report.step == stop_after) self->request_stop();
                            },
                        .on_eval = [&](const EvalReport& report) { seen.losses[report.step] = report.loss; },
                        .on_note = [&](const std::string& note) { seen.notes += note + "\n"; }});
    self = &trainer;
    seen.summary = trainer.train();
    EXPECT_EQ(seen.summary.stopped, stop_after >= 0);
  }
  static Seen run(const Options& o) {
    Seen seen;
    add_run(o, seen);
    return seen;
  }

  // The lines of a log but for the summary, without what a clock says.
  static std::vector<std::string> lines_of(const std::string& log) {
    std::vector<std::string> lines;
    std::ifstream file(log);
    for (std::string line; std::getline(file, line);) {
      nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("summary")) continue;
      for (const char* name : {"ms", "tokens_per_second", "computing_ms", "waiting_ms", "remaining_seconds"}) json.erase(name);
      lines.push_back(json.dump());
    }
    return lines;
  }
  static nlohmann::json summary_of(const std::string& log) {
    std::ifstream file(log);
    nlohmann::json last;
    for (std::string line; std::getline(file, line);) last = nlohmann::json::parse(line);
    return last.at("summary");
  }
  static std::vector<std::string> checkpoints_in(const std::string& out) {
    std::vector<std::string> found;
    for (const std::string& name : names_in(out)) {
      if (name.find("checkpoint-") != std::string::npos) found.push_back(name);
    }
    return found;
  }
};

}  // namespace ort_train
