#include "exec/workers.h"

#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <queue>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "exec/float_environment.h"

#ifdef ORT_TRAIN_TSAN  // oneTBB is not instrumented: its order of events is told to ThreadSanitizer here
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#else
#define __tsan_acquire(address) static_cast<void>(address)
#define __tsan_release(address) static_cast<void>(address)
#endif

namespace ort_train {

namespace {

// A loop that was put aside.
struct Aside {
  int32_t number = 0;
  int64_t tasks = 0;
  void (*call)(void* closure, int64_t task, int worker) = nullptr;
  std::atomic<int64_t> next{0}, done{0};  // tasks that have begun, that are over; between loops as many
  int64_t span = -1;                      // its place in Impl::spans; -1: nobody wants to know when it runs
};

}  // namespace

struct Workers::Impl {
  static constexpr int64_t kMost = 64;  // loops put aside

  static constexpr int64_t kNoTask = -1;
  // Neighbouring tasks of a loop.
  struct alignas(64) Share {
    std::atomic<int64_t> next{0};  // that hasn't begun
    int64_t end = 0;
    int64_t begin_one() {  // kNoTask where all have begun
      if (next.load(std::memory_order_relaxed) >= end) return kNoTask;
      const int64_t task = next.fetch_add(1);
      return task < end ? task : kNoTask;
    }
  };

  tbb::task_arena arena;
  std::vector<Share> shares;  // of the loop at hand, one for each thread
  Aside aside[kMost];         // loop i in aside[i % kMost]
  alignas(std::max_align_t) std::byte closures[kMost][kAsideBytes];
  std::atomic<int64_t> oldest{0};  // that isn't over
  int64_t end = 0;                 // how many were put aside so far; changes between loops only
  Aside& at(int64_t i) { return aside[i % kMost]; }
  bool records = false;
  std::vector<AsideSpan> spans;  // grows between loops only
  void begins(const Aside& loop) {
    if (loop.span >= 0) spans[static_cast<size_t>(loop.span)].span.begin = RunClock::now();
  }
  void ends(const Aside& loop) {
    if (loop.span >= 0) spans[static_cast<size_t>(loop.span)].span.end = RunClock::now();
  }

  // A task of the oldest loop that was put aside; false where there is none that hasn't begun.
  bool do_one(int worker) {
    const int64_t i = oldest.load(std::memory_order_acquire);
    if (i == end) return false;
    Aside& loop = at(i);
    __tsan_acquire(&loop);
    const int64_t task = loop.next.load(std::memory_order_relaxed) < loop.tasks ? loop.next.fetch_add(1) : loop.tasks;
    if (task >= loop.tasks) return false;
    if (task == 0) begins(loop);
    loop.call(closures[i % kMost], task, worker);
    __tsan_release(&loop);
    if (loop.done.fetch_add(1) + 1 == loop.tasks) {
      ends(loop);
      oldest.store(i + 1, std::memory_order_release);
    }
    return true;
  }

  std::span<Share> divide(int64_t tasks, int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      Share& share = shares[static_cast<size_t>(i)];
      share.next.store(tasks * i / count, std::memory_order_relaxed);
      share.end = tasks * (i + 1) / count;
    }
    return {shares.data(), static_cast<size_t>(count)};
  }

  // No more than oneTBB allows at the moment: it would print a warning and give as many anyway.
  explicit Impl(int threads)
      : arena(std::min(threads, static_cast<int>(tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism)))),
        shares(static_cast<size_t>(threads)) {}
};

