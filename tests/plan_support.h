// Graphs and references for the tests of planner, verifier and executor.

#pragma once

#include <map>
#include <random>
#include <string>
#include <vector>

#include "exec/kernel.h"
#include "exec/program.h"
#include "graph/graph.h"
#include "passes/pipeline.h"

namespace ort_train::fixtures {

// A graph of `nodes` random ops over small tensors: views, in-place ops, several outputs, broadcasting, products, workspaces, state that is
// changed in the middle and read before and after (through views that are wanted later, too), updates at the end, random outputs.
// The same seed gives the same graph.
struct RandomSize {
  int64_t rows = 1, width = 4;  // tensors have 1, 4 * rows or 8 * rows rows, and more where some are joined
  size_t near = 4;              // of so many inputs one may be any value, the others are recent ones
  bool small_state = false;     // of one row
  bool saved = false;           // in the end many values are read again, the last first, as a backward pass does
  bool pieces = false;          // views of pieces of values, of state above all, are among what is read
  int state = -1;               // graphs with the same number, from 0 on, can be entries of one job: their state has the same types
};
Graph random_graph(uint32_t seed, int nodes, const RandomSize& size = {});
// A model of such ops to be trained: pure nodes, each with a gradient, parameters with one use and with several; its output is one number.
Graph random_forward(uint32_t seed, int nodes, const RandomSize& size);

// GPT-2's forward graph: tokens (batch, length) -> logits (batch, length, vocabulary), head tied to the embedding.
struct GptShape {
  int64_t layers = 12, heads = 12, width = 768, vocabulary = 50257, batch = 1, length = 256;
};
Graph gpt_forward(const GptShape& shape);
// … and its training step: loss, backward, clipping, AdamW. As the job of a trainer.
EntryGraph gpt_training(const GptShape& shape, OptimizerSpec optimizer = {}, int64_t part_bytes = int64_t{1} << 30, bool packed = false);

// A graph that is put together by hand: its input and its weights.
struct WeightModel {
  Graph graph;
  ValueId x = kNone;  // float32 [3, 6]
  WeightModel();
  ValueId weight(const char* name, Shape shape);  // float32, trained
};

// With options that keep the first steps from being signs of gradients, zero ones too; sgd has momentum.
Optimizer calm_optimizer(std::string_view name);

// Numbers for a value, the same for the same seed: tokens and labels below `limit`, small floats.
Tensor random_tensor(const TensorType& type, uint32_t seed, int64_t limit = 2);

// What a job's graph is fed: the same for inputs of one name and seed; the scalars of the optimizer's second step.
std::map<ValueId, Tensor> step_inputs(const Graph& graph, const OptimizerSpec& optimizer, int64_t limit, uint32_t seed = 0);

// The sentence with which verify() refuses a program of one entry; empty where it accepts.
std::string complaint(const Program& program, const Graph& graph);

// Evaluates graphs node by node, each value in memory of its own, and carries state from run to run.
class Reference {
 public:
  explicit Reference(Workers& workers) : workers_(workers) {}
  std::map<std::string, Tensor> state;  // by name: parameters (set these first), optimizer state and accumulators (at first as they begin)

  // Every value of the graph that came to be, by id.
  std::map<ValueId, Tensor> run(const Graph& graph, const std::map<ValueId, Tensor>& inputs);

 private:
  Workers& workers_;
};

}  // namespace ort_train::fixtures
