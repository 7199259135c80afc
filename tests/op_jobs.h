// One op on one set of inputs, for whatever kernels: what tests of kernels on devices, and in place of them, share.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "exec/kernel.h"
#include "tests/op_cases.h"

namespace ort_train::fixtures {

struct OpJob {
  const OpDef* op = nullptr;
  KernelSpec spec{};
  std::vector<Tensor> tensors{};
  std::vector<const Tensor*> inputs{};  // null where absent; among `tensors`
};

// A case in every element type in which the processor and the table take it.
std::vector<std::unique_ptr<const OpJob>> op_jobs(const OpCase& op_case, const KernelTable& table);
// The same bits; a NaN is a NaN, whichever.
void expect_same(const Tensor& found, const Tensor& wanted);
// The cases of ops that the table has a kernel for.
std::vector<OpCase> op_cases_for(const KernelTable& table);
// "MatMul_two_batches".
std::string test_name(const OpCase& op_case);

}  // namespace ort_train::fixtures
