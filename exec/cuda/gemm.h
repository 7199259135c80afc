// Products of float32 on CUDA devices: C = start + alpha * A B, with the bits of exec/gemm.h. What MatMul is made of, and what else can say
// where the elements of A and B are and where those of C go.
//
// A block of threads makes one tile of C, over the whole depth. Each thread keeps a small block of the tile in registers; what it
// multiplies comes from shared memory, through which A and B go in slices of the depth: while one slice is multiplied, the elements of the
// next one are on their way from memory to registers.
//
// The order of the sums is that of exec/gemm.h: within a block of the depth (exec/depth_block.h) one chain of fused multiply-adds upwards
// from zero; the first block's sum s makes alpha * s, or start + alpha * s as one fused multiply-add; each later one is added in the same
// way. Blocks of the depth are independent until then, so several can be summed at once: each by a team of the block's threads, which then
// add in turn. Tiles and teams are chosen by the shape; no bit depends on them.
//
//   Products p                   what launch_products() takes
//     p.shape                    how many products there are, and their sizes
//     p.a(item), p.b(item)       the operands of one of them (Stored, or whatever has its functions)
//     p.c(item)                  its result (Result, or whatever has its functions)

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "exec/block.h"
#include "exec/cuda/unroll.h"
#include "exec/element.h"
#include "exec/math.h"

#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif

ORT_TRAIN_OPS_BEGIN
namespace tiled {

// `items` products of rows x depth times depth x columns; the depth is summed in blocks of `block`.
struct ProductShape {
  int64_t items = 1, rows = 0, columns = 0, depth = 0, block = 1;
  float alpha = 1;
  int64_t blocks() const { return std::max<int64_t>(1, (depth + block - 1) / block); }
};

// Four neighbours, in one access.
struct alignas(16) Quad {
  float v[4];
};

// What a block of threads makes: a tile of C of rows x columns, of which a thread of a team makes rows_each x columns_each (in fours that
// lie apart), in slices of so much depth.
template <int rows, int columns, int rows_each, int columns_each, int depth, int teams> struct Tile {
  static constexpr int kRows = rows, kColumns = columns, kRowsEach = rows_each, kColumnsEach = columns_each, kDepth = depth;
  static constexpr unsigned kDown = rows / rows_each, kAcross = columns / columns_each;  // threads of a team
  static constexpr int kTeams = teams, kTeam = static_cast<int>(kDown * kAcross), kThreads = kTeam * teams;
  static_assert(rows_each % 4 == 0 && columns_each % 4 == 0 && kDown % 4 == 0 && kAcross % 8 == 0);

  // Where in the tile the i-th four of a thread's rows and columns begin. A warp is 4 threads by 8, to read few different quads.
  HOST_DEVICE static unsigned row(unsigned thread, unsigned i) {
    return 4 * (thread / 32 / (kAcross / 8) * 4 + thread % 32 / 8 + i * kDown);
  }
  HOST_DEVICE static unsigned column(unsigned thread, unsigned i) {
    return 4 * (thread / 32 % (kAcross / 8) * 8 + thread % 8 + i * kAcross);
  }
};

// `side` rows of A, or columns of B, by `depth`, brought by so many threads.
template <int side_, int depth_, int threads_> struct Slice {
  static constexpr int side = side_, depth = depth_, threads = threads_, each = side * depth / threads;
  static_assert(each % 4 == 0 && threads % side == 0 && threads % depth == 0 && depth % 4 == 0 && side % 4 == 0);
  struct alignas(16) Words {
    uint32_t of[each];
  };  // of one thread: elements as they are in memory
  struct alignas(16) Row {
    float of[side + 4];
  };  // in shared memory, of one k. No power of two, so that columns of it use different banks
};

// --- elements -------------------------------------------------------------------------------------------------------------------------

HOST_DEVICE inline float float16_of(uint32_t bits) {
#ifdef __CUDA_ARCH__
  return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));  // one instruction
#else
  return to_float(float16{static_cast<uint16_t>(bits)});
#endif
}

// The number that an element's bits mean to a product.
template <Element e> HOST_DEVICE inline float value_of(uint32_t bits) {
  if constexpr (e == Element::float16) return float16_of(bits);
  if constexpr (e == Element::bfloat16) return float_bits::as_float(bits << 16);
  if constexpr (e == Element::to_float16) return float16_of(to_float16(float_bits::as_float(bits)).bits);
  if constexpr (e == Element::to_bfloat16) return to_float(to_bfloat16(float_bits::as_float(bits)));
  return float_bits::as_float(bits);
}

