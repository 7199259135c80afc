// Disk: where a Program's transfers go. The executor starts and waits; offload/ implements it.
//
// One thread at a time. The memory that a transfer uses must stay as it is until the transfer was waited for.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ort_train {

class Disk {
 public:
  virtual ~Disk() = default;

  // Starts to copy `bytes` between memory and the disk; all three are multiples of kSector. What was never written reads as zeros.
  // Returns a ticket. May wait until there is room for another transfer; throws Error(io) if an earlier one failed.
  virtual int64_t read(int64_t offset, std::byte* to, int64_t bytes) = 0;
  virtual int64_t write(int64_t offset, const std::byte* from, int64_t bytes) = 0;
  // Until the transfer is complete. Throws Error(io) if it failed.
  virtual void wait(int64_t ticket) = 0;
  // Until nothing is on its way any more; never throws.
  virtual void drain() noexcept = 0;
};

}  // namespace ort_train
