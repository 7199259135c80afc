// LSTM, GRU and RNN (ONNX 7 to 22): forward, reverse and bidirectional.
//
//   x (T, B, I), w (D, G H, I), r (D, G H, H), b (D, 2 G H) -> y (T, D, B, H), last h (D, B, H), last c (D, B, H)
//
// D directions, G gates (LSTM i o f c, GRU z r h, RNN one). With layout 1 the batch comes first everywhere. Of all steps x W' is one
// MatMul; then each step is a MatMul with R and elementwise ops, unrolled (of an LSTM with the usual activations, LstmCell: lstm_cell.cpp):
//
//   LSTM   i = f(i + Pi c)   f = f(f + Pf c)   c = f c + i g(c)   o = f(o + Po c)   h = o h(c)
//   GRU    z = f(z)   r = f(r)   h' = g(x_h + (r h) R_h' + b)   or, linear_before_reset, g(x_h + r (h R_h' + b))   h = (1 - z) h' + z h
//   RNN    h = f(x + h R' + b)
//
// Where sequence_lens are given, a step behind a sample's end leaves its state as it is, and its y is zero: so the reverse direction begins
// with the last step that a sample has.

#include "exec/ops/recurrent.h"

#include <string>
#include <utility>
#include <vector>

#include "exec/ops/onnx_type.h"
#include "graph/builder.h"
#include "graph/error.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kMostSteps = 2048;  // the graph has a chain of nodes for each

enum class Cell { lstm, gru, rnn };

int64_t gates_of(Cell cell) { return cell == Cell::lstm ? 4 : cell == Cell::gru ? 3 : 1; }

// An activation function with its numbers.
struct Activation {
  std::string name;
  float alpha = 0, beta = 0;
};

class Recurrence {
 public:
  Recurrence(Lowering& l, Cell cell) : l_(l), cell_(cell), batch_first_(l.node.attributes.get("layout", 0) != 0) {
    x_ = batch_first_ ? swapped(l.input(0)) : l.input(0);
    const Shape x = l.shape(x_), w = l.shape(l.input(1)), r = l.shape(l.input(2));
    if (x.size() != 3 || w.size() != 3 || r.size() != 3)
      l.fail(fmt::format("x {}, w {} and r {} must have three axes each", to_string(x), to_string(w), to_string(r)));
    steps_ = x[0], batch_ = x[1], hidden_ = r[2];
    const std::string direction = l.node.attributes.get("direction", "forward");
    if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
      l.fail(fmt::format("the direction '{}' is unknown", direction));
    reverse_ = direction == "reverse";
    directions_ = direction == "bidirectional" ? 2 : 1;
    const int64_t rows = checked_product({gates_of(cell), hidden_});
    check(1, {directions_, rows, x[2]}, "w");
    check(2, {directions_, rows, hidden_}, "r");
    check(3, {directions_, 2 * rows}, "b");
    check(4, {batch_}, "sequence_lens");
    const Shape state = batch_first_ ? Shape{batch_, directions_, hidden_} : Shape{directions_, batch_, hidden_};
    check(5, state, "initial_h");
    if (cell == Cell::lstm) check(6, state, "initial_c");
    if (cell == Cell::lstm) check(7, {directions_, 3 * hidden_}, "p");
    if (l.node.attributes.get("hidden_size", hidden_) != hidden_) l.fail("its hidden_size is not that of its weights");
    if (steps_ < 1 || steps_ > kMostSteps || batch_ < 1 || hidden_ < 1)
      l.fail(fmt::format("it goes on for {} steps; 1 to {} are supported: bind a shorter sequence", steps_, kMostSteps));
    read_activations();
  }

  void run() {
    std::vector<ValueId> y, h, c;  // by direction
    for (int64_t d = 0; d < directions_; ++d) {
      run_direction(d);
      y.push_back(l_.reshape(joined(by_step_, 0), {steps_, 1, batch_, hidden_}));
      h.push_back(l_.reshape(h_, {1, batch_, hidden_}));
      if (cell_ == Cell::lstm) c.push_back(l_.reshape(c_, {1, batch_, hidden_}));
    }
    put(0, [&] {
      const ValueId all = joined(y, 1);  // (T, D, B, H)
      return batch_first_ ? l_.transpose(all, {2, 0, 1, 3}) : all;
    });
    put(1, [&] { return state_of(h); });
    if (cell_ == Cell::lstm) put(2, [&] { return state_of(c); });
  }

