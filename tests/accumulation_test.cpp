// Gradient accumulation: whatever the division of a window into micro-batches, loss, norm and gradients are those of the large batch to
// rounding: with labels spread unevenly, a short last window, and the masks of Dropout.

#include <gtest/gtest.h>

#include <cmath>

#include "frontend/file.h"
#include "frontend/ort_train.h"
#include "frontend/safetensors.h"
#include "test_paths.h"
#include "tests/arrays.h"
#include "tests/nominal_machine.h"
#include "tests/onnx_models.h"
#include "tests/token_data.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

struct Trained {
  std::vector<double> losses, norms;
  std::map<std::string, std::vector<float>> gradients;  // of the first step
};

struct Accumulation : ::testing::TestWithParam<const char*> {
  const TestFolder folder;
  const std::string profile = nominal_machine(folder);

  Options options(int64_t samples, int64_t batch, int64_t accumulation) const {
    Options o{.model = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/" + GetParam() + ".onnx"};
    o.data = TokenData{.samples = samples}.write(folder / "data.safetensors");
    o.batch_size = batch;
    o.gradient_accumulation_steps = accumulation;
    o.learning_rate = 1e-3;
    o.threads = 2;
    o.profile = profile;
    return o;
  }

  Trained train(Options o) const {
    Trained run;
    o.output_dir = folder / "out";
    o.save_gradients = folder / "gradients.safetensors";
    Trainer trainer(o, {.on_step = [&](const StepReport& step) {
                      run.losses.push_back(step.loss);
                      run.norms.push_back(step.grad_norm);
                    }});
    trainer.train();
    const File file = File::open(o.save_gradients);
    for (const SafetensorsEntry& entry : read_safetensors_header(file, ErrorCode::data).entries) {
      std::vector<float>& values = run.gradients[entry.name];
      values.resize(static_cast<size_t>(entry.bytes) / sizeof(float));
      file.read(entry.offset, std::as_writable_bytes(std::span(values)));
    }
    std::filesystem::remove_all(o.output_dir);
    return run;
  }

  static double norm(const std::vector<float>& a, const std::vector<float>& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    return std::sqrt(sum);
  }

  static void expect_equal(const Trained& run, const Trained& large, const std::string& where) {
    ASSERT_EQ(run.losses.size(), large.losses.size()) << where;
    for (size_t i = 0; i < large.losses.size(); ++i) {
      EXPECT_NEAR(run.losses[i], large.losses[i], 1e-5 * large.losses[i]) << where << ", step " << i + 1;
      EXPECT_NEAR(run.norms[i], large.norms[i], 1e-4 * large.norms[i]) << where << ", step " << i + 1;
    }
    ASSERT_EQ(run.gradients.size(), large.gradients.size());
    std::vector<double> norms;
    for (const auto& [name, values] : large.gradients) norms.push_back(norm(values, std::vector<float>(values.size())));
    std::sort(norms.begin(), norms.end());
    for (const auto& [name, values] : large.gradients) {
      const double scale = std::max(norm(values, std::vector<float>(values.size())), 1e-3 * norms[norms.size() / 2]);
      EXPECT_LE(norm(run.gradients.at(name), values), 1e-5 * scale) << where << ", " << name;
    }
  }
};

// Two epochs of 20 samples in windows of 6: 6, 6, 6, 2.
TEST_P(Accumulation, MicroBatchesAreTheLargeBatch) {
  Options o = options(20, 6, 1);
  o.num_train_epochs = 2;
  const Trained large = train(o);
  ASSERT_EQ(large.losses.size(), 8u);
  for (const int64_t batch : {1, 2, 3}) {
    o = options(20, batch, 6 / batch);
    o.num_train_epochs = 2;
    expect_equal(train(o), large, fmt::format("{} x {}", 6 / batch, batch));
  }
}

// A window that ends early: of four batches of 2 there are two, or two and a half.
TEST_P(Accumulation, AShortWindowIsNormalisedByWhatItHas) {
  for (const int64_t samples : {4, 5}) {
    Options o = options(samples, samples, 1);
    o.max_steps = 2;
    const Trained large = train(o);
    o = options(samples, 2, 4);
    o.max_steps = 2;
    expect_equal(train(o), large, fmt::format("{} samples", samples));
  }
}

// What the tests above could not tell apart if labels were spread evenly: the mean of the micro-batches' own means is another number.
TEST_P(Accumulation, ItIsNotTheMeanOfMeans) {
  const auto first_losses = [&](int64_t batch, int64_t accumulation) {
    Options o = options(6, batch, accumulation);
    o.learning_rate = 0;
    o.shuffle = false;
    o.num_train_epochs = 1;
    return train(o).losses;
  };
  const std::vector<double> whole = first_losses(2, 3), each = first_losses(2, 1);
  ASSERT_EQ(whole.size(), 1u);
  ASSERT_EQ(each.size(), 3u);
  EXPECT_GT(std::abs((each[0] + each[1] + each[2]) / 3 - whole[0]), 1e-3);
}

INSTANTIATE_TEST_SUITE_P(Models, Accumulation,
                         ::testing::Values("gpt2-dynamo-17-eager", "gpt2-torchscript-20-untied", "bert-dynamo-18-masked",
                                           "dropout/bert-torchscript-17"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
                           return name;
                         });

// A weight with two uses has two sums, of its own type.
struct DoubleAccumulation : TrainerRuns {
  static constexpr int64_t kSamples = 8, kWidth = 4;

