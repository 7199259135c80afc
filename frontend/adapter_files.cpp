#include "frontend/adapter_files.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "frontend/adapters.h"
#include "frontend/file.h"
#include "frontend/output_files.h"
#include "graph/error.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kMatrices = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";
constexpr int64_t kConfigLimit = int64_t{16} << 20;

// --- reading ----------------------------------------------------------------------------------------------------------------------------

// A part of the configuration that there isn't here and that changes what an adapter is.
void refuse_kind(const std::string& path, const Json& config) {
  const auto refuse = [&](const std::string& what) { return error(ErrorCode::unsupported, "{}: {}", path, what); };
  if (const std::string kind = config.value("peft_type", std::string("LORA")); kind != "LORA" && kind != "IA3")
    throw refuse(fmt::format("its adapter is of the kind {}; LORA and IA3 are what can be trained here", kind));
  for (const char* flag : {"use_qalora", "lora_bias", "layer_replication", "alora_invocation_tokens", "trainable_token_indices"}) {
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

void read_lora(AdapterSettings& settings, const Json& config, const Options& options, const std::string& path) {
  if (!config.at("r").is_number_integer()) throw error(ErrorCode::data, "{}: `r` is no whole number", path);
  settings.kind = config.value("use_dora", false) ? AdapterKind::dora : AdapterKind::lora;
  settings.rank = config.at("r").get<int64_t>();
  settings.alpha = config.at("lora_alpha").get<double>();
  settings.rslora = config.value("use_rslora", false);
  if (!options.lora_dropout) settings.dropout = config.value("lora_dropout", 0.0);
  if (settings.rank <= 0 || !(settings.dropout >= 0 && settings.dropout < 1) || !std::isfinite(settings.alpha))
    throw error(ErrorCode::data, "{}: `r` {}, `lora_alpha` {} and `lora_dropout` {} are no adapter's", path, settings.rank, settings.alpha,
                settings.dropout);
}

void read_ia3(AdapterSettings& settings, const Json& config, const Options& options) {
  settings.kind = AdapterKind::ia3;
  const auto modules = config.find("feedforward_modules");
  settings.says_feedforward = modules == config.end() || !modules->is_string();
  if (modules != config.end() && modules->is_array()) modules->get_to(settings.feedforward);
  if (options.lora_dropout.value_or(0) != 0 || options.lora_plus_ratio != 1)
    throw error(ErrorCode::usage, "`adapter` {} is one of (IA)3: `lora_dropout` and `lora_plus_ratio` are about LoRA", options.adapter);
}

// What the folder says; the options that it takes the place of must not be given.
void read_adapter(AdapterSettings& settings, const Options& options) {
  const std::string path = (fs::path(options.adapter) / kConfig).string();
  settings.file = (fs::path(options.adapter) / kMatrices).string();
  if (!exists(path) || !exists(settings.file))
    throw error(ErrorCode::io, "`adapter` {}: is no folder with {} and {}", options.adapter, kConfig, kMatrices);
  const Json config = Json::parse(read_small_file(path, kConfigLimit), nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw error(ErrorCode::data, "{}: is no JSON object", path);
  try {
    refuse_kind(path, config);
    if (config.value("peft_type", std::string()) == "IA3")
      read_ia3(settings, config, options);
    else
      read_lora(settings, config, options, path);
  } catch (const Json::exception&) {
    throw error(ErrorCode::data, "{}: {}has something else where PEFT has a number, a flag or names", path,
                settings.kind == AdapterKind::ia3 ? "" : "lacks `r` or `lora_alpha`, or ");
  }
  if ((options.lora_rank != 0 && options.lora_rank != settings.rank) || !options.lora_target.empty() || options.lora_alpha != 0 ||
      options.use_rslora || options.use_dora || !options.ia3_target.empty() || !options.ia3_feedforward.empty())
    throw error(ErrorCode::usage,
                "`adapter` {} says kind, rank ({}), scale and targets: leave out `lora_rank`, `lora_alpha`, `use_rslora`, `use_dora`, "
                "`lora_target`, `ia3_target` and `ia3_feedforward`",
                options.adapter, settings.rank);
  settings.saved = read_safetensors_header(File::open(settings.file), ErrorCode::data);
  for (const SafetensorsEntry& entry : settings.saved.entries) {
    const AdapterPart part = saved_name(entry.name).part;
    const bool is_own = settings.kind == AdapterKind::ia3 ? part == AdapterPart::factors
                                                          : part == AdapterPart::a || part == AdapterPart::b ||
                                                                (part == AdapterPart::magnitude && settings.kind == AdapterKind::dora);
    if (!is_own && part != AdapterPart::base)
      throw error(ErrorCode::unsupported,
                  "{}: has '{}', which is no tensor of {}: biases and weights that were trained as a whole (PEFT's `modules_to_save` and "
                  "`bias`) and embeddings of another size aren't read: merge them into the model and export that",
                  settings.file, entry.name, to_string(settings.kind));
  }
}

}  // namespace

AdapterSettings adapter_settings(const Options& options) {
  AdapterSettings settings{.kind = options.use_dora ? AdapterKind::dora : AdapterKind::lora,
                           .rank = options.lora_rank,
                           .dropout = options.lora_dropout.value_or(0),
                           .alpha = options.lora_alpha == 0 ? static_cast<double>(options.lora_rank) : options.lora_alpha,
                           .rslora = options.use_rslora,
                           .targets = options.lora_target,
                           .feedforward = options.ia3_feedforward};
  if (!options.ia3_target.empty() || !options.ia3_feedforward.empty()) {
    settings.kind = AdapterKind::ia3;
    settings.targets = options.ia3_target;
  }
  if (!options.adapter.empty()) read_adapter(settings, options);
  if (settings.rank > 0) {
    const auto rank = static_cast<double>(settings.rank);
    settings.scale = settings.alpha / (settings.rslora ? std::sqrt(rank) : rank);
    if (!std::isfinite(static_cast<float>(settings.scale)))
      throw error(ErrorCode::usage, "`lora_alpha` {}: float32 can't hold such a scale", settings.alpha);
  }
  return settings;
}

SavedName saved_name(std::string name) {
  if (name.starts_with(kPrefix)) name.erase(0, std::strlen(kPrefix));
  for (const auto& [ending, part] : {std::pair(".lora_A.weight", AdapterPart::a),
                                     {".lora_B.weight", AdapterPart::b},
                                     {".lora_A.default.weight", AdapterPart::a},
                                     {".lora_B.default.weight", AdapterPart::b},
                                     {".lora_embedding_A", AdapterPart::a},
                                     {".lora_embedding_B", AdapterPart::b},
                                     {".lora_magnitude_vector", AdapterPart::magnitude},
                                     {".lora_magnitude_vector.default.weight", AdapterPart::magnitude},
                                     {".base_layer.weight", AdapterPart::base},
                                     {".ia3_l", AdapterPart::factors},
                                     {".ia3_l.default", AdapterPart::factors}}) {
    if (name.ends_with(ending)) return {name.substr(0, name.size() - std::strlen(ending)), part};
  }
  return {};
}

bool same_module(std::string_view a, std::string_view b) {
  if (a.size() < b.size()) std::swap(a, b);
  return a == b || (a.ends_with(b) && a[a.size() - b.size() - 1] == '.');
}

std::vector<AdapterTensor> tensors_of(const Graph& graph, const Adapter& adapter) {
  const auto shape_of = [&](const std::string& name) { return graph.value(graph.find_value(name)).shape; };
  // Numbers of channels are [1, n, 1, …] where the weight is a convolution's.
  const auto of_channels = [&](int64_t n, Shape otherwise) {
    if (adapter.use != AdaptedUse::convolution) return otherwise;
    Shape shape(shape_of(adapter.weight).size(), 1);
    shape[1] = n;
    return shape;
  };
  std::vector<AdapterTensor> tensors;
  if (!adapter.factors.empty()) {
    const int64_t n = shape_of(adapter.factors)[0];
    tensors.push_back({adapter.factors, AdapterPart::factors, of_channels(n, adapter.scales_inputs ? Shape{1, n} : Shape{n, 1})});
    return tensors;
  }
  tensors.push_back({adapter.a, AdapterPart::a, shape_of(adapter.a)});
  tensors.push_back({adapter.b, AdapterPart::b, shape_of(adapter.b)});
  if (!adapter.magnitude.empty()) {
    const int64_t n = shape_of(adapter.magnitude)[0];
    tensors.push_back({adapter.magnitude, AdapterPart::magnitude, of_channels(n, {n})});
  }
  return tensors;
}

WeightPlace place_of(const AdapterSettings& settings, const SafetensorsEntry& entry) {
  const DType type = entry.element == Element::float16    ? DType::float16
                     : entry.element == Element::bfloat16 ? DType::bfloat16
                                                          : DType::float32;
  if (element_of(type) != entry.element)
    throw error(ErrorCode::unsupported, "{}: '{}' is {}: float32, float16 and bfloat16 are read", settings.file, entry.name,
                to_string(entry.element));
  return {.name = entry.name,
          .bytes = {.path = settings.file, .offset = entry.offset, .bytes = entry.bytes},
          .dtype = type,
          .shape = entry.shape};
}

WeightPlace saved_place(const AdapterSettings& settings, const std::string& module, const AdapterTensor& tensor) {
  for (const SafetensorsEntry& entry : settings.saved.entries) {
    const SavedName name = saved_name(entry.name);
    if (name.part != tensor.part || name.module != module) continue;
    if (entry.shape != tensor.shape)
      throw error(ErrorCode::usage, "{}: '{}' is {}, and would have to be {} for this model", settings.file, entry.name,
                  to_string(entry.shape), to_string(tensor.shape));
    WeightPlace place = place_of(settings, entry);
    place.name = tensor.parameter;
    return place;
  }
  throw error(ErrorCode::data, "{}: lacks one of the tensors of '{}'", settings.file, module);
}

bool saved_scales_inputs(const AdapterSettings& settings, const SafetensorsEntry& entry) {
  if (entry.shape.size() == 2 && entry.shape[0] != entry.shape[1]) return entry.shape[0] == 1;
  if (!settings.says_feedforward)
    throw error(ErrorCode::unsupported,
                "{}: whether '{}' scales inputs is said by a regular expression; a list of `feedforward_modules` is read", settings.file,
                entry.name);
  const std::string module = saved_name(entry.name).module;
  return std::any_of(settings.feedforward.begin(), settings.feedforward.end(),
                     [&](const std::string& end) { return module.ends_with(end); });
}

// --- writing ----------------------------------------------------------------------------------------------------------------------------

void check_adapter_output(const std::string& output_dir) { OutputFiles(output_dir, {kConfig, kMatrices}); }

int64_t adapter_bytes(const std::vector<Adapter>& adapters, const std::vector<Weight>& weights) {
  int64_t bytes = 0;
  for (const Adapter& adapter : adapters) {
    for (const std::string& name : adapter.trained())
      bytes += TensorType{DType::float32, weight_named(weights, name).places[0].shape}.bytes();
  }
  return bytes;
}

std::string export_adapter(const std::vector<Adapter>& adapters, const AdapterSettings& settings, const std::string& task,
                           const std::vector<Weight>& weights, const WeightBytes& bytes_of, const std::string& output_dir) {
  std::vector<SafetensorsWriter::Tensor> header;
  std::vector<const Weight*> tensors;
  std::vector<std::string> modules, feedforward;
  for (const Adapter& adapter : adapters) {
    modules.push_back(adapter.module);
    if (adapter.scales_inputs) feedforward.push_back(adapter.module);
    for (const std::string& name : adapter.trained()) {
      tensors.push_back(&weight_named(weights, name));
      header.push_back({.name = kPrefix + name, .element = Element::float32, .shape = tensors.back()->places[0].shape});
    }
  }
  Json config{{"peft_type", settings.kind == AdapterKind::ia3 ? "IA3" : "LORA"},
              {"task_type", task == "causal-lm" ? Json("CAUSAL_LM") : Json(nullptr)},
              {"base_model_name_or_path", nullptr},
              {"fan_in_fan_out", false},
              {"inference_mode", true},
              {"modules_to_save", nullptr},
              {"target_modules", modules}};
  if (settings.kind == AdapterKind::ia3) {
    config["feedforward_modules"] = feedforward;
  } else {
    config["r"] = settings.rank;
    config["lora_alpha"] = settings.alpha;
    config["lora_dropout"] = settings.dropout;
    config["use_rslora"] = settings.rslora;
    config["use_dora"] = settings.kind == AdapterKind::dora;
    config["bias"] = "none";
  }
  make_folders(output_dir);
  const OutputFiles files(output_dir, {kConfig, kMatrices});
  std::vector<NewFile> written;
  written.emplace_back((fs::path(output_dir) / kConfig).string());
  const std::string text = config.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
  written.back().file().write(0, std::as_bytes(std::span(text)));
  written.emplace_back((fs::path(output_dir) / kMatrices).string());
  SafetensorsWriter writer(written.back().file(), header, {{"format", "pt"}});
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<float> numbers = numbers_of(*tensors[i], bytes_of);
    writer.write(i, std::as_bytes(std::span(numbers)));
  }
  for (NewFile& file : written) file.file().sync();
  files.publish(written);
  return (fs::path(output_dir) / kMatrices).string();
}

}  // namespace ort_train