Workers::Workers(int threads) : impl_(std::make_unique<Impl>(std::max(threads, 1))), threads_(std::max(threads, 1)) {
  // Starts the threads now, so that what they cost is there before memory is counted: each task waits for the others, but not for threads
  // that the machine or the program doesn't give.
  std::atomic<int> arrived{0};
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  parallel_for(threads_, [&](int64_t, int) {
    arrived.fetch_add(1);
    while (arrived.load() < threads_ && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
  });
}

Workers::~Workers() = default;

void Workers::run(int64_t tasks, Call call, void* closure, Order order) {
  times_tasks_ ? run_timed(tasks, call, closure, order) : share(tasks, call, closure, order);
}

void Workers::share(int64_t tasks, Call call, void* closure, Order order, bool with_background) {
  if (tasks <= 1 || threads_ == 1) {
    const FloatEnvironment environment;
    for (int64_t task = 0; task < tasks; ++task) call(closure, task, 0);
    return;
  }
  const std::span<Impl::Share> shares = impl_->divide(tasks, shares_of(order));
  std::atomic<int64_t> begun{0}, done{0};
  const bool has_aside = with_background && impl_->oldest.load(std::memory_order_relaxed) < impl_->end;
  const auto take = [&](int) {
    const FloatEnvironment environment;
    const int worker = tbb::this_task_arena::current_thread_index();
    __tsan_acquire(&begun);
    try {
      if (has_aside && worker >= 1 && worker <= helpers(threads_)) {
        while (done.load(std::memory_order_relaxed) < tasks && impl_->do_one(worker)) continue;
      }
      for (size_t i = 0; i < shares.size() && begun.load(std::memory_order_relaxed) < tasks; ++i) {
        Impl::Share& share = shares[(static_cast<size_t>(worker) + i) % shares.size()];
        for (int64_t task = share.begin_one(); task != Impl::kNoTask; task = share.begin_one()) {
          begun.fetch_add(1, std::memory_order_relaxed);
          call(closure, task, worker);
          done.fetch_add(1, std::memory_order_relaxed);
        }
      }
    } catch (...) {  // the others stop after the task at hand
      for (Impl::Share& share : shares) share.next.store(tasks);
      done.store(tasks);
      __tsan_release(&begun);
      throw;
    }
    __tsan_release(&begun);
  };
  // Timed tasks share no processor, so that they don't empty each other's caches.
  const int threads = times_tasks_ ? std::min(threads_, static_cast<int>(std::max(1U, std::thread::hardware_concurrency()))) : threads_;
  const int takers = static_cast<int>(std::min<int64_t>(tasks + (has_aside ? helpers(threads_) : 0), threads));
  __tsan_release(&begun);
  impl_->arena.execute([&] { tbb::parallel_for(0, takers, take, tbb::simple_partitioner{}); });
  __tsan_acquire(&begun);
}

void* Workers::aside_closure() {
  Impl& impl = *impl_;
  if (impl.end - impl.oldest.load() == Impl::kMost) finish_aside(impl.at(impl.oldest.load()).number);
  return impl.closures[impl.end % Impl::kMost];
}

void Workers::put(int32_t number, int64_t tasks, Call call) {
  if (tasks == 0) return;
  Aside& loop = impl_->at(impl_->end);
  loop.number = number;
  loop.tasks = tasks;
  loop.call = call;
  loop.next = loop.done = 0;
  loop.span = -1;
  if (impl_->records) {
    loop.span = static_cast<int64_t>(impl_->spans.size());
    impl_->spans.push_back({.number = number});
  }
  __tsan_release(&loop);
  ++impl_->end;
}

void Workers::finish_aside(int32_t number) {
  Impl& impl = *impl_;
  for (int64_t i = impl.oldest.load(); i < impl.end && impl.at(i).number <= number; ++i) {
    Aside& loop = impl.at(i);
    const int64_t done = loop.done.load();
    struct Rest {
      Aside& loop;
      void* closure;
      int64_t done;
    } rest{loop, impl.closures[i % Impl::kMost], done};
    const auto call = [](void* of, int64_t task, int worker) {
      const Rest& left = *static_cast<Rest*>(of);
      left.loop.call(left.closure, left.done + task, worker);
    };
    if (done == 0) impl.begins(loop);
    share(loop.tasks - done, call, &rest, Order::any, /*with_background=*/false);
    impl.ends(loop);
    impl.oldest.store(i + 1);
  }
}

void Workers::record_aside(bool on) {
  impl_->records = on;
  impl_->spans.clear();
}

std::span<const AsideSpan> Workers::aside_spans() const { return impl_->spans; }

void Workers::run_timed(int64_t tasks, Call call, void* closure, Order order) {
  using Clock = std::chrono::steady_clock;
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
  share(tasks, timed_call, &timed, order);
  ++times_.loops;
  times_.tasks += tasks;
  // As share() does it: the thread that is free first takes the next task of its own share, or of the first share behind it that has one.
  const std::span<Impl::Share> shares = impl_->divide(tasks, shares_of(order));
  using Free = std::pair<double, size_t>;  // when, and which thread
  std::priority_queue<Free, std::vector<Free>, std::greater<>> threads;
  for (int i = 0; i < threads_; ++i) threads.emplace(0.0, i);
  double last = 0;
  while (!threads.empty()) {
    const auto [from, thread] = threads.top();
    threads.pop();
    int64_t task = Impl::kNoTask;
    for (size_t i = 0; i < shares.size() && task == Impl::kNoTask; ++i) task = shares[(thread + i) % shares.size()].begin_one();
    if (task == Impl::kNoTask) continue;
    const double seconds = timed.seconds[static_cast<size_t>(task)];
    threads.emplace(from + seconds, thread);
    last = std::max(last, from + seconds);
    times_.task_seconds += seconds;
    times_.longest = std::max(times_.longest, seconds);
  }
  times_.scheduled += last;
  times_.loop_seconds += std::chrono::duration<double>(Clock::now() - begin).count();  // with what timing takes
}

}  // namespace ort_train
