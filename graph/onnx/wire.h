// The protobuf wire format of a model file, read through a small buffer: a file of any size is taken in without its weights ever being in
// memory. Private to graph/onnx.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "graph/error.h"
#include "graph/onnx/reader.h"

namespace ort_train::onnx {

// One field of a message: its tag (and length) at [start, content), what it holds at [content, end).
struct WireField {
  int number = 0, wire_type = 0;
  int64_t start = 0, content = 0, end = 0;
};

class WireReader {
 public:
  explicit WireReader(const ByteSource& source) : source_(source) {}

  // The field at `at` of a message that ends at `end`. Throws Error(unsupported) where there is none or it goes on past the end.
  WireField field(int64_t at, int64_t end);
  uint64_t varint(int64_t& at, int64_t end);
  // Appends [at, end) of the file to `out`.
  void copy(int64_t at, int64_t end, std::string& out);
  Error broken(int64_t at) const;
  const ByteSource& source() const { return source_; }

 private:
  uint8_t byte_at(int64_t at);
  void fill(int64_t at);

  const ByteSource& source_;
  std::vector<std::byte> buffer_;
  int64_t begin_ = 0, filled_ = 0;  // what of the file the buffer holds
};

void put_varint(uint64_t value, std::string& out);
// A field of wire type 2 before its content of `bytes` bytes, and with it.
void put_header(int field, uint64_t bytes, std::string& out);
void put_bytes(int field, std::string_view bytes, std::string& out);

// The ModelProto of `source`, serialised, without large tensor data, doc strings and metadata other than what an exporter says of where
// tensors come from (convert.h, kOriginKeys); each tensor's metadata say where its data are (convert.h, kBytesKey). Throws
// Error(unsupported) where the bytes are no protobuf message or are cut short.
std::string strip_model(const ByteSource& source);

}  // namespace ort_train::onnx
