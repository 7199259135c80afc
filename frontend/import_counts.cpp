// Selections: numbers of elements that nodes select, in constants that are made of sizes.
//
// Until a batch is there such a number is the selection's limit. What a node makes of other numbers tells what it is read for: as a size
// (the result has more rows), as one of several sizes that are joined or taken apart (the result is a constant, with the number or a
// multiple of it somewhere), or as a number, in whose place comes then what is counted.

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "frontend/import_selection.h"
#include "graph/error.h"

namespace ort_train::importing {

// A constant as it would be if a selection had `selected` elements.
Tensor Selections::of_count(ValueId constant, int selection, int64_t selected) const {
  Tensor tensor = *graph_.constant(constant);
  const std::vector<Count>& counts = counts_.at(constant);
  const int64_t size = ort_train::size_of(tensor.dtype);
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i].selection != selection) continue;
    const std::span<std::byte> element(tensor.bytes.data() + static_cast<int64_t>(i) * size, static_cast<size_t>(size));
    fill_elements(element, tensor.dtype, static_cast<double>(selected * counts[i].times));
  }
  return tensor;
}

// Null where none are in it.
const std::vector<Selections::Count>* Selections::counts_of(ValueId value) const {
  const auto found = counts_.find(value);
  return found == counts_.end() ? nullptr : &found->second;
}

// The counts that a node reads, all of one selection.
Selections::Reading Selections::reading_of(const OnnxNode& node) const {
  Reading reading;
  for (const ValueId input : node.inputs) {
    const std::vector<Count>* const counts = counts_of(input);
    if (counts == nullptr) continue;
    reading.value = input;
    reading.is_plain &= counts->size() == 1;
    for (const Count& count : *counts) {
      reading.is_plain &= count.selection >= 0;
      if (count.selection == Count::kNumber) continue;
      if (count.selection == Count::kOther || (reading.selection >= 0 && count.selection != reading.selection))
        throw error(ErrorCode::unsupported, "reads '{}', which is computed from the number of elements that '{}' selects of a batch",
                    graph_.value(input).name, fmt::join(nodes_, "' or '"));
      reading.selection = count.selection;
    }
  }
  return reading;
}

// What the node makes where so many elements are selected; `longer`: its padded inputs have as many rows, too.
std::vector<ValueId> Selections::made_of(const OnnxNode& node, int selection, int64_t selected, bool longer, const Again& again) {
  std::vector<ValueId> inputs = node.inputs;
  for (ValueId& input : inputs) {
    if (input == kNone) continue;
    const auto padding = padded_.find(input);
    if (counts_.contains(input)) {
      input = graph_.add_constant(of_count(input, selection, selected), "of another count");
    } else if (longer && padding != padded_.end() && padding->second.count.selection == selection) {
      TensorType type = graph_.value(input).type();
      type.shape[padding->second.axis] = selected * padding->second.count.times;
      placeholders_.push_back(input = graph_.add_value({.name = "longer", .dtype = type.dtype, .shape = type.shape}));
    }
  }
  return again(inputs);
}

// How many may be selected where a function of the number is looked at: none, all, and about the numbers that the node has as constants,
// by which it may compare, bound or divide.
std::set<int64_t> Selections::samples(const OnnxNode& node, int64_t limit) const {
  constexpr size_t kMost = 24;
  std::set<int64_t> times, chosen{0, 1, limit / 2, limit - 1, limit + 1};
  for (const ValueId input : node.inputs) {
    const std::vector<Count>* const counts = counts_of(input);
    if (counts == nullptr) continue;
    for (const Count& count : *counts) times.insert(count.times);
  }
  for (const ValueId input : node.inputs) {
    const Tensor* const constant = graph_.constant(input);
    if (constant == nullptr || counts_.contains(input)) continue;
    for (const double number : constant->to_double()) {
      for (const int64_t each : times) {
        const double about = std::floor(number / static_cast<double>(each));
        for (const double near : {about - 1, about, about + 1}) {
          if (near >= 0 && near <= static_cast<double>(limit) && chosen.size() < kMost) chosen.insert(static_cast<int64_t>(near));
        }
      }
      if (chosen.size() >= kMost) break;
    }
  }
  chosen.erase(limit);
  return chosen;
}

