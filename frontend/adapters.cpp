#include "frontend/adapters.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numbers>
#include <set>

#include "exec/random.h"
#include "frontend/element.h"
#include "frontend/file.h"
#include "frontend/output_files.h"
#include "frontend/units.h"
#include "frontend/weight_names.h"
#include "graph/error.h"
#include "graph/names.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kMatrices = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";
constexpr int64_t kConfigLimit = int64_t{16} << 20;

// --- what an adapter's file says ------------------------------------------------------------------------------------------------------

// A part of the configuration that there isn't here and that changes what an adapter is.
void refuse_kind(const std::string& path, const Json& config) {
  const auto refuse = [&](const std::string& what) { return error(ErrorCode::unsupported, "{}: {}", path, what); };
  if (const std::string kind = config.value("peft_type", std::string("LORA")); kind != "LORA")
    throw refuse(fmt::format("its adapter is of the kind {}; LORA is what can be trained here", kind));
  for (const char* flag :
       {"use_dora", "use_qalora", "lora_bias", "layer_replication", "alora_invocation_tokens", "trainable_token_indices"}) {
    const auto found = config.find(flag);
    if (found != config.end() && !found->is_null() && *found != false)
      throw refuse(fmt::format("'{}' is on, which LoRA adapters here don't have", flag));
  }
  // The others change the base when they begin, and the adapter is of the changed one.
  if (const auto begun = config.find("init_lora_weights"); begun != config.end() && begun->is_string()) {
    const std::string how = begun->get<std::string>();
    if (how != "gaussian" && how != "orthogonal" && how != "eva")
      throw refuse(
          fmt::format("its adapter began by '{}', which changes the model's own weights: let PEFT convert it to a plain one", how));
  }
  for (const char* pattern : {"rank_pattern", "alpha_pattern"}) {
    if (config.contains(pattern) && !config.at(pattern).is_null() && !config.at(pattern).empty())
      throw refuse(fmt::format("'{}' gives modules ranks or scales of their own; here all have the same", pattern));
  }
}

// MODULE and which of its matrices a name of the file means; an empty module where it is none of them.
struct SavedName {
  std::string module;
  bool is_a = false;
};
SavedName saved_name(std::string name) {
  if (name.starts_with(kPrefix)) name.erase(0, std::strlen(kPrefix));
  for (const auto& [ending, is_a] : {std::pair(".lora_A.weight", true),
                                     {".lora_B.weight", false},
                                     {".lora_A.default.weight", true},
                                     {".lora_B.default.weight", false},
                                     {".lora_embedding_A", true},
                                     {".lora_embedding_B", false}}) {
    if (name.ends_with(ending)) return {name.substr(0, name.size() - std::strlen(ending)), is_a};
  }
  return {};
}

// Whether two names mean one module: one may have a longer path, of what it is wrapped in.
bool same_module(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  return a == b || (a.ends_with(b) && a[a.size() - b.size() - 1] == '.');
}

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
  if (name.ends_with(".weight") || node.find('/') == std::string::npos) return without_weight(name);
  std::string path = node.substr(node.front() == '/' ? 1 : 0);
  const size_t op = path.rfind('/');
  if (op == std::string::npos) return without_weight(name);
  path.erase(op);
  std::replace(path.begin(), path.end(), '/', '.');
  return path;
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
  std::set<std::string> modules;
  for (const Adaptable& weight : find_adaptable(model.graph, read)) {
    Candidate one{.weight = weight, .names = names.at(weight.weight), .module = {}};
    one.module = module_named(one.weight.weight, one.names.originals, one.weight.node);
    if (!modules.insert(one.module).second) modules.insert(one.module = without_weight(one.weight.weight));
    one.is_trained = model.graph.value(model.graph.find_value(one.weight.weight)).trainable;
    all.push_back(std::move(one));
  }
  return all;
}

// --- targets ----------------------------------------------------------------------------------------------------------------------------

using Modules = std::map<std::string, std::string>;  // LoraSpec::modules

