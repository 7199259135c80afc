// float16 (IEEE 754 binary16) and bfloat16 (the upper half of a float32): types of storage. What computes with them does so in float32 and
// rounds once, to nearest even, when it stores. The conversions are branch-free, so that loops over them become vector instructions, and
// have the same bits on every device. NaN stays NaN; numbers beyond the range become infinities.

#pragma once

#include <cstdint>
#include <cstring>

// Marks functions that run on both devices. They must be inlined into their loops, else those can't be vectorised.
#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE __attribute__((always_inline))
#endif

namespace ort_train {

struct float16 {
  uint16_t bits = 0;
  bool operator==(const float16&) const = default;  // of the bits
};
struct bfloat16 {
  uint16_t bits = 0;
  bool operator==(const bfloat16&) const = default;
};

namespace float_bits {
HOST_DEVICE inline float as_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}
HOST_DEVICE inline uint32_t of(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
}  // namespace float_bits

HOST_DEVICE inline float to_float(bfloat16 x) { return float_bits::as_float(uint32_t{x.bits} << 16); }

HOST_DEVICE inline bfloat16 to_bfloat16(float x) {
  const uint32_t bits = float_bits::of(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t nan = (bits >> 16) | 0x40u;  // quiet
  return {static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? nan : rounded)};
}

// The exponent is moved by a product, which is exact and makes numbers of denormal ones.
HOST_DEVICE inline float to_float(float16 x) {
  const uint32_t magnitude = uint32_t{x.bits & 0x7fffu} << 13;
  const uint32_t moved = float_bits::of(float_bits::as_float(magnitude) * 0x1p112f);
  const uint32_t special = magnitude | 0x7f800000u;  // infinity and NaN
  return float_bits::as_float((magnitude >= 0x0f800000u ? special : moved) | uint32_t{x.bits & 0x8000u} << 16);
}

// A sum with the number whose last place is that of the result rounds denormal ones.
HOST_DEVICE inline float16 to_float16(float x) {
  const uint32_t bits = float_bits::of(x), magnitude = bits & 0x7fffffffu;
  const uint32_t denormal = float_bits::of(float_bits::as_float(magnitude) + 0.5f) - float_bits::of(0.5f);
  const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  const uint32_t special = magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
  const uint32_t finite = magnitude < 0x38800000u ? denormal : normal;
  return {static_cast<uint16_t>((magnitude >= 0x477ff000u ? special : finite) | (bits >> 16 & 0x8000u))};
}

// Compute<T>: what arithmetic on elements of T is done in. load() and store<T>() go between the two.
template <typename T> struct ComputeOf { using Type = T; };
template <> struct ComputeOf<float16> { using Type = float; };
template <> struct ComputeOf<bfloat16> { using Type = float; };
template <typename T> using Compute = typename ComputeOf<T>::Type;

template <typename T> HOST_DEVICE inline T load(T x) { return x; }
HOST_DEVICE inline float load(float16 x) { return to_float(x); }
HOST_DEVICE inline float load(bfloat16 x) { return to_float(x); }

template <typename T> struct StoreAs {
  HOST_DEVICE static T of(T x) { return x; }
};
template <> struct StoreAs<float16> {
  HOST_DEVICE static float16 of(float x) { return to_float16(x); }
};
template <> struct StoreAs<bfloat16> {
  HOST_DEVICE static bfloat16 of(float x) { return to_bfloat16(x); }
};
template <typename T> HOST_DEVICE inline T store(Compute<T> x) { return StoreAs<T>::of(x); }

}  // namespace ort_train
