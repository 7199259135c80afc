// The kernels of CUDA devices on the host (exec/block.h), on every op case: the bits of the processor's kernels, but where these have an
// order of their own (16 bits, some convolutions); with threads and blocks from the first to the last and back, and over their inputs where
// they may be; memory is full of nonsense, with guards around it.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "exec/cpu_device.h"
#include "exec/cuda/kernels.h"
#include "tests/host_libraries.h"
#include "tests/op_inputs.h"
#include "tests/op_jobs.h"
#include "tests/prepared_op.h"

namespace ort_train::fixtures {
namespace {

struct CudaKernel : ::testing::TestWithParam<OpCase> {};

TEST_P(CudaKernel, HasTheProcessorsBits) {
  constexpr int kThreads = 2;
  const auto jobs = op_jobs(GetParam(), cuda_kernels_on_host());
  ASSERT_FALSE(jobs.empty()) << "of no type that the GPU's kernel takes";
  for (const auto& job : jobs) {
    SCOPED_TRACE(job->spec.inputs.empty() ? "" : to_string(job->spec.inputs[0]));
    const std::vector<Tensor> wanted = PreparedOp(*job->op, job->spec, kThreads).run(job->inputs);
    const PreparedOp prepared(*job->op, job->spec, kThreads, cuda_kernels_on_host());
    const auto expect_wanted = [&](const How& how) {
      const std::vector<Tensor> results = prepared.run(job->inputs, how);
      for (size_t i = 0; i < results.size(); ++i) {
        SCOPED_TRACE("output " + std::to_string(i));
        // The processor may have instructions for pairs of bfloat16, which add up in another order; and it makes some convolutions in
        // another way.
        const bool has_pairs = half_of_products(*job) == DType::bfloat16 && cpu_bfloat16_products() != "float32";
        const double tolerance = has_pairs || takes_winograd(*job) ? own_order_tolerance(*job, i, results[i]) : 0;
        tolerance > 0 ? expect_near(results[i], wanted[i], tolerance) : expect_same(results[i], wanted[i]);
      }
    };
    for (const bool backwards : {false, true}) {
      SCOPED_TRACE(backwards ? "backwards" : "forwards");
      run_cuda_kernels_backwards(backwards);
      expect_wanted({});
      for (const Alias& alias : prepared.in_place()) {
        SCOPED_TRACE("over input " + std::to_string(alias.input));
        expect_wanted({.in_place = alias});
      }
      run_cuda_kernels_backwards(false);
    }
  }
}

// What is made of 16 bits by NVIDIA's libraries, by those of the tests.
void expect_near_the_processors(const OpCase& of) {
  const HostLibrariesInUse libraries;
  for (const auto& job : op_jobs(of, cuda_kernels_on_host())) {
    if (!is_half(half_of_products(*job))) continue;
    SCOPED_TRACE(fmt::format("{}, multiplied in {}", to_string(job->spec.inputs[0]), to_string(half_of_products(*job))));
    const std::vector<Tensor> wanted = PreparedOp(*job->op, job->spec, /*threads=*/2).run(job->inputs);
    const PreparedOp prepared(*job->op, job->spec, /*threads=*/2, cuda_kernels_on_host());
    std::vector<How> ways{{}};
    for (const Alias& alias : prepared.in_place()) ways.push_back({.in_place = alias});
    for (const How& how : ways) {
      SCOPED_TRACE(how.in_place ? fmt::format("over input {}", how.in_place->input) : "");
      const std::vector<Tensor> results = prepared.run(job->inputs, how);
      for (size_t i = 0; i < results.size(); ++i) {
        SCOPED_TRACE(fmt::format("output {}", i));
        const double tolerance = own_order_tolerance(*job, i, results[i]);
        tolerance > 0 ? expect_near(results[i], wanted[i], tolerance) : expect_same(results[i], wanted[i]);
      }
    }
  }
}

struct CudaLibrary : ::testing::TestWithParam<OpCase> {};
TEST_P(CudaLibrary, IsAskedForWhatTheProcessorComputes) { expect_near_the_processors(GetParam()); }

// Some heads of keys at a time, the last time fewer.
TEST(CudaLibraries, DivideGradientsOfAttention) {
  for (const int64_t shared : {1, 2}) {
    SCOPED_TRACE(shared);
    const auto queries = random({3, 3 * shared, 24, 16}), keys = random({3, 3, 24, 16});
    const int64_t before = host_library_calls().attention_gradients;
    expect_near_the_processors({.name = "heads",
                                .op = "AttentionGrad",
                                .attributes = {{"scale", 0.25f}, {"causal", int64_t{1}}},
                                .inputs = {queries, queries, keys, keys, queries, statistic(random({3, 3 * shared, 24}, 5, 6))},
                                .outputs = 3});
    EXPECT_GE(host_library_calls().attention_gradients - before, 10);
  }
}

// Cases of ops that ask a library for something.
std::vector<OpCase> library_cases() {
  std::vector<OpCase> cases = op_cases_for(cuda_kernels_on_host());
  std::erase_if(cases, [](const OpCase& op_case) {
    return op_case.op.find("MatMul") == std::string::npos && !op_case.op.starts_with("Attention") && !op_case.op.starts_with("Conv");
  });
  return cases;
}

TEST(CudaLibraries, AreAskedForEachKind) {
  constexpr int64_t kLargest = 50'000, kEach = 10;  // elements of a case; calls
  const LibraryCalls before = host_library_calls();
  const HostLibrariesInUse libraries;
  for (const OpCase& of : library_cases()) {
    for (const auto& job : op_jobs(of, cuda_kernels_on_host())) {
      const bool is_small =
          std::all_of(job->tensors.begin(), job->tensors.end(), [](const Tensor& tensor) { return tensor.size() <= kLargest; });
      if (is_small) (void)PreparedOp(*job->op, job->spec, /*threads=*/2, cuda_kernels_on_host()).run(job->inputs);
    }
  }
  const LibraryCalls now = host_library_calls();
  EXPECT_GE(now.products - before.products, kEach);
  EXPECT_GE(now.attention - before.attention, kEach);
  EXPECT_GE(now.attention_gradients - before.attention_gradients, kEach);
  EXPECT_GE(now.convolutions - before.convolutions, kEach);
}

#ifdef ORT_TRAIN_SANITIZED
// Of guarded memory: a kernel that is told of one element more than there is ends the program.
TEST(CudaLibraries, AreWatchedForReadsBesideTheirInputs) {
  const OpCase larger{.name = "larger", .op = "Neg", .inputs = {random({17})}},
      smaller{.name = "smaller", .op = "Neg", .inputs = {random({16})}};
  const auto jobs = op_jobs(larger, cuda_kernels_on_host()), other = op_jobs(smaller, cuda_kernels_on_host());
  const PreparedOp prepared(*jobs[0]->op, jobs[0]->spec, /*threads=*/1, cuda_kernels_on_host());
  EXPECT_DEATH((void)prepared.run(other[0]->inputs), "use-after-poison");
}
#endif

INSTANTIATE_TEST_SUITE_P(Ops, CudaLibrary, ::testing::ValuesIn(library_cases()), [](const auto& info) { return test_name(info.param); });
INSTANTIATE_TEST_SUITE_P(Ops, CudaKernel, ::testing::ValuesIn(op_cases_for(cuda_kernels_on_host())),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace ort_train::fixtures
