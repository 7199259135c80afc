// An ONNX model as plain data: what the reader makes of a file, for code that must not see protos.
//
// Names, opsets and attributes are as in the file; nothing is bound, inferred or repaired. Large tensors stay in their file. Values are
// plain; a NodeDef keeps the proto that it came from alive, for the questions in schema.h.

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/attributes.h"
#include "graph/types.h"

namespace ort_train_onnx {
class NodeProto;
class FunctionProto;
}  // namespace ort_train_onnx

namespace ort_train::onnx {

// Opset by domain; the standard domain is "" ("ai.onnx" in a file means the same).
using Opsets = std::map<std::string, int>;

// A tensor of the file: an initializer, or the value of a Constant node.
struct TensorDef {
  std::string name;
  std::string type;            // in words: "float32", "uint64", "string"
  std::optional<DType> dtype;  // none for types that ort-train doesn't know
  Shape shape;

  // Its elements in a file: one after the other, little-endian. offset < 0: nowhere in that form.
  std::string location;  // of external data, relative to the model's folder; empty: in the model file itself
  int64_t offset = -1, bytes = 0;
  bool varints = false;  // bytes hold protobuf varints instead of elements (int32_data): decode_varints()
  bool added = false;    // not in the file: a copy of what lies at that place, or where offset < 0 zeros

  std::shared_ptr<const Tensor> value;  // in memory, where small; else read it from the file

  bool external() const { return !location.empty(); }
};

struct GraphDef;

struct NodeDef {
  std::string domain, op_type, overload, name;
  std::string module;                        // the exported program's module that it is of, where metadata say it: "encoder.layer.0.fc"
  std::vector<std::string> inputs, outputs;  // empty where absent
  Attributes attributes;                     // those of the kinds that a Graph knows
  std::map<std::string, TensorDef> tensors;  // tensor attributes, the large ones included
  std::map<std::string, std::shared_ptr<const GraphDef>> graphs;
  std::vector<std::string> others;  // names of attributes of kinds that a Graph doesn't know
  std::shared_ptr<const ort_train_onnx::NodeProto> proto;
};

struct DimDef {
  int64_t size = -1;  // -1: not fixed
  std::string name;   // where not fixed; may be empty
};

struct ValueDef {
  std::string name;
  std::string type;            // "float32", "sequence"
  std::optional<DType> dtype;  // none where it isn't a tensor, or of a type that ort-train doesn't know
  bool has_shape = false;
  std::vector<DimDef> dims;
};

// What a tensor was in the program that an exporter wrote into the file, as the exporter's metadata say it.
enum class OriginKind { unknown, parameter, buffer, constant };
struct TensorOrigin {
  OriginKind kind = OriginKind::unknown;
  std::vector<std::string> folded_from{};  // names of all values from which it was computed at export, those between included
};

struct GraphDef {
  std::string name;
  std::vector<ValueDef> inputs, outputs;
  std::map<std::string, ValueDef> declared;  // what the file says of other values
  std::vector<TensorDef> initializers;
  std::map<std::string, TensorOrigin> origins;   // by name of the value, where the file says it
  std::map<std::string, OriginKind> program;     // the exported program's own tensors, by name: those that folding took in, too
  std::vector<std::string> sparse_initializers;  // names only
  std::vector<NodeDef> nodes;                    // in the file's order
};

// A function's body with its attributes filled in: nodes between named inputs and outputs.
struct FunctionDef {
  Opsets opsets;
  std::vector<std::string> inputs, outputs;
  std::vector<NodeDef> nodes;
};

struct ModelDef {
  int64_t ir_version = 0;
  std::string producer, producer_version;
  Opsets opsets;
  GraphDef graph;
  std::set<std::string> external_files;  // every location of external data, those in branches and functions included
  std::map<std::string, std::shared_ptr<const ort_train_onnx::FunctionProto>> functions;  // by function_key()
  std::vector<std::pair<std::string, TensorDef>> function_tensors;  // all that are in their bodies, as "FUNCTION/NAME"
};

}  // namespace ort_train::onnx