// Calls body(element) with a constant.
template <Element e> struct ElementConstant { static constexpr Element value = e; };
template <typename Body> HOST_DEVICE inline void with_element(Element element, const Body& body) {
  switch (element) {
    case Element::float16:
      return body(ElementConstant<Element::float16>{});
    case Element::bfloat16:
      return body(ElementConstant<Element::bfloat16>{});
    case Element::to_float16:
      return body(ElementConstant<Element::to_float16>{});
    case Element::to_bfloat16:
      return body(ElementConstant<Element::to_bfloat16>{});
    default:
      return body(ElementConstant<Element::own>{});
  }
}

HOST_DEVICE inline float load_element(const std::byte* data, Element element, int64_t i) {
  if (element == Element::float16) return to_float(reinterpret_cast<const float16*>(data)[i]);
  if (element == Element::bfloat16) return to_float(reinterpret_cast<const bfloat16*>(data)[i]);
  return reinterpret_cast<const float*>(data)[i];
}
HOST_DEVICE inline void store_element(std::byte* data, Element element, int64_t i, float x) {
  if (element == Element::float16)
    reinterpret_cast<float16*>(data)[i] = to_float16(x);
  else if (element == Element::bfloat16)
    reinterpret_cast<bfloat16*>(data)[i] = to_bfloat16(x);
  else
    reinterpret_cast<float*>(data)[i] = x;
}

template <int bytes> HOST_DEVICE inline void copy_aligned(void* to, const void* from) {
  memcpy(__builtin_assume_aligned(to, bytes), __builtin_assume_aligned(from, bytes), bytes);
}
// 2, 4, 8 or 16 bytes that nobody writes meanwhile, as words.
template <int bytes> HOST_DEVICE inline void load_words(uint32_t* words, const std::byte* from) {
  using Word = std::conditional_t<bytes == 2, uint16_t, uint32_t>;
#ifdef __CUDA_ARCH__
  if constexpr (bytes == 16) {
    const uint4 x = __ldg(reinterpret_cast<const uint4*>(from));
    words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
  } else if constexpr (bytes == 8) {
    const uint2 x = __ldg(reinterpret_cast<const uint2*>(from));
    words[0] = x.x, words[1] = x.y;
  } else {
    words[0] = __ldg(reinterpret_cast<const Word*>(from));
  }
#else
  for (int i = 0; i < std::max(1, bytes / 4); ++i) words[i] = reinterpret_cast<const Word*>(from)[i];
#endif
}
// Whether four elements at a time can be accessed: at `data` and, from there, at each multiple of `pitch`.
inline bool are_fours(const void* data, int64_t pitch, Element element) {
  return pitch % 4 == 0 && reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(4 * bytes_each<float>(element)) == 0;
}

// --- operands -------------------------------------------------------------------------------------------------------------------------

// What stands beyond the end of the depth: -0 in A times 0 in B, which leaves every sum as it is, a sum of -0 too.
enum class Beyond : uint32_t { zero = 0, minus_zero = 0x80008000 };

