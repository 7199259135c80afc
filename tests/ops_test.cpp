// Every op case (op_cases.h): float32, float16 and bfloat16 against double, guard bytes around outputs and workspace, in place, 1, 2, 3 and
// 8 threads and shifted addresses to the bit, and the gradient in double: graph ops against central differences of a random projection of
// the outputs. A walk over the op list: each op has a case, a kernel, and a gradient or a reason for none.

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>

#include "exec/kernel.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/op_def.h"
#include "tests/op_cases.h"
#include "tests/op_inputs.h"
#include "tests/prepared_op.h"
#include "tests/sanitized.h"

namespace ort_train::fixtures {
namespace {

PreparedOp prepare(const OpCase& op_case, DType floating, const std::vector<Tensor>& inputs, int threads) {
  return PreparedOp(op_named(op_case.op), spec_of(op_case, floating, inputs), threads);
}

void expect_same_bits(const std::vector<Tensor>& a, const std::vector<Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i] == b[i]) << "output " << i << " differs " << what;
}

double steps_between(float a, float b) {  // units in the last place
  if (a == b || (std::isnan(a) && std::isnan(b))) return 0;
  if (!std::isfinite(a) || !std::isfinite(b)) return HUGE_VAL;
  return std::abs(a - b) / (std::nextafter(std::abs(b), HUGE_VALF) - std::abs(b));
}

class OpTest : public ::testing::TestWithParam<OpCase> {};

TEST_P(OpTest, Kernel) {
  const OpCase& op_case = GetParam();
  const OpDef& op = op_named(op_case.op);
  const Kernel* const kernel = cpu_kernels().find(op);
  ASSERT_TRUE(kernel);
  const std::vector<Tensor> inputs = inputs_of(op_case, DType::float32);
  const std::vector<const Tensor*> views = views_of(op_case, inputs);
  const PreparedOp prepared = prepare(op_case, DType::float32, inputs, 1);
  const std::vector<Tensor> results = prepared.run(views);

  for (int threads : {2, 3, 8}) {
    const std::vector<Tensor> again = prepare(op_case, DType::float32, inputs, threads).run(views);
    expect_same_bits(again, results, "with " + std::to_string(threads) + " threads");
  }
  expect_same_bits(prepared.run(views), results, "in a second run");
  expect_same_bits(prepared.run(views, {.shift = 1}), results, "at another address");
  for (const Alias& alias : prepared.in_place())
    expect_same_bits(prepared.run(views, {.in_place = alias}), results, fmt::format("over input {}", alias.input));

  for (size_t i = 0; i < op_case.expected.size(); ++i) {
    if (op_case.expected[i].empty()) continue;
    ASSERT_EQ(static_cast<size_t>(results.at(i).size()), op_case.expected[i].size());
    const std::vector<double> actual = results[i].to_double();
    for (size_t j = 0; j < actual.size(); ++j) {
      const double wanted = op_case.expected[i][j];
      if (!is_floating(results[i].dtype))
        EXPECT_EQ(actual[j], wanted) << "output " << i << ", element " << j;
      else
        EXPECT_LE(steps_between(static_cast<float>(actual[j]), static_cast<float>(wanted)), op_case.ulps)
            << "output " << i << ", element " << j << ": " << actual[j] << ", should be " << wanted;
    }
  }

  if (!op_case.float64) return;
  const std::vector<Tensor> wide = inputs_of(op_case, DType::float64);
  const std::vector<Tensor> exact = prepare(op_case, DType::float64, wide, 1).run(views_of(op_case, wide));
  for (size_t i = 0; i < results.size(); ++i) {
    ASSERT_EQ(results[i].shape, exact[i].shape);
    if (!is_floating(results[i].dtype)) {
      EXPECT_EQ(results[i].to_double(), exact[i].to_double()) << "output " << i;
      continue;
    }
    const auto [difference, norm] = distance(results[i], exact[i]);
    EXPECT_LE(difference, op_case.tolerance * norm) << "output " << i << " is " << difference / norm << " of its norm away from double";
  }
}

