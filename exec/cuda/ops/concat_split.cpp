// Concat and Split. Their meaning: exec/ops/concat_split.cpp. A launch copies all parts, up to kParts of them: a thread a word of the
// whole, which finds the part that it belongs to.

#include <algorithm>

#include "exec/cuda/indexing.h"
#include "exec/cuda/moves.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int kParts = 32;

// Row r of the whole is row r of each part, one behind the other. Sizes and places in words.
template <typename Word> struct PartOfRow {
  Word* data;  // null: nobody wants it
  int64_t begin, size;
};
template <typename Word, bool into> struct JoinedWords {
  Word* whole;  // from its first word that belongs to these parts
  int64_t pitch;
  Size row;  // of these parts together
  bool small;
  int count;
  PartOfRow<Word> parts[kParts];

  struct Taken {
    Word word;
    Word* to;  // null: nowhere
  };
  HOST_DEVICE Taken take(int64_t i) const {
    const Size::Place at = row.split(i, small);
    int p = 0;
    while (p + 1 < count && at.place >= parts[p + 1].begin) ++p;
    const PartOfRow<Word>& part = parts[p];
    if (!part.data) return {Word{}, nullptr};
    Word* const in_part = part.data + at.above * part.size + (at.place - part.begin);
    Word* const in_whole = whole + at.above * pitch + at.place;
    return into ? Taken{*in_part, in_whole} : Taken{*in_whole, in_part};
  }
  HOST_DEVICE void put(int64_t, const Taken& taken) const {
    if (taken.to) *taken.to = taken.word;
  }
};

struct JoinedRows {
  int64_t rows = 1, row = 0;   // of the whole: how many, and the bytes of each
  std::vector<int64_t> sizes;  // bytes of a row of each part
  int64_t word = 1;

  JoinedRows(const TensorType& whole, const std::vector<TensorType>& parts, const Attributes& attributes) {
    const int64_t rank = static_cast<int64_t>(whole.shape.size());
    const auto axis = static_cast<size_t>(normalize_axis(attributes.get("axis", 0), rank, "axis"));
    rows = element_count(whole.shape.before(axis));
    const int64_t inner = element_count(whole.shape.from(axis + 1)) * size_of(whole.dtype);
    row = inner * whole.shape[axis];
    for (const TensorType& part : parts) sizes.push_back(inner * part.shape[axis]);
    word = std::min(word_bytes(sizes), word_bytes({row}));
  }

  // part(i): where part i is.
  template <bool into, typename Word, typename Part> void run_words(void* whole, const Part& part, const KernelArgs& args) const {
    int64_t begin = 0;
    for (size_t first = 0; first < sizes.size(); first += kParts) {
      JoinedWords<Word, into> joined{.whole = static_cast<Word*>(whole) + begin, .pitch = row / word};
      int64_t size = 0;
      for (size_t i = first; i < std::min(sizes.size(), first + kParts); ++i) {
        if (sizes[i] == 0) continue;
        joined.parts[joined.count++] = {static_cast<Word*>(part(i)), size, sizes[i] / word};
        size += sizes[i] / word;
      }
      joined.row = Size(size);
      joined.small = rows * size <= INT32_MAX;
      launch_moves(joined, rows * size, args);
      begin += size;
    }
  }
  template <bool into, typename Part> void run(void* whole, const Part& part, const KernelArgs& args) const {
    for_wide_word(word, [&]<typename Word>() { run_words<into, Word>(whole, part, args); });
  }
};

KernelRun prepare_concat(const KernelSpec& spec) {
  return [rows = JoinedRows(spec.outputs[0], spec.inputs, spec.attributes)](const KernelArgs& args) {
    rows.run<true>(
        args.outputs[0], [&](size_t i) { return const_cast<void*>(args.inputs[i]); }, args);
  };
}

KernelRun prepare_split(const KernelSpec& spec) {
  return [rows = JoinedRows(spec.inputs[0], spec.outputs, spec.attributes)](const KernelArgs& args) {
    rows.run<false>(
        const_cast<void*>(args.inputs[0]), [&](size_t i) { return args.outputs[i]; }, args);
  };
}

}  // namespace

constexpr Kernel kConcatKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_concat,
};
constexpr Kernel kSplitKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_split,
};

ORT_TRAIN_OPS_END
