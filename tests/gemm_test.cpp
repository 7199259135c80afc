// Products of pairs of bfloat16 (exec/gemm.h), on any processor: the packing, the tiles and the blocks are the real ones, of the
// instructions there are models in plain arithmetic. Each element has the bits of the chain that it stands for, and lies near the product
// in double. Where the processor has the instructions, they are compared with their models.

#define ORT_TRAIN_ISA isa_of_gemm_test  // copies of its own of what the library compiles, too

#include "exec/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/tile_model.h"

namespace ort_train {
inline namespace ORT_TRAIN_ISA {
namespace {

// What vdpbf16ps does to one lane: the upper halves of the words first (Intel's manual, volume 2, VDPBF16PS).
float add_pair(uint32_t a, uint32_t b, float sum) {
  sum = without_denormals(std::fma(half(a, 16), half(b, 16), without_denormals(sum)));
  return without_denormals(std::fma(half(a, 0), half(b, 0), sum));
}

struct ModelOfPairs {
  static constexpr bool pairs = true;
  static gemm::Vector add_product(gemm::Vector a, gemm::Vector b, gemm::Vector sum) {
    float x[gemm::kWidth], y[gemm::kWidth], z[gemm::kWidth];
    gemm::store(x, a);
    gemm::store(y, b);
    gemm::store(z, sum);
    for (int i = 0; i < gemm::kWidth; ++i) z[i] = add_pair(float_bits::of(x[i]), float_bits::of(y[i]), z[i]);
    return gemm::load(z);
  }
};

// Ways of multiplying: how, and what a chain of words of the depth adds up to.
struct InPairs {
  using Unit = gemm::Vectors<ModelOfPairs>;
  static constexpr bool goes_on = false;  // a sum begins with what it is added to
  static float chain(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b, float sum) {
    for (size_t k = 0; k < a.size(); ++k) sum = add_pair(a[k], b[k], sum);
    return sum;
  }
};
struct InTiles {
  using Unit = gemm::Tiles<ModelOfTiles>;
  static constexpr bool goes_on = true;
  static float chain(const std::vector<uint32_t>& a, const std::vector<uint32_t>& b, float sum) {
    for (size_t k = 0; k < a.size(); k += 16) {
      sum = add_pairs_of_tiles(
          std::min<size_t>(16, a.size() - k), [&](size_t i) { return a[k + i]; }, [&](size_t i) { return b[k + i]; }, sum);
    }
    return sum;
  }
};

// A matrix of bfloat16, or of float32 that becomes it, one way or the other round.
struct Stored {
  std::vector<float> numbers;   // as float32
  std::vector<bfloat16> words;  // rounded
  int64_t rows, columns;
  bool transposed, is_float;

  Stored(int64_t rows_, int64_t columns_, bool transposed_, bool is_float_, uint32_t seed)
      : rows(rows_), columns(columns_), transposed(transposed_), is_float(is_float_) {
    for (int64_t i = 0; i < rows * columns; ++i) {
      seed = seed * 1664525 + 1013904223;
      numbers.push_back(static_cast<float>(seed >> 8) * 0x1p-23f - 1);
      if (seed % 97 == 0) numbers.back() *= 0x1p-130f;  // denormal in bfloat16
      words.push_back(to_bfloat16(numbers.back()));
    }
  }
  Operand<float> operand() const {
    const void* const data = is_float ? static_cast<const void*>(numbers.data()) : words.data();
    return {static_cast<const std::byte*>(data), transposed ? 1 : columns, transposed ? rows : 1,
            is_float ? Element::to_bfloat16 : Element::bfloat16};
  }
  uint32_t bits(int64_t i, int64_t j) const { return words[static_cast<size_t>(transposed ? j * rows + i : i * columns + j)].bits; }
  double number(int64_t i, int64_t j) const { return float_bits::as_float(bits(i, j) << 16); }
};

struct Case {
  int64_t rows, columns, depth, block;
  float alpha;
};

template <typename In> void check(const Case& c, bool trans_a, bool trans_b, bool float_a, bool float_b, Element result, bool starts) {
  SCOPED_TRACE(::testing::Message() << c.rows << " x " << c.columns << " x " << c.depth << " in " << c.block << (trans_a ? " a'" : " a")
                                    << (trans_b ? " b'" : " b") << float_a << float_b << static_cast<int>(result) << starts);
  const Stored a(c.rows, c.depth, trans_a, float_a, 1), b(c.depth, c.columns, trans_b, float_b, 2);
  const Stored start(1, c.columns, false, true, 3);
  const int64_t row = c.columns + 5;
  std::vector<float> y(static_cast<size_t>(c.rows * row), 7.0f);
  Product<float> product{.rows = c.rows, .columns = c.columns, .depth = c.depth};
  product.a = a.operand();
  product.b = b.operand();
  product.c = {reinterpret_cast<std::byte*>(y.data()), row, 1, result};
  product.block = c.block;
  product.alpha = c.alpha;
  if (starts) product.start = {start.numbers.data(), 0};
  std::vector<std::byte> workspace(static_cast<size_t>(product_workspace(product)) + 64);
  gemm::multiply<typename In::Unit>(product, workspace.data());
  for (int64_t i = 0; i < c.rows; ++i) {
    for (int64_t j = 0; j < c.columns; ++j) {
      float chain = 0;
      double exact = 0, size = 0;
      for (int64_t begin = 0; begin == 0 || begin < c.depth; begin += c.block) {
        const int64_t end = std::min(begin + c.block, c.depth);
        std::vector<uint32_t> x, y;
        for (int64_t k = begin; k < end; k += 2) {
          const bool two = k + 1 < end;
          x.push_back(a.bits(i, k) | (two ? a.bits(i, k + 1) << 16 : 0));
          y.push_back(b.bits(k, j) | (two ? b.bits(k + 1, j) << 16 : 0));
        }
        const bool starts_sum = starts || begin > 0;
        const float before = begin > 0 ? chain : starts ? start.numbers[static_cast<size_t>(j)] : 0;
        const bool goes_on = In::goes_on && c.alpha == 1;
        const float sum = In::chain(x, y, goes_on ? before : 0);
        for (int64_t k = begin; k < end; ++k) {
          exact += a.number(i, k) * b.number(k, j);
          size += std::abs(a.number(i, k) * b.number(k, j));
        }
        chain = goes_on ? sum : starts_sum ? std::fma(c.alpha, sum, before) : c.alpha * sum;
      }
      exact = double{c.alpha} * exact + (starts ? start.numbers[static_cast<size_t>(j)] : 0);
      ASSERT_NEAR(chain, exact, 1e-6 * (std::abs(c.alpha) * size + 1)) << i << ", " << j;
      const auto at = static_cast<size_t>(i * row + j);
      if (result == Element::own)
        ASSERT_EQ(float_bits::of(y[at]), float_bits::of(chain)) << i << ", " << j;
      else if (result == Element::bfloat16)
        ASSERT_EQ(reinterpret_cast<const bfloat16*>(y.data())[at], to_bfloat16(chain)) << i << ", " << j;
      else
        ASSERT_EQ(reinterpret_cast<const float16*>(y.data())[at], to_float16(chain)) << i << ", " << j;
    }
    if (result == Element::own) {
      for (int64_t j = c.columns; j < row; ++j) ASSERT_EQ(y[static_cast<size_t>(i * row + j)], 7.0f) << "beside row " << i;
    }
  }
}

template <typename In> class PairsOfBfloat16 : public ::testing::Test {};
using Ways = ::testing::Types<InPairs, InTiles>;
TYPED_TEST_SUITE(PairsOfBfloat16, Ways);

TYPED_TEST(PairsOfBfloat16, GiveTheirChainInEveryLayout) {
  const Case cases[] = {{1, 1, 1, 64, 1},        {7, 17, 2, 64, -0.5f}, {6, 16, 64, 64, 1}, {13, 49, 65, 64, 2},      {37, 100, 63, 64, 1},
                        {24, 97, 200, 64, 0.3f}, {50, 33, 129, 128, 1}, {9, 48, 0, 64, 1},  {3, 145, 770, 384, 1.0f}, {33, 31, 45, 40, 1}};
  for (const Case& c : cases) {
    for (int bits = 0; bits < 32; ++bits) {
      for (const Element result : {Element::own, Element::float16, Element::bfloat16})
        check<TypeParam>(c, bits & 1, bits & 2, bits & 4, bits & 8, result, bits & 16);
    }
  }
}

// Tiles change no bit, nor does it whether a's words have been made before.
TYPED_TEST(PairsOfBfloat16, TheBitsAreTheSameInTiles) {
  constexpr int64_t kRows = 40, kColumns = 130, kDepth = 333;
  const Stored a(kRows, kDepth, false, false, 1), b(kDepth, kColumns, true, true, 2);
  Product<float> whole{.rows = kRows, .columns = kColumns, .depth = kDepth, .a = a.operand(), .b = b.operand(), .c = {}, .block = 128};
  std::vector<float> one(kRows * kColumns), tiled(kRows * kColumns);
  std::vector<std::byte> workspace(static_cast<size_t>(product_workspace(whole)) + 64);
  whole.c = {one.data(), kColumns};
  gemm::multiply<typename TypeParam::Unit>(whole, workspace.data());
  const gemm::SharedWords words(false, TypeParam::Unit::a_in_rows, kRows, kDepth);
  std::vector<float> made(static_cast<size_t>(words.bytes / 4));
  words.make(whole, 0, kRows, made.data());
  for (const bool shares : {false, true}) {
    for (int64_t i = 0; i < kRows; i += 11) {
      for (int64_t j = 0; j < kColumns; j += 37) {
        Product<float> tile = whole;
        tile.rows = std::min<int64_t>(11, kRows - i);
        tile.columns = std::min<int64_t>(37, kColumns - j);
        tile.a = whole.a.from(i, 0);
        tile.b = whole.b.from(0, j);
        tile.c = {tiled.data() + i * kColumns + j, kColumns};
        if (shares) tile.words = words.matrix(made.data()).from(i, 0);
        gemm::multiply<typename TypeParam::Unit>(tile, workspace.data());
      }
    }
    EXPECT_EQ(tiled, one) << shares;
  }
}

// What a triangle leaves out is zero: with zeros in its place the whole product has the same bits.
TYPED_TEST(PairsOfBfloat16, TrianglesOfAAreThoseOfZeros) {
  constexpr int64_t kColumns = 40;
  for (const auto& [side, transposed] : {std::pair<int64_t, bool>{77, false}, {77, true}, {96, false}}) {
    for (const Triangle triangle : {Triangle::a_lower, Triangle::a_upper}) {
      for (const int64_t diagonal : {-9, 0, 20}) {
        SCOPED_TRACE(::testing::Message() << transposed << static_cast<int>(triangle) << " " << diagonal);
        Stored a(side, side, transposed, false, 1);
        const Stored b(side, kColumns, false, false, 2);
        for (int64_t i = 0; i < side; ++i) {
          for (int64_t k = 0; k < side; ++k) {
            const bool there = triangle == Triangle::a_lower ? k <= i + diagonal : k >= i + diagonal;
            if (!there) a.words[static_cast<size_t>(transposed ? k * side + i : i * side + k)] = {};
          }
        }
        Product<float> product{.rows = side, .columns = kColumns, .depth = side, .a = a.operand(), .b = b.operand(), .c = {}, .block = 64};
        std::vector<float> whole(side * kColumns), part(side * kColumns);
        std::vector<std::byte> workspace(static_cast<size_t>(product_workspace(product)) + 64);
        product.c = {whole.data(), kColumns};
        gemm::multiply<typename TypeParam::Unit>(product, workspace.data());
        product.c = {part.data(), kColumns};
        product.triangle = triangle;
        product.diagonal = diagonal;
        gemm::multiply<typename TypeParam::Unit>(product, workspace.data());
        EXPECT_EQ(part, whole);
      }
    }
  }
}

TEST(TileRegisters, TheirModelMultipliesWholeNumbers) { EXPECT_TRUE(gemm::multiplies_rightly<ModelOfTiles>()); }

// Where there are some. (That their bits are the model's in every case is more than the manual says: the order within an instruction.)
TEST(TileRegisters, ThoseOfTheProcessorAgreeWithTheModel) {
  if (!gemm::asks_for_tiles()) GTEST_SKIP() << "this processor has no AMX-BF16";
  ASSERT_TRUE(gemm::multiplies_rightly<gemm::TileRegisters>());
  for (const Case& c : {Case{50, 33, 129, 128, 1}, Case{3, 145, 770, 384, 1.0f}, Case{13, 49, 65, 64, 2}}) {
    const Stored a(c.rows, c.depth, false, false, 1), b(c.depth, c.columns, false, false, 2);
    std::vector<float> model(static_cast<size_t>(c.rows * c.columns)), real(model.size());
    Product<float> product{
        .rows = c.rows, .columns = c.columns, .depth = c.depth, .a = a.operand(), .b = b.operand(), .c = {}, .block = c.block};
    std::vector<std::byte> workspace(static_cast<size_t>(product_workspace(product)) + 64);
    product.c = {model.data(), c.columns};
    gemm::multiply<gemm::Tiles<ModelOfTiles>>(product, workspace.data());
    product.c = {real.data(), c.columns};
    gemm::multiply<gemm::Tiles<gemm::TileRegisters>>(product, workspace.data());
    for (size_t i = 0; i < model.size(); ++i) ASSERT_NEAR(real[i], model[i], 1e-5 * static_cast<double>(c.depth)) << i;
  }
}

}  // namespace
}  // namespace ORT_TRAIN_ISA
}  // namespace ort_train
