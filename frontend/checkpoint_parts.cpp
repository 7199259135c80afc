#include "frontend/checkpoint_parts.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "frontend/element.h"
#include "graph/error.h"

namespace ort_train {
namespace {

std::string element_text(const std::string& type) { return type.substr(0, type.find(' ')); }

}  // namespace

TensorType stored_as(const TensorType& type) { return is_quantized(type.dtype) ? TensorType{DType::uint8, {type.bytes()}} : type; }

std::string type_text(const TensorType& type) {
  const TensorType stored = stored_as(type);
  return fmt::format("{} {}", to_string(element_of(stored.dtype)), to_string(stored.shape));
}

nlohmann::json parts_to_json(const CheckpointContent& content) {
  nlohmann::json parts = nlohmann::json::object();
  for (const auto* list : {&content.weights, &content.optimizer}) {
    for (const StateTensor& tensor : *list) {
      if (!tensor.whole.empty()) parts[tensor.name] = {tensor.whole, tensor.offset};
    }
  }
  return parts;
}

StoredTensors::StoredTensors(const nlohmann::json& parts) {
  for (const auto& [name, place] : parts.items()) {
    const nlohmann::json& offset = place.at(1);
    if (!offset.is_number_integer() || offset.get<int64_t>() < 0 ||
        !parts_[place.at(0).get<std::string>()].emplace(offset.get<int64_t>(), name).second)
      throw error(ErrorCode::corrupt, "of '{}' it isn't clear where it begins", name);
  }
}

void StoredTensors::add(const std::string& name, StoredTensor tensor) { tensors_[name] = std::move(tensor); }

void StoredTensors::load(const StateTensor& tensor) {
  if (const auto same = tensors_.find(tensor.name); same != tensors_.end()) {
    check_type(tensor);
    same->second.read(tensor.bytes(/*overwrite=*/true));
  } else {
    load_pieces(tensor, tensor.bytes(/*overwrite=*/true));
  }
  tensor.changed();
}

void StoredTensors::check_type(const StateTensor& tensor) const {
  const auto found = tensors_.find(tensor.name);
  if (found == tensors_.end()) throw error(ErrorCode::corrupt, "it has no tensor '{}'", tensor.name);
  const StoredTensor& stored = found->second;
  if (stored.type != type_text(tensor.type) || stored.bytes != tensor.type.bytes())
    throw error(ErrorCode::corrupt, "tensor '{}' is {} of {} bytes, not {}", tensor.name, stored.type, stored.bytes,
                type_text(tensor.type));
}

void StoredTensors::load_pieces(const StateTensor& tensor, std::span<std::byte> to) {
  const std::string& whole = tensor.whole.empty() ? tensor.name : tensor.whole;
  std::map<int64_t, std::string> pieces{{0, whole}};
  if (const auto parts = parts_.find(whole); parts != parts_.end()) pieces = parts->second;
  const auto bytes = static_cast<int64_t>(to.size());
  for (int64_t at = 0, count; at < bytes; at += count) {
    const int64_t wanted = tensor.offset + at;
    const auto next = pieces.upper_bound(wanted);
    const auto found = next == pieces.begin() ? tensors_.end() : tensors_.find(std::prev(next)->second);
    const int64_t from = next == pieces.begin() ? 0 : wanted - std::prev(next)->first;
    // Each part ends where the next one begins.
    if (found == tensors_.end() || from >= found->second.bytes ||
        (next != pieces.end() && next->first - std::prev(next)->first != found->second.bytes))
      throw error(ErrorCode::corrupt, "there is no tensor '{}', nor parts that make it up", tensor.name);
    const auto& [name, piece] = *found;
    if (element_text(piece.type) != element_text(type_text(tensor.type)))
      throw error(ErrorCode::corrupt, "tensor '{}' is {}, of which '{}' is {}", name, piece.type, tensor.name, type_text(tensor.type));
    count = std::min(piece.bytes - from, bytes - at);
    const auto place = to.subspan(static_cast<size_t>(at), static_cast<size_t>(count));
    if (count == piece.bytes) {
      piece.read(place);
      continue;
    }
    if (checked_.insert(name).second) piece.check();
    piece.read_range(from, place);
  }
}

}  // namespace ort_train
