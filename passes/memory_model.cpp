#include "passes/memory_model.h"

#include <algorithm>
#include <climits>

#include "exec/kernel.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

constexpr int32_t kForever = INT_MAX;

// The input that output i changes; kNone where it is an output of its own.
ValueId written(const Node& node, size_t output) {
  for (const Alias& write : node.op->writes) {
    if (static_cast<size_t>(write.output) == output) return node.inputs[write.input];
  }
  return kNone;
}

class ModelMaker {
 public:
  ModelMaker(const Graph& graph, const std::vector<ValueId>& keep, const KernelTable& kernels)
      : graph_(graph), keep_(keep), kernels_(kernels), last_use_(graph.value_count(), -1) {
    for (ValueId value : keep) last_use_[value] = kForever;
    model_.class_of.assign(graph.value_count(), kNone);
    model_.offset_of.assign(graph.value_count(), 0);
    version_.assign(graph.value_count(), 0);
  }

  MemoryModel make(const std::vector<int64_t>& workspaces) {
    find_last_uses();
    find_copies();
    add_given_values();
    const auto& order = graph_.order();
    model_.steps.resize(order.size());
    producer_step_.assign(graph_.value_count(), kNone);
    for (uint32_t at = 0; at < order.size(); ++at) add_step(at, workspaces[at]);
    for (ValueId value : keep_) {
      require(model_.class_of[value] != kNone, "the planner is to keep a value that nothing makes");
      check_version(value, "is wanted at the end");
      model_.classes[model_.class_of[value]].kept = true;
    }
    // What is kept can't be written over; the rest of what in-place needs depends on the order.
    for (MemoryStep& step : model_.steps) {
      std::erase_if(step.in_place, [&](const auto& pair) { return model_.classes[pair.second].kept; });
    }
    return std::move(model_);
  }

 private:
  // When each value's bytes are last wanted, by itself or through a view.
  void find_last_uses() {
    const auto& order = graph_.order();
    for (auto at = static_cast<int32_t>(order.size()) - 1; at >= 0; --at) {
      const Node& node = graph_.node(order[at]);
      const ValueId source = viewed(node);
      if (source != kNone) last_use_[source] = std::max(last_use_[source], last_use_[node.outputs[0]]);
      for (ValueId input : node.inputs) {
        if (input != kNone) last_use_[input] = std::max(last_use_[input], at);
      }
    }
  }

