#include "graph/onnx/reader.h"

#include <google/protobuf/io/coded_stream.h>

#include <algorithm>

#include "graph/error.h"
#include "graph/onnx/convert.h"
#include "graph/onnx/schema.h"
#include "graph/onnx/wire.h"
#include "graph/utf8.h"

namespace ort_train::onnx {

Error wrong_count(const TensorDef& tensor) {
  return error(ErrorCode::unsupported, "tensor '{}' is {} {}, but the file holds another number of elements of it", tensor.name,
               tensor.type, to_string(tensor.shape));
}

void each_tensor(const GraphDef& graph, const std::function<void(const std::string&, const TensorDef&)>& body) {
  for (const TensorDef& tensor : graph.initializers) body(tensor.name, tensor);
  each_tensor(graph.nodes, body);
}

void each_tensor(const std::vector<NodeDef>& nodes, const std::function<void(const std::string&, const TensorDef&)>& body) {
  for (const NodeDef& node : nodes) {
    for (const auto& [name, tensor] : node.tensors) {
      const bool is_output = name == "value" && !node.outputs.empty();
      body(is_output ? node.outputs[0] : fmt::format("{} of {}", name, node.name), tensor);
    }
    for (const auto& [name, graph] : node.graphs) each_tensor(*graph, body);
  }
}

ModelDef read_model(const ByteSource& source) {
  if (source.size == 0) throw error(ErrorCode::unsupported, "'{}' is empty, not an ONNX model", source.name);
  auto proto = std::make_shared<pb::ModelProto>();
  {
    const std::string stripped = strip_model(source);
    google::protobuf::io::CodedInputStream stream(reinterpret_cast<const uint8_t*>(stripped.data()), static_cast<int>(stripped.size()));
    if (!proto->ParseFromCodedStream(&stream) || !stream.ConsumedEntireMessage()) {
      throw error(ErrorCode::unsupported, "'{}' is not an ONNX model: its fields have the wrong types", source.name);
    }
  }
  if (!proto->has_graph() || proto->ir_version() < 1 || proto->opset_import_size() == 0) {
    throw error(ErrorCode::unsupported, "'{}' is not an ONNX model: it has no graph, no IR version or no operator set", source.name);
  }
  try {
    ModelDef model;
    model.ir_version = proto->ir_version();
    model.producer = proto->producer_name();
    model.producer_version = proto->producer_version();
    model.opsets = to_opsets(proto->opset_import());
    model.graph = to_graph(proto->graph(), proto);
    const auto note_file = [&](const std::string&, const TensorDef& tensor) {
      if (tensor.external()) model.external_files.insert(tensor.location);
    };
    each_tensor(model.graph, note_file);
    for (const auto& function : proto->functions()) {
      std::vector<NodeDef> nodes;
      for (const auto& node : function.node()) nodes.push_back(to_node(node, proto));
      each_tensor(nodes, note_file);
      each_tensor(nodes, [&](const std::string& name, const TensorDef& tensor) {
        model.function_tensors.emplace_back(function.name() + "/" + name, tensor);
      });
      model.functions[function_key(function.domain(), function.name(), function.overload())] =
          std::shared_ptr<const pb::FunctionProto>(proto, &function);
    }
    return model;
  } catch (const Error& e) {
    throw error(e.code(), "'{}': {}", source.name, printable(e.what()));
  }
}

std::string printable(std::string text) {
  char32_t character;
  for (size_t at = 0; at < text.size();) {
    const int length = decode_utf8(std::string_view(text).substr(at), character);
    if (length <= 0 || character < 0x20 || character == 0x7f) text[at] = '?';
    at += static_cast<size_t>(std::max(1, length));
  }
  return text;
}

size_t decode_varints(std::span<const std::byte>& bytes, size_t size, std::span<std::byte> to) {
  constexpr size_t kLongest = 10;  // bytes of a varint
  size_t decoded = 0;
  for (; decoded < to.size() / size; ++decoded) {
    uint64_t value = 0;
    size_t at = 0;
    bool ends = false;
    for (const size_t most = std::min(kLongest, bytes.size()); at < most && !ends; ++at) {
      value |= (static_cast<uint64_t>(bytes[at]) & 0x7f) << 7 * at;
      ends = (bytes[at] & std::byte{0x80}) == std::byte{};
    }
    if (!ends) break;
    std::memcpy(to.data() + decoded * size, &value, size);  // little-endian: the low bytes come first
    bytes = bytes.subspan(at);
  }
  return decoded;
}

Tensor decode_tensor(const TensorDef& def, std::span<const std::byte> bytes) {
  require(def.dtype.has_value(), "only tensors of known type are decoded");
  // Before there is memory for it: a varint has a byte at least.
  const int64_t count = element_count(def.shape), given = static_cast<int64_t>(bytes.size());
  if (def.varints ? given < count : given != count * size_of(*def.dtype)) throw wrong_count(def);
  Tensor tensor(*def.dtype, def.shape);
  if (def.varints) {
    const auto decoded = static_cast<int64_t>(decode_varints(bytes, static_cast<size_t>(size_of(*def.dtype)), tensor.bytes));
    if (decoded != count || !bytes.empty()) throw wrong_count(def);
  } else {
    std::copy(bytes.begin(), bytes.end(), tensor.bytes.begin());
  }
  if (tensor.dtype == DType::boolean) {
    for (std::byte& byte : tensor.bytes) byte = std::byte{byte != std::byte{0}};
  }
  return tensor;
}

}  // namespace ort_train::onnx
