// Products of strided matrices on one thread: C = start + alpha * A B. What MatMul, Conv and Attention are made of.
//
// float: register-blocked micro-kernels in vectors (of C, with AVX-512 8 x 48 elements, on Intel's processors 14 x 32; with AVX2 6 x 16),
// fused multiply-adds along the depth. A is read in place; B goes panel by panel through a packed copy in the workspace, made while the
// first rows are multiplied. double: plain loops.
//
// 16 bits: operands of float16, of bfloat16, and of float32 that is rounded to one of these, become float32 block by block: B as it is
// packed, a block of A once for all panels. Sums are float32, from one block of the depth to the next in the workspace; the last one rounds
// them to the elements of C. Where both operands are bfloat16 and the processor multiplies pairs of these (AMX-BF16, else AVX512-BF16),
// they are packed as pairs instead; an A of bfloat16 in rows is read in place, and others may be packed once for many products
// (SharedWords).
//
// A B that is stored in blocks (graph/weight_blocks.h) becomes float32 panel by panel, before it is packed.
//
// The bits of an element depend on the depth and its blocks alone (exec/depth_block.h): each is one chain of fused multiply-adds in
// ascending order (of pairs: exec/gemm_micro.h, exec/gemm_tiles.h), the blocks in ascending order; in tile registers one chain goes on
// through all blocks. How C is divided among tiles, tasks and threads, where it lies and which vectors the processor has never shows (but
// for a Triangle of numbers that aren't finite: how far behind its diagonal zeros are multiplied is the block's); whether and how it
// multiplies pairs does. Nothing is allocated: the workspace is the caller's, one for each thread.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "exec/block_decode.h"
#include "exec/depth_block.h"
#include "exec/gemm_micro.h"
#include "exec/gemm_pack.h"
#include "exec/gemm_tiles.h"
#include "exec/workspace.h"
#include "exec/wrapping.h"

ORT_TRAIN_OPS_BEGIN

// Which part of a product is wanted, for causal attention; i, j, k count rows, columns and depth of the product at hand.
enum class Triangle : uint8_t {
  none,
  result,   // C only where j <= i + diagonal; what lies beyond is left as it is or filled, as the tiles fall
  a_lower,  // A is taken as 0 where k > i + diagonal, as far as the tiles allow: it must hold zeros next to the diagonal
  a_upper,  // the same where k < i + diagonal
};

// A matrix somewhere in memory: element (i, j) at data[i * row + j * column].
template <typename T> struct Matrix {
  T* data = nullptr;
  int64_t row = 0, column = 1;
  Matrix from(int64_t i, int64_t j) const { return {data + i * row + j * column, row, column}; }
};

// The same of elements that may be others than T (exec/gemm_element.h). Steps are in elements.
template <typename T, typename Byte> struct Elements {
  Byte* data = nullptr;
  int64_t row = 0, column = 1;
  Element element = Element::own;
  // Stored in blocks: as what (float32: they aren't), and the element at (0, 0), counted from `data`, where the blocks begin.
  DType blocks = DType::float32;
  int64_t first = 0;

  Elements() = default;
  Elements(Byte* data_, int64_t row_, int64_t column_, Element element_) : data(data_), row(row_), column(column_), element(element_) {}
  Elements(T* data_, int64_t row_, int64_t column_ = 1) : data(reinterpret_cast<Byte*>(data_)), row(row_), column(column_) {}
  Elements(const Matrix<T>& m) : Elements(m.data, m.row, m.column) {}

  int64_t size() const { return bytes_each<T>(element); }
  bool is_in_blocks() const { return is_weight_blocks(blocks); }
  Elements from(int64_t i, int64_t j) const {
    Elements result = *this;
    if (is_in_blocks())
      result.first += i * row + j * column;
    else
      result.data += (i * row + j * column) * size();
    return result;
  }
  T* own() const { return reinterpret_cast<T*>(data); }  // where they are of T
};
template <typename T> using Operand = Elements<const T, const std::byte>;
template <typename T> using Result = Elements<T, std::byte>;  // of T, float16 or bfloat16

