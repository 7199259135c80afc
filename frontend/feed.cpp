#include "frontend/feed.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "graph/error.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

int64_t integer_at(DType dtype, const std::byte* bytes, int64_t i) {
  const auto get = [&]<typename T>(T value) {
    std::memcpy(&value, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
    return static_cast<int64_t>(value);
  };
  switch (dtype) {
    case DType::int64:
      return get(int64_t{});
    case DType::int32:
      return get(int32_t{});
    case DType::int16:
      return get(int16_t{});
    case DType::int8:
      return get(int8_t{});
    default:
      return get(uint8_t{});
  }
}

// Of labels that are class numbers.
void put_everywhere(std::span<std::byte> bytes, DType dtype, int64_t number) {
  const auto put = [&](auto value) {
    for (size_t at = 0; at < bytes.size(); at += sizeof(value)) std::memcpy(bytes.data() + at, &value, sizeof(value));
  };
  if (dtype == DType::int64)
    put(number);
  else
    put(static_cast<int32_t>(number));
}

// From int64, in their places.
void become_doubles(std::span<std::byte> bytes) {
  for (size_t at = 0; at + sizeof(int64_t) <= bytes.size(); at += sizeof(int64_t)) {
    int64_t whole = 0;
    std::memcpy(&whole, bytes.data() + at, sizeof(whole));
    const auto number = static_cast<double>(whole);
    std::memcpy(bytes.data() + at, &number, sizeof(number));
  }
}

// Whether a sample of this shape is a corner of what is stored: some axes as long as the sequence are cut.
bool is_cut_to(const Shape& sample, const Shape& stored, int64_t sequence, int64_t length) {
  return std::equal(sample.begin(), sample.end(), stored.begin(), stored.end(),
                    [&](int64_t size, int64_t whole) { return size == whole || (whole == sequence && size == length); });
}

}  // namespace

int64_t index_limit(const Graph& graph, ValueId input) {
  const auto readers = graph.readers();
  int64_t limit = 0;
  std::vector<ValueId> same{input};  // the input under other shapes and types
  for (size_t i = 0; i < same.size(); ++i) {
    for (NodeId id : readers[same[i]]) {
      const Node& node = graph.node(id);
      const OpTraits& traits = node.op->traits;
      if (traits.same_numbers && node.inputs[0] == same[i]) same.push_back(node.outputs[0]);
      for (size_t at = 0; traits.index_limit && at < node.inputs.size(); ++at) {
        const int64_t rows = node.inputs[at] == same[i] ? traits.index_limit(graph, node, at) : 0;
        if (rows > 0) limit = limit == 0 ? rows : std::min(limit, rows);
      }
    }
  }
  return limit;
}

Feed::Feed(DataSet& data, const Graph& graph, const Binding& binding, const std::vector<LabelSpec>& labels, int64_t length)
    : data_(data), graph_(graph), binding_(binding), length_(length), labels_(labels) {
  for (const FedInput& fed : binding.fed) {
    const ValueId value = graph.find_value(fed.input);
    if (value == kNone || graph.value(value).kind != ValueKind::input) continue;  // nothing in the model reads it
    add(fed.input, fed.field, value, nullptr);
  }
  for (const LabelSpec& label : labels_) add("labels", label.field, label.value, &label);
}

