// What the ONNX standard says of a node: whether it is well-formed, its function body, its outputs' types, which inputs can be trained.

#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/onnx/model.h"

namespace ort_train::onnx {

// The newest opset of the standard domain, and the newest IR version, that this build knows.
int newest_opset();
int64_t newest_ir_version();

// Whether the standard knows the op at this opset, and since which one it has meant what it means there (0: unknown).
int since_version(const std::string& domain, const std::string& op_type, int opset);

// What is wrong with a node by the standard's own check (inputs, outputs, attributes); empty where nothing is or where it doesn't know the
// op.
std::string violation(const NodeDef& node, int opset);

// Whether the standard calls an input not differentiable: what stands there is no weight.
bool never_differentiable(const std::string& domain, const std::string& op_type, int opset, size_t input);

// Whether a node may leave this output out without meaning something else (the parts of Split are not such outputs).
bool is_optional_output(const std::string& domain, const std::string& op_type, int opset, size_t output);

// The body that a node stands for: the model's own function or else the standard's, which may depend on the types of the inputs (none:
// absent or unknown). Its nodes have the caller's attributes filled in. Empty where there is none.
std::optional<FunctionDef> function_body(const ModelDef& model, const NodeDef& node, const Opsets& opsets,
                                         const std::vector<std::optional<TensorType>>& inputs);
// Whether there could be one.
bool has_function_body(const ModelDef& model, const NodeDef& node, const Opsets& opsets);

// The outputs' types by the standard's rules, as far as they give any; `constants` where known, null else.
std::vector<std::optional<TensorType>> infer_outputs(const NodeDef& node, int opset, const std::vector<std::optional<TensorType>>& inputs,
                                                     const std::vector<const Tensor*>& constants);

}  // namespace ort_train::onnx
