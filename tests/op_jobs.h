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
// Within a share of its 2-norm.
void expect_near(const Tensor& found, const Tensor& wanted, double tolerance);

// In which 16-bit type a product, a convolution or attention multiplies; float32: in none, or it is another op.
DType half_of_products(const OpJob& job);
// Whether the processor makes a convolution, or a gradient of one, by Winograd's filtering, which the GPU's kernels don't.
bool takes_winograd(const OpJob& job);
// How far results may be apart of two devices that make these in orders of their own; 0: not at all. Of attention and convolutions all but
// lse is rounded to 16 bits, whatever it is stored as, weights of attention are on the way.
double own_order_tolerance(const OpJob& job, size_t output, const Tensor& result);
// The cases of ops that the table has a kernel for.
std::vector<OpCase> op_cases_for(const KernelTable& table);
// "MatMul_two_batches".
std::string test_name(const OpCase& op_case);

}  // namespace ort_train::fixtures
