// The parts that copy_blocks() is made of. Private to frontend/control*.cpp.

#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "frontend/controlnet.h"

namespace ort_train::importing {

// Who makes and reads the values of a main graph. Refers to what it is made of.
class ModelIndex {
 public:
  ModelIndex(const onnx::GraphDef& graph, const PlainModel& plain);

  const onnx::GraphDef& graph;
  const PlainModel& plain;
  std::unordered_map<std::string, size_t> producers{};             // of values: nodes
  std::unordered_map<std::string, std::vector<size_t>> readers{};  // nodes in nested graphs are their outer node
  // Of each value the weights that it is, or is made of by nodes that read no data, such as a transposed weight.
  std::unordered_map<std::string, std::set<std::string>> weights_of{};

  // Whether a node computes what depends on an input.
  bool gives_data(const onnx::NodeDef& node) const;
  std::set<std::string> weights_read(const onnx::NodeDef& node) const;
};

// The names of all values of a graph, those in nested graphs included. controlnet.cpp
std::set<std::string> all_names(const onnx::GraphDef& graph);

// Which nodes are in the blocks: those that the patterns name, and those between them. Throws Error: usage (a pattern fits nothing),
// unsupported (a node that can't be copied). control_blocks.cpp
std::vector<bool> find_blocks(const ModelIndex& model, const std::vector<std::string>& patterns);

// --- control_layout.cpp -----------------------------------------------------------------------------------------------------------------

// The axis of an activation of two axes and more that has its channels or features.
struct Channels {
  size_t axis = 0;
  bool is_fixed = false;    // the model gives their number; else it may follow from the size of a batch or sample
  bool are_second = false;  // as convolutions have them; else they are the last
};
Channels channels_of(const ModelIndex& model, const std::string& value);

// The element types that floating-point values have in a file of 16-bit numbers, as far as they are known.
std::unordered_map<std::string, DType> file_types(const ModelIndex& model);

}  // namespace ort_train::importing
