// Fused elementwise ops (graph/fused_elementwise.h) on the processor: tile by tile, each of a size that stays in the first-level cache.
// What a step makes lies in a buffer as long as the tile, so that an element is computed, and rounded to each step's type, as by the ops
// one by one.

#pragma once

#include <algorithm>
#include <vector>

#include "exec/strided.h"
#include "exec/workspace.h"
#include "graph/fused_elementwise.h"

ORT_TRAIN_OPS_BEGIN

// What a step is, of inputs of these types and what the steps before it have made; no constants.
inline KernelSpec spec_of_step(const FusedStep& step, const std::vector<TensorType>& inputs, const std::vector<TensorType>& made,
                               const TensorType& result) {
  KernelSpec spec{.attributes = step.attributes, .outputs = {result}};
  for (const int64_t operand : step.operands)
    spec.inputs.push_back(operand >= 0 ? inputs[static_cast<size_t>(operand)] : made[static_cast<size_t>(-1 - operand)]);
  spec.present.assign(spec.inputs.size(), true);
  spec.constants.assign(spec.inputs.size(), nullptr);
  return spec;
}

class FusedLoop {
 public:
  FusedLoop() = default;
  // inputs: of the node, as its steps' operands count them
  FusedLoop(const std::vector<FusedStep>& steps, std::vector<TensorType> inputs) : inputs_(std::move(inputs)) {
    const std::vector<TensorType> made = types_of_steps(steps, inputs_);
    const Shape& shape = made.back().shape;
    tile_ = std::clamp<int64_t>(element_count(shape), 1, kMostTile);
    WorkspaceLayout layout;
    std::vector<TensorType> read = inputs_;  // as the steps read them
    for (TensorType& input : read) {         // those that are broadcast, but not as one number, are written out
      const bool is_spread = input.shape != shape && element_count(input.shape) != 1;
      spread_.push_back(is_spread ? StridedLoop<1>(shape, {broadcast_strides(input.shape, shape)}) : StridedLoop<1>{});
      spread_at_.push_back(is_spread ? layout.take(tile_ * size_of(input.dtype)) : -1);
      if (is_spread) input.shape = shape;
    }
    for (size_t i = 0; i < steps.size(); ++i) {
      const KernelSpec spec = spec_of_step(steps[i], read, made, made[i]);
      const Kernel& kernel = cpu_kernels().at(*steps[i].op, spec);
      require(kernel.elements != nullptr, "a fused op that can't be one");
      steps_.push_back({kernel.elements(spec), steps[i].operands, i + 1 < steps.size() ? layout.take(tile_ * size_of(made[i].dtype)) : -1});
    }
    result_size_ = size_of(made.back().dtype);
    bytes_ = layout.all();
  }

  int64_t bytes() const { return bytes_; }  // of a thread's workspace

  // Elements [begin, end) of the result, whose tensor begins at `out`, as those of the inputs do at theirs. The result may lie where an
  // input of its type does that is as large.
  void run(int64_t begin, int64_t end, const void* const* inputs, void* out, std::byte* workspace) const {
    for (int64_t at = begin; at < end; at += tile_) {
      const int64_t n = std::min(tile_, end - at);
      const void* operands[kMostFusedInputs];
      for (size_t i = 0; i < inputs_.size(); ++i) operands[i] = input_at(i, inputs[i], at, n, workspace);
      for (const Step& step : steps_) {
        const void* of_step[kMostStepOperands];
        size_t count = 0;
        for (const int64_t operand : step.operands)
          of_step[count++] = operand >= 0 ? operands[operand] : workspace + steps_[static_cast<size_t>(-1 - operand)].place;
        step.run(of_step, step.place >= 0 ? workspace + step.place : static_cast<std::byte*>(out) + at * result_size_, n);
      }
    }
  }

 private:
  static constexpr int64_t kMostTile = 2048;  // elements
  struct Step {
    Elements run;
    std::vector<int64_t> operands;
    int64_t place = -1;  // of what it makes; -1: the result
  };

  const void* input_at(size_t i, const void* input, int64_t at, int64_t n, std::byte* workspace) const {
    const auto* const from = static_cast<const std::byte*>(input);
    const int64_t size = size_of(inputs_[i].dtype);
    if (spread_at_[i] < 0) return element_count(inputs_[i].shape) == 1 ? from : from + at * size;
    std::byte* const to = workspace + spread_at_[i];
    const auto spread = [&]<typename Word>(Word) {
      walk(spread_[i], at, at + n, [&](const std::array<int64_t, 1>& offsets, int64_t first, int64_t run) {
        const Word* const row = reinterpret_cast<const Word*>(from) + offsets[0];
        Word* const there = reinterpret_cast<Word*>(to) + first - at;
        spread_[i].inner_stride(0) == 0 ? std::fill_n(there, run, *row) : std::copy_n(row, run, there);
      });
    };
    size == 1 ? spread(uint8_t{}) : size == 2 ? spread(uint16_t{}) : size == 4 ? spread(uint32_t{}) : spread(uint64_t{});
    return to;
  }

  std::vector<TensorType> inputs_;
  std::vector<StridedLoop<1>> spread_;
  std::vector<int64_t> spread_at_;  // -1: it is read where it is
  std::vector<Step> steps_;
  int64_t tile_ = 1, result_size_ = 0, bytes_ = 0;
};

// The elementwise ops behind a node's own, in the same pass over memory (OpTraits::fused), if it has any.
class FusedTail {
 public:
  FusedTail() = default;
  // first: input 0 of their steps
  FusedTail(const KernelSpec& spec, const TensorType& first) {
    const int64_t own = spec.attributes.get(kOwnInputs, int64_t{0});
    if (own == 0) return;
    own_ = static_cast<size_t>(own);
    std::vector<TensorType> inputs{first};
    inputs.insert(inputs.end(), spec.inputs.begin() + own, spec.inputs.end());
    loop_ = FusedLoop(fused_steps(spec.attributes), std::move(inputs));
  }
  explicit operator bool() const { return own_ > 0; }
  int64_t bytes() const { return loop_.bytes(); }  // of a thread's workspace
  void run(int64_t begin, int64_t end, const void* first, const KernelArgs& args, void* out, std::byte* workspace) const {
    const void* inputs[kMostFusedInputs] = {first};
    std::copy(args.inputs.begin() + static_cast<std::ptrdiff_t>(own_), args.inputs.end(), inputs + 1);
    loop_.run(begin, end, inputs, out, workspace);
  }

 private:
  size_t own_ = 0;
  FusedLoop loop_;
};

ORT_TRAIN_OPS_END
