// Concat{axis} (ONNX Concat-4 and later) and Split{axis, split} (ONNX Split-2 and later): each other's gradient.
//
// LSTM, GRU and RNN, whose steps are joined by a Concat, lower to a chain of ops (recurrent.cpp).
//
// Both copy: each part is a StridedCopy of rows. A part whose gradient nobody wants is not made (Concat's gradient is then a Slice for each
// part that is wanted).

#include <algorithm>
#include <utility>
#include <vector>

#include "exec/op_list.h"
#include "exec/ops/recurrent.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN

namespace {

// The parts of an axis of `whole`, so many elements each, copied into it or out of it, all in one list of tasks.
class PartCopies {
 public:
  PartCopies(const TensorType& whole, int64_t axis, const std::vector<int64_t>& sizes, bool into) : into_(into) {
    const std::vector<int64_t> strides = strides_of(whole.shape);
    int64_t begin = 0;
    for (const int64_t size : sizes) {
      Shape part = whole.shape;
      part[axis] = size;
      const std::vector<int64_t> own = strides_of(part);
      const int64_t offset = std::exchange(begin, begin + size) * strides[axis], bytes = size_of(whole.dtype);
      copies_.emplace_back(into ? CopyLayout{bytes, part, strides, own, offset, 0} : CopyLayout{bytes, part, own, strides, 0, offset});
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + copies_.back().tasks());
    }
    together_ = per_task(kTaskBytes, whole.bytes() / std::max<int64_t>(1, ends_.back()));
  }
  void run(const KernelArgs& args) const {
    args.workers().parallel_blocks(ends_.back(), together_, [&](int64_t begin, int64_t end) {
      auto i = static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), begin) - ends_.begin());
      for (int64_t task = begin; task < end; ++task) {
        while (task >= ends_[i]) ++i;
        void* const out = args.outputs[into_ ? 0 : i];  // null: nobody reads that part
        if (out != nullptr) copies_[i].run_task(task - (i == 0 ? 0 : ends_[i - 1]), out, args.inputs[into_ ? i : 0]);
      }
    });
  }

 private:
  bool into_;
  std::vector<StridedCopy> copies_;
  std::vector<int64_t> ends_;  // of each copy's tasks
  int64_t together_ = 1;       // tasks of copies that make one: parts may be small
};

// --- Concat ---------------------------------------------------------------------------------------------------------------------------

void lower_concat(Lowering& l) {
  const int64_t rank = static_cast<int64_t>(l.shape(l.input(0)).size());
  const int64_t axis = normalize_axis(l.node.attributes.get("axis", 1), rank, "axis");
  if (l.node.inputs.size() == 1) return l.output(0, l.input(0));
  l.pass_on("Concat", {{"axis", axis}});
}

std::vector<TensorType> infer_concat(const InferContext& context) {
  TensorType result = context.input(0);
  const int64_t axis = normalize_axis(context.attributes.get("axis", 0), static_cast<int64_t>(result.shape.size()), "axis");
  int64_t total = result.shape[axis];
  for (size_t i = 1; i < context.inputs.size(); ++i) {
    TensorType other = context.input(i);
    if (other.shape.size() == result.shape.size()) {
      if (__builtin_add_overflow(total, other.shape[axis], &total)) throw error(ErrorCode::unsupported, "the parts are too large");
      other.shape[axis] = result.shape[axis];
    }
    if (other != result) {
      throw error(ErrorCode::unsupported, "input {}, {}, can't be joined to input 0, {}, along axis {}", i, to_string(context.input(i)),
                  to_string(result), axis);
    }
  }
  result.shape[axis] = total;
  return {result};
}

void concat_gradient(const Node& node, GradientBuilder& g) {
  const int64_t axis = normalize_axis(node.attributes.get("axis", 0), static_cast<int64_t>(g.shape(node.inputs[0]).size()), "axis");
  std::vector<int64_t> sizes;
  bool all = true;
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    sizes.push_back(g.shape(node.inputs[i])[axis]);
    all = all && g.wants(i);
  }
  if (all) {
    const std::vector<ValueId> parts = g.emit_many("Split", {g.output_gradient(0)}, {{"axis", axis}, {"split", sizes}}, sizes.size());
    for (size_t i = 0; i < parts.size(); ++i) g.input_gradient(i, parts[i]);
    return;
  }
  int64_t begin = 0;
  for (size_t i = 0; i < node.inputs.size(); begin += sizes[i++]) {
    if (!g.wants(i)) continue;
    g.input_gradient(i, g.emit("Slice", {g.output_gradient(0)},
                               {{"starts", std::vector{begin}},
                                {"ends", std::vector{begin + sizes[i]}},
                                {"axes", std::vector{axis}},
                                {"steps", std::vector{int64_t{1}}}}));
  }
}

