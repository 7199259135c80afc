// The tensors of a checkpoint, and how they get into a run that may have divided its weights, and their state, into other parts.

#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <span>
#include <string>

#include "frontend/checkpoint.h"

namespace ort_train {

struct StoredTensor {
  std::string type;  // type_text()
  int64_t bytes = 0;
  std::function<void(std::span<std::byte> to)> read;                      // all of it; Error(corrupt) where it has another checksum
  std::function<void()> check;                                            // the same, and keeps nothing
  std::function<void(int64_t from, std::span<std::byte> to)> read_range;  // unchecked
};

// As files of arrays have it: what is quantized as its bytes.
TensorType stored_as(const TensorType& type);
std::string type_text(const TensorType& type);

// What a manifest says of those that are parts: name -> [name of the whole, byte from which on it is there].
nlohmann::json parts_to_json(const CheckpointContent& content);

class StoredTensors {
 public:
  // Throws Error(corrupt), or nlohmann's exceptions.
  explicit StoredTensors(const nlohmann::json& parts);

  void add(const std::string& name, StoredTensor tensor);
  // Reads the tensor, from whatever parts hold it. Each that is not read as a whole is checked as a whole, once. Throws Error(corrupt).
  void load(const StateTensor& tensor);
  // Throws Error(corrupt) where there is no such tensor, of this name, type and size.
  void check_type(const StateTensor& tensor) const;

 private:
  void load_pieces(const StateTensor& tensor, std::span<std::byte> to);

  std::map<std::string, StoredTensor> tensors_;
  std::map<std::string, std::map<int64_t, std::string>> parts_;  // of a whole, by the byte where they begin
  std::set<std::string> checked_;
};

}  // namespace ort_train
