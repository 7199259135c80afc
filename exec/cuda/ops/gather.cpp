// Gather, GatherPart, GatherElements and GatherND on CUDA. Their meaning: exec/ops/gather.cpp. A thread a word of the result: rows go by
// words of up to 16 bytes, so that neighbouring threads read and write neighbours.

#include "exec/ops/gather.h"

#include "exec/cuda/moves.h"
#include "exec/cuda/tuple_axes.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename Word> struct TakenWord {
  Word word;
  bool is_there;
};

// --- Gather ---------------------------------------------------------------------------------------------------------------------------

template <typename Word, typename Index> struct GatheredRows {
  const Word* data;
  Word* out;
  const Index* indices;
  DataError* error;
  Size row, count;  // words of a row; indices
  int64_t size;     // rows of a table
  bool small;

  HOST_DEVICE TakenWord<Word> take(int64_t i) const {
    const Size::Place in_row = row.split(i, small), index = count.split(in_row.above, small);
    const int64_t at = checked_index(indices[index.place], size, index.place, error);
    if (at < 0) return {Word{}, false};
    return {data[(index.above * size + at) * row.size + in_row.place], true};
  }
  HOST_DEVICE void put(int64_t i, const TakenWord<Word>& taken) const {
    if (taken.is_there) out[i] = taken.word;
  }
};

KernelRun prepare_gather(const KernelSpec& spec) {
  const Shape& data = spec.inputs[0].shape;
  const GatherSizes sizes(data, spec.inputs[1].shape, indexed_axis(spec.attributes, data));
  const int64_t bytes = sizes.inner * size_of(spec.inputs[0].dtype), word = word_bytes({bytes});
  return for_wide_word(word, [&]<typename Word>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      const int64_t row = bytes / word, words = sizes.outer * sizes.indices * row;
      return [sizes, row, words](const KernelArgs& args) {
        const GatheredRows<Word, Index> rows{.data = args.in<Word>(0),
                                             .out = args.out<Word>(0),
                                             .indices = args.in<Index>(1),
                                             .error = args.error,
                                             .row = Size(row),
                                             .count = Size(sizes.indices),
                                             .size = sizes.size,
                                             .small = words <= INT32_MAX};
        launch_moves(rows, words, args);
      };
    });
  });
}

// --- GatherPart -----------------------------------------------------------------------------------------------------------------------

template <typename Word, typename Index> struct GatheredPart {
  const Word *data, *base;  // null: what other parts hold stays as it is
  Word* out;
  const Index* indices;
  DataError* error;
  Size row;
  TablePart part;
  bool small;

  HOST_DEVICE TakenWord<Word> take(int64_t i) const {
    const Size::Place in_row = row.split(i, small);
    const int64_t index = checked_index(indices[in_row.above], part.total, in_row.above, error);
    const int64_t at = index < 0 ? -1 : part.position(index);
    if (at >= 0) return {data[at * row.size + in_row.place], true};
    if (base) return {base[i], true};
    return {Word{}, false};
  }
  HOST_DEVICE void put(int64_t i, const TakenWord<Word>& taken) const {
    if (taken.is_there) out[i] = taken.word;
  }
};

KernelRun prepare_gather_part(const KernelSpec& spec) {
  const Shape& data = spec.inputs[0].shape;
  const int64_t count = element_count(spec.inputs[1].shape);
  const int64_t bytes = count == 0 ? 0 : spec.outputs[0].bytes() / count, word = word_bytes({bytes});
  return for_wide_word(word, [&]<typename Word>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      const int64_t row = bytes / word, words = count * row;
      return [part = part_of(spec.attributes, data[0]), row, words](const KernelArgs& args) {
        const auto* const base = args.inputs.size() > 2 ? args.in<Word>(2) : nullptr;
        const GatheredPart<Word, Index> rows{.data = args.in<Word>(0),
                                             .base = base == args.out<Word>(0) ? nullptr : base,
                                             .out = args.out<Word>(0),
                                             .indices = args.in<Index>(1),
                                             .error = args.error,
                                             .row = Size(row),
                                             .part = part,
                                             .small = words <= INT32_MAX};
        launch_moves(rows, words, args);
      };
    });
  });
}

// --- GatherElements -------------------------------------------------------------------------------------------------------------------

template <typename Word, typename Index> struct GatheredElements {
  ThreadLoop<1> lines;
  int64_t size, step;
  const Word* data;
  Word* out;
  const Index* indices;
  DataError* error;

  HOST_DEVICE TakenWord<Word> take(int64_t i) const {
    const int64_t at = checked_index(indices[i], size, i, error);
    if (at < 0) return {Word{}, false};
    return {data[lines.offsets(i).of[0] + at * step], true};
  }
  HOST_DEVICE void put(int64_t i, const TakenWord<Word>& taken) const {
    if (taken.is_there) out[i] = taken.word;
  }
};

KernelRun prepare_gather_elements(const KernelSpec& spec) {
  const ElementLines lines(spec);
  return for_word(size_of(spec.inputs[0].dtype), [&]<typename Word>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      return [lines](const KernelArgs& args) {
        const GatheredElements<Word, Index> elements{ThreadLoop<1>(lines.loop), lines.size,        lines.step, args.in<Word>(0),
                                                     args.out<Word>(0),         args.in<Index>(1), args.error};
        launch_moves(elements, lines.loop.count, args);
      };
    });
  });
}

// --- GatherND -------------------------------------------------------------------------------------------------------------------------

template <typename Word, typename Index> struct GatheredTuples {
  TuplePlace<Index> place;
  const Word* data;
  Word* out;
  Size row;
  bool small;

  HOST_DEVICE TakenWord<Word> take(int64_t i) const {
    const Size::Place in_row = row.split(i, small);
    const int64_t at = place(in_row.above);
    if (at < 0) return {Word{}, false};
    return {data[at * row.size + in_row.place], true};
  }
  HOST_DEVICE void put(int64_t i, const TakenWord<Word>& taken) const {
    if (taken.is_there) out[i] = taken.word;
  }
};

KernelRun prepare_gather_nd(const KernelSpec& spec) {
  const IndexTuples tuples(spec.inputs[0].shape, spec.inputs[1].shape, spec.attributes.get("batch_dims", 0));
  require_few_axes(tuples);
  const int64_t bytes = tuples.row * size_of(spec.inputs[0].dtype), word = word_bytes({bytes});
  return for_wide_word(word, [&]<typename Word>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      const int64_t row = bytes / word, words = tuples.batches * tuples.tuples * row;
      return [tuples, row, words](const KernelArgs& args) {
        const GatheredTuples<Word, Index> rows{.place = TuplePlace<Index>(tuples, args.in<Index>(1), args.error),
                                               .data = args.in<Word>(0),
                                               .out = args.out<Word>(0),
                                               .row = Size(row),
                                               .small = words <= INT32_MAX};
        launch_moves(rows, words, args);
      };
    });
  });
}

}  // namespace

constexpr Kernel kGatherKernel{
    .types = kAnyType,
    .cost = gather_cost,
    .prepare = prepare_gather,
};
constexpr Kernel kGatherPartKernel{
    .types = kAnyType,
    .in_place = {{.output = 0, .input = 2}},
    .cost = gather_part_cost,
    .prepare = prepare_gather_part,
};
constexpr Kernel kGatherElementsKernel{
    .types = kAnyType,
    .cost = gather_cost,
    .prepare = prepare_gather_elements,
};
constexpr Kernel kGatherNDKernel{
    .types = kAnyType,
    .cost = gather_cost,
    .prepare = prepare_gather_nd,
};

ORT_TRAIN_OPS_END
