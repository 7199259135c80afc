// Which floating-point tensors of a file are trained. Private to frontend/import*.cpp.
//
// One table of rules (import_rules.cpp) over four kinds of evidence: what the user says, what the exporter's metadata say
// (import_metadata.cpp), what a tensor is used for (import_roles.cpp), and what is in it (import_contents.cpp). A rule looks at the tensors
// that those before it left undecided.

#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "frontend/importer.h"

namespace ort_train::importing {

// A floating-point tensor of several or of one element that something reads.
struct Subject {
  Candidate candidate;
  bool in_node = false;     // the value of a Constant node, not an initializer
  std::vector<Use> ends{};  // its uses, those of nodes that only move or convert its elements replaced by what reads them
};

struct Evidence {
  const onnx::GraphDef& graph;
  const Uses& uses;
  TensorFiles& files;
  const ImportOptions& options;
  bool is_main = true;  // metadata are the main graph's
  std::vector<Subject> subjects{};
  std::unordered_map<std::string, const onnx::NodeDef*> producers{};  // by output
};

// How a note tells of tensors: "'a' {one}" or "2 tensors {several} ('a', 'b')".
struct NoteText {
  const char* one;
  const char* several;
};

struct Verdict {
  Treatment treatment = Treatment::trained;
  std::string why{};
  std::string original{};  // separated by ", "
  const NoteText* note = nullptr;
};
using Verdicts = std::vector<std::pair<size_t, Verdict>>;  // of subjects, by index
using Undecided = std::vector<size_t>;                     // indices of subjects

// Whether one of the patterns fits a tensor's name, or one of the names that metadata have of it ("a, b").
bool names_tensor(const std::vector<std::string>& patterns, const std::string& name, const std::string& originals);

// Why the model's own weights stay as they are where ImportOptions::adapts.
const char* trained_instead(const ImportOptions& options);

// One for each subject, and what to tell of them.
std::vector<Verdict> decide(const Evidence& evidence, std::vector<std::string>& notes);

// --- what metadata say ---
Verdicts judge_by_metadata(const Evidence& evidence, const Undecided& open);
// Parameters of the exported program that no tensor of the file was made of, as far as metadata say.
std::vector<std::string> missing_parameters(const Evidence& evidence);

// --- what they are used for ---
// "weight of MatMul"; of the first use that has a name.
std::string role_of(const Subject& subject);
bool is_running_statistic(const Use& use);
// Whether one of the uses makes it a layer's bias or scale, or, if it has two dimensions or more, a layer's weight.
bool is_layers_own(const std::vector<Use>& uses, const Shape& shape);
// What ONNX Runtime's attention adds to scores: a mask, or a bias that is trained.
bool is_attention_bias(const Use& use);
// The codes of a quantized weight; their scales and zero points.
bool is_quantized_place(const Use& use);
bool is_quantization_place(const Use& use);
Verdicts find_statistics(const Evidence& evidence, const Undecided& open);       // BatchNormalization's running ones
Verdicts find_quantization(const Evidence& evidence, const Undecided& open);     // scales of quantized weights
Verdicts find_constant_places(const Evidence& evidence, const Undecided& open);  // that the standard calls not differentiable
Verdicts find_small(const Evidence& evidence, const Undecided& open);            // of one element
Verdicts find_unweighted_places(const Evidence& evidence,
                                const Undecided& open);  // comparisons, bounds, exponents, initial states, an input's mean
Verdicts find_constants_of_code(const Evidence& evidence, const Undecided& open);     // of files that PyTorch traced
Verdicts find_unweighted_constants(const Evidence& evidence, const Undecided& open);  // Constant nodes that feed no layer
// Whether a tensor all of whose elements are `number` may be a weight: a layer's bias or scale, or zeros of a product.
bool is_fresh_weight(const Evidence& evidence, const Subject& subject, double number);

// --- what is in them ---
Verdicts find_masks(const Evidence& evidence, const Undecided& open);        // zeros and numbers that a softmax forgets; zeros and ones
Verdicts find_sinusoidal(const Evidence& evidence, const Undecided& open);   // sines and cosines of positions in each row
Verdicts find_rotary(const Evidence& evidence, const Undecided& open);       // cosines and sines of the same angles
Verdicts find_frequencies(const Evidence& evidence, const Undecided& open);  // 1, r, r^2, …; slopes r, r^2, …
Verdicts find_slopes(const Evidence& evidence, const Undecided& open);       // each row 0, s, 2s, …
Verdicts find_uniform(const Evidence& evidence, const Undecided& open);      // one number throughout

}  // namespace ort_train::importing
