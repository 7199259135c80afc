#include "frontend/check_shapes.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

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
        left_(std::max<int64_t>(kMostNodes / std::max<int64_t>(nodes, 1), 2)) {}

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

}  // namespace ort_train
