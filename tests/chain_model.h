// A small model and its data for runs that save, fail and go on: a chain of products, every other weight in a file of its own.

#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>

#include "tests/arrays.h"
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
  ort_train_onnx::ModelProto model = fixtures::model_of(
      fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {0}] x) => (float[batch, {0}] y) {{ {1} }})", width, body));
  for (int64_t i = 0; i < layers; ++i) {
    std::vector<float> values = TrainerRuns::numbers(width * width, 7919 + 2 * i);
    for (float& value : values) value /= 8;
    auto& tensor = *model.mutable_graph()->add_initializer() = fixtures::tensor_of(fmt::format("w{}", i), {width, width}, values);
    if (i % 2 == 0) continue;
    fixtures::store_externally(tensor, "weights.data", static_cast<int64_t>(weights.size()), width * width * 4);
    weights += bytes_of(values);
  }
  write_file(folder + "/weights.data", weights);
  return write_file(folder + "/model.onnx", model.SerializeAsString());
}

inline std::string write_chain_data(const std::string& folder, int64_t samples, int64_t width) {
  Arrays arrays;
  for (const auto& [name, step] : {std::pair("x", 104'729), {"labels", 104'743}})
    arrays.add(name, {samples, width}, TrainerRuns::numbers(samples * width, step));
  return arrays.write(folder + "/data.safetensors");
}

// A job on both, with activations that go to the disk where weights do.
inline Options chain_job(const std::string& folder, int64_t layers, int64_t width, int64_t samples) {
  Options options{.model = write_chain(folder, layers, width), .data = write_chain_data(folder, samples, width)};
  options.loss = "mse";
  options.batch_size = 128;
  options.learning_rate = 1e-3;
  options.lr_scheduler_type = "constant";
  options.recompute = "none";
  options.threads = 2;
  return options;
}

// What a model consists of, in its folder: file name -> bytes.
inline std::map<std::string, std::string> chain_files(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const char* name : {"model.onnx", "weights.data"}) files[name] = read_file(folder + "/" + name);
  return files;
}

// In memory where there is such a folder: tests that make hundreds of runs wait for every call.
inline std::filesystem::path quick_folder() {
  return ::access("/dev/shm", W_OK) == 0 ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path();
}

}  // namespace ort_train
