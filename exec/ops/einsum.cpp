// Einsum{equation} (ONNX Einsum-12 and later), as a chain of ops that have kernels and gradients of their own.
//
//   bhid,bhjd->bhij      one MatMul, its second factor transposed
//   ii->i                Reshape, and a Slice that takes every (n + 1)-th element
//   ij,k->ijk            Mul, broadcast: nothing is summed
//   ...ij,...jk->...ik   the axes of an ellipsis are labels like letters, counted from the right
//
// The factors are multiplied from left to right, as NumPy does without `optimize`. Before each product, labels that only one of the two has
// and nobody needs any more are summed. An axis of one element broadcasts against the same label elsewhere.

#include "exec/ops/einsum.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "graph/builder.h"
#include "graph/error.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// A label is a letter, or of an ellipsis the number of its axis from the right, beginning with 1: at most kMaxRank, which is before 'A'.
using Labels = std::string;
static_assert(kMaxRank < 'A');

// A tensor, and the label of each of its axes.
struct Term {
  ValueId value = kNone;
  Labels labels;
};

bool has(const Labels& labels, char label) { return labels.find(label) != Labels::npos; }
bool is_letter(char c) { return ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z'); }

// Those of `labels` for which `choose` is true, in their order.
template <typename Choose> Labels chosen(const Labels& labels, Choose&& choose) {
  Labels result;
  std::copy_if(labels.begin(), labels.end(), std::back_inserter(result), choose);
  return result;
}

class Einsum {
 public:
  explicit Einsum(Lowering& l) : l_(l) {}

  ValueId run() {
    parse();
    for (Term& term : terms_) take_diagonals(term);
    bind_sizes();
    Term total = terms_[0];
    for (size_t i = 1; i < terms_.size(); ++i) {
      Labels needed = result_;
      for (size_t later = i + 1; later < terms_.size(); ++later) needed += terms_[later].labels;
      total = product(total, terms_[i], needed);
    }
    total = sum_all_but(total, result_);
    return in_order(total, result_).value;
  }

 private:
  // --- the equation -------------------------------------------------------------------------------------------------------------------

  [[noreturn]] void fail(const std::string& why) const { l_.fail(fmt::format("the equation '{}' {}", equation_, why)); }

  void parse() {
    for (char c : l_.node.attributes.get("equation", "")) {
      if (c != ' ') equation_ += c;
    }
    const size_t arrow = equation_.find("->");
    const std::string left = equation_.substr(0, arrow);
    std::vector<std::string> parts(1);
    for (char c : left) {
      if (c == ',')
        parts.emplace_back();
      else
        parts.back() += c;
    }
    if (parts.size() != l_.node.inputs.size()) fail(fmt::format("has {} factors, the node {} inputs", parts.size(), l_.node.inputs.size()));
    for (size_t i = 0; i < parts.size(); ++i) terms_.push_back({l_.input(i), labels_of(parts[i], l_.shape(l_.input(i)).size())});
    result_ = arrow == std::string::npos ? implicit_result() : explicit_result(equation_.substr(arrow + 2));
  }

  // `rank` axes; an ellipsis stands for those that are left.
  Labels labels_of(const std::string& text, size_t rank) {
    const size_t dots = text.find("...");
    const std::string before = text.substr(0, dots), after = dots == std::string::npos ? "" : text.substr(dots + 3);
    if (!std::all_of(before.begin(), before.end(), is_letter) || !std::all_of(after.begin(), after.end(), is_letter))
      fail("is not one of letters, ',', '...' and '->'");
    const size_t letters = before.size() + after.size();
    if (dots == std::string::npos ? letters != rank : letters > rank) fail(fmt::format("says '{}' of a tensor of rank {}", text, rank));
    Labels labels = before;
    for (size_t left = rank - letters; left > 0; --left) labels += static_cast<char>(left);
    ellipsis_ = std::max(ellipsis_, rank - letters);
    return labels + after;
  }

  Labels ellipsis() const {
    Labels labels;
    for (size_t left = ellipsis_; left > 0; --left) labels += static_cast<char>(left);
    return labels;
  }

  // The axes of the ellipsis, then the letters that occur once, in alphabetical order.
  Labels implicit_result() const {
    std::map<char, int> count;
    for (const Term& term : terms_) {
      for (char label : term.labels) ++count[label];
    }
    Labels labels = ellipsis();
    for (const auto& [label, times] : count) {
      if (is_letter(label) && times == 1) labels += label;
    }
    return labels;
  }

  Labels explicit_result(const std::string& text) {
    const size_t dots = text.find("...");
    const bool has_dots = dots != std::string::npos;
    if (!has_dots && ellipsis_ > 0) fail("lacks '...' in its result");
    const Labels labels = text.substr(0, dots) + (has_dots ? ellipsis() + text.substr(dots + 3) : "");
    for (size_t i = 0; i < labels.size(); ++i) {
      const bool known = std::any_of(terms_.begin(), terms_.end(), [&](const Term& term) { return has(term.labels, labels[i]); });
      if (!known || labels.find(labels[i], i + 1) != Labels::npos) fail("has a result that doesn't follow from its factors");
    }
    return labels;
  }

  // --- one tensor -----------------------------------------------------------------------------------------------------------------------

  // Axes of the same label become one: where both indices are equal.
  void take_diagonals(Term& term) {
    for (size_t i = 0; i < term.labels.size(); ++i) {
      size_t j;
      while ((j = term.labels.find(term.labels[i], i + 1)) != Labels::npos) {
        const char label = term.labels[i];
        const Shape shape = l_.shape(term.value);
        const int64_t n = shape[i];
        if (shape[j] != n) fail(fmt::format("takes the diagonal of {}, whose axes {} and {} differ", to_string(shape), i, j));
        std::vector<int64_t> order;
        Labels rest;
        Shape dims;
        for (size_t axis = 0; axis < shape.size(); ++axis) {
          if (axis == i || axis == j) continue;
          order.push_back(static_cast<int64_t>(axis));
          rest += term.labels[axis];
          dims.push_back(shape[axis]);
        }
        order.push_back(static_cast<int64_t>(i));
        order.push_back(static_cast<int64_t>(j));
        const int64_t last = static_cast<int64_t>(dims.size());
        dims.push_back(checked_product({n, n}));
        const ValueId flat = l_.reshape(std::is_sorted(order.begin(), order.end()) ? term.value : l_.transpose(term.value, order), dims);
        term.value = n <= 1 ? flat
                            : l_.emit("Slice", {flat},
                                      {{"starts", std::vector<int64_t>{0}},
                                       {"ends", std::vector<int64_t>{n * n}},
                                       {"axes", std::vector<int64_t>{last}},
                                       {"steps", std::vector<int64_t>{n + 1}}});
        term.labels = rest + label;
        i = 0;  // the axes have moved
      }
    }
  }

  // A label has one size; an axis of one element that broadcasts is dropped.
  void bind_sizes() {
    for (const Term& term : terms_) {
      const Shape& shape = l_.shape(term.value);
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        const auto [known, added] = sizes_.emplace(term.labels[axis], shape[axis]);
        if (added || known->second == shape[axis] || shape[axis] == 1) continue;
        if (known->second != 1) fail(fmt::format("gives one label to axes of {} and of {} elements", known->second, shape[axis]));
        known->second = shape[axis];
      }
    }
    for (Term& term : terms_) {
      const Shape shape = l_.shape(term.value);
      Term kept{term.value, {}};
      Shape dims;
      for (size_t axis = 0; axis < shape.size(); ++axis) {
        if (shape[axis] == 1 && sizes_.at(term.labels[axis]) != 1) continue;
        kept.labels += term.labels[axis];
        dims.push_back(shape[axis]);
      }
      kept.value = l_.reshape(term.value, dims);
      term = kept;
    }
  }

  Term in_order(const Term& term, const Labels& labels) {
    if (term.labels == labels) return term;
    std::vector<int64_t> order;
    for (char label : labels) order.push_back(static_cast<int64_t>(term.labels.find(label)));
    return {l_.transpose(term.value, order), labels};
  }

  Term sum_all_but(const Term& term, const Labels& needed) {
    std::vector<int64_t> axes;
    for (size_t axis = 0; axis < term.labels.size(); ++axis) {
      if (!has(needed, term.labels[axis])) axes.push_back(static_cast<int64_t>(axis));
    }
    if (axes.empty()) return term;
    return {l_.sum(term.value, axes, l_.dtype(term.value)), chosen(term.labels, [&](char label) { return has(needed, label); })};
  }

  Shape dims_of(const Labels& labels) const {
    Shape dims;
    for (char label : labels) dims.push_back(sizes_.at(label));
    return dims;
  }

  // --- two tensors ----------------------------------------------------------------------------------------------------------------------

  Term product(Term a, Term b, const Labels& needed) {
    a = sum_all_but(a, needed + b.labels);
    b = sum_all_but(b, needed + a.labels);
    const Labels batch = chosen(a.labels, [&](char label) { return has(b.labels, label) && has(needed, label); });
    const Labels summed = chosen(a.labels, [&](char label) { return has(b.labels, label) && !has(needed, label); });
    const Labels rows = chosen(a.labels, [&](char label) { return !has(b.labels, label); });
    const Labels columns = chosen(b.labels, [&](char label) { return !has(a.labels, label); });
    const Labels made = batch + rows + columns;
    if (summed.empty()) {  // nothing to sum: (batch, rows, 1) * (batch, 1, columns)
      Shape left = dims_of(batch + rows), right = dims_of(batch);
      left.insert(left.end(), columns.size(), 1);
      right.insert(right.end(), rows.size(), 1);
      const Shape last = dims_of(columns);
      right.insert(right.end(), last.begin(), last.end());
      return {l_.emit("Mul", {l_.reshape(in_order(a, batch + rows).value, left), l_.reshape(in_order(b, batch + columns).value, right)}),
              made};
    }
    // A factor whose axes stand the other way round is read transposed, and not moved.
    const bool trans_a = a.labels == batch + summed + rows, trans_b = b.labels == batch + columns + summed;
    const ValueId left = trans_a ? matrix(a, batch, summed, rows) : matrix(a, batch, rows, summed);
    const ValueId right = trans_b ? matrix(b, batch, columns, summed) : matrix(b, batch, summed, columns);
    const ValueId y = l_.emit("MatMul", {left, right}, {{"trans_a", int64_t{trans_a}}, {"trans_b", int64_t{trans_b}}});
    return {l_.reshape(y, dims_of(made)), made};
  }

  // (batch..., first, second), each of the last two merged into one axis.
  ValueId matrix(const Term& term, const Labels& batch, const Labels& first, const Labels& second) {
    Shape dims = dims_of(batch);
    dims.push_back(element_count(dims_of(first)));
    dims.push_back(element_count(dims_of(second)));
    return l_.reshape(in_order(term, batch + first + second).value, dims);
  }

  Lowering& l_;
  std::string equation_;
  std::vector<Term> terms_;
  Labels result_;
  size_t ellipsis_ = 0;  // the most axes that one stands for
  std::map<char, int64_t> sizes_;
};

}  // namespace

void lower_einsum(Lowering& l) { l.output(0, Einsum(l).run()); }

ORT_TRAIN_OPS_END
