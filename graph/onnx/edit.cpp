#include "graph/onnx/edit.h"

#include <map>

#include "graph/error.h"
#include "graph/onnx/convert.h"
#include "graph/onnx/wire.h"

namespace ort_train::onnx {
namespace {

constexpr int64_t kMaxBytes = (int64_t{1} << 31) - 1;
constexpr int64_t kInputsOfInitializers = 4;  // IR versions below want each initializer among the graph's inputs

using Names = std::map<size_t, std::map<size_t, std::string>>;  // node -> place -> name

Names by_node(const std::vector<NameEdit>& edits) {
  Names names;
  for (const NameEdit& edit : edits) names[edit.node][edit.place] = edit.name;
  return names;
}

using NodesBehind = std::map<size_t, std::vector<const NodeDef*>>;  // by the node that they follow

NodesBehind by_node(const std::vector<NewNode>& added) {
  NodesBehind nodes;
  for (const NewNode& node : added) nodes[node.behind].push_back(&node.node);
  return nodes;
}

NodeDef own(pb::NodeProto proto) {
  const auto owner = std::make_shared<const pb::NodeProto>(std::move(proto));
  return to_node(*owner, owner);
}

pb::NodeProto with_names(pb::NodeProto proto, const std::string& name, const std::vector<std::string>& inputs,
                         const std::vector<std::string>& outputs) {
  proto.set_name(name);
  proto.clear_input();
  proto.clear_output();
  for (const std::string& input : inputs) proto.add_input(input);
  for (const std::string& output : outputs) proto.add_output(output);
  return proto;
}

void set_external(const NewInitializer& added, pb::TensorProto& tensor) {
  tensor.set_data_location(pb::TensorProto::EXTERNAL);
  for (const auto& [key, value] : {std::pair<const char*, std::string>{"location", added.location},
                                   {"offset", std::to_string(added.offset)},
                                   {"length", std::to_string(added.type.bytes())}}) {
    auto& entry = *tensor.add_external_data();
    entry.set_key(key);
    entry.set_value(value);
  }
}

class Editor {
 public:
  Editor(const ByteSource& source, const ModelEdit& edit)
      : reader_(source),
        edit_(edit),
        added_(edit.initializers),
        inputs_(by_node(edit.inputs)),
        outputs_(by_node(edit.outputs)),
        nodes_(by_node(edit.nodes)) {
    for (size_t i = 0; i < edit.stored.size(); ++i) stored_.emplace(edit.stored[i].offset, i);
  }

  std::vector<Piece> run() {
    const int64_t size = reader_.source().size;
    int64_t ir_version = 0;
    for (int64_t at = 0; at < size;) {
      const WireField field = reader_.field(at, size);
      at = field.content;
      if (field.number == pb::ModelProto::kIrVersionFieldNumber && field.wire_type == 0)
        ir_version = static_cast<int64_t>(reader_.varint(at, size));
      at = field.end;
    }
    std::vector<Piece> model;
    for (int64_t at = 0; at < size;) {
      const WireField field = reader_.field(at, size);
      if (field.number == pb::ModelProto::kGraphFieldNumber)
        put_message(field.number, graph(field, ir_version), model);
      else
        put_field(field, model);
      at = field.end;
    }
    if (bytes(model) > kMaxBytes) {
      throw error(ErrorCode::unsupported, "with what is added to it '{}' would have {} bytes, more than the 2 GiB of an ONNX file",
                  reader_.source().name, bytes(model));
    }
    return model;
  }

