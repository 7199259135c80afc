// A naive planner for a device with memory of its own: what a node uses is fetched right before it, what is in the way is evicted, least
// recently used first. Programs in three spaces (device, host, file) on six queues, for tests of the verifier, the executor and devices.
//
// Nodes run in the order of their graphs. Nothing is a view, and nothing is fetched ahead.

#pragma once

#include <functional>
#include <string>
#include <vector>

#include "exec/program.h"

namespace ort_train::fixtures {

struct PagedEntry {
  std::string name;
  const Graph* graph = nullptr;
  std::vector<ValueId> keep{};  // besides the graph's outputs
  EntryRole role{};
};

struct PagingOptions {
  int threads = 1;
  int64_t device_bytes = int64_t{1} << 40, host_bytes = int64_t{1} << 40;  // limits
  uint32_t seed = 0;                                                       // where what lives across runs lives, and what is kept is kept
  std::function<bool(const Node&)> on_host = nullptr;                      // computed by the host; null: nothing is
};

// Throws Error(budget) where a limit is too low for it.
Program page(const std::vector<PagedEntry>& entries, const PagingOptions& options);
// What computes in its spaces, whichever they are.
const KernelTable* kernels_of_pages(SpaceKind where);

// A limit about as low as page() takes, of one space, the other's being as in `options`: found by trying.
int64_t least_limit(const std::vector<PagedEntry>& entries, PagingOptions options, int64_t PagingOptions::*limit);

}  // namespace ort_train::fixtures
