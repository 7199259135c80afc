// Softmax and cross-entropy of class labels in one op (ONNX SoftmaxCrossEntropyLoss-13 with the classes last): never writes the
// probabilities.
//
//   SoftmaxCrossEntropy{ignore_index, smoothing, z_loss}(logits (..., V), labels int64 (...), w? (V)) -> loss_sum [], lse (...)
//     lse = log sum exp of a row; w: a weight for each class, 1 where there is none; loss_sum = sum over rows whose label isn't
//     ignore_index of (1 - smoothing) w[label] (lse - logits[label]) + smoothing / V * sum over classes of w (lse - logits) + w[label]
//     z_loss lse^2
//   SoftmaxCrossEntropyGrad{the same}(d_loss_sum [], logits, lse, labels, w?) -> dlogits =
//     (exp(logits - lse) ((1 - smoothing) w[label] + smoothing / V * sum of w + 2 w[label] z_loss lse)
//      - smoothing / V * w - (1 - smoothing) w[label] [class = label]) d_loss_sum
//   CountLabels{ignore_index}(labels, w?) -> float32 [], the rows that count, each as the weight of its label
//
// Where logits are made in parts (passes/split_logits.h), of classes [from, from + V') of `classes`, and there is no w:
//
//   SoftmaxCrossEntropyPart{from, smoothing}(logits (..., V'), labels, state?) -> state float64 (..., 5) of the classes so far
//   SoftmaxCrossEntropyOfParts{ignore_index, smoothing, z_loss, classes, to}(state, labels) -> loss_sum, lse, of type `to`
//   SoftmaxCrossEntropyGrad{the same, from, classes}, of a part's logits
//
// Parts that begin at multiples of kClassChunk have the bits of the whole.
//
// As torch.nn.functional.cross_entropy has it, whose mean is loss_sum / count.
//
// Saves the logits, which the gradient overwrites, and lse. loss_sum and lse are float32 or wider. A row is summed in fixed chunks of
// lanes (exec/class_chunk.h), rows in ascending order in double. A label outside the classes is the data's fault: a DataError.

#include "exec/ops/cross_entropy.h"

#include <algorithm>
#include <limits>

#include "exec/lane_rows.h"
#include "exec/lanes.h"
#include "exec/map_elements.h"
#include "exec/math.h"
#include "exec/op_list.h"
#include "exec/product_types.h"

ORT_TRAIN_OPS_BEGIN
namespace {

constexpr int64_t kTaskElements = 32768;

int64_t rows_per_task(int64_t classes) { return std::max<int64_t>(1, kTaskElements / std::max<int64_t>(classes, 1)); }

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType &logits = context.input(0), &labels = context.input(1);
  if (!is_floating(logits.dtype) || logits.shape.empty())
    throw error(ErrorCode::unsupported, "logits are {}; they need a last axis of classes", to_string(logits));
  const Shape leading(logits.shape.begin(), logits.shape.end() - 1);
  if (labels.dtype != DType::int64 || labels.shape != leading) {
    throw error(ErrorCode::unsupported, "labels are {}, but logits {} need int64 {}", to_string(labels), to_string(logits),
                to_string(leading));
  }
  const DType computed = compute_type(logits.dtype);
  if (context.has(2) && context.input(2) != TensorType{computed, {logits.shape.back()}})
    throw error(ErrorCode::unsupported, "the weights of the classes are {}, the logits {}", to_string(context.input(2)), to_string(logits));
  return {{computed, {}}, {computed, leading}};
}

// The largest of a chunk is the same in any order: lanes take neighbours, whatever the type.
template <typename T, typename C = Compute<T>> C largest_of(const T* __restrict x, int64_t n) {
  const auto larger = [](C a, C b) { return a > b ? a : b; };
  return fold_row<C, kClassLanes>(
      n, -std::numeric_limits<C>::infinity(), [&](C lane, int64_t i) { return load(x[i]) > lane ? load(x[i]) : lane; }, larger);
}