[[noreturn]] void refuse_target(const std::string& pattern, const std::vector<Candidate>& candidates) {
  std::vector<std::string> names;
  for (const Candidate& candidate : candidates) names.push_back(candidate.module);
  const std::vector<std::string> near = nearest_names(pattern, names, 3);
  throw error(ErrorCode::usage, "`lora_target` '{}' fits no product, convolution or embedding of the model; {}", pattern,
              near.empty() ? "it has none" : fmt::format("it has '{}'", fmt::join(near, "', '")));
}

Modules targets_named(const std::vector<Candidate>& candidates, const std::vector<std::string>& patterns) {
  Modules modules;
  for (const std::string& pattern : patterns) {
    bool any = false, any_frozen = false;
    for (const Candidate& candidate : candidates) {
      if (!candidate.fit(pattern)) continue;
      any = true;
      if (candidate.is_trained) continue;
      any_frozen = true;
      if (!candidate.weight.obstacle.empty())
        throw error(ErrorCode::usage, "`lora_target` '{}': '{}' can't have an adapter: {}", pattern, candidate.weight.weight,
                    candidate.weight.obstacle);
      modules.emplace(candidate.weight.weight, candidate.module);
    }
    if (!any) refuse_target(pattern, candidates);
    if (!any_frozen)
      throw error(ErrorCode::usage, "`lora_target` '{}' fits only weights that `train` names: those are trained as a whole", pattern);
  }
  return modules;
}

