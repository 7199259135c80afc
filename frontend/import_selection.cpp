#include "frontend/import_selection.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/error.h"
#include "graph/names.h"
#include "graph/op_def.h"

namespace ort_train::importing {
namespace {

constexpr const char* kFixed = "it meets an axis of fixed size there";

}  // namespace

void Selections::limit(const std::vector<SelectionLimit>& limits) {
  limits_ = limits;
  fitting_.assign(limits.size(), false);
  for (const SelectionLimit& limit : limits) {
    if (limit.count < 1) throw error(ErrorCode::usage, "`selects` {}: {} is no number of elements", limit.node, limit.count);
  }
}

void Selections::finish() const {
  for (size_t i = 0; i < limits_.size(); ++i) {
    if (fitting_[i]) continue;
    if (const auto second = seconds_.find(limits_[i].node); second != seconds_.end())
      throw error(ErrorCode::usage, "`selects` {}: '{}' selects by the same mask as '{}': give the limit to that node", limits_[i].node,
                  second->second.first, second->second.second);
    throw error(ErrorCode::usage, "`selects` {}: no node of that name selects by a mask of the batch; {}", limits_[i].node,
                nodes_.empty() ? "there is none that does" : fmt::format("there are '{}'", fmt::join(nodes_, "', '")));
  }
}

const std::string* Selections::selecting(ValueId value) const {
  const auto found = padded_.find(value);
  return found == padded_.end() ? nullptr : &selection(found->second).node;
}

std::pair<const std::string*, std::string> Selections::of_output(ValueId value) const {
  if (const std::string* const node = selecting(value); node != nullptr)
    return {node, fmt::format("has as many elements as '{}' selects of each batch, so that no labels can fit it", *node)};
  if (!counts_.contains(value)) return {nullptr, ""};
  const std::string& node = nodes_.front();
  return {&node, fmt::format("is made of the number of elements that '{}' selects of each batch, which is no constant", node)};
}

void Selections::refuse(ValueId value, const std::string& why) const {
  const Padding& padding = padded_.at(value);
  const std::string& node = selection(padding).node;
  throw error(
      ErrorCode::unsupported,
      "reads '{}', which has as many elements along axis {} as '{}' selects of each batch: {} (where the number is always the same, "
      "`selects` {}=COUNT says so)",
      graph_.value(value).name, padding.axis, node, why, node);
}

// The same numbers, whatever the batch.
bool Selections::same(ValueId a, ValueId b, int depth) const {
  if (a == b) return true;
  if (a == kNone || b == kNone || depth == 0) return false;
  if (const Tensor* x = graph_.constant(a), *y = graph_.constant(b); x != nullptr || y != nullptr)
    return x != nullptr && y != nullptr && x->type() == y->type() && x->bytes == y->bytes && !counts_.contains(a) && !counts_.contains(b);
  const NodeId left = graph_.value(a).producer, right = graph_.value(b).producer;
  if (left == kNone || right == kNone) return false;
  const Node &m = graph_.node(left), &n = graph_.node(right);
  if (m.op != n.op || m.op->random || !m.op->writes.empty() || m.attributes != n.attributes || m.inputs.size() != n.inputs.size())
    return false;
  if (std::find(m.outputs.begin(), m.outputs.end(), a) - m.outputs.begin() !=
      std::find(n.outputs.begin(), n.outputs.end(), b) - n.outputs.begin())
    return false;
  for (size_t i = 0; i < m.inputs.size(); ++i) {
    if (!same(m.inputs[i], n.inputs[i], depth - 1)) return false;
  }
  return true;
}

// The mask of which a value has the elements, in their order, each `times` in a row: what is broadcast along further axes selects rows.
ValueId Selections::mask_of(ValueId value, int64_t& times) const {
  times = 1;
  while (graph_.value(value).producer != kNone) {
    const Node& node = graph_.node(graph_.value(value).producer);
    if (!node.op->traits.same_numbers || graph_.value(node.inputs[0]).dtype != graph_.value(value).dtype) return value;
    const int64_t from = element_count(graph_.value(node.inputs[0]).shape), to = element_count(graph_.value(value).shape);
    if (from != to) {
      const Shape& shape = graph_.value(value).shape;
      Shape before = graph_.value(node.inputs[0]).shape;
      before.insert(before.begin(), shape.size() - before.size(), 1);
      size_t axis = 0;
      while (axis < shape.size() && before[axis] == shape[axis]) ++axis;
      if (element_count(before.from(axis)) != 1) return value;
      times *= element_count(shape.from(axis));
    }
    value = node.inputs[0];
  }
  return value;
}

int Selections::selection_of(ValueId mask) const {
  constexpr int kDepth = 12;
  for (size_t i = 0; i < selections_.size(); ++i) {
    if (same(selections_[i].mask, mask, kDepth)) return static_cast<int>(i);
  }
  return Count::kNumber;
}

// int64 [1]
ValueId Selections::counted(Builder& builder, const Count& count) {
  std::map<int64_t, ValueId>& counts = selections_[static_cast<size_t>(count.selection)].counts;
  if (const auto known = counts.find(count.times); known != counts.end()) return known->second;
  const auto [times, one] = *counts.begin();
  ValueId value = one;
  const auto number = [&](int64_t n) { return builder.constant(make_tensor<int64_t>({1}, {n})); };
  if (count.times != 1) value = builder.emit("Mul", {value, number(count.times)});
  if (times != 1) value = builder.emit("Div", {value, number(times)});
  return counts[count.times] = value;
}

// Its elements before the padding, which becomes `otherwise`.
ValueId Selections::first(Builder& builder, ValueId value, const Padding& padding, double otherwise) {
  const auto number = static_cast<float>(otherwise);
  if (static_cast<double>(number) != otherwise) refuse(value, fmt::format("its padding can't be {}", otherwise));
  const ValueId result = builder.emit("KeepFirst", {value, counted(builder, padding.count)},
                                      {{"axis", static_cast<int64_t>(padding.axis)}, {"value", number}});
  padded_[result] = {.count = padding.count, .axis = padding.axis};
  return result;
}

// The places that a mask selects: the same ones for equal masks.
ValueId Selections::find(Lowering& l, ValueId given, const std::string& node) {
  constexpr int kDepth = 12;
  const auto is_of = [&](const SelectionLimit& limit) { return fits(limit.node, node) || limit.node == l.node.op_type; };
  for (const Finder& finder : finders_) {
    if (!same(finder.mask, given, kDepth)) continue;
    for (const SelectionLimit& limit : limits_) {
      if (is_of(limit)) seconds_.emplace(limit.node, std::pair(node, finder.node));
    }
    if (std::find(nodes_.begin(), nodes_.end(), node) == nodes_.end()) nodes_.push_back(node);
    return finder.indices;
  }
  ValueId mask = given;
  int64_t times = 1;
  const ValueId base = mask_of(mask, times);
  if (element_count(l.shape(base)) == 0) l.fail("selects by a mask that has no elements");
  int number = selection_of(base);
  if (number == Count::kNumber) {
    number = static_cast<int>(selections_.size());
    selections_.push_back({.mask = base, .counts = {}, .limit = element_count(l.shape(base)), .node = node});
  }
  Selection& selection = selections_[static_cast<size_t>(number)];
  nodes_.push_back(node);
  for (size_t i = 0; i < limits_.size(); ++i) {
    if (!is_of(limits_[i])) continue;
    if (!selection.counts.empty()) {  // what was said of the first node counts
      seconds_.emplace(limits_[i].node, std::pair(node, selection.node));
      continue;
    }
    fitting_[i] = true;
    if (limits_[i].count % times != 0)
      throw error(ErrorCode::usage, "`selects` {}: '{}' selects {} elements together, and {} is no multiple of that", limits_[i].node, node,
                  times, limits_[i].count);
    selection.exact = limits_[i].exact;
    const int64_t limit = limits_[i].count / times;
    selection.limit = selection.exact ? limit : std::min(limit, element_count(l.shape(base)));
  }
  const int64_t size = selection.limit * times, all = element_count(l.shape(mask));
  if (const auto padding = padded_.find(mask); padding != padded_.end()) mask = first(l, mask, padding->second, 0);
  const std::vector<ValueId> found = l.emit_many("FindSelected", {mask}, {{"limit", size}, {"exact", int64_t{selection.exact}}}, 2);
  if (selection.counts.empty())
    notes_.push_back(fmt::format("'{}' selects {} {} of {} elements of each batch{}", node, selection.exact ? "exactly" : "at most", size,
                                 all, size == all ? " (`selects` can say fewer)" : ""));
  selection.counts.try_emplace(times, found[1]);
  if (!selection.exact) padded_[found[0]] = {.count = {.selection = number, .times = times}, .axis = 1, .repeats = true};
  finders_.push_back({.mask = given, .indices = found[0], .node = node});
  return found[0];
}

bool Selections::lower(OnnxNode& node, Lowering& l) {
  if (!node.domain.empty()) return false;
  const auto is_data = [&](size_t i) { return l.has(i) && graph_.constant(node.inputs[i]) == nullptr; };
  if (node.op_type == "NonZero" && is_data(0)) {
    l.output(0, find(l, node.inputs[0], node.name));
    return true;
  }
  if (node.op_type == "Compress" && is_data(1)) {
    ValueId x = l.input(0);
    const int64_t rank = static_cast<int64_t>(l.shape(x).size());
    int64_t axis = 0;
    if (node.attributes.has("axis"))
      axis = normalize_axis(node.attributes.get("axis", 0), rank, "axis");
    else
      x = l.reshape(x, {element_count(l.shape(x))});
    const ValueId indices = find(l, l.input(1), node.name);
    if (l.shape(l.input(1))[0] > l.shape(x)[static_cast<size_t>(axis)])
      l.fail(fmt::format("its condition has {} elements for an axis of {}", l.shape(l.input(1))[0], l.shape(x)[static_cast<size_t>(axis)]));
    l.output(0, l.emit("Gather", {x, l.reshape(indices, {l.shape(indices)[1]})}, {{"axis", axis}}));
    return true;
  }
  if (node.op_type == "ReduceMean" && l.has(0) && padded_.contains(node.inputs[0])) return lower_mean(l);
  if (node.op_type == "ReduceSum" && l.has(0) && !is_floating(l.dtype(node.inputs[0]))) return lower_sum(l);
  if (node.op_type == "Slice" && l.has(2) && counts_.contains(node.inputs[2])) return lower_slice(l);
  // What the loss leaves out is left out of the mean, too.
  const bool is_loss = node.op_type == "SoftmaxCrossEntropyLoss" || node.op_type == "NegativeLogLikelihoodLoss";
  constexpr int64_t kIgnored = -100;
  if (is_loss && l.has(1) && padded_.contains(node.inputs[1]) && !node.attributes.has("ignore_index"))
    node.attributes.set("ignore_index", kIgnored);
  return false;
}

// A mean over the padded axis: the sum by as many as there are.
bool Selections::lower_mean(Lowering& l) {
  const ValueId x = l.input(0);
  const Padding padding = padded_.at(x);
  const Shape shape = l.shape(x);
  std::vector<int64_t> axes = l.ints_from("axes", 1, {});
  if (axes.empty()) {
    if (l.node.attributes.get("noop_with_empty_axes", 0) != 0) return false;
    axes.resize(shape.size());
    std::iota(axes.begin(), axes.end(), 0);
  }
  int64_t others = 1;
  bool is_over = false;
  for (int64_t& axis : axes) {
    axis = normalize_axis(axis, static_cast<int64_t>(shape.size()), "axis");
    const bool is_padded = static_cast<size_t>(axis) == padding.axis;
    is_over |= is_padded;
    if (!is_padded) others *= shape[static_cast<size_t>(axis)];
  }
  if (!is_over) return false;
  std::sort(axes.begin(), axes.end());
  const ValueId sum = l.emit("ReduceSum", {x}, {{"axes", axes}, {"keepdims", int64_t{l.node.attributes.get("keepdims", 1) != 0}}});
  ValueId count = l.cast(l.reshape(counted(l, padding.count), {}), l.dtype(sum));
  if (others != 1) count = l.emit("Mul", {count, l.scalar_like(count, static_cast<double>(others))});
  l.output(0, l.emit("Div", {sum, count}));
  return true;
}

// How many elements of a mask are true, which is how many it selects.
bool Selections::lower_sum(Lowering& l) {
  ValueId x = l.input(0);
  const auto is_passed_on = [&] {
    const NodeId producer = graph_.value(x).producer;
    return producer != kNone && graph_.node(producer).op->traits.same_numbers && graph_.value(x).dtype != DType::boolean;
  };
  while (is_passed_on()) x = graph_.node(graph_.value(x).producer).inputs[0];
  if (graph_.value(x).dtype != DType::boolean) return false;
  Count count{.selection = Count::kNumber};
  count.selection = selection_of(mask_of(x, count.times));
  const Shape shape = l.shape(l.input(0));
  std::vector<int64_t> axes = l.ints_from("axes", 1, {});
  for (int64_t& axis : axes) axis = normalize_axis(axis, static_cast<int64_t>(shape.size()), "axis");
  for (size_t i = 0; i < shape.size() && !axes.empty(); ++i) {
    if (shape[i] != 1 && std::find(axes.begin(), axes.end(), static_cast<int64_t>(i)) == axes.end()) return false;
  }
  const bool is_all = !axes.empty() || l.node.attributes.get("noop_with_empty_axes", 0) == 0;
  if (count.selection < 0 || !is_all || element_count(shape) != element_count(l.shape(x))) return false;
  const bool keeps = l.node.attributes.get("keepdims", 1) != 0;
  Tensor constant(l.dtype(l.input(0)), Shape(keeps ? shape.size() : axes.empty() ? 0 : shape.size() - axes.size(), 1));
  fill_elements(constant.bytes, constant.dtype, static_cast<double>(size_of(count)));
  const ValueId result = l.constant(std::move(constant));
  if (!selections_[static_cast<size_t>(count.selection)].exact) counts_[result] = {count};
  l.output(0, result);
  return true;
}

// The first elements along an axis, as many as a selection has.
bool Selections::lower_slice(Lowering& l) {
  const std::vector<Count>& ends = counts_.at(l.node.inputs[2]);
  const std::vector<int64_t> starts = l.ints(1, "where it starts"), axes = l.has(3) ? l.ints(3, "its axes") : std::vector<int64_t>{0},
                             steps = l.has(4) ? l.ints(4, "its steps") : std::vector<int64_t>{1};
  const ValueId x = l.input(0);
  const bool is_first = ends.size() == 1 && ends[0].selection >= 0 && starts == std::vector<int64_t>{0} && axes.size() == 1 &&
                        steps == std::vector<int64_t>{1};
  if (!is_first) l.fail("cuts where a mask of the batch says, and is more than the first elements along one axis");
  const auto axis = static_cast<size_t>(normalize_axis(axes[0], static_cast<int64_t>(l.shape(x).size()), "axis"));
  if (const auto padding = padded_.find(x); padding != padded_.end()) {
    if (padding->second.axis != axis || !(padding->second.count == ends[0])) refuse(x, "it is cut where another mask says");
    l.output(0, x);  // all of it
    return true;
  }
  const int64_t limit = size_of(ends[0]), size = l.shape(x)[axis];
  if (size == 0) l.fail("cuts from nothing");
  // Where there are fewer than the limit, the last one stands for those that aren't there, and a batch that wants one of them is refused.
  std::vector<int64_t> places(static_cast<size_t>(limit));
  for (int64_t i = 0; i < limit; ++i) places[static_cast<size_t>(i)] = std::min(i, size - 1);
  ValueId result = l.emit("Gather", {x, l.constant(make_tensor<int64_t>({limit}, places))}, {{"axis", static_cast<int64_t>(axis)}});
  const Padding padding{.count = ends[0], .axis = axis};
  if (size < limit) {
    padded_[result] = padding;
    result = l.emit("RepeatLast", {result, counted(l, ends[0]), result}, {{"axis", static_cast<int64_t>(axis)}, {"most", size}});
  } else {
    result = first(l, result, padding, 0);  // no gradient reaches rows that aren't taken
  }
  l.output(0, result);
  return true;
}

// With as much more along the axis that is padded, if any, as one more selected element makes.
Shape Selections::shape_with_one_more(ValueId value) const {
  Shape shape = graph_.value(value).shape;
  if (const auto padding = padded_.find(value); padding != padded_.end()) shape[padding->second.axis] += padding->second.count.times;
  return shape;
}

// Runs the shape rule with one element more along each padded axis: where that doesn't fit, padding meets an axis of fixed size.
void Selections::check_sizes(const Node& node) const {
  std::vector<TensorType> types;
  types.reserve(node.inputs.size());
  InferContext context{.attributes = node.attributes, .inputs = {}, .constants = {}, .outputs = node.outputs.size()};
  ValueId padded = kNone;
  for (const ValueId input : node.inputs) {
    if (input == kNone) {
      context.inputs.push_back(nullptr);
      context.constants.push_back(nullptr);
      continue;
    }
    types.push_back({graph_.value(input).dtype, shape_with_one_more(input)});
    if (padded_.contains(input)) padded = input;
    context.inputs.push_back(&types.back());
    context.constants.push_back(graph_.constant(input));
  }
  std::vector<TensorType> results;
  try {
    results = node.op->infer(context);
  } catch (const Error&) {
    refuse(padded, kFixed);
  }
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    if (node.outputs[i] == kNone) continue;
    if (results[i].shape != shape_with_one_more(node.outputs[i])) refuse(padded, kFixed);
  }
}

