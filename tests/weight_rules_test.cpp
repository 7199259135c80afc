// The rules by which tensors are weights, one by one: what metadata say, what a tensor is used for, what is in it.

#include <gtest/gtest.h>

#include <algorithm>

#include "graph/onnx/wire.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;
namespace pb = ort_train_onnx;

struct WeightRules : ::testing::Test {
  const TestFolder folder;

  // "treatment: why" of a tensor.
  std::string fate(const pb::ModelProto& model, const std::string& name) {
    const Imported imported = import_file(write_model(folder, model));
    notes = imported.info.notes;
    for (const TensorFate& tensor : imported.info.tensors) {
      if (tensor.name == name) return fmt::format("{}: {}", to_string(tensor.treatment), tensor.why);
    }
    return "";
  }
  std::string fate(const std::string& text, const std::string& name) { return fate(model_of(text), name); }

  static void sign(pb::ModelProto& model, const std::string& text) {
    auto& entry = *model.mutable_graph()->add_metadata_props();
    entry.set_key("pkg.torch.export.ExportedProgram.graph_signature");
    entry.set_value(text);
  }
  static constexpr const char* kFolded = "pkg.onnxscript.optimizer.folded_from";

  // Three tensors of which roles and contents would train `val_1` and `t`, and leave `s`.
  static pb::ModelProto three() {
    return model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[1, 2] x) => (float[1, 2] y) <float[2, 2] val_1 = {1, 2, 3, 4}, float[1] s = {3}, float[2] t = {5, 6}> {
        p = MatMul (x, val_1)
        q = Mul (p, s)
        y = Add (q, t)
      })");
  }

  Names notes;
};

TEST_F(WeightRules, MetadataComeFirst) {
  pb::ModelProto model = three();
  EXPECT_EQ(fate(model, "val_1"), "trained: weight of MatMul");
  EXPECT_EQ(fate(model, "s"), "constant: one element");
  describe(model, "val_1", kKind, "BUFFER");
  describe(model, "s", kKind, "PARAMETER");
  describe(model, "t", kKind, "CONSTANT_TENSOR");
  EXPECT_EQ(fate(model, "val_1"), "constant: buffer of the exported program");
  EXPECT_EQ(fate(model, "s"), "trained: parameter of the exported program");
  EXPECT_EQ(fate(model, "t"), "constant: constant of the exported program");
}

// A layer of one unit has a bias of one element; what merely is added somewhere else, or multiplies, is a number.
TEST_F(WeightRules, TheBiasOfOneUnitIsABias) {
  const char* model = R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2] x) => (float[1, 1] y) <float[2, 1] w = {1, 2}, float[1, 1] b = {3}, float[1] c = {4}, float[1, 1] v = {5}, float[1] d = {6}> {
      p = MatMul (x, w)
      q = Add (p, b)
      r = Tanh (q)
      s = Add (r, c)
      y = Gemm (s, v, d)
    })";
  EXPECT_EQ(fate(model, "b"), "trained: added");
  EXPECT_EQ(fate(model, "c"), "constant: one element");
  EXPECT_EQ(fate(model, "d"), "trained: bias of Gemm");
}

TEST_F(WeightRules, FoldedTensorsAreWhatTheyWereMadeOf) {
  const auto of_a = [&](const std::string& from, const std::string& extra = "") {
    pb::ModelProto model = three();
    sign(model, "\n# inputs\np_w: PARAMETER target='w'\np_v: PARAMETER target='v'\nb_b: BUFFER target='b' persistent=True\n" + extra +
                    "x: USER_INPUT\n\n# outputs\ny: USER_OUTPUT\n");
    describe(model, "val_1", kFolded, from);
    return fate(model, "val_1");
  };
  EXPECT_EQ(of_a("['w']"), "trained: parameter of the exported program in another layout");
  EXPECT_EQ(of_a("['permute_2', 'val_3', \"w\"]"), "trained: parameter of the exported program in another layout");
  EXPECT_EQ(of_a("['cat', 'v', 'w']"), "trained: parameters of the exported program, joined");
  EXPECT_EQ(of_a("['exp', 'neg_1', 'w']"), "trained: computed at export from a parameter");
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) { return note.find("optimize=False") != note.npos; }));
  EXPECT_EQ(of_a("['b', 'w']"), "trained: computed at export from a parameter");
  EXPECT_EQ(of_a("['arange', 'b', 'val_1']"), "constant: computed at export, from no parameter");
}

TEST_F(WeightRules, WhatMetadataSayNothingOf) {
  pb::ModelProto model = three();
  sign(model, "# inputs\np_a: PARAMETER target='val_1'\n");
  EXPECT_EQ(fate(model, "val_1"), "trained: parameter of the exported program");
  EXPECT_EQ(fate(model, "t"), "constant: no parameter of the exported program");
  // A parameter that is named nowhere may be in it.
  sign(model, "p_lost: PARAMETER target='lost'\n");
  EXPECT_EQ(fate(model, "t"), "trained: added");
  EXPECT_TRUE(std::any_of(notes.begin(), notes.end(), [](const std::string& note) { return note.ends_with("others: lost"); }));
  // With other kinds, the optimizer has put something else under its name.
  describe(model, "t", kKind, "PARAMETER");
  EXPECT_EQ(fate(model, "val_1"), "trained: computed at export from this parameter and others");
}

TEST_F(WeightRules, MetadataOfAnotherKindAreNone) {
  pb::ModelProto model = three();
  describe(model, "val_1", kKind, "SOMETHING");
  describe(model, "s", kFolded, "['w");
  describe(model, "t", kFolded, std::string(2 << 20, 'x'));
  sign(model, "PARAMETER target=");
  sign(model, "val_1: PARAMETER");
  sign(model, std::string(1000, '\n') + ": PARAMETER target='");
  EXPECT_EQ(fate(model, "val_1"), "trained: weight of MatMul");
  EXPECT_EQ(fate(model, "s"), "constant: one element");
  EXPECT_EQ(fate(model, "t"), "trained: added");
}

