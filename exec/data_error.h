// DataError: what a kernel finds wrong with its data while it runs: an index outside an axis, a label outside the classes. The kernel reads
// or writes nothing for that element and goes on; whoever waits for it looks here and throws.
//
// A plain word of memory that every device can write. Of several errors at once one is kept, whichever; a run that has any ends.

#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "graph/error.h"
#include "graph/half.h"

namespace ort_train {

struct DataError {
  enum Kind : int64_t { none, index, label, limit, selected };
  int64_t kind = none;
  int64_t value = 0;     // the index, the label, how many elements a mask selects
  int64_t size = 0;      // it must be less; limit: no more; selected: just that
  int64_t position = 0;  // of it in its tensor

  // From any thread.
  HOST_DEVICE void report(Kind what, int64_t bad, int64_t bound, int64_t at) {
#ifdef __CUDA_ARCH__
    static_assert(sizeof(unsigned long long) == sizeof kind);
    if (atomicCAS(reinterpret_cast<unsigned long long*>(&kind), none, static_cast<unsigned long long>(what)) != none) return;
#else
    int64_t expected = none;
    if (!std::atomic_ref(kind).compare_exchange_strong(expected, what, std::memory_order_relaxed)) return;
#endif
    value = bad;
    size = bound;
    position = at;
  }
  // Throws Error(data) if there is one, and forgets it.
  void check() {
    if (kind == none) return;
    const DataError found = *this;
    *this = {};
    if (found.kind == label)
      throw error(ErrorCode::data, "label {} at position {} of the batch is outside the {} classes that the model gives (0 to {})",
                  found.value, found.position, found.size, found.size - 1);
    if (found.kind == limit || found.kind == selected)
      throw error(ErrorCode::data, "a mask selects {} elements of this batch, but {} {} (`selects` NODE<=COUNT says how many there may be)",
                  found.value, found.kind == limit ? "at most" : "just", found.size);
    throw error(ErrorCode::data, "index {} at position {} is outside an axis of {} elements", found.value, found.position, found.size);
  }
};

}  // namespace ort_train
