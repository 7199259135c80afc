// CtcLoss{blank, zero_infinity}(log_p (N, T, V), labels int64 (N, S), lengths? int64 (N)) -> losses (N), paths (N, T, V)
//
// Connectionist temporal classification (Graves et al., ICML 2006): minus the logarithm of the probability that a path of T classes, of
// which repetitions and then blanks are removed, spells a sample's labels; divided by the number of labels, as the mean of
// torch.nn.functional.ctc_loss is. log_p are logarithms of probabilities; a negative label ends a sample's labels; `lengths` are the time
// steps of each sample that count, all where it is absent.
//
// paths is the probability of each class at each time step among the paths that spell the labels, divided by the number of labels: minus
// the gradient. Both recursions run in double, in logarithms, over the labels with blanks between and around them; a sample is one task.

#include <algorithm>
#include <cmath>
#include <limits>

#include "exec/element_types.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr double kImpossible = -std::numeric_limits<double>::infinity();

double log_add(double a, double b) {
  const double larger = std::max(a, b);
  return larger == kImpossible ? kImpossible : larger + std::log1p(std::exp(std::min(a, b) - larger));
}

std::vector<TensorType> infer_ctc(const InferContext& context) {
  const TensorType &log_p = context.input(0), &labels = context.input(1);
  if (!is_floating(log_p.dtype) || log_p.shape.size() != 3)
    throw error(ErrorCode::unsupported, "probabilities are {}, not (samples, time steps, classes)", to_string(log_p));
  const int64_t n = log_p.shape[0];
  if (labels.dtype != DType::int64 || labels.shape.size() != 2 || labels.shape[0] != n)
    throw error(ErrorCode::unsupported, "labels are {}, not int64 ({}, labels)", to_string(labels), n);
  if (context.has(2) && context.input(2) != TensorType{DType::int64, {n}})
    throw error(ErrorCode::unsupported, "lengths are {}, not int64 ({})", to_string(context.input(2)), n);
  return {{log_p.dtype, {n}}, log_p};
}

struct CtcShape {
  int64_t samples, steps, classes, labels;
  explicit CtcShape(const KernelSpec& spec)
      : samples(spec.inputs[0].shape[0]),
        steps(spec.inputs[0].shape[1]),
        classes(spec.inputs[0].shape[2]),
        labels(spec.inputs[1].shape[1]) {}
  int64_t states() const { return 2 * labels + 1; }
  // For all of a sample's forward variables and two time steps of the backward ones.
  int64_t doubles() const { return (steps + 2) * states(); }
};

// One sample: state s stands for label (s - 1) / 2 where s is odd, else for a blank.
template <typename T> struct CtcSample {
  const T* log_p;  // (T, V)
  const int64_t* labels;
  int64_t count, steps, classes, blank;

  int64_t states() const { return 2 * count + 1; }
  int64_t symbol(int64_t s) const { return s % 2 == 0 ? blank : labels[s / 2]; }
  bool may_skip(int64_t s) const { return s % 2 == 1 && s >= 3 && labels[s / 2] != labels[s / 2 - 1]; }  // from s - 2
  double at(int64_t t, int64_t s) const { return static_cast<double>(log_p[t * classes + symbol(s)]); }

  // alpha[t][s]: of the paths that are in s at t, up to and with t. Returns the logarithm of the labels' probability.
  double forward(double* alpha) const {
    const int64_t n = states();
    std::fill(alpha, alpha + n, kImpossible);
    alpha[0] = at(0, 0);
    if (n > 1) alpha[1] = at(0, 1);
    for (int64_t t = 1; t < steps; ++t) {
      const double* before = alpha + (t - 1) * n;
      double* now = alpha + t * n;
      for (int64_t s = 0; s < n; ++s) {
        double sum = before[s];
        if (s >= 1) sum = log_add(sum, before[s - 1]);
        if (may_skip(s)) sum = log_add(sum, before[s - 2]);
        now[s] = sum == kImpossible ? sum : sum + at(t, s);
      }
    }
    const double* last = alpha + (steps - 1) * n;
    return n > 1 ? log_add(last[n - 1], last[n - 2]) : last[0];
  }

  // Adds scale * P(class at t | labels) to paths (T, V). `beta`: two rows.
  void occupy(const double* alpha, double* beta, double total, double scale, T* paths) const {
    const int64_t n = states();
    double *now = beta, *next = beta + n;  // of the paths that are in s at t, behind t
    for (int64_t t = steps - 1; t >= 0; --t) {
      for (int64_t s = 0; s < n; ++s) {
        double sum = kImpossible;
        if (t == steps - 1) {
          sum = s >= n - 2 ? 0 : kImpossible;
        } else {
          const auto into = [&](int64_t to) { return next[to] == kImpossible ? kImpossible : next[to] + at(t + 1, to); };
          sum = into(s);
          if (s + 1 < n) sum = log_add(sum, into(s + 1));
          if (s + 2 < n && may_skip(s + 2)) sum = log_add(sum, into(s + 2));
        }
        now[s] = sum;
        const double path = alpha[t * n + s] + sum - total;
        if (path > kImpossible)
          paths[t * classes + symbol(s)] = static_cast<T>(static_cast<double>(paths[t * classes + symbol(s)]) + std::exp(path) * scale);
      }
      std::swap(now, next);
    }
  }
};

