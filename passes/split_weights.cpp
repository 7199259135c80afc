#include "passes/split_weights.h"

#include <algorithm>
#include <numeric>

#include "exec/class_chunk.h"
#include "exec/depth_block.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/match.h"
#include "passes/pack_weights.h"

namespace ort_train {
namespace {

// Parts of this weight may begin at multiples of so many rows for the node's sake; 0: it needs the whole.
int64_t rows_for(const Graph& graph, const Node& node, ValueId weight) {
  const Division& division = node.op->traits.division;
  if (!division.rows || std::count(node.inputs.begin(), node.inputs.end(), weight) != 1) return 0;
  return division.rows(graph, node, static_cast<size_t>(std::find(node.inputs.begin(), node.inputs.end(), weight) - node.inputs.begin()));
}

int64_t row_elements(const Value& weight) { return element_count(weight.shape.from(1)); }

constexpr int64_t kLargePart = int64_t{16} << 20;  // bytes

// Whether a value becomes an output of the model as it is, but for its shape and type.
bool is_given_out(const View& view, ValueId value) {
  if (view.is_output(value)) return true;
  return std::any_of(view.readers(value).begin(), view.readers(value).end(), [&](NodeId reader) {
    const Node& node = view.graph().node(reader);
    return (node.op->name == "Reshape" || node.op->name == "Cast") && is_given_out(view, node.outputs[0]);
  });
}

// Parts of a model's head begin where chunks of a loss's classes do, so that its logits can be divided (passes/split_logits.h): unless that
// makes them large.
int64_t rows_for_logits(const View& view, ValueId weight, int64_t rows) {
  const Graph& graph = view.graph();
  const bool makes_logits = std::any_of(view.readers(weight).begin(), view.readers(weight).end(), [&](NodeId reader) {
    const Node& node = graph.node(reader);
    return node.op->name == "MatMul" && node.inputs[1] == weight && node.attributes.get("trans_b", 0) != 0 &&
           is_given_out(view, node.outputs[0]);
  });
  const int64_t chunks = std::lcm(rows, kClassChunk);
  return makes_logits && bytes_of(graph.value(weight).dtype, chunks * row_elements(graph.value(weight))) <= kLargePart ? chunks : rows;
}

// Where parts may begin, for the sake of all uses: at multiples of so many rows; 0: the weight isn't divided.
int64_t rows_for_all(const Graph& graph, ValueId weight, const std::vector<NodeId>& readers) {
  int64_t rows = readers.empty() ? 0 : kLeastDepthBlock;  // norms are summed in blocks of that many rows, or a part of them
  for (const NodeId reader : readers) {
    const int64_t of_use = rows == 0 ? 0 : rows_for(graph, graph.node(reader), weight);
    rows = of_use == 0 ? 0 : std::lcm(rows, of_use);
  }
  return rows;
}

// At multiples of a block of quantized state, too, but where parts would be large and the optimizer quantizes none.
int64_t whole_rows(const Value& weight, int64_t block, const Optimizer& optimizer) {
  const int64_t elements = std::lcm(kStateBlock, storage_of(weight.dtype).block_elements);
  const int64_t rows = std::lcm(block, elements / std::gcd(elements, row_elements(weight)));
  if (is_weight_blocks(weight.dtype)) return rows;
  return optimizer.state_block() == 1 && rows > block && rows * (weight.bytes() / weight.shape[0]) > kLargePart ? block : rows;
}

// The same for tests, whose parts begin anywhere else.
int64_t least_rows(const Value& weight, const PassOptions& options) {
  const int64_t block = std::lcm(options.optimizer.state_block(), storage_of(weight.dtype).block_elements);
  return std::lcm(options.part_rows, block / std::gcd(block, row_elements(weight)));
}

int64_t rows_of_part(const Value& weight, int64_t block, int64_t part_bytes, const PassOptions& options) {
  const int64_t rows = weight.shape[0];
  if (weight.bytes() == 0 || weight.bytes() / 2 < part_bytes) return 0;
  if (options.part_rows == 0 && weight.bytes() < kPackBytes) return 0;  // what is packed has nothing to do with parts
  const int64_t whole = options.part_rows > 0 ? least_rows(weight, options) : whole_rows(weight, block, options.optimizer);
  const int64_t most = std::max(whole, part_bytes / std::max<int64_t>(1, weight.bytes() / rows) / whole * whole);
  const int64_t parts = (rows + most - 1) / most;
  const int64_t of_part = ((rows + parts - 1) / parts + whole - 1) / whole * whole;  // about the same, and not more than `most`
  return of_part < rows ? of_part : 0;
}

struct Part {
  ValueId value = kNone;
  RowRange rows{};
};

class Splitter {
 public:
  Splitter(Graph& graph, ValueId weight) : graph_(graph), weight_(weight) {
    const Value whole = graph.value(weight);
    for (int64_t first = 0; first < whole.shape[0]; first += whole.part_rows) {
      const RowRange rows{.first = first, .count = std::min(whole.part_rows, whole.shape[0] - first), .total = whole.shape[0]};
      Value part{.name = fmt::format("{}[{}:{}]", whole.name, first, first + rows.count),
                 .dtype = whole.dtype,
                 .shape = whole.shape,
                 .kind = ValueKind::parameter,
                 .trainable = whole.trainable,
                 .quantized_state = whole.quantized_state,
                 .group = whole.group,
                 .whole = whole.name,
                 .whole_offset = bytes_of(whole.dtype, first * row_elements(whole)),
                 .ordinal = whole.ordinal};
      part.shape[0] = rows.count;
      const std::string name = part.name;
      parts_.push_back({.value = graph.add_value(std::move(part)), .rows = rows});
      if (graph.value(parts_.back().value).name != name)
        throw error(ErrorCode::unsupported, "'{}' is a name in the model that a part of the weight '{}' has to have: rename it", name,
                    whole.name);
    }
  }

