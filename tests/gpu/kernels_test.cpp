// CUDA's kernels on a GPU, on every op case: the bits of the processor's kernels where these are to be the same, nothing written beside an
// output. Skipped, visibly, where there is no GPU.

#include "exec/cuda/kernels.h"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exec/algorithms.h"
#include "exec/cuda/cudnn_plan.h"
#include "exec/cuda/gpu.h"
#include "exec/cuda/status.h"
#include "exec/cuda/tensor_product.h"
#include "exec/program.h"
#include "graph/error.h"
#include "tests/op_inputs.h"
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

// Device memory between guards, the first of which is longer by `shift` bytes.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::span<const std::byte> bytes, size_t shift = 0) : bytes_(bytes.size()), front_(kGuard + shift) {
    check(cudaMalloc(&memory_, front_ + bytes_ + kGuard), "no memory");
    check(cudaMemset(memory_, 0xa5, front_ + bytes_ + kGuard), "it failed");
    check(cudaMemcpy(data(), bytes.data(), bytes_, cudaMemcpyHostToDevice), "it failed");
  }
  DeviceBytes(size_t bytes, int content, size_t shift = 0)
      : DeviceBytes(std::vector<std::byte>(bytes, static_cast<std::byte>(content)), shift) {}
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  ~DeviceBytes() { (void)cudaFree(memory_); }

  std::byte* data() const { return static_cast<std::byte*>(memory_) + front_; }
  void read(std::vector<std::byte>& to) const {
    std::vector<std::byte> all(front_ + bytes_ + kGuard);
    check(cudaMemcpy(all.data(), memory_, all.size(), cudaMemcpyDeviceToHost), "it failed");
    const auto begin = all.begin() + static_cast<ptrdiff_t>(front_), end = all.end() - static_cast<ptrdiff_t>(kGuard);
    const auto is_guard = [](std::byte byte) { return byte == std::byte{0xa5}; };
    ASSERT_TRUE(std::all_of(all.begin(), begin, is_guard)) << "wrote before its output";
    ASSERT_TRUE(std::all_of(end, all.end(), is_guard)) << "wrote behind its output";
    to.assign(begin, end);
  }

 private:
  static constexpr size_t kGuard = 256;
  size_t bytes_, front_;
  void* memory_ = nullptr;
};

// Which input is the place of an output, because the op writes it or the kernel shall; -1: none.
int written(const OpJob& job, size_t output, const std::optional<Alias>& in_place) {
  std::vector<Alias> aliases(job.op->writes.begin(), job.op->writes.end());
  if (in_place) aliases.push_back(*in_place);
  for (const Alias& alias : aliases) {
    if (static_cast<size_t>(alias.output) == output && job.inputs[static_cast<size_t>(alias.input)]) return alias.input;
  }
  return -1;
}

// What results mustn't depend on.
struct Surroundings {
  size_t shift = 0;      // of all addresses: bytes
  int workspace = 0xff;  // what its bytes are
  bool is_busy = false;  // copies run meanwhile
};

// Copies within the GPU's memory, for some milliseconds.
class BusyGpu {
 public:
  explicit BusyGpu(bool is_busy) {
    if (!is_busy) return;
    constexpr size_t kBytes = size_t{64} << 20;
    memory_ = std::make_unique<DeviceBytes>(2 * kBytes, 0x3c);
    for (cudaStream_t& stream : streams_) {
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "no stream");
      for (int i = 0; i < 64; ++i)
        check(cudaMemcpyAsync(memory_->data() + kBytes, memory_->data(), kBytes, cudaMemcpyDeviceToDevice, stream), "it failed");
    }
  }
  BusyGpu(const BusyGpu&) = delete;
  BusyGpu& operator=(const BusyGpu&) = delete;
  ~BusyGpu() {
    for (cudaStream_t stream : streams_) {
      if (stream != nullptr) (void)cudaStreamSynchronize(stream), (void)cudaStreamDestroy(stream);
    }
  }

 private:
  std::unique_ptr<DeviceBytes> memory_;
  std::array<cudaStream_t, 2> streams_{};
};

