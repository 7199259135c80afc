#include "tests/plan_support.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "exec/ops/adamw.h"
#include "exec/ops/sgd.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "passes/build.h"
#include "passes/pack_weights.h"
#include "passes/split_weights.h"

namespace ort_train::fixtures {
namespace {

ValueId add(Graph& graph, const std::string& name, ValueKind kind, Shape shape, DType dtype = DType::float32) {
  const ValueId id = graph.add_value({.name = name, .dtype = dtype, .shape = std::move(shape), .kind = kind});
  graph.value(id).trainable = kind == ValueKind::parameter;
  if (kind == ValueKind::input) graph.inputs.push_back(id);
  return id;
}

class RandomGraph {
 public:
  RandomGraph(uint32_t seed, int nodes, const RandomSize& size)
      : size_(size), shape_{1, 4 * size.rows, 8 * size.rows}, random_(seed), nodes_(nodes) {
    graph_.name = "random";
  }

  Graph make() {
    adamw_scalars_ = add(graph_, "adamw scalars", ValueKind::input, {kAdamWScalars});
    sgd_scalars_ = add(graph_, "sgd scalars", ValueKind::input, {kSgdScalars});
    one_ = graph_.add_constant(scalar_tensor(1.0f), "one");
    begin();
    while (static_cast<int>(graph_.order().size()) < nodes_) step();
    if (size_.saved) read_saved();
    update();
    for (ValueId value : pool_) {
      if (pick(6) == 0) graph_.outputs.push_back(value);
    }
    graph_.outputs.push_back(pool_.back());
    if (pick(2)) graph_.outputs.push_back(state_[pick(state_.size())]);
    graph_.verify("the test");
    return std::move(graph_);
  }

  Graph make_forward() {
    forward_ = true;
    begin();
    emit("MatMul", {pool_[0], weight_});
    while (static_cast<int>(graph_.order().size()) < nodes_) step();
    ValueId loss = sum(pool_[4]);  // of the product; the first ones are inputs and a constant
    for (size_t i = 5; i < pool_.size(); ++i) {
      if (i + 4 > pool_.size() || pick(3) == 0) loss = builder().emit("Add", {loss, sum(builder().emit("Tanh", {pool_[i]}))});
    }
    graph_.outputs = {loss};
    graph_.verify("the test");
    return std::move(graph_);
  }

 private:
  void begin() {
    for (int i = 0; i < 3; ++i) pool_.push_back(add(graph_, "x" + std::to_string(i), ValueKind::input, {shape_[pick(3)], size_.width}));
    const std::mt19937 before = random_;
    if (size_.state >= 0) random_.seed(static_cast<uint32_t>(size_.state));
    for (int i = 0; i < 3; ++i) state_.push_back(add(graph_, "p" + std::to_string(i), ValueKind::parameter, {state_rows(), size_.width}));
    for (int i = 0; i < 2 && !forward_; ++i)
      state_.push_back(add(graph_, "s" + std::to_string(i), ValueKind::optimizer_state, {state_rows(), size_.width}));
    if (size_.state >= 0) random_ = before;
    weight_ = add(graph_, "weight", ValueKind::parameter, {size_.width, size_.width});
    scale_ = add(graph_, "scale", ValueKind::parameter, {size_.width});
    pool_.push_back(graph_.add_constant(random_tensor({DType::float32, {2, size_.width}}, 99), "c"));
  }

  size_t pick(size_t n) { return random_() % n; }
  int64_t state_rows() {
    const size_t picked = pick(3);
    return size_.small_state ? shape_[0] : shape_[picked];
  }
  const Shape& shape(ValueId value) const { return graph_.value(value).shape; }
  // Mostly what was made last, so that lifetimes are short as in real graphs; sometimes anything.
  ValueId any() {
    const size_t recent = std::min<size_t>(pool_.size(), 6);
    return pick(size_.near) ? pool_[pool_.size() - 1 - pick(recent)] : pool_[pick(pool_.size())];
  }
  Builder builder() {
    const Stage stage = forward_ || static_cast<int>(graph_.order().size()) * 2 < nodes_ ? Stage::forward : Stage::backward;
    Builder b(graph_, stage);
    b.named("n" + std::to_string(graph_.order().size()));
    return b;
  }
  void emit(std::string_view op, std::vector<ValueId> inputs, Attributes attributes = {}) {
    pool_.push_back(builder().emit(op, std::move(inputs), std::move(attributes)));
  }

