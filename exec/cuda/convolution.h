// What convolutions and their gradients share on CUDA. Each element of a result is a sum of chains of fused multiply-adds (of products and
// sums, in double), which are those of the processor's products (exec/gemm.h): where they begin and end follows from the tiles of
// exec/convolution.h.
//
// Large products are made in tiles (exec/cuda/gemm.h), whose operands gather their columns as they are loaded. Where a group has few
// channels, and in double, a thread has an element and reads what it needs.

#pragma once

#include <type_traits>

#include "exec/convolution.h"
#include "exec/cuda/copy.h"
#include "exec/cuda/gemm.h"
#include "exec/cuda/windows.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// A tensor of T, or of the elements that stand for float32.
template <typename T> struct OperandTensor {
  const std::byte* data = nullptr;
  Element element = Element::own;

  HOST_DEVICE T at(int64_t i) const {
    if constexpr (std::is_same_v<T, float>) {
      switch (element) {
        case Element::float16:
          return to_float(reinterpret_cast<const float16*>(data)[i]);
        case Element::bfloat16:
          return to_float(reinterpret_cast<const bfloat16*>(data)[i]);
        case Element::to_float16:
          return to_float(to_float16(reinterpret_cast<const float*>(data)[i]));
        case Element::to_bfloat16:
          return to_float(to_bfloat16(reinterpret_cast<const float*>(data)[i]));
        default:
          break;
      }
    }
    return reinterpret_cast<const T*>(data)[i];
  }
};
template <typename T> struct ResultTensor {
  std::byte* data = nullptr;
  Element element = Element::own;

  HOST_DEVICE void put(int64_t i, T value) const {
    if constexpr (std::is_same_v<T, float>)
      tiled::store_element(data, element, i, value);
    else
      reinterpret_cast<T*>(data)[i] = value;
  }
};

HOST_DEVICE inline float add_product(float a, float b, float sum) { return math::fma(a, b, sum); }
HOST_DEVICE inline double add_product(double a, double b, double sum) { return sum + a * b; }

// A sum of chains, or what it is added to, if there is one.
template <typename T> struct ChainSum {
  T value = 0;
  bool begun = false;

  HOST_DEVICE void add(T chain) {
    value = begun ? chain + value : chain;
    begun = true;
  }
};

HOST_DEVICE inline int64_t lesser(int64_t a, int64_t b) { return a < b ? a : b; }

inline const std::byte* optional_input(const KernelArgs& args, size_t i) {
  return args.inputs.size() > i ? args.in<std::byte>(i) : nullptr;
}

// --- tiles ----------------------------------------------------------------------------------------------------------------------------

// Whether products of so many rows and columns are made in tiles: fewer would leave most of each empty. What is counted has 31 bits there.
inline bool fills_tiles(const Layout& l, int64_t rows, int64_t columns) {
  constexpr int64_t kFew = 8, kMost = int64_t{1} << 30;
  const bool is_small = l.windows.in_size() < kMost && l.batch * l.windows.out_size() < kMost && l.groups * l.depth() < kMost;
  return rows >= kFew && columns >= kFew && is_small;
}

// An element's bits.
HOST_DEVICE inline uint32_t bits_at(const std::byte* data, Element element, int64_t i) {
  return is_half(element) ? reinterpret_cast<const uint16_t*>(data)[i] : reinterpret_cast<const uint32_t*>(data)[i];
}

// Those of what a tap of a window reads of a channel, zero in the padding. y, x: where the first tap reads.
HOST_DEVICE inline uint32_t tap_bits(const std::byte* data, Element element, int64_t channel, const WindowAxis& h, const WindowAxis& w,
                                     int y, int x, const Digit& tap) {
  const int row = y + static_cast<int>(tap.above) * static_cast<int>(h.dilation);
  const int column = x + static_cast<int>(tap.digit) * static_cast<int>(w.dilation);
  const bool inside =
      static_cast<uint32_t>(row) < static_cast<uint32_t>(h.in) && static_cast<uint32_t>(column) < static_cast<uint32_t>(w.in);
  return inside ? bits_at(data, element, channel + row * static_cast<int>(w.in) + column) : 0;
}

