// Selections: what a model takes of a batch by a mask (NonZero or Compress of data), so that sizes differ from batch to batch.
//
// A step has fixed shapes. So a selection has a limit: as many elements as the mask has, or what ImportOptions::selects says. What is
// selected comes first along its axis, the rest is padding that repeats the last of it. Selections follow the padding through the graph
// (OpTraits::along): rows go on as rows; where rows meet (sums, extrema, scatters, means, losses), nodes are put in that make the padding
// count for nothing, so that results and gradients are those of the model without it. What isn't known to be right is refused.
//
// A size that is a count is a constant of the graph with the limit in it (what Shape gives of padded tensors). Selections know which
// elements of constants these are: as sizes they are what is wanted, as numbers they become what is counted.
//
// For one walk (importer.h). Not thread-safe.

#pragma once

#include <functional>
#include <map>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "frontend/import.h"
#include "graph/builder.h"

namespace ort_train::importing {

class Selections {
 public:
  // `placeholders` takes values that nodes must not be left to read.
  Selections(Graph& graph, std::vector<ValueId>& placeholders) : graph_(graph), placeholders_(placeholders) {}
  void limit(const std::vector<SelectionLimit>& limits);

  // Lowers what of `node` needs a selection or the count of one; false where the node's own form does, which may have got other
  // attributes. Throws Error(unsupported).
  bool lower(OnnxNode& node, Lowering& l);
  // Follows the padding through the graph's nodes that have come since the last call. Throws Error(unsupported) where padding would count.
  void follow();
  // The same behind a node of the file that was lowered to `results`, which may change. `again` lowers it with other inputs.
  using Again = std::function<std::vector<ValueId>(const std::vector<ValueId>& inputs)>;
  void follow(const OnnxNode& node, std::vector<ValueId>& results, const Again& again);

  // Whether numbers of elements that a node selects are in it.
  bool has_counts(ValueId value) const { return counts_.contains(value); }
  // The node by which a value has as many elements along an axis as it selects; null where there is none.
  const std::string* selecting(ValueId value) const;
  // The node on which a model's output hangs that is padded, or a number of elements, and what is wrong with that; null: none.
  std::pair<const std::string*, std::string> of_output(ValueId value) const;
  // Throws Error(usage) where one of the limits fits no selection.
  void finish() const;
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  struct Selection {
    ValueId mask;                       // of any shape
    std::map<int64_t, ValueId> counts;  // so many times what it selects: int64 [1]
    int64_t limit = 0;
    bool exact = false;
    std::string node;
  };
  // A node that selects, and the elements that it finds. Where its mask is one that is broadcast along further axes, it finds `times` as
  // many.
  struct Finder {
    ValueId mask, indices;
    std::string node;
  };
  // So many times what a selection has.
  struct Count {
    static constexpr int kNumber = -1, kOther = -2;  // no count; computed from one
    int selection = kNumber;
    int64_t times = 1;
    bool operator==(const Count&) const = default;
  };
  struct Padding {
    Count count{};
    size_t axis = 0;
    bool repeats = false;  // the last row before it
  };

  ValueId find(Lowering& l, ValueId mask, const std::string& node);
  bool lower_mean(Lowering& l);
  bool lower_slice(Lowering& l);
  bool lower_sum(Lowering& l);
  ValueId mask_of(ValueId value, int64_t& times) const;
  int selection_of(ValueId mask) const;
  ValueId counted(Builder& builder, const Count& count);
  int64_t size_of(const Count& count) const { return selections_[static_cast<size_t>(count.selection)].limit * count.times; }
  const Selection& selection(const Padding& padding) const { return selections_[static_cast<size_t>(padding.count.selection)]; }
  void visit_from(NodeId first);
  void visit(NodeId id);
  Shape shape_with_one_more(ValueId value) const;
  void check_sizes(const Node& node) const;
  // What a node reads of counts.
  struct Reading {
    int selection = Count::kNumber;
    ValueId value = kNone;  // one in which they are
    bool is_plain = true;   // each is a number of its own
  };
  const std::vector<Count>* counts_of(ValueId value) const;
  Reading reading_of(const OnnxNode& node) const;
  void use_counts(const OnnxNode& node, std::vector<ValueId>& results, const Again& again);
  void grow(const OnnxNode& node, ValueId& result, ValueId other, int selection);
  void read_as_number(const OnnxNode& node, std::vector<ValueId>& results, const Again& again);
  void check_reshape(const OnnxNode& node, ValueId result, const Again& again);
  std::vector<Count> counts_in(const OnnxNode& node, size_t output, ValueId result, ValueId other, int selection, const Again& again);
  std::vector<ValueId> made_of(const OnnxNode& node, int selection, int64_t selected, bool longer, const Again& again);
  std::set<int64_t> samples(const OnnxNode& node, int64_t limit) const;
  Tensor of_count(ValueId constant, int selection, int64_t selected) const;
  bool same(ValueId a, ValueId b, int depth) const;
  ValueId first(Builder& builder, ValueId value, const Padding& padding, double otherwise);
  [[noreturn]] void refuse(ValueId value, const std::string& why) const;

  Graph& graph_;
  std::vector<ValueId>& placeholders_;
  std::vector<SelectionLimit> limits_;
  std::vector<bool> fitting_;
  std::map<std::string, std::pair<std::string, std::string>> seconds_;  // limit -> a node that it fits, and the first of the same mask
  std::vector<std::string> nodes_;                                      // that select, for messages
  std::vector<std::string> notes_;
  std::vector<Selection> selections_;
  std::vector<Finder> finders_;
  NodeId next_ = 0;  // the first that was not looked at
  std::unordered_map<ValueId, Padding> padded_;
  std::unordered_map<ValueId, std::vector<Count>> counts_;  // by element
};

}  // namespace ort_train::importing
