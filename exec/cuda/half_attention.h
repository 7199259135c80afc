// Attention and its gradient whose operands are of 16 bits, or are rounded to these, on tensor cores (exec/cuda/cudnn_plan.h). What
// cuDNN doesn't make is made by the kernels of exec/cuda/ops: scores with a bias, heads of other sizes.
//
// Without a bias no row hides everything: its first column counts. So `safe` changes nothing.

#pragma once

#include <algorithm>
#include <array>
#include <optional>

#include "exec/attention_problem.h"
#include "exec/cuda/cudnn_plan.h"
#include "exec/cuda/half_tensors.h"

ORT_TRAIN_OPS_BEGIN
namespace attention {

// What cuDNN is asked for, on operands from `first` on (q, k, v) and a result of that type; none: it isn't asked.
inline std::optional<cuda::AttentionProblem> half_problem(const KernelSpec& spec, size_t first, size_t bias) {
  constexpr int64_t kLargest = 128, kMultiple = 8;
  const Problem p = problem_of(spec, first, bias);
  const DType type = halves::operand_type(spec, first);
  const auto fits = [&](int64_t size) { return size > 0 && size <= kLargest && size % kMultiple == 0; };
  if (!is_half(type) || spec.has(bias) || !fits(p.depth) || !fits(p.width) || p.items() == 0 || p.rows == 0) return std::nullopt;
  if (halves::operand_type(spec, first + 1) != type || halves::operand_type(spec, first + 2) != type) return std::nullopt;
  return cuda::AttentionProblem{.batch = p.batch,
                                .heads = p.heads,
                                .key_heads = p.heads / p.group,
                                .rows = p.rows,
                                .columns = p.columns,
                                .depth = p.depth,
                                .width = p.width,
                                .scale = p.scale,
                                .causal = p.causal,
                                .type = type};
}
// Whether a result, or what is to be like one, can be copied from that type or to it.
inline bool is_near(const TensorType& tensor, DType type) { return tensor.dtype == type || tensor.dtype == DType::float32; }

// --- forward --------------------------------------------------------------------------------------------------------------------------

struct HalfForward {
  const cuda::CudnnPlan* plan = nullptr;
  std::array<halves::HalfTensor, 3> operands;  // q, k, v
  halves::HalfTensor o;
  int64_t library_at = 0, bytes = 0;  // of the workspace

  void run(const KernelArgs& args) const {
    std::array<void*, 5> tensors{};
    for (size_t i = 0; i < operands.size(); ++i) tensors[i] = halves::rounded_input(operands[i], i, args);
    tensors[3] = halves::output_place(o, 0, args);
    tensors[4] = args.outputs[1];
    plan->run(tensors, halves::workspace_of(args) + library_at, args.queue);
    halves::widen_output(o, 0, args);
  }
};

inline std::optional<HalfForward> half_forward(const KernelSpec& spec) {
  const std::optional<cuda::AttentionProblem> problem = half_problem(spec, 0, 3);
  if (!problem || !is_near(spec.outputs[0], problem->type)) return std::nullopt;
  HalfForward forward{.plan = cuda::find_plan(*problem)};
  if (forward.plan == nullptr) return std::nullopt;
  halves::HalfWorkspace workspace;
  for (size_t i = 0; i < forward.operands.size(); ++i) forward.operands[i] = workspace.tensor(spec.inputs[i], problem->type);
  forward.o = workspace.tensor(spec.outputs[0], problem->type);
  forward.library_at = workspace.take(forward.plan->workspace_bytes());
  forward.bytes = workspace.all();
  return forward;
}

// --- gradient -------------------------------------------------------------------------------------------------------------------------

// What gives the same bits every time keeps all scores' gradients, so heads of keys go by, with the heads of queries that share them, as
// many together as have room for these: how many follows from the problem.
struct HalfBackward {
  const cuda::CudnnPlan *plan = nullptr, *last_plan = nullptr;  // of heads that go together; of the last of them
  int64_t heads = 0, together = 0;                              // of keys: in all; that go together
  std::array<halves::HalfTensor, 5> operands;                   // dy, q, k, v, o
  std::array<halves::HalfTensor, 3> gradients;                  // dq, dk, dv
  int64_t rows = 0, library_at = 0, bytes = 0;                  // of queries that share a head of keys; of the workspace

