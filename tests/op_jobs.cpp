#include "tests/op_jobs.h"

#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstring>
#include <set>

#include "graph/error.h"
#include "tests/op_inputs.h"

namespace ort_train::fixtures {
namespace {

bool is_same(const Tensor& a, const Tensor& b, size_t i) {
  const size_t size = static_cast<size_t>(size_of(a.dtype));
  if (std::memcmp(a.bytes.data() + i * size, b.bytes.data() + i * size, size) == 0) return true;
  return is_floating(a.dtype) && std::isnan(a.to_double()[i]) && std::isnan(b.to_double()[i]);
}

}  // namespace

int OpJob::written(size_t output) const {
  for (const Alias& alias : op->writes) {
    if (static_cast<size_t>(alias.output) == output && inputs[static_cast<size_t>(alias.input)]) return alias.input;
  }
  return -1;
}

std::vector<std::unique_ptr<const OpJob>> op_jobs(const OpCase& op_case, const KernelTable& table) {
  std::vector<std::unique_ptr<const OpJob>> jobs;
  std::set<std::vector<DType>> done;
  for (const DType type : {DType::float32, DType::float16, DType::bfloat16, DType::float64}) {
    if (type == DType::float64 && !op_case.float64) continue;
    auto job = std::make_unique<OpJob>();
    job->op = &op_named(op_case.op);
    job->tensors = inputs_of(op_case, type);
    KernelSpec& spec = job->spec;
    spec.attributes = type == DType::float64 ? op_case.attributes64.value_or(op_case.attributes) : op_case.attributes;
    InferContext context{.attributes = spec.attributes, .inputs = {}, .constants = {}, .outputs = op_case.outputs};
    std::vector<DType> types;
    for (size_t i = 0; i < job->tensors.size(); ++i) {
      const bool present = op_case.inputs[i].present;
      job->inputs.push_back(present ? &job->tensors[i] : nullptr);
      spec.present.push_back(present);
      spec.inputs.push_back(present ? job->tensors[i].type() : TensorType{});
      spec.constants.push_back(op_case.inputs[i].constant ? job->inputs[i] : nullptr);
      types.push_back(spec.inputs[i].dtype);
    }
    for (size_t i = 0; i < job->inputs.size(); ++i) context.inputs.push_back(job->inputs[i] ? &spec.inputs[i] : nullptr);
    context.constants = spec.constants;
    if (!done.insert(types).second) continue;
    try {
      spec.outputs = job->op->infer(context);
    } catch (const Error&) {
      continue;  // not of this type
    }
    if (cpu_kernels().refusal(*job->op, spec).empty() && table.refusal(*job->op, spec).empty()) jobs.push_back(std::move(job));
  }
  return jobs;
}

std::vector<Tensor> processors_results(const OpJob& job, Workers& workers) {
  const Kernel& kernel = cpu_kernels().at(*job.op, job.spec);
  std::vector<Tensor> inputs = job.tensors, results;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (size_t i = 0; i < inputs.size(); ++i) in.push_back(job.inputs[i] ? inputs[i].bytes.data() : nullptr);
  for (size_t i = 0; i < job.spec.outputs.size(); ++i) {
    results.emplace_back(job.spec.outputs[i].dtype, job.spec.outputs[i].shape);
    out.push_back(job.written(i) >= 0 ? const_cast<void*>(in[static_cast<size_t>(job.written(i))]) : results[i].bytes.data());
  }
  std::vector<std::byte> workspace(static_cast<size_t>(workspace_bytes(kernel, job.spec, workers.threads())) + 64);
  DataError wrong;
  prepare(kernel, job.spec)({.inputs = in,
                             .outputs = out,
                             .workspace = workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64,
                             .queue = &workers,
                             .error = &wrong});
  wrong.check();
  for (size_t i = 0; i < results.size(); ++i) {
    if (job.written(i) >= 0) std::memcpy(results[i].bytes.data(), out[i], results[i].bytes.size());
  }
  return results;
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
