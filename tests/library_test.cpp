// What a program that embeds the library relies on: calls in callbacks change no bit of the run, a stop ends what is under way and nothing
// else, nothing but Errors (and its own exceptions) comes out, a trainer that failed says so, and the rounding of its threads is its own.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cfenv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "exec/float_environment.h"
#include "exec/workers.h"
#include "frontend/boundary.h"
#include "frontend/file.h"
#include "test_paths.h"
#include "tests/arrays.h"
#include "tests/failures.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using ::testing::HasSubstr;
using namespace fixtures;

// y = tanh(x w) v, with a table of held-out samples.
struct Library : TrainerRuns {
  static constexpr int64_t kSamples = 26, kIn = 256, kInner = 768, kOut = 16;

  Options options(float scale = 1) const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
             h = MatMul (x, w)
             a = Tanh (h)
             y = MatMul (a, v) }})",
        kIn, kOut));
    *model.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kInner}, scaled(kIn * kInner, 7919, scale));
    *model.mutable_graph()->add_initializer() = tensor_of("v", {kInner, kOut}, scaled(kInner * kOut, 7907, scale));
    Options o{.model = write_model(folder, model)};
    o.data = Arrays()
                 .add("x", {kSamples, kIn}, scaled(kSamples * kIn, 104'729, scale))
                 .add("labels", {kSamples, kOut}, scaled(kSamples * kOut, 1'299'709, scale))
                 .write(folder / "data.safetensors");
    o.loss = "mse";
    o.batch_size = 4;
    o.learning_rate = 1e-3;
    o.eval_steps = 1000;
    o.validation_split = 0.2;
    o.predict_batch_size = 2;
    o.max_steps = 6;
    o.threads = 2;
    o.profile = profile;
    o.output_dir = folder / "out";
    return o;
  }

  static std::vector<float> scaled(int64_t count, int64_t step, float scale) {
    std::vector<float> values = numbers(count, step);
    for (float& value : values) value *= scale;
    return values;
  }

  static std::map<std::string, std::vector<float>> predict(Trainer& trainer) { return trainer.predict({}, {{"x", numbers(2 * kIn, 31)}}); }

  // A small GPT on text: the job of all calls.
  Options text(int64_t accumulation) const {
    Options o{.model = std::string(ORT_TRAIN_SOURCE_DIR) + "/models/char-gpt.onnx", .task = "causal-lm"};
    o.data = std::string(ORT_TRAIN_SOURCE_DIR) + "/models/tinyshakespeare.txt";
    o.batch_size = 2;
    o.seq_length = 128;
    o.gradient_accumulation_steps = accumulation;
    o.max_steps = 4;
    o.learning_rate = 1e-3;
    o.eval_steps = 1000;
    o.eval_batches = 1;
    o.predict_batch_size = 2;
    o.threads = 2;
    o.profile = profile;
    return o;
  }

  // What each call gives after each step; and the run's losses, norms and hash.
  struct Watched {
    Run run{};
    std::vector<std::string> texts{};
    std::vector<std::vector<float>> predicted{};
    std::vector<double> held_out{};
  };
  Watched watch(Options o, const std::string& name) const {
    o.output_dir = folder / name;
    Watched result;
    Trainer* self = nullptr;
    Trainer trainer(o, {.on_step = [&](const StepReport& step) {
                      result.run.losses.insert(result.run.losses.end(), {step.loss, step.grad_norm});
                      // Another call comes first after each step: whichever it is, it is the one that finds an update waiting.
                      for (int64_t call = step.step; call < step.step + 3; ++call) {
                        if (call % 3 == 0) result.texts.push_back(self->sample("RO", 4, 0, 1));
                        if (call % 3 == 1) result.held_out.push_back(self->evaluate());
                        if (call % 3 == 2)
                          result.predicted.push_back(self->predict({{"input_ids", std::vector<int64_t>(2 * 128, 7)}}, {}).at("logits"));
                      }
                    }});
    self = &trainer;
    result.run.plan = trainer.plan();
    result.run.summary = trainer.train();
    return result;
  }
};

