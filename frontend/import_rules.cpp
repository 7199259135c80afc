// The table of rules by which it is decided which tensors are trained. The first that says something counts.

#include <fmt/ranges.h>

#include <algorithm>

#include "frontend/import_evidence.h"
#include "graph/names.h"

namespace ort_train::importing {
namespace {

using Rule = Verdicts (*)(const Evidence&, const Undecided&);

Verdicts find_added(const Evidence& evidence, const Undecided& open) {
  Verdicts verdicts;
  for (const size_t i : open) {
    const onnx::TensorDef& tensor = *evidence.subjects[i].candidate.tensor;
    if (tensor.added) verdicts.push_back({i, {.why = tensor.offset < 0 ? "a zero-initialised layer's" : "copied by `control`"}});
  }
  return verdicts;
}

// In this order: what the standard and the exporter say is certain, what a tensor is used for is nearly so, what is in it is the last
// resort of files without metadata.
constexpr Rule kRules[] = {
    find_statistics,         // state of a layer, whatever else is said
    find_added,              // what `control` adds is trained
    find_quantization,       // the same of a quantized weight
    judge_by_metadata,       //
    find_constant_places,    //
    find_small,              //
    find_unweighted_places,  //
    find_unweighted_constants,
    find_masks,        // before the others look at what is in them: most masks are mostly zeros
    find_sinusoidal,   //
    find_rotary,       //
    find_frequencies,  //
    find_slopes,       //
    find_uniform,      //
    find_constants_of_code,
};

// `texts` in the order of the rules.
void add_notes(const Evidence& evidence, const std::vector<Verdict>& verdicts, const std::vector<const NoteText*>& texts,
               std::vector<std::string>& notes) {
  for (const NoteText* const text : texts) {
    std::vector<std::string> names;
    for (size_t i = 0; i < verdicts.size(); ++i) {
      if (verdicts[i].note == text) names.push_back(evidence.subjects[i].candidate.name);
    }
    if (names.empty()) continue;  // the user said otherwise
    constexpr size_t kShown = 4;
    const size_t shown = std::min(names.size(), kShown);
    notes.push_back(names.size() == 1 ? fmt::format("'{}' {}", names[0], text->one)
                                      : fmt::format("{} tensors {} ('{}'{})", names.size(), text->several,
                                                    fmt::join(names.begin(), names.begin() + static_cast<ptrdiff_t>(shown), "', '"),
                                                    shown < names.size() ? ", …" : ""));
  }
}

}  // namespace

bool names_tensor(const std::vector<std::string>& patterns, const std::string& name, const std::string& originals) {
  std::vector<std::string_view> names{name};
  for (std::string_view rest = originals; !rest.empty();) {
    const size_t end = std::min(rest.find(", "), rest.size());
    names.push_back(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 2, rest.size()));
  }
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return std::any_of(names.begin(), names.end(), [&](std::string_view known) { return fits(pattern, known); });
  });
}

const char* trained_instead(const ImportOptions& options) {
  return options.control.is_on() ? "a copy is trained (`control`)" : "adapters are trained";
}

std::vector<Verdict> decide(const Evidence& evidence, std::vector<std::string>& notes) {
  std::vector<Verdict> verdicts(evidence.subjects.size());
  Undecided open(evidence.subjects.size());
  for (size_t i = 0; i < open.size(); ++i) open[i] = i;
  std::vector<bool> decided(open.size());
  std::vector<const NoteText*> texts;
  for (const Rule rule : kRules) {
    for (auto& [i, verdict] : rule(evidence, open)) {
      decided[i] = true;
      if (verdict.note && std::find(texts.begin(), texts.end(), verdict.note) == texts.end()) texts.push_back(verdict.note);
      verdicts[i] = std::move(verdict);
    }
    std::erase_if(open, [&](size_t i) { return decided[i]; });
  }
  for (const size_t i : open) verdicts[i] = {.treatment = Treatment::trained, .why = role_of(evidence.subjects[i])};
  for (size_t i = 0; i < verdicts.size(); ++i) {
    Verdict& verdict = verdicts[i];
    const std::string& name = evidence.subjects[i].candidate.name;
    if (verdict.treatment == Treatment::statistic) continue;
    if (names_tensor(evidence.options.train, name, verdict.original)) {
      if (verdict.treatment != Treatment::trained)
        verdict = {.treatment = Treatment::trained, .why = "`train` names it", .original = verdict.original};
    } else if (verdict.treatment == Treatment::trained && evidence.options.adapts && !evidence.subjects[i].candidate.tensor->added) {
      verdict = {.treatment = Treatment::frozen, .why = trained_instead(evidence.options), .original = verdict.original};
    } else if (verdict.treatment == Treatment::trained && names_tensor(evidence.options.freeze, name, verdict.original)) {
      verdict = {.treatment = Treatment::frozen, .why = "`freeze` names it", .original = verdict.original};
    }
  }
  add_notes(evidence, verdicts, texts, notes);
  return verdicts;
}

}  // namespace ort_train::importing
