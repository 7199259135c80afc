// Micro-kernels of matrix products in tile registers, on processors with AMX-BF16: up to 32 rows by 32 columns of C, along one block of the
// depth (exec/gemm.h).
//
// A tile register holds 16 rows of 64 bytes. A's hold 16 rows of 16 words, each a pair of bfloat16; B's hold 16 words of the depth of 16
// columns, which is how a packed panel lies in memory; C's hold 16 x 16 floats. C takes four registers (0 to 3), A and B two each (4 and
// 5, 6 and 7).
//
// The bits (Intel's manual, volume 2, TDPBF16PS): of the 16 pairs that one instruction multiplies, the products of the first numbers are
// one chain of additions from zero, those of the second numbers another, in ascending order; then the two are added to each other and to C.
// Denormal numbers are taken as zero. So bits depend on which pairs one instruction takes: always 16 of the depth block, from its first
// pair on. Pairs that aren't there or aren't wanted are zeros on both sides. With a factor (alpha) of one, C's sums begin with what they
// are added to, so those of a depth are one chain through all blocks; with another one each block has a chain of its own.

#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>

#include "exec/gemm_micro.h"

ORT_TRAIN_OPS_BEGIN
namespace gemm {

inline constexpr int64_t kTileSide = 16, kTileStep = 16;  // rows or columns, and words of the depth

// A block of C in tile registers, down x across of them, each one or two, and what is added to it. Steps in floats.
template <typename Registers, int down, int across> struct TileBlock {
  static constexpr bool lower = down == 2, right = across == 2;

  static void zero() {
    Registers::template zero<0>();
    if constexpr (right) Registers::template zero<1>();
    if constexpr (lower) Registers::template zero<2>();
    if constexpr (lower && right) Registers::template zero<3>();
  }
  static void load(const float* from, int64_t row) {
    const float* const below = from + kTileSide * row;
    Registers::template load<0>(from, row);
    if constexpr (right) Registers::template load<1>(from + kTileSide, row);
    if constexpr (lower) Registers::template load<2>(below, row);
    if constexpr (lower && right) Registers::template load<3>(below + kTileSide, row);
  }
  static void store(float* to, int64_t row) {
    float* const below = to + kTileSide * row;
    Registers::template store<0>(to, row);
    if constexpr (right) Registers::template store<1>(to + kTileSide, row);
    if constexpr (lower) Registers::template store<2>(below, row);
    if constexpr (lower && right) Registers::template store<3>(below + kTileSide, row);
  }
  // C += A B for 16 words of the depth. second: where A's lower tile begins, and B's right one
  __attribute__((always_inline)) static void add_products(const float* a, int64_t a_row, int64_t a_second, const float* b, int64_t b_row,
                                                          int64_t b_second) {
    Registers::template load<4>(a, a_row);
    Registers::template load<6>(b, b_row);
    if constexpr (right) Registers::template load<7>(b + b_second, b_row);
    if constexpr (lower) Registers::template load<5>(a + a_second, a_row);
    Registers::template add_products<0, 4, 6>();
    if constexpr (right) Registers::template add_products<1, 4, 7>();
    if constexpr (lower) Registers::template add_products<2, 5, 6>();
    if constexpr (lower && right) Registers::template add_products<3, 5, 7>();
  }
};

// How products in tile registers are made. Registers: how they are reached (TileRegisters; a model of them in tests).
template <typename Registers> struct Tiles {
  static constexpr bool pairs = true, a_in_rows = true, packs = false, goes_on = true;
  static constexpr int64_t rows = 2 * kTileSide, width = 2 * kTileSide, packing_rows = rows;
  using Session = typename Registers::Session;  // its life is that of a product on this thread

  static int64_t panel(int64_t columns_left) { return columns_left > kTileSide ? width : kTileSide; }
  static int64_t aligned(int64_t word) { return word / kTileStep * kTileStep; }
  static MicroKernel kernel(int64_t rows, int64_t columns, bool = true) {
    if (rows > kTileSide) return columns > kTileSide ? micro<2, 2> : micro<2, 1>;
    return columns > kTileSide ? micro<1, 2> : micro<1, 1>;
  }

 private:
  // What comes into the cache while a step is multiplied: lines of the next panel, one a word, as Micro has it, and some of C.
  class Fetches {
   public:
    explicit Fetches(const Micro& m)
        : next_(m.prefetch), within_(m.prefetch_within), step_(m.prefetch_step), result_(m.result), row_(m.result_row), rows_(m.rows) {}
    __attribute__((always_inline)) void fetch() {
      constexpr int kRowsOfStep = 4;
      for (int64_t i = 0; step_ > 0 && i < kTileStep; i += 4, next_ += step_) {
        for (int64_t j = 0; j < 4; ++j) __builtin_prefetch(next_ + j * within_, 0, 2);
      }
      for (int i = 0; i < kRowsOfStep && rows_ > 0; ++i, --rows_, result_ += row_) {
        fetch_to_write(result_);
        fetch_to_write(result_ + 64);
      }
    }

   private:
    const std::byte* next_;
    int64_t within_, step_;
    const std::byte* result_;
    int64_t row_, rows_;
  };

  template <int down, int across> __attribute__((noinline)) static void micro(const Micro& m) {
    using Sums = TileBlock<Registers, down, across>;
    // With a factor of one a sum goes on from what it is added to, and stays in C.
    const bool goes_on = m.alpha == 1, is_whole = m.rows == down * kTileSide;
    if (goes_on && m.start)
      Sums::load(m.start, m.start_row);
    else
      Sums::zero();
    const auto* b = static_cast<const float*>(m.b);
    Fetches fetches(m);
    for (int64_t word = 0; word < m.depth; word += kTileStep) {
      const int64_t from = std::max<int64_t>(0, m.skipped - word), to = std::min(kTileStep, m.depth - word);
      fetches.fetch();
      if (from == 0 && to == kTileStep && (is_whole || m.a_is_padded)) {
        Sums::add_products(m.a + word, m.a_row, kTileSide * m.a_row, b + word * m.b_depth, m.b_depth, kTileSide);
        continue;
      }
      // Copies with zeros where there are no words, or none that are wanted.
      alignas(64) float some_a[rows * kTileStep] = {}, some_b[kTileStep * width] = {};
      for (int64_t r = 0; r < m.rows; ++r)
        std::copy(m.a + r * m.a_row + word + from, m.a + r * m.a_row + word + to, some_a + r * kTileStep + from);
      for (int64_t k = from; k < to; ++k) std::copy_n(b + (word + k) * m.b_depth, across * kTileSide, some_b + k * width);
      Sums::add_products(some_a, kTileStep, kTileSide * kTileStep, some_b, width, kTileSide);
    }
    if (goes_on && is_whole) return Sums::store(m.c, m.c_row);
    alignas(64) float sums[rows * width];
    Sums::store(sums, width);
    const Vector alpha = broadcast(m.alpha);
    for (int64_t r = 0; r < m.rows; ++r) {
      for (int64_t j = 0; j < across * kTileSide; j += kWidth) {
        const Vector sum = load(sums + r * width + j);
        const bool adds = m.start && !goes_on;
        store(m.c + r * m.c_row + j, adds ? multiply_add(alpha, sum, load(m.start + r * m.start_row + j)) : gemm::multiply(alpha, sum));
      }
    }
  }
};

// Blocks of C whose operands lie in tiles already: of A of 16 rows of 16 words each, one behind the other; of B in rows of words that begin
// where a table says (exec/tile_convolution.h).
struct TileMicro {
  int64_t steps = 0;  // of the depth, kTileStep words each
  const float* a = nullptr;
  int64_t a_step = 0, a_second = 0;  // to the tile of the next step; to that of the next 16 rows
  const float* b = nullptr;
  const int32_t* at = nullptr;      // where each step's first row begins
  int64_t b_row = 0, b_second = 0;  // to the next row; to the next 16 columns
  float* c = nullptr;               // whole tiles
  int64_t c_row = 0;
  bool starts = false;  // from what C holds; else from zero
};
using TileMicroKernel = void (*)(const TileMicro&);

template <typename Registers, int down, int across> __attribute__((noinline)) void tile_micro(const TileMicro& m) {
  using Sums = TileBlock<Registers, down, across>;
  if (m.starts)
    Sums::load(m.c, m.c_row);
  else
    Sums::zero();
  const float* a = m.a;
  const int64_t a_step = m.a_step, a_second = m.a_second, b_row = m.b_row, b_second = m.b_second;
  for (int64_t step = 0; step < m.steps; ++step, a += a_step) Sums::add_products(a, kTileStep, a_second, m.b + m.at[step], b_row, b_second);
  Sums::store(m.c, m.c_row);
}
// Of up to 32 rows and columns.
template <typename Registers> TileMicroKernel tile_kernel(int64_t rows, int64_t columns) {
  if (rows > kTileSide) return columns > kTileSide ? tile_micro<Registers, 2, 2> : tile_micro<Registers, 2, 1>;
  return columns > kTileSide ? tile_micro<Registers, 1, 2> : tile_micro<Registers, 1, 1>;
}

// The processor's own. Instructions as text: the rest of the file is compiled for processors that lack them.
inline bool has_tiles();
struct TileRegisters {
  static bool can_multiply(Element a, Element b) { return is_bfloat16(a) && is_bfloat16(b) && has_tiles(); }