void Feed::add(const std::string& input, const std::string& field, ValueId value, const LabelSpec* labels) {
  const int index = data_.find(field);
  if (index < 0)
    throw error(ErrorCode::data, "{}: has no array '{}'{}", data_.name(), field,
                labels ? " for the labels: name it with `labels`" : ", which the model wants as an input");
  const Field& from = data_.fields()[static_cast<size_t>(index)];
  const TensorType wanted = graph_.value(value).type();
  const Shape sample = wanted.shape.empty() ? Shape{} : Shape(wanted.shape.begin() + 1, wanted.shape.end());
  const auto fits = [&](const Shape& shape) {
    return shape == sample || (labels != nullptr && without_ones(shape) == without_ones(sample));
  };
  if (labels != nullptr && !slots_.empty() && !wanted.shape.empty() && wanted.shape[0] != graph_.value(slots_[0].value).shape[0])
    throw error(ErrorCode::unsupported,
                "the loss wants labels {} for a batch of {} samples: the first axis of the output that it reads has to be the batch",
                to_string(wanted.shape), graph_.value(slots_[0].value).shape[0]);
  const bool is_corner = is_cut_to(sample, from.shape, binding_.sequence, length_);
  const Shape cut = is_corner ? sample : binding_.cut(from.shape, length_);
  const bool is_same = fits(from.shape), is_cut = !is_same && fits(cut);
  if (wanted.shape.empty() || (!is_same && !is_cut)) {
    throw error(ErrorCode::data, "{}: array '{}' has samples of shape {}, {} wants {}", data_.name(), field, to_string(from.shape),
                labels ? "the loss" : "input '" + input + "'", to_string(sample));
  }
  const bool is_plain = data_.has_plain_numbers() && from.element == Element::int64 && is_floating(wanted.dtype);
  if (!is_plain && !converts(from.element, wanted.dtype)) {
    throw error(ErrorCode::data, "{}: array '{}' is {}, {} wants {}: convert it (in NumPy, with astype)", data_.name(), field,
                to_string(from.element), labels ? "the loss" : "input '" + input + "'", to_string(wanted.dtype));
  }
  if (labels != nullptr && labels->kind == LabelKind::numbers && from.is_padded) {
    throw error(ErrorCode::data,
                "{}: array '{}' has samples of several lengths, and padding would count in a loss of numbers: give them one length",
                data_.name(), field);
  }
  if (labels != nullptr && labels->causal && wanted.shape.size() < 2) {
    throw error(
        ErrorCode::usage,
        "the loss has one label a sample, and `task` causal-lm learns each label of a sequence from those before it: leave `task` out");
  }
  const Shape axes = without_ones(sample);
  if (labels != nullptr && labels->causal && axes.size() > 1 && binding_.sequence > 0 && axes[0] != binding_.sequence) {
    throw error(
        ErrorCode::usage,
        "{}: array '{}': the loss wants labels of shape {} for a sample, and `task` causal-lm shifts labels along the first of its axes, "
        "but samples have {} tokens: shift them in the data, and leave `task` out",
        data_.name(), field, to_string(sample), binding_.sequence);
  }
  Slot slot{.value = value,
            .field = static_cast<size_t>(index),
            .dtype = wanted.dtype,
            .elements = element_count(sample),
            .positions = axes.empty() ? 1 : axes[0],
            .limit = labels != nullptr || is_floating(wanted.dtype) ? 0 : index_limit(graph_, value),
            .labels = labels,
            .kept = is_cut ? cut : Shape{},
            .mask = labels != nullptr ? find_mask(*labels) : std::nullopt};
  const size_t packed = static_cast<size_t>(from.bytes());
  if (is_cut || element_of(wanted.dtype) != from.element || wanted.dtype == DType::boolean)
    buffer_.resize(std::max(buffer_.size(), packed));
  if (labels != nullptr) label_buffer_.resize(std::max(label_buffer_.size(), static_cast<size_t>(slot.elements * size_of(slot.dtype))));
  slots_.push_back(slot);
}

std::optional<size_t> Feed::find_mask(const LabelSpec& labels) {
  if (labels.mask.empty()) return std::nullopt;
  const int field = data_.find(labels.mask);
  require(field >= 0, "a mask that the data don't have");
  mask_buffer_.resize(std::max(mask_buffer_.size(), static_cast<size_t>(data_.fields()[static_cast<size_t>(field)].bytes())));
  return static_cast<size_t>(field);
}

void Feed::read(const Slot& slot, int64_t sample, std::span<std::byte> to) {
  const Field& field = data_.fields()[slot.field];
  const bool is_checked = slot.dtype == DType::boolean;  // its bytes may be other than 0 and 1
  if (element_of(slot.dtype) == field.element && slot.kept.empty() && !is_checked) {
    data_.read(slot.field, sample, to);
    return;
  }
  auto packed = std::span(buffer_).first(static_cast<size_t>(field.bytes()));
  data_.read(slot.field, sample, packed);
  if (!slot.kept.empty()) {
    std::byte* const end = take_corner(packed.data(), packed.data(), field.shape, slot.kept, size_of(field.element));
    packed = packed.first(static_cast<size_t>(end - packed.data()));
  }
  const bool is_plain = field.element == Element::int64 && is_floating(slot.dtype);  // DataSet::has_plain_numbers()
  if (is_plain) become_doubles(packed);
  const int64_t bad = convert(is_plain ? Element::float64 : field.element, packed, slot.dtype, to);
  if (bad >= 0) {
    throw error(ErrorCode::data, "{}: sample {}: element {} of array '{}' does not fit {}", data_.name(), sample, bad, field.name,
                to_string(slot.dtype));
  }
}

void Feed::check_indices(const Slot& slot, int64_t sample, std::span<const std::byte> bytes) const {
  if (slot.limit == 0) return;
  const int64_t least = data_.is_row() ? 0 : -slot.limit;
  for (int64_t i = 0; i < slot.elements; ++i) {
    const int64_t index = integer_at(slot.dtype, bytes.data(), i);
    if (index >= least && index < slot.limit) continue;
    throw error(ErrorCode::data, "{}: sample {}: element {} of '{}' is {}, the model has {} rows for it (input '{}')", data_.name(), sample,
                i, data_.fields()[slot.field].name, index, slot.limit, graph_.value(slot.value).name);
  }
}

