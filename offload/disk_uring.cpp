// io_uring: one thread owns the ring, and sleeps in the kernel until a block is done or the queue has a new request.
//
// The memory of transfers is pinned once (registered, in io_uring's words), where the kernel permits. There is no ring of buffers in front
// of it: a copy takes more of the processor than pinning saves. Measured: polling by the kernel wins nothing for blocks of this size.

#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>
#include <vector>

#include "graph/error.h"
#include "offload/disk_queue.h"

namespace ort_train {
namespace {

constexpr uint64_t kWake = ~uint64_t{0};
constexpr int kPatience = 1000;  // calls, a millisecond or more apart, that may fail one after another before all is given up
// Of the memory, as one buffer; the kernel takes 16,384 of 1 GiB at most. Its table of a part with small pages has 16 bytes a page and a
// head: for 64 MiB it would take twice as much as for this.
constexpr int64_t kPinnedPart = int64_t{63} << 20;

// Indices, first in, first out; room for all blocks.
class Fifo {
 public:
  explicit Fifo(size_t room) : ring_(room) {}
  bool empty() const { return count_ == 0; }
  void push(size_t index) { ring_[(first_ + count_++) % ring_.size()] = index; }
  size_t pop() {
    const size_t index = ring_[first_];
    first_ = (first_ + 1) % ring_.size();
    --count_;
    return index;
  }

 private:
  std::vector<size_t> ring_;
  size_t first_ = 0, count_ = 0;
};

class Uring final : public DiskWorker {
 public:
  // Those that are hashed don't hold up the ring until there are as many as may be in flight.
  Uring(DiskQueue& queue, const DiskOptions& options)
      : queue_(queue),
        depth_(options.depth),
        blocks_(4 * static_cast<size_t>(depth_)),
        free_(blocks_.size()),
        again_(blocks_.size()),
        over_(blocks_.size()) {
    for (size_t i = 0; i < blocks_.size(); ++i) free_.push(i);
  }
  ~Uring() override {
    if (thread_.joinable()) thread_.join();
    if (event_ >= 0) ::close(event_);
    if (open_) io_uring_queue_exit(&ring_);
  }

  // 0, or the errno of why not.
  int start(const DiskOptions& options) {
    if (const int result = io_uring_queue_init(2 * static_cast<unsigned>(depth_) + 1, &ring_, 0); result < 0) return -result;
    open_ = true;
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool able =
        probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    if (!able) return EOPNOTSUPP;
    event_ = ::eventfd(0, EFD_CLOEXEC);
    if (event_ < 0) return errno;
    // A sandbox may permit the set-up and nothing else.
    arm();
    wake();
    int result = -EINTR;
    while (result == -EINTR) result = io_uring_submit_and_wait(&ring_, 1);
    if (result < 0) return -result;
    reap();
    if (armed_) return EIO;
    pin(options.memory);
    const SignalsBlocked blocked;
    thread_ = std::thread([this] { run(); });
    return 0;
  }

  void wake() override {
    const uint64_t one = 1;
    while (::write(event_, &one, sizeof one) < 0 && errno == EINTR) {
    }
  }

  int64_t pinned_bytes() const override { return static_cast<int64_t>(pinned_.size()); }

 private:
  void pin(std::span<std::byte> memory) {
    const auto bytes = static_cast<int64_t>(memory.size());
    if (bytes == 0 || !may_pin(bytes)) return;
    std::vector<iovec> parts;
    for (int64_t at = 0; at < bytes; at += kPinnedPart)
      parts.push_back({.iov_base = memory.data() + at, .iov_len = static_cast<size_t>(std::min(kPinnedPart, bytes - at))});
    if (io_uring_register_buffers(&ring_, parts.data(), static_cast<unsigned>(parts.size())) == 0) pinned_ = memory;
  }

  // Which part of the pinned memory these bytes lie in; -1: in none.
  int pinned_part(const std::byte* data, int64_t bytes) const {
    const auto at = static_cast<int64_t>(reinterpret_cast<uintptr_t>(data) - reinterpret_cast<uintptr_t>(pinned_.data()));
    if (at < 0 || at + bytes > pinned_bytes() || at / kPinnedPart != (at + bytes - 1) / kPinnedPart) return -1;
    return static_cast<int>(at / kPinnedPart);
  }

  void run() {
    for (;;) {
      const bool stopped = queue_.stopped();
      if (stopped && in_flight_[0] + in_flight_[1] == 0 && over_.empty() && again_.empty() && !armed_) return;
      if (!stopped) arm();
      refill();
      // Checksums are computed one at a time, while the drive has work.
      const bool hash = !over_.empty();
      enter(/*wait=*/!hash);
      reap();
      if (hash) finish(over_.pop());
    }
  }

