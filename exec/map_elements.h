// Loops over elements on the processor: to[i] = store(f(load(from[i])...)), each rounded once.
//
// 16 bits are converted some elements at a time, by the processor's own instructions, to the same bits as one by one, in a half of the time
// and less: float16 to and from buffers of floats; bfloat16 where it is written, since reading it is a shift, and one loop over elements
// that aren't in the cache waits less than three do (measured).

#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <type_traits>

#include "exec/element_types.h"
#include "exec/gemm_element.h"

ORT_TRAIN_OPS_BEGIN

// n elements as floats, where they are or at `room`.
template <typename T> const float* as_floats(const T* from, int64_t n, float* room) {
  if constexpr (std::is_same_v<T, float>) {
    return from;
  } else {
    gemm::widen<element_of(dtype_of<T>())>(reinterpret_cast<const std::byte*>(from), n, room);
    return room;
  }
}

template <typename T> inline constexpr bool is_float_or_half = std::is_same_v<T, float> || is_half(dtype_of<T>());
template <typename... T> inline constexpr bool has_float16 = (std::is_same_v<T, float16> || ...);

// `to` may be one of `from`, exactly.
template <typename R, typename F, typename... From>
__attribute__((always_inline)) inline void map_elements(R* to, int64_t n, const F& f, const From*... from) {
  if constexpr (has_float16<R, From...> && is_float_or_half<R> && (is_float_or_half<From> && ...)) {
    constexpr int64_t kSome = 512;
    float made[kSome], rooms[sizeof...(From)][kSome];
    for (int64_t begin = 0; begin < n; begin += kSome) {
      const int64_t count = std::min(kSome, n - begin);
      float(*room)[kSome] = rooms;
      const std::array<const float*, sizeof...(From)> floats{as_floats(from + begin, count, *room++)...};
      std::apply(
          [&](const auto*... of) {
#pragma GCC ivdep
            for (int64_t i = 0; i < count; ++i) made[i] = f(of[i]...);
          },
          floats);
      if constexpr (std::is_same_v<R, float>)
        std::copy_n(made, count, to + begin);
      else
        gemm::narrow<element_of(dtype_of<R>())>(made, count, reinterpret_cast<std::byte*>(to + begin));
    }
    return;
  }
  int64_t done = 0;
#ifdef __AVX512F__
  if constexpr (std::is_same_v<R, bfloat16>) {
    constexpr int64_t kSome = 32;
    const bool converts = gemm::has_pairs();
    for (; done + kSome <= n; done += kSome) {
      float made[kSome];
#pragma GCC unroll 2
      for (int64_t i = 0; i < kSome; ++i) made[i] = f(load(from[done + i])...);
      gemm::narrow32(made, reinterpret_cast<std::byte*>(to + done), converts);
    }
  }
#endif
#pragma GCC ivdep
  for (int64_t i = done; i < n; ++i) to[i] = store<R>(f(load(from[i])...));
}

ORT_TRAIN_OPS_END
