// Updates of CUDA devices, run on the host (exec/block.h), of what no op case has: states in 8 bits, bfloat16 parameters. The bits of the
// processor's kernels.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "exec/cuda/kernels.h"
#include "exec/dynamic8.h"
#include "exec/ops/adagrad.h"
#include "exec/ops/adamw.h"
#include "exec/ops/lamb.h"
#include "exec/ops/lars.h"
#include "exec/ops/lion.h"
#include "exec/ops/rmsprop.h"
#include "exec/ops/sgd.h"
#include "exec/random.h"
#include "graph/error.h"
#include "tests/op_inputs.h"
#include "tests/prepared_op.h"

namespace ort_train::fixtures {
namespace {

// Numbers of all magnitudes, some of them 0; among the blocks some are of zeros, some of denormal numbers.
std::vector<float> numbers_of(int64_t n, uint64_t salt, bool is_signed) {
  SeededNumbers random("cuda updates", salt);
  std::vector<float> numbers;
  for (int64_t i = 0; i < n; ++i) {
    const double size = std::pow(10.0, -9 * random.uniform()), u = random.uniform();
    double x = u < 0.02 ? 0 : size;
    if (i / kDynamic8Block % 5 == 2) x = 0;
    if (i / kDynamic8Block % 5 == 3) x *= 1e-38;
    if (is_signed && random.uniform() < 0.5) x = -x;
    numbers.push_back(static_cast<float>(x));
  }
  return numbers;
}

Tensor tensor_of_numbers(DType dtype, int64_t n, uint64_t salt) {
  Tensor tensor(dtype, {n});
  std::vector<float> numbers = numbers_of(n, salt, dtype != DType::dynamic8_unsigned);
  if (!is_quantized(dtype)) return tensor_of(dtype, {n}, {numbers.begin(), numbers.end()});
  numbers.resize(static_cast<size_t>((n + kDynamic8Block - 1) / kDynamic8Block * kDynamic8Block), 0.0f);
  auto* block = reinterpret_cast<uint8_t*>(tensor.bytes.data());
  for (size_t i = 0; i < numbers.size(); i += kDynamic8Block, block += kDynamic8BlockBytes)
    dynamic8::codec(dtype, false).encode(numbers.data() + i, block);
  return tensor;
}

struct Update {
  const char* op;
  int64_t scalars;
  std::vector<DType> states;
  Attributes attributes = {};
  bool has_step = true;  // behind the scalars
};

const DType kSigned = DType::dynamic8, kUnsigned = DType::dynamic8_unsigned, kFloat = DType::float32;

void expect_the_processors_bits(const Update& update, DType parameter, DType gradient, int64_t n) {
  Attributes attributes = update.attributes;
  attributes.set("weight_decay", 0.1f);
  attributes.set("seed", int64_t{0x123456789});
  attributes.set("ordinal", int64_t{7});
  std::vector<Tensor> inputs{tensor_of_numbers(parameter, n, 1), tensor_of_numbers(gradient, n, 2), scalar_tensor(0.5f)};
  std::vector<float> scalars;
  for (int64_t i = 0; i < update.scalars; ++i) scalars.push_back(0.01f * static_cast<float>(i + 1));
  if (update.has_step) scalars.insert(scalars.end(), {3, 12345});
  inputs.push_back(make_tensor<float>({static_cast<int64_t>(scalars.size())}, scalars));
  for (const DType state : update.states) inputs.push_back(tensor_of_numbers(state, n, 3 + inputs.size()));
  std::vector<const Tensor*> views;
  for (const Tensor& input : inputs) views.push_back(&input);
  const OpDef& op = op_named(update.op);
  constexpr int kThreads = 2;
  const auto run = [&](const KernelTable& table) {
    KernelSpec spec = spec_of(op, attributes, views, std::vector<bool>(inputs.size()), 1 + update.states.size());
    return PreparedOp(op, std::move(spec), kThreads, table).run(views);
  };
  for (const int64_t first : {0, 128, 130}) {
    attributes.set("first", first);
    for (const int64_t as_bitsandbytes : {0, 1}) {
      attributes.set("bitsandbytes", as_bitsandbytes);
      const std::vector<Tensor> wanted = run(cpu_kernels());
      for (const bool backwards : {false, true}) {
        run_cuda_kernels_backwards(backwards);
        const std::vector<Tensor> found = run(cuda_kernels_on_host());
        run_cuda_kernels_backwards(false);
        for (size_t i = 0; i < found.size(); ++i)
          EXPECT_TRUE(found[i].bytes == wanted[i].bytes)
              << update.op << " of " << n << ", output " << i << ", bitsandbytes " << as_bitsandbytes << ", first " << first;
      }
    }
  }
  inputs[2] = scalar_tensor(std::nanf(""));  // a step that is skipped
  if (!op.writes.empty()) {
    EXPECT_TRUE(run(cuda_kernels_on_host())[0].bytes == inputs[0].bytes);
  }
}

TEST(CudaUpdates, HaveTheProcessorsBits) {
  const Update updates[] = {{"AdamW", kAdamWScalars, {kSigned, kUnsigned}},
                            {"AdamW", kAdamWScalars, {kFloat, kUnsigned}},
                            {"AdamW", kAdamWScalars, {kFloat, kFloat}},
                            {"Adam", kAdamWScalars, {kSigned, kUnsigned}},
                            {"SGD", kSgdScalars, {}},
                            {"SGD", kSgdScalars, {kSigned}},
                            {"Lion", kLionScalars, {kSigned}},
                            {"Adagrad", kAdagradScalars, {kUnsigned}},
                            {"LambSquares", kLambScalars, {kSigned, kUnsigned}, {}, false},
                            {"Lamb", kLambScalars, {kSigned, kUnsigned}, {}, false},
                            {"Lars", kLarsScalars, {kSigned}, {}, false},
                            {"RMSprop", kRmspropScalars, {kUnsigned, kSigned, kSigned}, {{"centered", int64_t{1}}}}};
  for (const Update& update : updates) {
    for (const int64_t n : {1, 255, 256, 3 * 256 + 77, 11 * 256 + 130, 70'003}) {
      if (n > 65'536 && update.has_step) continue;  // more blocks of squares than one
      expect_the_processors_bits(update, kFloat, kFloat, n);
      if (!update.has_step) continue;
      expect_the_processors_bits(update, DType::bfloat16, DType::bfloat16, n);
      expect_the_processors_bits(update, DType::bfloat16, kFloat, n);
    }
  }
}

}  // namespace
}  // namespace ort_train::fixtures
