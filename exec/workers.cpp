#include "exec/workers.h"

#include <immintrin.h>
#include <tbb/global_control.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <mutex>
#include <queue>
#include <thread>
#include <vector>

#include "exec/float_environment.h"

#ifdef ORT_TRAIN_TSAN  // neither oneTBB nor this file is instrumented: what they order is told to ThreadSanitizer, which sees mutexes
                       // itself
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#else
#define __tsan_acquire(address) static_cast<void>(address)
#define __tsan_release(address) static_cast<void>(address)
#endif

namespace ort_train {
namespace {

// Waits for what another thread does soon: first without giving up the processor.
class Patience {
 public:
  void wait() {
    if (++turns_ < kSpins)
      _mm_pause();
    else
      std::this_thread::yield();
  }
  int turns() const { return turns_; }
  void restart() { turns_ = 0; }

 private:
  static constexpr int kSpins = 256;
  int turns_ = 0;
};

// A loop that was put aside.
struct Aside {
  int32_t number = 0;
  int64_t tasks = 0;
  void (*call)(void* closure, int64_t task, int worker) = nullptr;
  int64_t begun = 0, done = 0;  // of its tasks
};

}  // namespace

// What the threads share. A helper is a task of oneTBB's that stays for a while when it has nothing to do: the next loop needn't wake a
// thread.
struct Workers::Team {
  using Clock = std::chrono::steady_clock;
  static constexpr int64_t kMost = 64;  // loops put aside

  // No more threads than oneTBB allows at the moment: it would print a warning and give as many anyway.
  explicit Team(int threads)
      : asides(helpers(threads)),
        is_here(static_cast<size_t>(threads)),
        arena(std::min(threads, static_cast<int>(tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism)))) {}

  // --- the loop at hand: who wants to take part is inside, then looks whether it is open -------------------------------------------------

  Call call = nullptr;
  void* closure = nullptr;
  std::atomic<int64_t> tasks{0};
  std::exception_ptr failed;  // the first one, under `mutex`
  alignas(64) std::atomic<int64_t> next{0};
  alignas(64) std::atomic<bool> open{false};
  alignas(64) std::atomic<int> inside{0};  // helpers

  void take_tasks(int worker) {
    try {
      const int64_t all = tasks.load(std::memory_order_relaxed);
      for (int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < all;) call(closure, task, worker);
    } catch (...) {
      next.store(tasks.load(), std::memory_order_relaxed);  // the others stop after the task at hand
      const std::lock_guard lock(mutex);
      if (!failed) failed = std::current_exception();
    }
  }

  bool take_part(int worker) {
    const auto has_tasks = [&] { return open.load() && next.load(std::memory_order_relaxed) < tasks.load(std::memory_order_relaxed); };
    if (!has_tasks()) return false;
    inside.fetch_add(1);
    const bool joins = has_tasks();
    if (joins) {
      __tsan_acquire(&open);
      take_tasks(worker);
      __tsan_release(&inside);
    }
    inside.fetch_sub(1);
    return joins;
  }

  // --- loops put aside: loop i in aside[i % kMost] --------------------------------------------------------------------------------------

  const int asides;  // helpers that do their tasks during other loops
  std::mutex mutex;
  Aside aside[kMost];
  alignas(std::max_align_t) std::byte closures[kMost][kAsideBytes];
  int64_t oldest = 0, end = 0;             // of those that aren't over
  std::atomic<int64_t> pending{0};         // end - oldest
  std::atomic<bool> all_do_asides{false};  // every helper

  // A task of the oldest loop, if that has the number, or an earlier one; false where there is none that hasn't begun.
  bool do_aside(int worker, int32_t number = std::numeric_limits<int32_t>::max()) {
    if (pending.load(std::memory_order_relaxed) == 0) return false;
    std::unique_lock lock(mutex);
    Aside& loop = aside[oldest % kMost];
    if (oldest == end || loop.number > number || loop.begun == loop.tasks) return false;
    const int64_t task = loop.begun++;
    std::byte* const of = closures[oldest % kMost];
    lock.unlock();
    loop.call(of, task, worker);
    lock.lock();
    __tsan_release(&pending);
    if (++loop.done == loop.tasks) pending.store(end - ++oldest);
    return true;
  }

  bool is_pending(int32_t number) {
    if (pending.load() > 0) {
      const std::lock_guard lock(mutex);
      if (oldest < end && aside[oldest % kMost].number <= number) return true;
    }
    __tsan_acquire(&pending);
    return false;
  }

  // --- helpers --------------------------------------------------------------------------------------------------------------------------

  std::vector<std::atomic<bool>> is_here;  // by worker: has been asked for and hasn't left
  std::atomic<bool> ends{false};
  tbb::task_arena arena;
  tbb::task_group all_helpers;

  bool has_work(int worker) const { return open.load() || (pending.load() > 0 && (worker <= asides || all_do_asides.load())); }

  void help(int worker) {
    constexpr auto kStay = std::chrono::microseconds(200);  // without work
    constexpr auto kShift = std::chrono::milliseconds(5);   // then oneTBB may give the thread to others
    __tsan_acquire(this);
    const FloatEnvironment environment;
    const Clock::time_point began = Clock::now();
    do {
      Patience idle;
      Clock::time_point since{};
      while (!ends.load(std::memory_order_relaxed)) {
        const bool may_do_asides = worker <= asides || all_do_asides.load(std::memory_order_relaxed);
        if ((may_do_asides && do_aside(worker)) || take_part(worker)) {
          idle.restart();
          continue;
        }
        if (idle.turns() == 0) {
          since = Clock::now();
          if (since - began > kShift) break;
        }
        idle.wait();
        if (idle.turns() % 64 == 0 && Clock::now() - since > kStay) break;
      }
      is_here[static_cast<size_t>(worker)].store(false);
    } while (!ends.load() && has_work(worker) && !is_here[static_cast<size_t>(worker)].exchange(true));  // came while it left
    __tsan_release(&all_helpers);
  }
};

