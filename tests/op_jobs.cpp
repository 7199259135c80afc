#include "tests/op_jobs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>

#include "exec/convolution.h"
#include "graph/error.h"
#include "tests/op_inputs.h"
#include "tests/prepared_op.h"

namespace ort_train::fixtures {
namespace {

bool is_same(const Tensor& a, const Tensor& b, size_t i) {
  const size_t size = static_cast<size_t>(size_of(a.dtype));
  if (std::memcmp(a.bytes.data() + i * size, b.bytes.data() + i * size, size) == 0) return true;
  return is_floating(a.dtype) && std::isnan(a.to_double()[i]) && std::isnan(b.to_double()[i]);
}

}  // namespace

std::vector<std::unique_ptr<const OpJob>> op_jobs(const OpCase& op_case, const KernelTable& table) {
  std::vector<std::unique_ptr<const OpJob>> jobs;
  std::set<std::vector<DType>> done;
  for (const DType type : {DType::float32, DType::float16, DType::bfloat16, DType::float64}) {
    if (type == DType::float64 && !op_case.float64) continue;
    auto job = std::make_unique<OpJob>(OpJob{.op = &op_named(op_case.op), .tensors = inputs_of(op_case, type)});
    job->inputs = views_of(op_case, job->tensors);
    std::vector<DType> types;
    for (const Tensor* input : job->inputs) types.push_back(input ? input->dtype : DType::float32);
    if (!done.insert(types).second) continue;
    try {
      job->spec = spec_of(op_case, type, job->tensors);
    } catch (const Error&) {
      continue;  // not of this type
    }
    if (cpu_kernels().refusal(*job->op, job->spec).empty() && table.refusal(*job->op, job->spec).empty()) jobs.push_back(std::move(job));
  }
  return jobs;
}

void expect_same(const Tensor& found, const Tensor& wanted) {
  ASSERT_EQ(found.bytes.size(), wanted.bytes.size());
  if (found.bytes == wanted.bytes) return;
  if (is_quantized(found.dtype)) {
    ADD_FAILURE() << "other codes or scales";
    return;
  }
  int64_t different = 0, first = -1;
  for (int64_t j = 0; j < found.size(); ++j) {
    if (is_same(found, wanted, static_cast<size_t>(j))) continue;
    if (different++ == 0) first = j;
  }
  EXPECT_EQ(different, 0) << "of " << found.size() << " elements; the first, " << first << ": "
                          << found.to_double()[static_cast<size_t>(first)] << ", the processor's "
                          << wanted.to_double()[static_cast<size_t>(first)];
}

void expect_near(const Tensor& found, const Tensor& wanted, double tolerance) {
  const auto [apart, norm] = distance(found, wanted, std::numeric_limits<double>::max());
  EXPECT_LE(apart, tolerance * norm);
}

namespace {
bool is_product(std::string_view op) { return op.find("MatMul") != op.npos; }
}  // namespace

double own_order_tolerance(const OpJob& job, size_t output, const Tensor& result) {
  constexpr double kSums = 1e-5, kWinograd = 2e-6;
  const auto rounding = [](DType type) { return type == DType::bfloat16 ? 0x1p-8 : type == DType::float16 ? 0x1p-11 : 0; };
  const std::string_view op = job.op->name;
  const bool is_attention = op.starts_with("Attention");
  const DType half = half_of_products(job);
  if (!is_half(half)) return takes_winograd(job) ? kWinograd : 0;
  if (is_product(op) || (op == "Attention" && output == 1)) return std::max(rounding(result.dtype), kSums);
  return (is_attention ? 2 : 1) * std::max(rounding(half), rounding(result.dtype));
}

bool takes_winograd(const OpJob& job) {
  const std::string_view op = job.op->name;
  const bool is_forward = op == "Conv" || op == "ConvPart", of_input = op == "ConvInputGrad" || op == "ConvTranspose";
  if ((!is_forward && !of_input && op != "ConvWeightGrad") || job.spec.inputs[0].dtype == DType::float64) return false;
  using namespace convolution;
  return convolution::takes_winograd(is_forward ? layout_of_y(job.spec) : of_input ? layout_of_dx(job.spec) : layout_of_dw(job.spec));
}

DType half_of_products(const OpJob& job) {
  const std::string_view op = job.op->name;
  if (!is_product(op) && !op.starts_with("Attention") && !op.starts_with("Conv")) return DType::float32;
  const auto has = [&](DType type) {
    return std::any_of(job.inputs.begin(), job.inputs.end(), [&](const Tensor* input) { return input && input->dtype == type; });
  };
  const auto compute = static_cast<DType>(job.spec.attributes.get("compute", static_cast<int64_t>(DType::float32)));
  for (const DType type : {DType::bfloat16, DType::float16}) {  // of a mixture the one with fewer digits
    if (compute == type || has(type)) return type;
  }
  return DType::float32;
}

std::vector<OpCase> op_cases_for(const KernelTable& table) {
  std::vector<OpCase> all = all_op_cases();
  std::erase_if(all, [&](const OpCase& op_case) { return !table.find(op_named(op_case.op)); });
  return all;
}

std::string test_name(const OpCase& op_case) {
  std::string name = op_case.op + "_" + op_case.name;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
}

}  // namespace ort_train::fixtures