Modules usual_targets(const std::vector<Candidate>& candidates) {
  Modules modules;
  for (const Candidate& candidate : candidates) {
    const bool is_product = candidate.weight.use == AdaptedUse::product || candidate.weight.use == AdaptedUse::transposed_product;
    if (is_product && !candidate.is_trained && !candidate.weight.is_head && candidate.weight.obstacle.empty())
      modules.emplace(candidate.weight.weight, candidate.module);
  }
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

// Each module of the file is one of the model's: by its name, or by the end of it.
Modules saved_targets(const std::vector<Candidate>& candidates, const AdapterSettings& settings) {
  Modules modules;
  std::map<std::string, std::string> taken;  // weight -> the file's module
  for (const SafetensorsEntry& entry : settings.saved.entries) {
    const SavedName name = saved_name(entry.name);
    std::vector<const Candidate*> found;
    for (const Candidate& candidate : candidates) {
      if (same_module(candidate.module, name.module)) found.push_back(&candidate);
    }
    for (const Candidate& candidate : candidates) {
      if (candidate.module == name.module) found = {&candidate};
    }
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
    modules.emplace(found[0]->weight.weight, found[0]->module);
  }
  if (modules.empty()) throw error(ErrorCode::data, "{}: has no adapters", settings.file);
  return modules;
}

void check_rank(const Graph& graph, const std::vector<Candidate>& candidates, const Modules& modules, int64_t rank) {
  for (const Candidate& candidate : candidates) {
    if (!modules.contains(candidate.weight.weight)) continue;
    const Shape& shape = graph.value(graph.find_value(candidate.weight.weight)).shape;
    const int64_t least = std::min(shape[0], element_count(shape) / std::max<int64_t>(1, shape[0]));
    if (rank > least)
      throw error(ErrorCode::usage,
                  "`lora_rank` {} is more than '{}' has, which is {}: at most {} is of use (or leave it out by `lora_target`)", rank,
                  candidate.weight.weight, to_string(shape), least);
  }
}

// --- what the matrices begin as ---------------------------------------------------------------------------------------------------------

// As PEFT's: the adapter adds nothing at first.
FreshNumbers begins(const Adapter& adapter, const Shape& a, bool is_a) {
  if (adapter.use == AdaptedUse::lookup) return is_a ? FreshNumbers{} : FreshNumbers{.deviation = 1};
  if (!is_a) return {};
  return {.bound = 1 / std::sqrt(static_cast<double>(element_count(a) / a[0]))};  // Kaiming's, of leaky ReLUs with a slope of sqrt(5)
}

// Where a matrix is in the adapter's file.
WeightPlace saved_place(const AdapterSettings& settings, const std::string& module, bool is_a, const std::string& parameter,
                        const Shape& shape) {
  for (const SafetensorsEntry& entry : settings.saved.entries) {
    const SavedName name = saved_name(entry.name);
    if (name.module.empty() || name.is_a != is_a || !same_module(name.module, module)) continue;
    if (entry.shape != shape)
      throw error(ErrorCode::usage, "{}: '{}' is {}, and would have to be {} for this model", settings.file, entry.name,
                  to_string(entry.shape), to_string(shape));
    const DType type = entry.element == Element::float16    ? DType::float16
                       : entry.element == Element::bfloat16 ? DType::bfloat16
                                                            : DType::float32;
    if (element_of(type) != entry.element)
      throw error(ErrorCode::unsupported, "{}: '{}' is {}: float32, float16 and bfloat16 are read", settings.file, entry.name,
                  to_string(entry.element));
    return {
        .name = parameter, .bytes = {.path = settings.file, .offset = entry.offset, .bytes = entry.bytes}, .dtype = type, .shape = shape};
  }
  throw error(ErrorCode::data, "{}: has only one of the two matrices of '{}'", settings.file, module);
}

// --- merging ----------------------------------------------------------------------------------------------------------------------------

// The numbers of a matrix.
std::vector<float> numbers_of(const Weight& weight, const WeightBytes& bytes_of) {
  std::vector<float> numbers(static_cast<size_t>(element_count(weight.places[0].shape)));
  const auto to = std::as_writable_bytes(std::span(numbers));
  const int64_t size = size_of(weight.dtype);
  bytes_of(weight.parameter, [&](int64_t first, std::span<const std::byte> piece) {
    const auto count = piece.size() / static_cast<size_t>(size);
    convert(element_of(weight.dtype), piece, DType::float32,
            to.subspan(static_cast<size_t>(first / size) * sizeof(float), count * sizeof(float)));
  });
  return numbers;
}

// scale * L R, of which L has `rows` rows and R `columns` columns.
struct Factors {
  std::vector<float> left, right;  // [rows, rank] and [rank, columns]
  int64_t rank = 0, columns = 0;
  double scale = 1;

  // Adds some rows of it, from `first` on.
  void add(int64_t first, std::span<float> rows) const {
    std::vector<float> sum(static_cast<size_t>(columns));
    const auto factor = static_cast<float>(scale);
    for (size_t r = 0; r < rows.size() / sum.size(); ++r) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      const float* const l = left.data() + (first + static_cast<int64_t>(r)) * rank;
      for (int64_t k = 0; k < rank; ++k) {
        const float* const from = right.data() + k * columns;
        for (int64_t c = 0; c < columns; ++c) sum[static_cast<size_t>(c)] += l[k] * from[c];
      }
      float* const to = rows.data() + r * sum.size();
      for (size_t c = 0; c < sum.size(); ++c) to[c] += factor * sum[c];
    }
  }
};

std::vector<float> transposed(const std::vector<float>& m, int64_t rows, int64_t columns) {
  std::vector<float> result(m.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) result[static_cast<size_t>(c * rows + r)] = m[static_cast<size_t>(r * columns + c)];
  }
  return result;
}

Factors factors_of(const Adapter& adapter, double scale, const std::vector<Weight>& weights, const WeightBytes& bytes_of) {
  const Weight &a = weight_named(weights, adapter.a), &b = weight_named(weights, adapter.b);
  const int64_t rank = a.places[0].shape[0], in = element_count(a.places[0].shape) / rank, out = b.places[0].shape[0];
  Factors factors{.left = numbers_of(b, bytes_of), .right = numbers_of(a, bytes_of), .rank = rank, .columns = in, .scale = scale};
  if (adapter.use == AdaptedUse::transposed_product || adapter.use == AdaptedUse::lookup) {
    std::vector<float> left = transposed(factors.right, rank, in);
    factors.right = transposed(factors.left, out, rank);
    factors.left = std::move(left);
    factors.columns = out;
  }
  return factors;
}

}  // namespace

