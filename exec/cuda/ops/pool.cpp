// MaxPool, AveragePool and their gradients on CUDA. What they mean is told in exec/ops/pool.cpp.
//
// A thread has an element of y, or of dx, and takes the taps, or the windows that read its element, in the processor's order. 16 bits are
// compared and added as float32 and rounded once. Where windows are large, which of its elements is the largest is found out once for each
// and kept in the workspace.

#include "exec/ops/pool.h"

#include <limits>

#include "exec/block.h"
#include "exec/cuda/windows.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace pool;

// --- MaxPool --------------------------------------------------------------------------------------------------------------------------

template <typename T> struct LargestOfWindow {
  Windows windows;
  Planes places;
  const T* x;
  T* y;

  HOST_DEVICE void operator()(int64_t i) const {
    const Planes::Place at = places.at(i);
    const auto& [h, w] = windows;
    const T* const plane = x + at.plane * windows.in_size();
    Compute<T> best = -std::numeric_limits<Compute<T>>::infinity();
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      const int64_t row = h.at(at.row, kh);
      if (row < 0 || row >= h.in) continue;
      for (int64_t kw = 0; kw < w.kernel; ++kw) {
        const int64_t column = w.at(at.column, kw);
        if (column < 0 || column >= w.in) continue;
        const Compute<T> value = load(plane[row * w.in + column]);
        best = exceeds(value, best) ? value : best;
      }
    }
    y[i] = store<T>(best);
  }
};

KernelRun max_forward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const Windows windows = windows_of(spec.attributes, spec.inputs[0].shape);
    return [windows, planes = planes_of(spec.inputs[0].shape)](const KernelArgs& args) {
      const LargestOfWindow<T> largest{windows, planes_of_y(windows, planes), args.in<T>(0), args.out<T>(0)};
      launch_elements(largest, planes * windows.out_size(), args);
    };
  });
}

// Where each window's largest element is in its plane.
template <typename T> struct FindLargest {
  Windows windows;
  Planes places;
  const T* x;
  int32_t* found;

  HOST_DEVICE void operator()(int64_t i) const {
    const Planes::Place at = places.at(i);
    found[i] = static_cast<int32_t>(largest(windows, x + at.plane * windows.in_size(), at.row, at.column));
  }
};

// dx of an element: dy of the windows of which it is the largest, upwards.
template <typename T, bool kept> struct MaxGradient {
  Windows windows;
  Planes places;
  const T *dy, *x;
  const int32_t* found;  // where they are kept; else each window is looked through
  T* dx;

  HOST_DEVICE void operator()(int64_t i) const {
    const Planes::Place at = places.at(i);
    const auto& [h, w] = windows;
    const int64_t element = at.row * w.in + at.column, first = at.plane * windows.out_size();
    Compute<T> sum = 0;
    for (int64_t kh = h.kernel - 1; kh >= 0; --kh) {  // its last tap is the first window's
      const int64_t oh = window_at(h, at.row, kh);
      if (oh < 0) continue;
      for (int64_t kw = w.kernel - 1; kw >= 0; --kw) {
        const int64_t ow = window_at(w, at.column, kw);
        if (ow < 0) continue;
        const int64_t window = first + oh * w.out + ow;
        const int64_t taken = kept ? found[window] : largest(windows, x + at.plane * windows.in_size(), oh, ow);
        if (taken == element) sum += load(dy[window]);
      }
    }
    dx[i] = store<T>(sum);
  }
};

// Whether a window has so many elements that it isn't looked through again and again.
bool keeps_largest(const Windows& windows) {
  constexpr int64_t kFew = 16;
  return windows.taps() > kFew && windows.in_size() <= INT32_MAX;
}
int64_t found_bytes(const KernelSpec& spec) {
  const Windows windows = windows_of(spec.attributes, spec.inputs[1].shape);
  return keeps_largest(windows) ? planes_of(spec.inputs[1].shape) * windows.out_size() * int64_t{sizeof(int32_t)} : 0;
}

KernelRun max_backward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename T>() -> KernelRun {
    const Windows windows = windows_of(spec.attributes, spec.inputs[1].shape);
    return [windows, planes = planes_of(spec.inputs[1].shape)](const KernelArgs& args) {
      const T *const dy = args.in<T>(0), *const x = args.in<T>(1);
      const Planes places = planes_of_x(windows, planes);
      if (!keeps_largest(windows))
        return launch_elements(MaxGradient<T, false>{windows, places, dy, x, nullptr, args.out<T>(0)}, planes * windows.in_size(), args);
      auto* const found = reinterpret_cast<int32_t*>(args.workspace);
      launch_elements(FindLargest<T>{windows, planes_of_y(windows, planes), x, found}, planes * windows.out_size(), args);
      launch_elements(MaxGradient<T, true>{windows, places, dy, x, found, args.out<T>(0)}, planes * windows.in_size(), args);
    };
  });
}