 private:
  void check(size_t i, const Shape& wanted, std::string_view what) {
    if (l_.has(i) && l_.shape(l_.input(i)) != wanted)
      l_.fail(fmt::format("{} is {} instead of {}", what, to_string(l_.shape(l_.input(i))), to_string(wanted)));
  }

  void read_activations() {
    const Attributes& given = l_.node.attributes;
    const std::vector<std::string> usual = cell_ == Cell::lstm  ? std::vector<std::string>{"Sigmoid", "Tanh", "Tanh"}
                                           : cell_ == Cell::gru ? std::vector<std::string>{"Sigmoid", "Tanh"}
                                                                : std::vector<std::string>{"Tanh"};
    std::vector<std::string> names = name_list(given, "activations");
    for (int64_t d = 0; names.size() < usual.size() * static_cast<size_t>(directions_) && d < directions_; ++d)
      names.insert(names.end(), usual.begin(), usual.end());
    if (names.size() != usual.size() * static_cast<size_t>(directions_))
      l_.fail(fmt::format("it names {} activations instead of {} for each direction", names.size(), usual.size()));
    const std::vector<float> alpha = float_list(given, "activation_alpha"), beta = float_list(given, "activation_beta");
    size_t next_alpha = 0, next_beta = 0;  // those that need one take the next
    const auto next = [](const std::vector<float>& numbers, size_t& at, float otherwise) {
      return at < numbers.size() ? numbers[at++] : otherwise;
    };
    for (const std::string& name : names) {
      Activation a{.name = name};
      if (name == "LeakyRelu") a.alpha = next(alpha, next_alpha, 0.01f);
      if (name == "Elu" || name == "Affine" || name == "ScaledTanh") a.alpha = next(alpha, next_alpha, 1.0f);
      if (name == "HardSigmoid") a.alpha = next(alpha, next_alpha, 0.2f), a.beta = next(beta, next_beta, 0.5f);
      if (name == "Affine") a.beta = next(beta, next_beta, 0.0f);
      if (name == "ScaledTanh") a.beta = next(beta, next_beta, 1.0f);
      activations_.push_back(a);
    }
  }

  const Activation& activation(size_t which) const {  // of the direction at hand
    return activations_[static_cast<size_t>(direction_) * activations_.size() / static_cast<size_t>(directions_) + which];
  }
  ValueId activate(size_t which, ValueId x) {
    const Activation& a = activation(which);
    if (const float clip = l_.node.attributes.get("clip", 0.0f); clip > 0) x = l_.emit("Clip", {x}, {{"min", -clip}, {"max", clip}});
    if (a.name == "Sigmoid" || a.name == "Tanh" || a.name == "Relu" || a.name == "Softplus") return l_.emit(a.name, {x});
    if (a.name == "LeakyRelu" || a.name == "Elu") return l_.emit(a.name, {x}, {{"alpha", a.alpha}});
    if (a.name == "HardSigmoid") return l_.emit(a.name, {x}, {{"alpha", a.alpha}, {"beta", a.beta}});
    if (a.name == "Affine") return add(times(x, l_.scalar_like(x, a.alpha)), l_.scalar_like(x, a.beta));
    if (a.name == "ScaledTanh") return times(l_.emit("Tanh", {times(x, l_.scalar_like(x, a.beta))}), l_.scalar_like(x, a.alpha));
    l_.fail(fmt::format("the activation '{}' is not supported", a.name));
  }

