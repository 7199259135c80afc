// What a batch's own data select (ONNX NonZero and Compress of what isn't known before training): a step's shapes are fixed, so that the
// selection has a limit, and behind what is selected there is padding (frontend/import_selection.h makes it harmless).
//
//   FindSelected{limit, exact}(mask) -> indices [rank, limit], count [1]   NonZero; the padding repeats the last one (0s where none is)
//   KeepFirst{axis, value}(x, count) -> y        elements from `count` on along the axis are `value`
//   RepeatLast{axis, most}(x, count, otherwise) -> y   they are those at count - 1 or, where the count is 0, the first of `otherwise`
//
// More than `limit` or `most` (with `exact`: another number) is an Error(data).

#include "exec/ops/selected.h"

#include <algorithm>
#include <cstring>

#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// --- FindSelected ---------------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_find(const InferContext& context) {
  const auto rank = static_cast<int64_t>(context.input(0).shape.size());
  return {{DType::int64, {rank, context.attributes.get("limit", 0)}}, {DType::int64, {1}}};
}

KernelRun prepare_find(const KernelSpec& spec) {
  const TensorType& mask = spec.inputs[0];
  return for_type(Selectable{}, mask.dtype, [&]<typename T>() -> KernelRun {
    return [shape = mask.shape, size = element_count(mask.shape), limit = spec.attributes.get("limit", 0),
            exact = spec.attributes.get("exact", 0) != 0](const KernelArgs& args) {
      const T* const selects = args.in<T>(0);
      int64_t* const indices = args.out<int64_t>(0);
      const size_t rank = shape.size();
      int64_t count = 0;
      for (int64_t i = 0; i < size; ++i) {
        if (load(selects[i]) == Compute<T>{}) continue;
        if (count < limit) {
          int64_t at = i;
          for (size_t axis = rank; axis-- > 0; at /= shape[axis]) indices[static_cast<int64_t>(axis) * limit + count] = at % shape[axis];
        }
        ++count;
      }
      if (count > limit || (exact && count != limit)) args.error->report(exact ? DataError::selected : DataError::limit, count, limit, 0);
      count = std::min(count, limit);
      for (size_t axis = 0; axis < rank; ++axis) {
        int64_t* const row = indices + static_cast<int64_t>(axis) * limit;
        std::fill(row + count, row + limit, count == 0 ? 0 : row[count - 1]);
      }
      *args.out<int64_t>(1) = count;
    };
  });
}

// --- KeepFirst, RepeatLast ------------------------------------------------------------------------------------------------------------

// body(row as a number over all, its place along the axis)
template <typename Body> void each_row(const SelectedRows& rows, const KernelArgs& args, Body&& body) {
  args.workers().parallel_blocks(rows.outer * rows.n, per_task(kTaskBytes, rows.bytes), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) body(row, row % rows.n);
  });
}

std::vector<TensorType> infer_first(const InferContext& context) {
  normalize_axis(context.attributes.get("axis", 0), static_cast<int64_t>(context.input(0).shape.size()), "axis");
  if (context.input(1) != TensorType{DType::int64, {1}})
    throw error(ErrorCode::unsupported, "its count is {}", to_string(context.input(1)));
  if (context.has(2) && context.input(2) != context.input(0))
    throw error(ErrorCode::unsupported, "{} can't stand for {}", to_string(context.input(2)), to_string(context.input(0)));
  return {context.input(0)};
}

void keep_gradient(const Node& node, GradientBuilder& g) {
  const Attributes attributes{{"axis", node.attributes.get("axis", 0)}, {"value", 0.0f}};
  g.input_gradient(0, g.emit("KeepFirst", {g.output_gradient(0), node.inputs[1]}, attributes));
}

KernelRun prepare_keep(const KernelSpec& spec) {
  return [rows = SelectedRows(spec), value = value_behind(spec)](const KernelArgs& args) {
    const int64_t count = *args.in<int64_t>(1), size = static_cast<int64_t>(value.size());
    each_row(rows, args, [&](int64_t row, int64_t place) {
      const std::byte* const from = args.in<std::byte>(0) + row * rows.bytes;
      std::byte* const to = args.out<std::byte>(0) + row * rows.bytes;
      if (place >= count)
        fill_elements(to, rows.bytes / size, value.data(), size);
      else if (from != to)
        std::memcpy(to, from, static_cast<size_t>(rows.bytes));
    });
  };
}

// What was written to one place several times is the last of them: the others have no part in it.
void repeat_gradient(const Node& node, GradientBuilder& g) {
  const Attributes attributes{{"axis", node.attributes.get("axis", 0)}, {"value", 0.0f}};
  const ValueId dy = g.output_gradient(0), count = node.inputs[1];
  if (g.wants(0)) g.input_gradient(0, g.emit("KeepFirst", {dy, count}, attributes));
  if (!g.wants(2)) return;
  const ValueId is_none = g.emit("Equal", {count, g.constant(make_tensor<int64_t>({1}, {0}))});
  g.input_gradient(2, g.emit("KeepFirst", {dy, g.cast(is_none, DType::int64)}, attributes));
}

KernelRun prepare_repeat(const KernelSpec& spec) {
  return [rows = SelectedRows(spec), most = spec.attributes.get("most", INT64_MAX)](const KernelArgs& args) {
    const int64_t count = *args.in<int64_t>(1);
    if (count > most) args.error->report(DataError::limit, count, most, 0);
    each_row(rows, args, [&](int64_t row, int64_t place) {
      const std::byte* const from = args.in<std::byte>(count == 0 ? 2 : 0) + repeated_row(row, place, count) * rows.bytes;
      std::memcpy(args.out<std::byte>(0) + row * rows.bytes, from, static_cast<size_t>(rows.bytes));
    });
  };
}

}  // namespace

constexpr OpDef kFindSelected{
    .name = "FindSelected",
    .infer = infer_find,
    .no_gradient = "it finds positions",
};
constexpr Kernel kFindSelectedKernel{
    .types = dtypes_of(Selectable{}),
    .cost = movement_cost,
    .prepare = prepare_find,
};

constexpr OpDef kKeepFirst{
    .name = "KeepFirst",
    .infer = infer_first,
    .gradient = keep_gradient,
    .traits = {.along = along_elements},
};
constexpr Kernel kKeepFirstKernel{
    .types = kAnyType,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .prepare = prepare_keep,
};

constexpr OpDef kRepeatLast{
    .name = "RepeatLast",
    .infer = infer_first,
    .gradient = repeat_gradient,
    .traits = {.along = along_elements},
};
constexpr Kernel kRepeatLastKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_repeat,
};

ORT_TRAIN_OPS_END
