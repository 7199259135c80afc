// The convolutions of a training step of a model (those of peers.py): ours, in float32 and in mixed precision (bfloat16, but for float32
// weights that are rounded as they are read, and their gradients), against oneDNN's own threads, which have float32 or bfloat16 alone, in
// turns in the same run.
//
//   OMP_WAIT_POLICY=passive bench-conv_bench [model] [threads] [seconds a shape] [part of a layer's name]
//
// Without OMP_WAIT_POLICY oneDNN's idle threads take time from ours.
//
// Prints one JSON line a shape and kind (forward, dx, dw; GFLOP/s, best of the run; ratios are oneDNN's time to ours; efficiency is the
// share of the rate of large float32 products that plans count with) and one for the whole step; checks each forward result against
// oneDNN's, which has the layouts that it wants, as if its neighbours had them too, and each in mixed precision against float32. A
// transposed convolution is listed as the one whose dx it is.

#include <fmt/format.h>
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
#include <optional>
#include <string>
#include <vector>

#include "exec/kernel.h"
#include "graph/half.h"

namespace ort_train {
namespace {

struct Layer {
  int64_t count;  // in the network
  int64_t channels, outputs, side, taps, stride, groups = 1;

  int64_t pad() const { return taps % 2 == 1 ? taps / 2 : 0; }
  int64_t out() const { return (side + 2 * pad() - taps) / stride + 1; }
  std::string name() const {
    return fmt::format("{} of {}x{} {}->{}{} /{}, {}", count, taps, taps, channels, outputs, groups > 1 ? " in groups" : "", stride, side);
  }
};
struct Model {
  int64_t batch;
  std::vector<Layer> layers;
};
const std::map<std::string, Model> kModels = {
    {"resnet18",
     {8,
      {{1, 3, 64, 224, 7, 2},
       {4, 64, 64, 56, 3, 1},
       {1, 64, 128, 56, 3, 2},
       {1, 64, 128, 56, 1, 2},
       {3, 128, 128, 28, 3, 1},
       {1, 128, 256, 28, 3, 2},
       {1, 128, 256, 28, 1, 2},
       {3, 256, 256, 14, 3, 1},
       {1, 256, 512, 14, 3, 2},
       {1, 256, 512, 14, 1, 2},
       {3, 512, 512, 7, 3, 1}}}},
    {"resnet50",
     {8, {{1, 3, 64, 224, 7, 2},     {1, 64, 64, 56, 1, 1},   {3, 64, 64, 56, 3, 1},    {4, 64, 256, 56, 1, 1},   {2, 256, 64, 56, 1, 1},
          {1, 256, 128, 56, 1, 1},   {1, 128, 128, 56, 3, 2}, {4, 128, 512, 28, 1, 1},  {1, 256, 512, 56, 1, 2},  {3, 512, 128, 28, 1, 1},
          {3, 128, 128, 28, 3, 1},   {1, 512, 256, 28, 1, 1}, {1, 256, 256, 28, 3, 2},  {6, 256, 1024, 14, 1, 1}, {1, 512, 1024, 28, 1, 2},
          {5, 1024, 256, 14, 1, 1},  {5, 256, 256, 14, 3, 1}, {1, 1024, 512, 14, 1, 1}, {1, 512, 512, 14, 3, 2},  {3, 512, 2048, 7, 1, 1},
          {1, 1024, 2048, 14, 1, 2}, {2, 2048, 512, 7, 1, 1}, {2, 512, 512, 7, 3, 1}}}},
    {"mobilenet",
     {8, {{1, 3, 16, 224, 3, 2},        {1, 16, 16, 112, 3, 1, 16},   {1, 16, 16, 112, 1, 1},       {1, 16, 64, 112, 1, 1},
          {1, 64, 64, 112, 3, 2, 64},   {1, 64, 24, 56, 1, 1},        {2, 24, 72, 56, 1, 1},        {1, 72, 72, 56, 3, 1, 72},
          {1, 72, 24, 56, 1, 1},        {1, 72, 72, 56, 5, 2, 72},    {1, 72, 40, 28, 1, 1},        {2, 40, 120, 28, 1, 1},
          {2, 120, 120, 28, 5, 1, 120}, {2, 120, 40, 28, 1, 1},       {1, 40, 240, 28, 1, 1},       {1, 240, 240, 28, 3, 2, 240},
          {1, 240, 80, 14, 1, 1},       {1, 80, 200, 14, 1, 1},       {1, 200, 200, 14, 3, 1, 200}, {1, 200, 80, 14, 1, 1},
          {2, 80, 184, 14, 1, 1},       {2, 184, 184, 14, 3, 1, 184}, {2, 184, 80, 14, 1, 1},       {1, 80, 480, 14, 1, 1},
          {1, 480, 480, 14, 3, 1, 480}, {1, 480, 112, 14, 1, 1},      {2, 112, 672, 14, 1, 1},      {1, 672, 672, 14, 3, 1, 672},
          {1, 672, 112, 14, 1, 1},      {1, 672, 672, 14, 5, 2, 672}, {1, 672, 160, 7, 1, 1},       {3, 160, 960, 7, 1, 1},
          {2, 960, 960, 7, 5, 1, 960},  {2, 960, 160, 7, 1, 1}}}},
    {"convnext",
     {8,
      {{1, 3, 96, 224, 4, 4},
       {3, 96, 96, 56, 7, 1, 96},
       {1, 96, 192, 56, 2, 2},
       {3, 192, 192, 28, 7, 1, 192},
       {1, 192, 384, 28, 2, 2},
       {9, 384, 384, 14, 7, 1, 384},
       {1, 384, 768, 14, 2, 2},
       {3, 768, 768, 7, 7, 1, 768}}}},
    {"unet",
     {4,
      {{1, 3, 32, 256, 3, 1},
       {2, 32, 32, 256, 3, 1},
       {1, 32, 64, 128, 3, 1},
       {2, 64, 64, 128, 3, 1},
       {1, 64, 128, 64, 3, 1},
       {2, 128, 128, 64, 3, 1},
       {1, 128, 256, 32, 3, 1},
       {2, 256, 256, 32, 3, 1},
       {1, 256, 512, 16, 3, 1},
       {1, 512, 512, 16, 3, 1},
       {1, 256, 512, 32, 2, 2},
       {1, 512, 256, 32, 3, 1},
       {1, 128, 256, 64, 2, 2},
       {1, 256, 128, 64, 3, 1},
       {1, 64, 128, 128, 2, 2},
       {1, 128, 64, 128, 3, 1},
       {1, 32, 64, 256, 2, 2},
       {1, 64, 32, 256, 3, 1},
       {1, 32, 21, 256, 1, 1}}}},
};

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
  double efficiency;  // that plans count with
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
    efficiency = kernel.efficiency(spec, threads);
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
  Theirs(const Layer& l, int64_t batch, dnnl::memory::data_type type) {
    using namespace dnnl;
    const auto any = [&](memory::dims dims) { return memory::desc(std::move(dims), type, memory::format_tag::any); };
    const memory::desc x = any({batch, l.channels, l.side, l.side}), y = any({batch, l.outputs, l.out(), l.out()});
    memory::dims of_w{l.outputs / l.groups, l.channels / l.groups, l.taps, l.taps};
    if (l.groups > 1) of_w.insert(of_w.begin(), l.groups);
    const memory::desc w = any(of_w);
    const memory::dims strides{l.stride, l.stride}, pads{l.pad(), l.pad()};
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
      return memory({dims, memory::data_type::f32, dims.size() == 5 ? memory::format_tag::goihw : memory::format_tag::nchw}, engine_, data);
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

int run(const Model& model, int threads, double limit, const std::string& wanted) {
  constexpr double kNone = 1e9;  // seconds
  constexpr const char* kKinds[] = {"forward", "dx", "dw"};
  const tbb::global_control control(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(threads));
  Workers workers(threads);
  omp_set_num_threads(threads);
  double flops = 0;
  std::array<double, 2> planned{};  // operations at the rate of large products that take as long
  std::array<double, 4> all{};      // seconds of a step: ours, ours mixed, oneDNN's, oneDNN's in bfloat16
  const auto known = [&](double x, double time) { return time < kNone ? fmt::format("{:.3f}", x) : std::string("null"); };
  const auto print = [&](const std::string& layer, const char* kind, double operations, const std::array<double, 4>& times,
                         const std::array<double, 2>& efficiency) {
    std::printf(
        "{\"layer\": \"%s\", \"kind\": \"%s\", \"threads\": %d, \"ms\": %.2f, \"mixed_ms\": %.2f, \"gflops\": %.1f, \"mixed_gflops\": "
        "%.1f, "
        "\"onednn_gflops\": %.1f, \"onednn_bfloat16_gflops\": %s, \"ratio\": %.3f, \"mixed_ratio\": %s, \"efficiency\": %.3f, "
        "\"mixed_efficiency\": %.3f}\n",
        layer.c_str(), kind, threads, 1e3 * times[0], 1e3 * times[1], operations / times[0], operations / times[1], operations / times[2],
        known(operations / times[3], times[3]).c_str(), times[2] / times[0], known(times[3] / times[1], times[3]).c_str(), efficiency[0],
        efficiency[1]);
    std::fflush(stdout);
  };
  bool right = true;
  for (const Layer& l : model.layers) {
    if (l.name().find(wanted) == std::string::npos) continue;
    const Shape x{model.batch, l.channels, l.side, l.side}, w{l.outputs, l.channels / l.groups, l.taps, l.taps},
        y{model.batch, l.outputs, l.out(), l.out()};
    const Attributes plain{
        {"kernel_shape", Shape{l.taps, l.taps}}, {"strides", Shape{l.stride, l.stride}}, {"pads", Shape(4, l.pad())}, {"group", l.groups}};
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
    Theirs theirs(l, model.batch, dnnl::memory::data_type::f32);
    std::optional<Theirs> theirs_mixed;
    try {
      theirs_mixed.emplace(l, model.batch, dnnl::memory::data_type::bf16);
    } catch (const dnnl::error&) {  // without AVX-512 it has none
    }
    ours[0](workers);
    right &= ours[0].is_near(theirs.forward(ours[0].in[0], ours[0].in[1]));
    const double one = 2e-9 * static_cast<double>(element_count(y)) * static_cast<double>(l.channels / l.groups * l.taps * l.taps);
    for (size_t kind = 0; kind < 3; ++kind) {
      if (kind == 1 && l.channels == 3) continue;  // nobody wants an image's gradient
      ours[kind](workers);
      mixed[kind](workers);
      right &= mixed[kind].is_near(ours[kind].out);
      std::array<double, 4> best;
      best.fill(kNone);
      const auto measure = [&](size_t i, const auto& body) {
        const double start = seconds();
        body();
        best[i] = std::min(best[i], seconds() - start);
      };
      const double until = seconds() + limit;
      for (int i = 0; i < 3 || seconds() < until; ++i) {
        measure(0, [&] { ours[kind](workers); });
        measure(1, [&] { mixed[kind](workers); });
        measure(2, [&] { theirs.run(kind); });
        if (theirs_mixed) measure(3, [&] { theirs_mixed->run(kind); });
      }
      print(l.name(), kKinds[kind], one, best, {ours[kind].efficiency, mixed[kind].efficiency});
      const double operations = static_cast<double>(l.count) * one;
      planned[0] += operations / ours[kind].efficiency;
      planned[1] += operations / mixed[kind].efficiency;
      flops += operations;
      for (size_t i = 0; i < 4; ++i) all[i] += static_cast<double>(l.count) * best[i];
    }
  }
  print("step", "all", flops, all, {flops / planned[0], flops / planned[1]});
  if (!right) std::puts("a result is wrong");
  return right ? 0 : 1;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) {
  const auto model = ort_train::kModels.find(argc > 1 ? argv[1] : "resnet18");
  if (model == ort_train::kModels.end()) return std::puts("models: resnet18, resnet50, mobilenet, convnext, unet"), 2;
  return ort_train::run(model->second, argc > 2 ? std::atoi(argv[2]) : 2, argc > 3 ? std::atof(argv[3]) : 0.2, argc > 4 ? argv[4] : "");
}