  const std::vector<Part>& parts() const { return parts_; }

  // `id` reads the parts instead of the weight.
  void split_reader(NodeId id) {
    if (rows_for(graph_, graph_.node(id), weight_) > 0) return share_out(id);
    if (whole_ == kNone) {
      std::vector<ValueId> all;
      for (const Part& part : parts_) all.push_back(part.value);
      whole_ =
          Builder(graph_, graph_.node(id).stage).named(graph_.value(weight_).name).before(id).emit("Concat", all, {{"axis", int64_t{0}}});
    }
    std::replace(graph_.node(id).inputs.begin(), graph_.node(id).inputs.end(), weight_, whole_);
  }

  // The parts of one use's gradient, made by themselves where its op can, so that the whole never is.
  std::vector<ValueId> split_gradient(ValueId gradient, bool is_read) {
    const NodeId maker = graph_.value(gradient).producer;
    const Node node = maker == kNone ? Node{} : graph_.node(maker);
    Builder builder(graph_, Stage::backward);
    builder.named(node.name, node.ordinal);
    std::vector<ValueId> parts;
    if (node.op && node.op->traits.division.gradient && !is_read) {
      builder.before(maker);
      for (const Part& part : parts_) {
        std::optional<PartNode> made = node.op->traits.division.gradient(graph_, node, part.rows);
        if (!made) break;
        parts.push_back(builder.emit(made->op, std::move(made->inputs), std::move(made->attributes)));
      }
      require(parts.empty() || parts.size() == parts_.size(), "an op that divides a gradient into some of its parts");
    }
    if (!parts.empty()) {
      graph_.remove_node(maker);
      return parts;
    }
    const std::vector<NodeId>& order = graph_.order();
    const auto at = std::find(order.begin(), order.end(), maker);
    builder.before(at == order.end() || std::next(at) == order.end() ? kNone : *std::next(at));
    for (const Part& part : parts_) {
      parts.push_back(builder.emit("Slice", {gradient},
                                   {{"starts", std::vector<int64_t>{part.rows.first}},
                                    {"ends", std::vector<int64_t>{part.rows.first + part.rows.count}},
                                    {"axes", std::vector<int64_t>{0}}}));
    }
    return parts;
  }

 private:
  // A node for each part, each with what the one before it made; the last one is `id` itself.
  void share_out(NodeId id) {
    const Node node = graph_.node(id);
    const auto input = static_cast<size_t>(std::find(node.inputs.begin(), node.inputs.end(), weight_) - node.inputs.begin());
    Builder builder(graph_, node.stage);
    builder.named(node.name, node.ordinal).before(id);
    ValueId before = kNone;
    for (const Part& part : parts_) {
      PartNode made = node.op->traits.division.share(graph_, node, input, part.value, part.rows, before);
      if (&part != &parts_.back()) {
        before = builder.emit(made.op, std::move(made.inputs), std::move(made.attributes));
        continue;
      }
      Node& last = graph_.node(id);
      last.op = &op_named(made.op);
      last.inputs = std::move(made.inputs);
      last.attributes = std::move(made.attributes);
    }
  }

  Graph& graph_;
  const ValueId weight_;
  ValueId whole_ = kNone;
  std::vector<Part> parts_;
};

}  // namespace

int64_t usual_part_bytes(const Graph& graph) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  int64_t all = 0;
  for (const ValueId id : graph.parameters()) all += graph.value(id).bytes();
  return std::clamp(all / 128, 4 * kMiB, 16 * kMiB);
}

bool mark_parts(Graph& graph, const PassOptions& options) {
  const int64_t part_bytes = options.part_bytes > 0 ? options.part_bytes : usual_part_bytes(graph);
  const View view(graph);
  bool changed = false;
  for (const ValueId id : graph.parameters()) {
    Value& weight = graph.value(id);
    weight.part_rows = 0;
    if (weight.shape.size() < 2 || std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end()) continue;
    const int64_t block = rows_for_all(graph, id, view.readers(id));
    if (block > 0) weight.part_rows = rows_of_part(weight, rows_for_logits(view, id, block), part_bytes, options);
    if (block > 0 && weight.part_rows == 0) weight.part_rows = rows_of_part(weight, block, part_bytes, options);
    changed |= weight.part_rows > 0;
  }
  return changed;
}

bool split_weights(EntryGraph& job, std::map<ValueId, std::vector<ValueId>>& gradients) {
  Graph& graph = job.graph;
  bool changed = false;
  for (const ValueId weight : graph.parameters()) {
    if (graph.value(weight).part_rows == 0) continue;
    changed = true;
    Splitter splitter(graph, weight);
    const auto readers = graph.readers();
    for (const NodeId reader : readers[weight]) splitter.split_reader(reader);
    if (const auto uses = gradients.find(weight); uses != gradients.end()) {
      for (const ValueId use : uses->second) {
        const std::vector<ValueId> parts = splitter.split_gradient(use, !readers[use].empty());
        for (size_t i = 0; i < parts.size(); ++i) gradients[splitter.parts()[i].value].push_back(parts[i]);
      }
      gradients.erase(uses);
    }
    for (const Part& part : splitter.parts()) {
      const Value& value = graph.value(part.value);
      job.slices[graph.value(weight).name].push_back({.name = value.name, .offset = 0, .bytes = value.bytes()});
    }
    graph.value(weight).kind = ValueKind::activation;  // nobody reads it any more
  }
  return changed;
}

}  // namespace ort_train
