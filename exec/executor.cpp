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

// An instruction with its addresses, which attach() fills in.
struct Step {
  const KernelRun* kernel = nullptr;  // null for a view (nothing to run) and for copies
  const Instruction* instruction = nullptr;
  std::vector<const void*> inputs{};  // null where absent
  std::vector<void*> outputs{};
  std::byte* workspace = nullptr;
  std::vector<int32_t> copies{};  // of the file that no step before it waits for
  std::vector<int32_t> waits{};   // a device's work; of a synchronous device that on queues in the background
  int64_t ticket = 0;             // of the copy of the file that it started
};

[[noreturn]] void rethrow_named(const Graph& graph, NodeId node) {
  try {
    throw;
  } catch (const Error& e) {
    throw error(e.code(), "[{}] {}", describe(graph, node), e.what());
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::runtime_error&) {  // the system's, oneTBB's
    throw;
  } catch (const std::exception& e) {
    throw error(ErrorCode::internal, "[{}] internal error: {}; please report this", describe(graph, node), e.what());
  }
}

// In sanitized builds, where a device is synchronous, the whole arena is out of bounds during a run, but for what the present instruction
// was given and what copies that are under way read or fill.
class Fence {
 public:
#if ORT_TRAIN_POISON
  Fence(std::byte* data, int64_t bytes) : data_(data), bytes_(data == nullptr ? 0 : bytes) { ASAN_POISON_MEMORY_REGION(data_, bytes_); }
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
  void open(const Place& place) const {
    if (data_ != nullptr) ASAN_UNPOISON_MEMORY_REGION(data_ + place.offset, place.bytes);
  }
  void close(const Place& place) const {
    if (data_ != nullptr) ASAN_POISON_MEMORY_REGION(data_ + place.offset, aligned(place.bytes));
  }
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
  Device& device;
  std::vector<KernelRun> kernels;
  std::vector<std::vector<Step>> entries;
  std::map<std::string, const Persistent*, std::less<>> persistents;
  std::vector<std::byte*> spaces;  // where each begins; empty before attach()
  Disk* disk = nullptr;
  NodeWatch* watch = nullptr;
  RunTrace* trace = nullptr;
  bool times_work = false;  // by the device
  bool waiting = false;     // the last entry left gradients for an update that isn't made yet
  std::vector<RunTimes> times;
  std::vector<std::vector<int32_t>> unwaited;  // by entry: copies of the file that only its end waits for
  std::vector<size_t> reached;                 // by entry: how many instructions have ever been issued
  std::vector<int64_t> touched;                // by space: the end of what was used between runs

  Impl(const Program& p, std::vector<const Graph*> g, Device& d)
      : program(p), graphs(std::move(g)), device(d), reached(graphs.size()), touched(p.spaces.size()) {
    require(graphs.size() == program.entries.size(), "an executor needs a graph for each entry point");
    require(device.threads() <= program.threads, "the program's workspaces are for fewer threads than there are workers");
    prepare_all();
    for (const std::vector<Step>& steps : entries) times.push_back({.seconds = std::vector<double>(steps.size())});
    for (const Persistent& value : program.persistent) {
      if (!value.initial) persistents.emplace(value.name, &value);
    }
  }

  static bool runs_kernel(const Graph& graph, const Instruction& instruction) {
    return instruction.action == Action::compute && !is_view(graph.node(instruction.node), instruction);
  }

  SpaceKind where(const Instruction& instruction) const { return program.spaces[program.queues[instruction.queue].from].kind; }
  bool in_background(const Instruction& instruction) const { return program.queues[instruction.queue].background; }

