#include "frontend/weight_names.h"

#include <algorithm>

#include "frontend/import_evidence.h"

namespace ort_train {

bool WeightNames::fit(const std::string& pattern) const {
  return std::any_of(names.begin(), names.end(),
                     [&](const std::string& name) { return importing::names_tensor({pattern}, name, originals); });
}

std::map<std::string, WeightNames> weight_names(const Imported& model) {
  std::map<std::string, std::string> originals;
  for (const TensorFate& tensor : model.info.tensors) originals[tensor.name] = tensor.original;
  std::map<std::string, WeightNames> all;
  for (const Weight& weight : model.weights) {
    WeightNames& of = all[weight.parameter];
    of.names = {weight.parameter};
    for (const WeightPlace& place : weight.places) {
      if (place.name != weight.parameter) of.names.push_back(place.name);
    }
    for (const std::string& name : of.names) {
      const auto found = originals.find(name);
      if (found != originals.end() && !found->second.empty()) of.originals += (of.originals.empty() ? "" : ", ") + found->second;
    }
  }
  return all;
}

std::string module_of_path(const std::string& node) {
  std::string path = node.substr(node.starts_with('/') ? 1 : 0);
  const size_t op = path.rfind('/');
  if (op == std::string::npos) return {};
  path.erase(op);
  std::replace(path.begin(), path.end(), '/', '.');
  return path;
}

}  // namespace ort_train
