// Between ONNX protos and the types of graph/: element types, tensors, attributes. Private to graph/onnx.

#pragma once

#include <onnx/onnx_pb.h>

#include <array>
#include <string_view>

#include "graph/onnx/model.h"

namespace ort_train::onnx {

namespace pb = ::ort_train_onnx;

// The TensorProto::DataType of an element type, and back.
int to_onnx(DType dtype);
std::optional<DType> from_onnx(int data_type);
std::string type_in_words(int data_type);

void set_type(const TensorType& type, pb::TypeProto& proto);
ValueDef to_value(const pb::ValueInfoProto& proto);
pb::ValueInfoProto to_proto(const ValueDef& value);  // of a tensor
pb::TensorProto to_proto(const Tensor& tensor, const std::string& name);
pb::AttributeProto to_proto(const std::string& name, const Attribute& attribute);

// Where the reader found a tensor's bytes in the model file travels with the stripped proto, under this metadata key, as
// "field offset length".
inline constexpr const char* kBytesKey = "ort_train.bytes";

// What PyTorch's dynamo exporter writes of where tensors come from: of a value its kind and what it was folded from, of the graph all
// parameters, buffers and constants of the program that was exported, of a node the modules around it.
inline constexpr std::string_view kKindKey = "pkg.torch.export.graph_signature.InputSpec.kind";
inline constexpr std::string_view kFoldedKey = "pkg.onnxscript.optimizer.folded_from";
inline constexpr std::string_view kSignatureKey = "pkg.torch.export.ExportedProgram.graph_signature";
inline constexpr std::string_view kScopesKey = "pkg.torch.onnx.name_scopes";
inline constexpr std::array kOriginKeys{kKindKey, kFoldedKey, kSignatureKey, kScopesKey};
// Reads these entries into `graph`; what isn't written as that exporter writes it is passed over.
void read_origins(const pb::GraphProto& proto, GraphDef& graph);
// The innermost module around a node.
std::string module_of(const pb::NodeProto& proto);

// Throw Error(unsupported) for what contradicts itself, such as three elements of float32 [4].
TensorDef to_tensor(const pb::TensorProto& proto);
NodeDef to_node(const pb::NodeProto& proto, const std::shared_ptr<const void>& owner);
GraphDef to_graph(const pb::GraphProto& proto, const std::shared_ptr<const void>& owner);
Opsets to_opsets(const google::protobuf::RepeatedPtrField<pb::OperatorSetIdProto>& imports);

// "ai.onnx" is "".
std::string plain_domain(const std::string& domain);
std::string function_key(const std::string& domain, const std::string& name, const std::string& overload);

}  // namespace ort_train::onnx