KernelRun prepare_concat(const KernelSpec& spec) {
  const int64_t axis = normalize_axis(spec.attributes.get("axis", 0), static_cast<int64_t>(spec.outputs[0].shape.size()), "axis");
  std::vector<int64_t> sizes;
  for (const TensorType& input : spec.inputs) sizes.push_back(input.shape[axis]);
  return [copies = PartCopies(spec.outputs[0], axis, sizes, /*into=*/true)](const KernelArgs& args) { copies.run(args); };
}

// --- Split ----------------------------------------------------------------------------------------------------------------------------

void lower_split(Lowering& l) {
  const Shape& from = l.shape(l.input(0));
  const int64_t axis = normalize_axis(l.node.attributes.get("axis", 0), static_cast<int64_t>(from.size()), "axis");
  std::vector<int64_t> sizes = l.ints_from("split", 1, {});
  const int64_t parts = static_cast<int64_t>(l.node.outputs), dim = from[axis];
  if (sizes.empty()) {
    const bool uneven = l.node.attributes.has("num_outputs");
    if (uneven && l.node.attributes.get("num_outputs", parts) != parts) l.fail("num_outputs isn't the number of its outputs");
    if (!uneven && dim % parts != 0) l.fail(fmt::format("axis {} of {} can't be split into {} equal parts", axis, to_string(from), parts));
    const int64_t size = (dim + parts - 1) / parts;
    sizes.assign(parts, size);
    sizes.back() = dim - size * (parts - 1);
  }
  if (static_cast<int64_t>(sizes.size()) != parts) l.fail(fmt::format("{} sizes are given for {} outputs", sizes.size(), parts));
  if (parts == 1) return l.output(0, l.input(0));
  l.pass_on("Split", {l.input(0)}, {{"axis", axis}, {"split", sizes}});
}

std::vector<TensorType> infer_split(const InferContext& context) {
  const TensorType& from = context.input(0);
  const int64_t axis = normalize_axis(context.attributes.get("axis", 0), static_cast<int64_t>(from.shape.size()), "axis");
  const std::vector<int64_t> sizes = context.attributes.get("split", std::vector<int64_t>{});
  int64_t total = 0;
  bool valid = sizes.size() == context.outputs;
  for (int64_t size : sizes) valid = valid && size >= 0 && !__builtin_add_overflow(total, size, &total);
  if (!valid || total != from.shape[axis]) {
    throw error(ErrorCode::unsupported, "the sizes {} don't add up to axis {} of {}", to_string(sizes), axis, to_string(from.shape));
  }
  std::vector<TensorType> parts;
  for (int64_t size : sizes) {
    parts.push_back(from);
    parts.back().shape[axis] = size;
  }
  return parts;
}

void split_gradient(const Node& node, GradientBuilder& g) {
  std::vector<ValueId> parts;
  for (size_t i = 0; i < node.outputs.size(); ++i) parts.push_back(g.output_gradient(i));
  g.input_gradient(0, g.emit("Concat", parts, {{"axis", node.attributes.get("axis", 0)}}));
}

KernelRun prepare_split(const KernelSpec& spec) {
  const int64_t axis = normalize_axis(spec.attributes.get("axis", 0), static_cast<int64_t>(spec.inputs[0].shape.size()), "axis");
  const std::vector<int64_t> sizes = spec.attributes.get("split", std::vector<int64_t>{});
  return [copies = PartCopies(spec.inputs[0], axis, sizes, /*into=*/false)](const KernelArgs& args) { copies.run(args); };
}

}  // namespace

constexpr OpDef kConcat{
    .name = "Concat",
    .onnx = {{.domain = "", .name = "Concat", .since = 1, .lower = lower_concat},
             {.domain = "", .name = "LSTM", .since = 7, .lower = lower_lstm},
             {.domain = "", .name = "GRU", .since = 7, .lower = lower_gru},
             {.domain = "", .name = "RNN", .since = 7, .lower = lower_rnn}},
    .infer = infer_concat,
    .gradient = concat_gradient,
    .traits = {.along = along_other_axes},
    .standard = 13,
};
constexpr Kernel kConcatKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_concat,
};

constexpr OpDef kSplit{
    .name = "Split",
    .onnx = {{.domain = "", .name = "Split", .since = 1, .lower = lower_split}},
    .infer = infer_split,
    .gradient = split_gradient,
    .traits = {.along = along_other_axes},
};
constexpr Kernel kSplitKernel{
    .types = kAnyType,
    .cost = movement_cost,
    .prepare = prepare_split,
};

ORT_TRAIN_OPS_END
