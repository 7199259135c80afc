// What the op table can't say: that the threads are there and change nothing, which chain of additions a product is, losses and updates
// against PyTorch's numbers, attention against its parts, the ONNX forms.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <tbb/global_control.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "exec/kernel.h"
#include "graph/builder.h"
#include "passes/optimizer.h"

namespace ort_train {
namespace {

class KernelsTest : public ::testing::Test {
 protected:
  tbb::global_control allow_{tbb::global_control::max_allowed_parallelism, 8};
};
using WorkersTest = KernelsTest;
using MatMulTest = KernelsTest;
using AttentionTest = KernelsTest;
using LossTest = KernelsTest;
using OptimizerTest = KernelsTest;
using OnnxFormsTest = KernelsTest;

// The numbers of ANSI C's rand, in [-1, 1).
Tensor numbers(Shape shape, uint32_t seed, DType dtype = DType::float32) {
  Tensor tensor(dtype, std::move(shape));
  for (int64_t i = 0; i < tensor.size(); ++i) {
    seed = seed * 1664525 + 1013904223;
    const float x = static_cast<float>(seed >> 8) * 0x1p-23f - 1;
    if (dtype == DType::float32)
      tensor.data<float>()[i] = x;
    else
      tensor.data<double>()[i] = x;
  }
  return tensor;
}

std::vector<Tensor> run(const char* op, const Attributes& attributes, const std::vector<const Tensor*>& inputs, size_t outputs = 1,
                        int threads = 1) {
  Workers workers(threads);
  return evaluate(op_named(op), attributes, inputs, outputs, workers);
}

double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_double(), y = b.to_double();
  double difference = 0, norm = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norm += y[i] * y[i];
  }
  return std::sqrt(difference / norm);
}

void expect_close(const Tensor& actual, const std::vector<float>& expected, float relative = 5e-7f) {
  ASSERT_EQ(static_cast<size_t>(actual.size()), expected.size());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(actual.data<float>()[i], expected[i], relative * std::abs(expected[i])) << "element " << i;
}

// --- workers --------------------------------------------------------------------------------------------------------------------------

TEST_F(WorkersTest, AllThreadsTakePart) {
  for (const int threads : {1, 2, 3, 8}) {
    Workers workers(threads);
    std::set<std::thread::id> ids;
    std::set<int> indices;
    std::mutex mutex;
    std::atomic<int> arrived{0};
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    workers.parallel_for(threads, [&](int64_t, int worker) {
      {
        const std::lock_guard lock(mutex);
        ids.insert(std::this_thread::get_id());
        indices.insert(worker);
      }
      ++arrived;
      while (arrived < threads && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
    });
    EXPECT_EQ(ids.size(), static_cast<size_t>(threads));
    EXPECT_EQ(indices.size(), static_cast<size_t>(threads));
    EXPECT_EQ(*indices.begin(), 0);
    EXPECT_EQ(*indices.rbegin(), threads - 1);
  }
}

TEST_F(WorkersTest, EachTaskOnceAndNoWorkerTwiceAtATime) {
  Workers workers(3);
  std::vector<std::atomic<int>> done(5000), busy(3);
  std::atomic<int> clashes{0};
  workers.parallel_for(5000, [&](int64_t task, int worker) {
    if (busy[worker]++ != 0) ++clashes;
    ++done[task];
    --busy[worker];
  });
  EXPECT_EQ(clashes, 0);
  EXPECT_TRUE(std::all_of(done.begin(), done.end(), [](const std::atomic<int>& n) { return n == 1; }));
}

TEST_F(WorkersTest, AnExceptionComesThroughAndTheWorkersGoOn) {
  for (const int threads : {1, 3}) {
    Workers workers(threads);
    EXPECT_THROW(workers.parallel_for(100,
                                      [](int64_t task, int) {
                                        if (task == 40) throw error(ErrorCode::data, "forty");
                                      }),
                 Error);
    std::atomic<int> count{0};
    workers.parallel_for(100, [&](int64_t, int) { ++count; });
    EXPECT_EQ(count, 100);
  }
}

// Sixteen tasks, of which the last two are longer: what they take together, and what they would on eight threads.
TEST_F(WorkersTest, TimedTasksAreScheduledOnAllThreads) {
  Workers workers(8);
  const auto loop = [&] {
    workers.parallel_for(16, [](int64_t task, int) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(task < 14 ? 1 : 4);
      while (std::chrono::steady_clock::now() < end) {
      }
    });
  };
  loop();
  EXPECT_EQ(workers.times().loops, 0);
  workers.time_tasks();
  loop();
  const TaskTimes times = workers.times();
  EXPECT_EQ(times.loops, 1);
  EXPECT_EQ(times.tasks, 16);
  EXPECT_EQ(workers.times().tasks, 0);
  EXPECT_GT(times.longest, 0);
  EXPECT_GE(times.scheduled, std::max(times.longest, times.task_seconds / 8));
  EXPECT_LE(times.scheduled, times.task_seconds / 8 + times.longest);  // Graham's bound
  EXPECT_GE(times.loop_seconds, times.longest);
  Workers alone(1);
  alone.time_tasks();
  alone.parallel_for(3, [](int64_t, int) {});
  const TaskTimes of_one = alone.times();
  EXPECT_EQ(of_one.tasks, 3);
  EXPECT_DOUBLE_EQ(of_one.scheduled, of_one.task_seconds);
}

