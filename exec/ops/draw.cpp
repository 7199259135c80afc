// DrawNumbers: random numbers, uniform or normal (ONNX RandomUniform-1, RandomUniformLike-1, RandomNormal-1, RandomNormalLike-1;
// Bernoulli-15 and Multinomial-7 are made of them).
//
// Its only input is kRandomInput (exec/random.h): a node draws the same numbers in whatever memory, on any number of threads, when it is
// recomputed, and in micro-batches what it draws in the large batch. Outside training it draws, too. Attributes: normal, 1 or 0; offset and
// factor, of which the result is offset + factor * number; shape; to, the element type; ordinal, the node's number in the user's file;
// seed, the bits of ONNX's attribute of that name, which counts besides the run's seed; shared, 1 where what is drawn is no sample's.

#include "exec/ops/draw.h"

#include <bit>
#include <cmath>

#include "exec/elementwise.h"
#include "exec/op_list.h"
#include "exec/ops/onnx_type.h"
#include "exec/ops/random_input.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// Whether numbers of this shape belong to samples: to those that what they are drawn for depends on; or, where that has only its shape from
// inputs (a constant, or weights that are expanded), where the first axis is as long as an input's. `like`: what they are drawn for, kNone
// for a fixed shape.
bool belongs_to_samples(const Graph& graph, ValueId like, const Shape& shape) {
  if (like != kNone && depends_on_samples(graph, like)) return true;
  const NodeId maker = like == kNone ? kNone : graph.value(like).producer;
  const bool has_a_shape = like == kNone || graph.constant(like) || (maker != kNone && graph.node(maker).op->name == "Expand");
  if (shape.empty() || !has_a_shape) return false;
  for (const ValueId input : graph.inputs) {
    const Value& fed = graph.value(input);
    if (fed.name == kRandomInput || fed.shape.empty()) continue;
    const int64_t samples = fed.shape[0];
    return samples > 0 && shape[0] == samples;
  }
  return false;
}

struct Distribution {
  bool normal = false;
  float offset = 0, factor = 1;
};

ValueId draw(Lowering& l, const Distribution& of, ValueId like, const Shape& shape, DType type) {
  Attributes attributes{{"normal", int64_t{of.normal}},
                        {"offset", of.offset},
                        {"factor", of.factor},
                        {"shape", shape},
                        {"ordinal", int64_t{l.ordinal()}},
                        {"seed", int64_t{std::bit_cast<uint32_t>(l.node.attributes.get("seed", 0.0f))}},
                        {"shared", int64_t{!belongs_to_samples(l.graph(), like, shape)}}};
  set_type(attributes, kResultType, type);
  return l.emit("DrawNumbers", {random_input(l.graph())}, attributes);
}

// The type that the attribute says.
DType drawn_type(const Lowering& l, DType otherwise) {
  const DType type = l.node.attributes.has("dtype") ? onnx_type(l, l.node.attributes.get("dtype", 0), "what it draws is of") : otherwise;
  if (!is_floating(type)) l.fail(fmt::format("it draws {}, which isn't supported", to_string(type)));
  return type;
}

void lower_drawn(Lowering& l, const Distribution& of) {
  if (!std::isfinite(of.offset) || !std::isfinite(of.factor)) l.fail("the numbers of its distribution aren't finite");
  if (l.node.op_type.ends_with("Like")) {
    const ValueId like = l.input(0);
    return l.output(0, draw(l, of, like, l.shape(like), drawn_type(l, l.dtype(like))));
  }
  if (!l.node.attributes.has("shape")) l.fail("lacks the shape of what it draws");
  l.output(0, draw(l, of, kNone, l.node.attributes.get("shape", Shape{}), drawn_type(l, DType::float32)));
}

void lower_uniform(Lowering& l) {
  const float low = l.node.attributes.get("low", 0.0f), high = l.node.attributes.get("high", 1.0f);
  lower_drawn(l, {.offset = low, .factor = high - low});
}

void lower_normal(Lowering& l) {
  lower_drawn(l, {.normal = true, .offset = l.node.attributes.get("mean", 0.0f), .factor = l.node.attributes.get("scale", 1.0f)});
}

// 1 with the probability that the input says. (The standard's own function draws 0 with it.)
void lower_bernoulli(Lowering& l) {
  const ValueId probability = l.input(0);
  const Attributes& given = l.node.attributes;
  const DType type = given.has("dtype") ? onnx_type(l, given.get("dtype", 0), "its result is of") : l.dtype(probability),
              compared = compute_type(l.dtype(probability));
  const ValueId number = draw(l, {}, probability, l.shape(probability), compared);
  l.output(0, l.cast(l.emit("Less", {number, l.cast(probability, compared)}), type));
}

