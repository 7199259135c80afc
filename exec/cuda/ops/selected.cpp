// FindSelected, KeepFirst and RepeatLast. Their meaning: exec/ops/selected.cpp.
//
// FindSelected counts what each block of the mask selects; then each block adds up the counts before its own, so that it knows where its
// first selected element goes, whatever the order in which blocks run.

#include "exec/ops/selected.h"

#include <algorithm>
#include <array>

#include "exec/cuda/copy.h"
#include "exec/cuda/indexing.h"
#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// --- FindSelected ---------------------------------------------------------------------------------------------------------------------

constexpr int kMaskThreads = 256, kMaskEach = 16, kMaskWarps = kMaskThreads / 32;
constexpr int64_t kMaskBlock = kMaskThreads * kMaskEach;

// At least one: which says that nothing is selected where there is nothing.
int64_t mask_blocks(int64_t size) { return std::max<int64_t>(1, (size + kMaskBlock - 1) / kMaskBlock); }

// f(i) for each selected element of a thread, upwards.
template <typename T, typename F> HOST_DEVICE inline void each_selected(const T* mask, int64_t size, int64_t block, int thread, F&& f) {
  const int64_t first = block * kMaskBlock + int64_t{thread} * kMaskEach;
  for (int k = 0; k < kMaskEach; ++k) {
    if (first + k < size && load(mask[first + k]) != Compute<T>{}) f(first + k);
  }
}

template <typename T> struct CountSelected {
  static constexpr int kThreads = kMaskThreads;
  struct Shared {
    int64_t warps[kMaskWarps];
  };
  const T* mask;
  int64_t size;
  int64_t* counts;  // of each block
  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<int64_t> count;
    block.each([&](int t) {
      count[t] = 0;
      each_selected(mask, size, block.index, t, [&](int64_t) { ++count[t]; });
    });
    block.template fold<32>(count, Plus{});
    block.each([&](int t) {
      if (t % 32 == 0) block.shared.warps[t / 32] = count[t];
    });
    block.each([&](int t) {
      if (t != 0) return;
      int64_t sum = 0;
      for (int warp = 0; warp < kMaskWarps; ++warp) sum += block.shared.warps[warp];
      counts[block.index] = sum;
    });
  }
};

struct MaskShape {
  int rank = 0;
  bool small = false;
  std::array<Size, kMaxAxes> dims;
  explicit MaskShape(const Shape& shape) : rank(static_cast<int>(shape.size())), small(element_count(shape) <= INT32_MAX) {
    if (rank > kMaxAxes) throw error(ErrorCode::unsupported, "the shape {} has more axes than are supported", to_string(shape));
    for (int axis = 0; axis < rank; ++axis) dims[axis] = Size(shape[axis]);
  }
};

template <typename T> struct WriteSelected {
  static constexpr int kThreads = kMaskThreads;
  struct Shared {
    int64_t before[kMaskWarps], total[kMaskWarps];
    int place[2][kMaskThreads];  // of what a thread selects in the block: how many up to its last
    int64_t last;                // the last element that is written, where it is of this block; -1 else
  };
  MaskShape shape;
  const T* mask;
  int64_t size, blocks, limit;
  bool exact;
  const int64_t* counts;
  int64_t *indices, *count;
  DataError* error;

  // Writes element i's indices to column `to`.
  HOST_DEVICE void write(int64_t i, int64_t to) const {
    for (int axis = shape.rank - 1; axis >= 0; --axis) {
      const Size::Place place = shape.dims[axis].split(i, shape.small);
      indices[axis * limit + to] = place.place;
      i = place.above;
    }
  }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    Shared& shared = block.shared;
    typename Block::template Own<int64_t> before, total;  // selected before this block, and in all
    sum_counts(block, before, total);
    block.each([&](int t) {
      int own = 0;
      each_selected(mask, size, block.index, t, [&](int64_t) { ++own; });
      shared.place[0][t] = own;
      if (t == 0) shared.last = -1;
    });
    int from = 0;
    for (int step = 1; step < kThreads; step *= 2, from = 1 - from)
      block.each([&](int t) { shared.place[1 - from][t] = shared.place[from][t] + (t >= step ? shared.place[from][t - step] : 0); });
    block.each([&](int t) {
      int64_t to = before[t] + (t > 0 ? shared.place[from][t - 1] : 0);
      each_selected(mask, size, block.index, t, [&](int64_t i) {
        if (to < limit) write(i, to);
        if (++to == (total[t] < limit ? total[t] : limit)) shared.last = i;
      });
    });
    block.each([&](int t) {
      if (block.index == 0 && t == 0) finish(total[t]);
      if (total[t] == 0 && block.index == 0) {
        for (int64_t i = t; i < shape.rank * limit; i += kThreads) indices[i] = 0;
      }
      if (shared.last < 0) return;
      for (int64_t to = total[t] + t; to < limit; to += kThreads) write(shared.last, to);
    });
  }

  template <class Block, class Counts> HOST_DEVICE void sum_counts(Block& block, Counts& before, Counts& total) const {
    block.each([&](int t) {
      before[t] = total[t] = 0;
      for (int64_t i = t; i < blocks; i += kThreads) {
        total[t] += counts[i];
        if (i < block.index) before[t] += counts[i];
      }
    });
    block.template fold<32>(before, Plus{});
    block.template fold<32>(total, Plus{});
    block.each([&](int t) {
      if (t % 32 == 0) block.shared.before[t / 32] = before[t], block.shared.total[t / 32] = total[t];
    });
    block.each([&](int t) {
      before[t] = total[t] = 0;
      for (int warp = 0; warp < kMaskWarps; ++warp) before[t] += block.shared.before[warp], total[t] += block.shared.total[warp];
    });
  }

  HOST_DEVICE void finish(int64_t selected) const {
    if (selected > limit || (exact && selected != limit)) error->report(exact ? DataError::selected : DataError::limit, selected, limit, 0);
    *count = selected < limit ? selected : limit;
  }
};

