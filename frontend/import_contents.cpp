// Tensors that look like weights and aren't: exporters fold what a model computes of positions alone, and files without metadata don't say
// so.
//
// Told by what is in them: masks are zeros and numbers that a softmax forgets, zeros alone where a softmax takes them and all heads have
// the same, or zeros and ones that something is multiplied by; tables of positions have a sine and a cosine of each angle beside each other
// in each row, rotary embeddings in two tensors, or the frequencies 1, r, r², … that these are made of; the biases of attention that fall
// linearly have slopes r, r², … or rows 0, s, 2s, …; initial states, scales and paddings are one number throughout. Nothing that was drawn
// or trained is like that. No more of a tensor is read than it takes to see that it is none of these.

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "frontend/element.h"
#include "frontend/import_evidence.h"

namespace ort_train::importing {
namespace {

constexpr int64_t kBlock = 4096;  // elements
constexpr int64_t kMostFrequencies = 4096;
constexpr double kForgotten = -1e4;                     // by a softmax; as old models have it
constexpr double kClose = 1e-4, kCloseInHalf = 0x1p-7;  // relative; bfloat16 has eight bits
constexpr int kMaxComparisons = 100'000;                // a model made to hold this up keeps its tables

constexpr NoteText kMasks{"is a mask, no weight: left as it is", "are masks, no weights: left as they are"};
constexpr NoteText kRotary{"has cosines or sines of positions, no weight: left as it is",
                           "are cosines and sines of positions, no weights: left as they are"};
constexpr NoteText kSinusoidal{"has sines and cosines of positions, no weight: left as it is (`train` changes that)",
                               "are sines and cosines of positions, no weights: left as they are (`train` changes that)"};
constexpr NoteText kFrequencies{"has the frequencies of a rotary embedding, no weight: left as it is",
                                "are the frequencies of rotary embeddings, no weights: left as they are"};
constexpr NoteText kSlopes{"has the slopes of a linear attention bias, no weight: left as it is",
                           "are slopes of linear attention biases, no weights: left as they are"};
constexpr NoteText kUniform{"is one number throughout, and no layer's bias or scale: left as it is (`train` changes that)",
                            "are each one number throughout, and no layer's bias or scale: left as they are (`train` changes that)"};

template <size_t n> bool is_one_of(const Use& use, const std::array<const char*, n>& ops) {
  return use.domain.empty() && std::find(ops.begin(), ops.end(), use.op_type) != ops.end();
}

double closeness(const Subject& subject) { return is_half(*subject.candidate.tensor->dtype) ? kCloseInHalf : kClose; }

// Looked up, too, if `by_position`.
bool is_elementwise(const Subject& subject, bool by_position = false) {
  static constexpr std::array kOps{"Add",     "Sub",    "Mul",  "Where",    "Slice",     "Unsqueeze", "Squeeze",
                                   "Reshape", "Expand", "Cast", "Identity", "Transpose", "Concat",    "Tile"};
  const auto fits = [&](const Use& use) {
    return is_one_of(use, kOps) || is_attention_bias(use) ||
           (by_position && use.domain.empty() && use.op_type == "Gather" && use.input == 0);
  };
  return subject.candidate.tensor->shape.size() >= 2 && std::all_of(subject.candidate.uses.begin(), subject.candidate.uses.end(), fits);
}

std::vector<double> read(const Evidence& evidence, const Subject& subject, int64_t from, int64_t count) {
  const Candidate& candidate = subject.candidate;
  const DType dtype = *candidate.tensor->dtype;
  std::vector<std::byte> bytes(static_cast<size_t>(count * size_of(dtype)));
  if (const auto& value = candidate.tensor->value)
    std::copy_n(value->bytes.begin() + from * size_of(dtype), bytes.size(), bytes.begin());
  else
    evidence.files.read_elements(candidate, from, bytes);
  std::vector<double> values(static_cast<size_t>(count));
  convert(element_of(dtype), bytes, DType::float64, std::as_writable_bytes(std::span(values)));
  return values;
}

// body(values of each) for blocks of tensors of one shape, the first of few elements, until it is false; whether it never was.
template <typename Body> bool for_blocks(const Evidence& evidence, std::span<const Subject* const> of, Body&& body) {
  const int64_t count = element_count(of[0]->candidate.tensor->shape);
  std::vector<std::vector<double>> values(of.size());
  for (int64_t at = 0, block = 4; at < count; at += block, block = kBlock) {
    block = std::min(block, count - at);
    for (size_t i = 0; i < of.size(); ++i) values[i] = read(evidence, *of[i], at, block);
    if (!body(values)) return false;
  }
  return true;
}

// Whether all ways from the uses lead to one of the ops `ends`, through at most `steps` of the ops `between`.
template <size_t n, size_t m>
bool all_lead_to(const Evidence& evidence, const std::vector<Use>& uses, const std::array<const char*, n>& ends,
                 const std::array<const char*, m>& between, int steps) {
  return std::all_of(uses.begin(), uses.end(), [&](const Use& use) {
    if (is_one_of(use, ends)) return true;
    const auto readers = evidence.uses.find(use.output);
    return steps > 0 && is_one_of(use, between) && readers != evidence.uses.end() &&
           all_lead_to(evidence, readers->second, ends, between, steps - 1);
  });
}

// By its place alone: [batch, 1, queries, keys], added to what a softmax takes. A bias that is trained is one for each head.
bool is_of_attention(const Evidence& evidence, const Subject& subject) {
  static constexpr std::array kEnds{"Softmax"};
  static constexpr std::array kBetween{"Add", "Cast", "Expand", "Identity"};
  constexpr int kSteps = 4;
  constexpr size_t kRank = 4, kHeads = 1;
  const Shape& shape = subject.candidate.tensor->shape;
  return shape.size() == kRank && shape[kHeads] == 1 && element_count(shape) > 1 &&
         all_lead_to(evidence, subject.candidate.uses, kEnds, kBetween, kSteps);
}

bool is_mask(const Evidence& evidence, const Subject& subject) {
  bool forgets = false;
  const Subject* const of[] = {&subject};
  return for_blocks(evidence, of,
                    [&](const auto& values) {
                      return std::all_of(values[0].begin(), values[0].end(), [&](double value) {
                        forgets |= value <= kForgotten;
                        return value == 0 || value <= kForgotten;
                      });
                    }) &&
         (forgets || is_of_attention(evidence, subject));
}

// Zeros and ones that something is multiplied by or compared with.
bool is_gate(const Evidence& evidence, const Subject& subject) {
  static constexpr std::array kEnds{"Mul", "Equal", "Greater", "Less"};
  static constexpr std::array kBetween{"Slice", "Gather", "Cast", "Expand", "Identity", "Unsqueeze", "Squeeze", "Reshape", "Transpose"};
  constexpr int kSteps = 6;
  constexpr int64_t kLeast = 64;  // elements: a handful of factors may begin so
  const Shape& shape = subject.candidate.tensor->shape;
  if (shape.size() < 2 || element_count(shape) < kLeast || !all_lead_to(evidence, subject.candidate.uses, kEnds, kBetween, kSteps))
    return false;
  bool zeros = false, ones = false;
  const Subject* const of[] = {&subject};
  return for_blocks(evidence, of,
                    [&](const auto& values) {
                      return std::all_of(values[0].begin(), values[0].end(), [&](double value) {
                        zeros |= value == 0;
                        ones |= value == 1;
                        return value == 0 || value == 1;
                      });
                    }) &&
         zeros && ones;
}

// Rows in which elements that are half a block apart are a sine and a cosine of one angle, times a number.
struct Pairs {
  int64_t block;
  double square = 0;           // of that number
  bool turns = false;          // an angle is no multiple of a right one
  double least = 0, most = 0;  // of the first squares

