#include "frontend/export.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <set>

#include "frontend/element.h"
#include "frontend/file.h"
#include "frontend/output_files.h"
#include "frontend/report_files.h"
#include "frontend/safetensors.h"
#include "graph/error.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlock = size_t{1} << 20;

struct OutputFile {
  std::string from, to;
  std::string name;      // relative to the folder of `to`
  std::string location;  // relative to the model's folder; empty: the model itself
  std::string way_on{};  // what the user does when it can be copied again

  bool is_new() const { return from.empty(); }  // of what is added alone
};

std::vector<OutputFile> output_files(const ModelInfo& model, const std::string& output_dir) {
  std::vector<OutputFile> files{
      {.from = model.path, .to = (fs::path(output_dir) / "model.onnx").string(), .name = "model.onnx", .location = ""}};
  for (const std::string& external : model.external_files) {
    files.push_back({.from = folder_of(model.path) + "/" + external,
                     .to = (fs::path(output_dir) / external).string(),
                     .name = external,
                     .location = external});
  }
  if (const auto& added = model.edit.initializers; !added.empty() && !added[0].location.empty()) {
    const std::string& name = added[0].location;
    files.push_back({.from = "", .to = (fs::path(output_dir) / name).string(), .name = name, .location = name});
  }
  return files;
}

// A file whose names or permissions have changed is the same still, but so looks one that was written to if its time was set back.
void check_unchanged(const OutputFile& file, const File& from, const ModelInfo& model) {
  const FileStamp now = from.stamp(), &was = model.stamps.at(file.location);
  if (now == was) return;
  const auto hash = model.hashes.find(file.location);
  if (now.has_content_of(was)) {
    if (hash == model.hashes.end())
      throw error(ErrorCode::io,
                  "'{}' has other permissions or names than when it was imported, and whether it was written to isn't known, so the new "
                  "weights aren't put into a copy of it: if it wasn't, {}",
                  file.from, file.way_on);
    if (hash_sampled(from) == hash->second) return;
  }
  throw error(ErrorCode::io,
              "'{}' was changed since it was imported, so the new weights can't be put into a copy of it: put back what it was, and {}",
              file.from, file.way_on);
}

// With the same care as at import.
File open_from(const OutputFile& file, const ModelInfo& model) {
  return file.location.empty() ? File::open(file.from) : File::open_beneath(file.from, folder_of(model.path));
}

// The same, as it was then.
File open_source(const OutputFile& file, const ModelInfo& model) {
  File from = open_from(file, model);
  check_unchanged(file, from, model);
  return from;
}

// A weight's bytes in one of the files.
struct Patch {
  int64_t offset, bytes;
  const WeightPlace* place;
  const Weight* weight;
};

// The model's file, with what it lacks.
std::vector<onnx::Piece> pieces_of(const File& from, const onnx::ModelEdit& edit) {
  if (edit.empty()) return {{.kind = onnx::Piece::Kind::source, .begin = 0, .end = from.size()}};
  const onnx::ByteSource source{
      .name = from.path(), .size = from.size(), .read = [&](int64_t offset, std::span<std::byte> to) { from.read(offset, to); }};
  return onnx::edit_model(source, edit);
}

// [begin, end) of one file to begin + shift of the other.
void copy_range(const File& from, File& to, int64_t begin, int64_t end, int64_t shift, std::vector<std::byte>& buffer) {
  for (int64_t at = begin; at < end;) {
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min<int64_t>(end - at, static_cast<int64_t>(buffer.size()))));
    from.read(at, piece);
    to.write(at + shift, piece);
    at += static_cast<int64_t>(piece.size());
  }
}

