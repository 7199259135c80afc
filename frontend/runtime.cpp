#include "frontend/runtime.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <sstream>

#include "exec/random.h"
#include "frontend/adapters.h"
#include "frontend/budget.h"
#include "frontend/element.h"
#include "frontend/file.h"
#include "frontend/hash.h"
#include "frontend/load_weights.h"
#include "frontend/machine.h"
#include "frontend/memory.h"
#include "frontend/units.h"
#include "frontend/weight_file.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "graph/rounding.h"
#include "graph/weight_blocks.h"
#include "offload/file_range.h"

namespace ort_train {
namespace {

// Bytes of a device's memory that a second plan leaves to libraries besides what they were seen to hold: where a plan for less computes
// more again, and its recorded steps are larger; and at least, where they found no memory left.
constexpr int64_t kMoreRecorded = int64_t{8} << 20, kLeastMore = int64_t{64} << 20;

const Persistent* find_persistent(const Program& program, std::string_view name) {
  for (const Persistent& value : program.persistent) {
    if (value.name == name) return &value;
  }
  return nullptr;
}

// The constants are in the memory now; those that prepared kernels may look at stay.
void release_constants(Graph& graph) {
  constexpr size_t kSmall = 4096;
  std::vector<bool> wanted(graph.value_count(), false);
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    for (const int input : node.op->host_inputs) {
      if (static_cast<size_t>(input) < node.inputs.size() && node.inputs[static_cast<size_t>(input)] != kNone)
        wanted[node.inputs[static_cast<size_t>(input)]] = true;
    }
  }
  for (ValueId id = 0; id < graph.value_count(); ++id) {
    if (!wanted[id] && graph.constant(id) != nullptr && graph.constant(id)->bytes.size() > kSmall) graph.value(id).constant.reset();
  }
}

}  // namespace

Runtime::Runtime(Job& job, PlannedJob& planned, CpuDevice& device, const Note& note)
    : job_(job),
      planned_(planned),
      processor_(device),
      note_(note),
      executor_(planned.program, planned.set.graphs(), planned.discrete_device ? *planned.discrete_device : device) {
  if (!job.options.timeline.empty()) timeline_.emplace(job.options, planned.program, planned.set.graphs());
  if (job.options.op_times.empty()) return;
  Device& runs = this->device();
  op_times_.emplace(
      planned.program, planned.set.graphs(), [&runs](SpaceKind kind) { return runs.kernels(kind); }, runs.threads());
  executor_.time_work();
}

// --- before the first run ---------------------------------------------------------------------------------------------------------------

void Runtime::allocate() {
  const Options& options = job_.options;
  int64_t arena = 0;  // of the host's memory
  for (const Space& space : planned_.program.spaces) arena += space.kind == SpaceKind::host ? space.bytes : 0;
  // A `host_budget` counts for more than the kernel's estimate of what is available, which may be far too low: only what can't be had at
  // all is refused here. What else can't be had fails when it is taken (exec/arena.h).
  const bool is_beside_device = planned_.discrete_device != nullptr;
  if (const int64_t most = is_beside_device && options.host_budget > 0 ? obtainable_memory() : available_memory(); arena > most)
    throw error(ErrorCode::budget, "the job needs {} bytes of memory and this machine has {} available: {}", grouped(arena), grouped(most),
                is_beside_device ? "set `host_budget` to at most that" : "lower `budget` to what is available");
  job_.data.load();
  if (options.budget_is_process) {
    release_free_heap();  // what planning took
    const int64_t taken = process_memory().resident + whole_pages(arena);
    if (planned_.budget > 0 && taken > planned_.budget && !planned_.budget_is_machines) {
      throw error(ErrorCode::budget, "the process takes {} bytes with the arena, more than `budget` {}: try {} bytes or more (`budget` {})",
                  grouped(taken), planned_.budget, grouped(budget_above(taken)), budget_above(taken));
    }
  }
  for (const Space& space : planned_.program.spaces)
    memory_.push_back(space.kind == SpaceKind::file ? nullptr : device().allocate(space.kind, space.bytes));
  tidy_disk(options, note_);
  collect_tensors();
}

