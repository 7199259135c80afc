// Which sizes of its open dimensions a model takes: found by importing it with several.
//
// A model may be exported with dimensions that are open in name only: its Reshapes, or what it adds to its activations, allow one size, or
// multiples of one. What `check` says should not hang on a size that nobody gave.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "exec/workers.h"
#include "frontend/import.h"
#include "graph/onnx/reader.h"

namespace ort_train {

struct OpenDimension {
  std::string name;  // a dimension's, or INPUT.AXIS
  int64_t size = 0;  // with which the model is checked
  bool is_batch = false;
  std::vector<int64_t> fits{}, fails{};  // of the other sizes that were tried
};

// Tries sizes for the dimensions whose size is not known, beginning with `open[i].size`. Leaves in `import.shapes` those that the model
// takes, and in `open` what was found. `nodes` and `bytes` are the model's: large models are tried with fewer sizes.
void find_sizes(const std::string& path, int64_t nodes, int64_t bytes, ImportOptions& import, std::vector<OpenDimension>& open,
                Workers& workers);

// The model with sizes for the dimensions that neither the file nor the options bind, which are `open`.
Imported import_with_some_sizes(const onnx::GraphDef& graph, const Options& options, const std::vector<std::string>& outputs,
                                std::vector<OpenDimension>& open, Workers& workers);

// "batch: any size; height: 224 (not 1, 225)".
std::string in_words(const std::vector<OpenDimension>& open);

}  // namespace ort_train
