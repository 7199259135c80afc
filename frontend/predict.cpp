#include "frontend/predict.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "exec/random.h"
#include "frontend/element.h"
#include "graph/error.h"
#include "graph/onnx/reader.h"
#include "graph/utf8.h"

namespace ort_train {
namespace {

// The next token: the likeliest, or drawn from the softmax of logits / temperature. Only tokens that have a text.
int64_t choose(std::span<const float> scores, const Vocabulary& vocabulary, double temperature, double draw) {
  const auto count = std::ssize(scores);
  const float* const logits = scores.data();
  int64_t best = -1;
  for (int64_t i = 0; i < count; ++i) {
    if (!vocabulary.text_of(i).empty() && (best < 0 || logits[i] > logits[best])) best = i;
  }
  if (temperature <= 0 || best < 0) return best;
  const auto weight = [&](int64_t i) {
    return vocabulary.text_of(i).empty() ? 0.0 : std::exp((static_cast<double>(logits[i]) - logits[best]) / temperature);
  };
  double total = 0;
  for (int64_t i = 0; i < count; ++i) total += weight(i);
  double left = draw * total;
  for (int64_t i = 0; i < count; ++i) {
    left -= weight(i);
    if (left < 0) return i;
  }
  return best;
}

}  // namespace

std::string sample_text(const Job& job, const EntrySet& set, Runtime& runtime, const Continuation& wanted_text,
                        const std::atomic<bool>& stop) {
  const auto& [prompt, length, temperature, seed] = wanted_text;
  if (length < 0) throw error(ErrorCode::usage, "a text of {} tokens can't be written", length);
  if (!(temperature >= 0 && std::isfinite(temperature)))
    throw error(ErrorCode::usage, "a text can't be written at a temperature of {}: give 0 or more", temperature);
  const Binding& binding = job.data.binding;
  const Vocabulary& vocabulary = *job.data.sets.vocabulary;
  const size_t index = static_cast<size_t>(set.find({.kind = EntryKind::predict}));
  const JobEntry& entry = set.entries[index];
  const Graph& graph = entry.built.graph;
  const ValueId logits = entry.built.outputs.at(job.graphs.text_output.value()), input = graph.find_value(binding.fed[0].input);
  if (std::find(graph.inputs.begin(), graph.inputs.end(), input) == graph.inputs.end())
    throw error(ErrorCode::unsupported, "output '{}' doesn't depend on input '{}': no text can be written with it",
                graph.output_name(logits), binding.fed[0].input);

  std::vector<int64_t> tokens;
  for (std::string_view text(prompt); !text.empty();) {
    char32_t character = 0;
    const int taken = decode_utf8(text, character);
    const int64_t id = taken > 0 ? vocabulary.id_of(character) : -1;
    if (id < 0)
      throw error(ErrorCode::data, "the prompt has a character that is not in {}: '{}'", vocabulary.path(),
                  onnx::printable(std::string(text.substr(0, taken > 0 ? static_cast<size_t>(taken) : 1))));
    tokens.push_back(id);
    text.remove_prefix(static_cast<size_t>(taken));
  }
  if (tokens.empty()) tokens.push_back(std::max<int64_t>(0, vocabulary.id_of(U'\n')));

  const TensorType type = graph.value(logits).type();  // (batch, sequence, tokens)
  std::vector<float> scores(static_cast<size_t>(type.shape[2]));
  const int64_t row_bytes = bytes_of(type.dtype, type.shape[2]);
  const DType dtype = graph.value(input).dtype;
  const size_t row = static_cast<size_t>(binding.sequence * size_of(dtype));
  std::mt19937_64 random(seed);
  std::string written;
  for (int64_t i = 0; i < length && !stop.load(std::memory_order_relaxed); ++i) {
    // The last tokens, and zeros after them that a causal model does not look at. A sample's last position has no label and so never
    // learned to predict: the window ends before it.
    const size_t count = std::min(tokens.size(), static_cast<size_t>(std::max<int64_t>(binding.sequence - 1, 1)));
    std::vector<int64_t> window(static_cast<size_t>(binding.sequence), 0);
    std::copy_n(tokens.end() - static_cast<std::ptrdiff_t>(count), count, window.begin());
    const auto to = runtime.place(index, input);
    for (int64_t sample = 0; sample < entry.batch; ++sample) {
      convert(Element::int64, std::as_bytes(std::span(window)), dtype, to.subspan(static_cast<size_t>(sample) * row, row));
    }
    runtime.set_random(index, /*step=*/0, i * entry.batch, entry.batch);
    runtime.run(index);
    const size_t place = (count - 1) * static_cast<size_t>(row_bytes);
    convert(element_of(type.dtype), runtime.bytes(index, logits).subspan(place, static_cast<size_t>(row_bytes)), DType::float32,
            std::as_writable_bytes(std::span(scores)));
    const double draw = static_cast<double>(random() >> 11) * 0x1p-53;
    const int64_t token = choose(scores, vocabulary, temperature, draw);
    if (token < 0) throw error(ErrorCode::data, "{}: has no text for any token of the model", vocabulary.path());
    written += vocabulary.text_of(token);
    tokens.push_back(token);
  }
  return written;
}

std::map<std::string, std::vector<float>> predict_batch(const Binding& binding, const EntrySet& set, Runtime& runtime,
                                                        const std::map<std::string, std::vector<int64_t>>& integers,
                                                        const std::map<std::string, std::vector<float>>& reals) {
  const size_t index = static_cast<size_t>(set.find({.kind = EntryKind::predict}));
  const JobEntry& entry = set.entries[index];
  const Graph& graph = entry.built.graph;
  const auto refuse_unknown = [&](const std::string& name) {
    const ValueId id = graph.find_value(name);
    if (std::find(graph.inputs.begin(), graph.inputs.end(), id) != graph.inputs.end()) return;
    const auto feeds = [&](const FedInput& fed) { return fed.input == name; };
    if (std::any_of(binding.fed.begin(), binding.fed.end(), feeds)) return;  // of the model, which makes nothing of it, or of another one
    const auto binds = [&](const ConstantInput& constant) { return constant.name == name; };
    if (std::any_of(binding.constants.begin(), binding.constants.end(), binds))
      throw error(ErrorCode::usage, "input '{}' is the same for all samples in this job: leave it out", name);
    std::vector<std::string> names;
    for (const ValueId input : graph.inputs) {
      if (graph.value(input).name != kRandomInput) names.push_back(graph.value(input).name);
    }
    throw error(ErrorCode::usage, "the model reads no input '{}'{}", name,
                names.empty() ? "" : fmt::format("; it reads '{}'", fmt::join(names, "', '")));
  };
  for (const auto& [name, values] : integers) {
    refuse_unknown(name);
    if (reals.contains(name)) throw error(ErrorCode::usage, "input '{}' is given twice, as integers and as real numbers", name);
  }
  for (const auto& [name, values] : reals) refuse_unknown(name);
  for (ValueId id : graph.inputs) {
    const Value& input = graph.value(id);
    if (input.name == kRandomInput) continue;
    const auto whole = integers.find(input.name);
    const auto real = reals.find(input.name);
    if (whole == integers.end() && real == reals.end())
      throw error(ErrorCode::usage, "input '{}' ({}) is not given", input.name, to_string(input.type()));
    const bool is_real = whole == integers.end();
    const int64_t count = static_cast<int64_t>(is_real ? real->second.size() : whole->second.size());
    const Element from = is_real ? Element::float32 : Element::int64;
    if (count != element_count(input.shape) || !converts(from, input.dtype)) {
      throw error(ErrorCode::usage, "input '{}' is given {} {} numbers, {} is wanted", input.name, count, to_string(from),
                  to_string(input.type()));
    }
    const auto to = runtime.place(index, id);
    if (to.empty()) continue;
    const int64_t bad =
        convert(from, is_real ? std::as_bytes(std::span(real->second)) : std::as_bytes(std::span(whole->second)), input.dtype, to);
    if (bad >= 0) throw error(ErrorCode::usage, "input '{}': number {} does not fit {}", input.name, bad, to_string(input.dtype));
  }
  runtime.set_random(index, /*step=*/0, /*first=*/0, entry.batch);
  runtime.run(index);
  std::map<std::string, std::vector<float>> outputs;
  for (ValueId id : entry.built.outputs) {
    const Value& output = graph.value(id);
    if (!is_floating(output.dtype)) continue;
    std::vector<float>& values = outputs[graph.output_name(id)];
    values.resize(static_cast<size_t>(element_count(output.shape)));
    convert(element_of(output.dtype), runtime.bytes(index, id), DType::float32, std::as_writable_bytes(std::span(values)));
  }
  return outputs;
}

}  // namespace ort_train
