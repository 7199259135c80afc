#include "frontend/adapters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <set>

#include "exec/random.h"
#include "frontend/adapter_files.h"
#include "frontend/element.h"
#include "frontend/units.h"
#include "frontend/weight_file.h"
#include "frontend/weight_names.h"
#include "graph/error.h"
#include "graph/names.h"
#include "graph/onnx/reader.h"
#include "offload/file_range.h"
#include "passes/pipeline.h"

namespace ort_train {
namespace {

// --- names ------------------------------------------------------------------------------------------------------------------------------

std::string without_weight(std::string name) {
  constexpr std::string_view kEnding = ".weight";
  if (name.ends_with(kEnding)) name.erase(name.size() - kEnding.size());
  return name;
}

// "transformer.h.0.attn.c_attn": by the exported program's parameter, the tensor's own name, or the path of the node that reads it
// ("/transformer/h.0/attn/c_attn/MatMul").
std::string module_named(const std::string& name, const std::string& original, const std::string& node) {
  const std::string first = original.substr(0, original.find(", "));
  if (first.ends_with(".weight")) return without_weight(first);
  const std::string path = module_of_path(node);
  return name.ends_with(".weight") || path.empty() ? without_weight(name) : path;
}

// A weight that may be adapted, with all its names.
struct Candidate {
  Adaptable weight;
  WeightNames names;
  std::string module;
  bool is_trained = false;

