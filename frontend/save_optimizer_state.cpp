#include <algorithm>
#include <cstring>

#include "frontend/element.h"
#include "frontend/file.h"
#include "frontend/report_files.h"
#include "frontend/safetensors.h"
#include "frontend/save_tensors.h"
#include "graph/dynamic8.h"
#include "graph/error.h"

namespace ort_train {
namespace {

// A weight's state: a range of elements of what is kept as one, a pack's or its own.
struct Member {
  std::string name;
  Shape shape;
  int64_t first = 0;   // element
  size_t in_file = 0;  // of a quantized one the codes, behind them the scales
};

// A state as a whole, in the pieces that are kept.
struct Whole {
  DType dtype = DType::float32;
  Shape shape;
  std::vector<const StateTensor*> pieces;  // by offset
  std::vector<Member> members;
};

int64_t first_element(const StateTensor& piece) {
  const StorageTraits storage = storage_of(piece.type.dtype);
  return piece.offset / storage.block_bytes * storage.block_elements;
}

// The elements that piece and member have in common.
struct Common {
  int64_t begin = 0, end = 0;
  Common(const StateTensor& piece, const Member& member)
      : begin(std::max(first_element(piece), member.first)),
        end(std::min(first_element(piece) + element_count(piece.type.shape), member.first + element_count(member.shape))) {}
};

void write_plain(SafetensorsWriter& writer, const StateTensor& piece, std::span<const std::byte> bytes, const Member& member) {
  const Common common(piece, member);
  if (common.begin >= common.end) return;
  const int64_t size = size_of(piece.type.dtype);
  writer.write(member.in_file,
               bytes.subspan(static_cast<size_t>((common.begin - first_element(piece)) * size),
                             static_cast<size_t>((common.end - common.begin) * size)),
               (common.begin - member.first) * size);
}

// Members and pieces begin at blocks.
void write_blocks(SafetensorsWriter& writer, const StateTensor& piece, std::span<const std::byte> bytes, const Member& member) {
  constexpr int64_t kAtOnce = 256;  // blocks
  const Common common(piece, member);
  std::vector<std::byte> codes, scales;
  for (int64_t begin = common.begin; begin < common.end; begin += kAtOnce * kDynamic8Block) {
    codes.clear(), scales.clear();
    const int64_t end = std::min(begin + kAtOnce * kDynamic8Block, common.end);
    for (int64_t at = begin; at < end; at += kDynamic8Block) {
      const std::byte* const block = bytes.data() + (at - first_element(piece)) / kDynamic8Block * kDynamic8BlockBytes;
      codes.insert(codes.end(), block, block + std::min(kDynamic8Block, end - at));
      scales.insert(scales.end(), block + kDynamic8Block, block + kDynamic8BlockBytes);
    }
    writer.write(member.in_file, codes, begin - member.first);
    writer.write(member.in_file + 1, scales, (begin - member.first) / kDynamic8Block * int64_t{sizeof(float)});
  }
}

}  // namespace

void write_optimizer_state(const Job& job, const PlannedJob& planned, const CheckpointContent& content, int64_t step) {
  const EntryGraph& main = planned.set.entries[0].built;
  const std::string& path = job.options.save_optimizer_state;
  std::map<std::string, Whole> wholes;
  for (const StateTensor& piece : content.optimizer) {
    Whole& whole = wholes[piece.whole.empty() ? piece.name : piece.whole];
    whole.pieces.push_back(&piece);
  }
  std::vector<SafetensorsWriter::Tensor> header;
  std::map<std::string, std::string> metadata{{"format", "pt"},
                                              {kProducerKey, kProducer},
                                              {kContentKey, kOptimizerState},
                                              {"optim", job.optimizer.state_label()},
                                              {"step", std::to_string(step)}};
  for (auto& [name, whole] : wholes) {
    std::sort(whole.pieces.begin(), whole.pieces.end(), [](const auto* a, const auto* b) { return a->offset < b->offset; });
    const StateTensor& first = *whole.pieces.front();
    const std::string suffix = first.name.substr(first.owner.size()), weight = name.substr(0, name.size() - suffix.size());
    whole.dtype = first.type.dtype;
    whole.shape = first.type.shape;
    for (size_t i = 1; i < whole.pieces.size(); ++i) whole.shape[0] += whole.pieces[i]->type.shape[0];
    for (const auto& [member, slices] : main.slices) {  // of a pack
      if (slices.size() != 1 || slices[0].name != weight) continue;
      const Value& value = main.graph.value(main.graph.find_value(member));
      whole.members.push_back({.name = member + suffix, .shape = value.shape, .first = slices[0].offset / size_of(value.dtype)});
    }
    if (whole.members.empty()) whole.members.push_back({.name = name, .shape = whole.shape});
    for (Member& member : whole.members) {
      member.in_file = header.size();
      if (!is_quantized(whole.dtype)) {
        header.push_back({.name = member.name, .element = element_of(whole.dtype), .shape = member.shape});
        continue;
      }
      const int64_t blocks = bytes_of(whole.dtype, element_count(member.shape)) / kDynamic8BlockBytes;
      header.push_back({.name = member.name + ".codes", .element = Element::uint8, .shape = member.shape});
      header.push_back({.name = member.name + ".absmax", .element = Element::float32, .shape = {blocks}});
      metadata[member.name] = fmt::format("{}: bitsandbytes' create_dynamic_map(signed={})[codes] * absmax of each {} elements",
                                          to_string(whole.dtype), whole.dtype == DType::dynamic8 ? "True" : "False", kDynamic8Block);
    }
  }
  NewFile file(report_target(path));
  SafetensorsWriter writer(file.file(), header, metadata);
  for (const auto& [name, whole] : wholes) {
    for (const StateTensor* const piece : whole.pieces) {
      const std::span<const std::byte> bytes = piece->bytes(/*overwrite=*/false);
      for (const Member& member : whole.members) (is_quantized(whole.dtype) ? write_blocks : write_plain)(writer, *piece, bytes, member);
    }
  }
  file.publish();
}

}  // namespace ort_train