// in_place: one of Kernel::in_place, for an output that goes to where the input is. Run several times, the results are always the same.
std::vector<Tensor> run_on_gpu(const OpJob& job, const std::optional<Alias>& in_place = {}, const Surroundings& in_them = {},
                               int times = 1) {
  const Kernel& kernel = cuda_kernels().at(*job.op, job.spec);
  std::vector<std::unique_ptr<DeviceBytes>> in, out;
  std::vector<const void*> in_places;
  std::vector<void*> out_places;
  for (const Tensor* input : job.inputs) {
    in.push_back(
        std::make_unique<DeviceBytes>(input ? std::span<const std::byte>(input->bytes) : std::span<const std::byte>(), in_them.shift));
    in_places.push_back(input ? in.back()->data() : nullptr);
  }
  for (size_t i = 0; i < job.spec.outputs.size(); ++i) {
    out.push_back(std::make_unique<DeviceBytes>(static_cast<size_t>(job.spec.outputs[i].bytes()), 0xcd, in_them.shift));
    const int input = written(job, i, in_place);
    out_places.push_back(input >= 0 ? in[static_cast<size_t>(input)]->data() : out.back()->data());
  }
  const DeviceBytes workspace(static_cast<size_t>(workspace_bytes(kernel, job.spec, 1)), in_them.workspace, in_them.shift);
  const DeviceBytes wrong(sizeof(DataError), 0);
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "no stream");
  check(cudaDeviceSynchronize(), "it failed");
  const BusyGpu busy(in_them.is_busy);
  const KernelRun run = prepare(kernel, job.spec);
  std::vector<Tensor> results;
  for (int time = 0; time < times; ++time) {
    run({.inputs = in_places,
         .outputs = out_places,
         .workspace = workspace.data(),
         .queue = stream,
         .error = reinterpret_cast<DataError*>(wrong.data())});
    check(cudaGetLastError(), "a kernel can't be launched");
    check(cudaStreamSynchronize(stream), "a kernel failed");
    for (size_t i = 0; i < job.spec.outputs.size(); ++i) {
      Tensor result(job.spec.outputs[i].dtype, job.spec.outputs[i].shape);
      std::vector<std::byte> bytes;
      const int input = written(job, i, in_place);
      (input >= 0 ? *in[static_cast<size_t>(input)] : *out[i]).read(bytes);
      if (!bytes.empty()) std::memcpy(result.bytes.data(), bytes.data(), bytes.size());
      if (time == 0)
        results.push_back(std::move(result));
      else
        expect_same(result, results[i]);
    }
  }
  check(cudaStreamDestroy(stream), "it failed");
  std::vector<std::byte> word, beside;
  wrong.read(word);
  reinterpret_cast<DataError*>(word.data())->check();
  workspace.read(beside);
  return results;
}

// On a GPU; where there is none it is skipped, visibly.
struct OnGpu : ::testing::Test {
  void SetUp() override {
    if (!lacking().empty()) GTEST_SKIP() << lacking();
  }
};
struct GpuKernel : OnGpu, ::testing::WithParamInterface<OpCase> {};
struct GpuProducts : OnGpu {};
struct GpuCudnn : OnGpu {};
struct GpuUnknownAlgorithms : OnGpu {};

