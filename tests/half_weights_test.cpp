// Weights of 16 bits in models of float32, and such as are stored as integers: import, export, and runs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

#include "frontend/export.h"
#include "frontend/import.h"
#include "graph/half.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace pb = ort_train_onnx;

std::vector<float16> halves_of(const std::vector<float>& numbers) {
  std::vector<float16> halves;
  for (const float number : numbers) halves.push_back(to_float16(number));
  return halves;
}

// A model of float32 with a table of float16: the table becomes a float32 master, and what is computed in 16 bits is computed in float32.
struct HalfTable : ::testing::Test {
  const TestFolder folder;
  std::vector<float> weights = std::vector<float>(80);  // 1, 2, …
  pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (int64[2] ids) => (float[2, 40] y, float16[2, 2] z) {
      e = Gather (table, ids)
      f = Cast <to = 1> (e)
      y = MatMul (f, w)
      z = Mul (e, half)
    })");

  HalfTable() {
    std::iota(weights.begin(), weights.end(), 1.0f);
    *model.mutable_graph()->add_initializer() = tensor_of("w", {2, 40}, weights);
    add_halves("table", {4, 2}, {1, 2, 3, 4, 0.5f, -0.25f, 7, 8});
    add_halves("half", {1}, {0.5f});
  }
  void add_halves(const char* name, const std::vector<int64_t>& dims, const std::vector<float>& numbers) {
    const std::vector<float16> halves = halves_of(numbers);
    pb::TensorProto& tensor = *model.mutable_graph()->add_initializer();
    tensor.set_name(name);
    tensor.set_data_type(pb::TensorProto::FLOAT16);
    for (const int64_t dim : dims) tensor.add_dims(dim);
    tensor.set_raw_data(halves.data(), halves.size() * sizeof(float16));
  }
  // The last initializer becomes one of the first branch of the If node.
  void move_into_branch() {
    auto& graph = *model.mutable_graph();
    for (auto& node : *graph.mutable_node()) {
      for (auto& attribute : *node.mutable_attribute()) {
        if (attribute.name() == "then_branch") *attribute.mutable_g()->add_initializer() = graph.initializer(graph.initializer_size() - 1);
      }
    }
    graph.mutable_initializer()->RemoveLast();
  }
};

TEST_F(HalfTable, IsTrainedInFloat32) {
  const Imported imported = import_file(write_model(folder, model));
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
  EXPECT_EQ(parameter_names(imported), (Names{"w", "table"}));
  EXPECT_EQ(imported.info.low, DType::float32);
  EXPECT_THAT(
      imported.info.notes,
      ::testing::Contains("1 weight is of 16 bits ('table'): trained as float32 and written back as it was; what the model computes in "
                          "16 bits is computed in float32 here"));
  EXPECT_EQ(imported.weights[1].dtype, DType::float32);
  EXPECT_EQ(imported.weights[1].places[0].dtype, DType::float16);
  for (ValueId id = 0; id < imported.graph.value_count(); ++id) EXPECT_NE(imported.graph.value(id).dtype, DType::float16) << id;
  const auto results = run_imported(imported, {{"ids", make_tensor<int64_t>({2}, {2, 0})}});
  EXPECT_EQ(floats(results.at("z")), (std::vector<float>{0.25f, -0.125f, 0.5f, 1}));
  EXPECT_EQ(floats(results.at("y"))[0], 0.5f * 1 - 0.25f * 41);
}

TEST_F(HalfTable, IsFrozenWhereThatIsAskedFor) {
  ImportOptions options;
  options.freeze = {"table"};
  const Imported imported = import_file(write_model(folder, model), options);
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
  EXPECT_FALSE(imported.graph.value(imported.graph.find_value("table")).trainable);
  EXPECT_TRUE(imported.graph.value(imported.graph.find_value("w")).trainable);
}