  bool fit(const std::string& pattern) const { return fits(pattern, module) || fits("*." + pattern, module) || names.fit(pattern); }
};

std::vector<Candidate> candidates_of(const Imported& model, const std::set<size_t>& read) {
  const std::map<std::string, WeightNames> names = weight_names(model);
  std::vector<Candidate> all;
  for (const Adaptable& weight : find_adaptable(model.graph, read)) {
    if (weight_named(model.weights, weight.weight).is_constant) continue;
    Candidate one{.weight = weight, .names = names.at(weight.weight), .module = {}};
    one.module = module_named(one.weight.weight, one.names.originals, one.weight.node);
    one.is_trained = model.graph.value(model.graph.find_value(one.weight.weight)).trainable;
    all.push_back(std::move(one));
  }
  // Weights of one name, which were one before `untie`, are told apart by the nodes that read them, else by their tensors.
  std::map<std::string, int> named;
  for (const Candidate& one : all) ++named[one.module];
  std::set<std::string> modules;
  for (Candidate& one : all) {
    const auto of_node = model.info.node_modules.find(one.weight.node);
    if (named[one.module] > 1 && of_node != model.info.node_modules.end() && !of_node->second.empty()) one.module = of_node->second;
    if (!modules.insert(one.module).second) modules.insert(one.module = without_weight(one.weight.weight));
  }
  return all;
}

// With the names of the model's outputs, which losses ask for.
void simplify_named(Graph& graph, const PassOptions& passes) {
  const std::vector<std::string> outputs = names_of_outputs(graph);
  simplify(graph, passes);
  rename_outputs(graph, outputs);
}

// --- targets ----------------------------------------------------------------------------------------------------------------------------

using Modules = std::map<std::string, std::string>;  // AdapterSpec::modules

[[noreturn]] void refuse_target(const char* option, const std::string& pattern, const std::vector<Candidate>& candidates) {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates) names.push_back(candidate.module);
  const std::vector<std::string> near = nearest_names(pattern, names, 3);
  throw error(ErrorCode::usage, "`{}` '{}' fits no product, convolution or embedding of the model; {}", option, pattern,
              near.empty() ? "it has none" : fmt::format("it has '{}'", fmt::join(near, "', '")));
}

// The frozen weights that a pattern of that option fits.
std::vector<const Candidate*> frozen_ones(const char* option, const std::string& pattern, const std::vector<Candidate>& candidates) {
  bool any = false;
  std::vector<const Candidate*> found;
  for (const Candidate& candidate : candidates) {
    if (!candidate.fit(pattern)) continue;
    any = true;
    if (!candidate.is_trained) found.push_back(&candidate);
  }
  if (!any) refuse_target(option, pattern, candidates);
  if (found.empty()) throw error(ErrorCode::usage, "`{}` '{}' fits only weights that are trained as a whole", option, pattern);
  return found;
}

Modules targets_named(const char* option, const std::vector<Candidate>& candidates, const std::vector<std::string>& patterns) {
  Modules modules;
  for (const std::string& pattern : patterns) {
    for (const Candidate* candidate : frozen_ones(option, pattern, candidates)) {
      if (!candidate->weight.obstacle.empty())
        throw error(ErrorCode::usage, "`{}` '{}': '{}' can't have an adapter: {}", option, pattern, candidate->weight.weight,
                    candidate->weight.obstacle);
      modules.emplace(candidate->weight.weight, candidate->module);
    }
  }
  return modules;
}

// The highest rank that is of use beside a weight.
int64_t highest_rank(const Shape& shape) { return std::min(shape[0], element_count(shape) / std::max<int64_t>(1, shape[0])); }

// All products but the head's. What the rank is too high for (a router, of few experts) has none, and a note says so.
Modules usual_targets(Imported& model, const std::vector<Candidate>& candidates, int64_t rank) {
  constexpr size_t kNamed = 3;
  Modules modules;
  std::vector<std::string> small;
  int64_t highest = 0;
  for (const Candidate& candidate : candidates) {
    const bool is_product = candidate.weight.use == AdaptedUse::product || candidate.weight.use == AdaptedUse::transposed_product;
    if (!is_product || candidate.is_trained || candidate.weight.is_head || !candidate.weight.obstacle.empty()) continue;
    const Shape& shape = model.graph.value(model.graph.find_value(candidate.weight.weight)).shape;
    highest = std::max(highest, highest_rank(shape));
    if (rank <= highest_rank(shape))
      modules.emplace(candidate.weight.weight, candidate.module);
    else
      small.push_back(fmt::format("'{}' {}", onnx::printable(candidate.weight.weight), to_string(shape)));
  }
  const std::string which = first_of(small, kNamed);
  if (modules.empty() && !small.empty())
    throw error(ErrorCode::usage, "`lora_rank` {} is more than any product of the model has ({}): at most {} is of use", rank, which,
                highest);
  if (!small.empty())
    model.info.notes.push_back(fmt::format("{} fewer rows or columns than `lora_rank` {}, and so no adapter: {}",
                                           small.size() == 1 ? "1 weight has" : fmt::format("{} weights have", small.size()), rank, which));
  const auto hindered = std::find_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return !c.weight.obstacle.empty(); });
  if (modules.empty() && hindered != candidates.end())
    throw error(ErrorCode::usage, "`lora_rank`: no weight of the model can have an adapter, as '{}': {}", hindered->weight.weight,
                hindered->weight.obstacle);
  if (modules.empty())
    throw error(ErrorCode::usage,
                "`lora_rank`: the model has no product with a matrix but its head's: say with `lora_target` which convolutions, embeddings "
                "or products get adapters");
  return modules;
}

// Those that a module of a file may be.
std::vector<const Candidate*> candidates_named(const std::vector<Candidate>& candidates, const std::string& module) {
  std::vector<const Candidate*> found;
  for (const Candidate& candidate : candidates) {
    if (candidate.module == module) return {&candidate};
    if (same_module(candidate.module, module)) found.push_back(&candidate);
  }
  return found;
}

// Whether two tensors, one perhaps stored as the other's transpose, have the same numbers, as far as the narrower type says.
bool have_same_numbers(const WeightPlace& a, const WeightPlace& b) {
  const DType type = is_half(a.dtype) ? a.dtype : is_half(b.dtype) ? b.dtype : DType::float32;
  const auto reader = [type](const WeightPlace& place) {
    return [&place, type, file = std::make_shared<File>(open_range(place.bytes)), stored = std::vector<std::byte>()](
               int64_t first, std::span<std::byte> to) mutable {
      stored.resize(to.size() / static_cast<size_t>(size_of(type)) * static_cast<size_t>(size_of(place.dtype)));
      read_elements(*file, place, first, stored);
      return convert(element_of(place.dtype), stored, type, to) < 0;
    };
  };
  const bool is_matrix = a.shape.size() == 2 && b.shape.size() == 2;
  return (a.shape == b.shape && same_elements(reader(a), reader(b), a.shape, size_of(type), /*transposed=*/false)) ||
         (is_matrix && b.shape == Shape{a.shape[1], a.shape[0]} &&
          same_elements(reader(a), reader(b), a.shape, size_of(type), /*transposed=*/true));
}