// Updates that wait for the next step are made before the weights are read, and the run goes on as if nobody had asked.
TEST_F(Library, CallsInOnStepSeeTheStepAndChangeNoBit) {
  for (const int64_t accumulation : {1, 3}) {
    Options o = text(accumulation);
    o.micro_batches = "horizontal";
    const Run plain = train(o);
    const Watched resident = watch(o, fmt::format("resident{}", accumulation));
    EXPECT_EQ(resident.run.losses, plain.losses);
    EXPECT_EQ(resident.run.summary.weights_hash, plain.summary.weights_hash);
    ASSERT_EQ(resident.predicted.size(), 4u);
    for (size_t i = 1; i < 4; ++i) EXPECT_NE(resident.predicted[i], resident.predicted[i - 1]) << "each step changes the weights";
    o.nvme_path = folder / fmt::format("disk{}", accumulation);
    std::filesystem::create_directory(o.nvme_path);
    const int64_t least = Trainer(o).plan().minimum_budget, most = plain.plan.at_peak.total;
    for (int64_t eighths = 0; eighths < 8; ++eighths) {
      o.budget = least + (most - least) / 8 * eighths;
      if (Trainer(o).plan().updates_in_next_step) break;
    }
    const Watched streamed = watch(o, fmt::format("streamed{}", accumulation));
    EXPECT_TRUE(streamed.run.plan.updates_in_next_step) << "no budget lets an update wait: take another job";
    EXPECT_EQ(streamed.run.losses, plain.losses);
    EXPECT_EQ(streamed.run.summary.weights_hash, plain.summary.weights_hash);
    EXPECT_EQ(streamed.texts, resident.texts);
    EXPECT_TRUE(streamed.predicted == resident.predicted);
    EXPECT_EQ(streamed.held_out, resident.held_out);
  }
}

TEST_F(Library, AStopEndsTheTrainingAndNothingElse) {
  Trainer* self = nullptr;
  double inside = 0;
  Trainer trainer(options(), {.on_step = [&](const StepReport& step) {
                    if (step.step != 2) return;
                    self->request_stop();
                    inside = self->evaluate();
                  }});
  self = &trainer;
  EXPECT_TRUE(std::isfinite(trainer.evaluate()));
  const Summary summary = trainer.train();
  EXPECT_TRUE(summary.stopped);
  EXPECT_EQ(summary.steps, 2) << "evaluating didn't use the request up";
  EXPECT_TRUE(std::isfinite(inside));
  EXPECT_EQ(trainer.evaluate(), inside);
  EXPECT_EQ(predict(trainer).at("y").size(), 2u * kOut);
  trainer.request_stop();
  EXPECT_EQ(trainer.evaluate(), inside) << "nothing was under way";
}

TEST_F(Library, AStopBeforeTheTrainingEndsItBeforeItsFirstStep) {
  Trainer trainer(options());
  trainer.request_stop();
  EXPECT_TRUE(std::isfinite(trainer.evaluate()));
  const Summary summary = trainer.train();
  EXPECT_TRUE(summary.stopped);
  EXPECT_EQ(summary.steps, 0);
  EXPECT_TRUE(std::isfinite(trainer.evaluate()));
}

TEST_F(Library, AStopFromAnotherThreadEndsAnEvaluation) {
  Options o = options();
  Trainer trainer(o);
  const double whole = trainer.evaluate();
  std::atomic<bool> done{false};
  std::thread asking([&] {
    while (!done) {
      trainer.request_stop();
      std::this_thread::yield();
    }
  });
  bool ended = false;
  for (int i = 0; i < 1000 && !ended; ++i) {
    const double loss = trainer.evaluate();
    ended = std::isnan(loss);
    EXPECT_TRUE(ended || loss == whole) << loss;
  }
  done = true;
  asking.join();
  EXPECT_TRUE(ended);
}

// Its weights can't be read: not at first, and not by a trainer that has some of them.
TEST_F(Library, ATrainerWhosePreparationFailedIsOfNoUse) {
  const Options o = options();
  const std::string model = read_file(o.model);
  Trainer trainer(o);
  std::filesystem::resize_file(o.model, 500);
  EXPECT_THROW(trainer.evaluate(), Error);
  std::ofstream(o.model, std::ios::binary | std::ios::in | std::ios::out) << model;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { trainer.evaluate(); }), HasSubstr("make another one"));
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { predict(trainer); }), HasSubstr("make another one"));
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { trainer.train(); }), HasSubstr("make another one"));
  EXPECT_TRUE(std::isfinite(Trainer(o).evaluate()));
}

TEST_F(Library, AModelFileThatWasChangedSinceItWasImportedIsNotTrained) {
  const Options o = options();
  Trainer trainer(o);
  options(/*scale=*/2);  // writes another model of the same size over it
  EXPECT_THAT(error_of(ErrorCode::io, [&] { trainer.train(); }), HasSubstr("was changed since it was imported"));
  EXPECT_FALSE(std::filesystem::exists(o.output_dir + "/model.onnx"));
}

