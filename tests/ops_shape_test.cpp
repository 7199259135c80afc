// What the op test table can't say of shape, indexing and reduction ops: their ONNX forms through the opsets, what they refuse, gradients
// at ties, rounding of casts, accuracy of long sums.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "exec/kernel.h"
#include "graph/autodiff.h"
#include "graph/builder.h"
#include "graph/op_def.h"

namespace ort_train {
namespace {

using Ints = std::vector<int64_t>;
using Doubles = std::vector<double>;

Workers& two_workers() {
  static Workers two(2);
  return two;
}

Tensor numbers(Shape shape, const std::vector<float>& values) { return make_tensor<float>(std::move(shape), values); }
Tensor integers(const Ints& values) { return make_tensor<int64_t>({static_cast<int64_t>(values.size())}, values); }
Tensor counting(Shape shape) {
  Tensor tensor(DType::float32, std::move(shape));
  for (size_t i = 0; i < tensor.data<float>().size(); ++i) tensor.data<float>()[i] = static_cast<float>(i);
  return tensor;
}
Tensor truths(const std::vector<bool>& values) {
  Tensor tensor(DType::boolean, {static_cast<int64_t>(values.size())});
  for (size_t i = 0; i < values.size(); ++i) tensor.data<bool>()[i] = values[i];
  return tensor;
}

// The node's outputs, folded, as the importer would lower it at an opset. A tensor of no bytes and shape {-1} is an absent input.
const Tensor kAbsent = [] {
  Tensor tensor;
  tensor.shape = {-1};
  return tensor;
}();

std::vector<Tensor> lowered(const std::string& op, int opset, Attributes attributes, const std::vector<Tensor>& inputs,
                            size_t outputs = 1) {
  const OnnxForm* form = nullptr;
  const OpDef* def = nullptr;
  for (const OpDef* candidate : all_ops()) {
    for (const OnnxForm& other : candidate->onnx) {
      if (!other.domain.empty() || other.name != op || other.since > opset || (form && other.since < form->since)) continue;
      form = &other;
      def = candidate;
    }
  }
  if (!form) throw error(ErrorCode::unsupported, "no form of {} at opset {}", op, opset);
  Graph graph;
  OnnxNode node{
      .domain = "", .op_type = op, .name = "tested", .opset = opset, .attributes = std::move(attributes), .inputs = {}, .outputs = outputs};
  for (const Tensor& input : inputs) node.inputs.push_back(input.shape == kAbsent.shape ? kNone : graph.add_constant(input));
  Lowering lowering(graph, node);
  lowering.named("tested").folding(make_folder(two_workers()));
  if (form->lower)
    form->lower(lowering);
  else
    lowering.pass_on(def->name, node.attributes);
  std::vector<Tensor> results;
  for (ValueId result : lowering.results()) results.push_back(*graph.constant(result));
  return results;
}

void expect_tensor(const Tensor& actual, const Shape& shape, const Doubles& values) {
  EXPECT_EQ(actual.shape, shape);
  EXPECT_EQ(actual.to_double(), values);
}
void expect_lowered(const std::string& op, int opset, Attributes attributes, const std::vector<Tensor>& inputs, const Shape& shape,
                    const Doubles& values) {
  SCOPED_TRACE(op + " at opset " + std::to_string(opset));
  expect_tensor(lowered(op, opset, std::move(attributes), inputs)[0], shape, values);
}

// The message of the Error that it throws.
template <typename Body> std::string message(ErrorCode code, Body&& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

Tensor evaluated(const std::string& op, const Attributes& attributes, const std::vector<Tensor>& inputs, int threads = 2) {
  std::vector<const Tensor*> views;
  for (const Tensor& input : inputs) views.push_back(&input);
  Workers own(threads);
  return evaluate(op_named(op), attributes, views, 1, own)[0];
}

// d sum(weights * op(x)) / dx
Tensor gradient_of(const std::string& op, const Attributes& attributes, const Tensor& x, const Tensor& weights,
                   const std::vector<Tensor>& before = {}, const std::vector<Tensor>& behind = {}) {
  Graph graph;
  const ValueId input = graph.add_value({.name = "x", .dtype = x.dtype, .shape = x.shape, .kind = ValueKind::parameter, .trainable = true});
  Builder builder(graph);
  std::vector<ValueId> inputs;
  for (const Tensor& other : before) inputs.push_back(builder.constant(other));
  inputs.push_back(input);
  for (const Tensor& other : behind) inputs.push_back(builder.constant(other));
  const ValueId product = builder.emit("Mul", {builder.emit(op, inputs, attributes), builder.constant(weights)});
  const ValueId loss =
      builder.emit("ReduceSum", {builder.reshape(product, {weights.size()})}, {{"axes", Ints{0}}, {"keepdims", int64_t{0}}});
  const ValueId gradient = differentiate(graph, loss).at(input);
  std::map<ValueId, Tensor> values{{input, x}};
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<const Tensor*> in;
    for (ValueId value : node.inputs) in.push_back(graph.constant(value) ? graph.constant(value) : &values.at(value));
    std::vector<Tensor> out = evaluate(*node.op, node.attributes, in, node.outputs.size(), two_workers());
    for (size_t i = 0; i < out.size(); ++i) values[node.outputs[i]] = std::move(out[i]);
  }
  return values.at(gradient);
}

TEST(ShapeOpForms, Reshaping) {
  const Doubles six{0, 1, 2, 3, 4, 5};
  for (int opset : {7, 14, 24}) {
    expect_lowered("Reshape", opset, {}, {counting({2, 3}), integers({3, -1})}, {3, 2}, six);
    expect_lowered("Reshape", opset, {}, {counting({2, 3}), integers({0, 3, 1})}, {2, 3, 1}, six);
    expect_lowered("Flatten", opset, {}, {counting({1, 2, 3})}, {1, 6}, six);
    expect_lowered("Flatten", opset, {{"axis", int64_t{0}}}, {counting({2, 3})}, {1, 6}, six);
    expect_lowered("Identity", opset, {}, {counting({6})}, {6}, six);
    expect_lowered("Squeeze", opset, {}, {counting({1, 6, 1})}, {6}, six);
  }
  expect_lowered("Reshape", 14, {{"allowzero", int64_t{1}}}, {counting({0, 3}), integers({3, 0})}, {3, 0}, {});
  expect_lowered("Squeeze", 11, {{"axes", Ints{-1}}}, {counting({1, 6, 1})}, {1, 6}, six);
  expect_lowered("Squeeze", 13, {}, {counting({1, 6, 1}), integers({0})}, {6, 1}, six);
  expect_lowered("Unsqueeze", 7, {{"axes", Ints{0, 2}}}, {counting({6})}, {1, 6, 1}, six);
  expect_lowered("Unsqueeze", 13, {}, {counting({6}), integers({-1, 0})}, {1, 6, 1}, six);
  expect_lowered("Transpose", 13, {}, {counting({2, 3})}, {3, 2}, {0, 3, 1, 4, 2, 5});
  expect_lowered("DepthToSpace", 13, {{"blocksize", int64_t{2}}}, {counting({1, 8, 1, 1})}, {1, 2, 2, 2}, {0, 2, 4, 6, 1, 3, 5, 7});
  expect_lowered("DepthToSpace", 13, {{"blocksize", int64_t{2}}, {"mode", std::string("CRD")}}, {counting({1, 8, 1, 1})}, {1, 2, 2, 2},
                 {0, 1, 2, 3, 4, 5, 6, 7});
  expect_lowered("SpaceToDepth", 13, {{"blocksize", int64_t{2}}}, {counting({1, 2, 2, 2})}, {1, 8, 1, 1}, {0, 4, 1, 5, 2, 6, 3, 7});
}

TEST(ShapeOpForms, ATransposeOfSingleAxesIsAView) {
  Graph graph;
  const ValueId x = graph.add_value({.name = "x", .dtype = DType::float32, .shape = {1, 5, 1, 3}, .kind = ValueKind::input});
  const OnnxNode node{.domain = "",
                      .op_type = "Transpose",
                      .name = "t",
                      .opset = 13,
                      .attributes = {{"perm", Ints{1, 0, 2, 3}}},
                      .inputs = {x},
                      .outputs = 1};
  Lowering lowering(graph, node);
  op_named("Transpose").onnx[0].lower(lowering);
  const Value& y = graph.value(lowering.results()[0]);
  EXPECT_EQ(graph.node(y.producer).op->name, "Reshape");
  EXPECT_EQ(y.shape, (Shape{5, 1, 1, 3}));
}

TEST(ShapeOpForms, SplitAndSlice) {
  const auto halves = lowered("Split", 7, {{"axis", int64_t{1}}}, {counting({1, 4})}, 2);
  expect_tensor(halves[1], {1, 2}, {2, 3});
  const auto given = lowered("Split", 11, {{"split", Ints{1, 3}}}, {counting({4})}, 2);
  expect_tensor(given[1], {3}, {1, 2, 3});
  const auto input = lowered("Split", 13, {}, {counting({4}), integers({3, 1})}, 2);
  expect_tensor(input[1], {1}, {3});
  const auto uneven = lowered("Split", 18, {{"num_outputs", int64_t{3}}}, {counting({5})}, 3);
  expect_tensor(uneven[0], {2}, {0, 1});
  expect_tensor(uneven[2], {1}, {4});
  message(ErrorCode::unsupported, [] { lowered("Split", 13, {}, {counting({5})}, 2); });

  const int64_t far = std::numeric_limits<int64_t>::max();
  expect_lowered("Slice", 7, {{"starts", Ints{1}}, {"ends", Ints{-1}}}, {counting({4})}, {2}, {1, 2});
  expect_lowered("Slice", 10, {}, {counting({2, 3}), integers({1}), integers({far}), integers({1})}, {2, 2}, {1, 2, 4, 5});
  expect_lowered("Slice", 13, {}, {counting({5}), integers({-1}), integers({-far}), integers({-1}), integers({-2})}, {3}, {4, 2, 0});
  expect_lowered("Slice", 13, {}, {counting({3}), integers({0}), integers({far})}, {3}, {0, 1, 2});
}

TEST(ShapeOpForms, PadsAndCopies) {
  const Attributes old{{"pads", Ints{1, 0}}, {"value", 7.0f}};
  expect_lowered("Pad", 7, old, {counting({2})}, {3}, {7, 0, 1});
  expect_lowered("Pad", 11, {}, {counting({2}), integers({0, 1}), numbers({}, {5})}, {3}, {0, 1, 5});
  expect_lowered("Pad", 18, {}, {counting({2, 2}), integers({0, 1}), kAbsent, integers({-1})}, {2, 3}, {0, 1, 0, 2, 3, 0});
  expect_lowered("Pad", 19, {{"mode", std::string("wrap")}}, {counting({3}), integers({1, 2})}, {6}, {2, 0, 1, 2, 0, 1});
  expect_lowered("Expand", 8, {}, {counting({2, 1}), integers({1, 2})}, {2, 2}, {0, 0, 1, 1});
  expect_lowered("Tile", 7, {}, {counting({2}), integers({2})}, {4}, {0, 1, 0, 1});
}

TEST(ShapeOpForms, Generated) {
  expect_lowered("Shape", 7, {}, {counting({2, 3})}, {2}, {2, 3});
  expect_lowered("Shape", 15, {{"start", int64_t{-2}}, {"end", int64_t{9}}}, {counting({2, 3, 4})}, {2}, {3, 4});
  expect_lowered("Shape", 15, {{"start", int64_t{2}}, {"end", int64_t{1}}}, {counting({2, 3, 4})}, {0}, {});
  expect_lowered("Size", 13, {}, {counting({2, 3})}, {}, {6});
  expect_lowered("ConstantOfShape", 9, {}, {integers({2})}, {2}, {0, 0});
  expect_lowered("Range", 11, {}, {scalar_tensor<int64_t>(5), scalar_tensor<int64_t>(0), scalar_tensor<int64_t>(-2)}, {3}, {5, 3, 1});
  expect_lowered("NonZero", 9, {}, {truths({true, false, true})}, {1, 2}, {0, 2});
  expect_lowered("OneHot", 11, {{"axis", int64_t{0}}}, {numbers({2}, {1, -2}), numbers({1}, {2}), integers({3, 4})}, {2, 2}, {3, 4, 4, 3});
  expect_lowered("Trilu", 14, {{"upper", int64_t{0}}}, {counting({2, 2}), scalar_tensor<int64_t>(-1)}, {2, 2}, {0, 0, 2, 0});
  for (const int64_t type : {1, 2, 3, 5, 6, 7, 9, 10, 11, 16})
    expect_lowered("EyeLike", 9, {{"dtype", type}, {"k", int64_t{1}}}, {counting({2, 3})}, {2, 3}, {0, 1, 0, 0, 0, 1});
  expect_lowered("CumSum", 11, {{"reverse", int64_t{1}}}, {counting({3}), scalar_tensor<int32_t>(-1)}, {3}, {3, 3, 2});
}

TEST(ShapeOpForms, Indexing) {
  expect_lowered("Gather", 7, {{"axis", int64_t{1}}}, {counting({2, 3}), integers({2})}, {2, 1}, {2, 5});
  expect_lowered("Gather", 11, {{"axis", int64_t{-1}}}, {counting({2, 3}), scalar_tensor<int64_t>(-3)}, {2}, {0, 3});
  expect_lowered("Scatter", 9, {}, {counting({3}), integers({1}), numbers({1}, {8})}, {3}, {0, 8, 2});
  const Tensor rows = make_tensor<int64_t>({3, 1}, {2, 0, 2});
  expect_lowered("ScatterND", 16, {{"reduction", std::string("add")}}, {counting({3}), rows, numbers({3}, {1, 10, 100})}, {3},
                 {10, 1, 103});
  expect_lowered("ScatterND", 16, {{"reduction", std::string("mul")}}, {counting({3}), rows, numbers({3}, {2, 10, 3})}, {3}, {0, 1, 12});
  expect_lowered("ScatterElements", 18, {{"reduction", std::string("max")}}, {counting({3}), integers({0, 2, 0}), numbers({3}, {5, 1, 7})},
                 {3}, {7, 1, 2});
  const auto top = lowered("TopK", 11, {{"largest", int64_t{0}}}, {numbers({1, 4}, {3, 1, 2, 1}), integers({3})}, 2);
  expect_tensor(top[0], {1, 3}, {1, 1, 2});
  expect_tensor(top[1], {1, 3}, {1, 3, 2});
  expect_tensor(lowered("TopK", 7, {{"k", int64_t{1}}}, {numbers({3}, {3, 9, 2})}, 2)[1], {1}, {1});
  expect_lowered("ArgMax", 12, {{"select_last_index", int64_t{1}}, {"keepdims", int64_t{0}}}, {numbers({3}, {5, 5, 1})}, {}, {1});
}

TEST(ShapeOpForms, Reductions) {
  const Tensor x = counting({2, 3});
  expect_lowered("ReduceSum", 11, {{"axes", Ints{-1}}}, {x}, {2, 1}, {3, 12});
  expect_lowered("ReduceSum", 13, {{"keepdims", int64_t{0}}}, {x, integers({0})}, {3}, {3, 5, 7});
  expect_lowered("ReduceSum", 13, {}, {x, integers({})}, {1, 1}, {15});
  expect_lowered("ReduceSum", 13, {{"noop_with_empty_axes", int64_t{1}}}, {x}, {2, 3}, {0, 1, 2, 3, 4, 5});
  expect_lowered("ReduceMean", 17, {{"axes", Ints{1}}}, {x}, {2, 1}, {1, 4});
  expect_lowered("ReduceMean", 18, {}, {x, integers({1})}, {2, 1}, {1, 4});
  expect_lowered("ReduceMax", 18, {{"keepdims", int64_t{0}}}, {x}, {}, {5});
  expect_lowered("ReduceMin", 20, {}, {truths({true, false})}, {1}, {0});
  expect_lowered("ReduceL1", 18, {}, {numbers({2}, {-3, 4})}, {1}, {7});
  expect_lowered("ReduceL2", 18, {}, {numbers({2}, {-3, 4})}, {1}, {5});
  expect_lowered("ReduceL2", 18, {{"noop_with_empty_axes", int64_t{1}}}, {numbers({2}, {-3, 4})}, {2}, {3, 4});
  expect_lowered("ReduceSumSquare", 13, {{"axes", Ints{0}}}, {numbers({2}, {-3, 4})}, {1}, {25});
  expect_lowered("ReduceProd", 13, {}, {numbers({3}, {-3, 4, 2})}, {1}, {-24});
  expect_lowered("ReduceLogSum", 18, {}, {numbers({2}, {0.25f, 0.75f})}, {1}, {0});
  // As large as it may be: no overflow on the way.
  expect_lowered("ReduceLogSumExp", 18, {{"keepdims", int64_t{0}}}, {numbers({2}, {1000, -1000})}, {}, {1000});
}

TEST(ShapeOpForms, CastsFromOnnxTypes) {
  const Tensor x = numbers({3}, {-1.5f, 0, 2.75f});
  const std::map<int64_t, DType> types{{1, DType::float32},  {2, DType::uint8},    {3, DType::int8},    {5, DType::int16},
                                       {6, DType::int32},    {7, DType::int64},    {9, DType::boolean}, {10, DType::float16},
                                       {11, DType::float64}, {16, DType::bfloat16}};
  for (const auto& [code, dtype] : types) EXPECT_EQ(lowered("Cast", 13, {{"to", code}}, {x})[0].dtype, dtype);
  EXPECT_NE(message(ErrorCode::unsupported, [&] { lowered("Cast", 13, {{"to", int64_t{8}}}, {x}); }).find("type 8"), std::string::npos);
  expect_lowered("CastLike", 15, {}, {x, integers({1})}, {3}, {-1, 0, 2});
}

TEST(ShapeOps, RefuseWhatDoesNotFit) {
  const auto refuse = [](const std::string& op, Attributes attributes, const std::vector<Tensor>& inputs, size_t outputs = 1) {
    SCOPED_TRACE(op);
    message(ErrorCode::unsupported, [&] { lowered(op, 18, std::move(attributes), inputs, outputs); });
  };
  const int64_t huge = int64_t{1} << 62;
  refuse("Reshape", {}, {counting({6}), integers({4, -1})});
  refuse("Reshape", {}, {counting({6}), integers({-1, -1})});
  refuse("Reshape", {}, {counting({6}), integers({1, 0})});
  refuse("Reshape", {}, {counting({6}), integers({huge, huge})});
  refuse("Squeeze", {}, {counting({2, 1}), integers({0})});
  refuse("Unsqueeze", {}, {counting({2}), integers({0, 0})});
  refuse("Transpose", {{"perm", Ints{0, 0}}}, {counting({2, 2})});
  refuse("Transpose", {{"perm", Ints{0, -1}}}, {counting({2, 2})});
  refuse("Concat", {{"axis", int64_t{0}}}, {counting({2, 2}), counting({2, 3})});
  refuse("Split", {}, {counting({4}), integers({5, -1})}, 2);
  refuse("Slice", {}, {counting({4}), integers({0}), integers({4}), integers({0}), integers({0})});
  refuse("Slice", {}, {counting({4}), integers({0, 1}), integers({3, 3}), integers({0, 0})});
  refuse("Pad", {}, {counting({2}), integers({-1, -2})});
  refuse("Pad", {}, {counting({2}), integers({huge, huge})});
  refuse("Pad", {}, {counting({2, 2}), integers({huge / 2, huge / 2, 0, 0})});
  refuse("Pad", {{"mode", std::string("symmetric")}}, {counting({2}), integers({1, 1})});
  refuse("Expand", {}, {counting({2}), integers({3})});
  refuse("Expand", {}, {counting({1}), integers({huge, huge})});
  refuse("Tile", {}, {counting({2, 2}), integers({huge, huge})});
  refuse("Range", {}, {scalar_tensor<int64_t>(0), scalar_tensor<int64_t>(5), scalar_tensor<int64_t>(0)});
  refuse("Range", {}, {scalar_tensor<float>(0), scalar_tensor<float>(1e30f), scalar_tensor<float>(1)});
  refuse("Range", {}, {scalar_tensor<float>(0), scalar_tensor<float>(NAN), scalar_tensor<float>(1)});
  refuse("ConstantOfShape", {}, {integers({-1})});
  refuse("TopK", {}, {counting({3}), integers({4})}, 2);
  refuse("GatherND", {}, {counting({2, 2}), make_tensor<int64_t>({1, 3}, {0, 0, 0})});
  refuse("GatherND", {{"batch_dims", int64_t{1}}}, {counting({2, 2}), make_tensor<int64_t>({1, 1}, {0})});
  refuse("ScatterND", {}, {counting({2}), make_tensor<int64_t>({1, 1}, {0}), counting({2})});
  refuse("ReduceSum", {}, {counting({2, 2}), integers({0, -2})});
  refuse("Where", {}, {counting({2}), counting({2}), counting({2})});
}

TEST(ShapeOps, NameAnIndexThatIsOutside) {
  const Tensor data = counting({5, 2});
  const auto fails = [](const std::string& op, const Attributes& attributes, const std::vector<Tensor>& inputs, const char* index,
                        const char* size) {
    const std::string text = message(ErrorCode::data, [&] { evaluated(op, attributes, inputs); });
    EXPECT_NE(text.find(index), std::string::npos) << text;
    EXPECT_NE(text.find(size), std::string::npos) << text;
  };
  fails("Gather", {}, {data, integers({0, 5})}, "5", "5 elements");
  fails("Gather", {}, {data, integers({0, -6})}, "-6", "5 elements");
  fails("GatherGrad", {{"axis", int64_t{0}}, {"shape", Shape{5, 2}}}, {counting({1, 2}), integers({77})}, "77", "5 elements");
  fails("GatherElements", {{"axis", int64_t{1}}}, {data, make_tensor<int64_t>({1, 1}, {2})}, "2", "2 elements");
  fails("GatherND", {}, {data, make_tensor<int64_t>({1, 2}, {4, -3})}, "-3", "2 elements");
  fails("GatherNDGrad", {{"shape", Shape{5, 2}}}, {counting({1, 2}), make_tensor<int64_t>({1, 1}, {9})}, "9", "5 elements");
  fails("ScatterND", {}, {data, make_tensor<int64_t>({1, 1}, {8}), counting({1, 2})}, "8", "5 elements");
  fails("ScatterElements", {}, {data, make_tensor<int64_t>({1, 1}, {-7}), counting({1, 1})}, "-7", "5 elements");
  const int64_t least = std::numeric_limits<int64_t>::min();
  expect_tensor(evaluated("Mod", {}, {integers({least}), integers({-1})}), {1}, {0});
  expect_tensor(evaluated("Mod", {}, {integers({1}), integers({0})}), {1}, {0});
}

TEST(ShapeOps, TiesShareTheGradient) {
  const Attributes last{{"axes", Ints{1}}, {"keepdims", int64_t{0}}};
  const Tensor x = numbers({2, 4}, {1, 3, 3, 2, 0, 0, 0, 0}), weights = numbers({2}, {1, 8});
  expect_tensor(gradient_of("ReduceMax", last, x, weights), {2, 4}, {0, 0.5, 0.5, 0, 2, 2, 2, 2});
  expect_tensor(gradient_of("ReduceMin", last, x, weights), {2, 4}, {1, 0, 0, 0, 2, 2, 2, 2});
  expect_tensor(gradient_of("ReduceProd", last, x, weights), {2, 4}, {18, 6, 6, 9, 0, 0, 0, 0});
  expect_tensor(gradient_of("ReduceL2", last, numbers({2, 2}, {3, 4, 0, 0}), numbers({2}, {5, 5})), {2, 2}, {3, 4, 0, 0});
  // As torch's scatter_reduce: the data are one of those that share.
  const Attributes largest{{"axis", int64_t{0}}, {"reduction", std::string("max")}};
  const Tensor data = numbers({3}, {5, 5, 5}), updates = numbers({5}, {6, 5, 6, 1, 5}), at = integers({0, 1, 0, 1, 1}),
               factors = numbers({3}, {1, 6, 2});
  expect_tensor(gradient_of("ScatterElements", largest, data, factors, {}, {at, updates}), {3}, {0, 2, 2});
  expect_tensor(gradient_of("ScatterElements", largest, updates, factors, {data, at}), {5}, {0.5, 2, 0.5, 0, 2});
}

TEST(ShapeOps, NanWinsReductionsAndComparisonsWithItAreFalse) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int64_t n : {3, 40}) {
    for (int64_t at : {int64_t{0}, n - 1}) {
      Tensor x = counting({n});
      x.data<float>()[at] = nan;
      EXPECT_TRUE(std::isnan(evaluated("ReduceMax", {{"axes", Ints{0}}}, {x}).data<float>()[0]));
      EXPECT_TRUE(std::isnan(evaluated("ReduceMin", {{"axes", Ints{0}}}, {x}).data<float>()[0]));
      EXPECT_EQ(evaluated("ArgMax", {}, {x}).data<int64_t>()[0], at);
    }
  }
  const Tensor a = numbers({2}, {nan, 1}), b = numbers({2}, {nan, nan});
  for (const char* op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
    expect_tensor(evaluated(op, {}, {a, b}), {2}, {0, 0});
  const float infinity = std::numeric_limits<float>::infinity();
  expect_tensor(evaluated("ReduceMax", {{"axes", Ints{0}}, {"keepdims", int64_t{0}}}, {counting({0})}), {}, {-infinity});
  expect_tensor(evaluated("ReduceProd", {{"axes", Ints{0}}, {"keepdims", int64_t{0}}}, {counting({0})}), {}, {1});
}

uint16_t bits_of(const Tensor& tensor, size_t i) {
  uint16_t bits;
  std::memcpy(&bits, tensor.bytes.data() + 2 * i, 2);
  return bits;
}

TEST(ShapeOps, HalfPrecisionRoundsToNearestEven) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> values{1.0f, 1.0f + 0x1p-11f, 1.0f + 3 * 0x1p-11f, 65504, 65520, 0x1p-24f, 0x1p-25f, -0.0f, nan};
  const Attributes half{{"to", static_cast<int64_t>(DType::float16)}}, brain{{"to", static_cast<int64_t>(DType::bfloat16)}};
  const std::vector<uint16_t> halves{0x3c00, 0x3c00, 0x3c02, 0x7bff, 0x7c00, 0x0001, 0x0000, 0x8000};
  const Tensor as_half = evaluated("Cast", half, {numbers({9}, values)});
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_EQ(bits_of(as_half, i), halves[i]) << values[i];
  EXPECT_TRUE(std::isnan(evaluated("Cast", {{"to", static_cast<int64_t>(DType::float32)}}, {as_half}).data<float>()[8]));

