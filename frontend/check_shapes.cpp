#include "frontend/check_shapes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <set>

#include "frontend/binding.h"
#include "frontend/bound_value.h"
#include "frontend/importer.h"
#include "graph/error.h"

namespace ort_train {
namespace {

constexpr int64_t kMostNodes = 60'000, kMostBytes = int64_t{1} << 30;  // of all trials together; of a model that is tried at all

class Search {
 public:
  Search(const std::string& path, int64_t nodes, ImportOptions& import, std::vector<OpenDimension>& open, Workers& workers)
      : path_(path),
        import_(import),
        open_(open),
        workers_(workers),
        left_(std::max<int64_t>(kMostNodes / std::max<int64_t>(import.control.is_on() ? 2 * nodes : nodes, 1), 2)) {
  }  // goes through it twice

  void run() {
    best_ = obstacles();
    if (best_ > 0) look_elsewhere();
    for (OpenDimension& dimension : open_) vary(dimension);
  }

 private:
  // How many nodes can't be imported with these sizes; as many as there can be where import ends in an error.
  int64_t obstacles() {
    --left_;
    ImportOptions trial = import_;
    trial.retie = false;  // reads no weights
    trial.untie = false;
    for (const OpenDimension& dimension : open_) trial.shapes[dimension.name] = dimension.size;
    try {
      return static_cast<int64_t>(import_model(path_, trial, workers_).obstacles.size());
    } catch (const Error&) {
      return std::numeric_limits<int64_t>::max();
    }
  }

  // Other sizes for the dimensions beside the batch: the same for all, then for each by itself.
  void look_elsewhere() {
    static constexpr int64_t kUsual[] = {32, 28, 64, 16, 128, 256, 96, 160, 192, 299, 320, 384, 416, 448, 512, 640, 1, 4, 12, 77, 80, 3000};
    const auto try_size = [&](int64_t size, size_t first, size_t end) {
      const std::vector<OpenDimension> before = open_;
      for (size_t i = first; i < end; ++i) {
        if (!open_[i].is_batch) open_[i].size = size;
      }
      const int64_t found = obstacles();
      if (found < best_)
        best_ = found;
      else
        open_ = before;
    };
    for (const int64_t size : kUsual) {
      if (best_ > 0 && left_ > 0) try_size(size, 0, open_.size());
    }
    for (size_t i = 0; i < open_.size(); ++i) {
      for (const int64_t size : kUsual) {
        if (best_ > 0 && left_ > 0 && !open_[i].is_batch) try_size(size, i, i + 1);
      }
    }
  }

  void vary(OpenDimension& dimension) {
    const int64_t size = dimension.size;
    for (const int64_t other : {size + 1, 2 * size, std::max<int64_t>(size / 2, 1)}) {
      if (left_ <= 0 || other == size) continue;
      dimension.size = other;
      (obstacles() <= best_ ? dimension.fits : dimension.fails).push_back(other);
    }
    dimension.size = size;
  }