// An operand in memory. n counts its rows (of A) or columns (of B), k the depth. along_depth: neighbours along the depth are neighbours in
// memory (A as it is, B transposed); else neighbouring n are. A thread's loads, of one or four neighbours each, are so many lines apart:
// n, or k.
template <bool along_depth, Beyond beyond> struct Stored {
  const std::byte* data = nullptr;
  int64_t count = 0;  // of n
  int64_t pitch = 0;  // elements from one line to the next
  Element element = Element::own;
  bool by_fours = false;  // are_fours(), and there are no others in the direction of neighbours

  // Of a thread, kept in registers: where its first load is, and how many there are, as far as n goes.
  struct Place {
    const std::byte* at;
    int loads;
  };

  // Of the slice that begins at (n, k).
  template <class Slice> HOST_DEVICE Place place(int64_t n, int64_t k, unsigned thread) const {
    return by_fours ? place_of<Loads<Slice, 4>>(n, k, thread) : place_of<Loads<Slice, 1>>(n, k, thread);
  }
  // To the slice that begins so much deeper.
  HOST_DEVICE void advance(Place& place, int64_t depth) const { place.at += depth * (along_depth ? 1 : pitch) * size(); }

  // The thread's elements of the slice, of whose depth so much is there.
  template <class Slice> HOST_DEVICE void load(const Place& place, int depth, unsigned thread, typename Slice::Words& words) const {
    by_fours ? load_of<Loads<Slice, 4>>(place, depth, thread, words) : load_of<Loads<Slice, 1>>(place, depth, thread, words);
  }

  // Those elements as numbers, to shared memory.
  template <class Slice> HOST_DEVICE void store(typename Slice::Words words, unsigned thread, typename Slice::Row* to) const {
    with_element(element,
                 [&](auto e) { by_fours ? make_numbers<decltype(e)::value, 4>(words.of) : make_numbers<decltype(e)::value, 1>(words.of); });
    by_fours ? store_of<Loads<Slice, 4>>(words, thread, to) : store_of<Loads<Slice, 1>>(words, thread, to);
  }

 private:
  // Of slices in loads of so many neighbours: which of its elements a thread loads.
  template <class Slice_, int neighbours_> struct Loads {
    using Slice = Slice_;
    static constexpr int neighbours = neighbours_, each = Slice::each / neighbours;
    static constexpr unsigned line = (along_depth ? Slice::depth : Slice::side) / neighbours, apart = Slice::threads / line;
    HOST_DEVICE static unsigned within(unsigned thread) { return thread % line * neighbours; }
    HOST_DEVICE static unsigned first(unsigned thread) { return thread / line; }  // its first line
    // How many of the thread's lines are among the first so many, or more than it has.
    HOST_DEVICE static int among(int lines, unsigned thread) {
      const int behind = lines - static_cast<int>(first(thread)) + static_cast<int>(apart) - 1;
      return behind < 0 ? 0 : static_cast<int>(static_cast<unsigned>(behind) / apart);
    }
  };
  HOST_DEVICE int64_t size() const { return bytes_each<float>(element); }

  template <class Of> HOST_DEVICE Place place_of(int64_t n, int64_t k, unsigned thread) const {
    const unsigned within = Of::within(thread), first = Of::first(thread);
    const int64_t at = along_depth ? (n + first) * pitch + k + within : (k + first) * pitch + n + within;
    const int left = count - n < Of::Slice::side ? static_cast<int>(count - n) : Of::Slice::side;
    return {data + at * size(), along_depth ? Of::among(left, thread) : static_cast<int>(within) < left ? Of::each : 0};
  }

  template <class Of> HOST_DEVICE void load_of(const Place& place, int depth, unsigned thread, typename Of::Slice::Words& words) const {
    int loads = along_depth ? static_cast<int>(Of::within(thread)) < depth ? Of::each : 0 : Of::among(depth, thread);
    if (place.loads < loads) loads = place.loads;
    is_half(element) ? load_bytes<Of, 2 * Of::neighbours>(place.at, loads, words)
                     : load_bytes<Of, 4 * Of::neighbours>(place.at, loads, words);
  }
  template <class Of, int bytes> HOST_DEVICE void load_bytes(const std::byte* at, int loads, typename Of::Slice::Words& words) const {
    const int64_t step = Of::apart * pitch * (bytes / Of::neighbours);
    const auto one = [&](int i) { load_words<bytes>(&words.of[i * Of::neighbours], at + i * step); };
    if (loads >= Of::each) {
      ORT_TRAIN_UNROLL
      for (int i = 0; i < Of::each; ++i) one(i);
      return;
    }
    ORT_TRAIN_UNROLL
    for (int i = 0; i < Of::each; ++i) {
      ORT_TRAIN_UNROLL
      for (int w = 0; w < Of::neighbours; ++w) words.of[i * Of::neighbours + w] = static_cast<uint32_t>(beyond);
      if (i < loads) one(i);
    }
  }

  template <Element e, int neighbours, int each> HOST_DEVICE static void make_numbers(uint32_t (&words)[each]) {
    ORT_TRAIN_UNROLL
    for (int i = 0; i < each; i += neighbours) {
      if constexpr (is_half(e) && neighbours == 4) {  // in the first two words
        words[i + 3] = words[i + 1] >> 16, words[i + 2] = words[i + 1] & 0xffff;
        words[i + 1] = words[i] >> 16, words[i] &= 0xffff;
      } else if constexpr (is_half(e)) {
        words[i] &= 0xffff;
      }
    }
    if constexpr (e != Element::own) {
      ORT_TRAIN_UNROLL
      for (int i = 0; i < each; ++i) words[i] = float_bits::of(value_of<e>(words[i]));
    }
  }

  template <class Of>
  HOST_DEVICE static void store_of(const typename Of::Slice::Words& words, unsigned thread, typename Of::Slice::Row* to) {
    const unsigned within = Of::within(thread), first = Of::first(thread);
    ORT_TRAIN_UNROLL
    for (int i = 0; i < Of::each; ++i) {
      const unsigned line = first + i * Of::apart;
      if constexpr (Of::neighbours == 4 && !along_depth) {
        copy_aligned<16>(&to[line].of[within], &words.of[4 * i]);
      } else {
        ORT_TRAIN_UNROLL
        for (int w = 0; w < Of::neighbours; ++w) {
          const float x = float_bits::as_float(words.of[i * Of::neighbours + w]);
          along_depth ? to[within + w].of[line] = x : to[line].of[within + w] = x;
        }
      }
    }
  }
};
template <bool along_depth> using StoredA = Stored<along_depth, Beyond::minus_zero>;
template <bool along_depth> using StoredB = Stored<along_depth, Beyond::zero>;