  void prepare_all() {
    SpaceKernels specs([this](SpaceKind kind) { return device.kernels(kind); }, program.threads);
    std::map<std::pair<SpaceKind, size_t>, size_t> prepared;  // number in its specs -> that in `kernels`
    std::vector<std::vector<size_t>> numbers;                 // in `kernels`, by entry and instruction
    for (size_t e = 0; e < graphs.size(); ++e) {
      numbers.emplace_back();
      for (const Instruction& instruction : program.entries[e].code) {
        numbers[e].push_back(0);
        if (!runs_kernel(*graphs[e], instruction)) continue;
        const SpaceKind kind = where(instruction);
        KernelSpecs* const of = specs.of(kind);
        if (of == nullptr)
          throw error(ErrorCode::unsupported, "[{}] can't be run: nothing is computed in the {}", describe(*graphs[e], instruction.node),
                      program.spaces[program.queues[instruction.queue].from].name);
        try {
          const Node& node = graphs[e]->node(instruction.node);
          const size_t number = of->add(*node.op, make_spec(*graphs[e], node));
          const auto [at, is_new] = prepared.emplace(std::pair(kind, number), kernels.size());
          if (is_new) kernels.push_back(prepare(of->kernel(number), of->spec(number)));
          numbers[e].back() = at->second;
        } catch (...) {
          rethrow_named(*graphs[e], instruction.node);
        }
      }
    }
    for (size_t e = 0; e < graphs.size(); ++e) entries.push_back(make_steps(e, numbers[e]));
  }

  std::vector<Step> make_steps(size_t entry, const std::vector<size_t>& numbers) {
    const std::vector<Instruction>& code = program.entries[entry].code;
    std::vector<Step> steps;
    for (const Instruction& instruction : code) {
      Step step{.kernel = runs_kernel(*graphs[entry], instruction) ? &kernels[numbers[steps.size()]] : nullptr,
                .instruction = &instruction,
                .inputs = std::vector<const void*>(instruction.inputs.size()),
                .outputs = std::vector<void*>(instruction.outputs.size())};
      for (const int32_t earlier : instruction.waits) {
        const Instruction& of = code[static_cast<size_t>(earlier)];
        if (!uses_file(of) && (!device.is_synchronous() || in_background(of))) step.waits.push_back(earlier);
      }
      steps.push_back(std::move(step));
    }
    // One thread issues everything in the order of the list, so each copy of the file has to be waited for once.
    const std::vector<int32_t> waits = first_waits(program.entries[entry]);
    unwaited.emplace_back();
    for (size_t i = 0; i < steps.size(); ++i) {
      if (!uses_file(code[i])) continue;
      const auto first = static_cast<size_t>(waits[i]);
      (first < steps.size() ? steps[first].copies : unwaited.back()).push_back(static_cast<int32_t>(i));
    }
    return steps;
  }

  // --- memory -------------------------------------------------------------------------------------------------------------------------

  void attach(const std::vector<Memory*>& memories, Disk* tier, bool fresh) {
    require(tier != nullptr || program.file().bytes == 0, "the program needs a disk");
    std::vector<std::byte*> begin(program.spaces.size());
    for (size_t s = 0; s < program.spaces.size(); ++s) {
      if (program.spaces[s].kind == SpaceKind::file) continue;
      require(s < memories.size() && memories[s] != nullptr && memories[s]->bytes() >= program.spaces[s].bytes,
              "memory that is smaller than the program's");
      begin[s] = memories[s]->data();
    }
    spaces = std::move(begin);
    disk = tier;
    for (size_t e = 0; e < entries.size(); ++e) {
      for (Step& step : entries[e]) {
        if (is_copy(*step.instruction)) continue;
        const Node& node = graphs[e]->node(step.instruction->node);
        for (size_t i = 0; i < step.inputs.size(); ++i)
          step.inputs[i] = node.inputs[i] == kNone ? nullptr : at(step.instruction->inputs[i]);
        for (size_t i = 0; i < step.outputs.size(); ++i)
          step.outputs[i] = node.outputs[i] == kNone ? nullptr : at(step.instruction->outputs[i]);
        if (step.instruction->workspace.bytes > 0) step.workspace = at(step.instruction->workspace);
      }
    }
    if (device.loads_late()) {
      for (size_t e = 0; e < entries.size(); ++e) rehearse(e);
      poison();
    }
    for (const Persistent& value : program.persistent) {
      if (is_in_file(value) && fresh && value.fill != 0) {  // the rest is zero there
        fill_elements(persistent(value, 0, /*read=*/false), value.type.dtype, value.fill);
        changed(value, 0);
      }
      if (is_in_file(value) || value.home.bytes == 0) continue;
      touch(value.home);
      if (value.initial)
        fill(value.home, value.initial->bytes.data(), value.type.dtype, 0);
      else if (value.purpose != Purpose::weights || device.loads_late())  // between a pack's members there are zeros
        fill(value.home, nullptr, value.type.dtype, value.fill);
    }
  }

