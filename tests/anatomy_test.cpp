// Where the memory of a step goes: the plan's tables are what each technique's arithmetic says, for a GPT of four layers.

#include <gtest/gtest.h>

#include "test_paths.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

constexpr int64_t kLayers = 4, kWidth = 128, kHeads = 4, kVocabulary = 65, kPositions = 256;  // of models/char-gpt.onnx
constexpr int64_t kBatch = 16, kTokens = 64, kRows = kBatch * kTokens;

constexpr int64_t kEmbeddings = (kVocabulary + kPositions) * kWidth;  // the head is the first of them
constexpr int64_t kMatrices = kLayers * 12 * kWidth * kWidth;         // attention: 3 + 1 squares; MLP: 4 + 4
constexpr int64_t kVectors = kLayers * 13 * kWidth + 2 * kWidth;      // biases: 3 + 1 + 4 + 1; two norms of 2; the last norm
constexpr int64_t kParameters = kEmbeddings + kMatrices + kVectors;
constexpr int64_t kVectorCount = kLayers * 8 + 2;

// What the backward pass needs. In 16 bits are the operands of products and what is made of them; the sums at a layer's two ends, and the
// embeddings', are as wide as the residual stream.
constexpr int64_t saved(int64_t low, int64_t residual) {
  constexpr int64_t kStatistics = 4 * 2;                          // of a norm: mean and inverse deviation
  const int64_t attention = kWidth * low * (3 + 2) + 4 * kHeads;  // q, k, v; the result, by heads and in a row; sums of exponentials
  const int64_t mlp = kWidth * low * (4 + 4);                     // before GELU, behind it
  const int64_t layer = 2 * (kWidth * low + kStatistics) + attention + mlp + 2 * kWidth * residual;
  const int64_t ends =
      kWidth * residual + kWidth * low + kStatistics + kVocabulary * low + 4;  // embeddings, last norm, logits and their sum
  return kRows * (kLayers * layer + ends);
}

struct Technique {
  std::string name;
  void (*choose)(Options&);
  int64_t weights = 4 * kParameters, optimizer = 8 * kParameters, gradients = 0, activations = saved(4, 4);
  int64_t padding = 0;  // at most so many bytes more of weights, and for each byte of an element's state as many
};

struct Anatomy : TrainerRuns, ::testing::WithParamInterface<Technique> {};

TEST_P(Anatomy, TheTableIsTheTechniquesArithmetic) {
  const Technique& technique = GetParam();
  Options o{.model = ORT_TRAIN_SOURCE_DIR "/models/char-gpt.onnx",
            .data = ORT_TRAIN_SOURCE_DIR "/models/tinyshakespeare.txt",
            .task = "causal-lm",
            .batch_size = kBatch,
            .seq_length = kTokens};
  o.profile = profile;
  o.output_dir = folder / "out";
  technique.choose(o);
  const Trainer trainer(o);
  const PlanReport& plan = trainer.plan();
  EXPECT_EQ(plan.parameters, kParameters);
  for (const PlanMoves& moves : plan.moves) {
    const int64_t expected = moves.kind == "weights"     ? technique.weights
                             : moves.kind == "optimizer" ? technique.optimizer
                             : moves.kind == "gradients" ? technique.gradients
                                                         : technique.activations;
    const int64_t more = moves.kind == "weights" ? technique.padding : moves.kind == "optimizer" ? 2 * technique.padding : 0;
    EXPECT_GE(moves.kept_bytes, expected) << moves.kind;
    EXPECT_LE(moves.kept_bytes, expected + more) << moves.kind;
    EXPECT_EQ(moves.recomputed, 0) << moves.kind;
  }
  // At the step's peak, all of these are in memory but for activations that are no longer needed then.
  EXPECT_GE(plan.at_peak.weights, technique.weights);
  EXPECT_GE(plan.at_peak.optimizer, technique.optimizer);
  EXPECT_GE(plan.at_peak.gradients, technique.gradients);
  EXPECT_EQ(plan.at_peak.total, plan.at_peak.program + plan.at_peak.weights + plan.at_peak.gradients + plan.at_peak.optimizer +
                                    plan.at_peak.activations + plan.at_peak.workspace + plan.at_peak.gaps);
}

// Moments of whole matrices in 8 bits, each 256 with a scale of 4 bytes; embeddings and small tensors have float32.
constexpr int64_t codes(int64_t moments) { return moments * (kMatrices + kMatrices / 256 * 4 + 4 * (kEmbeddings + kVectors)); }

INSTANTIATE_TEST_SUITE_P(
    Techniques, Anatomy,
    ::testing::Values(Technique{.name = "float32", .choose = [](Options&) {}},
                      Technique{.name = "bf16", .choose = [](Options& o) { o.bf16 = true; }, .activations = saved(2, 4)},
                      Technique{.name = "fp16", .choose = [](Options& o) { o.fp16 = true; }, .activations = saved(2, 4)},
                      Technique{.name = "bf16_weights",
                                .choose = [](Options& o) { o.bf16_full = true; },
                                .weights = 2 * (kParameters - kVectors) + 4 * kVectors,
                                .activations = saved(2, 2)},
                      Technique{.name = "sgd", .choose = [](Options& o) { o.optim = "sgd"; }, .optimizer = 0},
                      Technique{.name = "lion", .choose = [](Options& o) { o.optim = "lion"; }, .optimizer = 4 * kParameters},
                      Technique{.name = "adafactor",  // rows and columns
                                .choose = [](Options& o) { o.optim = "adafactor"; },
                                .optimizer = 4 * (kVocabulary + kPositions + 2 * kWidth + kLayers * (4 + 2 + 5 + 5) * kWidth + kVectors)},
                      Technique{.name = "adamw_8bit",
                                .choose = [](Options& o) { o.optim = "adamw_8bit"; },
                                .optimizer = codes(2),
                                .padding = 4 * 256 * kVectorCount},
                      Technique{.name = "lion_8bit",
                                .choose = [](Options& o) { o.optim = "lion_8bit"; },
                                .optimizer = codes(1),
                                .padding = 4 * 256 * kVectorCount},
                      Technique{.name = "accumulation",  // and the head's gradient waits for the embedding's
                                .choose = [](Options& o) { o.gradient_accumulation_steps = 2; },
                                .gradients = 4 * kParameters + 4 * kVocabulary * kWidth},
                      Technique{
                          .name = "all_at_once",
                          .choose =
                              [](Options& o) {
                                o.bf16_full = true;
                                o.optim = "adamw_8bit";
                                o.clip_per_layer = true;
                              },
                          .weights = 2 * (kParameters - kVectors) + 4 * kVectors,
                          .optimizer = codes(2),
                          .activations = saved(2, 2),
                          .padding = 4 * 256 * kVectorCount}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace ort_train
