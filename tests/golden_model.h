// The models of tests/golden (see its README.md), each with what a run of it needs.

#pragma once

#include <map>
#include <string>

#include "frontend/file.h"
#include "frontend/ort_train.h"
#include "frontend/safetensors.h"
#include "test_paths.h"

namespace ort_train {

inline const std::string kGolden = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/";

// The settings that PyTorch's values were made with are the metadata of their file.
inline std::map<std::string, std::string> golden_metadata(const std::string& name) {
  return read_safetensors_header(File::open(kGolden + name + ".golden.safetensors"), ErrorCode::data).metadata;
}

// Model, data, labels and loss.
inline Options golden_options(const std::string& name) {
  const std::map<std::string, std::string> metadata = golden_metadata(name);
  Options o{.model = kGolden + name + ".onnx", .data = kGolden + name + ".data.safetensors"};
  o.loss = metadata.at("task") == "causal-lm" ? "cross_entropy" : metadata.at("task");  // the labels are there, aligned
  if (metadata.contains("batch_norm")) o.batch_norm = metadata.at("batch_norm");
  if (!metadata.at("labels").empty()) o.labels = metadata.at("labels");
  if (metadata.contains("label_smoothing")) o.label_smoothing = std::stod(metadata.at("label_smoothing"));
  if (metadata.contains("z_loss")) o.z_loss = std::stod(metadata.at("z_loss"));
  o.batch_size = std::stoll(metadata.at("batch_size"));
  return o;
}

}  // namespace ort_train
