#include "exec/workers.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>

namespace ort_train {

struct Workers::Impl {
  tbb::task_arena arena;
  explicit Impl(int threads) : arena(threads) {}
};

Workers::Workers(int threads) : impl_(std::make_unique<Impl>(std::max(threads, 1))), threads_(std::max(threads, 1)) {
  impl_->arena.initialize();
  parallel_for(threads_ * 4, [](int64_t, int) {});  // starts the threads
}

Workers::~Workers() = default;

void Workers::run(int64_t tasks, void (*call)(void*, int64_t, int), void* closure) {
  if (tasks <= 1 || threads_ == 1) {
    for (int64_t task = 0; task < tasks; ++task) call(closure, task, 0);
    return;
  }
  impl_->arena.execute([&] {
    tbb::parallel_for(int64_t{0}, tasks, [&](int64_t task) { call(closure, task, tbb::this_task_arena::current_thread_index()); });
  });
}

}  // namespace ort_train
