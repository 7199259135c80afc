// Optimizers as data: their definitions against reference implementations (tests/golden/optimizers.safetensors, written by
// models/golden_optimizers.py), whole and in parts; state of any type and initial value; what is refused.

#include "passes/optimizer.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "exec/arena.h"
#include "exec/cpu_device.h"
#include "exec/executor.h"
#include "exec/program.h"
#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "passes/build.h"
#include "passes/pack_weights.h"
#include "passes/plan.h"
#include "test_paths.h"
#include "tests/plan_support.h"
#include "tests/stream_support.h"

namespace ort_train {
namespace {

using namespace fixtures;

// --- against the reference implementations --------------------------------------------------------------------------------------------

struct Golden {
  Golden() : file(File::open(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/optimizers.safetensors")) {
    SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);
    metadata = std::move(header.metadata);
    for (const SafetensorsEntry& entry : header.entries) entries.emplace(entry.name, entry);
  }
  Tensor tensor(const std::string& name) const {
    const SafetensorsEntry& entry = entries.at(name);
    Tensor result(entry.element == Element::float64 ? DType::float64 : DType::float32, entry.shape);
    file.read(entry.offset, result.bytes);
    return result;
  }
  File file;
  std::map<std::string, std::string> metadata;
  std::map<std::string, SafetensorsEntry> entries;
};
constexpr const char* kTensors[] = {"vector", "matrix", "kernels"};
constexpr size_t kShown[] = {1, 2, 3, 8, 16, 24};  // SHOWN in models/golden_optimizers.py

// A range of a tensor's first dimension.
Tensor rows_of(const Tensor& all, int64_t first, int64_t rows) {
  Shape shape = all.shape;
  const int64_t bytes = static_cast<int64_t>(all.bytes.size()) / shape[0];
  shape[0] = rows;
  Tensor result(all.dtype, shape);
  std::memcpy(result.bytes.data(), all.bytes.data() + first * bytes, result.bytes.size());
  return result;
}
Tensor element_of(const Tensor& all, int64_t at) {
  Tensor one = rows_of(all, at, 1);
  one.shape = one.shape.from(1);
  return one;
}

// An update of the three tensors by gradients that are fed, clipped by a norm that is fed where spec clips; those of more than `most` rows
// are in parts of so many.
struct Update {
  struct Part {
    std::string tensor, name;
    int64_t first = 0, rows = 0;
    ValueId gradient = kNone;
  };
  Graph graph;
  std::vector<Part> parts;
  std::vector<ValueId> scalars;
  ValueId norm = kNone;

  Update(const Golden& golden, const OptimizerSpec& spec, int64_t most) {
    std::map<ValueId, ValueId> gradients;
    for (const char* tensor : kTensors) {
      const Shape& shape = golden.entries.at(fmt::format("{}/start", tensor)).shape;
      const int64_t row_bytes = element_count(shape) / shape[0] * 4;
      for (int64_t first = 0; first < shape[0]; first += most) {
        Part part{.tensor = tensor, .name = tensor, .first = first, .rows = std::min(most, shape[0] - first)};
        Value value{.name = part.name, .shape = shape, .kind = ValueKind::parameter, .trainable = true};
        value.shape[0] = part.rows;
        if (part.rows < shape[0]) {
          value.name = part.name = fmt::format("{}[{}:{}]", tensor, first, first + part.rows);
          value.whole = tensor;
          value.whole_offset = first * row_bytes;
        }
        const ValueId parameter = graph.add_value(value);
        part.gradient = graph.add_value({.name = part.name + " gradient", .shape = value.shape, .kind = ValueKind::input});
        graph.inputs.push_back(part.gradient);
        gradients[parameter] = part.gradient;
        parts.push_back(part);
      }
    }
    scalars = add_scalars(graph, spec, kScalarsInput);
    if (spec.max_grad_norm > 0) graph.inputs.push_back(norm = graph.add_value({.name = "norm", .kind = ValueKind::input}));
    build_update(graph, spec, gradients, {.norm = norm, .scalars = scalars});
    graph.verify("the update");
  }

