// Windows that slide over the axes behind batch and channels: what Conv and the pools share.
//
// One or two such axes; one is taken as two of which the first has one element. Attributes are ONNX's with nothing left open: kernel_shape,
// strides, pads (the begins, then the ends), dilations, ceil_mode; auto_pad is resolved at import.

#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "exec/kernel.h"
#include "graph/error.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

struct WindowAxis {
  int64_t in = 1, kernel = 1, stride = 1, begin = 0, end = 0, dilation = 1, out = 1;

  // The element that tap k of window o reads; outside [0, in) is padding.
  HOST_DEVICE int64_t at(int64_t o, int64_t k) const { return o * stride - begin + k * dilation; }
  // Whether tap k of a window reads element i, if there are enough windows; and of which one. Outside [0, out) is none.
  HOST_DEVICE bool reads(int64_t i, int64_t k) const { return (i + begin - k * dilation) % stride == 0; }
  HOST_DEVICE int64_t window(int64_t i, int64_t k) const { return (i + begin - k * dilation) / stride; }
  // The windows [first, last) whose tap k reads no padding.
  HOST_DEVICE int64_t first(int64_t k) const {
    const int64_t before = begin - k * dilation;
    return std::clamp<int64_t>(before > 0 ? (before + stride - 1) / stride : 0, 0, out);
  }
  HOST_DEVICE int64_t last(int64_t k) const {
    const int64_t room = in + begin - k * dilation;
    return std::clamp<int64_t>(room > 0 ? (room + stride - 1) / stride : 0, 0, out);
  }
};

struct Windows {
  WindowAxis h, w;

  HOST_DEVICE int64_t taps() const { return h.kernel * w.kernel; }
  HOST_DEVICE int64_t in_size() const { return h.in * w.in; }
  HOST_DEVICE int64_t out_size() const { return h.out * w.out; }
  double work() const { return static_cast<double>(out_size()) * static_cast<double>(h.kernel) * static_cast<double>(w.kernel); }
  // Each window is one element.
  bool plain() const {
    const auto is_plain = [](const WindowAxis& a) { return a.kernel == 1 && a.stride == 1 && a.begin == 0 && a.end == 0; };
    return is_plain(h) && is_plain(w);
  }
};

// A list of `size` numbers of `least` and more, which is also what stands for an absent one; throws Error(unsupported).
inline std::vector<int64_t> window_list(const Attributes& attributes, const char* name, int64_t least, size_t size) {
  std::vector<int64_t> values = attributes.get(name, std::vector<int64_t>(size, least));
  constexpr int64_t kMost = int64_t{1} << 20;  // more is a mistake, and sums would overflow
  if (values.size() != size || std::any_of(values.begin(), values.end(), [&](int64_t v) { return v < least || v > kMost; }))
    throw error(ErrorCode::unsupported, "its {} are {}, but must be {} numbers of {} and more", name, to_string(values), size, least);
  return values;
}

// Throws Error(unsupported) for attributes that don't fit the shape (batch, channels, axes...).
inline Windows windows_of(const Attributes& attributes, const Shape& x) {
  const size_t axes = x.size() < 2 ? 0 : x.size() - 2;
  if (axes != 1 && axes != 2)
    throw error(ErrorCode::unsupported, "it slides over {} axes of {}; over one to three it is supported", axes, to_string(x));
  const auto list = [&](const char* name, int64_t least, size_t size) { return window_list(attributes, name, least, size); };
  const std::vector<int64_t> kernel = list("kernel_shape", 1, axes), strides = list("strides", 1, axes), pads = list("pads", 0, 2 * axes),
                             dilations = list("dilations", 1, axes);
  const bool ceil = attributes.get("ceil_mode", 0) != 0;
  Windows windows;
  for (size_t i = 0; i < axes; ++i) {
    WindowAxis axis{
        .in = x[2 + i], .kernel = kernel[i], .stride = strides[i], .begin = pads[i], .end = pads[axes + i], .dilation = dilations[i]};
    const int64_t room = axis.in + axis.begin + axis.end - (axis.dilation * (axis.kernel - 1) + 1);
    if (ceil ? room <= -axis.stride : room < 0)  // a window that is cut short at the end is one, too
      throw error(ErrorCode::unsupported, "its window of {} elements in steps of {} is larger than the padded axis {} of {}", axis.kernel,
                  axis.dilation, 2 + i, to_string(x));
    axis.out = (ceil ? room + axis.stride - 1 : room) / axis.stride + 1;
    if (ceil && (axis.out - 1) * axis.stride >= axis.in + axis.begin) --axis.out;  // a window in the padding behind the end
    (i + 1 == axes ? windows.w : windows.h) = axis;
  }
  return windows;
}

// The shape that windows make of x, with so many channels.
inline Shape windowed_shape(const Windows& windows, const Shape& x, int64_t channels) {
  return x.size() == 3 ? Shape{x[0], channels, windows.w.out} : Shape{x[0], channels, windows.h.out, windows.w.out};
}

inline constexpr size_t kNoAxis = 3;

// Of attributes over three axes those of some; along kNoAxis each window is one element.
inline Attributes of_axes(const Attributes& attributes, const std::vector<size_t>& axes) {
  Attributes result = attributes;
  for (const char* name : {"kernel_shape", "strides", "dilations", "pads"}) {
    const std::vector<int64_t> all = attributes.get(name, std::vector<int64_t>{});
    std::vector<int64_t> values;
    for (size_t half = 0; half * 3 < all.size(); ++half) {
      for (const size_t axis : axes) values.push_back(axis != kNoAxis ? all.at(half * 3 + axis) : std::string_view(name) == "pads" ? 0 : 1);
    }
    result.set(name, values);
  }
  return result;
}

// The attributes of an ONNX node with nothing left open.
inline Attributes window_attributes(Lowering& l, const Shape& x, const std::vector<int64_t>& kernel) {
  const size_t axes = kernel.size();
  if (x.size() != axes + 2) l.fail(fmt::format("its window has {} axes, its input is {}", axes, to_string(x)));
  const Attributes& given = l.node.attributes;
  Attributes result{{"kernel_shape", kernel},
                    {"strides", given.get("strides", std::vector<int64_t>(axes, 1))},
                    {"dilations", given.get("dilations", std::vector<int64_t>(axes, 1))},
                    {"pads", given.get("pads", std::vector<int64_t>(2 * axes, 0))}};
  const std::string automatic = given.get("auto_pad", "NOTSET");
  const bool is_given = automatic == "NOTSET" || automatic.empty();
  for (const char* name : {"kernel_shape", "strides", "dilations"}) window_list(result, name, 1, axes);
  if (is_given) window_list(result, "pads", 0, 2 * axes);
  if (is_given) return result;
  std::vector<int64_t> pads(2 * axes, 0);
  result.set("pads", pads);
  if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
    const auto strides = result.get("strides", std::vector<int64_t>{}), dilations = result.get("dilations", std::vector<int64_t>{});
    for (size_t i = 0; i < axes; ++i) {
      const int64_t windows = (x[2 + i] + strides[i] - 1) / strides[i];
      const int64_t all = std::max<int64_t>(0, (windows - 1) * strides[i] + dilations[i] * (kernel[i] - 1) + 1 - x[2 + i]);
      const int64_t begin = automatic == "SAME_UPPER" ? all / 2 : all - all / 2;
      pads[i] = begin;
      pads[axes + i] = all - begin;
    }
    result.set("pads", pads);
  } else if (automatic != "VALID") {
    l.fail(fmt::format("its auto_pad is '{}', which the standard does not know", automatic));
  }
  return result;
}

ORT_TRAIN_OPS_END