  void step() {
    const ValueId x = any();
    const Shape s = shape(x);
    if (size_.pieces && pick(6) == 0) return piece(pick(3) ? state_[pick(state_.size())] : x);
    const auto rank = static_cast<int64_t>(s.size());
    switch (pick(18)) {
      case 0:
        return emit("Tanh", {x});
      case 1:
        return emit("Gelu", {x});
      case 2:
        return emit("Neg", {x});
      case 3:
        return emit("Add", {x, x});
      case 4:
      case 5:
      case 6:
        return binary(x);
      case 7:
        return emit("Reshape", {x}, {{"shape", Shape{element_count(s)}}});
      case 8:
        return element_count(s) % size_.width == 0 ? emit("Reshape", {x}, {{"shape", Shape{element_count(s) / size_.width, size_.width}}})
                                                   : emit(forward_ ? "Sigmoid" : "Exp", {x});  // trained, numbers stay small
      case 9:
        return rank == 2 ? emit("Transpose", {x}, {{"perm", Shape{1, 0}}}) : emit("Sigmoid", {x});
      case 10:
        return emit("Softmax", {x}, {{"axis", int64_t{-1}}});
      case 11:
        return last_is_width(x) ? emit("MatMul", {x, weight_}) : emit("Relu", {x});
      case 12:
        return rank == 2 && last_is_width(x) ? normalize(x) : emit("Tanh", {x});
      case 13:
        return element_count(s) <= 4 * shape_[2] * size_.width ? emit("Concat", {x, x}, {{"axis", int64_t{0}}})
                                                               : emit("ReduceSum", {x}, {{"axes", Shape{0}}, {"keepdims", int64_t{1}}});
      case 14:
        return s[0] % 2 == 0 ? split(x) : emit("Abs", {x});
      case 15:
        return forward_ ? use_parameter(x) : change_state();
      default:
        return forward_ ? use_parameter(x) : read_state();
    }
  }

  bool last_is_width(ValueId x) const { return shape(x).size() == 2 && shape(x)[1] == size_.width; }

  void binary(ValueId x) {
    for (int tries = 0; tries < 8; ++tries) {
      const ValueId y = any();
      if (shape(y) != shape(x) && !(last_is_width(x) && last_is_width(y) && (shape(x)[0] == 1 || shape(y)[0] == 1))) continue;
      const char* ops[] = {"Add", "Sub", "Mul", "Max"};
      return emit(ops[pick(4)], {x, y});
    }
    emit("Sub", {x, x});
  }

  void normalize(ValueId x) {
    const auto outputs = builder().emit_many("LayerNormalization", {x, scale_}, {{"axis", int64_t{-1}}, {"epsilon", 1e-5f}}, 3);
    pool_.push_back(outputs[0]);
    if (!forward_ && pick(2))
      pool_.push_back(builder().emit("LayerNormalizationGrad", {any_like(x), x, scale_, outputs[1], outputs[2]}, {{"axis", int64_t{-1}}}));
  }
  ValueId any_like(ValueId x) {
    for (int tries = 0; tries < 8; ++tries) {
      if (const ValueId y = any(); shape(y) == shape(x)) return y;
    }
    return x;
  }

  void split(ValueId x) {
    const int64_t half = shape(x)[0] / 2;
    const auto parts = builder().emit_many("Split", {x}, {{"axis", int64_t{0}}, {"split", Shape{half, half}}}, 2);
    pool_.push_back(parts[0]);
    if (pick(4)) pool_.push_back(parts[1]);  // else nobody reads it
  }