  // Twice where the device has all of it: then it may keep the run as a whole (exec/cuda/device.h). What data is wrong doesn't matter.
  void rehearse(size_t entry) {
    const auto is_devices = [&](const Step& step) {
      return !uses_file(*step.instruction) && (is_copy(*step.instruction) || where(*step.instruction) == SpaceKind::device);
    };
    const std::vector<Step>& steps = entries[entry];
    const int turns = std::all_of(steps.begin(), steps.end(), is_devices) ? 2 : 1;
    for (int turn = 0; turn < turns; ++turn) {
      const Drained drained{device, nullptr};
      try {
        device.begin(entry);
        for (size_t i = 0; i < steps.size(); ++i) {
          if (is_devices(steps[i])) on_device(entry, [&] { issue(steps[i], static_cast<int32_t>(i)); });
        }
        on_device(entry, [&] { device.finish(); });
      } catch (const Error& wrong) {
        if (wrong.code() != ErrorCode::data) throw;
      }
    }
  }

  // NaN, in integers -1: what is read before it is written shows. Nothing may depend on the zeros that memory began with, or on what a
  // rehearsal has left.
  void poison() {
    for (size_t s = 0; s < program.spaces.size(); ++s) {
      if (const Space& space = program.spaces[s]; space.kind == SpaceKind::device) device.fill(spaces[s], std::byte{0xff}, space.bytes);
    }
  }

  std::byte* at(const Place& place) const { return spaces[place.space] + place.offset; }

  void touch(const Place& place) { touched[place.space] = std::max(touched[place.space], place.end()); }

  // With bytes of the host, or with elements that are all the same: to a device by way of the spare memory, from which it can copy.
  void fill(const Place& place, const std::byte* from, DType dtype, double number) {
    const bool far = is_far(program, place);
    const int64_t block = from != nullptr ? 1 : storage_of(dtype).block_bytes;
    const int64_t most = far ? program.spare.bytes / block * block : place.bytes;
    require(most > 0, "no memory to bring a constant by");
    for (int64_t done = 0, count; done < place.bytes; done += count) {
      count = std::min(most, place.bytes - done);
      std::byte* const to = (far ? at(program.spare) : at(place)) + (far ? 0 : done);
      if (from != nullptr)
        std::memcpy(to, from + done, static_cast<size_t>(count));
      else
        fill_elements({to, static_cast<size_t>(count)}, dtype, number);
      if (far) device.transfer(at(place) + done, to, count);
    }
    if (far) touch({.offset = program.spare.offset, .bytes = std::min(most, place.bytes), .space = program.spare.space});
  }

  const Persistent& find(std::string_view name) const {
    const auto found = persistents.find(name);
    if (found == persistents.end()) throw internal_error("nothing named '{}' lives across runs", name);
    return *found->second;
  }

  // Where so many bytes, which the host can't touch where they are, are looked at while nothing runs.
  Place staged(int64_t bytes, int number) {
    const Place& area = program.staging[number];
    require(whole_sectors(bytes) <= area.bytes, "a tensor that is larger than its staging area");
    touch({.offset = area.offset, .bytes = whole_sectors(bytes), .space = area.space});
    return {.offset = area.offset, .bytes = bytes, .space = area.space};
  }

