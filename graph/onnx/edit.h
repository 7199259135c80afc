// Changes to a model file that leave everything else in it as it is, byte for byte: new initializers, and nodes that read other values.

#pragma once

#include <string>
#include <vector>

#include "graph/onnx/reader.h"

namespace ort_train::onnx {

struct InputEdit {
  size_t node = 0, input = 0;  // of the main graph
  std::string name;            // what it reads from now on
};

struct NewInitializer {
  std::string name;
  TensorType type;
};

// The edited file is its pieces, one after the other.
struct Piece {
  enum class Kind { source, literal, tensor };
  Kind kind = Kind::source;
  int64_t begin = 0, end = 0;  // of the source
  std::string literal{};
  size_t tensor = 0;  // of the new initializers: its elements, little-endian
};

// Throws Error(unsupported) where the file would become larger than the 2 GiB that ONNX allows.
std::vector<Piece> edit_model(const ByteSource& source, const std::vector<InputEdit>& edits, const std::vector<NewInitializer>& added);

}  // namespace ort_train::onnx
