#include "graph/onnx/writer.h"

#include <fmt/ranges.h>
#include <onnx/defs/parser.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>
#include <new>
#include <numeric>
#include <sstream>

#include "graph/onnx/convert.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

namespace pb = ::ort_train_onnx;

constexpr int64_t kIrVersion = 10;  // the first with metadata_props on values and nodes
constexpr int kLeastOpset = 13;
constexpr const char* kKind = "ort_train.kind";
constexpr const char* kStage = "ort_train.stage";
constexpr const char* kOrdinal = "ort_train.ordinal";
constexpr const char* kIndex = "ort_train.index";  // the order of the values
constexpr const char* kTrainable = "ort_train.trainable";
constexpr const char* kStored =
    "ort_train.stored";  // of values of a type that ONNX doesn't have, which are written as bytes: "TYPE DIM DIM …"

template <typename Proto> void note(Proto& proto, const char* key, std::string value) {
  auto& entry = *proto.add_metadata_props();
  entry.set_key(key);
  entry.set_value(std::move(value));
}

template <typename Proto> const std::string* noted(const Proto& proto, std::string_view key) {
  for (const auto& entry : proto.metadata_props()) {
    if (entry.key() == key) return &entry.value();
  }
  return nullptr;
}

const pb::OpSchema* schema_of(const OpDef& op, int opset) { return pb::OpSchemaRegistry::Schema(std::string(op.name), opset, ""); }

// A node is written as ONNX's own where its op is the same at the file's opset and the node passes the standard's own check.
bool is_standard(const OpDef& op, const pb::NodeProto& proto, int opset) {
  if (op.standard == 0) return false;
  const pb::OpSchema* schema = schema_of(op, opset);
  if (!schema || schema != schema_of(op, op.standard)) return false;
  try {
    schema->Verify(proto);
    return true;
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return false;
  }
}

// Few of the standard's ops take floating-point numbers of several types, as mixed precision has them.
bool mixes_types(const Graph& graph, const Node& node) {
  std::optional<DType> first;
  for (const ValueId input : node.inputs) {
    if (input == kNone || !is_floating(graph.value(input).dtype)) continue;
    if (first && *first != graph.value(input).dtype) return true;
    first = graph.value(input).dtype;
  }
  return false;
}

pb::ValueInfoProto describe_value(const Graph& graph, ValueId id) {
  const Value& value = graph.value(id);
  pb::ValueInfoProto proto;
  proto.set_name(value.name);
  if (is_quantized(value.dtype)) {
    onnx::set_type({DType::uint8, {value.bytes()}}, *proto.mutable_type());
    note(proto, kStored, fmt::format("{} {}", to_string(value.dtype), fmt::join(value.shape, " ")));
    proto.set_doc_string(fmt::format("{}: for every {} elements their codes, and their scale as float32", to_string(value.type()),
                                     storage_of(value.dtype).block_elements));
  } else {
    onnx::set_type(value.type(), *proto.mutable_type());
  }
  note(proto, kKind, std::string(to_string(value.kind)));
  note(proto, kIndex, std::to_string(id));
  if (value.trainable) note(proto, kTrainable, "1");
  return proto;
}

// The values that a reader must find: those read, those fed, parameters, and those that must be left.
std::vector<bool> mentioned(const Graph& graph) {
  std::vector<bool> used(graph.value_count());
  const auto mark = [&](const std::vector<ValueId>& ids) {
    for (ValueId id : ids) {
      if (id != kNone) used[id] = true;
    }
  };
  for (NodeId id : graph.order()) {
    mark(graph.node(id).inputs);
    mark(graph.node(id).outputs);
  }
  mark(graph.inputs);
  mark(graph.outputs);
  mark(graph.parameters());
  mark(graph.values_of(ValueKind::input));
  return used;
}

