// Convolutions with windows of 3 x 3 in steps of one, and the gradients of their operands, by Winograd's minimal filtering F(2 x 2, 3 x 3)
// (Lavin and Gray, https://arxiv.org/abs/1509.09308): 16 multiplications give the four elements of a tile of y, which take 36 otherwise.
//
//   y = A' [(G w G') * (B' x B)] A          per tile of 2 x 2 elements of y and 4 x 4 of x, summed over channels before A
//   dw = G' [(A dy A') * (B' x B)] G        summed over tiles before G
//
// Each of the 16 elements of a transformed tile makes a matrix product over channels, or over tiles, of its own. Tiles are counted through
// all samples, so that even small planes fill vectors. All is float32; elements of 16 bits become that as they are read. Sums have other
// bits than those of products with columns, and similar errors: the transforms of x only add, those of w multiply by a half.
//
// In a tile that reads an infinite number all elements of y come out as NaN, which windows that don't read it have no part in.
// Elements of y or dx that aren't finite are therefore made again by the definition. dw, whose elements sum over all windows, isn't.

#pragma once

#include <algorithm>
#include <cmath>

#include "exec/convolution_elements.h"
#include "exec/even_odd.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

inline constexpr int64_t kTaps = 9, kTileElements = 16, kOutputs = 4;  // of a window; of a transformed tile; of a tile of y
inline constexpr int64_t kSide = 8;                                    // channels of y whose weights are transposed at a time
static_assert(gemm::kRows <= kSide);

// The tiles of a plane of y, in rows, and what of x they read.
class WinogradTiles {
 public:
  WinogradTiles() = default;
  explicit WinogradTiles(const Windows& windows) : h_(windows.h), w_(windows.w), across_(divided_up(windows.w.out, 2)) {}

  int64_t count() const { return divided_up(h_.out, 2) * across_; }
  // Floats that transform() needs for so many tiles at a time.
  int64_t room(int64_t tiles) const { return 8 * plane(tiles) + w_.in; }

  // How much of the tiles is y.
  double share() const { return static_cast<double>(h_.out * w_.out) / static_cast<double>(kOutputs * count()); }

  // Tiles [begin, end) of a plane of x: element i of the first to to[i * step], of the next one beside it. Leaves up to gemm::kWidth
  // floats behind the last one changed.
  void transform(const Plane& x, const Plane& next, int64_t begin, int64_t end, float* room, float* to, int64_t step) const {
    const int64_t first = begin / across_, last = (end - 1) / across_, size = plane(end - begin);
    for (int64_t pair = first; pair <= last + 1; ++pair) {  // of padded rows: each is read by a row of tiles, and by the one above
      const auto [from, until] = columns_of(pair, begin, end);
      for (int64_t parity = 0; parity < 2; ++parity) {
        float* const to_row = room + parity * size + (pair - first) * across_;
        const int64_t y = 2 * pair + parity - h_.begin;
        if (y < 0 || y >= h_.in) {
          for (int64_t j = 0; j < 4; ++j) std::fill(to_row + 2 * j * size + from, to_row + 2 * j * size + until, 0.0f);
          continue;
        }
        const float* row = x.floats() ? x.floats() + y * w_.in : room + 8 * size;
        if (!x.floats()) x.read(y * w_.in, w_.in, room + 8 * size);
        next.fetch(y * w_.in + std::max<int64_t>(0, 2 * from - w_.begin), std::min(2 * (until - from) + 2, w_.in));
        transform_row(row, from, until, to_row, 2 * size);
      }
    }
    const float* const from = room + begin - first * across_;
    for (int64_t j = 0; j < 4; ++j) {
      const float *const upper = from + 2 * j * size, *const lower = upper + size;
      float* const out = to + j * step;
      for (int64_t i = 0; i < end - begin; i += gemm::kWidth) {
        const auto at = [&](const float* p) { return gemm::load(p + i); };
        const gemm::Vector d0 = at(upper), d1 = at(lower), d2 = at(upper + across_), d3 = at(lower + across_);
        gemm::store(out + i, d0 - d2);
        gemm::store(out + 4 * step + i, d1 + d2);
        gemm::store(out + 8 * step + i, d2 - d1);
        gemm::store(out + 12 * step + i, d1 - d3);
      }
    }
  }