template <typename T> KernelRun ctc_of(const KernelSpec& spec) {
  return [shape = CtcShape(spec), blank = spec.attributes.get("blank", int64_t{0}), has_lengths = spec.has(2),
          zero_infinity = spec.attributes.get("zero_infinity", int64_t{0}) != 0](const KernelArgs& args) {
    args.workers().parallel_for(shape.samples, [&](int64_t i, int worker) {
      T* const loss = args.out<T>(0) + i;
      T* const paths = args.out<T>(1) == nullptr ? nullptr : args.out<T>(1) + i * shape.steps * shape.classes;
      *loss = 0;
      if (paths != nullptr) std::fill(paths, paths + shape.steps * shape.classes, T(0));
      CtcSample<T> sample{
          args.in<T>(0) + i * shape.steps * shape.classes, args.in<int64_t>(1) + i * shape.labels, 0, shape.steps, shape.classes, blank};
      for (; sample.count < shape.labels && sample.labels[sample.count] >= 0; ++sample.count) {
        const int64_t label = sample.labels[sample.count];
        if (label >= shape.classes || label == blank) return args.error->report(DataError::label, label, shape.classes, i);
      }
      if (has_lengths) sample.steps = args.in<int64_t>(2)[i];
      if (sample.steps < 1 || sample.steps > shape.steps) return args.error->report(DataError::index, sample.steps, shape.steps + 1, i);
      auto* const alpha = reinterpret_cast<double*>(args.workspace) + worker * shape.doubles();
      const double total = sample.forward(alpha), scale = 1 / static_cast<double>(std::max<int64_t>(sample.count, 1));
      if (total == kImpossible && zero_infinity) return;
      *loss = static_cast<T>(-total * scale);
      if (paths != nullptr && total > kImpossible) sample.occupy(alpha, alpha + shape.steps * shape.states(), total, scale, paths);
    });
  };
}

KernelRun prepare_ctc(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return ctc_of<T>(spec); });
}

Workspace ctc_workspace(const KernelSpec& spec) { return {.each = CtcShape(spec).doubles() * int64_t{sizeof(double)}}; }

Cost ctc_cost(const KernelSpec& spec) {
  const CtcShape shape(spec);
  const auto states = static_cast<double>(shape.samples * shape.steps * shape.states());
  const auto elements = static_cast<double>(element_count(spec.inputs[0].shape));
  return {.flops = 80 * states + elements, .bytes = 8 * elements};
}

void ctc_gradient(const Node& node, GradientBuilder& g) {
  const ValueId d = g.reshape(g.output_gradient(0), {g.shape(node.outputs[0])[0], 1, 1});
  g.input_gradient(0, g.emit("Mul", {node.outputs[1], g.emit("Neg", {d})}));
}

}  // namespace

constexpr OpDef kCtcLoss{
    .name = "CtcLoss",
    .infer = infer_ctc,
    .gradient = ctc_gradient,
    .traits = {.precision = kInFloat32},
};
constexpr Kernel kCtcLossKernel{
    .types = kWide,
    .cost = ctc_cost,
    .workspace = ctc_workspace,
    .prepare = prepare_ctc,
};

ORT_TRAIN_OPS_END