// A parameter as numbers of type `to`, in the layout of one of its places.
void write_parameter(const Weight& weight, const WeightPlace& place, DType to, const WeightBytes& bytes_of, const ByteSink& sink) {
  WeightPlace written = place;
  written.dtype = to;
  const int64_t from_size = size_of(weight.dtype), to_size = size_of(to);
  int64_t bytes = 0;
  if (weight.dtype == to) {
    bytes_of(weight.parameter, [&](int64_t first, std::span<const std::byte> piece) {
      in_layout(written, first, piece, sink);
      bytes += static_cast<int64_t>(piece.size());
    });
  } else {  // a block of whole rows at a time
    const int64_t row = place.transposed ? place.shape[0] : 1,
                  block = std::max<int64_t>(1, static_cast<int64_t>(kBlock) / (row * to_size)) * row * from_size;
    std::vector<std::byte> buffer;
    bytes_of(weight.parameter, [&](int64_t first, std::span<const std::byte> piece) {
      for (int64_t at = 0; at < static_cast<int64_t>(piece.size()); at += block) {
        const auto part =
            piece.subspan(static_cast<size_t>(at), std::min(static_cast<size_t>(block), piece.size() - static_cast<size_t>(at)));
        buffer.resize(part.size() / static_cast<size_t>(from_size) * static_cast<size_t>(to_size));
        if (convert(element_of(weight.dtype), part, to, buffer) >= 0) {
          throw error(ErrorCode::diverged, "the weight '{}' has numbers that {} can't hold: the last checkpoint has them in {}", place.name,
                      to_string(to), to_string(weight.dtype));
        }
        in_layout(written, (first + at) / from_size * to_size, buffer, sink);
        bytes += static_cast<int64_t>(buffer.size());
      }
    });
  }
  require(bytes == element_count(place.shape) * to_size, "a weight whose size is not that of its place");
}

// The weight that each new initializer is.
using Added = std::vector<std::pair<const Weight*, const WeightPlace*>>;
Added weights_added(const ModelInfo& model, const std::vector<Weight>& weights) {
  const std::vector<onnx::NewInitializer>& all = model.edit.initializers;
  Added added(all.size());
  for (const Weight& weight : weights) {
    for (const WeightPlace& place : weight.places) {
      const auto at = std::find_if(all.begin(), all.end(), [&](const auto& tensor) { return place.added && tensor.name == place.name; });
      if (at != all.end()) added[static_cast<size_t>(at - all.begin())] = {&weight, &place};
    }
  }
  return added;
}

void write_new(File& to, const ModelInfo& model, const Added& added, const WeightBytes& bytes_of) {
  to.reserve(model.edit.initializers.back().offset + model.edit.initializers.back().type.bytes());
  for (size_t i = 0; i < added.size(); ++i) {
    const auto [weight, place] = added[i];
    write_parameter(*weight, *place, place->dtype, bytes_of,
                    [&, at = model.edit.initializers[i].offset](int64_t offset, auto bytes) { to.write(at + offset, bytes); });
  }
  to.sync();
}

// Of what is stored anew in the model's file, those whose weights are written; they leave the list of patches.
std::vector<Patch> take_stored_anew(std::vector<Patch>& patches, onnx::ModelEdit& edit) {
  std::vector<Patch> taken;
  std::erase_if(edit.stored, [&](const onnx::StoredAnew& tensor) {
    const auto patch = std::find_if(patches.begin(), patches.end(), [&](const Patch& of) { return of.offset == tensor.offset; });
    if (patch == patches.end()) return true;
    taken.push_back(*patch);
    patches.erase(patch);
    return false;
  });
  return taken;
}