 private:
  std::vector<Piece> graph(const WireField& graph, int64_t ir_version) {
    std::vector<Piece> pieces;
    size_t node_index = 0;
    for (int64_t at = graph.content; at < graph.end;) {
      const WireField field = reader_.field(at, graph.end);
      at = field.end;
      if (field.number == pb::GraphProto::kNodeFieldNumber) {
        put_node(field, node_index++, pieces);
        continue;
      }
      put_field(field, pieces);
    }
    for (const ValueDef& value : edit_.graph_inputs) put_message(pb::GraphProto::kInputFieldNumber, literal(to_proto(value)), pieces);
    for (size_t i = 0; i < added_.size(); ++i) {
      pb::TensorProto tensor;
      tensor.set_name(added_[i].name);
      tensor.set_data_type(to_onnx(added_[i].type.dtype));
      for (int64_t dim : added_[i].type.shape) tensor.add_dims(dim);
      if (!added_[i].location.empty()) set_external(added_[i], tensor);
      std::vector<Piece> message = literal(tensor);
      if (added_[i].location.empty()) {
        put_header(pb::TensorProto::kRawDataFieldNumber, static_cast<uint64_t>(added_[i].type.bytes()), message[0].literal);
        message.push_back({.kind = Piece::Kind::tensor, .literal = {}, .tensor = i});
      }
      put_message(pb::GraphProto::kInitializerFieldNumber, std::move(message), pieces);
      if (ir_version >= kInputsOfInitializers) continue;
      pb::ValueInfoProto input;
      input.set_name(added_[i].name);
      set_type(added_[i].type, *input.mutable_type());
      put_message(pb::GraphProto::kInputFieldNumber, literal(input), pieces);
    }
    return pieces;
  }

  // A node of the file, and the new ones behind it.
  void put_node(const WireField& field, size_t index, std::vector<Piece>& out) {
    const auto inputs = inputs_.find(index), outputs = outputs_.find(index);
    if (inputs == inputs_.end() && outputs == outputs_.end()) {
      put_field(field, out);
    } else {
      static const std::map<size_t, std::string> kNone;
      put_message(field.number,
                  node(field, inputs == inputs_.end() ? kNone : inputs->second, outputs == outputs_.end() ? kNone : outputs->second), out);
    }
    if (const auto added = nodes_.find(index); added != nodes_.end()) {
      for (const NodeDef* node : added->second) put_message(field.number, literal(*node->proto), out);
    }
  }

  std::vector<Piece> node(const WireField& node, const std::map<size_t, std::string>& inputs,
                          const std::map<size_t, std::string>& outputs) {
    std::vector<Piece> pieces;
    size_t input_index = 0, output_index = 0;
    for (int64_t at = node.content; at < node.end;) {
      const WireField field = reader_.field(at, node.end);
      at = field.end;
      const std::string* name = nullptr;
      const auto look = [&](const std::map<size_t, std::string>& names, size_t& index) {
        if (const auto found = names.find(index++); found != names.end()) name = &found->second;
      };
      if (field.number == pb::NodeProto::kInputFieldNumber) look(inputs, input_index);
      if (field.number == pb::NodeProto::kOutputFieldNumber) look(outputs, output_index);
      if (name == nullptr)
        put_field(field, pieces);
      else
        put_message(field.number, {{.kind = Piece::Kind::literal, .literal = *name}}, pieces);
    }
    return pieces;
  }

  template <typename Proto> static std::vector<Piece> literal(const Proto& proto) {
    return {{.kind = Piece::Kind::literal, .literal = proto.SerializeAsString()}};
  }

  int64_t bytes(const std::vector<Piece>& pieces) const {
    int64_t total = 0;
    for (const Piece& piece : pieces) {
      total += piece.kind == Piece::Kind::source    ? piece.end - piece.begin
               : piece.kind == Piece::Kind::literal ? static_cast<int64_t>(piece.literal.size())
               : piece.kind == Piece::Kind::stored  ? edit_.stored[piece.tensor].bytes
                                                    : added_[piece.tensor].type.bytes();
    }
    return total;
  }

  // A field of the file as it is, but for tensors in it that are stored anew.
  void put_field(const WireField& field, std::vector<Piece>& out) {
    const auto found = stored_.lower_bound(field.content);
    if (found == stored_.end() || found->first >= field.end) return put_source(field.start, field.end, out);
    if (found->first == field.content && edit_.stored[found->second].end == field.end) {  // no message begins with another's content
      Piece header{.kind = Piece::Kind::literal, .literal = {}};
      put_header(pb::TensorProto::kRawDataFieldNumber, static_cast<uint64_t>(edit_.stored[found->second].bytes), header.literal);
      out.push_back(std::move(header));
      out.push_back({.kind = Piece::Kind::stored, .literal = {}, .tensor = found->second});
      return;
    }
    std::vector<Piece> pieces;
    for (int64_t at = field.content; at < field.end;) {
      const WireField inner = reader_.field(at, field.end);
      put_field(inner, pieces);
      at = inner.end;
    }
    put_message(field.number, std::move(pieces), out);
  }

