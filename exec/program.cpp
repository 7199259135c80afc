#include "exec/program.h"

#include <algorithm>

#include "graph/op_def.h"

namespace ort_train {
namespace {

// 3,871.2: thousands separated, so that offsets of one column can be compared by eye.
std::string grouped(double number, int decimals) {
  std::string text = fmt::format("{:.{}f}", number, decimals);
  for (auto at = static_cast<std::ptrdiff_t>(text.find('.') == std::string::npos ? text.size() : text.find('.')) - 3; at > 0; at -= 3) {
    text.insert(static_cast<size_t>(at), 1, ',');
  }
  return text;
}

}  // namespace

std::string_view to_string(Purpose purpose) {
  switch (purpose) {
    case Purpose::weights:
      return "weights";
    case Purpose::gradients:
      return "gradients";
    case Purpose::optimizer:
      return "optimizer";
    case Purpose::activations:
      return "activations";
    case Purpose::inputs:
      return "inputs";
    case Purpose::constants:
      return "constants";
    case Purpose::workspace:
      return "workspace";
  }
  return "?";
}

bool is_view(const Node& node, const Instruction& instruction) {
  if (viewed(node) == kNone) return false;
  const auto input = static_cast<size_t>(node.op->alias[0].input);
  if (input >= instruction.inputs.size() || instruction.outputs.size() != 1) return false;
  const Place &whole = instruction.inputs[input], &view = instruction.outputs[0];
  return view.space == whole.space && view.offset == whole.offset + view_offset(node) && view.end() <= whole.end();
}

Program discrete_program() {
  Program program;
  program.spaces = {
      {.name = "device", .kind = SpaceKind::device}, {.name = "disk", .kind = SpaceKind::file, .alignment = kSector}, {.name = "host"}};
  program.queues = {{.name = "compute"},
                    {.name = "read", .ordered = false, .from = kFile, .to = kHost},
                    {.name = "write", .ordered = false, .from = kHost, .to = kFile},
                    {.name = "up", .from = kHost, .to = kMemory},
                    {.name = "down", .from = kMemory, .to = kHost},
                    {.name = "host", .from = kHost, .to = kHost}};
  return program;
}

std::vector<int32_t> first_waits(const Entry& entry) {
  std::vector<int32_t> first(entry.code.size(), static_cast<int32_t>(entry.code.size()));
  for (size_t i = entry.code.size(); i-- > 0;) {
    for (const int32_t earlier : entry.code[i].waits) first.at(static_cast<size_t>(earlier)) = static_cast<int32_t>(i);
  }
  return first;
}

int64_t copies_under_way(const Program& program) {
  int64_t most = 0;
  for (const Entry& entry : program.entries) {
    std::vector<size_t> begun;  // instructions, in their order
    std::vector<bool> is_over(entry.code.size());
    size_t oldest = 0;
    for (size_t i = 0; i < entry.code.size(); ++i) {
      for (const int32_t earlier : entry.code[i].waits) is_over[static_cast<size_t>(earlier)] = true;
      while (oldest < begun.size() && is_over[begun[oldest]]) ++oldest;
      if (is_copy(entry.code[i])) begun.push_back(i);
      most = std::max(most, static_cast<int64_t>(begun.size() - oldest));
    }
  }
  return most;
}

NodeId node_at(const Entry& entry, size_t at) {
  for (size_t i = at; i < entry.code.size(); ++i) {
    if (entry.code[i].action == Action::compute) return entry.code[i].node;
  }
  for (size_t i = std::min(at, entry.code.size()); i-- > 0;) {
    if (entry.code[i].action == Action::compute) return entry.code[i].node;
  }
  return kNone;
}

std::string Program::to_text(const std::vector<const Graph*>& graphs) const {
  require(graphs.size() == entries.size(), "a program is printed with a graph for each entry point");
  const bool large = memory().bytes >= 100'000'000;
  const auto show = [&](int64_t bytes) {
    return large ? grouped(static_cast<double>(bytes) / 1e6, 1) : grouped(static_cast<double>(bytes), 0);
  };
  const auto show_place = [&](const Place& place) {
    return (place.space == kMemory ? std::string() : spaces[place.space].name + " ") + show(place.offset);
  };
  std::string text = "program ";
  for (size_t i = 0, at = 0; i < entries.size(); at += entries[i].code.size(), ++i) {
    text += fmt::format("{}{}@{}", i ? ", " : "· entry points ", entries[i].name, grouped(static_cast<double>(at), 0));
  }
  text += fmt::format(" · offsets in {}\n  {} {}   persistent {} in {}", large ? "MB" : "bytes", memory().name, show(memory().bytes),
                      show(memory().persistent_bytes), persistent.size());
  for (size_t s = 0; s < spaces.size(); ++s) {
    if (spaces[s].kind == SpaceKind::file) continue;
    if (s != kMemory)
      text += fmt::format("\n  {} {}   persistent {}", spaces[s].name, show(spaces[s].bytes), show(spaces[s].persistent_bytes));
    for (const Entry& entry : entries)
      text += fmt::format("   {} peak {} at {}", entry.name, show(entry.peaks[s].bytes), entry.peaks[s].instruction);
  }
  text += '\n';
  for (const Persistent& value : persistent) {
    const Place& place = value.home;
    text += fmt::format("         {:<11} {}{:>10} +{:<9} {} {}\n", to_string(value.purpose),
                        place.space == kMemory ? std::string() : spaces[place.space].name + " ", show(place.offset), show(place.bytes),
                        value.name, to_string(value.type));
  }
  const auto copy_text = [&](const Instruction& i) {
    if (!uses_file(i))
      return fmt::format("{:<8} {} -> {} +{}", queues[i.queue].name, show_place(i.from), show_place(i.to), show(i.from.bytes));
    return fmt::format("{:<8} {} {} {} +{}", is_read(i) ? "read" : "write", show_place(memory_of(i)), is_read(i) ? "<- disk" : "-> disk",
                       show(file_of(i).offset), show(memory_of(i).bytes));
  };
  int64_t number = 0;
  for (size_t e = 0; e < entries.size(); ++e) {
    const int64_t first = number;
    const auto waits_text = [&](const Instruction& i) {
      std::string waits;
      for (const int32_t earlier : i.waits) waits += (waits.empty() ? "   wait " : ", ") + grouped(static_cast<double>(first + earlier), 0);
      return waits;
    };
    for (const Instruction& instruction : entries[e].code) {
      if (is_copy(instruction)) {
        text += fmt::format("{:>6}  {}{}\n", grouped(static_cast<double>(number++), 0), copy_text(instruction), waits_text(instruction));
        continue;
      }
      const Node& node = graphs[e]->node(instruction.node);
      std::string inputs, outputs;
      for (size_t i = 0; i < node.inputs.size(); ++i) {
        inputs += (i ? ", " : "") + (node.inputs[i] == kNone ? "-" : show_place(instruction.inputs[i]));
      }
      for (size_t i = 0; i < node.outputs.size(); ++i) {
        if (node.outputs[i] == kNone) continue;
        outputs += fmt::format("{}{} {}", outputs.empty() ? "" : ", ", show_place(instruction.outputs[i]),
                               to_string(graphs[e]->value(node.outputs[i]).type()));
      }
      text += fmt::format("{:>6}  {:<8} {:<46} in {:<28} out {}", grouped(static_cast<double>(number++), 0),
                          is_view(node, instruction) ? "view" : queues[instruction.queue].name, describe(*graphs[e], instruction.node),
                          inputs, outputs);
      if (instruction.workspace.bytes > 0)
        text += fmt::format("   workspace {} +{}", show_place(instruction.workspace), show(instruction.workspace.bytes));
      text += waits_text(instruction) + '\n';
    }
  }
  return text;
}

}  // namespace ort_train
