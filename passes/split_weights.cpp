#include "passes/split_weights.h"

#include <algorithm>
#include <numeric>

#include "exec/depth_block.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/pack_weights.h"

namespace ort_train {
namespace {

bool flag(const Node& node, const char* name) { return node.attributes.get(name, int64_t{0}) != 0; }

// Both know parts of the weight.
bool is_product(const Node& node, ValueId weight) {
  return node.op->name == "MatMul" && node.inputs[1] == weight && node.inputs[0] != weight && !flag(node, "trans_a");
}
bool is_lookup(const Node& node, ValueId weight) {
  return node.op->name == "Gather" && node.inputs[0] == weight && node.attributes.get("axis", int64_t{0}) == 0;
}

// Where parts of a matrix may begin: at multiples of so many rows.
int64_t whole_rows(const Value& weight) {
  constexpr int64_t kQuantized = 256, kMuch = int64_t{16} << 20;  // elements of a block of quantized state; bytes
  const int64_t width = weight.shape[1], block = depth_block(weight.shape[0], width);
  const int64_t rows = std::lcm(block, kQuantized / std::gcd(kQuantized, width));
  return rows > block && rows * (weight.bytes() / weight.shape[0]) > kMuch ? block : rows;
}

int64_t rows_of_part(const Value& weight, const PassOptions& options) {
  const int64_t rows = weight.shape[0];
  if (weight.bytes() == 0 || weight.bytes() / 2 < options.part_bytes) return 0;
  if (options.part_rows == 0 && weight.bytes() < kPackBytes) return 0;  // what is packed has nothing to do with parts
  const int64_t whole = options.part_rows > 0 ? options.part_rows : whole_rows(weight);
  const int64_t most = std::max(whole, options.part_bytes / (weight.bytes() / rows) / whole * whole);
  const int64_t parts = (rows + most - 1) / most;
  const int64_t of_part = ((rows + parts - 1) / parts + whole - 1) / whole * whole;  // about the same, and not more than `most`
  return of_part < rows ? of_part : 0;
}

struct Part {
  ValueId value = kNone;
  int64_t first = 0, rows = 0;
};

class Splitter {
 public:
  Splitter(Graph& graph, ValueId weight) : graph_(graph), weight_(weight) {
    const Value whole = graph.value(weight);
    for (int64_t first = 0; first < whole.shape[0]; first += whole.part_rows) {
      const int64_t rows = std::min(whole.part_rows, whole.shape[0] - first);
      Value part{.name = fmt::format("{}[{}:{}]", whole.name, first, first + rows),
                 .dtype = whole.dtype,
                 .shape = {rows, whole.shape[1]},
                 .kind = ValueKind::parameter,
                 .trainable = whole.trainable};
      const std::string name = part.name;
      parts_.push_back({.value = graph.add_value(std::move(part)), .first = first, .rows = rows});
      if (graph.value(parts_.back().value).name != name)
        throw error(ErrorCode::unsupported, "'{}' is a name in the model that a part of the weight '{}' has to have: rename it", name,
                    whole.name);
    }
  }

  const std::vector<Part>& parts() const { return parts_; }

  // `id` reads the parts instead of the weight.
  void split_reader(NodeId id) {
    const Node node = graph_.node(id);
    if (is_lookup(node, weight_)) {
      chain(id, [&](const Part& part, ValueId base) {
        return Made{"GatherPart", {part.value, node.inputs[1], base}, {{"first", part.first}, {"total", rows()}}};
      });
    } else if (is_product(node, weight_)) {
      const ValueId bias = node.inputs.size() > 2 ? node.inputs[2] : kNone;
      const bool across = flag(node, "trans_b");  // the weight's rows are columns of y; else of the first factor
      chain(id, [&](const Part& part, ValueId base) {
        Attributes attributes = node.attributes;
        attributes.set(across ? "y_from" : "a_from", part.first);
        attributes.set(across ? "y_columns" : "a_width", across ? rows() : part.rows);
        return Made{"MatMulPart", {node.inputs[0], part.value, across || base == kNone ? bias : kNone, base}, attributes};
      });
    } else {  // a use that nobody foresaw: it gets the weight put together
      if (whole_ == kNone) {
        std::vector<ValueId> all;
        for (const Part& part : parts_) all.push_back(part.value);
        whole_ = Builder(graph_, node.stage).named(graph_.value(weight_).name).before(id).emit("Concat", all, {{"axis", int64_t{0}}});
      }
      std::replace(graph_.node(id).inputs.begin(), graph_.node(id).inputs.end(), weight_, whole_);
    }
  }

