// Checkpoints: what was saved comes back bit for bit; a failure or a kill at any moment leaves the last good one; damage is noticed.

#include "frontend/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <limits>
#include <optional>

#include "graph/error.h"
#include "tests/io_faults.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

constexpr size_t kKept = 2;

struct CheckpointTest : testing::Test {
  TestFolder folder;
  std::vector<float> weight = std::vector<float>(3000), moment = std::vector<float>(3000), bias = std::vector<float>(5);
  CheckpointContent content;
  std::vector<std::string> notes;
  const std::string out = folder.path.string();

  CheckpointTest() {
    const auto tensor = [](const char* name, const Shape& shape, std::vector<float>& values) {
      return StateTensor{.name = name,
                         .type = {DType::float32, shape},
                         .bytes = [&values](bool) { return std::as_writable_bytes(std::span(values)); },
                         .changed = [] {}};
    };
    content.weights = {tensor("w", {30, 100}, weight), tensor("b", {5}, bias)};
    content.optimizer = {tensor("w.exp_avg", {30, 100}, moment)};
    content.model = "0123456789abcdef";
    content.settings = {{"optim", "adamw"}, {"learning_rate", "0.001"}};
  }

  // Values that tell the step.
  void fill(int64_t step) {
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(step) + static_cast<float>(i) / 7;
    for (size_t i = 0; i < moment.size(); ++i) moment[i] = -weight[i];
    for (float& b : bias) b = static_cast<float>(step);
  }
  static RunState state(int64_t step, int64_t run = 7) {
    return {.run = run,
            .step = step,
            .epoch = 3,
            .index = 17 * step,
            .tokens = 99,
            .seconds = 0.1,
            .first_losses = {1.0 / 3},
            .last_losses = {2.5, 1e-17},
            .held_out = {.best = 1.0 / 7,
                         .best_step = 1,
                         .lowest = 1.0 / 9,
                         .without_better = 2,
                         .is_due = true,
                         .log_line = R"({"step":1,"loss":0.1})"}};
  }
  void save(int64_t step, int64_t run = 7) {
    fill(step);
    save_checkpoint(out, state(step, run), content, {.count = kKept});
  }
  // The step of what is loaded, whose tensors must be that step's.
  int64_t load() {
    std::memset(weight.data(), 0xff, weight.size() * 4);
    std::memset(moment.data(), 0xff, moment.size() * 4);
    notes.clear();
    const Loaded loaded = load_checkpoint(out, content, [&](const std::string& text) { notes.push_back(text); });
    const auto w = weight, m = moment, b = bias;
    fill(loaded.state.step);
    EXPECT_EQ(w, weight);
    EXPECT_EQ(m, moment);
    EXPECT_EQ(b, bias);
    return loaded.state.step;
  }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& entry : fs::directory_iterator(folder.path)) result.push_back(entry.path().filename().string());
    std::sort(result.begin(), result.end());
    return result;
  }
  ErrorCode load_error(std::string* message = nullptr) {
    try {
      load();
    } catch (const Error& problem) {
      if (message != nullptr) *message = problem.what();
      return problem.code();
    }
    ADD_FAILURE() << "loaded";
    return ErrorCode::internal;
  }
};

TEST_F(CheckpointTest, EverythingComesBack) {
  save(12);
  EXPECT_EQ(load(), 12);
  const Loaded loaded = load_checkpoint(out, content, [](const std::string&) {});
  const RunState wanted = state(12), got = loaded.state;
  EXPECT_EQ(got.run, wanted.run);
  EXPECT_EQ(got.epoch, wanted.epoch);
  EXPECT_EQ(got.index, wanted.index);
  EXPECT_EQ(got.tokens, wanted.tokens);
  EXPECT_EQ(got.seconds, wanted.seconds);
  EXPECT_EQ(got.first_losses, wanted.first_losses);
  EXPECT_EQ(got.last_losses, wanted.last_losses);
  EXPECT_EQ(got.held_out.best, wanted.held_out.best);
  EXPECT_EQ(got.held_out.best_step, wanted.held_out.best_step);
  EXPECT_EQ(got.held_out.lowest, wanted.held_out.lowest);
  EXPECT_EQ(got.held_out.without_better, wanted.held_out.without_better);
  EXPECT_EQ(got.held_out.is_due, wanted.held_out.is_due);
  EXPECT_EQ(got.held_out.log_line, wanted.held_out.log_line);
  EXPECT_EQ(loaded.settings, content.settings);
}