// Sum of what `of` makes of each element of a chunk. Of 16 bits neighbours are one lane's (exec/lanes.h): they are moved to where the lanes
// lie beside each other. Else all are made first, in vectors, and then added.
template <typename T, typename Of> Compute<T> chunk_sum(const T* __restrict chunk, int64_t n, Of of) {
  using C = Compute<T>;
  if constexpr (sizeof(T) == 2) {
    return sum_rows<T, kClassLanes>(
        n, [&](C lane, C v) { return lane + of(v); }, chunk);
  } else {
    C made[kClassChunk];
    for (int64_t i = 0; i < n; ++i) made[i] = of(load(chunk[i]));
    return fold_row<T, kClassLanes>(
        n, C(0), [&](C lane, int64_t i) { return lane + made[i]; }, [](C a, C b) { return a + b; });
  }
}

// Takes in n more classes of a row.
template <typename T> void add_classes(const T* x, int64_t n, bool smoothed, RowState& row) {
  using C = Compute<T>;
  for (int64_t begin = 0; begin < n; begin += kClassChunk) {
    const T* const chunk = x + begin;
    const int64_t count = std::min(kClassChunk, n - begin);
    const C largest = largest_of(chunk, count), base = base_of_chunk(largest);
    row.exps = row.exps + scaled_sum(largest, chunk_sum(chunk, count, [=](C v) { return math::exp(v - base); }));
    if (smoothed) row.plain += static_cast<double>(chunk_sum(chunk, count, [](C v) { return v; }));
  }
}

// Takes in all classes of kRowsTogether short rows, in the order of add_classes(): rows side by side in a vector.
constexpr int64_t kShortRow = 64, kRowsTogether = 16;
template <typename T> void add_short_rows(const T* x, int64_t n, bool smoothed, RowState* rows) {
  float largest[kRowsTogether], base[kRowsTogether];
  float values[kShortRow][kRowsTogether], lanes[kClassLanes][kRowsTogether] = {};
  for (int64_t r = 0; r < kRowsTogether; ++r) {
    for (int64_t i = 0; i < n; ++i) values[i][r] = load(x[r * n + i]);
  }
  std::fill_n(largest, kRowsTogether, -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t r = 0; r < kRowsTogether; ++r) largest[r] = values[i][r] > largest[r] ? values[i][r] : largest[r];
  }
  for (int64_t r = 0; r < kRowsTogether; ++r) base[r] = base_of_chunk(largest[r]);
  for (int64_t i = 0; i < n; ++i) {
    float* const lane = lanes[(sizeof(T) == 2 ? i / 8 : i) % kClassLanes];
    for (int64_t r = 0; r < kRowsTogether; ++r) lane[r] += math::exp(values[i][r] - base[r]);
  }
  for (int half = kClassLanes / 2; half > 0; half /= 2) {
    for (int l = 0; l < half; ++l) {
      for (int64_t r = 0; r < kRowsTogether; ++r) lanes[l][r] += lanes[l + half][r];
    }
  }
  for (int64_t r = 0; r < kRowsTogether; ++r) {
    rows[r].exps = scaled_sum(largest[r], lanes[0][r]);
    if (smoothed) rows[r].plain = static_cast<double>(chunk_sum(x + r * n, n, [](float v) { return v; }));
  }
}

// The loss of a row whose classes have weights.
template <typename T, typename C>
double weighted_loss(const CrossEntropyTerms& terms, const T* x, int64_t n, const C* weights, int64_t label, double lse) {
  const auto x_at = [&](int64_t i) { return static_cast<double>(load(x[i])); };
  const auto weight = [&](int64_t i) { return static_cast<double>(weights[i]); };
  double all = 0;
  for (int64_t i = 0; terms.smoothing != 0 && i < n; ++i) all += terms.weighted_at(x_at(i), weight(i), lse);
  return terms.weighted_loss(lse, x_at(label), weight(label), all, n);
}