template <typename T> struct Product {
  int64_t rows = 0, columns = 0, depth = 0;
  Operand<T> a{};     // rows x depth; one of its strides is 1
  Operand<T> b{};     // depth x columns; one of its strides is 1
  Result<T> c{};      // rows x columns, columns dense
  int64_t block = 0;  // of the depth, at most kDepthBlock; 0: depth_block(depth)
  T alpha = 1;
  Matrix<const T> start{};             // what the product is added to, columns dense: none: zero; c itself: accumulates; a bias has row 0
  Triangle triangle = Triangle::none;  // where c is of T
  int64_t diagonal = 0;
  Matrix<const float> words{};  // a's, where they have been made before (gemm::SharedWords): a isn't read then
};

namespace gemm {

// Where a product's copies lie in the workspace.
struct Room {
  float* panel = nullptr;
  float* a = nullptr;                              // a block of A
  float* decoded = nullptr;                        // a panel of B, of one that is stored in blocks, in rows
  float* sums = nullptr;                           // what the blocks of the depth have added up to: rows x sums_row
  int64_t a_row = 0, pairs_row = 0, sums_row = 0;  // pairs_row: where pairs lie in rows whatever A's layout
};

// How products are made, each by a Unit.
enum class Way : uint8_t { floats, pairs, tiles };

inline Way way_of(Element a, Element b) {
  if (!is_bfloat16(a) || !is_bfloat16(b)) return Way::floats;
  if (has_tiles()) return Way::tiles;
  return has_pairs() ? Way::pairs : Way::floats;
}
// How many times as fast they are as those of floats.
inline double rate_of(Element a, Element b) {
  const Way way = way_of(a, b);
  return way == Way::tiles ? 4 : way == Way::pairs ? 2.05 : 1;
}

// Whether the columns of an A that lies transposed begin at the same place of each page, so that the lines which a micro-kernel reads meet
// in one set of the first-level cache.
inline constexpr int64_t kPage = 4096;
inline bool lines_meet(const Operand<float>& a) { return a.row == 1 && a.column > 1 && a.column * a.size() % kPage == 0; }

// Blocks of the depth are joined up to this one where sums go on: C is written less often, and a panel of 32 columns takes 96 KiB.
inline constexpr int64_t kJoinedDepth = 4 * kDepthBlock;

// The room of a product in its workspace, and its bytes. Products with smaller sizes take no more; of A the strides count, too.
inline std::pair<Room, int64_t> room_of(const Product<float>& p, std::byte* workspace) {
  const int64_t depth = std::clamp<int64_t>(p.depth, 1, kDepthBlock);  // smaller depths may have longer blocks
  const auto up = [](int64_t n) { return (n + 15) / 16 * 16; };
  Room room;
  int64_t bytes = 0;
  const auto take = [&](int64_t floats) {
    const int64_t at = std::exchange(bytes, bytes + whole_lines(floats * int64_t{sizeof(float)}));
    return workspace ? reinterpret_cast<float*>(workspace + at) : nullptr;
  };
  const int64_t words = (depth + 1) / 2;                                               // of pairs
  const bool pairs = is_bfloat16(p.a.element);                                         // perhaps
  const int64_t joined = (std::clamp<int64_t>(p.depth, depth, kJoinedDepth) + 1) / 2;  // words
  room.panel = take(pairs ? std::max(depth * kPanel, joined * 2 * kTileSide) : depth * kPanel);
  // No power of two: its rows lie in the first-level cache together.
  room.a_row = up(p.a.column == 1 ? depth : p.rows) + 16;
  room.pairs_row = up(words) + 16;
  int64_t a = std::max((up(depth) + 16) * p.rows, (up(p.rows) + 16) * depth);
  if (pairs) a = std::max(a, up(p.rows) * room.pairs_row);
  if (p.a.element != Element::own || lines_meet(p.a)) room.a = take(a);
  if (p.b.is_in_blocks()) room.decoded = take(depth * std::max<int64_t>(kPanel, 2 * kTileSide));
  room.sums_row = (p.columns + kPanel - 1) / kPanel * kPanel;
  if (is_half(p.c.element) && p.depth > (p.block > 0 ? p.block : depth_block(p.depth))) room.sums = take(p.rows * room.sums_row);
  return {room, bytes};
}

// A's words of one block of the depth.
struct Words {
  const float* data;
  int64_t row, depth;
  bool is_padded = false;  // with rows up to a whole block
};

template <typename Unit> constexpr int64_t words_of(int64_t elements) { return Unit::pairs ? (elements + 1) / 2 : elements; }

// One block of the depth.
struct Block {
  int64_t begin, depth;
  bool first, last;
};

// Whether A's pairs are read where A lies.
inline bool lies_in_pairs(const Operand<float>& a, int64_t depth) {
  return a.element == Element::bfloat16 && a.column == 1 && a.row % 2 == 0 && depth % 2 == 0 &&
         reinterpret_cast<uintptr_t>(a.data) % 4 == 0;
}

// Where the words of all of A lie that are made once for many products: pairs, for Way::pairs and Way::tiles.
struct SharedWords {
  bool transposed = false, in_rows = false;  // transposed: word (i, k) at i + k * row, else at i * row + k
  int64_t row = 0, bytes = 0;