// --- results ----------------------------------------------------------------------------------------------------------------------------

// Where a product goes, and what it is added to: a vector that is added to each row, a matrix, or nothing.
struct Result {
  std::byte* data = nullptr;
  int64_t row = 0;  // elements from one row to the next; of the base, too
  Element element = Element::own;
  bool by_fours = false;            // are_fours(), and columns are no others
  const std::byte* bias = nullptr;  // or null
  Element bias_element = Element::own;
  const float* base = nullptr;  // or null; data itself: the product is added

  HOST_DEVICE bool has_start() const { return bias != nullptr || base != nullptr; }
  // Columns [j, j + n) of row i; n at most 4.
  HOST_DEVICE Quad start(int64_t i, int64_t j, int n) const {
    Quad x = {};
    ORT_TRAIN_UNROLL
    for (int y = 0; y < 4; ++y) {
      if (y < n) x.v[y] = bias ? load_element(bias, bias_element, j + y) : base[i * row + j + y];
    }
    return x;
  }
  HOST_DEVICE void put(int64_t i, int64_t j, int n, const Quad& x) const {
    if (by_fours && !is_half(element)) return copy_aligned<16>(data + (i * row + j) * 4, &x);
    if (by_fours) {
      alignas(8) uint16_t halves[4];
      ORT_TRAIN_UNROLL
      for (int y = 0; y < 4; ++y) halves[y] = element == Element::float16 ? to_float16(x.v[y]).bits : to_bfloat16(x.v[y]).bits;
      return copy_aligned<8>(data + (i * row + j) * 2, halves);
    }
    ORT_TRAIN_UNROLL
    for (int y = 0; y < 4; ++y) {
      if (y < n) store_element(data, element, i * row + j + y, x.v[y]);
    }
  }
};

// --- the product ----------------------------------------------------------------------------------------------------------------------

template <class T> int64_t tiles_down(const ProductShape& shape) { return (shape.rows + T::kRows - 1) / T::kRows; }
template <class T> int64_t tiles_across(const ProductShape& shape) { return (shape.columns + T::kColumns - 1) / T::kColumns; }
template <class T> int64_t tiles_of(const ProductShape& shape) { return shape.items * tiles_down<T>(shape) * tiles_across<T>(shape); }