// Every other element type that the kernel takes, against double on the same numbers. What is computed in float32 is rounded once, so a
// result is as near as its type allows.
TEST_P(OpTest, NumberTypes) {
  const OpCase& op_case = GetParam();
  const OpDef& op = op_named(op_case.op);
  const Kernel& kernel = *cpu_kernels().find(op);
  if (!op_case.float64 || op_case.attributes64) return;
  for (const DType type : {DType::float16, DType::bfloat16}) {
    if (!kernel.types.has(type) && !(kernel.halves_by_float32 && kernel.types.has(DType::float32))) continue;
    const std::vector<Tensor> inputs = inputs_of(op_case, type), wide = widened(inputs);
    if (std::none_of(inputs.begin(), inputs.end(), [&](const Tensor& input) { return input.dtype == type && !input.bytes.empty(); }))
      continue;
    const std::vector<const Tensor*> views = views_of(op_case, inputs);
    const PreparedOp prepared = prepare(op_case, type, inputs, 1);
    const std::vector<Tensor> results = prepared.run(views);
    expect_same_bits(prepare(op_case, type, inputs, 3).run(views), results, "with 3 threads");
    expect_same_bits(prepared.run(views, {.shift = 1}), results, "at another address");
    for (const Alias& alias : kernel.in_place) {
      const size_t input = static_cast<size_t>(alias.input), output = static_cast<size_t>(alias.output);
      if (input >= views.size() || !views[input] || output >= results.size()) continue;
      const TensorType from = views[input]->type(), to = results[output].type();
      if (from.bytes() != to.bytes() || element_count(from.shape) != element_count(to.shape)) continue;
      expect_same_bits(prepared.run(views, {.in_place = alias}), results, fmt::format("over input {}", alias.input));
    }

    const std::vector<Tensor> exact = prepare(op_case, DType::float64, wide, 1).run(views_of(op_case, wide));
    const double largest = type == DType::float16 ? 65504 : 3.38e38, step = type == DType::float16 ? 0x1p-11 : 0x1p-8;
    for (size_t i = 0; i < results.size(); ++i) {
      if (!is_floating(results[i].dtype)) {
        EXPECT_EQ(results[i].to_double(), exact[i].to_double()) << to_string(type) << ", output " << i;
        continue;
      }
      EXPECT_TRUE(results[i].dtype == type || size_of(results[i].dtype) >= 4) << "output " << i;
      const auto [difference, norm] = distance(results[i], exact[i], is_half(results[i].dtype) ? largest : 3.4e38);
      const double rounding = is_half(results[i].dtype) ? step : 0;                                // half a unit in the last place
      const double tiny = rounding * 0x1p-13 * std::sqrt(static_cast<double>(results[i].size()));  // where float16's numbers are denormal
      EXPECT_LE(difference, (rounding + 4 * op_case.tolerance) * norm + tiny)
          << to_string(type) << ", output " << i << " is " << difference / norm << " of its norm away from double";
    }
  }
}

// --- gradients ------------------------------------------------------------------------------------------------------------------------

bool differentiated(const OpInput& input) { return input.present && input.differentiate && is_floating(input.dtype); }

bool checks_gradient(const OpCase& op_case) {
  const OpDef* op = find_op(op_case.op);
  return op && op->gradient && op_case.gradient && op_case.float64 &&
         std::any_of(op_case.inputs.begin(), op_case.inputs.end(), differentiated);
}

// The weights with which the outputs are summed: none for those that are left out.
std::vector<Tensor> projection(const OpCase& op_case, const std::vector<TensorType>& outputs) {
  std::vector<Tensor> weights(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    const bool wanted = op_case.project.empty() || std::count(op_case.project.begin(), op_case.project.end(), i) > 0;
    if (!wanted || !is_floating(outputs[i].dtype)) continue;
    SeededNumbers numbers(op_case.op + "/" + op_case.name, 1000 + i);
    std::vector<double> values(static_cast<size_t>(element_count(outputs[i].shape)));
    for (double& value : values) value = numbers.uniform() * 2 - 1;
    weights[i] = tensor_of(DType::float64, outputs[i].shape, values);
  }
  return weights;
}

