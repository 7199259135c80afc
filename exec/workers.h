// Workers: the threads of one trainer. oneTBB underneath; the caller's own thread takes part.
//
// One Workers belongs to one trainer; parallel_for is called from one thread at a time and returns when all tasks are done.
// The division into tasks never depends on the number of threads, so neither do results.
//
// Of the tasks of a loop each thread has a share of neighbouring ones, where it begins, then it takes what others haven't begun. So in
// loops of as many tasks a thread has mostly the same ones, and finds in its caches what it left there; unequal tasks balance nevertheless.
//
// Loops that memory bounds may be put aside: one thread, of eight and more a quarter, never the caller's, then does their tasks during
// later loops, one loop after the other, and takes part in the loop at hand when there are none. Between loops nothing runs.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <type_traits>
#include <utility>

#include "exec/run_trace.h"

namespace ort_train {

// What loops over tasks took, in seconds.
struct TaskTimes {
  int64_t loops = 0, tasks = 0;
  double loop_seconds = 0;  // of the loops as they ran, with what timing takes
  double task_seconds = 0;  // of all tasks together
  double longest = 0;       // of one task
  double scheduled = 0;     // of the loops if as many threads ran as are asked for, each as fast as those that did run
};

class Workers {
 public:
  explicit Workers(int threads);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int threads() const { return threads_; }

  // body(task, worker) for each 0 <= task < tasks; 0 <= worker < threads() is never two tasks' at once. The first exception is rethrown.
  template <typename Body> void parallel_for(int64_t tasks, Body&& body) { run_body(tasks, body, Order::any); }
  // The same, and tasks begin in ascending order: one may wait for those before it, or the longest may come first.
  template <typename Body> void parallel_in_order(int64_t tasks, Body&& body) { run_body(tasks, body, Order::ascending); }
  // body(begin, end), or body(begin, end, worker), over [0, n) in blocks of `block` elements, fixed by the caller.
  template <typename Body> void parallel_blocks(int64_t n, int64_t block, Body&& body) {
    parallel_for((n + block - 1) / block, [&](int64_t task, int worker) {
      const int64_t begin = task * block, end = begin + block < n ? begin + block : n;
      if constexpr (std::is_invocable_v<Body&, int64_t, int64_t, int>)
        body(begin, end, worker);
      else
        body(begin, end);
    });
  }

  // Of so many threads the share that does what was put aside.
  static double aside_share(int threads) { return threads > 1 ? static_cast<double>(helpers(threads)) / threads : 0; }
  // Leaves a loop, whose body must not throw, for later. `number` counts up. Where there is one thread, or tasks are timed, it is done at
  // once.
  template <typename Body> void put_aside(int32_t number, int64_t tasks, const Body& body) {
    static_assert(std::is_trivially_destructible_v<Body> && sizeof(Body) <= kAsideBytes && alignof(Body) <= alignof(std::max_align_t));
    if (threads_ == 1 || times_tasks_) return parallel_for(tasks, body);
    new (aside_closure()) Body(body);
    put(number, tasks, [](void* closure, int64_t task, int worker) { (*static_cast<const Body*>(closure))(task, worker); });
  }
  // All of what was put aside up to that number; everything.
  void finish_aside(int32_t number = std::numeric_limits<int32_t>::max());

  // Whether it is written down when loops that are put aside run: aside_spans(), of those since the last call, where they aren't done at
  // once. Putting loops aside then allocates memory.
  void record_aside(bool on);
  std::span<const AsideSpan> aside_spans() const;

  // From here on each task is timed: for times(), which tells of the loops since it was asked last. Loops then allocate memory.
  void time_tasks() { times_tasks_ = true; }
  TaskTimes times() { return std::exchange(times_, {}); }

 private:
  static int helpers(int threads) { return threads < 8 ? 1 : threads / 4; }
  static constexpr size_t kAsideBytes = 256;  // of a closure
  using Call = void (*)(void* closure, int64_t task, int worker);
  enum class Order : uint8_t { any, ascending };
  int shares_of(Order order) const { return order == Order::any ? threads_ : 1; }
  template <typename Body> void run_body(int64_t tasks, Body& body, Order order) {
    run(
        tasks, [](void* closure, int64_t task, int worker) { (*static_cast<Body*>(closure))(task, worker); },
        const_cast<void*>(static_cast<const void*>(&body)), order);
  }
  void* aside_closure();  // of the next loop that is put aside; makes room for it
  void put(int32_t number, int64_t tasks, Call call);
  void run(int64_t tasks, Call call, void* closure, Order order);
  void share(int64_t tasks, Call call, void* closure, Order order, bool with_background = true);  // what was put aside is done meanwhile
  void run_timed(int64_t tasks, Call call, void* closure, Order order);
  struct Impl;
  std::unique_ptr<Impl> impl_;
  int threads_;
  bool times_tasks_ = false;
  TaskTimes times_{};
};

}  // namespace ort_train