// What a checkpoint has.
void Runtime::collect_tensors() {
  std::map<std::string, const Value*> values;  // what lives across runs, in any of the graphs
  for (const JobEntry& entry : planned_.set.entries) {
    const Graph& graph = entry.built.graph;
    for (const ValueKind kind : {ValueKind::parameter, ValueKind::optimizer_state}) {
      for (const ValueId id : graph.values_of(kind)) values.emplace(graph.value(id).name, &graph.value(id));
    }
  }
  std::map<std::string, TensorType> wholes;  // of the weights
  for (const Persistent& value : planned_.program.persistent) {
    if (value.purpose != Purpose::weights && value.purpose != Purpose::optimizer) continue;
    const Value& of = *values.at(value.name);
    if (value.purpose == Purpose::weights) {
      const auto [whole, is_first] = wholes.emplace(of.whole.empty() ? value.name : of.whole, value.type);
      if (!is_first) whole->second.shape[0] += value.type.shape[0];
    }
    if (!survives(value)) continue;
    const StateTensor tensor{
        .name = value.name,
        .type = value.type,
        .owner = of.owner,
        .whole = of.whole,
        .offset = of.whole_offset,
        .bytes = [this, &value](bool overwrite) { return overwrite ? executor_.blank(value.name) : executor_.persistent(value.name); },
        .changed = [this, &value] { executor_.changed(value.name); },
        .on_disk = is_in_file(value)};
    (value.purpose == Purpose::weights ? content_.weights : content_.optimizer).push_back(tensor);
  }
  for (auto* list : {&content_.weights, &content_.optimizer})  // the plan has an order of its own
    std::sort(list->begin(), list->end(), [](const StateTensor& a, const StateTensor& b) { return a.name < b.name; });
  content_.settings = job_.settings();
  if (is_half(job_.model.product_type)) {
    content_.settings[kProductsSetting] = device().makes_products(job_.model.product_type);
    if (device().algorithms() != nullptr) content_.algorithms = device().algorithms()->all();
  }
  std::string description;
  for (const auto& [name, type] : wholes) description += fmt::format("{}: {}\n", name, to_string(type));
  for (const auto& [parameter, slices] : planned_.set.entries[0].built.slices) {  // packs of one name and size may have other members
    if (slices.size() == 1)
      description += fmt::format("{}: {} bytes of {} from {}\n", parameter, slices[0].bytes, slices[0].name, slices[0].offset);
  }
  content_.model = hex16(hash_bytes(std::as_bytes(std::span(description))));
}

DiskOptions Runtime::disk_engine() const {
  DiskOptions engine;
  if (planned_.disk.block_bytes > 0) engine.block_bytes = planned_.disk.block_bytes;
  if (planned_.disk.depth > 0) engine.depth = planned_.disk.depth;
  // A step never waits because too many requests are outstanding; a thousand take 150 KB.
  engine.requests = static_cast<int>(std::clamp<int64_t>(copies_under_way(planned_.program), engine.requests, 1024));
  const Memory& host = *memory_.at(planned_.program.spare.space);  // which transfers lie in
  if (planned_.pinning > 0) engine.memory = {host.data(), static_cast<size_t>(host.bytes())};
  return engine;
}

bool Runtime::open_files(const RunStart& start, const SavedSlots& saved) {
  disk_.reset();
  const DiskOptions engine = planned_.program.file().bytes > 0 ? disk_engine() : DiskOptions{};
  OpenedDisk opened = open_disk(job_.options, planned_.program, start, engine, saved);
  disk_ = std::move(opened.disk);
  if (disk_) {
    std::istringstream lines(disk_->note());
    for (std::string line; std::getline(lines, line);) note_(line);
  }
  std::vector<Memory*> spaces;
  for (const auto& space : memory_) spaces.push_back(space.get());
  try {
    executor_.attach(std::move(spaces), disk_.get(), /*fresh=*/!opened.in_place);
  } catch (const Error& problem) {  // what kernels and recorded steps take when they are first run
    if (planned_.discrete_device == nullptr || problem.code() != ErrorCode::budget) throw;
    const int64_t arena = memory_.at(kMemory)->bytes();
    throw LibrariesOverBudget(fmt::format("{}; a smaller `budget` leaves more to what kernels load", problem.what()),
                              bytes_beside_arena() + std::max(arena / 16, kLeastMore));
  }
  check_device_memory();
  return opened.in_place;
}