  // The elements of a row of y that tiles of these columns have, even and odd ones; zeros beyond it.
  void divide_row(const float* y, int64_t from, int64_t until, float* even, float* odd) const {
    for (int64_t i = from; i < until; i += gemm::kWidth) {
      const gemm::EvenOdd both = gemm::even_odd_of(y + 2 * i, gemm::lowest(w_.out - 2 * i));
      gemm::store(even + i - from, both.even);
      gemm::store(odd + i - from, both.odd);
    }
  }

  // visit(y, from, until, at): the columns of tiles [from, until) in row y of tiles, of which the first is the at-th of [begin, end).
  template <typename Visit> void rows(int64_t begin, int64_t end, const Visit& visit) const {
    for (int64_t tile = begin; tile < end;) {
      const int64_t y = tile / across_, from = tile % across_, until = std::min(across_, from + end - tile);
      visit(y, from, until, tile - begin);
      tile += until - from;
    }
  }

 private:
  struct Columns {
    int64_t from, until;
  };
  // A row of a padded plane goes to four, one for each column of the transformed tile, of those of its parity.
  int64_t plane(int64_t tiles) const { return (divided_up(tiles - 1, across_) + 2) * across_ + gemm::kWidth; }

  // Which columns the tiles [begin, end) need of a pair of padded rows.
  Columns columns_of(int64_t pair, int64_t begin, int64_t end) const {
    const auto of_tiles = [&](int64_t y) {
      return Columns{std::clamp<int64_t>(begin - y * across_, 0, across_), std::clamp<int64_t>(end - y * across_, 0, across_)};
    };
    const Columns here = of_tiles(pair), above = of_tiles(pair - 1);
    if (here.from >= here.until) return above;
    if (above.from >= above.until) return here;
    return {std::min(here.from, above.from), std::max(here.until, above.until)};
  }
  // A row of x by B, of the tiles of these columns.
  void transform_row(const float* x, int64_t from, int64_t until, float* to, int64_t step) const {
    for (int64_t i = from; i < until; i += gemm::kWidth) {
      const int64_t first = 2 * i - w_.begin;  // of the elements that they read
      const uint64_t bits = gemm::lowest(w_.in - first) & ~gemm::lowest(-first);
      const gemm::EvenOdd d01 = gemm::even_odd_of(x + first, bits), d23 = gemm::even_odd_of(x + first + 2, bits >> 2);
      gemm::store(to + i, d01.even - d23.even);
      gemm::store(to + step + i, d01.odd + d23.even);
      gemm::store(to + 2 * step + i, d23.even - d01.odd);
      gemm::store(to + 3 * step + i, d01.odd - d23.odd);
    }
  }

  WindowAxis h_, w_;
  int64_t across_ = 1;
};

// Tiles of all samples one behind the other, of which a task has a block: visit(sample, begin, end, at), tiles [begin, end) of a sample, of
// which the first is the at-th of the block.
template <typename Visit> void for_samples(int64_t first, int64_t count, int64_t of_sample, const Visit& visit) {
  for (int64_t tile = first; tile < first + count;) {
    const int64_t n = tile / of_sample, begin = tile % of_sample, end = std::min(of_sample, begin + first + count - tile);
    visit(n, begin, end, tile - first);
    tile += end - begin;
  }
}

inline constexpr int64_t kPiece = gemm::kRows * gemm::kPanel;  // what a micro-kernel makes

// The arguments of one of gemm::Fused's. start: c itself, where it is added to
inline gemm::Micro micro_of(const float* a, int64_t a_row, int64_t a_depth, const float* b, int64_t b_depth, int64_t depth, float* c,
                            int64_t c_row, const float* start = nullptr) {
  return {.depth = depth,
          .skipped = 0,
          .rows = gemm::kRows,
          .a = a,
          .a_row = a_row,
          .a_depth = a_depth,
          .b = b,
          .b_depth = b_depth,
          .panel = nullptr,
          .prefetch = reinterpret_cast<const std::byte*>(a),
          .c = c,
          .c_row = c_row,
          .result = reinterpret_cast<const std::byte*>(c),
          .result_row = c_row * int64_t{sizeof(float)},
          .start = start,
          .start_row = c_row,
          .alpha = 1};
}

