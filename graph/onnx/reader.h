// Reads an ONNX model file without its weights: what it says of them, and where they lie.
//
// A file is hostile until shown otherwise: every length is checked against the file, nothing is allocated because a number says so.

#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>

#include "graph/onnx/model.h"

namespace ort_train::onnx {

// Bytes to read from, wherever they come from.
struct ByteSource {
  std::string name;  // for messages
  int64_t size = 0;
  std::function<void(int64_t offset, std::span<std::byte> to)> read;  // [offset, offset + to.size()) is inside the source
};

// Throws Error(unsupported) for what isn't an ONNX model, in one sentence; what `source` throws goes through.
ModelDef read_model(const ByteSource& source);

// Names come from the file: control characters in them would reach the user's terminal with a message. They, and what isn't UTF-8, become
// '?'.
std::string printable(std::string text);

// Calls body(tensor) for each tensor of a graph, or of nodes, and of those nested in it: initializers, and tensors of nodes. Of a node's
// "value" the name is that of its output.
void each_tensor(const GraphDef& graph, const std::function<void(const std::string& name, const TensorDef& tensor)>& body);
void each_tensor(const std::vector<NodeDef>& nodes, const std::function<void(const std::string& name, const TensorDef& tensor)>& body);

// Elements of `size` bytes from the varints that `bytes` begins with, the low bytes of each, until `to` is full or what comes next is no
// whole varint. Returns how many there were; `bytes` is what comes behind them.
size_t decode_varints(std::span<const std::byte>& bytes, size_t size, std::span<std::byte> to);
// That the file has more or fewer elements of a tensor than its shape says.
Error wrong_count(const TensorDef& tensor);
// A tensor's elements from the bytes of its place in the file. Throws Error(unsupported) where they are too few or too many.
Tensor decode_tensor(const TensorDef& tensor, std::span<const std::byte> bytes);

}  // namespace ort_train::onnx