  void require_memory() const { require(!spaces.empty(), "an executor has no memory yet"); }

  std::span<std::byte> span_of(const Place& place) const { return {at(place), static_cast<size_t>(place.bytes)}; }

  std::span<std::byte> persistent(const Persistent& value, int number, bool read) {
    if (value.home.bytes == 0) return {};
    require_memory();
    if (!is_far(program, value.home)) return span_of(value.home);
    const Place place = staged(value.home.bytes, number);
    if (read && is_in_file(value))
      disk->wait(disk->read(value.home.offset, at(place), whole_sectors(place.bytes)));
    else if (read)
      device.transfer(at(place), at(value.home), place.bytes);
    return span_of(place);
  }

  void changed(const Persistent& value, int number) {
    if (!is_far(program, value.home) || value.home.bytes == 0) return;
    const Place place = staged(value.home.bytes, number);
    if (is_in_file(value))
      disk->wait(disk->write(value.home.offset, at(place), whole_sectors(place.bytes)));
    else
      device.transfer(at(value.home), at(place), place.bytes);
  }

  Place place_of(size_t entry, ValueId value) const {
    require_memory();
    const Value& of = graphs.at(entry)->value(value);
    const Place& place = program.entries[entry].value_places.at(value);
    if (place.bytes == 0 && of.bytes() > 0) throw internal_error("'{}' has no place in entry '{}'", of.name, program.entries[entry].name);
    return place;
  }

  std::span<const std::byte> bytes(size_t entry, ValueId value) {
    const Place place = place_of(entry, value);
    if (!is_far(program, place)) return span_of(place);
    require(program.spaces[place.space].kind == SpaceKind::device, "a value that is on the disk only");
    const Place copy = staged(place.bytes, 0);
    device.transfer(at(copy), at(place), place.bytes);
    return span_of(copy);
  }

  int64_t measured_peak(SpaceId space) const {
    int64_t peak = touched[space];
    const auto use = [&](const Place& place) { peak = place.space == space && place.bytes > 0 ? std::max(peak, place.end()) : peak; };
    for (size_t e = 0; e < entries.size(); ++e) {
      for (size_t i = 0; i < reached[e]; ++i) {
        const Instruction& instruction = program.entries[e].code[i];
        std::for_each(instruction.inputs.begin(), instruction.inputs.end(), use);
        std::for_each(instruction.outputs.begin(), instruction.outputs.end(), use);
        use(instruction.workspace);
        for (const Place& place : {instruction.from, instruction.to}) use(uses_file(instruction) ? moved(place) : place);
      }
      if (reached[e] == 0) continue;
      for (const ValueId input : graphs[e]->inputs) use(program.entries[e].value_places[input]);
    }
    return peak;
  }

  // --- a run --------------------------------------------------------------------------------------------------------------------------

