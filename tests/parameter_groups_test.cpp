// Parameter groups: training against torch.optim.AdamW with groups and a schedule (tests/golden/groups.safetensors, written by
// models/golden_groups.py), in memory and streamed; which weights a pattern takes, what the layers of exported models are; packs; resuming;
// schedules that follow the held-out loss; scaled learning rates; what is refused.

#include "frontend/parameter_groups.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "passes/build.h"
#include "passes/pack_weights.h"
#include "test_paths.h"
#include "tests/arrays.h"
#include "tests/chain_model.h"
#include "tests/failures.h"
#include "tests/onnx_models.h"
#include "tests/plan_support.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kTests = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/";

std::vector<double> numbers_of(const File& file, const SafetensorsEntry& entry) {
  std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes));
  file.read(entry.offset, bytes);
  std::vector<double> values;
  const bool wide = entry.element == Element::float64;
  for (size_t i = 0; i < bytes.size(); i += wide ? 8 : 4) {
    double number = 0;
    float narrow = 0;
    if (wide)
      std::memcpy(&number, bytes.data() + i, 8);
    else
      std::memcpy(&narrow, bytes.data() + i, 4), number = static_cast<double>(narrow);
    values.push_back(number);
  }
  return values;
}

double norm(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

struct ParameterGroups : TrainerRuns {
  const File file = File::open(kTests + "golden/groups.safetensors");
  const SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);

  std::vector<double> golden(const std::string& name) const {
    for (const SafetensorsEntry& entry : header.entries) {
      if (entry.name == name) return numbers_of(file, entry);
    }
    ADD_FAILURE() << name;
    return {};
  }

  // What models/golden_groups.py did, in this project's words.
  Options options(const std::string& name) const {
    const auto settings = nlohmann::json::parse(header.metadata.at(name));
    Options o{.model = kTests + "golden/" + name + ".onnx", .data = kTests + "golden/" + name + ".data.safetensors"};
    o.batch_size = settings.at("batch_size");
    o.learning_rate = settings.at("learning_rate");
    o.lr_scheduler_type = settings.at("lr_scheduler_type").get<std::string>();
    o.lr_scheduler_kwargs = settings.at("lr_scheduler_kwargs").get<std::map<std::string, std::string>>();
    o.warmup_steps = settings.at("warmup_steps");
    o.max_grad_norm = settings.at("max_grad_norm");
    o.optim_args["adam_epsilon"] = settings.at("adam_epsilon").get<double>();
    o.max_steps = static_cast<int64_t>(golden(name + "/losses").size());
    o.shuffle = false;
    o.profile = profile;
    o.threads = 2;
    if (name.starts_with("gpt2")) {
      o.weight_decay = 0.05;
      o.param_groups = {{.pattern = "*.attn.*.bias", .lr = 2e-3, .weight_decay = 0.1},
                        {.pattern = "*ln_*", .lr_scale = 0.1},
                        {.pattern = "*.h.1.*", .lr_scale = 3, .weight_decay = 0}};
    } else {
      o.weight_decay = 0.1;
      o.param_groups = {{.pattern = "*LayerNorm.weight", .lr = 5e-4, .weight_decay = 0.02}};
      o.layer_decay = 0.6;
    }
    return o;
  }
};

