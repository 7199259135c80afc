// AttentionGrad(dy, q, k, v, o, lse, bias?, rest?) -> dq, dk, dv: the gradient of Attention (attention.cpp).
//
// Scores are made again block by block. A task is a block of keys of one head of these: it goes through the rows of all heads that share
// them, in ascending order, which is the order of dk's and dv's sums. Those of dq are over blocks of keys, so a task adds to a block of
// rows when the task of the keys before has: how far a block of rows is stands in a counter. Tasks begin in ascending order and wait for
// earlier ones alone, so some thread always goes on. Where the results are of 16 bits, the sums lie in the workspace in float32.

#include <immintrin.h>

#include <atomic>
#include <thread>

#include "exec/attention.h"
#include "exec/math.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

using namespace attention;

// Scores, of which none exceeds lse, become weights p, their gradients dp become ds = scale * p * (dp - delta), delta = dy . o of the row.
template <typename T> void differentiate_row(const Problem& p, T* scores, T* gradients, int64_t n, T lse, T rest, T delta) {
  const int64_t end = padded(p, n);
  std::fill(scores + n, scores + end, -std::numeric_limits<T>::infinity());
  std::fill(gradients + n, gradients + end, T(0));
  const T scale = slope_of_scores(p, lse);
#pragma GCC ivdep
  for (int64_t j = 0; j < end; ++j) {
    scores[j] = math::exp_of_weight(scores[j] - lse - rest);
    gradients[j] = scale * scores[j] * (gradients[j] - delta);
  }
}

// The order of tasks: `together` heads of keys side by side, the first block of keys of each, then the second of each. So what a task waits
// for is mostly done.
struct Order {
  int64_t heads, blocks, together;

  explicit Order(const Problem& p) : heads(p.key_items()), blocks(p.key_blocks()) {
    constexpr int64_t kTasks = 32;  // that begin before one of their heads' last
    const int64_t most = (kTasks + blocks - 1) / blocks, turns = std::max<int64_t>(1, (heads + most - 1) / most);
    together = (heads + turns - 1) / turns;
  }
  struct Task {
    int64_t head, block;
  };
  Task at(int64_t task) const {
    const int64_t first = task / (together * blocks) * together, n = std::min(together, heads - first);
    task -= first * blocks;
    return {first + task % n, task / n};
  }
};