void Selections::visit(NodeId id) {
  std::optional<Padding> result;
  ValueId read = kNone;
  const size_t count = graph_.node(id).inputs.size();
  for (size_t i = 0; i < count; ++i) {
    const ValueId input = graph_.node(id).inputs[i];
    const auto found = padded_.find(input);
    if (input == kNone || found == padded_.end()) continue;
    const Padding padding = found->second;
    read = input;
    const Node& node = graph_.node(id);
    const AxisPath path = node.op->traits.along ? node.op->traits.along(graph_, node, i, padding.axis) : AxisPath{};
    Builder builder(graph_);
    builder.before(id).named(node.name, node.ordinal);
    bool repeats = padding.repeats && !node.op->random && path.times == path.divided;
    if (path.use == AxisPath::unknown) {
      refuse(input, fmt::format("what {} makes along that axis is not supported", node.op->name));
    } else if (path.use == AxisPath::filled) {
      const ValueId filled = first(builder, input, padding, path.fill);
      graph_.node(id).inputs[i] = filled;
      repeats = false;
    } else if (path.use == AxisPath::repeated && !(i == 1 && padding.repeats)) {
      const Attributes along{{"axis", static_cast<int64_t>(padding.axis)}};
      Attributes reading;
      if (const Attribute* axis = node.attributes.find("axis")) reading.set("axis", *axis);
      const ValueId data = node.inputs[0], indices = node.inputs[1];
      const ValueId otherwise = i == 1 ? input : builder.emit(path.reader, {data, indices}, reading);
      const ValueId repeated = builder.emit("RepeatLast", {input, counted(builder, padding.count), otherwise}, along);
      padded_[repeated] = {.count = padding.count, .axis = padding.axis, .repeats = true};
      graph_.node(id).inputs[i] = repeated;
    }
    if (path.axis == AxisPath::kEnds) continue;
    Count count = padding.count;
    if (count.times * path.times % path.divided != 0) refuse(input, "it is divided into other rows");
    count.times = count.times * path.times / path.divided;
    if (result && (!(result->count == count) || result->axis != path.axis))
      refuse(input, "it meets what another node selects, or itself along another axis");
    result = Padding{.count = count, .axis = path.axis, .repeats = repeats && (!result || result->repeats)};
  }
  if (read == kNone) return;
  const Node& node = graph_.node(id);
  for (const ValueId output : node.outputs) {
    if (output == kNone || !result) continue;
    const Shape& shape = graph_.value(output).shape;
    if (result->axis >= shape.size() || shape[result->axis] != size_of(result->count))
      refuse(read, fmt::format("what {} makes along that axis is not supported", node.op->name));
    padded_[output] = *result;
  }
  if (!node.attributes.has("shape")) check_sizes(node);
}

