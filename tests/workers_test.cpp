// Workers: loops that were put aside are done during later loops, or when somebody asks for them, each task once, one loop after the other.

#include "exec/workers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <stdexcept>
#include <thread>
#include <vector>

namespace ort_train {
namespace {

constexpr int kTasks = 37, kLoops = 200;

// What each task of each loop that is put aside finds: how often it has run, and whether the loop before it was over.
struct Done {
  std::vector<std::atomic<int>> tasks = std::vector<std::atomic<int>>(kLoops * kTasks);
  std::vector<std::atomic<int>> of_loop = std::vector<std::atomic<int>>(kLoops);
  std::atomic<int> early{0};

  void put(Workers& workers, int loop) {
    workers.put_aside(loop, kTasks, [this, loop](int64_t task, int) {
      if (loop > 0 && of_loop[static_cast<size_t>(loop - 1)] != kTasks) ++early;
      ++tasks[static_cast<size_t>(loop * kTasks + task)];
      ++of_loop[static_cast<size_t>(loop)];
    });
  }
  int over() const {  // loops
    int count = 0;
    while (count < kLoops && of_loop[static_cast<size_t>(count)] == kTasks) ++count;
    return count;
  }
};

TEST(Workers, DoWhatWasPutAsideOnceAndInOrder) {
  for (const int threads : {1, 2, 3, 8}) {
    SCOPED_TRACE(threads);
    Workers workers(threads);
    Done done;
    std::atomic<int64_t> others{0};
    int64_t expected = 0;
    for (int loop = 0; loop < kLoops; ++loop) {
      done.put(workers, loop);
      if (loop % 3 == 0) {
        workers.parallel_for(11, [&](int64_t task, int) { others += task; });
        expected += 55;
      }
      if (loop % 7 == 6) {
        workers.finish_aside(loop - 3);
        EXPECT_GE(done.over(), loop - 2);
      }
      EXPECT_TRUE(threads > 1 || done.over() == loop + 1);
    }
    workers.finish_aside();
    EXPECT_EQ(done.over(), kLoops);
    EXPECT_EQ(done.early, 0);
    EXPECT_EQ(others, expected);
    for (const auto& times : done.tasks) ASSERT_EQ(times, 1);
  }
}

// Neither the thread that calls, nor more than a quarter of them.
TEST(Workers, LeaveTheCallerToTheLoopAtHand) {
  Workers workers(8);
  std::atomic<int> wrong{0}, beside{0};
  std::atomic<bool> finishing{false};
  for (int loop = 0; loop < 40; ++loop) {
    workers.put_aside(loop, 50, [&](int64_t, int worker) {
      if (finishing) return;
      ++beside;
      if (worker < 1 || worker > 2) ++wrong;
    });
    workers.parallel_for(200, [&](int64_t, int) {
      std::atomic<int> spins{0};
      while (++spins < 1000) continue;
    });
    finishing = true;
    workers.finish_aside();
    finishing = false;
  }
  EXPECT_EQ(wrong, 0);
  std::printf("%d of 2000 tasks were done beside others\n", beside.load());
}

// Each task of unequal ones once, whatever part of a loop a thread begins with.
TEST(Workers, DoEachTaskOnce) {
  for (const int threads : {2, 3, 8}) {
    for (const int64_t tasks : {2, 3, 7, 64, 101}) {
      Workers workers(threads);
      std::vector<std::atomic<int>> times(static_cast<size_t>(tasks));
      for (int loop = 0; loop < 20; ++loop) {
        workers.parallel_for(tasks, [&](int64_t task, int) {
          if (task % 5 == 0) std::this_thread::sleep_for(std::chrono::microseconds(task));
          ++times[static_cast<size_t>(task)];
        });
      }
      for (const auto& n : times) ASSERT_EQ(n, 20) << threads << " threads, " << tasks << " tasks";
    }
  }
}

// Two threads that are both there begin at the two halves of a loop.
TEST(Workers, BeginWhereTheyBeganBefore) {
  Workers workers(2);
  constexpr int64_t kHalf = 8;
  int both = 0;
  for (int loop = 0; loop < 50; ++loop) {
    std::atomic<int> arrived{0};
    std::atomic<bool> met{false};  // each was in its first task
    std::vector<int64_t> first(2, -1);
    workers.parallel_for(2 * kHalf, [&](int64_t task, int worker) {
      int64_t& begun = first[static_cast<size_t>(worker)];
      if (begun >= 0) return;
      begun = task;
      if (++arrived == 2) return;
      const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
      while (arrived < 2 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      met = arrived == 2;
    });
    if (!met) continue;
    ++both;
    EXPECT_EQ(first, (std::vector<int64_t>{0, kHalf}));
  }
  std::printf("both threads were there in %d of 50 loops\n", both);
}

// Tasks that wait for all before them.
TEST(Workers, BeginInOrderWhereTasksWait) {
  for (const int threads : {1, 2, 3, 8}) {
    Workers workers(threads);
    for (int loop = 0; loop < 20; ++loop) {
      std::atomic<int64_t> over{0};
      workers.parallel_in_order(50, [&](int64_t task, int) {
        while (over < task) std::this_thread::yield();
        ++over;
      });
      EXPECT_EQ(over, 50);
    }
  }
}

// Where tasks on several threads throw; the next loop knows nothing of it.
TEST(Workers, RethrowOneOfSeveralExceptions) {
  Workers workers(3);
  for (int round = 0; round < 50; ++round) {
    EXPECT_THROW(workers.parallel_for(20,
                                      [&](int64_t task, int) {
                                        if (task >= round % 5) throw std::runtime_error("one of them");
                                      }),
                 std::runtime_error);
    std::atomic<int> done{0};
    workers.parallel_for(20, [&](int64_t, int) { ++done; });
    EXPECT_EQ(done, 20);
  }
}

// After pauses of all lengths, threads take part again; Workers may end at any moment behind a loop.
TEST(Workers, ComeAndGo) {
  for (int round = 0; round < 60; ++round) {
    Workers workers(1 + round % 4);
    for (const int microseconds : {0, 100, 400}) {
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      std::atomic<int64_t> sum{0};
      workers.parallel_for(100, [&](int64_t task, int worker) {
        sum += task;
        EXPECT_LT(worker, workers.threads());
      });
      EXPECT_EQ(sum, 4950);
    }
    if (round % 2 == 0) std::this_thread::sleep_for(std::chrono::microseconds(10 * round));
  }
}

}  // namespace
}  // namespace ort_train
