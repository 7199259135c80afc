// check(): what a user is told of a model before anything runs.

#include <gtest/gtest.h>

#include "frontend/ort_train.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;

TEST(Check, SaysThatAModelIsTrainable) {
  const TestFolder folder;
  Options options;
  options.model = write_model(folder, kLayer);
  const CheckReport report = check(options);
  EXPECT_TRUE(report.trainable);
  EXPECT_TRUE(report.rows.empty());
  EXPECT_EQ(report.text,
            "model.onnx  opset 17 · pen 2 · 8 parameters in 2 tensors, 32 B float32\n"
            "inputs      x float32 [batch, 3]\n"
            "outputs     y float32 [batch, 2]\n"
            "dimensions  batch: any size (2 here) (`shapes` binds them)\n"
            "tensors     2 trained, 0 left as they are\n"
            "  trained    w  float32 [3, 2]  weight of Gemm\n"
            "  trained    b  float32 [2]     bias of Gemm\n"
            "trainable   all 2 tensors, by a loss on 'y'\n");
  options.output = "nothing";
  EXPECT_HAS(error_of([&] { check(options); }).what(), "has no output 'nothing'; it has y");
}

// With CUDA or without, no GPU is asked.
TEST(Check, SaysWhatAGpuHasNoKernelFor) {
  const TestFolder folder;
  Options options;
  options.model = write_model(folder, R"--(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 2] y) <float[3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, int64[1] k = {2}> {
      all = MatMul (x, w)
      [best] y, at = TopK (all, k)
    })--");
  EXPECT_TRUE(check(options).trainable);
  options.device = "cuda";
  try {
    const CheckReport report = check(options);
    EXPECT_FALSE(report.trainable);
    EXPECT_HAS(report.text, "TopK 'best'");
    EXPECT_HAS(report.text, "`device` cpu computes it");
  } catch (const Error& problem) {
    EXPECT_EQ(problem.code(), ErrorCode::device);
    EXPECT_HAS(problem.what(), "this build of ort-train runs on the processor only");
  }
}

// The Gemm takes 3 x 28 x 28 numbers: the sizes of a picture are found by trying some.
TEST(Check, FindsTheSizesThatAModelTakes) {
  const TestFolder folder;
  auto model = model_of(R"--(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 3, height, "floor(width/2 - 1/2)"] x, float[batch, length] z) => (float[batch, 2] y, float[batch, length] u) <float[1] c = {2}> {
      flat = Flatten (x)
      [fc] y = Gemm (flat, w)
      u = Mul (z, c)
    })--");
  *model.mutable_graph()->add_initializer() = tensor_of("w", {3 * 28 * 28, 2}, std::vector<float>(3 * 28 * 28 * 2, 0.5f));
  Options options;
  options.model = write_model(folder, model);
  const CheckReport report = check(options);
  EXPECT_TRUE(report.trainable) << report.text;
  ASSERT_EQ(report.dimensions.size(), 4u);
  EXPECT_EQ(report.dimensions[1].name, "height");
  EXPECT_EQ(report.dimensions[1].size, 28);
  EXPECT_EQ(report.dimensions[1].does_not_fit, (std::vector<int64_t>{29, 56, 14}));
  EXPECT_EQ(report.dimensions[3].fits, (std::vector<int64_t>{29, 56, 14}));
  EXPECT_HAS(report.text, "height: 28, not 29 or 56 or 14");
  EXPECT_HAS(report.text, "batch: any size (2 here)");
  options.shapes = {{"x.2", 14}, {"x.3", 56}};  // by position, whatever their names
  const CheckReport given = check(options);
  EXPECT_TRUE(given.trainable) << given.text;
  EXPECT_EQ(given.dimensions.size(), 2u);
}

TEST(Check, ListsWhatIsInTheWayAndWhatIsNot) {
  const TestFolder folder;
  Options options;
  options.model = write_model(folder, kObstacles);
  const CheckReport blocked = check(options);
  EXPECT_FALSE(blocked.trainable);
  ASSERT_EQ(blocked.rows.size(), 3u);
  EXPECT_HAS(blocked.text, "not trainable, 3 of 10 nodes:");
  EXPECT_HAS(blocked.text, "'y' depends on nodes that can't be imported");
  options.output = "z";
  const CheckReport free = check(options);
  EXPECT_TRUE(free.trainable);
  EXPECT_EQ(free.rows[2].hint, "not in the way: the loss reads 'z'");
  EXPECT_HAS(free.text, "1 of 2 tensors has no influence on 'z' and stays as it is: v");
  EXPECT_HAS(free.text, "tensors     1 trained, 2 left as they are");
}

TEST(Check, FindsNodesWithoutGradient) {
  const TestFolder folder;
  Options options;
  options.model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 18]>
    g (float[2, 3] x) => (float[2, 3] y, int64[2] best, float[2, 3] z)
    <float[3] w = {1, 2, 3}, float[3] v = {3, 2, 1}, int64[1, 3] rows = {0, 1, 0}, float[1, 3] factors = {1, 2, 3}> {
      a = Mul (x, w)
      [stairs] c = ScatterElements <axis = 0, reduction = "mul"> (a, rows, factors)
      d = Add (c, v)
      y = Mul (d, v)
      best = ArgMax <axis = 1, keepdims = 0> (a)
      z = Add (a, w)
    })");
  const CheckReport report = check(options);
  EXPECT_FALSE(report.trainable);
  ASSERT_EQ(report.rows.size(), 1u);
  EXPECT_EQ(report.rows[0].node, "ScatterElements 'stairs'");
  EXPECT_TRUE(report.rows[0].blocks);
  EXPECT_FALSE(report.rows[0].reason.empty());
  EXPECT_HAS(report.text, "2 of 3 tensors can't be reached from the loss");
  options.output = "z";
  const CheckReport other = check(options);
  EXPECT_TRUE(other.trainable);
  ASSERT_EQ(other.rows.size(), 1u);
  EXPECT_FALSE(other.rows[0].blocks);
  EXPECT_EQ(other.rows[0].hint, "not in the way: the loss reads 'z'");
  // An output of integers can't be trained at all.
  options.output = "best";
  const CheckReport integers = check(options);
  EXPECT_FALSE(integers.trainable);
  EXPECT_HAS(integers.text, "'best' is int64");
}

TEST(Check, FindsNodesThatTheDeviceHasNoKernelFor) {
  const TestFolder folder;
  Options options;
  options.model = write_model(folder, R"(<ir_version: 8, opset_import: ["" : 18]>
    g (float[2, 3] x, int16[2, 3] marks) => (float[2, 3] y, float[2, 3] z)
    <float[3] w = {1, 2, 3}> {
      [scale] z = Mul (x, w)
      [choose] best = ArgMax <axis = 1, keepdims = 1> (marks)
      f = Cast <to = 1> (best)
      y = Mul (z, f)
    })");
  const CheckReport report = check(options);
  EXPECT_FALSE(report.trainable);
  ASSERT_EQ(report.rows.size(), 1u);
  EXPECT_EQ(report.rows[0].node, "ArgMax 'choose'");
  EXPECT_HAS(report.rows[0].reason, "ArgMax of int16 can't be run on the CPU, which takes float32, float64");
  options.output = "z";
  const CheckReport other = check(options);
  EXPECT_TRUE(other.trainable);
  ASSERT_EQ(other.rows.size(), 1u);
  EXPECT_EQ(other.rows[0].hint, "not in the way: the loss reads 'z'");
}

}  // namespace
}  // namespace ort_train
