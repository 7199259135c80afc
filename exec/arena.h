// Arena: anonymous memory of an exact size, populated when it is made, so that memory can fail only then.
//
// A value that can be moved; whoever owns it outlives those who hold addresses in it.

#pragma once

#include <cstddef>
#include <cstdint>

namespace ort_train {

class Arena {
 public:
  // Maps the bytes, rounded up to whole pages, and touches each page; all are zero. Throws Error(budget) when the machine hasn't that much.
  explicit Arena(int64_t bytes);
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

}  // namespace ort_train
