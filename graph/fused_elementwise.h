// FusedElementwise: elementwise ops one behind another, its steps, as the attributes of one node (passes/fuse_elementwise.cpp). What a step
// makes has the shape of the node's result and is read by later steps alone; what the last one makes is the node's result.
//
//   ops        names, with spaces between them
//   operands   of each step: how many it has, then each: i >= 0: input i of the node; i < 0: what step -1 - i has made
//   0.alpha    attribute `alpha` of step 0, and so on

#pragma once

#include <vector>

#include "graph/attributes.h"
#include "graph/op_def.h"

namespace ort_train {

inline constexpr size_t kMostFusedSteps = 8, kMostFusedInputs = 8, kMostStepOperands = 3;

// How many of a node's inputs are those of its op, where it has such steps besides (OpTraits::fused).
inline constexpr const char* kOwnInputs = "own_inputs";

inline constexpr std::string_view kNoGradientOfFused = "ops are fused when the gradients have been made";

struct FusedStep {
  const OpDef* op = nullptr;
  Attributes attributes{};
  std::vector<int64_t> operands{};
};

void set_fused_steps(Attributes& attributes, const std::vector<FusedStep>& steps);
// Throws Error(unsupported) where the attributes describe none, or one that is too long.
std::vector<FusedStep> fused_steps(const Attributes& attributes);

// What each step makes, of inputs of these types. Throws Error(unsupported) where an op can't be made of its operands, or a result hasn't
// the shape of the last one.
std::vector<TensorType> types_of_steps(const std::vector<FusedStep>& steps, const std::vector<TensorType>& inputs);

}  // namespace ort_train
