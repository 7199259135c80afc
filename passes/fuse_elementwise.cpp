// fuse_elementwise: elementwise nodes of one shape, of which one reads what another makes and nobody else does, become one node, which
// passes over memory once.
//
//   before   s = Add(a, b) ; y = Relu(s)
//   after    y = Chain(a, b) {ops = "Add Relu"}      graph/chain.h
//
// Nodes are taken together where the device has kernels of them that can be steps of a chain, and no other node stands between them: what
// they read would have to be kept until that is done. The bits are those of the nodes.
//
// Needs: gradients made, weights divided: a Chain has no gradient, and nobody looks into it. Leaves: updates as they are.

#include <algorithm>
#include <map>
#include <set>

#include "exec/kernel.h"
#include "graph/chain.h"
#include "graph/op_def.h"
#include "passes/build.h"

namespace ort_train {
namespace {

class Chains {
 public:
  Chains(Graph& graph, const std::set<ValueId>& kept, const KernelTable& kernels)
      : graph_(graph), kept_(kept), kernels_(kernels), readers_(graph.readers()) {}

  bool make() {
    int64_t others = 0;  // nodes so far that are no steps
    for (const NodeId id : graph_.order()) {
      if (can_be_step(id)) {
        chains_[id] = {.nodes = {id}, .behind = others};
        for (const ValueId input : graph_.node(id).inputs) take_in(id, input);
      } else if (viewed(graph_.node(id)) == kNone) {
        ++others;
      }
    }
    std::erase_if(chains_, [](const auto& chain) { return chain.second.nodes.size() < 2; });
    for (const auto& [last, chain] : chains_) become_chain(last, chain.nodes);
    return !chains_.empty() && graph_.remove_dead_nodes();
  }

 private:
  struct Chain {
    std::vector<NodeId> nodes;  // in the order of the graph
    int64_t behind = 0;         // how many other nodes stand before it
  };

  bool can_be_step(NodeId id) const {
    const Node& node = graph_.node(id);
    const Kernel* const kernel = kernels_.find(*node.op);
    return kernel && kernel->elements && node.stage != Stage::update && node.outputs.size() == 1 && node.inputs.size() <= kMostStepOperands &&
           std::find(node.inputs.begin(), node.inputs.end(), kNone) == node.inputs.end();
  }

  // The chain that makes `input` becomes a part of that which ends with the node, if nobody else reads what it makes.
  void take_in(NodeId last, ValueId input) {
    const Value& made = graph_.value(input);
    const auto before = chains_.find(made.producer);
    if (made.producer == kNone || before == chains_.end() || made.producer == last) return;
    const Node& node = graph_.node(last);
    const std::vector<NodeId>& readers = readers_[input];
    const bool is_inside = std::all_of(readers.begin(), readers.end(), [&](NodeId reader) { return reader == last; }) &&
                           !kept_.contains(input) && made.shape == graph_.value(node.outputs[0]).shape;
    Chain& chain = chains_.at(last);
    if (!is_inside || before->second.behind != chain.behind || graph_.node(made.producer).stage != node.stage) return;
    std::vector<NodeId> all = before->second.nodes;
    all.insert(all.end(), chain.nodes.begin(), chain.nodes.end());
    if (all.size() > kMostChainSteps || inputs_of(all).size() > kMostChainInputs) return;
    chain.nodes = std::move(all);
    chains_.erase(before);
  }

  // What nodes read that none of them makes, each once.
  std::vector<ValueId> inputs_of(const std::vector<NodeId>& nodes) const {
    std::vector<ValueId> inputs;
    for (const NodeId id : nodes) {
      for (const ValueId input : graph_.node(id).inputs) {
        const bool is_made = std::find(nodes.begin(), nodes.end(), graph_.value(input).producer) != nodes.end();
        if (!is_made && std::find(inputs.begin(), inputs.end(), input) == inputs.end()) inputs.push_back(input);
      }
    }
    return inputs;
  }

  void become_chain(NodeId last, const std::vector<NodeId>& nodes) {
    const std::vector<ValueId> inputs = inputs_of(nodes);
    std::vector<ChainStep> steps;
    for (const NodeId id : nodes) {
      const Node& node = graph_.node(id);
      ChainStep step{.op = node.op, .attributes = node.attributes};
      for (const ValueId input : node.inputs) {
        const auto made = std::find(nodes.begin(), nodes.end(), graph_.value(input).producer);
        step.operands.push_back(made != nodes.end() ? nodes.begin() - made - 1
                                                    : std::find(inputs.begin(), inputs.end(), input) - inputs.begin());
      }
      steps.push_back(std::move(step));
    }
    Node& node = graph_.node(last);
    node.op = &op_named("Chain");
    node.inputs = inputs;
    node.attributes = {};
    set_chain(node.attributes, steps);
  }

  Graph& graph_;
  const std::set<ValueId>& kept_;
  const KernelTable& kernels_;
  std::vector<std::vector<NodeId>> readers_;
  std::map<NodeId, Chain> chains_;  // by the last node
};

}  // namespace

bool fuse_elementwise(JobGraph& job, const PassOptions& options) {
  std::set<ValueId> kept(job.graph.outputs.begin(), job.graph.outputs.end());
  kept.insert(job.outputs.begin(), job.outputs.end());
  kept.insert({job.grad_norm, job.stored_norm});
  for (const JobLoss& loss : job.losses) kept.insert({loss.sum, loss.count});
  for (const auto& [parameter, gradient] : job.gradients) kept.insert(gradient);
  for (const auto& [gradient, squares] : job.squares) kept.insert({gradient, squares});
  return Chains(job.graph, kept, options.kernels ? *options.kernels : cpu_kernels()).make();
}

}  // namespace ort_train