template <typename T> KernelRun forward(const KernelSpec& spec) {
  return [n = class_count(spec, 0), rows = label_count(spec, 0), ignore = spec.attributes.get("ignore_index", kNothingIgnored),
          terms = CrossEntropyTerms(spec.attributes), has_weights = spec.has(2)](const KernelArgs& args) {
    using C = Compute<T>;
    const bool smoothed = terms.smoothing != 0 && !has_weights;
    auto* losses = reinterpret_cast<double*>(args.workspace);
    const auto* labels = args.in<int64_t>(1);
    const C* const weights = has_weights ? args.in<C>(2) : nullptr;
    const int64_t block = rows_per_task(n);
    args.workers().parallel_blocks(rows, block, [&](int64_t begin, int64_t end) {
      RowState together[kRowsTogether];
      for (int64_t row = begin; row < end; ++row) {
        const T* x = args.in<T>(0) + row * n;
        const int64_t at = (row - begin) % kRowsTogether;
        RowState& state = together[at];
        if (std::is_same_v<C, float> && n <= kShortRow && row - at + kRowsTogether <= end) {
          if constexpr (std::is_same_v<C, float>) {
            if (at == 0) add_short_rows(x, n, smoothed, together);
          }
        } else {
          state = {};
          add_classes(x, n, smoothed, state);
        }
        const double lse = log_of<C>(state.exps);
        args.out<C>(1)[row] = static_cast<C>(lse);
        if (labels[row] == ignore) {
          losses[row] = 0;
          continue;
        }
        if (labels[row] < 0 || labels[row] >= n) {
          args.error->report(DataError::label, labels[row], n, row);
          losses[row] = 0;
          continue;
        }
        losses[row] = weights != nullptr ? weighted_loss(terms, x, n, weights, labels[row], lse)
                                         : terms.loss(lse, static_cast<double>(load(x[labels[row]])), state.plain, n);
      }
    });
    double sum = 0;
    for (int64_t row = 0; row < rows; ++row) sum += losses[row];
    *args.out<C>(0) = static_cast<C>(sum);
  };
}

// --- parts ----------------------------------------------------------------------------------------------------------------------------

std::vector<TensorType> infer_part(const InferContext& context) {
  const TensorType &logits = context.input(0), &labels = context.input(1);
  TensorType state{DType::float64, labels.shape};
  state.shape.push_back(kStateNumbers);
  Shape leading = logits.shape;
  if (!leading.empty()) leading.pop_back();
  if (!is_floating(logits.dtype) || logits.shape.empty() || labels.dtype != DType::int64 || labels.shape != leading)
    throw error(ErrorCode::unsupported, "there is no part of a loss of {} and {}", to_string(logits), to_string(labels));
  if (context.has(2) && context.input(2) != state)
    throw error(ErrorCode::unsupported, "the state is {} instead of {}", to_string(context.input(2)), to_string(state));
  return {state};
}

template <typename T> KernelRun forward_part(const KernelSpec& spec) {
  return [n = class_count(spec, 0), rows = label_count(spec, 0), range = ClassRange(spec.attributes, 0),
          smoothed = CrossEntropyTerms(spec.attributes).smoothing != 0, goes_on = spec.has(2)](const KernelArgs& args) {
    const auto* const before = goes_on ? reinterpret_cast<const RowState*>(args.in<double>(2)) : nullptr;
    auto* const states = reinterpret_cast<RowState*>(args.out<double>(0));
    args.workers().parallel_blocks(rows, rows_per_task(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* const x = args.in<T>(0) + row * n;
        RowState state = before ? before[row] : RowState{};
        add_classes(x, n, smoothed, state);
        const int64_t label = args.in<int64_t>(1)[row];
        if (range.holds(label, n)) state.at_label = static_cast<double>(load(x[label - range.from]));
        states[row] = state;
      }
    });
  };
}

std::vector<TensorType> infer_of_parts(const InferContext& context) {
  const TensorType &state = context.input(0), &labels = context.input(1);
  Shape leading = state.shape;
  if (leading.empty() || state.dtype != DType::float64 || leading.back() != kStateNumbers)
    throw error(ErrorCode::unsupported, "{} is no state of a loss", to_string(state));
  leading.pop_back();
  if (labels != TensorType{DType::int64, leading})
    throw error(ErrorCode::unsupported, "the labels are {}, the state {}", to_string(labels), to_string(state));
  const DType to = type_from(context.attributes, "to", DType::float32);
  return {{to, {}}, {to, leading}};
}

