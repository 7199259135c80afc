// Memory that runs out: each kind of moment in a job's life at which the library allocates, told by its number. What comes out is an
// Error that says so, or nothing at all, and the process goes on: the same job again has the bits of one to which nothing happened.
//
// Only allocations of the thread that calls fail, and of at least a page: smaller ones are served from memory that the process has, and
// destructors of nlohmann::json make some, where a failure would be the end. What the first use of a library registers (ONNX's operator
// schemas) is there before.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <new>
#include <set>
#include <string>

#include "frontend/adapters.h"
#include "tests/chain_model.h"
#include "tests/trainer_runs.h"

#ifndef ORT_TRAIN_SANITIZED  // which has its own

namespace {

constexpr int64_t kNever = -1;
constexpr std::size_t kPage = 4096;
thread_local int64_t left = kNever, made = 0;
thread_local std::size_t largest_made = 0;

void* allocate(std::size_t bytes, std::size_t alignment) {
  largest_made = std::max(largest_made, bytes);
  if (bytes >= kPage) {
    ++made;
    if (left > 0 && --left == 0) return nullptr;
  }
  return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  if (void* const memory = allocate(std::max<std::size_t>(bytes, 1), alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace

#pragma GCC diagnostic ignored "-Wmismatched-new-delete"  // these are the pair; GCC 12 compares what it has inlined
#pragma GCC visibility push(default)
void* operator new(std::size_t bytes) { return allocate_or_throw(bytes, alignof(std::max_align_t)); }
void* operator new[](std::size_t bytes) { return allocate_or_throw(bytes, alignof(std::max_align_t)); }
void* operator new(std::size_t bytes, std::align_val_t alignment) { return allocate_or_throw(bytes, static_cast<std::size_t>(alignment)); }
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate_or_throw(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
#pragma GCC visibility pop

namespace ort_train {
namespace {

struct Allocations : TrainerRuns, ::testing::WithParamInterface<bool> {
  static constexpr int64_t kLayers = 4, kWidth = 64, kSamples = 64;
  Options options;
  int64_t runs = 0;

  // A job in memory, or on a disk with the least memory.
  void SetUp() override {
    options = {.model = write_chain(folder / "in", kLayers, kWidth), .data = write_chain_data(folder / "in", kSamples, kWidth)};
    options.loss = "mse";
    options.batch_size = 16;
    options.learning_rate = 1e-3;
    options.max_steps = 3;
    options.save_steps = 2;
    options.threads = 2;
    options.profile = profile;
    if (!GetParam()) return;
    options.nvme_path = folder / "disk";
    std::filesystem::create_directory(options.nvme_path);
    options.output_dir = folder / "least";
    options.budget = Trainer(options).plan().minimum_budget;
  }

  // Its weights_hash; an Error where the n-th allocation fails, and that shows.
  std::string job(int64_t n) {
    Options o = options;
    o.output_dir = folder / fmt::format("out{}", runs++);
    struct Failing {
      explicit Failing(int64_t n) {
        left = n;
        made = 0;
      }
      ~Failing() { left = kNever; }
    } const failing(n);
    return Trainer(o).train().weights_hash;
  }
};

TEST_P(Allocations, OneThatFailsIsAnErrorAndNothingElse) {
  const std::string hash = job(kNever);
  ASSERT_EQ(job(kNever), hash);
  const int64_t count = made;
  ASSERT_GE(count, 80);
  std::set<int64_t> numbers;  // the first, the last, and those that a fixed sequence draws in between
  for (int64_t n = 1; n <= 8; ++n) numbers.insert({n, count - n});
  for (uint64_t at = 1; numbers.size() < 80; at = at * 6364136223846793005u + 1442695040888963407u)
    numbers.insert(static_cast<int64_t>((at >> 33) % static_cast<uint64_t>(count)) + 1);
  int64_t errors = 0;
  for (const int64_t n : numbers) {
    SCOPED_TRACE(fmt::format("allocation {} of {}", n, count));
    try {
      EXPECT_EQ(job(n), hash);  // one that something does without
    } catch (const Error& problem) {
      ++errors;
      EXPECT_THAT(problem.what(), ::testing::HasSubstr("memory"));
    }
    if (n % 8 == 0) {
      EXPECT_EQ(job(kNever), hash);
    }
  }
  EXPECT_EQ(job(kNever), hash);
  EXPECT_GT(errors, 60);
}

// What weights begin as is written where they are, not beside them: the budget counts no copy.
TEST(FreshWeights, AreWrittenInBlocks) {
  constexpr size_t kElements = 300'000, kFirst = 130'000;
  for (const DType type : {DType::float32, DType::bfloat16}) {
    const auto element = static_cast<size_t>(size_of(type));
    std::vector<std::byte> whole(kElements * element), part((kElements - kFirst) * element), ones(element);
    fill_elements(ones, type, 1);
    largest_made = 0;
    for (const double value : {0.0, 1.0}) {
      write_fresh({.value = value}, type, 7, 3, 0, whole);
      for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(whole[i], value == 0 ? std::byte{} : ones[i % element]) << i;
    }
    EXPECT_LT(largest_made, kPage);
    for (const FreshNumbers& numbers : {FreshNumbers{.bound = 0.25}, {.deviation = 1}}) {
      write_fresh(numbers, type, 7, 3, 0, whole);
      write_fresh(numbers, type, 7, 3, kFirst, part);
      EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + static_cast<std::ptrdiff_t>(kFirst * element)));
    }
    EXPECT_LE(largest_made, size_t{1} << 18);
  }
}

INSTANTIATE_TEST_SUITE_P(Jobs, Allocations, ::testing::Bool(), [](const auto& info) { return info.param ? "OnADisk" : "InMemory"; });

}  // namespace
}  // namespace ort_train

#endif
