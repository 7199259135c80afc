#include "exec/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>

#include "exec/kernel_table.h"
#include "graph/op_def.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define ORT_TRAIN_POISON 1
#else
#define ORT_TRAIN_POISON 0
#endif

namespace ort_train {
namespace {

// An instruction, ready to run: pointers are made once, by attach().
struct Step {
  const KernelRun* kernel = nullptr;  // null for a view: nothing to run
  const Instruction* instruction = nullptr;
  std::vector<const void*> inputs;  // null where absent
  std::vector<void*> outputs;
  std::byte* workspace = nullptr;
  int64_t highest = 0;  // end of the highest place that this step or one before it uses
};

[[noreturn]] void rethrow_named(const Graph& graph, NodeId node) {
  try {
    throw;
  } catch (const Error& e) {
    throw error(e.code(), "[{}] {}", describe(graph, node), e.what());
  } catch (const std::exception& e) {
    throw error(ErrorCode::device, "[{}] {}", describe(graph, node), e.what());
  }
}

// In sanitized builds the whole arena is out of bounds during a run, but for what the present instruction was given.
class Fence {
 public:
#if ORT_TRAIN_POISON
  Fence(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) { ASAN_POISON_MEMORY_REGION(data_, bytes_); }
  ~Fence() { ASAN_UNPOISON_MEMORY_REGION(data_, bytes_); }
  void open(const Instruction& instruction) const {
    each(instruction, [&](const Place& place) { ASAN_UNPOISON_MEMORY_REGION(data_ + place.offset, place.bytes); });
  }
  void close(const Instruction& instruction) const {
    each(instruction, [&](const Place& place) { ASAN_POISON_MEMORY_REGION(data_ + place.offset, aligned(place.bytes)); });
  }

 private:
  template <typename Body> void each(const Instruction& instruction, Body body) const {
    for (const Place& place : instruction.inputs) body(place);
    for (const Place& place : instruction.outputs) body(place);
    body(instruction.workspace);
  }
  std::byte* data_;
  int64_t bytes_;
#else
  Fence(std::byte*, int64_t) {}
  ~Fence() {}
  void open(const Instruction&) const {}
  void close(const Instruction&) const {}
#endif
};

}  // namespace

struct Executor::Impl {
  const Program& program;
  std::vector<const Graph*> graphs;
  Workers& workers;
  std::vector<KernelRun> kernels;
  std::vector<std::vector<Step>> entries;
  std::map<std::string, const Persistent*, std::less<>> persistents;
  std::byte* data = nullptr;
  int64_t measured = 0;
  bool profiling = false;
  std::vector<std::vector<double>> seconds;

  Impl(const Program& p, std::vector<const Graph*> g, Workers& w) : program(p), graphs(std::move(g)), workers(w) {
    require(graphs.size() == program.entries.size(), "an executor needs a graph for each entry point");
    require(workers.threads() <= program.threads, "the program's workspaces are for fewer threads than there are workers");
    KernelTable table;
    std::vector<std::vector<size_t>> numbers;  // of the kernels, by entry and instruction
    for (size_t e = 0; e < graphs.size(); ++e) {
      numbers.emplace_back();
      for (const Instruction& instruction : program.entries[e].code) {
        const Node& node = graphs[e]->node(instruction.node);
        if (is_view(node, instruction)) {
          numbers[e].push_back(0);
          continue;
        }
        const size_t number = table.add(*node.op, make_spec(*graphs[e], node, program.threads));
        if (number == kernels.size()) kernels.push_back(prepare(*graphs[e], instruction.node, table.spec(number)));
        numbers[e].push_back(number);
      }
    }
    for (size_t e = 0; e < graphs.size(); ++e) entries.push_back(make_steps(e, numbers[e]));
    seconds.resize(entries.size());
    for (const Persistent& value : program.persistent) {
      if (!value.initial) persistents.emplace(value.name, &value);
    }
  }

  static KernelRun prepare(const Graph& graph, NodeId node, const KernelSpec& spec) {
    if (!graph.node(node).op->kernel.cpu)
      throw error(ErrorCode::unsupported, "[{}] can't be run: its op has no kernel", describe(graph, node));
    try {
      return graph.node(node).op->kernel.cpu(spec);
    } catch (...) {
      rethrow_named(graph, node);
    }
  }