// Classes by the softmax of each row (N, C), (N, sample_size) of them: as many as there are cumulated probabilities that a uniform number
// isn't below.
void lower_multinomial(Lowering& l) {
  constexpr int64_t kInt32 = 6;  // of ONNX
  ValueId scores = l.input(0);
  const Shape shape = l.shape(scores);
  const int64_t samples = l.node.attributes.get("sample_size", int64_t{1});
  if (shape.size() != 2 || shape[1] == 0 || samples < 1)
    l.fail(fmt::format("draws {} of {}: rows of classes are wanted", samples, to_string(shape)));
  const DType type = onnx_type(l, l.node.attributes.get("dtype", kInt32), "its result is of"), computed = compute_type(l.dtype(scores));
  if (type != DType::int32 && type != DType::int64) l.fail(fmt::format("its result is {}; int32 and int64 are supported", to_string(type)));
  scores = l.cast(scores, computed);
  const ValueId sums = l.emit("CumSum", {l.emit("Softmax", {scores}, {{"axis", int64_t{1}}})}, {{"axis", int64_t{1}}});
  const ValueId all = l.emit("ReduceMax", {sums}, {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{1}}});
  const ValueId number = l.emit("Mul", {draw(l, {}, scores, {shape[0], samples}, computed), all});
  const ValueId passed = l.emit("GreaterOrEqual", {l.reshape(number, {shape[0], samples, 1}), l.reshape(sums, {shape[0], 1, shape[1]})});
  l.output(0, l.cast(l.sum(l.cast(passed, computed), {2}, computed), type));
}

std::vector<TensorType> infer_drawn(const InferContext& context) {
  const TensorType random{DType::int64, {kRandomNumbers}};
  if (context.input(0) != random)
    throw error(ErrorCode::unsupported, "input 0 is {}, but must be {}", to_string(context.input(0)), to_string(random));
  const Shape shape = context.attributes.get("shape", Shape{});
  element_count(shape);
  const DType type = get_type(context.attributes, kResultType, DType::float32);
  if (!is_floating(type) || is_quantized(type)) throw error(ErrorCode::unsupported, "{} isn't drawn", to_string(type));
  return {{type, shape}};
}

KernelRun prepare_drawn(const KernelSpec& spec) {
  return for_type(Floats{}, spec.outputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [drawn = DrawnNumbers(spec.attributes), n = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
      const int64_t* const random = args.in<int64_t>(0);
      T* const y = args.out<T>(0);
      const int64_t before = drawn.before(random, n);
      args.workers().parallel_blocks(n, kElementBlock, [&](int64_t begin, int64_t end) {
        each_drawn(drawn, random, before, begin, end, [&](int64_t at, int64_t count, const uint32_t* numbers, int64_t skip) {
          constexpr int kNumbers = 4 * kPhiloxLanes;
          float standard[kNumbers];
          drawn.standard(numbers, kNumbers, standard);
          for (int64_t i = 0; i < count; ++i) y[at + i] = store<T>(drawn.template value<Compute<T>>(standard[skip + i]));
        });
      });
    };
  });
}

}  // namespace

constexpr OpDef kDrawNumbers{
    .name = "DrawNumbers",
    .onnx = {{.domain = "", .name = "RandomUniform", .since = 1, .lower = lower_uniform},
             {.domain = "", .name = "RandomUniformLike", .since = 1, .lower = lower_uniform},
             {.domain = "", .name = "RandomNormal", .since = 1, .lower = lower_normal},
             {.domain = "", .name = "RandomNormalLike", .since = 1, .lower = lower_normal},
             {.domain = "", .name = "Bernoulli", .since = 15, .lower = lower_bernoulli},
             {.domain = "", .name = "Multinomial", .since = 7, .lower = lower_multinomial}},
    .infer = infer_drawn,
    .no_gradient = "random numbers depend on nothing that is trained",
    .random = true,
    .traits = {.precision = {.chooses_result = true}},
};
constexpr Kernel kDrawNumbersKernel{
    .types = kFloating,
    .typed = kResult,
    .cost = elementwise_cost<40>,
    .prepare = prepare_drawn,
};

ORT_TRAIN_OPS_END
