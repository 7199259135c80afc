// How convolutions and the gradients of their operands are made: by the first of these algorithms that applies, else by columns, products
// of a matrix of all windows (exec/ops/conv*.cpp). Doubles have columns alone.
//
//   algorithm                 applies to                                                              its bits are
//   WinogradSums, -Weights    windows of 3 x 3 in steps of one, of floats, 16 channels and more       its own
//   TileSums, -Weights        bfloat16, on processors that have AMX-BF16                              its own
//   Channel-                  steps and small planes: channels of the result fill vectors             those of columns
//   Direct-                   larger planes: neighbouring windows fill vectors                        those of columns
//   Depthwise-                one channel of x and one of y a group: planes fill vectors              those of columns
//
// Where the processor multiplies pairs of bfloat16 (exec/gemm_micro.h), Channel- and Direct- have bits of their own, too. Which one applies
// depends on the whole weight, the shapes and the processor alone, so bits do.

#pragma once

#include <optional>
#include <utility>
#include <variant>

#include "exec/channel_input_gradient.h"
#include "exec/depthwise_weights.h"
#include "exec/direct_convolution.h"
#include "exec/direct_input_gradient.h"
#include "exec/tile_convolution.h"
#include "exec/tile_weight_gradient.h"
#include "exec/winograd_weights.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// y's and dx's have in common:
//
//   applies(), efficiency(rate)                  the share of the rate of large float32 products; rate: that of products of such words
//   shared_bytes(), bytes()                      of the workspace: what tasks share, what each thread has
//   preparations(), prepare(operands, i, …)      of what tasks share, first: the weight as micro-kernels read it, copies of x or dy
//   tasks(), run(operands, task, workspace)      the thread's, as of prepare()
using OutputAlgorithm = std::variant<WinogradSums, TileSums<gemm::TileRegisters>, ChannelForward, DirectForward, DepthwiseSums>;
using InputAlgorithm = std::variant<WinogradSums, TileSums<gemm::TileRegisters>, ChannelInput, DirectInput, DepthwiseSums>;
// dw's: applies(), efficiency(rate), bytes(), tasks(), tiles(), run(dy, x, dw, task, workspace).
using WeightAlgorithm = std::variant<WinogradWeights, TileWeights<gemm::TileRegisters>, DirectWeights, DepthwiseWeights>;

template <typename Algorithm, typename... Make> std::optional<Algorithm> first_that_applies(const Make&... make) {
  std::optional<Algorithm> first;
  const auto takes = [&](auto algorithm) {
    if (algorithm.applies()) first.emplace(std::move(algorithm));
    return first.has_value();
  };
  (takes(make()) || ...);
  return first;
}

inline std::optional<OutputAlgorithm> output_algorithm(const Layout& l, Element x, Element w, Element y) {
  return first_that_applies<OutputAlgorithm>([&] { return WinogradSums(l, x, w, y); },
                                             [&] { return TileSums<gemm::TileRegisters>::of_output(l, x, w, y); },
                                             [&] { return ChannelForward(l, x, w, y); }, [&] { return DirectForward(l, x, w, y); },
                                             [&] { return DepthwiseSums::of_output(l, x, w, y); });
}
// block: of the chains over channels of y, elements
inline std::optional<InputAlgorithm> input_algorithm(const Layout& l, int64_t block, Element dy, Element w, Element dx) {
  return first_that_applies<InputAlgorithm>(
      [&] { return WinogradSums::of_input(l, dy, w, dx); }, [&] { return TileSums<gemm::TileRegisters>::of_input(l, dy, w, dx); },
      [&] { return ChannelInput(l, block, dy, w, dx); }, [&] { return DirectInput(l, block, dy, w, dx); },
      [&] { return DepthwiseSums::of_input(l, dy, w, dx); });
}
inline std::optional<WeightAlgorithm> weight_algorithm(const Layout& l, Element dy, Element x, Element dw) {
  return first_that_applies<WeightAlgorithm>([&] { return WinogradWeights(l, dy, x, dw); },
                                             [&] { return TileWeights<gemm::TileRegisters>(l, dy, x, dw); },
                                             [&] { return DirectWeights(l, dy, x, dw); }, [&] { return DepthwiseWeights(l, dy, x, dw); });
}

template <typename Algorithm> Workspace workspace_of(const Algorithm& algorithm) {
  return std::visit([](const auto& a) { return Workspace{.shared = a.shared_bytes(), .each = a.bytes()}; }, algorithm);
}
template <typename Algorithm> double efficiency_of(const Algorithm& algorithm, double rate) {
  return std::visit([&](const auto& a) { return a.efficiency(rate); }, algorithm);
}

// workspaces: the threads', one behind the other
template <typename Algorithm>
void make_sums(const Algorithm& algorithm, const Operands& operands, Workers& workers, std::byte* workspaces) {
  std::visit(
      [&](const auto& a) {
        workers.parallel_for(a.preparations(), [&](int64_t i, int worker) { a.prepare(operands, i, workspaces + worker * a.bytes()); });
        workers.parallel_for(a.tasks(), [&](int64_t task, int worker) { a.run(operands, task, workspaces + worker * a.bytes()); });
      },
      algorithm);
}

}  // namespace convolution
ORT_TRAIN_OPS_END