TEST_F(ParameterGroups, TrainAsPyTorchDoes) {
  ASSERT_EQ(header.metadata.size(), 2u);
  for (const auto& [name, settings] : header.metadata) {
    Options o = options(name);
    o.output_dir = folder / name;
    std::vector<double> losses, rates;
    Trainer trainer(o, {.on_step = [&](const StepReport& step) {
                      losses.push_back(step.loss);
                      rates.push_back(step.learning_rate);
                    }});
    const std::string exported = trainer.train().model_path;
    const std::vector<double> wanted = golden(name + "/losses"), wanted_rates = golden(name + "/learning_rates");
    ASSERT_GE(wanted.size(), 20u);
    ASSERT_EQ(losses.size(), wanted.size());
    for (size_t i = 0; i < wanted.size(); ++i) {
      EXPECT_NEAR(losses[i], wanted[i], 1e-5 * wanted[i]) << name << " step " << i + 1;
      EXPECT_DOUBLE_EQ(rates[i], wanted_rates[i]) << name << " step " << i + 1;
    }
    Workers one(1);
    size_t compared = 0;
    for (const Weight& weight : import_model(exported, {.shapes = {{"batch", 2}, {"sequence", 12}}}, one).weights) {
      for (const WeightPlace& place : weight.places) {
        const std::string key = name + "/weights/" + place.name;
        if (std::none_of(header.entries.begin(), header.entries.end(), [&](const auto& entry) { return entry.name == key; })) continue;
        std::vector<float> values(static_cast<size_t>(place.bytes.bytes) / sizeof(float));
        File::open(place.bytes.path).read(place.bytes.offset, std::as_writable_bytes(std::span(values)));
        const std::vector<double> ours(values.begin(), values.end()), theirs = golden(key);
        ASSERT_EQ(ours.size(), theirs.size()) << key;
        EXPECT_LE(norm(ours, theirs), 2e-5 * std::max(norm(theirs, std::vector<double>(theirs.size())), 0.01)) << key;
        ++compared;
      }
    }
    EXPECT_GE(compared, 28u);
  }
}

// Packs, parts, micro-batches, updates that wait, and a resume: the bits are those of the plain run.
TEST_F(ParameterGroups, StreamAndResumeWithTheSameBits) {
  std::vector<std::pair<std::string, Options>> jobs;
  for (const auto& [name, settings] : header.metadata) jobs.emplace_back(name, options(name));
  Options& chain = jobs.emplace_back("chain", chain_job(folder / "chain", 8, 128, 128)).second;
  chain.learning_rate = 1e-3;
  chain.param_groups = {{.pattern = "w1", .lr = 5e-4}, {.pattern = "w2", .lr_scale = 0.5, .weight_decay = 0.1}};
  on.part_bytes = 2048;
  for (const auto& [name, job] : jobs) {
    for (const int64_t accumulation : {1, 2}) {
      Options o = job;
      o.gradient_accumulation_steps = accumulation;
      o.max_steps = 12;
      const Run plain = train(o);
      o.nvme_path = folder / ("disk-" + name + std::to_string(accumulation));
      fs::create_directory(o.nvme_path);
      o.budget = least_budget(o);
      const Run streamed = train(o);
      EXPECT_GT(streamed.plan.disk_read_per_step, 0) << name << ' ' << accumulation;
      EXPECT_EQ(streamed.losses, plain.losses) << name << ' ' << accumulation;
      EXPECT_EQ(streamed.summary.weights_hash, plain.summary.weights_hash) << name << ' ' << accumulation;
      o.output_dir = folder / ("resumed-" + name + std::to_string(accumulation));
      EXPECT_EQ(train_in_two(o, 3).weights_hash, plain.summary.weights_hash) << name << ' ' << accumulation;
    }
  }
}

TEST_F(ParameterGroups, AreShown) {
  Options o = options("bert-dynamo-18-masked");
  o.plan_json = folder / "plan.json";
  const PlanReport plan = Trainer(o).plan();
  const CheckReport checked = check(o);
  ASSERT_EQ(plan.groups.size(), 5u);
  ASSERT_EQ(checked.groups.size(), plan.groups.size());
  int64_t elements = 0;
  for (const GroupReport& row : plan.groups) elements += row.elements;
  EXPECT_EQ(elements, plan.trainable_parameters);
  EXPECT_EQ(plan.groups[0].name, "others");
  EXPECT_EQ(plan.groups[0].learning_rate, 2e-3);
  EXPECT_EQ(plan.groups[1].name, "*LayerNorm.weight");
  EXPECT_EQ(plan.groups[1].learning_rate, 5e-4);
  EXPECT_EQ(plan.groups[1].decayed, 6);
  EXPECT_EQ(plan.groups[2].name, "layer 0");
  EXPECT_NEAR(plan.groups[2].learning_rate, 2e-3 * 0.6 * 0.6 * 0.6, 1e-12);
  EXPECT_EQ(plan.groups[3].name, "layer 1 (bert.encoder.layer.0)");
  EXPECT_EQ(plan.groups[3].tensors, 14);  // six products with biases, two biases of norms
  EXPECT_EQ(plan.groups[3].decayed, 6);
  for (const std::string& text : {plan.text, checked.text}) EXPECT_THAT(text, HasSubstr("layer 2 (bert.encoder.layer.1)"));
  EXPECT_EQ(nlohmann::json::parse(read_file(o.plan_json)).at("groups").size(), 5u);
  o.param_groups.clear();
  o.layer_decay = 1;
  EXPECT_EQ(Trainer(o).plan().groups.size(), 1u);
  EXPECT_EQ(check(o).text.find("groups"), std::string::npos);
}