// `added`: the weights that the pieces which are new tensors hold.
void write_copy(const OutputFile& file, File& to, std::vector<Patch>& patches, const ModelInfo& model, const Added& added,
                const WeightBytes& bytes_of) {
  std::sort(patches.begin(), patches.end(), [](const Patch& a, const Patch& b) { return a.offset < b.offset; });
  const File from = open_source(file, model);
  onnx::ModelEdit edit = file.location.empty() ? model.edit : onnx::ModelEdit{};
  const std::vector<Patch> stored = take_stored_anew(patches, edit);
  const std::vector<onnx::Piece> pieces = pieces_of(from, edit);
  int64_t size = 0;
  for (const onnx::Piece& piece : pieces) {
    size += piece.end - piece.begin + static_cast<int64_t>(piece.literal.size());
    if (piece.kind == onnx::Piece::Kind::tensor) size += model.edit.initializers.at(piece.tensor).type.bytes();
    if (piece.kind == onnx::Piece::Kind::stored) size += edit.stored.at(piece.tensor).bytes;
  }
  to.reserve(size);
  std::vector<std::byte> buffer(kBlock);
  int64_t written = 0;
  const auto append = [&](std::span<const std::byte> bytes) {
    to.write(written, bytes);
    written += static_cast<int64_t>(bytes.size());
  };
  const auto append_tensor = [&](const Weight& weight, const WeightPlace& place, int64_t bytes) {
    write_parameter(weight, place, place.dtype, bytes_of,
                    [&](int64_t offset, std::span<const std::byte> part) { to.write(written + offset, part); });
    written += bytes;
  };
  auto patch = patches.begin();
  for (const onnx::Piece& piece : pieces) {
    if (piece.kind == onnx::Piece::Kind::literal) append(std::as_bytes(std::span(piece.literal)));
    if (piece.kind == onnx::Piece::Kind::tensor) {
      const auto [weight, place] = added.at(piece.tensor);
      append_tensor(*weight, *place, model.edit.initializers[piece.tensor].type.bytes());
    }
    if (piece.kind == onnx::Piece::Kind::stored) {
      const Patch& of = stored.at(piece.tensor);
      append_tensor(*of.weight, *of.place, edit.stored[piece.tensor].bytes);
    }
    if (piece.kind != onnx::Piece::Kind::source) continue;
    const int64_t shift = written - piece.begin;
    int64_t done = piece.begin;
    for (; patch != patches.end() && patch->offset < piece.end; ++patch) {
      if (patch->offset < done || patch->bytes > piece.end - patch->offset) {
        throw error(ErrorCode::io, "{}: was changed since it was imported: the bytes of '{}' are no longer where they were", file.from,
                    patch->place->name);
      }
      copy_range(from, to, done, patch->offset, shift, buffer);
      write_parameter(*patch->weight, *patch->place, patch->place->dtype, bytes_of,
                      [&](int64_t offset, std::span<const std::byte> bytes) { to.write(patch->offset + shift + offset, bytes); });
      done = patch->offset + patch->bytes;
    }
    copy_range(from, to, done, piece.end, shift, buffer);
    written = piece.end + shift;
  }
  if (patch != patches.end()) throw error(ErrorCode::io, "{}: was changed since it was imported: it is shorter now", file.from);
  check_unchanged(file, from, model);
  to.sync();
}

}  // namespace

void remember_contents(ModelInfo& model) {
  constexpr int64_t kMost = int64_t{256} << 20;  // bytes of all files together: some models have hundreds
  int64_t left = kMost;
  for (const OutputFile& file : output_files(model, ".")) {
    if (file.is_new() || left <= 0) continue;
    left -= std::min(model.stamps.at(file.location).bytes, kMostHashed);
    const File from = open_from(file, model);
    if (from.stamp() == model.stamps.at(file.location)) model.hashes[file.location] = hash_sampled(from);
  }
}

void check_output(const ModelInfo& model, const std::string& output_dir) {
  if (!model.edit.empty()) pieces_of(File::open(model.path), model.edit);  // it may become too large
  std::vector<std::string> names;
  for (const OutputFile& file : output_files(model, output_dir)) {
    if (!file.is_new() && exists(file.to) && same_file(file.from, file.to))
      throw error(ErrorCode::usage, "{}: is the input, and would be overwritten: choose another `output_dir`", file.to);
    names.push_back(file.name);
  }
  OutputFiles(output_dir, names);
}