// --- threads change nothing -----------------------------------------------------------------------------------------------------------

struct Job {
  const char* op;
  Attributes attributes;
  std::vector<Tensor> inputs;
  size_t outputs = 1;
};

TEST_F(KernelsTest, ThreadsChangeNoBit) {
  Tensor labels(DType::int64, {300});
  for (int64_t i = 0; i < 300; ++i) labels.data<int64_t>()[i] = i * 17 % 2001;
  const auto scalars = make_optimizer().scalars(3, 1e-3);
  const Tensor numbers_of_step = make_tensor<float>({static_cast<int64_t>(scalars.size())}, scalars), half = scalar_tensor(0.5f);
  const Tensor large = numbers({700001}, 4);
  const auto rounded = [&](const Shape& shape, uint32_t seed) {
    const Tensor wide = numbers(shape, seed);
    return run("Cast", {{"to", static_cast<int64_t>(DType::bfloat16)}}, {&wide})[0];
  };
  const std::vector<Job> jobs{
      {"MatMul", {}, {numbers({600, 401}, 1), numbers({401, 900}, 2), numbers({900}, 3)}},
      {"MatMul", {{"trans_a", int64_t{1}}}, {numbers({129, 777}, 1), numbers({129, 301}, 2)}},
      {"MatMul", {{"trans_b", int64_t{1}}}, {numbers({9, 65, 33}, 1), numbers({9, 70, 33}, 2)}},
      {"Attention", {{"causal", int64_t{1}}}, {numbers({2, 3, 300, 20}, 1), numbers({2, 3, 300, 20}, 2), numbers({2, 3, 300, 20}, 3)}, 2},
      {"AttentionGrad",
       {{"causal", int64_t{1}}},
       {numbers({2, 3, 300, 20}, 1), numbers({2, 3, 300, 20}, 2), numbers({2, 3, 300, 20}, 3), numbers({2, 3, 300, 20}, 4),
        numbers({2, 3, 300, 20}, 5), numbers({2, 3, 300}, 6)},
       3},
      {"AttentionGrad",  // several blocks of keys, which wait for each other; groups of heads
       {{"causal", int64_t{1}}},
       {numbers({1, 4, 900, 20}, 1), numbers({1, 4, 900, 20}, 2), numbers({1, 2, 900, 20}, 3), numbers({1, 2, 900, 20}, 4),
        numbers({1, 4, 900, 20}, 5), numbers({1, 4, 900}, 6)},
       3},
      {"AttentionGrad",
       {},
       {rounded({9, 4, 130, 8}, 1), rounded({9, 4, 130, 8}, 2), rounded({9, 4, 1600, 8}, 3), rounded({9, 4, 1600, 8}, 4),
        rounded({9, 4, 130, 8}, 5), numbers({9, 4, 130}, 6)},
       3},
      {"SoftmaxCrossEntropy", {}, {numbers({300, 2001}, 1), labels}, 2},
      {"SoftmaxCrossEntropyGrad", {}, {half, numbers({300, 2001}, 1), numbers({300}, 2), labels}},
      {"SquaredError", {}, {large, numbers({700001}, 5)}},
      {"SumSquares", {}, {large}},
      {"AdamW",
       {{"weight_decay", 0.1f}},
       {large, numbers({700001}, 5), half, numbers_of_step, numbers({700001}, 6), Tensor(DType::float32, {700001})},
       3},
  };
  for (const Job& job : jobs) {
    std::vector<const Tensor*> inputs;
    for (const Tensor& input : job.inputs) inputs.push_back(&input);
    const std::vector<Tensor> one = run(job.op, job.attributes, inputs, job.outputs);
    for (const int threads : {2, 3, 8}) {
      for (int again = 0; again < 3; ++again)
        EXPECT_EQ(run(job.op, job.attributes, inputs, job.outputs, threads), one) << job.op << " on " << threads << " threads";
    }
  }
}

