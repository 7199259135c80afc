// adapters: small trained matrices beside frozen weights (LoRA, Hu et al., arXiv 2106.09685). See adapters.cpp.

#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

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
  bool is_head = false;            // its result is an output that a loss reads, but for what only shapes, casts or adds a bias
  bool is_read_by_others = false;  // than convolutions, lookups and products of a factor that isn't transposed
  std::string obstacle{};          // why it can't have one; empty: it can
};
// In import order: the parameters of two dimensions and more that products, convolutions and lookups read.
// `read`: places of the outputs that losses read.
std::vector<Adaptable> find_adaptable(const Graph& graph, const std::set<size_t>& read);

// `rank` rows and columns beside a weight W [out, in]: A [rank, in] and B [out, rank], so that y = W x + scale * B A dropout(x).
struct LoraSpec {
  int64_t rank = 0;
  double scale = 1, dropout = 0;
  std::map<std::string, std::string> modules{};  // weight -> the name of its module, by which its matrices are called as PEFT calls them
};

struct Adapter {
  std::string weight;
  AdaptedUse use = AdaptedUse::product;
  std::string module;
  // Parameters, in the layouts of PEFT: [rank, in] and [out, rank]; of a convolution [rank, in, …] and [out, rank, 1, …], of a lookup
  // [rank, rows] and [out, rank].
  std::string a, b;
};

// Adds them; every use of a weight shares its matrices. Their numbers are whoever's who loads the weights. Throws Error(unsupported) where
// a weight can't have one.
std::vector<Adapter> add_adapters(Graph& graph, const LoraSpec& spec, const std::set<size_t>& read);

}  // namespace ort_train
