#include <filesystem>

#include "frontend/element.h"
#include "frontend/importer.h"
#include "frontend/weight_file.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"
#include "graph/onnx/schema.h"

namespace ort_train::importing {
namespace {

constexpr int64_t kMaxConstantBytes = int64_t{512} << 20;  // masks and tables of all kinds; weights are not read here

// Whether a file of ours in an output folder has this name, or lies behind it.
bool is_name_of_ours(const std::string& location) {
  const std::string first = std::filesystem::path(location).lexically_normal().begin()->string();
  constexpr std::string_view kCheckpoint = "checkpoint-";
  return first == "model.onnx" || first == "model.onnx.tmp" || first.starts_with(".ort-train-") || first.starts_with(".tmp-checkpoint-") ||
         (first.starts_with(kCheckpoint) && first.find_first_not_of("0123456789", kCheckpoint.size()) == std::string::npos);
}

}  // namespace

onnx::ModelDef open_model(const std::string& path, FileStamp* stamp) {
  const File file = File::open(path);
  if (stamp != nullptr) *stamp = file.stamp();
  onnx::ModelDef model = onnx::read_model(
      {.name = path, .size = file.size(), .read = [&](int64_t offset, std::span<std::byte> to) { file.read(offset, to); }});
  if (model.ir_version > onnx::newest_ir_version()) {
    throw error(ErrorCode::unsupported, "'{}' has IR version {}, newer than the {} that is known here; save it with an older onnx package",
                path, model.ir_version, onnx::newest_ir_version());
  }
  if (const auto standard = model.opsets.find(""); standard != model.opsets.end() && standard->second > onnx::newest_opset()) {
    throw error(ErrorCode::unsupported, "'{}' has opset {}, newer than the {} that is known here; export it with opset_version={}", path,
                standard->second, onnx::newest_opset(), onnx::newest_opset());
  }
  return model;
}

TensorFiles::TensorFiles(std::string model_path)
    : model_path_(std::move(model_path)), folder_(std::filesystem::path(model_path_).parent_path().string()) {
  if (folder_.empty()) folder_ = ".";
}

const File& TensorFiles::reader(const FileRange& range) {
  auto found = readers_.find(range.path);
  if (found == readers_.end()) {
    found = readers_.emplace(range.path, open_range(range)).first;
    stamps_.emplace(range.path, found->second.stamp());
  }
  return found->second;
}

FileRange TensorFiles::external(const std::string& location) const { return {.path = folder_ + "/" + location, .root = folder_}; }

void TensorFiles::check_external(ModelInfo& info) {
  std::map<std::pair<uint64_t, uint64_t>, std::string> files{{info.stamps.at("").file(), ""}};
  for (const std::string& location : info.external_files) {
    const FileRange range = external(location);
    reader(range);
    const FileStamp& stamp = info.stamps[location] = stamps_.at(range.path);
    if (is_name_of_ours(location)) {
      throw error(ErrorCode::unsupported,
                  "external data lies in '{}', which is the name of a file that is written beside the new model; give it another name and "
                  "correct the model",
                  location);
    }
    const auto [other, is_new] = files.emplace(stamp.file(), location);
    if (is_new) continue;
    if (other->second.empty())
      throw error(ErrorCode::unsupported, "external data lies in '{}', which is the model's own file; save the model again", location);
    throw error(ErrorCode::unsupported, "'{}' and '{}' are two names of one file of external data; correct the model so that it has one",
                other->second, location);
  }
}

FileRange TensorFiles::locate(const onnx::TensorDef& tensor) {
  if (tensor.offset < 0) {
    throw error(ErrorCode::unsupported, "the elements of '{}' are not stored in one piece; load and save the model with the onnx package",
                tensor.name);
  }
  FileRange range = tensor.external() ? external(tensor.location) : FileRange{.path = model_path_};
  range.offset = tensor.offset;
  range.bytes = tensor.bytes;
  try {
    const int64_t size = reader(range).size();
    if (range.offset > size || range.bytes > size - range.offset) {
      throw error(ErrorCode::io, "'{}' has {} bytes, too few for {} at byte {}", range.path, size, range.bytes, range.offset);
    }
  } catch (const Error& e) {
    throw error(e.code(), "tensor '{}': {}", tensor.name, e.what());
  }
  return range;
}

WeightPlace weight_place(const Candidate& candidate) {
  return {.name = candidate.name,
          .bytes = candidate.bytes,
          .dtype = *candidate.tensor->dtype,
          .shape = candidate.tensor->shape,
          .added = candidate.tensor->added,
          .integers = candidate.integers};
}

PlaceKey place_key(const Candidate& candidate) {
  const onnx::TensorDef& tensor = *candidate.tensor;
  return {candidate.bytes.path, candidate.bytes.offset, !tensor.added ? "" : tensor.offset < 0 ? tensor.name : "a copy"};
}

DType weight_type_of(const onnx::GraphDef& graph) {
  std::map<DType, double> elements;
  const auto count = [&](const onnx::TensorDef& tensor) {
    if (tensor.dtype && is_floating(*tensor.dtype)) elements[*tensor.dtype] += static_cast<double>(element_count(tensor.shape));
  };
  for (const onnx::TensorDef& tensor : graph.initializers) count(tensor);
  for (const onnx::NodeDef& node : graph.nodes) {
    if (node.op_type != "Constant") continue;
    for (const auto& [name, tensor] : node.tensors) count(tensor);
  }
  DType most = DType::float32;
  for (const auto& [type, number] : elements) {
    if (number > elements[most]) most = type;
  }
  return most;
}

DType low_type_of(const onnx::GraphDef& graph) {
  const DType most = weight_type_of(graph);
  return is_half(most) ? most : DType::float32;
}

std::shared_ptr<const IntegerIndex> TensorFiles::integers(const onnx::TensorDef& tensor, const FileRange& range) {
  if (!tensor.varints || !is_half(*tensor.dtype)) return nullptr;
  std::optional<IntegerIndex> index = index_integers(reader(range), range, element_count(tensor.shape));
  if (!index) throw onnx::wrong_count(tensor);
  return std::make_shared<const IntegerIndex>(std::move(*index));
}

void TensorFiles::read_elements(const Candidate& candidate, int64_t first, std::span<std::byte> to) {
  ort_train::read_elements(reader(candidate.bytes), candidate.bytes, candidate.integers.get(), size_of(*candidate.tensor->dtype), first,
                           to);
}

Tensor TensorFiles::read(const onnx::TensorDef& tensor) { return widened(read_stored(tensor)); }

Tensor TensorFiles::widened(Tensor stored) const {
  if (!widens_ || !is_half(stored.dtype)) return stored;
  Tensor result(DType::float32, stored.shape);
  convert(element_of(stored.dtype), stored.bytes, DType::float32, result.bytes);
  return result;
}

Tensor TensorFiles::read_stored(const onnx::TensorDef& tensor) {
  if (tensor.value) return *tensor.value;
  if (!tensor.dtype) throw error(ErrorCode::unsupported, "'{}' is of type {}, which is not supported", tensor.name, tensor.type);
  const FileRange range = locate(tensor);
  // A varint takes one byte or more: what it stands for may be eight times as large.
  read_bytes_ += std::max(range.bytes, element_count(tensor.shape) * size_of(*tensor.dtype));
  if (read_bytes_ > kMaxConstantBytes) {
    throw error(ErrorCode::unsupported, "with '{}' the model's constants take more than {} MiB; only weights may be that large",
                tensor.name, kMaxConstantBytes >> 20);
  }
  std::vector<std::byte> bytes(static_cast<size_t>(range.bytes));
  reader(range).read(range.offset, bytes);
  return onnx::decode_tensor(tensor, bytes);
}

}  // namespace ort_train::importing

namespace ort_train {

void check_model_files(const ModelInfo& model) {
  for (const auto& [location, was] : model.stamps) {
    const std::string path = location.empty() ? model.path : (std::filesystem::path(model.path).parent_path() / location).string();
    if (const std::optional<FileStamp> now = stamp_of(path); !now || !now->has_content_of(was))
      throw error(ErrorCode::io, "'{}' was changed since it was imported: start again with the file as it is now", path);
  }
}

}  // namespace ort_train