// y, or dx: the same with the channels of y in place of those of x, and the taps from the last to the first.
//
// A task is a block of tiles, or some of them, of some outputs: channels are summed in chunks, each chunk's tiles of products joined to
// tiles of y, in which the chunks are added upwards. Of the operands, transformed, all tasks share one (x, where tiles are few):
//
//   w   [kRows outputs][element of a tile][channel][output]. A task has one block of tiles, and transforms x of it
//   x   [block of tiles][chunk][element of a tile][channel][tile]. A task has all blocks, and transforms w of its outputs
//
// The other is made in a thread's workspace, a chunk at a time. Which one is shared changes no bit.
class WinogradSums {
 public:
  WinogradSums() = default;
  // y's
  WinogradSums(const Layout& l, Element x, Element w, Element y) : WinogradSums(l, false, x, w, y) {}
  // dx's
  static WinogradSums of_input(const Layout& l, Element dy, Element w, Element dx) { return {l, true, dy, w, dx}; }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t shared_bytes() const { return whole_lines(preparations() * prepared() * int64_t{sizeof(float)}); }
  int64_t preparations() const { return shares_x_ ? blocks_ * chunks() : divided_up(outputs_, gemm::kRows); }
  int64_t tasks() const { return (shares_x_ ? 1 : blocks_) * down_; }
  // Of the rate of large float32 products, counting the products that the definition takes (measured).
  double efficiency(double) const {
    constexpr double kOfProducts = 0.9, kTransforming = 18, kJoining = 18;  // in products of an element of a tile
    constexpr double kFiltering = 25, kWriting = 105;                       // w in the caches; memory for what is shared
    const auto outputs = static_cast<double>(shares_x_ ? outputs_ : task_outputs_), channels = static_cast<double>(channels_),
               tiles = static_cast<double>(all_tiles());
    const double writing = kWriting / (shares_x_ ? outputs : tiles);
    return 2.25 * tiles_.share() / (1 / kOfProducts + kTransforming / outputs + kJoining / channels + kFiltering / tiles + writing);
  }

  void prepare(const Operands& operands, int64_t number, std::byte* workspace) const {
    float* const to = operands.shared + number * prepared();
    if (!shares_x_) return transform_weights(operands, number * gemm::kRows, 0, channels_, to, channels_);
    transform_x(operands, number / chunks(), number % chunks(), to, workspace);
  }

  void run(const Operands& operands, int64_t task, std::byte* workspace) const {
    const float* const bias = operands.bias;
    const int64_t begin = shares_x_ ? 0 : task / down_, end = shares_x_ ? blocks_ : begin + 1;  // blocks of tiles
    const int64_t output = task % down_ * task_outputs_, outputs = std::min(task_outputs_, outputs_ - output);
    auto* const made = reinterpret_cast<float*>(workspace);  // of the operand that isn't shared
    auto* const products = reinterpret_cast<float*>(workspace + products_at_);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    for (int64_t r = 0; bias && r < outputs; ++r)
      std::fill_n(sums + r * kOutputs * sums_row_, kOutputs * sums_row_, bias[l_.first + output + r]);
    for (int64_t chunk = 0; chunk < chunks(); ++chunk) {
      const int64_t channels = channels_of(chunk);
      if (shares_x_)
        transform_outputs(operands, output, outputs, chunk, made);
      else
        transform_x(operands, begin, chunk, made, workspace);
      for (int64_t block = begin; block < end; ++block) {
        const float* const x = shares_x_ ? operands.shared + (block * chunks() + chunk) * prepared() : made;
        for (int64_t r = 0; r < outputs; r += gemm::kRows) {
          const float* const w = shares_x_ ? made + r / gemm::kRows * weights_of(chunk_)
                                           : operands.shared + (output + r) / gemm::kRows * prepared() + chunk * chunk_ * gemm::kRows;
          for (int64_t j = 0, width; j < tiles_of(block); j += width) {
            width = gemm::Fused::panel(tiles_of(block) - j);
            multiply_tiles(w, channels, x + j, width, products);
            join(products, width, std::min<int64_t>(gemm::kRows, outputs - r), bias || chunk > 0,
                 sums + r * kOutputs * sums_row_ + (block - begin) * block_ + j);
          }
        }
      }
    }
    const int64_t first = begin * block_, count = std::min(end * block_, all_tiles()) - first;
    for (int64_t r = 0; r < outputs; ++r) store(operands, output + r, first, count, sums + r * kOutputs * sums_row_, workspace);
  }