// Numbers of a slice as a thread brings them: `together` along n, each thread one n (along_depth: one k) and others of the rest.
template <class Slice, bool along_depth> struct SliceParts {
  static constexpr unsigned kLine = along_depth ? Slice::depth : Slice::side, kLines = Slice::threads / kLine;
  HOST_DEVICE static int n(unsigned thread, unsigned i) {
    return static_cast<int>(along_depth ? thread / kLine + i * kLines : thread % kLine);
  }
  HOST_DEVICE static int k(unsigned thread, unsigned i) {
    return static_cast<int>(along_depth ? thread % kLine : thread / kLine + i * kLines);
  }
  HOST_DEVICE static void store(Element element, const typename Slice::Words& words, unsigned thread, typename Slice::Row* to) {
    tiled::with_element(element, [&](auto e) {
      ORT_TRAIN_UNROLL
      for (int i = 0; i < Slice::each; ++i) to[k(thread, i)].of[n(thread, i)] = tiled::value_of<decltype(e)::value>(words.of[i]);
    });
  }
};

// Planes of all samples side by side, as the columns of a matrix that has channels as rows: where its elements are.
struct PlaneColumns {
  Size plane;           // elements, or windows, of a sample
  int64_t sample = 0;   // elements from one sample to the next
  int64_t channel = 0;  // and from one row to the next

  HOST_DEVICE int64_t at(int64_t column) const {  // in row 0
    const Size::Place place = plane.split(column, true);
    return place.above * sample + place.place;
  }
};

// Such a matrix as an operand B.
struct StoredPlanes {
  const std::byte* data;
  Element element;
  PlaneColumns columns;
  int64_t count;  // of columns

  struct Place {
    const std::byte* at;
    bool inside;
  };
  template <class Slice> HOST_DEVICE Place place(int64_t n, int64_t k, unsigned thread) const {
    using Parts = SliceParts<Slice, false>;
    const int64_t column = n + Parts::n(thread, 0);
    if (column >= count) return {data, false};
    return {data + (columns.at(column) + (k + Parts::k(thread, 0)) * columns.channel) * bytes_each<float>(element), true};
  }
  HOST_DEVICE void advance(Place& place, int64_t depth) const { place.at += depth * columns.channel * bytes_each<float>(element); }
  template <class Slice> HOST_DEVICE void load(const Place& place, int depth, unsigned thread, typename Slice::Words& words) const {
    using Parts = SliceParts<Slice, false>;
    ORT_TRAIN_UNROLL
    for (int i = 0; i < Slice::each; ++i)
      words.of[i] = place.inside && Parts::k(thread, i) < depth ? bits_at(place.at, element, Parts::k(0, i) * columns.channel) : 0;
  }
  template <class Slice> HOST_DEVICE void store(const typename Slice::Words& words, unsigned thread, typename Slice::Row* to) const {
    SliceParts<Slice, false>::store(element, words, thread, to);
  }
};

// And as a result, which is added to a number for each row, or to another such matrix.
struct PlaneResult {
  std::byte* data = nullptr;
  Element element = Element::own;
  PlaneColumns columns;
  bool by_fours = false;  // no four columns are of two samples, and all are aligned
  OperandTensor<float> bias;
  int64_t first_bias = 0;
  const float* base = nullptr;
  PlaneColumns base_columns;

  HOST_DEVICE bool has_start() const { return bias.data || base; }
  HOST_DEVICE tiled::Quad start(int64_t i, int64_t j, int n) const {
    tiled::Quad x = {};
    const float same = bias.data ? bias.at(first_bias + i) : 0;
    ORT_TRAIN_UNROLL
    for (int y = 0; y < 4; ++y) {
      if (y < n) x.v[y] = base ? base[i * base_columns.channel + base_columns.at(j + y)] : same;
    }
    return x;
  }
  HOST_DEVICE void put(int64_t i, int64_t j, int n, const tiled::Quad& x) const {
    const int64_t row = i * columns.channel;
    if (by_fours) return tiled::Result{.data = data, .element = element, .by_fours = true}.put(0, row + columns.at(j), n, x);
    ORT_TRAIN_UNROLL
    for (int y = 0; y < 4; ++y) {
      if (y < n) tiled::store_element(data, element, row + columns.at(j + y), x.v[y]);
    }
  }
  // That of an item that begins so many elements later.
  HOST_DEVICE PlaneResult from(int64_t elements, int64_t rows, int64_t base_elements = 0) const {
    PlaneResult one = *this;
    one.data += elements * bytes_each<float>(element);
    one.first_bias += rows;
    if (base) one.base += base_elements;
    return one;
  }
};
// Whether four columns can be written at once.
inline bool are_fours(const void* data, const PlaneColumns& columns, Element element) {
  return columns.plane.size % 4 == 0 && columns.sample % 4 == 0 && tiled::are_fours(data, columns.channel, element);
}

}  // namespace convolution
ORT_TRAIN_OPS_END
