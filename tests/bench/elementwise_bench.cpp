// Elementwise, softmax and normalisation kernels against copying as many bytes, in turns in the same run.
//
//   bench-elementwise_bench [threads] [seconds an op]
//
// Prints one JSON line an op (GB/s read and written, best of the run, and the copy's). Tensors are larger than the caches. The first rows
// of each result are checked against the double kernel.

#include <tbb/global_control.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "exec/kernel.h"

namespace ort_train {
namespace {

constexpr int64_t kRows = 32768, kColumns = 768, kCheckedRows = 8;  // 100 MB a tensor

struct Job {
  const char* name;
  const char* op;
  Attributes attributes;
  std::vector<Shape> inputs;
  size_t outputs = 1;
  double low = -3, high = 3;
};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

Tensor numbers(const Shape& shape, double low, double high, uint32_t seed) {
  Tensor tensor(DType::float32, shape);
  for (float& x : tensor.data<float>()) {
    seed = seed * 1664525 + 1013904223;
    x = static_cast<float>(low + (high - low) * (seed >> 8) * 0x1p-24);
  }
  return tensor;
}

// The first rows of a tensor that has kRows of them, all of another, in double.
Tensor head(const Tensor& tensor) {
  Shape shape = tensor.shape;
  if (shape[0] == kRows) shape[0] = kCheckedRows;
  Tensor result(DType::float64, shape);
  for (int64_t i = 0; i < result.size(); ++i) result.data<double>()[i] = tensor.data<float>()[i];
  return result;
}

bool right(const Job& job, const std::vector<Tensor>& inputs, const Tensor& y, Workers& workers) {
  std::vector<Tensor> heads;
  for (const Tensor& input : inputs) heads.push_back(head(input));
  std::vector<const Tensor*> views;
  for (const Tensor& tensor : heads) views.push_back(&tensor);
  const Tensor exact = evaluate(op_named(job.op), job.attributes, views, job.outputs, workers)[0];
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < exact.size(); ++i) {
    const double wanted = exact.data<double>()[i], off = y.data<float>()[i] - wanted;
    difference += off * off, norm += wanted * wanted;
  }
  return std::sqrt(difference) <= 1e-6 * std::sqrt(norm);
}

bool measure(const Job& job, Workers& workers, double limit) {
  const OpDef& op = op_named(job.op);
  KernelSpec spec;
  spec.attributes = job.attributes;
  InferContext context{.attributes = spec.attributes, .inputs = {}, .constants = {}, .outputs = job.outputs};
  std::vector<Tensor> inputs, outputs;
  for (const Shape& shape : job.inputs) inputs.push_back(numbers(shape, job.low, job.high, static_cast<uint32_t>(inputs.size() + 1)));
  for (const Tensor& input : inputs) spec.inputs.push_back(input.type()), spec.present.push_back(true), spec.constants.push_back(nullptr);
  for (const TensorType& type : spec.inputs) context.inputs.push_back(&type);
  context.constants = spec.constants;
  spec.outputs = op.infer(context);
  std::vector<const void*> in;
  std::vector<void*> out;
  for (const TensorType& type : spec.outputs) outputs.emplace_back(type.dtype, type.shape);
  for (const Tensor& input : inputs) in.push_back(input.bytes.data());
  for (Tensor& output : outputs) out.push_back(output.bytes.data());
  const Kernel& kernel = cpu_kernels().at(op, spec);
  std::vector<std::byte> workspace(static_cast<size_t>(workspace_bytes(kernel, spec, workers.threads())) + 64);
  const KernelRun run = prepare(kernel, spec);
  DataError wrong;
  const KernelArgs args{.inputs = in, .outputs = out, .workspace = workspace.data(), .queue = &workers, .error = &wrong};

  const double bytes = kernel.cost(spec).bytes;
  Tensor from = numbers({kRows, kColumns}, -1, 1, 9), to(DType::float32, {kRows, kColumns});
  double best = 1e9, copy = 1e9;
  for (const double end = seconds() + limit; seconds() < end;) {
    double start = seconds();
    run(args);
    best = std::min(best, seconds() - start);
    start = seconds();
    workers.parallel_blocks(from.size(), 32768, [&](int64_t begin, int64_t stop) {
      std::memcpy(to.data<float>().data() + begin, from.data<float>().data() + begin, static_cast<size_t>(stop - begin) * 4);
    });
    copy = std::min(copy, seconds() - start);
  }
  const bool correct = right(job, inputs, outputs[0], workers);
  std::printf("{\"op\": \"%s\", \"threads\": %d, \"ms\": %.2f, \"gb_per_s\": %.1f, \"copy_gb_per_s\": %.1f, \"correct\": %s}\n", job.name,
              workers.threads(), best * 1e3, bytes / best * 1e-9, 2e-9 * static_cast<double>(from.bytes.size()) / copy,
              correct ? "true" : "false");
  std::fflush(stdout);
  return correct;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) {
  using namespace ort_train;
  const int threads = argc > 1 ? std::atoi(argv[1]) : 2;
  const double limit = argc > 2 ? std::atof(argv[2]) : 1;
  tbb::global_control allow(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(std::max(threads, 1)));
  Workers workers(threads);
  const Shape x{kRows, kColumns}, row{kColumns}, column{kRows, 1};
  const Attributes tanh_form{{"approximate", std::string("tanh")}}, last{{"axis", int64_t{-1}}};
  const Shape image{8, 64, 112, 112}, half_image{8, 64, 56, 56};
  const auto window = [](int64_t side, int64_t pad) {
    return Attributes{{"kernel_shape", std::vector<int64_t>{side, side}},
                      {"strides", std::vector<int64_t>{2, 2}},
                      {"pads", std::vector<int64_t>{pad, pad, pad, pad}}};
  };
  const Attributes three = window(3, 1), two = window(2, 0), is_live{{"live", int64_t{1}}};
  std::vector<Job> jobs{
      {"Add", "Add", {}, {x, x}},
      {"Add bias", "Add", {}, {x, row}},
      {"Mul column", "Mul", {}, {x, column}},
      {"Relu", "Relu", {}, {x}},
      {"Exp", "Exp", {}, {x}},
      {"Log", "Log", {}, {x}, 1, 0.1, 9},
      {"Erf", "Erf", {}, {x}},
      {"Tanh", "Tanh", {}, {x}},
      {"Sigmoid", "Sigmoid", {}, {x}},
      {"Softplus", "Softplus", {}, {x}},
      {"Gelu", "Gelu", {}, {x}},
      {"GeluGrad", "GeluGrad", {}, {x, x}},
      {"Gelu tanh", "Gelu", tanh_form, {x}},
      {"GeluGrad tanh", "GeluGrad", tanh_form, {x, x}},
      {"Swish", "Swish", {}, {x}},
      {"SwishGrad", "SwishGrad", {}, {x, x}},
      {"Softmax", "Softmax", last, {x}},
      {"SoftmaxGrad", "SoftmaxGrad", last, {x, x}, 1, 0, 0.01},
      {"LogSoftmax", "LogSoftmax", last, {x}},
      {"LayerNormalization", "LayerNormalization", last, {x, row, row}, 3},
      {"LayerNormalizationGrad", "LayerNormalizationGrad", last, {x, x, row, column, column}, 3, 0.1, 1},
      {"RMSNormalization", "RMSNormalization", last, {x, row}, 2},
      {"RMSNormalizationGrad", "RMSNormalizationGrad", last, {x, x, row, column}, 2, 0.1, 1},
      // of images
      {"MaxPool 3x3", "MaxPool", three, {image}},
      {"MaxPoolGrad 3x3", "MaxPoolGrad", three, {half_image, image}},
      {"MaxPool 2x2", "MaxPool", two, {image}},
      {"MaxPoolGrad 2x2", "MaxPoolGrad", two, {half_image, image}},
  };
  for (const auto& [channels, side] : {std::pair<int64_t, int64_t>{16, 112}, {64, 112}, {64, 56}, {72, 28}, {480, 14}, {960, 7}}) {
    const Shape planes{8, channels, side, side}, numbers{channels};
    jobs.push_back({"LiveBatchNormalization", "LiveBatchNormalization", {}, {planes, numbers, numbers}, 3});
    jobs.push_back({"BatchNormalizationGrad", "BatchNormalizationGrad", is_live, {planes, planes, numbers, numbers, numbers}, 3, 0.1, 1});
  }
  bool correct = true;
  for (const Job& job : jobs) correct &= measure(job, workers, limit);
  return correct ? 0 : 1;
}
