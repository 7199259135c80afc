// A weight in parts has the bits of the whole: every op that may use a divided weight is found by trying all of them, then trained with
// random geometry around the thresholds that kernels choose by, whole and in parts of several sizes.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "graph/op_def.h"
#include "passes/split_weights.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/plan_support.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace testing;

// The sizes that decide which kernel runs: of the weight, and how many rows meet it (of a product's other factor, or of indices).
struct Geometry {
  int64_t rows = 0, columns = 0, count = 0;
};

// One way of using a weight: an op, the weight's place among its inputs, and what the others are.
enum class Other { rows_wide, columns_wide, indices, bias_of_columns, bias_of_rows, same };
struct Use {
  const OpDef* op = nullptr;
  size_t place = 0;
  std::vector<Other> inputs{};  // the one at `place` is the weight instead
  Attributes attributes{};
};

TensorType type_of(Other other, const Geometry& g) {
  switch (other) {
    case Other::rows_wide:
      return {DType::float32, {g.count, g.rows}};
    case Other::columns_wide:
      return {DType::float32, {g.count, g.columns}};
    case Other::indices:
      return {DType::int64, {g.count}};
    case Other::bias_of_columns:
      return {DType::float32, {g.columns}};
    case Other::bias_of_rows:
      return {DType::float32, {g.rows}};
    default:
      return {DType::float32, {g.rows, g.columns}};
  }
}

// A forward graph with this use alone; throws where the op has no such use.
Graph model_of_use(const Use& use, const Geometry& g) {
  Graph graph;
  std::vector<ValueId> inputs;
  for (size_t i = 0; i < use.inputs.size(); ++i) {
    const bool is_weight = i == use.place;
    const TensorType type = is_weight ? TensorType{DType::float32, {g.rows, g.columns}} : type_of(use.inputs[i], g);
    inputs.push_back(graph.add_value({.name = is_weight ? "w" : fmt::format("x{}", i),
                                      .dtype = type.dtype,
                                      .shape = type.shape,
                                      .kind = is_weight ? ValueKind::parameter : ValueKind::input,
                                      .trainable = is_weight}));
    if (!is_weight) graph.inputs.push_back(inputs.back());
  }
  graph.outputs = {Builder(graph).emit(use.op->name, inputs, use.attributes)};
  return graph;
}

