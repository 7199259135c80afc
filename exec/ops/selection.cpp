// What looks for things in data, so that the data decides the result's shape: Unique{axis?, sorted} (ONNX Unique-11 and later) and
// NonMaxSuppression{center_point_box} (ONNX NonMaxSuppression-10 and -11).
//
// A training step has fixed shapes: the data must be known at import, and the result is folded as soon as it is read. (Compress is a
// Gather, see gather.cpp, NonZero is in generate.cpp.)

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// --- Unique ---------------------------------------------------------------------------------------------------------------------------

using Findable = Types<float, double, float16, bfloat16, int64_t, int32_t, int16_t, int8_t, uint8_t, bool>;

// The items that are compared: elements, or slices along an axis.
struct UniqueItems {
  bool flat = true;
  int64_t axis = 0, count = 0, length = 1;  // items, elements of each
  int64_t inner = 1;                        // adjacent elements of a slice

  UniqueItems(const Attributes& attributes, const Shape& shape) : flat(!attributes.has("axis")), count(element_count(shape)) {
    if (flat) return;
    axis = normalize_axis(attributes.get("axis", 0), static_cast<int64_t>(shape.size()), "axis");
    count = shape[axis];
    inner = element_count(shape.from(static_cast<size_t>(axis) + 1));
    length = element_count(shape.before(static_cast<size_t>(axis))) * inner;
  }
  int64_t place(int64_t item, int64_t i) const { return (i / inner * count + item) * inner + i % inner; }
};

struct Uniques {
  std::vector<int64_t> first, inverse, counts;
};

// NaN is equal to NaN and greater than every number.
template <typename T> int order_of(T a, T b) {
  if (a == b || (a != a && b != b)) return 0;
  return a < b || b != b ? -1 : 1;
}

Uniques find_uniques(const Attributes& attributes, const Tensor& tensor) {
  const UniqueItems items(attributes, tensor.shape);
  std::vector<int64_t> order(static_cast<size_t>(items.count));
  std::iota(order.begin(), order.end(), 0);
  // The number of each item's group, groups in the order of their values.
  std::vector<int64_t> group(order.size());
  std::vector<int64_t> first;
  for_type(Findable{}, tensor.dtype, [&]<typename T>() {
    const T* const x = reinterpret_cast<const T*>(tensor.bytes.data());
    const auto compare = [&](int64_t a, int64_t b) {
      for (int64_t i = 0; i < items.length; ++i) {
        if (const int at = order_of(load(x[items.place(a, i)]), load(x[items.place(b, i)])); at != 0) return at;
      }
      return 0;
    };
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return compare(a, b) < 0; });
    for (size_t i = 0; i < order.size(); ++i) {
      if (i == 0 || compare(order[i - 1], order[i]) != 0) first.push_back(order[i]);
      group[static_cast<size_t>(order[i])] = static_cast<int64_t>(first.size()) - 1;
    }
  });
  // The numbers that the groups get: that order, or the order in which they are first met.
  std::vector<int64_t> number(first.size());
  std::iota(number.begin(), number.end(), 0);
  if (attributes.get("sorted", 1) == 0) {
    std::vector<int64_t> met = number;
    std::sort(met.begin(), met.end(), [&](int64_t a, int64_t b) { return first[static_cast<size_t>(a)] < first[static_cast<size_t>(b)]; });
    for (size_t i = 0; i < met.size(); ++i) number[static_cast<size_t>(met[i])] = static_cast<int64_t>(i);
  }
  Uniques found{.first = std::vector<int64_t>(first.size()), .inverse = group, .counts = std::vector<int64_t>(first.size())};
  for (size_t i = 0; i < first.size(); ++i) found.first[static_cast<size_t>(number[i])] = first[i];
  for (int64_t& of : found.inverse) ++found.counts[static_cast<size_t>(of = number[static_cast<size_t>(of)])];
  return found;
}

void lower_unique(Lowering& l) {
  l.constant_input(0, "what Unique looks at");
  l.pass_on("Unique", l.node.attributes);
}

