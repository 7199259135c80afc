// safetensors (huggingface/safetensors, format of version 0.3): eight bytes of header length, a JSON header, the tensors.
//
// Reading refuses everything that the format doesn't allow: a header above 100 MB or beyond the file, unknown types, names that come twice,
// offsets that overlap, leave holes, disagree with type x shape or leave bytes over. The header is read as a stream of events, so that its
// memory is that of the entries it has.

#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frontend/element.h"
#include "frontend/file.h"
#include "graph/error.h"

namespace ort_train {

struct SafetensorsEntry {
  std::string name;
  Element element = Element::float32;
  Shape shape;
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  // by offset
  std::map<std::string, std::string> metadata;
  const SafetensorsEntry* find(std::string_view name) const;
};

// `code` says what a violation is: data for data sets, corrupt for checkpoints.
SafetensorsHeader read_safetensors_header(const File& file, ErrorCode code);

// Whether a tensor may have that name: UTF-8, and not "__metadata__".
bool is_tensor_name(std::string_view name);

// Writes a file whose tensors are given one by one, in any order, in pieces if need be.
class SafetensorsWriter {
 public:
  struct Tensor {
    std::string name;
    Element element = Element::float32;
    Shape shape;
  };
  // Takes the space, writes the header. `file`: empty; the caller syncs it.
  SafetensorsWriter(File& file, const std::vector<Tensor>& tensors, const std::map<std::string, std::string>& metadata = {});

  void write(size_t tensor, std::span<const std::byte> bytes, int64_t offset = 0);
  int64_t size() const { return size_; }

 private:
  File& file_;
  std::vector<std::pair<int64_t, int64_t>> places_;  // offset, bytes
  int64_t size_ = 0;
};

}  // namespace ort_train