template <class TileOf, class Products> struct Product {
  using T = TileOf;
  using SliceA = Slice<T::kRows, T::kDepth, T::kTeam>;
  using SliceB = Slice<T::kColumns, T::kDepth, T::kTeam>;
  static constexpr int kThreads = T::kThreads, kFoursDown = T::kRowsEach / 4, kFoursAcross = T::kColumnsEach / 4;
  static constexpr int kFours = T::kRowsEach * kFoursAcross;  // results of a thread
  static constexpr uint32_t kBand = 2048 / T::kRows;  // tiles: blocks that run together share rows and columns, which the cache holds
  struct Shared {
    typename SliceA::Row a[2][T::kTeams][T::kDepth];
    typename SliceB::Row b[2][T::kTeams][T::kDepth];
    Quad totals[kFours][T::kTeam];  // of each thread of a team: what C becomes
  };
  struct Sums {
    float of[T::kRowsEach][T::kColumnsEach];
  };  // of one thread, of one block of the depth
  struct Where {
    int64_t item, row, column;
  };

  Products products;
  int blocks;             // of the depth
  uint32_t down, across;  // tiles of one product

  explicit Product(const Products& products_)
      : products(products_),
        blocks(static_cast<int>(products.shape.blocks())),
        down(static_cast<uint32_t>(tiles_down<T>(products.shape))),
        across(static_cast<uint32_t>(tiles_across<T>(products.shape))) {}

  // Tiles go down in bands. They are numbered in 31 bits (exec/block.h).
  HOST_DEVICE Where where(int64_t index) const {
    const auto number = static_cast<uint32_t>(index);
    const uint32_t item = number / (down * across), rest = number - item * (down * across);
    const uint32_t band = kBand < down ? kBand : down, first = rest / (band * across) * band;
    const uint32_t height = band < down - first ? band : down - first, in_band = rest - first * across;
    return {item, int64_t{first + in_band % height} * T::kRows, int64_t{in_band / height} * T::kColumns};
  }

  template <class Block> HOST_DEVICE void operator()(Block& on) const {
    const ProductShape& shape = products.shape;
    const Where at = where(on.index);
    const auto a = products.a(at.item);
    const auto b = products.b(at.item);
    const auto c = products.c(at.item);
    typename Block::template Own<typename decltype(a)::Place> a_place;
    typename Block::template Own<typename decltype(b)::Place> b_place;
    typename Block::template Own<typename SliceA::Words> a_words;
    typename Block::template Own<typename SliceB::Words> b_words;
    typename Block::template Own<Sums> sums;
    typename Block::template Own<int> depth;  // of a slice of the thread's team and all behind it in the same block
    const auto depth_of = [&](int block) {
      const int64_t left = shape.depth - block * shape.block;
      return static_cast<int>(left < 0 ? 0 : left < shape.block ? left : shape.block);
    };
    const auto team = [](int t) { return t / T::kTeam; };
    const auto advance = [&](int t, int64_t deeper) {
      a.advance(a_place[t], deeper);
      b.advance(b_place[t], deeper);
    };
    const auto load = [&](int t) {
      a.template load<SliceA>(a_place[t], depth[t], t % T::kTeam, a_words[t]);
      b.template load<SliceB>(b_place[t], depth[t], t % T::kTeam, b_words[t]);
    };
    const auto store = [&](int t, int buffer) {
      a.template store<SliceA>(a_words[t], t % T::kTeam, on.shared.a[buffer][team(t)]);
      b.template store<SliceB>(b_words[t], t % T::kTeam, on.shared.b[buffer][team(t)]);
    };
    on.each([&](int t) {
      depth[t] = depth_of(team(t));
      a_place[t] = a.template place<SliceA>(at.row, team(t) * shape.block, t % T::kTeam);
      b_place[t] = b.template place<SliceB>(at.column, team(t) * shape.block, t % T::kTeam);
      sums[t] = {};
      load(t);
      if (c.has_start()) each_four(on, at, t, [&](int64_t i, int64_t j, int n, Quad& total) { total = c.start(i, j, n); });
      store(t, 0);
    });
    int buffer = 0;
    for (int block = 0; block < blocks; block += T::kTeams) {  // the first team's
      const int whole = depth_of(block);
      for (int begin = 0; begin < whole; begin += T::kDepth, buffer = 1 - buffer) {
        const bool goes_on = begin + T::kDepth < whole, more = goes_on || block + T::kTeams < blocks;
        on.each([&](int t) {
          if (more) {
            if (goes_on) {
              depth[t] -= T::kDepth;
              advance(t, T::kDepth);
            } else {
              depth[t] = depth_of(block + T::kTeams + team(t));
              advance(t, T::kTeams * shape.block - begin);
            }
            load(t);
          }
          multiply(on.shared.a[buffer][team(t)], on.shared.b[buffer][team(t)], t % T::kTeam, sums[t]);
          if (more) store(t, 1 - buffer);
        });
      }
      for (int adding = 0; adding < T::kTeams; ++adding) {
        on.each([&](int t) {
          if (team(t) == adding && block + adding < blocks) add(on, block + adding == 0 && !c.has_start(), t % T::kTeam, sums[t]);
        });
      }
    }
    on.each([&](int t) { each_four(on, at, t, [&](int64_t i, int64_t j, int n, const Quad& total) { c.put(i, j, n, total); }); });
  }

 private:
  // One slice.
  HOST_DEVICE static void multiply(const typename SliceA::Row* a, const typename SliceB::Row* b, unsigned thread, Sums& sums) {
    ORT_TRAIN_UNROLL
    for (int k = 0; k < T::kDepth; ++k) {
      Quad x[kFoursDown], y[kFoursAcross];
      ORT_TRAIN_UNROLL
      for (int i = 0; i < kFoursDown; ++i) copy_aligned<16>(&x[i], &a[k].of[T::row(thread, i)]);
      ORT_TRAIN_UNROLL
      for (int j = 0; j < kFoursAcross; ++j) copy_aligned<16>(&y[j], &b[k].of[T::column(thread, j)]);
      ORT_TRAIN_UNROLL
      for (int i = 0; i < T::kRowsEach; ++i) {
        ORT_TRAIN_UNROLL
        for (int j = 0; j < T::kColumnsEach; ++j) sums.of[i][j] = math::fma(x[i / 4].v[i % 4], y[j / 4].v[j % 4], sums.of[i][j]);
      }
    }
  }

  // A block's sums to what they are added to, unless it is nothing. The thread's next ones begin at zero.
  template <class Block> HOST_DEVICE void add(Block& on, bool to_nothing, unsigned thread, Sums& sums) const {
    const float alpha = products.shape.alpha;
    ORT_TRAIN_UNROLL
    for (int i = 0; i < T::kRowsEach; ++i) {
      ORT_TRAIN_UNROLL
      for (int j = 0; j < kFoursAcross; ++j) {
        Quad& total = on.shared.totals[i * kFoursAcross + j][thread];
        Quad x = total;
        ORT_TRAIN_UNROLL
        for (int y = 0; y < 4; ++y) {
          float& sum = sums.of[i][4 * j + y];
          x.v[y] = to_nothing ? alpha * sum : math::fma(alpha, sum, x.v[y]);
          sum = 0;
        }
        total = x;
      }
    }
  }

  // f(row, column, n, total) for each four totals of which n are in C, divided among the teams.
  template <class Block, class F> HOST_DEVICE void each_four(Block& on, const Where& at, int t, const F& f) const {
    const unsigned thread = static_cast<unsigned>(t) % T::kTeam;
    for (int i = static_cast<int>(t / T::kTeam); i < kFours; i += T::kTeams) {
      const int down = i / kFoursAcross;
      const int64_t row = at.row + T::row(thread, down / 4) + down % 4, column = at.column + T::column(thread, i % kFoursAcross);
      const int64_t left = row < products.shape.rows ? products.shape.columns - column : 0;
      if (left > 0) f(row, column, static_cast<int>(left < 4 ? left : 4), on.shared.totals[i][thread]);
    }
  }
};