// --- products -------------------------------------------------------------------------------------------------------------------------

// An element is one chain of fused multiply-adds a block of depth: the same on every processor, wherever the element lies.
TEST_F(MatMulTest, AnElementIsAFixedChain) {
  struct Form {
    int64_t rows, columns, depth, block, wide_block;  // of a wide matrix with as many rows as the depth, blocks are shorter
  };
  for (const Form f : {Form{21, 61, 50, 64, 64}, Form{13, 50, 384, 384, 384}, Form{9, 33, 385, 256, 256}, Form{300, 7, 1000, 384, 384},
                       Form{2, 20'011, 150, 192, 64}}) {
    for (const bool trans : {false, true}) {
      const int64_t block = trans ? f.block : f.wide_block;
      const Tensor a = numbers(trans ? Shape{f.depth, f.rows} : Shape{f.rows, f.depth}, 1),
                   b = numbers(trans ? Shape{f.columns, f.depth} : Shape{f.depth, f.columns}, 2);
      const Tensor bias = numbers({f.columns}, 3);
      const Tensor y = run("MatMul", {{"trans_a", int64_t{trans}}, {"trans_b", int64_t{trans}}, {"alpha", 0.3f}}, {&a, &b, &bias})[0];
      int64_t wrong = 0;
      for (int64_t i = 0; i < f.rows; ++i) {
        for (int64_t j = 0; j < f.columns; ++j) {
          float result = bias.data<float>()[j];
          for (int64_t begin = 0; begin < f.depth; begin += block) {
            float sum = 0;
            for (int64_t k = begin; k < std::min(begin + block, f.depth); ++k) {
              sum = std::fma(a.data<float>()[trans ? k * f.rows + i : i * f.depth + k],
                             b.data<float>()[trans ? j * f.depth + k : k * f.columns + j], sum);
            }
            result = std::fma(0.3f, sum, result);
          }
          wrong += y.data<float>()[i * f.columns + j] != result;
        }
      }
      EXPECT_EQ(wrong, 0) << f.rows << " x " << f.columns << " x " << f.depth << (trans ? " transposed" : "");
    }
  }
}

TEST_F(MatMulTest, WithoutDepthItIsTheBias) {
  for (const Tensor& bias :
       {make_tensor<float>({3}, {0, 7, -1}), make_tensor<double>({3}, {0, 7, -1}), make_tensor<int64_t>({3}, {0, 7, -1})}) {
    const Tensor a(bias.dtype, {2, 0}), b(bias.dtype, {0, 3});
    EXPECT_EQ(run("MatMul", {}, {&a, &b})[0].to_double(), std::vector<double>(6)) << to_string(bias.dtype);
    EXPECT_EQ(run("MatMul", {}, {&a, &b, &bias})[0].to_double(), (std::vector<double>{0, 7, -1, 0, 7, -1})) << to_string(bias.dtype);
  }
}

TEST_F(MatMulTest, NamesWhatDoesNotFit) {
  const Tensor a(DType::float32, {2, 3}), b(DType::float32, {4, 5}), bias(DType::float32, {4});
  try {
    run("MatMul", {{"trans_b", int64_t{1}}}, {&a, &b});
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "the inner dimensions of [2, 3] and [4, 5] transposed differ");
  }
  const Tensor fitting(DType::float32, {3, 5});
  EXPECT_THROW(run("MatMul", {}, {&a, &fitting, &bias}), Error);
}

// --- attention ------------------------------------------------------------------------------------------------------------------------

// In double, so that only the order of summation differs: products, softmax and their gradients one by one.
TEST_F(AttentionTest, EqualsItsParts) {
  constexpr int64_t kRows = 300, kColumns = 600, kDepth = 12, kWidth = 10;
  const Tensor q = numbers({1, 2, kRows, kDepth}, 1, DType::float64), k = numbers({1, 2, kColumns, kDepth}, 2, DType::float64);
  const Tensor v = numbers({1, 2, kColumns, kWidth}, 3, DType::float64), dy = numbers({1, 2, kRows, kWidth}, 4, DType::float64);
  const Attributes scaled{{"trans_b", int64_t{1}}, {"alpha", 1.5f}}, trans_b{{"trans_b", int64_t{1}}}, trans_a{{"trans_a", int64_t{1}}};
  for (const bool causal : {false, true}) {
    const Tensor bias = numbers({kRows, kColumns}, 5, DType::float64);
    Tensor hiding = bias;
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      if (causal && i % kColumns > i / kColumns) hiding.data<double>()[i] = -HUGE_VAL;
    }
    const Tensor scores = run("Add", {}, {&run("MatMul", scaled, {&q, &k})[0], &hiding})[0];
    const Tensor weights = run("Softmax", {{"axis", int64_t{-1}}}, {&scores})[0];
    const Tensor o = run("MatMul", {}, {&weights, &v})[0];
    const Tensor dv = run("MatMul", trans_a, {&weights, &dy})[0], dweights = run("MatMul", trans_b, {&dy, &v})[0];
    const Tensor dscores = run("SoftmaxGrad", {{"axis", int64_t{-1}}}, {&dweights, &weights})[0];
    const Tensor dq = run("MatMul", {{"alpha", 1.5f}}, {&dscores, &k})[0];
    const Tensor dk = run("MatMul", {{"trans_a", int64_t{1}}, {"alpha", 1.5f}}, {&dscores, &q})[0];

    const Attributes attributes{{"scale", 1.5f}, {"causal", int64_t{causal}}};
    const std::vector<Tensor> fused = run("Attention", attributes, {&q, &k, &v, &bias}, 3);
    const std::vector<Tensor> gradients = run("AttentionGrad", attributes, {&dy, &q, &k, &v, &fused[0], &fused[1], &bias, &fused[2]}, 3);
    EXPECT_LT(distance(fused[0], o), 1e-14);
    EXPECT_LT(distance(gradients[0], dq), 1e-14);
    EXPECT_LT(distance(gradients[1], dk), 1e-14);
    EXPECT_LT(distance(gradients[2], dv), 1e-14);
  }
}