const Weight& weight_named(const std::vector<Weight>& weights, const std::string& name) {
  const auto found = std::find_if(weights.begin(), weights.end(), [&](const Weight& weight) { return weight.parameter == name; });
  require(found != weights.end(), "a weight that isn't there");
  return *found;
}

AdapterSettings adapter_settings(const Options& options) {
  AdapterSettings settings{.rank = options.lora_rank,
                           .dropout = options.lora_dropout,
                           .alpha = options.lora_alpha == 0 ? static_cast<double>(options.lora_rank) : options.lora_alpha,
                           .rslora = options.use_rslora,
                           .targets = options.lora_target};
  if (!options.adapter.empty()) {
    const std::string config_path = (fs::path(options.adapter) / kConfig).string();
    settings.file = (fs::path(options.adapter) / kMatrices).string();
    if (!exists(config_path) || !exists(settings.file))
      throw error(ErrorCode::io, "`adapter` {}: is no folder with {} and {}", options.adapter, kConfig, kMatrices);
    const Json config = Json::parse(read_small_file(config_path, kConfigLimit), nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) throw error(ErrorCode::data, "{}: is no JSON object", config_path);
    try {
      refuse_kind(config_path, config);
      if (!config.at("r").is_number_integer()) throw error(ErrorCode::data, "{}: `r` is no whole number", config_path);
      settings.rank = config.at("r").get<int64_t>();
      settings.alpha = config.at("lora_alpha").get<double>();
      settings.rslora = config.value("use_rslora", false);
      if (options.lora_dropout == 0) settings.dropout = config.value("lora_dropout", 0.0);
    } catch (const Json::exception&) {
      throw error(ErrorCode::data, "{}: lacks `r` or `lora_alpha`, or has no numbers there", config_path);
    }
    if (settings.rank <= 0 || !(settings.dropout >= 0 && settings.dropout < 1) || !std::isfinite(settings.alpha))
      throw error(ErrorCode::data, "{}: `r` {}, `lora_alpha` {} and `lora_dropout` {} are no adapter's", config_path, settings.rank,
                  settings.alpha, settings.dropout);
    if ((options.lora_rank != 0 && options.lora_rank != settings.rank) || !options.lora_target.empty() || options.lora_alpha != 0 ||
        options.use_rslora)
      throw error(ErrorCode::usage,
                  "`adapter` {} says rank ({}), scale and targets: leave out `lora_rank`, `lora_alpha`, `use_rslora` and `lora_target`",
                  options.adapter, settings.rank);
    settings.saved = read_safetensors_header(File::open(settings.file), ErrorCode::data);
    for (const SafetensorsEntry& entry : settings.saved.entries) {
      if (saved_name(entry.name).module.empty())
        throw error(ErrorCode::unsupported, "{}: has '{}', which is no matrix of LoRA", settings.file, entry.name);
    }
  }
  if (settings.is_on()) {
    const auto rank = static_cast<double>(settings.rank);
    settings.scale = settings.alpha / (settings.rslora ? std::sqrt(rank) : rank);
    if (!std::isfinite(static_cast<float>(settings.scale)))
      throw error(ErrorCode::usage, "`lora_alpha` {}: float32 can't hold such a scale", settings.alpha);
  }
  return settings;
}

