// What PEFT's files of an adapter have, and which of our parameters that is.
//
//   adapter_config.json         rank, scale, the modules
//   adapter_model.safetensors   LoRA: base_model.model.MODULE.lora_A.weight and …lora_B.weight, of lookups …lora_embedding_A and …B, and
//                               …base_layer.weight, the weight as it was, of embeddings and heads;
//                               DoRA: …lora_magnitude_vector, too; (IA)3: …ia3_l

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "frontend/import.h"
#include "frontend/safetensors.h"
#include "passes/adapters.h"

namespace ort_train {

struct AdapterSettings;

// base: the weight itself, which PEFT saves beside the adapters of embeddings and heads.
enum class AdapterPart : uint8_t { none, a, b, magnitude, factors, base };

// The module and which of its tensors a name of the file means; `none` where it is no adapter's.
struct SavedName {
  std::string module{};
  AdapterPart part = AdapterPart::none;
};
SavedName saved_name(std::string name);

// Whether two names mean one module: one may have a longer path, of what it is wrapped in.
bool same_module(std::string_view a, std::string_view b);

// One of an adapter's trained parameters, and its shape in the file.
struct AdapterTensor {
  std::string parameter;
  AdapterPart part = AdapterPart::none;
  Shape shape;
};
std::vector<AdapterTensor> tensors_of(const Graph& graph, const Adapter& adapter);

// Where it is in the file that the job starts from. Throws Error.
WeightPlace saved_place(const AdapterSettings& settings, const std::string& module, const AdapterTensor& tensor);

// Where a tensor of the file is. Throws Error(unsupported) where its type isn't read.
WeightPlace place_of(const AdapterSettings& settings, const SafetensorsEntry& entry);

// Whether the file's tensor of (IA)3 scales its module's inputs. Throws Error(unsupported) where it doesn't say.
bool saved_scales_inputs(const AdapterSettings& settings, const SafetensorsEntry& entry);

}  // namespace ort_train