// A mask has 0 where padding is. One that is added to scores has 0 where it is not, and negative numbers where it is; such a one may be 0
// throughout, where a sample has no padding.
void Feed::ignore_padding(const Slot& slot, int64_t sample, std::span<std::byte> bytes) {
  const Field& mask = data_.fields()[*slot.mask];
  const auto row = std::span(mask_buffer_).first(static_cast<size_t>(mask.bytes()));
  data_.read(*slot.mask, sample, row);
  bool has_positive = false, has_negative = false;
  for (int64_t i = 0; i < element_count(mask.shape); ++i) {
    const int sign = sign_at(mask.element, row, i);
    has_positive = has_positive || sign > 0;
    has_negative = has_negative || sign < 0;
  }
  require(element_count(mask.shape) >= slot.positions, "a mask of other samples");
  if (is_float(mask.element) && !has_positive && !has_negative) return;
  const size_t position = bytes.size() / static_cast<size_t>(slot.positions);
  for (int64_t i = 0; i < slot.positions; ++i) {
    const int sign = sign_at(mask.element, row, i);
    if (has_negative ? sign < 0 : sign == 0)
      put_everywhere(bytes.subspan(static_cast<size_t>(i) * position, position), slot.dtype, slot.labels->ignore_index);
  }
}

// Ignores padding, shifts causal labels, checks the range; returns what the labels count.
double Feed::prepare_and_count_labels(const Slot& slot, int64_t sample, std::span<std::byte> bytes) {
  const LabelSpec& labels = *slot.labels;
  const std::string& array = data_.fields()[slot.field].name;
  if (labels.kind == LabelKind::signs) {
    for (int64_t i = 0; i < slot.elements; ++i) {
      const int64_t sign = integer_at(slot.dtype, bytes.data(), i);
      if (sign != 1 && sign != -1)
        throw error(ErrorCode::data, "{}: sample {} of array '{}' is {}: labels of pairs are 1 (alike) or -1", data_.name(), sample, array,
                    sign);
    }
  }
  if (labels.kind != LabelKind::classes && labels.kind != LabelKind::sequences) return 0;
  if (slot.mask) ignore_padding(slot, sample, bytes);
  if (labels.causal) {  // what stands at a position is the label of the one before it
    const size_t position = bytes.size() / static_cast<size_t>(slot.positions);
    std::memmove(bytes.data(), bytes.data() + position, bytes.size() - position);
    put_everywhere(bytes.last(position), slot.dtype, labels.ignore_index);
  }
  double counted = 0;
  for (int64_t i = 0; i < slot.elements; ++i) {
    const int64_t label = integer_at(slot.dtype, bytes.data(), i);
    if (label == labels.ignore_index) continue;
    if (label < 0 || label >= labels.class_count) {
      throw error(ErrorCode::data, "{}: sample {}: label {} is outside the {} classes of the loss (ignored ones are {})", data_.name(),
                  sample, label, labels.class_count, labels.ignore_index);
    }
    counted += labels.class_weights.empty() ? 1 : labels.class_weights[static_cast<size_t>(label)];
  }
  return counted;
}

void Feed::fill(std::span<const int64_t> samples, const Places& at, std::span<double> counted) {
  for (const Slot& slot : slots_) {
    const std::span<std::byte> place = at(slot.value);
    const size_t bytes = static_cast<size_t>(slot.elements * size_of(slot.dtype));
    require(place.empty() || place.size() == bytes * samples.size(), "a batch that is not the graph's");
    for (size_t i = 0; i < samples.size(); ++i) {
      if (place.empty() && slot.labels == nullptr) break;  // read by nobody
      const auto to = place.empty() ? std::span(label_buffer_).first(bytes) : place.subspan(i * bytes, bytes);
      read(slot, samples[i], to);
      if (slot.labels == nullptr)
        check_indices(slot, samples[i], to);
      else if (slot.labels->counts)
        counted[slot.labels->loss] += prepare_and_count_labels(slot, samples[i], to);
      else
        prepare_and_count_labels(slot, samples[i], to);
    }
  }
}

void Feed::count(std::span<const int64_t> samples, std::span<double> counted) {
  for (const Slot& slot : slots_) {
    if (slot.labels == nullptr || !slot.labels->counts) continue;
    const auto to = std::span(label_buffer_).first(static_cast<size_t>(slot.elements * size_of(slot.dtype)));
    for (const int64_t sample : samples) {
      read(slot, sample, to);
      counted[slot.labels->loss] += prepare_and_count_labels(slot, sample, to);
    }
  }
}

int64_t Feed::memory_bytes() const { return static_cast<int64_t>(buffer_.size() + label_buffer_.size() + mask_buffer_.size()); }

}  // namespace ort_train