// The layers of models as exporters write them.
TEST_F(ParameterGroups, LayersAreFoundInExportedModels) {
  const auto layers = [](const std::string& name) {
    Options o{.model = kTests + "weights/" + name + ".onnx"};
    o.layer_decay = 0.5;
    o.learning_rate = 1;
    std::string text;
    for (const GroupReport& row : check(o).groups)
      text += fmt::format("{}{}: {} of {} tensors", text.empty() ? "" : "; ", row.name, row.learning_rate, row.tensors);
    return text;
  };
  for (const char* name : {"gpt2-torchscript", "gpt2-dynamo", "gpt2-torchscript-plain", "gpt2-dynamo-plain"})
    EXPECT_EQ(layers(name), "others: 1 of 2 tensors; layer 0: 0.25 of 2 tensors; layer 1 (model.transformer.h.0): 0.5 of 12 tensors")
        << name;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { layers("lstm-torchscript"); }), HasSubstr("names of the weights don't tell layers apart"));
}

// torchscript's names of a Sequential's nodes have its own name again in that of each module.
TEST_F(ParameterGroups, NodesOfASequentialAreOfTheLayersOfItsWeights) {
  ort_train_onnx::ModelProto model = fixtures::model_of(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[2, 4] x) => (float[2, 4] y) {
    h = MatMul (x, a)
    r = Mul (h, s)
    k = MatMul (r, b)
    y = Mul (k, t) })");
  const char* const nodes[] = {"/net/net.0/MatMul", "/net/net.0/Mul", "/net/net.1/MatMul", "/net/net.1/Mul"};
  for (int i = 0; i < 4; ++i) model.mutable_graph()->mutable_node(i)->set_name(nodes[i]);
  for (const char* matrix : {"onnx::MatMul_1", "onnx::MatMul_2"})
    *model.mutable_graph()->add_initializer() = fixtures::tensor_of(matrix, {4, 4}, numbers(16, matrix[13]));
  for (const char* vector : {"net.0.scale", "net.1.scale"})
    *model.mutable_graph()->add_initializer() = fixtures::tensor_of(vector, {4}, numbers(4, vector[4]));
  model.mutable_graph()->mutable_node(0)->set_input(1, "onnx::MatMul_1");
  model.mutable_graph()->mutable_node(1)->set_input(1, "net.0.scale");
  model.mutable_graph()->mutable_node(2)->set_input(1, "onnx::MatMul_2");
  model.mutable_graph()->mutable_node(3)->set_input(1, "net.1.scale");
  Options o{.model = fixtures::write_model(folder, model)};
  o.layer_decay = 0.5;
  std::map<std::string, int64_t> tensors;
  for (const GroupReport& row : check(o).groups) tensors[row.name] = row.tensors;
  EXPECT_EQ(tensors, (std::map<std::string, int64_t>{{"layer 1 (net.0)", 2}, {"others", 2}}));
}

TEST_F(ParameterGroups, PacksAreOfOneGroup) {
  Graph forward = fixtures::gpt_forward({.layers = 2, .heads = 4, .width = 64, .vocabulary = 300, .batch = 2, .length = 16});
  const Packs before = choose_packs(forward, {});
  uint32_t next = 0;
  for (const ValueId id : forward.parameters()) forward.value(id).group = next++ % 3;
  const Packs packs = choose_packs(forward, {});
  ASSERT_GE(packs.size(), 4u);
  EXPECT_GT(packs.size(), before.size());
  for (const std::vector<std::string>& pack : packs) {
    std::set<std::pair<uint32_t, bool>> kinds;
    for (const std::string& name : pack) {
      const Value& value = forward.value(forward.find_value(name));
      kinds.emplace(value.group, value.shape.size() >= 2);
    }
    EXPECT_EQ(kinds.size(), 1u) << pack[0];
  }
}

