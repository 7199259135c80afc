// `train` and `freeze`: which tensors a pattern names, what is said of them, and runs with frozen weights: they stay as they are, have no
// state, and the rest ends with the same bits in memory and from a disk, whole and in parts.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace fs = std::filesystem;

const char* const kThree = R"(<ir_version: 8, opset_import: ["" : 17]>
  g (float[2, 2] x) => (float[2, 2] y)
  <float[2, 2] first_weight = {1, 2, 3, 4}, float[2] first_bias = {1, 2}, float[2, 2] last_weight = {4, 3, 2, 1},
   float[2] mean = {0, 1}, float[2] variance = {1, 2}, float[2] scale = {1, 3}, float[2] shift = {2, 3}, int64[1] axis = {1}> {
    a = Gemm (x, first_weight, first_bias)
    b = BatchNormalization (a, scale, shift, mean, variance)
    c = MatMul (b, last_weight)
    d = ReduceSum (c, axis)
    y = Add (c, d)
  })";

struct TrainFreeze : ::testing::Test {
  const TestFolder folder;
  const std::string model = write_model(folder, kThree);

  Names trained(std::vector<std::string> train, std::vector<std::string> freeze) {
    const Imported imported = import_file(model, {.train = std::move(train), .freeze = std::move(freeze)});
    notes = imported.info.notes;
    Names names;
    for (const ValueId id : imported.graph.parameters()) {
      if (imported.graph.value(id).trainable) names.push_back(imported.graph.value(id).name);
    }
    return names;
  }
  std::string refusal(std::vector<std::string> train, std::vector<std::string> freeze) {
    const Error problem = error_of([&] { trained(train, freeze); });
    EXPECT_EQ(problem.code(), ErrorCode::usage);
    return problem.what();
  }
  Names notes;
};

TEST_F(TrainFreeze, FrozenWeightsAreNotTrained) {
  EXPECT_EQ(trained({}, {}), (Names{"first_weight", "first_bias", "last_weight", "scale", "shift"}));
  EXPECT_EQ(trained({}, {"first_*", "s*e"}), (Names{"last_weight", "shift"}));
  EXPECT_EQ(std::count(notes.begin(), notes.end(), "by `train` and `freeze`, 2 of 5 tensors are trained, 3 frozen (8 of 14 parameters)"),
            1);
}

TEST_F(TrainFreeze, TrainWins) {
  EXPECT_EQ(trained({"last*"}, {"*"}), (Names{"last_weight"}));
  EXPECT_EQ(trained({"*"}, {"*"}),
            (Names{"first_weight", "first_bias", "last_weight", "scale", "shift"}));  // statistics stay what they are
}

TEST_F(TrainFreeze, PatternsThatFitNothingAreRefused) {
  EXPECT_HAS(refusal({}, {"frist_weight"}), "`freeze` 'frist_weight' fits no tensor of the model; it has 'first_weight'");
  EXPECT_HAS(refusal({"*lost*"}, {}), "`train` '*lost*' fits no tensor");
  EXPECT_HAS(refusal({"variance"}, {}), "'variance' is a running statistic of BatchNormalization");
  EXPECT_HAS(refusal({"axis"}, {}), "'axis' is int64");
  EXPECT_HAS(refusal({}, {"*"}), "nothing is left to train: `freeze` names all 5 weights");
}

TEST_F(TrainFreeze, TiedWeightsAreFrozenUnderEachName) {
  const std::string tied = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2] x) => (float[1, 2] y)
    <float[2, 2] w1 = {1, 2, 3, 4}, float[2, 2] w2 = {1, 3, 2, 4}, float[2, 2] v = {5, 6, 7, 8}> {
      a = MatMul (x, w1)
      b = MatMul (a, w2)
      y = MatMul (b, v)
    })");
  const Imported imported = import_file(tied, {.train = {}, .freeze = {"w2"}});
  EXPECT_EQ(parameter_names(imported), (Names{"w1", "v"}));
  EXPECT_FALSE(imported.graph.value(imported.graph.find_value("w1")).trainable);
  const Imported other = import_file(tied, {.train = {"w1"}, .freeze = {"*"}});
  EXPECT_TRUE(other.graph.value(other.graph.find_value("w1")).trainable);
  EXPECT_FALSE(other.graph.value(other.graph.find_value("v")).trainable);
}