  // state_[i] always is the newest version, as a graph must.
  void change_state() {
    const size_t i = 3 + pick(state_.size() - 3);
    const ValueId x = pool_like(shape(state_[i]));
    const bool clear = pick(4) == 0;
    Builder b = builder();
    state_[i] = clear ? b.emit("Clear", {state_[i]}) : b.emit("Accumulate", {state_[i], x});
    graph_.value(state_[i]).kind = ValueKind::optimizer_state;
  }
  // A view of state may be wanted after the state has changed.
  void read_state() {
    const ValueId x = state_[pick(state_.size())];
    if (pick(2)) return emit("Reshape", {x}, {{"shape", Shape{element_count(shape(x))}}});
    emit("Tanh", {x});
  }
  // Whole rows where they fit, so that it meets other values.
  void piece(ValueId x) {
    const int64_t blocks = graph_.value(x).bytes() / kPlaceAlignment, row = size_.width * size_of(graph_.value(x).dtype);
    if (blocks == 0) return emit("Tanh", {x});
    const int64_t offset = static_cast<int64_t>(pick(static_cast<size_t>(blocks))) * kPlaceAlignment,
                  left = graph_.value(x).bytes() - offset;
    Shape part{left / size_of(graph_.value(x).dtype)};
    for (const int64_t rows : shape_) {
      if (rows * row <= left && pick(4)) part = {rows, size_.width};
    }
    emit("PackMember", {x}, {{"byte_offset", offset}, {"shape", part}});
  }
  // Sometimes by itself, so that the same is computed for every sample.
  void use_parameter(ValueId x) {
    const ValueId p = state_[pick(3)];
    const bool fits = shape(x) == shape(p) || (last_is_width(x) && (shape(x)[0] == 1 || shape(p)[0] == 1));
    if (!fits) return emit("Tanh", {p});
    emit(pick(2) ? "Add" : "Mul", {x, p});
  }
  ValueId pool_like(Shape wanted) {  // a copy: new values move the old ones
    for (int tries = 0; tries < 20; ++tries) {
      if (const ValueId y = any(); shape(y) == wanted) return y;
    }
    const ValueId x = any();
    const ValueId sum =
        builder().emit("ReduceSum", {x}, {{"axes", shape(x).size() == 1 ? Shape{0} : Shape{0, 1}}, {"keepdims", int64_t{0}}});
    const ValueId one = builder().emit("Reshape", {sum}, {{"shape", Shape(wanted.size(), 1)}});
    return builder().emit("Expand", {one}, {{"shape", wanted}});
  }

  // One after the other: each takes part in what the next begins with.
  void read_saved() {
    const std::vector<ValueId> saved = pool_;
    ValueId carried = sum(saved.back());
    for (size_t i = saved.size(); i-- > 0;) {
      if (pick(3) == 0 || element_count(shape(saved[i])) < shape_[1]) continue;
      emit("Mul", {saved[i], carried});
      emit("Tanh", {pool_.back()});
      carried = sum(pool_.back());
    }
    pool_.push_back(carried);
  }
  ValueId sum(ValueId x) {
    const Shape axes = shape(x).size() == 1 ? Shape{0} : Shape{0, 1};
    const ValueId one = builder().emit("ReduceSum", {x}, {{"axes", axes}, {"keepdims", int64_t{0}}});
    return builder().emit("Reshape", {one}, {{"shape", Shape{1}}});
  }

  void update() {
    Builder b(graph_, Stage::update);
    b.named("update");
    std::vector<ValueId> gradients, squares;
    for (int i = 0; i < 3; ++i) gradients.push_back(pool_like(shape(state_[i])));
    for (ValueId gradient : gradients) squares.push_back(b.emit("SumSquares", {gradient}));
    const ValueId norm = b.emit("GlobalNorm", squares);
    const ValueId clip = pick(2) ? b.emit("UpdateFactor", {norm}, {{"max_norm", 1.0f}}) : one_;
    pool_.push_back(norm);
    for (int i = 0; i < 3; ++i) {
      const std::string name = graph_.value(state_[i]).name;
      if (i == 2) {
        state_[i] = b.emit("SGD", {state_[i], gradients[i], clip, sgd_scalars_});
        continue;
      }
      const ValueId m = add(graph_, name + ".m", ValueKind::optimizer_state, shape(state_[i])),
                    v = add(graph_, name + ".v", ValueKind::optimizer_state, shape(state_[i]));
      state_[i] = b.emit_many("AdamW", {state_[i], gradients[i], clip, adamw_scalars_, m, v}, {{"weight_decay", 0.1f}}, 3)[0];
    }
    for (int i = 0; i < 3; ++i) graph_.value(state_[i]).kind = ValueKind::parameter;
  }