// Its own scalars, its own weight decay; parts and packs have their weights' group.
TEST_F(ParameterGroups, UpdatesReadTheScalarsOfTheirGroup) {
  Graph forward = fixtures::gpt_forward({.layers = 2, .heads = 4, .width = 64, .vocabulary = 300, .batch = 2, .length = 16});
  uint32_t next = 0;
  std::map<std::string, uint32_t> group_of;
  for (const ValueId id : forward.parameters()) group_of[forward.value(id).name] = forward.value(id).group = next++ % 3;
  const OptimizerSpec spec{.weight_decay = 0.5, .groups = {{}, {.weight_decay = 0.25}, {.weight_decay = 0}}};
  PassOptions options{.part_bytes = int64_t{16} << 10, .part_rows = 16};
  optimize_forward(forward, options);
  options.packs = choose_packs(forward, {});
  const EntryGraph job = build_train_graph(forward, {}, spec, options);
  ASSERT_EQ(job.scalars.size(), 3u);
  EXPECT_EQ(job.graph.value(job.scalars[0]).name, kScalarsInput);
  std::map<std::string, std::string> whole_of;  // a part's or a pack's, of one of its members
  for (const auto& [weight, slices] : job.slices) {
    for (const Slice& slice : slices) whole_of[slice.name] = weight;
  }
  size_t updates = 0;
  std::set<uint32_t> seen;
  for (const NodeId id : job.graph.order()) {
    const Node& node = job.graph.node(id);
    if (node.op->name != "AdamW") continue;
    ++updates;
    const Value& parameter = job.graph.value(node.inputs[0]);
    const auto whole = whole_of.find(parameter.name);
    const uint32_t group = group_of.at(whole == whole_of.end() ? parameter.name : whole->second);
    seen.insert(group);
    EXPECT_EQ(parameter.group, group) << parameter.name;
    EXPECT_NE(std::find(node.inputs.begin(), node.inputs.end(), job.scalars[group]), node.inputs.end()) << parameter.name;
    const float decay = node.attributes.get("weight_decay", -1.0f);
    EXPECT_EQ(decay, group == 1 ? 0.25f : group == 2 || parameter.shape.size() < 2 ? 0.0f : 0.5f) << parameter.name;
  }
  EXPECT_GE(updates, 12u);
  EXPECT_EQ(seen.size(), 3u);
}

TEST_F(ParameterGroups, AResumedRunMayHaveOtherLearningRates) {
  Options o = options("gpt2-dynamo-17-eager");
  o.output_dir = folder / "out";
  o.max_steps = 3;
  Trainer(o).train();
  o.resume = true;
  o.max_steps = 5;
  Options other = o;
  other.param_groups[0].lr = 1e-4;
  other.label_smoothing = 0.125;
  std::string notes;
  Trainer(other, {.on_note = [&](const std::string& text) { notes += text + "\n"; }}).train();
  EXPECT_THAT(notes, HasSubstr("from here on the run differs from the one that was saved"));
  EXPECT_THAT(notes, HasSubstr("param_groups '*.attn.*.bias' lr=0.0001 weight_decay=0.1"));
  EXPECT_THAT(notes, HasSubstr("label_smoothing 0.125 instead of none"));
  other.param_groups.erase(other.param_groups.begin());
  other.max_steps = 6;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Trainer(other).train(); }), HasSubstr("was saved with `param_groups` '*.attn.*.bias'"));
}