// A Reshape to sizes that are fixed: padding must not be laid out anew.
void Selections::check_reshape(const OnnxNode& node, ValueId result, const Again& again) {
  const ValueId x = node.inputs[0];
  const int selection = padded_.at(x).count.selection;
  bool fits = false;
  try {
    const std::vector<ValueId> others =
        made_of(node, selection, selections_[static_cast<size_t>(selection)].limit + 1, /*longer=*/true, again);
    fits = graph_.value(others[0]).shape == shape_with_one_more(result);
  } catch (const Error&) {
  }
  if (!fits) refuse(x, kFixed);
}

// To the last that is there now: what visiting them puts in is as it has to be.
void Selections::visit_from(NodeId first) {
  const auto is_finder = [&](NodeId id) {
    return std::any_of(finders_.begin(), finders_.end(), [&](const Finder& f) { return graph_.value(f.indices).producer == id; });
  };
  const auto last = static_cast<NodeId>(graph_.node_count());
  for (NodeId id = first; id < last && !padded_.empty(); ++id) {
    if (!is_finder(id)) visit(id);
  }
}

void Selections::follow() {
  const NodeId first = std::exchange(next_, static_cast<NodeId>(graph_.node_count()));
  visit_from(first);
  next_ = static_cast<NodeId>(graph_.node_count());
}

