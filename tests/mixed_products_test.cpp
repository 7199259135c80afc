// Products, convolutions and attention on 16-bit numbers: every mixture of types gives the bits of the same op on the numbers in float32,
// rounded once (attention all in bfloat16: about these); parts of a weight give those of the whole; gradients have the types of what they
// are of.

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <map>

#include "exec/kernel.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "graph/op_traits.h"

namespace ort_train {
namespace {

constexpr DType kTypes[] = {DType::float32, DType::float16, DType::bfloat16};

int64_t number_of(DType type) { return static_cast<int64_t>(type); }

class MixedProducts : public ::testing::Test {
 protected:
  tbb::global_control allow_{tbb::global_control::max_allowed_parallelism, 8};
  Workers one_{1}, three_{3};

  std::vector<Tensor> run(std::string_view op, const Attributes& attributes, const std::vector<const Tensor*>& inputs, size_t outputs,
                          Workers& workers) {
    return evaluate(op_named(op), attributes, inputs, outputs, workers);
  }
  Tensor cast(const Tensor& tensor, DType to) {
    if (tensor.dtype == to) return tensor;
    return run("Cast", {{"to", number_of(to)}}, {&tensor}, 1, one_)[0];
  }
  Tensor numbers(Shape shape, uint32_t seed, DType type) {
    Tensor tensor(DType::float32, std::move(shape));
    for (float& x : tensor.data<float>()) {
      seed = seed * 1664525 + 1013904223;
      x = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
    }
    return cast(tensor, type);
  }

  // On a processor that multiplies pairs of bfloat16, sums of these are in another order.
  static bool same_order(const std::vector<Tensor>& operands) {
    const bool pairs = std::any_of(operands.begin(), operands.end(), [](const Tensor& t) { return t.dtype == DType::bfloat16; });
    return !pairs || !__builtin_cpu_supports("avx512bf16");
  }
  static void expect_near(const Tensor& actual, const Tensor& expected, double bound, const std::string& what) {
    const std::vector<double> x = actual.to_double(), y = expected.to_double();
    double difference = 0, norm = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      difference += (x[i] - y[i]) * (x[i] - y[i]);
      norm += y[i] * y[i];
    }
    EXPECT_LE(std::sqrt(difference), (is_half(actual.dtype) ? 0x1p-8 : bound) * std::sqrt(norm)) << what;
  }

