#include <fmt/ranges.h>

#include <algorithm>
#include <set>

#include "frontend/importer.h"
#include "graph/error.h"

namespace ort_train::importing {
namespace {

std::string axis_name(const onnx::ValueDef& input, size_t axis) { return fmt::format("{}.{}", input.name, axis); }

// A size worth proposing for a dimension of this name.
int64_t proposal(std::string name) {
  for (char& c : name) c = 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  const auto has = [&](std::string_view part) { return name.find(part) != std::string::npos; };
  if (has("batch") || name == "n" || name.ends_with(".0")) return 8;
  if (has("height") || has("width")) return 224;
  return 128;
}

class Dimensions {
 public:
  Dimensions(const onnx::GraphDef& graph, const ImportOptions& options) : graph_(graph), options_(options) {}

  BoundInputs bind() {
    collect();
    check_names();
    for (const auto& [name, input] : inputs_) {
      if (const auto bound = options_.bound_inputs.find(name); bound != options_.bound_inputs.end()) bind_to(*input, bound->second);
    }
    BoundInputs result;
    for (const onnx::ValueDef& input : graph_.inputs) {
      result.types.push_back(inputs_.contains(input.name) ? type_of(input) : std::nullopt);
    }
    if (!unbound_.empty()) throw unbound_error();
    result.sizes = std::move(sizes_);
    return result;
  }

 private:
  // The inputs that are fed or bound: not initializers, and of a type that we know.
  void collect() {
    const std::set<std::string> initializers = initializer_names(graph_);
    for (const onnx::ValueDef& input : graph_.inputs) {
      if (initializers.contains(input.name) || !input.dtype) continue;
      if (!input.has_shape) throw Error(ErrorCode::unsupported, without_shape(input.name));
      if (!inputs_.emplace(input.name, &input).second) throw error(ErrorCode::unsupported, "the model has two inputs '{}'", input.name);
      for (size_t axis = 0; axis < input.dims.size(); ++axis) {
        if (input.dims[axis].size >= 0) continue;
        names_.insert(axis_name(input, axis));
        if (!input.dims[axis].name.empty()) names_.insert(input.dims[axis].name);
      }
    }
  }

  void check_names() {
    for (const auto& [name, size] : options_.shapes) {
      if (size < 1) throw error(ErrorCode::usage, "`shapes` {}={}: a dimension is at least 1", name, size);
      if (!names_.contains(name)) {
        throw error(ErrorCode::usage, "`shapes` {}={}: the model has no free dimension '{}'; {}", name, size, name,
                    names_.empty() ? "all are fixed" : fmt::format("it has {}", fmt::join(names_, ", ")));
      }
      sizes_[name] = size;
    }
    for (const auto& [name, tensor] : options_.bound_inputs) {
      if (!inputs_.contains(name)) throw error(ErrorCode::usage, "the model has no input '{}' that could be bound", name);
    }
  }

  void bind_to(const onnx::ValueDef& input, const Tensor& tensor) {
    if (tensor.dtype != *input.dtype || tensor.shape.size() != input.dims.size()) {
      throw error(ErrorCode::usage, "input '{}' can't be {}: the model wants {} of rank {}", input.name, to_string(tensor.type()),
                  input.type, input.dims.size());
    }
    for (size_t axis = 0; axis < input.dims.size(); ++axis) {
      const onnx::DimDef& dim = input.dims[axis];
      if (dim.size >= 0) {
        if (dim.size != tensor.shape[axis]) {
          throw error(ErrorCode::usage, "input '{}' can't be {}: its dimension {} is {}", input.name, to_string(tensor.type()), axis,
                      dim.size);
        }
        continue;
      }
      for (const std::string& key : {axis_name(input, axis), dim.name}) {
        if (key.empty()) continue;
        const auto [at, added] = sizes_.emplace(key, tensor.shape[axis]);
        if (!added && at->second != tensor.shape[axis]) {
          throw error(ErrorCode::usage, "dimension '{}' is {}, but input '{}' is bound to {}", key, at->second, input.name,
                      to_string(tensor.type()));
        }
      }
    }
  }

  std::optional<TensorType> type_of(const onnx::ValueDef& input) {
    TensorType type{*input.dtype, {}};
    for (size_t axis = 0; axis < input.dims.size(); ++axis) {
      const onnx::DimDef& dim = input.dims[axis];
      auto size = sizes_.find(axis_name(input, axis));
      if (size == sizes_.end()) size = sizes_.find(dim.name);
      if (dim.size >= 0) {
        type.shape.push_back(dim.size);
      } else if (size != sizes_.end() && (!dim.name.empty() || size->first == axis_name(input, axis))) {
        type.shape.push_back(size->second);
      } else {
        unbound_[dim.name.empty() ? axis_name(input, axis) : dim.name].push_back(input.name);
        type.shape.push_back(1);
      }
    }
    try {
      element_count(type.shape);
    } catch (const Error& e) {
      throw error(ErrorCode::unsupported, "input '{}': {}", input.name, e.what());
    }
    return type;
  }

  Error unbound_error() const {
    std::vector<std::string> listed, proposed;
    for (const auto& [name, inputs] : unbound_) {
      std::vector<std::string> readers = inputs;
      readers.erase(std::unique(readers.begin(), readers.end()), readers.end());
      listed.push_back(fmt::format("'{}' of {}", name, fmt::join(readers, ", ")));
      proposed.push_back(fmt::format("{}={}", name, proposal(name)));
    }
    return error(ErrorCode::usage, "the model leaves dimensions open: {}; bind them, for example `shapes` {}", fmt::join(listed, "; "),
                 fmt::join(proposed, ","));
  }

  const onnx::GraphDef& graph_;
  const ImportOptions& options_;
  std::map<std::string, const onnx::ValueDef*> inputs_;
  std::set<std::string> names_;  // of free dimensions
  std::map<std::string, int64_t> sizes_;
  std::map<std::string, std::vector<std::string>> unbound_;  // dimension -> inputs
};

}  // namespace

std::set<std::string> initializer_names(const onnx::GraphDef& graph) {
  std::set<std::string> names;
  for (const onnx::TensorDef& tensor : graph.initializers) names.insert(tensor.name);
  return names;
}

BoundInputs bind_dimensions(const onnx::GraphDef& graph, const ImportOptions& options) { return Dimensions(graph, options).bind(); }

std::optional<TensorType> bound_type(const onnx::ValueDef& value, const std::map<std::string, int64_t>& sizes) {
  if (!value.dtype || !value.has_shape) return std::nullopt;
  TensorType type{*value.dtype, {}};
  for (const onnx::DimDef& dim : value.dims) {
    const auto size = sizes.find(dim.name);
    if (dim.size < 0 && (dim.name.empty() || size == sizes.end())) return std::nullopt;
    type.shape.push_back(dim.size >= 0 ? dim.size : size->second);
  }
  try {
    element_count(type.shape);
  } catch (const Error&) {
    return std::nullopt;
  }
  return type;
}

}  // namespace ort_train::importing
