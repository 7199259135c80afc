// A job for tests of adapters: a model of products in both layouts and a head.

#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "frontend/adapters.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train::fixtures {

struct AdapterJob : TrainerRuns {
  static constexpr int64_t kSamples = 12, kIn = 128, kInner = 1024, kOut = 4, kRank = 4;

  // With first_weight as first.weight, which the text of a model can't say.
  static ort_train_onnx::ModelProto with_dots(const std::string& text) {
    ort_train_onnx::ModelProto model = model_of(text);
    for (auto& node : *model.mutable_graph()->mutable_node()) {
      for (std::string& input : *node.mutable_input()) {
        if (const size_t at = input.find('_'); at != std::string::npos) input[at] = '.';
      }
    }
    return model;
  }

  Options options() const {
    ort_train_onnx::ModelProto model = with_dots(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
             h0 = Gemm <transB = 1> (x, first_weight, first_bias)
             h1 = Tanh (h0)
             h2 = MatMul (h1, second_weight)
             h3 = Tanh (h2)
             h4 = MatMul (h3, third_weight)
             y = MatMul (h4, head_weight) }})",
        kIn, kOut));
    const auto add = [&](const char* name, std::vector<int64_t> dims, int64_t step) {
      std::vector<float> values = numbers(element_count(dims), step);
      for (float& value : values) value /= 64;
      *model.mutable_graph()->add_initializer() = tensor_of(name, dims, values);
    };
    add("first.weight", {kInner, kIn}, 7919);
    add("first.bias", {kInner}, 613);
    add("second.weight", {kInner, kInner}, 7907);
    add("third.weight", {kInner, kInner}, 7901);
    add("head.weight", {kInner, kOut}, 619);
    return with_data(write_model(folder, model));
  }
  Options with_data(const std::string& model) const {
    Arrays arrays;
    for (const auto& [name, width] : {std::pair("x", kIn), {"labels", kOut}})
      arrays.add(name, {kSamples, width}, numbers(kSamples * width, 104'729 + width));
    return {.model = model,
            .data = arrays.write(folder / "data.safetensors"),
            .loss = "mse",
            .batch_size = 4,
            .profile = profile,
            .learning_rate = 1e-2,
            .max_steps = 6,
            .threads = 2,
            .lora_rank = kRank,
            .lora_alpha = 2 * kRank};
  }
  static std::vector<float> weight(const std::string& path, const std::string& name) {
    const Imported imported = import_file(path, {.shapes = {{"batch", 1}}});
    for (const Weight& weight : imported.weights) {
      if (weight.parameter == name) return floats(weight_tensor(imported, weight));
    }
    return {};
  }
  // A matrix that a run wrote with `adapter_only`.
  static std::vector<float> matrix(const std::string& file, const std::string& name) {
    const File from = File::open(file);
    const SafetensorsHeader header = read_safetensors_header(from, ErrorCode::data);
    const SafetensorsEntry* const entry = header.find("base_model.model." + name);
    if (entry == nullptr) return {};
    std::vector<float> result(static_cast<size_t>(entry->bytes) / sizeof(float));
    from.read(entry->offset, std::as_writable_bytes(std::span(result)));
    return result;
  }
  std::string refusal(const Options& o) const {
    const Error problem = error_of([&] { Trainer trainer(o); });
    EXPECT_NE(problem.code(), ErrorCode::internal) << problem.what();
    return problem.what();
  }
};

}  // namespace ort_train::fixtures