 private:
  WinogradSums(const Layout& l, bool backwards, Element x, Element w, Element y)
      : l_(l), backwards_(backwards), x_(x), w_(w), y_(y), windows_(l.windows) {
    constexpr int64_t kChunk = 128, kTransformed = 144 << 10, kMost = 288, kLeastOutputs = 32, kTaskOutputs = 32, kLeastTaskOutputs = 16;
    applies_ = takes_winograd(l) && gemm::way_of(x, w) == gemm::Way::floats && (!backwards || is_undivided(l));
    if (!applies_) return;
    channels_ = l.in_channels;
    outputs_ = l.out_channels;
    if (backwards) {
      std::swap(channels_, outputs_);
      const auto turned = [](const WindowAxis& a) {
        const int64_t begin = a.kernel - 1 - a.begin;
        return WindowAxis{.in = a.out, .kernel = a.kernel, .begin = begin, .end = a.in + a.kernel - 1 - begin - a.out, .out = a.in};
      };
      windows_ = {turned(l.windows.h), turned(l.windows.w)};
    }
    tiles_ = WinogradTiles(windows_);
    chunk_ = divided_up(channels_, divided_up(channels_, kChunk));
    block_ = gemm::kPanel;
    blocks_ = divided_up(all_tiles(), block_);
    shares_x_ = all_tiles() < 2 * outputs_ && blocks_ * chunks() * transformed() * int64_t{sizeof(float)} <= kSharedBytes;
    if (shares_x_) {
      sums_row_ = blocks_ * block_;
      task_outputs_ = std::min(kTaskOutputs, divided_up(outputs_, gemm::kRows) * gemm::kRows);
      while (divided_up(outputs_, task_outputs_) < kFewTasks && task_outputs_ > kLeastTaskOutputs) task_outputs_ -= gemm::kRows;
      down_ = divided_up(outputs_, task_outputs_);
    } else {
      block_ = std::clamp(kTransformed / (kTileElements * chunk_) / gemm::kPanel * gemm::kPanel, int64_t{gemm::kPanel}, kMost);
      block_ = std::min(block_, divided_up(all_tiles(), gemm::kWidth) * gemm::kWidth);
      blocks_ = divided_up(all_tiles(), block_);
      sums_row_ = block_;
      const auto divided = [&](int64_t parts) { return equal_part(outputs_, parts, gemm::kRows); };
      down_ = 1;
      while (blocks_ * down_ < kFewTasks && divided(down_ + 1) >= kLeastOutputs) ++down_;
      task_outputs_ = divided(down_);
      down_ = divided_up(outputs_, task_outputs_);
    }
    WorkspaceLayout layout;
    layout.take<float>(shares_x_ ? divided_up(task_outputs_, gemm::kRows) * weights_of(chunk_) : transformed());
    products_at_ = layout.take<float>(kTileElements * kPiece);
    sums_at_ = layout.take<float>(task_outputs_ * kOutputs * sums_row_);
    room_at_ = layout.take<float>(std::max(tiles_.room(std::min(block_, tiles_.count())), windows_.w.out));
    bytes_ = layout.all();
  }

  struct Column {
    __m256 of[4];
  };

  int64_t all_tiles() const { return l_.batch * tiles_.count(); }
  int64_t tiles_of(int64_t block) const { return std::min(block_, all_tiles() - block * block_); }
  int64_t chunks() const { return divided_up(channels_, chunk_); }
  int64_t channels_of(int64_t chunk) const { return std::min(chunk_, channels_ - chunk * chunk_); }
  // Floats that kRows outputs of so many channels take: no power of two for an element of a tile, since all 16 are written at a time.
  static int64_t weights_each(int64_t channels) { return channels * gemm::kRows + gemm::kWidth; }
  static int64_t weights_of(int64_t channels) { return kTileElements * weights_each(channels); }
  // The same of a block of tiles and a chunk of channels; the last vectors reach beyond.
  int64_t transformed_each() const { return chunk_ * block_ + gemm::kPanel; }
  int64_t transformed() const { return kTileElements * transformed_each(); }
  int64_t prepared() const { return shares_x_ ? transformed() : weights_of(channels_); }
  Plane plane_of(const std::byte* x, int64_t n, int64_t channel) const {
    const int64_t at = backwards_ ? l_.y_at(n, 0, channel) : l_.x_at(n, 0, channel);
    return {x_, x + at * bytes_each<float>(x_)};
  }

  void transform_x(const Operands& operands, int64_t block, int64_t chunk, float* to, std::byte* workspace) const {
    const int64_t first = chunk * chunk_;
    for (int64_t i = 0; i < channels_of(chunk); ++i) {
      for_samples(block * block_, tiles_of(block), tiles_.count(), [&](int64_t n, int64_t begin, int64_t end, int64_t at) {
        const int64_t next = std::min(first + i + 1, channels_ - 1);
        tiles_.transform(plane_of(operands.from, n, first + i), plane_of(operands.from, n, next), begin, end,
                         reinterpret_cast<float*>(workspace + room_at_), to + i * block_ + at, transformed_each());
      });
    }
  }

