// Executor: a dumb loop over a Program's instructions. It prepares every kernel when it is made, and decides nothing.
//
// It refers to the Program, the graphs, the arena and the workers; all must outlive it. One thread at a time.

#pragma once

#include <atomic>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "exec/kernel.h"
#include "exec/program.h"

namespace ort_train {

// Anonymous memory of an exact size, populated when asked for, so that memory can fail only then.
class Arena {
 public:
  explicit Arena(int64_t bytes);  // maps and populates; throws Error(budget) when the machine has not that much
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

class Executor {
 public:
  // Prepares all kernels of all entries; equal specs of one op share one.
  Executor(const Program& program, std::vector<const Graph*> graphs, Workers& workers);
  ~Executor();

  size_t prepared_kernels() const;
  // Gives it its memory: copies constants to their places, zeroes optimizer state. Before the first run.
  void attach(Arena& arena);

  std::byte* at(const Place& place) const;
  // The bytes of a value in an entry; throws Error(device) for a value without a place.
  std::span<std::byte> bytes(size_t entry, ValueId value) const;
  // The bytes of a persistent value, by name; throws Error(device) where there is none.
  std::span<std::byte> persistent(std::string_view name) const;

  // Runs an entry from first to last instruction. `stop`, polled between instructions, abandons the run (returns false).
  bool run(size_t entry, const std::atomic<bool>* stop = nullptr);

  // Seconds spent in each instruction of an entry's last run, when profiling is on.
  void profile(bool on);
  const std::vector<double>& seconds(size_t entry) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ort_train
