// A device with memory of its own, made of the processor: an adversary, by seed, for programs that depend on more than what they wait for.
//
// - The host can't touch its memory: addresses that it hands out lie in a range that traps, kernels and copies get the real ones.
// - Each queue has a thread. Copies, and some nodes, begin as late as the waits permit: when something else has to wait for them.
// - With odd seeds it loads its kernels late, so programs are rehearsed, and its memory is full of NaN when they begin.
// - Until a copy is complete there is rubbish where it goes to; afterwards, where nothing reads that any more, where it comes from.

#pragma once

#include <condition_variable>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "exec/device.h"
#include "exec/workers.h"

namespace ort_train::fixtures {

class DiscreteDevice : public Device {
 public:
  // For runs of that program, which is right. Each queue that computes gets so many workers. `kernels`: of what it computes itself.
  DiscreteDevice(const Program& program, const std::vector<const Graph*>& graphs, int threads, uint32_t seed,
                 const KernelTable& kernels = cpu_kernels());
  ~DiscreteDevice() override;

  std::unique_ptr<Memory> allocate(SpaceKind kind, int64_t bytes) override;
  const KernelTable* kernels(SpaceKind where) const override;
  void begin(size_t entry) override { entry_ = entry; }
  void issue(const Work& work) override;
  void wait(int32_t number) override;
  void finish() override;
  void transfer(std::byte* to, const std::byte* from, int64_t bytes) override;
  void fill(std::byte* at, std::byte value, int64_t bytes) override;
  std::string makes_products(DType) const override { return "as tests do"; }
  bool loads_late() const override { return loads_late_; }

  // How often each of its tricks was played.
  struct Tricks {
    int64_t late_copies = 0, late_nodes = 0, poisoned_sources = 0;
  };
  Tricks tricks() const { return tricks_; }

 private:
  struct Item {
    Work work;
    bool late = false;  // until it is wanted
    bool wanted = false;
    bool scribbled = false;  // there is rubbish where it copies to
    bool done = false;
  };
  struct Range {  // of device memory: handed out, and real
    const std::byte* shown;
    std::byte* real;
    int64_t bytes;
  };

  void work_on(QueueId queue);
  bool may_begin(const Item& item) const;
  void want(int32_t number);
  void want_all();
  void carry_out(const Item& item);
  void throw_failure();
  std::byte* real(const void* address) const;
  std::byte* on_device(const void* address) const;  // throws for others

  const KernelTable& kernels_;
  const bool loads_late_;      // so every program is rehearsed
  bool is_rehearsal_ = false;  // the present run leaves out work, which only rehearsals do: those of what isn't the device's alone
  std::vector<std::vector<bool>> dies_;  // by entry and copy: what it copies isn't read where it was any more
  std::vector<Range> ranges_;
  size_t entry_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int32_t, Item> items_;               // of the run
  std::vector<std::vector<int32_t>> of_queue_;  // not yet done, in their order
  std::exception_ptr failure_;
  std::mt19937 random_;
  Tricks tricks_;
  bool ends_ = false;
  std::vector<std::unique_ptr<Workers>> workers_;  // by queue; null where it copies
  std::vector<std::thread> threads_;
};

}  // namespace ort_train::fixtures
