// What a tensor is used for, as far as that tells weights from constants.

#include <algorithm>
#include <array>
#include <cctype>

#include "frontend/import_evidence.h"
#include "graph/onnx/schema.h"

namespace ort_train::importing {
namespace {

constexpr size_t kAny = ~size_t{0};

constexpr NoteText kSmall{"has one element, which weights seldom have: left as it is (`train` changes that)",
                          "have one element, which weights seldom have: left as they are (`train` changes that)"};
constexpr NoteText kUnweighted{"stands where weights seldom do: left as it is (`train` changes that)",
                               "stand where weights seldom do: left as they are (`train` changes that)"};
constexpr NoteText kOfCode{"is a constant of the model's code, no parameter: left as it is (`train` changes that)",
                           "are constants of the model's code, no parameters: left as they are (`train` changes that)"};

enum class Part { weight, bias, scale, other };

struct Role {
  std::string_view op;
  size_t input;
  Part part;
  const char* words;
  std::string_view domain{};  // of that one alone; else of any
};

constexpr std::string_view kContrib = "com.microsoft";

constexpr Role kRoles[] = {
    {"Conv", 1, Part::weight, "weight"},
    {"Conv", 2, Part::bias, "bias"},
    {"ConvTranspose", 1, Part::weight, "weight"},
    {"ConvTranspose", 2, Part::bias, "bias"},
    {"Gemm", 2, Part::bias, "bias"},
    {"Gemm", kAny, Part::weight, "weight"},
    {"MatMul", kAny, Part::weight, "weight"},
    {"Einsum", kAny, Part::weight, "weight"},
    {"Gather", 0, Part::weight, "table"},
    {"LayerNormalization", 1, Part::scale, "scale"},
    {"LayerNormalization", 2, Part::bias, "bias"},
    {"BatchNormalization", 1, Part::scale, "scale"},
    {"BatchNormalization", 2, Part::bias, "bias"},
    {"InstanceNormalization", 1, Part::scale, "scale"},
    {"InstanceNormalization", 2, Part::bias, "bias"},
    {"GroupNormalization", 1, Part::scale, "scale"},
    {"GroupNormalization", 2, Part::bias, "bias"},
    {"RMSNormalization", 1, Part::scale, "scale"},
    {"SimplifiedLayerNormalization", 1, Part::scale, "scale"},
    {"SkipLayerNormalization", 2, Part::scale, "scale"},
    {"SkipLayerNormalization", 3, Part::bias, "bias"},
    {"SkipLayerNormalization", 4, Part::bias, "bias"},
    {"SkipSimplifiedLayerNormalization", 2, Part::scale, "scale"},
    {"LSTM", 1, Part::weight, "weight"},
    {"LSTM", 2, Part::weight, "recurrent weight"},
    {"LSTM", 3, Part::bias, "bias"},
    {"LSTM", 7, Part::weight, "peepholes"},
    {"GRU", 1, Part::weight, "weight"},
    {"GRU", 2, Part::weight, "recurrent weight"},
    {"GRU", 3, Part::bias, "bias"},
    {"RNN", 1, Part::weight, "weight"},
    {"RNN", 2, Part::weight, "recurrent weight"},
    {"RNN", 3, Part::bias, "bias"},
    {"PRelu", 1, Part::scale, "slope"},
    {"Attention", 1, Part::weight, "weight", kContrib},
    {"Attention", 2, Part::bias, "bias", kContrib},
    {"MultiHeadAttention", 3, Part::bias, "bias", kContrib},
    {"GroupQueryAttention", 11, Part::bias, "sink", kContrib},
    {"GroupQueryAttention", 14, Part::scale, "scale", kContrib},
    {"GroupQueryAttention", 15, Part::scale, "scale", kContrib},
    {"EmbedLayerNormalization", 2, Part::weight, "table", kContrib},
    {"EmbedLayerNormalization", 3, Part::weight, "table", kContrib},
    {"EmbedLayerNormalization", 4, Part::weight, "table", kContrib},
    {"EmbedLayerNormalization", 5, Part::scale, "scale", kContrib},
    {"EmbedLayerNormalization", 6, Part::bias, "bias", kContrib},
};

const Role* find_role(const Use& use) {
  for (const Role& role : kRoles) {
    if (role.op == use.op_type && (role.input == kAny || role.input == use.input) && (role.domain.empty() || role.domain == use.domain))
      return &role;
  }
  return nullptr;
}

template <size_t n> bool is_one_of(std::string_view op, const std::array<std::string_view, n>& ops) {
  return std::find(ops.begin(), ops.end(), op) != ops.end();
}

// Cosines and sines of positions, where operators take them.
bool is_place_of_angles(const Use& use) {
  if (use.op_type == "RotaryEmbedding" && use.domain.empty()) return use.input == 1 || use.input == 2;
  return use.domain == kContrib && ((use.op_type == "RotaryEmbedding" && (use.input == 2 || use.input == 3)) ||
                                    (use.op_type == "GroupQueryAttention" && (use.input == 7 || use.input == 8)));
}

bool is_constant_place(const Use& use) { return onnx::never_differentiable(use.domain, use.op_type, use.opset, use.input); }

// x - mean or x / deviation, where x is an input of the model: a picture's channels.
bool normalises_input(const Evidence& evidence, const Use& use) {
  static constexpr std::array<std::string_view, 7> kBetween{"Cast", "Identity", "Transpose", "Reshape", "Sub", "Div", "Mul"};
  constexpr int kMost = 6;
  if ((use.op_type != "Sub" && use.op_type != "Div") || use.input != 1 || use.node >= evidence.graph.nodes.size()) return false;
  std::string at = evidence.graph.nodes[use.node].inputs[0];
  for (int step = 0; step < kMost; ++step) {
    const auto producer = evidence.producers.find(at);
    if (producer == evidence.producers.end()) {
      const auto& inputs = evidence.graph.inputs;
      return std::any_of(inputs.begin(), inputs.end(), [&](const onnx::ValueDef& input) { return input.name == at; });
    }
    if (!is_one_of(producer->second->op_type, kBetween) || producer->second->inputs.empty()) return false;
    at = producer->second->inputs[0];
  }
  return false;
}

// A temperature that is kept in bounds, or squared; not the base of powers that the model computes.
bool is_bounded_or_squared(const Evidence& evidence, const Use& use) {
  if (use.input != 0 || use.node >= evidence.graph.nodes.size()) return false;
  if (use.op_type == "Clip") return true;
  const std::vector<std::string>& inputs = evidence.graph.nodes[use.node].inputs;
  if (use.op_type != "Pow" || inputs.size() != 2) return false;
  const auto maker = evidence.producers.find(inputs[1]);
  const auto& fed = evidence.graph.inputs;
  return maker != evidence.producers.end()
             ? maker->second->op_type == "Constant"
             : std::none_of(fed.begin(), fed.end(), [&](const onnx::ValueDef& input) { return input.name == inputs[1]; });
}

// Where what exporters write is a bound, a choice, an exponent or a state, and hardly ever a weight.
bool is_unweighted_place(const Evidence& evidence, const Use& use) {
  static constexpr std::array<std::string_view, 12> kOps{
      "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Pow", "Clip", "Where", "Max", "Min", "Mod", "CumSum"};
  static constexpr std::array<std::string_view, 3> kRecurrent{"LSTM", "GRU", "RNN"};
  constexpr size_t kHidden = 5, kCell = 6;  // the initial states
  if (!use.domain.empty()) return false;
  if ((use.op_type == "Resize" || use.op_type == "Upsample") && use.input > 0) return true;  // old forms don't say so
  if (is_bounded_or_squared(evidence, use)) return false;
  return is_one_of(use.op_type, kOps) || normalises_input(evidence, use) ||
         (is_one_of(use.op_type, kRecurrent) && (use.input == kHidden || use.input == kCell));
}

template <typename Fits> Verdicts left_where(const Evidence& evidence, const Undecided& open, Fits&& is_left, const NoteText* note) {
  Verdicts verdicts;
  for (const size_t i : open) {
    std::string why = is_left(evidence.subjects[i]);
    if (!why.empty()) verdicts.push_back({i, {.treatment = Treatment::constant, .why = std::move(why), .note = note}});
  }
  return verdicts;
}

// The node that gives a value, past those that only move or convert its elements; null where there is none.
const onnx::NodeDef* maker_of(const Evidence& evidence, const std::string& name) {
  static constexpr std::array<std::string_view, 7> kMoves{"Cast", "Identity", "Transpose", "Reshape", "Unsqueeze", "Squeeze", "Flatten"};
  constexpr int kMost = 8;
  std::string at = name;
  for (int step = 0; step < kMost; ++step) {
    const auto found = evidence.producers.find(at);
    if (found == evidence.producers.end()) return nullptr;
    const onnx::NodeDef* const node = found->second;
    if (!is_one_of(node->op_type, kMoves) || node->inputs.empty()) return node;
    at = node->inputs[0];
  }
  return nullptr;
}

bool is_product_or_normalisation(const onnx::NodeDef& node) {
  static constexpr std::array<std::string_view, 5> kProducts{"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"};
  return is_one_of(node.op_type, kProducts) || node.op_type.ends_with("Normalization");
}

// x / sqrt(…) or x * (1 / sqrt(…)), as exporters write normalisations.
bool is_normalising(const Evidence& evidence, const onnx::NodeDef& node) {
  if (node.op_type.ends_with("Normalization") || node.op_type == "Div") return true;
  if (node.op_type != "Mul") return false;
  return std::any_of(node.inputs.begin(), node.inputs.end(), [&](const std::string& name) {
    const onnx::NodeDef* const maker = maker_of(evidence, name);
    return maker && (maker->op_type == "Reciprocal" || maker->op_type == "Pow" || maker->op_type == "Div");
  });
}

// Whether it has a name that people give, not one that exporters number: "encoder.scale", "temperature", not "onnx::Mul_12", "val_12".
bool is_attribute(const Subject& subject) {
  const std::string& name = subject.candidate.name;
  if (name.find('.') != std::string::npos) return true;
  const bool is_word =
      std::all_of(name.begin(), name.end(), [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; });
  const size_t end = name.find_last_not_of("0123456789");  // of what stands before a number
  return is_word && end != std::string::npos && (end + 1 == name.size() || name[end] != '_');
}

// Whether it is added to a product, or the bias of a layer: that of a layer of one unit has one element.
bool is_bias(const Evidence& evidence, const Use& use) {
  if (const Role* role = find_role(use)) return role->part == Part::bias;
  if (use.op_type != "Add" || use.node >= evidence.graph.nodes.size()) return false;
  const std::vector<std::string>& inputs = evidence.graph.nodes[use.node].inputs;
  if (inputs.size() != 2) return false;
  const onnx::NodeDef* const other = maker_of(evidence, inputs[1 - use.input]);
  return other != nullptr && (other->op_type == "MatMul" || other->op_type == "Gemm" || other->op_type.starts_with("Conv"));
}

bool is_slope(const Use& use) { return use.op_type == "PRelu" && use.input == 1; }

// Whether all but one of the dimensions are 1.
bool is_vector(const Shape& shape) {
  return std::count_if(shape.begin(), shape.end(), [](int64_t size) { return size != 1; }) == 1;
}

bool is_fresh_use(const Evidence& evidence, const Subject& subject, const Use& use, double number) {
  if (const Role* role = find_role(use)) {
    if (role->part == Part::weight) {
      // Zeros are trained from. A filter that smooths is one number throughout, too, and has no bias; an initializer of a product or a
      // lookup is a weight.
      const bool has_bias = use.node < evidence.graph.nodes.size() && evidence.graph.nodes[use.node].inputs.size() > 2;
      const bool is_of_one = element_count(subject.candidate.tensor->shape) == 1;  // find_small() has looked at these
      return number == 0 || is_of_one || (use.op_type.starts_with("Conv") ? has_bias : !subject.in_node);
    }
    // What stands in for a group normalisation: its own scale and bias come behind it.
    if (use.op_type != "InstanceNormalization" || use.node >= evidence.graph.nodes.size()) return true;
    const auto producer = evidence.producers.find(evidence.graph.nodes[use.node].inputs.at(0));
    return producer == evidence.producers.end() || producer->second->op_type != "Reshape";
  }
  const Shape& shape = subject.candidate.tensor->shape;
  if (element_count(shape) == 1) return is_bias(evidence, use);
  if ((use.op_type != "Add" && use.op_type != "Mul") || !is_vector(shape) || use.node >= evidence.graph.nodes.size()) return false;
  const std::vector<std::string>& inputs = evidence.graph.nodes[use.node].inputs;
  if (inputs.size() != 2) return false;
  const onnx::NodeDef* const other = maker_of(evidence, inputs[1 - use.input]);
  if (!other) return false;
  if (use.op_type == "Mul") return is_normalising(evidence, *other);
  if (is_product_or_normalisation(*other)) return true;
  return other->op_type == "Mul" && std::any_of(other->inputs.begin(), other->inputs.end(), [&](const std::string& name) {
           const onnx::NodeDef* const maker = maker_of(evidence, name);
           return maker && is_normalising(evidence, *maker);
         });
}

}  // namespace

// The running mean and variance: state of the layer, not what a gradient changes.
bool is_running_statistic(const Use& use) { return use.op_type == "BatchNormalization" && use.domain.empty() && use.input >= 3; }

bool is_layers_own(const std::vector<Use>& uses, const Shape& shape) {
  return std::any_of(uses.begin(), uses.end(), [&](const Use& use) {
    const Role* const role = find_role(use);
    return role != nullptr && (role->part == Part::bias || role->part == Part::scale || (role->part == Part::weight && shape.size() > 1));
  });
}

bool is_attention_bias(const Use& use) {
  return use.domain == kContrib && (((use.op_type == "Attention" || use.op_type == "MultiHeadAttention") && use.input == 5) ||
                                    (use.op_type == "GroupQueryAttention" && use.input == 10));
}

bool is_quantized_place(const Use& use) {
  return (use.op_type == "DequantizeLinear" && use.input == 0) || (use.op_type == "MatMulNBits" && use.input == 1);
}
bool is_quantization_place(const Use& use) {
  return (use.op_type == "DequantizeLinear" && (use.input == 1 || use.input == 2)) ||
         (use.op_type == "MatMulNBits" && (use.input == 2 || use.input == 3));
}

std::string role_of(const Subject& subject) {
  for (const Use& use : subject.ends) {
    if (const Role* role = find_role(use)) return fmt::format("{} of {}", role->words, use.op_type);
  }
  const auto named = std::find_if(subject.ends.begin(), subject.ends.end(), [](const Use& use) { return !use.op_type.empty(); });
  if (named == subject.ends.end()) return "an output";
  if (named->op_type == "Add") return "added";
  if (named->op_type == "Mul") return "multiplied";
  return fmt::format("taken by {}", named->op_type);
}

Verdicts find_statistics(const Evidence& evidence, const Undecided& open) {
  Verdicts verdicts;
  for (const size_t i : open) {
    const std::vector<Use>& uses = evidence.subjects[i].candidate.uses;
    if (!uses.empty() && std::all_of(uses.begin(), uses.end(), is_running_statistic))
      verdicts.push_back({i, {.treatment = Treatment::statistic, .why = "running statistic of BatchNormalization"}});
  }
  return verdicts;
}

Verdicts find_quantization(const Evidence& evidence, const Undecided& open) {
  Verdicts verdicts;
  for (const size_t i : open) {
    const std::vector<Use>& uses = evidence.subjects[i].candidate.uses;
    if (!uses.empty() && std::all_of(uses.begin(), uses.end(), is_quantization_place))
      verdicts.push_back({i, {.treatment = Treatment::constant, .why = fmt::format("scales of {}", uses[0].op_type)}});
  }
  return verdicts;
}

Verdicts find_constant_places(const Evidence& evidence, const Undecided& open) {
  return left_where(
      evidence, open,
      [](const Subject& subject) -> std::string {
        const std::vector<Use>& uses = subject.candidate.uses;
        if (uses.empty()) return "only its shape is read";
        if (std::all_of(uses.begin(), uses.end(), is_place_of_angles)) return "cosines or sines of positions";
        return std::all_of(uses.begin(), uses.end(), is_constant_place) ? fmt::format("{} has no gradient there", uses[0].op_type) : "";
      },
      nullptr);
}

Verdicts find_small(const Evidence& evidence, const Undecided& open) {
  Verdicts verdicts;
  for (const size_t i : open) {
    const onnx::TensorDef& tensor = *evidence.subjects[i].candidate.tensor;
    if (element_count(tensor.shape) != 1) continue;
    const std::vector<Use>& ends = evidence.subjects[i].ends;
    // Of a layer of one unit or channel.
    const bool is_added = std::any_of(ends.begin(), ends.end(), [&](const Use& use) { return is_bias(evidence, use); });
    if (!tensor.shape.empty() && (is_added || is_layers_own(ends, tensor.shape))) continue;
    if (std::any_of(ends.begin(), ends.end(), is_slope)) continue;
    // Every model has numbers of no dimension; a module's attribute ("encoder.scale", "temperature") is worth telling of.
    const bool tells = !tensor.shape.empty() || is_attribute(evidence.subjects[i]);
    verdicts.push_back({i, {.treatment = Treatment::constant, .why = "one element", .note = tells ? &kSmall : nullptr}});
  }
  return verdicts;
}

Verdicts find_unweighted_places(const Evidence& evidence, const Undecided& open) {
  return left_where(
      evidence, open,
      [&](const Subject& subject) -> std::string {
        const std::vector<Use>& ends = subject.ends;
        if (ends.empty() || !std::all_of(ends.begin(), ends.end(), [&](const Use& use) { return is_unweighted_place(evidence, use); }))
          return "";
        const std::string& op = ends[0].op_type;
        return find_role({.op_type = op, .input = 1}) ? fmt::format("initial state of {}", op) : fmt::format("taken by {}", op);
      },
      &kUnweighted);
}

// PyTorch's exporter by tracing writes parameters as initializers, and tensors that the model's code makes as Constant nodes that it names
// "/encoder/Constant_1_output_0": zeros to begin with, tables of positions, a filter that blurs. A file in which such nodes are weights,
// and no initializer is one, was frozen.
Verdicts find_constants_of_code(const Evidence& evidence, const Undecided& open) {
  // The right one of a product, whose left one may be what begins.
  const auto is_weight = [](const Subject& subject) {
    return std::any_of(subject.ends.begin(), subject.ends.end(), [](const Use& use) {
      const Role* const role = find_role(use);
      return role != nullptr && role->part == Part::weight && use.input > 0;
    });
  };
  const auto has_weight = [&](bool in_node) {
    return std::any_of(evidence.subjects.begin(), evidence.subjects.end(),
                       [&](const Subject& s) { return s.in_node == in_node && is_weight(s); });
  };
  if (has_weight(true) && !has_weight(false)) return {};
  return left_where(
      evidence, open,
      [](const Subject& subject) -> std::string {
        std::string_view name = subject.candidate.name;
        const size_t slash = name.rfind('/');
        if (!subject.in_node || slash == std::string_view::npos) return "";
        name.remove_prefix(slash + 1);
        return name.starts_with("Constant_") && name.ends_with("_output_0") ? "a constant of the model's code" : "";
      },
      &kOfCode);
}

Verdicts find_unweighted_constants(const Evidence& evidence, const Undecided& open) {
  static constexpr std::array<std::string_view, 10> kWeighted{"Conv", "ConvTranspose", "MatMul", "Gemm", "Einsum",
                                                              "Add",  "Mul",           "LSTM",   "GRU",  "RNN"};
  return left_where(
      evidence, open,
      [](const Subject& subject) -> std::string {
        const bool is_fed = std::any_of(subject.ends.begin(), subject.ends.end(), [](const Use& use) {
          return is_one_of(use.op_type, kWeighted) || use.op_type.ends_with("Normalization");
        });
        return subject.in_node && !is_fed ? "a Constant node that feeds no layer" : "";
      },
      nullptr);
}

bool is_fresh_weight(const Evidence& evidence, const Subject& subject, double number) {
  return std::any_of(subject.ends.begin(), subject.ends.end(),
                     [&](const Use& use) { return is_fresh_use(evidence, subject, use, number); });
}

}  // namespace ort_train::importing