  // All eight registers with 16 rows of 64 bytes, until it ends.
  class Session {
   public:
    Session() {
      struct alignas(64) {
        uint8_t palette = 1, start_row = 0, reserved[14] = {};
        uint16_t bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
        uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
      } form;
      static_assert(sizeof form == 64);
      asm volatile("ldtilecfg %0" : : "m"(form));
    }
    ~Session() { asm volatile("tilerelease"); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };

  template <int t> __attribute__((always_inline)) static void zero() { asm volatile("tilezero %%tmm%c0" : : "i"(t)); }
  template <int t> __attribute__((always_inline)) static void load(const float* from, int64_t row) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(row * 4), "i"(t) : "memory");
  }
  template <int t> __attribute__((always_inline)) static void store(float* to, int64_t row) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(row * 4), "i"(t) : "memory");
  }
  template <int c, int a, int b> __attribute__((always_inline)) static void add_products() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(c), "i"(a), "i"(b));
  }
};

// Whether a product of small whole numbers, exact in any order, comes out right.
template <typename Registers> bool multiplies_rightly() {
  constexpr int64_t kDepth = 19;  // words: one step and a part of one
  const auto number = [](int64_t i, int64_t j) { return static_cast<float>((i * 7 + j * 3) % 11 - 5); };
  const auto word = [](float first, float second) {
    return float_bits::as_float(float_bits::of(first) >> 16 | float_bits::of(second));  // whole numbers have no lower bits
  };
  std::array<float, Tiles<Registers>::rows * 2 * kTileStep> a{};
  std::array<float, 2 * kTileStep * Tiles<Registers>::width> b{};
  std::array<float, Tiles<Registers>::rows * Tiles<Registers>::width> c{};
  for (int64_t i = 0; i < 32; ++i) {
    for (int64_t k = 0; k < kDepth; ++k) {
      a[static_cast<size_t>(i * 32 + k)] = word(number(i, 2 * k), number(i, 2 * k + 1));
      b[static_cast<size_t>(k * 32 + i)] = word(number(2 * k, i + 5), number(2 * k + 1, i + 5));
    }
  }
  {
    const typename Registers::Session session;
    Tiles<Registers>::kernel(32, 32)(
        {.depth = kDepth, .rows = 32, .a = a.data(), .a_row = 32, .b = b.data(), .b_depth = 32, .c = c.data(), .c_row = 32, .alpha = 1});
  }
  for (int64_t i = 0; i < 32; ++i) {
    for (int64_t j = 0; j < 32; ++j) {
      float sum = 0;
      for (int64_t k = 0; k < 2 * kDepth; ++k) sum += number(i, k) * number(k, j + 5);
      if (c[static_cast<size_t>(i * 32 + j)] != sum) return false;
    }
  }
  return true;
}

// Whether the processor has them and the kernel of the system lets this process use them, which it has to be asked for, once.
inline bool asks_for_tiles() {
  static const bool granted = [] {
    constexpr int kRequest = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && syscall(SYS_arch_prctl, kRequest, kTileData) == 0;
  }();
  return granted;
}

// Whether products are made in them: where they do what this file expects of them.
inline bool has_tiles() {
#ifdef __AVX512F__
  static const bool has = asks_for_tiles() && multiplies_rightly<TileRegisters>();
  return has;
#else
  return false;
#endif
}

}  // namespace gemm
ORT_TRAIN_OPS_END
