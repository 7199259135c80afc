#include "graph/onnx/wire.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <array>

#include "graph/error.h"
#include "graph/onnx/convert.h"

namespace ort_train::onnx {
namespace {

constexpr int64_t kBufferBytes = 64 << 10;
constexpr int64_t kInlineBytes = 1 << 10;  // tensor data up to here are copied too
constexpr int64_t kMaxCopied = 64 << 20;   // bytes of everything that is not tensor data
constexpr int64_t kMaxFields = 8 << 20;
constexpr int kMaxDepth = 90;  // protobuf's own parser stops at 100

enum class Message { model, graph, function, node, attribute, value, tensor, sparse_tensor };

enum class Action : uint8_t { copy, drop, data, descend, descend_once };

struct Rule {
  int field;
  Action action;
  Message message = Message::model;  // where descending
};

// What is done with a message's fields; those not listed are copied.
std::span<const Rule> rules_of(Message message) {
  using A = Action;
  using M = Message;
  static constexpr Rule model[] = {{pb::ModelProto::kGraphFieldNumber, A::descend_once, M::graph},
                                   {pb::ModelProto::kFunctionsFieldNumber, A::descend, M::function},
                                   {pb::ModelProto::kTrainingInfoFieldNumber, A::drop},
                                   {pb::ModelProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule graph[] = {{pb::GraphProto::kNodeFieldNumber, A::descend, M::node},
                                   {pb::GraphProto::kInitializerFieldNumber, A::descend, M::tensor},
                                   {pb::GraphProto::kSparseInitializerFieldNumber, A::descend, M::sparse_tensor},
                                   {pb::GraphProto::kInputFieldNumber, A::descend, M::value},
                                   {pb::GraphProto::kOutputFieldNumber, A::descend, M::value},
                                   {pb::GraphProto::kValueInfoFieldNumber, A::descend, M::value},
                                   {pb::GraphProto::kQuantizationAnnotationFieldNumber, A::drop},
                                   {pb::GraphProto::kMetadataPropsFieldNumber, A::drop},
                                   {pb::GraphProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule function[] = {{pb::FunctionProto::kNodeFieldNumber, A::descend, M::node},
                                      {pb::FunctionProto::kAttributeProtoFieldNumber, A::descend, M::attribute},
                                      {pb::FunctionProto::kValueInfoFieldNumber, A::drop},
                                      {pb::FunctionProto::kMetadataPropsFieldNumber, A::drop},
                                      {pb::FunctionProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule node[] = {{pb::NodeProto::kAttributeFieldNumber, A::descend, M::attribute},
                                  {pb::NodeProto::kMetadataPropsFieldNumber, A::drop},
                                  {pb::NodeProto::kDeviceConfigurationsFieldNumber, A::drop},
                                  {pb::NodeProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule attribute[] = {{pb::AttributeProto::kTFieldNumber, A::descend_once, M::tensor},
                                       {pb::AttributeProto::kGFieldNumber, A::descend_once, M::graph},
                                       {pb::AttributeProto::kTensorsFieldNumber, A::descend, M::tensor},
                                       {pb::AttributeProto::kGraphsFieldNumber, A::descend, M::graph},
                                       {pb::AttributeProto::kSparseTensorFieldNumber, A::descend_once, M::sparse_tensor},
                                       {pb::AttributeProto::kSparseTensorsFieldNumber, A::descend, M::sparse_tensor},
                                       {pb::AttributeProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule value[] = {{pb::ValueInfoProto::kMetadataPropsFieldNumber, A::drop},
                                   {pb::ValueInfoProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule tensor[] = {
      {pb::TensorProto::kRawDataFieldNumber, A::data},       {pb::TensorProto::kFloatDataFieldNumber, A::data},
      {pb::TensorProto::kInt32DataFieldNumber, A::data},     {pb::TensorProto::kInt64DataFieldNumber, A::data},
      {pb::TensorProto::kDoubleDataFieldNumber, A::data},    {pb::TensorProto::kUint64DataFieldNumber, A::data},
      {pb::TensorProto::kMetadataPropsFieldNumber, A::drop}, {pb::TensorProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule sparse_tensor[] = {{pb::SparseTensorProto::kValuesFieldNumber, A::descend_once, M::tensor},
                                           {pb::SparseTensorProto::kIndicesFieldNumber, A::descend_once, M::tensor}};
  switch (message) {
    case M::model:
      return model;
    case M::graph:
      return graph;
    case M::function:
      return function;
    case M::node:
      return node;
    case M::attribute:
      return attribute;
    case M::value:
      return value;
    case M::tensor:
      return tensor;
    case M::sparse_tensor:
      return sparse_tensor;
  }
  return {};
}

void put_varint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_bytes(int field, std::string_view bytes, std::string& out) {
  put_varint(static_cast<uint64_t>(field) << 3 | 2, out);
  put_varint(bytes.size(), out);
  out.append(bytes);
}

class Stripper {
 public:
  explicit Stripper(const ByteSource& source) : source_(source) {}

  // Copies the message in [at, end) to `out`.
  void message(Message kind, int64_t at, int64_t end, int depth, std::string& out) {
    if (depth > kMaxDepth)
      throw error(ErrorCode::unsupported, "'{}' nests messages more than {} deep, which no model does", source_.name, kMaxDepth);
    std::vector<int> seen;  // of the fields that may come once
    int64_t data_field = 0, data_offset = 0, data_bytes = 0, pieces = 0;
    bool left_out = false;
    while (at < end) {
      if (++fields_ > kMaxFields)
        throw error(ErrorCode::unsupported, "'{}' has more than {} fields, which no model has", source_.name, kMaxFields);
      const int64_t start = at;
      const uint64_t tag = varint(at, end);
      const int field = static_cast<int>(std::min<uint64_t>(tag >> 3, INT32_MAX)), wire_type = static_cast<int>(tag & 7);
      if (field == 0 || (tag >> 3) > (1u << 29)) throw broken(start);
      const Rule* rule = find(kind, field);
      const int64_t length = length_of(wire_type, at, end, start);
      if (rule && rule->action == Action::drop) {
        // left out
      } else if (rule && rule->action == Action::data) {
        ++pieces;
        data_field = field, data_offset = at, data_bytes = length;
        if (wire_type == 2 && length > kInlineBytes) {
          left_out = true;
        } else {
          copy(start, at + length, out);
        }
      } else if (rule && rule->action != Action::copy) {
        if (wire_type != 2) throw broken(start);
        if (rule->action == Action::descend_once) {
          if (std::find(seen.begin(), seen.end(), field) != seen.end()) throw broken(start);
          seen.push_back(field);
        }
        std::string nested;
        message(rule->message, at, at + length, depth + 1, nested);
        put_bytes(field, nested, out);
      } else {
        copy(start, at + length, out);
      }
      at += length;
    }
    if (pieces > 1 && left_out) {
      throw error(ErrorCode::unsupported, "'{}' stores a tensor's elements in several pieces; load and save it with the onnx package",
                  source_.name);
    }
    if (pieces == 1) {
      std::string entry;
      put_bytes(pb::StringStringEntryProto::kKeyFieldNumber, kBytesKey, entry);
      put_bytes(pb::StringStringEntryProto::kValueFieldNumber, fmt::format("{} {} {}", data_field, data_offset, data_bytes), entry);
      put_bytes(pb::TensorProto::kMetadataPropsFieldNumber, entry, out);
    }
  }

 private:
  static const Rule* find(Message kind, int field) {
    for (const Rule& rule : rules_of(kind)) {
      if (rule.field == field) return &rule;
    }
    return nullptr;
  }

  Error broken(int64_t at) const {
    return error(ErrorCode::unsupported, "'{}' is not an ONNX model, or it is damaged: at byte {} of {} stands no protobuf field",
                 source_.name, at, source_.size);
  }

  // The bytes of a field's content, which begins at `at` (moved past the length prefix where there is one).
  int64_t length_of(int wire_type, int64_t& at, int64_t end, int64_t start) {
    int64_t length = 0;
    if (wire_type == 0) {
      int64_t after = at;
      varint(after, end);
      length = after - at;
    } else if (wire_type == 1) {
      length = 8;
    } else if (wire_type == 5) {
      length = 4;
    } else if (wire_type == 2) {
      const uint64_t prefix = varint(at, end);
      if (prefix > static_cast<uint64_t>(end - at)) {
        throw error(ErrorCode::unsupported, "'{}' is cut short or is not an ONNX model: the field at byte {} needs {} bytes, {} are left",
                    source_.name, start, prefix, end - at);
      }
      length = static_cast<int64_t>(prefix);
    } else {
      throw broken(start);
    }
    if (length > end - at) throw broken(start);
    return length;
  }

  uint64_t varint(int64_t& at, int64_t end) {
    const int64_t start = at;
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at >= end) throw broken(start);
      const auto byte = static_cast<uint64_t>(byte_at(at++));
      if (shift == 63 && byte > 1) throw broken(start);
      value |= (byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw broken(start);
  }

  uint8_t byte_at(int64_t at) {
    if (at < begin_ || at >= begin_ + filled_) fill(at);
    return static_cast<uint8_t>(buffer_[static_cast<size_t>(at - begin_)]);
  }

  void fill(int64_t at) {
    begin_ = at;
    filled_ = std::min(kBufferBytes, source_.size - at);
    buffer_.resize(static_cast<size_t>(kBufferBytes));
    source_.read(begin_, std::span(buffer_).first(static_cast<size_t>(filled_)));
  }

  void copy(int64_t at, int64_t end, std::string& out) {
    copied_ += end - at;
    if (copied_ > kMaxCopied) {
      throw error(ErrorCode::unsupported, "'{}' has more than {} MiB besides its tensors' data, which no model has", source_.name,
                  kMaxCopied >> 20);
    }
    while (at < end) {
      byte_at(at);
      const int64_t n = std::min(end, begin_ + filled_) - at;
      out.append(reinterpret_cast<const char*>(buffer_.data()) + (at - begin_), static_cast<size_t>(n));
      at += n;
    }
  }

  const ByteSource& source_;
  std::vector<std::byte> buffer_;
  int64_t begin_ = 0, filled_ = 0;  // what of the file the buffer holds
  int64_t copied_ = 0, fields_ = 0;
};

}  // namespace

std::string strip_model(const ByteSource& source) {
  std::string out;
  Stripper(source).message(Message::model, 0, source.size, 0, out);
  return out;
}

}  // namespace ort_train::onnx