  values = {1.0f, 1.0f + 0x1p-8f, 1.0f + 3 * 0x1p-8f, std::numeric_limits<float>::max(), -0.0f, nan};
  const std::vector<uint16_t> brains{0x3f80, 0x3f80, 0x3f82, 0x7f80, 0x8000};
  const Tensor as_brain = evaluated("Cast", brain, {numbers({6}, values)});
  for (size_t i = 0; i < brains.size(); ++i) EXPECT_EQ(bits_of(as_brain, i), brains[i]) << values[i];
  EXPECT_TRUE(std::isnan(evaluated("Cast", {{"to", static_cast<int64_t>(DType::float32)}}, {as_brain}).data<float>()[5]));

  // Every half there and back, in vectors and in tails.
  Tensor all(DType::float16, {65535});
  for (uint32_t i = 0; i < 65535; ++i) std::memcpy(all.bytes.data() + 2 * i, &i, 2);
  const Tensor back = evaluated("Cast", half, {evaluated("Cast", {{"to", static_cast<int64_t>(DType::float32)}}, {all})});
  for (uint32_t i = 0; i < 65535; ++i) {
    if ((i & 0x7fff) > 0x7c00) continue;  // NaN
    ASSERT_EQ(bits_of(back, i), i);
  }
}

TEST(ShapeOps, LongSumsAreAccurateInAnyLayout) {
  // 2^20 + 7 numbers whose sum cancels: blocks of float, totals in double.
  const int64_t n = (int64_t{1} << 20) + 7;
  Tensor x(DType::float32, {n});
  double exact = 0, magnitude = 0;
  uint64_t state = 1;
  for (float& value : x.data<float>()) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    value = static_cast<float>(static_cast<double>(state >> 40) * 0x1p-23 - 1);
    exact += value;
    magnitude += std::abs(value);
  }
  const Attributes first{{"axes", Ints{0}}, {"keepdims", int64_t{0}}};
  const float along_rows = evaluated("ReduceSum", first, {x}).data<float>()[0];
  EXPECT_NEAR(along_rows, exact, magnitude * 1e-9);

  Tensor columns(DType::float32, {n, 2});  // the same numbers as a column, beside another
  for (int64_t i = 0; i < n; ++i) columns.data<float>()[2 * i] = x.data<float>()[i];
  EXPECT_NEAR(evaluated("ReduceSum", first, {columns}).data<float>()[0], exact, magnitude * 1e-9);
  for (int threads : {1, 3, 8}) EXPECT_EQ(evaluated("ReduceSum", first, {x}, threads).data<float>()[0], along_rows) << threads;

  // Very frequent rows of an embedding are summed in double as well.
  const int64_t uses = 100'000;
  Tensor dy(DType::float32, {uses, 1}), indices(DType::int64, {uses});
  double row = 0;
  for (int64_t i = 0; i < uses; ++i) {
    dy.data<float>()[i] = x.data<float>()[i];
    indices.data<int64_t>()[i] = i % 2;
    if (i % 2 == 0) row += x.data<float>()[i];
  }
  const Tensor gradient = evaluated("GatherGrad", {{"axis", int64_t{0}}, {"shape", Shape{2, 1}}}, {dy, indices});
  EXPECT_EQ(gradient.data<float>()[0], static_cast<float>(row));
}

}  // namespace
}  // namespace ort_train
