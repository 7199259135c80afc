// StridedMove: a CopyLayout (exec/strided.h) on CUDA.
//
// Where the innermost axis is contiguous on both sides its elements go as words, of 16 bytes where everything is divided in such: a thread
// a word, which covers the permutations that leave rows whole ((B, T, H, D) -> (B, H, T, D)). Where another axis is the one that is
// contiguous in the input, matrices are transposed in tiles in shared memory, so that neighbouring threads read and write neighbours. The
// rest, reading or writing with a step, is a thread an element.

#pragma once

#include <vector>

#include "exec/cuda/indexing.h"
#include "exec/cuda/moves.h"

ORT_TRAIN_OPS_BEGIN

template <typename Word> struct StridedWords {
  ThreadLoop<2> loop;  // operand 0: out, 1: in
  const Word* in;
  Word* out;
  struct Taken {
    Word word;
    int64_t to;
  };
  HOST_DEVICE Taken take(int64_t i) const {
    const Offsets<2> at = loop.offsets(i);
    return {in[at.of[1]], at.of[0]};
  }
  HOST_DEVICE void put(int64_t, const Taken& taken) const { out[taken.to] = taken.word; }
};

// Matrices out[r * out_pitch + c] = in[r + c * in_pitch], a loop around them.
struct TransposedMatrices {
  ThreadLoop<2> around;
  int64_t rows = 0, columns = 0, out_pitch = 0, in_pitch = 0;
};

// A block a tile: of 32 x 32 words (64 x 64 where they are small), or of the same size with as few rows or columns as a flat matrix has.
template <typename Word> struct TransposedTile {
  static constexpr int kThreads = 256, kSideShift = sizeof(Word) >= 4 ? 5 : 6, kWords = 1 << 2 * kSideShift;
  static constexpr int kBankWords = sizeof(Word) >= 4 ? 1 : 4 / static_cast<int>(sizeof(Word));  // of a bank of shared memory
  struct Shared {
    Word tile[kWords + kWords * kBankWords / 2];  // at two columns: as many more
  };

  TransposedMatrices matrices;
  const Word* in;
  Word* out;
  int rows_shift = kSideShift;  // of a tile: 2^rows_shift rows
  Divisor across{}, tiles{};    // of a row of tiles, of a matrix

  TransposedTile(const TransposedMatrices& of, const Word* from, Word* to) : matrices(of), in(from), out(to) {
    constexpr int kMostShift = 2 * kSideShift - 1;  // two columns
    while (rows_shift > 1 && (int64_t{1} << (rows_shift - 1)) >= of.rows) --rows_shift;
    while (rows_shift >= kSideShift && rows_shift < kMostShift && (kWords >> (rows_shift + 1)) >= of.columns) ++rows_shift;
    const int64_t width = (of.columns + columns() - 1) / columns(), height = (of.rows + rows() - 1) / rows();
    across = Divisor(width);
    tiles = Divisor(width * height);
  }
  int64_t blocks() const { return matrices.around.count * tiles.divisor; }

  HOST_DEVICE int rows() const { return 1 << rows_shift; }
  HOST_DEVICE int columns() const { return kWords >> rows_shift; }
  // Columns, and a few words so that what neighbouring threads read and write is in different banks.
  HOST_DEVICE int pitch() const { return columns() + kBankWords * (rows_shift >= 5 ? 1 : 32 >> rows_shift); }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    constexpr int kEach = kWords / kThreads;
    const Digit matrix = split(static_cast<uint32_t>(block.index), tiles), tile = split(matrix.digit, across);
    const Offsets<2> at = matrices.around.offsets(matrix.above);
    const int64_t top = int64_t{tile.above} * rows(), left = int64_t{tile.digit} * columns();
    Word* const shared = block.shared.tile;
    block.each([&](int t) {
      Word words[kEach];
      for (int k = 0; k < kEach; ++k) {
        const int i = k * kThreads + t, r = i & (rows() - 1), c = i >> rows_shift;
        if (top + r < matrices.rows && left + c < matrices.columns) words[k] = in[at.of[1] + top + r + (left + c) * matrices.in_pitch];
      }
      for (int k = 0; k < kEach; ++k) {
        const int i = k * kThreads + t, r = i & (rows() - 1), c = i >> rows_shift;
        if (top + r < matrices.rows && left + c < matrices.columns) shared[r * pitch() + c] = words[k];
      }
    });
    block.each([&](int t) {
      for (int k = 0; k < kEach; ++k) {
        const int i = k * kThreads + t, c = i & (columns() - 1), r = i >> (2 * kSideShift - rows_shift);
        if (top + r < matrices.rows && left + c < matrices.columns)
          out[at.of[0] + (top + r) * matrices.out_pitch + left + c] = shared[r * pitch() + c];
      }
    });
  }
};

