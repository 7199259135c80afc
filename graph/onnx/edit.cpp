#include "graph/onnx/edit.h"

#include <map>

#include "graph/error.h"
#include "graph/onnx/convert.h"
#include "graph/onnx/wire.h"

namespace ort_train::onnx {
namespace {

constexpr int64_t kMaxBytes = (int64_t{1} << 31) - 1;
constexpr int64_t kInputsOfInitializers = 4;  // IR versions below want each initializer among the graph's inputs

class Editor {
 public:
  Editor(const ByteSource& source, const std::vector<InputEdit>& edits, const std::vector<NewInitializer>& added)
      : reader_(source), added_(added) {
    for (const InputEdit& edit : edits) edits_[edit.node][edit.input] = edit.name;
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
        put_source(field.start, field.end, model);
      at = field.end;
    }
    if (bytes(model) > kMaxBytes) {
      throw error(ErrorCode::unsupported, "with a copy of each shared weight '{}' would have {} bytes, more than the 2 GiB of an ONNX file",
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
        if (const auto edits = edits_.find(node_index++); edits != edits_.end()) {
          put_message(field.number, node(field, edits->second), pieces);
          continue;
        }
      }
      put_source(field.start, field.end, pieces);
    }
    for (size_t i = 0; i < added_.size(); ++i) {
      pb::TensorProto tensor;
      tensor.set_name(added_[i].name);
      tensor.set_data_type(to_onnx(added_[i].type.dtype));
      for (int64_t dim : added_[i].type.shape) tensor.add_dims(dim);
      std::vector<Piece> message{{.kind = Piece::Kind::literal, .literal = tensor.SerializeAsString()}};
      put_header(pb::TensorProto::kRawDataFieldNumber, static_cast<uint64_t>(added_[i].type.bytes()), message[0].literal);
      message.push_back({.kind = Piece::Kind::tensor, .literal = {}, .tensor = i});
      put_message(pb::GraphProto::kInitializerFieldNumber, std::move(message), pieces);
      if (ir_version >= kInputsOfInitializers) continue;
      pb::ValueInfoProto input;
      input.set_name(added_[i].name);
      set_type(added_[i].type, *input.mutable_type());
      put_message(pb::GraphProto::kInputFieldNumber, {{.kind = Piece::Kind::literal, .literal = input.SerializeAsString()}}, pieces);
    }
    return pieces;
  }

  std::vector<Piece> node(const WireField& node, const std::map<size_t, std::string>& edits) {
    std::vector<Piece> pieces;
    size_t input_index = 0;
    for (int64_t at = node.content; at < node.end;) {
      const WireField field = reader_.field(at, node.end);
      at = field.end;
      const auto edit = field.number == pb::NodeProto::kInputFieldNumber ? edits.find(input_index++) : edits.end();
      if (edit == edits.end())
        put_source(field.start, field.end, pieces);
      else
        put_message(field.number, {{.kind = Piece::Kind::literal, .literal = edit->second}}, pieces);
    }
    return pieces;
  }

  int64_t bytes(const std::vector<Piece>& pieces) const {
    int64_t total = 0;
    for (const Piece& piece : pieces) {
      total += piece.kind == Piece::Kind::source    ? piece.end - piece.begin
               : piece.kind == Piece::Kind::literal ? static_cast<int64_t>(piece.literal.size())
                                                    : added_[piece.tensor].type.bytes();
    }
    return total;
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
  const std::vector<NewInitializer>& added_;
  std::map<size_t, std::map<size_t, std::string>> edits_;  // node -> input -> name
};

}  // namespace

std::vector<Piece> edit_model(const ByteSource& source, const std::vector<InputEdit>& edits, const std::vector<NewInitializer>& added) {
  return Editor(source, edits, added).run();
}

}  // namespace ort_train::onnx
