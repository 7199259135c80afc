// Export: the user's own file copied, with the bytes of each weight replaced where they stand; graph, names and layout stay.
//
// External data files are copied beside it under their own names. Everything is streamed from the arena, written to temporary files, synced
// and renamed. A small file, .ort-train-model.json, remembers what was written, so that nothing else is ever overwritten.

#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "frontend/import.h"

namespace ort_train {

// Good until the next call: one that lives on a disk is brought into memory for it.
using WeightBytes = std::function<std::span<const std::byte>(const std::string& parameter)>;

// Throws Error(usage) if the output would be the input, or would overwrite files that no run of ours wrote. Called before any work.
void check_output(const ModelInfo& model, const std::string& output_dir);

// Returns the path of the new model, OUTPUT_DIR/model.onnx.
std::string export_model(const ModelInfo& model, const std::vector<Weight>& weights, const WeightBytes& bytes_of,
                         const std::string& output_dir);

// Bytes that the exported files take.
int64_t export_bytes(const ModelInfo& model);

// Hands a parameter-shaped tensor to `sink(offset, bytes)` in the layout of one of its places.
void in_layout(const WeightPlace& place, std::span<const std::byte> parameter,
               const std::function<void(int64_t, std::span<const std::byte>)>& sink);

// One tensor for each place of each parameter that `bytes_of` knows (empty span: skipped), in a safetensors file.
void write_layouts(const std::string& path, const std::vector<Weight>& weights, const WeightBytes& bytes_of);

}  // namespace ort_train
