// ControlNet's way: which nodes are copied, how the copy is joined, that the first step is the base's, that runs end with the same bits in
// any memory, and what is refused. models/control.py has PyTorch as the judge.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "frontend/export.h"
#include "frontend/importer.h"
#include "graph/onnx/reader.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace fs = std::filesystem;

constexpr int64_t kSamples = 12, kSide = 6;

// Two convolutions and a pool between them that has no weights, a branch that skips the second, a head.
const char* const kImages = R"(<ir_version: 8, opset_import: ["" : 17]>
  g (float[batch, 3, 6, 6] x) => (float[batch, 2] y) {
    stem = Conv <pads = [1, 1, 1, 1]> (x, stem_weight)
    c0 = Conv <pads = [1, 1, 1, 1]> (stem, down_0_weight, down_0_bias)
    r0 = Relu (c0)
    p0 = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> (r0)
    c1 = Conv <pads = [1, 1, 1, 1]> (p0, down_1_weight)
    sum = Add (c1, p0)
    mean = GlobalAveragePool (sum)
    flat = Flatten (mean)
    y = Gemm (flat, head_weight, head_bias)
  })";

struct ControlRuns : TrainerRuns {
  static void add(ort_train_onnx::ModelProto& model, const std::string& name, const std::vector<int64_t>& dims, int64_t step) {
    std::vector<float> values = numbers(element_count(Shape(dims.begin(), dims.end())), step);
    for (float& value : values) value /= 4;
    *model.mutable_graph()->add_initializer() = tensor_of(name, dims, values);
  }
  static ort_train_onnx::ModelProto images() {
    ort_train_onnx::ModelProto model = model_of(kImages);
    add(model, "stem_weight", {4, 3, 3, 3}, 7919);
    add(model, "down_0_weight", {8, 4, 3, 3}, 7907);
    add(model, "down_0_bias", {8}, 613);
    add(model, "down_1_weight", {8, 8, 3, 3}, 7901);
    add(model, "head_weight", {8, 2}, 619);
    add(model, "head_bias", {2}, 617);
    return model;
  }
  std::string data() const {
    Arrays arrays;
    arrays.add("x", {kSamples, 3, kSide, kSide}, numbers(kSamples * 3 * kSide * kSide, 104'729));
    arrays.add("hint", {kSamples, 1, kSide, kSide}, numbers(kSamples * kSide * kSide, 104'723));
    arrays.add("labels", {kSamples, 2}, numbers(kSamples * 2, 104'717));
    return arrays.write(folder / "data.safetensors");
  }
  Options options() const {
    return {.model = write_model(folder, images()),
            .data = data(),
            .loss = "mse",
            .batch_size = 4,
            .profile = profile,
            .learning_rate = 1e-2,
            .max_steps = 6,
            .threads = 2,
            .control = {"down_*"}};
  }
  std::string refusal(const Options& o) const {
    const Error problem = error_of([&] { Trainer trainer(o); });
    EXPECT_NE(problem.code(), ErrorCode::internal) << problem.what();
    return problem.what();
  }
};

std::vector<std::string> nodes_of(const std::string& path) {
  std::vector<std::string> nodes;
  for (const onnx::NodeDef& node : importing::open_model(path).graph.nodes)
    nodes.push_back(fmt::format("{} {} -> {}", node.op_type, fmt::join(node.inputs, " "), fmt::join(node.outputs, " ")));
  return nodes;
}

std::vector<float> weight(const std::string& path, const std::string& name) {
  const Imported imported = import_file(path, {.shapes = {{"batch", 1}}});
  for (const Weight& weight : imported.weights) {
    if (weight.parameter == name) return floats(weight_tensor(imported, weight));
  }
  ADD_FAILURE() << "no weight " << name;
  return {};
}

TEST_F(ControlRuns, TheNewModelHasTheCopyAndTheLayers) {
  const Options o = options();
  const Run run = train(o);
  EXPECT_EQ(
      nodes_of(run.summary.model_path),
      (Names{"Conv x stem_weight -> stem", "Conv stem down_0_weight down_0_bias -> c0",
             "Conv stem control.down_0_weight control.down_0_bias -> control.c0", "Relu c0 -> r0", "Relu control.c0 -> control.r0",
             "MaxPool r0 -> control.frozen.0", "MaxPool control.r0 -> control.p0",
             "Conv control.p0 control.zero.0.weight control.zero.0.bias -> control.zero.0", "Add control.frozen.0 control.zero.0 -> p0",
             "Conv control.frozen.0 down_1_weight -> control.frozen.1", "Conv control.p0 control.down_1_weight -> control.c1",
             "Conv control.c1 control.zero.1.weight control.zero.1.bias -> control.zero.1", "Add control.frozen.1 control.zero.1 -> c1",
             "Add c1 p0 -> sum", "GlobalAveragePool sum -> mean", "Flatten mean -> flat", "Gemm flat head_weight head_bias -> y"}));
  for (const char* frozen : {"stem_weight", "down_0_weight", "down_1_weight", "head_weight", "head_bias"})
    EXPECT_EQ(weight(run.summary.model_path, frozen), weight(o.model, frozen)) << frozen;
  for (const char* trained : {"down_0_weight", "down_1_weight"}) {
    const std::vector<float> was = weight(o.model, trained), is = weight(run.summary.model_path, std::string("control.") + trained);
    ASSERT_EQ(is.size(), was.size());
    EXPECT_NE(is, was) << trained;
    for (size_t i = 0; i < is.size(); ++i) EXPECT_NEAR(is[i], was[i], 0.1) << trained;
  }
  EXPECT_EQ(run.plan.trainable_parameters, 8 * 4 * 9 + 8 + 8 * 8 * 9 + 2 * (8 * 8 + 8));
  Options more = o;
  more.train = {"head_*"};
  more.freeze = {"control.down_0_bias"};
  EXPECT_EQ(Trainer(more).plan().trainable_parameters, run.plan.trainable_parameters + 8 * 2 + 2 - 8);
  // It is a model like others, which goes on as the run would have.
  Options whole = o;
  whole.batch_size = kSamples;
  whole.shuffle = false;
  whole.lr_scheduler_type = "constant";
  Options next = whole;
  next.model = train(whole).summary.model_path;
  next.control.clear();
  next.max_steps = 1;
  whole.max_steps = 7;
  EXPECT_EQ(train(next).losses[0], train(whole).losses[12]);
}

// The layers of zeros add nothing, whatever the copy gives.
TEST_F(ControlRuns, TheFirstStepIsTheBases) {
  Options o = options();
  o.max_steps = 1;
  const double controlled = train(o).losses[0];
  o.control_input = "hint=1,6,6";
  EXPECT_EQ(train(o).losses[0], controlled);
  o.control.clear();
  o.control_input.clear();
  EXPECT_EQ(train(o).losses[0], controlled);
}

TEST_F(ControlRuns, AConditionIsAnInputOfTheNewModel) {
  Options o = options();
  o.control_input = "hint=1,6,6";
  const Run run = train(o);
  const onnx::ModelDef model = importing::open_model(run.summary.model_path);
  ASSERT_EQ(model.graph.inputs.size(), 2u);
  EXPECT_EQ(model.graph.inputs[1].name, "hint");
  EXPECT_EQ(model.graph.inputs[1].dims.at(0).name, "batch");
  EXPECT_EQ(model.graph.inputs[1].dims.at(3).size, 6);
  const Names nodes = nodes_of(run.summary.model_path);
  const auto has = [&](const std::string& node) { return std::find(nodes.begin(), nodes.end(), node) != nodes.end(); };
  EXPECT_TRUE(has("Conv hint control.condition.weight control.condition.bias -> control.condition"));
  EXPECT_TRUE(has("Add stem control.condition -> control.entry"));
  EXPECT_TRUE(has("Conv control.entry control.down_0_weight control.down_0_bias -> control.c0"));
  const std::vector<float> layer = weight(run.summary.model_path, "control.condition.weight");
  EXPECT_EQ(layer.size(), 4u);
  EXPECT_TRUE(std::all_of(layer.begin(), layer.end(), [](float x) { return x != 0; }));
  o.bind = {{"hint", "0.5"}};  // the same for all samples
  EXPECT_EQ(train(o).losses[0], run.losses[0]);
}

TEST_F(ControlRuns, AnyMemoryEndsWithTheSameBits) {
  fs::create_directory(folder / "disk");
  Options o = options();
  o.control_input = "hint=1,6,6";
  const Run plain = train(o);
  Options again = o;
  again.output_dir = folder / "resumed";
  EXPECT_EQ(train_in_two(again, 3).weights_hash, plain.summary.weights_hash);
  Options streamed = o;
  streamed.nvme_path = folder / "disk";
  streamed.budget = least_budget(streamed);
  streamed.threads = 1;
  const Run run = train(streamed);
  EXPECT_EQ(run.losses, plain.losses);
  EXPECT_TRUE(read_file(run.summary.model_path) == read_file(plain.summary.model_path));
}

TEST_F(ControlRuns, AResumedRunHasTheSameCopy) {
  Options begun = options();
  begun.output_dir = folder / "begun";
  Options other = begun;
  other.control = {"down_0*"};
  EXPECT_HAS(error_of([&] { train_in_two(begun, other, 3); }).what(), "was saved with a copy of down_*");
  other.control.clear();
  other.resume = true;
  EXPECT_HAS(error_of([&] { Trainer(other).train(); }).what(), "give it the same `control`");
}

// Weights in a file of their own, two of them stored twice: the file stays what it is, and the copies are tied, too.
TEST_F(ControlRuns, CopiesBeginAsWhatTheFileHas) {
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 8] x) => (float[batch, 8] y) {
      [blocks_0] a = MatMul (x, w)
      b = Tanh (a)
      [blocks_1] c = MatMul (b, v)
      y = Add (c, x)
    })");
  const std::vector<float> w = numbers(64, 7919);
  std::vector<float> v(64);
  for (size_t i = 0; i < v.size(); ++i) v[i] = w[i % 8 * 8 + i / 8];
  *model.mutable_graph()->add_initializer() = tensor_of("w", {8, 8}, w);
  *model.mutable_graph()->add_initializer() = tensor_of("v", {8, 8}, v);  // transposed
  std::string bytes;
  for (auto& tensor : *model.mutable_graph()->mutable_initializer()) {
    bytes += tensor.raw_data();
    store_externally(tensor, "weights.bin", static_cast<int64_t>(bytes.size()) - 256, 256);
  }
  write_file(folder / "weights.bin", bytes);
  const std::string path = write_model(folder, model);
  const ControlNet control{.blocks = {"blocks_*"}};
  const Imported imported = import_file(path, {.shapes = {{"batch", 2}}, .adapts = true, .control = control});
  EXPECT_EQ(parameter_names(imported), (Names{"w", "control.w", "control.zero.0.bias", "control.zero.0.weight"}));
  ASSERT_EQ(imported.weights.size(), 4u);
  EXPECT_EQ(imported.weights[1].places.at(0).bytes, imported.weights[0].places.at(0).bytes);
  ASSERT_EQ(imported.weights[1].places.size(), 2u);
  EXPECT_EQ(imported.weights[1].places[1].name, "control.v");
  EXPECT_TRUE(imported.weights[3].fresh.has_value());
  EXPECT_EQ(imported.info.edit.initializers.size(), 4u);
  for (const Weight& weight : imported.weights)
    EXPECT_EQ(imported.graph.value(imported.graph.find_value(weight.parameter)).trainable, weight.parameter != "w");

  Arrays arrays;
  for (const char* name : {"x", "labels"}) arrays.add(name, {kSamples, 8}, numbers(kSamples * 8, 104'729));
  const Run run = train({.model = path,
                         .data = arrays.write(folder / "vectors.safetensors"),
                         .loss = "mse",
                         .batch_size = 4,
                         .profile = profile,
                         .learning_rate = 1e-2,
                         .max_steps = 2,
                         .control = {"blocks_*"}});
  const std::string out = fs::path(run.summary.model_path).parent_path();
  EXPECT_TRUE(read_file(out + "/weights.bin") == bytes);
  const Imported trained = import_file(run.summary.model_path, {.shapes = {{"batch", 2}}});
  EXPECT_EQ(parameter_names(trained), (Names{"w", "control.w", "control.zero.0.bias", "control.zero.0.weight"}));  // tied still
  const std::vector<float> is = weight(run.summary.model_path, "control.w");
  EXPECT_NE(is, w);

  // Where the model would become too large, what is added goes to a file of its own.
  ModelInfo info = imported.info;
  place_added(info, 1000);
  const std::string split = export_model(
      info, imported.weights,
      [&](const std::string& name, const ByteSink& sink) {
        const std::vector<float> numbers = weight(run.summary.model_path, name);
        if (sink) sink(0, std::as_bytes(std::span(numbers)));
        return true;
      },
      folder / "split");
  EXPECT_TRUE(fs::exists(folder / "split/added.data"));
  EXPECT_FALSE(read_file(split).find(bytes_of(weight(split, "control.w"))) != std::string::npos);
  for (const char* name : {"w", "control.w", "control.zero.0.bias", "control.zero.0.weight"})
    EXPECT_EQ(weight(split, name), weight(run.summary.model_path, name)) << name;
  EXPECT_EQ(parameter_names(import_file(split, {.shapes = {{"batch", 2}}})).size(), 4u);
}

// What of a model is copied, by the names of the weights in its new file.
Names copied(const std::string& path, const std::vector<std::string>& blocks) {
  const Imported imported = import_file(path, {.shapes = {{"batch", 2}}, .adapts = true, .control = {.blocks = blocks}});
  Names names;
  for (const onnx::NewInitializer& added : imported.info.edit.initializers) names.push_back(added.name);
  return names;
}
std::vector<std::string> joined(const std::string& path, const std::vector<std::string>& blocks) {
  const Imported imported = import_file(path, {.shapes = {{"batch", 2}}, .adapts = true, .control = {.blocks = blocks}});
  Names names;
  for (const onnx::NameEdit& edit : imported.info.edit.outputs)
    names.push_back(importing::open_model(path).graph.nodes.at(edit.node).outputs.at(edit.place));
  return names;
}

TEST_F(ControlRuns, PatternsNameModulesNodesAndWeights) {
  // Residual layers; the last one's sum is the output.
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 8] x) => (float[batch, 8] y) {
      t0 = Transpose (l0_weight)
      [n0] a0 = MatMul (x, t0)
      [n1] x1 = Add (x, a0)
      [n2] a1 = MatMul (x1, l1_weight)
      [n3] x2 = Add (x1, a1)
      [n4] a2 = MatMul (x2, l2_weight)
      [n5] y = Add (x2, a2)
    })");
  for (const char* name : {"l0_weight", "l1_weight", "l2_weight"}) add(model, name, {8, 8}, 7919 + name[1]);
  const std::string plain = write_model(folder, model, "plain.onnx");
  // Between two of them lies a sum that has no weights; a transposed weight is copied with its layer.
  EXPECT_EQ(joined(plain, {"l0_weight", "l1_weight"}), (Names{"x1", "a1"}));
  EXPECT_EQ(copied(plain, {"l0_weight", "l1_weight"}), (Names{"control.l0_weight", "control.zero.0.bias", "control.zero.0.weight",
                                                              "control.l1_weight", "control.zero.1.bias", "control.zero.1.weight"}));
  // A layer that isn't named comes in between: two copies.
  EXPECT_EQ(joined(plain, {"l0_weight", "l2_weight"}), (Names{"a0", "a2"}));
  EXPECT_EQ(joined(plain, {"n2"}), (Names{"a1"}));
  // The modules that exporters write, in metadata or as paths.
  auto scopes = model, paths = model;
  const char* const modules[] = {"", "layer.0", "layer.0", "layer.1", "layer.1", "layer.11", "layer.11"};
  for (int i = 0; i < model.graph().node_size(); ++i) {
    if (i == 0) continue;
    auto& entry = *scopes.mutable_graph()->mutable_node(i)->add_metadata_props();
    entry.set_key("pkg.torch.onnx.name_scopes");
    entry.set_value(fmt::format("['', 'body', 'body.{}', 'node_{}']", modules[i], i));
    std::string path = modules[i];
    paths.mutable_graph()->mutable_node(i)->set_name(fmt::format("/body/{}/Op_{}", path, i));
  }
  for (const auto& [of, file] : {std::pair(&scopes, "scopes.onnx"), {&paths, "paths.onnx"}}) {
    const std::string path = write_model(folder, *of, file);
    EXPECT_EQ(joined(path, {"layer.1"}), (Names{"x2"})) << file;
    EXPECT_EQ(joined(path, {"body.layer.0", "layer.1"}), (Names{"x2"})) << file;
    EXPECT_EQ(joined(path, {"body"}), (Names{"y"})) << file;
    EXPECT_EQ(joined(path, {"layer.1*"}), (Names{"y"})) << file;
  }
}

// Channels of images are axis 1, features of sequences the last.
TEST_F(ControlRuns, LayersFitWhatTheyAreJoinedTo) {
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 4, 5] x) => (float[batch, 5, 2] y) {
      a = Conv <kernel_shape = [1]> (x, one)
      b = Relu (a)
      c = Transpose <perm = [0, 2, 1]> (b)
      d = MatMul (c, two)
      e = Tanh (d)
      y = MatMul (e, three)
    })");
  add(model, "one", {6, 4, 1}, 7919);
  add(model, "two", {6, 3}, 7907);
  add(model, "three", {3, 2}, 7901);
  const std::string path = write_model(folder, model);
  const auto shape = [&](const std::string& block) {
    const Imported imported = import_file(path, {.shapes = {{"batch", 2}}, .adapts = true, .control = {.blocks = {block}}});
    for (const onnx::NewInitializer& added : imported.info.edit.initializers) {
      if (added.name == "control.zero.0.weight") return added.type.shape;
    }
    return Shape{};
  };
  EXPECT_EQ(shape("one"), (Shape{6, 6, 1}));
  EXPECT_EQ(shape("two"), (Shape{3, 3}));
  EXPECT_EQ(shape("three"), (Shape{2, 2}));
  // The output keeps its name, and a second copy has names of its own.
  EXPECT_EQ(joined(path, {"three"}), (Names{"y"}));
}

