// KernelSpecs: the distinct (op, spec) pairs of a set of nodes, so that equal ones are prepared, or asked for their workspace, once.
// SpaceKernels: those of a program, whose nodes are computed by different kernels in different kinds of space.
//
// A prepared kernel of one pair serves every node of it, one at a time. Not thread-safe.

#pragma once

#include <map>
#include <unordered_map>
#include <vector>

#include "exec/kernel.h"
#include "exec/program.h"

namespace ort_train {

class KernelSpecs {
 public:
  // Of nodes that a device runs with so many workers. The table must outlive it.
  KernelSpecs(const KernelTable& table, int workers) : table_(table), workers_(workers) {}

  // The number of the pair: that of an equal one added before, or a new one. The constants that the spec refers to must outlive it.
  // Throws Error(unsupported) where the device has no kernel for it.
  size_t add(const OpDef& op, KernelSpec spec);
  size_t size() const { return kernels_.size(); }
  const KernelTable& table() const { return table_; }
  const Kernel& kernel(size_t i) const { return *kernels_[i].kernel; }
  const KernelSpec& spec(size_t i) const { return kernels_[i].spec; }
  // Bytes of workspace that the kernel wants; asked once.
  int64_t workspace(size_t i);

 private:
  struct Entry {
    const Kernel* kernel;
    KernelSpec spec;
    int64_t workspace = -1;
  };
  const KernelTable& table_;
  int workers_;
  std::vector<Entry> kernels_;
  std::unordered_multimap<uint64_t, size_t> by_hash_;
};

class SpaceKernels {
 public:
  SpaceKernels(KernelTables tables, int workers) : tables_(std::move(tables)), workers_(workers) {}

  // Null where nothing is computed in a space of that kind.
  KernelSpecs* of(SpaceKind kind);

 private:
  KernelTables tables_;
  int workers_;
  std::map<SpaceKind, KernelSpecs> specs_;
};

}  // namespace ort_train