// --- AveragePool ----------------------------------------------------------------------------------------------------------------------

template <typename T> struct MeanOfWindow {
  Windows windows;
  Planes places;
  bool with_padding;
  const T* x;
  T* y;

  HOST_DEVICE void operator()(int64_t i) const {
    const Planes::Place at = places.at(i);
    const auto& [h, w] = windows;
    const T* const plane = x + at.plane * windows.in_size();
    Compute<T> sum = 0;
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      const int64_t row = h.at(at.row, kh);
      if (row < 0 || row >= h.in) continue;
      for (int64_t kw = 0; kw < w.kernel; ++kw) {
        const int64_t column = w.at(at.column, kw);
        if (column >= 0 && column < w.in) sum += load(plane[row * w.in + column]);
      }
    }
    y[i] = store<T>(sum / static_cast<Compute<T>>(counted(h, at.row, with_padding) * counted(w, at.column, with_padding)));
  }
};

template <typename T> struct MeanGradient {
  Windows windows;
  Planes places;
  bool with_padding;
  const T* dy;
  T* dx;

  HOST_DEVICE void operator()(int64_t i) const {
    const Planes::Place at = places.at(i);
    const auto& [h, w] = windows;
    const T* const plane = dy + at.plane * windows.out_size();
    Compute<T> sum = 0;
    for (int64_t kh = 0; kh < h.kernel; ++kh) {
      const int64_t oh = window_at(h, at.row, kh);
      if (oh < 0) continue;
      const int64_t rows = counted(h, oh, with_padding);
      for (int64_t kw = 0; kw < w.kernel; ++kw) {
        const int64_t ow = window_at(w, at.column, kw);
        if (ow < 0) continue;
        sum += load(plane[oh * w.out + ow]) / static_cast<Compute<T>>(rows * counted(w, ow, with_padding));
      }
    }
    dx[i] = store<T>(sum);
  }
};

bool counts_padding(const KernelSpec& spec) { return spec.attributes.get("count_include_pad", 0) != 0; }

KernelRun mean_forward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const Windows windows = windows_of(spec.attributes, spec.inputs[0].shape);
    return [windows, planes = planes_of(spec.inputs[0].shape), padding = counts_padding(spec)](const KernelArgs& args) {
      const MeanOfWindow<T> mean{windows, planes_of_y(windows, planes), padding, args.in<T>(0), args.out<T>(0)};
      launch_elements(mean, planes * windows.out_size(), args);
    };
  });
}

KernelRun mean_backward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const Windows windows = windows_of(spec.attributes, spec.outputs[0].shape);
    return [windows, planes = planes_of(spec.outputs[0].shape), padding = counts_padding(spec)](const KernelArgs& args) {
      const MeanGradient<T> gradient{windows, planes_of_x(windows, planes), padding, args.in<T>(0), args.out<T>(0)};
      launch_elements(gradient, planes * windows.in_size(), args);
    };
  });
}

}  // namespace

constexpr Kernel kMaxPoolKernel{
    .types = kFloating,
    .cost = [](const KernelSpec& spec) { return cost_of<4>(spec, spec.inputs[0].shape); },
    .prepare = max_forward,
};
constexpr Kernel kMaxPoolGradKernel{
    .types = kFloating,
    .cost = [](const KernelSpec& spec) { return cost_of<12>(spec, spec.inputs[1].shape); },
    .workspace = [](const KernelSpec& spec) { return Workspace{.shared = found_bytes(spec)}; },
    .prepare = max_backward,
};
constexpr Kernel kAveragePoolKernel{
    .types = kFloating,
    .cost = [](const KernelSpec& spec) { return cost_of<4>(spec, spec.inputs[0].shape); },
    .prepare = mean_forward,
};
constexpr Kernel kAveragePoolGradKernel{
    .types = kFloating,
    .cost = [](const KernelSpec& spec) { return cost_of<6>(spec, spec.outputs[0].shape); },
    .prepare = mean_backward,
};

ORT_TRAIN_OPS_END
