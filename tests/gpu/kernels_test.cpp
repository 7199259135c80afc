// CUDA's kernels on a GPU, on every op case: the bits of the processor's kernels where these are to be the same, nothing written beside an
// output. Skipped, visibly, where there is no GPU.

#include "exec/cuda/kernels.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "exec/cuda/gpu.h"
#include "exec/cuda/status.h"
#include "graph/error.h"
#include "tests/op_jobs.h"
#include "tests/prepared_op.h"

namespace ort_train::fixtures {
namespace {

using cuda::check;

// Why there is no GPU; empty where there is one.
const std::string& lacking() {
  static const std::string reason = [] {
    try {
      static const std::unique_ptr<Gpu> gpu = open_gpu(0);
      return std::string();
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
  }();
  return reason;
}

// Device memory between guards.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::span<const std::byte> bytes) : bytes_(bytes.size()) {
    check(cudaMalloc(&memory_, bytes_ + 2 * kGuard), "no memory");
    check(cudaMemset(memory_, 0xa5, bytes_ + 2 * kGuard), "it failed");
    check(cudaMemcpy(data(), bytes.data(), bytes_, cudaMemcpyHostToDevice), "it failed");
  }
  DeviceBytes(size_t bytes, int content) : DeviceBytes(std::vector<std::byte>(bytes, static_cast<std::byte>(content))) {}
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { (void)cudaFree(memory_); }

  std::byte* data() const { return static_cast<std::byte*>(memory_) + kGuard; }
  void read(std::vector<std::byte>& to) const {
    std::vector<std::byte> all(bytes_ + 2 * kGuard);
    check(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "it failed");
    for (size_t i = 0; i < kGuard; ++i) {
      ASSERT_EQ(all[i], std::byte{0xa5}) << "wrote before its output";
      ASSERT_EQ(all[kGuard + bytes_ + i], std::byte{0xa5}) << "wrote behind its output";
    }
    to.assign(all.begin() + kGuard, all.end() - kGuard);
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_;
  void* memory_ = nullptr;
};

// Which input is the place of an output, because the op writes it; -1: none.
int written(const OpJob& job, size_t output) {
  for (const Alias& alias : job.op->writes) {
    if (static_cast<size_t>(alias.output) == output && job.inputs[static_cast<size_t>(alias.input)]) return alias.input;
  }
  return -1;
}

std::vector<Tensor> run_on_gpu(const OpJob& job) {
  const Kernel& kernel = cuda_kernels().at(*job.op, job.spec);
  std::vector<std::unique_ptr<DeviceBytes>> in, out;
  std::vector<const void*> in_places;
  std::vector<void*> out_places;
  for (const Tensor* input : job.inputs) {
    in.push_back(std::make_unique<DeviceBytes>(input ? std::span<const std::byte>(input->bytes) : std::span<const std::byte>()));
    in_places.push_back(input ? in.back()->data() : nullptr);
  }
  for (size_t i = 0; i < job.spec.outputs.size(); ++i) {
    out.push_back(std::make_unique<DeviceBytes>(static_cast<size_t>(job.spec.outputs[i].bytes()), 0xcd));
    out_places.push_back(written(job, i) >= 0 ? in[static_cast<size_t>(written(job, i))]->data() : out.back()->data());
  }
  const DeviceBytes workspace(static_cast<size_t>(workspace_bytes(kernel, job.spec, 1)), 0xff);
  const DeviceBytes wrong(sizeof(DataError), 0);
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "no stream");
  check(cudaDeviceSynchronize(), "it failed");
  prepare(kernel, job.spec)({.inputs = in_places,
                             .outputs = out_places,
                             .workspace = workspace.data(),
                             .queue = stream,
                             .error = reinterpret_cast<DataError*>(wrong.data())});
  check(cudaGetLastError(), "a kernel can't be launched");
  check(cudaStreamSynchronize(stream), "a kernel failed");
  check(cudaStreamDestroy(stream), "it failed");
  std::vector<std::byte> word, beside;
  wrong.read(word);
  reinterpret_cast<DataError*>(word.data())->check();
  workspace.read(beside);
  std::vector<Tensor> results;
  for (size_t i = 0; i < job.spec.outputs.size(); ++i) {
    results.emplace_back(job.spec.outputs[i].dtype, job.spec.outputs[i].shape);
    std::vector<std::byte> bytes;
    (written(job, i) >= 0 ? *in[static_cast<size_t>(written(job, i))] : *out[i]).read(bytes);
    if (!bytes.empty()) std::memcpy(results[i].bytes.data(), bytes.data(), bytes.size());
  }
  return results;
}

// How far a result may be from the processor's, in the 2-norm; 0: the same bits. float64 has exp, sin … of another C library, products of
// 16 bits are made on tensor cores, in an order of their own.
double tolerance_of(const OpJob& job, const Tensor& result) {
  const auto has = [&](DType type) {
    return std::any_of(job.spec.inputs.begin(), job.spec.inputs.end(), [&](const TensorType& input) { return input.dtype == type; });
  };
  if (has(DType::float64) || result.dtype == DType::float64) return 1e-13;
  const bool is_product = job.op->name == "MatMul" || job.op->name == "MatMulPart";
  const bool is_half_product =
      is_product && (has(DType::float16) || has(DType::bfloat16) || job.spec.attributes.get("compute", int64_t{0}) != 0);
  if (!is_half_product) return 0;
  return result.dtype == DType::bfloat16 ? 0x1p-8 : result.dtype == DType::float16 ? 0x1p-11 : 1e-5;
}

struct GpuKernel : ::testing::TestWithParam<OpCase> {};

TEST_P(GpuKernel, HasTheProcessorsBits) {
  if (!lacking().empty()) GTEST_SKIP() << lacking();
  const auto jobs = op_jobs(GetParam(), cuda_kernels());
  for (const auto& job : jobs) {
    SCOPED_TRACE(job->spec.inputs.empty() ? "" : to_string(job->spec.inputs[0]));
    const std::vector<Tensor> wanted = PreparedOp(*job->op, job->spec, /*threads=*/2).run(job->inputs);
    const std::vector<Tensor> results = run_on_gpu(*job);
    for (size_t i = 0; i < results.size(); ++i) {
      SCOPED_TRACE("output " + std::to_string(i));
      const double tolerance = tolerance_of(*job, results[i]);
      if (tolerance > 0) {
        const auto [apart, norm] = distance(results[i], wanted[i], std::numeric_limits<double>::max());
        EXPECT_LE(apart, tolerance * norm);
      } else {
        expect_same(results[i], wanted[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, GpuKernel, ::testing::ValuesIn(op_cases_for(cuda_kernels())),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace ort_train::fixtures
