// The passes, each a function in a file of its own: bool name(Graph&, const PassOptions&), true if it changed anything.
//
// pipeline.cpp runs them in order; the order and its reasons stand there.

#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "graph/builder.h"
#include "graph/op_traits.h"
#include "passes/optimizer.h"

namespace ort_train {

class KernelTable;

// The parameters that go together, by name (passes/pack_weights.h).
using Packs = std::vector<std::vector<std::string>>;

// What the user says of an op, by its name after the fusions, or of nodes, by a pattern over their names in the user's model.
struct AutocastRule {
  std::string name;
  Precision runs = Precision::follow;
};

struct PassOptions {
  std::vector<std::string> skip{};                                                       // passes by name
  std::map<std::string, std::string> dump_after{};                                       // pass name -> .onnx file, written after that pass
  std::function<void(const std::string& pass, double seconds, bool changed)> on_pass{};  // null: nobody asks
  int64_t part_bytes = 0;  // of a weight: from twice as many on it is divided (passes/split_weights.h); 0: the model's size says
  int64_t part_rows = 0;   // 0: parts begin where that changes no bit; else at multiples of so many rows
  Optimizer optimizer{};   // whose updates will come: says where parts may begin; none: anywhere
  Packs packs{};           // small weights that are packed; the same in all entries of a job
  // Mixed precision: the low type, float16 or bfloat16; float32: none. Of the rules, the last that fits a node counts.
  DType precision = DType::float32;
  bool low_weights = false;  // trained matrices and higher tensors are stored in it, too, instead of float32
  std::vector<AutocastRule> autocast{};
  bool refuses_idle_rules = true;          // a rule that fits nothing is an error; a smaller batch's graph may lack what it fits
  std::optional<DType> base{};             // what frozen matrices of products are stored as; none: as `in_file`, or float32
  std::set<std::string> base_named{};      // parameters that are stored so whatever they are for
  std::set<std::string> heads{};           // the head's matrices, whose products losses read: stored as `base` only if `base_named`
  std::set<std::string> own{};             // the trained model's own parameters; those of attached models are stored as they are
  std::map<std::string, DType> in_file{};  // parameters that the model's file has in 16 bits: in which
  std::set<size_t> read{};                 // places of the outputs that losses read
  const KernelTable* kernels = nullptr;    // of the device that will compute; null: the processor's
  Folder folder{};                         // folds what passes emit on constants; null: nothing is folded
};

// An attribute by which a pass before mixed_precision says that a node runs in the type of its first input, whatever the others are.
inline constexpr const char* kTypedByFirst = "typed_by_first";

bool simplify(Graph& graph, const PassOptions& options);
bool fuse_normalization(Graph& graph, const PassOptions& options);
bool fuse_gelu(Graph& graph, const PassOptions& options);
bool fuse_attention(Graph& graph, const PassOptions& options);
bool store_base(Graph& graph, const PassOptions& options);
bool mixed_precision(Graph& graph, const PassOptions& options);
bool leave_training(Graph& graph, const PassOptions& options);
bool mark_quantized_state(Graph& graph, const PassOptions& options);
bool early_updates(Graph& graph, const PassOptions& options);

using Pass = bool (*)(Graph&, const PassOptions&);
// Runs one pass unless skipped: times it, verifies the graph after it, dumps it where asked.
bool run_pass(const char* name, Graph& graph, const PassOptions& options, const std::function<bool()>& pass);

}  // namespace ort_train
