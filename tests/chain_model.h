// A small model and its data for runs that save, fail and go on: a chain of products, every other weight in a file of its own.

#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {

inline std::string write_chain(const std::string& folder, int64_t layers, int64_t width) {
  std::filesystem::create_directory(folder);
  std::string body, weights, from = "x";
  for (int64_t i = 0; i < layers; ++i) {
    body += fmt::format("h{0} = MatMul ({1}, w{0})\n{2} = Tanh (h{0})\n", i, from, i + 1 == layers ? "y" : fmt::format("t{}", i));
    from = fmt::format("t{}", i);
  }
  ort_train_onnx::ModelProto model = testing::model_of(
      fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {0}] x) => (float[batch, {0}] y) {{ {1} }})", width, body));
  for (int64_t i = 0; i < layers; ++i) {
    std::vector<float> values = TrainerRuns::numbers(width * width, 7919 + 2 * i);
    for (float& value : values) value /= 8;
    auto& tensor = *model.mutable_graph()->add_initializer() = testing::tensor_of(fmt::format("w{}", i), {width, width}, values);
    if (i % 2 == 0) continue;
    testing::store_externally(tensor, "weights.data", static_cast<int64_t>(weights.size()), width * width * 4);
    weights += bytes_of(values);
  }
  write_file(folder + "/weights.data", weights);
  return write_file(folder + "/model.onnx", model.SerializeAsString());
}

inline std::string write_chain_data(const std::string& folder, int64_t samples, int64_t width) {
  std::string bytes;
  for (const int64_t step : {104'729, 104'743}) bytes += bytes_of(TrainerRuns::numbers(samples * width, step));
  const int64_t half = samples * width * 4;
  return write_file(folder + "/data.safetensors",
                    safetensors(fmt::format(R"({{"x":{{"dtype":"F32","shape":[{0},{1}],"data_offsets":[0,{2}]}},)"
                                            R"("labels":{{"dtype":"F32","shape":[{0},{1}],"data_offsets":[{2},{3}]}}}})",
                                            samples, width, half, 2 * half),
                                bytes));
}

}  // namespace ort_train