std::vector<Adapter> adapt(Imported& model, const AdapterSettings& settings, const PassOptions& passes) {
  std::vector<Adapter> adapters;
  Graph& graph = model.graph;
  run_pass("adapters", graph, passes, [&] {
    simplify(graph, passes);
    const std::vector<Candidate> candidates = candidates_of(model, passes.read);
    LoraSpec spec{.rank = settings.rank, .scale = settings.scale, .dropout = settings.dropout};
    spec.modules = !settings.file.empty()     ? saved_targets(candidates, settings)
                   : settings.targets.empty() ? usual_targets(candidates)
                                              : targets_named(candidates, settings.targets);
    if (settings.file.empty()) check_rank(graph, candidates, spec.modules, settings.rank);
    adapters = add_adapters(graph, spec, passes.read);
    return true;
  });
  for (const Adapter& adapter : adapters) {
    const Shape a = graph.value(graph.find_value(adapter.a)).shape;
    for (const std::string& name : {adapter.a, adapter.b}) {
      const bool is_a = name == adapter.a;
      const Value& value = graph.value(graph.find_value(name));
      Weight weight{.parameter = name, .dtype = value.dtype, .places = {}};
      if (settings.file.empty()) {
        weight.fresh = begins(adapter, a, is_a);
        weight.places.push_back({.name = name, .bytes = {}, .dtype = DType::float32, .shape = value.shape});
      } else {
        weight.places.push_back(saved_place(settings, adapter.module, is_a, name, value.shape));
      }
      model.weights.push_back(std::move(weight));
    }
  }
  return adapters;
}

std::string adapters_note(const Imported& model, const std::vector<Adapter>& adapters, const AdapterSettings& settings) {
  int64_t trained = 0, left = 0, others = 0;
  std::set<std::string> matrices;
  for (const Adapter& adapter : adapters) matrices.insert({adapter.a, adapter.b});
  for (const ValueId id : model.graph.parameters()) {
    const Value& value = model.graph.value(id);
    (!value.trainable ? left : matrices.contains(value.name) ? trained : others) += element_count(value.shape);
  }
  return fmt::format("LoRA of rank {}, scale {:.4g}, beside {} weights{}: {} parameters are trained{}, {} stay as they are", settings.rank,
                     settings.scale, adapters.size(), settings.file.empty() ? "" : ", from " + settings.file, grouped(trained),
                     others > 0 ? fmt::format(" (and {} of the model's own)", grouped(others)) : "", grouped(left));
}

std::string adapters_setting(const std::vector<Adapter>& adapters, const AdapterSettings& settings) {
  std::string modules;
  for (const Adapter& adapter : adapters) modules += adapter.module + "\n";
  return fmt::format("rank {}, {} weights {}", settings.rank, adapters.size(), hex16(hash_bytes(std::as_bytes(std::span(modules)))));
}