// Keys and values that heads share give what copies of them for each head give, and their gradients add up.
TEST_F(AttentionTest, GroupsEqualCopies) {
  constexpr int64_t kHeads = 6, kGroup = 3, kRows = 300, kColumns = 600, kDepth = 12, kWidth = 10;
  const auto of_heads = [](int64_t heads, int64_t rows, int64_t width, uint32_t seed) {
    return numbers({2, heads, rows, width}, seed, DType::float64);
  };
  const auto copies = [&](const Tensor& shared) {
    const Shape s = shared.shape;
    Tensor grouped = shared;
    grouped.shape = {s[0], s[1], 1, s[2], s[3]};
    Tensor all = run("Expand", {{"shape", Shape{s[0], s[1], kGroup, s[2], s[3]}}}, {&grouped})[0];
    all.shape = {s[0], s[1] * kGroup, s[2], s[3]};
    return all;
  };
  const auto added_up = [&](Tensor each) {
    const Shape s = each.shape;
    each.shape = {s[0], s[1] / kGroup, kGroup, s[2], s[3]};
    return run("ReduceSum", {{"axes", std::vector<int64_t>{2}}, {"keepdims", int64_t{0}}}, {&each})[0];
  };
  const Tensor q = of_heads(kHeads, kRows, kDepth, 1), k = of_heads(kHeads / kGroup, kColumns, kDepth, 2);
  const Tensor v = of_heads(kHeads / kGroup, kColumns, kWidth, 3), dy = of_heads(kHeads, kRows, kWidth, 4);
  const Tensor all_k = copies(k), all_v = copies(v);
  for (const int64_t causal : {0, 1}) {
    const Attributes attributes{{"scale", 0.7f}, {"causal", causal}};
    const std::vector<Tensor> one = run("Attention", attributes, {&q, &k, &v}, 2),
                              each = run("Attention", attributes, {&q, &all_k, &all_v}, 2);
    EXPECT_EQ(one, each);
    const std::vector<Tensor> gradients = run("AttentionGrad", attributes, {&dy, &q, &k, &v, &one[0], &one[1]}, 3);
    const std::vector<Tensor> of_each = run("AttentionGrad", attributes, {&dy, &q, &all_k, &all_v, &one[0], &one[1]}, 3);
    EXPECT_EQ(gradients[0], of_each[0]);
    EXPECT_LT(distance(gradients[1], added_up(of_each[1])), 1e-14);
    EXPECT_LT(distance(gradients[2], added_up(of_each[2])), 1e-14);
  }
}

