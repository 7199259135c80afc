#include "passes/persistent_values.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>
#include <string_view>
#include <utility>

#include "graph/error.h"

namespace ort_train {

Purpose purpose_of(ValueKind kind) {
  switch (kind) {
    case ValueKind::input:
      return Purpose::inputs;
    case ValueKind::parameter:
      return Purpose::weights;
    case ValueKind::activation:
      return Purpose::activations;
    case ValueKind::gradient:
    case ValueKind::accumulator:
      return Purpose::gradients;
    case ValueKind::optimizer_state:
      return Purpose::optimizer;
    case ValueKind::constant:
      return Purpose::constants;
  }
  return Purpose::activations;
}

size_t PersistentValues::add(const std::string& entry, const Value& value) {
  if (value.constant) return add_constant(value);
  const auto [at, is_new] = by_name_.emplace(value.name, values_.size());
  if (is_new) {
    values_.push_back({.name = value.name,
                       .purpose = purpose_of(value.kind),
                       .type = value.type(),
                       .fill = value.fill,
                       .read_only = value.kind == ValueKind::parameter});
  } else if (const Persistent& known = values_[at->second]; known.type != value.type() || known.purpose != purpose_of(value.kind)) {
    throw internal_error("'{}' is {} ({}) in entry '{}' but {} ({}) in one before it", value.name, to_string(value.type()),
                         to_string(purpose_of(value.kind)), entry, to_string(known.type), to_string(known.purpose));
  }
  return at->second;
}

bool PersistentValues::worth_moving(size_t i) const {
  // Bytes: what is smaller always stays in memory. Packs of small weights (passes/pack_weights.h) end where the next one would take them
  // beyond 64 KiB.
  constexpr int64_t kLeastMovable = int64_t{32} << 10;
  return may_move(i) && values_[i].type.bytes() >= kLeastMovable;
}

std::vector<Persistent> PersistentValues::lay_out(const std::vector<SpaceId>& homes, Program& program) const {
  std::vector<Persistent> values = values_;
  const auto rank = [&](size_t i) {  // what survives the process lies at the front of a file (frontend/run_disk.h)
    constexpr std::array kOrder{Purpose::weights, Purpose::optimizer, Purpose::gradients, Purpose::constants};
    const auto at = std::find(kOrder.begin(), kOrder.end(), values[i].purpose) - kOrder.begin();
    return std::pair(!survives(values[i]), at);
  };
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return rank(a) < rank(b); });
  for (const size_t i : order) {
    const int64_t bytes = values[i].type.bytes();
    Space& space = program.spaces[homes[i]];
    int64_t& end = homes[i] == kFile ? space.bytes : space.persistent_bytes;
    values[i].home = {.offset = end, .bytes = bytes, .space = homes[i]};
    end += homes[i] == kFile ? whole_sectors(bytes) : aligned(bytes);
  }
  return values;
}

size_t PersistentValues::add_constant(const Value& value) {
  const auto& bytes = value.constant->bytes;
  const size_t hash = std::hash<std::string_view>{}({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  const auto [begin, end] = constants_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (*values_[at->second].initial == *value.constant) return at->second;
  }
  constants_.emplace(hash, values_.size());
  values_.push_back({.name = value.name, .purpose = Purpose::constants, .type = value.type(), .initial = value.constant});
  return values_.size() - 1;
}

}  // namespace ort_train
