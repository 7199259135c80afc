// Tensors that look like weights and aren't: exporters fold what a model computes of positions alone.
//
// Told by what is in them, since exporters give folded weights, too, names of their own: masks are zeros and numbers that a softmax
// forgets, or zeros alone where a softmax takes them and all heads have the same; rotary embeddings have cosines and sines of the same
// angles, or the frequencies 1, r, r², … that these are made of. Nothing that was drawn or trained is like that.

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "frontend/element.h"
#include "frontend/importer.h"

namespace ort_train::importing {
namespace {

constexpr int64_t kBlock = 4096;  // elements
constexpr int64_t kMostFrequencies = 4096;
constexpr double kForgotten = -1e4;  // by a softmax; as old models have it
constexpr double kClose = 1e-4;
constexpr int kMaxComparisons = 100'000;  // a model made to hold this up keeps its tables

template <size_t n> bool is_one_of(const Use& use, const std::array<const char*, n>& ops) {
  return use.domain.empty() && std::find(ops.begin(), ops.end(), use.op_type) != ops.end();
}

// Reads weights that are used elementwise, and no more of them than it takes to see that they are none of these.
class FixedFinder {
 public:
  FixedFinder(const std::vector<Candidate>& candidates, const Uses& uses, TensorFiles& files)
      : candidates_(candidates), uses_(uses), files_(files) {}

  FixedTensors find() {
    FixedTensors found;
    std::vector<size_t> tables;  // or other tensors that are used elementwise
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (is_frequencies(candidates_[i])) {
        found.frequencies.push_back(i);
      } else if (!is_elementwise(candidates_[i])) {
        continue;
      } else if (is_mask(candidates_[i])) {
        found.masks.push_back(i);
      } else {
        tables.push_back(i);
      }
    }
    std::vector<bool> is_rotary(candidates_.size());
    for (size_t i = 0; i < tables.size(); ++i) {
      for (size_t j = 0; j < i && !is_rotary[tables[i]]; ++j) {
        if (is_circle(candidates_[tables[j]], candidates_[tables[i]])) is_rotary[tables[i]] = is_rotary[tables[j]] = true;
      }
    }
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (is_rotary[i]) found.rotary.push_back(i);
    }
    return found;
  }

 private:
  static bool is_elementwise(const Candidate& candidate) {
    static constexpr std::array kOps{"Add",     "Sub",    "Mul",  "Where",    "Slice",     "Unsqueeze", "Squeeze",
                                     "Reshape", "Expand", "Cast", "Identity", "Transpose", "Concat",    "Tile"};
    return candidate.tensor->shape.size() >= 2 &&
           std::all_of(candidate.uses.begin(), candidate.uses.end(), [](const Use& use) { return is_one_of(use, kOps); });
  }

  std::vector<double> read(const Candidate& candidate, int64_t from, int64_t count) {
    const DType dtype = *candidate.tensor->dtype;
    std::vector<std::byte> bytes(static_cast<size_t>(count * size_of(dtype)));
    files_.reader(candidate.bytes).read(candidate.bytes.offset + from * size_of(dtype), bytes);
    std::vector<double> values(static_cast<size_t>(count));
    convert(element_of(dtype), bytes, DType::float64, std::as_writable_bytes(std::span(values)));
    return values;
  }

  // body(values of each) for blocks of tensors of one shape, the first of few elements, until it is false; whether it never was.
  template <typename Body> bool for_blocks(std::span<const Candidate* const> of, Body&& body) {
    const int64_t count = element_count(of[0]->tensor->shape);
    std::vector<std::vector<double>> values(of.size());
    for (int64_t at = 0, block = 4; at < count; at += block, block = kBlock) {
      block = std::min(block, count - at);
      for (size_t i = 0; i < of.size(); ++i) values[i] = read(*of[i], at, block);
      if (!body(values)) return false;
    }
    return true;
  }

  bool is_mask(const Candidate& candidate) {
    bool forgets = false;
    const Candidate* const of[] = {&candidate};
    return for_blocks(of,
                      [&](const auto& values) {
                        return std::all_of(values[0].begin(), values[0].end(), [&](double value) {
                          forgets |= value <= kForgotten;
                          return value == 0 || value <= kForgotten;
                        });
                      }) &&
           (forgets || is_of_attention(candidate));
  }

  // By its place alone: [batch, 1, queries, keys], added to what a softmax takes. A bias that is trained is one for each head.
  bool is_of_attention(const Candidate& candidate) const {
    constexpr int kSteps = 4;
    const std::vector<int64_t>& shape = candidate.tensor->shape;
    constexpr size_t kRank = 4, kHeads = 1;
    return shape.size() == kRank && shape[kHeads] == 1 && element_count(shape) > 1 && all_to_softmax(candidate.uses, kSteps);
  }
  bool all_to_softmax(const std::vector<Use>& uses, int steps) const {
    static constexpr std::array kBetween{"Add", "Cast", "Expand", "Identity"};
    return std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
      if (use.domain.empty() && use.op_type == "Softmax") return true;
      const auto readers = uses_.find(use.output);
      return steps > 0 && is_one_of(use, kBetween) && readers != uses_.end() && all_to_softmax(readers->second, steps - 1);
    });
  }

  // Scaled, too, as long contexts have it.
  bool is_circle(const Candidate& a, const Candidate& b) {
    if (a.tensor->shape != b.tensor->shape || a.tensor->dtype != b.tensor->dtype || ++comparisons_ > kMaxComparisons) return false;
    std::optional<double> square;
    bool varies = false;
    double first = 0;
    const Candidate* const of[] = {&a, &b};
    return for_blocks(of,
                      [&](const auto& values) {
                        for (size_t i = 0; i < values[0].size(); ++i) {
                          const double x = values[0][i], sum = x * x + values[1][i] * values[1][i];
                          if (!square) square = sum, first = x;
                          varies |= std::abs(x - first) > kClose;
                          if (!(sum > 0) || std::abs(sum - *square) > kClose * *square) return false;
                        }
                        return true;
                      }) &&
           varies;
  }

  // Those of long contexts fall faster further on.
  bool is_frequencies(const Candidate& candidate) {
    static constexpr std::array kOps{"Mul", "MatMul", "Unsqueeze", "Reshape", "Expand", "Cast", "Identity", "Transpose"};
    const int64_t count = element_count(candidate.tensor->shape);
    constexpr int64_t kFew = 4;
    if (count < kFew || count > kMostFrequencies ||
        *std::max_element(candidate.tensor->shape.begin(), candidate.tensor->shape.end()) != count ||
        !std::all_of(candidate.uses.begin(), candidate.uses.end(), [](const Use& use) { return is_one_of(use, kOps); }))
      return false;
    const std::vector<double> few = read(candidate, 0, kFew);
    const double ratio = few[1];
    if (few[0] != 1 || !(ratio > 0 && ratio < 1 - kClose)) return false;
    for (int64_t i = 2; i < kFew; ++i) {
      const auto at = static_cast<size_t>(i);
      if (std::abs(few[at] - ratio * few[at - 1]) > kClose * few[at - 1]) return false;
    }
    const std::vector<double> all = read(candidate, 0, count);
    return all.back() > 0 && std::is_sorted(all.rbegin(), all.rend());
  }

  const std::vector<Candidate>& candidates_;
  const Uses& uses_;
  TensorFiles& files_;
  int comparisons_ = 0;
};

}  // namespace

FixedTensors find_fixed(const std::vector<Candidate>& candidates, const Uses& uses, TensorFiles& files) {
  return FixedFinder(candidates, uses, files).find();
}

}  // namespace ort_train::importing
