// Import: an ONNX file becomes a forward Graph whose dimensions are bound and whose shape arithmetic is folded, plus the places of its
// weights.
//
// A model that has weights of 16 bits is imported as the float32 model that it was made of: its weights become float32 masters, its
// constants float32, and Casts to 16 bits nothing. What it computes in is mixed precision's affair: that type where most of its numbers are
// stored so (ModelInfo::low).
//
// One walk in topological order: each node's inputs have known types (and values, where constant) when its turn comes, so binding, folding,
// opset differences, function expansion and `If` on a constant are settled on the way. Weights are never read here, only located
// (tied-weight detection streams them through a small buffer).

#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "exec/workers.h"
#include "frontend/controlnet.h"
#include "frontend/ort_train.h"
#include "graph/graph.h"
#include "graph/onnx/edit.h"
#include "offload/file_range.h"

namespace ort_train {

struct ImportOptions {
  std::map<std::string, int64_t> shapes;       // dimension name -> size; also "input.axis" (input_ids.0) for unnamed ones
  std::map<std::string, Tensor> bound_inputs;  // graph inputs that are constant in this job (attention_mask …): shapes bind too
  bool retie = true;
  bool untie = false;
  std::string batch_norm = "model";                                     // model | live | frozen
  std::vector<std::pair<std::string, std::string>> batch_norm_nodes{};  // name or pattern -> the same; the last that fits counts
  std::vector<std::string> train{}, freeze{};                           // patterns over names of tensors; `train` wins
  bool adapts = false;   // what `train` doesn't name is frozen: adapters are trained, or what `control` adds
  ControlNet control{};  // goes with `adapts`
  std::vector<std::pair<std::string, double>> dropout{};  // name, pattern or op of nodes -> ratio; the last that fits counts
  std::vector<SelectionLimit> selects{};                  // the last that fits counts
  std::vector<std::string> outputs{""};                   // which model outputs the losses read, for Obstacle::blocks; "": the first
};

// Where some elements of 16 bits begin that are stored as integers of their bits (int32_data), each of one byte or several.
struct IntegerIndex {
  static constexpr int64_t kEach = 4096;
  std::vector<int64_t> begins;  // of elements 0, kEach, 2 kEach, …, in the file
};

// One tensor of the user's file that holds (a copy of) a parameter.
struct WeightPlace {
  std::string name;  // initializer or Constant output in the user's file
  FileRange bytes;   // where its bytes are, in the layout and type below
  DType dtype = DType::float32;
  Shape shape;                                     // as stored in the file
  bool transposed = false;                         // stored transposed against the parameter (rank 2)
  bool added = false;                              // the file does not have it yet; `bytes` is what it is a copy of, if anything
  std::shared_ptr<const IntegerIndex> integers{};  // null: `bytes` has the elements one after the other
};

// What a weight that no file has begins as. One of these counts: `squares_of`, `bound`, `deviation`, else `value`.
struct FreshNumbers {
  double bound = 0;      // uniformly distributed in (-bound, bound)
  double deviation = 0;  // normally distributed, of this standard deviation
  double value = 0;      // all the same number
  // The name of another weight: element i is the sum of the squares of what that has at place i of `axis`, as the run stores it, or with
  // `root` the root of this sum.
  std::string squares_of{};
  size_t axis = 0;
  bool root = false;
};

struct Weight {
  std::string parameter;            // name of the Graph's parameter value
  DType dtype = DType::float32;     // of that
  std::vector<WeightPlace> places;  // the first is the one it is read from; more than one where tied weights were stored twice
  bool is_attached = false;         // of another model (frontend/attach_model.h): never changed, hashed or exported
  bool is_constant = false;         // no weight (Treatment::constant): no adapter changes it, it isn't stored in fewer bits
  // Not of the model's file; its only place says a name and a shape alone, and whether the new file has it (`added`).
  std::optional<FreshNumbers> fresh{};
};

// Whether the graph's parameter has fewer bits than float32: it is rounded as it is read.
inline bool is_narrowed(const Weight& weight) { return is_half(weight.dtype) || is_weight_blocks(weight.dtype); }

// A node (or tensor) that stands in the way of training, for `check`.
struct Obstacle {
  std::string node;  // "Resize 'upsample_3'"
  std::string reason;
  std::string hint;
  bool blocks = true;  // false where no output that a loss reads depends on it
};

// What becomes of a floating-point tensor of the file. A frozen one and a statistic are parameters that no gradient changes.
enum class Treatment { trained, frozen, statistic, constant };
std::string_view to_string(Treatment treatment);

struct TensorFate {
  std::string name;
  TensorType type;
  Treatment treatment = Treatment::constant;
  std::string why;       // "weight of MatMul"
  std::string original;  // names that the exporter's metadata have of it, where they are others
};

// "2 of 4 tensors have no influence on the loss and stay as they are: a, b"; empty where there are none. Of trainable parameters.
std::string unreached_in_words(const Graph& graph, const std::vector<ValueId>& unreached, std::string_view from);

struct ModelInfo {
  std::string path, producer;  // "pytorch 2.13.0"
  int64_t opset = 0, nodes = 0;
  DType low = DType::float32;               // float16 or bfloat16 where most of its numbers are stored so
  std::vector<std::string> external_files;  // every file of external data, relative to the model's folder, each once: export copies them
  std::map<std::string, FileStamp> stamps;  // of these, and of the model as "": how they were when they were first read
  std::map<std::string, uint64_t> hashes;   // of the same: see remember_contents()
  // What the file lacks of being that model (`untie`, `control`). The initializers have the names of the places that are `added`.
  onnx::ModelEdit edit;
  std::vector<TensorFate> tensors;  // floating-point ones, in import order
  // With `untie`, by the names of nodes: the exported program's module that each is of, where metadata say it.
  std::map<std::string, std::string> node_modules;
  std::string chosen;              // what `train` and `freeze` changed, as a checkpoint's setting; empty: nothing
  std::vector<std::string> notes;  // repairs and other things to tell: "tied 'lm_head.weight' with 'wte.weight' (stored twice, transposed)"
};

struct Imported {
  Graph graph;                  // forward; inputs/outputs as in the file (bound_inputs are gone)
  std::vector<Weight> weights;  // in import order, one for each parameter
  std::vector<Obstacle> obstacles;
  ModelInfo info;
};

// Gives what is added a file of its own if the model with it would have more than so many bytes: ONNX allows 2 GiB.
inline constexpr int64_t kMostInModel = (int64_t{2} << 30) - (int64_t{64} << 20);  // new nodes take some
void place_added(ModelInfo& model, int64_t limit = kMostInModel);

// Throws Error(io) where one of the model's files isn't the one that was imported, or was written to since.
void check_model_files(const ModelInfo& model);

// Places of the model's outputs that losses read, of ImportOptions::outputs.
std::set<size_t> outputs_read_of(const Graph& graph, const std::vector<std::string>& names);

// What a model declares, read without binding anything: for --help-like messages, data sets and binding.
struct DeclaredInput {
  std::string name;
  DType dtype;
  std::vector<std::string> dims;  // "batch", or "4"; "" where unnamed
  bool has_shape = true;          // false: not even how many dimensions it has
};
struct Declared {
  std::vector<DeclaredInput> inputs, outputs;
  ModelInfo info;
};
Declared declared(const std::string& path, const ControlNet& control = {});
// What is said of an input without a shape.
std::string without_shape(const std::string& input);

// Throws Error(io) for files that can't be read, Error(unsupported) for what isn't a valid model or leaves a dimension unbound (naming all
// of them). Nodes that can't be imported are collected in `obstacles`, all at once; values after them are missing from the graph.
Imported import_model(const std::string& path, const ImportOptions& options, Workers& workers);

}  // namespace ort_train