  std::map<std::string, Tensor> start(const Golden& golden) const {
    std::map<std::string, Tensor> state;
    for (const Part& part : parts) state[part.name] = rows_of(golden.tensor(part.tensor + "/start"), part.first, part.rows);
    return state;
  }
  // Of step t.
  std::map<ValueId, Tensor> inputs(const Golden& golden, const Optimizer& optimizer, int64_t t, double learning_rate) const {
    const std::vector<float> numbers = optimizer.scalars(t, learning_rate);
    std::map<ValueId, Tensor> all{{scalars.at(0), make_tensor<float>({static_cast<int64_t>(numbers.size())}, numbers)}};
    for (const Part& part : parts)
      all[part.gradient] = rows_of(element_of(golden.tensor(part.tensor + "/gradients"), t - 1), part.first, part.rows);
    return all;
  }
};

// Numbers that are small among the others have rounding errors of sums of those.
void expect_near(const Tensor& found, const Tensor& wanted, double tolerance, const std::string& where) {
  ASSERT_EQ(to_string(found.type()), to_string(wanted.type())) << where;
  const std::vector<double> a = found.to_double(), b = wanted.to_double();
  double most = 1e-12;
  for (const double x : b) most = std::max(most, std::abs(x));
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_LE(std::abs(a[i] - b[i]), tolerance * std::max(std::abs(b[i]), most / 10)) << where << ' ' << i;
}

// Every state by the name and in the shape that it has where nothing is divided.
std::map<std::string, Tensor> state_of(const Graph& graph, const std::map<std::string, Tensor>& state) {
  std::map<std::string, std::map<int64_t, const Tensor*>> ranges;
  for (const ValueId id : graph.values_of(ValueKind::optimizer_state)) {
    const Value& value = graph.value(id);
    EXPECT_FALSE(value.owner.empty()) << value.name;
    ranges[value.whole.empty() ? value.name : value.whole][value.whole_offset] = &state.at(value.name);
  }
  std::map<std::string, Tensor> wholes;
  for (const auto& [name, pieces] : ranges) {
    Tensor& whole = wholes[name];
    for (const auto& [offset, piece] : pieces) {
      EXPECT_EQ(offset, static_cast<int64_t>(whole.bytes.size())) << name;
      if (whole.bytes.empty())
        whole = *piece;
      else
        whole.shape[0] += piece->shape[0], whole.bytes.insert(whole.bytes.end(), piece->bytes.begin(), piece->bytes.end());
    }
  }
  return wholes;
}

OptimizerSpec spec_of(const std::string& which, const nlohmann::json& settings, double max_grad_norm) {
  return {.optimizer = make_optimizer(which.substr(0, which.find('/')), settings.at("options")),
          .weight_decay = settings.at("weight_decay"),
          .max_grad_norm = max_grad_norm};
}

TEST(Optimizer, StepsAreThoseOfTheReferenceImplementations) {
  const Golden golden;
  std::set<std::string> tested;
  Workers workers(2);
  for (const auto& [which, text] : golden.metadata) {
    const OptimizerSpec spec = spec_of(which, nlohmann::json::parse(text), /*max_grad_norm=*/0);
    tested.insert(std::string(spec.optimizer.def->name));
    const std::vector<double> rates = golden.tensor(which + "/learning_rates").to_double();
    ASSERT_EQ(rates.size(), kShown[std::size(kShown) - 1]);
    for (const int64_t most : {int64_t{1000}, int64_t{5}, int64_t{2}}) {
      const Update update(golden, spec, most);
      Reference reference(workers);
      reference.state = update.start(golden);
      size_t shown = 0;
      for (size_t t = 1; t <= rates.size(); ++t) {
        reference.run(update.graph, update.inputs(golden, spec.optimizer, static_cast<int64_t>(t), rates[t - 1]));
        if (t != kShown[shown]) continue;
        for (const Update::Part& part : update.parts) {
          const Tensor wanted = element_of(golden.tensor(fmt::format("{}/{}/values", which, part.tensor)), static_cast<int64_t>(shown));
          const std::vector<double> a = reference.state.at(part.name).to_double(), b = rows_of(wanted, part.first, part.rows).to_double();
          // Each step rounds a number of about 1; float32 of the references themselves is up to 1.2e-6 off at the end.
          for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], 2e-6) << which << ' ' << part.name << ' ' << t << ' ' << i;
        }
        ++shown;
      }
      size_t states = 0;
      for (const auto& [name, tensor] : state_of(update.graph, reference.state)) {
        const size_t dot = name.find('.');
        const std::string wanted = fmt::format("{}/{}/state/{}", which, name.substr(0, dot), name.substr(dot + 1));
        ASSERT_TRUE(golden.entries.contains(wanted)) << wanted;
        expect_near(tensor, golden.tensor(wanted), 1e-5, wanted);
        ++states;
      }
      EXPECT_EQ(states, std::count_if(golden.entries.begin(), golden.entries.end(),
                                      [&](const auto& entry) {
                                        return entry.first.starts_with(which + "/") && entry.first.find("/state/") != std::string::npos;
                                      }))
          << which;
    }
  }
  EXPECT_EQ(tested.size(), all_optimizers().size());
}