// Weights that PEFT saves beside their adapters (embeddings and heads), as they were, have to be the model's.
void check_saved_bases(const Imported& model, const std::vector<Candidate>& candidates, const AdapterSettings& settings) {
  for (const SafetensorsEntry& entry : settings.saved.entries) {
    const SavedName name = saved_name(entry.name);
    if (name.part != AdapterPart::base) continue;
    const std::vector<const Candidate*> found = candidates_named(candidates, name.module);
    if (found.empty())
      throw error(ErrorCode::usage, "{}: has '{}', which isn't in the model: it is of another model", settings.file, entry.name);
    for (const Candidate* const candidate : found) {
      const WeightPlace& place = weight_named(model.weights, candidate->weight.weight).places[0];
      if (!have_same_numbers(place_of(settings, entry), place))
        throw error(ErrorCode::unsupported, "{}: '{}', {}, has other numbers than the model's '{}', {}: the adapter is of another model",
                    settings.file, entry.name, to_string(entry.shape), candidate->weight.weight, to_string(place.shape));
    }
  }
}

// Each module of the file is one of the model's: by its name, or by the end of it.
AdapterSpec saved_targets(AdapterSpec spec, const std::vector<Candidate>& candidates, const AdapterSettings& settings) {
  std::map<std::string, std::string> taken;  // weight -> the file's module
  for (const SafetensorsEntry& entry : settings.saved.entries) {
    const SavedName name = saved_name(entry.name);
    if (name.part == AdapterPart::base) continue;
    const std::vector<const Candidate*> found = candidates_named(candidates, name.module);
    if (found.size() != 1)
      throw error(ErrorCode::usage, "{}: has an adapter of '{}', {} the model: it is of another model", settings.file, name.module,
                  found.empty() ? "which isn't in" : "of which there are several in");
    if (found[0]->is_trained || !found[0]->weight.obstacle.empty())
      throw error(ErrorCode::usage, "{}: has an adapter of '{}': {}", settings.file, name.module,
                  found[0]->is_trained ? "which `train` names, so that it is trained as a whole" : found[0]->weight.obstacle);
    const auto [at, is_first] = taken.emplace(found[0]->weight.weight, name.module);
    if (!is_first && at->second != name.module)
      throw error(ErrorCode::usage, "{}: has adapters of '{}' and '{}', and both would be of '{}': it is of another model", settings.file,
                  at->second, name.module, found[0]->module);
    spec.modules.emplace(found[0]->weight.weight, name.module);  // under its name there, for who reads what becomes of it
    if (spec.kind == AdapterKind::ia3 && saved_scales_inputs(settings, entry)) spec.scaled_inputs.insert(found[0]->weight.weight);
  }
  if (spec.modules.empty()) throw error(ErrorCode::data, "{}: has no adapters", settings.file);
  return spec;
}

AdapterSpec spec_of(Imported& model, const std::vector<Candidate>& candidates, const AdapterSettings& settings) {
  AdapterSpec spec{.kind = settings.kind, .rank = settings.rank, .scale = settings.scale, .dropout = settings.dropout};
  if (!settings.file.empty()) return saved_targets(std::move(spec), candidates, settings);
  if (settings.kind == AdapterKind::ia3) {
    spec.modules = targets_named("ia3_feedforward", candidates, settings.feedforward);
    for (const auto& [weight, module] : spec.modules) spec.scaled_inputs.insert(weight);
    spec.modules.merge(targets_named("ia3_target", candidates, settings.targets));
    return spec;
  }
  spec.modules = settings.targets.empty() ? usual_targets(model, candidates, settings.rank)
                                          : targets_named("lora_target", candidates, settings.targets);
  return spec;
}