TEST_F(ParameterGroups, WhatCannotBeMeantIsRefused) {
  const Options job = options("gpt2-dynamo-17-eager");
  const auto refused = [&](const std::vector<ParamGroup>& groups, const std::string& what, double layer_decay = 1) {
    Options o = job;
    o.param_groups = groups;
    o.layer_decay = layer_decay;
    for (const bool checks : {false, true})
      EXPECT_THAT(error_of(ErrorCode::usage, [&] { checks ? static_cast<void>(check(o)) : static_cast<void>(Trainer(o)); }),
                  HasSubstr(what));
  };
  refused({{.pattern = "h.*.bias", .lr = 1}}, "'h.*.bias' fits no tensor that is trained; '*h.*.bias*' fits 12");
  refused({{.pattern = "transformer.wpe.wieght", .lr = 1}}, "it has 'transformer.wpe.weight'");
  refused({{.pattern = "*ln_*", .lr = 1}, {.pattern = "*ln_1*", .lr = 2}}, "'*ln_1*': the patterns before it take all that it fits");
  refused({{.pattern = "", .lr = 1}}, "the pattern is empty");
  refused({{.pattern = "*"}}, "says nothing");
  refused({{.pattern = "*", .lr = -1}}, "lr -1 has to be 0 or more");
  refused({{.pattern = "*", .lr = 1, .lr_scale = 2}}, "give one of them");
  refused({{.pattern = "*", .lr_scale = std::numeric_limits<double>::infinity()}}, "lr_scale inf has to be 0 or more");
  refused({{.pattern = "*", .weight_decay = -1}}, "weight_decay -1 has to be 0 or more");
  refused({}, "`layer_decay` 0 has to lie in (0, 1]", 0);
  refused({}, "`layer_decay` 1.5 has to lie in (0, 1]", 1.5);
  Options frozen = job;
  frozen.freeze = {"*ln_*"};
  frozen.param_groups = {{.pattern = "*ln_1*", .lr = 1}};
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { check(frozen); }), HasSubstr("which is not trained (frozen)"));
  Options flat{.model = kTests + "golden/mlp-mse.onnx"};
  flat.layer_decay = 0.5;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { check(flat); }), HasSubstr("don't tell layers apart"));
}

// --- learning rates of a job ----------------------------------------------------------------------------------------------------------

using LearningRates = ParameterGroups;

TEST_F(LearningRates, GrowWithTheBatch) {
  Options o = options("gpt2-dynamo-17-eager");
  o.param_groups = {{.pattern = "*ln_*", .lr_scale = 0.5}, {.pattern = "*.bias", .lr = 7e-4}};
  o.gradient_accumulation_steps = 4;  // steps of 8 samples
  o.base_batch_size = 2;
  for (const auto& [how, times] : {std::pair{"linear", 4.0}, {"sqrt", 2.0}}) {
    o.scale_lr = how;
    std::string notes;
    const Trainer trainer(o, {.on_note = [&](const std::string& text) { notes += text + "\n"; }});
    const PlanReport& plan = trainer.plan();
    EXPECT_EQ(plan.groups[0].learning_rate, times * 1e-3);
    EXPECT_EQ(plan.groups[1].learning_rate, times * 5e-4);
    EXPECT_EQ(plan.groups[2].learning_rate, 7e-4);
    const std::vector<GroupReport> checked = check(o).groups;
    ASSERT_EQ(checked.size(), plan.groups.size());
    for (size_t i = 0; i < checked.size(); ++i) EXPECT_EQ(checked[i].learning_rate, plan.groups[i].learning_rate) << how << " " << i;
    EXPECT_THAT(notes, HasSubstr(fmt::format("the learning rate is {}: `learning_rate` 0.001 for a step of 2 samples, by `scale_lr` {}",
                                             times * 1e-3, how)));
  }
  o.base_batch_size = 0;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Trainer{o}; }), HasSubstr("`base_batch_size`"));
  o.scale_lr = "cubic", o.base_batch_size = 2;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Trainer{o}; }), HasSubstr("`scale_lr` cubic: is not known"));
}