  // The op, with its first `products` inputs rounded to `compute` where they are float32, against the same in float32. `types`: of results.
  void check(std::string_view op, Attributes attributes, const std::vector<Tensor>& inputs, size_t products,
             const std::vector<DType>& types, DType compute) {
    std::string what(op);
    std::vector<Tensor> wide, rounded;
    for (size_t i = 0; i < inputs.size(); ++i) {
      what += fmt::format(" {}", to_string(inputs[i].type()));
      rounded.push_back(i < products && inputs[i].dtype == DType::float32 ? cast(inputs[i], compute) : inputs[i]);
      wide.push_back(cast(rounded.back(), DType::float32));
    }
    // Attention that is all in bfloat16 rounds its weights, too.
    const bool rounds_weights =
        op.starts_with("Attention") && std::all_of(rounded.begin(), rounded.begin() + static_cast<int64_t>(products),
                                                   [](const Tensor& t) { return t.dtype == DType::bfloat16; });
    what += fmt::format(", computes in {}, gives {}", to_string(compute), to_string(types[0]));
    const auto views = [](const std::vector<Tensor>& tensors) {
      std::vector<const Tensor*> result;
      for (const Tensor& tensor : tensors) result.push_back(&tensor);
      return result;
    };
    const std::vector<Tensor> expected = run(op, attributes, views(wide), types.size(), one_);
    if (compute != DType::float32) attributes.set("compute", number_of(compute));
    attributes.set("to", number_of(types[0]));
    const std::vector<Tensor> results = run(op, attributes, views(inputs), types.size(), one_);
    const std::vector<Tensor> again = run(op, attributes, views(inputs), types.size(), three_);
    for (size_t i = 0; i < types.size(); ++i) {
      ASSERT_EQ(results[i].type(), (TensorType{types[i], expected[i].shape})) << what;
      EXPECT_TRUE(again[i] == results[i]) << what << ", with 3 threads";
      const Tensor wanted = cast(expected[i], types[i]);
      if (rounds_weights)
        expect_near(results[i], wanted, 0x1p-8, what);
      else if (same_order(rounded))
        EXPECT_TRUE(results[i] == wanted) << what << ", output " << i;
      else
        expect_near(results[i], wanted, 1e-5, what);
    }
  }
};

// Each type of each operand, of the result, and each that operands are rounded to.
template <typename Body> void for_mixtures(const Body& body) {
  for (const DType a : kTypes) {
    for (const DType b : kTypes) {
      for (const DType to : kTypes) {
        for (const DType compute : kTypes) body(a, b, to, compute);
      }
    }
  }
}

TEST_F(MixedProducts, Matrices) {
  struct Form {
    Shape a, b;
    bool trans_a, trans_b, bias;
  };
  // Panels whole and in part, few rows, odd depths, several blocks of depth, tiles, broadcast batches.
  const Form forms[] = {{{3, 65}, {65, 145}, false, false, true},   {{37, 101}, {101, 97}, false, false, true},
                        {{37, 101}, {161, 101}, false, true, true}, {{101, 37}, {101, 50}, true, false, false},
                        {{65, 39}, {70, 65}, true, true, false},    {{19, 1001}, {1001, 70}, false, false, true},
                        {{50, 777}, {33, 777}, false, true, false}, {{777, 29}, {777, 48}, true, false, false},
                        {{530, 71}, {71, 801}, false, false, true}, {{2, 1, 7, 9}, {3, 9, 5}, false, false, false}};
  for (const Form& form : forms) {
    const Attributes attributes{{"trans_a", int64_t{form.trans_a}}, {"trans_b", int64_t{form.trans_b}}, {"alpha", 0.75f}};
    for_mixtures([&](DType a, DType b, DType to, DType compute) {
      std::vector<Tensor> inputs{numbers(form.a, 1, a), numbers(form.b, 2, b)};
      const int64_t columns = form.b[form.b.size() - (form.trans_b ? 2 : 1)];
      if (form.bias) inputs.push_back(numbers({columns}, 3, b == DType::float32 ? to : DType::float32));
      check("MatMul", attributes, inputs, 2, {to}, compute);
    });
  }
}

// Large products may make the words of their first factor once, for all tiles; small ones never do.
TEST_F(MixedProducts, LargeOnesHaveTheBitsOfTheirColumns) {
  constexpr int64_t kRows = 331, kColumns = 600, kEach = 50;
  for (const bool trans_a : {false, true}) {
    for (const int64_t depth : {101, 160, 450}) {
      for (const DType type : {DType::float32, DType::bfloat16}) {
        SCOPED_TRACE(fmt::format("{}, depth {}{}", to_string(type), depth, trans_a ? ", transposed" : ""));
        const Attributes attributes{{"trans_a", int64_t{trans_a}}, {"compute", number_of(DType::bfloat16)}};
        const Tensor a = numbers(trans_a ? Shape{depth, kRows} : Shape{kRows, depth}, 1, type);
        const Tensor b = numbers({depth, kColumns}, 2, DType::float32);
        const auto columns_of = [&](const Tensor& tensor, int64_t from) {
          const Attributes columns{
              {"starts", std::vector<int64_t>{from}}, {"ends", std::vector<int64_t>{from + kEach}}, {"axes", std::vector<int64_t>{1}}};
          return run("Slice", columns, {&tensor}, 1, one_)[0];
        };
        const Tensor whole = run("MatMul", attributes, {&a, &b}, 1, three_)[0];
        for (int64_t from = 0; from < kColumns; from += kEach) {
          const Tensor some = columns_of(b, from);
          EXPECT_TRUE(run("MatMul", attributes, {&a, &some}, 1, one_)[0] == columns_of(whole, from)) << "from column " << from;
        }
      }
    }
  }
}

TEST_F(MixedProducts, Convolutions) {
  struct Form {
    Shape x, w, y;
    std::vector<int64_t> strides, pads;
    int64_t group = 1;
  };
  const std::vector<Form> forms{{{2, 70, 9, 11}, {66, 70, 3, 3}, {2, 66, 9, 11}, {1, 1}, {1, 1, 1, 1}},
                                {{9, 6, 6, 7}, {10, 3, 3, 3}, {9, 10, 3, 4}, {2, 2}, {1, 1, 1, 1}, 2},
                                {{1, 40, 25, 23}, {33, 40, 1, 1}, {1, 33, 25, 23}, {1, 1}, {0, 0, 0, 0}},
                                {{5, 400, 4, 4}, {65, 400, 1, 1}, {5, 65, 4, 4}, {1, 1}, {0, 0, 0, 0}},
                                {{1, 100, 5, 5}, {600, 100, 3, 3}, {1, 600, 5, 5}, {1, 1}, {1, 1, 1, 1}}};
  for (const Form& form : forms) {
    Attributes attributes{{"kernel_shape", std::vector<int64_t>(form.w.begin() + 2, form.w.end())},
                          {"strides", form.strides},
                          {"pads", form.pads},
                          {"group", form.group}};
    for_mixtures([&](DType a, DType b, DType to, DType compute) {
      const Tensor x = numbers(form.x, 1, a), w = numbers(form.w, 2, b), dy = numbers(form.y, 3, a);
      check("Conv", attributes, {x, w, numbers({form.w[0]}, 4, to)}, 2, {to}, compute);
      Attributes of_dx = attributes, of_dw = attributes;
      of_dx.set("shape", form.x);
      of_dw.set("shape", form.w);
      check("ConvInputGrad", of_dx, {dy, w}, 2, {to}, compute);
      check("ConvWeightGrad", of_dw, {dy, numbers(form.x, 1, b)}, 2, {to}, compute);
    });
  }
}

TEST_F(MixedProducts, Attention) {
  for (const bool causal : {false, true}) {
    const int64_t key_heads = causal ? 1 : 2;
    const Shape q_shape{1, 2, 150, 20}, k_shape{1, key_heads, 300, 20}, v_shape{1, key_heads, 300, 13}, o_shape{1, 2, 150, 13};
    const Attributes attributes{{"scale", 0.3f}, {"causal", int64_t{causal}}};
    for_mixtures([&](DType a, DType b, DType to, DType compute) {
      const Tensor q = numbers(q_shape, 1, a), k = numbers(k_shape, 2, b), v = numbers(v_shape, 3, a), bias = numbers({300}, 4, b);
      check("Attention", attributes, {q, k, v, bias}, 3, {to, DType::float32, DType::float32}, compute);
      if (to != a) return;  // the gradients have the types of q, k and v
      const Tensor dy = numbers(o_shape, 5, to == DType::float32 ? DType::bfloat16 : to), o = numbers(o_shape, 6, to);
      const std::vector<Tensor> forward = run("Attention", attributes, {&q, &k, &v, &bias}, 3, one_);
      check("AttentionGrad", attributes, {dy, q, k, v, o, forward[1], bias, forward[2]}, 4, {a, b, a}, compute);
    });
  }
}

// --- parts ----------------------------------------------------------------------------------------------------------------------------

// A node with a weight as input 1, whole and in parts of so many rows as its op allows; the rows of the gradient that it makes, likewise.
class PartsOfMixedProducts : public MixedProducts {
 protected:
  Graph graph_;
  std::map<ValueId, Tensor> tensors_;

