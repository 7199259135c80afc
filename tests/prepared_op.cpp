#include "tests/prepared_op.h"

#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>

#include "graph/op_def.h"

#ifdef ORT_TRAIN_SANITIZED
#include <sanitizer/asan_interface.h>
#endif

namespace ort_train::fixtures {

Workers& workers(int threads) {
  static tbb::global_control allow(tbb::global_control::max_allowed_parallelism, 8);
  static std::map<int, std::unique_ptr<Workers>> all;
  std::unique_ptr<Workers>& one = all[threads];
  if (!one) one = std::make_unique<Workers>(threads);
  return *one;
}

namespace {

// Bytes at a chosen distance from a 64-byte line, between guards, filled with nonsense. Under AddressSanitizer nobody may read a guard,
// either.
class Guarded {
 public:
  Guarded(int64_t bytes, int64_t shift) : bytes_(bytes), memory_(static_cast<size_t>(bytes) + 4 * kGuard, std::byte{0xa5}) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    data_ = memory_.data() + (kGuard - address % kGuard) + kGuard + shift;
    std::memset(data_, 0xcd, static_cast<size_t>(bytes));
    forbid_guards(true);
  }
  Guarded(Guarded&& other) = default;
  ~Guarded() {
    if (!memory_.empty()) forbid_guards(false);
  }
  std::byte* data() const { return data_; }
  bool intact() const {
    forbid_guards(false);
    for (const std::byte* at = memory_.data(); at < memory_.data() + memory_.size(); ++at) {
      if ((at < data_ || at >= data_ + bytes_) && *at != std::byte{0xa5}) return false;
    }
    return true;
  }

 private:
  void forbid_guards([[maybe_unused]] bool forbidden) const {
#ifdef ORT_TRAIN_SANITIZED
    const std::byte *const begin = memory_.data(), *const end = begin + memory_.size(), *const behind = data_ + bytes_;
    const auto change = forbidden ? __asan_poison_memory_region : __asan_unpoison_memory_region;
    change(begin, static_cast<size_t>(data_ - begin));
    change(behind, static_cast<size_t>(end - behind));
#endif
  }

  static constexpr int64_t kGuard = 64;
  int64_t bytes_;
  std::vector<std::byte> memory_;
  std::byte* data_;
};

}  // namespace

KernelSpec spec_of(const OpDef& op, const Attributes& attributes, const std::vector<const Tensor*>& inputs,
                   const std::vector<bool>& constant, size_t outputs) {
  KernelSpec spec{.attributes = attributes};
  for (size_t i = 0; i < inputs.size(); ++i) {
    spec.present.push_back(inputs[i] != nullptr);
    spec.inputs.push_back(inputs[i] ? inputs[i]->type() : TensorType{});
    spec.constants.push_back(constant[i] ? inputs[i] : nullptr);
  }
  InferContext context{.attributes = spec.attributes, .inputs = {}, .constants = spec.constants, .outputs = outputs};
  for (size_t i = 0; i < inputs.size(); ++i) context.inputs.push_back(inputs[i] ? &spec.inputs[i] : nullptr);
  spec.outputs = op.infer(context);
  return spec;
}

PreparedOp::PreparedOp(const OpDef& op, KernelSpec spec, int threads, const KernelTable& table)
    : op_(op),
      kernel_(table.at(op, spec)),
      threads_(threads),
      spec_(std::move(spec)),
      run_(prepare(kernel_, spec_)),
      workspace_(workspace_bytes(kernel_, spec_, threads)) {}

std::vector<Alias> PreparedOp::in_place() const {
  std::vector<Alias> fitting;
  for (const Alias& alias : kernel_.in_place) {
    const size_t input = static_cast<size_t>(alias.input), output = static_cast<size_t>(alias.output);
    if (!spec_.has(input) || output >= spec_.outputs.size()) continue;
    const TensorType &from = spec_.inputs[input], &to = spec_.outputs[output];
    if (from.bytes() == to.bytes() && element_count(from.shape) == element_count(to.shape)) fitting.push_back(alias);
  }
  return fitting;
}

std::vector<Tensor> PreparedOp::run(const std::vector<const Tensor*>& inputs, const How& how) const {
  const auto shift_of = [&](DType type) { return how.shift == 0 ? 0 : how.shift * size_of(type); };  // what is in blocks has no size
  std::vector<Guarded> in, out;
  in.reserve(inputs.size()), out.reserve(spec_.outputs.size());
  std::vector<const void*> in_places;
  std::vector<void*> out_places;
  for (const Tensor* input : inputs) {
    in.emplace_back(input ? input->type().bytes() : 0, input ? shift_of(input->dtype) : 0);
    if (input && !input->bytes.empty()) std::memcpy(in.back().data(), input->bytes.data(), input->bytes.size());
    in_places.push_back(input ? in.back().data() : nullptr);
  }
  for (const TensorType& type : spec_.outputs) {
    out.emplace_back(type.bytes(), shift_of(type.dtype));
    out_places.push_back(out.back().data());
  }
  std::vector<Alias> shared(op_.writes.begin(), op_.writes.end());
  if (how.in_place) shared.push_back(*how.in_place);
  for (const Alias& alias : shared) {
    if (static_cast<size_t>(alias.output) < out.size() && in_places[alias.input])
      out_places[alias.output] = const_cast<void*>(in_places[alias.input]);
  }
  const Guarded workspace(workspace_, 0);
  DataError wrong;
  run_({.inputs = in_places, .outputs = out_places, .workspace = workspace.data(), .queue = &workers(threads_), .error = &wrong});
  wrong.check();

  std::vector<Tensor> results;
  for (size_t i = 0; i < spec_.outputs.size(); ++i) {
    results.emplace_back(spec_.outputs[i].dtype, spec_.outputs[i].shape);
    if (!results[i].bytes.empty()) std::memcpy(results[i].bytes.data(), out_places[i], results[i].bytes.size());
  }
  for (const Guarded& guarded : out) EXPECT_TRUE(guarded.intact()) << "wrote beside an output";
  for (const Guarded& guarded : in) EXPECT_TRUE(guarded.intact()) << "wrote beside an input";
  EXPECT_TRUE(workspace.intact()) << "wrote beside its workspace";
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool overwritten =
        std::any_of(shared.begin(), shared.end(), [&](const Alias& alias) { return static_cast<size_t>(alias.input) == i; });
    if (inputs[i] && !overwritten && !inputs[i]->bytes.empty()) {
      EXPECT_EQ(std::memcmp(in[i].data(), inputs[i]->bytes.data(), inputs[i]->bytes.size()), 0) << "changed input " << i;
    }
  }
  return results;
}

std::pair<double, double> distance(const Tensor& a, const Tensor& b, double largest) {
  const std::vector<double> x = a.to_double(), y = b.to_double();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (x[i] == y[i] || (std::isnan(x[i]) && std::isnan(y[i]))) {
      if (std::isfinite(y[i])) norm += y[i] * y[i];
      continue;
    }
    if (std::isinf(x[i]) && std::abs(y[i]) > largest) continue;
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return {std::sqrt(difference), std::sqrt(norm)};
}

}  // namespace ort_train::fixtures