  ValueId add(ValueId a, ValueId b) { return a == kNone ? b : b == kNone ? a : l_.emit("Add", {a, b}); }
  ValueId times(ValueId a, ValueId b) { return l_.emit("Mul", {a, b}); }
  ValueId swapped(ValueId value) { return l_.transpose(value, {1, 0, 2}); }
  ValueId joined(const std::vector<ValueId>& parts, int64_t axis) {
    return parts.size() == 1 ? parts[0] : l_.emit("Concat", parts, {{"axis", axis}});
  }
  std::vector<ValueId> split(ValueId value, int64_t axis, const std::vector<int64_t>& sizes) {
    if (sizes.size() == 1) return {value};
    return l_.emit_many("Split", {value}, {{"axis", axis}, {"split", sizes}}, sizes.size());
  }
  // Of an input by directions the part of this one, as that shape; kNone where it is absent.
  ValueId of_direction(size_t input, const Shape& shape) {
    if (!l_.has(input)) return kNone;
    ValueId value = l_.input(input);
    if (directions_ > 1)
      value = l_.emit("Slice", {value},
                      {{"starts", std::vector<int64_t>{direction_}},
                       {"ends", std::vector<int64_t>{direction_ + 1}},
                       {"axes", std::vector<int64_t>{0}},
                       {"steps", std::vector<int64_t>{1}}});
    return l_.reshape(value, shape);
  }
  ValueId state_before(size_t input) {
    if (!l_.has(input)) return l_.emit("Expand", {l_.scalar_like(x_, 0)}, {{"shape", Shape{batch_, hidden_}}});
    ValueId states = batch_first_ ? swapped(l_.input(input)) : l_.input(input);
    if (directions_ > 1)
      states = split(states, 0, std::vector<int64_t>(static_cast<size_t>(directions_), 1))[static_cast<size_t>(direction_)];
    return l_.reshape(states, {batch_, hidden_});
  }
  ValueId state_of(const std::vector<ValueId>& states) { return batch_first_ ? swapped(joined(states, 0)) : joined(states, 0); }
  template <typename Make> void put(size_t output, Make make) {
    if (output < l_.node.outputs) l_.output(output, make());
  }
  ValueId product(ValueId a, ValueId b, ValueId bias = kNone) {
    std::vector<ValueId> inputs{a, b};
    if (bias != kNone) inputs.push_back(bias);
    return l_.emit("MatMul", inputs, {{"trans_b", int64_t{1}}});
  }

  void run_direction(int64_t direction) {
    direction_ = direction;
    const int64_t gates = gates_of(cell_), rows = gates * hidden_;
    const ValueId w = of_direction(1, {rows, l_.shape(l_.input(1))[2]});
    r_ = of_direction(2, {rows, hidden_});
    ValueId bias = of_direction(3, {2 * rows});
    recurrent_bias_ = kNone;
    if (bias != kNone) {
      const std::vector<ValueId> halves = split(bias, 0, {rows, rows});
      bias = halves[0];
      recurrent_bias_ = halves[1];
    }
    if (cell_ != Cell::gru && bias != kNone) bias = add(bias, std::exchange(recurrent_bias_, kNone));  // both are added to the same sums
    if (const ValueId peepholes = of_direction(7, {3 * hidden_}); cell_ == Cell::lstm && peepholes != kNone)
      peepholes_ = split(peepholes, 0, {hidden_, hidden_, hidden_});
    const ValueId projected = product(l_.reshape(x_, {steps_ * batch_, l_.shape(x_)[2]}), w, bias);
    const std::vector<ValueId> by_step =
        split(l_.reshape(projected, {steps_, batch_, rows}), 0, std::vector<int64_t>(static_cast<size_t>(steps_), 1));
    h_ = state_before(5);
    if (cell_ == Cell::lstm) c_ = state_before(6);
    if (cell_ == Cell::gru && !reset_after()) {
      const std::vector<ValueId> parts = split(r_, 0, {2 * hidden_, hidden_});
      r_gates_ = parts[0], r_hidden_ = parts[1];
      if (recurrent_bias_ != kNone) recurrent_biases_ = split(recurrent_bias_, 0, {2 * hidden_, hidden_});
    }
    const ValueId lengths = l_.has(4) ? l_.reshape(l_.cast(l_.input(4), DType::int64), {batch_, 1}) : kNone;
    const bool backwards = reverse_ || direction == 1;
    by_step_.assign(static_cast<size_t>(steps_), kNone);
    for (int64_t i = 0; i < steps_; ++i) {
      const int64_t t = backwards ? steps_ - 1 - i : i;
      const ValueId before_h = h_, before_c = c_;
      step(l_.reshape(by_step[static_cast<size_t>(t)], {batch_, rows}));
      ValueId y = h_;
      if (lengths != kNone) {
        const ValueId is_there = l_.emit("Greater", {lengths, l_.constant(scalar_tensor<int64_t>(t))});
        y = l_.emit("Where", {is_there, h_, l_.scalar_like(h_, 0)});
        h_ = l_.emit("Where", {is_there, h_, before_h});
        if (cell_ == Cell::lstm) c_ = l_.emit("Where", {is_there, c_, before_c});
      }
      by_step_[static_cast<size_t>(t)] = l_.reshape(y, {1, batch_, hidden_});
    }
  }

