// Scattering on CUDA devices in the order of the updates, without atomic operations: the updates are sorted by where they go and, of one
// place, by number; then the thread at the first of a place takes all of them in turn. So sums have the order of RowScatter
// (exec/scatter.h).
//
// What is sorted are words of 64 bits, place * 2^bits + number, no two of which are equal: tiles of 4096 in shared memory, then runs by
// fours: an update's rank is its number in its own run and that of smaller ones in the three others. 65,536 updates take three launches,
// and adding one more; whatever the table starts from is written by the first launch.

#pragma once

#include <bit>

#include "exec/cuda/indexing.h"
#include "exec/cuda/moves.h"
#include "exec/cuda/pack.h"
#include "exec/cuda/unroll.h"
#include "exec/scatter.h"

ORT_TRAIN_OPS_BEGIN

// What a table starts from: zeros or a copy of other data. Both begin at multiples of 16 bytes.
struct TableStart {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;  // null: zeros
  int64_t bytes = 0;

  static constexpr int kEach = 4;  // words of a thread
  template <int threads> int64_t blocks() const {
    constexpr int64_t kBlock = int64_t{16} * kEach * threads;
    return (bytes + kBlock - 1) / kBlock;
  }
  template <int threads> HOST_DEVICE void write(int64_t block, int thread) const {
    const int64_t words = bytes / 16, first = block * kEach * threads + thread;
    WideWord taken[kEach] = {};
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kEach; ++k) {
      if (from && first + k * threads < words) taken[k] = reinterpret_cast<const WideWord*>(from)[first + k * threads];
    }
    ORT_TRAIN_UNROLL
    for (int k = 0; k < kEach; ++k) {
      if (first + k * threads < words) reinterpret_cast<WideWord*>(to)[first + k * threads] = taken[k];
    }
    const int64_t at = words * 16 + thread;
    if (block == 0 && at < bytes) to[at] = from ? from[at] : std::byte{};
  }
};

// Updates that are sorted: places from 0 to places - 1, numbers from 0 to count - 1.
struct SortedLayout {
  static constexpr int kTileShift = 12, kTile = 1 << kTileShift;
  int64_t count = 0, places = 0;
  int bits = 0;  // of a number

  SortedLayout(int64_t count, int64_t places) : count(count), places(places), bits(std::bit_width(static_cast<uint64_t>(count))) {
    if (bits + std::bit_width(static_cast<uint64_t>(places) + 1) > 64)
      throw error(ErrorCode::unsupported, "{} updates of {} places are too many to be sorted", count, places);
  }
  int64_t tiles() const { return (count + kTile - 1) / kTile; }
  // Of one list, or of two between which merging goes to and fro.
  int64_t workspace() const { return count * (tiles() > 1 ? 2 : 1) * static_cast<int64_t>(sizeof(uint64_t)); }

  // No place's: behind all others.
  HOST_DEVICE uint64_t word(int64_t place, int64_t number) const {
    return static_cast<uint64_t>(place < 0 ? places : place) << bits | static_cast<uint64_t>(number);
  }
  HOST_DEVICE int64_t place(uint64_t word) const { return static_cast<int64_t>(word >> bits); }
  HOST_DEVICE int64_t number(uint64_t word) const { return static_cast<int64_t>(word & ((uint64_t{1} << bits) - 1)); }
};

// Sorts each tile of the updates; blocks behind the tiles' write what the table starts from. place(i): of update i, negative: nowhere.
template <class Place> struct SortTiles {
  static constexpr int kThreads = 1024;
  static constexpr int kTile = SortedLayout::kTile;
  struct Shared {
    uint64_t words[kTile];
  };
  Place place;
  SortedLayout layout;
  uint64_t* sorted;
  TableStart start;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const int64_t tiles = (layout.count + kTile - 1) / kTile;
    if (block.index >= tiles) {
      block.each([&](int t) { start.template write<kThreads>(block.index - tiles, t); });
      return;
    }
    const int64_t first = block.index * kTile, here = layout.count - first < kTile ? layout.count - first : kTile;
    uint64_t(&words)[kTile] = block.shared.words;
    int width = 1;
    while (width < here) width *= 2;
    block.each([&](int t) {
      for (int i = t; i < width; i += kThreads) words[i] = i < here ? layout.word(place(first + i), first + i) : ~uint64_t{0};
    });
    for (int size = 2; size <= width; size *= 2) {  // a bitonic network
      for (int stride = size / 2; stride > 0; stride /= 2) {
        block.each([&](int t) {
          for (int pair = t; pair < width / 2; pair += kThreads) {
            const int i = 2 * pair - (pair & (stride - 1));
            const uint64_t a = words[i], b = words[i + stride];
            if ((a > b) == ((i & size) == 0)) words[i] = b, words[i + stride] = a;
          }
        });
      }
    }
    block.each([&](int t) {
      for (int i = t; i < here; i += kThreads) sorted[first + i] = words[i];
    });
  }
};

// Four sorted runs of 2^shift words each become one.
struct MergeRuns {
  const uint64_t* from;
  uint64_t* to;
  int64_t count;
  int shift;

