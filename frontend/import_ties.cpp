// Finds weights that exporters stored twice. Two tensors that agree in two places are compared in sixteen, and then in full, so that a
// model without such weights is hardly read at all, and one with them only where they are.

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>

#include "frontend/importer.h"
#include "frontend/weight_file.h"
#include "graph/error.h"

namespace ort_train::importing {
namespace {

constexpr int64_t kBlockBytes = 1 << 20;
constexpr int64_t kSamples = 16;
constexpr std::array<int64_t, 2> kFirst{5, 10};  // of these, neither in the first row nor near each other
constexpr auto kAll = [] {
  std::array<int64_t, kSamples> all{};
  std::iota(all.begin(), all.end(), 0);
  return all;
}();
constexpr int kMaxComparisons = 100'000;  // a model made to hold this up is left untied

class TieFinder {
 public:
  TieFinder(const std::vector<Candidate>& candidates, TensorFiles& files) : candidates_(candidates), files_(files) {}

  std::vector<Tie> find() {
    std::map<std::string, int> group_sizes;
    for (const Candidate& candidate : candidates_) {
      if (eligible(candidate)) ++group_sizes[group(candidate)];
    }
    std::vector<Tie> ties;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const Candidate& candidate = candidates_[i];
      if (!eligible(candidate) || group_sizes[group(candidate)] < 2) continue;
      const std::string straight = group(candidate) + samples(candidate, false, kFirst);
      if (const auto tie = tie_to_earlier(i, straight)) {
        ties.push_back(*tie);
      } else {
        kept_[straight].others.push_back(i);
      }
    }
    return ties;
  }

 private:
  // Candidates that agree in their first samples.
  struct Kept {
    std::map<std::string, std::vector<size_t>> alike{};  // by all samples
    std::vector<size_t> others{};                        // of which these weren't wanted yet
  };

  static bool eligible(const Candidate& candidate) {
    const bool is_zeros = candidate.tensor->added && candidate.tensor->offset < 0;
    return candidate.tensor->shape.size() >= 2 && element_count(candidate.tensor->shape) > 1 && !is_zeros;
  }

  // Equal for tensors that could be tied: type and dimensions, those of matrices in falling order; a copy is only tied with copies.
  static std::string group(const Candidate& candidate) {
    Shape shape = candidate.tensor->shape;
    if (shape.size() == 2) std::sort(shape.rbegin(), shape.rend());
    return (candidate.tensor->added ? "copy " : "") + to_string(TensorType{*candidate.tensor->dtype, shape});
  }

  std::optional<Tie> tie_to_earlier(size_t i, const std::string& straight) {
    const Shape& shape = candidates_[i].tensor->shape;
    for (const size_t earlier : find_alike(i, straight, false)) {
      const bool transposed = candidates_[earlier].tensor->shape != shape;
      if (same(earlier, i, transposed)) return Tie{earlier, i, transposed};
    }
    if (shape.size() != 2 || shape[0] != shape[1]) return std::nullopt;
    for (const size_t earlier : find_alike(i, group(candidates_[i]) + samples(candidates_[i], true, kFirst), true)) {
      if (same(earlier, i, /*transposed=*/true)) return Tie{earlier, i, true};
    }
    return std::nullopt;
  }

  // Those kept under this key that agree in all samples.
  std::vector<size_t> find_alike(size_t i, const std::string& key, bool swapped) {
    const auto kept = kept_.find(key);
    if (kept == kept_.end()) return {};
    auto& [alike, others] = kept->second;
    for (const size_t other : others) alike[samples(candidates_[other], false, kAll)].push_back(other);
    others.clear();
    const auto found = alike.find(samples(candidates_[i], swapped, kAll));
    return found == alike.end() ? std::vector<size_t>{} : found->second;
  }

  void read(const Candidate& candidate, int64_t element, std::span<std::byte> to) { files_.read_elements(candidate, element, to); }

  // Elements at fixed places, those of these numbers; of a matrix and its transpose the same ones. `swapped` reads a square matrix as its
  // transpose.
  std::string samples(const Candidate& candidate, bool swapped, std::span<const int64_t> numbers) {
    const Shape& shape = candidate.tensor->shape;
    const int64_t size = size_of(*candidate.tensor->dtype);
    std::string bytes(numbers.size() * static_cast<size_t>(size), '\0');
    auto to = std::as_writable_bytes(std::span(bytes));
    const int64_t count = element_count(shape);
    const bool matrix = shape.size() == 2;
    const int64_t rows = matrix ? std::max(shape[0], shape[1]) : count, columns = matrix ? std::min(shape[0], shape[1]) : 1;
    const bool flipped = matrix && ((shape[0] < shape[1]) != swapped);
    for (const int64_t k : numbers) {
      const int64_t row = k * rows / kSamples, column = (k * 7 + 3) % kSamples * columns / kSamples;
      const int64_t element = flipped ? column * rows + row : row * columns + column;
      read(candidate, element, to.first(static_cast<size_t>(size)));
      to = to.subspan(static_cast<size_t>(size));
    }
    return bytes;
  }

  bool same(size_t a, size_t b, bool transposed) {
    if (++comparisons_ > kMaxComparisons) return false;
    const auto reader = [this](const Candidate& candidate) {
      return [this, &candidate](int64_t first, std::span<std::byte> to) {
        read(candidate, first, to);
        return true;
      };
    };
    const onnx::TensorDef& tensor = *candidates_[a].tensor;
    return same_elements(reader(candidates_[a]), reader(candidates_[b]), tensor.shape, size_of(*tensor.dtype), transposed) && !all_equal(a);
  }

  bool all_equal(size_t index) {
    const Candidate& candidate = candidates_[index];
    const int64_t size = size_of(*candidate.tensor->dtype), count = element_count(candidate.tensor->shape), block = kBlockBytes / size;
    std::array<std::byte, 8> first{};
    read(candidate, 0, std::span(first).first(static_cast<size_t>(size)));
    for (int64_t at = 0; at < count; at += block) {
      block_.resize(static_cast<size_t>(std::min(block, count - at) * size));
      read(candidate, at, block_);
      for (size_t i = 0; i < block_.size(); i += static_cast<size_t>(size)) {
        if (std::memcmp(block_.data() + i, first.data(), static_cast<size_t>(size)) != 0) return false;
      }
    }
    return true;
  }

  const std::vector<Candidate>& candidates_;
  TensorFiles& files_;
  std::map<std::string, Kept> kept_;  // by group and first samples
  std::vector<std::byte> block_;
  int comparisons_ = 0;
};

}  // namespace

std::vector<Tie> find_ties(const std::vector<Candidate>& candidates, TensorFiles& files) { return TieFinder(candidates, files).find(); }

}  // namespace ort_train::importing
