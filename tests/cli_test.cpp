// The command line as scripts use it: names, exit codes, files, budgets, interruption and resumption. Runs the built program.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "test_paths.h"
#include "tests/chain_model.h"
#include "tests/foreign_files.h"
#include "tests/sanitized.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::HasSubstr;
using Json = nlohmann::json;
namespace fs = std::filesystem;

const std::string kProgram = std::string(ORT_TRAIN_BINARY_DIR) + "/ort-train";
const std::string kModels = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/";

struct Result {
  int code = -1;
  std::string out, err;
  int64_t peak = 0;  // VmHWM as last seen from outside
};

int64_t peak_of(pid_t process) {
  std::ifstream status("/proc/" + std::to_string(process) + "/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return 0;
}

struct CommandLineTest : testing::Test {
  TestFolder folder;

  // `meanwhile(process)` is called again and again while the program runs. `read`: its output goes to a pipe, of which so many bytes are
  // read before its reader goes away. Arguments that begin with a program are run as they are.
  Result run(const std::vector<std::string>& arguments, const std::function<void(pid_t)>& meanwhile = {}, size_t read = 0) {
    const std::string out = folder / "stdout", err = folder / "stderr";
    std::vector<std::string> all;
    if (arguments.empty() || (arguments[0] != "nohup" && arguments[0] != "sh")) all.push_back(kProgram);
    all.insert(all.end(), arguments.begin(), arguments.end());
    int ends[2] = {-1, -1};
    if (read > 0 && ::pipe2(ends, O_CLOEXEC) != 0) ADD_FAILURE() << "no pipe";
    std::vector<char*> pointers;
    for (std::string& argument : all) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    const pid_t process = fork();
    if (process == 0) {
      ::signal(SIGHUP, SIG_DFL);  // whatever the tests were started with
      const int out_file = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666),
                err_file = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0666);
      dup2(read > 0 ? ends[1] : out_file, 1);
      dup2(err_file, 2);
      execvp(pointers[0], pointers.data());
      _exit(126);
    }
    Result result;
    if (read > 0) {
      ::close(ends[1]);
      char byte;
      while (read > 0 && ::read(ends[0], &byte, 1) == 1) --read;
      ::close(ends[0]);
    }
    int status = 0;
    while (waitpid(process, &status, WNOHANG) == 0) {
      if (const int64_t peak = peak_of(process); peak > 0) result.peak = peak;
      if (meanwhile) meanwhile(process);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    result.out = read_file(out);
    result.err = read_file(err);
    return result;
  }

  // A small GPT-2 on tokens from a file: 40 samples of 8.
  std::vector<std::string> gpt(const std::string& out, const std::vector<std::string>& more = {}) {
    const std::string tokens = folder / "tokens.bin";
    if (!fs::exists(tokens)) {
      std::vector<uint16_t> ids;
      for (int i = 0; i < 326; ++i) ids.push_back(static_cast<uint16_t>(i * i * 7 % 61));
      write_file(tokens, bytes_of(ids));
    }
    std::vector<std::string> arguments{kModels + "gpt2-dynamo-20-folded.onnx",
                                       "--data",
                                       tokens,
                                       "--task",
                                       "causal-lm",
                                       "--seq-length",
                                       "8",
                                       "--batch-size",
                                       "3",
                                       "--learning-rate",
                                       "1e-3",
                                       "--output-dir",
                                       folder / out,
                                       "--log-file",
                                       folder / (out + ".jsonl")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return arguments;
  }
  std::vector<Json> log(const std::string& out) const {
    std::vector<Json> lines;
    std::ifstream file(folder / (out + ".jsonl"));
    for (std::string line; std::getline(file, line);) lines.push_back(Json::parse(line));
    return lines;
  }
  // Losses and norms of a log, and the hash of its summary.
  static std::vector<std::string> numbers(const std::vector<Json>& lines) {
    std::vector<std::string> result;
    for (const Json& line : lines) {
      if (line.contains("summary"))
        result.push_back(line["summary"]["weights_hash"]);
      else
        result.push_back(line["step"].dump() + " " + line["loss"].dump() + " " + line["grad_norm"].dump() + " " +
                         line["learning_rate"].dump());
    }
    return result;
  }
  size_t lines_of(const std::string& out) const {
    const std::string text = read_file(folder / (out + ".jsonl"));
    return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
  }
};

TEST_F(CommandLineTest, HelpShowsGroupsAndDefaults) {
  const Result help = run({"--help"});
  EXPECT_EQ(help.code, 0);
  for (const char* text : {"ort-train check", "Data:", "Memory:", "Optimizer:", "--learning-rate FLOAT=5e-05", "--adam-beta2 FLOAT=0.999",
                           "--output-dir TEXT=out", "--save-steps INT=500", "--save-total-limit", "--overwrite",
                           "--resume-from-checkpoint auto|PATH", "Exit codes"}) {
    EXPECT_THAT(help.out, HasSubstr(text));
  }
  const Result version = run({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, testing::StartsWith("ort-train 0."));
}

TEST_F(CommandLineTest, ExitCodes) {
  const auto expect = [&](const std::vector<std::string>& arguments, int code, const std::string& text) {
    const Result result = run(arguments);
    EXPECT_EQ(result.code, code) << result.err;
    EXPECT_THAT(result.err, testing::StartsWith("error: "));
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  expect({}, 2, "no model");
  expect(gpt("o", {"--lerning_rate", "1"}), 2, "did you mean --learning-rate?");
  expect(gpt("o", {"--max-stepz=3"}), 2, "did you mean --max-steps?");
  expect(gpt("o", {"--max-steps", "many"}), 2, "max-steps");
  expect(gpt("o", {"another.onnx"}), 2, "one model");
  expect(gpt("o", {"--optim", "adamw_hf"}), 2,
         "Hugging Face's names for them: adamw, adam, sgd, adafactor, adafactor_torch, lion, lamb, lars, adagrad, rmsprop");
  expect(gpt("o", {"--optim", "sgd", "--nesterov"}), 2, "--optim sgd: --nesterov goes with --momentum, which is 0");
  expect(gpt("o", {"--optim", "adafactor", "--momentum", "0.9"}), 2, "--momentum 0.9: --optim adafactor has no such option, only");
  expect(gpt("o", {"--adam-beta1", "1"}), 2, "--adam-beta1 1: has to lie in [0, 1)");
  expect(gpt("o", {"--recompute", "most"}), 2, "auto, none, sqrt or all");
  expect(gpt("o", {"--gradient-checkpointing", "--recompute", "none"}), 2, "give one of them");
  expect(gpt("o", {"--shape", "batch"}), 2, "name=value");
  expect(gpt("o", {"--budget", "12 apples"}), 2, "no number of bytes");
  expect({kModels + "mlp-mse.onnx"}, 2, "no data is given: --data is a file");
  expect(gpt("o", {"--host-budget", "1GB"}), 2, "--host-budget 1000000000: limits pinned memory beside a GPU");
  expect(gpt("o", {"--device", "tpu"}), 2, "--device tpu: is not known: cpu, cuda, or cuda:1");
  expect(gpt("o", {"--device", "cuda", "--detect-anomaly"}), 2, "use --device cpu for it");
  expect(gpt("o", {"--device", "cuda:99"}), 9, "--device cuda");
  for (const char* variable : {"NVIDIA_TF32_OVERRIDE", "CUBLAS_EMULATE_SINGLE_PRECISION"}) {
    setenv(variable, "0", 1);
    expect(gpt("o", {"--device", "cuda"}), 2, std::string("the environment's ") + variable + " changes what GPUs compute: unset it");
    unsetenv(variable);
  }
  expect(gpt("o", {"--shape", "nothing=3"}), 2, "--shape nothing=3: the model has no free dimension");
  expect(gpt("o", {"--skip-pass", "all"}), 2, "--skip-pass all: no such pass");
  expect({folder / "missing.onnx", "--data", "x.npz"}, 6, "missing.onnx");
  expect({write_file(folder / "bad.onnx", "this is no model"), "--data", "x.npz"}, 3, "bad.onnx");
  expect({kModels + "mlp-mse.onnx", "--data", folder / "none.npz"}, 5, "none.npz");
  expect({kModels + "mlp-own-loss.onnx", "--data", kModels + "mlp-mse.data.safetensors", "--loss", "output"}, 5, "no array 'target'");
  expect({kModels + "mlp-mse.onnx", "--data", kModels + "mlp-mse.data.safetensors", "--loss", "mse"}, 5, "'labels'");
  expect(
      {kModels + "gpt2-dynamo-20-folded.onnx", "--data", write_file(folder / "t.txt", "abc"), "--task", "causal-lm", "--seq-length", "2"},
      5, "vocabulary");
  expect(gpt("o", {"--budget", "1MB"}), 4, "smallest budget");
  std::vector<uint16_t> wild(64, 60000);
  std::vector<std::string> arguments = gpt("o");
  arguments[2] = write_file(folder / "wild.bin", bytes_of(wild));
  expect(arguments, 5, "60000");
  expect(gpt("o", {"--resume"}), 2, "no checkpoint");
  EXPECT_FALSE(fs::exists(folder / "o/model.onnx"));
}

TEST_F(CommandLineTest, CheckSaysWhatCanBeTrained) {
  const Result result = run({"check", kModels + "mlp-mse.onnx"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("prediction"));
}

TEST_F(CommandLineTest, PlanShowsThePlanAndTrainsNothing) {
  for (const bool word : {true, false}) {
    std::vector<std::string> arguments =
        gpt("o", {"--plan-json", folder / "plan.json", "--plan-svg", folder / "plan.svg", "--recompute", "none"});
    if (word)
      arguments.insert(arguments.begin(), "plan");
    else
      arguments.push_back("--plan");
    const Result result = run(arguments);
    EXPECT_EQ(result.code, 0) << result.err;
    for (const char* text : {"program", "weights", "optimizer", "smallest budget", "predicted"}) EXPECT_THAT(result.out, HasSubstr(text));
    const Json plan = Json::parse(read_file(folder / "plan.json"));
    EXPECT_GT(plan.at("minimum_budget_bytes").get<int64_t>(), plan.at("planned_peak_bytes").at("RAM").get<int64_t>());
    EXPECT_EQ(plan.at("peak").at("total"), plan.at("minimum_budget_bytes"));
    EXPECT_GT(plan.at("recompute").at("kept"), 0);
    EXPECT_THAT(plan.at("minimum").at("op").get<std::string>(), HasSubstr("'"));
    EXPECT_EQ(plan.at("bounded_by"), "compute");
    EXPECT_EQ(plan.at("lower_bound_ms_per_step"), plan.at("predicted_ms_per_step"));  // everything is in memory
    int64_t weights = 0;
    for (const Json& row : plan.at("moves")) weights += row.at("kind") == "weights" ? row.at("kept_bytes").get<int64_t>() : 0;
    EXPECT_LE(weights, plan.at("peak").at("weights").get<int64_t>());  // which are whole cache lines
    EXPECT_GE(weights * 10, plan.at("peak").at("weights").get<int64_t>() * 9);
    EXPECT_EQ(plan.at("recompute").at("recomputed"), 0);
    EXPECT_THAT(read_file(folder / "plan.svg"), HasSubstr("<svg"));
    EXPECT_FALSE(fs::exists(folder / "o"));
  }
}

TEST_F(CommandLineTest, TheLogHasALineAStepAndASummary) {
  const Result result = run(gpt("a", {"--max_steps=5", "--lr_scheduler_type", "cosine", "--warmup_steps", "0.4"}));
  ASSERT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr("step 5/5"));
  const std::vector<Json> lines = log("a");
  ASSERT_EQ(lines.size(), 6u);
  for (const char* key : {"planned_ms_per_step", "ms_per_step", "median_ms_per_step"}) EXPECT_GT(lines[5].at("summary").at(key), 0) << key;
  EXPECT_EQ(lines[5].at("summary").at("disk_per_step"), lines[5].at("summary").at("planned_disk_per_step"));
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(lines[i].at("step"), i + 1);
    for (const char* key : {"loss", "grad_norm", "learning_rate", "ms", "tokens_per_second"})
      EXPECT_TRUE(lines[i].at(key).is_number()) << key;
  }
  EXPECT_EQ(lines[0].at("learning_rate"), 0.0);
  EXPECT_EQ(lines[2].at("learning_rate"), 1e-3);
  const Json& summary = lines[5].at("summary");
  EXPECT_EQ(summary.at("weights_hash").get<std::string>().size(), 16u);
  EXPECT_EQ(summary.at("measured_peak_bytes").at("RAM").is_number(), true);
  EXPECT_LE(summary.at("measured_peak_bytes").at("RAM").get<int64_t>(), summary.at("planned_peak_bytes").at("RAM").get<int64_t>());
  EXPECT_GT(summary.at("minimum_budget_bytes").get<int64_t>(), summary.at("planned_peak_bytes").at("RAM").get<int64_t>());
  EXPECT_TRUE(fs::exists(folder / "a/model.onnx"));
  EXPECT_TRUE(fs::exists(folder / "a/checkpoint-5"));
}

// Each op of the step's, with what it took and did; the first step doesn't count.
TEST_F(CommandLineTest, OpTimesTellWhatAStepTook) {
  ASSERT_EQ(run(gpt("a", {"--max_steps=5", "--op-times", folder / "ops.json"})).code, 0);
  const Json entries = Json::parse(read_file(folder / "ops.json")).at("entries");
  ASSERT_EQ(entries.size(), 1u);
  EXPECT_EQ(entries[0].at("entry"), "train");
  EXPECT_EQ(entries[0].at("runs"), 4);
  double share = 0, milliseconds = 0;
  std::map<std::string, Json> by_name;
  for (const Json& op : entries[0].at("ops")) {
    share += op.at("share").get<double>();
    milliseconds += op.at("ms").get<double>();
    by_name[op.at("op")] = op;
  }
  EXPECT_NEAR(share, 1, 1e-9);
  double steps = 0;
  for (const Json& line : log("a")) steps += line.value("step", 0) > 1 ? line.at("computing_ms").get<double>() : 0;
  EXPECT_NEAR(milliseconds, steps / 4, 0.2 * milliseconds);  // which counts views, too
  EXPECT_EQ(by_name.at("SoftmaxCrossEntropy").at("nodes"), 1);
  EXPECT_GT(by_name.at("MatMul").at("nodes"), 10);
  for (const char* rate : {"gflops", "gigabytes_per_second"}) EXPECT_GT(by_name.at("MatMul").at(rate), 0) << rate;
  double of_nodes = 0;
  int64_t products = 0;
  for (const Json& node : entries[0].at("nodes")) {
    of_nodes += node.at("ms").get<double>();
    products += node.at("op") == "MatMul" ? 1 : 0;
    EXPECT_FALSE(node.at("node").get<std::string>().empty()) << node;
    const Json& tasks = node.at("tasks");
    EXPECT_GE(tasks.at("ms").get<double>(), tasks.at("longest_ms")) << node;
    EXPECT_GE(tasks.at("scheduled_ms").get<double>(), tasks.at("longest_ms")) << node;
    if (node.at("op") == "MatMul") {
      EXPECT_GE(tasks.at("count"), tasks.at("loops").get<int64_t>()) << node;
    }
  }
  EXPECT_NEAR(of_nodes, milliseconds, 1e-6 * milliseconds);
  EXPECT_EQ(products, by_name.at("MatMul").at("nodes"));
  ASSERT_EQ(run(gpt("b", {"--max_steps=1", "--op-times", folder / "one.json"})).code, 0);
  EXPECT_EQ(Json::parse(read_file(folder / "one.json")).at("entries"), Json::array());
}

TEST_F(CommandLineTest, SchedulesTakeArgumentsAsPairsAndAsJson) {
  const auto rates = [&](const std::string& out, const std::string& arguments) {
    const Result result = run(gpt(out, {"--max-steps", "6", "--lr-scheduler-type", "wsd", "--warmup-ratio", "0.3", "--lr-scheduler-kwargs",
                                        arguments, "--param-group", "*ln_*:lr_scale=0.5,weight_decay=0", "--param_group=*.bias:lr=1e-5"}));
    EXPECT_EQ(result.code, 0) << result.err;
    std::vector<double> found;
    for (const Json& line : log(out)) {
      if (line.contains("learning_rate")) found.push_back(line.at("learning_rate"));
    }
    return found;
  };
  const std::vector<double> pairs = rates("a", "num-decay-steps=2,decay_type=linear,min_lr_ratio=0.5");
  EXPECT_EQ(pairs, (std::vector<double>{5e-4, 7.5e-4, 1e-3, 1e-3, 1e-3, 7.5e-4}));
  EXPECT_EQ(rates("b", R"({"num_decay_steps": 2, "decay_type": "linear", "min_lr_ratio": 0.5, "num_stable_steps": null})"), pairs);
  const Result plan = run(gpt("c", {"--plan", "--param-group", "*ln_*:lr_scale=0.5,weight_decay=0"}));
  EXPECT_EQ(plan.code, 0) << plan.err;
  EXPECT_THAT(plan.out,
              testing::ContainsRegex("groups .*tensors +parameters +learning rate +weight decay\n +others .*\n +\\*ln_\\* .* 0.0005 "));
}

TEST_F(CommandLineTest, ALearningRateOfZeroGivesTheSameFileBack) {
  for (const char* model : {"gpt2-dynamo-20-folded", "gpt2-torchscript-18-folded", "mlp-mse"}) {
    const std::string data = kModels + model + ".data.safetensors";
    std::vector<std::string> arguments{kModels + model + ".onnx", "--data", data,           "--max-steps", "2", "--batch-size", "2",
                                       "--learning-rate",         "0",      "--output-dir", folder / model};
    if (std::string(model) == "mlp-mse") arguments.insert(arguments.end(), {"--loss", "mse", "--labels", "y"});
    const Result result = run(arguments);
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_THAT(result.out, HasSubstr(std::string(model) == "mlp-mse" ? " samples/s" : " tok/s"));
    EXPECT_TRUE(read_file(folder / (std::string(model) + "/model.onnx")) == read_file(kModels + model + ".onnx")) << model;
  }
}

// One epoch of 40 samples in windows of two batches of three: the last window is short, and so is its last batch.
TEST_F(CommandLineTest, RemaindersAccumulationAndEvaluation) {
  const Result plain = run(gpt("a", {"--num-train-epochs", "2", "--batch-size", "6", "--no-shuffle"}));
  ASSERT_EQ(plain.code, 0) << plain.err;
  ASSERT_EQ(log("a").size(), 15u);
  const Result result = run(gpt("b", {"--num-train-epochs", "2", "--gradient-accumulation-steps", "2", "--no-shuffle"}));
  ASSERT_EQ(result.code, 0) << result.err;
  ASSERT_EQ(log("b").size(), 15u);  // 2 x 3 is 6: the same batches, summed in another order
  for (size_t i = 0; i < 14; ++i) EXPECT_NEAR(log("a")[i]["loss"].get<double>(), log("b")[i]["loss"].get<double>(), 2e-5) << i;
  const Result evaluated = run(gpt("c", {"--max-steps", "10", "--eval-steps", "4", "--load_best_model_at_end"}));
  ASSERT_EQ(evaluated.code, 0) << evaluated.err;
  EXPECT_THAT(evaluated.out, HasSubstr("the held-out loss was lowest after step"));
  std::vector<bool> has;
  for (const Json& line : log("c")) has.push_back(line.contains("eval_loss"));
  EXPECT_EQ(has, (std::vector<bool>{false, false, false, true, false, false, false, true, false, true, false}));
}

TEST_F(CommandLineTest, NamesSpellingThreadsAndBudgetsChangeNoBit) {
  ASSERT_EQ(run(gpt("a", {"--max-steps", "6", "--threads", "1"})).code, 0);
  ASSERT_EQ(run(gpt("b", {"--max_steps", "6", "--threads", "3", "--budget", "1GiB"})).code, 0);
  EXPECT_EQ(numbers(log("a")), numbers(log("b")));
}

constexpr const char* kSanitizersMemory =
    "the sanitizer's own memory is many times the program's, and counts as resident; the build without it runs this test";

TEST_F(CommandLineTest, TheSmallestBudgetIsExact) {
  if (kSanitized) GTEST_SKIP() << kSanitizersMemory;
  const Result refused = run(gpt("o", {"--max-steps", "30", "--budget", "1MB"}));
  ASSERT_EQ(refused.code, 4);
  const size_t at = refused.err.find("(--budget ");
  ASSERT_NE(at, std::string::npos);
  const int64_t least = std::stoll(refused.err.substr(at + 10));
  for (int repeat = 0; repeat < 3; ++repeat) {
    EXPECT_EQ(run(gpt("o", {"--max-steps", "30", "--budget", std::to_string(least - 4096)})).code, 4);
    const Result result = run(gpt("o", {"--max-steps", "30", "--save-steps", "10", "--overwrite", "--budget", std::to_string(least)}));
    ASSERT_EQ(result.code, 0) << result.err;
    EXPECT_GT(result.peak, 0);
    EXPECT_LE(result.peak, least);
    const Json summary = log("o").back().at("summary");
    EXPECT_LE(summary.at("rss_peak_bytes").get<int64_t>(), least);
    EXPECT_EQ(summary.at("minimum_budget_bytes").get<int64_t>(), least);
    // Resident memory is flat: the budget is not merely generous.
    EXPECT_GT(result.peak, least - (16 << 20));
  }
}

// Planning a thousand nodes takes more than the arena of their tiny weights.
TEST_F(CommandLineTest, PlanningStaysInTheSmallestBudget) {
  if (kSanitized) GTEST_SKIP() << kSanitizersMemory;
  std::vector<std::string> job{write_chain(folder / "deep", 1500, 4), "--data", write_chain_data(folder / "deep", 512, 4)};
  job.insert(job.end(), {"--loss", "mse", "--batch-size", "256", "--max-steps", "2", "--threads", "1", "--nvme-path", folder / ""});
  job.insert(job.end(), {"--output-dir", folder / "o", "--overwrite", "--budget", "1MB"});
  const std::string refusal = run(job).err;
  ASSERT_NE(refusal.find("(--budget "), std::string::npos) << refusal;
  job.back() = std::to_string(std::stoll(refusal.substr(refusal.find("(--budget ") + 10)));
  const Result result = run(job);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_LE(result.peak, std::stoll(job.back()));
}

TEST_F(CommandLineTest, AKilledRunGoesOnBitForBit) {
  const std::vector<std::string> more{"--max-steps", "240", "--save-steps", "7", "--gradient-accumulation-steps", "2"};
  ASSERT_EQ(run(gpt("whole", more)).code, 0);
  // Killed again and again, wherever it happens to be.
  std::vector<std::string> resumed = more;
  int killed = 0;
  for (const size_t lines : {9, 17, 23, 40}) {
    const Result result = run(gpt("pieces", resumed), [&](pid_t process) {
      if (lines_of("pieces") >= lines) kill(process, SIGKILL);
    });
    killed += result.code == -SIGKILL;
    if (killed == 1) resumed.push_back("--resume");
    if (result.code == 0) break;
    ASSERT_EQ(result.code, -SIGKILL) << result.err;
  }
  ASSERT_GE(killed, 1);
  const Result last = run(gpt("pieces", resumed));
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_EQ(numbers(log("pieces")), numbers(log("whole")));
  EXPECT_TRUE(read_file(folder / "pieces/model.onnx") == read_file(folder / "whole/model.onnx"));
}

TEST_F(CommandLineTest, ASignalSavesAndTheRunGoesOn) {
  const std::vector<std::string> more{"--max-steps", "4000", "--lr-scheduler-type", "constant"};
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string out = "signal-" + std::to_string(signal);
    bool sent = false;
    const Result result = run(gpt(out, more), [&](pid_t process) {
      if (!sent && lines_of(out) >= 3) {
        sent = true;
        kill(process, signal);
      }
    });
    ASSERT_EQ(result.code, 128 + signal) << result.err;
    EXPECT_THAT(result.out, HasSubstr("--resume"));
    const std::vector<Json> lines = log(out);
    const int64_t steps = lines.back().at("summary").at("steps").get<int64_t>();
    EXPECT_EQ(lines.back().at("summary").at("stopped"), true);
    EXPECT_EQ(static_cast<int64_t>(lines.size()), steps + 1);
    EXPECT_TRUE(fs::exists(folder / (out + "/checkpoint-" + std::to_string(steps))));
    EXPECT_FALSE(fs::exists(folder / (out + "/model.onnx")));
    // Two steps more, against a run that was never stopped.
    const std::string total = std::to_string(steps + 2);
    ASSERT_EQ(run(gpt(out, {"--max-steps", total, "--lr-scheduler-type", "constant", "--resume"})).code, 0);
    ASSERT_EQ(run(gpt(out + "-whole", {"--max-steps", total, "--lr-scheduler-type", "constant"})).code, 0);
    EXPECT_EQ(numbers(log(out)), numbers(log(out + "-whole")));
  }
}

TEST_F(CommandLineTest, ASignalThatNohupIgnoresIsIgnored) {
  std::vector<std::string> command{"nohup", kProgram};
  for (const std::string& argument : gpt("a", {"--max-steps", "60"})) command.push_back(argument);
  bool sent = false;
  const Result result = run(command, [&](pid_t process) {
    if (!sent && lines_of("a") >= 3) {
      sent = true;
      kill(process, SIGHUP);
    }
  });
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(sent);
}

// Its reader goes away in the middle of a run, or the disk under it is full from the beginning.
TEST_F(CommandLineTest, OutputThatCantBeWrittenEndsInASavedRun) {
  const std::vector<std::string> more{"--max-steps", "4000", "--lr-scheduler-type", "constant", "--logging-steps", "1"};
  const Result cut = run(gpt("a", more), {}, /*read=*/2000);
  ASSERT_EQ(cut.code, 6) << cut.err;
  EXPECT_THAT(cut.err, testing::AllOf(testing::StartsWith("error: the output can't be written: Broken pipe; the run is saved after step "),
                                      HasSubstr("a/checkpoint-"), HasSubstr("--resume")));
  const std::vector<Json> lines = log("a");
  const int64_t steps = lines.back().at("summary").at("steps").get<int64_t>();
  EXPECT_EQ(static_cast<int64_t>(lines.size()), steps + 1);
  const std::string total = std::to_string(steps + 2);
  ASSERT_EQ(run(gpt("a", {"--max-steps", total, "--lr-scheduler-type", "constant", "--resume"})).code, 0);
  ASSERT_EQ(run(gpt("whole", {"--max-steps", total, "--lr-scheduler-type", "constant"})).code, 0);
  EXPECT_EQ(numbers(log("a")), numbers(log("whole")));

  std::vector<std::string> both{"sh", "-c", "exec \"$@\" 2>&1", "sh", kProgram};  // its errors, too
  for (const std::string& argument : gpt("both", more)) both.push_back(argument);
  EXPECT_EQ(run(both, {}, /*read=*/2000).code, 6);
  EXPECT_GT(lines_of("both"), 2u);

  std::vector<std::string> full{"sh", "-c", "exec \"$@\" > /dev/full", "sh", kProgram};
  for (const std::string& argument : gpt("full", more)) full.push_back(argument);
  const Result refused = run(full);
  EXPECT_EQ(refused.code, 6);
  EXPECT_EQ(refused.err, "error: the output can't be written: No space left on device\n");
  EXPECT_FALSE(fs::exists(folder / "full"));  // nothing was begun
}

// Hugging Face's Trainer has used the same output folder: whatever is done there, killed runs included, its files stay.
TEST_F(CommandLineTest, AnotherToolsCheckpointsSurviveEveryCommand) {
  const std::vector<std::string> theirs{"checkpoint-500", "checkpoint-1000",   ".tmp-checkpoint-600", "checkpoint-best",
                                        "runs",           "trainer_state.json"};
  for (const std::string& name : theirs) {
    if (name.find('.') < 2 || name.find('.') == std::string::npos) write_trainer_checkpoint(folder.path / "out" / name);
  }
  write_file(folder / "out/trainer_state.json", "{}");
  const auto before = contents_of(folder / "out", theirs);
  const auto expect = [&](int code, const std::vector<std::string>& more, const std::string& command = {}, size_t kill_at = 0) {
    std::vector<std::string> arguments = gpt("out", more);
    if (!command.empty()) arguments.insert(arguments.begin(), command);
    const Result result = run(arguments, [&](pid_t process) {
      if (kill_at > 0 && lines_of("out") >= kill_at) kill(process, SIGKILL);
    });
    EXPECT_EQ(result.code, code) << result.err << result.out;
    EXPECT_EQ(contents_of(folder / "out", theirs), before);
    return result;
  };
  expect(0, {}, "check");
  expect(0, {"--max-steps", "9"}, "plan");
  EXPECT_THAT(expect(2, {"--max-steps", "9", "--resume"}).err, HasSubstr("no checkpoint to resume from"));
  EXPECT_THAT(expect(2, {"--max-steps", "9", "--resume-from-checkpoint", folder / "out/checkpoint-500"}).err,
              HasSubstr("is no checkpoint"));
  const std::string clash = expect(2, {"--max-steps", "500", "--overwrite"}).err;  // before step 1
  EXPECT_THAT(clash, testing::AllOf(HasSubstr("out/checkpoint-500: was not written by ort-train"), HasSubstr("up to 500")));
  EXPECT_EQ(lines_of("out"), 0u);
  const std::vector<std::string> job{"--max-steps", "400", "--save-steps", "3", "--save-total-limit", "1", "--resume-from-checkpoint",
                                     "auto"};
  for (const size_t lines : {4, 20, 40}) expect(-SIGKILL, job, {}, lines);
  expect(0, {"--max-steps", "400", "--resume"});
  EXPECT_THAT(expect(2, {"--max-steps", "9"}).err, testing::AllOf(HasSubstr("checkpoint-400"), HasSubstr("overwrite")));
  expect(0, {"--max-steps", "9", "--save-steps", "3", "--overwrite"});
  EXPECT_TRUE(fs::exists(folder / "out/checkpoint-9"));
  EXPECT_FALSE(fs::exists(folder / "out/checkpoint-400"));
  expect(0, {"--max-steps", "8", "--overwrite"});  // those of earlier runs go at the end, however few there are of this one
  EXPECT_TRUE(fs::exists(folder / "out/checkpoint-8"));
  EXPECT_FALSE(fs::exists(folder / "out/checkpoint-9"));
}

TEST_F(CommandLineTest, ABrokenCheckpointIsSkippedAndNoneLeftIsCorrupt) {
  ASSERT_EQ(run(gpt("a", {"--max-steps", "8", "--save-steps", "5"})).code, 0);
  const auto flip = [&](const std::string& path) {
    std::string bytes = read_file(path);
    bytes[bytes.size() - 9] = static_cast<char>(bytes[bytes.size() - 9] ^ 4);
    write_file(path, bytes);
  };
  const std::string hash = log("a").back().at("summary").at("weights_hash");
  flip(folder / "a/checkpoint-8/weights.safetensors");
  const Result resumed = run(gpt("a", {"--max-steps", "8", "--save-steps", "5", "--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_THAT(resumed.out, testing::AllOf(HasSubstr("checkpoint-8 is skipped"), HasSubstr("checkpoint-5 after step 5")));
  EXPECT_EQ(log("a").back().at("summary").at("weights_hash"), hash);
  flip(folder / "a/checkpoint-8/optimizer.safetensors");
  flip(folder / "a/checkpoint-5/weights.safetensors");
  const Result corrupt = run(gpt("a", {"--max-steps", "8", "--resume"}));
  EXPECT_EQ(corrupt.code, 8) << corrupt.out;
}

TEST_F(CommandLineTest, DivergenceEndsTheRunAndSparesWhatWasSaved) {
  const Result result = run(gpt("a", {"--max-steps", "50", "--save-steps", "1", "--learning-rate", "1e30", "--lr-scheduler-type",
                                      "constant", "--max-grad-norm", "0"}));
  ASSERT_EQ(result.code, 7) << result.err;
  EXPECT_THAT(result.err, testing::AllOf(HasSubstr("step "), HasSubstr("--learning-rate")));
  ASSERT_FALSE(log("a").empty());
  EXPECT_TRUE(log("a").back().at("loss").is_null() || log("a").back().at("grad_norm").is_null());  // JSON has no infinity
  EXPECT_FALSE(fs::exists(folder / "a/checkpoint-" + std::to_string(log("a").size())));
}

TEST_F(CommandLineTest, AForeignModelIsNeverOverwritten) {
  fs::create_directory(folder / "o");
  write_file(folder / "o/model.onnx", "precious");
  const Result result = run(gpt("o", {"--max-steps", "1"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(read_file(folder / "o/model.onnx"), "precious");
  EXPECT_FALSE(fs::exists(folder / "o/checkpoint-1"));
}

TEST_F(CommandLineTest, TextIsTrainedOnAndWritten) {
  fs::copy_file(kModels + "gpt2-dynamo-20-folded.onnx", folder / "m.onnx");
  write_file(folder / "m.vocab.json", R"({"tokens": ["\n", " ", "a", "b", "c", "d", "é"]})");
  std::string text;
  for (int i = 0; i < 400; ++i) text += i % 5 == 4 ? "é\n" : "abc d ";
  fs::create_directory(folder / "data");
  write_file(folder / "data/train.txt", text), write_file(folder / "data/valid.txt", text.substr(0, 300));
  const Result result = run({folder / "m.onnx", "--data", folder / "data", "--task", "causal-lm", "--seq-length", "8", "--max-steps", "30",
                             "--learning-rate", "3e-3", "--eval-steps", "10", "--output-dir", folder / "o", "--sample-length", "20"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string held_out = "held-out    loss ", text_of_20 = "sample      \n[abcd \n\xc3\xa9]{20,40}\n$";  // a loss of chance is ln 7
  EXPECT_THAT(result.out, testing::ContainsRegex(held_out + "[23]\\..*" + held_out + "2\\..*" + held_out + "1\\.[0-8].*" + text_of_20));
}

TEST_F(CommandLineTest, RecipesStandForOptions) {
  const std::string model = kModels + "gpt2-dynamo-20-folded.onnx";
  EXPECT_THAT(run({"check", model, "--recipe", "lora"}).err, HasSubstr("--recipe 'lora' is not known: qlora or bitfit"));
  const Result known = run({"check", model, "--recipe=qlora", "--lora-rank", "2"});  // what is given counts
  EXPECT_EQ(known.code, 0) << known.err;
  EXPECT_THAT(known.out, HasSubstr("LoRA of rank 2, scale 8"));
  std::vector<std::string> job = gpt("o", {"--recipe", "qlora", "--lora-rank", "2", "--per-device-train-batch-size", "4"});
  job.erase(std::find(job.begin(), job.end(), "--batch-size"), std::find(job.begin(), job.end(), "--learning-rate"));
  job.insert(job.begin(), "plan");
  EXPECT_THAT(run(job).out, HasSubstr("batch 4 x 8"));
}

TEST_F(CommandLineTest, ExportAddsAnAdapter) {
  const Result none = run({"export", kModels + "gpt2-dynamo-20-folded.onnx", "--output-dir", folder / "out"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("no adapter is given: --adapter is a folder"));
}

}  // namespace
}  // namespace ort_train