TEST_F(Library, TrainMayBeCalledAgainWhereItWasRefusedBeforeTheFirstStep) {
  const Options o = options();
  const std::string hash = Trainer(o).train().weights_hash;
  Options again = o;
  again.output_dir = folder / "again";
  std::filesystem::create_directories(again.output_dir);
  Trainer trainer(again);
  {
    const FolderLock other(again.output_dir);
    EXPECT_THAT(error_of(ErrorCode::usage, [&] { trainer.train(); }), HasSubstr("another run is writing into this folder"));
  }
  EXPECT_EQ(trainer.train().weights_hash, hash);
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { trainer.train(); }), HasSubstr("has trained already"));
}

TEST_F(Library, AChildProcessKeepsNoFolderLocked) {
  std::optional<FolderLock> lock(folder.path);
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  ASSERT_GT(child, 0);
  lock.reset();
  EXPECT_NO_THROW(FolderLock{folder.path});
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(Library, PathsWithAZeroCharacterAndStepsBeyondCountingAreRefused) {
  const auto refusal = [&](const auto& change) {
    Options o = options();
    change(o);
    return error_of(ErrorCode::usage, [&] { Trainer{o}; });
  };
  EXPECT_THAT(refusal([](Options& o) { o.model += std::string("\0x", 2); }), HasSubstr("`model` "));
  EXPECT_THAT(refusal([](Options& o) { o.log_file = std::string("a\0b", 3); }), HasSubstr("`log_file` a: holds a zero character"));
  for (const double epochs : {double{INFINITY}, 1e300, 1e16}) {
    EXPECT_THAT(refusal([&](Options& o) { o.max_steps = -1, o.num_train_epochs = epochs; }), HasSubstr("`num_train_epochs`"));
  }
  EXPECT_THAT(refusal([](Options& o) { o.gradient_accumulation_steps = INT64_MAX; }), HasSubstr("is more than can be counted"));
  EXPECT_THAT(refusal([](Options& o) { o.max_grad_norm = 1e-320; }), HasSubstr("is too small for a float32"));
}

// Another run goes on from the checkpoint that a trainer has read, and ends: nothing of it is replaced.
TEST_F(Library, ATrainerThatAnotherHasOvertakenDoesNotTrain) {
  Options o = options();
  o.max_steps = 2;
  Trainer(o).train();
  o.resume = true;
  o.max_steps = 4;
  Trainer trainer(o);
  EXPECT_TRUE(std::isfinite(trainer.evaluate()));
  const std::string saved = Trainer(o).train().checkpoint_path, state = read_file(saved + "/state.json");
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { trainer.train(); }), HasSubstr("another process has trained since"));
  EXPECT_EQ(read_file(saved + "/state.json"), state);
}

TEST_F(Library, ACallbackDuringPreparationCanUseNoWeights) {
  Options o = options();
  o.save_steps = 1;
  o.max_steps = 2;
  Trainer(o).train();
  o.resume = true;
  o.max_steps = 3;
  Trainer* self = nullptr;
  std::string said;
  Trainer trainer(o, {.on_note = [&](const std::string& text) {
                    if (self == nullptr || !text.starts_with("resumed")) return;
                    said = error_of(ErrorCode::usage, [&] { self->evaluate(); });
                  }});
  self = &trainer;
  EXPECT_TRUE(std::isfinite(trainer.evaluate()));
  EXPECT_THAT(said, HasSubstr("weights are being read"));
}

// --- exceptions -----------------------------------------------------------------------------------------------------------------------

template <typename Thrown> std::string said_of(ErrorCode code, Thrown thrown) {
  return error_of(code, [&] { in_library([&] { throw thrown; }); });
}

TEST(Exceptions, BecomeErrors) {
  EXPECT_THAT(said_of(ErrorCode::budget, std::bad_alloc()), HasSubstr("no memory left"));
  const auto denied = std::make_error_code(std::errc::permission_denied);
  EXPECT_THAT(said_of(ErrorCode::io, std::filesystem::filesystem_error("stat", "/a/b", denied)), HasSubstr("/a/b: "));
  EXPECT_THAT(said_of(ErrorCode::device, std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again))),
              HasSubstr("refuses"));
  EXPECT_THAT(said_of(ErrorCode::internal, std::out_of_range("at")), HasSubstr("please report"));
  EXPECT_THAT(said_of(ErrorCode::internal, 7), HasSubstr("please report"));
  EXPECT_EQ(said_of(ErrorCode::data, Error(ErrorCode::data, "as it is")), "as it is");
}