TEST(Optimizer, AStepThatIsSkippedChangesNothing) {
  const Golden golden;
  Workers workers(2);
  for (const auto& [which, text] : golden.metadata) {
    const OptimizerSpec spec = spec_of(which, nlohmann::json::parse(text), /*max_grad_norm=*/1);
    for (const int64_t most : {int64_t{1000}, int64_t{5}}) {
      const Update update(golden, spec, most);
      Reference reference(workers);
      reference.state = update.start(golden);
      const auto step = [&](int64_t t, float norm) {
        auto inputs = update.inputs(golden, spec.optimizer, t, 0.01);
        inputs[update.norm] = make_tensor<float>({}, std::vector{norm});
        reference.run(update.graph, inputs);
        std::map<std::string, std::vector<std::byte>> left;
        for (const auto& [name, tensor] : reference.state) left[name] = tensor.bytes;
        return left;
      };
      const auto before = step(1, 0.5f);
      EXPECT_TRUE(step(2, std::numeric_limits<float>::infinity()) == before) << which;
      EXPECT_TRUE(step(2, std::nanf("")) == before) << which;
      EXPECT_FALSE(step(2, 0.5f) == before) << which;
    }
  }
}

// --- state of any kind ----------------------------------------------------------------------------------------------------------------

// Descent by a sum of gradients that begins at 0.25, of matrices in float64: sum += g ; p += sum.
const OptimizerDef kOdd{
    .name = "odd",
    .granularity = Granularity::block,
    .scalar_count = 1,
    .scalars = [](const Optimizer&, int64_t, double learning_rate) { return std::vector<float>{static_cast<float>(learning_rate)}; },
    .states =
        [](const Optimizer&, const TensorType& parameter) {
          const DType type = parameter.shape.size() >= 2 ? DType::float64 : DType::float32;
          return std::vector<StateDef>{{.suffix = ".sum", .type = {type, parameter.shape}, .fill = 0.25}};
        },
    .update =
        [](UpdateBuilder& b) {
          const UpdatePart& part = b.parts[0];
          const auto cast = [&](ValueId value, DType type) {
            return b.emit(part, "Cast", {value}, {{"to", static_cast<int64_t>(type)}})[0];
          };
          const bool wide = b.shape.size() >= 2;
          const ValueId gradient = wide ? cast(part.gradient, DType::float64) : part.gradient;
          const ValueId sum = b.emit(part, "Accumulate", {part.states[0], gradient})[0];
          return b.emit(part, "Accumulate", {part.parameter, wide ? cast(sum, DType::float32) : sum});
        },
};

constexpr GptShape kShape{.layers = 2, .heads = 4, .width = 64, .vocabulary = 300, .batch = 2, .length = 16};

// What lives across runs, by name, where a machine has just been made.
std::map<std::string, std::vector<std::byte>> beginning(const Program& program, StreamMachine& machine) {
  std::vector<std::byte> all;
  machine.append_state(all);
  std::map<std::string, std::vector<std::byte>> values;
  for (const Persistent& value : program.persistent) {
    if (!value.initial) values[value.name].resize(static_cast<size_t>(value.type.bytes()));
  }
  auto from = all.begin();
  for (auto& [name, bytes] : values) {
    std::copy_n(from, bytes.size(), bytes.begin());
    from += static_cast<std::ptrdiff_t>(bytes.size());
  }
  return values;
}