// --- losses ---------------------------------------------------------------------------------------------------------------------------

TEST_F(LossTest, ALabelOutsideTheClassesIsNamed) {
  const Tensor logits = numbers({4, 10}, 1);
  for (const int64_t wrong : {int64_t{10}, int64_t{-1}}) {
    const Tensor labels = make_tensor<int64_t>({4}, {1, 2, wrong, 3});
    for (const int threads : {1, 3}) {
      try {
        run("SoftmaxCrossEntropy", {{"ignore_index", int64_t{-100}}}, {&logits, &labels}, 2, threads);
        FAIL();
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::data);
        EXPECT_THAT(e.what(), ::testing::HasSubstr("label " + std::to_string(wrong) + " at position 2"));
        EXPECT_THAT(e.what(), ::testing::HasSubstr("10 classes"));
      }
    }
  }
}

TEST_F(LossTest, LargeLogitsOverflowNothing) {
  const Tensor logits = make_tensor<float>({2, 3}, {3e38f, -3e38f, 0, -2e38f, -2e38f, -2e38f}), labels = make_tensor<int64_t>({2}, {0, 1});
  const std::vector<Tensor> loss = run("SoftmaxCrossEntropy", {}, {&logits, &labels}, 2);
  EXPECT_TRUE(std::isfinite(loss[0].data<float>()[0]));
  const Tensor one = scalar_tensor(1.0f);
  const Tensor gradient = run("SoftmaxCrossEntropyGrad", {}, {&one, &logits, &loss[1], &labels})[0];
  for (const float g : gradient.data<float>()) EXPECT_TRUE(std::isfinite(g));
  EXPECT_EQ(gradient.data<float>()[0], 0);
}

// Rows of equal numbers, however large, have a loss that is no more than log(n): what they share cancels out. Of -infinity alone there is
// no softmax.
TEST_F(LossTest, RowsThatAreMaskedAsAWhole) {
  const Tensor labels = make_tensor<int64_t>({1}, {1}), one = scalar_tensor(1.0f), one64 = scalar_tensor(1.0);
  for (const float x : {-1e20f, -3e38f, -1e16f, 1e20f, -5e4f}) {
    const Tensor logits = make_tensor<float>({1, 600}, std::vector<float>(600, x));
    const std::vector<Tensor> loss = run("SoftmaxCrossEntropy", {{"z_loss", 1e-20f}}, {&logits, &labels}, 2);
    EXPECT_GE(loss[0].data<float>()[0], 0) << x;
    EXPECT_FALSE(std::isnan(loss[0].data<float>()[0])) << x;
    EXPECT_NEAR(loss[1].data<float>()[0], x, std::abs(x) * 2e-4) << x;
  }
  const Tensor lowest = make_tensor<double>({1, 600}, std::vector<double>(600, std::numeric_limits<double>::lowest()));
  const std::vector<Tensor> in_double = run("SoftmaxCrossEntropy", {}, {&lowest, &labels}, 2);
  EXPECT_EQ(in_double[0].data<double>()[0], 0);
  const Tensor slope = run("SoftmaxCrossEntropyGrad", {}, {&one64, &lowest, &in_double[1], &labels})[0];
  EXPECT_EQ(slope.data<double>()[1], 0);
  for (const int64_t n : {int64_t{5}, int64_t{600}}) {  // short rows have a way of their own
    const Shape shape{32, n};
    const Tensor hidden =
        make_tensor<float>(shape, std::vector<float>(static_cast<size_t>(32 * n), -std::numeric_limits<float>::infinity()));
    const Tensor of_rows = make_tensor<int64_t>({32}, std::vector<int64_t>(32, 1));
    const std::vector<Tensor> none = run("SoftmaxCrossEntropy", {}, {&hidden, &of_rows}, 2);
    EXPECT_TRUE(std::isnan(none[0].data<float>()[0])) << n;
    const Tensor gradient = run("SoftmaxCrossEntropyGrad", {}, {&one, &hidden, &none[1], &of_rows})[0];
    EXPECT_TRUE(std::isnan(gradient.data<float>()[1])) << n;
  }
}

// --- optimizers: four steps of torch 2.13 with clip_grad_norm_(1.0) ---------------------------------------------------------------------

