// Parameter groups: which learning rate and which weight decay each parameter has. Here patterns and names become Value::group, a place in
// the job's table; nothing after that looks at a name.
//
// `param_groups`: the first pattern that one of a parameter's names fits, takes it. `layer_decay` d multiplies the learning rate of layer i
// by d^(n - i), as ELECTRA and BEiT are fine-tuned; n is the highest layer. Layers are counted in the order of their first use from 1. A
// layer is told by the first part of a name that is a number (transformer.h.3.attn.weight: transformer.h.3); a name that the exporter made
// up (onnx::MatMul_7) has none, then that of the node that uses it first counts (/transformer/h.3/attn/MatMul), or its bias's. Weights that
// have none are of the layer before them in the order of use: embeddings of layer 0; what comes after all layers, as the head, is a layer
// of its own, the highest. A group's own learning rate (`lr`) is as it is given.

#pragma once

#include <string>
#include <vector>

#include "frontend/import.h"
#include "frontend/ort_train.h"
#include "passes/optimizer.h"

namespace ort_train {

// Throws Error(usage) for a group that can't be meant.
void check_groups(const Options& options);

// Sets Value::group of the trained parameters of an imported model, the same for all of its batch sizes, and returns the table. Its first
// row is of the parameters that no option concerns. Throws Error(usage): a pattern that takes nothing, layers that names don't tell.
std::vector<ParameterGroup> assign_groups(Imported& model, const Options& options);

// The job's learning rate, which follows from the samples of a batch where `scale_lr` says so.
double scaled_rate(const Options& options, int64_t batch);

// For reports. `rate`: the job's.
std::vector<GroupReport> describe_groups(const Graph& graph, const std::vector<ParameterGroup>& groups, double rate, double weight_decay);
std::string shown_groups(const std::vector<GroupReport>& groups);

// As a checkpoint's setting.
std::string groups_setting(const Options& options);

}  // namespace ort_train
