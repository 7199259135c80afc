// Kernels in which each element is by itself: a thread takes a pack of neighbours, which it loads and stores at once where they lie so.

#pragma once

#include <algorithm>
#include <cstdint>

#include "exec/block.h"
#include "exec/cuda/pack.h"
#include "exec/cuda/unroll.h"

ORT_TRAIN_OPS_BEGIN

// Elements per pack where the largest element type has `largest` bytes: 16 bytes of it, at least 2, at most 8.
constexpr int pack_of(size_t largest) { return static_cast<int>(std::clamp<size_t>(16 / largest, 2, 8)); }

// f.pack(i) for the F::kPack elements from i on, or f(i) for one; in any order. F is a functor, HOST_DEVICE.
template <class F> struct EachPack {
  static constexpr int kThreads = 256;
  static constexpr int64_t kElements = int64_t{kThreads} * F::kPack;  // of a block
  using Shared = NoShared;
  F f;
  int64_t n;
  bool is_packed;
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t first = block.index * kElements, begin = first + t * F::kPack;
      if (is_packed && begin + F::kPack <= n) return f.pack(begin);
      ORT_TRAIN_NO_UNROLL
      for (int k = 0; k < F::kPack; ++k) {
        const int64_t i = is_packed ? begin + k : first + int64_t{k} * kThreads + t;
        if (i < n) f(i);
      }
    });
  }
};

// is_packed: packs from multiples of F::kPack on lie at multiples of their size.
template <class F> void launch_packs(const F& f, int64_t n, bool is_packed, const KernelArgs& args) {
  launch(EachPack<F>{f, n, is_packed}, (n + EachPack<F>::kElements - 1) / EachPack<F>::kElements, args);
}

ORT_TRAIN_OPS_END
