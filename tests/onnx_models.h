// Small ONNX models for tests, written in ONNX's text syntax, and running what import makes of them.

#pragma once

#include <gtest/gtest.h>
#include <onnx/defs/parser.h>
#include <onnx/onnx_pb.h>

#include <map>
#include <string>
#include <vector>

#include "tests/run_imported.h"
#include "tests/test_files.h"

namespace ort_train::fixtures {

inline constexpr const char* kLayer = R"(<ir_version: 8, opset_import: ["" : 17], producer_name: "pen", producer_version: "2">
layer (float[batch, 3] x) => (float[batch, 2] y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}> {
  [fc] y = Gemm (x, w, b)
})";

inline constexpr const char* kObstacles = R"(<ir_version: 8, opset_import: ["" : 17, "their.ops" : 1]>
  g (float[2, 3, 3] x, float[4, 4] boxes) => (float[2] y, float[2, 3, 3] z, int64[n, 3] picked) <float[3] w = {1, 2, 3}, float[2] v = {1, 2}> {
    a = Add (x, w)
    [pooled] d = MaxRoiPool <pooled_shape = [2]> (a, boxes)
    e = Add (d, v)
    [spectral] f = their.ops.Spectral (e)
    y = Add (f, v)
    z = Mul (a, w)
    shape = Constant <value_ints = [1, 4, 4]> ()
    three = Reshape (boxes, shape)
    scores = Constant <value = float[1, 1, 4] {1, 2, 3, 4}> ()
    [nms] picked = NonMaxSuppression (three, scores)
  })";

inline ort_train_onnx::ModelProto model_of(const std::string& text) {
  ort_train_onnx::ModelProto model;
  ort_train_onnx::OnnxParser parser(text);
  const auto status = parser.Parse(model);
  if (!status.IsOK()) throw std::runtime_error(status.ErrorMessage());
  return model;
}

// The way exporters store tensors: bytes instead of numbers.
inline void store_raw(ort_train_onnx::TensorProto& tensor) {
  if (tensor.data_type() != ort_train_onnx::TensorProto::FLOAT) return;
  const std::vector<float> values(tensor.float_data().begin(), tensor.float_data().end());
  tensor.clear_float_data();
  tensor.set_raw_data(values.data(), values.size() * sizeof(float));
}

inline ort_train_onnx::TensorProto tensor_of(const std::string& name, const std::vector<int64_t>& dims, const std::vector<float>& values) {
  ort_train_onnx::TensorProto tensor;
  tensor.set_name(name);
  tensor.set_data_type(ort_train_onnx::TensorProto::FLOAT);
  for (int64_t dim : dims) tensor.add_dims(dim);
  tensor.set_raw_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

inline void store_externally(ort_train_onnx::TensorProto& tensor, const std::string& location, int64_t offset, int64_t length) {
  tensor.clear_raw_data();
  tensor.clear_float_data();
  tensor.clear_external_data();
  tensor.set_data_location(ort_train_onnx::TensorProto::EXTERNAL);
  for (const auto& [key, value] : {std::pair<std::string, std::string>{"location", location},
                                   {"offset", std::to_string(offset)},
                                   {"length", std::to_string(length)}}) {
    auto& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  }
}

inline std::string write_model(const TestFolder& folder, const ort_train_onnx::ModelProto& model, const std::string& name = "model.onnx") {
  return write_file(folder / name, model.SerializeAsString());
}
inline std::string write_model(const TestFolder& folder, const std::string& text, const std::string& name = "model.onnx") {
  return write_model(folder, model_of(text), name);
}

inline Imported import_file(const std::string& path, const ImportOptions& options = {}) {
  Workers workers(1);
  return import_model(path, options, workers);
}

// The same of a model that has no obstacles.
inline Imported import_whole(const std::string& path, const ImportOptions& options = {}) {
  Imported imported = import_file(path, options);
  for (const Obstacle& obstacle : imported.obstacles) ADD_FAILURE() << obstacle.node << ": " << obstacle.reason;
  return imported;
}

// What PyTorch's exporter says of a value.
inline void describe(ort_train_onnx::ModelProto& model, const std::string& value, const std::string& key, const std::string& text) {
  auto& info = *model.mutable_graph()->add_value_info();
  info.set_name(value);
  auto& entry = *info.add_metadata_props();
  entry.set_key(key);
  entry.set_value(text);
}
inline constexpr const char* kKind = "pkg.torch.export.graph_signature.InputSpec.kind";

using Names = std::vector<std::string>;

inline Names parameter_names(const Imported& imported) {
  Names names;
  for (ValueId id : imported.graph.parameters()) names.push_back(imported.graph.value(id).name);
  return names;
}

inline std::vector<float> floats(const Tensor& tensor) { return {tensor.data<float>().begin(), tensor.data<float>().end()}; }

// What a call throws; fails the test where it throws nothing.
template <typename Call> Error error_of(Call&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ErrorCode::internal, "");
}

#define EXPECT_HAS(text, part) EXPECT_NE(std::string(text).find(part), std::string::npos) << (text)

}  // namespace ort_train::fixtures