  SharedWords() = default;  // none
  // in_rows: not transposed even where A is, and with whole blocks of rows
  SharedWords(bool is_transposed, bool in_rows_, int64_t rows, int64_t depth) : transposed(is_transposed && !in_rows_), in_rows(in_rows_) {
    const int64_t words = (depth + 1) / 2;
    row = ((transposed ? rows : words) + 15) / 16 * 16 + 16;  // no power of two
    if (in_rows) rows = (rows + 2 * kTileSide - 1) / (2 * kTileSide) * 2 * kTileSide;
    bytes = (transposed ? words : rows) * row * int64_t{sizeof(float)};
  }
  // Makes those of the lines [begin, end) of A, of its rows or, transposed, its columns; begin is even.
  void make(const Product<float>& p, int64_t begin, int64_t end, float* to) const {
    const int64_t size = p.a.size();
    if (in_rows) {
      pair_rows_of_a(p.a.element, {p.a.from(begin, 0).data, p.a.row * size, p.a.column * size}, end - begin, p.depth, to + begin * row,
                     row);
    } else if (transposed) {
      const std::byte* const from = p.a.from(0, begin).data;
      pack_elements<true>(p.a.element, {from, p.a.column * size, size}, end - begin, p.rows, row, to + begin / 2 * row);
    } else {
      pack_rows<true>(p.a.element, {p.a.from(begin, 0).data, p.a.row * size, size}, end - begin, p.depth, to + begin * row, row);
    }
  }
  Matrix<const float> matrix(const float* data) const { return {data, transposed ? 1 : row, transposed ? row : 1}; }
};

template <typename Unit> Words words_of_a(const Product<float>& p, const Block& block, const Room& room) {
  if (p.words.data) {
    const Matrix<const float> words = p.words.from(0, block.begin / 2);
    return {words.data, words.row, words.column, Unit::a_in_rows};
  }
  const Operand<float> a = p.a.from(0, block.begin);
  if (a.element == Element::own) {
    if (!lines_meet(a)) return {a.own(), a.row, a.column};
    for (int64_t k = 0; k < block.depth; ++k) std::copy_n(a.own() + k * a.column, p.rows, room.a + k * room.a_row);
    return {room.a, 1, room.a_row};
  }
  const int64_t size = a.size();
  if (Unit::pairs && lies_in_pairs(a, block.depth)) return {reinterpret_cast<const float*>(a.data), a.row / 2, 1};
  if constexpr (Unit::a_in_rows) {
    pair_rows_of_a(a.element, {a.data, a.row * size, a.column * size}, p.rows, block.depth, room.a, room.pairs_row);
    return {room.a, room.pairs_row, 1, true};
  }
  if (a.column == 1) {
    pack_rows<Unit::pairs>(a.element, {a.data, a.row * size, size}, p.rows, block.depth, room.a, room.a_row);
    return {room.a, room.a_row, 1};
  }
  pack_elements<Unit::pairs>(a.element, {a.data, a.column * size, size}, block.depth, p.rows, room.a_row, room.a);
  return {room.a, 1, room.a_row};
}

// The next panel of B, whose lines come into the second-level cache while this one is multiplied: a few in each kernel, for what is waited
// for holds up the kernel's own reads. It lies in rows, or transposed in columns: in strips.
class Ahead {
 public:
  // depth x width of it; of depth 0: there is none. This panel has so many kernels, each of so many words.
  Ahead(const Operand<float>& next, int64_t depth, int64_t width, int64_t kernels, int64_t words) : strip_(next.data) {
    const int64_t each = words / 4;
    if (depth == 0 || each == 0) return;
    const int64_t size = next.size(), strips = next.column == 1 ? depth : width, length = next.column == 1 ? width : depth;
    step_ = (next.column == 1 ? next.row : next.column) * size;
    const bool is_aligned = reinterpret_cast<uintptr_t>(next.data) % 64 == 0 && step_ % 64 == 0;
    const int64_t lines = (length * size + 63) / 64 + (is_aligned ? 0 : 1);
    groups_ = (strips + each - 1) / each;
    group_ = each * step_;
    at_once_ = groups_ * lines <= kernels ? 1 : 4;
    lines_ = (lines + at_once_ - 1) / at_once_;
  }
  // Of the next kernel: whether it has any.
  bool fetch(Micro& m) {
    if (groups_ == 0) return false;
    m.prefetch = strip_ + line_ * at_once_ * 64;
    m.prefetch_within = at_once_ == 1 ? 0 : 64;
    m.prefetch_step = step_;
    if (++line_ == lines_) {
      line_ = 0;
      strip_ += group_;
      --groups_;
    }
    return true;
  }

