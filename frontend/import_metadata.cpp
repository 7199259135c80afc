// What PyTorch's dynamo exporter says of a tensor: that it is a parameter, a buffer or a constant of the exported program, or which of the
// program's tensors folding made it of. Of what was folded, it names all values between, by the ops that gave them (`permute_3`, `exp`;
// `val_12` where an op has no name): with their help, another layout of a parameter is told from what was computed from it.

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "frontend/import_evidence.h"

namespace ort_train::importing {
namespace {

constexpr NoteText kBuffers{"is a buffer or constant of the exported program, no weight: left as it is",
                            "are buffers or constants of the exported program, no weights: left as they are"};
constexpr NoteText kComputed{
    "was computed from parameters when it was exported and is trained in that form (torch.onnx.export with optimize=False keeps the "
    "parameters)",
    "were computed from parameters when they were exported and are trained in that form (torch.onnx.export with optimize=False keeps the "
    "parameters)"};

// "permute_3" -> "permute"
std::string_view op_of(std::string_view name) {
  const size_t digits = name.find_last_not_of("0123456789");
  return digits != std::string_view::npos && digits + 1 < name.size() && name[digits] == '_' ? name.substr(0, digits) : name;
}

// Whether a value of this name has the elements of what it was made of, in another order or type, or says nothing of elements.
bool is_moved(std::string_view name) {
  static constexpr std::array<std::string_view, 31> kMoves{
      "val",     "permute",   "t",       "transpose", "numpy_t",  "view",       "reshape",         "unsqueeze",
      "squeeze", "slice",     "select",  "expand",    "clone",    "alias",      "detach",          "copy",
      "split",   "unflatten", "getitem", "cat",       "concat",   "stack",      "unbind",          "chunk",
      "zeros",   "flatten",   "movedim", "to",        "_to_copy", "contiguous", "split_with_sizes"};
  return std::find(kMoves.begin(), kMoves.end(), op_of(name)) != kMoves.end();
}

// One copy for each sample of a batch, as fixed batches are exported: each copy would be trained by itself.
bool is_repeated(std::string_view name, const Shape& shape) { return op_of(name) == "expand" && !shape.empty() && shape[0] > 1; }

// The exported program's tensors that a folded one was made of.
struct Sources {
  std::vector<std::string> parameters{};
  bool others = false;    // buffers or constants
  bool computed = false;  // by more than moving elements
};

Sources sources_of(const onnx::GraphDef& graph, const std::string& name, const Shape& shape, const onnx::TensorOrigin& origin) {
  Sources sources{.computed = !is_moved(name) || is_repeated(name, shape)};
  for (const std::string& from : origin.folded_from) {
    const auto known = graph.program.find(from);
    if (known == graph.program.end())
      sources.computed |= !is_moved(from);
    else if (known->second == onnx::OriginKind::parameter)
      sources.parameters.push_back(from);
    else
      sources.others = true;
  }
  return sources;
}

class Judge {
 public:
  explicit Judge(const Evidence& evidence)
      : graph_(evidence.graph),
        all_found_(missing_parameters(evidence).empty()),
        has_kinds_(std::any_of(graph_.origins.begin(), graph_.origins.end(),
                               [](const auto& entry) { return entry.second.kind == onnx::OriginKind::parameter; })) {}

  std::optional<Verdict> verdict(const Subject& subject) const {
    const std::string& name = subject.candidate.name;
    const bool is_single = element_count(subject.candidate.tensor->shape) == 1;
    const auto left = [&](const char* why) {  // of single numbers there are too many to tell of
      return Verdict{.treatment = Treatment::constant, .why = why, .note = is_single ? nullptr : &kBuffers};
    };
    if (const auto origin = graph_.origins.find(name); origin != graph_.origins.end()) {
      switch (origin->second.kind) {
        case onnx::OriginKind::parameter:
          return Verdict{.why = kParameter};
        case onnx::OriginKind::buffer:
          return left("buffer of the exported program");
        case onnx::OriginKind::constant:
          return left("constant of the exported program");
        case onnx::OriginKind::unknown:
          break;
      }
      if (graph_.program.empty()) return std::nullopt;  // what it was folded from is not known
      const Sources sources = sources_of(graph_, name, subject.candidate.tensor->shape, origin->second);
      return sources.parameters.empty() ? left("computed at export, from no parameter") : folded(sources);
    }
    if (const auto known = graph_.program.find(name); known != graph_.program.end() && known->second == onnx::OriginKind::parameter) {
      if (!has_kinds_) return Verdict{.why = kParameter};
      // The optimizer put something else in its place, such as a convolution's weight with the BatchNormalization behind it.
      return Verdict{.why = "computed at export from this parameter and others", .original = name, .note = &kComputed};
    }
    // Without a word about it, it is what the exporter added, unless it may hold a parameter that is named nowhere.
    if (!graph_.program.empty() && (all_found_ || is_single)) return left("no parameter of the exported program");
    return std::nullopt;
  }

 private:
  static constexpr const char* kParameter = "parameter of the exported program";

  static Verdict folded(const Sources& sources) {
    const bool is_one = sources.parameters.size() == 1;
    Verdict verdict{.original = fmt::format("{}", fmt::join(sources.parameters, ", "))};
    if (sources.others || sources.computed) {
      verdict.why = is_one ? "computed at export from a parameter" : "computed at export from parameters";
      verdict.note = &kComputed;
    } else {
      verdict.why = is_one ? "parameter of the exported program in another layout" : "parameters of the exported program, joined";
    }
    return verdict;
  }

  const onnx::GraphDef& graph_;
  const bool all_found_, has_kinds_;
};

}  // namespace

std::vector<std::string> missing_parameters(const Evidence& evidence) {
  if (!evidence.is_main) return {};
  std::set<std::string> found;
  for (const onnx::TensorDef& tensor : evidence.graph.initializers) found.insert(tensor.name);
  for (const auto& [name, origin] : evidence.graph.origins) found.insert(origin.folded_from.begin(), origin.folded_from.end());
  std::vector<std::string> missing;
  for (const auto& [name, kind] : evidence.graph.program) {
    if (kind == onnx::OriginKind::parameter && !found.contains(name)) missing.push_back(name);
  }
  return missing;
}

Verdicts judge_by_metadata(const Evidence& evidence, const Undecided& open) {
  if (!evidence.is_main) return {};
  const Judge judge(evidence);
  Verdicts verdicts;
  for (const size_t i : open) {
    if (auto verdict = judge.verdict(evidence.subjects[i])) verdicts.emplace_back(i, std::move(*verdict));
  }
  return verdicts;
}

}  // namespace ort_train::importing