  const RandomSize size_;
  const std::vector<int64_t> shape_;
  std::mt19937 random_;
  int nodes_;
  bool forward_ = false;  // make_forward(): no node writes, each has a gradient
  Graph graph_;
  ValueId adamw_scalars_ = kNone, sgd_scalars_ = kNone, one_ = kNone, weight_ = kNone, scale_ = kNone;
  std::vector<ValueId> pool_, state_;
};

}  // namespace

Graph random_graph(uint32_t seed, int nodes, const RandomSize& size) { return RandomGraph(seed, nodes, size).make(); }

Graph random_forward(uint32_t seed, int nodes, const RandomSize& size) { return RandomGraph(seed, nodes, size).make_forward(); }

Graph gpt_forward(const GptShape& shape) {
  Graph graph;
  graph.name = "gpt";
  Builder b(graph);
  const int64_t width = shape.width, depth = width / shape.heads;
  const auto parameter = [&](const std::string& name, Shape s) { return add(graph, name, ValueKind::parameter, std::move(s)); };
  const auto normalize = [&](const std::string& name, ValueId x) {
    b.named("/" + name);
    return b.emit_many("LayerNormalization", {x, parameter(name + ".weight", {width}), parameter(name + ".bias", {width})},
                       {{"axis", int64_t{-1}}, {"epsilon", 1e-5f}}, 3)[0];
  };
  const auto linear = [&](const std::string& name, ValueId x, int64_t from, int64_t to) {
    b.named("/" + name);
    return b.emit("MatMul", {x, parameter(name + ".weight", {from, to}), parameter(name + ".bias", {to})});
  };
  const ValueId tokens = add(graph, "input_ids", ValueKind::input, {shape.batch, shape.length}, DType::int64);
  const ValueId wte = parameter("wte.weight", {shape.vocabulary, width}), wpe = parameter("wpe.weight", {shape.length, width});
  b.named("/wte");
  ValueId x = b.emit("Add", {b.emit("Gather", {wte, tokens}, {{"axis", int64_t{0}}}), wpe});
  const ValueId mask = [&] {
    Tensor tensor(DType::float32, {shape.length, shape.length});
    for (int64_t i = 0; i < shape.length; ++i) {
      for (int64_t j = i + 1; j < shape.length; ++j) tensor.data<float>()[static_cast<size_t>(i * shape.length + j)] = -1e30f;
    }
    return graph.add_constant(std::move(tensor), "mask");
  }();
  for (int64_t layer = 0; layer < shape.layers; ++layer) {
    const std::string h = "h." + std::to_string(layer);
    const ValueId qkv = linear(h + ".attn.c_attn", normalize(h + ".ln_1", x), width, 3 * width);
    b.named("/" + h + "/attn");
    std::vector<ValueId> heads = b.emit_many("Split", {qkv}, {{"axis", int64_t{2}}, {"split", Shape{width, width, width}}}, 3);
    for (ValueId& part : heads) part = b.transpose(b.reshape(part, {shape.batch, shape.length, shape.heads, depth}), {0, 2, 1, 3});
    const ValueId scores =
        b.emit("MatMul", {heads[0], heads[1]}, {{"trans_b", int64_t{1}}, {"alpha", 1.0f / std::sqrt(static_cast<float>(depth))}});
    const ValueId shares = b.emit("Softmax", {b.emit("Add", {scores, mask})}, {{"axis", int64_t{-1}}});
    const ValueId mixed = b.reshape(b.transpose(b.emit("MatMul", {shares, heads[2]}), {0, 2, 1, 3}), {shape.batch, shape.length, width});
    const ValueId attention = linear(h + ".attn.c_proj", mixed, width, width);
    x = b.emit("Add", {x, attention});
    const ValueId inner = linear(h + ".mlp.c_fc", normalize(h + ".ln_2", x), width, 4 * width);
    const ValueId outer = linear(h + ".mlp.c_proj", b.emit("Gelu", {inner}, {{"approximate", "tanh"}}), 4 * width, width);
    x = b.emit("Add", {x, outer});
  }
  x = normalize("ln_f", x);
  b.named("/lm_head");
  graph.outputs = {b.emit("MatMul", {x, wte}, {{"trans_b", int64_t{1}}})};
  return graph;
}

EntryGraph gpt_training(const GptShape& shape, OptimizerSpec optimizer, int64_t part_bytes, bool packed) {
  Graph forward = gpt_forward(shape);
  const bool tiny = part_bytes < kPackBytes;  // is divided anywhere; the others where that changes no bit
  const PassOptions options{.part_bytes = part_bytes, .part_rows = tiny ? 1 : 0, .optimizer = optimizer.optimizer};
  mark_quantized_state(forward, options);
  mark_parts(forward, options);
  return build_train_graph(forward, {}, optimizer,
                           {.optimizer = optimizer.optimizer, .packs = packed ? choose_packs(forward, {}, optimizer.optimizer) : Packs{}});
}

Optimizer calm_optimizer(std::string_view name) {
  Optimizer optimizer = make_optimizer(name);
  for (size_t i = 0; i < optimizer.values.size(); ++i) {
    const std::string_view option = optimizer.options()[i].name;
    if (option.ends_with("epsilon")) optimizer.values[i] = 1e-3;
    if (option == "momentum") optimizer.values[i] = 0.9;
  }
  return optimizer;
}

Tensor random_tensor(const TensorType& type, uint32_t seed, int64_t limit) {
  std::mt19937 random(seed);
  Tensor tensor(type.dtype, type.shape);
  if (type.dtype == DType::float32) {
    for (float& x : tensor.data<float>()) x = static_cast<float>(random() % 2001) / 1000 - 1;
  } else {
    for (int64_t& x : tensor.data<int64_t>()) x = static_cast<int64_t>(random() % static_cast<uint32_t>(limit));
  }
  return tensor;
}

std::string complaint(const Program& program, const Graph& graph) {
  try {
    verify(program, {&graph}, [](SpaceKind where) { return where == SpaceKind::file ? nullptr : &cpu_kernels(); });
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::internal);
    return e.what();
  }
  return {};
}