  static void put_source(int64_t begin, int64_t end, std::vector<Piece>& out) {
    if (!out.empty() && out.back().kind == Piece::Kind::source && out.back().end == begin)
      out.back().end = end;
    else
      out.push_back({.kind = Piece::Kind::source, .begin = begin, .end = end, .literal = {}});
  }

  void put_message(int field, std::vector<Piece> content, std::vector<Piece>& out) const {
    Piece header{.kind = Piece::Kind::literal, .literal = {}};
    put_header(field, static_cast<uint64_t>(bytes(content)), header.literal);
    out.push_back(std::move(header));
    for (Piece& piece : content) out.push_back(std::move(piece));
  }

  WireReader reader_;
  const ModelEdit& edit_;
  const std::vector<NewInitializer>& added_;
  const Names inputs_, outputs_;
  const NodesBehind nodes_;
  std::map<int64_t, size_t> stored_{};  // by where the elements are in the source
};

}  // namespace

NodeDef make_node(const std::string& op_type, const std::string& name, const std::vector<std::string>& inputs, const std::string& output) {
  pb::NodeProto proto;
  proto.set_op_type(op_type);
  return own(with_names(std::move(proto), name, inputs, {output}));
}

NodeDef make_cast(const std::string& name, const std::string& input, DType to, const std::string& output) {
  pb::NodeProto proto;
  proto.set_op_type("Cast");
  auto& attribute = *proto.add_attribute();
  attribute.set_name("to");
  attribute.set_type(pb::AttributeProto::INT);
  attribute.set_i(to_onnx(to));
  return own(with_names(std::move(proto), name, {input}, {output}));
}

std::optional<DType> cast_type(const NodeDef& cast) { return from_onnx(static_cast<int>(cast.attributes.get("to", int64_t{0}))); }

NodeDef copy_node(const NodeDef& node, const std::string& name, const std::vector<std::string>& inputs,
                  const std::vector<std::string>& outputs) {
  const auto refuse = [&](const char* what) {
    return error(ErrorCode::unsupported, "[{} '{}'] has {} of its own: it can't be copied", node.op_type, node.name, what);
  };
  if (!node.graphs.empty()) throw refuse("graphs");
  for (const auto& [attribute, tensor] : node.tensors) {
    if (!tensor.value) throw refuse("a large tensor");
  }
  pb::NodeProto proto = with_names(*node.proto, name, inputs, outputs);
  proto.clear_metadata_props();  // the original's
  for (auto& attribute : *proto.mutable_attribute()) {
    if (attribute.has_t()) attribute.mutable_t()->clear_metadata_props();  // kBytesKey
  }
  return own(std::move(proto));
}

void apply(const ModelEdit& edit, GraphDef& graph) {
  const Names inputs = by_node(edit.inputs), outputs = by_node(edit.outputs);
  std::vector<NodeDef> nodes;
  nodes.reserve(graph.nodes.size() + edit.nodes.size());
  const NodesBehind added = by_node(edit.nodes);
  for (size_t i = 0; i < graph.nodes.size(); ++i) {
    NodeDef& node = graph.nodes[i];
    const auto rename = [&](const Names& edits, std::vector<std::string>& names) {
      const auto of_node = edits.find(i);
      if (of_node == edits.end()) return false;
      for (const auto& [place, name] : of_node->second) names.at(place) = name;
      return true;
    };
    const bool reads_others = rename(inputs, node.inputs), gives_others = rename(outputs, node.outputs);
    if (reads_others || gives_others)
      node.proto = std::make_shared<const pb::NodeProto>(with_names(*node.proto, node.name, node.inputs, node.outputs));
    nodes.push_back(std::move(node));
    if (const auto behind = added.find(i); behind != added.end()) {
      for (const NodeDef* other : behind->second) nodes.push_back(*other);
    }
  }
  graph.nodes = std::move(nodes);
}

std::vector<Piece> edit_model(const ByteSource& source, const ModelEdit& edit) { return Editor(source, edit).run(); }

}  // namespace ort_train::onnx