TEST_F(ControlRuns, WhatDoesNotFitIsRefused) {
  const Options good = options();
  Options o = good;
  o.control = {"dwon_*"};
  EXPECT_HAS(refusal(o), "`control` 'dwon_*' fits no module, node or weight of the model; it has 'down_");
  o = good;
  o.lora_rank = 2;
  EXPECT_HAS(refusal(o),
             "`control` copies blocks, `lora_rank`, `ia3_target`, `ia3_feedforward` and `adapter` put adapters beside their weights");
  o = good;
  o.ia3_feedforward = {"head_weight"};
  EXPECT_HAS(refusal(o), "`control` copies blocks, `lora_rank`, `ia3_target`");
  o = good;
  o.untie = true;
  EXPECT_HAS(refusal(o), "`control` doesn't go with `untie`");
  o = good;
  o.control_input = "hint";
  EXPECT_HAS(refusal(o), "`control_input` 'hint' is not NAME=SIZE,SIZE,…");
  o.control_input = "x=1,6,6";
  EXPECT_HAS(refusal(o), "the model has an input of that name");
  o.control_input = "hint=0,6,6";
  EXPECT_HAS(refusal(o), "a dimension is at least 1");
  o.control_input = "hint=-1,6,6";
  EXPECT_HAS(refusal(o), "a dimension is at least 1");
  for (const char* name : {"stem_weight", "r0"}) {
    o.control_input = std::string(name) + "=1,6,6";
    EXPECT_HAS(refusal(o), "the model has a tensor of that name: choose another");
  }
  o.control_input = "hint=depth,6,6";
  o.shapes = {{"depth", 1}};
  EXPECT_HAS(refusal(o), "the layer of zeros behind it has weights for each of its channels: give a number for 'depth'");
  o.shapes.clear();
  o.control_input = "depth=1,6,6";
  EXPECT_HAS(refusal(o), "has no array 'depth'");
  o.control_input = "hint=1,6";
  EXPECT_HAS(refusal(o), "array 'hint' has samples of shape [1, 6, 6]");
  o.control = {"down_1*"};
  o.control_input = "hint=1,6,6";
  EXPECT_HAS(refusal(o), "what it is added to, 'p0', is float32 [4, 8, 3, 3]: all dimensions but that of the channels have to be alike");
  o.control.clear();
  EXPECT_HAS(refusal(o), "`control_input` hint=1,6,6 is the condition of copied blocks");

  const auto refused = [&](const std::string& body, const char* block) {
    ort_train_onnx::ModelProto model = model_of(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, 4] x) => (float[batch, 4] y, float[batch, 4] z) {)" + body + "}");
    add(model, "w", {4, 4}, 7919);
    add(model, "v", {4, 4}, 7907);
    return std::string(error_of([&] { copied(write_model(folder, model), {block}); }).what());
  };
  EXPECT_HAS(refused("[one] z = MatMul (x, w) [two] y = MatMul (x, v)", "one"),
             "`control` 'one': what these blocks give does not lead to the loss");
  EXPECT_HAS(refused("[one] a = Relu (x) [two] y = MatMul (a, v) z = MatMul (x, w)", "one"), "the nodes of these names have no weights");
  EXPECT_HAS(
      refused("[one] a = MatMul (x, w) [one_pick] i = ArgMax (a) f = Cast <to = 1> (i) [two] m = MatMul (x, v) y = Add (m, f) z = Relu (x)",
              "one*"),
      "'i' is int64 [1, 4], and floating-point numbers are what a layer can be joined to");
  EXPECT_HAS(refused(R"([one] a = MatMul (x, w) flag = Constant <value = bool {1}> ()
                        [one_branch] b = If (flag) <then_branch = g1 () => (float[batch, 4] t) { t = Relu (a) }, else_branch = g2 () => (float[batch, 4] e) { e = Tanh (a) }>
                        y = MatMul (b, v) z = Relu (x))",
                     "one*"),
             "has graphs of its own, which can't be copied");
}