// The analytic gradients: a graph of the op, the projection of its outputs, autodiff, each node in turn. By input; empty where there is
// none.
std::vector<Tensor> graph_gradients(const OpCase& op_case, const std::vector<Tensor>& inputs) {
  Graph graph;
  std::vector<ValueId> ids;
  std::map<ValueId, Tensor> values;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const OpInput& input = op_case.inputs[i];
    if (!input.present) {
      ids.push_back(kNone);
    } else if (input.constant) {
      ids.push_back(graph.add_constant(inputs[i]));
    } else {
      const bool wanted = differentiated(input);
      ids.push_back(graph.add_value({.name = fmt::format("input{}", i),
                                     .dtype = inputs[i].dtype,
                                     .shape = inputs[i].shape,
                                     .kind = wanted ? ValueKind::parameter : ValueKind::input,
                                     .trainable = wanted}));
      values[ids.back()] = inputs[i];
      if (!wanted) graph.inputs.push_back(ids.back());
    }
  }
  Builder builder(graph);
  builder.named("tested");
  const std::vector<ValueId> outputs =
      builder.emit_many(op_case.op, ids, op_case.attributes64.value_or(op_case.attributes), op_case.outputs);
  std::vector<TensorType> types;
  for (ValueId output : outputs) types.push_back(graph.value(output).type());
  const std::vector<Tensor> weights = projection(op_case, types);
  ValueId loss = kNone;
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (weights[i].bytes.empty()) continue;
    const ValueId product = builder.emit("Mul", {outputs[i], builder.constant(weights[i])});
    const ValueId flat = builder.reshape(product, {weights[i].size()});
    const ValueId sum = builder.emit("ReduceSum", {flat}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
    loss = loss == kNone ? sum : builder.emit("Add", {loss, sum});
  }
  std::vector<Tensor> gradients(inputs.size());
  if (loss == kNone) return gradients;  // all outputs are empty
  const std::map<ValueId, ValueId> by_parameter = differentiate(graph, loss);
  graph.verify("differentiate");

  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<const Tensor*> in;
    for (ValueId input : node.inputs)
      in.push_back(input == kNone ? nullptr : graph.constant(input) ? graph.constant(input) : &values.at(input));
    std::vector<Tensor> out = evaluate(*node.op, node.attributes, in, node.outputs.size(), workers(1));
    for (size_t i = 0; i < out.size(); ++i) {
      if (node.outputs[i] == kNone) continue;
      EXPECT_EQ(out[i].type(), graph.value(node.outputs[i]).type());
      values[node.outputs[i]] = std::move(out[i]);
    }
  }
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!differentiated(op_case.inputs[i]) || ids[i] == kNone) continue;
    const auto found = by_parameter.find(ids[i]);
    gradients[i] = found == by_parameter.end()     ? Tensor(inputs[i].dtype, inputs[i].shape)
                   : graph.constant(found->second) ? *graph.constant(found->second)
                                                   : values.at(found->second);
    EXPECT_EQ(gradients[i].shape, inputs[i].shape);
  }
  return gradients;
}