TEST_F(CheckpointTest, TheNewestTwoAreKept) {
  for (const int64_t step : {5, 10, 100}) save(step);
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-10", "checkpoint-100"}));
  EXPECT_EQ(load(), 100);
  save(20);  // as after a resumption from step 10, 100 being damaged
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-10", "checkpoint-20"}));
  EXPECT_EQ(load(), 20);
  for (const size_t kept : {1, 4}) {
    for (const int64_t step : {21, 22, 23, 24, 25}) {
      fill(step);
      save_checkpoint(out, state(step), content, {.count = kept});
    }
    EXPECT_EQ(names().size(), kept);
  }
}

TEST_F(CheckpointTest, TheBestIsKeptHoweverOldItIs) {
  const auto save_with = [&](int64_t step, int64_t best, size_t count) {
    fill(step);
    save_checkpoint(out, state(step), content, {.count = count, .best_step = best});
    return names();
  };
  using Names = std::vector<std::string>;
  EXPECT_EQ(save_with(1, 0, 1), (Names{"checkpoint-1"}));
  EXPECT_EQ(save_with(2, 1, 1), (Names{"checkpoint-1", "checkpoint-2"})) << "the newest is kept, too";
  EXPECT_EQ(save_with(3, 1, 1), (Names{"checkpoint-1", "checkpoint-3"}));
  EXPECT_EQ(save_with(4, 1, 3), (Names{"checkpoint-1", "checkpoint-3", "checkpoint-4"})) << "it is one of them";
  EXPECT_EQ(save_with(5, 1, 2), (Names{"checkpoint-1", "checkpoint-5"}));
  EXPECT_EQ(save_with(6, 6, 2), (Names{"checkpoint-5", "checkpoint-6"})) << "a better one";
  EXPECT_EQ(save_with(7, 4, 1), (Names{"checkpoint-7"})) << "one that isn't there";
  save(2, /*run=*/6);
  EXPECT_EQ(save_with(8, 2, 1), (Names{"checkpoint-8"})) << "another run's";
}

// It is read into a run that has gone on since.
TEST_F(CheckpointTest, IsReloadedByTheRunThatSavedIt) {
  save(1);
  save(2);
  fill(3);
  const std::string first = out + "/checkpoint-1";
  reload_checkpoint(first, state(3), content, {});
  const auto w = weight, m = moment, b = bias;
  fill(1);
  EXPECT_EQ(w, weight);
  EXPECT_EQ(m, moment);
  EXPECT_EQ(b, bias);
  const auto code_of_reload = [&](const RunState& of) {
    try {
      reload_checkpoint(first, of, content, {});
    } catch (const Error& problem) {
      return problem.code();
    }
    return ErrorCode::internal;
  };
  EXPECT_EQ(code_of_reload(state(3, /*run=*/8)), ErrorCode::corrupt);
  write_file(first + "/weights.safetensors", "short");
  EXPECT_EQ(code_of_reload(state(3)), ErrorCode::corrupt);
  fs::remove_all(first);
  EXPECT_EQ(code_of_reload(state(3)), ErrorCode::io);
}