TEST(Optimizer, StateBeginsAsItsDefinitionSaysInMemoryAndOnADisk) {
  const OptimizerSpec spec{.optimizer = {.def = &kOdd}, .max_grad_norm = 0};
  EntryGraph train = gpt_training(kShape, spec, int64_t{64} << 10, /*packed=*/true);
  Workers workers(2);
  const Planner planner({{.name = "train", .graph = &train.graph}}, {.threads = 2});
  const Program resident = planner.all_in_memory(), streamed = planner.streamed(0, {}, {}).program;
  std::vector<std::vector<std::byte>> left;
  for (const Program* program : {&resident, &streamed}) {
    verify(*program, {&train.graph});
    LazyDisk disk(program->file().bytes, 3);
    StreamMachine machine(*program, {&train.graph}, workers, &disk);
    const auto values = beginning(*program, machine);
    size_t float64 = 0, float32 = 0, in_file = 0;
    for (const Persistent& value : program->persistent) {
      if (value.purpose != Purpose::optimizer) continue;
      (value.type.dtype == DType::float64 ? float64 : float32) += 1;
      in_file += is_in_file(value);
      std::vector<std::byte> wanted(static_cast<size_t>(value.type.bytes()));
      fill_elements(wanted, value.type.dtype, 0.25);
      EXPECT_EQ(values.at(value.name), wanted) << value.name;
    }
    EXPECT_GE(float64, 8u);
    EXPECT_GE(float32, 1u);
    EXPECT_EQ(in_file > 4, program == &streamed);
    machine.set_parameters(1);
    left.emplace_back();
    for (uint32_t step = 0; step < 3; ++step) machine.run(0, step, kShape.vocabulary, left.back());
    machine.append_state(left.back());
  }
  EXPECT_TRUE(left[0] == left[1]);
}

TEST(Optimizer, AMachineThatGoesOnKeepsTheDisksState) {
  const OptimizerSpec spec{.optimizer = {.def = &kOdd}, .max_grad_norm = 0};
  EntryGraph train = gpt_training(kShape, spec);
  Workers workers(1);
  const Planner planner({{.name = "train", .graph = &train.graph}}, {.threads = 1});
  const Program program = planner.streamed(0, {}, {}).program;
  LazyDisk disk(program.file().bytes, 3);
  CpuDevice device(workers);
  Executor executor(program, {&train.graph}, device);
  Arena arena(program.memory().bytes);
  executor.attach(arena, &disk);
  const auto on_disk = std::find_if(program.persistent.begin(), program.persistent.end(),
                                    [](const Persistent& value) { return value.purpose == Purpose::optimizer && is_in_file(value); });
  ASSERT_NE(on_disk, program.persistent.end());
  fill_elements(executor.blank(on_disk->name), on_disk->type.dtype, 3);
  executor.changed(on_disk->name);
  std::vector<std::byte> wanted(static_cast<size_t>(on_disk->type.bytes()));
  fill_elements(wanted, on_disk->type.dtype, 3);
  for (const bool fresh : {false, true}) {
    executor.attach(arena, &disk, fresh);
    const auto found = executor.persistent(on_disk->name);
    EXPECT_EQ(std::equal(found.begin(), found.end(), wanted.begin()), !fresh);
  }
}

// Of a matrix the sum of its sides, of a vector all its elements: what the plan counts.
TEST(Optimizer, AdafactorKeepsRowsAndColumns) {
  for (const int64_t part_bytes : {int64_t{1} << 30, int64_t{64} << 10}) {
    EntryGraph train = gpt_training(kShape, {.optimizer = make_optimizer("adafactor")}, part_bytes);
    const Program program = Planner({{.name = "train", .graph = &train.graph}}, {.threads = 1}).all_in_memory();
    int64_t found = 0, wanted = 0, all = 0;
    for (const Persistent& value : program.persistent) {
      if (value.purpose == Purpose::optimizer) found += value.type.bytes();
    }
    const Graph forward = gpt_forward(kShape);
    for (const ValueId id : forward.parameters()) {
      const Shape& shape = forward.value(id).shape;
      wanted += 4 * (shape.size() == 2 ? shape[0] + shape[1] : element_count(shape));
      all += forward.value(id).bytes();
    }
    EXPECT_EQ(found, wanted);
    EXPECT_LT(found * 10, all);
  }
}

// --- what may be packed ---------------------------------------------------------------------------------------------------------------

// State of two types, by size.
const OptimizerDef kTwoTypes{
    .name = "two types",
    .granularity = Granularity::element,
    .states =
        [](const Optimizer&, const TensorType& parameter) {
          const DType type = element_count(parameter.shape) < 128 ? DType::float32 : DType::float64;
          return std::vector<StateDef>{{.suffix = ".sum", .type = {type, parameter.shape}}};
        },
};