 private:
  const std::byte* strip_;                      // the first of a group
  int64_t step_ = 0, group_ = 0, groups_ = 0;   // bytes to the next strip, to the next group; groups that are left
  int64_t at_once_ = 0, lines_ = 0, line_ = 0;  // of a strip
};

// Rounds what a kernel left in `edge`, whole vectors.
template <Element e> void round_tile(const float* edge, int64_t edge_row, int64_t rows, int64_t columns, std::byte* to, int64_t to_row) {
  for (int64_t r = 0; r < rows; ++r, edge += edge_row, to += to_row) {
#ifdef __AVX512F__
    if constexpr (e == Element::bfloat16) {
      for (int64_t x = 0; x < columns; x += 16) narrow16(edge + x, to + 2 * x);
      continue;
    }
#endif
    for (int64_t x = 0; x < columns; x += 8) narrow8<e>(edge + x, to + 2 * x);
  }
}

// What a kernel left in `edge`, of panels that aren't whole, becomes `columns` of the sums or of C.
inline void finish(const Product<float>& p, int64_t rows, int64_t columns, const float* start, int64_t start_row, float* edge,
                   int64_t edge_row, const Result<float>& to) {
  for (int64_t r = 0; r < rows; ++r) {
    float* const sums = edge + r * edge_row;
    for (int64_t x = 0; x < columns; ++x) sums[x] = start ? std::fma(p.alpha, sums[x], start[r * start_row + x]) : p.alpha * sums[x];
    if (is_half(to.element))
      narrow(to.element, sums, columns, to.from(r, 0).data);
    else
      std::copy_n(sums, columns, to.from(r, 0).own());
  }
}

// depth x columns of a B that is stored in blocks, in rows of `width` floats, zeros behind them.
inline Operand<float> decoded(const Operand<float>& b, int64_t depth, int64_t columns, int64_t width, float* to) {
  if (b.column == 1) {
    for (int64_t k = 0; k < depth; ++k) {
      weight_blocks::decode(b.blocks, b.data, b.first + k * b.row, columns, to + k * width);
      std::fill(to + k * width + columns, to + (k + 1) * width, 0.0f);
    }
  } else {  // a block of each of eight columns at a time
    constexpr int64_t kEach = 8;
    float runs[kEach * kWeightBlock];
    for (int64_t j = 0; j < width; j += kEach) {
      const int64_t n = std::clamp<int64_t>(columns - j, 0, kEach);
      std::fill(runs + n * kWeightBlock, std::end(runs), 0.0f);
      for (int64_t k = 0, run; k < depth; k += run) {
        run = std::min(kWeightBlock, depth - k);
        for (int64_t x = 0; x < n; ++x)
          weight_blocks::decode(b.blocks, b.data, b.first + k * b.row + (j + x) * b.column, run, runs + x * kWeightBlock);
        float* const at = to + k * width + j;
        int64_t y = 0;
        for (; y + kEach <= run; y += kEach) transpose8(runs + y, kWeightBlock, at + y * width, width);
        for (; y < run; ++y) {
          for (int64_t x = 0; x < kEach; ++x) at[y * width + x] = runs[x * kWeightBlock + y];
        }
      }
    }
  }
  Operand<float> result(to, width);
  result.element = b.element;
  return result;
}

// One panel of one depth block, all rows.
template <typename Unit>
void multiply_panel(const Product<float>& p, const Words& a, const Block& block, int64_t j, int64_t columns, int64_t width,
                    const Room& room) {
  const int64_t depth = block.depth;
  Operand<float> b = p.b.from(block.begin, j);
  const bool in_blocks = b.is_in_blocks(), is_own = b.element == Element::own, is_whole = columns == width;
  const bool is_packed = in_blocks && is_own && !Unit::pairs;  // by being decoded
  if (in_blocks) b = decoded(b, depth, columns, width, is_packed ? room.panel : room.decoded);
  const bool direct = b.column == 1 && is_whole && !is_packed;
  const bool few = direct && is_own && p.rows <= kRows;  // B is read once: no copy
  const bool packing =                                   // the first rows copy
      Unit::packs && direct && !few && p.rows >= kRows && p.triangle == Triangle::none && (!Unit::pairs || depth % 2 == 0);
  const bool before = !few && !packing && !is_packed;
  if (before && !is_own)
    pack_elements<Unit::pairs>(b.element, {b.data, b.row * b.size(), b.column * b.size()}, depth, columns, width, room.panel);
  if (before && is_own) pack(b.own(), b.row, b.column, depth, columns, width, room.panel);
  // Sums go to C, or stay in float32 until the last block rounds them.
  const bool rounds = is_half(p.c.element) && block.last;
  const Matrix<float> sums = is_half(p.c.element) ? Matrix<float>{room.sums, room.sums_row} : Matrix<float>{p.c.own(), p.c.row};
  const Result<float> result = rounds ? p.c : Result<float>(sums);
  const Matrix<const float> start = block.first ? p.start : Matrix<const float>{sums.data, sums.row};
  float edge[Unit::rows * Unit::width];
  // Of a block that isn't whole: what sums that go on begin with, and zeros behind it.
  const bool goes_on = Unit::goes_on && p.alpha == 1;
  float begin_with[Unit::goes_on ? Unit::rows * Unit::width : 1];
  // Behind the last panel comes the first of the next block.
  const bool is_last = j + columns >= p.columns;
  const int64_t next_depth = in_blocks ? 0 : is_last ? std::min(depth, p.depth - block.begin - depth) : depth;
  const int64_t next_width = is_last ? std::min(Unit::width, p.columns) : std::min(width, p.columns - j - columns);
  Ahead ahead(is_last ? p.b.from(block.begin + depth, 0) : p.b.from(block.begin, j + columns), next_depth, next_width,
              (p.rows + Unit::rows - 1) / Unit::rows, words_of<Unit>(depth));
  const bool in_rows = a.depth == 1;
  const MicroKernel whole = Unit::kernel(Unit::rows, width, in_rows);
  const float* const words = few ? b.own() : room.panel;  // of B
  Micro m{.depth = words_of<Unit>(depth),
          .skipped = 0,
          .rows = Unit::rows,
          .a = a.data,
          .a_row = a.row,
          .a_depth = a.depth,
          .a_is_padded = a.is_padded,
          .b = words,
          .b_depth = few ? b.row : width,
          .panel = room.panel,
          .prefetch = reinterpret_cast<const std::byte*>(a.data),
          .c = edge,
          .c_row = rounds || !is_whole ? Unit::width : result.row,
          .result = nullptr,
          .result_row = result.row * result.size(),
          .start = nullptr,
          .start_row = start.row,
          .alpha = is_whole ? p.alpha : 1};
  for (int64_t i = 0; i < p.rows; i += m.rows) {
    m.rows = std::min<int64_t>(packing && i == 0 ? Unit::packing_rows : Unit::rows, p.rows - i);
    m.a = a.data + i * a.row;
    if (p.triangle != Triangle::none) {
      int64_t begin = 0, end = depth;
      if (p.triangle == Triangle::result && j > i + m.rows - 1 + p.diagonal) continue;
      if (p.triangle == Triangle::a_lower) end = std::clamp<int64_t>(i + m.rows + p.diagonal - block.begin, 0, depth);
      if (p.triangle == Triangle::a_upper) begin = std::clamp<int64_t>(i + p.diagonal - block.begin, 0, depth);
      if (begin >= end && !block.first) continue;
      if (Unit::pairs) begin = begin / 2;
      end = std::max(begin, words_of<Unit>(end));  // from here on in words
      m.skipped = begin - Unit::aligned(begin);
      begin -= m.skipped;
      m.depth = end - begin;
      m.a += begin * a.depth;
      m.b = words + begin * m.b_depth;
    }
    const Result<float> to = result.from(i, j);
    m.result = to.data;
    if (!rounds && is_whole) m.c = to.own();
    if (start.data && is_whole) m.start = start.data + i * start.row + j;
    if (start.data && goes_on && (!is_whole || m.rows < Unit::rows)) {
      std::fill(std::begin(begin_with), std::end(begin_with), 0.0f);
      for (int64_t r = 0; r < m.rows; ++r) std::copy_n(start.data + (i + r) * start.row + j, columns, begin_with + r * Unit::width);
      m.start = begin_with;
      m.start_row = Unit::width;
    }
    if (!ahead.fetch(m)) {
      const bool is_next = a.row == 1 && j == 0;  // the next rows of a transposed A
      m.prefetch = reinterpret_cast<const std::byte*>(is_next ? m.a + 2 * Unit::rows : a.data);
      m.prefetch_step = 4 * (m.prefetch_within = is_next ? a.depth * int64_t{sizeof(float)} : 0);
    }
    if (packing && i == 0) {
      if constexpr (Unit::packs) {
        Micro first = m;
        first.b = b.data;
        first.b_depth = Unit::pairs ? 2 * b.row : b.row;
        Unit::packing_kernel(b.element, width)(first);
      }
    } else {
      (m.rows == Unit::rows ? whole : Unit::kernel(m.rows, width, in_rows))(m);
    }
    if (!is_whole) {  // not all that a kernel would read of `start` is there
      finish(p, m.rows, columns, start.data && !goes_on ? start.data + i * start.row + j : nullptr, start.row, edge, Unit::width, to);
    } else if (rounds) {
      p.c.element == Element::bfloat16 ? round_tile<Element::bfloat16>(edge, Unit::width, m.rows, columns, to.data, m.result_row)
                                       : round_tile<Element::float16>(edge, Unit::width, m.rows, columns, to.data, m.result_row);
    }
  }
}

template <typename Unit> void multiply(const Product<float>& p, std::byte* workspace) {
  [[maybe_unused]] const typename Unit::Session session;
  const Room room = room_of(p, workspace).first;
  int64_t size = p.block > 0 ? p.block : depth_block(p.depth);
  if constexpr (Unit::goes_on) {
    const bool is_there = p.words.data || lies_in_pairs(p.a, p.depth);  // a: else its room is that of a block
    if (p.alpha == 1 && size % (2 * kTileStep) == 0 && is_there && !p.b.is_in_blocks()) size = std::max(size, kJoinedDepth / size * size);
  }
  int64_t begin = 0;
  do {
    const Block block{begin, std::min(size, p.depth - begin), begin == 0, begin + size >= p.depth};
    const Words a = words_of_a<Unit>(p, block, room);
    for (int64_t j = 0, width; j < p.columns; j += width) {
      width = Unit::panel(p.columns - j);
      multiply_panel<Unit>(p, a, block, j, std::min(width, p.columns - j), width, room);
    }
    begin += size;
  } while (begin < p.depth);
}

// For other element types: columns side by side. Integers wrap around.
template <typename T> void multiply_plainly(const Product<T>& p) {
  using Sum = Wrapping<T>;
  constexpr int64_t kColumns = 64;
  const int64_t block = p.block > 0 ? p.block : depth_block(p.depth);
  for (int64_t i = 0; i < p.rows; ++i) {
    const int64_t begin = p.triangle == Triangle::a_upper ? std::max<int64_t>(0, i + p.diagonal) : 0;
    const int64_t end = p.triangle == Triangle::a_lower ? std::min(p.depth, i + p.diagonal + 1) : p.depth;
    T* c = p.c.own() + i * p.c.row;
    const T* start = p.start.data ? p.start.data + i * p.start.row : nullptr;
    for (int64_t j = 0; j < p.columns; j += kColumns) {
      const int64_t n = std::min(kColumns, p.columns - j);
      for (int64_t y = 0; y < n; ++y) c[j + y] = start ? start[j + y] : T(0);
      for (int64_t first = begin / block * block; first < end; first += block) {
        Sum sum[kColumns] = {};
        for (int64_t k = std::max(begin, first); k < std::min(end, first + block); ++k) {
          const auto x = static_cast<Sum>(p.a.own()[i * p.a.row + k * p.a.column]);
          const T* b = p.b.own() + k * p.b.row + j * p.b.column;
          for (int64_t y = 0; y < n; ++y) sum[y] += x * static_cast<Sum>(b[y * p.b.column]);
        }
        for (int64_t y = 0; y < n; ++y) c[j + y] = static_cast<T>(static_cast<Sum>(c[j + y]) + static_cast<Sum>(p.alpha) * sum[y]);
      }
    }
  }
}

}  // namespace gemm

// Bytes of the workspace of one thread for this product and all with smaller sizes; a multiple of 64. Data doesn't matter.
template <typename T> int64_t product_workspace(const Product<T>& largest) {
  if constexpr (std::is_same_v<T, float>) return gemm::room_of(largest, nullptr).second;
  return 0;
}

template <typename T> void multiply(const Product<T>& product, std::byte* workspace) {
  if constexpr (!std::is_same_v<T, float>) {
    gemm::multiply_plainly(product);
  } else {
    switch (gemm::way_of(product.a.element, product.b.element)) {
#ifdef __AVX512F__
      case gemm::Way::tiles:
        return gemm::multiply<gemm::Tiles<gemm::TileRegisters>>(product, workspace);
      case gemm::Way::pairs:
        return gemm::multiply<gemm::DotPairs>(product, workspace);
#endif
      default:
#ifdef __AVX512F__
        if (gemm::prefers_tall() && product.rows > gemm::kRows && product.triangle == Triangle::none)
          return gemm::multiply<gemm::TallFused>(product, workspace);
#endif
        return gemm::multiply<gemm::Fused>(product, workspace);
    }
  }
}

ORT_TRAIN_OPS_END