// Whatever the clock says.
TEST_F(CheckpointTest, ARunThatBeginsIsTheNewest) {
  const int64_t first = next_run(out);
  EXPECT_GT(first, 0);
  const int64_t later = first + int64_t{1'000'000'000'000'000};
  save(1, later);
  EXPECT_GT(next_run(out), later);
  save(2, std::numeric_limits<int64_t>::max());
  EXPECT_EQ(next_run(out), std::numeric_limits<int64_t>::max());
}

TEST_F(CheckpointTest, AnotherRunInTheFolderComesFirstAndReplacesTheOldOneOnceItHasTwo) {
  save(500, /*run=*/1);
  save(10, /*run=*/2);
  EXPECT_EQ(load(), 10);
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-10", "checkpoint-500"}));
  save(20, /*run=*/2);
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-10", "checkpoint-20"}));
}

TEST_F(CheckpointTest, WithoutOneItIsUsage) {
  EXPECT_EQ(load_error(), ErrorCode::usage);
  fs::create_directory(folder.path / ".tmp-checkpoint-3");
  EXPECT_EQ(load_error(), ErrorCode::usage);
}

TEST_F(CheckpointTest, ThatOfAnotherModelOrOptimizerIsRefused) {
  save(3);
  std::string message;
  content.settings["optim"] = "sgd";
  EXPECT_EQ(load_error(&message), ErrorCode::usage);
  EXPECT_THAT(message, HasSubstr("`optim` adamw, not sgd"));
  content.settings["optim"] = "adamw";
  content.model = "another";
  EXPECT_EQ(load_error(&message), ErrorCode::usage);
  EXPECT_THAT(message, HasSubstr("another model"));
}

// A run that divides its weights elsewhere, or not at all; what it reads a piece of is checked as a whole.
TEST_F(CheckpointTest, WeightsComeBackInOtherParts) {
  const auto divide = [&](const std::vector<size_t>& rows) {  // where parts of w end; none: it is whole
    content.weights = {content.weights.back()};               // b
    content.optimizer.clear();
    size_t first = 0;
    for (const size_t end : rows.empty() ? std::vector<size_t>{30} : rows) {
      const std::string part = rows.empty() ? "" : "[" + std::to_string(first) + ":" + std::to_string(end) + "]";
      for (auto* values : {&weight, &moment}) {
        const std::string state = values == &weight ? "" : ".exp_avg";
        const auto bytes = std::as_writable_bytes(std::span(*values)).subspan(first * 400, (end - first) * 400);
        auto& list = values == &weight ? content.weights : content.optimizer;
        StateTensor tensor;
        tensor.name = "w" + part + state;
        tensor.type = {DType::float32, {static_cast<int64_t>(end - first), 100}};
        if (!part.empty()) tensor.whole = "w" + state;
        tensor.offset = static_cast<int64_t>(first * 400);
        tensor.bytes = [bytes](bool) { return bytes; };
        tensor.changed = [] {};
        list.insert(list.begin(), std::move(tensor));
      }
      first = end;
    }
  };
  const std::vector<std::vector<size_t>> divisions{{}, {10, 20, 30}, {15, 30}, {1, 29, 30}, {7, 14, 21, 28, 30}};
  for (const auto& saved : divisions) {
    for (const auto& loaded : divisions) {
      divide(saved);
      save(4);
      divide(loaded);
      EXPECT_EQ(load(), 4) << saved.size() << " parts, then " << loaded.size();
    }
  }
  divide({10, 20, 30});
  save(4);
  const std::string path = folder / "checkpoint-4/optimizer.safetensors", whole = read_file(path);
  std::string message, bytes = whole;
  bytes[bytes.size() - 1] = static_cast<char>(bytes[bytes.size() - 1] ^ 1);  // of the part [0:10] or [20:30], by their names' order
  write_file(path, bytes);
  for (const auto& loaded : {divisions[1], divisions[2], divisions[4], divisions[0]}) {
    divide(loaded);
    EXPECT_EQ(load_error(&message), ErrorCode::corrupt);
    EXPECT_THAT(message, HasSubstr("fails its checksum"));
  }
  write_file(path, whole);
  divide({15, 30});
  EXPECT_EQ(load(), 4);
  content.optimizer[0].offset += 16 * 400;  // beyond the last part
  EXPECT_EQ(load_error(&message), ErrorCode::corrupt);
  EXPECT_THAT(message, HasSubstr("nor parts that make it up"));
  content.optimizer[0].offset -= 16 * 400;
  content.optimizer[0].type.dtype = DType::int32;
  EXPECT_EQ(load_error(&message), ErrorCode::corrupt);
  EXPECT_THAT(message, HasSubstr("is float32"));
}

// Each file of the newest: cut, longer, missing, every 97th bit flipped. The one before is used; without it, it is an error.
TEST_F(CheckpointTest, DamageIsNoticed) {
  save(1);
  save(2);
  for (const char* name : {"weights.safetensors", "optimizer.safetensors", "state.json"}) {
    const std::string path = folder / ("checkpoint-2/" + std::string(name)), whole = read_file(path);
    const auto damaged = [&](const std::string& bytes, const std::string& what) {
      write_file(path, bytes);
      EXPECT_EQ(load(), 1) << name << " " << what;
      EXPECT_EQ(notes.size(), 1u) << what;
    };
    damaged("", "empty");
    damaged(whole.substr(0, whole.size() / 2), "half");
    damaged(whole.substr(0, whole.size() - 2), "cut");  // state.json ends in a line break
    if (std::string(name) != "state.json") damaged(whole + "x", "longer");
    for (size_t bit = 0; bit<whole.size() * 8; bit += whole.size()> 8000 ? 7919 : 97) {
      std::string bytes = whole;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      damaged(bytes, "bit " + std::to_string(bit));
    }
    fs::remove(path);
    EXPECT_EQ(load(), 1);
    write_file(path, whole);
    EXPECT_EQ(load(), 2);
  }
  write_file(folder / "checkpoint-2/state.json", "{}");
  write_file(folder / "checkpoint-1/state.json", std::string(100'000, '['));
  EXPECT_EQ(load_error(), ErrorCode::corrupt);
}

// The n-th call that changes a file, or a name, fails, for every n.
TEST_F(CheckpointTest, AFailedCallLeavesTheLastOneGood) {
  for (const Fault fault : {Fault::error, Fault::full, Fault::name_error}) {
    for (int64_t n = 1;; ++n) {
      save(1);
      fill(2);
      const auto [problem, happened] = with_fault(fault, n, [&] { save_checkpoint(out, state(2), content, {.count = kKept}); });
      if (!happened) {
        EXPECT_FALSE(problem);
        EXPECT_GT(n, fault == Fault::name_error ? 5 : 10);
        EXPECT_EQ(load(), 2);
        break;
      }
      const int64_t loaded = load();
      if (problem) {
        EXPECT_EQ(problem->code(), ErrorCode::io);
        EXPECT_THAT(notes, testing::IsEmpty());
      } else {
        EXPECT_EQ(loaded, 2) << "call " << n;  // it came after the new one was there
      }
      for (const std::string& name : names()) fs::remove_all(folder.path / name);
    }
  }
}

TEST_F(CheckpointTest, AKillAtAnyCallLeavesAGoodOne) {
  for (int64_t n = 1;; ++n) {
    save(1);
    fill(2);
    const pid_t child = fork();
    if (child == 0) {
      const IoFaults faults(Fault::kill, n);
      save_checkpoint(out, state(2), content, {.count = kKept});
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    const int64_t loaded = load();
    EXPECT_TRUE(loaded == 1 || loaded == 2);
    EXPECT_THAT(notes, testing::IsEmpty()) << "call " << n;
    save(3);  // what the killed one left is no obstacle
    EXPECT_EQ(load(), 3);
    for (const std::string& name : names()) EXPECT_THAT(name, testing::StartsWith("checkpoint-"));
    for (const std::string& name : names()) fs::remove_all(folder.path / name);
    if (WEXITSTATUS(status) == 0) {
      EXPECT_EQ(loaded, 2);
      EXPECT_GT(n, 10);
      break;
    }
  }
}

// The n-th call fails, or the process dies there, while the place of the new one is taken.
TEST_F(CheckpointTest, AnotherRunsOfTheSameStepStaysUntilTheNewOneIsThere) {
  for (const Fault fault : {Fault::error, Fault::kill}) {
    bool happened = true;
    int64_t n = 1, kept = 0;
    for (; happened; ++n) {
      save(2, /*run=*/6);
      const pid_t child = fork();
      if (child == 0) {
        const IoFaults faults(fault, n);
        try {
          save_checkpoint(out, state(2), content, {.count = kKept});
        } catch (const Error&) {
        }
        _exit(faults.happened() ? 1 : 0);
      }
      int status = 0;
      waitpid(child, &status, 0);
      happened = WEXITSTATUS(status) != 0;
      if (fault == Fault::error) {
        EXPECT_THAT(names(), testing::Contains("checkpoint-2")) << "call " << n;
      }
      ASSERT_EQ(load(), 2) << "call " << n;  // as an evaluation does, which puts nothing in order
      remove_checkpoint_leftovers(out);      // as each training does
      EXPECT_THAT(names(), testing::ElementsAre("checkpoint-2")) << "call " << n;
      ASSERT_EQ(load(), 2) << "call " << n;
      EXPECT_THAT(notes, testing::IsEmpty()) << "call " << n;
      const int64_t run = load_checkpoint(out, content, [](const std::string&) {}).state.run;
      EXPECT_TRUE(run == 7 || (run == 6 && happened)) << "call " << n;
      kept += run == 6;
      fs::remove_all(out + "/checkpoint-2");
    }
    EXPECT_GT(kept, 10);
    EXPECT_LT(kept, n - 2) << "some calls come after it";
  }
}

// What can't be read may be whole: that isn't damage.
TEST_F(CheckpointTest, AReadErrorIsNotDamage) {
  save(1);
  for (int64_t n = 1;; ++n) {
    const auto [problem, happened] = with_fault(Fault::read_error, n, [&] { load(); });
    EXPECT_EQ(problem.has_value(), happened) << n;
    if (!happened) {
      EXPECT_GT(n, 4);
      break;
    }
    EXPECT_EQ(problem->code(), ErrorCode::io) << problem->what();
    EXPECT_THAT(problem->what(), HasSubstr("none of its checkpoints can be read"));
    EXPECT_THAT(problem->what(), HasSubstr("Input/output error"));
  }
  fs::remove(folder / "checkpoint-1/optimizer.safetensors");
  EXPECT_EQ(load_error(), ErrorCode::corrupt);
}

// Nor is the one before it what a run should go on from: it would remove the newest.
TEST_F(CheckpointTest, AReadErrorOfTheNewestIsNoReasonToGoOnFromAnOlderOne) {
  constexpr size_t kTwo = 2;
  for (const int64_t step : {1, 2}) {
    fill(step);
    save_checkpoint(out, state(step), content, {.count = kTwo});
  }
  int64_t refused = 0;
  for (int64_t n = 1;; ++n) {
    int64_t step = 0;
    const auto [problem, happened] = with_fault(Fault::read_error, n, [&] { step = load(); });
    if (!happened) break;
    if (!problem) {
      EXPECT_EQ(step, 2) << n;  // the older one was looked at
      continue;
    }
    ++refused;
    EXPECT_EQ(problem->code(), ErrorCode::io) << problem->what();
    EXPECT_THAT(problem->what(), testing::AllOf(HasSubstr("checkpoint-2"), HasSubstr("it may be whole"),
                                                HasSubstr("(`resume_from_checkpoint` "), HasSubstr("checkpoint-1 with")));
  }
  EXPECT_GT(refused, 3);
  EXPECT_EQ(load(), 2);
}

TEST_F(CheckpointTest, ShortAndInterruptedCallsGoOn) {
  for (const Fault fault : {Fault::short_write, Fault::interrupt}) {
    for (int64_t n = 1; n <= 12; ++n) {
      fill(n);
      {
        const IoFaults faults(fault, n);
        save_checkpoint(out, state(n), content, {.count = kKept});
        EXPECT_TRUE(faults.happened());
      }
      EXPECT_EQ(load(), n);
    }
    for (const std::string& name : names()) fs::remove_all(folder.path / name);
  }
}

// Against power loss: everything is synced before the rename that publishes it, the folder above after it.
TEST_F(CheckpointTest, NothingIsPublishedBeforeItIsOnDisk) {
  fill(1);
  const IoFaults faults(Fault::none, 0);
  save_checkpoint(out, state(1), content, {.count = kKept});
  const std::vector<std::string> trace = IoFaults::trace();
  const auto at = [&](const std::string& call) {
    const auto found = std::find(trace.rbegin(), trace.rend(), call);
    EXPECT_NE(found, trace.rend()) << call;
    return trace.rend() - found;
  };
  const std::string temporary = out + "/.tmp-checkpoint-1", manifest = temporary + "/state.json";
  const auto published = at("rename " + temporary + " " + out + "/checkpoint-1");
  for (const char* name : {"/weights.safetensors", "/optimizer.safetensors"}) {
    EXPECT_LT(at("write " + temporary + name), at("fsync " + temporary + name));
    EXPECT_LT(at("fsync " + temporary + name), at("write " + manifest));
  }
  EXPECT_LT(at("write " + manifest), at("fsync " + manifest));
  EXPECT_LT(at("fsync " + manifest), at("fsync " + temporary));
  EXPECT_LT(at("fsync " + temporary), published);
  EXPECT_GT(at("fsync " + out), published);
}

}  // namespace
}  // namespace ort_train
