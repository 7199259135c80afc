// Changes to a model file that leave everything else in it as it is, byte for byte: new nodes, inputs and initializers, nodes that read
// other values or give theirs other names, and tensors whose elements become bytes.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/onnx/reader.h"

namespace ort_train::onnx {

struct NameEdit {
  size_t node = 0, place = 0;  // of the main graph; which of the node's inputs or outputs
  std::string name;            // what it is from now on
};

struct NewNode {
  size_t behind = 0;  // the node of the main graph that it follows; several behind one stay in this order
  NodeDef node;
};

struct NewInitializer {
  std::string name;
  TensorType type;
  std::string location{};  // a new file of external data, where it begins at `offset`; empty: the model itself
  int64_t offset = 0;
};

// A tensor of the file, in whichever graph, whose elements are integers (int32_data) there, and bytes (raw_data) in the edited file.
struct StoredAnew {
  int64_t offset = 0, end = 0;  // what that field holds in the source
  int64_t bytes = 0;            // of the elements
};

struct ModelEdit {
  std::vector<NameEdit> inputs{}, outputs{};
  std::vector<NewNode> nodes{};
  std::vector<NewInitializer> initializers{};
  std::vector<ValueDef> graph_inputs{};
  std::vector<StoredAnew> stored{};

  bool empty() const {
    return inputs.empty() && outputs.empty() && nodes.empty() && initializers.empty() && graph_inputs.empty() && stored.empty();
  }
};

// A node of the standard domain, a Cast, and a node that does what another does. Throws Error(unsupported) for a node that has large
// tensors or graphs of its own.
NodeDef make_node(const std::string& op_type, const std::string& name, const std::vector<std::string>& inputs, const std::string& output);
NodeDef make_cast(const std::string& name, const std::string& input, DType to, const std::string& output);
std::optional<DType> cast_type(const NodeDef& cast);  // that a Cast makes; none where it isn't known
NodeDef copy_node(const NodeDef& node, const std::string& name, const std::vector<std::string>& inputs,
                  const std::vector<std::string>& outputs);

// The nodes of an edit, in a graph that was read.
void apply(const ModelEdit& edit, GraphDef& graph);

// The edited file is its pieces, one after the other.
struct Piece {
  enum class Kind { source, literal, tensor, stored };
  Kind kind = Kind::source;
  int64_t begin = 0, end = 0;  // of the source
  std::string literal{};
  size_t tensor = 0;  // of the new initializers, or of those that are stored anew: its elements, little-endian
};

// Throws Error(unsupported) where the file would become larger than the 2 GiB that ONNX allows.
std::vector<Piece> edit_model(const ByteSource& source, const ModelEdit& edit);

}  // namespace ort_train::onnx