std::vector<TensorType> infer_unique(const InferContext& context) {
  const Tensor& x = context.constant(0);
  const UniqueItems items(context.attributes, x.shape);
  const auto count = static_cast<int64_t>(find_uniques(context.attributes, x).first.size());
  Shape shape = x.shape;
  if (items.flat)
    shape = {count};
  else
    shape[items.axis] = count;
  return {{x.dtype, shape}, {DType::int64, {count}}, {DType::int64, {items.count}}, {DType::int64, {count}}};
}

KernelRun prepare_unique(const KernelSpec& spec) {
  const UniqueItems items(spec.attributes, spec.inputs[0].shape);
  require(!spec.constants.empty() && spec.constants[0] != nullptr, "what Unique looks at is known");
  return [items, found = find_uniques(spec.attributes, *spec.constants[0]), bytes = size_of(spec.inputs[0].dtype)](const KernelArgs& args) {
    const UniqueItems kept = [&] {
      UniqueItems result = items;
      result.count = static_cast<int64_t>(found.first.size());
      return result;
    }();
    for (int64_t item = 0; item < kept.count; ++item) {
      for (int64_t i = 0; i < items.length; ++i) {
        std::memcpy(args.out<std::byte>(0) + kept.place(item, i) * bytes,
                    args.in<std::byte>(0) + items.place(found.first[static_cast<size_t>(item)], i) * bytes, static_cast<size_t>(bytes));
      }
    }
    size_t output = 1;
    for (const auto* list : {&found.first, &found.inverse, &found.counts}) {
      if (output < args.outputs.size() && args.outputs[output]) std::copy(list->begin(), list->end(), args.out<int64_t>(output));
      ++output;
    }
  };
}

// --- NonMaxSuppression ----------------------------------------------------------------------------------------------------------------

// Of two boxes that overlap by more than a threshold (intersection over union), the one with the lower score goes.
class Suppression {
 public:
  Suppression(const Attributes& attributes, const std::vector<const Tensor*>& inputs)
      : centered_(attributes.get("center_point_box", 0) != 0) {
    const Tensor &boxes = *inputs[0], &scores = *inputs[1];
    const bool fits = boxes.dtype == DType::float32 && scores.dtype == DType::float32 && boxes.shape.size() == 3 && boxes.shape[2] == 4 &&
                      scores.shape.size() == 3 && scores.shape[0] == boxes.shape[0] && scores.shape[2] == boxes.shape[1];
    if (!fits)
      throw error(ErrorCode::unsupported, "boxes {} and scores {} don't fit: they are float32 (B, N, 4) and (B, C, N)",
                  to_string(boxes.type()), to_string(scores.type()));
    const auto number = [&](size_t i, double otherwise) {
      if (i >= inputs.size() || !inputs[i]) return otherwise;
      if (inputs[i]->size() != 1) throw error(ErrorCode::unsupported, "input {} is {}, not one number", i, to_string(inputs[i]->type()));
      return inputs[i]->to_double()[0];
    };
    const int64_t batches = boxes.shape[0], count = boxes.shape[1], classes = scores.shape[1];
    constexpr int64_t kMostComparisons = int64_t{1} << 32;
    if (checked_product({batches, classes, count, count}) > kMostComparisons)
      throw error(ErrorCode::unsupported, "{} boxes of {} classes are more than can be compared", count, classes);
    most_ = static_cast<int64_t>(std::clamp(number(2, 0), 0.0, static_cast<double>(count)));
    overlap_ = static_cast<float>(number(3, 0));
    threshold_ = inputs.size() > 4 && inputs[4] ? static_cast<float>(number(4, 0)) : -HUGE_VALF;
    for (int64_t batch = 0; batch < batches; ++batch) {
      for (int64_t of = 0; of < classes; ++of)
        select(batch, of, boxes.data<float>().subspan(static_cast<size_t>(batch * count * 4)),
               scores.data<float>().subspan(static_cast<size_t>((batch * classes + of) * count), static_cast<size_t>(count)));
    }
  }