int64_t Runtime::bytes_beside_arena() const { return used_device_bytes() - round_up(memory_.at(kMemory)->bytes(), planned_.page); }

// By the driver's count, now that everything is loaded: what the plan says is a promise.
void Runtime::check_device_memory() const {
  const int64_t used = used_device_bytes(), budget = job_.options.budget;
  if (planned_.discrete_device == nullptr || budget == 0 || used <= budget) return;
  const int64_t over = used - budget, kept = bytes_beside_arena() + kMoreRecorded,
                least = planned_.least.budget - (planned_.reserve - planned_.tables) + kept;
  throw LibrariesOverBudget(
      fmt::format("the GPU's memory holds {} bytes with all that the libraries have loaded, {} more than `budget` {}: the smallest budget "
                  "that would do is {} bytes (`budget` {}), if no other process takes memory there meanwhile",
                  grouped(used), grouped(over), budget, grouped(least), least),
      kept);
}

void Runtime::end_loading() {
  for (JobEntry& entry : planned_.set.entries) release_constants(entry.built.graph);
  for (Persistent& value : planned_.program.persistent) value.initial.reset();
  if (job_.options.budget_is_process) release_free_heap();
}

void Runtime::release() {
  disk_.reset();
  memory_.clear();
}

// --- runs -------------------------------------------------------------------------------------------------------------------------------

void Runtime::check_usable() const {
  if (!failure_.empty()) throw error(ErrorCode::usage, "this trainer can't be used any more ({}): make another one", failure_);
}

bool Runtime::run(size_t entry, const std::atomic<bool>* until) {
  check_usable();
  try {
    if (!executor_.run(entry, until)) return false;
  } catch (const std::exception& problem) {
    const Graph& graph = planned_.set.entries[entry].built.graph;
    const auto& nodes = graph.order();
    if (std::any_of(nodes.begin(), nodes.end(), [&](NodeId id) { return !graph.node(id).op->writes.empty(); }))
      fail(fmt::format("a step ended half way: {}", problem.what()));
    throw;
  }
  const std::vector<Instruction>& code = planned_.program.entries[entry].code;
  const RunTimes& times = executor_.times(entry);
  for (size_t i = 0; i < code.size(); ++i) {
    if (!is_copy(code[i])) spent_.computing += times.seconds[i] * 1e3;
  }
  spent_.waiting += times.waiting * 1e3;
  if (op_times_) op_times_->add(entry, times);
  if (timeline_ && timeline_->is_in_step()) timeline_->add(entry, disk_ ? disk_->take_records() : std::vector<TransferRecord>{});
  return true;
}

void Runtime::begin_step(int64_t step, bool is_last) {
  if (!timeline_ || !timeline_->begin_step(step, is_last)) return;
  executor_.trace(&timeline_->trace());
  if (disk_) disk_->record(true);
}

void Runtime::end_step(bool is_last) {
  if (!timeline_ || !timeline_->is_in_step()) return;
  executor_.trace(nullptr);
  if (disk_) disk_->record(false);
  timeline_->end_step(is_last);
}

std::span<std::byte> Runtime::place(size_t entry, ValueId value) const {
  const auto& places = planned_.program.entries[entry].value_places;
  if (value >= places.size() || places[value].bytes == 0) return {};
  return executor_.input(entry, value);
}

float Runtime::scalar(size_t entry, ValueId value) const {
  float number = 0;
  const auto bytes = executor_.bytes(entry, value);
  require(bytes.size() >= sizeof(number), "a scalar that is none");
  std::memcpy(&number, bytes.data(), sizeof(number));
  return number;
}