// What lies between the blocks' nodes and has its shape read is no result.
TEST_F(ControlRuns, AShapeIsNoResult) {
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 4, 8] x) => (float[batch, 4, 3] y) {
      [one] a = MatMul (x, w)
      [one_shape] s = Shape (a)
      [one_view] r = Reshape (a, s)
      [one_more] b = MatMul (r, v)
      [two] y = MatMul (b, u)
    })");
  add(model, "w", {8, 8}, 7919);
  add(model, "v", {8, 8}, 7907);
  add(model, "u", {8, 3}, 7901);
  EXPECT_EQ(joined(write_model(folder, model), {"one*"}), (Names{"b"}));
}

// A layer of zeros has weights for each place of an axis, whose size is the model's, not a batch's.
TEST_F(ControlRuns, LayersNeedAFixedAxis) {
  const auto refused = [&](const std::string& inputs, const std::string& body, std::vector<std::string> blocks) {
    ort_train_onnx::ModelProto model =
        model_of(R"(<ir_version: 8, opset_import: ["" : 17]> g ()" + inputs + ") => (float[n] y) {" + body + "}");
    for (const char* name : {"w", "v"}) add(model, name, {8, 8}, 7919 + name[0]);
    add(model, "u", {1}, 7907);
    const std::string path = write_model(folder, model);
    std::map<std::string, int64_t> sizes{{"batch", 2}};
    if (inputs.find("length") != std::string::npos) sizes["length"] = 5;
    try {
      import_file(path, {.shapes = sizes, .adapts = true, .control = {.blocks = std::move(blocks)}});
    } catch (const Error& problem) {
      return std::string(problem.what());
    }
    return std::string();
  };
  EXPECT_HAS(refused("float[batch, 8] x",
                     R"([one] a = MatMul (x, w) axis = Constant <value = int64[1] {1}> () [one_sum] b = ReduceSum <keepdims = 0> (a, axis)
                        [two] y = Mul (b, u))",
                     {"one*"}),
             "'b' is float32 [2] and has no axis of channels or features");
  const std::string attention = R"([one] q = MatMul (x, w) [two] k = MatMul (x, v) [turn] t = Transpose <perm = [0, 2, 1]> (k)
                                   [scores] s = MatMul (q, t) [three] p = Softmax (s) m = MatMul (p, x)
                                   y = ReduceMean <axes = [1, 2], keepdims = 0> (m))";
  EXPECT_HAS(refused("float[batch, length, 8] x", attention, {"one", "scores"}),
             "'s' is float32 [2, 5, 5] and its axis 2 has a size that may vary with the data");
  EXPECT_EQ(refused("float[batch, length, 8] x", attention, {"one"}), "");
  EXPECT_EQ(refused("float[batch, 5, 8] x", attention, {"one", "scores"}), "");
}