// The first input leaves its batch open, the second fixes it.
TEST_F(LearningRates, GrowInACheckAsInAJob) {
  Options o;
  o.model = fixtures::write_model(folder, R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[n, 3] x, float[4, 2] y) => (float[n, 2] z, float[4, 2] u) <float[3, 2] w = {1, 2, 3, 4, 5, 6}> {
      z = MatMul (x, w)
      u = Neg (y)
    })");
  Arrays arrays;
  arrays.add("x", {8, 3}, numbers(24, 389)).add("y", {8, 2}, numbers(16, 397)).add("labels", {8, 2}, numbers(16, 401));
  o.data = arrays.write(folder / "data.safetensors");
  o.output_dir = folder / "out";
  o.loss = "mse";
  o.learning_rate = 1e-3;
  o.scale_lr = "linear";
  o.base_batch_size = 2;
  o.max_steps = 1;
  o.profile = profile;
  const std::vector<GroupReport> checked = check(o).groups;
  ASSERT_EQ(checked.size(), 1u);
  EXPECT_EQ(checked[0].learning_rate, 2e-3);
  EXPECT_EQ(Trainer(o).plan().groups[0].learning_rate, 2e-3);
}

// A run that is reduced twice; in one go and stopped everywhere, in the evaluation too.
TEST_F(LearningRates, FollowTheHeldOutLoss) {
  Options o = options("gpt2-dynamo-17-eager");
  o.lr_scheduler_type = "reduce_lr_on_plateau";
  o.warmup_steps = 0;
  o.lr_scheduler_kwargs = {};
  o.max_steps = 12;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { Trainer{o}; }), HasSubstr("follows the held-out loss: it needs evaluations (`eval_steps`)"));
  o.lr_scheduler_kwargs = {{"patience", "0"}, {"factor", "0.5"}, {"threshold", "0.05"}, {"cooldown", "1"}};  // hardly ever so much better
  o.eval_steps = 2;
  std::vector<double> rates, losses;
  const auto go = [&](const Options& of, int64_t stop_at, bool in_evaluation) {
    Trainer* running = nullptr;
    Trainer trainer(of, {.on_step =
                             [&](const StepReport& step) {
                               rates.push_back(step.learning_rate);
                               losses.push_back(step.loss);
                               if (step.step == stop_at && in_evaluation) running->request_stop();
                             },
                         .on_eval =
                             [&](const EvalReport& evaluated) {
                               if (evaluated.step == stop_at && !in_evaluation) running->request_stop();
                             }});
    running = &trainer;
    return trainer.train().weights_hash;
  };
  o.output_dir = folder / "whole";
  const std::string hash = go(o, -1, false);
  const std::vector<double> whole = rates, whole_losses = losses;
  EXPECT_EQ(whole.front(), 1e-3);
  EXPECT_EQ(whole.back(), 1e-3 * 0.5 * 0.5);
  for (const bool in_evaluation : {false, true}) {
    rates.clear(), losses.clear();
    Options pieces = o;
    pieces.output_dir = folder / (in_evaluation ? "in" : "behind");
    std::string last;
    for (const int64_t stop_at : {2, 4, 6, 8, 10, -1}) {
      last = go(pieces, stop_at, in_evaluation);
      pieces.resume = true;
    }
    EXPECT_EQ(rates, whole) << in_evaluation;
    EXPECT_EQ(losses, whole_losses) << in_evaluation;
    EXPECT_EQ(last, hash) << in_evaluation;
  }
}

TEST_F(LearningRates, AWarmUpThatChangesNothingIsSaid) {
  Options o = options("gpt2-dynamo-17-eager");
  o.lr_scheduler_type = "constant";
  std::string notes;
  Trainer(o, {.on_note = [&](const std::string& text) { notes += text + "\n"; }});
  EXPECT_THAT(notes, HasSubstr("`lr_scheduler_type` constant has no warm-up: `warmup_steps` 4 changes nothing"));
}

TEST_F(LearningRates, AWarmUpThatNeverEndsIsSaid) {
  Options o = options("gpt2-dynamo-17-eager");
  std::string notes;
  const auto trainer = [&] { Trainer(o, {.on_note = [&](const std::string& text) { notes += text + "\n"; }}); };
  o.warmup_steps = o.max_steps - 1;
  trainer();
  EXPECT_THAT(notes, Not(HasSubstr("warmup_steps")));
  o.warmup_steps = o.max_steps;
  trainer();
  EXPECT_THAT(notes, HasSubstr(fmt::format("`warmup_steps` {0} of {0}: the run ends before the learning rate has reached", o.max_steps)));
}

}  // namespace
}  // namespace ort_train