// --- weights ----------------------------------------------------------------------------------------------------------------------------

const TensorType& Runtime::type_of(const std::string& name) const {
  const Persistent* const value = find_persistent(planned_.program, name);
  require(value != nullptr, "a value that doesn't live across runs");
  return value->type;
}

std::vector<Slice> Runtime::slices_of(const std::string& parameter) const {
  const auto& known = planned_.set.entries[0].built.slices;
  if (const auto found = known.find(parameter); found != known.end()) return found->second;
  const Persistent* value = find_persistent(planned_.program, parameter);
  if (value == nullptr) return {};  // nothing reads it
  return {{.name = parameter, .offset = 0, .bytes = value->type.bytes()}};
}

void Runtime::set_random(size_t entry, int64_t step, int64_t first, int64_t samples, ValueId input) const {
  if (input == kNone) input = planned_.set.entries[entry].built.graph.find_value(kRandomInput);
  const auto to = input == kNone ? std::span<std::byte>() : place(entry, input);
  if (to.empty()) return;
  const std::array<int64_t, kRandomNumbers> numbers{static_cast<int64_t>(job_.options.seed), step, first, samples};
  std::memcpy(to.data(), numbers.data(), to.size());
}

bool Runtime::is_unchanged(const Weight& weight) const {
  const std::vector<Slice> slices = slices_of(weight.parameter);
  return std::all_of(slices.begin(), slices.end(),
                     [&](const Slice& slice) { return find_persistent(planned_.program, slice.name)->read_only; });
}

void Runtime::load_weights(Weights which) {
  check_model_files(job_.model.info);
  content_.unchanged = WeightLoader(*this, job_).load(which == Weights::unchanged);
  check_model_files(job_.model.info);  // while they were read
}

StateFile* Runtime::fill_slots() {
  if (!disk_ || disk_->state() == nullptr) return nullptr;
  if (disk_->state()->gone()) {
    note_(fmt::format("'{}' was deleted, so the checkpoint is written out as a whole", disk_->state()->file().path()));
    return nullptr;
  }
  constexpr int64_t kStaging = int64_t{8} << 20;
  const std::span<std::byte> staging = executor_.spare(kStaging);
  for (const auto* list : {&content_.weights, &content_.optimizer}) {
    for (const StateTensor& tensor : *list) {
      if (!tensor.on_disk) disk_->write_state(tensor.name, tensor.bytes(/*overwrite=*/false), staging);
    }
  }
  disk_->finish();
  return disk_->state();
}

bool Runtime::read_original(const Weight& weight, const ByteSink& sink) const {
  if (!sink || !is_narrowed(weight) || !is_unchanged(weight) || slices_of(weight.parameter).empty())
    return read_parameter(weight.parameter, sink);
  read_rows(weight.places.at(0), DType::float32, sink);
  return true;
}

bool Runtime::read_parameter(const std::string& name, const ByteSink& sink) const {
  int64_t offset = 0;
  const std::vector<Slice> slices = slices_of(name);
  for (const Slice& slice : slices) {
    if (!sink) break;
    sink(offset, executor_.persistent(slice.name).subspan(static_cast<size_t>(slice.offset), static_cast<size_t>(slice.bytes)));
    offset += slice.bytes;
  }
  return !slices.empty();
}

std::string Runtime::weights_hash() const {
  Hash hash;
  std::vector<std::byte> buffer;
  for (const Weight& weight : job_.model.weights) {
    if (weight.is_attached) continue;
    if (read_parameter(weight.parameter, [&](int64_t, std::span<const std::byte> bytes) { hash.add(bytes); })) continue;
    FileRange range = weight.places.at(0).bytes;  // as in the file: nothing reads it
    const int64_t end = range.offset + range.bytes;
    for (; range.offset < end; range.offset += range.bytes) {
      range.bytes = std::min<int64_t>(end - range.offset, int64_t{1} << 20);
      buffer.resize(static_cast<size_t>(range.bytes));
      read_range(range, buffer);
      hash.add(buffer);
    }
  }
  return hash.text();
}

}  // namespace ort_train