  // Hands the blocks to the kernel, and waits for one that is done.
  void enter(bool wait) {
    int result = 0;
    if (broken_ == 0) result = wait ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit(&ring_);
    if (result >= 0 || result == -EINTR) {
      failures_ = 0;
    } else if (++failures_ == kPatience) {  // until then it may just be short of memory
      give_up(-result);
    }
    if (wait && (broken_ != 0 || failures_ > 0)) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  // From now on every block fails. The kernel still has those that it took: what they read and write is not free before they are done.
  void give_up(int code) {
    broken_ = code;
    const unsigned taken = __atomic_load_n(ring_.sq.khead, __ATOMIC_ACQUIRE);
    for (unsigned at = taken; at != ring_.sq.sqe_tail; ++at) {
      const uint64_t index = ring_.sq.sqes[at & ring_.sq.ring_mask].user_data;
      if (index == kWake)
        armed_ = false;
      else
        drop(index);
    }
  }

  void drop(size_t index) {
    DiskBlock& block = blocks_[index];
    block.failed = true;
    block.code = broken_;
    --in_flight_[block.write];
    finish(index);
  }

  void refill() {
    while (!again_.empty()) prepare(again_.pop());
    for (const bool write : {false, true}) {
      while (in_flight_[write] < depth_ && !free_.empty()) {
        const size_t index = free_.pop();
        if (!queue_.take(write, blocks_[index])) {
          free_.push(index);
          break;
        }
        ++in_flight_[write];
        prepare(index);
      }
    }
  }

  void prepare(size_t index) {
    if (broken_ != 0) return drop(index);
    const DiskBlock& block = blocks_[index];
    io_uring_sqe* entry = next_entry();
    std::byte* const data = block.data + block.done;
    const int64_t rest = block.bytes - block.done;
    const auto count = static_cast<unsigned>(rest);
    const auto offset = static_cast<uint64_t>(block.offset + block.done);
    const int part = pinned_part(data, rest);
    if (block.write && part >= 0) {
      io_uring_prep_write_fixed(entry, block.descriptor, data, count, offset, part);
    } else if (block.write) {
      io_uring_prep_write(entry, block.descriptor, data, count, offset);
    } else if (part >= 0) {
      io_uring_prep_read_fixed(entry, block.descriptor, data, count, offset, part);
    } else {
      io_uring_prep_read(entry, block.descriptor, data, count, offset);
    }
    io_uring_sqe_set_data64(entry, index);
  }

  void arm() {
    if (armed_ || broken_ != 0) return;
    io_uring_sqe* entry = next_entry();
    io_uring_prep_read(entry, event_, &events_, sizeof events_, 0);
    io_uring_sqe_set_data64(entry, kWake);
    armed_ = true;
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    require(entry != nullptr, "an io_uring has room for all blocks in flight");
    return entry;
  }

  void reap() {
    unsigned head, count = 0;
    io_uring_cqe* entry;
    io_uring_for_each_cqe(&ring_, head, entry) {
      ++count;
      const uint64_t index = io_uring_cqe_get_data64(entry);
      if (index == kWake) {
        armed_ = false;
        continue;
      }
      DiskBlock& block = blocks_[index];
      if (!DiskQueue::advance(block, entry->res)) {
        again_.push(index);
        continue;
      }
      --in_flight_[block.write];
      if (block.hashed && !block.failed) {
        over_.push(index);
      } else {
        finish(index);
      }
    }
    io_uring_cq_advance(&ring_, count);
  }

  void finish(size_t index) {
    queue_.finish(blocks_[index]);
    free_.push(index);
  }

  DiskQueue& queue_;
  const int depth_;
  std::vector<DiskBlock> blocks_;
  Fifo free_, again_, over_;
  int in_flight_[2] = {0, 0};  // reads, writes
  std::span<std::byte> pinned_;
  io_uring ring_{};
  bool open_ = false;
  int event_ = -1;
  bool armed_ = false;
  int failures_ = 0;  // of calls, since the last that was well
  int broken_ = 0;    // the errno for which the ring was given up
  uint64_t events_ = 0;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<DiskWorker> start_uring(DiskQueue& queue, const DiskOptions& options, int& code) {
  auto worker = std::make_unique<Uring>(queue, options);
  code = worker->start(options);
  if (code != 0) return nullptr;
  return worker;
}

}  // namespace ort_train
