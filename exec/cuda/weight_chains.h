// The order of the sums that make a convolution's dw, and operands in that order for products in tiles (exec/cuda/gemm.h).
//
// As on the processor, the batch is divided into pieces, a piece into tiles of windows, of some samples or of a part of one, and a tile
// into chains: the blocks of its product's depth. A piece's chains are added upwards, then the pieces.

#pragma once

#include "exec/cuda/convolution.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// Elements [begin, begin + length) of a tile that has `windows` windows, from `column` on, of each of its samples, from n on.
struct WeightChain {
  int64_t n, column, windows, begin, length;
};

struct WeightChains {
  int64_t batch = 0, all = 0;                           // samples; windows of each
  int64_t piece_samples = 0, samples = 0, columns = 0;  // of pieces and of tiles

  WeightChains(const Layout& l, const WeightTiles& tiles)
      : batch(l.batch), all(l.windows.out_size()), piece_samples(tiles.piece_samples), samples(tiles.samples), columns(tiles.columns) {}

  HOST_DEVICE static int64_t of_tile(int64_t wide) {
    const int64_t block = depth_block(wide);
    return (wide + block - 1) / block;
  }
  // Of tiles of so many samples, across all windows.
  HOST_DEVICE int64_t across(int64_t together) const {
    const int64_t rest = all % columns;
    return all / columns * of_tile(together * columns) + (rest > 0 ? of_tile(together * rest) : 0);
  }
  HOST_DEVICE int64_t samples_of(int64_t piece) const { return lesser(piece_samples, batch - piece * piece_samples); }
  HOST_DEVICE int64_t count(int64_t piece) const {
    const int64_t here = samples_of(piece), rest = here % samples;
    return here / samples * across(samples) + (rest > 0 ? across(rest) : 0);
  }
  // Of a piece.
  int64_t longest(int64_t piece) const {
    const int64_t here = samples_of(piece);
    int64_t most = 0;
    for (const int64_t together : {std::min(samples, here), here % samples}) {
      for (const int64_t windows : {columns, all % columns})
        most = std::max(most, std::min(depth_block(together * windows), together * windows));
    }
    return most;
  }

  HOST_DEVICE WeightChain at(int64_t piece, int64_t chain) const {
    const int64_t each = across(samples), row = chain / each, left = samples_of(piece) - row * samples;
    const int64_t together = lesser(samples, left), per_tile = of_tile(together * columns);
    const int64_t in_row = chain - row * each, whole = all / columns;  // tiles across that have all columns
    const int64_t tile = lesser(in_row / per_tile, whole);
    const int64_t windows = tile < whole ? columns : all - whole * columns, wide = together * windows, block = depth_block(wide);
    const int64_t begin = (in_row - tile * per_tile) * block;
    return {piece * piece_samples + row * samples, tile * columns, windows, begin, lesser(block, wide - begin)};
  }
};

// The chains of pieces of equally many samples as the depth of a product, each as long as the longest: behind a shorter one stand elements
// that leave its sum as it is. An operand brings neighbours along the depth.
class ChainDepth {
 public:
  ChainDepth(const WeightChains& chains, int64_t piece)
      : count_(static_cast<unsigned>(chains.count(piece))),
        longest_(chains.longest(piece)),
        all_(chains.all),
        each_(chains.across(chains.samples)),
        piece_samples_(static_cast<int>(chains.piece_samples)),
        samples_(static_cast<int>(chains.samples)),
        columns_(static_cast<int>(chains.columns)) {
    const int64_t here = chains.samples_of(piece), last = chains.all % chains.columns;
    whole_rows_ = static_cast<unsigned>(here / chains.samples);
    whole_tiles_ = static_cast<unsigned>(chains.all / chains.columns);
    for (const bool whole : {false, true}) {
      const int64_t together = whole ? chains.samples : std::max<int64_t>(1, here % chains.samples);
      Row& row = whole ? whole_ : rest_;
      row.per_tile = Divisor(WeightChains::of_tile(together * chains.columns));
      row.wide = static_cast<int>(together * chains.columns);
      row.last_wide = static_cast<int>(together * last);
      row.block = static_cast<int>(depth_block(row.wide));
      row.last_block = static_cast<int>(depth_block(row.last_wide));
    }
  }
  int64_t longest() const { return longest_.divisor; }
  int64_t depth() const { return int64_t{count_} * longest_.divisor; }

  // Where a slice is: k counts the depth; the rest is of its chain.
  struct Place {
    unsigned k, next;  // the next chain's k
    int end;           // of its elements
    int shift;         // from k to elements of the tile
    int n, column;
  };
  HOST_DEVICE Place place(int64_t piece, int64_t k) const {
    Place place{.k = static_cast<unsigned>(k)};
    find(place, static_cast<int>(piece));
    return place;
  }
  HOST_DEVICE void advance(Place& place, int64_t piece, int64_t depth) const {
    place.k += static_cast<unsigned>(depth);
    if (place.k >= place.next) find(place, static_cast<int>(piece));
  }

  struct Window {
    int n, window;
    bool inside;
  };
  // Of an element of the slice.
  HOST_DEVICE Window window(const Place& place, int k) const {
    const int at = static_cast<int>(place.k) + k;
    if (at >= place.end) return {0, 0, false};
    const int element = at + place.shift;
    if (samples_ == 1) return {place.n, place.column + element, true};
    const Digit of = split(static_cast<uint32_t>(element), all_);  // such tiles have all windows of each sample
    return {place.n + static_cast<int>(of.above), static_cast<int>(of.digit), true};
  }

