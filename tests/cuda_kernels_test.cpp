// The kernels of CUDA devices on the host (exec/block.h), on every op case: the bits of the processor's kernels, with threads and blocks
// from the first to the last and back, memory that is full of nonsense, guards around it.

#include <gtest/gtest.h>

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "exec/cuda/kernels.h"
#include "tests/op_jobs.h"

namespace ort_train::fixtures {
namespace {

// As the place of a tensor on a device: 256-byte aligned, guards around it.
class Fenced {
 public:
  explicit Fenced(std::span<const std::byte> bytes) : bytes_(bytes.size()), memory_(bytes.size() + 3 * kGuard, std::byte{0xa5}) {
    data_ = memory_.data() + kGuard + (kGuard - reinterpret_cast<uintptr_t>(memory_.data()) % kGuard) % kGuard;
    if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
  }
  Fenced(size_t bytes, int content) : Fenced(std::vector<std::byte>(bytes, static_cast<std::byte>(content))) {}
  std::byte* data() const { return data_; }
  bool intact() const {
    for (const std::byte* at = memory_.data(); at < memory_.data() + memory_.size(); ++at) {
      if ((at < data_ || at >= data_ + bytes_) && *at != std::byte{0xa5}) return false;
    }
    return true;
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* data_;
};

std::vector<Tensor> run_on_host(const OpJob& job, Workers& workers) {
  const Kernel& kernel = cuda_kernels_on_host().at(*job.op, job.spec);
  std::vector<Fenced> in, out;
  in.reserve(job.inputs.size()), out.reserve(job.spec.outputs.size());
  std::vector<const void*> in_places;
  std::vector<void*> out_places;
  for (const Tensor* input : job.inputs) {
    in.emplace_back(input ? std::span<const std::byte>(input->bytes) : std::span<const std::byte>());
    in_places.push_back(input ? in.back().data() : nullptr);
  }
  for (size_t i = 0; i < job.spec.outputs.size(); ++i) {
    out.emplace_back(static_cast<size_t>(job.spec.outputs[i].bytes()), 0xcd);
    out_places.push_back(job.written(i) >= 0 ? in[static_cast<size_t>(job.written(i))].data() : out.back().data());
  }
  const Fenced workspace(static_cast<size_t>(workspace_bytes(kernel, job.spec, workers.threads())), 0xff);
  DataError wrong;
  prepare(kernel,
          job.spec)({.inputs = in_places, .outputs = out_places, .workspace = workspace.data(), .queue = &workers, .error = &wrong});
  wrong.check();
  std::vector<Tensor> results;
  for (size_t i = 0; i < job.spec.outputs.size(); ++i) {
    results.emplace_back(job.spec.outputs[i].dtype, job.spec.outputs[i].shape);
    if (!results[i].bytes.empty()) std::memcpy(results[i].bytes.data(), out_places[i], results[i].bytes.size());
  }
  for (const auto* all : {&in, &out}) {
    for (const Fenced& fenced : *all) EXPECT_TRUE(fenced.intact()) << "wrote beside a tensor";
  }
  EXPECT_TRUE(workspace.intact()) << "wrote beside its workspace";
  return results;
}

struct CudaKernel : ::testing::TestWithParam<OpCase> {};

TEST_P(CudaKernel, HasTheProcessorsBits) {
  static Workers workers(2);
  const auto jobs = op_jobs(GetParam(), cuda_kernels_on_host());
  if (jobs.empty()) GTEST_SKIP() << "of no type that the GPU's kernel takes";
  for (const auto& job : jobs) {
    SCOPED_TRACE(job->spec.inputs.empty() ? "" : to_string(job->spec.inputs[0]));
    const std::vector<Tensor> wanted = processors_results(*job, workers);
    for (const bool backwards : {false, true}) {
      SCOPED_TRACE(backwards ? "backwards" : "forwards");
      run_cuda_kernels_backwards(backwards);
      const std::vector<Tensor> results = run_on_host(*job, workers);
      run_cuda_kernels_backwards(false);
      for (size_t i = 0; i < results.size(); ++i) {
        SCOPED_TRACE("output " + std::to_string(i));
        expect_same(results[i], wanted[i]);
      }
    }
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CudaKernel);
INSTANTIATE_TEST_SUITE_P(Ops, CudaKernel, ::testing::ValuesIn(op_cases_for(cuda_kernels_on_host())),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace ort_train::fixtures
