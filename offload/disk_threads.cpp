// Blocking pread and pwrite, one block a thread: for kernels that have no io_uring, and sandboxes that forbid it.

#include <unistd.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "offload/disk_queue.h"

namespace ort_train {
namespace {

class Threads final : public DiskWorker {
 public:
  Threads(DiskQueue& queue, const DiskOptions& options) : queue_(queue) {
    const SignalsBlocked blocked;
    try {
      for (int i = 0; i < options.depth; ++i)
        for (const bool write : {false, true}) threads_.emplace_back([this, write] { work(write); });
    } catch (...) {
      queue_.stop();
      join();
      throw;
    }
  }
  ~Threads() override { join(); }
  void wake() override {}  // they wait on the queue itself

 private:
  void work(bool write) {
    DiskBlock block;
    while (queue_.take_waiting(write, block)) {
      int64_t result;
      do {
        const size_t rest = static_cast<size_t>(block.bytes - block.done);
        result = write ? ::pwrite(block.descriptor, block.data + block.done, rest, block.offset + block.done)
                       : ::pread(block.descriptor, block.data + block.done, rest, block.offset + block.done);
      } while (!DiskQueue::advance(block, result < 0 ? -errno : result));
      queue_.finish(block);
    }
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
  }

  DiskQueue& queue_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<DiskWorker> start_threads(DiskQueue& queue, const DiskOptions& options) {
  return std::make_unique<Threads>(queue, options);
}

}  // namespace ort_train