// A condition that no result of the blocks depends on would be an input that nothing reads.
TEST_F(ControlRuns, AConditionHasAnInfluence) {
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 4] x) => (float[batch, 4] y, float[batch, 4] z) {
      a = Relu (x)
      [one_unread] z = MatMul (x, w)
      [one] b = MatMul (a, w)
      y = Tanh (b)
    })");
  add(model, "w", {4, 4}, 7919);
  const std::string path = write_model(folder, model);
  const ControlNet control{.blocks = {"one*"}, .condition = "hint", .dimensions = {"4"}};
  EXPECT_HAS(error_of([&] {
               import_file(path, {.shapes = {{"batch", 2}}, .adapts = true, .control = control});
             }).what(),
             "'x', has no influence on what the blocks of `control` give");
}

// In a file of 16-bit numbers a layer has the type that the tensor has there, declared or not.
TEST_F(ControlRuns, LayersHaveTheTypesOfTheFile) {
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float16[batch, 8] x) => (float[batch, 4] y) {
      [one] a = MatMul (x, w)
      [wide] f = Cast <to = 1> (a)
      [two] b = MatMul (f, v)
      [three] y = Tanh (b)
    })");
  add(model, "v", {8, 4}, 7907);
  auto& w = *model.mutable_graph()->add_initializer();
  w.set_name("w");
  w.set_data_type(ort_train_onnx::TensorProto::FLOAT16);
  for (int i = 0; i < 2; ++i) w.add_dims(8);
  w.set_raw_data(std::string(128, '0'));
  const std::string path = write_model(folder, model);
  const auto types = [&](const std::string& block, bool conditioned) {
    ControlNet control{.blocks = {block}};
    if (conditioned) control = {.blocks = {block}, .condition = "hint", .dimensions = {"3"}};
    const Imported imported = import_file(path, {.shapes = {{"batch", 2}}, .adapts = true, .control = control});
    std::map<std::string, DType> found;
    for (const onnx::NewInitializer& added : imported.info.edit.initializers) found[added.name] = added.type.dtype;
    for (const onnx::NewNode& added : imported.info.edit.nodes) {
      if (added.node.op_type == "Cast" && added.node.inputs[0] == "hint") found["cast"] = onnx::cast_type(added.node).value();
    }
    return found;
  };
  EXPECT_EQ(types("one", true).at("control.condition.weight"), DType::float16);
  EXPECT_EQ(types("one", true).count("cast"), 0u);
  EXPECT_EQ(types("one", false).at("control.zero.0.weight"), DType::float16);
  EXPECT_EQ(types("two", true).at("control.condition.weight"), DType::float32);
  EXPECT_EQ(types("two", true).at("cast"), DType::float32);
  EXPECT_EQ(types("two", false).at("control.zero.0.weight"), DType::float32);
}