// Central differences along each of up to 48 axes and along one random direction, against the analytic gradient.
TEST_P(OpTest, Gradient) {
  const OpCase& op_case = GetParam();
  if (!checks_gradient(op_case)) return;
  std::vector<Tensor> inputs = inputs_of(op_case, DType::float64);
  const PreparedOp prepared = prepare(op_case, DType::float64, inputs, 1);
  const std::vector<Tensor> weights = projection(op_case, prepared.spec().outputs);
  const std::vector<Tensor> gradients = graph_gradients(op_case, inputs);
  if (kSanitized) return;  // every kernel has run; the differences run the same ones again

  const auto loss = [&] {
    const std::vector<Tensor> outputs = prepared.run(views_of(op_case, inputs));
    long double sum = 0;
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (weights[i].bytes.empty()) continue;
      const auto w = weights[i].data<double>(), y = outputs[i].data<double>();
      for (size_t j = 0; j < w.size(); ++j) sum += static_cast<long double>(w[j]) * y[j];
    }
    return sum;
  };
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!differentiated(op_case.inputs[i]) || inputs[i].size() == 0 || gradients[i].bytes.empty()) continue;
    const std::vector<double> start = inputs[i].to_double(), analytic = gradients[i].to_double();
    const size_t n = start.size(), checked = std::min<size_t>(n, 48);
    const auto slope = [&](const std::vector<double>& direction) {  // of the loss
      long double ends[2];
      for (int end : {0, 1}) {
        for (size_t j = 0; j < n; ++j) inputs[i].data<double>()[j] = start[j] + (end ? op_case.step : -op_case.step) * direction[j];
        ends[end] = loss();
      }
      std::copy(start.begin(), start.end(), inputs[i].data<double>().begin());
      return static_cast<double>((ends[1] - ends[0]) / (2 * op_case.step));
    };
    double difference = 0, norm = 0;
    std::vector<double> direction(n);
    for (size_t k = 0; k < checked; ++k) {
      const size_t j = checked == n ? k : k * (n - 1) / (checked - 1);  // the first and the last too
      direction[j] = 1;
      const double numeric = slope(direction);
      direction[j] = 0;
      difference += (numeric - analytic[j]) * (numeric - analytic[j]);
      norm += numeric * numeric;
    }
    EXPECT_LE(std::sqrt(difference), op_case.gradient_tolerance * std::max(1.0, std::sqrt(norm)))
        << "input " << i << " of norm " << std::sqrt(norm);

    if (checked == n) continue;
    SeededNumbers numbers(op_case.op + "/" + op_case.name, 2000 + i);
    double along = 0, scale = 0;
    for (size_t j = 0; j < n; ++j) {
      direction[j] = (numbers.uniform() * 2 - 1) / std::sqrt(static_cast<double>(n));
      along += analytic[j] * direction[j];
      scale += std::abs(analytic[j] * direction[j]);
    }
    EXPECT_NEAR(slope(direction), along, op_case.gradient_tolerance * std::max(1.0, scale))
        << "input " << i << ", along a random direction";
  }
}

std::string case_name(const ::testing::TestParamInfo<OpCase>& info) {
  std::string name = info.param.op + "_" + info.param.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Ops, OpTest, ::testing::ValuesIn(all_op_cases()), case_name);

// --- the op list ----------------------------------------------------------------------------------------------------------------------

TEST(OpList, EveryOpIsTestedAndComplete) {
  std::set<std::string> names, tested, gradient_tested;
  std::map<std::string, bool> floating;  // whether any case has an input that could be differentiated
  for (const OpCase& op_case : all_op_cases()) {
    tested.insert(op_case.op);
    if (checks_gradient(op_case)) gradient_tested.insert(op_case.op);
    floating[op_case.op] |=
        std::any_of(op_case.inputs.begin(), op_case.inputs.end(), [](const OpInput& input) { return is_floating(input.dtype); });
    EXPECT_NE(find_op(op_case.op), nullptr) << op_case.op;
  }
  for (const OpDef* op : all_ops()) {
    const std::string name(op->name);
    EXPECT_TRUE(names.insert(name).second) << name << " is there twice";
    EXPECT_TRUE(tested.contains(name)) << name << " has no case";
    const Kernel* const kernel = cpu_kernels().find(*op);
    ASSERT_NE(kernel, nullptr) << name << " has no CPU kernel";
    EXPECT_NE(op->infer, nullptr) << name << " has no shape rule";
    EXPECT_NE(kernel->cost, nullptr) << name << " has no cost";
    EXPECT_TRUE(op->gradient || !op->no_gradient.empty() || !floating[name]) << name << " has neither a gradient nor a reason for none";
    EXPECT_FALSE(op->gradient && !op->no_gradient.empty()) << name << " has both a gradient and a reason for none";
    EXPECT_EQ(op->gradient != nullptr, gradient_tested.contains(name))
        << "the cases must check the gradient of " << name << " if it has one";
  }
  std::set<std::tuple<std::string, std::string, int>> forms;
  for (const OpDef* op : all_ops()) {
    for (const OnnxForm& form : op->onnx) {
      EXPECT_TRUE(forms.emplace(form.domain, form.name, form.since).second) << form.domain << " " << form.name << " is claimed twice";
    }
  }
}

TEST(OpList, CaseNamesAreUnique) {
  std::set<std::string> names;
  for (const OpCase& op_case : all_op_cases())
    EXPECT_TRUE(names.insert(op_case.op + " " + op_case.name).second) << op_case.op << " " << op_case.name;
}

}  // namespace
}  // namespace ort_train::fixtures