class StridedMove {
 public:
  explicit StridedMove(const CopyLayout& layout)
      : word_(layout.element_bytes), out_offset_(layout.out_offset), in_offset_(layout.in_offset) {
    StridedLoop<2> loop(layout.dims, {layout.out_strides, layout.in_strides});
    if (loop.count == 0) return;
    widen(loop);
    if (!transposes(loop)) loop_ = ThreadLoop<2>(loop);
  }

  void run(const KernelArgs& args, void* out, const void* in) const {
    for_wide_word(word_, [&]<typename Word>() {
      Word* const to = static_cast<Word*>(out) + out_offset_;
      const Word* const from = static_cast<const Word*>(in) + in_offset_;
      if constexpr (sizeof(Word) <= 8) {
        if (matrices_.rows > 0) {
          const TransposedTile<Word> tile(matrices_, from, to);
          launch(tile, tile.blocks(), args);
          return;
        }
      }
      launch_moves(StridedWords<Word>{loop_, from, to}, loop_.count, args);
    });
  }

 private:
  // The loop less two axes (kNoAxis: less none), and those that have one iteration.
  static constexpr int kNoAxis = -1;
  static StridedLoop<2> without(const StridedLoop<2>& loop, int first, int second) {
    Shape dims;
    std::vector<int64_t> out_strides, in_strides;
    for (int axis = 0; axis < loop.rank; ++axis) {
      if (axis == first || axis == second) continue;
      dims.push_back(loop.dims[axis]);
      out_strides.push_back(loop.strides[axis][0]);
      in_strides.push_back(loop.strides[axis][1]);
    }
    return StridedLoop<2>(dims, {out_strides, in_strides});
  }

  // Counts in larger words where rows are contiguous.
  void widen(StridedLoop<2>& loop) {
    if (loop.inner_stride(0) != 1 || loop.inner_stride(1) != 1) return;
    const int last = loop.rank - 1;
    std::vector<int64_t> sizes{loop.inner() * word_, out_offset_ * word_, in_offset_ * word_};
    for (int axis = 0; axis < last; ++axis) {
      for (const int64_t stride : loop.strides[axis]) sizes.push_back(stride * word_);
    }
    const int64_t bytes = word_bytes(sizes), times = bytes / word_;
    loop.count /= times;
    loop.dims[last] /= times;
    for (int axis = 0; axis < last; ++axis) {
      for (int64_t& stride : loop.strides[axis]) stride /= times;
    }
    out_offset_ /= times;
    in_offset_ /= times;
    word_ = bytes;
    loop = without(loop, kNoAxis, kNoAxis);  // a row may now be one word
  }

  bool transposes(const StridedLoop<2>& loop) {
    constexpr int64_t kLeast = 16;  // rows or columns: smaller matrices fill no tile
    const int last = loop.rank - 1;
    if (word_ > 8 || loop.inner_stride(0) != 1 || loop.inner_stride(1) <= 1) return false;
    for (int axis = 0; axis < last; ++axis) {
      if (loop.strides[axis][1] != 1 || std::max(loop.dims[axis], loop.inner()) < kLeast) continue;
      matrices_ = {.around = ThreadLoop<2>(without(loop, axis, last)),
                   .rows = loop.dims[axis],
                   .columns = loop.inner(),
                   .out_pitch = loop.strides[axis][0],
                   .in_pitch = loop.inner_stride(1)};
      return true;
    }
    return false;
  }

  int64_t word_, out_offset_, in_offset_;  // bytes of a word; offsets in words
  ThreadLoop<2> loop_;
  TransposedMatrices matrices_;
};

ORT_TRAIN_OPS_END
