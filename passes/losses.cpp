// build_losses: puts the job's losses at the end of a forward graph.
//
//   before   logits: (…, V)
//   after    sum, lse = SoftmaxCrossEntropy(logits, labels) ; count = CountLabels(labels)          cross_entropy
//            sum = SquaredError(prediction, labels)                                                mse
//            sum = ReduceSum of what the loss makes of each element, row or sample                 the others
//            sum = the output itself                                                               output
//
// Most exported classifiers end in a Softmax or Sigmoid, perhaps reshaped or transposed. A loss that takes the softmax or sigmoid itself
// reads what goes into that instead; the output stays as it is.
//
// To add a loss: write how it is made, and add it to kLosses; golden values come from models/golden_losses.py.

#include "passes/losses.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/match.h"

namespace ort_train {
namespace {

constexpr double kSmallest = 1.17549435e-38;  // positive float32

// Which activation at the end of the model a loss takes by itself.
enum class Takes : uint8_t { nothing, softmax, sigmoid };

class LossBuilder;

struct LossDef {
  std::string_view name;
  LossShape shape;
  Takes takes = Takes::nothing;
  void (*build)(LossBuilder& b);
};

// Emits one loss.
class LossBuilder : public Builder {
 public:
  LossBuilder(Graph& graph, const LossTerm& term, const LossDef& def, int64_t samples, std::vector<ValueId> outputs,
              std::vector<ValueId> read)
      : Builder(graph), term_(term), def_(def), samples_(samples), outputs_(std::move(outputs)), read_(std::move(read)) {
    named("loss");
    loss.kind = def.shape.labels;
    loss.weight = term.weight;
    loss.ignore_index = term.ignore_index;
  }

  // The output as float32 or wider, or what goes into its Softmax or Sigmoid.
  ValueId x(size_t i = 0) { return cast(raw(i), compute_type(dtype(outputs_[i]))); }
  ValueId raw(size_t i = 0) const { return read_[i]; }
  const Value& output(size_t i = 0) const { return value(outputs_[i]); }
  const std::string& output_name() { return graph().output_name(outputs_[0]); }
  std::vector<double> list(std::string_view name) const {
    const auto found = term_.parameters.find(std::string(name));
    if (found != term_.parameters.end()) return found->second;
    const auto& known = def_.shape.parameters;
    const auto parameter = std::find_if(known.begin(), known.end(), [&](const LossParameter& p) { return p.name == name; });
    require(parameter != known.end(), "a parameter that the loss does not have");
    return {parameter->value};
  }
  double number(std::string_view name) const { return list(name)[0]; }
  bool is_given(const char* name) const { return term_.parameters.contains(name); }
  const LossTerm& term() const { return term_; }

  ValueId add_labels(DType type, Shape shape) {
    std::string name = term_.labels.at(loss.labels.size());
    while (graph().find_value(name) != kNone) name += ".labels";  // an array that the model reads, too, or another loss
    const ValueId id = graph().add_value({.name = name, .dtype = type, .shape = std::move(shape), .kind = ValueKind::input});
    graph().inputs.push_back(id);
    loss.labels.push_back(id);
    return id;
  }
  // As the output is.
  ValueId numbers() { return add_labels(compute_type(output().dtype), output().shape); }

  // Arithmetic with numbers.
  ValueId add(ValueId a, ValueId b) { return emit("Add", {a, b}); }
  ValueId plus(ValueId a, double b) { return b == 0 ? a : emit("Add", {a, scalar_like(a, b)}); }
  ValueId sub(ValueId a, ValueId b) { return emit("Sub", {a, b}); }
  ValueId mul(ValueId a, ValueId b) { return emit("Mul", {a, b}); }
  ValueId times(ValueId a, double b) { return b == 1 ? a : emit("Mul", {a, scalar_like(a, b)}); }
  ValueId div(ValueId a, ValueId b) { return emit("Div", {a, b}); }
  ValueId max(ValueId a, double b) { return emit("Max", {a, scalar_like(a, b)}); }
  ValueId min(ValueId a, double b) { return emit("Min", {a, scalar_like(a, b)}); }
  ValueId less_from(double a, ValueId b) { return emit("Sub", {scalar_like(b, a), b}); }  // a - b
  // Over the last axis, which goes.
  ValueId sum_rows(ValueId a) { return sum(a, {static_cast<int64_t>(shape(a).size()) - 1}, dtype(a)); }
  // log(1 + e^a)
  ValueId softplus(ValueId a) { return emit("Softplus", {a}); }
  ValueId log_softmax(ValueId a) { return emit("LogSoftmax", {a}, {{"axis", static_cast<int64_t>(shape(a).size()) - 1}}); }

