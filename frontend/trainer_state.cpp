// What lives across steps: memory, weights read into it and out of it.

#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "frontend/budget.h"
#include "frontend/element.h"
#include "frontend/file.h"
#include "frontend/machine.h"
#include "frontend/memory.h"
#include "frontend/parameter_groups.h"
#include "frontend/trainer_impl.h"
#include "graph/error.h"
#include "graph/op_def.h"
#include "offload/file_range.h"

namespace ort_train {
namespace {

const Persistent* find_persistent(const Program& program, std::string_view name) {
  for (const Persistent& value : program.persistent) {
    if (value.name == name) return &value;
  }
  return nullptr;
}

// Numbers of a file, in another type where the weight has one of its own.
void read_weight(const FileRange& from, DType stored, DType wanted, std::span<std::byte> to) {
  if (stored == wanted) return read_range(from, to);
  constexpr int64_t kBlock = int64_t{1} << 18;  // elements
  std::vector<std::byte> buffer;
  FileRange range = from;
  for (const int64_t end = from.offset + from.bytes; range.offset < end; range.offset += range.bytes) {
    range.bytes = std::min(end - range.offset, kBlock * size_of(stored));
    buffer.resize(static_cast<size_t>(range.bytes));
    read_range(range, buffer);
    const auto bytes = static_cast<size_t>(range.bytes / size_of(stored) * size_of(wanted));
    if (const int64_t bad = convert(element_of(stored), buffer, wanted, to.first(bytes)); bad >= 0) {
      throw error(ErrorCode::data,
                  "{}: the weight's number at byte {} is more than {} can hold: use `bf16`, which keeps weights in float32", range.path,
                  range.offset + bad * size_of(stored), to_string(wanted));
    }
    to = to.subspan(bytes);
  }
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

void Trainer::Impl::prepare() {
  if (life == Life::ready) return;
  check_usable();
  if (life == Life::preparing)
    throw error(ErrorCode::usage, "a callback can't use a trainer whose weights are being read: wait until the call returns");
  life = Life::preparing;
  try {
    take_memory();
  } catch (const std::exception& problem) {
    give_up(problem.what());
    throw;
  } catch (...) {
    give_up("its preparation was broken off");
    throw;
  }
  life = Life::ready;
}

// Nothing of what was prepared is kept: not the memory, nor files that another trainer may want.
void Trainer::Impl::give_up(const std::string& why) {
  fail(why);
  disk.reset();
  memory.clear();
}

void Trainer::Impl::settle() {
  prepare();
  if (anomalies) anomalies->set_place(fmt::format("after step {}", state.step));
  flush();
}

void Trainer::Impl::take_memory() {
  const int64_t available = available_memory();
  if (program.memory().bytes > available) {
    throw error(ErrorCode::budget, "the job's arena takes {} bytes, of which this machine has {} left", program.memory().bytes, available);
  }
  data.train->load();
  if (data.valid) data.valid->load();
  if (options.budget_is_process) {
    release_free_heap();  // what planning took
    const int64_t taken = process_memory().resident + whole_pages(program.memory().bytes);
    if (options.budget > 0 && taken > options.budget && !limited_by_machine) {
      throw error(ErrorCode::budget, "the program takes more memory than foreseen: with the job's arena {} bytes, more than `budget` {}",
                  taken, options.budget);
    }
  }
  for (const Space& space : program.spaces)
    memory.push_back(space.kind == SpaceKind::file ? nullptr : computing().allocate(space.kind, space.bytes));
  tidy_disk();
  std::map<std::string, const Value*> values;  // what lives across runs, in any of the graphs
  for (const auto& entry : entries) {
    const Graph& graph = entry->job.graph;
    for (const ValueKind kind : {ValueKind::parameter, ValueKind::optimizer_state}) {
      for (const ValueId id : graph.values_of(kind)) values.emplace(graph.value(id).name, &graph.value(id));
    }
  }
  std::map<std::string, TensorType> wholes;  // of the weights
  for (const Persistent& value : program.persistent) {
    if (value.purpose != Purpose::weights && value.purpose != Purpose::optimizer) continue;
    const Value& of = *values.at(value.name);
    const StateTensor tensor{
        .name = value.name,
        .type = value.type,
        .owner = of.owner,
        .whole = of.whole,
        .offset = of.whole_offset,
        .bytes = [this, &value](bool overwrite) { return overwrite ? executor->blank(value.name) : executor->persistent(value.name); },
        .changed = [this, &value] { executor->changed(value.name); },
        .on_disk = is_in_file(value)};
    if (value.purpose == Purpose::weights) {
      content.weights.push_back(tensor);
      const auto [whole, is_first] = wholes.emplace(tensor.whole.empty() ? tensor.name : tensor.whole, tensor.type);
      if (!is_first) whole->second.shape[0] += tensor.type.shape[0];
    }
    if (value.purpose == Purpose::optimizer) content.optimizer.push_back(tensor);
  }
  for (auto* list : {&content.weights, &content.optimizer})  // the plan has an order of its own
    std::sort(list->begin(), list->end(), [](const StateTensor& a, const StateTensor& b) { return a.name < b.name; });
  content.settings = settings();
  std::string description;
  for (const auto& [name, type] : wholes) description += fmt::format("{}: {}\n", name, to_string(type));
  for (const auto& [parameter, slices] : entries[0]->job.slices) {  // packs of one name and size may have other members
    if (slices.size() == 1)
      description += fmt::format("{}: {} bytes of {} from {}\n", parameter, slices[0].bytes, slices[0].name, slices[0].offset);
  }
  content.model = hex16(hash_bytes(std::as_bytes(std::span(description))));
  state.run = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  state.seed = options.seed;
  if (is_resumed()) {
    resume();
  } else {
    start_disk(nullptr, {});
    load_weights();
  }
  scaling.begin(state.loss_scale);
  if (options.detect_anomaly) {
    anomalies = std::make_unique<AnomalyWatch>(graph_pointers(), scaling.is_on());
    executor->watch(anomalies.get());
  }
  for (const auto& entry : entries) release_constants(entry->job.graph);
  for (Persistent& value : program.persistent) value.initial.reset();
  if (options.budget_is_process) release_free_heap();
}

std::vector<Slice> Trainer::Impl::slices_of(const std::string& parameter) const {
  const auto& known = entries[0]->job.slices;
  if (const auto found = known.find(parameter); found != known.end()) return found->second;
  const Persistent* value = find_persistent(program, parameter);
  if (value == nullptr) return {};  // nothing reads it
  return {{.name = parameter, .offset = 0, .bytes = value->type.bytes()}};
}

void Trainer::Impl::load_weights() {
  for (const Weight& weight : weights) {
    const WeightPlace& from = weight.places.at(0);
    FileRange range = from.bytes;
    const int64_t end = range.offset + range.bytes;
    for (const Slice& slice : slices_of(weight.parameter)) {
      const Persistent* value = find_persistent(program, slice.name);
      range.bytes = slice.bytes / size_of(weight.dtype) * size_of(from.dtype);
      require(value != nullptr && !from.transposed && value->type.dtype == weight.dtype && range.offset + range.bytes <= end,
              "a weight that is not stored as it is used");
      // Of a pack the rest stays what it is: other weights, or zeros.
      const auto whole = slice.bytes == value->type.bytes() ? executor->blank(slice.name) : executor->persistent(slice.name);
      read_weight(range, from.dtype, weight.dtype, whole.subspan(static_cast<size_t>(slice.offset), static_cast<size_t>(slice.bytes)));
      executor->changed(slice.name);
      range.offset += range.bytes;
    }
  }
}

std::map<std::string, std::string> Trainer::Impl::settings() const {
  const auto text = [](const auto& value) { return fmt::format("{}", value); };
  std::string batch_norm = options.batch_norm;
  for (const auto& [pattern, mode] : options.batch_norm_nodes) batch_norm += fmt::format(" {}={}", pattern, mode);
  std::string kwargs;
  for (const auto& [name, value] : options.lr_scheduler_kwargs) kwargs += fmt::format("{}{}={}", kwargs.empty() ? "" : ",", name, value);
  std::map<std::string, std::string> result{{"loss", options.loss.empty() ? losses.terms[0].kind : options.loss},
                                            {"output", options.output},
                                            {"labels", options.labels},
                                            {"task", options.task},
                                            {"batch_size", text(binding.batch)},
                                            {"seq_length", text(binding.sequence)},
                                            {"learning_rate", text(schedule.learning_rate)},
                                            {"lr_scheduler_type", std::string(schedule.def->name)},
                                            {"lr_scheduler_kwargs", kwargs},
                                            {"warmup_steps", text(schedule.warmup_steps)},
                                            {"weight_decay", text(options.weight_decay)},
                                            {"param_groups", groups_setting(options)},
                                            {"layer_decay", text(options.layer_decay)},
                                            {"max_grad_norm", text(options.max_grad_norm)},
                                            {"clip_per_layer", text(options.clip_per_layer)},
                                            {"loss_scale", scaling.is_on() ? options.loss_scale : "none"},
                                            {"optim", optimizer.state_label()},
                                            {"total_steps", text(total_steps)},
                                            {"gradient_accumulation_steps", text(options.gradient_accumulation_steps)},
                                            {"seed", text(options.seed)},
                                            {"shuffle", text(options.shuffle)},
                                            {"batch_norm", batch_norm},
                                            {"train_samples", text(train_range.count)},
                                            {"data", std::filesystem::path(data.train->path()).filename().string()},
                                            {"instruction_set", __builtin_cpu_supports("x86-64-v4") ? "x86-64-v4" : "x86-64-v3"}};
  for (const OptimizerOption& option : optimizer.options()) result[std::string(option.name)] = text(optimizer.value(option.name));
  if (!options.teacher.empty()) result["teacher"] = std::filesystem::path(options.teacher).filename().string();
  if (!options.loss_model.empty()) result["loss_model"] = std::filesystem::path(options.loss_model).filename().string();
  if (options.temperature != 1) result["temperature"] = text(options.temperature);
  if (options.label_smoothing != 0) result["label_smoothing"] = text(options.label_smoothing);
  if (options.z_loss != 0) result["z_loss"] = text(options.z_loss);
  result["precision"] = fmt::format("{}{}", to_string(types.low), types.low_weights ? " weights" : "");
  if (!types.autocast.empty()) {
    std::string rules;
    for (const AutocastRule& rule : types.autocast) rules += fmt::format("{} {}\n", rule.name, static_cast<int>(rule.runs));
    result["autocast_list"] = hex16(hash_bytes(std::as_bytes(std::span(rules))));
  }
  if (!info.chosen.empty()) result["train_freeze"] = hex16(hash_bytes(std::as_bytes(std::span(info.chosen))));
  for (const auto& [name, ratio] : options.dropout) result["dropout " + name] = text(ratio);
  for (const SelectionLimit& limit : options.selects)
    result["selects " + limit.node] = fmt::format("{}{}", limit.exact ? "" : "<=", limit.count);
  for (const auto& [name, value] : options.bind) result["bind " + name] = value;
  for (const auto& [name, size] : binding.shapes) result["shape " + name] = text(size);
  return result;
}

bool Trainer::Impl::read_parameter(const std::string& name, const ByteSink& sink) const {
  int64_t offset = 0;
  const std::vector<Slice> slices = slices_of(name);
  for (const Slice& slice : slices) {
    if (!sink) break;
    sink(offset, executor->persistent(slice.name).subspan(static_cast<size_t>(slice.offset), static_cast<size_t>(slice.bytes)));
    offset += slice.bytes;
  }
  return !slices.empty();
}

std::string Trainer::Impl::weights_hash() const {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hash(XXH3_createState(), XXH3_freeState);
  require(hash != nullptr && XXH3_64bits_reset(hash.get()) == XXH_OK, "no hash state");
  std::vector<std::byte> buffer;
  for (const Weight& weight : weights) {
    if (weight.is_attached) continue;
    const auto update = [&](int64_t, std::span<const std::byte> bytes) { XXH3_64bits_update(hash.get(), bytes.data(), bytes.size()); };
    if (read_parameter(weight.parameter, update)) continue;
    FileRange range = weight.places.at(0).bytes;  // as in the file: nothing reads it
    const int64_t end = range.offset + range.bytes;
    for (; range.offset < end; range.offset += range.bytes) {
      range.bytes = std::min<int64_t>(end - range.offset, int64_t{1} << 20);
      buffer.resize(static_cast<size_t>(range.bytes));
      read_range(range, buffer);
      XXH3_64bits_update(hash.get(), buffer.data(), buffer.size());
    }
  }
  return hex16(XXH3_64bits_digest(hash.get()));
}

}  // namespace ort_train
