// Weights in few bits: nf4 against bitsandbytes' (tests/golden/nf4.safetensors, written by models/golden_nf4.py), what rounding costs, and
// products that read them, which give the bits of products with the rounded numbers.

#include "graph/weight_blocks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "exec/kernel.h"
#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "graph/dynamic8.h"
#include "graph/op_def.h"
#include "graph/types.h"
#include "test_paths.h"

namespace ort_train {
namespace {

constexpr DType kKinds[] = {DType::nf4, DType::nf4_double, DType::block_int8};

std::vector<std::byte> blocks_of(DType type, const std::vector<float>& numbers, int64_t first = 0, int64_t count = -1) {
  const auto all = static_cast<int64_t>(numbers.size());
  if (count < 0) count = all - first;
  std::vector<std::byte> blocks(static_cast<size_t>(bytes_of(type, count)));
  const Elements32 elements = [&](int64_t begin, int64_t n, const auto& sink) {  // in pieces that end within blocks
    for (int64_t at = begin; at < begin + n; at += 1000)
      sink(std::span(numbers).subspan(static_cast<size_t>(at), static_cast<size_t>(std::min<int64_t>(1000, begin + n - at))));
  };
  quantize_weight(type, mean_scale(type, all, elements), first, count, elements, blocks);
  return blocks;
}
std::vector<float> numbers_of(DType type, const std::vector<std::byte>& blocks, size_t n) {
  std::vector<float> numbers(n);
  dequantize_weight(type, blocks, numbers);
  return numbers;
}

struct NearBitsandbytes : ::testing::Test {
  const File file = File::open(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/nf4.safetensors");
  const SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);
  template <typename T = float> std::vector<T> values(const char* name) const {
    const SafetensorsEntry& entry = *header.find(name);
    std::vector<T> result(static_cast<size_t>(entry.bytes) / sizeof(T));
    file.read(entry.offset, std::as_writable_bytes(std::span(result)));
    return result;
  }
};

TEST_F(NearBitsandbytes, CodesAndScalesAreTheirs) {
  const std::vector<float> numbers = values("numbers"), scales = values("scales");
  const std::vector<uint8_t> codes = values<uint8_t>("codes");
  const std::vector<std::byte> blocks = blocks_of(DType::nf4, numbers);
  ASSERT_EQ(blocks.size(), scales.size() * kNf4Bytes);
  for (size_t block = 0; block < scales.size(); ++block) {
    const std::byte* const ours = blocks.data() + block * kNf4Bytes;
    float scale;
    std::memcpy(&scale, ours + kNf4Codes, sizeof scale);
    EXPECT_EQ(scale, scales[block]) << block;
    if (scale == 0) continue;  // of zeros ours are 0, whatever theirs are
    for (size_t i = 0; i < kNf4Codes && block * kNf4Codes + i < codes.size(); ++i)
      EXPECT_EQ(static_cast<uint8_t>(ours[i]), codes[block * kNf4Codes + i]) << block << " " << i;
  }
}

TEST_F(NearBitsandbytes, ScalesIn8BitsAreTheirs) {
  const std::vector<float> numbers = values("numbers"), most = values("scale_scales"), mean = values("mean");
  const std::vector<uint8_t> codes = values<uint8_t>("scale_codes");
  const std::vector<std::byte> blocks = blocks_of(DType::nf4_double, numbers);
  ASSERT_EQ(blocks.size(), most.size() * kNf4GroupBytes);
  for (size_t block = 0; block < codes.size(); ++block) {
    const std::byte* const scales = blocks.data() + block / kNf4Group * kNf4GroupBytes + kNf4Scales;
    float numbers_of_group[2];
    std::memcpy(numbers_of_group, scales + kNf4Group, sizeof numbers_of_group);
    EXPECT_NEAR(numbers_of_group[0], most[block / kNf4Group], 1e-6f * most[block / kNf4Group]);  // another order of sums
    EXPECT_NEAR(numbers_of_group[1], mean[0], 1e-6f * mean[0]);
    EXPECT_NEAR(static_cast<uint8_t>(scales[block % kNf4Group]), codes[block], 0) << block;
  }
}

// The mean error of normally distributed numbers, as bitsandbytes' own tests have it for blocks of 64: 0.072798 of the deviation.
TEST(WeightBlocks, ErrorsAreThoseOfTheTable) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  std::vector<float> numbers(1 << 20);
  for (float& x : numbers) x = normal(random);
  const auto error_of = [&](DType type) {
    const std::vector<float> rounded = numbers_of(type, blocks_of(type, numbers), numbers.size());
    double sum = 0;
    for (size_t i = 0; i < numbers.size(); ++i) sum += std::abs(static_cast<double>(rounded[i]) - static_cast<double>(numbers[i]));
    return sum / static_cast<double>(numbers.size());
  };
  EXPECT_NEAR(error_of(DType::nf4), 0.072798, 7 * 7.4e-5);
  EXPECT_NEAR(error_of(DType::nf4_double), 0.0729, 3e-4);
  EXPECT_LT(error_of(DType::block_int8), 0.0055);
}

TEST(WeightBlocks, TheyTakeTheBytesThatTheySay) {
  EXPECT_EQ(bytes_of(DType::nf4, 64 * 100), 3600);  // 4.5 bits
  EXPECT_EQ(bytes_of(DType::nf4_double, 16384 * 10) * 8, 4.12890625 * 16384 * 10);
  EXPECT_EQ(bytes_of(DType::block_int8, 65), 2 * kInt8Bytes);
}

TEST(WeightBlocks, ZerosStayZeros) {
  for (const DType type : kKinds) {
    const std::vector<float> rounded = numbers_of(type, blocks_of(type, std::vector<float>(200)), 200);
    for (const float x : rounded) EXPECT_EQ(x, 0.0f) << to_string(type);
  }
}

// A part has the blocks that it has in the whole.
TEST(WeightBlocks, PartsAreThoseOfTheWhole) {
  std::vector<float> numbers(3 * 16384 + 100);
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = std::sin(static_cast<float>(i * i % 9973)) * static_cast<float>(i % 17);
  for (const DType type : kKinds) {
    const std::vector<std::byte> whole = blocks_of(type, numbers);
    std::vector<std::byte> parts = blocks_of(type, numbers, 0, 2 * 16384);
    const std::vector<std::byte> rest = blocks_of(type, numbers, 2 * 16384);
    parts.insert(parts.end(), rest.begin(), rest.end());
    EXPECT_EQ(parts, whole) << to_string(type);
  }
}

// --- products -------------------------------------------------------------------------------------------------------------------------

struct Case {
  int64_t rows, columns, depth;
  bool trans_b;
};

std::vector<float> product(const Case& c, DType stored, const void* a, const void* b, bool in_bfloat16, int threads) {
  KernelSpec spec{.attributes = {{"trans_b", int64_t{c.trans_b}}}};
  if (in_bfloat16) spec.attributes.set("compute", static_cast<int64_t>(DType::bfloat16));
  spec.inputs = {{DType::float32, {c.rows, c.depth}}, {stored, c.trans_b ? Shape{c.columns, c.depth} : Shape{c.depth, c.columns}}};
  spec.present = {true, true};
  spec.constants = {nullptr, nullptr};
  spec.outputs = {{DType::float32, {c.rows, c.columns}}};
  const OpDef& op = op_named("MatMul");
  const Kernel& kernel = cpu_kernels().at(op, spec);
  Workers workers(threads);
  std::vector<std::byte> workspace(static_cast<size_t>(workspace_bytes(kernel, spec, threads)) + 64);
  std::vector<float> y(static_cast<size_t>(c.rows * c.columns), -1);
  const void* in[] = {a, b};
  void* out[] = {y.data()};
  auto* const aligned = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
  prepare(kernel, spec)({.inputs = in, .outputs = out, .workspace = aligned, .queue = &workers});
  return y;
}

TEST(WeightBlocks, ProductsHaveTheBitsOfProductsWithTheRoundedNumbers) {
  constexpr Case kCases[] = {{1, 64, 64, false},   {3, 100, 70, false},   {9, 48, 385, true}, {40, 130, 200, true},
                             {64, 768, 768, true}, {33, 96, 1000, false}, {7, 17, 33, true},  {130, 33, 129, false}};
  for (const Case& c : kCases) {
    std::vector<float> a(static_cast<size_t>(c.rows * c.depth)), w(static_cast<size_t>(c.depth * c.columns));
    for (size_t i = 0; i < a.size(); ++i) a[i] = static_cast<float>(i * 7919 % 2003) / 1000 - 1;
    for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(i * 104'729 % 1999) / 1000 - 1;
    for (const DType type : kKinds) {
      const std::vector<std::byte> blocks = blocks_of(type, w);
      const std::vector<float> rounded = numbers_of(type, blocks, w.size());
      for (const bool in_bfloat16 : {false, true}) {
        const std::vector<float> expected = product(c, DType::float32, a.data(), rounded.data(), in_bfloat16, 1);
        for (const int threads : {1, 2, 3})
          EXPECT_EQ(product(c, type, a.data(), blocks.data(), in_bfloat16, threads), expected)
              << to_string(type) << " " << c.rows << " x " << c.columns << " x " << c.depth << (in_bfloat16 ? " in bfloat16" : "");
      }
    }
  }
}

}  // namespace
}  // namespace ort_train
