#include "passes/split_logits.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "exec/class_chunk.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/match.h"

namespace ort_train {
namespace {

constexpr size_t kBias = 2, kBase = 3;  // inputs of a MatMulPart

int64_t number(const Node& node, std::string_view attribute) { return node.attributes.get(attribute, int64_t{0}); }
bool has(const Node& node, size_t input) { return node.inputs.size() > input && node.inputs[input] != kNone; }

// One part of the logits, and what reads its columns of their gradient.
struct LogitsPart {
  NodeId product = kNone;
  int64_t from = 0, classes = 0;
  std::vector<NodeId> readers{};
};

// A loss of logits that are in parts.
struct Head {
  NodeId loss = kNone, gradient = kNone;  // no gradient outside training
  std::vector<LogitsPart> parts;
  std::vector<NodeId> bias_gradients;  // sums over all rows of the logits' gradient
  std::vector<NodeId> views;           // of the logits and their gradient
};

class Finder {
 public:
  explicit Finder(const Graph& graph) : graph_(graph), view_(graph) {}

  std::optional<Head> head_of(NodeId loss) const {
    const Node& node = graph_.node(loss);
    if (node.op->name != "SoftmaxCrossEntropy" || has(node, 2)) return std::nullopt;
    Head head{.loss = loss, .parts = {}, .bias_gradients = {}, .views = {}};
    const ValueId logits = without_views(node.inputs[0]);
    if (!find_parts(logits, head) || !find_loss(logits, head)) return std::nullopt;
    if (head.gradient != kNone && !find_readers(graph_.node(head.gradient).outputs[0], head)) return std::nullopt;
    return head;
  }

 private:
  // A Reshape that leaves the last axis as it is.
  bool is_view(const Node& node) const {
    return node.op->name == "Reshape" && !graph_.value(node.inputs[0]).shape.empty() && !graph_.value(node.outputs[0]).shape.empty() &&
           graph_.value(node.inputs[0]).shape.back() == graph_.value(node.outputs[0]).shape.back();
  }
  ValueId without_views(ValueId value) const {
    const Node* maker = view_.made_by(value);
    while (maker && is_view(*maker)) {
      value = maker->inputs[0];
      maker = view_.made_by(value);
    }
    return value;
  }
  // Who reads a value or a view of it; false where it is an output of the graph.
  bool add_readers(ValueId value, Head& head, std::vector<NodeId>& readers) const {
    if (view_.is_output(value)) return false;
    for (const NodeId reader : view_.readers(value)) {
      const Node& node = graph_.node(reader);
      if (!is_view(node)) {
        readers.push_back(reader);
        continue;
      }
      head.views.push_back(reader);
      if (!add_readers(node.outputs[0], head, readers)) return false;
    }
    return true;
  }

  bool find_parts(ValueId logits, Head& head) const {
    const int64_t classes = graph_.value(logits).shape.back();
    for (ValueId y = logits; y != kNone;) {
      const Node* const node = view_.made_by(y, "MatMulPart");
      if (!node || number(*node, "y_columns") != classes || (y != logits && view_.only_reader(y) == kNone)) return false;
      const int64_t from = number(*node, "y_from"), end = head.parts.empty() ? classes : head.parts.back().from;
      if (from % kClassChunk != 0) return false;
      head.parts.push_back({.product = graph_.value(y).producer, .from = from, .classes = end - from});
      y = has(*node, kBase) ? node->inputs[kBase] : kNone;
    }
    std::reverse(head.parts.begin(), head.parts.end());
    return head.parts.front().from == 0 && std::all_of(head.parts.begin(), head.parts.end(), [&](const LogitsPart& part) {
             return graph_.value(graph_.node(part.product).inputs[1]).shape[0] == part.classes;
           });
  }

  // The loss, and perhaps its gradient, are all that reads the logits.
  bool find_loss(ValueId logits, Head& head) const {
    std::vector<NodeId> readers;
    if (!add_readers(logits, head, readers)) return false;
    for (const NodeId reader : readers) {
      if (reader == head.loss) continue;
      const Node& node = graph_.node(reader);
      if (node.op->name != "SoftmaxCrossEntropyGrad" || head.gradient != kNone || without_views(node.inputs[1]) != logits) return false;
      head.gradient = reader;
    }
    return true;
  }

  bool find_readers(ValueId gradient, Head& head) const {
    std::vector<NodeId> readers;
    if (!add_readers(gradient, head, readers)) return false;
    for (const NodeId reader : readers) {
      const Node& node = graph_.node(reader);
      if (node.op->name == "ReduceSum" && sums_rows(node)) {
        head.bias_gradients.push_back(reader);
        continue;
      }
      const bool reads_once = std::count_if(node.inputs.begin(), node.inputs.end(),
                                            [&](ValueId input) { return input != kNone && without_views(input) == gradient; }) == 1;
      const auto part = std::find_if(head.parts.begin(), head.parts.end(), [&](const LogitsPart& of) {
        return number(node, "a_from") == of.from && number(node, "a_width") == of.classes;
      });
      if (node.op->name != "MatMulPart" || !reads_once || without_views(node.inputs[0]) != gradient || part == head.parts.end() ||
          number(node, "y_columns") != 0)
        return false;
      part->readers.push_back(reader);
    }
    return true;
  }

  // Over all axes but the last.
  bool sums_rows(const Node& node) const {
    const Shape &x = graph_.value(node.inputs[0]).shape, &y = graph_.value(node.outputs[0]).shape;
    return element_count(y) == x.back() && !y.empty() && y.back() == x.back();
  }

  const Graph& graph_;
  const View view_;
};

class Divider {
 public:
  Divider(Graph& graph, const Head& head) : graph_(graph), head_(head) {}

