#include "exec/kernel_specs.h"

#include <type_traits>

namespace ort_train {
namespace {

class Hash {
 public:
  void add(uint64_t word) {
    state_ = (state_ ^ word) * 0x9e3779b97f4a7c15u;
    state_ ^= state_ >> 29;
  }
  void add(std::string_view text) { add(std::hash<std::string_view>{}(text)); }
  void add(const TensorType& type) {
    add(static_cast<uint64_t>(type.dtype) << 32 | type.shape.size());
    for (int64_t dim : type.shape) add(static_cast<uint64_t>(dim));
  }
  void add(const Attribute& attribute) {
    std::visit(
        [this](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          if constexpr (std::is_same_v<T, int64_t>)
            add(static_cast<uint64_t>(value));
          else if constexpr (std::is_same_v<T, float>)
            add(static_cast<uint64_t>(std::hash<float>{}(value)));
          else if constexpr (std::is_same_v<T, std::string>)
            add(std::string_view(value));
          else if constexpr (std::is_same_v<T, Tensor>)
            add(value.type());
          else
            for (const auto element : value) add(static_cast<uint64_t>(std::hash<std::decay_t<decltype(element)>>{}(element)));
        },
        attribute);
  }
  uint64_t result() const { return state_; }

 private:
  uint64_t state_ = 0x243f6a8885a308d3u;
};

uint64_t hash_of(const OpDef& op, const KernelSpec& spec) {
  Hash hash;
  hash.add(op.name);
  for (const auto& [name, attribute] : spec.attributes.entries()) {
    hash.add(std::string_view(name));
    hash.add(attribute);
  }
  for (const TensorType& type : spec.inputs) hash.add(type);
  for (const TensorType& type : spec.outputs) hash.add(type);
  for (bool present : spec.present) hash.add(uint64_t{present});
  return hash.result();
}

bool equal(const KernelSpec& a, const KernelSpec& b) {
  if (a.present != b.present || a.constants.size() != b.constants.size()) return false;
  if (a.inputs != b.inputs || a.outputs != b.outputs || a.attributes != b.attributes) return false;
  for (size_t i = 0; i < a.constants.size(); ++i) {
    if (a.constants[i] == b.constants[i]) continue;
    if (!a.constants[i] || !b.constants[i] || *a.constants[i] != *b.constants[i]) return false;
  }
  return true;
}

}  // namespace

size_t KernelSpecs::add(const OpDef& op, KernelSpec spec) {
  const Kernel* const kernel = &table_.at(op, spec);
  const uint64_t hash = hash_of(op, spec);
  const auto [begin, end] = by_hash_.equal_range(hash);
  for (auto at = begin; at != end; ++at) {
    if (kernels_[at->second].kernel == kernel && equal(kernels_[at->second].spec, spec)) return at->second;
  }
  by_hash_.emplace(hash, kernels_.size());
  kernels_.push_back({kernel, std::move(spec)});
  return kernels_.size() - 1;
}

int64_t KernelSpecs::workspace(size_t i) {
  Entry& kernel = kernels_[i];
  if (kernel.workspace < 0) kernel.workspace = workspace_bytes(*kernel.kernel, kernel.spec, workers_);
  return kernel.workspace;
}

KernelSpecs* SpaceKernels::of(SpaceKind kind) {
  if (const auto found = specs_.find(kind); found != specs_.end()) return &found->second;
  const KernelTable* const table = tables_(kind);
  return table == nullptr ? nullptr : &specs_.emplace(kind, KernelSpecs(*table, workers_)).first->second;
}

}  // namespace ort_train
