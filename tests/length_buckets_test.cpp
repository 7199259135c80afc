// `length_buckets`: batches that are cut to shorter samples compute what they would with the padding, in less; each length is an entry of
// one program, and whatever the budget the same bits come out.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/arrays.h"
#include "tests/masked_model.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;

struct LengthBuckets : TrainerRuns {
  static constexpr int64_t kSamples = 22, kLength = 16, kVocabulary = 256, kWidth = 1024;

  std::string model() const {
    ort_train_onnx::ModelProto model = masked_model(kVocabulary);
    const auto add = [&](const char* name, std::vector<int64_t> dims, int64_t step) {
      std::vector<float> values = numbers(element_count(dims), step);
      for (float& value : values) value /= 32;
      *model.mutable_graph()->add_initializer() = tensor_of(name, dims, values);
    };
    add("embedding", {kVocabulary, kWidth}, 7919);
    add("w", {kWidth, kWidth}, 613);
    add("v", {kWidth, kVocabulary}, 619);
    return write_model(folder, model);
  }
  static int64_t length_of(int64_t sample) { return sample % 7 == 3 ? 2 + sample % 15 : 1 + sample * 5 % 6; }
  Options options() const {
    std::vector<int64_t> ids, labels;
    std::vector<float> mask;
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      for (int64_t i = 0; i < kLength; ++i) {
        const bool counts = i < length_of(sample);
        ids.push_back(counts ? (sample * 31 + i * 7) % kVocabulary : 0);
        labels.push_back(counts ? (sample * 17 + i * 5) % kVocabulary : -100);
        mask.push_back(counts ? 1.0f : 0.0f);
      }
    }
    Arrays arrays;
    arrays.add("input_ids", {kSamples, kLength}, ids);
    arrays.add("attention_mask", {kSamples, kLength}, mask);
    arrays.add("labels", {kSamples, kLength}, labels);
    Options o{.model = model(), .data = arrays.write(folder / "data.safetensors")};
    o.length_buckets = {4, 8};
    o.batch_size = 3;
    o.learning_rate = 1e-2;
    o.num_train_epochs = 2;
    o.eval_steps = 5;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
};

TEST_F(LengthBuckets, ComputeWhatThePaddedBatchesDo) {
  for (const int64_t accumulation : {1, 3}) {
    Options o = options();
    o.gradient_accumulation_steps = accumulation;
    const Run cut = train(o);
    o.length_buckets.clear();
    const Run padded = train(o);
    ASSERT_EQ(cut.losses.size(), padded.losses.size());
    for (size_t i = 0; i < cut.losses.size(); ++i) EXPECT_NEAR(cut.losses[i], padded.losses[i], 2e-5 * std::abs(padded.losses[i])) << i;
    EXPECT_NEAR(cut.summary.eval_loss, padded.summary.eval_loss, 2e-5 * padded.summary.eval_loss);
    EXPECT_LT(cut.plan.flops_per_step, 0.7 * padded.plan.flops_per_step);
  }
}

// Whatever reads an array of the samples' length reads it cut: here a loss that is a model, with a weight for each position.
TEST_F(LengthBuckets, LossModelsReadWhatIsCut) {
  Options o = options();
  const TestFolder beside;
  o.loss_model = write_model(beside, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, seq, n] logits, float[batch, seq] attention_mask, float[batch, seq] importance) => (float loss) {
      last = Constant <value_ints = [2]> ()
      square = Mul (logits, logits)
      each = ReduceSum <keepdims = 0> (square, last)
      important = Mul (each, importance)
      kept = Mul (important, attention_mask)
      loss = ReduceSum <keepdims = 0> (kept) })");
  std::vector<int64_t> ids;
  std::vector<float> mask;
  for (int64_t i = 0; i < kSamples * kLength; ++i) {
    const bool counts = i % kLength < length_of(i / kLength);
    ids.push_back(counts ? i % kVocabulary : 0);
    mask.push_back(counts ? 1.0f : 0.0f);
  }
  Arrays arrays;
  arrays.add("input_ids", {kSamples, kLength}, ids).add("attention_mask", {kSamples, kLength}, mask);
  arrays.add("importance", {kSamples, kLength}, numbers(kSamples * kLength, 7919));
  o.data = arrays.write(folder / "weighted.safetensors");
  o.max_steps = 4;
  const Run cut = train(o);
  EXPECT_EQ(cut.plan.lengths.size(), 3u);
  o.length_buckets.clear();
  const Run padded = train(o);
  for (size_t i = 0; i < cut.losses.size(); ++i) EXPECT_NEAR(cut.losses[i], padded.losses[i], 2e-5 * std::abs(padded.losses[i])) << i;
}

// All three occur, and the plan knows how often.
TEST_F(LengthBuckets, ThePlanHasTheShareOfEach) {
  const Trainer trainer(options());
  const std::vector<LengthReport>& lengths = trainer.plan().lengths;
  ASSERT_EQ(lengths.size(), 3u);
  EXPECT_EQ(lengths[0].length, kLength);
  EXPECT_EQ(lengths[1].length, 8);
  EXPECT_EQ(lengths[2].length, 4);
  double sum = 0;
  for (const LengthReport& length : lengths) {
    EXPECT_GT(length.share, 0);
    sum += length.share;
  }
  EXPECT_NEAR(sum, 1, 1e-9);
  EXPECT_HAS(trainer.plan().text, "lengths     16 for ");
}