KernelRun loss_of_parts(const KernelSpec& spec) {
  return for_type(Wide{}, spec.outputs[0].dtype, [&]<typename C>() -> KernelRun {
    return [rows = element_count(spec.inputs[1].shape), range = ClassRange(spec.attributes, 0),
            ignore = spec.attributes.get("ignore_index", kNothingIgnored),
            terms = CrossEntropyTerms(spec.attributes)](const KernelArgs& args) {
      const auto* const states = reinterpret_cast<const RowState*>(args.in<double>(0));
      double sum = 0;
      for (int64_t row = 0; row < rows; ++row) {
        const RowState& state = states[row];
        const double lse = log_of<C>(state.exps);
        args.out<C>(1)[row] = static_cast<C>(lse);
        const int64_t label = args.in<int64_t>(1)[row];
        if (label == ignore) continue;
        if (range.is_class(label))
          sum += terms.loss(lse, state.at_label, state.plain, range.classes);
        else
          args.error->report(DataError::label, label, range.classes, row);
      }
      *args.out<C>(0) = static_cast<C>(sum);
    };
  });
}

// --- gradient -------------------------------------------------------------------------------------------------------------------------

// dx = e^(x - lse) * scale - less * weights; dx may be x.
template <typename T>
void scaled_softmax(const T* x, T* dx, int64_t n, Compute<T> lse, Compute<T> scale, Compute<T> less, const Compute<T>* weights) {
  map_elements(
      dx, n, [=](Compute<T> value, Compute<T> weight) { return math::exp(value - lse) * scale - less * weight; }, x, weights);
}
// The same where the classes have no weights.
template <typename T> void scaled_softmax(const T* x, T* dx, int64_t n, Compute<T> lse, Compute<T> scale, Compute<T> less) {
  map_elements(
      dx, n, [=](Compute<T> value) { return math::exp(value - lse) * scale - less; }, x);
}

template <typename T> KernelRun backward(const KernelSpec& spec) {
  return [n = class_count(spec, 1), rows = label_count(spec, 1), ignore = spec.attributes.get("ignore_index", kNothingIgnored),
          range = ClassRange(spec.attributes, class_count(spec, 1)), terms = CrossEntropyTerms(spec.attributes),
          has_weights = spec.has(4)](const KernelArgs& args) {
    using C = Compute<T>;
    const C* const weights = has_weights ? args.in<C>(4) : nullptr;
    double all_weights = 0;
    for (int64_t i = 0; weights != nullptr && i < n; ++i) all_weights += static_cast<double>(weights[i]);
    const C scale = *args.in<C>(0);
    const auto* labels = args.in<int64_t>(3);
    args.workers().parallel_blocks(rows, rows_per_task(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = args.in<T>(1) + row * n;  // may be dx itself
        T* dx = args.out<T>(0) + row * n;
        if (labels[row] == ignore) {
          std::fill(dx, dx + n, store<T>(C(0)));
          continue;
        }
        const C lse = args.in<C>(2)[row];
        if (!range.is_class(labels[row])) continue;  // the forward pass has reported it
        const CrossEntropySlope<C> slope =
            weights != nullptr ? terms.weighted_slope(lse, weights[labels[row]], all_weights, n) : terms.slope(lse, range.classes);
        const int64_t label = labels[row] - range.from;
        const bool has_label = range.holds(labels[row], n);
        const C at_label =
            has_label ? (math::exp(load(x[label]) - lse) * slope.of_softmax - slope.all_at_label - slope.of_label) * scale : C(0);
        if (weights != nullptr)
          scaled_softmax(x, dx, n, lse, slope.of_softmax * scale, slope.of_all * scale, weights);
        else
          scaled_softmax(x, dx, n, lse, slope.of_softmax * scale, slope.of_all * scale);
        if (has_label) dx[label] = store<T>(at_label);
      }
    });
  };
}

KernelRun prepare_forward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() { return forward<T>(spec); });
}
KernelRun prepare_part(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() { return forward_part<T>(spec); });
}
KernelRun prepare_backward(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[1].dtype, [&]<typename T>() { return backward<T>(spec); });
}

void gradient(const Node& node, GradientBuilder& g) {
  std::vector<ValueId> inputs{g.output_gradient(0), node.inputs[0], node.outputs[1], node.inputs[1]};
  if (node.inputs.size() > 2) inputs.push_back(node.inputs[2]);
  g.input_gradient(0, g.emit("SoftmaxCrossEntropyGrad", std::move(inputs), node.attributes));
}

