// Export: the user's own file copied, with the bytes of each weight replaced where they stand; graph, names and layout stay. Where they
// stand as integers (int32_data) of 16 bits, which take one byte or several, the file has bytes instead (raw_data).
//
// External data files are copied beside it under their own names. Everything is streamed from the arena, written to temporary files, synced
// and renamed; what no run of ours wrote is never overwritten (frontend/output_files.h).

#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "frontend/import.h"

namespace ort_train {

// Where bytes go: a piece and its place, in bytes from the beginning.
using ByteSink = std::function<void(int64_t offset, std::span<const std::byte> bytes)>;
// Hands over a parameter's bytes, in its own type, from the first to the last, in pieces of whole rows: those that live on a disk are
// brought into memory one by one. False where there is no such parameter. An empty sink only asks.
using WeightBytes = std::function<bool(const std::string& parameter, const ByteSink& sink)>;

// Notes what the model's files hold (of large ones: pieces), for export_model(): by that it tells a file that was written to, and its time
// set back, from one whose names or permissions alone have changed. Called soon after the import.
void remember_contents(ModelInfo& model);

// Throws Error(usage) if the output would be the input, or would overwrite files that no run of ours wrote. Called before any work.
void check_output(const ModelInfo& model, const std::string& output_dir);

// Returns the path of the new model, OUTPUT_DIR/model.onnx. `way_on`: what to do when a file that has changed is put right; in a run, whose
// weights are saved, that is to resume.
std::string export_model(const ModelInfo& model, const std::vector<Weight>& weights, const WeightBytes& bytes_of,
                         const std::string& output_dir, const std::string& way_on = "go on with `resume`");

// Bytes that the exported files take.
int64_t export_bytes(const ModelInfo& model);

// Hands a piece of a parameter-shaped tensor, whole rows from byte `first` on, to `sink` in the layout of one of its places.
void in_layout(const WeightPlace& place, int64_t first, std::span<const std::byte> piece, const ByteSink& sink);

// One tensor for each place of each parameter that `bytes_of` knows (the others are left out), in a safetensors file; float32 where the
// place is of 16 bits.
void write_layouts(const std::string& path, const std::vector<Weight>& weights, const WeightBytes& bytes_of);

}  // namespace ort_train