  Options options() const {
    std::vector<std::string> weights;
    for (int64_t i = 0; i < kWidth * kWidth; ++i) weights.push_back(fmt::format("{}", (i * 7 % 11 - 5) / 8.0));
    const std::string model =
        fixtures::write_model(folder, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (double[batch, 4] x) => (double[batch, 4] y)
                               <double[4, 4] w = {{{}}}> {{ h = MatMul (x, w) t = Tanh (h) y = MatMul (t, w) }})",
                                                  fmt::join(weights, ", ")));
    Arrays arrays;
    arrays.add("x", {kSamples, kWidth}, numbers(kSamples * kWidth, 104'729))
        .add("labels", {kSamples, kWidth}, numbers(kSamples * kWidth, 613));
    Options o{.model = model, .data = arrays.write(folder / "data.safetensors"), .loss = "mse"};
    o.batch_size = 2;
    o.gradient_accumulation_steps = 2;
    o.shuffle = false;
    o.learning_rate = 1e-2;
    o.max_steps = 3;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
  std::vector<double> gradient_of(Options o) {
    o.save_gradients = folder / "gradients.safetensors";
    saved = train(o);
    const File file = File::open(o.save_gradients);
    const SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);
    std::vector<double> gradient(kWidth * kWidth);
    file.read(header.find("w")->offset, std::as_writable_bytes(std::span(gradient)));
    return gradient;
  }
  Run saved;
};

TEST_F(DoubleAccumulation, SavedGradientsAreOfTheWeightsTypeAndChangeNothing) {
  Options o = options();
  const Run plain = train(o);
  const std::vector<double> gradient = gradient_of(o);
  EXPECT_EQ(saved.summary.weights_hash, plain.summary.weights_hash);
  EXPECT_EQ(saved.losses, plain.losses);
  o.loss_scale = "1024";
  EXPECT_EQ(gradient_of(o), gradient);
  o = options();
  o.batch_size = 4;
  o.gradient_accumulation_steps = 1;
  const std::vector<double> whole = gradient_of(o);
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(gradient[i], whole[i], 1e-6 * std::max(1.0, std::abs(whole[i]))) << i;
  o.predict_batch_size = 2;
  EXPECT_EQ(Trainer(o).predict({}, {{"x", numbers(2 * kWidth, 17)}}).at("y").size(), static_cast<size_t>(2 * kWidth));
}

// State in 8 bits is of what is computed in float32.
TEST_F(DoubleAccumulation, OptimizersOf8BitsKeepPlainState) {
  for (const char* optim : {"adamw", "lamb"}) {
    Options o = options();
    o.optim = optim;
    const Run plain = train(o);
    o.optim += "_8bit";
    o.optim_args = {{"min_8bit_size", 1}};
    const Run run = train(o);
    EXPECT_EQ(run.losses, plain.losses) << optim;
    EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << optim;
  }
}

}  // namespace
}  // namespace ort_train