TEST_F(HalfTable, IsWrittenBackInItsType) {
  const Imported imported = import_file(write_model(folder, model));
  const std::vector<float> table{1.0001f, 2, 3, 4, 5, 6, 7, 8.004f}, w(80, 3);
  std::filesystem::create_directory(folder / "out");
  const WeightBytes bytes_of = [&](const std::string& name, const ByteSink& sink) {
    return sink(0, std::as_bytes(std::span(name == "w" ? w : table))), true;
  };
  pb::ModelProto written, wanted = model;
  ASSERT_TRUE(written.ParseFromString(read_file(export_model(imported.info, imported.weights, bytes_of, folder / "out"))));
  const std::vector<float16> halves = halves_of(table);
  wanted.mutable_graph()->mutable_initializer(0)->set_raw_data(w.data(), w.size() * sizeof(float));
  wanted.mutable_graph()->mutable_initializer(1)->set_raw_data(halves.data(), halves.size() * sizeof(float16));
  EXPECT_EQ(written.SerializeAsString(), wanted.SerializeAsString());
}

// Without a weight of 16 bits these are the model's own affair.
TEST_F(HalfTable, ThatIsNoWeightStaysWhatItIs) {
  pb::TensorProto& table = *model.mutable_graph()->mutable_initializer(1);
  table.set_raw_data(std::string(16, '\0'));
  ImportOptions options;
  const auto is_half_throughout = [&] {
    const Imported imported = import_file(write_model(folder, model), options);
    EXPECT_TRUE(imported.obstacles.empty());
    return imported.graph.value(imported.graph.outputs.at(1)).dtype == DType::float16;
  };
  EXPECT_FALSE(is_half_throughout());                                     // zeros of a lookup are a weight
  model.mutable_graph()->mutable_node(0)->set_op_type("GatherElements");  // a node that takes no table
  model.mutable_graph()->mutable_node(0)->set_input(1, "places");
  pb::TensorProto& places = *model.mutable_graph()->add_initializer();
  places.set_name("places"), places.set_data_type(pb::TensorProto::INT64), places.add_dims(2), places.add_dims(2);
  for (int i = 0; i < 4; ++i) places.add_int64_data(i);
  EXPECT_TRUE(is_half_throughout());
  options.train = {"table"};
  EXPECT_FALSE(is_half_throughout());
}

TEST_F(HalfTable, MayBeABranchs) {
  model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 2] x) => (float[2, 40] y) <bool yes = {1}> {
      f = If (yes) <then_branch = a () => (float[2, 2] p) { h = Cast <to = 10> (x) m = Mul (h, s) p = Cast <to = 1> (m) },
                    else_branch = b () => (float[2, 2] q) { q = Neg (x) }>
      y = MatMul (f, w)
    })");
  *model.mutable_graph()->add_initializer() = tensor_of("w", {2, 40}, weights);
  add_halves("s", {2}, {3, 0.5f});
  move_into_branch();
  const Imported imported = import_file(write_model(folder, model));
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
  EXPECT_EQ(parameter_names(imported), (Names{"w", "s"}));
  const auto y = run_imported(imported, {{"x", make_tensor<float>({2, 2}, {1, 2, 1, 1})}}).at("y");
  EXPECT_EQ(floats(y)[0], 3 * 1 + 1 * 41);
}

