// GatherGrad, AccumulateGatherGrad and GatherNDGrad on CUDA. Their meaning: exec/ops/gather.cpp. What is read twice gets its contributions
// one after another, in the order of the indices, as RowScatter (exec/scatter.h) adds them: in double where that does, of 16-bit numbers in
// float32. The updates are sorted (exec/cuda/sorted_updates.h) while the table is cleared; then rows that no index names are done.

#include "exec/cuda/sorted_updates.h"
#include "exec/cuda/tuple_axes.h"
#include "exec/op_list.h"
#include "exec/ops/gather.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// Adds to the third input, where there is one, else to zeros; place(i): as launch_sort takes it.
template <typename T, typename Place>
void add_sorted(const SortedLayout& layout, const Place& place, const RowScatter& scatter, int64_t outer, const KernelArgs& args) {
  const int64_t row = scatter.sizes().row, elements = outer * layout.places * row;
  const auto* const base = args.inputs.size() > 2 ? args.in<std::byte>(2) : nullptr;
  TableStart start{.to = args.out<std::byte>(0), .from = base, .bytes = elements * static_cast<int64_t>(sizeof(T))};
  if (base == start.to) start = {};  // it is there
  const uint64_t* const sorted = launch_sort(layout, place, start, args.workspace, args);
  const bool from_zero = base == nullptr;
  if (elements == 0) return;
  if constexpr (!std::is_same_v<T, double>) {
    if (scatter.in_double())
      return launch_combine<T, AddTo, double>(layout, sorted, args.out<T>(0), args.in<T>(0), outer, row, from_zero, args);
  }
  launch_combine<T, AddTo>(layout, sorted, args.out<T>(0), args.in<T>(0), outer, row, from_zero, args);
}

// --- GatherGrad -----------------------------------------------------------------------------------------------------------------------

template <typename Index> struct PlaceInPart {
  const Index* indices;
  DataError* error;
  TablePart part;
  HOST_DEVICE int64_t operator()(int64_t i) const {
    const int64_t index = checked_index(indices[i], part.total, i, error);
    return index < 0 ? -1 : part.position(index);
  }
};

// All of its tables get the same updates.
SortedLayout gather_grad_layout(const KernelSpec& spec) {
  return SortedLayout(element_count(spec.inputs[1].shape), made_part(spec.attributes).rows);
}
Workspace gather_grad_workspace(const KernelSpec& spec) { return {.shared = gather_grad_layout(spec).workspace()}; }

KernelRun prepare_gather_grad(const KernelSpec& spec) {
  return for_type(Floats{}, spec.outputs[0].dtype, [&]<typename T>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      return [layout = gather_grad_layout(spec), scatter = gather_grad_scatter(spec),
              part = made_part(spec.attributes)](const KernelArgs& args) {
        add_sorted<T>(layout, PlaceInPart<Index>{args.in<Index>(1), args.error, part}, scatter, scatter.sizes().outer, args);
      };
    });
  });
}

// --- GatherNDGrad ---------------------------------------------------------------------------------------------------------------------

// Its batches are one table.
SortedLayout gather_nd_grad_layout(const KernelSpec& spec) {
  const IndexTuples tuples = gather_nd_grad_tuples(spec);
  return SortedLayout(tuples.batches * tuples.tuples, tuples.batches * tuples.rows);
}
Workspace gather_nd_grad_workspace(const KernelSpec& spec) { return {.shared = gather_nd_grad_layout(spec).workspace()}; }

KernelRun prepare_gather_nd_grad(const KernelSpec& spec) {
  const IndexTuples tuples = gather_nd_grad_tuples(spec);
  require_few_axes(tuples);
  return for_type(Floats{}, spec.outputs[0].dtype, [&]<typename T>() {
    return for_type(Indices{}, spec.inputs[1].dtype, [&]<typename Index>() -> KernelRun {
      return [layout = gather_nd_grad_layout(spec), scatter = gather_nd_grad_scatter(spec), tuples](const KernelArgs& args) {
        add_sorted<T>(layout, TuplePlace<Index>(tuples, args.in<Index>(1), args.error), scatter, 1, args);
      };
    });
  });
}

}  // namespace

constexpr Kernel kGatherGradKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 2}},
    .cost = gather_grad_cost,
    .workspace = gather_grad_workspace,
    .prepare = prepare_gather_grad,
};
constexpr Kernel kAccumulateGatherGradKernel{
    .types = kFloating,
    .cost = gather_grad_cost,
    .workspace = gather_grad_workspace,
    .prepare = prepare_gather_grad,
};
constexpr Kernel kGatherNDGradKernel{
    .types = kFloating,
    .cost = comparison_cost,
    .workspace = gather_nd_grad_workspace,
    .prepare = prepare_gather_nd_grad,
};

ORT_TRAIN_OPS_END