  ValueId add(const char* name, Tensor tensor) {
    const ValueId id = graph_.add_value({.name = name, .dtype = tensor.dtype, .shape = tensor.shape, .kind = ValueKind::input});
    tensors_[id] = std::move(tensor);
    return id;
  }
  ValueId emit(std::string_view op, const std::vector<ValueId>& inputs, const Attributes& attributes) {
    const ValueId id = Builder(graph_).emit(op, inputs, attributes);
    std::vector<const Tensor*> views;
    for (const ValueId input : inputs) views.push_back(input == kNone ? nullptr : &tensors_.at(input));
    tensors_[id] = run(op, attributes, views, 1, three_)[0];
    return id;
  }
  Tensor rows_of(const Tensor& tensor, const RowRange& rows) {
    const Attributes attributes{{"starts", std::vector<int64_t>{rows.first}},
                                {"ends", std::vector<int64_t>{rows.first + rows.count}},
                                {"axes", std::vector<int64_t>{0}}};
    return run("Slice", attributes, {&tensor}, 1, one_)[0];
  }

  void expect_parts_like_whole(std::string_view op, std::vector<ValueId> inputs, const Attributes& attributes) {
    const ValueId whole = emit(op, inputs, attributes);
    const Node node = graph_.node(graph_.value(whole).producer);
    const Division& division = op_named(op).traits.division;
    const int64_t step = division.rows(graph_, node, 1), total = tensors_.at(inputs[1]).shape[0];
    ASSERT_GT(step, 0);
    ASSERT_LT(step, total) << "there would be one part";
    ValueId before = kNone;
    for (int64_t first = 0; first < total; first += step) {
      const RowRange rows{first, std::min(step, total - first), total};
      const ValueId part = add("part", rows_of(tensors_.at(inputs[1]), rows));
      const PartNode made = division.share(graph_, node, 1, part, rows, before);
      before = emit(made.op, made.inputs, made.attributes);
    }
    ASSERT_EQ(tensors_.at(before).type(), tensors_.at(whole).type());
    EXPECT_TRUE(tensors_.at(before) == tensors_.at(whole)) << op;
  }
  void expect_gradient_rows_like_whole(std::string_view op, std::vector<ValueId> inputs, const Attributes& attributes) {
    const ValueId whole = emit(op, inputs, attributes);
    const Node node = graph_.node(graph_.value(whole).producer);
    const int64_t total = graph_.value(whole).shape[0], count = total / 3;
    for (int64_t first = 0; first < total; first += count) {
      const RowRange rows{first, std::min(count, total - first), total};
      const std::optional<PartNode> made = op_named(op).traits.division.gradient(graph_, node, rows);
      ASSERT_TRUE(made);
      EXPECT_TRUE(tensors_.at(emit(made->op, made->inputs, made->attributes)) == rows_of(tensors_.at(whole), rows)) << op << " " << first;
    }
  }
  // The same of a gradient that is added to what there is of it.
  void expect_sums_like_whole(std::string_view op, std::vector<ValueId> inputs, const Attributes& attributes) {
    const auto added = [&](ValueId gradient, ValueId sum) {
      const Node node = graph_.node(graph_.value(gradient).producer);
      const std::optional<PartNode> made = node.op->traits.accumulated(graph_, node, sum);
      return made ? emit(made->op, made->inputs, made->attributes) : kNone;
    };
    const ValueId whole = emit(op, inputs, attributes);
    const Node node = graph_.node(graph_.value(whole).producer);
    const Shape shape = graph_.value(whole).shape;
    const ValueId sum = add("sum", numbers(shape, 11, DType::float32)), all = added(whole, sum);
    ASSERT_NE(all, kNone);
    for (const RowRange& rows : {RowRange{0, 13, shape[0]}, {13, 7, shape[0]}, {20, shape[0] - 20, shape[0]}}) {
      const std::optional<PartNode> part = op_named(op).traits.division.gradient(graph_, node, rows);
      ASSERT_TRUE(part);
      const ValueId of_part = added(emit(part->op, part->inputs, part->attributes), add("rows", rows_of(tensors_.at(sum), rows)));
      ASSERT_NE(of_part, kNone);
      EXPECT_TRUE(tensors_.at(of_part) == rows_of(tensors_.at(all), rows)) << op << " " << rows.first;
    }
  }
};

TEST_F(PartsOfMixedProducts, GiveTheBitsOfTheWhole) {
  for_mixtures([&](DType a, DType b, DType to, DType compute) {
    Attributes types{{"to", number_of(to)}};
    if (compute != DType::float32) types.set("compute", number_of(compute));
    const ValueId x = add("x", numbers({37, 1000}, 1, a)), w = add("w", numbers({1000, 70}, 2, b)),
                  bias = add("bias", numbers({70}, 3, to));
    expect_parts_like_whole("MatMul", {x, w, bias}, types);

    Attributes across = types;
    across.set("trans_b", int64_t{1});
    const ValueId z = add("z", numbers({37, 70}, 4, a)), long_bias = add("long_bias", numbers({1000}, 5, DType::float32));
    expect_parts_like_whole("MatMul", {z, w, long_bias}, across);

    Attributes down = types;
    down.set("trans_a", int64_t{1});
    expect_gradient_rows_like_whole("MatMul", {x, add("dy", numbers({37, 70}, 6, b))}, down);
    for (const float alpha : {1.0f, 0.7f}) {  // several blocks of the depth
      down.set("alpha", alpha);
      expect_sums_like_whole("MatMul", {add("tokens", numbers({1000, 53}, 12, a)), add("dy", numbers({1000, 70}, 13, b))}, down);
    }

    const Shape image{1, 60, 3, 3}, kernel{900, 60, 3, 3}, result{1, 900, 3, 3};
    Attributes windows = types;
    windows.set("kernel_shape", std::vector<int64_t>{3, 3});
    windows.set("pads", std::vector<int64_t>{1, 1, 1, 1});
    const ValueId picture = add("picture", numbers(image, 7, a)), k = add("k", numbers(kernel, 8, b));
    expect_parts_like_whole("Conv", {picture, k, add("biases", numbers({900}, 9, to))}, windows);
    const ValueId dy = add("dy", numbers(result, 10, a));
    windows.set("shape", image);
    expect_parts_like_whole("ConvInputGrad", {dy, k}, windows);
    windows.set("shape", kernel);
    expect_gradient_rows_like_whole("ConvWeightGrad", {dy, add("picture", numbers(image, 7, b))}, windows);
  });
}

// --- meaning --------------------------------------------------------------------------------------------------------------------------

TEST_F(MixedProducts, GradientsHaveTheTypesOfWhatTheyAreOf) {
  Graph graph;
  const auto parameter = [&](const char* name, Shape shape, DType type) {
    return graph.add_value({.name = name, .dtype = type, .shape = std::move(shape), .kind = ValueKind::parameter, .trainable = true});
  };
  const ValueId x = parameter("x", {1, 2, 5, 8}, DType::bfloat16), w = parameter("w", {8, 6}, DType::float32),
                bias = parameter("bias", {6}, DType::float32), kernel = parameter("kernel", {4, 2, 3, 3}, DType::float16),
                mask = parameter("mask", {5}, DType::float32);
  Builder b(graph);
  const Attributes bf16{{"to", number_of(DType::bfloat16)}, {"compute", number_of(DType::bfloat16)}};
  const ValueId y = b.emit("MatMul", {x, w, bias}, bf16);
  const ValueId o = b.emit_many("Attention", {y, y, y, mask}, {{"scale", 0.5f}, {"compute", number_of(DType::bfloat16)}}, 3)[0];
  const ValueId c = b.emit("Conv", {o, kernel}, {{"kernel_shape", std::vector<int64_t>{3, 3}}});
  EXPECT_EQ(graph.value(y).dtype, DType::bfloat16);
  EXPECT_EQ(graph.value(o).dtype, DType::bfloat16) << "of what its operands agree on";
  EXPECT_EQ(graph.value(c).dtype, DType::float32) << "operands of two types";
  const ValueId flat = b.reshape(c, {element_count(graph.value(c).shape)});
  const ValueId loss = b.emit("ReduceSum", {flat}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
  const std::map<ValueId, ValueId> gradients = differentiate(graph, loss);
  graph.verify("differentiate");
  ASSERT_EQ(gradients.size(), 5u);
  for (const auto& [value, gradient] : gradients)
    EXPECT_EQ(graph.value(gradient).type(), graph.value(value).type()) << graph.value(value).name;
  size_t products = 0;
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    if (node.stage != Stage::backward || node.op->name != "MatMul" || node.attributes.get("trans_a", 0) == 0) continue;
    ++products;
    EXPECT_EQ(node.attributes.get("compute", 0), number_of(DType::bfloat16)) << "handed on";
  }
  EXPECT_EQ(products, 1u);
}

TEST_F(MixedProducts, WhatDoesNotGoTogetherIsRefused) {
  const Tensor half = numbers({2, 2}, 1, DType::float16), single = numbers({2, 2}, 1, DType::float32), wide = cast(single, DType::float64),
               whole = cast(single, DType::int64);
  const auto refused = [&](const Attributes& attributes, const Tensor& a, const Tensor& b) {
    EXPECT_THROW(run("MatMul", attributes, {&a, &b}, 1, one_), Error);
  };
  refused({}, half, wide);
  refused({}, wide, single);
  refused({}, whole, half);
  refused({{"to", number_of(DType::float64)}}, half, half);
  refused({{"to", number_of(DType::float32)}}, wide, wide);
  refused({{"to", int64_t{99}}}, half, half);
  refused({{"compute", number_of(DType::int64)}}, half, half);
  const auto adds_to_none = [&](const Attributes& attributes, const Tensor* sum) {
    EXPECT_THROW(run("AccumulateMatMul", attributes, {&single, &single, nullptr, sum}, 1, one_), Error);
  };
  adds_to_none({}, nullptr);
  adds_to_none({}, &half);
  adds_to_none({{"y_columns", int64_t{2}}}, &single);
  refused({{"compute", number_of(DType::bfloat16)}}, wide, wide);
  refused({{"compute", number_of(DType::float64)}}, single, single);
}

}  // namespace
}  // namespace ort_train