  // The mean is over so many numbers, which are divided among the samples.
  void count(int64_t all) {
    loss.counted = Counted::samples;
    const int64_t rows = output().shape.empty() ? 1 : output().shape[0], samples = samples_ > 0 ? samples_ : rows;
    loss.per_sample = samples == 0 ? 0 : static_cast<double>(all) / static_cast<double>(samples);
  }
  void mean_of(ValueId each) {
    const int64_t all = element_count(shape(each));
    count(all);
    loss.sum = sum(reshape(each, {all}), {0}, dtype(each));
  }
  template <typename... T> [[noreturn]] void fail(fmt::format_string<T...> format, T&&... arguments) {
    throw error(ErrorCode::unsupported, "the output '{}' is {}; {}", output_name(), to_string(output().type()),
                fmt::format(format, std::forward<T>(arguments)...));
  }
  // (N, D), all of one type.
  void need_vectors() const {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (output(i).shape.size() != 2 || output(i).type() != output(0).type())
        throw error(ErrorCode::unsupported, "the output '{}' is {}; `loss` {} needs {} outputs of one shape, (samples, features)",
                    output(i).name, to_string(output(i).type()), def_.name, outputs_.size());
    }
  }

  JobLoss loss;

 private:
  const LossTerm& term_;
  const LossDef& def_;
  const int64_t samples_;
  std::vector<ValueId> outputs_, read_;
};

// --- of classes ------------------------------------------------------------------------------------------------------------------------

// Moves the axis of classes to the end; then scores are (..., V) and labels (...).
ValueId classes_last(LossBuilder& b, ValueId scores) {
  const auto rank = static_cast<int64_t>(b.shape(scores).size());
  if (rank == 0) b.fail("{} needs an axis of classes (`loss` output if it is the loss)", b.term().kind);
  const double given = b.number("axis");
  if (given != std::floor(given) || given < -static_cast<double>(rank) || given >= static_cast<double>(rank))
    b.fail("it has no axis {}", given);
  const int64_t axis = normalize_axis(static_cast<int64_t>(given), rank, "axis");
  if (axis == 0 && rank > 1) b.fail("its axis 0 has the samples, so that it can't be the one of the classes (`axis`)");
  if (axis == rank - 1) return scores;
  std::vector<int64_t> permutation;
  for (int64_t i = 0; i < rank; ++i) {
    if (i != axis) permutation.push_back(i);
  }
  permutation.push_back(axis);
  return b.transpose(scores, permutation);
}

// Labels of classes_last()'s scores, their count, and the classes' weights (kNone: none).
ValueId add_class_labels(LossBuilder& b, ValueId scores, ValueId* weights) {
  Shape leading = b.shape(scores);
  b.loss.classes = leading.back();
  leading.pop_back();
  const ValueId labels = b.add_labels(DType::int64, leading);
  *weights = kNone;
  std::vector<ValueId> counted{labels};
  if (b.is_given("weight")) {
    const std::vector<double> given = b.list("weight");
    if (static_cast<int64_t>(given.size()) != b.loss.classes)
      throw error(ErrorCode::usage, "`loss` {}: `weight` has {} numbers for the {} classes of the output '{}'", b.term().kind, given.size(),
                  b.loss.classes, b.output_name());
    const std::vector<float> numbers(given.begin(), given.end());
    b.loss.class_weights.assign(numbers.begin(), numbers.end());
    const ValueId constant = b.constant(make_tensor<float>({b.loss.classes}, numbers));
    *weights = b.cast(constant, compute_type(b.dtype(scores)));
    counted.push_back(constant);
  }
  b.loss.counted = Counted::labels;
  b.loss.count = b.emit("CountLabels", counted, {{"ignore_index", b.term().ignore_index}});
  return labels;
}

void cross_entropy(LossBuilder& b) {
  ValueId read = b.raw();
  // It computes in float32 from logits of 16 bits as from their float32 copy, without that.
  const View view(b.graph());
  if (const Node* cast = view.made_by(read, "Cast"); cast && is_half(b.dtype(cast->inputs[0]))) read = cast->inputs[0];
  const ValueId scores = classes_last(b, read);
  ValueId weights = kNone;
  const ValueId labels = add_class_labels(b, scores, &weights);
  Attributes terms{{"ignore_index", b.term().ignore_index}};
  if (b.number("label_smoothing") != 0) terms.set("smoothing", static_cast<float>(b.number("label_smoothing")));
  if (b.number("z_loss") != 0) terms.set("z_loss", static_cast<float>(b.number("z_loss")));
  std::vector<ValueId> inputs{scores, labels};
  if (weights != kNone) inputs.push_back(weights);
  b.loss.sum = b.emit_many("SoftmaxCrossEntropy", inputs, terms, 2)[0];
}

// Of logarithms of probabilities, as torch.nn.functional.nll_loss.
void negative_log_likelihood(LossBuilder& b) {
  const ValueId scores = classes_last(b, b.x());
  ValueId weights = kNone;
  const ValueId labels = add_class_labels(b, scores, &weights);
  const Shape leading = b.shape(labels);
  const ValueId ignored = b.emit("Equal", {labels, b.constant(scalar_tensor(b.term().ignore_index))});
  const ValueId safe = b.emit("Where", {ignored, b.constant(scalar_tensor(int64_t{0})), labels});
  Shape column = leading;
  column.push_back(1);
  const auto axis = static_cast<int64_t>(leading.size());
  ValueId each = b.emit("Neg", {b.reshape(b.emit("GatherElements", {scores, b.reshape(safe, column)}, {{"axis", axis}}), leading)});
  if (weights != kNone) each = b.mul(each, b.emit("Gather", {weights, safe}, {{"axis", int64_t{0}}}));
  each = b.emit("Where", {ignored, b.scalar_like(each, 0), each});
  b.loss.sum = b.sum(b.reshape(each, {element_count(leading)}), {0}, b.dtype(each));
}

// --- of numbers, element by element as in torch.nn.functional ----------------------------------------------------------------------------

void squared_error(LossBuilder& b) {
  const ValueId labels = b.add_labels(b.output().dtype, b.output().shape);
  b.count(element_count(b.output().shape));
  b.loss.sum = b.emit("SquaredError", {b.raw(), labels});
}

ValueId absolute_difference(LossBuilder& b) {
  const ValueId x = b.x();
  return b.emit("Abs", {b.sub(x, b.numbers())});
}

void l1(LossBuilder& b) { b.mean_of(absolute_difference(b)); }

// d^2 / 2 for d = |x - y| < delta, else delta (d - delta / 2): with q = min(d, delta), q^2 / 2 + delta (d - q).
ValueId huber_of(LossBuilder& b, ValueId d, double delta) {
  const ValueId q = b.min(d, delta);
  return b.add(b.times(b.mul(q, q), 0.5), b.times(b.sub(d, q), delta));
}
void huber(LossBuilder& b) {
  const ValueId d = absolute_difference(b);
  b.mean_of(huber_of(b, d, b.number("delta")));
}
void smooth_l1(LossBuilder& b) {
  const double beta = b.number("beta");
  const ValueId d = absolute_difference(b);
  b.mean_of(beta == 0 ? d : b.times(huber_of(b, d, beta), 1 / beta));
}

// -(y log s(x) + (1 - y) log(1 - s(x))), s the sigmoid: log(1 + e^x) - x y.
ValueId binary_of(LossBuilder& b, ValueId x, ValueId y) { return b.sub(b.softplus(x), b.mul(x, y)); }

// `pos_weight` multiplies -y log s(x) = y log(1 + e^-x).
void binary_cross_entropy(LossBuilder& b) {
  const ValueId x = b.x(), y = b.numbers();
  if (!b.is_given("pos_weight")) return b.mean_of(binary_of(b, x, y));
  const std::vector<double> given = b.list("pos_weight");
  ValueId weight = b.scalar_like(x, given[0]);
  if (given.size() > 1) {
    if (b.output().shape.empty() || static_cast<int64_t>(given.size()) != b.output().shape.back())
      b.fail("`pos_weight` has {} numbers, which have to be as many as its last axis", given.size());
    weight = b.cast(b.constant(make_tensor<double>({static_cast<int64_t>(given.size())}, given)), b.dtype(x));
  }
  // (1 - y) x + (1 + (pos_weight - 1) y) log(1 + e^-x)
  const ValueId factor = b.plus(b.mul(y, b.plus(weight, -1)), 1);
  b.mean_of(b.add(b.mul(b.less_from(1, y), x), b.mul(factor, b.softplus(b.emit("Neg", {x})))));
}

// torchvision.ops.sigmoid_focal_loss (Lin et al., https://arxiv.org/abs/1708.02002): (1 - p_t)^gamma times binary cross-entropy, p_t what
// the model gives the label; times alpha for labels of 1, 1 - alpha for those of 0, where alpha isn't negative.
void focal(LossBuilder& b) {
  const ValueId x = b.x(), y = b.numbers(), p = b.emit("Sigmoid", {x});
  const ValueId wrong = b.add(b.mul(p, b.less_from(1, y)), b.mul(b.less_from(1, p), y));  // 1 - p_t
  ValueId each = b.mul(binary_of(b, x, y), b.emit("Pow", {wrong, b.scalar_like(wrong, b.number("gamma"))}));
  const double alpha = b.number("alpha");
  if (alpha >= 0) each = b.mul(each, b.plus(b.times(y, 2 * alpha - 1), 1 - alpha));
  b.mean_of(each);
}

// 1 - (2 sum of p y + smooth) / (sum of p + sum of y + smooth), p the sigmoid of x, of each sample and channel (MONAI's DiceLoss); of each
// sample where the output has one axis beside the samples'.
void dice(LossBuilder& b) {
  const Shape& of = b.output().shape;
  if (of.size() < 2) b.fail("dice needs (samples, channels, …)");
  const int64_t rows = of.size() == 2 ? of[0] : of[0] * of[1];
  const Shape flat{rows, rows == 0 ? 0 : element_count(of) / rows};
  const ValueId x = b.x(), y = b.reshape(b.numbers(), flat), p = b.reshape(b.emit("Sigmoid", {x}), flat);
  const double smooth = b.number("smooth");
  const ValueId both = b.plus(b.times(b.sum_rows(b.mul(p, y)), 2), smooth), all = b.plus(b.add(b.sum_rows(p), b.sum_rows(y)), smooth);
  b.mean_of(b.less_from(1, b.div(both, all)));
}

// --- of distributions ------------------------------------------------------------------------------------------------------------------

// sum of y (log y - log p) over the last axis, of each row; y log y is 0 at 0.
ValueId divergence(LossBuilder& b, ValueId y, ValueId log_y, ValueId log_p) { return b.sum_rows(b.mul(y, b.sub(log_y, log_p))); }

// torch.nn.functional.kl_div(log_softmax(x), y, reduction="batchmean") for rows.
void kullback_leibler(LossBuilder& b) {
  if (b.output().shape.empty()) b.fail("kl needs an axis of classes");
  const ValueId x = b.x(), y = b.numbers();
  b.mean_of(divergence(b, y, b.emit("Log", {b.max(y, kSmallest)}), b.log_softmax(x)));
}

// Hinton, Vinyals, Dean, https://arxiv.org/abs/1503.02531: the divergence of softmax(x / T) from softmax(teacher / T), times T^2.
void distillation(LossBuilder& b) {
  if (b.output().shape.empty()) b.fail("distillation needs an axis of classes");
  if (b.output(1).shape != b.output(0).shape)
    b.fail("the teacher's output '{}' is {}, which has to be of that shape", b.output(1).name, to_string(b.output(1).type()));
  const double temperature = b.number("temperature");
  const ValueId student = b.log_softmax(b.times(b.x(0), 1 / temperature));
  const ValueId teacher = b.log_softmax(b.cast(b.times(b.x(1), 1 / temperature), b.dtype(student)));
  b.mean_of(b.times(divergence(b, b.emit("Exp", {teacher}), teacher, student), temperature * temperature));
}

// --- of vectors, (N, D) ------------------------------------------------------------------------------------------------------------------

// torch.nn.functional.cosine_embedding_loss: 1 - cos where the label is 1, max(0, cos - margin) where it is -1.
void cosine_embedding(LossBuilder& b) {
  b.need_vectors();
  const ValueId x = b.x(0), y = b.x(1);
  constexpr double kEpsilon = 1e-12;
  const ValueId squares = b.mul(b.plus(b.sum_rows(b.mul(x, x)), kEpsilon), b.plus(b.sum_rows(b.mul(y, y)), kEpsilon));
  const ValueId cosine = b.div(b.sum_rows(b.mul(x, y)), b.emit("Sqrt", {squares}));
  const ValueId labels = b.add_labels(DType::int64, {b.output().shape[0]});
  const ValueId alike = b.emit("Equal", {labels, b.constant(scalar_tensor(int64_t{1}))});
  b.mean_of(b.emit("Where", {alike, b.less_from(1, cosine), b.max(b.plus(cosine, -b.number("margin")), 0)}));
}

// torch.nn.functional.triplet_margin_loss: max(0, |anchor - positive| - |anchor - negative| + margin).
void triplet(LossBuilder& b) {
  b.need_vectors();
  const auto distance = [&](ValueId from, ValueId to) {
    constexpr double kEpsilon = 1e-6;
    const ValueId d = b.plus(b.sub(from, to), kEpsilon);
    return b.emit("Sqrt", {b.sum_rows(b.mul(d, d))});
  };
  const ValueId anchor = b.x(0);
  b.mean_of(b.max(b.plus(b.sub(distance(anchor, b.x(1)), distance(anchor, b.x(2))), b.number("margin")), 0));
}

// InfoNCE (https://arxiv.org/abs/1807.03748): row i of the first output belongs to row i of the second, the batch's other rows don't. With
// `symmetric`, the mean of both directions, as CLIP has it.
void info_nce(LossBuilder& b) {
  b.need_vectors();
  const int64_t n = b.output().shape[0];
  const auto unit = [&](ValueId x) {  // torch.nn.functional.normalize
    const ValueId norm = b.max(b.emit("Sqrt", {b.max(b.sum_rows(b.mul(x, x)), kSmallest)}), 1e-12);
    return b.div(x, b.reshape(norm, {n, 1}));
  };
  const ValueId from = unit(b.x(0)), to = unit(b.x(1));
  std::vector<int64_t> own(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) own[static_cast<size_t>(i)] = i;
  const ValueId labels = b.constant(make_tensor<int64_t>({n}, own));
  const auto one_way = [&](ValueId x, ValueId y) {
    const ValueId cosines = b.emit("MatMul", {x, y}, {{"trans_b", int64_t{1}}});
    return b.emit_many("SoftmaxCrossEntropy", {b.times(cosines, 1 / b.number("temperature")), labels}, {}, 2)[0];
  };
  b.count(n);
  b.loss.sum = one_way(from, to);
  if (b.number("symmetric") != 0) b.loss.sum = b.times(b.add(b.loss.sum, one_way(to, from)), 0.5);
}

// --- of sequences ------------------------------------------------------------------------------------------------------------------------

// torch.nn.functional.ctc_loss of logits (N, T, V): each sample's, divided by the length of its labels.
void connectionist(LossBuilder& b) {
  const Shape of = b.output().shape;
  if (of.size() != 3) b.fail("ctc needs (samples, time steps, classes)");
  b.loss.classes = of[2];
  const auto blank = static_cast<int64_t>(b.number("blank"));
  if (blank >= of[2] || static_cast<double>(blank) != b.number("blank"))
    b.fail("class {}, the blank, is none of its {}", b.number("blank"), of[2]);
  const ValueId log_p = b.log_softmax(b.x()), labels = b.add_labels(DType::int64, {of[0], b.term().longest});
  std::vector<ValueId> inputs{log_p, labels};
  if (b.term().labels.size() > 1) inputs.push_back(b.add_labels(DType::int64, {of[0]}));
  b.mean_of(b.emit_many("CtcLoss", inputs, {{"blank", blank}, {"zero_infinity", int64_t{b.number("zero_infinity") != 0}}}, 2)[0]);
}

// --- the model's own
// -----------------------------------------------------------------------------------------------------------------------

void own(LossBuilder& b) {
  if (element_count(b.output().shape) != 1) b.fail("`loss` output needs one number");
  b.loss.counted = Counted::batches;
  b.loss.sum = b.reshape(b.raw(), {});
}

constexpr LossParameter kAxis{"axis", -1, -64, 64}, kClassWeights{"weight", 1, 0, 1e30, true};

const std::vector<LossDef>& all_losses() {
  static const auto& losses = *new std::vector<LossDef>{
      {"cross_entropy",
       {LabelKind::classes, 1, {kAxis, kClassWeights, {"label_smoothing", 0, 0, 1 - 1e-9}, {"z_loss"}}},
       Takes::softmax,
       cross_entropy},
      {"nll", {LabelKind::classes, 1, {kAxis, kClassWeights}}, Takes::nothing, negative_log_likelihood},
      {"mse", {LabelKind::numbers, 1, {}}, Takes::nothing, squared_error},
      {"l1", {LabelKind::numbers, 1, {}}, Takes::nothing, l1},
      {"smooth_l1", {LabelKind::numbers, 1, {{"beta", 1}}}, Takes::nothing, smooth_l1},
      {"huber", {LabelKind::numbers, 1, {{"delta", 1, 1e-30}}}, Takes::nothing, huber},
      {"binary_cross_entropy", {LabelKind::numbers, 1, {{"pos_weight", 1, 0, 1e30, true}}}, Takes::sigmoid, binary_cross_entropy},
      {"focal", {LabelKind::numbers, 1, {{"alpha", 0.25, -1, 1}, {"gamma", 2}}}, Takes::sigmoid, focal},
      {"dice", {LabelKind::numbers, 1, {{"smooth", 1e-5}}}, Takes::sigmoid, dice},
      {"kl", {LabelKind::numbers, 1, {}}, Takes::softmax, kullback_leibler},
      {"distillation", {LabelKind::none, 2, {{"temperature", 1, 1e-6}}}, Takes::softmax, distillation},
      {"cosine_embedding", {LabelKind::signs, 2, {{"margin", 0, -1, 1}}}, Takes::nothing, cosine_embedding},
      {"info_nce", {LabelKind::none, 2, {{"temperature", 0.07, 1e-6}, {"symmetric", 0, 0, 1}}}, Takes::nothing, info_nce},
      {"triplet", {LabelKind::none, 3, {{"margin", 1}}}, Takes::nothing, triplet},
      {"ctc", {LabelKind::sequences, 1, {{"blank", 0, 0, 1e9}, {"zero_infinity", 0, 0, 1}}}, Takes::softmax, connectionist},
      {"output", {LabelKind::none, 1, {}}, Takes::nothing, own}};
  return losses;
}

const LossDef& find_loss(std::string_view name) {
  const auto found = std::find_if(all_losses().begin(), all_losses().end(), [&](const LossDef& loss) { return loss.name == name; });
  if (found == all_losses().end())
    throw error(ErrorCode::usage, "`loss` {} is not known; these are: {}", name, fmt::join(loss_names(), ", "));
  return *found;
}

ValueId find_output(const Graph& graph, const std::string& name) {
  if (const ValueId output = graph.find_output(name); output != kNone) return output;
  std::string names;
  for (const ValueId output : graph.outputs) names += (names.empty() ? "" : ", ") + graph.output_name(output);
  throw error(ErrorCode::usage, "the model has no output '{}'; it has: {} (`output` NAME)", name, names);
}

std::vector<ValueId> read_outputs(const Graph& graph, const LossSpec& spec, const LossTerm& term, const LossDef& def) {
  if (graph.outputs.empty()) throw error(ErrorCode::unsupported, "the model has no output that a loss could read");
  std::vector<ValueId> read;
  for (const std::string& name : term.outputs) read.push_back(find_output(graph, name));
  if (read.empty() && (def.shape.outputs == 1 || def.name == "distillation")) read.push_back(graph.outputs[0]);
  if (def.name == "distillation") {
    if (spec.teacher.empty()) throw error(ErrorCode::usage, "`loss` distillation follows another model: name it with `teacher`");
    // Its output of the same name, or its first.
    const auto of_teacher = [&](ValueId id) { return graph.output_name(id).starts_with(spec.teacher); };
    const auto first = std::find_if(graph.outputs.begin(), graph.outputs.end(), of_teacher);
    require(first != graph.outputs.end(), "a teacher without outputs");
    const ValueId same = graph.find_output(spec.teacher + graph.output_name(read[0]));
    if (read.size() < 2) read.push_back(same == kNone ? *first : same);
  }
  if (read.size() != def.shape.outputs)
    throw error(ErrorCode::usage, "`loss` {} reads {} of the model's outputs: say which, as {}:{}", def.name, def.shape.outputs,
                def.shape.outputs == 2 ? "first+second" : "anchor+positive+negative", def.name);
  for (const ValueId id : read) {
    if (!is_floating(graph.value(id).dtype))
      throw error(ErrorCode::unsupported, "the output '{}' is {}; a loss needs floating-point numbers", graph.output_name(id),
                  to_string(graph.value(id).type()));
  }
  return read;
}

// Which axis of a Reshape's input an axis of its result is; none where it was joined with others, or divided.
std::optional<int64_t> axis_before(const Shape& from, const Shape& to, int64_t axis) {
  const int64_t before = element_count(to.before(static_cast<size_t>(axis)));
  for (size_t i = 0; i < from.size(); ++i) {
    if (from[i] == to[axis] && element_count(from.before(i)) == before) return static_cast<int64_t>(i);
  }
  return std::nullopt;
}

// The Softmax, LogSoftmax or Sigmoid that makes an output, seen through nodes that only move or convert its elements.
struct Probabilities {
  const Node* node = nullptr;
  std::vector<const Node*> moves{};  // from the output back
  std::optional<int64_t> axis{};     // of the node's result: the one that becomes the output's axis of classes
};
Probabilities probabilities(const Graph& graph, ValueId output, std::optional<int64_t> axis) {
  const View view(graph);
  Probabilities found{.axis = axis};
  for (const Node* node = view.made_by(output); node != nullptr; node = view.made_by(node->inputs[0])) {
    const std::string_view op = node->op->name;
    if (op == "Softmax" || op == "LogSoftmax" || op == "Sigmoid") {
      found.node = node;
      break;
    }
    if (op == "Cast") continue;
    if (op != "Reshape" && op != "Transpose") break;
    found.moves.push_back(node);
    if (!found.axis) continue;
    if (op == "Reshape")
      found.axis = axis_before(graph.value(node->inputs[0]).shape, graph.value(node->outputs[0]).shape, *found.axis);
    else
      found.axis = node->attributes.get("perm", std::vector<int64_t>{}).at(static_cast<size_t>(*found.axis));
  }
  return found;
}

// The axis of classes of an output; none where it has no such axis.
std::optional<int64_t> class_axis(const Graph& graph, const LossTerm& term, ValueId output) {
  const auto rank = static_cast<int64_t>(graph.value(output).shape.size());
  const auto given = term.parameters.find("axis");
  const int64_t axis = given == term.parameters.end() ? -1 : static_cast<int64_t>(given->second[0]);
  if (axis < -rank || axis >= rank) return std::nullopt;  // classes_last() refuses it
  return axis < 0 ? axis + rank : axis;
}

// The Softmax or LogSoftmax over the classes, or the Sigmoid, that makes an output and that the loss makes itself; its node is null where
// there is none.
Probabilities made_by_loss(const Graph& graph, const LossTerm& term, const LossDef& def, ValueId output) {
  const Probabilities made = probabilities(graph, output, class_axis(graph, term, output));
  if (made.node == nullptr) return made;
  const bool is_sigmoid = made.node->op->name == "Sigmoid";
  if (is_sigmoid ? def.takes == Takes::sigmoid : def.takes == Takes::softmax) {
    const auto rank = static_cast<int64_t>(graph.value(made.node->outputs[0]).shape.size());
    if (is_sigmoid || made.axis == normalize_axis(made.node->attributes.get("axis", -1), rank, "axis")) return made;
  }
  return {};
}

// What goes into it, moved as its result is; the output itself where there is none.
ValueId logits_of(Graph& graph, const LossTerm& term, const LossDef& def, ValueId output) {
  const Probabilities made = made_by_loss(graph, term, def, output);
  if (made.node == nullptr) return output;
  ValueId logits = made.node->inputs[0];
  std::vector<Node> moves;  // copies: the graph grows
  for (auto move = made.moves.rbegin(); move != made.moves.rend(); ++move) moves.push_back(**move);
  Builder builder(graph);
  for (const Node& move : moves) logits = builder.named(move.name, move.ordinal).emit(move.op->name, {logits}, move.attributes);
  return logits;
}

}  // namespace

