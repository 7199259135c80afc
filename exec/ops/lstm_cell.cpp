// LstmCell(x, h, c) -> (y, c', gates): a step of an LSTM with ONNX's usual activations, behind its two products.
//
//   x, h (batch, 4 * hidden): W x + bias and R h of the gates, in the order i, o, f, c;   c (batch, hidden): the cell's state
//   i = sigmoid(x_i + h_i), o and f likewise, g = tanh(x_c + h_c)
//   c' = f * c + i * g,   y = o * tanh(c')                                  (batch, hidden) each
//   gates (batch, 4 * hidden): i, o, f, g, which the gradient reads
//
// Where x, h, y and the gates are of 16 bits, c and c' may be float32: a sum over all steps.
//
// LstmCellGrad(dy, dc', gates, c, c') -> (dx, dc); dh is dx. exec/ops/recurrent.cpp makes cells with other activations of primitives.

#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int kGates = 4;

// Throws Error(unsupported) unless these are (batch, kGates * hidden) and (batch, hidden), of one type or the state of float32.
void check_cell(const TensorType& gates, const TensorType& state) {
  const bool mixes = is_half(gates.dtype) && state.dtype == DType::float32;
  const bool fits = (gates.dtype == state.dtype || mixes) && gates.shape.size() == 2 && state.shape.size() == 2 &&
                    gates.shape[0] == state.shape[0] && gates.shape[1] == kGates * state.shape[1];
  if (!fits) throw error(ErrorCode::unsupported, "gates of {} don't fit a state of {}", to_string(gates), to_string(state));
}

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType &x = context.input(0), &c = context.input(2);
  check_cell(x, c);
  if (context.input(1) != x) throw error(ErrorCode::unsupported, "gates are {} and {}", to_string(x), to_string(context.input(1)));
  return {{x.dtype, c.shape}, c, x};
}
std::vector<TensorType> infer_gradient(const InferContext& context) {
  const TensorType &gates = context.input(2), &c = context.input(3);
  check_cell(gates, c);
  if (context.input(0) != TensorType{gates.dtype, c.shape} || context.input(1) != c || context.input(4) != c)
    throw error(ErrorCode::unsupported, "gradients of {} and {} don't fit a state of {}", to_string(context.input(0)),
                to_string(context.input(1)), to_string(c));
  return {gates, c};
}

void gradient(const Node& node, GradientBuilder& g) {
  const std::vector<ValueId> made =
      g.emit_many("LstmCellGrad", {g.output_gradient(0), g.output_gradient(1), node.outputs[2], node.inputs[2], node.outputs[1]}, {}, 2);
  for (const size_t i : {0, 1}) {
    if (g.wants(i)) g.input_gradient(i, made[0]);
  }
  if (g.wants(2)) g.input_gradient(2, made[1]);
}

AxisPath along(const Graph&, const Node&, size_t, size_t axis) {
  if (axis != 0) return {};
  return {.use = AxisPath::kept, .axis = 0};
}

// Of a row: elements of its states (S: of c), and of the gates, which are `hidden` apart.
template <typename T, typename S> struct Cell {
  int64_t hidden;
  const T *x, *h;
  const S* c;
  T* y;
  S* c_after;
  T* gates;

  HOST_DEVICE Cell row(int64_t i) const {
    const int64_t gate = i * kGates * hidden, state = i * hidden;
    return {hidden, x + gate, h + gate, c + state, y + state, c_after + state, gates + gate};
  }
  HOST_DEVICE void element(int64_t j) const {
    using C = Compute<T>;
    const auto sum = [&](int64_t gate) { return load(x[gate * hidden + j]) + load(h[gate * hidden + j]); };
    const C in = math::sigmoid(sum(0)), out = math::sigmoid(sum(1)), forget = math::sigmoid(sum(2)), candidate = math::tanh(sum(3));
    const C state = forget * load(c[j]) + in * candidate;
    gates[j] = store<T>(in);
    gates[hidden + j] = store<T>(out);
    gates[2 * hidden + j] = store<T>(forget);
    gates[3 * hidden + j] = store<T>(candidate);
    c_after[j] = store<S>(state);
    y[j] = store<T>(out * math::tanh(state));
  }
};
template <typename T, typename S> struct CellGradient {
  int64_t hidden;
  const T* dy;
  const S* dc_after;
  const T* gates;
  const S *c, *c_after;
  T* dx;
  S* dc;

  HOST_DEVICE CellGradient row(int64_t i) const {
    const int64_t gate = i * kGates * hidden, state = i * hidden;
    return {hidden, dy + state, dc_after + state, gates + gate, c + state, c_after + state, dx + gate, dc + state};
  }
  HOST_DEVICE void element(int64_t j) const {
    using C = Compute<T>;
    const C in = load(gates[j]), out = load(gates[hidden + j]), forget = load(gates[2 * hidden + j]),
            candidate = load(gates[3 * hidden + j]);
    const C of_y = load(dy[j]), before = load(c[j]), active = math::tanh(load(c_after[j]));
    const C state = load(dc_after[j]) + of_y * out * (C(1) - active * active);
    dx[j] = store<T>(state * candidate * (in * (C(1) - in)));
    dx[hidden + j] = store<T>(of_y * active * (out * (C(1) - out)));
    dx[2 * hidden + j] = store<T>(state * before * (forget * (C(1) - forget)));
    dx[3 * hidden + j] = store<T>(state * in * (C(1) - candidate * candidate));
    dc[j] = store<S>(state * forget);
  }
};

