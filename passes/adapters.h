// adapters: little that is trained beside frozen weights: LoRA (Hu et al., arXiv 2106.09685), DoRA (Liu et al., arXiv 2402.09353) and (IA)3
// (Liu et al., arXiv 2205.05638). See adapters.cpp.

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "graph/builder.h"
#include "graph/graph.h"

namespace ort_train {

// How a weight is used, which says where its adapter's matrices act: W [out, in] and W [in, out] of a product, a kernel [out, in, …] of a
// convolution in one group, a table [rows, out] of a lookup.
enum class AdaptedUse : uint8_t { product, transposed_product, convolution, lookup };

// A frozen weight that can have an adapter.
struct Adaptable {
  std::string weight;  // the parameter
  AdaptedUse use = AdaptedUse::product;
  std::string node;                // the first that reads it
  bool is_head = false;            // its result is an output, or the logits of a loss in the model, but for what only shows these
  bool is_read_by_others = false;  // than convolutions, lookups and products of a factor that isn't transposed
  std::string obstacle{};          // why it can't have one; empty: it can
};
// In import order: the parameters of two dimensions and more that products, convolutions and lookups read.
// `read`: places of the outputs that losses read.
std::vector<Adaptable> find_adaptable(const Graph& graph, const std::set<size_t>& read);

enum class AdapterKind : uint8_t {
  lora,  // y = W x + scale * B A dropout(x), with `rank` rows of A [rank, in] and columns of B [out, rank]
  dora,  // y = m / ||W + scale * B A|| * (W x + scale * B A x), where m [out] is trained and the norms, by output, count as constants
  ia3,   // y = l * (W x + b), or W (l * x) + b
};

std::string to_string(AdapterKind kind);  // "LoRA"

struct AdapterSpec {
  AdapterKind kind = AdapterKind::lora;
  int64_t rank = 0;
  double scale = 1, dropout = 0;
  std::map<std::string, std::string> modules{};  // weight -> the name of its module, by which its tensors are called as PEFT calls them
  std::set<std::string> scaled_inputs{};         // ia3: the weights whose inputs are scaled, not their outputs
};

struct Adapter {
  std::string weight;
  AdaptedUse use = AdaptedUse::product;
  std::string module;
  // Parameters. LoRA's and DoRA's are in the layouts of PEFT: [rank, in] and [out, rank]; of a convolution [rank, in, …] and [out, rank, 1,
  // …], of a lookup [rank, rows] and [out, rank].
  std::string a{}, b{};
  std::string magnitude{};  // DoRA: [out]
  std::string squares{};    // DoRA: [out], not trained: the sum of the squares of what the weight has for each output
  std::string factors{};    // (IA)3: [out], or [in]
  bool scales_inputs = false;
  std::vector<std::string> biases{};  // that (IA)3 scales as well

  std::set<std::string> trained() const;
};

// Adds them; every use of a weight shares its adapter. Their numbers are whoever's who loads the weights. Throws Error(unsupported) where
// a weight can't have one.
std::vector<Adapter> add_adapters(Graph& graph, const AdapterSpec& spec, const std::set<size_t>& read);

// Where several of them read the same, that meets their matrices A as one (join_adapters.cpp).
bool join_adapters(Graph& graph, const std::vector<Adapter>& adapters);

// Adds the nodes of one adapter to one use of its weight (adapter_nodes.cpp).
class AdapterNodes {
 public:
  AdapterNodes(Graph& graph, const AdapterSpec& spec) : graph_(graph), spec_(spec) {}
  void add(NodeId use, Adapter& adapter);

 private:
  struct LowRank {
    ValueId x = kNone;  // what it reads
    ValueId y = kNone;
  };
  LowRank low_rank(const Node& node, const Adapter& adapter);
  ValueId dropped(const Node& node);
  void add_dora(NodeId use, const Adapter& adapter);
  ValueId row_scale(const Node& node, const Adapter& adapter);
  void scale_inputs(NodeId use, const Adapter& adapter);
  void scale_outputs(NodeId use, Adapter& adapter);
  ValueId factor(Builder& builder, ValueId vector, const Node& node, const Adapter& adapter) const;

  Graph& graph_;
  const AdapterSpec& spec_;
  std::map<std::string, ValueId> row_scales_{};  // weight -> what all of its uses share
  std::map<uint32_t, uint32_t> products_of_{};   // node of the file, by ordinal -> products with dropout that it has become so far
};

}  // namespace ort_train