std::vector<TensorType> infer_count(const InferContext& context) {
  if (context.input(0).dtype != DType::int64)
    throw error(ErrorCode::unsupported, "labels are {} instead of int64", to_string(context.input(0)));
  if (context.has(1) && (context.input(1).shape.size() != 1 || compute_type(context.input(1).dtype) != context.input(1).dtype ||
                         !is_floating(context.input(1).dtype)))
    throw error(ErrorCode::unsupported, "the weights of the classes are {}", to_string(context.input(1)));
  return {{DType::float32, {}}};
}

KernelRun make_count(const KernelSpec& spec) {
  const int64_t classes = spec.has(1) ? spec.inputs[1].shape[0] : 0;
  return [n = element_count(spec.inputs[0].shape), ignore = spec.attributes.get("ignore_index", kNothingIgnored), classes,
          in_double = spec.has(1) && spec.inputs[1].dtype == DType::float64](const KernelArgs& args) {
    const auto* labels = args.in<int64_t>(0);
    if (classes == 0) {
      *args.out<float>(0) = static_cast<float>(n - std::count(labels, labels + n, ignore));
      return;
    }
    const auto sum_of = [&]<typename T>(const T* weights) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i) {
        if (labels[i] != ignore && labels[i] >= 0 && labels[i] < classes) sum += static_cast<double>(weights[labels[i]]);
      }
      return sum;
    };
    *args.out<float>(0) = static_cast<float>(in_double ? sum_of(args.in<double>(1)) : sum_of(args.in<float>(1)));
  };
}

// Labels (N, d...) of scores (N, C, d...).
ValueId labels_of(Lowering& l) {
  const ValueId labels = l.input(1);
  Shape expected = l.shape(l.input(0));
  if (expected.size() >= 2) expected.erase(expected.begin() + 1);
  if (expected.empty() || l.shape(l.input(0)).size() < 2 || l.shape(labels) != expected)
    l.fail(fmt::format("scores {} and labels {} don't fit: they are (N, C, ...) and (N, ...)", to_string(l.shape(l.input(0))),
                       to_string(l.shape(labels))));
  return l.dtype(labels) == DType::int64 ? labels : l.emit("Cast", {labels}, {{"to", static_cast<int64_t>(DType::int64)}});
}