Workspace find_workspace(const KernelSpec& spec) {
  return {.shared = mask_blocks(element_count(spec.inputs[0].shape)) * static_cast<int64_t>(sizeof(int64_t))};
}

KernelRun prepare_find(const KernelSpec& spec) {
  return for_type(Selectable{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const Shape& shape = spec.inputs[0].shape;
    return [shape = MaskShape(shape), size = element_count(shape), limit = spec.attributes.get("limit", 0),
            exact = spec.attributes.get("exact", 0) != 0](const KernelArgs& args) {
      int64_t* const counts = reinterpret_cast<int64_t*>(args.workspace);
      const int64_t blocks = mask_blocks(size);
      launch(CountSelected<T>{args.in<T>(0), size, counts}, blocks, args);
      launch(WriteSelected<T>{.shape = shape,
                              .mask = args.in<T>(0),
                              .size = size,
                              .blocks = blocks,
                              .limit = limit,
                              .exact = exact,
                              .counts = counts,
                              .indices = args.out<int64_t>(0),
                              .count = args.out<int64_t>(1),
                              .error = args.error},
             blocks, args);
    };
  });
}

// --- KeepFirst, RepeatLast ------------------------------------------------------------------------------------------------------------

// Rows in words.
struct RowLoop {
  Size row, axis;
  bool small;
  int64_t count, word;
  explicit RowLoop(const SelectedRows& rows) : axis(rows.n), word(word_bytes({rows.bytes})) {
    row = Size(rows.bytes / word);
    count = rows.outer * rows.n * row.size;
    small = count <= INT32_MAX;
  }
};

template <typename Word> struct KeptWords {
  RowLoop loop;
  const Word* x;
  const int64_t* count;
  Word value;
  Word* y;
  HOST_DEVICE Word take(int64_t i) const {
    const int64_t place = loop.axis.split(loop.row.split(i, loop.small).above, loop.small).place;
    return place >= *count ? value : x[i];
  }
  HOST_DEVICE void put(int64_t i, Word word) const { y[i] = word; }
};

KernelRun prepare_keep(const KernelSpec& spec) {
  const std::vector<std::byte> value = value_behind(spec);
  const WideWord repeats = repeated(value.data(), static_cast<int64_t>(value.size()));
  return [loop = RowLoop(SelectedRows(spec)), repeats](const KernelArgs& args) {
    for_wide_word(loop.word, [&]<typename Word>() {
      Word word;
      std::memcpy(&word, &repeats, sizeof word);
      launch_moves(KeptWords<Word>{loop, args.in<Word>(0), args.in<int64_t>(1), word, args.out<Word>(0)}, loop.count, args);
    });
  };
}

template <typename Word> struct RepeatedWords {
  RowLoop loop;
  const Word *x, *otherwise;
  const int64_t* count;
  int64_t most;
  DataError* error;
  Word* y;
  HOST_DEVICE Word take(int64_t i) const {
    const int64_t selected = *count;
    if (i == 0 && selected > most) error->report(DataError::limit, selected, most, 0);
    const Size::Place at = loop.row.split(i, loop.small);
    const int64_t row = repeated_row(at.above, loop.axis.split(at.above, loop.small).place, selected);
    return (selected == 0 ? otherwise : x)[row * loop.row.size + at.place];
  }
  HOST_DEVICE void put(int64_t i, Word word) const { y[i] = word; }
};

KernelRun prepare_repeat(const KernelSpec& spec) {
  return [loop = RowLoop(SelectedRows(spec)), most = spec.attributes.get("most", INT64_MAX)](const KernelArgs& args) {
    for_wide_word(loop.word, [&]<typename Word>() {
      launch_moves(RepeatedWords<Word>{loop, args.in<Word>(0), args.in<Word>(2), args.in<int64_t>(1), most, args.error, args.out<Word>(0)},
                   loop.count, args);
    });
  };
}

}  // namespace

constexpr Kernel kFindSelectedKernel{
    .types = dtypes_of(Selectable{}),
    .cost = movement_cost,
    .workspace = find_workspace,
    .prepare = prepare_find,
};
constexpr Kernel kKeepFirstKernel{
    .types = kAnyType,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .prepare = prepare_keep,
};
constexpr Kernel kRepeatLastKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_repeat,
};

ORT_TRAIN_OPS_END