// Whatever the budget, with and without a disk, recomputing, with updates that wait; killed and resumed.
TEST_F(LengthBuckets, TheBudgetChangesNoBit) {
  for (const int64_t accumulation : {1, 2}) {
    Options o = options();
    o.gradient_accumulation_steps = accumulation;
    const Run whole = train(o);
    Options small = o;
    small.recompute = "all";
    EXPECT_EQ(train(small).losses, whole.losses);
    small = o;
    small.nvme_path = folder / "disk";
    std::filesystem::create_directories(small.nvme_path);
    on.part_bytes = 1 << 20;
    const Run parts = train(o);
    EXPECT_EQ(parts.losses, whole.losses);
    const int64_t least = least_budget(small);
    for (const int64_t budget : {least, least + (parts.plan.at_peak.total - least) / 2}) {
      small.budget = budget;
      const Run run = train(small);
      EXPECT_GT(run.plan.disk_read_per_step, 0);
      EXPECT_EQ(run.losses, whole.losses) << budget;
      EXPECT_EQ(run.summary.weights_hash, whole.summary.weights_hash);
      EXPECT_EQ(run.summary.eval_loss, whole.summary.eval_loss);
    }
    small.output_dir = folder / fmt::format("resumed-{}", accumulation);
    EXPECT_EQ(train_in_two(small, 3).weights_hash, whole.summary.weights_hash);
    on.part_bytes = 0;
  }
}

// One that is added to scores has 0 where no padding is. Where a mask has nothing but zeros, nobody can say how long its sample is.
TEST_F(LengthBuckets, ZerosAreNoPaddingInEveryMask) {
  Options o = options();
  const auto with_mask = [&](const std::vector<float>& mask) {
    Arrays arrays;
    arrays.add("input_ids", {4, kLength}, std::vector<int64_t>(4 * kLength, 1));
    arrays.add("labels", {4, kLength}, std::vector<int64_t>(4 * kLength, 1));
    arrays.add("attention_mask", {4, kLength}, mask);
    o.data = arrays.write(folder / "mask.safetensors");
    o.eval_steps = 0;
  };
  std::vector<float> mask(4 * kLength, 0.0f);
  with_mask(mask);
  EXPECT_EQ(Trainer(o).plan().lengths.at(0).share, 1);
  for (int64_t i = kLength - 3; i < kLength; ++i) mask[static_cast<size_t>(kLength + i)] = -1e9f;
  with_mask(mask);
  const Error problem = error_of([&] { const Trainer trainer(o); });
  EXPECT_EQ(problem.code(), ErrorCode::data);
  EXPECT_HAS(problem.what(), "sample 1: array 'attention_mask' has negative numbers");
}

TEST_F(LengthBuckets, WhatDoesNotFitIsRefused) {
  const auto refusal = [&](const Options& o, ErrorCode code) {
    const Error problem = error_of([&] { const Trainer trainer(o); });
    EXPECT_EQ(problem.code(), code) << problem.what();
    return std::string(problem.what());
  };
  Options o = options();
  o.length_buckets = {0};
  EXPECT_HAS(refusal(o, ErrorCode::usage), "`length_buckets` 0: a length is at least 1");
  o.length_buckets = {17};
  EXPECT_HAS(refusal(o, ErrorCode::usage), "`length_buckets` 17: the samples of ");
  o.length_buckets = {8};
  Arrays arrays;
  arrays.add("input_ids", {4, kLength}, std::vector<int64_t>(4 * kLength));
  arrays.add("labels", {4, kLength}, std::vector<int64_t>(4 * kLength));
  o.data = arrays.write(folder / "no-mask.safetensors");
  o.bind = {{"attention_mask", "1"}};
  EXPECT_HAS(refusal(o, ErrorCode::data), "has no array 'attention_mask' of two dimensions");
  o = options();
  std::string fixed = read_file(o.model);
  ort_train_onnx::ModelProto model;
  ASSERT_TRUE(model.ParseFromString(fixed));
  auto& shape = *model.mutable_graph()->add_initializer();
  shape.set_name("shape"), shape.set_data_type(ort_train_onnx::TensorProto::INT64), shape.add_dims(3);
  for (const int64_t dim : {int64_t{-1}, kLength, kVocabulary}) shape.add_int64_data(dim);
  auto& node = *model.mutable_graph()->add_node();
  node.set_op_type("Reshape"), node.add_input("logits"), node.add_input("shape"), node.add_output("reshaped");
  model.mutable_graph()->mutable_output(0)->set_name("reshaped");
  o.model = write_model(folder, model);
  EXPECT_HAS(refusal(o, ErrorCode::unsupported), "`length_buckets` 8: the model can't be cut to samples of that length");
  o = options();
  o.shapes = {{"seq", kLength}};
  EXPECT_EQ(Trainer(o).plan().lengths.size(), 3u);  // a size that is given is the longest
}

}  // namespace
}  // namespace ort_train
