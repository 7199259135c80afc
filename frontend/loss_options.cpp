#include "frontend/loss_options.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "frontend/bound_value.h"
#include "frontend/import.h"
#include "graph/error.h"

namespace ort_train {
namespace {

std::string trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return std::string(text);
}

// Cuts at each `separator` that is in no bracket.
std::vector<std::string> cut(std::string_view text, char separator) {
  std::vector<std::string> pieces(1);
  int depth = 0;
  for (const char c : text) {
    depth += (c == '(' || c == '[') - (c == ')' || c == ']');
    if (c == separator && depth == 0)
      pieces.emplace_back();
    else
      pieces.back() += c;
  }
  for (std::string& piece : pieces) piece = trimmed(piece);
  return pieces;
}

class Term {
 public:
  Term(std::string_view text, const Options& options) : text_(text), options_(options) {}

  LossTerm parse() {
    std::string head = text_.substr(0, text_.find_first_of("(*@"));
    std::string rest = text_.substr(head.size());
    head = trimmed(head);
    const size_t colon = head.rfind(':');
    term_.kind = trimmed(colon == std::string::npos ? head : std::string_view(head).substr(colon + 1));
    if (term_.kind.empty()) throw wrong("names no loss; these are: {}", fmt::join(loss_names(), ", "));
    shape_ = &loss_named(term_.kind);
    if (colon != std::string::npos)
      term_.outputs = cut(head.substr(0, colon), '+');
    else if (!options_.output.empty() && (shape_->outputs == 1 || term_.kind == "distillation"))  // whose second is the teacher's
      term_.outputs = {options_.output};
    reads_usual_output_ = colon == std::string::npos && !term_.outputs.empty();
    if (rest.starts_with('(')) {
      const size_t end = closing(rest);
      for (const std::string& setting : cut(rest.substr(1, end - 1), ',')) {
        if (!setting.empty()) set(setting);
      }
      rest = trimmed(rest.substr(end + 1));
    }
    if (rest.starts_with('*')) {
      const size_t end = std::min(rest.find('@'), rest.size());
      term_.weight = number(trimmed(rest.substr(1, end - 1)));
      rest = rest.substr(end);
    }
    if (rest.starts_with('@'))
      labels_ = cut(rest.substr(1), '+');
    else if (!rest.empty())
      throw wrong("'{}' is not understood", rest);
    check_labels();
    return std::move(term_);
  }

  const std::vector<std::string>& labels() const { return labels_; }
  bool reads_usual_output() const { return reads_usual_output_; }  // Options::output

 private:
  template <typename... T> Error wrong(fmt::format_string<T...> format, T&&... arguments) const {
    return error(ErrorCode::usage, "`loss` {}: {} (OUTPUT:NAME(PARAMETER=VALUE)*WEIGHT@LABELS)", text_,
                 fmt::format(format, std::forward<T>(arguments)...));
  }

  size_t closing(const std::string& text) const {
    int depth = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      depth += (text[i] == '(') - (text[i] == ')');
      if (depth == 0) return i;
    }
    throw wrong("a ')' is missing");
  }

  double number(const std::string& text) const {
    double value = 0;
    const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (code != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) throw wrong("'{}' is no number", text);
    return value;
  }

  void set(const std::string& setting) {
    const size_t equals = setting.find('=');
    const std::string name = trimmed(setting.substr(0, equals));
    const auto known = std::find_if(shape_->parameters.begin(), shape_->parameters.end(),
                                    [&](const LossParameter& parameter) { return parameter.name == name; });
    const bool is_ignored = name == "ignore_index" && shape_->labels == LabelKind::classes;
    if (known == shape_->parameters.end() && !is_ignored) {
      std::vector<std::string> names;
      for (const LossParameter& parameter : shape_->parameters) names.emplace_back(parameter.name);
      if (shape_->labels == LabelKind::classes) names.emplace_back("ignore_index");
      throw wrong("{} has no parameter '{}'; it has {}", term_.kind, name,
                  names.empty() ? "none" : fmt::format("{}", fmt::join(names, ", ")));
    }
    if (equals == std::string::npos) throw wrong("'{}' has no value: {}=VALUE", name, name);
    const std::string text = trimmed(setting.substr(equals + 1));
    if (is_ignored) {
      const double index = number(text);
      if (index != std::floor(index) || std::abs(index) > 1e15) throw wrong("`ignore_index` {} is no class number", text);
      term_.ignore_index = static_cast<int64_t>(index);
      return;
    }
    std::vector<double> values;
    if (text.starts_with('@')) {
      if (!known->is_list) throw wrong("`{}` is one number", name);
      values = bound_value(name, text, DType::float64, {-1}).to_double();
    } else if (text.starts_with('[') && text.ends_with(']')) {
      if (!known->is_list) throw wrong("`{}` is one number", name);
      for (const std::string& piece : cut(std::string_view(text).substr(1, text.size() - 2), ',')) values.push_back(number(piece));
    } else {
      values.push_back(number(text));
    }
    for (const double value : values) {
      if (!(value >= known->least && value <= known->most))
        throw wrong("`{}` {}: has to lie between {} and {:.6g}", name, value, known->least, known->most);
    }
    if (values.empty()) throw wrong("`{}` has no numbers", name);
    term_.parameters[name] = values;
  }