  std::vector<int64_t> selected;  // batch, class, box

 private:
  struct Box {
    float left, top, right, bottom;
    float area() const { return (right - left) * (bottom - top); }
  };

  Box box(std::span<const float> boxes, int64_t i) const {
    const float* const at = boxes.data() + i * 4;
    if (centered_) return {at[0] - at[2] / 2, at[1] - at[3] / 2, at[0] + at[2] / 2, at[1] + at[3] / 2};
    return {std::min(at[1], at[3]), std::min(at[0], at[2]), std::max(at[1], at[3]), std::max(at[0], at[2])};
  }

  bool overlap(const Box& a, const Box& b) const {
    const Box both{std::max(a.left, b.left), std::max(a.top, b.top), std::min(a.right, b.right), std::min(a.bottom, b.bottom)};
    if (both.right <= both.left || both.bottom <= both.top || a.area() <= 0 || b.area() <= 0) return false;
    return both.area() / (a.area() + b.area() - both.area()) > overlap_;
  }

  void select(int64_t batch, int64_t of, std::span<const float> boxes, std::span<const float> scores) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < static_cast<int64_t>(scores.size()); ++i) {
      if (scores[static_cast<size_t>(i)] > threshold_) order.push_back(i);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return scores[static_cast<size_t>(a)] > scores[static_cast<size_t>(b)]; });
    std::vector<Box> kept;
    for (const int64_t i : order) {
      if (static_cast<int64_t>(kept.size()) >= most_) return;
      const Box here = box(boxes, i);
      if (std::any_of(kept.begin(), kept.end(), [&](const Box& other) { return overlap(here, other); })) continue;
      kept.push_back(here);
      selected.insert(selected.end(), {batch, of, i});
    }
  }

  bool centered_;
  int64_t most_ = 0;
  float overlap_ = 0, threshold_ = 0;
};

void lower_suppression(Lowering& l) {
  for (size_t i = 0; i < l.node.inputs.size(); ++i) {
    if (l.has(i)) l.constant_input(i, i == 0 ? "the boxes" : i == 1 ? "the scores" : "its limits");
  }
  l.pass_on("NonMaxSuppression", l.node.attributes);
}

std::vector<TensorType> infer_suppression(const InferContext& context) {
  for (size_t i = 0; i < context.inputs.size(); ++i) {
    if (i < 2 || context.has(i)) context.constant(i);
  }
  return {{DType::int64, {static_cast<int64_t>(Suppression(context.attributes, context.constants).selected.size() / 3), 3}}};
}

KernelRun prepare_suppression(const KernelSpec& spec) {
  require(spec.constants.size() > 1 && spec.constants[0] && spec.constants[1], "the boxes are known");
  return [selected = Suppression(spec.attributes, spec.constants).selected](const KernelArgs& args) {
    std::copy(selected.begin(), selected.end(), args.out<int64_t>(0));
  };
}

}  // namespace

constexpr OpDef kUnique{
    .name = "Unique",
    .onnx = {{.domain = "", .name = "Unique", .since = 11, .lower = lower_unique}},
    .infer = infer_unique,
    .no_gradient = "it finds what is equal",
    .host_inputs = {0},
    .standard = 11,
};
constexpr Kernel kUniqueKernel{
    .types = dtypes_of(Findable{}),
    .cost = movement_cost,
    .prepare = prepare_unique,
};

constexpr OpDef kNonMaxSuppression{
    .name = "NonMaxSuppression",
    .onnx = {{.domain = "", .name = "NonMaxSuppression", .since = 10, .lower = lower_suppression}},
    .infer = infer_suppression,
    .no_gradient = "it chooses boxes",
    .hint = "cut the model before it: what chooses boxes has no part in a loss",
    .host_inputs = {0, 1, 2, 3},
    .standard = 11,
};
constexpr Kernel kNonMaxSuppressionKernel{
    .types = {DType::float32},
    .cost = movement_cost,
    .prepare = prepare_suppression,
};

ORT_TRAIN_OPS_END