pb::ModelProto to_model(const Graph& graph) {
  pb::ModelProto model;
  model.set_ir_version(kIrVersion);
  model.set_producer_name("ort-train");
  int opset = kLeastOpset;
  for (NodeId id : graph.order()) opset = std::max(opset, graph.node(id).op->standard);
  for (const auto& [domain, version] : {std::pair<std::string, int>{"", opset}, {std::string(kOwnDomain), 1}}) {
    auto& import = *model.add_opset_import();
    import.set_domain(domain);
    import.set_version(version);
  }

  pb::GraphProto& proto = *model.mutable_graph();
  proto.set_name(graph.name.empty() ? "graph" : graph.name);
  const std::vector<bool> used = mentioned(graph);
  std::vector<bool> is_output(graph.value_count());
  for (ValueId id : graph.outputs) is_output[id] = true;
  for (ValueId id : graph.inputs) *proto.add_input() = describe_value(graph, id);
  for (ValueId id = 0; id < graph.value_count(); ++id) {
    const Value& value = graph.value(id);
    if (!used[id] || std::find(graph.inputs.begin(), graph.inputs.end(), id) != graph.inputs.end()) continue;
    if (value.constant) {
      *proto.add_initializer() = onnx::to_proto(*value.constant, value.name);
      note(*proto.mutable_initializer(proto.initializer_size() - 1), kIndex, std::to_string(id));
    } else if (value.producer == kNone) {
      *proto.add_input() = describe_value(graph, id);
    } else if (!is_output[id]) {
      *proto.add_value_info() = describe_value(graph, id);
    }
  }
  for (ValueId id : graph.outputs) *proto.add_output() = describe_value(graph, id);

  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    pb::NodeProto& written = *proto.add_node();
    written.set_op_type(std::string(node.op->name));
    written.set_name(node.name);
    for (ValueId input : node.inputs) written.add_input(input == kNone ? "" : graph.value(input).name);
    for (ValueId output : node.outputs) written.add_output(output == kNone ? "" : graph.value(output).name);
    for (const auto& [name, attribute] : node.attributes.entries()) *written.add_attribute() = onnx::to_proto(name, attribute);
    if (mixes_types(graph, node) || !is_standard(*node.op, written, opset)) written.set_domain(std::string(kOwnDomain));
    note(written, kStage, std::string(to_string(node.stage)));
    if (node.ordinal != 0) note(written, kOrdinal, std::to_string(node.ordinal));
  }
  return model;
}

// --- reading --------------------------------------------------------------------------------------------------------------------------

template <typename Enum, size_t count> Enum parse_enum(const std::string* text, const Enum (&values)[count], Enum otherwise) {
  for (Enum value : values) {
    if (text && to_string(value) == *text) return value;
  }
  return otherwise;
}

ValueKind kind_of(const pb::ValueInfoProto& proto, ValueKind otherwise) {
  return parse_enum(noted(proto, kKind),
                    {ValueKind::input, ValueKind::parameter, ValueKind::activation, ValueKind::gradient, ValueKind::optimizer_state,
                     ValueKind::accumulator},
                    otherwise);
}

// Of a value that is written as so many bytes.
TensorType stored_type(const std::string& text, const Shape& bytes, const std::string& name) {
  std::istringstream words(text);
  std::string dtype;
  words >> dtype;
  TensorType type{
      parse_enum(&dtype, {DType::dynamic8, DType::dynamic8_unsigned, DType::nf4, DType::nf4_double, DType::block_int8}, DType::uint8), {}};
  for (int64_t dim; words >> dim;) type.shape.push_back(dim);
  if (!is_quantized(type.dtype) || element_count(type.shape) < 0 || bytes != Shape{type.bytes()})
    throw error(ErrorCode::unsupported, "'{}' is stored as '{}', which {} bytes are not", name, text, to_string(bytes));
  return type;
}