// What the elements of a constant are that a node has made of counts: counts, numbers that don't hang on them, or neither (kOther).
// `other`: the same with one more selected element.
std::vector<Selections::Count> Selections::counts_in(const OnnxNode& node, size_t output, ValueId result, ValueId other, int selection,
                                                     const Again& again) {
  const int64_t limit = selections_[static_cast<size_t>(selection)].limit;
  const std::vector<double> all = graph_.constant(result)->to_double(), more = graph_.constant(other)->to_double();
  constexpr size_t kMostElements = size_t{1} << 16;  // sizes are few, and each sample is a tensor more
  const std::vector<Count> neither(std::max<size_t>(all.size(), 1), Count{.selection = Count::kOther});
  if (all.size() > kMostElements) return neither;
  std::vector<Count> counts(all.size());
  const auto made = [&](int64_t selected) {
    std::vector<double> numbers;
    try {
      const Tensor* const constant = graph_.constant(made_of(node, selection, selected, /*longer=*/false, again)[output]);
      if (constant != nullptr) numbers = constant->to_double();
    } catch (const Error&) {  // with so many there is none
    }
    return numbers;
  };
  for (size_t i = 0; i < all.size(); ++i) {
    const double times = more[i] - all[i];
    if (times == 0) continue;
    const bool may_be = times >= 1 && times < 0x1p62;
    counts[i] = {.selection = may_be ? selection : Count::kOther, .times = may_be ? static_cast<int64_t>(times) : 1};
  }
  for (const int64_t selected : samples(node, limit)) {
    const std::vector<double> numbers = made(selected);
    if (numbers.size() != all.size()) return neither;
    for (size_t i = 0; i < all.size(); ++i) {
      const double expected = counts[i].selection >= 0 ? static_cast<double>(selected * counts[i].times) : all[i];
      if (numbers[i] != expected) counts[i] = {.selection = Count::kOther};
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    if (counts[i].selection >= 0 && all[i] != static_cast<double>(size_of(counts[i]))) counts[i] = {.selection = Count::kOther};
  }
  return counts;
}

// Puts what is counted in the place of a number: it is data then. Where the results have a row for each that is selected, 1 stands for
// none: there are no rows then, and what is computed in their place must not become NaN in gradients.
void Selections::read_as_number(const OnnxNode& node, std::vector<ValueId>& results, const Again& again) {
  const int selection = reading_of(node).selection;
  const bool has_rows = std::all_of(results.begin(), results.end(), [&](ValueId result) {
    const auto padding = padded_.find(result);
    return result == kNone || (padding != padded_.end() && padding->second.count.selection == selection);
  });
  std::vector<ValueId> inputs = node.inputs;
  const auto first = static_cast<NodeId>(graph_.node_count());
  Builder builder(graph_);
  builder.named(node.name);
  for (ValueId& input : inputs) {
    const std::vector<Count>* const counts = counts_of(input);
    if (counts == nullptr) continue;
    const TensorType type = graph_.value(input).type();
    ValueId count = counted(builder, (*counts)[0]);
    if (has_rows) count = builder.emit("Max", {count, builder.constant(make_tensor<int64_t>({1}, {1}))});
    input = builder.reshape(builder.cast(count, type.dtype), type.shape);
  }
  results = again(inputs);
  visit_from(first);
}

// A result that has one row more along an axis where one more is selected.
void Selections::grow(const OnnxNode& node, ValueId& result, ValueId other, int selection) {
  static constexpr std::array<std::string_view, 10> kDifferent{"Resize", "Upsample", "OneHot",     "CenterCropPad", "AffineGrid",
                                                               "DFT",    "STFT",     "HannWindow", "HammingWindow", "BlackmanWindow"};
  const Selection& which = selections_[static_cast<size_t>(selection)];
  const Shape shape = graph_.value(result).shape, longer = graph_.value(other).shape;
  size_t axis = 0;
  while (axis < shape.size() && axis < longer.size() && shape[axis] == longer[axis]) ++axis;
  const Count count{.selection = selection, .times = axis < shape.size() && axis < longer.size() ? longer[axis] - shape[axis] : 0};
  Shape grown = shape;
  if (count.times > 0) grown[axis] += count.times;
  // The rows that both have are the same ones; of data that is known of the ops.
  bool is_longer =
      grown == longer && shape[axis] == size_of(count) && std::find(kDifferent.begin(), kDifferent.end(), node.op_type) == kDifferent.end();
  const Tensor *const rows = graph_.constant(result), *const more = graph_.constant(other);
  if (is_longer && rows != nullptr && more != nullptr) {
    const auto row_bytes = static_cast<size_t>(element_count(shape.from(axis)) * ort_train::size_of(rows->dtype)),
               longer_bytes = static_cast<size_t>(element_count(longer.from(axis)) * ort_train::size_of(rows->dtype));
    for (int64_t i = 0; i < element_count(shape.before(axis)); ++i)
      is_longer &= std::memcmp(rows->bytes.data() + static_cast<size_t>(i) * row_bytes,
                               more->bytes.data() + static_cast<size_t>(i) * longer_bytes, row_bytes) == 0;
  }
  if (!is_longer)
    throw error(ErrorCode::unsupported, "makes a tensor whose size is computed from the number of elements that '{}' selects of a batch",
                which.node);
  const Padding padding{.count = count, .axis = axis};
  if (rows == nullptr && std::find(node.inputs.begin(), node.inputs.end(), result) == node.inputs.end()) {
    padded_.try_emplace(result, padding);
    return;
  }
  if (padded_.contains(result)) return;
  Builder builder(graph_);  // folding would lose sight of the padding; what else reads an input doesn't see it padded
  builder.named(node.name);
  result = first(builder, result, padding, 0);
}

// Where a node reads counts: what it makes of other numbers tells what they are for.
void Selections::use_counts(const OnnxNode& node, std::vector<ValueId>& results, const Again& again) {
  const Reading reading = reading_of(node);
  const int selection = reading.selection;
  if (selection < 0) return;
  const Selection& which = selections_[static_cast<size_t>(selection)];
  const auto has_shapes = [&](const std::vector<ValueId>& others) {
    for (size_t i = 0; i < results.size(); ++i) {
      if (results[i] != kNone && graph_.value(results[i]).shape != graph_.value(others[i]).shape) return false;
    }
    return true;
  };
  std::vector<ValueId> others;
  try {
    others = made_of(node, selection, which.limit + 1, /*longer=*/false, again);
  } catch (const Error&) {
  }
  const bool is_number = !others.empty() && has_shapes(others);  // sizes stay what they are
  if (!is_number) {
    try {
      others = made_of(node, selection, which.limit + 1, /*longer=*/true, again);
    } catch (const Error&) {
      throw error(ErrorCode::unsupported,
                  "wants '{}' to select {} elements of each batch, neither more nor fewer (where it does, `selects` {}={} says so)",
                  which.node, which.limit, which.node, which.limit);
    }
  }
  for (size_t i = 0; i < results.size(); ++i) {
    if (results[i] == kNone) continue;
    if (graph_.value(results[i]).shape != graph_.value(others[i]).shape) {
      grow(node, results[i], others[i], selection);
      continue;
    }
    const bool is_constant = graph_.constant(results[i]) != nullptr && graph_.constant(others[i]) != nullptr;
    std::vector<Count> counts;
    if (is_constant) counts = counts_in(node, i, results[i], others[i], selection, again);
    const auto has = [&](auto&& fits) { return std::any_of(counts.begin(), counts.end(), fits); };
    const bool is_known = is_constant && !has([](const Count& count) { return count.selection == Count::kOther; });
    if (!is_known && reading.is_plain) {
      read_as_number(node, results, again);
      return;
    }
    if (is_constant) {
      if (has([](const Count& count) { return count.selection != Count::kNumber; })) counts_[results[i]] = std::move(counts);
    } else {
      throw error(ErrorCode::unsupported, "reads '{}', in which the number of elements that '{}' selects is one of several",
                  graph_.value(reading.value).name, which.node);
    }
  }
}

}  // namespace ort_train::importing
