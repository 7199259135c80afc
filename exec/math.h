// exp, expm1, log, tanh, erf, sigmoid, softplus: branch-free, so that the compiler vectorises the loops that call them (GCC calls libm once
// an element otherwise, some 40 times slower) and an element has the same bits in a vector body, in its tail and at any address.
//
// float: polynomials, at most 1.01 (exp, log, erf), 2 (softplus) and 2.6 (tanh, sigmoid, expm1) units in the last place from the true value
// over all floats (tests/math_test.cpp); NaN, infinities and denormals as in libm. double: libm itself. Every fused multiply-add is written
// as one. What is rare (sin, cos, pow …) is libm in both. The polynomials are minimax fits of the functions named beside them, coefficients
// rounded to float one after another.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "exec/kernel.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN
namespace math {

inline constexpr double kInvSqrt2 = 0.70710678118654752440;
inline constexpr double kInvSqrt2Pi = 0.39894228040143267794;
inline constexpr double kSqrt2OverPi = 0.79788456080286535588;
inline constexpr double kTwoOverSqrtPi = 1.12837916709551257390;

HOST_DEVICE inline int32_t bits_of(float x) { return static_cast<int32_t>(float_bits::of(x)); }
HOST_DEVICE inline float float_of(int32_t bits) { return float_bits::as_float(static_cast<uint32_t>(bits)); }
HOST_DEVICE inline float power_of_two(int32_t n) { return float_of((n + 127) << 23); }  // -126 <= n <= 127

HOST_DEVICE inline float fma(float a, float b, float c) { return ::fmaf(a, b, c); }
HOST_DEVICE inline double fma(double a, double b, double c) { return ::fma(a, b, c); }
HOST_DEVICE inline float abs(float x) { return ::fabsf(x); }
HOST_DEVICE inline double abs(double x) { return ::fabs(x); }
HOST_DEVICE inline float copysign(float x, float sign) { return ::copysignf(x, sign); }
HOST_DEVICE inline double copysign(double x, double sign) { return ::copysign(x, sign); }
HOST_DEVICE inline float sqrt(float x) { return ::sqrtf(x); }
HOST_DEVICE inline double sqrt(double x) { return ::sqrt(x); }
HOST_DEVICE inline float floor(float x) { return ::floorf(x); }
HOST_DEVICE inline double floor(double x) { return ::floor(x); }
HOST_DEVICE inline float ceil(float x) { return ::ceilf(x); }
HOST_DEVICE inline double ceil(double x) { return ::ceil(x); }
HOST_DEVICE inline float round_to_even(float x) { return ::rintf(x); }
HOST_DEVICE inline double round_to_even(double x) { return ::rint(x); }

// x = n * ln 2 + r with |r| <= ln(2)/2; then e^r - 1 as a polynomial. Adding and subtracting 1.5 * 2^23 rounds to an integer, which then
// stands in the low bits: no conversion, whose result for NaN would be undefined.
struct ExpParts {
  int32_t n;
  float r_expm1;
};
HOST_DEVICE inline ExpParts exp_parts(float x) {
  constexpr float kShift = 12582912.0f;
  float n = fma(x, 0x1.715476p+0f, kShift);  // 1 / ln 2
  const int32_t integer = bits_of(n) - bits_of(kShift);
  n -= kShift;
  float r = fma(n, -0x1.62e400p-1f, x);  // ln 2 in two parts; the first has 9 trailing zeros, so n times it is exact
  r = fma(n, -0x1.7f7d1cp-20f, r);
  float p = 0x1.6a4b36p-10f;  // (e^r - 1 - r) / r^2
  p = fma(p, r, 0x1.12398ep-7f);
  p = fma(p, r, 0x1.5558b2p-5f);
  p = fma(p, r, 0x1.555492p-3f);
  p = fma(p, r, 0x1.fffffcp-2f);
  return {integer, fma(p, r * r, r)};
}

HOST_DEVICE inline float exp(float x) {
  x = x > 89.0f ? 89.0f : x;  // infinity from here on; NaN stays
  x = x < -104.0f ? -104.0f : x;
  const ExpParts e = exp_parts(x);
  const int32_t half = e.n >> 1;  // 2^n in two factors: n = 128 overflows only in the end, denormals are rounded once
  return (1.0f + e.r_expm1) * power_of_two(half) * power_of_two(e.n - half);
}
HOST_DEVICE inline double exp(double x) { return ::exp(x); }

// x = 2^k * (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)); with s = f / (2 + f): log(1 + f) = f - f^2/2 + s * (f^2/2 + R(s^2)),
// the form and coefficients of FreeBSD's e_logf.c.
HOST_DEVICE inline float log(float x) {
  const bool denormal = x < 0x1p-126f;
  const float scaled = denormal ? x * 0x1p25f : x;
  const int32_t bits = static_cast<int32_t>(static_cast<uint32_t>(bits_of(scaled)) + (0x3f800000u - 0x3f3504f3u));
  const int32_t exponent = (bits >> 23) - 127 - (denormal ? 25 : 0);
  const float k = static_cast<float>(exponent);
  const float f = float_of((bits & 0x007fffff) + 0x3f3504f3) - 1.0f;
  const float s = f / (2.0f + f);
  const float z = s * s, w = z * z;
  const float r = fma(w, fma(w, 0x1.f13c4cp-3f, 0x1.999c26p-2f), z * fma(w, 0x1.23d3dcp-2f, 0x1.555554p-1f));
  const float half = 0.5f * f * f;
  const float y = k * 0x1.62e300p-1f - ((half - fma(k, 0x1.2fefa2p-17f, s * (half + r))) - f);
  const float edge = x == 0.0f ? -HUGE_VALF : x;  // zero; or infinity and NaN, which are their own logarithms
  const float finite = x > 0.0f && x < HUGE_VALF ? y : edge;
  return x < 0.0f ? float_of(0x7fc00000) : finite;
}
HOST_DEVICE inline double log(double x) { return ::log(x); }

// e^x - 1 without cancellation, for x <= 88.
HOST_DEVICE inline float expm1(float x) {
  const ExpParts e = exp_parts(x < -20.0f ? -20.0f : x);
  const float scale = power_of_two(e.n);
  return fma(scale, e.r_expm1, scale - 1.0f);
}
HOST_DEVICE inline double expm1(double x) { return ::expm1(x); }

// (e^2|x| - 1) / (e^2|x| + 1); 1 from 9.011 on.
HOST_DEVICE inline float tanh(float x) {
  const float a = abs(x);
  const float numerator = expm1(2.0f * (a > 9.1f ? 9.1f : a));
  return copysign(numerator / (numerator + 2.0f), x);
}
HOST_DEVICE inline double tanh(double x) { return ::tanh(x); }

// Up to 0.93 x + x * Q(x^2), above 1 - e^(-x - x * R(x)).
HOST_DEVICE inline float erf(float x) {
  const float a = abs(x);
  const float t = a > 4.0f ? 4.0f : a;  // 1 from 3.92 on
  float r = 0x1.829728p-17f;
  r = fma(r, t, -0x1.55897cp-12f);
  r = fma(r, t, 0x1.defaf2p-9f);
  r = fma(r, t, -0x1.85bae4p-6f);
  r = fma(r, t, 0x1.b34428p-4f);
  r = fma(r, t, 0x1.45303ap-1f);
  r = fma(r, t, 0x1.077b28p-3f);
  const float large = copysign(1.0f - exp(-fma(r, t, t)), x);
  const float s = x * x;
  float q = 0x1.4f58d0p-14f;
  q = fma(q, s, -0x1.a6072cp-11f);
  q = fma(q, s, 0x1.5449e8p-8f);
  q = fma(q, s, -0x1.b80118p-6f);
  q = fma(q, s, 0x1.ce2d64p-4f);
  q = fma(q, s, -0x1.812740p-2f);
  q = fma(q, s, 0x1.06eba8p-3f);
  return a > 0.927734375f ? large : fma(q, x, x);
}
HOST_DEVICE inline double erf(double x) { return ::erf(x); }

// 1 / (1 + e^-x), from e^-|x| so that nothing overflows and the far left keeps its denormals.
template <typename T> HOST_DEVICE inline T sigmoid(T x) {
  const T e = exp(-abs(x));
  return (x >= T(0) ? T(1) : e) / (T(1) + e);
}

// log(1 + e^x), with the rounding of 1 + e^-|x| made good.
template <typename T> HOST_DEVICE inline T softplus(T x) {
  const T e = exp(-abs(x));
  const T one_plus = T(1) + e;
  const T rest = e - (one_plus - T(1));
  return (x > T(0) ? x : T(0)) + (log(one_plus) + rest / one_plus) + (x != x ? x : T(0));
}

HOST_DEVICE inline float sin(float x) { return ::sinf(x); }
HOST_DEVICE inline double sin(double x) { return ::sin(x); }
HOST_DEVICE inline float cos(float x) { return ::cosf(x); }
HOST_DEVICE inline double cos(double x) { return ::cos(x); }
HOST_DEVICE inline float pow(float x, float y) { return ::powf(x, y); }
HOST_DEVICE inline double pow(double x, double y) { return ::pow(x, y); }

}  // namespace math
ORT_TRAIN_OPS_END