const std::vector<float> kStart{0.5f, -1.25f, 2.0f, 1e-3f, -3e-2f, 0.75f, -0.5f};
const std::vector<std::vector<float>> kGradients{
    {0.100000001f, -0.200000003f, 0.300000012f, -9.99999975e-05f, 0.0500000007f, 0.0f, 1.5f},
    {0.137000009f, -0.274000019f, 0.411000013f, -0.000136999995f, 0.0685000047f, 0.0f, 2.05500007f},
    {-0.17400001f, 0.34800002f, -0.522000015f, 0.000174000001f, -0.0870000049f, -0.0f, -2.61000013f},
    {-0.210999995f, 0.421999991f, -0.633000016f, 0.000210999991f, -0.105499998f, -0.0f, -3.16499996f},
};

Tensor coefficient(const Tensor& gradient, float norm) {
  const Tensor sum = run("SumSquares", {}, {&gradient})[0], global = run("GlobalNorm", {}, {&sum})[0];
  EXPECT_NEAR(global.data<float>()[0], norm, 2e-7f * norm);
  return run("UpdateFactor", {{"max_norm", 1.0f}}, {&global})[0];
}
constexpr float kNorms[] = {1.54677081f, 2.11907625f, 2.69138145f, 3.26368642f};

TEST_F(OptimizerTest, AdamWIsTorchs) {
  Tensor p = make_tensor<float>({7}, kStart), m(DType::float32, {7}), v(DType::float32, {7});
  for (int64_t step = 1; step <= 4; ++step) {
    const Tensor gradient = make_tensor<float>({7}, kGradients[step - 1]), clip = coefficient(gradient, kNorms[step - 1]);
    const auto scalars = make_optimizer("adamw", {{"adam_beta2", 0.99}}).scalars(step, 3e-3);
    const Tensor of_step = make_tensor<float>({static_cast<int64_t>(scalars.size())}, scalars);
    std::vector<Tensor> next = run("AdamW", {{"weight_decay", 0.1f}}, {&p, &gradient, &clip, &of_step, &m, &v}, 3);
    p = next[0], m = next[1], v = next[2];
  }
  expect_close(p, {0.492933989f, -1.24203432f, 1.99113488f, 0.00746412575f, -0.0364303403f, 0.749100447f, -0.505866706f}, 2e-7f);
  expect_close(m, {-0.00233389623f, 0.00466779247f, -0.00700168591f, 2.33389665e-06f, -0.00116694812f, 0.0f, -0.0350084379f},
               2e-6f);  // differences of larger numbers
  expect_close(v, {0.00016469782f, 0.000658791279f, 0.00148228055f, 1.64697811e-10f, 4.1174455e-05f, 0.0f, 0.0370570086f});
}

TEST_F(OptimizerTest, SgdIsTorchs) {
  Tensor p = make_tensor<float>({7}, kStart), buffer(DType::float32, {7}), plain = p;
  for (int64_t step = 1; step <= 4; ++step) {
    const Tensor gradient = make_tensor<float>({7}, kGradients[step - 1]), clip = coefficient(gradient, kNorms[step - 1]);
    const auto scalars = make_optimizer("sgd", {{"momentum", 0.9}}).scalars(step, 0.1);
    const Tensor of_step = make_tensor<float>({static_cast<int64_t>(scalars.size())}, scalars);
    std::vector<Tensor> next = run("SGD", {{"weight_decay", 0.01f}}, {&p, &gradient, &clip, &of_step, &buffer}, 2);
    p = next[0], buffer = next[1];
    plain = run("SGD", {{"weight_decay", 0.01f}}, {&plain, &gradient, &clip, &of_step})[0];
  }
  expect_close(p, {0.474553823f, -1.19684887f, 1.91914392f, 0.0010118935f, -0.0401932448f, 0.743223608f, -0.809411347f}, 2e-7f);
  expect_close(buffer, {-0.00664320216f, 0.00471144915f, -0.00277976692f, 5.80928463e-05f, -0.0129255373f, 0.0257248152f, -0.374046266f},
               2e-5f);
  expect_close(plain, {0.498028815f, -1.24505913f, 1.99208951f, 0.000995980343f, -0.0298672635f, 0.747004509f, -0.497615427f}, 2e-7f);
}

// --- ONNX forms -----------------------------------------------------------------------------------------------------------------------

