// The kernels of CUDA devices on the host (exec/block.h), on every op case: the bits of the processor's kernels, but where these have an
// order of their own (16 bits, some convolutions); with threads and blocks from the first to the last and back, and over their inputs where
// they may be; memory is full of nonsense, with guards around it.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "exec/cpu_device.h"
#include "exec/cuda/kernels.h"
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

INSTANTIATE_TEST_SUITE_P(Ops, CudaKernel, ::testing::ValuesIn(op_cases_for(cuda_kernels_on_host())),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace ort_train::fixtures
