#include "exec/executor.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include "exec/kernel_specs.h"
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
  const KernelRun* kernel = nullptr;  // null for a view (nothing to run) and for copies
  const Instruction* instruction = nullptr;
  std::vector<const void*> inputs;  // null where absent
  std::vector<void*> outputs;
  std::byte* workspace = nullptr;
  std::vector<int32_t> waits{};  // copies that no step before it waits for
  int64_t ticket = 0;            // of the copy that it started
  int64_t highest = 0;           // end of the highest place that this step or one before it uses
};

[[noreturn]] void rethrow_named(const Graph& graph, NodeId node) {
  try {
    throw;
  } catch (const Error& e) {
    throw error(e.code(), "[{}] {}", describe(graph, node), e.what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    throw error(ErrorCode::device, "[{}] {}", describe(graph, node), e.what());
  }
}

// In sanitized builds the whole arena is out of bounds during a run, but for what the present instruction was given and what copies that
// are under way read or fill.
class Fence {
 public:
#if ORT_TRAIN_POISON
  Fence(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes) { ASAN_POISON_MEMORY_REGION(data_, bytes_); }
  ~Fence() { ASAN_UNPOISON_MEMORY_REGION(data_, bytes_); }
  void open(const Instruction& instruction) const {
    each(instruction, [&](const Place& place) { open(place); });
  }
  void close(const Instruction& instruction) const {
    each(instruction, [&](const Place& place) { close(place); });
    for (const Place& place : moving_) open(place);
  }
  void begin(const Place& copy) {
    moving_.push_back(copy);
    open(copy);
  }
  void end(const Place& copy) {
    moving_.erase(std::find(moving_.begin(), moving_.end(), copy));
    close(copy);
    for (const Place& place : moving_) open(place);
  }

 private:
  void open(const Place& place) const { ASAN_UNPOISON_MEMORY_REGION(data_ + place.offset, place.bytes); }
  void close(const Place& place) const { ASAN_POISON_MEMORY_REGION(data_ + place.offset, aligned(place.bytes)); }
  template <typename Body> void each(const Instruction& instruction, Body body) const {
    for (const Place& place : instruction.inputs) body(place);
    for (const Place& place : instruction.outputs) body(place);
    body(instruction.workspace);
  }
  std::byte* data_;
  int64_t bytes_;
  std::vector<Place> moving_;
#else
  Fence(std::byte*, int64_t) {}
  ~Fence() {}
  void open(const Instruction&) const {}
  void close(const Instruction&) const {}
  void begin(const Place&) {}
  void end(const Place&) {}
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
  Disk* disk = nullptr;
  int64_t measured = 0;
  DataError wrong;       // of the kernel that runs
  bool waiting = false;  // the last entry left gradients for an update that isn't made yet
  std::vector<RunTimes> times;
  std::vector<std::vector<int32_t>> unwaited;  // copies that only the entry's end waits for

  Impl(const Program& p, std::vector<const Graph*> g, Workers& w) : program(p), graphs(std::move(g)), workers(w) {
    require(graphs.size() == program.entries.size(), "an executor needs a graph for each entry point");
    require(workers.threads() <= program.threads, "the program's workspaces are for fewer threads than there are workers");
    KernelSpecs specs(cpu_kernels(), program.threads);
    std::vector<std::vector<size_t>> numbers;  // of the kernels, by entry and instruction
    for (size_t e = 0; e < graphs.size(); ++e) {
      numbers.emplace_back();
      for (const Instruction& instruction : program.entries[e].code) {
        if (!runs_kernel(*graphs[e], instruction)) {
          numbers[e].push_back(0);
          continue;
        }
        const size_t number = add(specs, *graphs[e], instruction.node);
        numbers[e].push_back(number);
      }
    }
    for (size_t e = 0; e < graphs.size(); ++e) entries.push_back(make_steps(e, numbers[e]));
    for (const std::vector<Step>& steps : entries) times.push_back({.seconds = std::vector<double>(steps.size())});
    for (const Persistent& value : program.persistent) {
      if (!value.initial) persistents.emplace(value.name, &value);
    }
  }

  static bool runs_kernel(const Graph& graph, const Instruction& instruction) {
    return instruction.action == Action::compute && !is_view(graph.node(instruction.node), instruction);
  }

  // The number of the node's kernel, which is prepared if it is a new one.
  size_t add(KernelSpecs& specs, const Graph& graph, NodeId id) {
    const Node& node = graph.node(id);
    try {
      const size_t number = specs.add(*node.op, make_spec(graph, node));
      if (number == kernels.size()) kernels.push_back(prepare(specs.kernel(number), specs.spec(number)));
      return number;
    } catch (...) {
      rethrow_named(graph, id);
    }
  }

  std::vector<Step> make_steps(size_t entry, const std::vector<size_t>& numbers) {
    std::vector<Step> steps;
    int64_t highest = 0;
    for (ValueId input : graphs[entry]->inputs) highest = std::max(highest, program.entries[entry].value_places[input].end());
    for (const Instruction& instruction : program.entries[entry].code) {
      Step step{.kernel = runs_kernel(*graphs[entry], instruction) ? &kernels[numbers[steps.size()]] : nullptr,
                .instruction = &instruction,
                .inputs = std::vector<const void*>(instruction.inputs.size()),
                .outputs = std::vector<void*>(instruction.outputs.size())};
      const auto use = [&](const Place& place) { highest = place.bytes > 0 ? std::max(highest, place.end()) : highest; };
      std::for_each(instruction.inputs.begin(), instruction.inputs.end(), use);
      std::for_each(instruction.outputs.begin(), instruction.outputs.end(), use);
      use(instruction.workspace);
      if (is_copy(instruction)) use(moved(memory_of(instruction)));
      step.highest = highest;
      steps.push_back(std::move(step));
    }
    // One thread begins everything in the order of the list, and computes: what is left to wait for are copies, each once.
    const std::vector<int32_t> waits = first_waits(program.entries[entry]);
    unwaited.emplace_back();
    for (size_t i = 0; i < steps.size(); ++i) {
      if (!is_copy(*steps[i].instruction)) continue;
      const auto first = static_cast<size_t>(waits[i]);
      (first < steps.size() ? steps[first].waits : unwaited.back()).push_back(static_cast<int32_t>(i));
    }
    return steps;
  }

  void attach(Arena& arena, Disk* tier) {
    require(arena.bytes() >= program.memory().bytes, "the arena is smaller than the program's");
    require(tier != nullptr || program.file().bytes == 0, "the program needs a disk");
    data = arena.data();
    disk = tier;
    for (size_t e = 0; e < entries.size(); ++e) {
      for (Step& step : entries[e]) {
        if (is_copy(*step.instruction)) continue;
        const Node& node = graphs[e]->node(step.instruction->node);
        for (size_t i = 0; i < step.inputs.size(); ++i)
          step.inputs[i] = node.inputs[i] == kNone ? nullptr : data + step.instruction->inputs[i].offset;
        for (size_t i = 0; i < step.outputs.size(); ++i)
          step.outputs[i] = node.outputs[i] == kNone ? nullptr : data + step.instruction->outputs[i].offset;
        if (step.instruction->workspace.bytes > 0) step.workspace = data + step.instruction->workspace.offset;
      }
    }
    for (const Persistent& value : program.persistent) {
      if (memory_bytes(value) == 0) continue;
      measured = std::max(measured, value.home.end());
      std::byte* const place = data + value.home.offset;
      if (value.initial)
        std::memcpy(place, value.initial->bytes.data(), static_cast<size_t>(value.home.bytes));
      else if (value.purpose != Purpose::weights)
        std::memset(place, 0, static_cast<size_t>(value.home.bytes));
    }
  }

  bool run(size_t entry, const std::atomic<bool>* stop) {
    using Clock = std::chrono::steady_clock;
    require(data != nullptr || program.memory().bytes == 0, "an executor needs its arena before it runs");
    const EntryRole& role = program.entries[entry].role;
    require(may_run(role, waiting), "an update that is never made, or made twice");
    Fence fence(data, program.memory().bytes);
    const Drained drained{disk};
    RunTimes& spent = times[entry];
    spent.waiting = 0;
    Clock::time_point before = Clock::now();
    const auto lap = [&] {
      const Clock::time_point now = Clock::now();
      return std::chrono::duration<double>(now - std::exchange(before, now)).count();
    };
    for (size_t i = 0; i < entries[entry].size(); ++i) {
      Step& step = entries[entry][i];
      if (stop && stop->load(std::memory_order_relaxed)) return false;
      if (step.highest > measured) measured = step.highest;
      for (const int32_t copy : step.waits) wait(entries[entry][static_cast<size_t>(copy)], fence);
      if (!step.waits.empty()) spent.waiting += lap();
      if (is_copy(*step.instruction)) {
        begin(step, fence);
      } else if (step.kernel) {
        fence.open(*step.instruction);
        try {
          (*step.kernel)({.inputs = step.inputs, .outputs = step.outputs, .workspace = step.workspace, .queue = &workers, .error = &wrong});
          wrong.check();
        } catch (...) {
          rethrow_named(*graphs[entry], step.instruction->node);
        }
        fence.close(*step.instruction);
      }
      spent.seconds[i] = lap();
      if (is_copy(*step.instruction)) spent.waiting += spent.seconds[i];  // until the disk has room for another
    }
    for (const int32_t copy : unwaited[entry]) wait(entries[entry][static_cast<size_t>(copy)], fence);
    spent.waiting += lap();
    waiting = role.leaves_update;
    return true;
  }

  // However a run ends, nothing writes to the arena after it.
  struct Drained {
    Disk* disk;
    ~Drained() {
      if (disk != nullptr) disk->drain();
    }
  };

  void wait(const Step& copy, Fence& fence) {
    disk->wait(copy.ticket);
    fence.end(moved(memory_of(*copy.instruction)));
  }

  void begin(Step& copy, Fence& fence) {
    const Place memory = moved(memory_of(*copy.instruction));
    const int64_t offset = file_of(*copy.instruction).offset;
    fence.begin(memory);
    copy.ticket = is_read(*copy.instruction) ? disk->read(offset, data + memory.offset, memory.bytes)
                                             : disk->write(offset, data + memory.offset, memory.bytes);
  }

  static Place moved(Place place) {
    place.bytes = whole_sectors(place.bytes);
    return place;
  }

  const Persistent& find(std::string_view name) const {
    const auto found = persistents.find(name);
    if (found == persistents.end())
      throw error(ErrorCode::device, "internal error: nothing named '{}' lives across runs; please report this", name);
    return *found->second;
  }

  // Where a persistent value of the disk is while nothing runs.
  Place desk(const Persistent& value, int number) const {
    const Place& desk = program.desks[number];
    require(file_bytes(value) <= desk.bytes, "a tensor of the disk that is larger than the desk");
    return {.offset = desk.offset, .bytes = value.home.bytes};
  }

  std::span<std::byte> persistent(const Persistent& value, int number, bool read) {
    require(data != nullptr || value.home.bytes == 0, "an executor has no memory yet");
    if (!is_in_file(value)) return {data + value.home.offset, static_cast<size_t>(value.home.bytes)};
    const Place place = desk(value, number);
    if (read) disk->wait(disk->read(value.home.offset, data + place.offset, moved(place).bytes));
    measured = std::max(measured, moved(place).end());
    return {data + place.offset, static_cast<size_t>(place.bytes)};
  }

  void changed(const Persistent& value, int number) {
    if (!is_in_file(value)) return;
    const Place place = desk(value, number);
    disk->wait(disk->write(value.home.offset, data + place.offset, moved(place).bytes));
  }
};

Executor::Executor(const Program& program, std::vector<const Graph*> graphs, Workers& workers)
    : impl_(std::make_unique<Impl>(program, std::move(graphs), workers)) {}
Executor::~Executor() = default;

size_t Executor::prepared_kernels() const { return impl_->kernels.size(); }
void Executor::attach(Arena& arena, Disk* disk) { impl_->attach(arena, disk); }
bool Executor::run(size_t entry, const std::atomic<bool>* stop) { return impl_->run(entry, stop); }
int64_t Executor::measured_peak_bytes() const { return impl_->measured; }
const RunTimes& Executor::times(size_t entry) const { return impl_->times.at(entry); }

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

std::span<std::byte> Executor::persistent(std::string_view name, int desk) { return impl_->persistent(impl_->find(name), desk, true); }
std::span<std::byte> Executor::blank(std::string_view name) { return impl_->persistent(impl_->find(name), 0, false); }
void Executor::changed(std::string_view name, int desk) { impl_->changed(impl_->find(name), desk); }

std::span<std::byte> Executor::spare(int64_t most) {
  const Place& spare = impl_->program.spare;
  require(impl_->data != nullptr, "an executor has no memory yet");
  const int64_t bytes = std::min(most, spare.bytes) / kSector * kSector;
  if (bytes > 0) impl_->measured = std::max(impl_->measured, spare.offset + bytes);
  return {impl_->data + spare.offset, static_cast<size_t>(bytes)};
}

}  // namespace ort_train
