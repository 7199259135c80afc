// ControlNet's way of adapting (arXiv 2302.05543): blocks of a frozen model get a trained copy, whose outputs are added to the frozen ones
// through layers that begin as zeros:
//
//   y = F(x)   ->   y = F(x) + Z(F'(x))                    F stays as it is, F' begins as F, Z as zeros
//                   y = F(x) + Z(F'(x + Z'(c)))            with a condition c, which the data feed
//
// The copy is made in the ONNX graph before it is imported: what follows sees a model that has these nodes and weights, and the new file is
// written with them. Copied weights begin as what stands at the originals' place of the file, so nothing is read twice into memory.

#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "frontend/ort_train.h"
#include "graph/onnx/edit.h"
#include "graph/onnx/model.h"

namespace ort_train {

// What the options say.
struct ControlNet {
  std::vector<std::string> blocks{};      // patterns over names of modules, nodes and weights; none: there is no copy
  std::string condition{};                // name of the input; empty: none
  std::vector<std::string> dimensions{};  // of one sample of it: sizes, or names of dimensions

  bool is_on() const { return !blocks.empty(); }
};
// Throws Error(usage).
ControlNet control_net(const Options& options);

// Adds the condition, if there is one, to the inputs of a graph. Returns what it added. Throws Error(usage).
std::vector<onnx::ValueDef> add_condition(const ControlNet& control, onnx::GraphDef& graph);

namespace importing {

// What the import of a model as it is says of its main graph.
struct PlainModel {
  std::map<std::string, TensorType> activations{};  // what depends on an input and is no constant
  std::map<std::string, std::string> weights{};     // name -> names in the exported program, separated by ", "
  std::set<std::string> outputs{};                  // that the losses read
  std::vector<bool> needed{};                       // the nodes that these depend on
  bool widens = false;                              // 16-bit types stand for float32 in `activations`
};

struct ControlCopy {
  onnx::ModelEdit edit{};                       // without the initializers, which import gives places
  std::vector<onnx::TensorDef> initializers{};  // TensorDef::added
  std::string note{};                           // one sentence
};
// `graph` has its condition. Throws Error: usage (a pattern fits nothing, the blocks don't lead to the loss, …), unsupported.
ControlCopy copy_blocks(const ControlNet& control, const onnx::GraphDef& graph, const PlainModel& plain);

}  // namespace importing
}  // namespace ort_train