  bool varies() const { return turns && most - least > 0.01 * square; }
  bool take(std::span<const double> row, double close) {
    constexpr double kLeast = 0.01;
    const auto half = static_cast<size_t>(block / 2);
    for (size_t i = 0; i < row.size(); i += 2 * half) {
      for (size_t j = i; j < i + half; ++j) {
        const double a = row[j] * row[j], b = row[j + half] * row[j + half];
        if (a + b == 0) return false;
        if (square == 0) square = a + b, least = most = a;
        least = std::min(least, a);
        most = std::max(most, a);
        if (!(std::abs(a + b - square) <= close * square)) return false;
        turns |= std::min(a, b) > kLeast * square;
      }
    }
    return true;
  }
};

// Pairs in each row but those of zeros (paddings, a class token's): of neighbours, half a row apart, or in a block of the row for each axis
// of a picture.
bool is_sinusoidal(const Evidence& evidence, const Subject& subject) {
  constexpr int64_t kShortest = 4, kFewest = 2, kLeast = 32;  // elements
  const Shape& shape = subject.candidate.tensor->shape;
  const int64_t length = shape.back(), rows = element_count(shape) / length;
  if (length < kShortest || length % 2 != 0 || rows < kFewest || rows * length < kLeast) return false;
  std::vector<Pairs> pairs{{.block = 2}, {.block = length}};
  for (const int64_t axes : {2, 3}) {
    if (length % (2 * axes) == 0) pairs.push_back({.block = length / axes});
  }
  const int64_t some = std::max<int64_t>(1, kBlock / length);  // rows
  for (int64_t at = 0; at < rows; at += some) {
    const std::vector<double> values = read(evidence, subject, at * length, std::min(some, rows - at) * length);
    for (std::span<const double> rest(values); !rest.empty(); rest = rest.subspan(static_cast<size_t>(length))) {
      const std::span<const double> row = rest.first(static_cast<size_t>(length));
      if (std::all_of(row.begin(), row.end(), [](double value) { return value == 0; })) continue;
      std::erase_if(pairs, [&](Pairs& of) { return !of.take(row, closeness(subject)); });
      if (pairs.empty()) return false;
    }
  }
  return std::any_of(pairs.begin(), pairs.end(), [](const Pairs& of) { return of.varies(); });
}

// Scaled, too, as long contexts have it.
bool is_circle(const Evidence& evidence, const Subject& a, const Subject& b) {
  const onnx::TensorDef &left = *a.candidate.tensor, &right = *b.candidate.tensor;
  if (left.shape != right.shape || left.dtype != right.dtype) return false;
  std::optional<double> square;
  bool varies = false;
  double first = 0;
  const Subject* const of[] = {&a, &b};
  const double close = closeness(a);
  return for_blocks(evidence, of,
                    [&](const auto& values) {
                      for (size_t i = 0; i < values[0].size(); ++i) {
                        const double x = values[0][i], sum = x * x + values[1][i] * values[1][i];
                        if (!square) square = sum, first = x;
                        varies |= std::abs(x - first) > close;
                        if (!(sum > 0) || std::abs(sum - *square) > close * *square) return false;
                      }
                      return true;
                    }) &&
         varies;
}

// r, r², … or 1, r, r², … with r below 1, in the first four elements; frequencies of long contexts, and slopes of heads that are no power
// of two, go on otherwise.
enum class Sequence { none, from_one, from_ratio };
Sequence geometric(const Evidence& evidence, const Subject& subject) {
  const Shape& shape = subject.candidate.tensor->shape;
  constexpr int64_t kFew = 4;
  const int64_t count = element_count(shape);
  if (count < kFew || count > kMostFrequencies || *std::max_element(shape.begin(), shape.end()) != count) return Sequence::none;
  const std::vector<double> few = read(evidence, subject, 0, kFew);
  const double ratio = few[1] / few[0], close = closeness(subject);
  if (!(few[0] > 0 && ratio > 0 && ratio < 1 - close)) return Sequence::none;
  for (size_t i = 2; i < few.size(); ++i) {
    if (std::abs(few[i] - ratio * few[i - 1]) > close * few[i - 1]) return Sequence::none;
  }
  const std::vector<double> all = read(evidence, subject, 0, count);
  if (few[0] == 1) return all.back() > 0 && std::is_sorted(all.rbegin(), all.rend()) ? Sequence::from_one : Sequence::none;
  const bool in_range = std::all_of(all.begin(), all.end(), [](double value) { return value > 0 && value < 1; });
  return std::abs(few[0] - ratio) <= close * ratio && in_range ? Sequence::from_ratio : Sequence::none;
}

// 0, s, 2s, … along the last axis, and not zeros alone.
bool is_linear(const Evidence& evidence, const Subject& subject) {
  constexpr int64_t kShortest = 3;
  const int64_t length = subject.candidate.tensor->shape.back();
  if (length < kShortest) return false;
  int64_t at = 0;
  double step = 0;
  bool rises = false;
  const double close = closeness(subject);
  const Subject* const of[] = {&subject};
  return for_blocks(evidence, of,
                    [&](const auto& values) {
                      for (const double value : values[0]) {
                        const int64_t column = at++ % length;
                        if (column == 1) step = value;
                        rises |= value != 0;
                        const double wanted = column < 2 ? (column == 0 ? 0 : value) : step * static_cast<double>(column);
                        if (std::abs(value - wanted) > close * std::abs(wanted)) return false;
                      }
                      return true;
                    }) &&
         rises;
}

template <typename Fits>
Verdicts left_where(const Evidence& evidence, const Undecided& open, const char* why, const NoteText& note, Fits&& fits) {
  Verdicts verdicts;
  for (const size_t i : open) {
    if (fits(evidence.subjects[i])) verdicts.push_back({i, {.treatment = Treatment::constant, .why = why, .note = &note}});
  }
  return verdicts;
}

}  // namespace

Verdicts find_masks(const Evidence& evidence, const Undecided& open) {
  return left_where(evidence, open, "a mask", kMasks, [&](const Subject& subject) {
    return (is_elementwise(subject) && is_mask(evidence, subject)) || is_gate(evidence, subject);
  });
}

Verdicts find_sinusoidal(const Evidence& evidence, const Undecided& open) {
  return left_where(evidence, open, "sines and cosines of positions", kSinusoidal, [&](const Subject& subject) {
    return is_elementwise(subject, /*by_position=*/true) && is_sinusoidal(evidence, subject);
  });
}

Verdicts find_rotary(const Evidence& evidence, const Undecided& open) {
  std::vector<size_t> tables;
  std::copy_if(open.begin(), open.end(), std::back_inserter(tables), [&](size_t i) { return is_elementwise(evidence.subjects[i]); });
  std::vector<bool> is_rotary(evidence.subjects.size());
  int comparisons = 0;
  for (size_t i = 0; i < tables.size(); ++i) {
    for (size_t j = 0; j < i && !is_rotary[tables[i]] && comparisons < kMaxComparisons; ++j, ++comparisons) {
      if (is_circle(evidence, evidence.subjects[tables[j]], evidence.subjects[tables[i]]))
        is_rotary[tables[i]] = is_rotary[tables[j]] = true;
    }
  }
  Verdicts verdicts;
  for (const size_t i : tables) {
    if (is_rotary[i]) verdicts.push_back({i, {.treatment = Treatment::constant, .why = "cosines or sines of positions", .note = &kRotary}});
  }
  return verdicts;
}

Verdicts find_frequencies(const Evidence& evidence, const Undecided& open) {
  static constexpr std::array kOps{"Mul", "MatMul", "Einsum", "Unsqueeze", "Reshape", "Expand", "Cast", "Identity", "Transpose"};
  Verdicts verdicts;
  for (const size_t i : open) {
    const Subject& subject = evidence.subjects[i];
    const std::vector<Use>& uses = subject.candidate.uses;
    if (!std::all_of(uses.begin(), uses.end(), [](const Use& use) { return is_one_of(use, kOps); })) continue;
    const Sequence sequence = geometric(evidence, subject);
    if (sequence == Sequence::from_one)
      verdicts.push_back({i, {.treatment = Treatment::constant, .why = "frequencies of a rotary embedding", .note = &kFrequencies}});
    if (sequence == Sequence::from_ratio)
      verdicts.push_back({i, {.treatment = Treatment::constant, .why = "slopes of a linear attention bias", .note = &kSlopes}});
  }
  return verdicts;
}

Verdicts find_slopes(const Evidence& evidence, const Undecided& open) {
  return left_where(evidence, open, "a linear attention bias", kSlopes,
                    [&](const Subject& subject) { return is_elementwise(subject) && is_linear(evidence, subject); });
}

Verdicts find_uniform(const Evidence& evidence, const Undecided& open) {
  return left_where(evidence, open, "one number throughout", kUniform, [&](const Subject& subject) {
    const double first = read(evidence, subject, 0, 1)[0];
    const Subject* const of[] = {&subject};
    return for_blocks(evidence, of,
                      [&](const auto& values) {
                        return std::all_of(values[0].begin(), values[0].end(), [&](double value) { return value == first; });
                      }) &&
           !is_fresh_weight(evidence, subject, first);
  });
}

}  // namespace ort_train::importing
