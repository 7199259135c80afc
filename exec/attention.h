// What attention and its gradient share on the CPU: a thread's workspace, the scores of a block.

#pragma once

#include <algorithm>
#include <initializer_list>
#include <limits>

#include "exec/attention_problem.h"
#include "exec/element_types.h"
#include "exec/gemm.h"
#include "exec/workspace.h"

ORT_TRAIN_OPS_BEGIN
namespace attention {

static_assert(gemm::kRows <= kBeyond);
static_assert(kLanes % (2 * gemm::kTileSide) == 0 && kQueries % (2 * gemm::kTileSide) == 0 && kKeys % (2 * gemm::kTileSide) == 0);
static_assert(kKeys * sizeof(float) <
              gemm::kPage);  // so columns of scores never meet (gemm::lines_meet), and products need no room for them

// What weights, and the gradients of scores, are as operands of products. Where all others are bfloat16, or become that, and the processor
// multiplies pairs of these, they are rounded to it, too: such products take half the time.
inline Element rounded_weights(std::initializer_list<Element> others) {
  const bool multiplies = gemm::way_of(Element::bfloat16, Element::bfloat16) != gemm::Way::floats;
  return multiplies && std::all_of(others.begin(), others.end(), is_bfloat16) ? Element::to_bfloat16 : Element::own;
}

// What both ways have of a thread's workspace: the room of products, a block of scores, numbers of each row, a row of the bias in T.
template <typename T> struct Scratch {
  int64_t scores_at = 0, largest_at = 0, sum_at = 0, bias_at = 0;

  // q, dy: of what stands on the left of q k' and of dy v'; weights: what they are as operands
  Scratch(const Problem& p, Element q, Element dy, Element weights, WorkspaceLayout& layout) {
    const int64_t rows = std::min(p.rows, kQueries);
    Product<T> scores{.rows = rows, .columns = kKeys, .depth = p.depth}, values{.rows = rows, .depth = p.width},
        weighted{.rows = rows, .depth = kKeys}, down{.rows = kKeys, .depth = rows};
    scores.a.element = q;
    values.a.element = dy;
    weighted.a.element = down.a.element = weights;
    layout.take<std::byte>(
        std::max({product_workspace(scores), product_workspace(values), product_workspace(weighted), product_workspace(down)}));
    scores_at = layout.take<T>(rows * p.stride);
    largest_at = layout.take<T>(kQueries);
    sum_at = layout.take<T>(kQueries);
    bias_at = layout.take<T>(kKeys);
  }
};

template <typename T> T* at(std::byte* workspace, int64_t offset) { return reinterpret_cast<T*>(workspace + offset); }

// Of one head.
template <typename T> struct Scores {
  Operand<T> q, k;  // (T, D), (D, S)
  const std::byte* bias = nullptr;
  Element bias_element = Element::own;
};

// scores = scale * q k^T + bias for `rows` x `n` of them from (row, column) of one head on.
template <typename T>
void block_scores(const Problem& p, const Scores<T>& head, int64_t row, int64_t rows, int64_t column, int64_t n, const Scratch<T>& scratch,
                  std::byte* workspace) {
  T* const to = at<T>(workspace, scratch.scores_at);
  multiply<T>({.rows = rows,
               .columns = n,
               .depth = p.depth,
               .a = head.q.from(row, 0),
               .b = head.k.from(0, column),
               .c = {to, p.stride},
               .alpha = static_cast<T>(p.scale),
               .triangle = p.causal ? Triangle::result : Triangle::none,
               .diagonal = row - column},
              workspace);
  if (!head.bias) return;
  for (int64_t i = 0; i < rows; ++i) {
    T* const scores = to + i * p.stride;
    const int64_t first = (row + i) * p.bias[2] + column * p.bias[3];
    if (p.bias[3] == 0) {
      const T number = number_of<T>(head.bias, head.bias_element, first);
      for (int64_t j = 0; j < n; ++j) scores[j] += number;
    } else {
      const T* const add = vector_of<T>(head.bias, head.bias_element, first, n, workspace + scratch.bias_at);
      for (int64_t j = 0; j < n; ++j) scores[j] += add[j];
    }
  }
}

// What is in T as elements of a result.
template <typename T> void store_elements(const T* from, int64_t n, const Result<T>& to) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_half(to.element)) return gemm::narrow(to.element, from, n, to.data);
  }
  std::copy_n(from, n, to.own());
}

template <size_t first, size_t bias, int products> double efficiency(const KernelSpec& spec, int) {
  const Problem p = problem_of(spec, first, bias);
  int64_t computed = 0;  // a block of rows has the scores of its last row
  for (int64_t begin = 0; begin < p.rows; begin += kQueries) {
    const int64_t end = std::min(begin + kQueries, p.rows);
    computed += (end - begin) * (p.causal ? std::min(end, p.columns) : p.columns);
  }
  if (computed == 0) return 0;
  const bool rounds = rounded_weights({operand_element(spec, 0), operand_element(spec, first), operand_element(spec, first + 1),
                                       operand_element(spec, first + 2)}) != Element::own;
  const double product = product_of<products>(p), rate = rounds ? gemm::rate_of(Element::bfloat16, Element::bfloat16) : 1;
  return scores_of(p) * (product + kExponential) / (static_cast<double>(computed) * (product / rate + kSlower * kExponential));
}

}  // namespace attention
ORT_TRAIN_OPS_END