  std::vector<Step> make_steps(size_t entry, const std::vector<size_t>& numbers) const {
    std::vector<Step> steps;
    int64_t highest = 0;
    for (ValueId input : graphs[entry]->inputs) highest = std::max(highest, program.entries[entry].value_places[input].end());
    for (const Instruction& instruction : program.entries[entry].code) {
      const Node& node = graphs[entry]->node(instruction.node);
      Step step{.kernel = is_view(node, instruction) ? nullptr : &kernels[numbers[steps.size()]],
                .instruction = &instruction,
                .inputs = std::vector<const void*>(node.inputs.size()),
                .outputs = std::vector<void*>(node.outputs.size())};
      const auto use = [&](const Place& place) { highest = place.bytes > 0 ? std::max(highest, place.end()) : highest; };
      std::for_each(instruction.inputs.begin(), instruction.inputs.end(), use);
      std::for_each(instruction.outputs.begin(), instruction.outputs.end(), use);
      use(instruction.workspace);
      step.highest = highest;
      steps.push_back(std::move(step));
    }
    return steps;
  }

  void attach(Arena& arena) {
    require(arena.bytes() >= program.arena_bytes, "the arena is smaller than the program's");
    data = arena.data();
    for (size_t e = 0; e < entries.size(); ++e) {
      for (Step& step : entries[e]) {
        const Node& node = graphs[e]->node(step.instruction->node);
        for (size_t i = 0; i < step.inputs.size(); ++i)
          step.inputs[i] = node.inputs[i] == kNone ? nullptr : data + step.instruction->inputs[i].offset;
        for (size_t i = 0; i < step.outputs.size(); ++i)
          step.outputs[i] = node.outputs[i] == kNone ? nullptr : data + step.instruction->outputs[i].offset;
        if (step.instruction->workspace.bytes > 0) step.workspace = data + step.instruction->workspace.offset;
      }
    }
    for (const Persistent& value : program.persistent) {
      if (value.place.bytes == 0) continue;
      measured = std::max(measured, value.place.end());
      std::byte* const place = data + value.place.offset;
      if (value.initial)
        std::memcpy(place, value.initial->bytes.data(), static_cast<size_t>(value.place.bytes));
      else if (value.purpose != Purpose::weights)
        std::memset(place, 0, static_cast<size_t>(value.place.bytes));
    }
  }

  bool run(size_t entry, const std::atomic<bool>* stop) {
    using Clock = std::chrono::steady_clock;
    require(data != nullptr || program.arena_bytes == 0, "an executor needs its arena before it runs");
    const Fence fence(data, program.arena_bytes);
    Clock::time_point before = profiling ? Clock::now() : Clock::time_point{};
    for (size_t i = 0; i < entries[entry].size(); ++i) {
      Step& step = entries[entry][i];
      if (stop && stop->load(std::memory_order_relaxed)) return false;
      if (step.highest > measured) measured = step.highest;
      if (step.kernel) {
        fence.open(*step.instruction);
        try {
          (*step.kernel)({.inputs = step.inputs, .outputs = step.outputs, .workspace = step.workspace, .workers = workers});
        } catch (...) {
          rethrow_named(*graphs[entry], step.instruction->node);
        }
        fence.close(*step.instruction);
      }
      if (profiling) {
        const Clock::time_point now = Clock::now();
        seconds[entry][i] = std::chrono::duration<double>(now - before).count();
        before = now;
      }
    }
    return true;
  }
};

Executor::Executor(const Program& program, std::vector<const Graph*> graphs, Workers& workers)
    : impl_(std::make_unique<Impl>(program, std::move(graphs), workers)) {}
Executor::~Executor() = default;

size_t Executor::prepared_kernels() const { return impl_->kernels.size(); }
void Executor::attach(Arena& arena) { impl_->attach(arena); }
bool Executor::run(size_t entry, const std::atomic<bool>* stop) { return impl_->run(entry, stop); }
int64_t Executor::measured_peak_bytes() const { return impl_->measured; }
const std::vector<double>& Executor::seconds(size_t entry) const { return impl_->seconds.at(entry); }

std::byte* Executor::at(const Place& place) const {
  require(impl_->data != nullptr, "an executor has no memory yet");
  return impl_->data + place.offset;
}

std::span<std::byte> Executor::bytes(size_t entry, ValueId value) const {
  const Graph& graph = *impl_->graphs.at(entry);
  const Place& place = impl_->program.entries[entry].value_places.at(value);
  if (place.bytes == 0 && graph.value(value).bytes() > 0) {
    throw error(ErrorCode::device, "internal error: '{}' has no place in entry '{}'; please report this", graph.value(value).name,
                impl_->program.entries[entry].name);
  }
  return {at(place), static_cast<size_t>(place.bytes)};
}

std::span<std::byte> Executor::persistent(std::string_view name) const {
  const auto found = impl_->persistents.find(name);
  if (found == impl_->persistents.end())
    throw error(ErrorCode::device, "internal error: nothing named '{}' lives across runs; please report this", name);
  return {at(found->second->place), static_cast<size_t>(found->second->place.bytes)};
}

void Executor::profile(bool on) {
  impl_->profiling = on;
  for (size_t e = 0; e < impl_->entries.size(); ++e) impl_->seconds[e].assign(on ? impl_->entries[e].size() : 0, 0);
}

}  // namespace ort_train
