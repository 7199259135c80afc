// Threads that meet: trainers in threads of their own that stream at the same time, each with two plans made at once, one of them stopped
// from a third thread while callbacks report. `make races` builds this and the disk's tests under ThreadSanitizer.

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/nominal_machine.h"
#include "tests/promise_jobs.h"

namespace ort_train {
namespace {

struct Races : ::testing::Test {
  tbb::global_control allow{tbb::global_control::max_allowed_parallelism, 8};
  TestFolder folder;
  const std::vector<fixtures::PromiseJob> jobs = fixtures::promise_jobs(folder, nominal_machine(folder));

  // The job of this name at its smallest budget with a disk, on `threads`.
  Options streamed(const std::string& name, int threads) const {
    for (const fixtures::PromiseJob& job : jobs) {
      if (job.name != name) continue;
      Options o = job.options;
      o.threads = threads;
      o.nvme_path = folder / ("disk of " + name);
      o.output_dir = folder / ("out of " + name);
      std::filesystem::create_directory(o.nvme_path);
      o.budget = Trainer(o).plan().minimum_budget;
      return o;
    }
    throw std::runtime_error("no job " + name);
  }
  // In memory, alone.
  std::string plain_hash(Options o) const {
    o.nvme_path.clear();
    o.budget = 0;
    o.output_dir += ", plain";
    return Trainer(o).train().weights_hash;
  }
};

TEST_F(Races, TrainersInTwoThreadsOneOfThemStoppedFromAThird) {
  Options stopped = streamed("perceptron, accumulating", 2), whole = streamed("char-gpt", 3);
  stopped.max_steps = 40;
  const std::string stopped_hash = plain_hash(stopped), whole_hash = plain_hash(whole);
  std::atomic<int64_t> steps{0}, others{0};
  std::atomic<bool> made{false};
  Summary first, second;
  std::unique_ptr<Trainer> trainer;
  std::thread one([&] {
    trainer = std::make_unique<Trainer>(stopped, Callbacks{.on_step = [&](const StepReport& step) { steps = step.step; }});
    made = true;
    first = trainer->train();
  });
  std::thread two([&] {
    Trainer other(whole, {.on_step = [&](const StepReport&) { ++others; }, .on_eval = [&](const EvalReport&) { ++others; }});
    second = other.train();
  });
  std::thread three([&] {
    while (!made || steps < 2) std::this_thread::yield();
    trainer->request_stop();
  });
  for (std::thread* thread : {&one, &two, &three}) thread->join();
  EXPECT_TRUE(first.stopped);
  EXPECT_LT(first.steps, stopped.max_steps);
  EXPECT_GT(first.disk_bytes_read, 0);
  EXPECT_GT(second.disk_bytes_read, 0);
  EXPECT_EQ(others, whole.max_steps + 2);
  EXPECT_EQ(second.weights_hash, whole_hash);
  trainer.reset();
  stopped.resume = true;
  EXPECT_EQ(Trainer(stopped).train().weights_hash, stopped_hash);
}

TEST_F(Races, TwoPlannersMakeThePlanOfOne) {
  Options o = streamed("perceptron", 2);
  o.budget += o.budget / 4;
  const PlanReport plan = Trainer(o).plan();
  for (int i = 0; i < 3; ++i) {
    const PlanReport again = Trainer(o).plan();
    EXPECT_EQ(again.arena_bytes, plan.arena_bytes);
    EXPECT_EQ(again.disk_read_per_step, plan.disk_read_per_step);
    EXPECT_EQ(again.disk_written_per_step, plan.disk_written_per_step);
    EXPECT_EQ(again.predicted_milliseconds, plan.predicted_milliseconds);
  }
}

}  // namespace
}  // namespace ort_train