  bool run(size_t entry, const std::atomic<bool>* stop) {
    using Clock = std::chrono::steady_clock;
    require(!spaces.empty() || program.memory().bytes == 0, "an executor needs its memory before it runs");
    const EntryRole& role = program.entries[entry].role;
    require(may_run(role, waiting), "an update that is never made, or made twice");
    std::vector<Step>& steps = entries[entry];
    Fence fence(device.is_synchronous() && !spaces.empty() ? spaces[kMemory] : nullptr, program.memory().bytes);
    const Drained drained{device, disk};
    RunTimes& spent = times[entry];
    spent.waiting = 0;
    if (watch != nullptr) watch->begin(entry);
    if (trace != nullptr) device.record_background(true);
    device.begin(entry);
    Clock::time_point before = Clock::now();
    if (trace != nullptr) trace->run.begin = before;
    const auto lap = [&] {
      const Clock::time_point now = Clock::now();
      return std::chrono::duration<double>(now - std::exchange(before, now)).count();
    };
    for (size_t i = 0; i < steps.size(); ++i) {
      Step& step = steps[i];
      if (stop && stop->load(std::memory_order_relaxed)) return false;
      if (i >= reached[entry]) reached[entry] = i + 1;
      const bool is_file = uses_file(*step.instruction);
      TracedInstruction* const traced = trace == nullptr ? nullptr : &trace->instructions[i];
      if (traced != nullptr) *traced = {};
      if (is_file) {
        on_device(entry, [&] { std::for_each(step.waits.begin(), step.waits.end(), [&](int32_t work) { device.wait(work); }); });
        if (!step.waits.empty()) (device.is_synchronous() ? spent.seconds[static_cast<size_t>(step.waits.back())] : spent.waiting) += lap();
      }
      if (traced != nullptr) traced->wait.begin = before;
      for (const int32_t copy : step.copies) wait(steps[static_cast<size_t>(copy)], fence);
      if (!step.copies.empty()) spent.waiting += lap();
      if (traced != nullptr) traced->wait.end = traced->work.begin = before;
      if (is_file) {
        begin(step, fence);
      } else if (step.kernel || is_copy(*step.instruction) || !device.is_synchronous() || !step.waits.empty()) {  // or a view that waits
        fence.open(*step.instruction);
        if (watch != nullptr && step.kernel) watch->before(entry, step.instruction->node, step.inputs);
        on_device(entry, [&] {
          issue(step, static_cast<int32_t>(i));
          if (in_background(*step.instruction) && (watch != nullptr || ORT_TRAIN_POISON)) device.wait(static_cast<int32_t>(i));
        });
        if (!spent.tasks.empty()) spent.tasks[i] = device.tasks();
        if (watch != nullptr && step.kernel) watch->behind(entry, step.instruction->node, step.outputs);
        fence.close(*step.instruction);
      }
      spent.seconds[i] = lap();
      if (traced != nullptr) {
        traced->work.end = before;
        traced->ticket = is_file ? step.ticket : 0;
      }
      if (is_file) spent.waiting += spent.seconds[i];  // until the disk has room for another
    }
    if (device.is_synchronous() && !steps.empty()) {  // what is left in the background
      on_device(entry, [&] { device.finish(); });
      spent.seconds.back() += lap();
    }
    if (trace != nullptr) trace->last_wait.begin = before;
    for (const int32_t copy : unwaited[entry]) wait(steps[static_cast<size_t>(copy)], fence);
    on_device(entry, [&] { device.finish(); });
    spent.waiting += lap();
    if (trace != nullptr) end_trace(before);
    for (size_t i = 0; i < steps.size() && times_work; ++i) {
      if (const double seconds = device.seconds(static_cast<int32_t>(i)); seconds > 0) spent.seconds[i] = seconds;
    }
    waiting = role.leaves_update;
    return true;
  }

  // However a run ends, nothing touches memory after it.
  struct Drained {
    Device& device;
    Disk* disk;
    ~Drained() {
      try {
        device.finish();
      } catch (...) {  // whoever waited for what failed has been told
      }
      if (disk != nullptr) disk->drain();
    }
  };

  void end_trace(RunClock::time_point now) {
    trace->last_wait.end = trace->run.end = now;
    for (const AsideSpan& aside : device.background_spans()) {
      TracedInstruction& traced = trace->instructions[static_cast<size_t>(aside.number)];
      if (!traced.in_background) traced.work = aside.span;
      traced.in_background = true;
      traced.work.end = aside.span.end;  // of its last loop
    }
  }

  // A problem of a node's gets its name.
  template <typename Body> void on_device(size_t entry, Body body) {
    try {
      body();
    } catch (...) {
      const NodeId node = device.failed() < 0 ? kNone : program.entries[entry].code.at(static_cast<size_t>(device.failed())).node;
      if (node == kNone) throw;
      rethrow_named(*graphs[entry], node);
    }
  }