TEST_F(Library, CallbacksOwnExceptionsPassThrough) {
  const auto run = [&](auto thrown) {
    Options o = options();
    o.output_dir = folder / "thrown";
    std::filesystem::remove_all(o.output_dir);
    Trainer trainer(o, {.on_step = [&](const StepReport&) { throw thrown; }});
    trainer.train();
  };
  EXPECT_THROW(run(std::bad_alloc()), std::bad_alloc);
  EXPECT_THROW(run(std::filesystem::filesystem_error("mine", std::make_error_code(std::errc::io_error))),
               std::filesystem::filesystem_error);
  EXPECT_THROW(run(7), int);
  const Options o = options();
  EXPECT_THROW(Trainer(o, {.on_note = [](const std::string&) { throw 8; }}), int) << "while the trainer is made, too";
}

// A checkpoint that isn't there is worse than what the callback had to say.
TEST_F(Library, AFailedSaveIsToldInsteadOfWhatACallbackThrew) {
  Options o = options();
  o.output_dir = folder / "gone";
  Trainer trainer(o, {.on_step = [&](const StepReport&) {
                    std::filesystem::remove_all(o.output_dir);
                    write_file(o.output_dir, "no folder");
                    throw 7;
                  }});
  EXPECT_THAT(error_of(ErrorCode::io, [&] { trainer.train(); }), HasSubstr(o.output_dir));
}

// By a callback, in training.
int number_thrown(Trainer& trainer) {
  try {
    trainer.train();
  } catch (const int thrown) {
    return thrown;
  }
  ADD_FAILURE() << "nothing was thrown";
  return 0;
}

// Others that are thrown on the way to the end don't take its place.
TEST_F(Library, TheFirstOfSeveralExceptionsComesOut) {
  Options o = options();
  o.save_steps = 1;  // which is noted
  bool noted = false;
  Trainer trainer(o, {.on_step = [](const StepReport&) { throw 7; },
                      .on_note =
                          [&](const std::string& note) {
                            noted = note.starts_with("saved");
                            if (noted) throw 8;
                          }});
  EXPECT_EQ(number_thrown(trainer), 7);
  EXPECT_TRUE(noted);
}

TEST_F(Library, TheFirstComesOutThoughSavingIsInterrupted) {
  const Options o = options();
  bool noted = false;
  Trainer trainer(o, {.on_step =
                          [&](const StepReport&) {
                            std::filesystem::rename(o.output_dir, o.output_dir + "-elsewhere");
                            throw 7;
                          },
                      .on_note =
                          [&](const std::string& note) {
                            if (note.find("was moved") == std::string::npos) return;
                            noted = true;
                            throw 8;
                          }});
  EXPECT_EQ(number_thrown(trainer), 7);
  EXPECT_TRUE(noted);
}

// What a callback throws that another call gave it.
TEST_F(Library, AnErrorOfACallInACallbackComesOutOnce) {
  Trainer* self = nullptr;
  int steps = 0;
  Trainer trainer(options(), {.on_step = [&](const StepReport&) {
                    ++steps;
                    EXPECT_THROW(self->sample("a", 1, 0, 1), Error) << "there is no text";
                    if (steps == 3) self->sample("a", 1, 0, 1);
                  }});
  self = &trainer;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { trainer.train(); }), HasSubstr("text"));
  EXPECT_EQ(steps, 3);
  EXPECT_TRUE(std::isfinite(trainer.evaluate())) << "the step was whole";
}

TEST_F(Library, AHostBudgetIsRefusedOnTheProcessor) {
  Options o = options();
  o.host_budget = 1 << 20;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Trainer trainer(o); }), HasSubstr("`host_budget` 1048576"));
}

// --- floating-point numbers -----------------------------------------------------------------------------------------------------------

struct Rounding {
  const char* name;
  unsigned bits;  // of MXCSR
};
constexpr Rounding kRoundings[] = {{"flush to zero", 0x8040}, {"downward", 0x2000}, {"upward", 0x4000}, {"toward zero", 0x6000}};

