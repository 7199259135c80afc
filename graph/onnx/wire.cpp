#include "graph/onnx/wire.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <array>

#include "graph/error.h"
#include "graph/onnx/convert.h"

namespace ort_train::onnx {
namespace {

constexpr int64_t kBufferBytes = 64 << 10;
constexpr int64_t kInlineBytes = 1 << 10;                              // tensor data up to here are copied too
constexpr int64_t kMaxCopied = 64 << 20;                               // bytes of everything that is not tensor data
constexpr int64_t kMaxEvidence = 1 << 20, kMaxAllEvidence = 32 << 20;  // bytes of an entry of metadata, and of all; others are dropped
constexpr int64_t kMaxFields = 8 << 20;
constexpr int kMaxDepth = 90;  // protobuf's own parser stops at 100

enum class Message { model, graph, function, node, attribute, value, tensor, sparse_tensor };

enum class Action : uint8_t { copy, drop, data, evidence, descend, descend_once };

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
                                   {pb::GraphProto::kMetadataPropsFieldNumber, A::evidence},
                                   {pb::GraphProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule function[] = {{pb::FunctionProto::kNodeFieldNumber, A::descend, M::node},
                                      {pb::FunctionProto::kAttributeProtoFieldNumber, A::descend, M::attribute},
                                      {pb::FunctionProto::kValueInfoFieldNumber, A::drop},
                                      {pb::FunctionProto::kMetadataPropsFieldNumber, A::drop},
                                      {pb::FunctionProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule node[] = {{pb::NodeProto::kAttributeFieldNumber, A::descend, M::attribute},
                                  {pb::NodeProto::kMetadataPropsFieldNumber, A::evidence},
                                  {pb::NodeProto::kDeviceConfigurationsFieldNumber, A::drop},
                                  {pb::NodeProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule attribute[] = {{pb::AttributeProto::kTFieldNumber, A::descend_once, M::tensor},
                                       {pb::AttributeProto::kGFieldNumber, A::descend_once, M::graph},
                                       {pb::AttributeProto::kTensorsFieldNumber, A::descend, M::tensor},
                                       {pb::AttributeProto::kGraphsFieldNumber, A::descend, M::graph},
                                       {pb::AttributeProto::kSparseTensorFieldNumber, A::descend_once, M::sparse_tensor},
                                       {pb::AttributeProto::kSparseTensorsFieldNumber, A::descend, M::sparse_tensor},
                                       {pb::AttributeProto::kDocStringFieldNumber, A::drop}};
  static constexpr Rule value[] = {{pb::ValueInfoProto::kMetadataPropsFieldNumber, A::evidence},
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

class Stripper {
 public:
  explicit Stripper(const ByteSource& source) : source_(source), reader_(source) {}

  // Copies the message in [at, end) to `out`.
  void message(Message kind, int64_t at, int64_t end, int depth, std::string& out) {
    if (depth > kMaxDepth) {
      throw error(ErrorCode::unsupported, "'{}' nests messages more than {} deep, which no model does", source_.name, kMaxDepth);
    }
    std::vector<int> seen;  // of the fields that may come once
    WireField data;
    int64_t pieces = 0;
    bool left_out = false;
    for (; at < end;) {
      if (++fields_ > kMaxFields) {
        throw error(ErrorCode::unsupported, "'{}' has more than {} fields, which no model has", source_.name, kMaxFields);
      }
      const WireField field = reader_.field(at, end);
      at = field.end;
      const Rule* rule = find(kind, field.number);
      if (!rule) {
        copy(field, out);
      } else if (rule->action == Action::data) {
        ++pieces;
        data = field;
        const bool large = field.wire_type == 2 && field.end - field.content > kInlineBytes;
        left_out |= large;
        if (!large) copy(field, out);
      } else if (rule->action == Action::evidence) {
        const int64_t bytes = field.end - field.start;
        if (bytes > kMaxEvidence || evidence_ + bytes > kMaxAllEvidence || !is_evidence(field)) continue;
        evidence_ += bytes;
        reader_.copy(field.start, field.end, out);
      } else if (rule->action != Action::drop) {
        if (field.wire_type != 2) throw reader_.broken(field.start);
        if (rule->action == Action::descend_once) {
          if (std::find(seen.begin(), seen.end(), field.number) != seen.end()) throw reader_.broken(field.start);
          seen.push_back(field.number);
        }
        std::string nested;
        message(rule->message, field.content, field.end, depth + 1, nested);
        put_bytes(field.number, nested, out);
      }
    }
    if (pieces > 1 && left_out) {
      throw error(ErrorCode::unsupported, "'{}' stores a tensor's elements in several pieces; load and save it with the onnx package",
                  source_.name);
    }
    if (pieces == 1) {
      std::string entry;
      put_bytes(pb::StringStringEntryProto::kKeyFieldNumber, kBytesKey, entry);
      put_bytes(pb::StringStringEntryProto::kValueFieldNumber, fmt::format("{} {} {}", data.number, data.content, data.end - data.content),
                entry);
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

  // Whether an entry of metadata says where tensors come from.
  bool is_evidence(const WireField& entry) {
    if (entry.wire_type != 2) throw reader_.broken(entry.start);
    constexpr int64_t kLongestKey = 128;
    for (int64_t at = entry.content; at < entry.end;) {
      const WireField field = reader_.field(at, entry.end);
      at = field.end;
      if (field.number != pb::StringStringEntryProto::kKeyFieldNumber || field.end - field.content > kLongestKey) continue;
      std::string key;
      reader_.copy(field.content, field.end, key);
      return std::find(kOriginKeys.begin(), kOriginKeys.end(), key) != kOriginKeys.end();
    }
    return false;
  }

  void copy(const WireField& field, std::string& out) {
    copied_ += field.end - field.start;
    if (copied_ > kMaxCopied) {
      throw error(ErrorCode::unsupported, "'{}' has more than {} MiB besides its tensors' data, which no model has", source_.name,
                  kMaxCopied >> 20);
    }
    reader_.copy(field.start, field.end, out);
  }

  const ByteSource& source_;
  WireReader reader_;
  int64_t copied_ = 0, evidence_ = 0, fields_ = 0;
};

}  // namespace

void put_varint(uint64_t value, std::string& out) {
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
}

void put_header(int field, uint64_t bytes, std::string& out) {
  put_varint(static_cast<uint64_t>(field) << 3 | 2, out);
  put_varint(bytes, out);
}

void put_bytes(int field, std::string_view bytes, std::string& out) {
  put_header(field, bytes.size(), out);
  out.append(bytes);
}

Error WireReader::broken(int64_t at) const {
  return error(ErrorCode::unsupported, "'{}' is not an ONNX model, or it is damaged: at byte {} of {} stands no protobuf field",
               source_.name, at, source_.size);
}

WireField WireReader::field(int64_t at, int64_t end) {
  WireField field{.start = at};
  const uint64_t tag = varint(at, end);
  if (tag >> 3 == 0 || tag >> 3 > 1u << 29) throw broken(field.start);
  field.number = static_cast<int>(tag >> 3);
  field.wire_type = static_cast<int>(tag & 7);
  field.content = at;
  int64_t length = 0;
  if (field.wire_type == 0) {
    varint(at, end);
    length = at - field.content;
  } else if (field.wire_type == 1) {
    length = 8;
  } else if (field.wire_type == 5) {
    length = 4;
  } else if (field.wire_type == 2) {
    const uint64_t prefix = varint(at, end);
    field.content = at;
    if (prefix > static_cast<uint64_t>(end - at)) {
      throw error(ErrorCode::unsupported, "'{}' is cut short or is not an ONNX model: the field at byte {} needs {} bytes, {} are left",
                  source_.name, field.start, prefix, end - at);
    }
    length = static_cast<int64_t>(prefix);
  } else {
    throw broken(field.start);
  }
  if (length > end - field.content) throw broken(field.start);
  field.end = field.content + length;
  return field;
}

uint64_t WireReader::varint(int64_t& at, int64_t end) {
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

uint8_t WireReader::byte_at(int64_t at) {
  if (at < begin_ || at >= begin_ + filled_) fill(at);
  return static_cast<uint8_t>(buffer_[static_cast<size_t>(at - begin_)]);
}

void WireReader::fill(int64_t at) {
  begin_ = at;
  filled_ = std::min(kBufferBytes, source_.size - at);
  buffer_.resize(static_cast<size_t>(kBufferBytes));
  source_.read(begin_, std::span(buffer_).first(static_cast<size_t>(filled_)));
}

void WireReader::copy(int64_t at, int64_t end, std::string& out) {
  while (at < end) {
    byte_at(at);
    const int64_t n = std::min(end, begin_ + filled_) - at;
    out.append(reinterpret_cast<const char*>(buffer_.data()) + (at - begin_), static_cast<size_t>(n));
    at += n;
  }
}

std::string strip_model(const ByteSource& source) {
  std::string out;
  Stripper(source).message(Message::model, 0, source.size, 0, out);
  return out;
}

}  // namespace ort_train::onnx
