// The convolutions of a ResNet-18 training step, 8 images of 112 x 112: ours, in float32 and in mixed precision (bfloat16, but for float32
// weights that are rounded as they are read, and their gradients), against oneDNN's own threads, in turns in the same run.
//
//   OMP_WAIT_POLICY=passive bench-conv_bench [threads] [seconds a shape]      (else oneDNN's idle threads take time from ours)
//
// Prints one JSON line a shape and kind (forward, dx, dw; GFLOP/s, best of the run) and one for the whole step; checks each forward result
// against oneDNN's, which has the layouts that it wants, as if its neighbours had them too, and each in mixed precision against float32.

#include <omp.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <dnnl.hpp>
#include <map>
#include <vector>

#include "exec/kernel.h"
#include "graph/half.h"

namespace ort_train {
namespace {

struct Layer {
  int count;  // in the network
  int64_t channels, outputs, side, taps, stride;
};
constexpr int64_t kBatch = 8;
constexpr Layer kLayers[] = {{1, 3, 64, 112, 7, 2},   {4, 64, 64, 28, 3, 1},  {1, 64, 128, 28, 3, 2},
                             {3, 128, 128, 14, 3, 1}, {1, 64, 128, 28, 1, 2}, {1, 128, 256, 14, 3, 2},
                             {3, 256, 256, 7, 3, 1},  {1, 256, 512, 7, 3, 2}, {3, 512, 512, 4, 3, 1}};

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::vector<float> numbers(int64_t n) {
  std::vector<float> result(static_cast<size_t>(n));
  uint32_t seed = 1;
  for (float& x : result) {
    seed = seed * 1664525 + 1013904223;
    x = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
  }
  return result;
}

// One of our kernels, its operands and its workspace. The numbers are those of bfloat16 in both types.
struct Ours {
  std::vector<std::vector<float>> in;
  std::vector<float> out, workspace;
  DType result;
  KernelRun run;

