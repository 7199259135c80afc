// An op with the kernel of some device, prepared once and run on tensors in guarded memory: what tests of kernels share.

#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "exec/kernel.h"

namespace ort_train::fixtures {

Workers& workers(int threads);

// The spec of an op on these inputs, null where absent; `constant`: they are known when it is prepared. Throws Error(unsupported) as the
// op's shape rule does.
KernelSpec spec_of(const OpDef& op, const Attributes& attributes, const std::vector<const Tensor*>& inputs,
                   const std::vector<bool>& constant, size_t outputs);

struct How {
  int64_t shift = 0;  // bytes from a 64-byte line, in elements of each tensor
  std::optional<Alias> in_place = {};
};

class PreparedOp {
 public:
  // Throws Error(unsupported) where the table has no kernel for it. Its memory is the host's.
  PreparedOp(const OpDef& op, KernelSpec spec, int threads, const KernelTable& table = cpu_kernels());

  const KernelSpec& spec() const { return spec_; }
  // Where the kernel may write over an input, and the sizes fit, which the planner asks too.
  std::vector<Alias> in_place() const;
  // Fails the test where something is written beside an output or the workspace, or an input is changed that the op doesn't write. Throws
  // what is wrong with the data.
  std::vector<Tensor> run(const std::vector<const Tensor*>& inputs, const How& how = {}) const;

 private:
  const OpDef& op_;
  const Kernel& kernel_;
  int threads_;
  KernelSpec spec_;
  KernelRun run_;
  int64_t workspace_ = 0;
};

// |a - b| and |b| in the 2-norm; positions that are NaN or the same infinity in both agree, and infinity with what is beyond the largest
// number of a's type.
std::pair<double, double> distance(const Tensor& a, const Tensor& b, double largest = 3.4e38);

}  // namespace ort_train::fixtures