TEST(Optimizer, PacksAreOfOneGroupAndOneTypeOfState) {
  const Graph forward = gpt_forward(kShape);
  for (const auto& [optimizer, kinds] : {std::pair{make_optimizer(), 1u}, {Optimizer{.def = &kTwoTypes}, 2u}}) {
    std::set<std::pair<size_t, bool>> found;
    for (const std::vector<std::string>& pack : choose_packs(forward, {}, optimizer)) {
      std::set<std::pair<size_t, bool>> of_pack;
      for (const std::string& name : pack) {
        const Shape& shape = forward.value(forward.find_value(name)).shape;
        of_pack.emplace(std::min<size_t>(shape.size(), 2), kinds > 1 && element_count(shape) < 128);
      }
      EXPECT_EQ(of_pack.size(), 1u) << "of " << pack[0];
      found.merge(of_pack);
    }
    EXPECT_EQ(std::count_if(found.begin(), found.end(), [](const auto& kind) { return kind.first == 1; }), kinds);
  }
  EXPECT_TRUE(choose_packs(forward, {}, make_optimizer("adafactor")).empty()) << "it needs sums over each tensor";
}

TEST(Optimizer, BlocksOfStateBeginWithEachMemberOfAPack) {
  const EntryGraph train = gpt_training(kShape, {.optimizer = {.def = &kOdd}, .max_grad_norm = 0}, int64_t{1} << 30, /*packed=*/true);
  size_t members = 0;
  for (const auto& [name, slices] : train.slices) {
    EXPECT_EQ(slices.at(0).offset % (kStateBlock * 4), 0) << name;
    members += slices.at(0).offset > 0;
  }
  EXPECT_GT(members, 4u);
}

TEST(Optimizer, HasHuggingFacesNames) {
  std::set<std::string_view> names;
  for (const OptimizerDef* def : all_optimizers()) {
    EXPECT_TRUE(names.insert(def->name).second) << def->name;
    for (const std::string_view name : def->synonyms) {
      EXPECT_TRUE(names.insert(name).second) << name;
      EXPECT_EQ(make_optimizer(name).def, def);
      EXPECT_EQ(make_optimizer(name).state_label(), make_optimizer(def->name).state_label());
    }
  }
  for (const char* name : {"adamw_torch", "adamw_torch_fused", "lion_32bit", "rmsprop", "adagrad", "sgd", "adafactor"})
    EXPECT_TRUE(names.contains(name)) << name;
}

// --- bad input ------------------------------------------------------------------------------------------------------------------------

std::string refusal(std::string_view name, const std::map<std::string, double>& options) {
  try {
    make_optimizer(name, options);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::usage);
    return e.what();
  }
  return {};
}

TEST(Optimizer, WhatItDoesNotHaveIsRefused) {
  EXPECT_EQ(refusal("adamw_hf", {}),
            "`optim` adamw_hf: is not known; these are, and Hugging Face's names for them: adamw, adam, sgd, adafactor, "
            "adafactor_torch, lion, lamb, lars, adagrad, rmsprop");
  EXPECT_EQ(refusal("sgd", {{"adam_beta1", 0.5}}),
            "`adam_beta1` 0.5: `optim` sgd has no such option, only `momentum`, `dampening`, `nesterov`: leave it out");
  EXPECT_EQ(refusal("sgd", {{"nesterov", 1}}), "`optim` sgd: `nesterov` goes with `momentum`, which is 0");
  EXPECT_EQ(refusal("sgd", {{"nesterov", 1}, {"momentum", 0.9}, {"dampening", 0.1}}),
            "`optim` sgd: `nesterov` is without `dampening`: leave one of them out");
  EXPECT_EQ(refusal("adafactor", {{"adafactor_warmup_init", 1}}),
            "`optim` adafactor: `adafactor_warmup_init` goes with `adafactor_relative_step`");
  EXPECT_EQ(refusal("rmsprop", {{"rmsprop_centered", 2}}), "`rmsprop_centered` 2: is neither 0 nor 1");
  EXPECT_EQ(refusal("sgd", {{"momentum", 1}}), "`momentum` 1: has to lie in [0, 1)");
  EXPECT_EQ(refusal("adamw", {{"adam_epsilon", -1}}), "`adam_epsilon` -1: has to be 0 or more, and finite");
  EXPECT_EQ(refusal("adamw", {{"adam_epsilon", INFINITY}}), "`adam_epsilon` inf: has to be 0 or more, and finite");
  EXPECT_EQ(refusal("adafactor", {{"adafactor_epsilon", 1e-60}}), "`adafactor_epsilon` 1e-60: is not positive, or too small for float32");
  for (const OptimizerDef* def : all_optimizers()) {
    for (const OptimizerOption& option : def->options) {
      EXPECT_TRUE(option.fits(option.value)) << option.name;
      EXPECT_NE(refusal(def->name, {{std::string(option.name), std::nan("")}}), "") << option.name;
    }
  }
}

}  // namespace
}  // namespace ort_train