  Ours(const char* op, Attributes attributes, const std::vector<Shape>& inputs, const std::vector<DType>& types, const Shape& output,
       DType to, int threads)
      : result(to) {
    attributes.set("to", static_cast<int64_t>(to));
    if (types[0] != types[1]) attributes.set("compute", static_cast<int64_t>(DType::bfloat16));
    KernelSpec spec{.attributes = attributes, .present = {true, true}, .constants = {nullptr, nullptr}};
    for (size_t i = 0; i < inputs.size(); ++i) {
      spec.inputs.push_back({types[i], inputs[i]});
      in.push_back(numbers(element_count(inputs[i])));
      auto* const halves = reinterpret_cast<bfloat16*>(in[i].data());
      for (size_t at = 0; at < in[i].size(); ++at) {
        const bfloat16 x = to_bfloat16(in[i][at]);
        if (types[i] == DType::bfloat16)
          halves[at] = x;
        else
          in[i][at] = to_float(x);
      }
    }
    spec.outputs = {{to, output}};
    out.resize(static_cast<size_t>(element_count(output)));
    const Kernel& kernel = cpu_kernels().at(op_named(op), spec);
    run = prepare(kernel, spec);
    workspace.resize(static_cast<size_t>(workspace_bytes(kernel, spec, threads) / 4 + 32));
  }
  void operator()(Workers& workers) {
    const void* const inputs[] = {in[0].data(), in[1].data()};
    void* const outputs[] = {out.data()};
    auto* place = reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64);
    run({.inputs = inputs, .outputs = outputs, .workspace = place, .queue = &workers});
  }
  float at(size_t i) const { return result == DType::float32 ? out[i] : to_float(reinterpret_cast<const bfloat16*>(out.data())[i]); }
  bool is_near(const std::vector<float>& expected) const {
    double error = 0, size = 0;
    for (size_t i = 0; i < expected.size(); ++i) {
      error += std::pow(double{at(i)} - double{expected[i]}, 2);
      size += std::pow(double{expected[i]}, 2);
    }
    return std::sqrt(error / size) < (result == DType::float32 ? 1e-6 : 0x1p-8);
  }
};

// oneDNN's three primitives of a layer.
class Theirs {
 public:
  Theirs(const Layer& l, int64_t out) {
    using namespace dnnl;
    const auto any = [](memory::dims dims) { return memory::desc(std::move(dims), memory::data_type::f32, memory::format_tag::any); };
    const memory::desc x = any({kBatch, l.channels, l.side, l.side}), w = any({l.outputs, l.channels, l.taps, l.taps}),
                       y = any({kBatch, l.outputs, out, out});
    const memory::dims strides{l.stride, l.stride}, pads{l.taps / 2, l.taps / 2};
    const auto direct = algorithm::convolution_direct;
    const convolution_forward::primitive_desc forward({prop_kind::forward_training, direct, x, w, y, strides, pads, pads}, engine_);
    const convolution_backward_data::primitive_desc dx({direct, x, w, y, strides, pads, pads}, engine_, forward);
    const convolution_backward_weights::primitive_desc dw({direct, x, w, y, strides, pads, pads}, engine_, forward);
    add(convolution_forward(forward),
        {{DNNL_ARG_SRC, forward.src_desc()}, {DNNL_ARG_WEIGHTS, forward.weights_desc()}, {DNNL_ARG_DST, forward.dst_desc()}});
    add(convolution_backward_data(dx),
        {{DNNL_ARG_DIFF_DST, dx.diff_dst_desc()}, {DNNL_ARG_WEIGHTS, dx.weights_desc()}, {DNNL_ARG_DIFF_SRC, dx.diff_src_desc()}});
    add(convolution_backward_weights(dw),
        {{DNNL_ARG_SRC, dw.src_desc()}, {DNNL_ARG_DIFF_DST, dw.diff_dst_desc()}, {DNNL_ARG_DIFF_WEIGHTS, dw.diff_weights_desc()}});
  }
  void run(size_t kind) {
    primitives_[kind].execute(stream_, arguments_[kind]);
    stream_.wait();
  }
  // y of plain operands, in plain layout.
  std::vector<float> forward(std::vector<float>& x, std::vector<float>& w) {
    using namespace dnnl;
    const auto plain = [&](const memory& like, float* data) {
      const memory::dims dims = like.get_desc().dims();
      return memory({dims, memory::data_type::f32, memory::format_tag::nchw}, engine_, data);
    };
    const auto copy = [&](memory from, memory to) {
      reorder(from, to).execute(stream_, from, to);
      stream_.wait();
    };
    auto& arguments = arguments_[0];
    copy(plain(arguments.at(DNNL_ARG_SRC), x.data()), arguments.at(DNNL_ARG_SRC));
    copy(plain(arguments.at(DNNL_ARG_WEIGHTS), w.data()), arguments.at(DNNL_ARG_WEIGHTS));
    run(0);
    const memory::dims dims = arguments.at(DNNL_ARG_DST).get_desc().dims();
    std::vector<float> y(static_cast<size_t>(dims[0] * dims[1] * dims[2] * dims[3]));
    copy(arguments.at(DNNL_ARG_DST), plain(arguments.at(DNNL_ARG_DST), y.data()));
    return y;
  }