  void run() {
    divide_loss();
    if (head_.gradient != kNone) divide_gradient();
    for (auto view = head_.views.rbegin(); view != head_.views.rend(); ++view) graph_.remove_node(*view);
    if (head_.gradient != kNone) graph_.remove_node(head_.gradient);
    for (auto part = head_.parts.rbegin(); part != head_.parts.rend(); ++part) graph_.remove_node(part->product);
  }

 private:
  Shape part_shape(Shape shape, const LogitsPart& part) const {
    shape.back() = part.classes;
    return shape;
  }
  int64_t classes() const { return head_.parts.back().from + head_.parts.back().classes; }

  ValueId logits_of(const LogitsPart& part) {
    const Node node = graph_.node(part.product);
    Builder builder(graph_, node.stage);
    builder.named(node.name, node.ordinal).before(head_.loss);
    std::vector<ValueId> inputs{node.inputs[0], node.inputs[1]};
    if (has(node, kBias)) {
      inputs.push_back(builder.emit("Slice", {node.inputs[kBias]},
                                    {{"starts", std::vector<int64_t>{part.from}},
                                     {"ends", std::vector<int64_t>{part.from + part.classes}},
                                     {"axes", std::vector<int64_t>{0}}}));
    }
    Attributes attributes = node.attributes;
    attributes.erase("y_from");
    attributes.erase("y_columns");
    const ValueId logits = builder.emit("MatMulPart", std::move(inputs), std::move(attributes));
    return builder.reshape(logits, part_shape(graph_.value(graph_.node(head_.loss).inputs[0]).shape, part));
  }

  void divide_loss() {
    const Node loss = graph_.node(head_.loss);
    const ValueId labels = loss.inputs[1];
    ValueId state = kNone;
    for (const LogitsPart& part : head_.parts) {
      logits_.push_back(logits_of(part));
      Builder builder(graph_, loss.stage);
      builder.named(loss.name, loss.ordinal).before(head_.loss);
      std::vector<ValueId> inputs{logits_.back(), labels};
      if (state != kNone) inputs.push_back(state);
      Attributes attributes{{"from", part.from}};
      if (const Attribute* smoothing = loss.attributes.find("smoothing")) attributes.set("smoothing", *smoothing);
      state = builder.emit("SoftmaxCrossEntropyPart", std::move(inputs), std::move(attributes));
    }
    Node& whole = graph_.node(head_.loss);
    whole.op = &op_named("SoftmaxCrossEntropyOfParts");
    whole.inputs = {state, labels};
    whole.attributes.set("classes", classes());
    whole.attributes.set("to", static_cast<int64_t>(graph_.value(loss.outputs[0]).dtype));
  }

  void divide_gradient() {
    const Node gradient = graph_.node(head_.gradient);
    std::vector<std::vector<ValueId>> sums(head_.bias_gradients.size());
    for (size_t i = 0; i < head_.parts.size(); ++i) {
      const LogitsPart& part = head_.parts[i];
      std::vector<ValueId> inputs = gradient.inputs;
      inputs[1] = logits_[i];
      Builder builder(graph_, gradient.stage);
      builder.named(gradient.name, gradient.ordinal).before(first_reader(part));
      Attributes attributes = gradient.attributes;
      attributes.set("from", part.from);
      attributes.set("classes", classes());
      const ValueId of_part = builder.emit("SoftmaxCrossEntropyGrad", std::move(inputs), std::move(attributes));
      for (const NodeId reader : part.readers) {
        const Shape seen = part_shape(graph_.value(graph_.node(reader).inputs[0]).shape, part);
        const ValueId read = builder.reshape(of_part, seen);
        Node& node = graph_.node(reader);
        node.inputs[0] = read;
        node.attributes.erase("a_from");
        node.attributes.erase("a_width");
        if (number(node, "trans_a") == 0) node.attributes.set("a_columns", classes());
      }
      for (size_t k = 0; k < sums.size(); ++k) {
        const Node node = graph_.node(head_.bias_gradients[k]);
        const ValueId read = builder.reshape(of_part, part_shape(graph_.value(node.inputs[0]).shape, part));
        sums[k].push_back(builder.emit("ReduceSum", {read}, node.attributes));
      }
    }
    for (size_t k = 0; k < sums.size(); ++k) {
      Node& node = graph_.node(head_.bias_gradients[k]);
      node.op = &op_named("Concat");
      node.attributes = {{"axis", static_cast<int64_t>(graph_.value(node.outputs[0]).shape.size()) - 1}};
      node.inputs = std::move(sums[k]);
    }
  }

  // Before which node a part's gradient is made, and its share of bias gradients. Their Concat stands where the whole's sum stood: after
  // these nodes of all parts, because MatMul's gradient emits dx, dW and dbias in this order.
  NodeId first_reader(const LogitsPart& part) const {
    for (const NodeId id : graph_.order()) {
      if (std::find(part.readers.begin(), part.readers.end(), id) != part.readers.end()) return id;
    }
    return head_.gradient;
  }

  Graph& graph_;
  const Head& head_;
  std::vector<ValueId> logits_;  // by part
};

}  // namespace

bool split_logits(Graph& graph) {
  std::vector<NodeId> losses;
  for (const NodeId id : graph.order()) {
    if (graph.node(id).op->name == "SoftmaxCrossEntropy") losses.push_back(id);
  }
  bool changed = false;
  for (const NodeId loss : losses) {
    const std::optional<Head> head = Finder(graph).head_of(loss);
    if (!head) continue;
    Divider(graph, *head).run();
    changed = true;
  }
  return changed;
}

}  // namespace ort_train