  void check_labels() const {
    const size_t most = shape_->labels == LabelKind::none ? 0 : shape_->labels == LabelKind::sequences ? 2 : 1;
    if (labels_.size() > most) throw wrong("{} reads {}", term_.kind, most == 0 ? "no labels" : "one array of labels");
  }

  const std::string text_;
  const Options& options_;
  const LossShape* shape_ = nullptr;
  LossTerm term_{};
  std::vector<std::string> labels_{};
  bool reads_usual_output_ = false;
};

// The settings that have options of their own.
void apply(double value, double usual, const char* option, const char* kind, const char* parameter, LossSpec& spec, double least,
           double below) {
  if (value == usual) return;
  if (!(value >= least && value < below))
    throw error(ErrorCode::usage, "`{}` {}: has to {}", option, value,
                std::isinf(below) ? fmt::format("be {} or more", least) : fmt::format("lie in [{}, {})", least, below));
  bool is_used = false;
  for (LossTerm& term : spec.terms) {
    if (term.kind != kind) continue;
    is_used = true;
    term.parameters.try_emplace(parameter, std::vector<double>{value});
  }
  if (!is_used) throw error(ErrorCode::usage, "`{}` {}: goes with `loss` {}, not {}", option, value, kind, spec.terms[0].kind);
}

}  // namespace

LossSpec parse_losses(const Options& options) {
  LossSpec spec{.terms = {}, .teacher = {}};
  if (!options.teacher.empty()) spec.teacher = kTeacherPrefix;
  const std::string text = !options.loss.empty()         ? options.loss
                           : !options.loss_model.empty() ? "output"
                           : !options.teacher.empty()    ? "distillation"
                                                         : "cross_entropy";
  std::vector<std::vector<std::string>> labels;
  bool reads_usual_output = false;
  for (const std::string& piece : cut(text, ',')) {
    Term term(piece, options);
    spec.terms.push_back(term.parse());
    labels.push_back(term.labels());
    reads_usual_output = reads_usual_output || term.reads_usual_output();
  }
  if (!options.output.empty() && !reads_usual_output)
    throw error(ErrorCode::usage, "`output` {}: no loss reads it: `loss` {} names the outputs that it reads itself; leave `output` out",
                options.output, text);
  const auto reads_labels = [](const LossTerm& term) { return loss_named(term.kind).labels != LabelKind::none; };
  const auto readers = std::count_if(spec.terms.begin(), spec.terms.end(), reads_labels);
  for (size_t i = 0; i < spec.terms.size(); ++i) {
    LossTerm& term = spec.terms[i];
    const bool has_own = readers > 1 && term.outputs.size() == 1;
    term.has_own_labels = !labels[i].empty();
    term.labels = !labels[i].empty() ? labels[i] : std::vector{has_own ? term.outputs[0] + "_" + options.labels : options.labels};
  }
  if (!options.loss_model.empty()) {
    const std::vector<DeclaredInput> outputs = declared(options.loss_model).outputs;
    for (LossTerm& term : spec.terms) {
      if (term.kind == "output" && term.outputs.empty() && !outputs.empty()) term.outputs = {kLossModelPrefix + outputs[0].name};
    }
  }
  const auto follows = [](const LossTerm& term) { return term.kind == "distillation"; };
  if (!options.teacher.empty() && std::none_of(spec.terms.begin(), spec.terms.end(), follows))
    throw error(ErrorCode::usage, "`teacher` {}: no loss follows it: leave `loss` out, or add a term, as in '{}*0.5,distillation*0.5'",
                options.teacher, spec.terms[0].kind);
  const auto is_of_loss_model = [](const std::string& output) { return output.starts_with(kLossModelPrefix); };
  const auto reads_loss_model = [&](const LossTerm& term) {
    return std::any_of(term.outputs.begin(), term.outputs.end(), is_of_loss_model);
  };
  if (!options.loss_model.empty() && std::none_of(spec.terms.begin(), spec.terms.end(), reads_loss_model))
    throw error(ErrorCode::usage, "`loss_model` {}: no loss reads it: leave `loss` out, or add it as a term, as in '{}*0.5,output*0.5'",
                options.loss_model, spec.terms[0].kind);
  apply(options.label_smoothing, 0, "label_smoothing", "cross_entropy", "label_smoothing", spec, 0, 1);
  apply(options.z_loss, 0, "z_loss", "cross_entropy", "z_loss", spec, 0, INFINITY);
  apply(options.temperature, 1, "temperature", "distillation", "temperature", spec, 1e-6, INFINITY);
  return spec;
}

}  // namespace ort_train