void check_rank(const Graph& graph, const std::vector<Candidate>& candidates, const Modules& modules, int64_t rank) {
  for (const Candidate& candidate : candidates) {
    if (!modules.contains(candidate.weight.weight)) continue;
    const Shape& shape = graph.value(graph.find_value(candidate.weight.weight)).shape;
    if (rank > highest_rank(shape))
      throw error(ErrorCode::usage,
                  "`lora_rank` {} is more than '{}' has, which is {}: at most {} is of use (or leave it out by `lora_target`)", rank,
                  candidate.weight.weight, to_string(shape), highest_rank(shape));
  }
}

// --- what they begin as -----------------------------------------------------------------------------------------------------------------

// As PEFT's: the adapter changes nothing at first.
FreshNumbers begins(const Graph& graph, const Adapter& adapter, const std::string& parameter) {
  if (parameter == adapter.factors) return {.value = 1};
  if (parameter == adapter.magnitude || parameter == adapter.squares)
    return {.squares_of = adapter.weight,
            .axis = adapter.use == AdaptedUse::transposed_product ? size_t{1} : size_t{0},
            .root = parameter == adapter.magnitude};
  const bool is_a = parameter == adapter.a;
  if (adapter.use == AdaptedUse::lookup) return is_a ? FreshNumbers{} : FreshNumbers{.deviation = 1};
  if (!is_a) return {};
  const Shape& a = graph.value(graph.find_value(adapter.a)).shape;
  return {.bound = 1 / std::sqrt(static_cast<double>(element_count(a) / a[0]))};  // Kaiming's, of leaky ReLUs with a slope of sqrt(5)
}

}  // namespace

const Weight& weight_named(const std::vector<Weight>& weights, const std::string& name) {
  const auto found = std::find_if(weights.begin(), weights.end(), [&](const Weight& weight) { return weight.parameter == name; });
  require(found != weights.end(), "a weight that isn't there");
  return *found;
}

std::vector<Adapter> adapt(Imported& model, const AdapterSettings& settings, const PassOptions& passes) {
  std::vector<Adapter> adapters;
  Graph& graph = model.graph;
  run_pass("adapters", graph, passes, [&] {
    simplify_named(graph, passes);
    const std::vector<Candidate> candidates = candidates_of(model, passes.read);
    const AdapterSpec spec = spec_of(model, candidates, settings);
    check_saved_bases(model, candidates, settings);
    if (settings.file.empty()) check_rank(graph, candidates, spec.modules, settings.rank);
    adapters = add_adapters(graph, spec, passes.read);
    return true;
  });
  run_pass("join_adapters", graph, passes, [&] { return join_adapters(graph, adapters); });
  const auto add_weight = [&](const Adapter& adapter, const std::string& name, const Shape& shape) -> Weight& {
    return model.weights.emplace_back(Weight{.parameter = name,
                                             .dtype = graph.value(graph.find_value(name)).dtype,
                                             .places = {{.name = name, .bytes = {}, .dtype = DType::float32, .shape = shape}},
                                             .fresh = begins(graph, adapter, name)});
  };
  for (const Adapter& adapter : adapters) {
    if (!adapter.squares.empty()) add_weight(adapter, adapter.squares, graph.value(graph.find_value(adapter.squares)).shape);
    for (const AdapterTensor& tensor : tensors_of(graph, adapter)) {
      Weight& weight = add_weight(adapter, tensor.parameter, tensor.shape);
      if (settings.file.empty()) continue;
      weight.fresh.reset();
      weight.places[0] = saved_place(settings, adapter.module, tensor);
    }
  }
  return adapters;
}