// --- which tile -----------------------------------------------------------------------------------------------------------------------

using Large = Tile<128, 64, 8, 8, 8, 1>;
using Medium = Tile<64, 64, 8, 4, 8, 1>;
using MediumTeams = Tile<64, 64, 8, 4, 8, 2>;  // where there are few tiles and several blocks of the depth
using Small = Tile<32, 32, 4, 4, 8, 1>;
using SmallTeams = Tile<32, 32, 4, 4, 16, 4>;

// About how long a product takes, in results of one processor of a device. A processor is busy with some 12 warps; `rate`: how fast it is
// then, beside large tiles.
template <class T> double time_of(const ProductShape& shape, double rate) {
  constexpr int64_t kProcessors = 132;
  const int64_t tiles = tiles_of<T>(shape), rounds = (tiles + kProcessors - 1) / kProcessors;
  const int64_t teams = std::min<int64_t>(T::kTeams, shape.blocks());
  const double busy = 12.0 * 32 / static_cast<double>(T::kTeam * teams);  // tiles that keep a processor busy
  return std::max(static_cast<double>(rounds), busy) * T::kRows * T::kColumns / rate;
}

template <class T, class Products> void launch_tiles(const Products& products, const KernelArgs& args) {
  launch(Product<T, Products>(products), tiles_of<T>(products.shape), args);
}

template <class Products> void launch_products(const Products& products, const KernelArgs& args) {
  const ProductShape& shape = products.shape;
  double best = 0;
  void (*run)(const Products&, const KernelArgs&) = nullptr;
  const auto consider = [&]<class T>(T, double rate) {
    const double time = time_of<T>(shape, rate);
    if (run && time >= best) return;
    best = time;
    run = launch_tiles<T, Products>;
  };
  consider(Large{}, 1);
  consider(Medium{}, 0.8);
  consider(MediumTeams{}, 0.8);
  consider(Small{}, 0.5);
  consider(SmallTeams{}, 0.5);
  run(products, args);
}

}  // namespace tiled
ORT_TRAIN_OPS_END
