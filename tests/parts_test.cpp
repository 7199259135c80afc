// A weight in parts has the bits of the whole: every op that may use a divided weight is found by trying all of them, then trained with
// random geometry around the thresholds that kernels choose by, whole and in parts of several sizes.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <random>

#include "graph/op_def.h"
#include "passes/split_weights.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/plan_support.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;

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

struct LeftByParts {
  std::vector<double> results;                      // loss and gradient norm
  std::map<std::string, std::vector<float>> state;  // weight and optimizer's state, put together
  size_t parts = 0;
};

LeftByParts left_by(const Graph& forward, const Geometry& g, const OptimizerSpec& optimizer, int64_t part_bytes, Workers& workers) {
  Graph divided = forward;
  mark_parts(divided, {.part_bytes = part_bytes});
  const EntryGraph train = build_train_graph(divided, {.terms = {{.kind = "mse"}}}, optimizer, {});
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
  LeftByParts left{.results = {}, .state = {}, .parts = parts.size()};
  const auto values = reference.run(train.graph, inputs);
  for (const ValueId id : {train.losses[0].sum, train.grad_norm}) left.results.push_back(values.at(id).to_double()[0]);
  const auto together = reference.state.find("w.exp_avg_sq_col");  // of all parts
  if (together != reference.state.end()) left.state["col"] = {together->second.data<float>().begin(), together->second.data<float>().end()};
  for (const char* of : {"", ".exp_avg", ".exp_avg_sq", ".momentum_buffer", ".exp_avg_sq_row"}) {
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
      const Optimizer optimizers[] = {make_optimizer("adafactor"), make_optimizer("sgd", {{"momentum", 0.9}}), make_optimizer("adamw")};
      const OptimizerSpec optimizer{.optimizer = optimizers[round % 3], .weight_decay = 0.1, .max_grad_norm = 1e-3};
      const LeftByParts whole = left_by(forward, g, optimizer, int64_t{1} << 40, workers);
      ASSERT_EQ(whole.parts, 1u);
      size_t before = 1;
      for (const int64_t part_bytes : {g.rows * g.columns * 2, int64_t{4096}}) {
        const LeftByParts parts = left_by(forward, g, optimizer, part_bytes, workers);
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

// --- convolutions ---------------------------------------------------------------------------------------------------------------------

struct Convolution {
  const char* why;
  Shape x, w;
  std::vector<int64_t> strides{}, pads{}, dilations{};
  bool bias = false, put_together = false;  // for dx
  int64_t group = 1;
};

// x is trained as well: what becomes of it shows dx.
Graph model_of_convolution(const Convolution& c, bool frozen) {
  Graph graph;
  const auto parameter = [&](const char* name, const Shape& shape, bool trainable) {
    return graph.add_value({.name = name, .shape = shape, .kind = ValueKind::parameter, .trainable = trainable});
  };
  std::vector<ValueId> inputs{parameter("x", c.x, true), parameter("w", c.w, !frozen)};
  if (c.bias) inputs.push_back(parameter("bias", {c.w[0]}, true));
  Attributes attributes{{"kernel_shape", std::vector<int64_t>(c.w.begin() + 2, c.w.end())}, {"group", c.group}};
  if (!c.strides.empty()) attributes.set("strides", c.strides);
  if (!c.pads.empty()) attributes.set("pads", c.pads);
  if (!c.dilations.empty()) attributes.set("dilations", c.dilations);
  graph.outputs = {Builder(graph).emit("Conv", inputs, attributes)};
  return graph;
}

// Loss and norm, then the weights and their state, by the model's names.
struct Trained {
  std::vector<double> results{};
  std::map<std::string, std::vector<double>> state{};
  std::map<std::string, int> ops{};
  size_t parts = 0;
};

Trained train_once(const Graph& forward, const Optimizer& by, int64_t part_bytes, Workers& workers) {
  Graph divided = forward;
  mark_parts(divided, {.part_bytes = part_bytes});
  const OptimizerSpec optimizer{.optimizer = by, .weight_decay = 0.1, .max_grad_norm = 1e-3};
  const EntryGraph train = build_train_graph(divided, {.terms = {{.kind = "mse"}}}, optimizer, {});
  Reference reference(workers);
  for (const ValueId id : forward.parameters()) {
    const Value& value = forward.value(id);
    Tensor whole = random_tensor(value.type(), id);
    const auto slices = train.slices.find(value.name);
    if (slices == train.slices.end()) {
      reference.state[value.name] = std::move(whole);
      continue;
    }
    auto from = whole.data<float>().begin();
    for (const Slice& slice : slices->second) {
      Tensor& part = reference.state[slice.name] = Tensor(value.dtype, train.graph.value(train.graph.find_value(slice.name)).shape);
      std::copy_n(from, part.data<float>().size(), part.data<float>().begin());
      from += static_cast<std::ptrdiff_t>(part.data<float>().size());
    }
  }
  Trained trained;
  for (const NodeId id : train.graph.order()) ++trained.ops[std::string(train.graph.node(id).op->name)];
  const auto values = reference.run(train.graph, step_inputs(train.graph, optimizer, /*limit=*/500));
  for (const ValueId id : {train.losses[0].sum, train.grad_norm}) trained.results.push_back(values.at(id).to_double()[0]);
  const auto add = [&](const std::string& whole, const std::string& name) {
    for (const char* of : {"", ".exp_avg", ".exp_avg_sq", ".exp_avg_sq_row", ".exp_avg_sq_col"}) {
      const auto found = reference.state.find(name + of);
      if (found == reference.state.end()) continue;
      const std::vector<double> numbers = found->second.to_double();
      trained.state[whole + of].insert(trained.state[whole + of].end(), numbers.begin(), numbers.end());
    }
  };
  for (const ValueId id : forward.parameters()) {
    const std::string& name = forward.value(id).name;
    const auto slices = train.slices.find(name);
    if (slices == train.slices.end()) {
      add(name, name);
      continue;
    }
    for (const Slice& slice : slices->second) add(name, slice.name);
    trained.parts += slices->second.size();
  }
  return trained;
}

TEST(Parts, OfConvolutionsHaveTheBitsOfTheWhole) {
  const std::vector<Convolution> cases{
      {.why = "taps", .x = {3, 16, 6, 7}, .w = {512, 16, 3, 3}, .pads = {1, 1, 1, 1}, .bias = true},
      {.why = "one tap, samples together", .x = {2, 64, 5, 5}, .w = {512, 64, 1, 1}},
      {.why = "one tap, more samples", .x = {4, 64, 7, 6}, .w = {512, 64, 1, 1}, .bias = true},
      {.why = "one tap in steps", .x = {4, 80, 13, 12}, .w = {600, 80, 1, 1}, .strides = {2, 2}},
      {.why = "one tap, dx made in its place", .x = {1, 64, 10, 20}, .w = {1000, 64, 1, 1}, .bias = true},
      {.why = "products as large as dx", .x = {1, 32, 8, 8}, .w = {520, 32, 2, 2}, .strides = {2, 2}},
      {.why = "large planes", .x = {2, 16, 30, 30}, .w = {512, 16, 3, 3}, .put_together = true},
      {.why = "one axis", .x = {3, 24, 50}, .w = {900, 24, 5}, .bias = true},
      {.why = "pieces of the batch", .x = {16, 16, 4, 4}, .w = {512, 16, 3, 3}, .pads = {1, 1, 1, 1}, .put_together = true},
      {.why = "dilations, many channels", .x = {2, 96, 9, 8}, .w = {1100, 96, 3, 2}, .strides = {2, 1}, .dilations = {2, 3}},
  };
  Workers workers(2);
  for (const Convolution& c : cases) {
    for (const auto& [optim, frozen] : {std::pair{"adamw", false}, {"adamw", true}, {"adafactor", false}}) {
      const Graph forward = model_of_convolution(c, frozen);
      const Optimizer by = make_optimizer(optim);
      const Trained whole = train_once(forward, by, int64_t{1} << 40, workers);
      EXPECT_EQ(whole.parts, 0u);
      const StateDef first = by.def->states(by, forward.value(forward.find_value("w")).type()).at(0);
      EXPECT_EQ(whole.state.contains("w" + std::string(first.suffix)), !frozen);
      size_t before = 0;
      for (const int64_t part_bytes : {element_count(c.w) * 2, int64_t{4096}}) {
        Trained parts = train_once(forward, by, part_bytes, workers);
        EXPECT_GE(parts.parts, before) << c.why;
        before = parts.parts;
        EXPECT_GE(parts.parts, 2u) << c.why;
        EXPECT_EQ(parts.ops["ConvPart"], static_cast<int>(parts.parts)) << c.why;
        EXPECT_EQ(parts.ops["ConvInputGrad"], c.put_together ? 1 : static_cast<int>(parts.parts)) << c.why;
        EXPECT_EQ(parts.ops["Concat"], c.put_together ? 1 : 0) << c.why;
        EXPECT_EQ(parts.ops["ConvWeightGrad"], frozen ? 0 : static_cast<int>(parts.parts)) << c.why;
        EXPECT_EQ(parts.ops["Slice"], 0) << c.why << ": no gradient is made as a whole";
        EXPECT_EQ(parts.results, whole.results) << c.why << ", frozen: " << frozen;
        EXPECT_TRUE(parts.state == whole.state) << c.why << ", frozen: " << frozen;
      }
    }
  }
}

TEST(Parts, OfATableOfRowsOfSeveralAxesHaveTheBitsOfTheWhole) {
  Graph forward;
  const ValueId table = forward.add_value({.name = "table", .shape = {1001, 7, 11}, .kind = ValueKind::parameter, .trainable = true});
  forward.inputs = {forward.add_value({.name = "ids", .dtype = DType::int64, .shape = {40, 3}, .kind = ValueKind::input})};
  forward.outputs = {Builder(forward).emit("Gather", {table, forward.inputs[0]}, {{"axis", int64_t{0}}})};
  Workers workers(2);
  const Trained whole = train_once(forward, make_optimizer(), int64_t{1} << 40, workers),
                parts = train_once(forward, make_optimizer(), 70'000, workers);
  EXPECT_EQ(whole.parts, 0u);
  EXPECT_GE(parts.parts, 3u);
  EXPECT_EQ(parts.ops.at("GatherGrad"), static_cast<int>(parts.parts));
  EXPECT_EQ(parts.results, whole.results);
  EXPECT_TRUE(parts.state == whole.state);
}

// A table that is a sum has one gradient for both terms, of which one, or the other's other use, may be added to.
TEST(Lookups, OfASumOfTablesHaveTheGradientsOfASumOfLookups) {
  const Shape shape{600, 24};
  const auto model = [&](bool sum_first, bool twice_the_same, bool with_head) {
    Graph graph;
    const ValueId w = graph.add_value({.name = "w", .shape = shape, .kind = ValueKind::parameter, .trainable = true});
    const ValueId v = twice_the_same ? w : graph.add_value({.name = "v", .shape = shape, .kind = ValueKind::parameter, .trainable = true});
    graph.inputs = {graph.add_value({.name = "ids", .dtype = DType::int64, .shape = {40}, .kind = ValueKind::input})};
    Builder builder(graph);
    const auto rows_of = [&](ValueId table) { return builder.emit("Gather", {table, graph.inputs[0]}, {{"axis", int64_t{0}}}); };
    const ValueId rows = sum_first ? rows_of(builder.emit("Add", {w, v})) : builder.emit("Add", {rows_of(w), rows_of(v)});
    graph.outputs = {with_head ? builder.emit("MatMul", {rows, w}, {{"trans_b", int64_t{1}}}) : rows};
    return graph;
  };
  Workers workers(2);
  for (const bool twice_the_same : {false, true}) {
    for (const bool with_head : {false, true}) {
      const auto trained = [&](bool sum_first) {
        return train_once(model(sum_first, twice_the_same, with_head), make_optimizer(), int64_t{1} << 40, workers);
      };
      const Trained of_sum = trained(true), of_lookups = trained(false);
      ASSERT_EQ(of_sum.state.size(), of_lookups.state.size());
      for (const auto& [name, numbers] : of_lookups.state) {
        const std::vector<double>& found = of_sum.state.at(name);
        ASSERT_EQ(found.size(), numbers.size()) << name;
        for (size_t i = 0; i < numbers.size(); ++i) ASSERT_NEAR(found[i], numbers[i], 1e-6) << name << ", element " << i;
      }
    }
  }
}

TEST(Parts, GroupedConvolutionsAreNotDivided) {
  Graph graph = model_of_convolution(Convolution{.why = "", .x = {1, 64, 6, 6}, .w = {1024, 32, 3, 3}, .group = 2}, false);
  EXPECT_FALSE(mark_parts(graph, {.part_bytes = 4096}));
  graph = model_of_convolution(Convolution{.why = "", .x = {1, 32, 6, 6}, .w = {1024, 32, 3, 3}}, false);
  EXPECT_TRUE(mark_parts(graph, {.part_bytes = 4096}));
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
  on.part_bytes = int64_t{64} << 20;
  const Run whole = train(o);
  EXPECT_EQ(whole.plan.parts, 0);
  on.part_bytes = int64_t{2} << 20;
  const Run parts = train(o);
  EXPECT_GT(parts.plan.parts, 1);
  EXPECT_EQ(parts.losses, whole.losses);
  EXPECT_EQ(parts.summary.weights_hash, whole.summary.weights_hash);
}

// Convolutions in memory and from a disk; in the end one of them frozen.
struct PartsOfConvolutions : TrainerRuns {
  static constexpr int64_t kSamples = 8;

  Options options() const {
    ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[batch, 16, 6, 6] x) => (float[batch, 512, 3, 3] y) {
        a = Conv <pads = [1, 1, 1, 1]> (x, first, first_bias)
        b = Tanh (a)
        c = Conv <strides = [2, 2]> (b, middle)
        d = Tanh (c)
        y = Conv <pads = [1, 1, 1, 1]> (d, last)
      })");
    const auto add = [&](const char* name, std::vector<int64_t> dims, int64_t step) {
      std::vector<float> values = numbers(element_count(dims), step);
      for (float& value : values) value /= 32;
      *model.mutable_graph()->add_initializer() = tensor_of(name, dims, values);
    };
    add("first", {512, 16, 3, 3}, 7919);
    add("first_bias", {512}, 613);
    add("middle", {640, 512, 2, 2}, 7907);
    add("last", {512, 640, 3, 3}, 7901);
    Options o{.model = write_model(folder, model)};
    const std::string x = bytes_of(numbers(kSamples * 16 * 36, 104'729)), labels = bytes_of(numbers(kSamples * 512 * 9, 104'723));
    o.data = write_file(folder / "data.safetensors",
                        safetensors(fmt::format(R"({{"x":{{"dtype":"F32","shape":[{0},16,6,6],"data_offsets":[0,{1}]}},)"
                                                R"("labels":{{"dtype":"F32","shape":[{0},512,3,3],"data_offsets":[{1},{2}]}}}})",
                                                kSamples, x.size(), x.size() + labels.size()),
                                    x + labels));
    o.loss = "mse";
    o.batch_size = 4;
    o.max_steps = 4;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
};

TEST_F(PartsOfConvolutions, EndWithTheSameBitsInMemoryAndFromADisk) {
  for (const bool frozen : {false, true}) {
    Options o = options();
    if (frozen) o.freeze = {"middle"};
    on.part_bytes = int64_t{64} << 20;
    const Run whole = train(o);
    EXPECT_EQ(whole.plan.parts, 0);
    on.part_bytes = int64_t{1} << 20;
    const Run parts = train(o);
    EXPECT_EQ(parts.plan.divided, 2) << "the first one is too small for parts of 1 MiB";
    EXPECT_EQ(parts.losses, whole.losses);
    EXPECT_EQ(parts.summary.weights_hash, whole.summary.weights_hash);
    on.part_bytes = int64_t{1} << 18;
    o.nvme_path = folder / (frozen ? "frozen" : "trained");
    std::filesystem::create_directory(o.nvme_path);
    const int64_t least = least_budget(o);
    o.budget = least + (whole.plan.at_peak.total - least) / 8;
    const Run streamed = train(o);
    EXPECT_GT(streamed.plan.disk_read_per_step, 0);
    EXPECT_GT(streamed.plan.parts, 2);
    EXPECT_EQ(streamed.losses, whole.losses);
    EXPECT_EQ(streamed.summary.weights_hash, whole.summary.weights_hash);
  }
}

}  // namespace
}  // namespace ort_train
