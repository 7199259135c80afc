// exp, expm1, log, tanh, erf, sigmoid, softplus, and sin, cos, tan, their inverses and hyperbolic kin, pow: branch-free, so that the
// compiler vectorises the loops that call them (GCC calls libm once an element otherwise, some 40 times slower) and an element has the same
// bits in a vector body, in its tail, at any address and on any device.
//
// float: polynomials, at most 0.51 (sin and what follows it), 1.01 (exp, log, erf), 2 (softplus) and 2.6 (tanh, sigmoid, expm1) units in
// the last place from the true value over all floats (tests/math_test.cpp); NaN, infinities and denormals as in libm, but for
// exp2_of_product() and exp_of_weight(). double: libm itself, the device's own on a GPU. Every fused multiply-add is written as one. The
// polynomials are minimax fits of the functions named beside them, the coefficients of those in float rounded one after another.

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

// 2^(a * b) for -127.49 < a * b < 127.49; 0 below -126.5, NaN for NaN. Half the operations of exp(): of the product only the fraction is
// rounded, and the result is 1.8 units in the last place off, besides what b is.
HOST_DEVICE inline float exp2_of_product(float a, float b) {
  constexpr float kShift = 12582912.0f + 127.0f;  // added, it rounds to an integer, whose last bits are then those of the exponent
  const float n = fma(a, b, kShift);
  const float r = fma(a, b, kShift - n);
  float p = 0x1.5bba10p-10f;
  p = fma(p, r, 0x1.3cea88p-7f);
  p = fma(p, r, 0x1.c6b752p-5f);
  p = fma(p, r, 0x1.ebf9bcp-3f);
  p = fma(p, r, 0x1.62e42ap-1f);
  p = fma(p, r, 1.0f);
  return p * float_of(static_cast<int32_t>(static_cast<uint32_t>(bits_of(n)) << 23));
}
HOST_DEVICE inline double exp2_of_product(double a, double b) { return ::exp2(a * b); }

// e^x for x < 88, to 2^-23 + 2^-25 |x| of itself; 0 below -87.69. For weights that are added up, whose largest is about 1.
HOST_DEVICE inline float exp_of_weight(float x) { return exp2_of_product(x < -87.7f ? -87.7f : x, 0x1.715476p+0f); }
HOST_DEVICE inline double exp_of_weight(double x) { return ::exp(x); }

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

// --- by way of double -------------------------------------------------------------------------------------------------------------------

// sin, cos, tan, their inverses and hyperbolic kin, pow, of floats: computed in double to 37 bits or better and rounded once, so at most
// 0.51 units in the last place from the true value, again without branches and with the same bits on every device.

HOST_DEVICE inline uint64_t bits_of(double x) {
  uint64_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}