// A frozen matrix large enough to be divided, between trained ones; small vectors, some of them frozen.
struct FrozenRuns : TrainerRuns {
  static constexpr int64_t kSamples = 12, kIn = 256, kInner = 2048, kOut = 4;

  Options options() const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
             h0 = MatMul (x, w)
             h1 = Add (h0, b)
             h2 = Tanh (h1)
             h3 = MatMul (h2, frozen)
             h4 = Add (h3, c)
             h5 = Tanh (h4)
             y = MatMul (h5, v) }})",
        kIn, kOut));
    const auto add = [&](const char* name, std::vector<int64_t> dims, int64_t step) {
      std::vector<float> values = numbers(element_count(dims), step);
      for (float& value : values) value /= 16;
      *model.mutable_graph()->add_initializer() = tensor_of(name, dims, values);
    };
    add("w", {kIn, kInner}, 7919);
    add("b", {kInner}, 613);
    add("frozen", {kInner, kInner}, 7907);
    add("c", {kInner}, 617);
    add("v", {kInner, kOut}, 619);
    Options o{.model = write_model(folder, model)};
    Arrays arrays;
    for (const auto& [name, width] : {std::pair("x", kIn), {"labels", kOut}})
      arrays.add(name, {kSamples, width}, numbers(kSamples * width, 104'729 + width));
    o.data = arrays.write(folder / "data.safetensors");
    o.loss = "mse";
    o.batch_size = 4;
    o.learning_rate = 1e-3;
    o.weight_decay = 0.1;
    o.max_steps = 6;
    o.threads = 2;
    o.profile = profile;
    o.freeze = {"frozen", "c"};
    return o;
  }
  Options on_disk(Options o) const {
    o.nvme_path = folder / "disk";
    std::filesystem::create_directory(o.nvme_path);
    return o;
  }
  // A weight of a model's file.
  static std::vector<float> weight(const std::string& path, const std::string& name) {
    const Imported imported = import_file(path, {.shapes = {{"batch", 1}}});
    for (const Weight& weight : imported.weights) {
      if (weight.parameter == name) return floats(weight_tensor(imported, weight));
    }
    return {};
  }
};

TEST_F(FrozenRuns, FrozenWeightsHaveNoStateAndStayAsTheyAre) {
  Options o = options();
  o.save_gradients = folder / "gradients.safetensors";
  const Run run = train(o);
  EXPECT_EQ(run.plan.parameters - run.plan.trainable_parameters, kInner * kInner + kInner);
  EXPECT_EQ(weight(run.summary.model_path, "frozen"), weight(o.model, "frozen"));
  EXPECT_EQ(weight(run.summary.model_path, "c"), weight(o.model, "c"));
  EXPECT_NE(weight(run.summary.model_path, "w"), weight(o.model, "w"));
  EXPECT_NE(weight(run.summary.model_path, "b"), weight(o.model, "b"));
  const std::string gradients = read_file(o.save_gradients).substr(0, 1000);
  EXPECT_HAS(gradients, "\"w\"");
  EXPECT_EQ(gradients.find("\"frozen\""), std::string::npos);
  o.freeze.clear();
  const Run all = train(o);
  EXPECT_GE(all.plan.at_peak.optimizer - run.plan.at_peak.optimizer, 8 * kInner * kInner);
  EXPECT_NE(all.summary.weights_hash, run.summary.weights_hash);
}

TEST_F(FrozenRuns, StreamedAndDividedTheyEndWithTheSameBits) {
  for (const int64_t accumulation : {1, 3}) {
    Options o = options();
    o.gradient_accumulation_steps = accumulation;
    on.part_bytes = 0;
    const Run plain = train(o);
    for (const int64_t part : {int64_t{0}, int64_t{1} << 20}) {
      Options streamed = on_disk(o);
      on.part_bytes = part;
      const int64_t least = least_budget(streamed);
      streamed.budget = least + (plain.plan.at_peak.total - least) / 8;
      const Run run = train(streamed);
      EXPECT_GT(run.plan.disk_read_per_step, 0);
      EXPECT_EQ(run.losses, plain.losses) << accumulation << " micro-batches, parts of " << part;
      EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash);
      EXPECT_TRUE(read_file(run.summary.model_path) == read_file(plain.summary.model_path));
      // A matrix of 16 MiB that is divided does not have to fit as a whole.
      if (part > 0) {
        EXPECT_LT(run.plan.arena_bytes, kInner * kInner * 4);
      }
    }
  }
}