// Whether the branch is taken follows from the input's size. Where it isn't, its weight of 16 bits says nothing of the others.
TEST_F(HalfTable, InABranchThatIsntTakenIsNoWeight) {
  model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[N, 2] x) => (float[N, 40] y, float16[N, 2] z) <int64 six = {6}> {
      n = Size (x)
      yes = Equal (n, six)
      f = If (yes) <then_branch = a () => (float[N, 2] p) { h = Cast <to = 10> (x) m = Mul (h, s) p = Cast <to = 1> (m) },
                    else_branch = b () => (float[N, 2] q) { q = Neg (x) }>
      y = MatMul (f, w)
      z = Cast <to = 10> (x)
    })");
  *model.mutable_graph()->add_initializer() = tensor_of("w", {2, 40}, weights);
  add_halves("s", {2}, {3, 0.5f});
  move_into_branch();
  ImportOptions options;
  options.shapes = {{"N", 2}};
  const Imported imported = import_file(write_model(folder, model), options);
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
  EXPECT_EQ(parameter_names(imported), Names{"w"});
  EXPECT_THAT(imported.info.notes, ::testing::Not(::testing::Contains(::testing::HasSubstr("of 16 bits"))));
  EXPECT_THAT(imported.info.notes, ::testing::Contains("'s' is in a branch that isn't taken: it stays as it is"));
  EXPECT_EQ(imported.graph.value(imported.graph.outputs.at(1)).dtype, DType::float16);
  options.shapes = {{"N", 3}};
  const Imported taken = import_file(write_model(folder, model), options);
  ASSERT_TRUE(taken.obstacles.empty()) << taken.obstacles[0].reason;
  EXPECT_EQ(parameter_names(taken), (Names{"w", "s"}));
  EXPECT_THAT(taken.info.notes, ::testing::Contains(::testing::HasSubstr("1 weight is of 16 bits ('s')")));
  EXPECT_EQ(taken.graph.value(taken.graph.outputs.at(1)).dtype, DType::float32);
}

// Whole runs: a table of float16 stored as bytes or as integers.
struct HalfRuns : TrainerRuns {
  Options options(bool as_integers) {
    pb::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (int64[N] ids) => (float[N, 40] y) {
        e = Gather (table, ids)
        f = Cast <to = 1> (e)
        y = MatMul (f, w)
      })");
    *model.mutable_graph()->add_initializer() = tensor_of("w", {4, 40}, numbers(160, 37));
    pb::TensorProto& table = *model.mutable_graph()->add_initializer();
    table.set_name("table"), table.set_data_type(pb::TensorProto::FLOAT16), table.add_dims(8), table.add_dims(4);
    const std::vector<float16> halves = halves_of(numbers(32, 53));
    for (const float16 half : halves) {
      if (as_integers) table.add_int32_data(half.bits);
    }
    if (!as_integers) table.set_raw_data(halves.data(), halves.size() * sizeof(float16));
    std::vector<int64_t> ids;
    for (int64_t i = 0; i < 30; ++i) ids.push_back(i * 5 % 8);
    Options o{
        .model = write_model(folder, model, as_integers ? "integers.onnx" : "bytes.onnx"),
        .data = write_file(folder / "data.npz",
                           zip({{.name = "ids.npy", .content = npy(npy_description("<i8", "(30,)"), bytes_of(ids))},
                                {.name = "labels.npy", .content = npy(npy_description("<f4", "(30, 40)"), bytes_of(numbers(1200, 71)))}})),
        .loss = "mse",
        .batch_size = 5};
    o.learning_rate = 0.05;
    o.max_steps = 6;
    o.profile = profile;
    return o;
  }
  static pb::TensorProto table_of(const std::string& path) {
    pb::ModelProto model;
    EXPECT_TRUE(model.ParseFromString(read_file(path)));
    return model.graph().initializer(1);
  }
};

TEST_F(HalfRuns, StoredAsIntegersTrainAsThoseStoredAsBytes) {
  const Options bytes = options(false), integers = options(true);
  const Run plain = train(bytes), other = train(integers);
  EXPECT_EQ(other.losses, plain.losses);
  EXPECT_EQ(other.summary.weights_hash, plain.summary.weights_hash);
  const pb::TensorProto table = table_of(plain.summary.model_path);
  EXPECT_NE(table.raw_data(), table_of(bytes.model).raw_data());
  EXPECT_EQ(table_of(other.summary.model_path).SerializeAsString(), table.SerializeAsString());
  Options stopped = integers;
  stopped.output_dir = folder / "stopped";
  EXPECT_EQ(train_in_two(stopped, 3).weights_hash, plain.summary.weights_hash);
}

TEST_F(HalfRuns, StayAsTheyAreWhereTheyAreFrozen) {
  Options o = options(true);
  o.freeze = {"table"};
  const Run run = train(o);
  EXPECT_EQ(table_of(run.summary.model_path).SerializeAsString(), table_of(o.model).SerializeAsString());
}

}  // namespace
}  // namespace ort_train