// Of all ops in the list, each way in which a weight may be used and is divided all the same.
std::vector<Use> uses_of_divided_weights() {
  constexpr Geometry kAny{.rows = 1001, .columns = 77, .count = 5};
  constexpr Other kOthers[] = {Other::rows_wide,       Other::columns_wide, Other::indices,
                               Other::bias_of_columns, Other::bias_of_rows, Other::same};
  const std::vector<Attributes> attributes{
      {}, {{"trans_a", int64_t{1}}}, {{"trans_b", int64_t{1}}}, {{"trans_a", int64_t{1}}, {"trans_b", int64_t{1}}}, {{"axis", int64_t{1}}}};
  std::vector<Use> found;
  const auto attempt = [&](const Use& use) {
    try {
      Graph graph = model_of_use(use, kAny);
      if (!mark_parts(graph, {.part_bytes = 100'000})) return;
    } catch (const std::exception&) {
      return;
    }
    found.push_back(use);
  };
  for (const OpDef* op : all_ops()) {
    for (const Attributes& of : attributes) {
      for (size_t inputs = 1, ways = 1; inputs <= 3; ++inputs, ways *= std::size(kOthers)) {
        for (size_t place = 0; place < inputs; ++place) {
          for (size_t way = 0; way < ways; ++way) {
            Use use{.op = op, .place = place, .inputs = std::vector<Other>(inputs), .attributes = of};
            for (size_t i = 0, left = way; i < inputs; ++i) {
              if (i == place) continue;
              use.inputs[i] = kOthers[left % std::size(kOthers)];
              left /= std::size(kOthers);
            }
            attempt(use);
          }
        }
      }
    }
  }
  return found;
}

// Half of the indices meet in the last rows, where a part of few rows may be all that sees them.
Tensor numbers_for(const Value& value, const Geometry& g) {
  Tensor tensor = random_tensor(value.type(), static_cast<uint32_t>(value.name.size() + element_count(value.shape)), g.rows);
  if (value.dtype != DType::int64) return tensor;
  const int64_t last = std::min<int64_t>(g.rows, 60);
  auto indices = tensor.data<int64_t>();
  for (size_t i = 0; i < indices.size(); i += 2) indices[i] = g.rows - 1 - indices[i] % last;
  return tensor;
}

struct Left {
  std::vector<double> results;                      // loss and gradient norm
  std::map<std::string, std::vector<float>> state;  // weight and optimizer's state, put together
  size_t parts = 0;
};

Left left_by(const Graph& forward, const Geometry& g, const OptimizerSpec& optimizer, int64_t part_bytes, Workers& workers) {
  Graph divided = forward;
  mark_parts(divided, {.part_bytes = part_bytes});
  const JobGraph train = build_train_graph(divided, {.kind = "mse"}, optimizer, {});
  const ValueId weight = forward.find_value("w");
  Tensor whole = random_tensor(forward.value(weight).type(), 5);
  Reference reference(workers);
  std::vector<std::string> parts{"w"};
  if (const auto slices = train.slices.find("w"); slices != train.slices.end()) {
    parts.clear();
    for (const Slice& slice : slices->second) parts.push_back(slice.name);
  }
  auto from = whole.data<float>().begin();
  for (const std::string& name : parts) {
    const Value& value = train.graph.value(train.graph.find_value(name));
    Tensor& part = reference.state[name] = Tensor(value.dtype, value.shape);
    std::copy_n(from, part.data<float>().size(), part.data<float>().begin());
    from += static_cast<std::ptrdiff_t>(part.data<float>().size());
  }
  std::map<ValueId, Tensor> inputs = step_inputs(train.graph, optimizer, 2);
  for (auto& [id, tensor] : inputs) {
    const Value& value = train.graph.value(id);
    if (value.name[0] == 'x') tensor = numbers_for(value, g);
  }
  Left left{.results = {}, .state = {}, .parts = parts.size()};
  const auto values = reference.run(train.graph, inputs);
  for (const ValueId id : {train.loss_sum, train.grad_norm}) left.results.push_back(values.at(id).to_double()[0]);
  for (const char* of : {"", ".exp_avg", ".exp_avg_sq", ".momentum_buffer"}) {
    for (const std::string& name : parts) {
      const auto found = reference.state.find(name + of);
      if (found == reference.state.end()) continue;
      const auto numbers = found->second.data<float>();
      left.state[of].insert(left.state[of].end(), numbers.begin(), numbers.end());
    }
  }
  return left;
}

// Rows and columns around where kernels change their ways (blocks of a product's depth, its register tiles, blocks of norms, scatters of
// few rows), each sometimes one off; as large as a part has to be, and no larger than tests can wait for.
Geometry random_geometry(std::mt19937& random, bool is_lookup) {
  const auto around = [&](std::initializer_list<int64_t> sizes) {
    return *(sizes.begin() + random() % sizes.size()) + static_cast<int64_t>(random() % 3) - 1;
  };
  for (;;) {
    Geometry g{.rows = around({65, 100, 127, 128, 129, 192, 256, 384, 385, 768, 1152, 2048, 5000}),
               .columns = around({16, 32, 48, 64, 96, 256, 341, 768, 1024, 5461, 16384, 32768}),
               .count = 0};
    g.count = is_lookup ? around({2 * g.rows, g.rows, g.rows / 8 + 2, 120, 256, 300, 768}) : around({6, 8, 48, 64, 130, 384, 769});
    const int64_t elements = g.rows * g.columns, work = elements * (is_lookup ? 1 : g.count);
    if (elements >= 17'000 && elements <= 2'200'000 && work <= 20'000'000 && g.count * (g.rows + g.columns) < 2'000'000) return g;
  }
}

TEST(Parts, EveryUseOfADividedWeightHasTheBitsOfTheWhole) {
  const std::vector<Use> uses = uses_of_divided_weights();
  std::map<std::string, int> ops;
  for (const Use& use : uses) ++ops[std::string(use.op->name)];
  EXPECT_GE(ops["MatMul"], 4) << "as it is stored and transposed, each with and without a bias";
  EXPECT_GE(ops["Gather"], 1);
  Workers workers(2);
  std::mt19937 random(20);
  size_t divided = 0;
  for (const Use& use : uses) {
    const bool is_lookup = use.op->name == "Gather";
    for (int round = 0; round < (is_lookup ? 14 : 3); ++round) {
      // The first is a table whose last part alone has few rows, each with many updates.
      const Geometry g =
          is_lookup && round == 0 ? Geometry{.rows = 2048, .columns = 768, .count = 1024} : random_geometry(random, is_lookup);
      const Graph forward = model_of_use(use, g);
      const bool adamw = round % 2 == 0;
      const OptimizerSpec optimizer{
          .kind = adamw ? "adamw" : "sgd", .weight_decay = 0.1, .momentum = adamw ? 0 : 0.9, .max_grad_norm = 1e-3};
      const Left whole = left_by(forward, g, optimizer, int64_t{1} << 40, workers);
      ASSERT_EQ(whole.parts, 1u);
      size_t before = 1;
      for (const int64_t part_bytes : {g.rows * g.columns * 2, int64_t{4096}}) {
        const Left parts = left_by(forward, g, optimizer, part_bytes, workers);
        if (parts.parts == before) continue;
        before = parts.parts;
        ++divided;
        const std::string where =
            fmt::format("{} with the weight [{}, {}] in {} parts, {} rows", use.op->name, g.rows, g.columns, parts.parts, g.count);
        EXPECT_EQ(parts.results, whole.results) << where;
        EXPECT_TRUE(parts.state == whole.state) << where;
      }
    }
  }
  EXPECT_GT(divided, uses.size() * 3);
}

// The same in a whole run: the last part of the table is of few rows, and most ids are in it.
struct PartsOfATable : TrainerRuns {};

TEST_F(PartsOfATable, EndWithTheSameHashWhateverTheirSize) {
  constexpr int64_t kRows = 2048, kColumns = 768, kLength = 128, kSamples = 16;
  ort_train_onnx::ModelProto model = model_of(fmt::format(
      R"(<ir_version: 8, opset_import: ["" : 17]> g (int64[batch, {}] ids) => (float[batch, {}, {}] y) {{ y = Gather (w, ids) }})", kLength,
      kLength, kColumns));
  *model.mutable_graph()->add_initializer() = tensor_of("w", {kRows, kColumns}, numbers(kRows * kColumns, 7919));
  Options o{.model = write_model(folder, model)};
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < kSamples * kLength; ++i) ids.push_back(i % 8 ? kRows - 1 - i * i % 100 : i * 7 % kRows);
  o.data = Arrays()
               .add("ids", {kSamples, kLength}, ids)
               .add("labels", {kSamples, kLength, kColumns}, numbers(kSamples * kLength * kColumns, 104'729))
               .write(folder / "data.safetensors");
  o.loss = "mse";
  o.batch_size = 8;
  o.max_steps = 4;
  o.threads = 2;
  o.profile = profile;
  o.part_size = int64_t{64} << 20;
  const Run whole = train(o);
  EXPECT_EQ(whole.plan.parts, 0);
  o.part_size = int64_t{2} << 20;
  const Run parts = train(o);
  EXPECT_GT(parts.plan.parts, 1);
  EXPECT_EQ(parts.losses, whole.losses);
  EXPECT_EQ(parts.summary.weights_hash, whole.summary.weights_hash);
}

}  // namespace
}  // namespace ort_train