const std::vector<std::string>& loss_names() {
  static const auto& names = *new std::vector<std::string>([] {
    std::vector<std::string> all;
    for (const LossDef& loss : all_losses()) all.emplace_back(loss.name);
    return all;
  }());
  return names;
}

const LossShape& loss_named(std::string_view name) { return find_loss(name).shape; }

std::vector<std::string> loss_notes(const Graph& forward, const LossSpec& spec) {
  std::vector<std::string> notes;
  for (const LossTerm& term : spec.terms) {
    const LossDef& def = find_loss(term.kind);
    for (const ValueId read : read_outputs(forward, spec, term, def)) {
      const std::string& name = forward.output_name(read);
      const Node* const made = probabilities(forward, read, std::nullopt).node;
      const bool is_sigmoid = made != nullptr && made->op->name == "Sigmoid";
      if (made_by_loss(forward, term, def, read).node != nullptr)
        notes.push_back(
            fmt::format("the output '{}' is a {}: the loss is taken of what goes into it", name, is_sigmoid ? "Sigmoid" : "Softmax"));
      else if (term.kind == "cross_entropy" && is_sigmoid)
        notes.push_back(fmt::format(
            "the output '{}' is a Sigmoid, and cross_entropy takes the softmax of its numbers: is `loss` binary_cross_entropy meant?",
            name));
    }
  }
  return notes;
}

std::vector<JobLoss> build_losses(Graph& graph, const LossSpec& spec) {
  std::vector<JobLoss> losses;
  for (const LossTerm& term : spec.terms) {
    const LossDef& def = find_loss(term.kind);
    const std::vector<ValueId> outputs = read_outputs(graph, spec, term, def);
    std::vector<ValueId> read;
    for (const ValueId output : outputs) read.push_back(logits_of(graph, term, def, output));
    LossBuilder builder(graph, term, def, spec.samples, outputs, read);
    def.build(builder);
    builder.loss.sum = builder.cast(builder.loss.sum, DType::float32);  // as it is read, whatever the model computes in
    losses.push_back(std::move(builder.loss));
  }
  return losses;
}

}  // namespace ort_train
