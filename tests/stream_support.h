// A disk and a machine for the tests of streamed programs.

#pragma once

#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "exec/arena.h"
#include "exec/cpu_device.h"
#include "exec/disk.h"
#include "exec/executor.h"
#include "passes/plan.h"

namespace ort_train::fixtures {

// A disk in memory that is as late as it may be: it copies when somebody waits, sometimes a little earlier, in any order. Until then the
// target of a transfer holds rubbish. Refuses (Error(internal)) what a Disk needn't take: misaligned or overlapping transfers, places that
// lie outside, memory that changes while it is being written, tickets that nobody has.
class LazyDisk : public Disk {
 public:
  LazyDisk(int64_t bytes, uint32_t seed) : content_(static_cast<size_t>(bytes)), random_(seed) {}

  int64_t read(int64_t offset, std::byte* to, int64_t bytes) override;
  int64_t write(int64_t offset, const std::byte* from, int64_t bytes) override;
  void wait(int64_t ticket) override;
  void drain() noexcept override;

  int64_t bytes_read() const { return bytes_read_; }
  int64_t bytes_written() const { return bytes_written_; }
  size_t in_flight() const { return transfers_.size(); }

 private:
  struct Transfer {
    bool write;
    int64_t offset;
    std::byte* memory;
    int64_t bytes;
    std::vector<std::byte> was;  // of a write: the memory when it began
    bool done = false;
  };
  int64_t start(Transfer transfer);
  void carry_out(Transfer& transfer);
  void be_early();
  std::byte* at(int64_t offset) { return content_.data() + offset; }

  std::vector<std::byte> content_;
  std::map<int64_t, Transfer> transfers_;
  std::mt19937 random_;
  int64_t tickets_ = 0, bytes_read_ = 0, bytes_written_ = 0;
};

// A program with its memory. What doesn't live across runs is filled with rubbish before each of them.
class StreamMachine {
 public:
  // `disk`: may be null where the program needs none.
  StreamMachine(const Program& program, std::vector<const Graph*> graphs, Device& device, Disk* disk);
  StreamMachine(const Program& program, std::vector<const Graph*> graphs, Workers& workers, Disk* disk);  // on the processor

  // Writes random parameters, the same for the same seed whatever the program.
  void set_parameters(uint32_t seed);
  // Runs an entry on inputs of the seed; appends what it keeps to `left`.
  void run(size_t entry, uint32_t seed, int64_t limit, std::vector<std::byte>& left);
  // … on inputs of their own seeds; appends `wanted`, which the entry keeps.
  void run(size_t entry, const std::map<ValueId, uint32_t>& seeds, int64_t limit, std::span<const ValueId> wanted,
           std::vector<std::byte>& left);
  // Appends all that lives across runs, by name.
  void append_state(std::vector<std::byte>& left);

  Executor& executor() { return executor_; }
  const Executor& executor() const { return executor_; }

 private:
  StreamMachine(const Program& program, std::vector<const Graph*> graphs, std::unique_ptr<Device> own, Disk* disk);
  void spoil_memory();

  std::unique_ptr<Device> own_;
  Device& device_;
  const Program& program_;
  std::vector<const Graph*> graphs_;
  Executor executor_;
  std::vector<std::unique_ptr<Memory>> memory_;  // by space
};

// What the transfers of a program's entry move.
struct Moves {
  int64_t state = 0;              // transfers of what lives across runs
  int64_t activations = 0;        // what comes back after it was written, of what doesn't
  int64_t in_place = 0;           // of these, made in place by several nodes
  int64_t read = 0, written = 0;  // bytes
};
Moves moves_of(const Program& program, size_t entry, const Graph& graph);

}  // namespace ort_train::fixtures