 private:
  // Tiles of equally many samples.
  struct Row {
    Divisor per_tile;       // chains
    int wide, last_wide;    // elements of a tile, of the last one
    int block, last_block;  // of its chains
  };

  HOST_DEVICE void find(Place& place, int piece) const {
    const uint32_t chain = longest_.quotient(place.k), first = chain * longest_.divisor;
    const Digit row = split(chain, each_);
    const bool whole = row.above < whole_rows_;
    const uint32_t per_tile = whole ? whole_.per_tile.divisor : rest_.per_tile.divisor;
    uint32_t tile = whole ? whole_.per_tile.quotient(row.digit) : rest_.per_tile.quotient(row.digit);
    if (tile > whole_tiles_) tile = whole_tiles_;
    const bool is_last = tile == whole_tiles_;
    const int block = is_last ? (whole ? whole_.last_block : rest_.last_block) : (whole ? whole_.block : rest_.block);
    const int wide = is_last ? (whole ? whole_.last_wide : rest_.last_wide) : (whole ? whole_.wide : rest_.wide);
    const int begin = static_cast<int>(row.digit - tile * per_tile) * block, left = wide - begin;
    place.next = first + longest_.divisor;
    place.end = static_cast<int>(first) + (chain >= count_ ? 0 : left < block ? left : block);  // a team may have none
    place.shift = begin - static_cast<int>(first);
    place.n = piece * piece_samples_ + static_cast<int>(row.above) * samples_;
    place.column = static_cast<int>(tile) * columns_;
  }

  unsigned count_;  // of chains
  Divisor longest_, all_, each_;
  int piece_samples_, samples_, columns_;
  unsigned whole_rows_, whole_tiles_;
  Row whole_, rest_;
};

// dy: n counts channels.
struct ChainRows {
  ChainDepth depth;
  int64_t piece = 0;
  const std::byte* data = nullptr;  // the first channel in the first sample
  Element element = Element::own;
  int64_t sample = 0, channel = 0, count = 0;  // elements from one to the next; of channels

  struct Place {
    ChainDepth::Place at;
    int n;
  };
  template <class Slice> HOST_DEVICE Place place(int64_t n, int64_t k, unsigned) const {
    return {depth.place(piece, k), static_cast<int>(n)};
  }
  HOST_DEVICE void advance(Place& place, int64_t deeper) const { depth.advance(place.at, piece, deeper); }
  template <class Slice> HOST_DEVICE void load(const Place& place, int left, unsigned thread, typename Slice::Words& words) const {
    using Parts = SliceParts<Slice, true>;
    const int k = Parts::k(thread, 0), n = place.n + Parts::n(thread, 0);
    const ChainDepth::Window window = depth.window(place.at, k);
    const bool inside = window.inside && k < left;
    const std::byte* const from = data + (window.n * sample + window.window + n * channel) * bytes_each<float>(element);
    ORT_TRAIN_UNROLL
    for (int i = 0; i < Slice::each; ++i) {
      const bool here = inside && n + Parts::n(0, i) < count;
      words.of[i] = here ? bits_at(from, element, Parts::n(0, i) * channel) : static_cast<uint32_t>(tiled::Beyond::minus_zero);
    }
  }
  template <class Slice> HOST_DEVICE void store(const typename Slice::Words& words, unsigned thread, typename Slice::Row* to) const {
    SliceParts<Slice, true>::store(element, words, thread, to);
  }
};

// x: n counts channels and taps.
struct ChainColumns {
  ChainDepth depth;
  int64_t piece = 0;
  const std::byte* data = nullptr;  // the first channel in the first sample
  Element element = Element::own;
  WindowAxis h, w;
  Divisor across, taps, taps_across;
  int64_t image = 0, plane = 0, count = 0;  // elements of a sample and of a channel; of channels and taps

  struct Place {
    ChainDepth::Place at;
    int n;
  };
  template <class Slice> HOST_DEVICE Place place(int64_t n, int64_t k, unsigned) const {
    return {depth.place(piece, k), static_cast<int>(n)};
  }
  HOST_DEVICE void advance(Place& place, int64_t deeper) const { depth.advance(place.at, piece, deeper); }
  template <class Slice> HOST_DEVICE void load(const Place& place, int left, unsigned thread, typename Slice::Words& words) const {
    using Parts = SliceParts<Slice, true>;
    const int k = Parts::k(thread, 0), n = place.n + Parts::n(thread, 0);
    const ChainDepth::Window window = depth.window(place.at, k);
    const bool inside = window.inside && k < left;
    const Digit row = split(static_cast<uint32_t>(window.window), across);
    const int y = static_cast<int>(h.at(row.above, 0)), x = static_cast<int>(w.at(row.digit, 0));
    const std::byte* const from = data + window.n * image * bytes_each<float>(element);
    ORT_TRAIN_UNROLL
    for (int i = 0; i < Slice::each; ++i) words.of[i] = inside && n + Parts::n(0, i) < count ? bits(from, n + Parts::n(0, i), y, x) : 0;
  }
  template <class Slice> HOST_DEVICE void store(const typename Slice::Words& words, unsigned thread, typename Slice::Row* to) const {
    SliceParts<Slice, true>::store(element, words, thread, to);
  }

 private:
  HOST_DEVICE uint32_t bits(const std::byte* from, int n, int y, int x) const {
    const Digit channel = split(static_cast<uint32_t>(n), taps), tap = split(channel.digit, taps_across);
    return tap_bits(from, element, channel.above * plane, h, w, y, x, tap);
  }
};

}  // namespace convolution
ORT_TRAIN_OPS_END
