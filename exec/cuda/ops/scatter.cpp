// ScatterElements, ScatterND and those that reduce like them, on CUDA. Their meaning: exec/ops/scatter.cpp. Updates that meet are combined
// in their order, one after another, in 16-bit numbers rounded once. Either they are sorted by place (exec/cuda/sorted_updates.h), or,
// where ScatterElements has many or short lines, a thread takes a line along the axis, since only updates of one line meet.

#include "exec/ops/scatter.h"

#include "exec/cuda/copy.h"
#include "exec/cuda/sorted_updates.h"
#include "exec/cuda/tuple_axes.h"
#include "exec/op_list.h"
#include "exec/ops/gather.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// What the output starts from: the data, which it may already be.
TableStart start_from_data(int64_t bytes, const KernelArgs& args) {
  if (args.outputs[0] == args.inputs[0]) return {};
  return {.to = args.out<std::byte>(0), .from = args.in<std::byte>(0), .bytes = bytes};
}

template <typename T, typename Combine, typename Place>
void scatter_sorted(const SortedLayout& layout, const Place& place, int64_t row, const KernelArgs& args) {
  const TableStart start = start_from_data(layout.places * row * static_cast<int64_t>(sizeof(T)), args);
  const uint64_t* const sorted = launch_sort(layout, place, start, args.workspace, args);
  if (row > 0) launch_combine<T, Combine>(layout, sorted, args.out<T>(0), args.in<T>(2), 1, row, false, args);
}

// --- ScatterElements ------------------------------------------------------------------------------------------------------------------

// Indices of either type: what is compiled for each way to combine needn't be for each of them.
struct AnyIndices {
  const void* data;
  bool is_wide;
  HOST_DEVICE int64_t operator[](int64_t i) const {
    return is_wide ? static_cast<const int64_t*>(data)[i] : int64_t{static_cast<const int32_t*>(data)[i]};
  }
};

template <typename T, typename Combine> struct CombineLines {
  static constexpr int kThreads = 128;
  using Shared = NoShared;
  ThreadLoop<2> lines;
  int64_t length, size, index_step, step;
  T* out;
  const T* updates;
  AnyIndices indices;
  DataError* error;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t i = block.index * kThreads + t;
      if (i < lines.count) combine(lines.offsets(i));
    });
  }

 private:
  HOST_DEVICE void combine(const Offsets<2>& line) const {
    ORT_TRAIN_NO_UNROLL
    for (int64_t k = 0; k < length; ++k) {
      const int64_t from = line.of[0] + k * index_step, at = checked_index(indices[from], size, from, error);
      if (at < 0) continue;
      T& to = out[line.of[1] + at * step];
      to = store<T>(Combine::combine(load(to), load(updates[from])));
    }
  }
};

template <typename Index> struct PlaceOfElement {
  ThreadLoop<1> lines;
  int64_t size, step;
  const Index* indices;
  DataError* error;
  HOST_DEVICE int64_t operator()(int64_t i) const {
    const int64_t at = checked_index(indices[i], size, i, error);
    return at < 0 ? -1 : lines.offsets(i).of[0] + at * step;
  }
};

bool sorts_elements(const KernelSpec& spec) {
  constexpr int64_t kShort = 64, kManyLines = 1 << 16;
  const ScatterLines lines(spec);
  if (lines.length <= 1) return false;
  if (size_of(spec.inputs[0].dtype) == 2 && reduction_of(spec.attributes) != "none") return true;  // rounded once
  return lines.length > kShort && lines.loop.count < kManyLines;
}

SortedLayout elements_layout(const KernelSpec& spec) {
  return SortedLayout(element_count(spec.inputs[1].shape), element_count(spec.inputs[0].shape));
}
Workspace scatter_elements_workspace(const KernelSpec& spec) {
  return {.shared = sorts_elements(spec) ? elements_layout(spec).workspace() : 0};
}

template <typename Combine, typename T> KernelRun sorted_elements(const KernelSpec& spec) {
  return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
    return [layout = elements_layout(spec), lines = ElementLines(spec)](const KernelArgs& args) {
      const PlaceOfElement<Index> place{ThreadLoop<1>(lines.loop), lines.size, lines.step, args.in<Index>(1), args.error};
      scatter_sorted<T, Combine>(layout, place, 1, args);
    };
  });
}

template <typename Combine, typename T> KernelRun lines_of_elements(const KernelSpec& spec) {
  const bool is_wide = spec.inputs[1].dtype == DType::int64;
  return [lines = ScatterLines(spec), bytes = spec.outputs[0].bytes(), is_wide](const KernelArgs& args) {
    if (args.outputs[0] != args.inputs[0]) copy_bytes(args.outputs[0], args.inputs[0], bytes, args);
    using Kernel = CombineLines<T, Combine>;
    const Kernel kernel{.lines = ThreadLoop<2>(lines.loop),
                        .length = lines.length,
                        .size = lines.size,
                        .index_step = lines.index_step,
                        .step = lines.step,
                        .out = args.out<T>(0),
                        .updates = args.in<T>(2),
                        .indices = {args.inputs[1], is_wide},
                        .error = args.error};
    launch(kernel, (lines.loop.count + Kernel::kThreads - 1) / Kernel::kThreads, args);
  };
}

KernelRun prepare_scatter_elements(const KernelSpec& spec) {
  return with_combine<Numbers>(reduction_of(spec.attributes), spec.inputs[0].dtype, [&]<typename Combine, typename T>() {
    return sorts_elements(spec) ? sorted_elements<Combine, T>(spec) : lines_of_elements<Combine, T>(spec);
  });
}

// --- ScatterND ------------------------------------------------------------------------------------------------------------------------

IndexTuples tuples_of(const KernelSpec& spec) { return IndexTuples(spec.inputs[0].shape, spec.inputs[1].shape, 0); }

Workspace scatter_nd_workspace(const KernelSpec& spec) {
  const IndexTuples tuples = tuples_of(spec);
  return {.shared = SortedLayout(tuples.tuples, tuples.rows).workspace()};
}

KernelRun prepare_scatter_nd(const KernelSpec& spec) {
  const IndexTuples tuples = tuples_of(spec);
  require_few_axes(tuples);
  return with_combine<Numbers>(reduction_of(spec.attributes), spec.inputs[0].dtype, [&]<typename Combine, typename T>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      return [layout = SortedLayout(tuples.tuples, tuples.rows), tuples](const KernelArgs& args) {
        scatter_sorted<T, Combine>(layout, TuplePlace<Index>(tuples, args.in<Index>(1), args.error), tuples.row, args);
      };
    });
  });
}

constexpr Kernel scatter_kernel(DTypes types, Workspace (*workspace)(const KernelSpec&), Prepare prepare) {
  return {.types = types, .in_place = {{.output = 0, .input = 0}}, .cost = movement_cost, .workspace = workspace, .prepare = prepare};
}

}  // namespace

constexpr Kernel kScatterElementsKernel = scatter_kernel(kAnyType, scatter_elements_workspace, prepare_scatter_elements);
constexpr Kernel kScatterElementsReduceKernel = scatter_kernel(kNumbers, scatter_elements_workspace, prepare_scatter_elements);
constexpr Kernel kScatterNDKernel = scatter_kernel(kAnyType, scatter_nd_workspace, prepare_scatter_nd);
constexpr Kernel kScatterNDReduceKernel = scatter_kernel(kNumbers, scatter_nd_workspace, prepare_scatter_nd);

ORT_TRAIN_OPS_END