// The first output of a node in its ONNX form, lowered and run.
Tensor lowered(const char* domain, const char* name, Attributes attributes, const std::vector<const Tensor*>& inputs, size_t outputs = 1) {
  Graph graph;
  std::map<ValueId, Tensor> values;
  OnnxNode node{.domain = domain,
                .op_type = name,
                .name = "tested",
                .opset = 24,
                .attributes = std::move(attributes),
                .inputs = {},
                .outputs = outputs};
  for (const Tensor* input : inputs) {
    node.inputs.push_back(input ? graph.add_value({.name = "x", .dtype = input->dtype, .shape = input->shape, .kind = ValueKind::input})
                                : kNone);
    if (input) values[node.inputs.back()] = *input;
  }
  Lowering lowering(graph, node);
  for (const OpDef* op : all_ops()) {
    for (const OnnxForm& form : op->onnx) {
      if (form.domain == domain && form.name == name) form.lower(lowering);
    }
  }
  graph.verify("lowering");
  Workers workers(1);
  for (NodeId id : graph.order()) {
    std::vector<const Tensor*> in;
    for (ValueId input : graph.node(id).inputs)
      in.push_back(input == kNone ? nullptr : graph.constant(input) ? graph.constant(input) : &values.at(input));
    std::vector<Tensor> out = evaluate(*graph.node(id).op, graph.node(id).attributes, in, graph.node(id).outputs.size(), workers);
    for (size_t i = 0; i < out.size(); ++i) values[graph.node(id).outputs[i]] = std::move(out[i]);
  }
  return values.at(lowering.results().at(0));
}

const Tensor kA = make_tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6}),
             kB = make_tensor<float>({3, 2}, {1, 0, 2, 1, 0, 3});  // A B = {5, 11, 14, 23}

TEST_F(OnnxFormsTest, MatMulOfVectors) {
  const Tensor three = make_tensor<float>({3}, {1, -1, 2}), two = make_tensor<float>({2}, {1, 10}),
               batch = make_tensor<float>({2, 1, 3}, {1, 2, 3, 4, 5, 6});
  EXPECT_EQ(lowered("", "MatMul", {}, {&kA, &kB}), make_tensor<float>({2, 2}, {5, 11, 14, 23}));
  EXPECT_EQ(lowered("", "MatMul", {}, {&kA, &three}), make_tensor<float>({2}, {5, 11}));
  EXPECT_EQ(lowered("", "MatMul", {}, {&two, &kA}), make_tensor<float>({3}, {41, 52, 63}));
  EXPECT_EQ(lowered("", "MatMul", {}, {&three, &three}), make_tensor<float>({}, {6}));
  EXPECT_EQ(lowered("", "MatMul", {}, {&batch, &three}), make_tensor<float>({2, 1}, {5, 11}));
}

TEST_F(OnnxFormsTest, Gemm) {
  const Tensor row = make_tensor<float>({2}, {1, 2}), matrix_row = make_tensor<float>({1, 2}, {1, 2}),
               column = make_tensor<float>({2, 1}, {1, 2});
  const Tensor matrix = make_tensor<float>({2, 2}, {1, 2, 3, 4}), scalar = scalar_tensor(1.0f);
  const Attributes twice{{"alpha", 2.0f}, {"beta", 3.0f}};
  EXPECT_EQ(lowered("", "Gemm", {}, {&kA, &kB}), make_tensor<float>({2, 2}, {5, 11, 14, 23}));
  EXPECT_EQ(lowered("", "Gemm", {}, {&kA, &kB, &row}), make_tensor<float>({2, 2}, {6, 13, 15, 25}));
  EXPECT_EQ(lowered("", "Gemm", twice, {&kA, &kB, &row}), make_tensor<float>({2, 2}, {13, 28, 31, 52}));
  EXPECT_EQ(lowered("", "Gemm", twice, {&kA, &kB, &matrix_row}), make_tensor<float>({2, 2}, {13, 28, 31, 52}));
  EXPECT_EQ(lowered("", "Gemm", twice, {&kA, &kB, &column}), make_tensor<float>({2, 2}, {13, 25, 34, 52}));
  EXPECT_EQ(lowered("", "Gemm", twice, {&kA, &kB, &matrix}), make_tensor<float>({2, 2}, {13, 28, 37, 58}));
  EXPECT_EQ(lowered("", "Gemm", twice, {&kA, &kB, &scalar}), make_tensor<float>({2, 2}, {13, 25, 31, 49}));
  EXPECT_EQ(lowered("", "Gemm", {{"beta", 0.0f}}, {&kA, &kB, &matrix}), make_tensor<float>({2, 2}, {5, 11, 14, 23}));
  const Tensor a = make_tensor<float>({3, 2}, {1, 4, 2, 5, 3, 6}), b = make_tensor<float>({2, 3}, {1, 2, 0, 0, 1, 3});
  EXPECT_EQ(lowered("", "Gemm", {{"transA", int64_t{1}}, {"transB", int64_t{1}}}, {&a, &b, &row}),
            make_tensor<float>({2, 2}, {6, 13, 15, 25}));
  EXPECT_EQ(lowered("com.microsoft", "FusedMatMul", {{"transA", int64_t{1}}, {"transB", int64_t{1}}, {"alpha", 2.0f}}, {&a, &b}),
            make_tensor<float>({2, 2}, {10, 22, 28, 46}));
}