  HOST_DEVICE void operator()(int64_t i) const {
    constexpr int kRuns = 4;
    const int64_t run = int64_t{1} << shift, first = i >> (shift + 2) << (shift + 2);
    const uint64_t word = from[i];
    int64_t smaller[kRuns] = {}, length[kRuns];
    ORT_TRAIN_UNROLL
    for (int r = 0; r < kRuns; ++r) {
      const int64_t rest = count - first - r * run;
      length[r] = rest < 0 ? 0 : rest < run ? rest : run;
    }
    for (int64_t step = run; step > 0; step /= 2) {
      ORT_TRAIN_UNROLL
      for (int r = 0; r < kRuns; ++r) {
        const int64_t next = smaller[r] + step;
        if (next <= length[r] && from[first + r * run + next - 1] < word) smaller[r] = next;
      }
    }
    to[first + smaller[0] + smaller[1] + smaller[2] + smaller[3]] = word;
  }
};

// Sorts the updates in the workspace and returns where they lie; writes `start`, too.
template <class Place>
const uint64_t* launch_sort(const SortedLayout& layout, const Place& place, const TableStart& start, std::byte* workspace,
                            const KernelArgs& args) {
  using Tiles = SortTiles<Place>;
  auto *from = reinterpret_cast<uint64_t*>(workspace), *to = from + layout.count;
  launch(Tiles{place, layout, from, start}, layout.tiles() + start.blocks<Tiles::kThreads>(), args);
  for (int shift = SortedLayout::kTileShift; int64_t{1} << shift < layout.count; shift += 2) {
    launch_elements(MergeRuns{from, to, layout.count, shift}, layout.count, args);
    std::swap(from, to);
  }
  return from;
}

// out[o, place, :] = combine(out[o, place, :], from[o, number, :]) for ascending numbers of each place, for each of `outer` tables of
// `places` rows. A thread takes `width` columns, sums in Sum and rounds once; `from_zero`: the table's zeros needn't be read.
template <typename T, typename Combine, typename Sum, int width> struct CombineSorted {
  using Columns = Pack<T, width>;
  static constexpr int kThreads = 256;
  static constexpr int kAhead = sizeof(Columns) >= 4 ? 16 : 8;  // rows that are on their way at once
  using Shared = NoShared;
  const uint64_t* sorted;
  SortedLayout layout;
  Columns* out;
  const Columns* from;
  int64_t outer;
  Size row, count;  // of so many packs, of so many updates
  bool from_zero;

  HOST_DEVICE int64_t threads() const { return outer * count.size * row.size; }
  int64_t blocks() const { return (threads() + kThreads - 1) / kThreads; }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t i = block.index * kThreads + t;
      const bool small = threads() <= INT32_MAX;
      if (i >= threads()) return;
      const Size::Place at = row.split(i, small), update = count.split(at.above, small);
      combine(update.above, update.place, at.place);
    });
  }

 private:
  HOST_DEVICE void combine(int64_t o, int64_t first, int64_t column) const {
    const int64_t place = layout.place(sorted[first]);
    if (place == layout.places || (first > 0 && layout.place(sorted[first - 1]) == place)) return;
    const Columns* const updates = from + o * count.size * row.size + column;
    Columns& to = out[(o * layout.places + place) * row.size + column];
    Sum sum[width];
    const Columns before = from_zero ? Columns{} : to;
    ORT_TRAIN_UNROLL
    for (int c = 0; c < width; ++c) sum[c] = static_cast<Sum>(load(before.of[c]));
    bool more = true;
    for (int64_t n = first; more; n += kAhead) {
      Columns update[kAhead];
      bool taken[kAhead];
      ORT_TRAIN_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        const uint64_t word = n + k < count.size ? sorted[n + k] : ~uint64_t{0};
        taken[k] = layout.place(word) == place;
        if (taken[k]) update[k] = updates[layout.number(word) * row.size];
      }
      ORT_TRAIN_UNROLL
      for (int k = 0; k < kAhead; ++k) {
        ORT_TRAIN_UNROLL
        for (int c = 0; c < width; ++c) sum[c] = taken[k] ? Combine::combine(sum[c], static_cast<Sum>(load(update[k].of[c]))) : sum[c];
      }
      more = taken[kAhead - 1];
    }
    Columns result;
    ORT_TRAIN_UNROLL
    for (int c = 0; c < width; ++c) result.of[c] = store<T>(static_cast<Compute<T>>(sum[c]));
    to = result;
  }
};

// As CombineSorted, rows of `row` elements.
template <typename T, typename Combine, typename Sum = Compute<T>>
void launch_combine(const SortedLayout& layout, const uint64_t* sorted, T* out, const T* from, int64_t outer, int64_t row, bool from_zero,
                    const KernelArgs& args) {
  const auto run = [&]<int width>() {
    using Columns = Pack<T, width>;
    const CombineSorted<T, Combine, Sum, width> kernel{sorted,
                                                       layout,
                                                       reinterpret_cast<Columns*>(out),
                                                       reinterpret_cast<const Columns*>(from),
                                                       outer,
                                                       Size(row / width),
                                                       Size(layout.count),
                                                       from_zero};
    launch(kernel, kernel.blocks(), args);
  };
  constexpr int kWide = sizeof(T) == 8 ? 2 : 4;
  if (row % kWide == 0)
    run.template operator()<kWide>();
  else
    run.template operator()<1>();
}

ORT_TRAIN_OPS_END