void Selections::follow(const OnnxNode& node, std::vector<ValueId>& results, const Again& again) {
  follow();
  const ValueId x = node.inputs.empty() ? kNone : node.inputs[0];
  if (const auto padding = padded_.find(x); padding != padded_.end() && (node.op_type == "Shape" || node.op_type == "Size")) {
    const Shape& shape = graph_.value(x).shape;
    std::vector<Count> counts(static_cast<size_t>(element_count(graph_.value(results[0]).shape)));
    Count count = padding->second.count;
    const auto rank = static_cast<int64_t>(shape.size());
    int64_t at = 0;
    if (node.op_type == "Size") {
      count.times *= element_count(shape) / shape[padding->second.axis];
    } else {
      const int64_t start = node.attributes.get("start", 0);
      at = static_cast<int64_t>(padding->second.axis) - std::clamp<int64_t>(start < 0 ? start + rank : start, 0, rank);
    }
    if (at >= 0 && at < static_cast<int64_t>(counts.size())) {
      counts[static_cast<size_t>(at)] = count;
      counts_[results[0]] = std::move(counts);
    }
    return;
  }
  const bool is_reshape = node.op_type == "Reshape" && padded_.contains(x) && !counts_.contains(node.inputs.back());
  const bool is_done = node.op_type == "Slice" && node.inputs.size() > 2 && counts_.contains(node.inputs[2]);
  const bool counts = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId v) { return v != kNone && counts_.contains(v); });
  if (!is_reshape && (!counts || is_done)) return;
  try {
    if (is_reshape)
      check_reshape(node, results[0], again);
    else
      use_counts(node, results, again);
  } catch (const Error&) {
    next_ = static_cast<NodeId>(graph_.node_count());
    throw;
  }
  next_ = static_cast<NodeId>(graph_.node_count());  // what was lowered only to be compared is nobody's
}

}  // namespace ort_train::importing
