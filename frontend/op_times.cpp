#include "frontend/op_times.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "exec/kernel.h"
#include "frontend/file.h"

namespace ort_train {

OpTimes::OpTimes(const Program& program, const std::vector<const Graph*>& graphs, const KernelTables& kernels) {
  for (size_t e = 0; e < program.entries.size(); ++e) {
    const Graph& graph = *graphs[e];
    EntryTimes& times = entries_.emplace_back();
    times.name = program.entries[e].name;
    std::map<std::string_view, size_t> positions;
    for (const Instruction& instruction : program.entries[e].code) {
      times.op_of.push_back(kNoOp);
      if (instruction.action != Action::compute || is_view(graph.node(instruction.node), instruction)) continue;
      const Node& node = graph.node(instruction.node);
      const auto [at, is_new] = positions.emplace(node.op->name, times.ops.size());
      if (is_new) times.ops.push_back({.name = std::string(node.op->name)});
      times.op_of.back() = at->second;
      Op& op = times.ops[at->second];
      ++op.nodes;
      const Kernel* const kernel = kernels(program.spaces[program.queues[instruction.queue].from].kind)->find(*node.op);
      if (kernel == nullptr || kernel->cost == nullptr) continue;
      const Cost cost = kernel->cost(make_spec(graph, node));
      op.flops += cost.flops;
      op.bytes += cost.bytes;
    }
  }
}

void OpTimes::add(size_t entry, std::span<const double> seconds) {
  EntryTimes& times = entries_[entry];
  if (++times.runs == 0) return;
  for (size_t i = 0; i < times.op_of.size(); ++i) {
    if (times.op_of[i] != kNoOp) times.ops[times.op_of[i]].seconds += seconds[i];
  }
}

void OpTimes::write(const std::string& path) const {
  using Json = nlohmann::ordered_json;
  Json entries = Json::array();
  for (const EntryTimes& times : entries_) {
    if (times.runs <= 0) continue;
    std::vector<Op> ops = times.ops;
    std::stable_sort(ops.begin(), ops.end(), [](const Op& a, const Op& b) { return a.seconds > b.seconds; });
    double all = 0;
    for (const Op& op : ops) all += op.seconds;
    Json list = Json::array();
    for (const Op& op : ops) {
      const double each = op.seconds / static_cast<double>(times.runs);
      const auto rate = [&](double work) { return each > 0 ? work / each * 1e-9 : 0; };
      list.push_back({{"op", op.name},
                      {"nodes", op.nodes},
                      {"ms", each * 1e3},
                      {"share", all > 0 ? op.seconds / all : 0},
                      {"gflops", rate(op.flops)},
                      {"gigabytes_per_second", rate(op.bytes)}});
    }
    entries.push_back({{"entry", times.name}, {"runs", times.runs}, {"ops", std::move(list)}});
  }
  make_folders(folder_of(path));
  replace_file(path, Json{{"entries", std::move(entries)}}.dump(2) + "\n");
}

}  // namespace ort_train