TEST_F(Library, TheCallersRoundingChangesNoBitAndIsRestored) {
  for (const int threads : {1, 3}) {
    // Of the small numbers products and gradients are below the smallest normal one.
    Options o = options(threads == 1 ? 1 : 1e-14f);
    o.threads = threads;
    const Run plain = train(o);
    for (const Rounding& rounding : kRoundings) {
      const unsigned set = 0x1f80 | rounding.bits;
      _mm_setcsr(set);
      std::vector<unsigned> seen;
      Run run;
      Options here = o;
      here.output_dir = folder / "rounded";
      std::filesystem::remove_all(here.output_dir);
      {
        Trainer trainer(here, {.on_step = [&](const StepReport& step) {
                          seen.push_back(_mm_getcsr() & ~0x3fu);
                          run.losses.insert(run.losses.end(), {step.loss, step.grad_norm});
                        }});
        run.summary = trainer.train();
      }
      const unsigned left = _mm_getcsr() & ~0x3fu;
      _mm_setcsr(0x1f80);
      EXPECT_EQ(left, set) << rounding.name;
      EXPECT_EQ(seen, std::vector<unsigned>(static_cast<size_t>(o.max_steps), set)) << rounding.name;
      EXPECT_EQ(run.losses, plain.losses) << rounding.name;
      EXPECT_EQ(run.summary.weights_hash, plain.summary.weights_hash) << rounding.name << ' ' << threads;
    }
  }
}

TEST(FloatEnvironmentOfWorkers, IsTheLibrarysOnEveryThread) {
  _mm_setcsr(0x1f80 | 0x8040 | 0x6000);
  std::fesetround(FE_UPWARD);
  {
    Workers workers(4);
    std::atomic<int> other{0};
    for (int round = 0; round < 20; ++round) {
      workers.parallel_for(64, [&](int64_t, int) {
        if ((_mm_getcsr() & ~0x3fu) != 0x1f80 || std::fegetround() != FE_TONEAREST) ++other;
        std::this_thread::yield();
      });
    }
    workers.parallel_for(1, [&](int64_t, int) { other += (_mm_getcsr() & ~0x3fu) != 0x1f80; });
    EXPECT_EQ(other, 0);
  }
  EXPECT_EQ(std::fegetround(), FE_UPWARD);
  EXPECT_EQ(_mm_getcsr() & ~0x3fu, 0x1f80u | 0x8040 | 0x4000);
  std::fesetenv(FE_DFL_ENV);
  _mm_setcsr(0x1f80);
}

// --- messages -------------------------------------------------------------------------------------------------------------------------

// The string literals of a line of C++.
std::vector<std::string> literals_of(const std::string& line) {
  std::vector<std::string> found;
  for (size_t at = line.find('"'); at != std::string::npos;) {
    size_t end = at + 1;
    while (end < line.size() && line[end] != '"') end += line[end] == '\\' ? 2 : 1;
    if (end >= line.size()) break;
    found.push_back(line.substr(at, end + 1 - at));
    at = line.find('"', end + 1);
  }
  return found;
}

// Whether it has `--` and then a word of at least three characters.
bool names_option(const std::string& text) {
  const auto is_small = [](char c) { return c >= 'a' && c <= 'z'; };
  const auto goes_on = [&](char c) { return is_small(c) || (c >= '0' && c <= '9') || c == '-'; };
  for (size_t at = text.find("--"); at != std::string::npos; at = text.find("--", at + 1)) {
    if (at + 4 < text.size() && is_small(text[at + 2]) && goes_on(text[at + 3]) && goes_on(text[at + 4])) return true;
  }
  return false;
}

// The library's sentences name fields, never options of a program that it knows nothing of.
TEST(Messages, NameFieldsNotOptions) {
  const std::filesystem::path root = ORT_TRAIN_SOURCE_DIR;
  EXPECT_TRUE(names_option("\"give --budget\""));
  size_t literals = 0;
  for (const char* folder : {"frontend", "passes", "offload", "exec", "graph"}) {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(root / folder)) {
      const std::string name = entry.path().filename();
      const bool is_source = name.ends_with(".cpp") || name.ends_with(".h");
      if (!is_source || name.starts_with("cli_") || name == "main.cpp") continue;
      std::ifstream file(entry.path());
      int number = 0;
      for (std::string line; std::getline(file, line);) {
        ++number;
        if (line.find_first_not_of(' ') != std::string::npos && line.compare(line.find_first_not_of(' '), 2, "//") == 0) continue;
        for (const std::string& literal : literals_of(line)) {
          ++literals;
          EXPECT_FALSE(names_option(literal)) << entry.path() << ':' << number << ": " << literal;
        }
      }
    }
  }
  EXPECT_GT(literals, 1000u);
}

}  // namespace
}  // namespace ort_train
