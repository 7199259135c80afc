// All the names by which a user's pattern may mean a weight.

#pragma once

#include <string>
#include <vector>

#include "frontend/import.h"

namespace ort_train {

struct WeightNames {
  std::vector<std::string> names{};  // in the file, the parameter's first
  std::string originals{};           // in the exported program, separated by ", "

  bool fit(const std::string& pattern) const;
};

// Of all weights of a model, by parameter.
std::map<std::string, WeightNames> weight_names(const Imported& model);

// The module of a node whose name is a path, as PyTorch's older exporter writes it: "/encoder/layer.0/fc/MatMul" -> "encoder.layer.0.fc";
// empty where it is none.
std::string module_of_path(const std::string& node);

}  // namespace ort_train
