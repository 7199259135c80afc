// --config FILE: the options that a file has, what the command line changes of them, and which files are refused.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "frontend/cli_options.h"
#include "graph/error_type.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::ElementsAre;
using testing::Pair;

struct Config : testing::Test {
  const TestFolder folder;

  std::string file(const std::string& text, const std::string& name = "run.yaml") const {
    std::string path = folder / name;
    std::ofstream(path) << text;
    return path;
  }
  static CommandLine parse(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "ort-train");
    std::vector<const char*> words;
    for (const std::string& argument : arguments) words.push_back(argument.c_str());
    return parse_command_line(static_cast<int>(words.size()), words.data());
  }
  CommandLine of(const std::string& text, std::vector<std::string> arguments = {}) const {
    arguments.insert(arguments.end(), {"--config", file(text)});
    return parse(std::move(arguments));
  }
  std::string refusal(const std::string& text, std::vector<std::string> arguments = {}) const {
    try {
      of(text, std::move(arguments));
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::usage);
      std::string sentence = problem.what();
      const size_t at = sentence.find(folder.path.string() + "/");
      return at == std::string::npos ? sentence : sentence.erase(at, folder.path.string().size() + 1);
    }
    return "accepted";
  }
};

TEST_F(Config, HasTheCommandLinesOptions) {
  const Options o = of(R"(# a run
model: model.onnx
data: "tokens.bin"
task: causal-lm
learning_rate: 1e-4
batch-size: 4
budget: 2GB
bf16: true
fp16: false
eval_strategy: no
save_strategy: epoch
metric_for_best_model: eval_loss
lora_r: 8
lora_target_modules: [q_proj, v_proj]
loss: [mse, l1]
no_shuffle: True
quantize_embeddings: true
optim: adamw_8bit
length_buckets: [64, 128]
freeze: [wte.weight, 'wpe.*']
train: lm_head
shape: {sequence: 32, 'x.1': 7}
bind: {rate: 16000, mode: "1,2", window: [3, 4], unused: null}
dropout: {Dropout: 0.5}
selects: ['/NonZero<=20', Compress=3]
batch_norm: {bn1: live, bn2: frozen}
lr_scheduler_kwargs: {num_cycles: 2, power: 1}
param_group: {'h.*.bias': {lr: 1e-3, weight_decay: 0}}
dump_after: {simplify: a.onnx, fuse_gelu: b.onnx}
warmup_steps:
seed: 7
)")
                        .options;
  EXPECT_EQ(o.model, "model.onnx");
  EXPECT_EQ(o.data, "tokens.bin");
  EXPECT_EQ(o.task, "causal-lm");
  EXPECT_EQ(o.learning_rate, 1e-4);
  EXPECT_EQ(o.batch_size, 4);
  EXPECT_EQ(o.budget, 2'000'000'000);
  EXPECT_TRUE(o.bf16);
  EXPECT_FALSE(o.fp16);
  EXPECT_EQ(o.eval_strategy, "no");
  EXPECT_EQ(o.save_strategy, "epoch");
  EXPECT_EQ(o.lora_rank, 8);
  EXPECT_THAT(o.lora_target, ElementsAre("q_proj", "v_proj"));
  EXPECT_EQ(o.loss, "mse,l1");
  EXPECT_FALSE(o.shuffle);
  EXPECT_THAT(o.optim_args, ElementsAre(Pair("quantize_embeddings", 1)));
  EXPECT_THAT(o.length_buckets, ElementsAre(64, 128));
  EXPECT_THAT(o.freeze, ElementsAre("wte.weight", "wpe.*"));
  EXPECT_THAT(o.train, ElementsAre("lm_head"));
  EXPECT_THAT(o.shapes, ElementsAre(Pair("sequence", 32), Pair("x.1", 7)));
  EXPECT_THAT(o.bind, ElementsAre(Pair("mode", "1,2"), Pair("rate", "16000"), Pair("window", "3,4")));
  EXPECT_THAT(o.dropout, ElementsAre(Pair("Dropout", 0.5)));
  ASSERT_EQ(o.selects.size(), 2u);
  EXPECT_EQ(o.selects[0].node, "/NonZero");
  EXPECT_EQ(o.selects[1].count, 3);
  EXPECT_THAT(o.batch_norm_nodes, ElementsAre(Pair("bn1", "live"), Pair("bn2", "frozen")));
  EXPECT_THAT(o.lr_scheduler_kwargs, ElementsAre(Pair("num_cycles", "2"), Pair("power", "1")));
  ASSERT_EQ(o.param_groups.size(), 1u);
  EXPECT_EQ(o.param_groups[0].pattern, "h.*.bias");
  EXPECT_EQ(o.param_groups[0].lr, 1e-3);
  EXPECT_EQ(o.param_groups[0].weight_decay, 0);
  EXPECT_THAT(o.dump_after, ElementsAre(Pair("fuse_gelu", "b.onnx"), Pair("simplify", "a.onnx")));
  EXPECT_EQ(o.warmup_steps, 0);
  EXPECT_EQ(o.seed, 7u);
}

TEST_F(Config, GivesWayToTheCommandLine) {
  const std::string text = "model: a.onnx\nlearning_rate: 1e-4\nbf16: true\nfreeze: [a, b]\nseed: 3\nper_device_train_batch_size: 2\n";
  const Options o = of(text, {"b.onnx", "--learning_rate", "2e-4", "--bf16=false", "--freeze=c", "--batch-size", "8"}).options;
  EXPECT_EQ(o.model, "b.onnx");
  EXPECT_EQ(o.learning_rate, 2e-4);
  EXPECT_FALSE(o.bf16);
  EXPECT_THAT(o.freeze, ElementsAre("c"));
  EXPECT_EQ(o.batch_size, 8);
  EXPECT_EQ(o.seed, 3u);
  EXPECT_EQ(of(text, {"check"}).command, CommandLine::Command::check);
}

// What says the same in another way.
TEST_F(Config, GivesWayToAlternatives) {
  const std::string text = "model: a.onnx\nbf16: true\nmax_steps: 100\nwarmup_ratio: 0.1\ngradient_checkpointing: true\nresume: true\n";
  const Options o =
      of(text, {"--fp32", "--num-train-epochs", "2", "--warmup-steps", "0", "--recompute", "all", "--resume-from-checkpoint", "auto"})
          .options;
  EXPECT_TRUE(o.fp32);
  EXPECT_FALSE(o.bf16);
  EXPECT_EQ(o.max_steps, -1);
  EXPECT_EQ(o.num_train_epochs, 2);
  EXPECT_EQ(o.warmup_steps, 0);
  EXPECT_EQ(o.recompute, "all");
  EXPECT_FALSE(o.resume);
  const Options other = of(text, {"--fp32=false", "--warmup-ratio", "0.2"}).options;
  EXPECT_TRUE(other.bf16) << "nothing is given in its place";
  EXPECT_EQ(other.warmup_steps, 0.2);
  EXPECT_EQ(other.max_steps, 100);
  const Options both = of("model: a.onnx\nmax_steps: 5\nnum_train_epochs: 7\n").options;
  EXPECT_EQ(both.max_steps, 5);
  EXPECT_EQ(both.num_train_epochs, 7);
}

TEST_F(Config, OfSeveralFilesTheLastCounts) {
  const std::string first = file("seed: 1\nbatch_size: 2\nmodel: a.onnx\nbf16: true\nfreeze: [a, b]\nfp16: false\n", "first.yaml"),
                    second = file(R"({"seed": 2, "model": "b.onnx", "bf16": false, "freeze": ["c"], "batch_size": null})", "second.json");
  const Options o = parse({"--config", first, "--config=" + second}).options;
  EXPECT_EQ(o.seed, 2u);
  EXPECT_EQ(o.batch_size, 2);
  EXPECT_EQ(o.model, "b.onnx");
  EXPECT_FALSE(o.bf16);
  EXPECT_THAT(o.freeze, ElementsAre("c"));
  const Options reversed = parse({"--config", second, "--config=" + first, "--", "--config"}).options;
  EXPECT_EQ(reversed.seed, 1u);
  EXPECT_EQ(reversed.model, "--config") << "behind -- there are no options";
  EXPECT_TRUE(reversed.bf16);
  EXPECT_THAT(reversed.freeze, ElementsAre("a", "b"));
}

TEST_F(Config, CountsMoreThanARecipe) {
  const Options o = of("model: a.onnx\nrecipe: qlora\nlora_rank: 8\n").options;
  EXPECT_EQ(o.lora_rank, 8);
  EXPECT_EQ(o.base_dtype, "nf4");
  EXPECT_TRUE(o.bf16);
  const Options without = of("model: a.onnx\nrecipe: qlora\nbf16: false\nfp32: false\nlora_r: 4\n", {"--lora-r=2"}).options;
  EXPECT_FALSE(without.bf16);
  EXPECT_EQ(without.lora_rank, 2);
  EXPECT_EQ(of("model: a.onnx\nlora_rank: 8\n", {"--recipe", "qlora"}).options.lora_rank, 8);
}

TEST_F(Config, TurnsOffWhatIsOnByDefault) {
  const Options o = of("model: a.onnx\noptim: lamb\nlamb_bias_correction: false\nlamb_use_nvlamb: false\n").options;
  EXPECT_THAT(o.optim_args, ElementsAre(Pair("lamb_bias_correction", 0)));
}

TEST_F(Config, IsRefusedWithFileAndLine) {
  const std::string model = "model: a.onnx\n";
  EXPECT_EQ(refusal(model + "learning_rat: 1\n"), "run.yaml: line 2: unknown option --learning-rat; did you mean --learning-rate?");
  EXPECT_EQ(refusal(model + "target_modules: a\n"), "run.yaml: line 2: unknown option --target-modules: here it is --lora-target");
  EXPECT_EQ(refusal(model + "\nseed: ten\n"), "run.yaml: line 3: --seed ten: is not a whole number from 0 on, or is too large for one");
  EXPECT_EQ(refusal(model + "max_steps: 010\n"), "run.yaml: line 2: --max-steps 010: write it without a zero in front");
  EXPECT_EQ(refusal(model + "per_device_train_batch_size: x\n"),
            "run.yaml: line 2: --batch-size x: is not a whole number, or is too large for one");
  EXPECT_EQ(refusal(model + "seed: 1\nseed: 2\n"), "run.yaml: line 3: --seed is there twice");
  EXPECT_EQ(refusal(model + "batch_size: 1\nper-device-train-batch-size: 2\n"),
            "run.yaml: line 3: --per-device-train-batch-size is there twice");
  EXPECT_EQ(refusal(model + "bf16: 1\n"), "run.yaml: line 2: --bf16 is true or false");
  EXPECT_EQ(refusal(model + "loss: [[a]]\n"), "run.yaml: line 2: --loss has a value that is neither a number nor a text");
  EXPECT_EQ(refusal(model + "data: ''\n"), "run.yaml: line 2: --data has no value: leave it out");
  EXPECT_EQ(refusal(model + "config: b.yaml\n"), "run.yaml: line 2: --config belongs on the command line");
  EXPECT_EQ(refusal(model + "dump_after: [simplify]\n"),
            "run.yaml: line 2: --dump-after takes pairs: a mapping, or a list of twice as many words");
  EXPECT_EQ(refusal(model + "model: b.onnx\n"), "run.yaml: line 2: model is there twice");
  EXPECT_EQ(refusal("model: [a.onnx]\n"), "run.yaml: line 1: model is no path");
  EXPECT_EQ(refusal(model + "data: {train: a.bin}\n"), "run.yaml: line 2: --data takes no mapping of names to values");
  EXPECT_EQ(refusal(model + "batch_size: [1, 2]\n"), "run.yaml: line 2: --batch-size takes one value, not a list");
  EXPECT_EQ(refusal(model + "shape: {a: 1, b: 2, a: 3}\n"), "run.yaml: line 2: --shape has 'a' twice");
  EXPECT_EQ(refusal(model + "shape: {a: {b: 1}}\n"), "run.yaml: line 2: --shape has a value that is neither a number nor a text");
  EXPECT_EQ(refusal(model + "param_group: {a: {lr: 1, lr: 2}}\n"), "run.yaml: line 2: --param-group has 'lr' twice");
  EXPECT_EQ(refusal(model + "max_steps: true\n"), "run.yaml: line 2: --max-steps true: is not a whole number, or is too large for one");
  EXPECT_EQ(refusal(model + "metric_for_best_model: accuracy\n"),
            "run.yaml: line 2: --metric-for-best-model accuracy: is not known here: the held-out loss decides, eval_loss");
  EXPECT_EQ(refusal("- a\n"), "run.yaml: has no options: it is lines such as `learning_rate: 1e-4`");
  EXPECT_EQ(refusal(model + "loss: a: b\n"), "run.yaml: line 2: is no YAML: illegal map value");
  EXPECT_EQ(refusal("data: tokens.bin\n"), "no model is given: ort-train MODEL.onnx --data PATH (--help shows all options)");
  EXPECT_EQ(refusal(model, {"--config", folder / "none.yaml"}), "--config none.yaml: there is no such file");
  std::filesystem::create_directory(folder / "folder");
  EXPECT_EQ(refusal(model, {"--config", folder / "folder"}), "--config folder: is no regular file: name one of options");
}

TEST_F(Config, IsAShortText) {
  const std::string model = "model: a.onnx\n";
  EXPECT_EQ(refusal(model + "seed: 1\n" + std::string(1 << 20, '#') + "\n"),
            "--config run.yaml: is larger than 1 MiB, and so no file of options");
  for (const char* nested : {"[", "{", "{a: ", "- ", "? "}) {
    std::string text;
    for (int i = 0; i < 10'000; ++i) text += nested;
    EXPECT_EQ(refusal(text), "run.yaml: is nested deeper than a file of options is") << nested;
  }
  // yaml-cpp takes this one for the end of the file.
  EXPECT_EQ(refusal(model + "\x04\nseed: 1\n"), "run.yaml: line 2: has a control character, and so is no text");
  EXPECT_EQ(of("\xef\xbb\xbfmodel: a.onnx\r\nseed: 3\r\n").options.seed, 3u);
}

TEST_F(Config, IsOneDocumentWithoutAliases) {
  const std::string model = "model: a.onnx\n", second = "is a second document, or no YAML: a file of options has one";
  EXPECT_EQ(of("---\n" + model + "...\n").options.model, "a.onnx");
  EXPECT_EQ(refusal(model + "---\nseed: 1\n"), "run.yaml: line 2: " + second);
  EXPECT_EQ(refusal(",\n"), "run.yaml: line 1: " + second) << "yaml-cpp reads documents without end in it";
  const std::string quote = "put a text that begins with * in quotes";
  EXPECT_EQ(refusal(model + "freeze: *.bias\n"),
            fmt::format("run.yaml: line 2: is no YAML: the referenced anchor is not defined ({})", quote));
  EXPECT_EQ(refusal(model + "train: *\n"), fmt::format("run.yaml: line 2: is no YAML: alias not found after * ({})", quote));
  EXPECT_EQ(refusal(model + "freeze: &a [x]\ntrain: *a\n"), "run.yaml: line 3: has an alias, which isn't taken: " + quote);
  EXPECT_EQ(refusal(model + "freeze: &a [*a]\n"), "run.yaml: line 2: has an alias, which isn't taken: " + quote);
}

TEST_F(Config, KnowsOtherTrainersNames) {
  const auto parsed = [](std::vector<std::string> options) {
    options.insert(options.begin(), "model.onnx");
    return parse(options).options;
  };
  EXPECT_EQ(parsed({"--lora_r", "4"}).lora_rank, 4);
  EXPECT_THAT(parsed({"--lora_target_modules", "q", "--lora-target=v"}).lora_target, ElementsAre("q", "v"));
  EXPECT_EQ(parsed({"--eval_strategy", "epoch", "--save_strategy", "no"}).eval_strategy, "epoch");
  for (const char* metric : {"loss", "eval_loss"}) EXPECT_EQ(parsed({"--metric_for_best_model", metric}).model, "model.onnx");
}

}  // namespace
}  // namespace ort_train