  // The parts of one use's gradient; a product or a lookup is divided, so that the whole never is.
  std::vector<ValueId> split_gradient(ValueId gradient, bool is_read) {
    const NodeId maker = graph_.value(gradient).producer;
    const Node node = maker == kNone ? Node{} : graph_.node(maker);
    const bool product = node.op && node.op->name == "MatMul" && flag(node, "trans_a") && node.inputs.size() == 2 &&
                         graph_.value(node.inputs[0]).shape.size() == 2 && graph_.value(node.inputs[1]).shape.size() == 2;
    const bool lookup = node.op && node.op->name == "GatherGrad" && node.attributes.get("axis", int64_t{0}) == 0;
    Builder builder(graph_, Stage::backward);
    builder.named(node.name, node.ordinal);
    if (!is_read && (product || lookup)) {
      std::vector<ValueId> parts;
      builder.before(maker);
      for (const Part& part : parts_) {
        Attributes attributes = node.attributes;
        if (product) {
          attributes.set("a_from", part.first);
          attributes.set("a_width", part.rows);
        } else {  // `shape` stays that of the whole table
          attributes.set("first", part.first);
          attributes.set("rows", part.rows);
        }
        parts.push_back(builder.emit(product ? "MatMulPart" : "GatherGrad", node.inputs, attributes));
      }
      graph_.remove_node(maker);
      return parts;
    }
    const std::vector<NodeId>& order = graph_.order();
    const auto at = std::find(order.begin(), order.end(), maker);
    builder.before(at == order.end() || std::next(at) == order.end() ? kNone : *std::next(at));
    std::vector<ValueId> parts;
    for (const Part& part : parts_) {
      parts.push_back(builder.emit("Slice", {gradient},
                                   {{"starts", std::vector<int64_t>{part.first}},
                                    {"ends", std::vector<int64_t>{part.first + part.rows}},
                                    {"axes", std::vector<int64_t>{0}}}));
    }
    return parts;
  }

 private:
  struct Made {
    const char* op;
    std::vector<ValueId> inputs;
    Attributes attributes;
  };

  int64_t rows() const { return graph_.value(weight_).shape[0]; }

  // A node for each part, each with what the one before it made; the last one is `id` itself.
  template <typename Make> void chain(NodeId id, Make&& make) {
    const Node node = graph_.node(id);
    Builder builder(graph_, node.stage);
    builder.named(node.name, node.ordinal).before(id);
    ValueId base = kNone;
    for (const Part& part : parts_) {
      Made made = make(part, base);
      if (&part != &parts_.back()) {
        base = builder.emit(made.op, made.inputs, made.attributes);
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

bool mark_parts(Graph& graph, const PassOptions& options) {
  const auto readers = graph.readers();
  bool changed = false;
  for (const ValueId id : graph.parameters()) {
    Value& weight = graph.value(id);
    if (weight.shape.size() != 2) continue;
    weight.part_rows = 0;
    if (std::find(graph.outputs.begin(), graph.outputs.end(), id) != graph.outputs.end()) continue;
    const bool fits = std::all_of(readers[id].begin(), readers[id].end(),
                                  [&](NodeId reader) { return is_product(graph.node(reader), id) || is_lookup(graph.node(reader), id); });
    if (!fits || readers[id].empty()) continue;
    weight.part_rows = rows_of_part(weight, options);
    changed |= weight.part_rows > 0;
  }
  return changed;
}

bool split_weights(JobGraph& job, std::map<ValueId, std::vector<ValueId>>& gradients) {
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

std::map<std::string, PlaceOfPart> part_places(const JobGraph& job) {
  std::map<std::string, PlaceOfPart> places;
  for (const auto& [weight, slices] : job.slices) {
    if (slices.size() == 1) continue;  // it is in a pack
    int64_t offset = 0;
    for (const Slice& slice : slices) {
      places[slice.name] = {.weight = weight, .offset = offset};
      offset += slice.bytes;
    }
  }
  return places;
}

}  // namespace ort_train