template <typename Rows> struct EachElement {
  Rows all;
  HOST_DEVICE void operator()(int64_t i) const { all.row(i / all.hidden).element(i % all.hidden); }
};

template <typename Rows> void run_rows(const Rows& all, int64_t batch, const KernelArgs& args) {
#ifdef ORT_TRAIN_BLOCKS
  launch_elements(EachElement<Rows>{all}, batch * all.hidden, args);
#else
  constexpr int64_t kElements = 1024;  // of a task
  const int64_t hidden = all.hidden, each = hidden == 0 ? 1 : std::max<int64_t>(1, kElements / hidden);
  args.workers().parallel_blocks(batch, each, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Rows row = all.row(i);
#pragma GCC ivdep
      for (int64_t j = 0; j < hidden; ++j) row.element(j);
    }
  });
#endif
}

// Calls body.operator()<T, S>() for the types of the gates and of c.
template <typename Body> KernelRun for_cell(DType gates, DType c, Body&& body) {
  return for_type(Floats{}, gates, [&]<typename T>() -> KernelRun {
    if constexpr (sizeof(T) > 2)
      return body.template operator()<T, T>();
    else
      return for_type(Types<T, float>{}, c, [&]<typename S>() { return body.template operator()<T, S>(); });
  });
}

KernelRun prepare(const KernelSpec& spec) {
  return for_cell(spec.inputs[0].dtype, spec.inputs[2].dtype, [&]<typename T, typename S>() -> KernelRun {
    return [batch = spec.inputs[2].shape[0], hidden = spec.inputs[2].shape[1]](const KernelArgs& args) {
      run_rows(Cell<T, S>{hidden, args.in<T>(0), args.in<T>(1), args.in<S>(2), args.out<T>(0), args.out<S>(1), args.out<T>(2)}, batch,
               args);
    };
  });
}
KernelRun prepare_gradient(const KernelSpec& spec) {
  return for_cell(spec.inputs[2].dtype, spec.inputs[3].dtype, [&]<typename T, typename S>() -> KernelRun {
    return [batch = spec.inputs[0].shape[0], hidden = spec.inputs[0].shape[1]](const KernelArgs& args) {
      run_rows(CellGradient<T, S>{hidden, args.in<T>(0), args.in<S>(1), args.in<T>(2), args.in<S>(3), args.in<S>(4), args.out<T>(0),
                                  args.out<S>(1)},
               batch, args);
    };
  });
}

}  // namespace

constexpr OpDef kLstmCell{
    .name = "LstmCell",
    .infer = infer,
    .gradient = gradient,
    .traits = {.precision = {.keeps_float32 = 0b100}, .along = along},
};
constexpr Kernel kLstmCellKernel{
    .types = kFloating,
    .in_place = {{.output = 2, .input = 0}, {.output = 2, .input = 1}, {.output = 1, .input = 2}},
    .cost = elementwise_cost<110>,
    .prepare = prepare,
};

constexpr OpDef kLstmCellGrad{
    .name = "LstmCellGrad",
    .infer = infer_gradient,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kLstmCellGradKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 2}, {.output = 1, .input = 1}, {.output = 1, .input = 3}, {.output = 1, .input = 0}},
    .cost = elementwise_cost<40 / kGates>,
    .prepare = prepare_gradient,
};

ORT_TRAIN_OPS_END
