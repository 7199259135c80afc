// Training against PyTorch: loss, every gradient, ten steps of losses, the model's outputs, for every golden model
// (tests/golden/README.md), and promise 2 on them: threads change no bit. What a run says of a prediction that was far from its steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "frontend/file.h"
#include "frontend/import.h"
#include "frontend/ort_train.h"
#include "frontend/safetensors.h"
#include "tests/golden_model.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// All of a safetensors file, as double.
struct Tensors {
  std::map<std::string, std::vector<double>> values;
  std::map<std::string, Shape> shapes;
  std::map<std::string, std::string> metadata;
  std::set<std::string> integers;

  explicit Tensors(const std::string& path) {
    const std::string bytes = read_file(path);
    const SafetensorsHeader header = read_safetensors_header(File::open(path), ErrorCode::data);
    metadata = header.metadata;
    for (const SafetensorsEntry& entry : header.entries) {
      const auto read = [&](auto zero) {
        std::vector<double> result(entry.bytes / sizeof zero);
        for (size_t i = 0; i < result.size(); ++i) {
          std::memcpy(&zero, bytes.data() + entry.offset + i * sizeof zero, sizeof zero);
          result[i] = static_cast<double>(zero);
        }
        return result;
      };
      shapes[entry.name] = entry.shape;
      if (entry.element == Element::int64) integers.insert(entry.name);
      values[entry.name] = entry.element == Element::float32   ? read(0.0f)
                           : entry.element == Element::float64 ? read(0.0)
                                                               : read(int64_t{0});
    }
  }
  const std::vector<double>& operator[](const std::string& name) const { return values.at(name); }
  double number(const std::string& key) const { return std::stod(metadata.at(key)); }
};

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kGolden)) {
    if (entry.path().extension() == ".onnx") names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

double norm(const std::vector<double>& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return std::sqrt(sum);
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return a.size() == b.size() ? std::sqrt(sum) : INFINITY;
}

// The arrays of one batch under the names that predict() takes.
struct Golden : testing::TestWithParam<std::string> {
  const std::string name = GetParam();
  const Tensors golden{kGolden + name + ".golden.safetensors"};
  const TestFolder folder;
  const std::string profile = nominal_machine(folder);

  Options options() const {
    Options o = golden_options(name);
    o.learning_rate = golden.number("learning_rate");
    o.weight_decay = golden.number("weight_decay");
    o.max_grad_norm = golden.number("max_grad_norm");
    o.max_steps = static_cast<int64_t>(golden.number("steps"));
    o.lr_scheduler_type = "constant";
    o.shuffle = false;
    o.output_dir = folder / "out";
    o.profile = profile;
    return o;
  }

  std::vector<double> train(const Options& o) const {
    std::vector<double> losses;
    Trainer trainer(o, {.on_step = [&](const StepReport& report) { losses.push_back(report.loss); }});
    trainer.train();
    return losses;
  }

  // What an exported model has in place of its running statistics; all other golden models have none.
  void expect_running_statistics(const std::string& model, const std::string& schedule) const {
    Workers one(1);
    const std::string prefix = "running/" + schedule + "/";
    std::set<std::string> left;
    for (const auto& [key, value] : golden.values) {
      if (key.starts_with(prefix)) left.insert(key.substr(prefix.size()));
    }
    EXPECT_EQ(left.empty(), name.find("live") == std::string::npos);
    if (left.empty()) return;
    for (const Weight& weight : import_model(model, {.shapes = {{"batch", 1}}}, one).weights) {
      if (left.erase(weight.parameter) == 0) continue;
      const FileRange& range = weight.places.at(0).bytes;
      std::vector<float> values(static_cast<size_t>(range.bytes) / sizeof(float));
      File::open(range.path).read(range.offset, std::as_writable_bytes(std::span(values)));
      const std::vector<double>& wanted = golden[prefix + weight.parameter];
      EXPECT_LE(difference({values.begin(), values.end()}, wanted), 1e-5 * norm(wanted)) << weight.parameter;
    }
    EXPECT_TRUE(left.empty());
  }
};

TEST_P(Golden, GradientsAreThoseOfPyTorch) {
  Options o = options();
  o.max_steps = 1;
  o.save_gradients = folder / "gradients.safetensors";
  const std::vector<double> losses = train(o);
  EXPECT_NEAR(losses.at(0), golden["loss"][0], 1e-5 * std::abs(golden["loss"][0]));

  const Tensors ours(o.save_gradients);
  std::vector<double> norms;
  size_t expected = 0;
  for (const auto& [key, value] : golden.values) {
    if (key.starts_with("gradient/")) norms.push_back(norm(value));
  }
  std::sort(norms.begin(), norms.end());
  const double median = norms.at(norms.size() / 2);
  for (const auto& [key, value] : golden.values) {
    if (!key.starts_with("gradient/")) continue;
    ++expected;
    const std::string parameter = key.substr(9);
    ASSERT_TRUE(ours.values.count(parameter)) << parameter;
    EXPECT_EQ(ours.shapes.at(parameter), golden.shapes.at(key)) << parameter;
    EXPECT_LE(difference(ours[parameter], value), 1e-5 * std::max(norm(value), 1e-3 * median)) << parameter;
  }
  EXPECT_EQ(ours.values.size(), expected);
}

TEST_P(Golden, TenStepsOfLossesAreThoseOfPyTorch) {
  for (const char* schedule : {"constant", "linear"}) {
    Options o = options();
    o.lr_scheduler_type = schedule;
    o.output_dir = folder / schedule;
    if (o.lr_scheduler_type == "linear") o.warmup_steps = golden.number("warmup_steps");
    const std::vector<double> losses = train(o);
    expect_running_statistics(o.output_dir + "/model.onnx", o.lr_scheduler_type);
    const std::vector<double>& wanted = golden["losses/" + o.lr_scheduler_type + "/float64"];
    ASSERT_EQ(losses.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(losses[i], wanted[i], 1e-4) << schedule << " step " << i + 1;
  }
}

TEST_P(Golden, OutputsAreThoseOfPyTorch) {
  const std::string output = golden.metadata.at("output");
  if (!golden.values.count(output)) return;  // a model whose only output is the loss
  Options o = options();
  o.predict_batch_size = o.batch_size;
  Trainer trainer(o);
  const Tensors data(o.data);
  std::map<std::string, std::vector<int64_t>> integers;
  std::map<std::string, std::vector<float>> reals;
  for (const auto& [input, values] : data.values) {
    if (input == o.labels) continue;
    const auto batch = static_cast<std::ptrdiff_t>(values.size() / data.shapes.at(input)[0]) * o.batch_size;
    if (data.integers.contains(input))
      integers[input].assign(values.begin(), values.begin() + batch);
    else
      reals[input].assign(values.begin(), values.begin() + batch);
  }
  const auto outputs = trainer.predict(integers, reals);
  const std::vector<double> ours(outputs.at(output).begin(), outputs.at(output).end());
  EXPECT_LE(difference(ours, golden[output]), 1e-5 * norm(golden[output]));
}

TEST_P(Golden, ThreadsChangeNoBit) {
  std::string hash;
  std::vector<double> losses;
  for (const int threads : {1, 2, 3, 8}) {
    Options o = options();
    o.threads = threads;
    o.output_dir = folder / std::to_string(threads);
    std::vector<double> these;
    Trainer trainer(o, {.on_step = [&](const StepReport& report) { these.push_back(report.loss); }});
    const std::string this_hash = trainer.train().weights_hash;
    if (threads == 1) {
      hash = this_hash;
      losses = these;
    }
    EXPECT_EQ(this_hash, hash) << threads << " threads";
    EXPECT_EQ(these, losses) << threads << " threads";
  }
}

TEST_P(Golden, RecomputeChangesNoBit) {
  std::string hash, gradients;
  std::vector<double> losses;
  for (const char* mode : {"none", "sqrt", "all", "auto"}) {
    Options o = options();
    o.recompute = mode;
    o.output_dir = folder / mode;
    o.save_gradients = folder / (std::string(mode) + ".safetensors");
    std::vector<double> these;
    Trainer trainer(o, {.on_step = [&](const StepReport& report) { these.push_back(report.loss); }});
    const std::string this_hash = trainer.train().weights_hash, bytes = read_file(o.save_gradients);
    EXPECT_EQ(trainer.plan().saved_recomputed > 0, std::string(mode) == "sqrt" || std::string(mode) == "all") << mode;
    if (hash.empty()) {
      hash = this_hash;
      gradients = bytes;
      losses = these;
    }
    EXPECT_EQ(this_hash, hash) << mode;
    EXPECT_EQ(these, losses) << mode;
    EXPECT_TRUE(bytes == gradients) << mode;
  }
}

using Prediction = TrainerRuns;

TEST_F(Prediction, IsSaidToBeFarFromTheStep) {
  Options o{.model = std::string(ORT_TRAIN_SOURCE_DIR) + "/models/char-gpt.onnx",
            .data = std::string(ORT_TRAIN_SOURCE_DIR) + "/models/tinyshakespeare.txt",
            .task = "causal-lm"};
  o.batch_size = 16;
  o.seq_length = 64;
  o.max_steps = 3;
  o.threads = 1;
  o.output_dir = folder / "out";
  o.overwrite = true;
  o.profile = profile;
  const auto notes_on = [&](double rate) {
    save_profile(o.profile,
                 {.processor = {{1, {.flops = rate, .element_flops = rate, .bytes_per_second = rate, .far_bytes_per_second = rate}}}});
    std::string all;
    Trainer(o, {.on_note = [&](const std::string& text) { all += text + "\n"; }}).train();
    return all;
  };
  EXPECT_THAT(notes_on(1e6), HasSubstr("the machine was busier when it was measured, or has become faster (`recalibrate`"));
  EXPECT_THAT(notes_on(1e15), HasSubstr("the machine is busier than when it was measured, or has become slower (`recalibrate`"));
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace ort_train
