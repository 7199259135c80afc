// Nodes whose numbers are made to do harm: sizes that overflow, axes that aren't there, equations without end. Each is told in a sentence.

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <limits>

#include "exec/kernel.h"
#include "frontend/checkpoint.h"
#include "frontend/npz.h"
#include "graph/op_def.h"
#include "offload/state_file.h"
#include "test_paths.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;

// What import says of nodes that take x (2 numbers), q (1, 2, 4), k (2, 4), m (1, 4, 2, 2) or labels (int64 scalar), and give y.
std::string complaint(const std::string& nodes, const std::string& inputs = "float[2] x", int opset = 17) {
  const TestFolder folder;
  const std::string path = write_model(
      folder,
      fmt::format("<ir_version: 10, opset_import: [\"\" : {}, \"com.microsoft\" : 1]> g ({}) => (float[n] y) <float[2] w = {{1, 2}}, "
                  "float[4] four = {{1, 2, 3, 4}}> {{ {} }}",
                  opset, inputs, nodes));
  try {
    const Imported imported = import_file(path);
    return imported.obstacles.empty() ? "" : imported.obstacles[0].reason;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::unsupported) << e.what();
    return e.what();
  }
}

TEST(HostileNodes, ExpansionsThatNoMemoryHolds) {
  for (const char* dims :
       {"[4611686018427387904]", "[2147483648, 2147483648]", "[4294967296, 4294967296]", "[1099511627776, 1099511627776]"}) {
    EXPECT_HAS(complaint(fmt::format("s = Constant <value_ints = {}> () y = ConstantOfShape (s)", dims)), "than fit");
    EXPECT_HAS(complaint(fmt::format("s = Constant <value_ints = {}> () o = Constant <value = float[1] {{1}}> () y = Expand (o, s)", dims)),
               "than fit");
  }
  // Nothing in them, but their strides would overflow.
  EXPECT_HAS(complaint("s = Constant <value_ints = [0, 1099511627776, 1099511627776]> () y = ConstantOfShape (s)"), "than fit");
}

TEST(HostileNodes, BlocksThatOverflow) {
  for (const char* op : {"DepthToSpace", "SpaceToDepth"}) {
    for (const char* size : {"4294967296", "9223372036854775807", "-9223372036854775808", "0", "3037000500"}) {
      EXPECT_HAS(complaint(fmt::format("y = {} <blocksize = {}> (m)", op, size), "float[1, 4, 2, 2] m"), "blocksize");
    }
  }
  EXPECT_HAS(
      complaint("s = Constant <value_ints = [1, 16777216, 0, 0]> () c = ConstantOfShape (s) y = SpaceToDepth <blocksize = 16777216> (c)"),
      "fit");
}

