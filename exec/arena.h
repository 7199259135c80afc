// Memory: that of one space of a program, wherever it is. Arena: the host's, anonymous, of an exact size, populated when it is made, so
// that it can fail only then.
//
// Whoever owns memory outlives those who hold addresses in it. An Arena is a value that can be moved.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ort_train {

class Memory {
 public:
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Where it begins, for kernels and copies. In a device's memory the host can't follow this address, nor any in it.
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 protected:
  explicit Memory(int64_t bytes) : bytes_(bytes) {}
  std::byte* data_ = nullptr;
  int64_t bytes_;
};

class Arena : public Memory {
 public:
  // Maps the bytes, rounded up to whole pages, and touches each page; all are zero. Throws Error(budget) when the machine hasn't that much.
  explicit Arena(int64_t bytes);
  ~Arena() override;
  Arena(Arena&& other) noexcept;
};

}  // namespace ort_train