WeightModel::WeightModel() {
  x = graph.add_value({.name = "x", .dtype = DType::float32, .shape = {3, 6}, .kind = ValueKind::input});
  graph.inputs = {x};
}

ValueId WeightModel::weight(const char* name, Shape shape) {
  return graph.add_value(
      {.name = name, .dtype = DType::float32, .shape = std::move(shape), .kind = ValueKind::parameter, .trainable = true});
}

std::map<ValueId, Tensor> step_inputs(const Graph& graph, const OptimizerSpec& optimizer, int64_t limit, uint32_t seed) {
  std::map<ValueId, Tensor> inputs;
  for (const ValueId id : graph.inputs) {
    const Value& value = graph.value(id);
    Tensor& tensor = inputs[id] = random_tensor(value.type(), static_cast<uint32_t>(value.name.size()) + seed, limit);
    if (value.name != kScalarsInput && value.name != kDeferredScalarsInput) continue;
    const std::vector<float> scalars = optimizer.optimizer.scalars(2, 1e-2);
    std::copy(scalars.begin(), scalars.end(), tensor.data<float>().begin());
  }
  return inputs;
}

std::map<ValueId, Tensor> Reference::run(const Graph& graph, const std::map<ValueId, Tensor>& inputs) {
  std::map<ValueId, Tensor> values = inputs;
  std::map<ValueId, std::string> state_name;  // which state a value is a version of
  for (ValueId id = 0; id < graph.value_count(); ++id) {
    const Value& value = graph.value(id);
    if (value.producer != kNone || value.kind == ValueKind::input) continue;
    if (value.kind == ValueKind::activation || value.kind == ValueKind::gradient) continue;  // nobody makes it any more
    if (value.constant) {
      values[id] = *value.constant;
      continue;
    }
    const auto [known, is_new] = state.try_emplace(value.name, Tensor(value.dtype, value.shape));
    if (is_new) fill_elements(known->second.bytes, value.dtype, value.fill);
    values[id] = known->second;
    state_name[id] = value.name;
  }
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<const Tensor*> operands;
    for (ValueId input : node.inputs) operands.push_back(input == kNone ? nullptr : &values.at(input));
    std::vector<Tensor> results = evaluate(*node.op, node.attributes, operands, node.outputs.size(), workers_);
    for (size_t i = 0; i < results.size(); ++i) {
      if (node.outputs[i] != kNone) values[node.outputs[i]] = std::move(results[i]);
    }
    for (const Alias& write : node.op->writes) {
      if (static_cast<size_t>(write.output) >= node.outputs.size() || node.inputs[write.input] == kNone) continue;
      const auto name = state_name.find(node.inputs[write.input]);
      if (name == state_name.end()) continue;
      state_name[node.outputs[write.output]] = name->second;
      state[name->second] = values.at(node.outputs[write.output]);
    }
  }
  return values;
}

}  // namespace ort_train::fixtures
