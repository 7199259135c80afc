// The products of CUDA devices (exec/cuda/gemm.h) on the host, each size of tile by itself: every result is the chain of fused
// multiply-adds that it is said to be. Which sizes the op cases reach depends on their shapes.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "exec/cuda/gemm.h"
#include "tests/op_inputs.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace tiled;

constexpr Element kElements[] = {Element::own, Element::float16, Element::bfloat16, Element::to_float16, Element::to_bfloat16};

float rounded(Element element, float x) {
  if (element == Element::own) return x;
  return is_bfloat16(element) ? to_float(to_bfloat16(x)) : to_float(to_float16(x));
}

// A matrix in memory, a multiple of `fours` elements from row to row, and the numbers that its elements are to a product.
struct Matrix {
  std::vector<std::byte> bytes;
  std::vector<float> values;
  int64_t pitch;
  Matrix(const std::string& name, int64_t rows, int64_t columns, Element element, int64_t fours = 1)
      : pitch((columns + fours - 1) / fours * fours) {
    fixtures::SeededNumbers numbers(name, 0);
    bytes.resize(static_cast<size_t>(rows * pitch * bytes_each<float>(element)));
    values.resize(static_cast<size_t>(rows * pitch));
    for (int64_t i = 0; i < rows * pitch; ++i) {
      const auto x = static_cast<float>(2 * numbers.uniform() - 1);
      store_element(bytes.data(), element, i, x);
      values[static_cast<size_t>(i)] = rounded(element, x);
    }
  }
  float at(int64_t i, int64_t j) const { return values[static_cast<size_t>(i * pitch + j)]; }
};

template <bool a_along_depth, bool b_along_depth> struct OneProduct {
  ProductShape shape;
  StoredA<a_along_depth> first;
  StoredB<b_along_depth> second;
  Result result;
  HOST_DEVICE StoredA<a_along_depth> a(int64_t) const { return first; }
  HOST_DEVICE StoredB<b_along_depth> b(int64_t) const { return second; }
  HOST_DEVICE Result c(int64_t) const { return result; }
};

struct Form {
  int64_t rows, columns, depth, block;
  Element a, b, c;
  bool bias;
};

template <class T, bool a_along_depth, bool b_along_depth> void expect_chains(const Form& f) {
  const Matrix a("a", a_along_depth ? f.rows : f.depth, a_along_depth ? f.depth : f.rows, f.a);
  const Matrix b("b", b_along_depth ? f.columns : f.depth, b_along_depth ? f.depth : f.columns, f.b);
  const Matrix bias("bias", 1, f.columns, Element::bfloat16);
  std::vector<std::byte> c(static_cast<size_t>(f.rows * f.columns * bytes_each<float>(f.c)), std::byte{0xcd});
  const float alpha = 0.7f;
  const auto fours = [](const Matrix& m, Element element) { return are_fours(m.bytes.data(), m.pitch, element); };
  const OneProduct<a_along_depth, b_along_depth> product{
      .shape = {.rows = f.rows, .columns = f.columns, .depth = f.depth, .block = f.block, .alpha = alpha},
      .first = {.data = a.bytes.data(), .count = f.rows, .pitch = a.pitch, .element = f.a, .by_fours = fours(a, f.a)},
      .second = {.data = b.bytes.data(), .count = f.columns, .pitch = b.pitch, .element = f.b, .by_fours = fours(b, f.b)},
      .result = {.data = c.data(),
                 .row = f.columns,
                 .element = f.c,
                 .by_fours = are_fours(c.data(), f.columns, f.c),
                 .bias = f.bias ? bias.bytes.data() : nullptr,
                 .bias_element = Element::bfloat16}};
  static Workers workers(1);
  launch_tiles<T>(product, {.inputs = {}, .outputs = {}, .queue = &workers});
  int64_t different = 0;
  for (int64_t i = 0; i < f.rows; ++i) {
    for (int64_t j = 0; j < f.columns; ++j) {
      float total = f.bias ? bias.at(0, j) : 0;
      for (int64_t begin = 0; begin == 0 || begin < f.depth; begin += f.block) {
        float sum = 0;
        for (int64_t k = begin; k < std::min(f.depth, begin + f.block); ++k)
          sum = std::fma(a_along_depth ? a.at(i, k) : a.at(k, i), b_along_depth ? b.at(j, k) : b.at(k, j), sum);
        total = begin == 0 && !f.bias ? alpha * sum : std::fma(alpha, sum, total);
      }
      if (float_bits::of(load_element(c.data(), f.c, i * f.columns + j)) != float_bits::of(rounded(f.c, total))) ++different;
    }
  }
  EXPECT_EQ(different, 0) << "of " << f.rows << " x " << f.columns << " over " << f.depth << " in blocks of " << f.block;
}

template <class T> void expect_forms() {
  std::vector<Form> forms;
  for (const auto& [rows, columns, depth] : std::vector<std::array<int64_t, 3>>{
           {T::kRows, T::kColumns, 64}, {T::kRows + 4, 4, 20}, {1, 1, 1}, {T::kRows * 2 + 3, T::kColumns + 5, 67}, {5, 2 * T::kColumns, 0}})
    forms.push_back({rows, columns, depth, 64, Element::own, Element::own, Element::own, depth == 64});
  for (const int64_t depth : {130, 320, 321, 452})
    forms.push_back({T::kRows - 1, T::kColumns + 1, depth, 64, Element::own, Element::own, Element::own, depth > 400});
  for (const Element a : kElements) {
    for (const Element b : kElements) {
      forms.push_back({T::kRows, 12, 68, 64, a, b, is_half(a) ? a : Element::own, is_half(b)});
      forms.push_back({7, T::kColumns + 3, 33, 64, a, b, is_half(b) ? b : Element::own, is_half(a)});
    }
  }
  for (const bool backwards : {false, true}) {
    runs_backwards = backwards;
    for (const Form& form : forms) {
      expect_chains<T, false, false>(form);
      expect_chains<T, false, true>(form);
      expect_chains<T, true, false>(form);
      expect_chains<T, true, true>(form);
    }
  }
  runs_backwards = false;
}

TEST(CudaGemm, LargeTiles) { expect_forms<Large>(); }
TEST(CudaGemm, MediumTiles) { expect_forms<Medium>(); }
TEST(CudaGemm, MediumTilesInTeams) { expect_forms<MediumTeams>(); }
TEST(CudaGemm, SmallTiles) { expect_forms<Small>(); }
TEST(CudaGemm, SmallTilesInTeams) { expect_forms<SmallTeams>(); }

// Sums that are -0, which nothing that stands beyond the end of the depth may change.
TEST(CudaGemm, KeepsTheSignOfZero) {
  const float tiny = 0x1p-100f;
  const float a[] = {-tiny, -tiny, -tiny}, b[] = {tiny, tiny, tiny};
  float c[1] = {};
  const OneProduct<true, true> product{.shape = {.rows = 1, .columns = 1, .depth = 1, .block = 64},
                                       .first = {.data = reinterpret_cast<const std::byte*>(a), .count = 1, .pitch = 1},
                                       .second = {.data = reinterpret_cast<const std::byte*>(b), .count = 1, .pitch = 1},
                                       .result = {.data = reinterpret_cast<std::byte*>(c), .row = 1}};
  static Workers workers(1);
  launch_products(product, {.inputs = {}, .outputs = {}, .queue = &workers});
  EXPECT_TRUE(std::signbit(c[0]));
}

}  // namespace
ORT_TRAIN_OPS_END