 private:
  void add(dnnl::primitive primitive, const std::map<int, dnnl::memory::desc>& operands) {
    primitives_.push_back(std::move(primitive));
    arguments_.emplace_back();
    for (const auto& [which, desc] : operands) arguments_.back().emplace(which, dnnl::memory(desc, engine_));
  }
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  std::vector<dnnl::primitive> primitives_;
  std::vector<std::unordered_map<int, dnnl::memory>> arguments_;
};

int run(int threads, double limit) {
  constexpr const char* kKinds[] = {"forward", "dx", "dw"};
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  Workers workers(threads);
  omp_set_num_threads(threads);
  double flops = 0, ours_all = 0, mixed_all = 0, onednn_all = 0;
  bool right = true;
  for (const Layer& l : kLayers) {
    const int64_t out = (l.side + l.taps / 2 * 2 - l.taps) / l.stride + 1;
    const Shape x{kBatch, l.channels, l.side, l.side}, w{l.outputs, l.channels, l.taps, l.taps}, y{kBatch, l.outputs, out, out};
    const Attributes plain{{"kernel_shape", Shape{l.taps, l.taps}}, {"strides", Shape{l.stride, l.stride}}, {"pads", Shape(4, l.taps / 2)}};
    Attributes of_x = plain, of_w = plain;
    of_x.set("shape", x);
    of_w.set("shape", w);
    constexpr DType wide = DType::float32, narrow = DType::bfloat16;
    std::array<Ours, 3> ours{Ours("Conv", plain, {x, w}, {wide, wide}, y, wide, threads),
                             Ours("ConvInputGrad", of_x, {y, w}, {wide, wide}, x, wide, threads),
                             Ours("ConvWeightGrad", of_w, {y, x}, {wide, wide}, w, wide, threads)};
    std::array<Ours, 3> mixed{Ours("Conv", plain, {x, w}, {narrow, wide}, y, narrow, threads),
                              Ours("ConvInputGrad", of_x, {y, w}, {narrow, wide}, x, narrow, threads),
                              Ours("ConvWeightGrad", of_w, {y, x}, {narrow, narrow}, w, wide, threads)};
    Theirs theirs(l, out);
    ours[0](workers);
    right &= ours[0].is_near(theirs.forward(ours[0].in[0], ours[0].in[1]));
    const double one = 2e-9 * static_cast<double>(element_count(y)) * static_cast<double>(l.channels * l.taps * l.taps);
    for (size_t kind = 0; kind < 3; ++kind) {
      if (kind == 1 && l.channels == 3) continue;  // nobody wants an image's gradient
      ours[kind](workers);
      mixed[kind](workers);
      right &= mixed[kind].is_near(ours[kind].out);
      double best_ours = 1e9, best_mixed = 1e9, best_theirs = 1e9;
      const double until = seconds() + limit;
      for (int i = 0; i < 3 || seconds() < until; ++i) {
        double start = seconds();
        ours[kind](workers);
        best_ours = std::min(best_ours, seconds() - start);
        start = seconds();
        mixed[kind](workers);
        best_mixed = std::min(best_mixed, seconds() - start);
        start = seconds();
        theirs.run(kind);
        best_theirs = std::min(best_theirs, seconds() - start);
      }
      std::printf(
          "{\"layer\": \"%ldx%ld %ld->%ld /%ld, %ldx%ld\", \"kind\": \"%s\", \"threads\": %d, \"gflops\": %.1f, \"mixed_gflops\": %.1f, "
          "\"onednn_gflops\": %.1f, \"ratio\": %.3f, \"mixed_ratio\": %.3f}\n",
          l.taps, l.taps, l.channels, l.outputs, l.stride, l.side, l.side, kKinds[kind], threads, one / best_ours, one / best_mixed,
          one / best_theirs, best_theirs / best_ours, best_ours / best_mixed);
      std::fflush(stdout);
      flops += l.count * one;
      ours_all += l.count * best_ours;
      mixed_all += l.count * best_mixed;
      onednn_all += l.count * best_theirs;
    }
  }
  std::printf(
      "{\"layer\": \"step\", \"gflop\": %.1f, \"threads\": %d, \"gflops\": %.1f, \"mixed_gflops\": %.1f, \"onednn_gflops\": %.1f, "
      "\"ratio\": %.3f, \"mixed_ratio\": %.3f, \"right\": %s}\n",
      flops, threads, flops / ours_all, flops / mixed_all, flops / onednn_all, onednn_all / ours_all, ours_all / mixed_all,
      right ? "true" : "false");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) { return ort_train::run(argc > 1 ? std::atoi(argv[1]) : 2, argc > 2 ? std::atof(argv[2]) : 0.5); }
