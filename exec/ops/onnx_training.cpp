// The standard's optimizers as nodes of a model: ai.onnx.preview.training, Adagrad-1, Adam-1 and Momentum-1. A node gives its updates as
// values, and changes no state, so it lowers to arithmetic (our own optimizers, which write in place, are beside this file).
//
//   inputs   R (the learning rate), T (how many updates there were), then of n tensors: X..., G..., and each state...
//   outputs  X_new..., each state's new values...
//
//   Adagrad   r = R / (1 + T decay_factor); g = norm_coefficient X + G; H += g^2; X -= r g / (sqrt(H) + epsilon)
//   Adam      g as above; V = alpha V + (1 - alpha) g; H = beta H + (1 - beta) g^2; r = R sqrt(1 - beta^T) / (1 - alpha^T), or R where T =
//   0;
//             X = (1 - norm_coefficient_post) (X - r V / (sqrt(H) + epsilon))
//   Momentum  g as above; V = alpha V + b g, b = beta, or 1 where T = 0; X -= R V, or in the mode nesterov X -= R (g + alpha V)

#include "exec/ops/onnx_training.h"

#include "graph/builder.h"
#include "graph/error.h"

ORT_TRAIN_OPS_BEGIN
namespace {

class OnnxUpdate {
 public:
  OnnxUpdate(Lowering& l, size_t states) : l_(l), tensors_((l.node.inputs.size() - 2) / (2 + states)) {
    if (l.node.inputs.size() < 4 + states || (l.node.inputs.size() - 2) % (2 + states) != 0)
      l.fail(fmt::format("has {} inputs: a rate, a count, and {} for each tensor", l.node.inputs.size(), 2 + states));
  }

  size_t tensors() const { return tensors_; }
  // Input `kind` (0: X, 1: G, then the states) of the i-th tensor.
  ValueId of(size_t kind, size_t i) const { return l_.input(2 + kind * tensors_ + i); }
  // X_new is kind 0, then the states.
  void give(size_t kind, size_t i, ValueId value) {
    const size_t at = kind * tensors_ + i;
    if (at < l_.node.outputs) l_.output(at, value);
  }

  float number(const char* name, float otherwise) const { return l_.node.attributes.get(name, otherwise); }
  ValueId add(ValueId a, ValueId b) { return l_.emit("Add", {a, b}); }
  ValueId subtract(ValueId a, ValueId b) { return l_.emit("Sub", {a, b}); }
  ValueId multiply(ValueId a, ValueId b) { return l_.emit("Mul", {a, b}); }
  ValueId divide(ValueId a, ValueId b) { return l_.emit("Div", {a, b}); }
  ValueId scaled(ValueId a, double factor) { return multiply(a, l_.scalar_like(a, factor)); }
  ValueId plus(ValueId a, double number) { return l_.emit("Add", {a, l_.scalar_like(a, number)}); }
  ValueId root(ValueId a) { return l_.emit("Sqrt", {a}); }

  // The rate, and the count as a number, in the type of the i-th tensor.
  ValueId rate(size_t i) { return scalar(0, i); }
  ValueId count(size_t i) { return scalar(1, i); }
  // Where the count is zero `otherwise`, else `value`.
  ValueId from_second(size_t i, ValueId value, ValueId otherwise) {
    const ValueId t = count(i);
    return l_.emit("Where", {l_.emit("Greater", {t, l_.scalar_like(t, 0)}), value, otherwise});
  }
  // 1 - base^T
  ValueId bias(size_t i, double base) {
    const ValueId t = count(i), power = l_.emit("Pow", {l_.scalar_like(t, base), t});
    return subtract(l_.scalar_like(t, 1), power);
  }
  ValueId regularized(size_t i) { return add(scaled(of(0, i), number("norm_coefficient", 0)), of(1, i)); }

 private:
  ValueId scalar(size_t input, size_t i) {
    const ValueId value = l_.input(input);
    if (element_count(l_.shape(value)) != 1)
      l_.fail(fmt::format("input {} is {}, not one number", input, to_string(l_.value(value).type())));
    return l_.cast(l_.reshape(value, {}), l_.dtype(of(0, i)));
  }

  Lowering& l_;
  size_t tensors_;
};

}  // namespace

void lower_onnx_adagrad(Lowering& l) {
  OnnxUpdate u(l, 1);
  for (size_t i = 0; i < u.tensors(); ++i) {
    const ValueId rate = u.divide(u.rate(i), u.plus(u.scaled(u.count(i), u.number("decay_factor", 0)), 1));
    const ValueId g = u.regularized(i), h = u.add(u.of(2, i), u.multiply(g, g));
    u.give(0, i, u.subtract(u.of(0, i), u.divide(u.multiply(rate, g), u.plus(u.root(h), u.number("epsilon", 0)))));
    u.give(1, i, h);
  }
}

void lower_onnx_adam(Lowering& l) {
  OnnxUpdate u(l, 2);
  const double alpha = u.number("alpha", 0.9f), beta = u.number("beta", 0.999f);
  for (size_t i = 0; i < u.tensors(); ++i) {
    const ValueId g = u.regularized(i);
    const ValueId v = u.add(u.scaled(u.of(2, i), alpha), u.scaled(g, 1 - alpha));
    const ValueId h = u.add(u.scaled(u.of(3, i), beta), u.scaled(u.multiply(g, g), 1 - beta));
    const ValueId corrected = u.divide(u.multiply(u.rate(i), u.root(u.bias(i, beta))), u.bias(i, alpha));
    const ValueId rate = u.from_second(i, corrected, u.rate(i));
    const ValueId x = u.subtract(u.of(0, i), u.divide(u.multiply(rate, v), u.plus(u.root(h), u.number("epsilon", 0))));
    u.give(0, i, u.scaled(x, 1 - double{u.number("norm_coefficient_post", 0)}));
    u.give(1, i, v);
    u.give(2, i, h);
  }
}

void lower_onnx_momentum(Lowering& l) {
  OnnxUpdate u(l, 1);
  const std::string mode = l.node.attributes.get("mode", "");
  if (mode != "standard" && mode != "nesterov") l.fail(fmt::format("the mode '{}' is unknown", mode));
  const double alpha = u.number("alpha", 0), beta = u.number("beta", 0);
  for (size_t i = 0; i < u.tensors(); ++i) {
    const ValueId g = u.regularized(i), t = u.count(i);
    const ValueId gain = u.from_second(i, l.scalar_like(t, beta), l.scalar_like(t, 1));
    const ValueId v = u.add(u.scaled(u.of(2, i), alpha), u.multiply(gain, g));
    const ValueId step = mode == "nesterov" ? u.add(g, u.scaled(v, alpha)) : v;
    u.give(0, i, u.subtract(u.of(0, i), u.multiply(u.rate(i), step)));
    u.give(1, i, v);
  }
}

ORT_TRAIN_OPS_END
