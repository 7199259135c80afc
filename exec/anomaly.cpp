#include "exec/anomaly.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "graph/op_def.h"

namespace ort_train {
namespace {

// The bits of a floating-point number's exponent are all ones where it is none, or infinite; other bits than the sign's beside them: NaN.
template <typename Bits> struct Format { Bits exponent, sign; };

template <typename Bits, typename Found> void count(const void* data, int64_t n, const Format<Bits> format, Found& found) {
  constexpr int64_t kBlock = 4096;
  const Bits* const numbers = static_cast<const Bits*>(data);
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    const int64_t end = std::min(n, begin + kBlock);
    bool any = false;
    for (int64_t i = begin; i < end; ++i) any |= (numbers[i] & format.exponent) == format.exponent;
    if (!any) continue;
    for (int64_t i = begin; i < end; ++i) {
      if ((numbers[i] & format.exponent) != format.exponent) continue;
      if (found.first < 0) found.first = i;
      ++((numbers[i] | format.sign) == (format.exponent | format.sign) ? found.infinite : found.nan);
    }
  }
}

std::string counted(int64_t number, const char* one, const char* many) { return fmt::format("{} {}", number, number == 1 ? one : many); }

// Of an element by its number.
std::string index_of(const Shape& shape, int64_t element) {
  std::string text;
  for (size_t axis = shape.size(); axis-- > 0; element /= shape[axis])
    text = fmt::format("{}{}{}", element % shape[axis], text.empty() ? "" : ", ", text);
  return "[" + text + "]";
}

}  // namespace

AnomalyDetector::AnomalyDetector(const Graph& graph) : graph_(graph), trained_(graph.value_count(), false), found_(graph.value_count()) {
  for (const ValueId id : graph.parameters()) trained_[id] = graph.value(id).trainable;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    bool trained = node.stage != Stage::forward;
    for (const ValueId input : node.inputs) trained |= input != kNone && trained_[input];
    for (const ValueId output : node.outputs) {
      if (output != kNone) trained_[output] = trained;
    }
  }
}

void AnomalyDetector::begin() { found_.assign(found_.size(), {}); }

AnomalyDetector::Found AnomalyDetector::look(ValueId value, const void* data) const {
  Found found{.seen = true};
  const TensorType type = graph_.value(value).type();
  if (data == nullptr) return found;
  const int64_t n = element_count(type.shape);
  switch (type.dtype) {
    case DType::float64:
      count<uint64_t>(data, n, {uint64_t{0x7ff} << 52, uint64_t{1} << 63}, found);
      break;
    case DType::float32:
      count<uint32_t>(data, n, {0x7f800000u, 0x80000000u}, found);
      break;
    case DType::float16:
      count<uint16_t>(data, n, {0x7c00, 0x8000}, found);
      break;
    case DType::bfloat16:
      count<uint16_t>(data, n, {0x7f80, 0x8000}, found);
      break;
    default:
      break;
  }
  return found;
}

std::string AnomalyDetector::describe_found(ValueId value, const Found& found) const {
  const Shape& shape = graph_.value(value).shape;
  std::string what;
  if (found.nan > 0) what = fmt::format("{} NaN", found.nan);
  if (found.infinite > 0) what += (what.empty() ? "" : " and ") + counted(found.infinite, "infinity", "infinities");
  return fmt::format("{} among {}, the first at {}", what, counted(element_count(shape), "number", "numbers"),
                     index_of(shape, found.first));
}

std::string AnomalyDetector::before(NodeId id, std::span<const void* const> inputs) {
  const Node& node = graph_.node(id);
  for (size_t i = 0; i < node.inputs.size(); ++i) {
    const ValueId input = node.inputs[i];
    if (input == kNone || found_[input].seen) continue;
    const Found& found = found_[input] = look(input, inputs[i]);
    const Value& value = graph_.value(input);
    const bool is_state = value.kind == ValueKind::optimizer_state || value.kind == ValueKind::accumulator;
    if (is_state || node.stage == Stage::update || value.producer != kNone) continue;  // what made them, or what they view, was looked at
    if (found.nan > 0 || (found.infinite > 0 && trained_[input]))
      return fmt::format("{} '{}' has {}", value.kind == ValueKind::input ? "the input" : "the tensor", value.name,
                         describe_found(input, found));
  }
  return {};
}

// Whether an update makes a weight or optimizer state infinite that was finite before.
bool AnomalyDetector::makes_state_infinite(const Node& node, size_t output) const {
  for (const Alias& write : node.op->writes) {
    if (static_cast<size_t>(write.output) != output) continue;
    const ValueId before = node.inputs[static_cast<size_t>(write.input)];
    return before != kNone && found_[before].is_finite();
  }
  return false;
}

std::string AnomalyDetector::behind(NodeId id, std::span<void* const> outputs) {
  const Node& node = graph_.node(id);
  bool nan = false, infinite = false;
  for (const ValueId input : node.inputs) {
    nan |= input != kNone && found_[input].nan > 0;
    infinite |= input != kNone && found_[input].infinite > 0;
  }
  std::string wrong;
  for (size_t i = 0; i < node.outputs.size(); ++i) {
    const ValueId output = node.outputs[i];
    if (output == kNone) continue;
    const Found& found = found_[output] = look(output, outputs[i]);
    // NaN of infinities is an anomaly, but for updates: they skip what isn't finite. Factors that only an update uses may be infinite: a
    // channel whose gradient is always zero has one of 1 / sqrt(0).
    const bool is_update = node.stage == Stage::update;
    const bool makes_nan = found.nan > 0 && !nan && !(infinite && is_update);
    const bool makes_infinity = found.infinite > 0 && !nan && (is_update ? makes_state_infinite(node, i) : !infinite && trained_[output]);
    if (wrong.empty() && (makes_nan || makes_infinity))
      wrong = fmt::format("[{}] makes {} in output {} ('{}'){}", describe(graph_, id), describe_found(output, found), i,
                          graph_.value(output).name, infinite ? "; of its inputs, some are infinite" : ", of finite inputs");
  }
  for (const ValueId input : graph_.inputs) {  // perhaps a mask, perhaps what is to blame
    if (!wrong.empty() && infinite && found_[input].infinite > 0)
      wrong += fmt::format("; the input '{}' has {}", graph_.value(input).name, describe_found(input, found_[input]));
  }
  return wrong;
}

}  // namespace ort_train