// A condition has the type that most weights have.
TEST_F(ControlRuns, AConditionHasTheWeightsType) {
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (double[batch, 2] x) => (double[batch, 2] y) <double[2, 2] w = {1, 2, 3, 4}> { [one] y = MatMul (x, w) })");
  const ControlNet control{.blocks = {"one"}, .condition = "hint", .dimensions = {"3"}};
  const Declared known = declared(write_model(folder, model), control);
  ASSERT_EQ(known.inputs.size(), 2u);
  EXPECT_EQ(known.inputs[1].dtype, DType::float64);
}

// Frozen layers, too, take each batch into the running statistics where the file has them live, and the run says so.
TEST_F(ControlRuns, LiveStatisticsAreTold) {
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 2, 4] x) => (float[batch, 2, 4] y)
    <float[2] s = {1, 2}, float[2] b = {3, 4}, float[2] m = {0, 1}, float[2] v = {1, 2}> {
      [one] y, mean, variance = BatchNormalization <training_mode = 1> (x, s, b, m, v)
    })");
  const Imported imported =
      import_file(write_model(folder, model), {.shapes = {{"batch", 2}}, .adapts = true, .control = {.blocks = {"one"}}});
  EXPECT_HAS(fmt::format("{}", fmt::join(imported.info.notes, "; ")),
             "also in layers whose weights stay as they are (`batch_norm` frozen)");
}

// A name that is taken anywhere is none of the new ones.
TEST_F(ControlRuns, NewNamesAreNew) {
  ort_train_onnx::ModelProto model = model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 4] x, float[batch, 4] control_x) => (float[batch, 4] y) {
      [one] a = MatMul (x, w)
      y = Add (a, control_x)
    })");
  add(model, "w", {4, 4}, 7919);
  model.mutable_graph()->mutable_input(1)->set_name("control.x");
  model.mutable_graph()->mutable_node(1)->set_input(1, "control.x");
  EXPECT_EQ(copied(write_model(folder, model), {"one"}), (Names{"control2.w", "control2.zero.0.bias", "control2.zero.0.weight"}));
}

}  // namespace
}  // namespace ort_train