TEST_P(GpuKernel, HasTheProcessorsBits) {
  const auto jobs = op_jobs(GetParam(), cuda_kernels());
  for (const auto& job : jobs) {
    SCOPED_TRACE(job->spec.inputs.empty() ? "" : to_string(job->spec.inputs[0]));
    const std::vector<Tensor> wanted = PreparedOp(*job->op, job->spec, /*threads=*/2).run(job->inputs);
    const auto expect_wanted = [&](const std::vector<Tensor>& results) {
      for (size_t i = 0; i < results.size(); ++i) {
        SCOPED_TRACE("output " + std::to_string(i));
        const auto is_double = [](const Tensor* tensor) { return tensor && tensor->dtype == DType::float64; };
        const bool is_wide = is_double(&results[i]) || std::any_of(job->inputs.begin(), job->inputs.end(), is_double);
        // float64 has exp, sin … of another C library.
        const double tolerance = is_wide ? 1e-13 : own_order_tolerance(*job, i, results[i]);
        tolerance > 0 ? expect_near(results[i], wanted[i], tolerance) : expect_same(results[i], wanted[i]);
      }
    };
    expect_wanted(run_on_gpu(*job));
    for (const Alias& alias : PreparedOp(*job->op, job->spec, /*threads=*/2, cuda_kernels()).in_place()) {
      SCOPED_TRACE("over input " + std::to_string(alias.input));
      expect_wanted(run_on_gpu(*job, alias));
    }
  }
}

// Products are the same bits wherever they lie, whatever the workspace held, and while other streams are busy.
TEST_F(GpuProducts, RepeatToTheBit) {
  const Attributes causal{{"scale", 0.125f}, {"causal", int64_t{1}}};
  const auto padded = [](const Shape& shape = {}) {
    using Numbers = std::vector<int64_t>;
    Attributes attributes{{"kernel_shape", Numbers{3, 3}}, {"pads", Numbers{1, 1, 1, 1}}};
    if (!shape.empty()) attributes.set("shape", shape);
    return attributes;
  };
  const auto of_queries = random({2, 12, 512, 64}), of_keys = random({2, 4, 512, 64}), of_x = random({8, 64, 56, 56}),
             of_w = random({64, 64, 3, 3});
  const std::vector<OpCase> cases{
      {.name = "product", .op = "MatMul", .inputs = {random({256, 768}), random({768, 2304})}},
      {.name = "biased", .op = "MatMul", .inputs = {random({256, 768}), random({768, 2304}), random({2304})}},
      {.name = "odd", .op = "MatMul", .inputs = {random({256, 768}), random({768, 1003})}},
      {.name = "turned", .op = "MatMul", .attributes = {{"trans_a", int64_t{1}}}, .inputs = {random({4096, 768}), random({4096, 768})}},
      {.name = "by_rows", .op = "MatMul", .attributes = {{"trans_b", int64_t{1}}}, .inputs = {random({2048, 768}), random({768, 768})}},
      {.name = "several", .op = "MatMul", .inputs = {random({24, 128, 64}), random({24, 64, 128})}},
      {.name = "accumulating",
       .op = "AccumulateMatMul",
       .attributes = {{"trans_a", int64_t{1}}, {"to", static_cast<int64_t>(DType::float32)}},
       .inputs = {random({512, 768}), random({512, 768}), absent(), statistic(random({768, 768}))}},
      {.name = "attention", .op = "Attention", .attributes = causal, .inputs = {of_queries, of_keys, of_keys}, .outputs = 2},
      {.name = "attention_gradient",
       .op = "AttentionGrad",
       .attributes = causal,
       .inputs = {of_queries, of_queries, of_keys, of_keys, of_queries, statistic(random({2, 12, 512}, 5, 6))},
       .outputs = 3},
      {.name = "convolution", .op = "Conv", .attributes = padded(), .inputs = {of_x, of_w}},
      {.name = "convolution_dx", .op = "ConvInputGrad", .attributes = padded({8, 64, 56, 56}), .inputs = {of_x, of_w}},
      {.name = "convolution_dw", .op = "ConvWeightGrad", .attributes = padded({64, 64, 3, 3}), .inputs = {of_x, of_x}}};
  for (const OpCase& of : cases) {
    SCOPED_TRACE(of.name);
    for (const auto& job : op_jobs(of, cuda_kernels())) {
      SCOPED_TRACE(to_string(job->spec.inputs[0]));
      const std::vector<Tensor> once = run_on_gpu(*job);
      for (const Surroundings& others : {Surroundings{},
                                         {.shift = kPlaceAlignment},
                                         {.shift = 7 * kPlaceAlignment, .workspace = 0},
                                         {.is_busy = true},
                                         {.shift = 3 * kPlaceAlignment, .workspace = 0x55, .is_busy = true}}) {
        const std::vector<Tensor> again = run_on_gpu(*job, {}, others);
        for (size_t i = 0; i < once.size(); ++i) expect_same(again[i], once[i]);
      }
    }
  }
}