HOST_DEVICE inline double double_of(uint64_t bits) {
  double x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

// c + x * (…): Horner's scheme, the coefficients of the lowest powers first.
template <typename... Higher> HOST_DEVICE inline double polynomial(double x, double c, Higher... higher) {
  if constexpr (sizeof...(higher) == 0)
    return c;
  else
    return fma(polynomial(x, higher...), x, c);
}

inline constexpr double kHalfPi = 1.57079632679489661923;
inline constexpr double kLog2E = 1.44269504088896340736;
inline constexpr double kLn2 = 0.69314718055994530942;
inline constexpr double kRoundingShift = 0x1.8p52;  // added, it rounds to an integer, which then stands in the low bits

// x = (n + rest) * pi/2 with |rest| <= 1/2, for x >= 0. 2/pi is 106 bits long, in two parts. From 2^46 on x is a multiple of a 2^S, by
// which it is divided, and 2/pi is 2^S * 2/pi less a multiple of 4: the product loses whole turns, and its integer part stays exact. No
// float is nearer to a multiple of pi/2 than 2^-30, of which the product's 60 bits behind the point leave enough.
struct QuarterTurns {
  uint64_t n;  // its last two bits count
  double rest;
};
HOST_DEVICE inline QuarterTurns quarter_turns(double x) {
  const bool s23 = x >= 0x1p46, s46 = x >= 0x1p69, s69 = x >= 0x1p92, s92 = x >= 0x1p115;
  const double scale = s92 ? 0x1p-92 : s69 ? 0x1p-69 : s46 ? 0x1p-46 : s23 ? 0x1p-23 : 1.0;
  double high = s23 ? 0x1.b727220a94fe1p+0 : 0x1.45f306dc9c883p-1, low = s23 ? 0x1.d5f47d4d37703p-55 : -0x1.6b01ec5417056p-55;
  high = s46 ? 0x1.054a7f09d5f48p+0 : high, low = s46 ? -0x1.596447e493ad5p-55 : low;
  high = s69 ? -0x1.ec54170565912p-2 : high, low = s69 ? 0x1.b6c52b3278872p-60 : low;
  high = s92 ? 0x1.1f534ddc0db63p+0 : high, low = s92 ? -0x1.a99b0ef1bef80p-54 : low;
  const double part = x * scale, turns = part * high, shifted = turns + kRoundingShift;
  return {bits_of(shifted), (turns - (shifted - kRoundingShift)) + fma(part, low, fma(part, high, -turns))};
}
// Of rest * pi/2.
HOST_DEVICE inline double sine_of(double rest) {
  return rest * polynomial(rest * rest, 0x1.921fb5443b577p+0, -0x1.4abbce56ad3cfp-1, 0x1.466bbac7c0510p-4, -0x1.32ca9d0f263efp-8,
                           0x1.4bc83e464bd81p-13);
}
HOST_DEVICE inline double cosine_of(double rest) {
  const double z = rest * rest;
  return fma(
      z, polynomial(z, -0x1.3bd3cc9be3630p+0, 0x1.03c1f07ea59f4p-2, -0x1.55d3c1c34af8ep-6, 0x1.e1ec711e4116dp-11, -0x1.a1e83293d8d03p-16),
      1.0);
}

HOST_DEVICE inline float sin(float x) {
  const QuarterTurns q = quarter_turns(abs(x));
  const auto y = static_cast<float>(q.n & 1 ? cosine_of(q.rest) : sine_of(q.rest));
  return float_bits::as_float(float_bits::of(y) ^ (static_cast<uint32_t>(q.n << 30) & 0x80000000u) ^ (float_bits::of(x) & 0x80000000u));
}
HOST_DEVICE inline double sin(double x) { return ::sin(x); }

HOST_DEVICE inline float cos(float x) {
  const QuarterTurns q = quarter_turns(abs(x));
  const auto y = static_cast<float>(q.n & 1 ? sine_of(q.rest) : cosine_of(q.rest));
  return float_bits::as_float(float_bits::of(y) ^ (static_cast<uint32_t>((q.n + 1) << 30) & 0x80000000u));
}
HOST_DEVICE inline double cos(double x) { return ::cos(x); }

HOST_DEVICE inline float tan(float x) {
  const QuarterTurns q = quarter_turns(abs(x));
  const double sine = sine_of(q.rest), cosine = cosine_of(q.rest);
  const auto y = static_cast<float>((q.n & 1 ? -cosine : sine) / (q.n & 1 ? sine : cosine));
  return float_bits::as_float(float_bits::of(y) ^ (float_bits::of(x) & 0x80000000u));
}
HOST_DEVICE inline double tan(double x) { return ::tan(x); }

// asin(a) for 0 <= a <= 1/2.
HOST_DEVICE inline double small_asin(double a) {
  const double z = a * a;
  return fma(a * z,
             polynomial(z, 0x1.555555555ba9ep-3, 0x1.333333133277ep-4, 0x1.6db6f5e9d0b98p-5, 0x1.f1beb9c867b18p-6, 0x1.6f347e4a44c5dp-6,
                        0x1.14eefea06d8d9p-6, 0x1.144d1f0d0554dp-6, 0x1.17d722d86d4bep-10, 0x1.d06eddee004bep-6),
             a);
}
HOST_DEVICE inline float asin(float x) {  // above 1/2: pi/2 - 2 asin(sqrt((1 - |x|) / 2))
  const double a = abs(x);
  const bool large = a > 0.5;
  const double y = small_asin(large ? sqrt(0.5 * (1.0 - a)) : a);
  return copysign(static_cast<float>(large ? kHalfPi - 2.0 * y : y), x);
}
HOST_DEVICE inline double asin(double x) { return ::asin(x); }

HOST_DEVICE inline float acos(float x) {
  const double a = abs(x);
  const bool large = a > 0.5;
  const double y = small_asin(large ? sqrt(0.5 * (1.0 - a)) : a);
  const double right = large ? 2.0 * y : kHalfPi - y, left = large ? 2.0 * (kHalfPi - y) : kHalfPi + y;
  return static_cast<float>(x < 0.0f ? left : right);
}
HOST_DEVICE inline double acos(double x) { return ::acos(x); }

HOST_DEVICE inline float atan(float x) {  // above 1: pi/2 - atan(1 / |x|)
  const double a = abs(x);
  const bool large = a > 1.0;
  const double t = large ? 1.0 / a : a, z = t * t;
  const double y =
      fma(t * z,
          polynomial(z, -0x1.555555554e12ep-2, 0x1.9999998350a7ap-3, -0x1.2492436ae8038p-3, 0x1.c71b46328c101p-4, -0x1.744cee862929dp-4,
                     0x1.3a8c2625b9aa7p-4, -0x1.0e22e4c8a6ab4p-4, 0x1.cb4cbfd1c120cp-5, -0x1.703ae186038e7p-5, 0x1.0357b7b676e8cp-5,
                     -0x1.26a513965d7e6p-6, 0x1.e8b7d967003fbp-8, -0x1.01026ecc75077p-9, 0x1.fb94030f244ddp-13),
          t);
  return copysign(static_cast<float>(large ? kHalfPi - y : y), x);
}
HOST_DEVICE inline double atan(double x) { return ::atan(x); }

// 2^x = scale * (1 + expm1) for |x| <= 1000.
struct Exp2Parts {
  double scale, expm1;
};
HOST_DEVICE inline Exp2Parts exp2_parts(double x) {
  const double shifted = x + kRoundingShift, r = x - (shifted - kRoundingShift);
  const double p = polynomial(r, 0x1.62e42fef9cc3cp-1, 0x1.ebfbdff82a727p-3, 0x1.c6b08da71da60p-5, 0x1.3b2ab70ad7014p-7,
                              0x1.5d87757c238f2p-10, 0x1.4308c708aee31p-13, 0x1.00c0fb54e0f1cp-16, 0x1.63b2f07a28632p-20);
  return {double_of((bits_of(shifted) + 1023) << 52), r * p};
}

HOST_DEVICE inline float sinh(float x) {  // (t + t / (t + 1)) / 2 with t = e^|x| - 1
  const double a = abs(x);
  const Exp2Parts e = exp2_parts((a > 100.0 ? 100.0 : a) * kLog2E);
  const double t = fma(e.scale, e.expm1, e.scale - 1.0);
  return copysign(static_cast<float>(0.5 * (t + t / (t + 1.0))), x);
}
HOST_DEVICE inline double sinh(double x) { return ::sinh(x); }

HOST_DEVICE inline float cosh(float x) {
  const double a = abs(x);
  const Exp2Parts e = exp2_parts((a > 100.0 ? 100.0 : a) * kLog2E);
  const double y = fma(e.scale, e.expm1, e.scale);
  return static_cast<float>(0.5 * (y + 1.0 / y));
}
HOST_DEVICE inline double cosh(double x) { return ::cosh(x); }

// x = 2^k * m with m in [sqrt(1/2), sqrt(2)), for 0 < x < infinity; log(m) = s * R(s^2) with s = (m - 1) / (m + 1).
struct LogParts {
  double k, log_m;
};
HOST_DEVICE inline LogParts log_parts(double x) {
  constexpr uint64_t kOne = 0x3ff0000000000000u, kRootOfHalf = 0x3fe6a09e667f3bcdu, kFraction = 0x000fffffffffffffu;
  const uint64_t bits = bits_of(x) + (kOne - kRootOfHalf);
  const double k = double_of((bits >> 52) + bits_of(kRoundingShift)) - (kRoundingShift + 1023.0);
  const double f = double_of((bits & kFraction) + kRootOfHalf) - 1.0, s = f / (2.0 + f), z = s * s;
  return {k, s * polynomial(z, 0x1.fffffffffff11p+0, 0x1.5555555672baap-1, 0x1.9999962870e32p-2, 0x1.249439a497a18p-2, 0x1.c6206967897bep-3,
                            0x1.919abd57b321ap-3)};
}

// log(1 + x) for x >= 0: the rounding of 1 + x is made good.
HOST_DEVICE inline double log1p(double x) {
  const double u = 1.0 + x;
  const LogParts log = log_parts(u);
  const double y = fma(log.k, kLn2, log.log_m) + (x - (u - 1.0)) / u;
  return x < HUGE_VAL ? y : x;
}

// Of doubles that end in a float32, to 2^-36 of the result or, of logarithms near zero, of one. All devices give the same bits, while
// their libraries' functions of doubles differ. e^x, for x <= 690; the logarithm of x > 0.
HOST_DEVICE inline double exp_for_float(double x) {
  const Exp2Parts e = exp2_parts((x < -690.0 ? -690.0 : x) * kLog2E);
  return fma(e.scale, e.expm1, e.scale);
}
HOST_DEVICE inline double log_for_float(double x) {
  const LogParts log = log_parts(x);
  const double y = fma(log.k, kLn2, log.log_m);
  return x < HUGE_VAL ? y : x;  // infinity and NaN are their own
}

HOST_DEVICE inline float asinh(float x) {
  const double a = abs(x);
  return copysign(static_cast<float>(log1p(a + a * a / (1.0 + sqrt(fma(a, a, 1.0))))), x);
}
HOST_DEVICE inline double asinh(double x) { return ::asinh(x); }

HOST_DEVICE inline float acosh(float x) {
  const double t = static_cast<double>(x) - 1.0;
  const auto y = static_cast<float>(log1p(t + sqrt(t * (t + 2.0))));
  return x < 1.0f ? float_of(0x7fc00000) : y;
}
HOST_DEVICE inline double acosh(double x) { return ::acosh(x); }

HOST_DEVICE inline float atanh(float x) {
  const double a = abs(x);
  const auto y = static_cast<float>(0.5 * log1p(2.0 * a / (1.0 - a)));
  return a > 1.0 ? float_of(0x7fc00000) : copysign(y, x);
}
HOST_DEVICE inline double atanh(double x) { return ::atanh(x); }

// 2^(y log2 |x|), then the sign and what IEEE 754 says of NaN, infinities and zeros. Numbers beyond all others stand for infinite
// logarithms and exponents, so that their products with zero are zero. Choices between values rather than conditions: loops with those
// aren't vectorised.
HOST_DEVICE inline float pow(float x, float y) {
  constexpr double kBeyond = 0x1p800, kBeyondFloats = 0x1p128;
  const double a = abs(x);
  const LogParts parts = log_parts(a);
  double log = fma(parts.log_m, kLog2E, parts.k);
  log = a == 0.0 ? -kBeyond : log;
  log = a == HUGE_VAL ? kBeyond : log;
  log = a != a ? a : log;
  double exponent = y;
  exponent = exponent > kBeyondFloats ? kBeyondFloats : exponent;
  exponent = exponent < -kBeyondFloats ? -kBeyondFloats : exponent;
  double power = exponent == 0.0 ? 0.0 : exponent * log;
  power = power > 1000.0 ? 1000.0 : power;
  power = power < -1000.0 ? -1000.0 : power;
  const Exp2Parts e = exp2_parts(power);
  const auto size = static_cast<float>(fma(e.scale, e.expm1, e.scale));

  const float whole = floor(y), rest = y - 2.0f * floor(0.5f * y);  // of an odd number 1
  const float odd = whole == y ? rest : 0.0f;
  const float result = odd == 1.0f ? copysign(size, x) : size;
  const float rootless = whole == y ? 0.0f : x;  // if negative
  const float bounded = rootless < 0.0f ? float_of(0x7fc00000) : result;
  const float checked = x == -HUGE_VALF ? result : bounded;
  return x == 1.0f ? 1.0f : checked;
}
HOST_DEVICE inline double pow(double x, double y) { return ::pow(x, y); }

}  // namespace math
ORT_TRAIN_OPS_END