  const std::string& path_;
  ImportOptions& import_;
  std::vector<OpenDimension>& open_;
  Workers& workers_;
  int64_t left_;  // trials
  int64_t best_ = 0;
};

}  // namespace

void find_sizes(const std::string& path, int64_t nodes, int64_t bytes, ImportOptions& import, std::vector<OpenDimension>& open,
                Workers& workers) {
  if (open.empty()) return;
  if (bytes <= kMostBytes) Search(path, nodes, import, open, workers).run();
  for (const OpenDimension& dimension : open) import.shapes[dimension.name] = dimension.size;
}

std::string in_words(const std::vector<OpenDimension>& open) {
  std::vector<std::string> texts;
  for (const OpenDimension& dimension : open) {
    if (dimension.fails.empty() && !dimension.fits.empty()) {
      texts.push_back(fmt::format("{}: any size ({} here)", dimension.name, dimension.size));
    } else if (dimension.fits.empty() && dimension.fails.empty()) {
      texts.push_back(fmt::format("{}: {} here, no other was tried", dimension.name, dimension.size));
    } else {
      std::vector<int64_t> sizes = dimension.fits;
      sizes.insert(sizes.begin(), dimension.size);
      texts.push_back(fmt::format("{}: {}, not {}", dimension.name, fmt::join(sizes, " or "), fmt::join(dimension.fails, " or ")));
    }
  }
  return fmt::format("{}", fmt::join(texts, "; "));
}

namespace {

std::string lower_case(std::string text) {
  for (char& c : text) c = 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

bool is_batch(const std::string& name, size_t axis) {
  const std::string lower = lower_case(name);
  return lower.find("batch") != std::string::npos || (axis == 0 && lower.find("seq") == std::string::npos);
}

// The size with which the search begins for a dimension that nobody has bound: large enough for usual models, small enough to be quick.
int64_t assumed_size(const std::string& name, size_t axis, bool integers, const Options& options) {
  const std::string lower = lower_case(name);
  const auto has = [&](std::string_view part) { return lower.find(part) != std::string::npos; };
  if (has("height") || has("width")) return 224;
  if (is_batch(name, axis)) return options.batch_size > 0 ? options.batch_size : 2;
  if (has("seq") || has("len") || (axis == 1 && integers)) return options.seq_length > 0 ? options.seq_length : 8;
  return axis >= 2 && !integers ? 224 : 8;
}

// What import needs besides the options: the inputs that they fix, and sizes for the dimensions that they leave open, each once in `open`.
void complete(const onnx::GraphDef& graph, const Options& options, ImportOptions& import, std::vector<OpenDimension>& open) {
  const std::set<std::string> initializers = importing::initializer_names(graph);
  const auto for_dims = [&](const onnx::ValueDef& input, auto&& visit) {
    for (size_t axis = 0; axis < input.dims.size(); ++axis) {
      const onnx::DimDef& dim = input.dims[axis];
      const std::string by_axis = fmt::format("{}.{}", input.name, axis);
      auto size = import.shapes.find(by_axis);
      if (size == import.shapes.end() && !dim.name.empty()) size = import.shapes.find(dim.name);
      const int64_t known = dim.size >= 0 ? dim.size : size == import.shapes.end() ? -1 : size->second;
      visit(axis, dim, known, dim.name.empty() ? by_axis : dim.name);
    }
  };
  const auto bind = [&](const onnx::ValueDef& input, const std::string& text) {
    std::vector<int64_t> dims;
    for_dims(input, [&](size_t, const onnx::DimDef&, int64_t known, const std::string&) { dims.push_back(known); });
    Tensor value = bound_value(input.name, text, *input.dtype, dims);
    for_dims(input, [&](size_t axis, const onnx::DimDef&, int64_t known, const std::string& key) {
      if (known < 0) import.shapes[key] = value.shape[axis];
    });
    import.bound_inputs.emplace(input.name, std::move(value));
  };
  std::vector<const onnx::ValueDef*> inputs;
  std::vector<std::string> names;
  for (const onnx::ValueDef& input : graph.inputs) {
    if (initializers.contains(input.name) || !input.dtype) continue;
    inputs.push_back(&input);
    names.push_back(input.name);
  }
  check_bound_names(options.bind, names);
  // First those whose values say how many they are.
  const auto bind_all = [&](bool counted) {
    for (const onnx::ValueDef* input : inputs) {
      const auto text = options.bind.find(input->name);
      if (text != options.bind.end() && (text->second.find_first_of("@,") != std::string::npos) == counted) bind(*input, text->second);
    }
  };
  bind_all(true);
  for (const onnx::ValueDef* input : inputs) {
    for_dims(*input, [&](size_t axis, const onnx::DimDef& dim, int64_t known, const std::string& key) {
      if (known >= 0) return;
      import.shapes[key] = assumed_size(dim.name, axis, !is_floating(*input->dtype), options);
      open.push_back({.name = key, .size = import.shapes[key], .is_batch = is_batch(dim.name, axis)});
    });
  }
  bind_all(false);
}

}  // namespace

Imported import_with_some_sizes(const onnx::GraphDef& graph, const Options& options, const std::vector<std::string>& outputs,
                                std::vector<OpenDimension>& open, Workers& workers) {
  ImportOptions import = import_options(options);
  import.outputs = outputs;
  complete(graph, options, import, open);
  int64_t bytes = 0;
  for (const onnx::TensorDef& tensor : graph.initializers) bytes += tensor.bytes;
  if (import.bound_inputs.empty())  // whose shapes hang on the sizes
    find_sizes(options.model, static_cast<int64_t>(graph.nodes.size()), bytes, import, open, workers);
  return import_model(options.model, import, workers);
}

}  // namespace ort_train