// onnx 1.23's reference: two key heads serve four query heads, causal, a boolean mask whose last row hides everything.
TEST_F(OnnxFormsTest, Attention) {
  const Tensor q = numbers({1, 3, 8}, 1), k = numbers({1, 4, 4}, 2), v = numbers({1, 4, 6}, 3);
  const Tensor mask = [] {
    Tensor tensor(DType::boolean, {3, 4});
    for (size_t i : {0, 2, 3, 4, 5, 6}) tensor.data<bool>()[i] = true;
    return tensor;
  }();
  const Attributes attributes{{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}, {"is_causal", int64_t{1}}};
  const Tensor y = lowered("", "Attention", attributes, {&q, &k, &v, &mask});
  EXPECT_EQ(y.shape, (Shape{1, 3, 12}));
  expect_close(y,
               {-0.525538802f,
                0.101356387f,
                0.747317076f,
                -0.525538802f,
                0.101356387f,
                0.747317076f,
                0.557831883f,
                -0.233047724f,
                0.729880095f,
                0.557831883f,
                -0.233047724f,
                0.729880095f,
                -0.276332289f,
                0.000213782609f,
                0.223633155f,
                -0.178310901f,
                -0.0395690575f,
                0.0176504403f,
                0.536170781f,
                -0.430285931f,
                0.666104257f,
                0.537700772f,
                -0.41635406f,
                0.670608997f,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0},
               1e-4f);
  EXPECT_THROW(lowered("", "Attention", attributes, {&q, &k, &v}, 3), Error);
  EXPECT_THROW(lowered("", "Attention", {{"q_num_heads", int64_t{4}}, {"kv_num_heads", int64_t{2}}, {"softcap", 30.0f}}, {&q, &k, &v}),
               Error);
}

// torch's cross_entropy and nll_loss of (N, C, d).
TEST_F(OnnxFormsTest, Losses) {
  const Tensor x = numbers({2, 3, 2}, 4), labels = make_tensor<int64_t>({2, 2}, {0, 2, 1, 1}),
               weights = make_tensor<float>({3}, {0.5f, 2, 1.25f});
  const auto loss = [&](const char* op, const char* reduction, bool ignoring, bool weighted, size_t outputs = 1) {
    Attributes attributes{{"reduction", reduction}};
    if (ignoring) attributes.set("ignore_index", int64_t{2});
    return lowered("", op, attributes, {&x, &labels, weighted ? &weights : nullptr}, outputs);
  };
  const char *cross_entropy = "SoftmaxCrossEntropyLoss", *likelihood = "NegativeLogLikelihoodLoss";
  expect_close(loss(cross_entropy, "mean", true, false), {0.945251942f});
  expect_close(loss(cross_entropy, "sum", true, false), {2.83575583f});
  expect_close(loss(cross_entropy, "mean", true, false, 2), {0.945251942f});
  expect_close(loss(cross_entropy, "none", true, true), {0.638570309f, 0, 1.86028814f, 1.25694239f});
  expect_close(loss(cross_entropy, "sum", true, true), {3.75580072f});
  expect_close(loss(cross_entropy, "mean", true, true), {0.834622383f});
  const Tensor none = loss(likelihood, "none", false, false);
  EXPECT_EQ(none.shape, (Shape{2, 2}));
  expect_close(none, {0.524763703f, -0.225301862f, -0.0852771997f, -0.623183012f});
  expect_close(loss(likelihood, "none", false, true), {0.262381852f, -0.281627327f, -0.170554399f, -1.24636602f});
  expect_close(loss(likelihood, "mean", false, false), {-0.102249593f});
  expect_close(loss(likelihood, "mean", false, true), {-0.249767974f});
  expect_close(loss(likelihood, "sum", true, false), {-0.183696508f});
  expect_close(loss(likelihood, "mean", true, false), {-0.0612321682f});
}

}  // namespace
}  // namespace ort_train