void write_fresh(const FreshNumbers& numbers, DType type, uint64_t seed, uint32_t ordinal, int64_t first, std::span<std::byte> to) {
  constexpr uint32_t kOfAdapters = 0x4c6f5241;  // "LoRA": no node draws under it
  const PhiloxKey key{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  std::vector<float> values(to.size() / static_cast<size_t>(size_of(type)));
  const auto unit = [](uint32_t word) { return (static_cast<double>(word >> 8) + 0.5) * 0x1p-24; };  // in (0, 1)
  for (size_t i = 0; i < values.size(); ++i) {
    if (numbers.bound == 0 && numbers.deviation == 0) break;
    const uint64_t at = static_cast<uint64_t>(first) + i;
    const PhiloxCounter drawn = philox_numbers({static_cast<uint32_t>(at), static_cast<uint32_t>(at >> 32), ordinal, kOfAdapters}, key);
    const double u = unit(drawn[0]), v = unit(drawn[1]);
    const double value = numbers.bound > 0 ? (2 * u - 1) * numbers.bound
                                           : numbers.deviation * std::sqrt(-2 * std::log(u)) * std::cos(2 * std::numbers::pi * v);
    values[i] = static_cast<float>(value);
  }
  const auto bytes = std::as_bytes(std::span(values));
  if (type == DType::float32)
    std::memcpy(to.data(), bytes.data(), bytes.size());
  else
    convert(Element::float32, bytes, type, to);
}

WeightBytes merged(const std::vector<Adapter>& adapters, double scale, const std::vector<Weight>& weights, WeightBytes bytes_of) {
  return [&adapters, scale, &weights, bytes_of = std::move(bytes_of)](const std::string& name, const ByteSink& sink) {
    const auto adapter = std::find_if(adapters.begin(), adapters.end(), [&](const Adapter& a) { return a.weight == name; });
    if (adapter == adapters.end() || !sink) return bytes_of(name, sink);
    require(weight_named(weights, name).dtype == DType::float32, "an adapter of a weight that isn't float32");
    const Factors factors = factors_of(*adapter, scale, weights, bytes_of);
    constexpr int64_t kBlock = int64_t{1} << 18;  // elements
    const int64_t row = factors.columns * int64_t{sizeof(float)}, block = std::max<int64_t>(1, kBlock / factors.columns) * row;
    std::vector<float> buffer;
    return bytes_of(name, [&](int64_t first, std::span<const std::byte> piece) {
      require(first % row == 0 && static_cast<int64_t>(piece.size()) % row == 0, "a piece of a weight that isn't whole rows");
      for (int64_t at = 0; at < static_cast<int64_t>(piece.size()); at += block) {
        const auto part =
            piece.subspan(static_cast<size_t>(at), static_cast<size_t>(std::min<int64_t>(block, static_cast<int64_t>(piece.size()) - at)));
        buffer.resize(part.size() / sizeof(float));
        std::memcpy(buffer.data(), part.data(), part.size());
        factors.add((first + at) / row, buffer);
        sink(first + at, std::as_bytes(std::span(buffer)));
      }
    });
  };
}

int64_t merging_bytes(const std::vector<Adapter>& adapters, const std::vector<Weight>& weights) {
  int64_t most = 0;
  for (const Adapter& adapter : adapters) {
    const int64_t elements =
        element_count(weight_named(weights, adapter.a).places[0].shape) + element_count(weight_named(weights, adapter.b).places[0].shape);
    most = std::max(most, 2 * elements * int64_t{sizeof(float)});  // each is there transposed, too
  }
  return most;
}

void check_adapter_output(const std::string& output_dir) { OutputFiles(output_dir, {kConfig, kMatrices}); }

std::string export_adapter(const std::vector<Adapter>& adapters, const AdapterSettings& settings, const std::string& task,
                           const std::vector<Weight>& weights, const WeightBytes& bytes_of, const std::string& output_dir) {
  std::vector<SafetensorsWriter::Tensor> header;
  std::vector<const Weight*> matrices;
  std::vector<std::string> modules;
  for (const Adapter& adapter : adapters) {
    modules.push_back(adapter.module);
    for (const std::string& name : {adapter.a, adapter.b}) {
      matrices.push_back(&weight_named(weights, name));
      header.push_back({.name = kPrefix + name, .element = Element::float32, .shape = matrices.back()->places[0].shape});
    }
  }
  const Json config{{"peft_type", "LORA"},
                    {"task_type", task == "causal-lm" ? Json("CAUSAL_LM") : Json(nullptr)},
                    {"base_model_name_or_path", nullptr},
                    {"r", settings.rank},
                    {"lora_alpha", settings.alpha},
                    {"lora_dropout", settings.dropout},
                    {"use_rslora", settings.rslora},
                    {"use_dora", false},
                    {"bias", "none"},
                    {"fan_in_fan_out", false},
                    {"inference_mode", true},
                    {"modules_to_save", nullptr},
                    {"target_modules", modules}};
  make_folders(output_dir);
  const OutputFiles files(output_dir, {kConfig, kMatrices});
  std::vector<NewFile> written;
  written.emplace_back((fs::path(output_dir) / kConfig).string());
  const std::string text = config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  written.back().file().write(0, std::as_bytes(std::span(text)));
  written.emplace_back((fs::path(output_dir) / kMatrices).string());
  SafetensorsWriter writer(written.back().file(), header, {{"format", "pt"}});
  for (size_t i = 0; i < matrices.size(); ++i) {
    const std::vector<float> numbers = numbers_of(*matrices[i], bytes_of);
    writer.write(i, std::as_bytes(std::span(numbers)));
  }
  for (NewFile& file : written) file.file().sync();
  files.publish(written);
  return (fs::path(output_dir) / kMatrices).string();
}

}  // namespace ort_train