TEST(HostileNodes, LabelsWithoutRows) {
  for (const char* op : {"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}) {
    for (const char* inputs : {"float[2, 3] x, int64 l", "float[3] x, int64 l", "float[2, 3] x, int64[2, 2] l", "float x, int64 l"}) {
      EXPECT_HAS(complaint(fmt::format("y = {} (x, l)", op), inputs), "don't fit") << op << " " << inputs;
    }
  }
}

TEST(HostileNodes, NumbersThatAreNone) {
  EXPECT_HAS(complaint("r = Constant <value = float[0] {}> () t = Constant <value = bool {1}> () y = Dropout (x, r, t)"), "one number");
  EXPECT_HAS(complaint("r = Constant <value = float {0.5}> () t = Constant <value = bool[0] {}> () y = Dropout (x, r, t)"), "one number");
  EXPECT_HAS(complaint("k = Constant <value = int64[0] {}> () y = CumSum (x, k)"), "one number");
}

TEST(HostileNodes, AnEquationWithoutEnd) {
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_NE(complaint("y = Einsum <equation = \"....ij,,jk->->\"> (x, w, x)"), "");
  EXPECT_NE(complaint("y = Einsum <equation = \"i,i->....\"> (x, w)"), "");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST(HostileNodes, AxesAndOutputsThatAreNotThere) {
  // Our form has no place for it; the standard's body of the op takes its place.
  EXPECT_EQ(complaint("y = Attention <q_num_heads = 2, kv_num_heads = 2> (q, k, q)", "float[1, 2, 4] q, float[2, 4] k", 23), "");
  EXPECT_HAS(complaint("y, a, b, c, d, e = com.microsoft.SkipLayerNormalization (s, s, four)", "float[1, 2, 4] s"), "6 outputs");
  EXPECT_HAS(complaint("y, a = com.microsoft.Gelu (x)"), "2 outputs");
}

// The standard's shape rules, asked for what stands behind a node that can't be imported, trust some attributes.
TEST(HostileNodes, AxesThatTheStandardTrusts) {
  for (const char* dims : {"-3", "-9223372036854775808", "9223372036854775807", "5"}) {
    EXPECT_HAS(complaint(fmt::format("i = Constant <value = int64[1, 1] {{0}}> () y = GatherND <batch_dims = {}> (x, i)", dims)), "fit");
  }
}

TEST(HostileNodes, AShapeChecksItsAxes) {
  const Shape shape{2, 3};
  EXPECT_EQ(shape[1], 3);
  EXPECT_EQ(shape.before(1), Shape{2});
  EXPECT_EQ(shape.from(2), Shape{});
  EXPECT_HAS(error_of([&] { (void)shape[2]; }).what(), "[2, 3] has no axis 2");
  EXPECT_HAS(error_of([&] { (void)shape[static_cast<size_t>(-1)]; }).what(), "no axis -1");
  EXPECT_HAS(error_of([&] { (void)shape.from(3); }).what(), "no axis 3");
  EXPECT_HAS(error_of([&] { (void)Shape{}.back(); }).what(), "scalar");
}

TEST(HostileNodes, TypesAreCheckedWhereTheyAreMade) {
  EXPECT_NO_THROW(check_type({DType::float64, {kMaxElements}}));
  EXPECT_HAS(error_of([] { check_type({DType::int8, {kMaxElements, 2}}); }).what(), "than fit");
  EXPECT_HAS(error_of([] { check_type({DType::int8, Shape(kMaxRank + 1, 1)}); }).what(), "65 dimensions");
  EXPECT_HAS(error_of([] { Tensor(DType::int8, {int64_t{1} << 62}); }).what(), "than fit");
  EXPECT_HAS(error_of([] { Graph().add_value({.name = "v", .shape = {-1}}); }).what(), "negative");
  EXPECT_EQ(bytes_of(8, {3, 0, 5}), 0);
  EXPECT_EQ(bytes_of(8, {0, int64_t{1} << 60}), std::nullopt);
  EXPECT_HAS(error_of([] { checked_product({int64_t{1} << 40, int64_t{1} << 40}); }).what(), "64 bits");
}

template <typename T> std::vector<T> evaluated(const char* op, const std::vector<Tensor>& inputs, const Attributes& attributes = {}) {
  Workers workers(1);
  std::vector<const Tensor*> pointers;
  for (const Tensor& input : inputs) pointers.push_back(&input);
  const Tensor result = evaluate(op_named(op), attributes, pointers, 1, workers)[0];
  return {result.data<T>().begin(), result.data<T>().end()};
}

TEST(HostileNodes, SmallIntegersWrap) {
  const Tensor small = make_tensor<int16_t>({3}, {-32768, 32767, -1});
  EXPECT_EQ(evaluated<int16_t>("Mul", {small, small}), (std::vector<int16_t>{0, 1, 1}));
  EXPECT_EQ(evaluated<int16_t>("Add", {small, small}), (std::vector<int16_t>{0, -2, -2}));
  const Tensor bytes = make_tensor<uint8_t>({2}, {255, 16});
  EXPECT_EQ(evaluated<uint8_t>("Mul", {bytes, bytes}), (std::vector<uint8_t>{1, 0}));
}

TEST(HostileNodes, NumbersOutOfRangeBecomeTheLeast) {
  constexpr float inf = std::numeric_limits<float>::infinity();
  const Tensor floats = make_tensor<float>({7}, {NAN, inf, -inf, 1e30f, -1e30f, 9223371487098961920.0f, -3.9f});
  constexpr int64_t least = INT64_MIN;
  EXPECT_EQ(evaluated<int64_t>("Cast", {floats}, {{"to", static_cast<int64_t>(DType::int64)}}),
            (std::vector<int64_t>{least, least, least, least, least, 9223371487098961920, -3}));
  EXPECT_EQ(evaluated<int32_t>("Cast", {make_tensor<double>({3}, {2147483648.0, 2147483647.5, -2147483648.9})},
                               {{"to", static_cast<int64_t>(DType::int32)}}),
            (std::vector<int32_t>{INT32_MIN, INT32_MAX, INT32_MIN}));
  EXPECT_EQ(evaluated<uint8_t>("Cast", {make_tensor<float>({4}, {-1, 257, 1e10f, NAN})}, {{"to", static_cast<int64_t>(DType::uint8)}}),
            (std::vector<uint8_t>{255, 1, 0, 0}));
}

// What is folded has an end, in all and in time.
TEST(HostileNodes, FoldingHasLimits) {
  Workers workers(1);
  const auto folded = [&](const FoldingLimits& limits) {
    Graph graph;
    Builder builder(graph);
    builder.folding(make_folder(workers, limits));
    int count = 0;
    for (int i = 0; i < 10; ++i)
      count +=
          graph.constant(builder.emit("ConstantOfShape", {}, {{"shape", Shape{256}}, {"value", Tensor(DType::float32, {1})}})) != nullptr;
    return count;
  };
  EXPECT_EQ(folded({}), 10);
  EXPECT_EQ(folded({.node_bytes = 1023}), 0);
  EXPECT_EQ(folded({.bytes = 3 * 1024}), 3);
  EXPECT_LT(folded({.work = 5000}), 10);
}

// What is left to fold with is shared by all nodes of a model.
TEST(HostileNodes, CopiesOfAFolderHaveOneLimit) {
  Workers workers(1);
  Graph graph;
  const Folder folder = make_folder(workers, {.bytes = 3 * 1024});
  int count = 0;
  for (int i = 0; i < 10; ++i) {
    Builder builder(graph);
    builder.folding(folder);
    count +=
        graph.constant(builder.emit("ConstantOfShape", {}, {{"shape", Shape{256}}, {"value", Tensor(DType::float32, {1})}})) != nullptr;
  }
  EXPECT_EQ(count, 3);
}

TEST(HostileNodes, AnArchiveThatClaimsWhatItCannotHold) {
  const TestFolder folder;
  const auto refused = [&](const char* name) {
    const std::string path = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/fuzz/corpus/npz/" + name;
    const Error e = error_of([&] { read_npz_directory(File::open(path)); });
    EXPECT_EQ(e.code(), ErrorCode::data);
    return std::string(e.what());
  };
  EXPECT_HAS(refused("claims_100_gb"), "two sizes disagree");
  EXPECT_HAS(refused("claims_2_62"), "two sizes disagree");
}

TEST(HostileNodes, ASlotTableOfImpossibleSizes) {
  SlotTable table{.path = "p", .id = "i", .bytes = INT64_MAX, .entries = {{.name = "w", .bytes = INT64_MAX, .slots = {4096, 4096}}}};
  EXPECT_EQ(error_of([&] { check_table(table); }).code(), ErrorCode::corrupt);
  table.bytes = int64_t{1} << 60;
  EXPECT_EQ(error_of([&] { check_table(table); }).code(), ErrorCode::corrupt);
  table.bytes = -1;
  EXPECT_EQ(error_of([&] { check_table(table); }).code(), ErrorCode::corrupt);
}

// The writer of JSON goes down level by level, and a checksum is one of what was written.
TEST(HostileNodes, AManifestNestedWithoutEnd) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "checkpoint-1");
  constexpr size_t kLevels = 1'000'000;
  write_file(folder / "checkpoint-1/state.json",
             "{\"body\":" + std::string(kLevels, '[') + std::string(kLevels, ']') + ",\"xxh3\":\"0\"}\n");
  EXPECT_TRUE(tables_before(folder / "", {}, 2).empty());
}

}  // namespace
}  // namespace ort_train