  // A view of something that is changed while the view is still wanted has to be a copy.
  void find_copies() {
    std::vector<ValueId> base(graph_.value_count());  // whose memory a value has if every view is one
    for (ValueId value = 0; value < base.size(); ++value) base[value] = value;
    std::vector<std::vector<int32_t>> changes(graph_.value_count());  // by base, ascending
    const auto& order = graph_.order();
    for (int32_t at = 0; at < static_cast<int32_t>(order.size()); ++at) {
      const Node& node = graph_.node(order[at]);
      if (const ValueId source = viewed(node); source != kNone) base[node.outputs[0]] = base[source];
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        const ValueId target = written(node, i);
        if (node.outputs[i] == kNone || target == kNone) continue;
        base[node.outputs[i]] = base[target];
        changes[base[target]].push_back(at);
      }
    }
    copy_.assign(graph_.value_count(), false);
    for (int32_t at = 0; at < static_cast<int32_t>(order.size()); ++at) {
      if (viewed(graph_.node(order[at])) == kNone) continue;
      const ValueId view = graph_.node(order[at]).outputs[0];
      const auto& times = changes[base[view]];
      const auto next = std::upper_bound(times.begin(), times.end(), at);
      copy_[view] = next != times.end() && *next <= last_use_[view];
    }
  }

  uint32_t add_class(ValueId root, bool persistent, bool fed) {
    model_.classes.push_back({.root = root, .bytes = aligned(graph_.value(root).bytes()), .persistent = persistent, .fed = fed});
    current_.push_back(0);
    readers_.emplace_back();
    return static_cast<uint32_t>(model_.classes.size() - 1);
  }

  // What is there before the first node: inputs, and what lives across runs.
  void add_given_values() {
    for (ValueId id = 0; id < graph_.value_count(); ++id) {
      const Value& value = graph_.value(id);
      if (value.producer != kNone) continue;
      const bool fed = value.kind == ValueKind::input;
      const bool declared = std::find(graph_.inputs.begin(), graph_.inputs.end(), id) != graph_.inputs.end();
      // Parameters and state have a place even where this entry has no use for them: they are saved and exported.
      const bool state =
          value.kind == ValueKind::parameter || value.kind == ValueKind::optimizer_state || value.kind == ValueKind::accumulator;
      if (!declared && !state && last_use_[id] < 0) continue;
      model_.class_of[id] = add_class(id, /*persistent=*/!fed, fed);
    }
  }

  void add_step(uint32_t at, int64_t workspace) {
    const NodeId id = graph_.order()[at];
    const Node& node = graph_.node(id);
    MemoryStep& step = model_.steps[at];
    step.node = id;
    step.workspace = aligned(workspace);
    for (ValueId input : node.inputs) {
      if (input == kNone) continue;
      require(model_.class_of[input] != kNone, "the planner met a value that nothing makes");
      check_version(input, "is read");
      if (producer_step_[input] != kNone) link(producer_step_[input], at);
      const uint32_t c = model_.class_of[input];
      if (model_.classes[c].persistent) use_persistent(step, c, !is_overwritten(node, input));
      if (std::find(readers_[c].begin(), readers_[c].end(), at) != readers_[c].end()) continue;
      readers_[c].push_back(at);
      ++model_.classes[c].readers;
      if (!model_.classes[c].persistent) step.reads.push_back(c);
    }
    for (size_t i = 0; i < node.outputs.size(); ++i) {
      if (node.outputs[i] != kNone) add_output(node, i, at);
    }
  }

  static bool is_overwritten(const Node& node, ValueId input) {
    return node.op->overwrites && written(node, 0) == input && std::count(node.inputs.begin(), node.inputs.end(), input) == 1;
  }

  static void use_persistent(MemoryStep& step, uint32_t c, bool reads) {
    auto use = std::find_if(step.persistents.begin(), step.persistents.end(), [&](const PersistentUse& u) { return u.of == c; });
    if (use == step.persistents.end()) use = step.persistents.insert(use, {.of = c});
    use->reads |= reads;
  }

  void add_output(const Node& node, size_t i, uint32_t at) {
    const ValueId output = node.outputs[i];
    MemoryStep& step = model_.steps[at];
    producer_step_[output] = at;
    if (const ValueId target = written(node, i); target != kNone) {
      const uint32_t c = model_.class_of[target];
      model_.class_of[output] = c;
      version_[output] = ++current_[c];
      for (uint32_t reader : readers_[c]) link(reader, at);  // whoever reads the old value goes first
      readers_[c] = {at};
      for (PersistentUse& use : step.persistents) use.changes |= use.of == c;
    } else if (viewed(node) != kNone && !copy_[output]) {
      model_.class_of[output] = model_.class_of[viewed(node)];
      model_.offset_of[output] = model_.offset_of[viewed(node)] + view_offset(node);
      version_[output] = version_[viewed(node)];
    } else {
      const uint32_t c = add_class(output, false, false);
      model_.class_of[output] = c;
      step.defines.push_back(c);
      for (const Alias& alias : in_place_of(*node.op)) {
        if (static_cast<size_t>(alias.output) == i && fits_in_place(node, alias))
          step.in_place.emplace_back(c, model_.class_of[node.inputs[alias.input]]);
      }
    }
  }

  // Where the kernel may write an output over an input.
  const List<Alias, 4>& in_place_of(const OpDef& op) const {
    static const List<Alias, 4> nowhere;
    const Kernel* const kernel = kernels_.find(op);
    return kernel ? kernel->in_place : nowhere;
  }

  // Ops that may overwrite one input say nothing of another that is the same memory.
  bool fits_in_place(const Node& node, const Alias& alias) const {
    if (static_cast<size_t>(alias.input) >= node.inputs.size() || node.inputs[alias.input] == kNone) return false;
    const ValueId input = node.inputs[alias.input], output = node.outputs[alias.output];
    const uint32_t c = model_.class_of[input];
    const int64_t bytes = graph_.value(model_.classes[c].root).bytes();
    if (model_.classes[c].persistent || bytes == 0 || graph_.value(input).bytes() != bytes || graph_.value(output).bytes() != bytes)
      return false;
    if (element_count(graph_.value(input).shape) != element_count(graph_.value(output).shape))
      return false;  // broadcast, of wider elements
    for (size_t j = 0; j < node.inputs.size(); ++j) {
      if (j != static_cast<size_t>(alias.input) && node.inputs[j] != kNone && model_.class_of[node.inputs[j]] == c) return false;
    }
    for (size_t j = 0; j < node.outputs.size(); ++j) {
      if (const ValueId target = written(node, j); target != kNone && model_.class_of[target] == c) return false;
    }
    return true;
  }

  void check_version(ValueId value, const char* what) const {
    if (version_[value] == current_[model_.class_of[value]]) return;
    throw internal_error("'{}' {} after it was changed", graph_.value(value).name, what);
  }

  void link(uint32_t from, uint32_t to) {
    if (from == to) return;
    auto& before = model_.steps[to].before;
    if (std::find(before.begin(), before.end(), from) != before.end()) return;
    before.push_back(from);
    model_.steps[from].after.push_back(to);
  }

  const Graph& graph_;
  const std::vector<ValueId>& keep_;
  const KernelTable& kernels_;
  MemoryModel model_;
  std::vector<int32_t> last_use_;               // by ValueId; -1: none
  std::vector<bool> copy_;                      // by ValueId: a view that must be a copy
  std::vector<int32_t> version_;                // by ValueId: which state of its class it is
  std::vector<int32_t> current_;                // by class
  std::vector<std::vector<uint32_t>> readers_;  // by class: of its current state
  std::vector<uint32_t> producer_step_;         // by ValueId
};

}  // namespace