void choose_base(Imported& model, const Options& options, PassOptions& passes) {
  simplify_named(model.graph, passes);
  const std::vector<Candidate> candidates = candidates_of(model, passes.read);
  for (const Candidate& candidate : candidates) {
    if (candidate.weight.is_head) passes.heads.insert(candidate.weight.weight);
  }
  for (const std::string& pattern : options.base_target) {
    for (const Candidate* candidate : frozen_ones("base_target", pattern, candidates)) {
      const Adaptable& weight = candidate->weight;
      if (weight.is_read_by_others || weight.use == AdaptedUse::convolution)
        throw error(ErrorCode::usage,
                    "`base_target` '{}': '{}' is read by more than products and lookups of rows, which alone read {}: leave it out",
                    pattern, weight.weight, options.base_dtype);
      passes.base_named.insert(weight.weight);
    }
  }
}

std::string adapters_note(const Imported& model, const std::vector<Adapter>& adapters, const AdapterSettings& settings) {
  int64_t trained = 0, left = 0, others = 0;
  std::set<std::string> own;
  for (const Adapter& adapter : adapters) own.merge(adapter.trained());
  for (const ValueId id : model.graph.parameters()) {
    const Value& value = model.graph.value(id);
    const bool counts = std::none_of(adapters.begin(), adapters.end(), [&](const Adapter& a) { return a.squares == value.name; });
    if (counts) (!value.trainable ? left : own.contains(value.name) ? trained : others) += element_count(value.shape);
  }
  const std::string what = settings.kind == AdapterKind::ia3
                               ? to_string(settings.kind)
                               : fmt::format("{} of rank {}, scale {:.4g},{}", to_string(settings.kind), settings.rank, settings.scale,
                                             settings.dropout > 0 ? fmt::format(" dropout {:.4g},", settings.dropout) : "");
  return fmt::format("{} beside {}{}: {} parameter{} trained{}, {} stay as they are", what,
                     adapters.size() == 1 ? "1 weight" : fmt::format("{} weights", adapters.size()),
                     settings.file.empty() ? "" : ", from " + settings.file, grouped(trained), trained == 1 ? " is" : "s are",
                     others > 0 ? fmt::format(" (and {} of the model's own)", grouped(others)) : "", grouped(left));
}

std::string adapters_setting(const std::vector<Adapter>& adapters, const AdapterSettings& settings) {
  std::string modules;
  for (const Adapter& adapter : adapters) modules += adapter.module + (adapter.scales_inputs ? " in\n" : "\n");
  const std::string kind = settings.kind == AdapterKind::lora ? "" : to_string(settings.kind) + ", ";
  return fmt::format("{}rank {}, {} weights {}", kind, settings.rank, adapters.size(),
                     hex16(hash_bytes(std::as_bytes(std::span(modules)))));
}

void write_fresh(const FreshNumbers& numbers, DType type, uint64_t seed, uint32_t ordinal, int64_t first, std::span<std::byte> to) {
  constexpr uint32_t kOfAdapters = 0x4c6f5241;  // "LoRA": no node draws under it
  constexpr size_t kBlock = 65'536;             // elements: the budget doesn't count a copy of the whole
  if (numbers.bound == 0 && numbers.deviation == 0) return fill_elements(to, type, numbers.value);
  const PhiloxKey key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const auto unit = [](uint32_t word) { return (static_cast<double>(word >> 8) + 0.5) * 0x1p-24; };  // in (0, 1)
  const auto size = static_cast<size_t>(size_of(type)), all = to.size() / size;
  std::vector<float> values(std::min(all, kBlock));
  for (size_t done = 0; done < all; done += values.size()) {
    values.resize(std::min(all - done, kBlock));
    for (size_t i = 0; i < values.size(); ++i) {
      const uint64_t at = static_cast<uint64_t>(first) + done + i;
      const PhiloxCounter drawn = philox_numbers({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), ordinal, kOfAdapters}, key);
      const double u = unit(drawn[0]), v = unit(drawn[1]);
      const double value = numbers.bound > 0 ? (2 * u - 1) * numbers.bound
                                             : numbers.deviation * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
      values[i] = static_cast<float>(value);
    }
    const auto bytes = std::as_bytes(std::span(values));
    const auto block = to.subspan(done * size, values.size() * size);
    if (type == DType::float32)
      std::memcpy(block.data(), bytes.data(), bytes.size());
    else
      convert(Element::float32, bytes, type, block);
  }
}

}  // namespace ort_train