  void issue(const Step& step, int32_t number) {
    const Instruction& instruction = *step.instruction;
    Work work{.number = number,
              .queue = instruction.queue,
              .where = where(instruction),
              .waits = step.waits,
              .background = in_background(instruction),
              .kernel = step.kernel};
    if (step.kernel != nullptr) {
      work.inputs = step.inputs;
      work.outputs = step.outputs;
      work.workspace = step.workspace;
    } else {
      work.from = at(instruction.from);
      work.to = at(instruction.to);
      work.bytes = instruction.from.bytes;
    }
    device.issue(work);
  }

  void wait(const Step& copy, Fence& fence) {
    disk->wait(copy.ticket);
    fence.end(moved(memory_of(*copy.instruction)));
  }

  void begin(Step& copy, Fence& fence) {
    const Place memory = moved(memory_of(*copy.instruction));
    const int64_t offset = file_of(*copy.instruction).offset;
    fence.begin(memory);
    copy.ticket = is_read(*copy.instruction) ? disk->read(offset, at(memory), memory.bytes) : disk->write(offset, at(memory), memory.bytes);
  }

  static Place moved(Place place) {
    place.bytes = whole_sectors(place.bytes);
    return place;
  }
};

Executor::Executor(const Program& program, std::vector<const Graph*> graphs, Device& device)
    : impl_(std::make_unique<Impl>(program, std::move(graphs), device)) {}
Executor::~Executor() = default;

size_t Executor::prepared_kernels() const { return impl_->kernels.size(); }
void Executor::attach(std::vector<Memory*> spaces, Disk* disk, bool fresh) { impl_->attach(spaces, disk, fresh); }
bool Executor::run(size_t entry, const std::atomic<bool>* stop) { return impl_->run(entry, stop); }
int64_t Executor::measured_peak_bytes(SpaceId space) const { return impl_->measured_peak(space); }
int32_t Executor::failed() const { return impl_->device.is_synchronous() ? impl_->device.failed() : -1; }

void Executor::time_work() {
  impl_->times_work = !impl_->device.is_synchronous();
  for (RunTimes& times : impl_->times) times.tasks.resize(impl_->times_work ? 0 : times.seconds.size());
  impl_->device.time_work();
}
void Executor::watch(NodeWatch* watch) {
  require(watch == nullptr || impl_->device.is_synchronous(), "only what a synchronous device runs can be watched");
  impl_->watch = watch;
}
void Executor::trace(RunTrace* trace) {
  require(trace == nullptr || impl_->device.is_synchronous(), "only what a synchronous device runs can be traced");
  for (const std::vector<Step>& steps : impl_->entries)
    require(trace == nullptr || trace->instructions.size() >= steps.size(), "a trace that has less room than an entry has instructions");
  impl_->device.record_background(false);
  impl_->trace = trace;
}
const RunTimes& Executor::times(size_t entry) const { return impl_->times.at(entry); }

std::span<std::byte> Executor::input(size_t entry, ValueId value) const {
  const Place place = impl_->place_of(entry, value);
  require(!is_far(impl_->program, place), "an input that the host can't fill");
  return impl_->span_of(place);
}

std::span<const std::byte> Executor::bytes(size_t entry, ValueId value) { return impl_->bytes(entry, value); }
std::span<std::byte> Executor::persistent(std::string_view name, int area) { return impl_->persistent(impl_->find(name), area, true); }
std::span<std::byte> Executor::blank(std::string_view name) { return impl_->persistent(impl_->find(name), 0, false); }
void Executor::changed(std::string_view name, int area) { impl_->changed(impl_->find(name), area); }

std::span<std::byte> Executor::spare(int64_t most) {
  impl_->require_memory();
  Place place = impl_->program.spare;
  place.bytes = std::min(most, place.bytes) / kSector * kSector;
  if (place.bytes > 0) impl_->touch(place);
  return impl_->span_of(place);
}

}  // namespace ort_train