MemoryModel make_memory_model(const Graph& graph, const std::vector<ValueId>& keep, const std::vector<int64_t>& workspaces,
                              const KernelTable& kernels) {
  return ModelMaker(graph, keep, kernels).make(workspaces);
}

Peak simulate(const MemoryModel& model, const StepOrder& order, std::vector<Buffer>* buffers, std::vector<StepLoad>* loads) {
  constexpr uint32_t kNowhere = kNone;
  std::vector<uint32_t> remaining(model.classes.size());
  std::vector<uint32_t> buffer_of(buffers ? model.classes.size() : 0, kNowhere);
  std::vector<uint32_t> taken;  // classes that the present step writes over
  int64_t live = 0;
  const auto end = static_cast<int32_t>(order.size()) - 1;
  const auto open = [&](uint32_t c, int32_t at) {
    live += model.classes[c].bytes;
    if (!buffers) return;
    buffer_of[c] = static_cast<uint32_t>(buffers->size());
    const MemoryClass& of = model.classes[c];
    buffers->push_back({.classes = {c}, .bytes = of.bytes, .first = at, .last = std::max(at, end), .fed = of.fed, .kept = of.kept});
  };
  const auto close = [&](uint32_t c, int32_t at) {
    live -= model.classes[c].bytes;
    if (buffers) (*buffers)[buffer_of[c]].last = at;
  };
  if (buffers) buffers->clear();
  if (loads) loads->clear();
  for (uint32_t c = 0; c < model.classes.size(); ++c) {
    remaining[c] = model.classes[c].readers;
    if (model.classes[c].fed) open(c, 0);
  }
  Peak peak{.bytes = end < 0 ? live : -1};
  for (int32_t at = 0; at <= end; ++at) {
    const MemoryStep& step = model.steps[order[at]];
    const int64_t before = live;
    taken.clear();
    for (uint32_t c : step.defines) {
      const auto place = std::find_if(step.in_place.begin(), step.in_place.end(), [&](const auto& pair) {
        return pair.first == c && remaining[pair.second] == 1 && std::find(taken.begin(), taken.end(), pair.second) == taken.end();
      });
      if (place == step.in_place.end()) {
        open(c, at);
        continue;
      }
      taken.push_back(place->second);
      if (buffers) {
        buffer_of[c] = buffer_of[place->second];
        Buffer& buffer = (*buffers)[buffer_of[c]];
        buffer.classes.push_back(c);
        buffer.fed |= model.classes[c].fed;
        buffer.kept |= model.classes[c].kept;
      }
    }
    const int64_t now = live + step.workspace;
    if (loads) loads->push_back({.before = before, .during = now});
    if (now > peak.bytes) peak = {.bytes = now, .at = at, .times = 0};
    peak.times += now == peak.bytes;
    for (uint32_t c : step.reads) {
      if (--remaining[c] == 0 && !model.classes[c].kept && std::find(taken.begin(), taken.end(), c) == taken.end()) close(c, at);
    }
    for (uint32_t c : step.defines) {
      if (remaining[c] == 0 && !model.classes[c].kept) close(c, at);
    }
    if (at == 0) {  // inputs that nobody reads are fed all the same
      for (uint32_t c = 0; c < model.classes.size(); ++c) {
        if (model.classes[c].fed && model.classes[c].readers == 0 && !model.classes[c].kept) close(c, at);
      }
    }
  }
  return peak;
}

}  // namespace ort_train