TensorType type_of(const pb::ValueInfoProto& proto) {
  const auto& tensor = proto.type().tensor_type();
  const auto dtype = onnx::from_onnx(tensor.elem_type());
  if (!dtype || !tensor.has_shape()) throw error(ErrorCode::unsupported, "'{}' has no element type or no shape", proto.name());
  TensorType type{*dtype, {}};
  for (const auto& dim : tensor.shape().dim()) {
    if (!dim.has_dim_value() || dim.dim_value() < 0)
      throw error(ErrorCode::unsupported, "'{}' has a dimension that isn't fixed", proto.name());
    type.shape.push_back(dim.dim_value());
  }
  element_count(type.shape);
  const std::string* const stored = noted(proto, kStored);
  return stored == nullptr ? type : stored_type(*stored, type.shape, proto.name());
}

// Values of a file in the order of their indices, which is that of the original graph.
struct Incoming {
  uint64_t index = 0;
  const pb::ValueInfoProto* value = nullptr;  // or
  const pb::TensorProto* constant = nullptr;
  ValueKind kind = ValueKind::input;
};

class GraphReader {
 public:
  explicit GraphReader(const pb::GraphProto& proto) : proto_(proto) { graph_.name = proto.name(); }

  Graph read() {
    add_sources();
    for (const auto& node : proto_.node()) add_node(node);
    for (const auto& output : proto_.output()) graph_.outputs.push_back(find(output.name(), "the graph's outputs"));
    return std::move(graph_);
  }

 private:
  // Inputs, parameters, state and constants.
  void add_sources() {
    std::map<std::string, bool> produced;
    for (const auto& node : proto_.node()) {
      for (const auto& name : node.output()) produced[name] = true;
    }
    std::vector<Incoming> sources;
    const auto add = [&](const auto& proto, ValueKind kind) {
      const std::string* index = noted(proto, kIndex);
      Incoming source{.index = index ? std::strtoull(index->c_str(), nullptr, 10) : sources.size(), .kind = kind};
      if constexpr (std::is_same_v<std::decay_t<decltype(proto)>, pb::TensorProto>)
        source.constant = &proto;
      else
        source.value = &proto;
      sources.push_back(source);
    };
    for (const auto& input : proto_.input()) add(input, kind_of(input, ValueKind::input));
    for (const auto& value : proto_.value_info()) {
      declared_[value.name()] = &value;
      if (!produced.count(value.name())) add(value, ValueKind::parameter);
    }
    for (const auto& value : proto_.output()) declared_[value.name()] = &value;
    for (const auto& tensor : proto_.initializer()) add(tensor, ValueKind::constant);
    std::stable_sort(sources.begin(), sources.end(), [](const Incoming& a, const Incoming& b) { return a.index < b.index; });
    for (const Incoming& source : sources) add_source(source);
    for (const auto& input : proto_.input()) {
      if (kind_of(input, ValueKind::input) == ValueKind::input) graph_.inputs.push_back(find(input.name(), "the graph's inputs"));
    }
  }

  void add_source(const Incoming& source) {
    if (source.constant) {
      const onnx::TensorDef tensor = onnx::to_tensor(*source.constant);
      if (!tensor.value)
        throw error(ErrorCode::unsupported, "the constant '{}' is {}, which ort-train does not write", tensor.name, tensor.type);
      bind(tensor.name, graph_.add_constant(*tensor.value, tensor.name));
      return;
    }
    const TensorType type = type_of(*source.value);
    // In text a parameter is trainable; in a written file the metadata say so.
    const bool trainable = source.kind == ValueKind::parameter && (noted(*source.value, kTrainable) || !noted(*source.value, kKind));
    bind(source.value->name(),
         graph_.add_value(
             {.name = source.value->name(), .dtype = type.dtype, .shape = type.shape, .kind = source.kind, .trainable = trainable}));
  }