std::string export_model(const ModelInfo& model, const std::vector<Weight>& weights, const WeightBytes& bytes_of,
                         const std::string& output_dir, const std::string& way_on) {
  check_output(model, output_dir);
  std::vector<OutputFile> files = output_files(model, output_dir);
  std::vector<std::string> names;
  std::vector<NewFile> written;
  const Added added = weights_added(model, weights);
  for (OutputFile& file : files) {
    file.way_on = way_on;
    std::vector<Patch> patches;
    for (const Weight& weight : weights) {
      if (weight.is_attached) continue;  // of a model that may be this very file
      for (const WeightPlace& place : weight.places) {
        if (place.added) continue;
        const std::string path = fs::path(place.bytes.path).lexically_normal().string();
        if (path == fs::path(file.from).lexically_normal().string())
          patches.push_back({place.bytes.offset, place.bytes.bytes, &place, &weight});
      }
    }
    make_folders(folder_of(file.to));
    names.push_back(file.name);
    written.emplace_back(file.to);
    if (file.is_new())
      write_new(written.back().file(), model, added, bytes_of);
    else
      write_copy(file, written.back().file(), patches, model, added, bytes_of);
  }
  OutputFiles(output_dir, names).publish(written);  // the model after its data
  return files[0].to;
}

int64_t export_bytes(const ModelInfo& model) {
  int64_t bytes = 0;
  for (const OutputFile& file : output_files(model, ".")) bytes += file.is_new() ? 0 : model.stamps.at(file.location).bytes;
  for (const onnx::NewInitializer& tensor : model.edit.initializers) bytes += tensor.type.bytes();
  for (const onnx::StoredAnew& tensor : model.edit.stored) bytes += std::max<int64_t>(0, tensor.bytes - (tensor.end - tensor.offset));
  return bytes;
}

void in_layout(const WeightPlace& place, int64_t first, std::span<const std::byte> piece, const ByteSink& sink) {
  if (piece.empty()) return;
  if (!place.transposed) {
    sink(first, piece);
    return;
  }
  // Stored (rows, columns); the parameter is (columns, rows), and the piece has some of its rows. They are gathered a block at a time.
  const size_t rows = static_cast<size_t>(place.shape[0]), columns = static_cast<size_t>(place.shape[1]),
               width = static_cast<size_t>(size_of(place.dtype));
  const size_t first_column = static_cast<size_t>(first) / (rows * width), own = piece.size() / (rows * width);
  const size_t block = std::clamp<size_t>(kBlock / (own * width), 1, rows);
  std::vector<std::byte> buffer(block * own * width);
  for (size_t begin = 0; begin < rows; begin += block) {
    const size_t count = std::min(block, rows - begin);
    for (size_t column = 0; column < own; ++column) {
      const std::byte* source = piece.data() + (column * rows + begin) * width;
      for (size_t row = 0; row < count; ++row) std::memcpy(buffer.data() + (row * own + column) * width, source + row * width, width);
    }
    const auto to = [&](size_t row) { return static_cast<int64_t>(((begin + row) * columns + first_column) * width); };
    if (own == columns) {
      sink(to(0), std::span(buffer).first(count * own * width));
      continue;
    }
    for (size_t row = 0; row < count; ++row) sink(to(row), std::span(buffer).subspan(row * own * width, own * width));
  }
}

void write_layouts(const std::string& path, const std::vector<Weight>& weights, const WeightBytes& bytes_of) {
  std::vector<SafetensorsWriter::Tensor> header;
  std::vector<std::pair<const Weight*, const WeightPlace*>> tensors;
  std::set<std::string> names;  // those of weights in different subgraphs may be the same
  for (const Weight& weight : weights) {
    if (!bytes_of(weight.parameter, nullptr)) continue;
    for (const WeightPlace& place : weight.places) {
      const std::string name = names.insert(place.name).second ? place.name : weight.parameter;
      header.push_back({.name = name, .element = element_of(compute_type(place.dtype)), .shape = place.shape});
      tensors.emplace_back(&weight, &place);
    }
  }
  NewFile file(report_target(path));
  SafetensorsWriter writer(file.file(), header, {{"format", "pt"}, {kProducerKey, kProducer}, {kContentKey, kGradients}});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto [weight, place] = tensors[i];
    write_parameter(*weight, *place, compute_type(place->dtype), bytes_of,
                    [&, i](int64_t offset, std::span<const std::byte> bytes) { writer.write(i, bytes, offset); });
  }
  file.publish();
}

}  // namespace ort_train