ValueId sum_of(Lowering& l, ValueId x) {
  const int64_t n = element_count(l.shape(x));
  return l.emit("ReduceSum", {l.reshape(x, {n})}, {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
}

// Losses from logarithms of probabilities (N, C, d...): each row's at its label, weighted by the label's class.
ValueId picked_loss(Lowering& l, ValueId logarithms) {
  const ValueId labels = labels_of(l), zero = l.scalar_like(logarithms, 0);
  const Shape shape = l.shape(labels);
  ValueId ignored = kNone, safe = labels;
  if (l.node.attributes.has("ignore_index")) {
    ignored = l.emit("Equal", {labels, l.constant(scalar_tensor(l.node.attributes.get("ignore_index", kNothingIgnored)))});
    safe = l.emit("Where", {ignored, l.constant(scalar_tensor(int64_t{0})), labels});
  }
  // No class has a number below zero, while GatherElements' indices count from the end there: these become one that none has.
  const ValueId none = l.constant(scalar_tensor(l.shape(logarithms)[1]));
  safe = l.emit("Where", {l.emit("Less", {safe, l.constant(scalar_tensor(int64_t{0}))}), none, safe});
  Shape column = shape;
  column.insert(column.begin() + 1, 1);
  ValueId loss = l.emit("Neg", {l.reshape(l.emit("GatherElements", {logarithms, l.reshape(safe, column)}, {{"axis", int64_t{1}}}), shape)});
  ValueId weights = l.has(2) ? l.emit("Gather", {l.input(2), safe}, {{"axis", int64_t{0}}}) : kNone;
  if (weights != kNone) loss = l.emit("Mul", {loss, weights});
  if (ignored != kNone) {
    loss = l.emit("Where", {ignored, zero, loss});
    if (weights == kNone) weights = l.emit("Expand", {l.scalar_like(logarithms, 1)}, {{"shape", shape}});
    weights = l.emit("Where", {ignored, zero, weights});
  }
  const std::string reduction = l.node.attributes.get("reduction", "mean");
  if (reduction == "none") return loss;
  const ValueId sum = sum_of(l, loss);
  if (reduction == "sum") return sum;
  return l.emit("Div", {sum, weights == kNone ? l.scalar_like(sum, static_cast<double>(element_count(shape))) : sum_of(l, weights)});
}

void lower_negative_log_likelihood(Lowering& l) { l.output(0, picked_loss(l, l.input(0))); }

void lower(Lowering& l) {
  const std::string reduction = l.node.attributes.get("reduction", "mean");
  ValueId scores = l.input(0);
  const size_t rank = l.shape(scores).size();
  if (l.node.outputs > 1 || l.has(2) || reduction == "none") {  // needs the logarithms themselves
    const ValueId logarithms = l.emit("LogSoftmax", {scores}, {{"axis", int64_t{1}}});
    l.output(0, picked_loss(l, logarithms));
    if (l.node.outputs > 1) l.output(1, logarithms);
    return;
  }
  if (rank > 2) {  // (N, C, d...) -> (N, d..., C)
    std::vector<int64_t> permutation{0};
    for (size_t i = 2; i < rank; ++i) permutation.push_back(static_cast<int64_t>(i));
    permutation.push_back(1);
    scores = l.transpose(scores, permutation);
  }
  const ValueId labels = labels_of(l);
  const Attributes attributes{{"ignore_index", l.node.attributes.get("ignore_index", kNothingIgnored)}};
  ValueId loss = l.emit_many("SoftmaxCrossEntropy", {scores, labels}, attributes, 2)[0];
  if (reduction == "mean") {
    ValueId count = l.emit("CountLabels", {labels}, attributes);
    if (l.dtype(loss) != DType::float32) count = l.emit("Cast", {count}, {{"to", static_cast<int64_t>(l.dtype(loss))}});
    loss = l.emit("Div", {loss, count});
  }
  const DType given = l.dtype(scores);  // which ONNX gives the loss too
  l.output(0, l.dtype(loss) == given ? loss : l.emit("Cast", {loss}, {{"to", static_cast<int64_t>(given)}}));
}

}  // namespace

constexpr OpDef kSoftmaxCrossEntropy{
    .name = "SoftmaxCrossEntropy",
    .onnx = {{.domain = "", .name = "SoftmaxCrossEntropyLoss", .since = 12, .lower = lower},
             {.domain = "", .name = "NegativeLogLikelihoodLoss", .since = 12, .lower = lower_negative_log_likelihood}},
    .infer = infer,
    .gradient = gradient,
};
constexpr Kernel kSoftmaxCrossEntropyKernel{
    .types = kFloating,
    .cost = cross_entropy_cost,
    .workspace = cross_entropy_workspace,
    .prepare = prepare_forward,
};
constexpr OpDef kSoftmaxCrossEntropyPart{
    .name = "SoftmaxCrossEntropyPart",
    .infer = infer_part,
    .no_gradient = "logits are divided after the gradients are made",
};
constexpr Kernel kSoftmaxCrossEntropyPartKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 2}},
    .cost = cross_entropy_cost,
    .prepare = prepare_part,
};
constexpr OpDef kSoftmaxCrossEntropyOfParts{
    .name = "SoftmaxCrossEntropyOfParts",
    .infer = infer_of_parts,
    .no_gradient = "logits are divided after the gradients are made",
};
constexpr Kernel kSoftmaxCrossEntropyOfPartsKernel{
    .types = dtypes_of(Types<double>{}),
    .cost = cross_entropy_cost,
    .prepare = loss_of_parts,
};
constexpr OpDef kSoftmaxCrossEntropyGrad{
    .name = "SoftmaxCrossEntropyGrad",
    .infer = [](const InferContext& context) { return std::vector<TensorType>{context.input(1)}; },
    .no_gradient = "second derivatives are not trained",
};
constexpr Kernel kSoftmaxCrossEntropyGradKernel{
    .types = kFloating,
    .typed = 1,
    .in_place = {{.output = 0, .input = 1}},
    .cost = cross_entropy_cost,
    .prepare = prepare_backward,
};
constexpr OpDef kCountLabels{
    .name = "CountLabels",
    .infer = infer_count,
    .no_gradient = "labels and what they count are no function of a weight",
};
constexpr Kernel kCountLabelsKernel{
    .types = {DType::int64},
    .cost = cross_entropy_cost,
    .prepare = make_count,
};

ORT_TRAIN_OPS_END