template <typename T> struct Backward {
  Problem p;
  Element dy, q, k, v, bias = Element::own, dq, dk, dv;
  Element weights;              // and the gradients of scores
  Element stored_dy, stored_o;  // as they are, for dy . o
  Order order;
  WorkspaceLayout each;
  Scratch<T> scratch;
  int64_t gradients_at = 0, dy_row_at = 0, o_row_at = 0, dk_at = 0, dv_at = 0;
  // Shared by all threads: for each block of rows of each head, how many blocks of keys have been added to its dq; dq's sums of the heads
  // that go side by side, unless there is one block of keys: then they are a thread's.
  WorkspaceLayout shared;
  int64_t added_at = 0, dq_at = 0;

  explicit Backward(const KernelSpec& spec)
      : p(problem_of(spec, 1, 6)),
        dy(operand_element(spec, 0)),
        q(operand_element(spec, 1)),
        k(operand_element(spec, 2)),
        v(operand_element(spec, 3)),
        dq(stored_element(spec.outputs[0])),
        dk(stored_element(spec.outputs[1])),
        dv(stored_element(spec.outputs[2])),
        weights(rounded_weights({dy, q, k, v})),
        stored_dy(stored_element(spec.inputs[0])),
        stored_o(stored_element(spec.inputs[4])),
        order(p),
        scratch(p, q, dy, weights, each) {
    if (spec.has(6)) bias = stored_element(spec.inputs[6]);
    const int64_t rows = std::min(p.rows, kQueries), keys = std::min(p.columns, kKeys);
    gradients_at = each.take<T>(rows * p.stride);
    dy_row_at = each.take<T>(p.width);
    o_row_at = each.take<T>(p.width);
    if (is_half(dk)) dk_at = each.take<T>(keys * p.depth);
    if (is_half(dv)) dv_at = each.take<T>(keys * p.width);
    added_at = shared.take<int32_t>(p.items() * p.query_blocks());
    if (is_half(dq)) dq_at = order.blocks == 1 ? each.take<T>(rows * p.depth) : shared.take<T>(side_by_side() * p.rows * p.depth);
  }

  Workspace workspace() const { return {.shared = shared.all(), .each = each.all()}; }

  void run(const KernelArgs& args) const {
    std::fill_n(added(args, 0, 0), p.items() * p.query_blocks(), 0);
    args.workers().parallel_in_order(order.heads * order.blocks, [&](int64_t task, int worker) {
      run_keys(args, order.at(task), args.workspace + shared.all() + worker * each.all());
    });
  }

 private:
  struct Head {  // of queries
    int64_t item;
    Operand<T> dy, q, k, v, stored_dy, stored_o;
    const T* lse;
    const std::byte* bias;
    const T* rest;  // with a bias
    Result<T> dq;
  };
  // What the rows see of a block of keys, and what they give to it: sums.
  struct Keys {
    int64_t block, column;
    T *dk, *dv;
  };

  int64_t side_by_side() const { return order.together * p.group; }
  // Of a block of rows.
  T* dq_sums(const KernelArgs& args, const Head& h, int64_t row, std::byte* workspace) const {
    if (!is_half(dq)) return h.dq.from(row, 0).own();
    if (order.blocks == 1) return at<T>(workspace, dq_at);
    return at<T>(args.workspace, dq_at) + (h.item % side_by_side() * p.rows + row) * p.depth;
  }
  int32_t* added(const KernelArgs& args, int64_t item, int64_t row) const {
    return at<int32_t>(args.workspace, added_at) + item * p.query_blocks() + row / kQueries;
  }
  static void wait(int32_t* added, int64_t blocks) {
    for (int turn = 0; std::atomic_ref(*added).load(std::memory_order_acquire) < blocks; ++turn) {
      if (turn < 1000)
        _mm_pause();
      else
        std::this_thread::yield();
    }
  }

  // One block of keys.
  void run_keys(const KernelArgs& args, const Order::Task& task, std::byte* workspace) const {
    const int64_t column = task.block * kKeys, n = std::min(kKeys, p.columns - column);
    const auto output = [&](size_t i, int64_t width, Element element) {
      return Result<T>(args.out<std::byte>(i), width, 1, element).from(task.head * p.columns + column, 0);
    };
    const Result<T> dk_to = output(1, p.depth, dk), dv_to = output(2, p.width, dv);
    const Keys keys{.block = task.block,
                    .column = column,
                    .dk = is_half(dk) ? at<T>(workspace, dk_at) : dk_to.own(),
                    .dv = is_half(dv) ? at<T>(workspace, dv_at) : dv_to.own()};
    std::fill_n(keys.dk, n * p.depth, T(0));
    std::fill_n(keys.dv, n * p.width, T(0));
    for (int64_t item = task.head * p.group; item < (task.head + 1) * p.group; ++item) {
      const Head head = head_of(args, item);
      for (int64_t row = p.causal ? column / kQueries * kQueries : 0; row < p.rows; row += kQueries)
        run_rows(args, head, keys, row, workspace);
    }
    if (is_half(dk)) store_elements(keys.dk, n * p.depth, dk_to);
    if (is_half(dv)) store_elements(keys.dv, n * p.width, dv_to);
  }

  Head head_of(const KernelArgs& args, int64_t item) const {
    const auto input = [&](size_t i, int64_t row, int64_t width, Element element) {
      return Operand<T>(args.in<std::byte>(i), width, 1, element).from(row, 0);
    };
    const int64_t row = item * p.rows, key = p.key_item(item) * p.columns;
    return {.item = item,
            .dy = input(0, row, p.width, dy),
            .q = input(1, row, p.depth, q),
            .k = input(2, key, p.depth, k),
            .v = input(3, key, p.width, v),
            .stored_dy = input(0, row, p.width, stored_dy),
            .stored_o = input(4, row, p.width, stored_o),
            .lse = args.in<T>(5) + row,
            .bias = args.inputs.size() > 6 && args.inputs[6] ? args.in<std::byte>(6) + bias_offset(p, item) * bytes_each<T>(bias) : nullptr,
            .rest = args.inputs.size() > 7 ? args.in<T>(7) + row : nullptr,
            .dq = Result<T>(args.out<std::byte>(0), p.depth, 1, dq).from(row, 0)};
  }

  // One block of rows of one head, with one block of keys.
  void run_rows(const KernelArgs& args, const Head& h, const Keys& keys, int64_t row, std::byte* workspace) const {
    const int64_t rows = std::min(kQueries, p.rows - row), column = keys.column;
    const int64_t n = p.block_columns(column, row + rows), diagonal = row - column;
    T *const scores = at<T>(workspace, scratch.scores_at), *const gradients = at<T>(workspace, gradients_at);
    T* const delta = at<T>(workspace, scratch.sum_at);
    for (int64_t i = 0; i < rows; ++i) {
      const T* const of_dy = vector_of<T>(h.stored_dy.from(row + i, 0).data, stored_dy, 0, p.width, workspace + dy_row_at);
      const T* const of_o = vector_of<T>(h.stored_o.from(row + i, 0).data, stored_o, 0, p.width, workspace + o_row_at);
      delta[i] = sum_row<T>(p.width, [&](T lane, int64_t e) { return math::fma(of_dy[e], of_o[e], lane); });
    }
    const Operand<T> k_columns(h.k.data, 1, p.depth, k), v_columns(h.v.data, 1, p.width, v);
    block_scores<T>(p, {.q = h.q, .k = k_columns, .bias = h.bias, .bias_element = bias}, row, rows, column, n, scratch, workspace);
    multiply<T>({.rows = rows,  // dp = dy v^T
                 .columns = n,
                 .depth = p.width,
                 .a = h.dy.from(row, 0),
                 .b = v_columns.from(0, column),
                 .c = {gradients, p.stride},
                 .triangle = p.causal ? Triangle::result : Triangle::none,
                 .diagonal = diagonal},
                workspace);
    for (int64_t i = 0; i < rows; ++i)
      differentiate_row(p, scores + i * p.stride, gradients + i * p.stride, seen(p, row + i, column, n), h.lse[row + i],
                        h.rest ? h.rest[row + i] : T(0), delta[i]);
    const auto down = [&](const T* of_scores, const Operand<T>& b, T* c, int64_t width) {  // c += of_scores^T b
      multiply<T>({.rows = n,
                   .columns = width,
                   .depth = rows,
                   .a = {reinterpret_cast<const std::byte*>(of_scores), 1, p.stride, weights},
                   .b = b,
                   .c = {c, width},
                   .start = {c, width},
                   .triangle = p.causal ? Triangle::a_upper : Triangle::none,
                   .diagonal = -diagonal},
                  workspace);
    };
    down(scores, h.dy.from(row, 0), keys.dv, p.width);
    down(gradients, h.q.from(row, 0), keys.dk, p.depth);
    add_to_queries(args, h, keys, row, gradients, workspace);
  }

  void add_to_queries(const KernelArgs& args, const Head& h, const Keys& keys, int64_t row, const T* gradients,
                      std::byte* workspace) const {
    const int64_t rows = std::min(kQueries, p.rows - row), seen_by_rows = p.columns_before(row + rows);
    const int64_t blocks = (seen_by_rows + kKeys - 1) / kKeys;
    int32_t* const count = added(args, h.item, row);
    if (keys.block > 0)
      wait(count, keys.block);
    else if (is_half(dq) && order.blocks > 1 && h.item >= side_by_side())  // whose sums were there before
      wait(added(args, h.item - side_by_side(), row), blocks);
    T* const sums = dq_sums(args, h, row, workspace);
    multiply<T>({.rows = rows,  // dq += ds k
                 .columns = p.depth,
                 .depth = p.block_columns(keys.column, row + rows),
                 .a = {reinterpret_cast<const std::byte*>(gradients), p.stride, 1, weights},
                 .b = h.k.from(keys.column, 0),
                 .c = {sums, p.depth},
                 .start = {keys.block > 0 ? sums : nullptr, p.depth},
                 .triangle = p.causal ? Triangle::a_lower : Triangle::none,
                 .diagonal = row - keys.column},
                workspace);
    if (is_half(dq) && keys.block + 1 == blocks) store_elements(sums, rows * p.depth, h.dq.from(row, 0));
    std::atomic_ref(*count).store(static_cast<int32_t>(keys.block + 1), std::memory_order_release);
  }
};

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Wide{}, compute_type(spec.inputs[0].dtype), [&]<typename T>() -> KernelRun {
    return [backward = Backward<T>(spec)](const KernelArgs& args) { backward.run(args); };
  });
}

Workspace workspace(const KernelSpec& spec) {
  return for_type(Wide{}, compute_type(spec.inputs[0].dtype), [&]<typename T>() { return Backward<T>(spec).workspace(); });
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
