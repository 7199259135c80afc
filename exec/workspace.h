// What lies where in a workspace: in bytes from its beginning, one behind another, each in whole lines of the cache.

#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "exec/kernel.h"

ORT_TRAIN_OPS_BEGIN

constexpr int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

class WorkspaceLayout {
 public:
  // Of elements of a type, or of bytes.
  template <typename T = std::byte> int64_t take(int64_t elements) {
    return std::exchange(end_, end_ + whole_lines(elements * int64_t{sizeof(T)}));
  }
  int64_t all() const { return end_; }

 private:
  int64_t end_ = 0;
};

ORT_TRAIN_OPS_END
