#include "passes/micro_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "graph/op_def.h"

namespace ort_train {
namespace {

// Bytes that cross from each node of the order to the next without leaving their stage: what only the backward pass reads again crosses the
// rest of the forward pass wherever it is cut.
std::vector<int64_t> flow(const Graph& graph) {
  const std::vector<NodeId>& order = graph.order();
  const std::vector<ValueId> owner = memory_owners(graph);
  std::vector<int32_t> made(graph.value_count(), -1), last(graph.value_count(), -1);
  for (size_t at = 0; at < order.size(); ++at) {
    const Node& node = graph.node(order[at]);
    for (ValueId input : node.inputs) {
      if (input == kNone || made[owner[input]] < 0) continue;
      const Node& maker = graph.node(order[static_cast<size_t>(made[owner[input]])]);
      if (maker.stage == node.stage) last[owner[input]] = static_cast<int32_t>(at);
    }
    for (ValueId output : node.outputs) {
      if (output != kNone && owner[output] == output && node.op->writes.empty()) made[output] = static_cast<int32_t>(at);
    }
  }
  std::vector<int64_t> bytes(order.size() + 1, 0);
  for (ValueId id = 0; id < graph.value_count(); ++id) {
    if (last[id] < 0) continue;
    bytes[static_cast<size_t>(made[id])] += graph.value(id).bytes();
    bytes[static_cast<size_t>(last[id])] -= graph.value(id).bytes();
  }
  for (size_t at = 1; at < bytes.size(); ++at) bytes[at] += bytes[at - 1];
  return bytes;
}

// By position: updates go with what comes after them.
std::vector<Stage> stages(const Graph& graph) {
  std::vector<Stage> stages;
  for (const NodeId id : graph.order()) stages.push_back(graph.node(id).stage);
  for (size_t at = stages.size(); at-- > 1;) {
    if (stages[at - 1] == Stage::update) stages[at - 1] = stages[at];
  }
  return stages;
}

// Ends of segments, as positions after a node: the order's narrow places, of each stage by itself.
std::vector<size_t> segment_ends(const Graph& graph) {
  const std::vector<NodeId>& order = graph.order();
  const std::vector<Stage> stage = stages(graph);
  const std::vector<int64_t> bytes = flow(graph);
  std::vector<size_t> ends;
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && stage[end] == stage[begin]) ++end;
    std::vector<size_t> narrow;  // the last position of each dip
    for (size_t at = begin; at + 1 < end; ++at) {
      const bool falls = at == begin || bytes[at] <= bytes[at - 1];
      if (falls && bytes[at] < bytes[at + 1]) narrow.push_back(at);
    }
    if (!narrow.empty()) {
      std::vector<int64_t> widths;
      for (size_t at : narrow) widths.push_back(bytes[at]);
      std::nth_element(widths.begin(), widths.begin() + static_cast<std::ptrdiff_t>(widths.size() / 2), widths.end());
      const int64_t usual = widths[widths.size() / 2];
      for (size_t at : narrow) {
        if (bytes[at] <= usual) ends.push_back(at + 1);
      }
    }
    ends.push_back(end);
    begin = end;
  }
  return ends;
}

// Updates are made once: with the first batch, or with the last one where they read what batches make.
enum class Once : uint8_t { no, first, last };

std::vector<Once> find_once(const Graph& graph, const std::vector<ValueId>& shared) {
  std::vector<bool> varies(graph.value_count(), false);
  for (const ValueId input : graph.inputs) varies[input] = std::find(shared.begin(), shared.end(), input) == shared.end();
  std::vector<Once> result;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    const bool reads = std::any_of(node.inputs.begin(), node.inputs.end(), [&](ValueId input) { return input != kNone && varies[input]; });
    result.push_back(node.stage != Stage::update ? Once::no : reads ? Once::last : Once::first);
    for (const ValueId output : node.outputs) {
      if (output != kNone) varies[output] = result.back() != Once::first;
    }
  }
  return result;
}

}  // namespace

MicroBatches join_micro_batches(Graph& graph, size_t batches, const std::vector<ValueId>& shared) {
  const std::vector<NodeId> order = graph.order();
  const std::vector<size_t> ends = segment_ends(graph);
  const std::vector<Once> once = find_once(graph, shared);
  const std::vector<ValueId> inputs = graph.inputs, outputs = graph.outputs;
  std::vector<ValueId> same(graph.value_count());
  std::iota(same.begin(), same.end(), ValueId{0});
  MicroBatches copies(batches, same);

  const auto copy_value = [&](size_t batch, ValueId id) {
    Value value = graph.value(id);
    value.name += fmt::format(".batch{}", batch + 1);
    value.producer = kNone;
    return copies[batch][id] = graph.add_value(std::move(value));
  };
  const auto copy_node = [&](size_t batch, NodeId id) {
    Node node = graph.node(id);
    for (ValueId& input : node.inputs) input = input == kNone ? kNone : copies[batch][input];
    for (const Alias& write : node.op->writes) {  // a sum goes from batch to batch
      if (static_cast<size_t>(write.output) >= node.outputs.size()) continue;
      node.inputs[static_cast<size_t>(write.input)] = copies[batch - 1][node.outputs[static_cast<size_t>(write.output)]];
    }
    for (ValueId& output : node.outputs) output = output == kNone ? kNone : copy_value(batch, output);
    return graph.add_node(std::move(node));
  };
  for (size_t batch = 1; batch < batches; ++batch) {
    for (ValueId input : inputs) {
      if (std::find(shared.begin(), shared.end(), input) == shared.end()) graph.inputs.push_back(copy_value(batch, input));
    }
  }
  std::vector<NodeId> joined;
  for (size_t begin = 0, segment = 0; segment < ends.size(); begin = ends[segment++]) {
    for (size_t batch = 0; batch < batches; ++batch) {
      for (size_t at = begin; at < ends[segment]; ++at) {
        if (once[at] == Once::no) {
          joined.push_back(batch == 0 ? order[at] : copy_node(batch, order[at]));
        } else if (batch == (once[at] == Once::first ? 0 : batches - 1)) {
          for (ValueId& input : graph.node(order[at]).inputs) input = input == kNone ? kNone : copies[batch][input];
          joined.push_back(order[at]);
        }
      }
    }
  }
  graph.set_order(std::move(joined));
  for (size_t batch = 1; batch < batches; ++batch) {
    for (ValueId output : outputs) {
      if (copies[batch][output] != output) graph.outputs.push_back(copies[batch][output]);
    }
  }
  return copies;
}

}  // namespace ort_train
