// CtcLoss{blank, zero_infinity}(log_p (N, T, V), labels int64 (N, S), lengths? int64 (N)) -> losses (N), paths (N, T, V)
//
// Connectionist temporal classification (Graves et al., ICML 2006): minus the logarithm of the probability that a path of T classes, of
// which repetitions and then blanks are removed, spells a sample's labels; divided by the number of labels, as the mean of
// torch.nn.functional.ctc_loss is. log_p are logarithms of probabilities; a negative label ends a sample's labels; `lengths` are the time
// steps of each sample that count, all where it is absent.
//
// paths is the probability of each class at each time step among the paths that spell the labels, divided by the number of labels: minus
// the gradient. Both recursions run in double, in logarithms, over the labels with blanks between and around them; a sample is one task.

#include "exec/ops/ctc.h"

#include <algorithm>

#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

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

// All forward variables, alpha[t][s]. Returns the logarithm of the labels' probability.
template <typename T> double fill_forward(const CtcSample<T>& sample, double* alpha) {
  const int64_t n = sample.states();
  for (int64_t t = 0; t < sample.steps; ++t) {
    for (int64_t s = 0; s < n; ++s) alpha[t * n + s] = sample.forward(t == 0 ? nullptr : alpha + (t - 1) * n, t, s);
  }
  return sample.total(alpha + (sample.steps - 1) * n);
}

// Adds P(class at t | labels), divided by the number of labels, to paths (T, V). `beta`: two rows.
template <typename T> void occupy(const CtcSample<T>& sample, const double* alpha, double* beta, double total, T* paths) {
  const int64_t n = sample.states();
  const double scale = sample.scale();
  double *now = beta, *next = beta + n;
  for (int64_t t = sample.steps - 1; t >= 0; --t) {
    for (int64_t s = 0; s < n; ++s) {
      now[s] = sample.backward(next, t, s);
      T& of_class = paths[t * sample.classes + sample.symbol(s)];
      of_class = sample.with_path(of_class, alpha[t * n + s] + now[s] - total, scale);
    }
    std::swap(now, next);
  }
}

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
      const double total = fill_forward(sample, alpha);
      if (total == kImpossible && zero_infinity) return;
      *loss = static_cast<T>(-total * sample.scale());
      if (paths != nullptr && total > kImpossible) occupy(sample, alpha, alpha + shape.steps * shape.states(), total, paths);
    });
  };
}

KernelRun prepare_ctc(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return ctc_of<T>(spec); });
}

Workspace ctc_workspace(const KernelSpec& spec) { return {.each = CtcShape(spec).doubles() * int64_t{sizeof(double)}}; }

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