// What libraries make of much at a time, where races in them would show.
TEST_F(GpuProducts, OfLargeBatchesRepeatToTheBit) {
  constexpr int kTimes = 20;
  const auto q = random({32, 12, 512, 64}), x = random({64, 64, 56, 56});
  const Attributes causal{{"scale", 0.125f}, {"causal", int64_t{1}}}, padded{{"kernel_shape", std::vector<int64_t>{3, 3}},
                                                                             {"pads", std::vector<int64_t>{1, 1, 1, 1}},
                                                                             {"shape", std::vector<int64_t>{64, 64, 3, 3}}};
  for (const OpCase& of : {OpCase{.name = "attention_gradient",
                          .op = "AttentionGrad",
                          .attributes = causal,
                          .inputs = {q, q, q, q, q, statistic(random({32, 12, 512}, 5, 6))},
                          .outputs = 3},
                           OpCase{.name = "convolution_dw", .op = "ConvWeightGrad", .attributes = padded, .inputs = {x, x}}}) {
    SCOPED_TRACE(of.name);
    OpJob job{.op = &op_named(of.op), .tensors = inputs_of(of, DType::bfloat16)};
    job.inputs = views_of(of, job.tensors);
    job.spec = spec_of(of, DType::bfloat16, job.tensors);
    (void)run_on_gpu(job, {}, {.is_busy = true}, kTimes);
  }
}

std::vector<std::byte> product_of(const cuda::PreparedProduct& product, const std::vector<std::byte>& a, const std::vector<std::byte>& b,
                                  size_t bytes) {
  const DeviceBytes on_a(a), on_b(b), d(bytes, 0), workspace(static_cast<size_t>(cuda::library_limits().product_workspace), 0xff);
  product.run(on_a.data(), on_b.data(), nullptr, nullptr, d.data(), workspace.data(), nullptr);
  check(cudaDeviceSynchronize(), "a product failed");
  std::vector<std::byte> result;
  d.read(result);
  return result;
}

constexpr int64_t kSize = 512;
constexpr cuda::TensorProduct kSquare{
    .rows = kSize, .columns = kSize, .depth = kSize, .a_pitch = kSize, .b_pitch = kSize, .d_pitch = kSize};

// A product has the algorithm that a table has for it, and no other.
TEST_F(GpuProducts, HaveTheAlgorithmsOfATable) {
  const std::vector<Tensor> from =
      inputs_of({.name = "squares", .op = "MatMul", .inputs = {random({kSize, kSize}), random({kSize, kSize})}}, DType::bfloat16);
  const auto result = [&](const cuda::PreparedProduct& product) {
    return product_of(product, from[0].bytes, from[1].bytes, kSize * kSize * sizeof(float));
  };
  AlgorithmTable first, second, third;
  const std::vector<std::byte> suggested = result(*cuda::prepare_product(kSquare, first));
  ASSERT_EQ(first.all().size(), 1u);
  second.restore(first.all());
  EXPECT_EQ(result(*cuda::prepare_product(kSquare, second)), suggested);
  EXPECT_EQ(second.all(), first.all());
  (void)cuda::prepare_product(kSquare, third);
  EXPECT_EQ(third.all(), first.all()) << "the library's words for an algorithm differ from time to time";
  cuda::TensorProduct biased = kSquare, adding = kSquare, several = kSquare;
  biased.has_bias = adding.adds = true;
  several.items = 4, several.a_stride = several.b_stride = several.d_stride = kSize * kSize;
  for (const cuda::TensorProduct& like : {biased, adding, several}) {
    AlgorithmTable once, again;
    (void)cuda::prepare_product(like, once);
    again.restore(once.all());
    EXPECT_NO_THROW(cuda::prepare_product(like, again));
  }
}