// Whole, in parts, in memory and from a disk: what stays as it is isn't written.
TEST_F(FrozenRuns, CheckpointsHaveOnlyWhatChanges) {
  const Options o = options();
  const Run whole = train(o);
  const std::string saved = read_file(fs::path(whole.summary.checkpoint_path) / "weights.safetensors");
  EXPECT_LT(saved.size(), size_t{4} * kInner * kInner);
  EXPECT_EQ(saved.substr(0, 1000).find("\"frozen"), std::string::npos);
  EXPECT_HAS(read_file(fs::path(whole.summary.checkpoint_path) / "state.json"), "\"unchanged\":{\"c\":");
  Options streamed = on_disk(o);
  streamed.budget = least_budget(streamed);
  const Trainer all(streamed);
  EXPECT_GT(all.plan().state_bytes, 0);
  EXPECT_GT(all.plan().disk_bytes - all.plan().state_bytes, 4 * kInner * kInner);  // one slot
  EXPECT_LT(all.plan().state_bytes,
            2 * 3 * 4 * (kIn * kInner + 2 * kInner * kOut) + (int64_t{1} << 20));  // two, of the rest with its state
  int number = 0;
  for (const auto& [first, second] : {std::pair(o, streamed), {streamed, o}, {streamed, streamed}}) {
    Options begun = first, resumed = second;
    begun.output_dir = resumed.output_dir = folder / fmt::format("resumed-{}", number++);
    EXPECT_EQ(train_in_two(begun, resumed, 3).weights_hash, whole.summary.weights_hash);
  }
}

TEST_F(FrozenRuns, ResumeWantsTheSameUnchangedWeights) {
  Options o = options();
  o.output_dir = folder / "changed";
  train_in_two(o, 3);
  std::string bytes = read_file(o.model);
  const std::vector<float> frozen = weight(o.model, "frozen");
  const size_t at = bytes.find(std::string(reinterpret_cast<const char*>(frozen.data()), 4096));
  ASSERT_NE(at, std::string::npos);
  bytes[at] = static_cast<char>(bytes[at] ^ 1);
  write_file(o.model, bytes);
  o.max_steps = 8;
  o.resume = true;
  const Error problem = error_of([&] { Trainer(o).train(); });
  EXPECT_EQ(problem.code(), ErrorCode::usage);
  EXPECT_HAS(problem.what(), "a run whose model had another 'frozen', which isn't trained: give it the same model");
}

// Running statistics change where BatchNormalization is live.
TEST_F(TrainerRuns, ResumeWantsTheSameLiveLayers) {
  Arrays arrays;
  arrays.add("x", {8, 2}, numbers(16, 7919));
  arrays.add("labels", {8, 2}, numbers(16, 7907));
  Options o{.model = write_model(folder, kThree), .data = arrays.write(folder / "data.safetensors"), .loss = "mse", .learning_rate = 1e-3};
  o.max_steps = 4;
  o.profile = profile;
  for (const std::string first : {"live", "frozen"}) {
    o.output_dir = folder / first;
    o.batch_norm = first;
    o.resume = false;
    train_in_two(o, 2);
    o.batch_norm = first == "live" ? "frozen" : "live";
    o.max_steps = 6;
    o.resume = true;
    const Error problem = error_of([&] { Trainer(o).train(); });
    EXPECT_EQ(problem.code(), ErrorCode::usage);
    EXPECT_HAS(problem.what(), first == "live" ? "a run that changed 'mean', which stays as it is in this one"
                                               : "a run in which 'mean' stayed as it is; this one changes it");
    o.max_steps = 4;
  }
}

TEST_F(FrozenRuns, ResumeWantsTheSameTensors) {
  Options o = options();
  const Run whole = train(o);
  o.output_dir = folder / "resumed";
  EXPECT_EQ(train_in_two(o, 3).weights_hash, whole.summary.weights_hash);
  o.max_steps = 8;
  o.resume = true;
  for (const std::vector<std::string>& freeze : {std::vector<std::string>{}, {"frozen"}, {"v"}}) {
    o.freeze = freeze;
    const Error problem = error_of([&] { Trainer(o).train(); });
    EXPECT_EQ(problem.code(), ErrorCode::usage);
    EXPECT_HAS(problem.what(), "trains other tensors: give it the same `train` and `freeze`");
  }
  o.freeze = {"c", "froz*"};  // the same by other patterns
  EXPECT_EQ(Trainer(o).train().steps, 8);
}

}  // namespace
}  // namespace ort_train
