// Attention and convolutions of 16 bits on tensor cores, by cuDNN, with sums in float32.
//
// The library is opened when a plan is first asked for. A plan is the first of its suggestions that gives the same bits every time, adds up
// in float32 and needs no more workspace than a size that follows from the problem: a fixed function of problem, GPU and the library's
// version, unless the GPU's table (exec/algorithms.h) names one already. The order of a sum is the library's own, so the bits are not the
// processor's.
//
// Where there is no cuDNN, or it has no way, there is no plan, and the kernels of exec/cuda/ops compute in 16 bits as they do in float32.

#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <span>
#include <string>

#include "exec/cuda/libraries.h"
#include "graph/types.h"

ORT_TRAIN_LIBRARIES_BEGIN

// A workspace begins at a multiple of kLibraryAlignment, a tensor at one of 16 bytes.

// Of tensors (batch, heads, rows or columns, depth or width), each in one piece; lse is float32, all others are of one type.
//   forward    q, k, v -> o, lse
//   backward   dy, q, k, v, o, lse -> dq, dk, dv
// o (rows, width) = p v, p = softmax(scale q k^T), lse = log sum exp of each row of scale q k^T. Its causal row i has columns 0 to i.
// Each of key_heads heads of k and v serves heads / key_heads neighbouring heads of q.
struct AttentionProblem {
  bool is_backward = false;
  int64_t batch = 0, heads = 0, key_heads = 0, rows = 0, columns = 0, depth = 0, width = 0;
  float scale = 1;
  bool causal = false;
  DType type = DType::bfloat16;  // or float16

  auto operator<=>(const AttentionProblem&) const = default;
};

// Along two axes, of tensors in one piece each: x (batch, groups * in_channels, in...), w (groups * out_channels, in_channels, kernel...),
// y (batch, groups * out_channels, out...). Padding is as much before as behind.
//   y    x, w -> y
//   dx   dy, w -> dx
//   dw   dy, x -> dw
struct ConvolutionProblem {
  enum class Result { y, dx, dw };

  Result result = Result::y;
  int64_t batch = 0, groups = 1, in_channels = 0, out_channels = 0;  // channels of a group
  std::array<int64_t, 2> in{}, out{}, kernel{}, stride{}, padding{}, dilation{};
  DType type = DType::bfloat16;  // or float16; of the result, too

  auto operator<=>(const ConvolutionProblem&) const = default;
};

// In words, with all that is different in two problems.
std::string describe(const AttentionProblem& problem);
std::string describe(const ConvolutionProblem& problem);

class CudnnPlan {
 public:
  virtual ~CudnnPlan() = default;
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // Device addresses of the problem's tensors, in its order; a cudaStream_t. Throws Error(device), or Error(budget) where the library finds
  // no memory.
  virtual void run(std::span<void* const> tensors, void* workspace, void* stream) const = 0;

 protected:
  int64_t workspace_bytes_ = 0;
};

// On the thread's current device; made once and kept as long as the program. Null: there is none. Throws where it can't be made now, but
// perhaps another time: Error(budget), memory is lacking; Error(device), a part of the library is, or it has no plan of the name that the
// table has.
const CudnnPlan* find_plan(const AttentionProblem& problem);
const CudnnPlan* find_plan(const ConvolutionProblem& problem);

// Opens the library and starts it on the thread's current device, as the first plan does. Returns why there is none, in a sentence; empty
// where there is. Throws Error(device), or Error(budget) where memory is lacking: it can't be started.
std::string start_cudnn();

// The library and its version: "cuDNN 9.19.0"; "no cuDNN".
std::string cudnn_library();

ORT_TRAIN_LIBRARIES_END