Workers::Workers(int threads) : team_(std::make_unique<Team>(std::max(threads, 1))), threads_(std::max(threads, 1)) {
  // Starts the threads now, so that what they cost is there before memory is counted: each task waits for the others, but not for threads
  // that the machine or the program doesn't give.
  using Clock = Team::Clock;
  std::atomic<int> arrived{0};
  const auto limit = Clock::now() + std::chrono::milliseconds(20);
  parallel_for(threads_, [&](int64_t, int) {
    arrived.fetch_add(1);
    while (arrived.load() < threads_ && Clock::now() < limit) std::this_thread::yield();
  });
}

Workers::~Workers() {
  team_->ends.store(true);
  team_->arena.execute([&] { team_->all_helpers.wait(); });
  __tsan_acquire(&team_->all_helpers);
}

void Workers::run(int64_t tasks, Call call, void* closure) { times_tasks_ ? run_timed(tasks, call, closure) : share(tasks, call, closure); }

void Workers::call_helpers(int64_t count) {
  Team& team = *team_;
  for (int worker = 1; worker <= std::min<int64_t>(count, threads_ - 1); ++worker) {
    std::atomic<bool>& is_here = team.is_here[static_cast<size_t>(worker)];
    if (is_here.load(std::memory_order_relaxed) || is_here.exchange(true)) continue;
    __tsan_release(&team);
    team.arena.execute([&] { team.all_helpers.run([&team, worker] { team.help(worker); }); });
  }
}

// Each thread takes the next task when it has done one: tasks begin in ascending order, and unequal ones balance.
void Workers::share(int64_t tasks, Call call, void* closure) {
  const FloatEnvironment environment;
  if (tasks <= 1 || threads_ == 1) {
    for (int64_t task = 0; task < tasks; ++task) call(closure, task, 0);
    return;
  }
  Team& team = *team_;
  team.call = call;
  team.closure = closure;
  team.tasks.store(tasks, std::memory_order_relaxed);
  team.next.store(0, std::memory_order_relaxed);
  __tsan_release(&team.open);
  team.open.store(true);
  // Timed tasks share no processor, so that they don't empty each other's caches.
  const int threads = times_tasks_ ? std::min(threads_, static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) : threads_;
  call_helpers(std::min<int64_t>(tasks - 1 + (team.pending.load(std::memory_order_relaxed) > 0 ? team.asides : 0), threads - 1));
  team.take_tasks(0);
  team.open.store(false);
  for (Patience others; team.inside.load() > 0;) others.wait();
  __tsan_acquire(&team.inside);
  if (team.failed) std::rethrow_exception(std::exchange(team.failed, nullptr));
}

void* Workers::aside_closure() {
  Team& team = *team_;
  if (team.pending.load() == Team::kMost) finish_aside(team.aside[team.end % Team::kMost].number);
  return team.closures[team.end % Team::kMost];
}

void Workers::put(int32_t number, int64_t tasks, Call call) {
  if (tasks == 0) return;
  {
    const std::lock_guard lock(team_->mutex);
    team_->aside[team_->end % Team::kMost] = {.number = number, .tasks = tasks, .call = call};
    team_->pending.store(++team_->end - team_->oldest);
  }
  call_helpers(team_->asides);
}

void Workers::finish_aside(int32_t number) {
  Team& team = *team_;
  if (!team.is_pending(number)) return;
  const FloatEnvironment environment;
  team.all_do_asides.store(true);
  call_helpers(threads_ - 1);
  for (Patience others; team.is_pending(number);) {
    if (team.do_aside(0, number))
      others.restart();
    else
      others.wait();
  }
  team.all_do_asides.store(false);
}

void Workers::run_timed(int64_t tasks, Call call, void* closure) {
  using Clock = Team::Clock;
  const Clock::time_point begin = Clock::now();
  struct Timed {
    Call call;
    void* closure;
    std::vector<double> seconds;
  } timed{call, closure, std::vector<double>(static_cast<size_t>(std::max<int64_t>(tasks, 0)))};
  const auto timed_call = [](void* of, int64_t task, int worker) {
    Timed& loop = *static_cast<Timed*>(of);
    const Clock::time_point start = Clock::now();
    loop.call(loop.closure, task, worker);
    loop.seconds[static_cast<size_t>(task)] = std::chrono::duration<double>(Clock::now() - start).count();
  };
  share(tasks, timed_call, &timed);
  ++times_.loops;
  times_.tasks += tasks;
  // As share() does it: each task goes to the thread that is free first.
  std::priority_queue<double, std::vector<double>, std::greater<>> ends(std::greater<>{},
                                                                        std::vector<double>(static_cast<size_t>(threads_)));
  double last = 0;
  for (const double seconds : timed.seconds) {
    const double end = ends.top() + seconds;
    ends.pop();
    ends.push(end);
    last = std::max(last, end);
    times_.task_seconds += seconds;
    times_.longest = std::max(times_.longest, seconds);
  }
  times_.scheduled += last;
  times_.loop_seconds += std::chrono::duration<double>(Clock::now() - begin).count();  // with what timing takes
}

}  // namespace ort_train
