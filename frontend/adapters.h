// A job's adapters: which weights have one, what they begin as (adapters.cpp), and what becomes of them in the end: part of the user's
// model (merge_adapter.cpp), or files that PEFT reads (adapter_files.h).

#pragma once

#include <string>
#include <vector>

#include "frontend/export.h"
#include "frontend/import.h"
#include "frontend/ort_train.h"
#include "frontend/safetensors.h"
#include "passes/adapters.h"
#include "passes/passes.h"

namespace ort_train {

// What the options and, where the job starts from one, an adapter's file say.
struct AdapterSettings {
  AdapterKind kind = AdapterKind::lora;
  int64_t rank = 0;
  double scale = 1, dropout = 0;
  double alpha = 0;  // scale times rank, or times its root (`use_rslora`)
  bool rslora = false;
  std::vector<std::string> targets{};      // patterns; none: the default
  std::vector<std::string> feedforward{};  // (IA)3: of those whose inputs are scaled; of a file: ends of their names
  bool says_feedforward = true;            // the file has them as a list
  std::string file{};                      // adapter_model.safetensors to start from; empty: none
  SafetensorsHeader saved{};               // of that

  bool is_on() const { return rank > 0 || kind == AdapterKind::ia3; }
};
// Throws Error: usage, io, data, unsupported (an adapter of a kind that there isn't here).
AdapterSettings adapter_settings(const Options& options);

// Whether the options ask for adapters, so that the model's own weights stay as they are.
inline bool has_adapters(const Options& options) {
  return options.lora_rank > 0 || !options.adapter.empty() || !options.ia3_target.empty() || !options.ia3_feedforward.empty();
}

// Puts them into an imported model: nodes and parameters into its graph, which is simplified, and what they begin as into its weights.
// Throws Error(usage) where a pattern fits nothing, or the rank is more than a weight has.
std::vector<Adapter> adapt(Imported& model, const AdapterSettings& settings, const PassOptions& passes);

// Which weights `base_target` means, and which are heads: PassOptions::base_named and heads. Simplifies the graph. Throws Error(usage).
void choose_base(Imported& model, const Options& options, PassOptions& passes);

// One sentence for the run's notes: how many weights have one, how much is trained.
std::string adapters_note(const Imported& model, const std::vector<Adapter>& adapters, const AdapterSettings& settings);
// As a checkpoint's setting: kind, rank and modules.
std::string adapters_setting(const std::vector<Adapter>& adapters, const AdapterSettings& settings);

// A fresh matrix's bytes, of its own type: numbers that follow from the seed and from `ordinal`, which of the weights it is.
void write_fresh(const FreshNumbers& numbers, DType type, uint64_t seed, uint32_t ordinal, int64_t first, std::span<std::byte> to);

// The one of that parameter.
const Weight& weight_named(const std::vector<Weight>& weights, const std::string& name);

// Its numbers.
std::vector<float> numbers_of(const Weight& weight, const WeightBytes& bytes_of);

// The weights with their adapters in them: each W + scale * B A, summed in float32 in the order of the rank, and what DoRA and (IA)3
// multiply its rows and columns by; biases that (IA)3 scales.
WeightBytes merged(const std::vector<Adapter>& adapters, double scale, const std::vector<Weight>& weights, WeightBytes bytes_of);
// Whether an adapter changes that weight then.
bool is_merged(const std::vector<Adapter>& adapters, const std::string& weight);

// What that takes at most, besides a buffer.
int64_t merging_bytes(const std::vector<Adapter>& adapters, const std::vector<Weight>& weights);

// Throws Error(usage) where export_adapter() would. Called before any work.
void check_adapter_output(const std::string& output_dir);
// Writes PEFT's two files into `output_dir`; returns the path of the one with the matrices. Throws Error(usage) where files of these names
// are there that no run of ours wrote.
std::string export_adapter(const std::vector<Adapter>& adapters, const AdapterSettings& settings, const std::string& task,
                           const std::vector<Weight>& weights, const WeightBytes& bytes_of, const std::string& output_dir);
// How much the matrices take there.
int64_t adapter_bytes(const std::vector<Adapter>& adapters, const std::vector<Weight>& weights);

}  // namespace ort_train