  bool reset_after() const { return l_.node.attributes.get("linear_before_reset", 0) != 0; }

  void step(ValueId x) {
    switch (cell_) {
      case Cell::lstm:
        return has_usual_cell() ? usual_lstm_step(x) : lstm_step(add(x, product(h_, r_)));
      case Cell::gru:
        return gru_step(x);
      case Cell::rnn:
        h_ = activate(0, add(x, product(h_, r_, recurrent_bias_)));
    }
  }

  // Whether LstmCell does it.
  bool has_usual_cell() const {
    return activation(0).name == "Sigmoid" && activation(1).name == "Tanh" && activation(2).name == "Tanh" && peepholes_.empty() &&
           l_.node.attributes.get("input_forget", 0) == 0 && l_.node.attributes.get("clip", 0.0f) <= 0;
  }
  void usual_lstm_step(ValueId x) {
    const std::vector<ValueId> made = l_.emit_many("LstmCell", {x, product(h_, r_), c_}, {}, 3);
    h_ = made[0];
    c_ = made[1];
  }

  void lstm_step(ValueId gates) {
    const std::vector<ValueId> iofc = split(gates, 1, std::vector<int64_t>(4, hidden_));
    const auto peep = [&](ValueId gate, ValueId c, size_t which) {
      return peepholes_.empty() ? gate : add(gate, times(c, peepholes_[which]));
    };
    const ValueId in = activate(0, peep(iofc[0], c_, 0));
    const bool coupled = l_.node.attributes.get("input_forget", 0) != 0;
    const ValueId forget = coupled ? l_.emit("Sub", {l_.scalar_like(in, 1), in}) : activate(0, peep(iofc[2], c_, 2));
    c_ = add(times(forget, c_), times(in, activate(1, iofc[3])));
    const ValueId out = activate(0, peep(iofc[1], c_, 1));
    h_ = times(out, activate(2, c_));
  }

  void gru_step(ValueId x) {
    ValueId z, candidate;
    if (reset_after()) {
      const std::vector<ValueId> of_x = split(x, 1, {2 * hidden_, hidden_});
      const std::vector<ValueId> of_h = split(product(h_, r_, recurrent_bias_), 1, {2 * hidden_, hidden_});
      const std::vector<ValueId> zr = split(activate(0, add(of_x[0], of_h[0])), 1, {hidden_, hidden_});
      z = zr[0];
      candidate = activate(1, add(of_x[1], times(zr[1], of_h[1])));
    } else {
      const std::vector<ValueId> of_x = split(x, 1, {2 * hidden_, hidden_});
      const auto bias = [&](size_t i) { return recurrent_bias_ == kNone ? kNone : recurrent_biases_[i]; };
      const std::vector<ValueId> zr = split(activate(0, add(of_x[0], product(h_, r_gates_, bias(0)))), 1, {hidden_, hidden_});
      z = zr[0];
      candidate = activate(1, add(of_x[1], product(times(zr[1], h_), r_hidden_, bias(1))));
    }
    h_ = add(times(l_.emit("Sub", {l_.scalar_like(z, 1), z}), candidate), times(z, h_));
  }

  Lowering& l_;
  const Cell cell_;
  const bool batch_first_;
  bool reverse_ = false;
  int64_t directions_ = 1, steps_ = 0, batch_ = 0, hidden_ = 0;
  ValueId x_ = kNone;
  std::vector<Activation> activations_;
  // Of the direction at hand.
  int64_t direction_ = 0;
  ValueId r_ = kNone, r_gates_ = kNone, r_hidden_ = kNone, recurrent_bias_ = kNone, h_ = kNone, c_ = kNone;
  std::vector<ValueId> recurrent_biases_, peepholes_, by_step_;
};

}  // namespace

void lower_lstm(Lowering& l) { Recurrence(l, Cell::lstm).run(); }
void lower_gru(Lowering& l) { Recurrence(l, Cell::gru).run(); }
void lower_rnn(Lowering& l) { Recurrence(l, Cell::rnn).run(); }

ORT_TRAIN_OPS_END
