#include "frontend/op_times.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "frontend/report_files.h"

namespace ort_train {
namespace {

using OpJson = nlohmann::ordered_json;

// Adds what the work took, in seconds a run, and its share of all.
void append_times(OpJson& to, const Cost& work, double seconds, double all) {
  const auto rate = [&](double amount) { return seconds > 0 ? amount / seconds * 1e-9 : 0; };
  to["ms"] = seconds * 1e3;
  to["share"] = all > 0 ? seconds / all : 0;
  to["gflops"] = rate(work.flops);
  to["gigabytes_per_second"] = rate(work.bytes);
}

OpJson tasks_json(const TaskTimes& of, double outside) {
  return {{"loops", of.loops},           {"count", of.tasks},
          {"ms", of.task_seconds * 1e3}, {"longest_ms", of.longest * 1e3},
          {"outside_ms", outside * 1e3}, {"scheduled_ms", (outside + of.scheduled) * 1e3}};
}

}  // namespace

OpTimes::OpTimes(const Program& program, const std::vector<const Graph*>& graphs, const KernelTables& kernels, int threads)
    : threads_(threads) {
  for (size_t e = 0; e < program.entries.size(); ++e) {
    const Graph& graph = *graphs[e];
    EntryTimes& times = entries_.emplace_back();
    times.name = program.entries[e].name;
    for (const Instruction& instruction : program.entries[e].code) {
      times.node_of.push_back(kNoNode);
      if (instruction.action != Action::compute || is_view(graph.node(instruction.node), instruction)) continue;
      const Node& node = graph.node(instruction.node);
      times.node_of.back() = times.nodes.size();
      times.nodes.push_back({.op = std::string(node.op->name), .node = node.name, .result = graph.value(node.outputs[0]).shape});
      const Kernel* const kernel = kernels(program.spaces[program.queues[instruction.queue].from].kind)->find(*node.op);
      if (kernel != nullptr && kernel->cost != nullptr) times.nodes.back().work = kernel->cost(make_spec(graph, node));
    }
  }
}

void OpTimes::add(size_t entry, const RunTimes& took) {
  EntryTimes& times = entries_[entry];
  if (++times.runs == 0) return;
  has_tasks_ |= !took.tasks.empty();
  for (size_t i = 0; i < times.node_of.size(); ++i) {
    if (times.node_of[i] == kNoNode) continue;
    Timed& node = times.nodes[times.node_of[i]];
    node.seconds += took.seconds[i];
    if (took.tasks.empty()) continue;
    const TaskTimes& tasks = took.tasks[i];
    const double outside = std::max(0.0, took.seconds[i] - tasks.loop_seconds);
    if (times.runs > 1 && outside + tasks.scheduled >= node.outside + node.tasks.scheduled) continue;
    node.outside = outside;
    node.tasks = tasks;
  }
}

void OpTimes::write(const std::string& path) const {
  struct Op {
    int64_t nodes = 0;
    Cost work;
    double seconds = 0;
  };
  OpJson entries = OpJson::array();
  for (const EntryTimes& times : entries_) {
    if (times.runs <= 0) continue;
    const auto runs = static_cast<double>(times.runs);
    std::map<std::string, Op> by_name;
    double all = 0;
    for (const Timed& node : times.nodes) {
      Op& op = by_name[node.op];
      ++op.nodes;
      op.work.flops += node.work.flops;
      op.work.bytes += node.work.bytes;
      op.seconds += node.seconds / runs;
      all += node.seconds / runs;
    }
    std::vector<std::pair<std::string, Op>> ops(by_name.begin(), by_name.end());
    std::stable_sort(ops.begin(), ops.end(), [](const auto& a, const auto& b) { return a.second.seconds > b.second.seconds; });
    OpJson op_list = OpJson::array(), node_list = OpJson::array();
    for (const auto& [name, op] : ops)
      append_times(op_list.emplace_back(OpJson{{"op", name}, {"nodes", op.nodes}}), op.work, op.seconds, all);
    for (const Timed& node : times.nodes) {
      OpJson& of_node = node_list.emplace_back(OpJson{{"op", node.op}, {"node", node.node}, {"result", node.result}});
      append_times(of_node, node.work, node.seconds / runs, all);
      if (has_tasks_) of_node["tasks"] = tasks_json(node.tasks, node.outside);
    }
    entries.push_back({{"entry", times.name}, {"runs", times.runs}, {"ops", std::move(op_list)}, {"nodes", std::move(node_list)}});
  }
  OpJson all_times;
  if (has_tasks_) all_times["threads"] = threads_;
  all_times["entries"] = std::move(entries);
  write_report(path, all_times.dump(2, ' ', false, OpJson::error_handler_t::replace) + "\n");
}

}  // namespace ort_train