  // w of a task's outputs and a chunk of channels, in the order in which it lies in memory.
  void transform_outputs(const Operands& operands, int64_t output, int64_t outputs, int64_t chunk, float* to) const {
    const int64_t each = backwards_ ? 1 : channels_of(chunk);
    for (int64_t i = 0; i < channels_of(chunk); i += each) {
      for (int64_t r = 0; r < outputs; r += gemm::kRows)
        transform_weights(operands, output + r, chunk * chunk_ + i, each, to + r / gemm::kRows * weights_of(chunk_) + i * gemm::kRows,
                          chunk_);
    }
  }

  // G w G' of kRows outputs from `output` on and of `count` channels, where an element of a tile has room for `most` channels.
  void transform_weights(const Operands& operands, int64_t output, int64_t channel, int64_t count, float* to, int64_t most) const {
    const int64_t rows = std::min<int64_t>(gemm::kRows, outputs_ - output);
    const int64_t row = kTaps * (backwards_ ? 1 : channels_), channel_step = kTaps * (backwards_ ? outputs_ : 1);
    constexpr int64_t kAhead = 4;  // channels: they are far apart where outputs lie side by side
    const Plane weights(w_, operands.w);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t at = output * row + (channel + i) * channel_step;
      if (backwards_ && channel + i + kAhead < channels_) weights.fetch(at + kAhead * channel_step, rows * kTaps);
      float some[kSide * kTaps] = {}, g[kTaps * kSide];  // [output][tap]; [tap][output]
      const float* from = weights.floats() ? weights.floats() + at : some;
      int64_t from_row = row;
      if (!weights.floats() || output + kSide > outputs_) {
        for (int64_t r = 0; r < rows; ++r) weights.read(at + r * row, kTaps, some + r * kTaps);
        from = some;
        from_row = kTaps;
      }
      transpose8(from, from_row, g, kSide);
      for (int64_t r = 0; r < kSide; ++r) g[8 * kSide + r] = from[r * from_row + 8];
      filter(g, to + i * gemm::kRows, weights_each(most));
    }
  }

  // G w G' of kSide outputs, side by side. Where a block has fewer, the rest comes to where the next channel's are made afterwards.
  void filter(const float* g, float* to, int64_t each) const {
    const auto tap = [&](int64_t t) { return _mm256_loadu_ps(g + (backwards_ ? kTaps - 1 - t : t) * kSide); };
    const auto column = [half = _mm256_set1_ps(0.5f)](__m256 g0, __m256 g1, __m256 g2) {
      const __m256 sum = g0 + g2;
      return Column{{g0, half * (sum + g1), half * (sum - g1), g2}};
    };
    const Column down[] = {column(tap(0), tap(3), tap(6)), column(tap(1), tap(4), tap(7)), column(tap(2), tap(5), tap(8))};
    for (int i = 0; i < 4; ++i) {
      const Column row = column(down[0].of[i], down[1].of[i], down[2].of[i]);
      for (int j = 0; j < 4; ++j, to += each) _mm256_storeu_ps(to, row.of[j]);
    }
  }

  // The 16 products of some outputs and a panel of tiles: [element of a tile][output][tile].
  void multiply_tiles(const float* weights, int64_t channels, const float* transformed, int64_t width, float* products) const {
    const gemm::MicroKernel kernel = gemm::Fused::kernel(gemm::kRows, width);
    const int64_t weights_step = weights_each(shares_x_ ? chunk_ : channels_);
    for (int64_t i = 0; i < kTileElements; ++i, products += kPiece)
      kernel(micro_of(weights + i * weights_step, 1, gemm::kRows, transformed + i * transformed_each(), block_, channels, products,
                      gemm::kPanel));
  }

  // A' of the products: the tiles of y, each of their four elements in a row.
  void join(const float* products, int64_t width, int64_t outputs, bool adds, float* sums) const {
    for (int64_t r = 0; r < outputs; ++r, products += gemm::kPanel, sums += kOutputs * sums_row_) {
      for (int64_t j = 0; j < width; j += gemm::kWidth) {
        gemm::Vector upper[4], lower[4];
#pragma GCC unroll 4
        for (int64_t i = 0; i < 4; ++i) {
          const auto at = [&](int64_t row) { return gemm::load(products + (4 * row + i) * kPiece + j); };
          const gemm::Vector m1 = at(1), m2 = at(2);
          upper[i] = at(0) + (m1 + m2);
          lower[i] = (m1 - m2) - at(3);
        }
        const auto put = [&](int64_t i, gemm::Vector sum) {
          float* const to = sums + i * sums_row_ + j;
          gemm::store(to, adds ? gemm::load(to) + sum : sum);
        };
        put(0, upper[0] + (upper[1] + upper[2]));
        put(1, (upper[1] - upper[2]) - upper[3]);
        put(2, lower[0] + (lower[1] + lower[2]));
        put(3, (lower[1] - lower[2]) - lower[3]);
      }
    }
  }

  // The tiles of an output to its planes.
  void store(const Operands& operands, int64_t output, int64_t first, int64_t count, float* sums, std::byte* workspace) const {
    bool is_finite = true;
    for (int64_t i = 0; i < kOutputs; ++i) is_finite &= !has_infinity(sums + i * sums_row_, count, false);
    const int64_t across = windows_.w.out;
    for_samples(first, count, tiles_.count(), [&](int64_t n, int64_t begin, int64_t end, int64_t at) {
      const int64_t plane = backwards_ ? l_.x_at(n, 0, output) : l_.y_at(n, 0, output);
      const Result<float> to(operands.to + plane * bytes_each<float>(y_), across, 1, y_);
      tiles_.rows(begin, end, [&](int64_t row, int64_t from, int64_t until, int64_t tile) {
        const int64_t columns = std::min(2 * until, across) - 2 * from;
        for (int64_t i = 2 * row; i < std::min(2 * row + 2, windows_.h.out); ++i) {
          float* const made = sums + i % 2 * 2 * sums_row_ + at + tile;
          if (!is_finite) make_by_definition(operands, n, output, i, 2 * from, columns, made);
          join_row(made, columns, to.from(i, 2 * from), reinterpret_cast<float*>(workspace + room_at_));
        }
      });
    });
  }

  // A row of y of `columns` elements from those of its tiles. some: room for it
  void join_row(const float* made, int64_t columns, const Result<float>& to, float* some) const {
    const bool is_own = y_ == Element::own;
    gemm::join_even_odd(made, made + sums_row_, columns, is_own ? to.own() : some);
    if (!is_own) store_rows(some, columns, to, 1, columns);
  }

  // Of `columns` elements of a row of y, from column `from` on, those that aren't finite; made: the elements of tiles.
  void make_by_definition(const Operands& operands, int64_t n, int64_t output, int64_t i, int64_t from, int64_t columns,
                          float* made) const {
    const float bias = operands.bias ? operands.bias[l_.first + output] : 0;
    for (int64_t j = 0; j < columns; ++j) {
      float& to = made[j % 2 * sums_row_ + j / 2];
      if (!std::isfinite(to)) to = element_at(operands.from, operands.w, bias, n, output, i, from + j);
    }
  }
  float element_at(const std::byte* x, const std::byte* w, float sum, int64_t n, int64_t output, int64_t i, int64_t j) const {
    for (int64_t channel = 0; channel < channels_; ++channel) {
      const Plane plane = plane_of(x, n, channel);
      const int64_t weights = (backwards_ ? channel * outputs_ + output : output * channels_ + channel) * kTaps;
      for (int64_t t = 0; t < kTaps; ++t) {
        const int64_t row = windows_.h.at(i, t / 3), column = windows_.w.at(j, t % 3);
        if (row < 0 || row >= windows_.h.in || column < 0 || column >= windows_.w.in) continue;
        float element;
        plane.read(row * windows_.w.in + column, 1, &element);
        sum = std::fma(number_of<float>(w, w_, weights + (backwards_ ? kTaps - 1 - t : t)), element, sum);
      }
    }
    return sum;
  }

  Layout l_;
  bool backwards_ = false, applies_ = false, shares_x_ = false;
  Element x_ = Element::own, w_ = Element::own, y_ = Element::own;
  Windows windows_;  // of y over x; of dx over dy
  WinogradTiles tiles_;
  int64_t channels_ = 0, outputs_ = 0, chunk_ = 0;  // those that are summed, those that are made; summed at a time
  int64_t block_ = 0, blocks_ = 0, sums_row_ = 0;   // tiles of a block; blocks; tiles of a task
  int64_t task_outputs_ = 0, down_ = 0;             // outputs of a task; tasks of the same tiles
  int64_t products_at_ = 0, sums_at_ = 0, room_at_ = 0, bytes_ = 0;
};

}  // namespace convolution
ORT_TRAIN_OPS_END