TEST_F(GpuCudnn, HasThePlansOfATable) {
  if (const std::string none = cuda::start_cudnn(); !none.empty()) GTEST_SKIP() << none;
  const cuda::AttentionProblem problem{
      .batch = 1, .heads = 3, .key_heads = 3, .rows = 128, .columns = 128, .depth = 64, .width = 64, .scale = 0.25f};
  AlgorithmTable& algorithms = cuda::algorithms_of_current_device();
  algorithms.choose(cuda::describe(problem), "a plan");
  EXPECT_THROW((void)cuda::find_plan(problem), Error);
  const cuda::CudnnPlan* const plan = cuda::find_plan(problem);  // by the library's suggestion: the other one is forgotten
  ASSERT_NE(plan, nullptr);
  EXPECT_TRUE(algorithms.find(cuda::describe(problem)).value_or("").starts_with("eng"))
      << algorithms.find(cuda::describe(problem)).value_or("");
}

// What the library doesn't make at all is no error, the second time neither.
TEST_F(GpuCudnn, LeavesWhatItDoesNotMakeToOtherKernels) {
  if (const std::string none = cuda::start_cudnn(); !none.empty()) GTEST_SKIP() << none;
  const cuda::AttentionProblem odd{
      .batch = 1, .heads = 1, .key_heads = 1, .rows = 16, .columns = 16, .depth = 7, .width = 7, .scale = 0.25f};
  EXPECT_EQ(cuda::find_plan(odd), nullptr);
  EXPECT_EQ(cuda::find_plan(odd), nullptr);
  EXPECT_TRUE(cuda::algorithms_of_current_device().find(cuda::describe(odd)).has_value());
}

// What models have must not fall back to kernels that compute in float32.
TEST_F(GpuCudnn, MakesWhatModelsHave) {
  if (const std::string none = cuda::start_cudnn(); !none.empty()) GTEST_SKIP() << none;
  for (const DType type : {DType::bfloat16, DType::float16}) {
    for (const bool is_backward : {false, true}) {
      for (const bool causal : {false, true}) {
        for (const auto& [rows, columns, key_heads] : {std::array<int64_t, 3>{512, 512, 12}, {196, 76, 12}, {512, 512, 4}}) {
          const cuda::AttentionProblem problem{.is_backward = is_backward,
                                               .batch = 4,
                                               .heads = 12,
                                               .key_heads = key_heads,
                                               .rows = rows,
                                               .columns = columns,
                                               .depth = 64,
                                               .width = 64,
                                               .scale = 0.125f,
                                               .causal = causal,
                                               .type = type};
          const cuda::CudnnPlan* const plan = cuda::find_plan(problem);
          EXPECT_NE(plan, nullptr) << "attention " << rows << " x " << columns << ", " << key_heads << " heads of keys"
                                   << (is_backward ? ", backward" : "");
          EXPECT_EQ(plan, cuda::find_plan(problem)) << "made twice";
        }
      }
    }
    using Result = cuda::ConvolutionProblem::Result;
    for (const Result result : {Result::y, Result::dx, Result::dw}) {
      const cuda::ConvolutionProblem plain{.result = result,
                                           .batch = 8,
                                           .in_channels = 64,
                                           .out_channels = 64,
                                           .in = {56, 56},
                                           .out = {56, 56},
                                           .kernel = {3, 3},
                                           .stride = {1, 1},
                                           .padding = {1, 1},
                                           .dilation = {1, 1},
                                           .type = type};
      cuda::ConvolutionProblem strides = plain, groups = plain, depthwise = plain, dilations = plain;
      strides.out = {28, 28}, strides.stride = {2, 2};
      groups.groups = 4, groups.in_channels = groups.out_channels = 16;
      depthwise.groups = 64, depthwise.in_channels = depthwise.out_channels = 1;
      dilations.padding = dilations.dilation = {2, 2};
      for (const auto& [name, problem] :
           {std::pair{"plain", plain}, {"strides", strides}, {"groups", groups}, {"depthwise", depthwise}, {"dilations", dilations}})
        EXPECT_NE(cuda::find_plan(problem), nullptr) << "convolution: " << name << ", result " << static_cast<int>(result);
    }
  }
}

