// Random numbers with addresses: Philox's own answers, masks that depend on nothing but their addresses, and jobs that train with Dropout.

#include "exec/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

#include "exec/kernel.h"
#include "exec/op_list.h"
#include "frontend/ort_train.h"
#include "graph/op_def.h"
#include "test_paths.h"
#include "tests/draws.h"
#include "tests/onnx_models.h"
#include "tests/token_data.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using fixtures::import_file;
using fixtures::write_model;

// The known answers of the paper's own library (Random123, kat_vectors).
TEST(Philox, GivesTheKnownAnswers) {
  struct Known {
    PhiloxCounter counter;
    PhiloxKey key;
    PhiloxCounter numbers;
  };
  for (const Known& known : {Known{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                             Known{{~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                             Known{{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                                   {0xa4093822, 0x299f31d0},
                                   {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}}) {
    uint32_t numbers[4 * kPhiloxLanes];
    philox(known.counter, known.key, numbers);
    for (size_t word = 0; word < 4; ++word) EXPECT_EQ(numbers[word], known.numbers[word]);
  }
  // A lane is the counter that stands so much further on, also where its first word overflows.
  uint32_t from[4 * kPhiloxLanes], later[4 * kPhiloxLanes];
  philox({0xfffffffa, 7, 1, 2}, {3, 4}, from);
  for (uint32_t lane : {1u, 6u, 15u}) {
    philox({0xfffffffa + lane, lane >= 6 ? 8u : 7u, 1, 2}, {3, 4}, later);
    for (size_t word = 0; word < 4; ++word) EXPECT_EQ(from[4 * lane + word], later[word]) << lane;
  }
}

std::vector<float> dropped(const Shape& shape, std::vector<int64_t> random, int64_t ordinal = 5, bool shared = false, float ratio = 0.25f) {
  Workers workers(2);
  Tensor ones(DType::float32, shape);
  for (float& x : ones.data<float>()) x = 1;
  const Tensor numbers = make_tensor<int64_t>({kRandomNumbers}, random);
  const Attributes attributes{{"ratio", ratio}, {"ordinal", ordinal}, {"shared", int64_t{shared}}};
  const Tensor result = evaluate(op_named("Dropout"), attributes, {&ones, &numbers}, 1, workers)[0];
  return {result.data<float>().begin(), result.data<float>().end()};
}

double agreement(const std::vector<float>& a, const std::vector<float>& b) {
  double same = 0;
  for (size_t i = 0; i < a.size(); ++i) same += a[i] == b[i];
  return same / static_cast<double>(a.size());
}

TEST(Dropout, MasksDependOnTheirAddressesAlone) {
  const auto draw = [](const Shape& shape, const std::vector<int64_t>& random, int64_t ordinal, bool shared) {
    return dropped(shape, random, ordinal, shared);
  };
  const std::vector<float> whole = draw({8, 5, 1001}, {42, 3, 0, 8}, 5, false);
  constexpr double kByChance = 0.75 * 0.75 + 0.25 * 0.25;
  fixtures::expect_addresses_decide(whole, draw, [&](const std::vector<float>& other, const char* what) {
    EXPECT_NEAR(agreement(other, whole), kByChance, 0.01) << what;
  });
}

TEST(Dropout, KeepsTheShareThatItShould) {
  for (const float ratio : {0.1f, 0.5f, 0.9f}) {
    const std::vector<float> y = dropped({1, 1'000'000}, {1, 1, 0, 1}, 1, false, ratio);
    double kept = 0;
    for (const float value : y) {
      ASSERT_TRUE(value == 0 || value == 1 / (1 - ratio));
      kept += value != 0;
    }
    EXPECT_NEAR(kept / 1e6, 1 - ratio, 4 * std::sqrt(ratio * (1 - ratio) / 1e6));
  }
}

constexpr const char* kModel = R"(<ir_version: 8, opset_import: ["" : 17]>
  g (float[N, 6] x) => (float[N, 2] y)
    <float[6, 4] w = {1, 2, 3, 4, -1, 2, 1, 0, 3, 1, 2, 1, 0, 1, 1, -2, 1, 1, 2, 1, 0, 3, 1, 1}, float[1, 4] b = {1, 2, -1, 1},
     float[4, 2] v = {1, -1, 2, 1, 1, 1, -2, 1}, float ratio = {0.5}, bool yes = {1}, bool no = {0}> {
    [of_weights] c, unread = Dropout (b, ratio, yes)
    h = MatMul (x, w)
    a = Add (h, c)
    [first] d, mask = Dropout (a, ratio, yes)
    [second] e = Dropout (d, ratio, yes)
    [never] f = Dropout (e, ratio, no)
    y = MatMul (f, v)
  })";

TEST(Dropout, ImportTellsTheModes) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, kModel), {.shapes = {{"N", 4}}});
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
  EXPECT_EQ(imported.info.notes, (std::vector<std::string>{"3 Dropout nodes are in training mode: what is dropped follows from `seed`",
                                                           "1 Dropout node is in evaluation mode: kept, dropping nothing"}));
  std::map<std::string, int64_t> shared;
  std::set<int64_t> ordinals;
  for (NodeId id : imported.graph.order()) {
    const Node& node = imported.graph.node(id);
    if (node.op->name != "Dropout") continue;
    shared[node.name] = node.attributes.get("shared", 0);
    ordinals.insert(node.attributes.get("ordinal", 0));
  }
  EXPECT_EQ(shared, (std::map<std::string, int64_t>{{"of_weights", 1}, {"first", 0}, {"second", 0}}));
  EXPECT_EQ(ordinals.size(), 3u);
}

struct DropoutTraining : TrainerRuns {
  const std::string model = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/dropout/bert-torchscript-17.onnx";

  Options options() {
    Options o{.model = model, .data = TokenData{}.write(folder / "data.safetensors")};
    o.batch_size = 8;
    o.learning_rate = 1e-3;
    o.max_steps = 6;  // the fourth is the remainder of 30
    o.threads = 2;
    o.profile = profile;
    o.shuffle = false;
    return o;
  }
};

TEST_F(DropoutTraining, TheSeedDecidesAndNothingElseDoes) {
  fixtures::expect_only_the_seed_decides(*this, options(), [&](Options other) {
    other.dump_after["recompute"] = folder / "recompute.onnx";
    const Run run = train(other);
    EXPECT_HAS(read_file(folder / "recompute.onnx"), "ropout again");
    EXPECT_GT(run.plan.saved_recomputed, 0) << other.recompute;
    return run;
  });
}

// With Dropout in the graph, too, memory decides nothing.
TEST_F(DropoutTraining, NoBudgetChangesABit) {
  Options o = options();
  o.data = TokenData{.samples = 600}.write(folder / "data.safetensors");  // activations of 3,072 tokens
  o.batch_size = 256;
  o.max_steps = 4;
  const Run plain = train(o);
  Options other = o;
  other.nvme_path = folder / "disk";
  std::filesystem::create_directory(other.nvme_path);
  const int64_t most = Trainer(other).plan().at_peak.total, least = Trainer(other).plan().minimum_budget;
  ASSERT_LT(least, most);
  for (const int64_t budget : {least, (least + most) / 2}) {
    other.budget = budget;
    const Run run = train(other);
    EXPECT_GT(run.plan.disk_bytes, 0);
    EXPECT_EQ(run.losses, plain.losses) << budget;
    EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << budget;
  }
}

TEST_F(DropoutTraining, AResumedRunDrawsWhatTheUninterruptedOneDraws) {
  Options o = options();
  const Run plain = train(o);
  o.output_dir = folder / "stopped";
  o.save_steps = 3;
  EXPECT_EQ(train_in_two(o, 3).weights_hash, plain.summary.weights_hash);
}

// The model's outputs and the loss on held-out data are those of the same weights in evaluation mode.
TEST_F(DropoutTraining, EvaluationDropsNothing) {
  Options o = options();
  o.output_dir = folder / "out";
  o.dropout = {{"Dropout", 0.0}};
  const double without = fixtures::losses_at_rest(o).evaluated.at(0);
  o.dropout = {};
  const auto [trained, evaluated] = fixtures::losses_at_rest(o);
  ASSERT_GE(evaluated.size(), 6u);
  for (const double loss : evaluated) EXPECT_EQ(loss, without);
  EXPECT_NE(trained[0], trained[2]);  // an epoch of 15 samples is two steps: the same samples, other masks
}

}  // namespace
}  // namespace ort_train