TEST_F(WeightRules, PlacesWhereWeightsSeldomStand) {
  for (const char* node : {"Where (c, v, x)", "Max (x, v)", "Pow (v, x)", "Sub (x, v)", "Div (x, v)"}) {
    const std::string text = fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[2] x, bool[2] c) => (float[2] y) <float[2] v = {{1, 2}}> {{ y = {} }})",
                                         node);
    EXPECT_TRUE(fate(text, "v").starts_with("constant: taken by")) << node;
    ASSERT_EQ(notes.size(), 1u) << node;
    EXPECT_HAS(notes[0], "'v' stands where weights seldom do");
  }
  EXPECT_EQ(
      fate(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <float[2] v = {1, 2}> { y = Sub (v, x) })", "v"),
      "trained: taken by Sub");
  // Behind nodes that only move it.
  EXPECT_EQ(fate(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) <float[2] v = {1, 2}> {
                   u = Identity (v)
                   y = Pow (x, u) })",
                 "v"),
            "constant: taken by Pow");
}

// A fresh model's scales are ones, its biases zeros.
TEST_F(WeightRules, OneNumberThroughoutIsAWeightWhereALayerHasTheOther) {
  const std::string norm = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[2, 2] x) => (float[2, 2] y)
    <float[2, 2] w = {1, 2, 3, 4}, float[2] b = {0, 0}, float[2] scale = {1, 1}, float[2] shift = {0, 0}, float[2] half = {0.5, 0.5}> {
      a = MatMul (x, w)
      h = Add (a, b)
      s = ReduceMean <axes = [-1], keepdims = 1> (h)
      r = Sqrt (s)
      n = Div (h, r)
      m = Mul (n, scale)
      t = Add (m, shift)
      y = Mul (t, half)
    })";
  EXPECT_EQ(fate(norm, "b"), "trained: added");
  EXPECT_EQ(fate(norm, "scale"), "trained: multiplied");
  EXPECT_EQ(fate(norm, "shift"), "trained: added");
  EXPECT_EQ(fate(norm, "half"), "constant: one number throughout");
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_HAS(notes[0], "'half' is one number throughout");
  const std::string filter = R"(<ir_version: 8, opset_import: ["" : 17]> g (float[1, 1, 4] x) => (float[1, 1, 3] y)
    <float[1, 1, 2] w = {0.5, 0.5}, float[1] b = {0}> { y = Conv (x, w<>) })";
  const auto with = [&](const char* bias) { return std::string(filter).replace(filter.find("<>"), 2, bias); };
  EXPECT_EQ(fate(with(""), "w"), "constant: one number throughout");
  EXPECT_EQ(fate(with(", b"), "w"), "trained: weight of Conv");
}

TEST_F(WeightRules, LinearAttentionBiasesAreNoWeights) {
  const auto bias = [&](const char* type, const char* numbers) {
    return fate(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[4, 1, 3] x) => (float[4, 1, 3] y) <float{} b = {{{}}}> {{
                                 y = Mul (x, b) }})",
                            type, numbers),
                "b");
  };
  EXPECT_EQ(bias("[4, 1, 1]", "0.25, 0.0625, 0.015625, 0.00390625"), "constant: slopes of a linear attention bias");
  EXPECT_EQ(bias("[4, 1, 1]", "0.25, 0.0625, 0.015625, 0.005"), "trained: multiplied");
  EXPECT_EQ(bias("[4, 1, 3]", "0, 0.25, 0.5, 0, 0.0625, 0.125, 0, 0.015625, 0.03125, 0, 0.004, 0.008"),
            "constant: a linear attention bias");
  EXPECT_EQ(bias("[4, 1, 3]", "0, 0.25, 0.5, 0, 0.0625, 0.125, 0, 0.015625, 0.03125, 0, 0.004, 0.009"), "trained: multiplied");
}

// A constant may be stored in several pieces, which weights may not.
TEST_F(WeightRules, ConstantsInPiecesAreRead) {
  const auto import = [&](const std::string& op) {
    pb::ModelProto model =
        model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) {{ y = {} (x, v) }})", op));
    pb::TensorProto tensor = tensor_of("v", {2}, {}), piece;
    tensor.clear_raw_data();
    piece.add_float_data(2);
    std::string graph = model.graph().SerializeAsString();
    onnx::put_bytes(pb::GraphProto::kInitializerFieldNumber,
                    tensor.SerializeAsString() + piece.SerializeAsString() + piece.SerializeAsString(), graph);
    model.clear_graph();
    std::string bytes = model.SerializeAsString();
    onnx::put_bytes(pb::ModelProto::kGraphFieldNumber, graph, bytes);
    return import_file(write_file(folder / "pieces.onnx", bytes));
  };
  EXPECT_EQ(floats(run_imported(import("Pow"), {{"x", make_tensor<float>({2}, {3, 4})}}).at("y")), (std::vector<float>{9, 16}));
  EXPECT_EQ(floats(run_imported(import("Mul"), {{"x", make_tensor<float>({2}, {3, 4})}}).at("y")), (std::vector<float>{6, 8}));
}

TEST_F(WeightRules, WhatIsLeftIsRead) {
  const Imported imported = import_file(write_model(folder, three()));
  const auto y = run_imported(imported, {{"x", make_tensor<float>({1, 2}, {1, 1})}}).at("y");
  EXPECT_EQ(floats(y), (std::vector<float>{17, 24}));
}

}  // namespace
}  // namespace ort_train