// The gradient of so much attention that it is made of some heads at a time: each head's is what it is alone. With keys of their own, or
// keys that `shared` heads share.
void check_divided_gradients(int64_t key_heads, int64_t shared, int64_t alone) {
  const auto gradients = [&](int64_t heads_of_keys, const std::vector<Tensor>& from) {  // of the first heads
    const int64_t heads = heads_of_keys * shared;
    const Shape q{1, heads, 4096, 32}, keys{1, heads_of_keys, 4096, 32}, lse{1, heads, 4096};
    std::vector<Tensor> inputs;
    for (size_t i = 0; i < 6; ++i) {
      inputs.emplace_back(i == 5 ? DType::float32 : DType::bfloat16, i == 5 ? lse : i == 2 || i == 3 ? keys : q);
      std::copy_n(from[i].bytes.begin(), inputs[i].bytes.size(), inputs[i].bytes.begin());
    }
    OpJob job{.op = &op_named("AttentionGrad"), .tensors = std::move(inputs)};
    for (const Tensor& input : job.tensors) job.inputs.push_back(&input);
    job.spec = spec_of(*job.op, {{"scale", 0.2f}, {"causal", int64_t{1}}}, job.inputs, std::vector<bool>(job.inputs.size()), 3);
    return run_on_gpu(job);
  };
  const int64_t heads = key_heads * shared;
  const auto of_queries = random({heads, 4096, 32}), of_keys = random({key_heads, 4096, 32});
  const std::vector<Tensor> from =
      inputs_of({.name = "heads",
                 .op = "AttentionGrad",
                 .inputs = {of_queries, of_queries, of_keys, of_keys, of_queries, statistic(random({heads, 4096}, 5, 6))}},
                DType::bfloat16);
  const std::vector<Tensor> all = gradients(key_heads, from), some = gradients(alone, from);
  for (size_t i = 0; i < all.size(); ++i) {
    Tensor first(some[i].dtype, some[i].shape);
    std::copy_n(all[i].bytes.begin(), first.bytes.size(), first.bytes.begin());
    const auto [apart, norm] = distance(first, some[i], std::numeric_limits<double>::max());
    EXPECT_LE(apart, 0x1p-8 * norm) << "gradient " << i;
  }
}
TEST_F(GpuCudnn, DividesGradientsOfAttention) {
  check_divided_gradients(/*key_heads=*/11, /*shared=*/1, /*alone=*/2);  // of 32 MiB: six at a time, then five
}
TEST_F(GpuCudnn, DividesGradientsOfAttentionWhoseHeadsShareKeys) {
  check_divided_gradients(/*key_heads=*/5, /*shared=*/4, /*alone=*/1);  // of 128 MiB: two at a time, then one
}

// Last, and in a process of its own where bring_up runs it: the library is asked about words that aren't its own.
TEST_F(GpuUnknownAlgorithms, AreRefused) {
  AlgorithmTable first;
  (void)cuda::prepare_product(kSquare, first);
  ASSERT_EQ(first.all().size(), 1u);
  for (const char* const none : {"", "an algorithm", "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff"}) {
    AlgorithmTable of_none;
    of_none.choose(first.all().begin()->first, none);
    EXPECT_THROW(cuda::prepare_product(kSquare, of_none), Error) << none;
    EXPECT_TRUE(of_none.all().empty()) << "so that another run of the process isn't refused, too";
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, GpuKernel, ::testing::ValuesIn(op_cases_for(cuda_kernels())),
                         [](const auto& info) { return test_name(info.param); });

}  // namespace
}  // namespace ort_train::fixtures