  void add_node(const pb::NodeProto& proto) {
    const OpDef* op = find_op(proto.op_type());
    if (!op) throw error(ErrorCode::unsupported, "there is no op '{}'; graphs are written in internal ops", proto.op_type());
    Node node{.op = op, .name = proto.name()};
    node.stage = parse_enum(noted(proto, kStage), {Stage::forward, Stage::backward, Stage::update}, Stage::forward);
    if (const std::string* ordinal = noted(proto, kOrdinal))
      node.ordinal = static_cast<uint32_t>(std::strtoul(ordinal->c_str(), nullptr, 10));
    for (const auto& input : proto.input()) node.inputs.push_back(input.empty() ? kNone : find(input, proto.name()));
    const onnx::NodeDef plain = onnx::to_node(proto, nullptr);
    if (!plain.others.empty() || !plain.graphs.empty())
      throw error(ErrorCode::unsupported, "[{} '{}'] has an attribute that no op has", proto.op_type(), proto.name());
    node.attributes = plain.attributes;
    const std::vector<TensorType> types =
        infer_types(graph_, *op, node.inputs, node.attributes, static_cast<size_t>(proto.output_size()), proto.name());
    for (int i = 0; i < proto.output_size(); ++i) {
      const std::string& name = proto.output(i);
      node.outputs.push_back(name.empty() ? kNone : add_result(name, types.at(static_cast<size_t>(i)), node.stage));
    }
    graph_.add_node(std::move(node));
  }

  ValueId add_result(const std::string& name, const TensorType& type, Stage stage) {
    ValueKind kind = stage == Stage::forward ? ValueKind::activation : ValueKind::gradient;
    bool trainable = false;
    if (const auto declared = declared_.find(name); declared != declared_.end()) {
      if (type_of(*declared->second) != type) {
        throw error(ErrorCode::unsupported, "'{}' is declared {}, but its node gives {}", name, to_string(type_of(*declared->second)),
                    to_string(type));
      }
      kind = kind_of(*declared->second, kind);
      trainable = noted(*declared->second, kTrainable) != nullptr;
    }
    const ValueId id = graph_.add_value({.name = name, .dtype = type.dtype, .shape = type.shape, .kind = kind, .trainable = trainable});
    bind(name, id);
    return id;
  }

  void bind(const std::string& name, ValueId id) {
    if (!values_.emplace(name, id).second) throw error(ErrorCode::unsupported, "there are two values '{}'", name);
  }
  ValueId find(const std::string& name, std::string_view reader) const {
    const auto found = values_.find(name);
    if (found == values_.end()) throw error(ErrorCode::unsupported, "'{}' reads '{}', which nothing before it gives", reader, name);
    return found->second;
  }

  const pb::GraphProto& proto_;
  Graph graph_;
  std::map<std::string, ValueId> values_;
  std::map<std::string, const pb::ValueInfoProto*> declared_;
};

}  // namespace

void write_graph(const Graph& graph, const std::string& path) {
  const pb::ModelProto model = to_model(graph);
  std::string bytes;
  if (model.ByteSizeLong() > size_t{1} << 31 || !model.SerializeToString(&bytes)) {
    throw error(ErrorCode::io, "the graph is too large for an ONNX file: its constants take {} bytes", model.ByteSizeLong());
  }
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (!file) throw error(ErrorCode::io, "can't write '{}'", path);
}

Graph read_graph(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw error(ErrorCode::io, "can't read '{}'", path);
  pb::ModelProto model;
  if (!model.ParseFromIstream(&file)) throw error(ErrorCode::unsupported, "'{}' is not an ONNX file", path);
  return GraphReader(model.graph()).read();
}

Graph parse_graph(std::string_view text) {
  pb::ModelProto model;
  pb::OnnxParser parser(text);
  const size_t start = text.find_first_not_of(" \t\r\n");
  const auto status = start != std::string_view::npos && text[start] == '<' ? parser.Parse(model) : parser.Parse(*model.mutable_graph());
  if (!status.IsOK()) throw error(ErrorCode::unsupported, "not a graph: {}", status.ErrorMessage());
  return GraphReader(model.graph()).read();
}

}  // namespace ort_train
