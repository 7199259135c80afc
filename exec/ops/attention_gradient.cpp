// AttentionGrad(dy, q, k, v, o, lse, bias?) -> dq, dk, dv: the gradient of Attention (attention.cpp).
//
// Scores are made again block by block, in the order of the forward pass; a task is one head. What dq sums up over blocks of keys, and dk
// and dv over blocks of rows, lies in the workspace in float32 where the results are of 16 bits.

#include "exec/attention.h"
#include "exec/math.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace attention;

// Scores become weights p, their gradients dp become ds = scale * p * (dp - delta), delta = dy . o of the row.
template <typename T> void differentiate_row(const Problem& p, T* scores, T* gradients, int64_t n, T lse, T delta) {
  const int64_t end = padded(p, n);
  std::fill(scores + n, scores + end, -std::numeric_limits<T>::infinity());
  std::fill(gradients + n, gradients + end, T(0));
  const T scale = static_cast<T>(p.scale);
#pragma GCC ivdep
  for (int64_t j = 0; j < end; ++j) {
    scores[j] = math::exp(scores[j] - lse);
    gradients[j] = scale * scores[j] * (gradients[j] - delta);
  }
}

template <typename T> struct Backward {
  Problem p;
  Element dy, q, k, v, bias = Element::own, dq, dk, dv;
  Element stored_dy, stored_o;  // as they are, for dy . o
  Places places;
  Scratch<T> scratch;
  int64_t gradients_at = 0, dy_row_at = 0, o_row_at = 0, dq_at = 0, dk_at = 0, dv_at = 0;

  explicit Backward(const KernelSpec& spec)
      : p(problem_of(spec, 1, 6)),
        dy(operand_element(spec, 0)),
        q(operand_element(spec, 1)),
        k(operand_element(spec, 2)),
        v(operand_element(spec, 3)),
        dq(stored_element(spec.outputs[0])),
        dk(stored_element(spec.outputs[1])),
        dv(stored_element(spec.outputs[2])),
        stored_dy(stored_element(spec.inputs[0])),
        stored_o(stored_element(spec.inputs[4])),
        scratch(p, q == Element::own ? dy : q, places) {
    if (spec.has(6)) bias = stored_element(spec.inputs[6]);
    const int64_t rows = std::min(p.rows, kQueries);
    gradients_at = places.take<T>(rows * p.stride);
    dy_row_at = places.take<T>(p.width);
    o_row_at = places.take<T>(p.width);
    if (is_half(dq)) dq_at = places.take<T>(rows * p.depth);
    if (is_half(dk)) dk_at = places.take<T>(p.columns * p.depth);
    if (is_half(dv)) dv_at = places.take<T>(p.columns * p.width);
  }

  // One head.
  void run(const KernelArgs& args, int64_t item, std::byte* place) const {
    const auto input = [&](size_t i, int64_t rows, int64_t width, Element element) {
      return Operand<T>(args.in<std::byte>(i), width, 1, element).from(item * rows, 0);
    };
    const auto output = [&](size_t i, int64_t rows, int64_t width, Element element) {
      return Result<T>(args.out<std::byte>(i), width, 1, element).from(item * rows, 0);
    };
    const Result<T> dk_to = output(1, p.columns, p.depth, dk), dv_to = output(2, p.columns, p.width, dv);
    const Head h{
        .dy = input(0, p.rows, p.width, dy),
        .q = input(1, p.rows, p.depth, q),
        .k = input(2, p.columns, p.depth, k),
        .v = input(3, p.columns, p.width, v),
        .stored_dy = input(0, p.rows, p.width, stored_dy),
        .stored_o = input(4, p.rows, p.width, stored_o),
        .lse = args.in<T>(5) + item * p.rows,
        .bias = args.inputs.size() > 6 && args.inputs[6] ? args.in<std::byte>(6) + bias_offset(p, item) * bytes_each<T>(bias) : nullptr,
        .dq = output(0, p.rows, p.depth, dq),
        .dk = is_half(dk) ? at<T>(place, dk_at) : dk_to.own(),
        .dv = is_half(dv) ? at<T>(place, dv_at) : dv_to.own()};
    std::fill_n(h.dk, p.columns * p.depth, T(0));
    std::fill_n(h.dv, p.columns * p.width, T(0));
    for (int64_t row = 0; row < p.rows; row += kQueries) run_rows(h, row, place);
    if (is_half(dk)) store_elements(h.dk, p.columns * p.depth, dk_to);
    if (is_half(dv)) store_elements(h.dv, p.columns * p.width, dv_to);
  }

 private:
  struct Head {
    Operand<T> dy, q, k, v, stored_dy, stored_o;
    const T* lse;
    const std::byte* bias;
    Result<T> dq;
    T *dk, *dv;  // sums
  };

  void run_rows(const Head& h, int64_t row, std::byte* place) const {
    const int64_t rows = std::min(kQueries, p.rows - row), columns = p.causal ? std::min(p.columns, row + rows) : p.columns;
    T *const scores = at<T>(place, scratch.scores_at), *const gradients = at<T>(place, gradients_at);
    T* const delta = at<T>(place, scratch.sum_at);
    for (int64_t i = 0; i < rows; ++i) {
      const T* const of_dy = vector_of<T>(h.stored_dy.from(row + i, 0).data, stored_dy, 0, p.width, place + dy_row_at);
      const T* const of_o = vector_of<T>(h.stored_o.from(row + i, 0).data, stored_o, 0, p.width, place + o_row_at);
      delta[i] = sum_row<T>(p.width, [&](T lane, int64_t e) { return math::fma(of_dy[e], of_o[e], lane); });
    }
    const Result<T> dq_to = h.dq.from(row, 0);
    T* const dq_sums = is_half(dq) ? at<T>(place, dq_at) : dq_to.own();
    const Operand<T> k_columns(h.k.data, 1, p.depth, k), v_columns(h.v.data, 1, p.width, v);
    for (int64_t column = 0; column < columns; column += kKeys) {
      const int64_t n = p.block_columns(column, row + rows), diagonal = row - column;
      block_scores<T>(p, {.q = h.q, .k = k_columns, .bias = h.bias, .bias_element = bias}, row, rows, column, n, scratch, place);
      multiply<T>({.rows = rows,  // dp = dy v^T
                   .columns = n,
                   .depth = p.width,
                   .a = h.dy.from(row, 0),
                   .b = v_columns.from(0, column),
                   .c = {gradients, p.stride},
                   .triangle = p.causal ? Triangle::result : Triangle::none,
                   .diagonal = diagonal},
                  place);
      for (int64_t i = 0; i < rows; ++i)
        differentiate_row(p, scores + i * p.stride, gradients + i * p.stride, seen(p, row + i, column, n), h.lse[row + i], delta[i]);
      multiply<T>({.rows = rows,  // dq += ds k
                   .columns = p.depth,
                   .depth = n,
                   .a = {gradients, p.stride},
                   .b = h.k.from(column, 0),
                   .c = {dq_sums, p.depth},
                   .start = {column > 0 ? dq_sums : nullptr, p.depth},
                   .triangle = p.causal ? Triangle::a_lower : Triangle::none,
                   .diagonal = diagonal},
                  place);
      const auto down = [&](const T* weights, const Operand<T>& b, T* c, int64_t width) {  // c += weights^T b
        multiply<T>({.rows = n,
                     .columns = width,
                     .depth = rows,
                     .a = {weights, 1, p.stride},
                     .b = b,
                     .c = {c, width},
                     .start = {c, width},
                     .triangle = p.causal ? Triangle::a_upper : Triangle::none,
                     .diagonal = -diagonal},
                    place);
      };
      down(scores, h.dy.from(row, 0), h.dv + column * p.width, p.width);
      down(gradients, h.q.from(row, 0), h.dk + column * p.depth, p.depth);
    }
    if (is_half(dq)) store_elements(dq_sums, rows * p.depth, dq_to);
  }
};

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Wide{}, compute_type(spec.inputs[0].dtype), [&]<typename T>() -> KernelRun {
    return [backward = Backward<T>(spec)](const KernelArgs& args) {
      args.workers().parallel_for(
          backward.p.items(), [&](int64_t item, int worker) { backward.run(args, item, args.workspace + worker * backward.places.all()); });
    };
  });
}

Workspace workspace(const KernelSpec& spec) {
  return for_type(Wide{}, compute_type(spec.inputs[0].dtype),
                  [&]<typename T>() { return Workspace{.each = Backward<T>(spec).places.all()}; });
}

std::vector<TensorType> infer(const InferContext& context) {
  const TensorType &q = context.input(1), &k = context.input(2), &v = context.input(3);
  result_type(context.attributes, {context.input(0).dtype, q.dtype, k.dtype, v.dtype, context.input(4).dtype});
  return {q, k, v};
}

}  // namespace

constexpr OpDef kAttentionGrad{
    .name = "AttentionGrad",
    .infer = infer,
    .no_gradient = kNoSecondDerivative,
};
constexpr Kernel kAttentionGradKernel{
    .types = kWide | kMixed,
    .cost = cost<1, 6, 5>,
    .efficiency = efficiency<1, 6, 5>,
    .workspace = workspace,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