  void run(const KernelArgs& args) const {
    std::array<void*, 9> tensors{};
    std::array<int64_t, 9> steps{};  // bytes from some heads to the next
    const auto add = [&](size_t i, void* place, const halves::HalfTensor& tensor) {
      tensors[i] = place;
      steps[i] = bytes_of(tensor.type, tensor.elements / heads * together);
    };
    for (size_t i = 0; i < operands.size(); ++i) add(i, halves::rounded_input(operands[i], i, args), operands[i]);
    tensors[5] = const_cast<void*>(args.inputs[5]);
    steps[5] = bytes_of(DType::float32, rows * together);
    for (size_t i = 0; i < gradients.size(); ++i) add(6 + i, halves::output_place(gradients[i], i, args), gradients[i]);
    for (int64_t head = 0; head < heads; head += together) {
      (head + together < heads ? plan : last_plan)->run(tensors, halves::workspace_of(args) + library_at, args.queue);
      for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = static_cast<std::byte*>(tensors[i]) + steps[i];
    }
    for (size_t i = 0; i < gradients.size(); ++i) halves::widen_output(gradients[i], i, args);
  }
};

inline int64_t heads_together(const cuda::AttentionProblem& p) {
  constexpr int64_t kTile = 64;
  const auto padded = [](int64_t n) { return (n + kTile - 1) / kTile * kTile; };
  const int64_t heads = p.batch * p.key_heads;
  const int64_t bytes = p.heads / p.key_heads * padded(p.rows) * padded(p.columns) * size_of(p.type);
  const int64_t most = std::clamp<int64_t>(cuda::library_limits().score_bytes / bytes, 1, heads), groups = (heads + most - 1) / most;
  return (heads + groups - 1) / groups;
}

inline std::optional<HalfBackward> half_backward(const KernelSpec& spec) {
  std::optional<cuda::AttentionProblem> problem = half_problem(spec, 1, 6);
  if (!problem || halves::operand_type(spec, 0) != problem->type || !is_near(spec.inputs[4], problem->type)) return std::nullopt;
  for (const TensorType& gradient : spec.outputs) {
    if (!is_near(gradient, problem->type)) return std::nullopt;
  }
  const int64_t group = problem->heads / problem->key_heads;
  HalfBackward backward{.heads = problem->batch * problem->key_heads, .together = heads_together(*problem), .rows = problem->rows * group};
  problem->is_backward = true;
  const auto plan_of = [&](int64_t heads) {
    cuda::AttentionProblem some = *problem;
    if (heads < backward.heads) some.batch = heads, some.heads = group, some.key_heads = 1;
    constexpr int64_t kWhole = 4;  // the sums of rows, float32, that come before the library's workspace are to end at 16 bytes
    return heads * backward.rows % kWhole == 0 ? cuda::find_plan(some) : nullptr;
  };
  const int64_t rest = backward.heads % backward.together;
  backward.plan = plan_of(backward.together);
  backward.last_plan = rest == 0 ? backward.plan : plan_of(rest);
  if (backward.plan == nullptr || backward.last_plan == nullptr) return std::nullopt;
  halves::HalfWorkspace workspace;
  for (size_t i = 0; i < backward.operands.size(); ++i) backward.operands[i] = workspace.tensor(spec.inputs[i], problem->type);
  for (size_t i = 0; i < backward.gradients.size(); ++i) backward.gradients[i] = workspace.tensor(spec.outputs[i], problem->type);
  backward.library_at = workspace.take(std::max(backward.plan->workspace_bytes(), backward.last_plan->workspace_bytes()));
  backward.bytes = workspace.all();
  return backward;
}

}  // namespace attention
ORT_TRAIN_OPS_END
