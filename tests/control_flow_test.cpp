// If, Loop, Scan and sequences: against the same model written out, in results, in what trains and in the losses of runs; what has to be
// known at import, and `bind`, which makes it known.

#include <algorithm>

#include "frontend/bound_value.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;

std::string obstacle(const std::string& text, const ImportOptions& options = {}) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, text), options);
  if (imported.obstacles.empty()) return "";
  EXPECT_EQ(imported.obstacles.size(), 1u) << imported.obstacles.back().node;
  return imported.obstacles[0].node + ": " + imported.obstacles[0].reason + "; " + imported.obstacles[0].hint;
}

std::map<std::string, Tensor> run(const std::string& text, const std::map<std::string, Tensor>& inputs) {
  const TestFolder folder;
  const Imported imported = import_whole(write_model(folder, text));
  return run_imported(imported, inputs);
}

// h = tanh(x_t + h u), three times; u is of the body, b of the graph around it.
const char* const kLoop = R"(<ir_version: 8, opset_import: ["" : 17]>
  g (float[batch, 3, 2] x) => (float[batch, 2] y) <int64 three = {3}, float[2] b = {0.25, -0.5}, int64[1] axis = {0}> {
    flat = ReduceMean <axes = [1], keepdims = 0> (x)
    h0 = Mul (flat, b)
    h, rows = Loop (three, , h0) <body = step (int64 i, bool go, float[n, 2] before) => (bool on, float[n, 2] after, float[n, 2] row)
      <float[2, 2] u = {0.5, -1.5, 1.25, 0.75}, int64 one = {1}> {
        on = Identity (go)
        x_i = Gather <axis = 1> (x, i)
        hu = MatMul (before, u)
        sum = Add (x_i, hu)
        after = Tanh (sum)
        row = Mul (after, b)
      }>
    all = ReduceSum <keepdims = 0> (rows, axis)
    y = Add (all, h)
  })";
const char* const kWrittenOut = R"(<ir_version: 8, opset_import: ["" : 17]>
  g (float[batch, 3, 2] x) => (float[batch, 2] y) <float[2] b = {0.25, -0.5}, float[2, 2] u = {0.5, -1.5, 1.25, 0.75}, int64 i0 = {0}, int64 i1 = {1}, int64 i2 = {2}> {
    flat = ReduceMean <axes = [1], keepdims = 0> (x)
    h0 = Mul (flat, b)
    x_0 = Gather <axis = 1> (x, i0)
    m_0 = MatMul (h0, u)
    s_0 = Add (x_0, m_0)
    h1 = Tanh (s_0)
    r_0 = Mul (h1, b)
    x_1 = Gather <axis = 1> (x, i1)
    m_1 = MatMul (h1, u)
    s_1 = Add (x_1, m_1)
    h2 = Tanh (s_1)
    r_1 = Mul (h2, b)
    x_2 = Gather <axis = 1> (x, i2)
    m_2 = MatMul (h2, u)
    s_2 = Add (x_2, m_2)
    h3 = Tanh (s_2)
    r_2 = Mul (h3, b)
    axes = Constant <value_ints = [0]> ()
    q_0 = Unsqueeze (r_0, axes)
    q_1 = Unsqueeze (r_1, axes)
    q_2 = Unsqueeze (r_2, axes)
    rows = Concat <axis = 0> (q_0, q_1, q_2)
    all = ReduceSum <keepdims = 0> (rows, axes)
    y = Add (all, h3)
  })";

TEST(ControlFlow, AWeightOfABodyIsOneParameter) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, kLoop), {.shapes = {{"batch", 2}}, .bound_inputs = {}});
  ASSERT_TRUE(imported.obstacles.empty()) << imported.obstacles[0].reason;
  EXPECT_EQ(parameter_names(imported), (Names{"b", "u"}));
}

struct ControlFlowRuns : TrainerRuns {
  std::string data() {
    return write_file(folder / "data.npz",
                      zip({{.name = "x.npy", .content = npy(npy_description("<f4", "(16, 3, 2)"), bytes_of(numbers(96, 37)))},
                           {.name = "labels.npy", .content = npy(npy_description("<f4", "(16, 2)"), bytes_of(numbers(32, 53)))}}));
  }
  Options options(const std::string& text) {
    Options o{
        .model = write_model(folder, text, "model" + std::to_string(models_++) + ".onnx"), .data = data(), .loss = "mse", .batch_size = 4};
    o.learning_rate = 0.05;
    o.max_steps = 6;
    o.optim = "sgd";
    o.profile = profile;
    return o;
  }
  int models_ = 0;
};

TEST_F(ControlFlowRuns, ALoopTrainsAsTheSameGraphWrittenOut) {
  const Run loop = train(options(kLoop)), written_out = train(options(kWrittenOut));
  EXPECT_EQ(loop.losses, written_out.losses);
  EXPECT_EQ(loop.summary.weights_hash, written_out.summary.weights_hash);
  EXPECT_GT(loop.losses[1], 0);  // the norm of its gradients
}

TEST(ControlFlow, ALoopEndsWhenItsConditionDoes) {
  // 1, 2, 4, 8, 16: doubled while less than 10.
  const char* const text = R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) <int64 first = {1}, int64 ten = {10}, bool yes = {1}> {
      n, y = Loop ( , yes, first, x) <body = step (int64 i, bool go, int64 n0, float[2] x0) => (bool on, int64 n1, float[2] x1) {
        n1 = Add (n0, n0)
        x1 = Add (x0, x0)
        on = Less (n1, ten)
      }>
    })";
  EXPECT_EQ(floats(run(text, {{"x", make_tensor<float>({2}, {1, -3})}}).at("y")), (std::vector<float>{16, -48}));
}

TEST(ControlFlow, ALoopMayHoldABranchAndALoop) {
  // In turns 0 and 2 + 10 w, in turn 1 twice * v.
  const char* const text = R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y) <int64 three = {3}, int64 two = {2}, int64 one = {1}> {
      y = Loop (three, , x) <body = step (int64 i, bool go, float[2] x0) => (bool on, float[2] x1) {
        on = Identity (go)
        odd = Equal (i, one)
        x1 = If (odd) <
          then_branch = a () => (float[2] p) {
            p = Loop (two, , x0) <body = inner (int64 k, bool on0, float[2] z0) => (bool on1, float[2] z1) <float[2] v = {2, 3}> {
              on1 = Identity (on0)
              z1 = Mul (z0, v)
            }>
          },
          else_branch = b () => (float[2] q) <float[2] w = {1, 10}> { q = Add (x0, w) }>
      }>
    })";
  EXPECT_EQ(floats(run(text, {{"x", make_tensor<float>({2}, {1, 2})}}).at("y")), (std::vector<float>{9, 118}));
  const TestFolder folder;
  EXPECT_EQ(parameter_names(import_file(write_model(folder, text))), (Names{"w", "v"}));
}

TEST(ControlFlow, AScanGoesAlongAxesInDirections) {
  const char* const text = R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x, float[3, 2] z) => (float[2] last, float[2, 3] sums) <float[2] start = {0, 100}> {
      last, sums = Scan <num_scan_inputs = 2, scan_input_axes = [-1, 0], scan_input_directions = [0, 1], scan_output_axes = [1],
                         scan_output_directions = [1],
                         body = step (float[2] before, float[2] a, float[2] b) => (float[2] after, float[2] row) {
        ab = Mul (a, b)
        after = Add (before, ab)
        row = Identity (after)
      }> (start, x, z)
    })";
  const auto results =
      run(text, {{"x", make_tensor<float>({2, 3}, {1, 2, 3, 4, 5, 6})}, {"z", make_tensor<float>({3, 2}, {1, 2, 3, 4, 5, 6})}});
  // Turns: (1, 4) * (5, 6), (2, 5) * (3, 4), (3, 6) * (1, 2).
  EXPECT_EQ(floats(results.at("last")), (std::vector<float>{14, 156}));
  EXPECT_EQ(floats(results.at("sums")), (std::vector<float>{14, 11, 5, 156, 144, 124}));
}

TEST_F(ControlFlowRuns, SequencesTrainAsSlices) {
  const char* const sequences = R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 3, 2] x) => (float[batch, 2] y) <float[2] w = {0.5, -0.5}, float[2] v = {1.5, 1}, int64 back = {-1}, int64 zero = {0}> {
      parts = SplitToSequence <axis = 1, keepdims = 0> (x)
      a = SequenceAt (parts, zero)
      b = SequenceAt (parts, back)
      aw = Mul (a, w)
      bv = Mul (b, v)
      empty = SequenceEmpty ()
      one = SequenceInsert (empty, aw)
      two = SequenceInsert (one, bv, zero)
      joined = ConcatFromSequence <axis = 0, new_axis = 1> (two)
      axes = Constant <value_ints = [0]> ()
      y = ReduceSum <keepdims = 0> (joined, axes)
    })";
  const char* const slices = R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 3, 2] x) => (float[batch, 2] y) <float[2] w = {0.5, -0.5}, float[2] v = {1.5, 1}, int64 last = {2}, int64 zero = {0}> {
      a = Gather <axis = 1> (x, zero)
      b = Gather <axis = 1> (x, last)
      aw = Mul (a, w)
      bv = Mul (b, v)
      y = Add (bv, aw)
    })";
  EXPECT_EQ(train(options(sequences)).losses, train(options(slices)).losses);
}

TEST(ControlFlow, ALoopOfAFunctionKeepsItsOwnConstants) {
  // x + 3 n with the n of each call; the bodies of functions live no longer than their calls.
  std::string calls, last = "x";
  for (int i = 1; i <= 8; ++i) {
    calls += fmt::format("y{0} = my.Thrice <n = {0}.0> ({1}) ", i, last);
    last = fmt::format("y{}", i);
  }
  const std::string text = fmt::format(R"(<ir_version: 8, opset_import: ["" : 17, "my" : 1]>
    g (float[2] x) => (float[2] y) {{ {} y = Identity ({}) }}
    <domain: "my", opset_import: ["" : 17]>
    Thrice <n> (a) => (b) {{
      three = Constant <value = int64 {{3}}> ()
      n1 = Constant <value_float: float = @n> ()
      b = Loop (three, , a) <body = step (int64 i, bool go, float[2] before) => (bool on, float[2] after) {{
        on = Identity (go)
        zero = Constant <value = float[2] {{0, 0}}> ()
        moved = Add (before, zero)
        after = Add (moved, n1)
      }}>
    }})",
                                       calls, last);
  EXPECT_EQ(floats(run(text, {{"x", make_tensor<float>({2}, {1, -1})}}).at("y")), (std::vector<float>{109, 107}));
}

// --- what has to be known -------------------------------------------------------------------------------------------------------------

TEST(ControlFlow, WhatIsNotKnownNamesTheInput) {
  const auto of = [](const std::string& node, const std::string& inputs = "float[2] x, int64 n, bool c") {
    return obstacle(
        fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g ({}) => (float[k] y) <int64 zero = {{0}}> {{ {} }})", inputs, node));
  };
  const std::string body = "<body = b (int64 i, bool go, float[2] x0) => (bool on, float[2] x1) { on = Identity (go) x1 = Add (x0, x0) }>";
  EXPECT_HAS(
      of("y = If (c) <then_branch = a () => (float[2] p) { p = Add (x, x) }, else_branch = b () => (float[2] q) { q = Mul (x, x) }>"),
      "its condition is computed from the model's input 'c'; where that is the same for all samples, fix it (`bind` c=VALUE)");
  EXPECT_HAS(of("twice = Add (n, n) y = Loop (twice, , x) " + body),
             "how often it repeats its body is computed from the model's input 'n'");
  EXPECT_HAS(of("y = Loop ( , c, x) " + body), "whether it goes on after 0 turns is computed from the model's input 'c'");
  EXPECT_HAS(of("y = Loop ( , , x) " + body), "repeats its body for ever");
  EXPECT_HAS(of("many = Constant <value_int = 1000000> () y = Loop (many, , x) " + body), "repeats a body of 2 nodes 1000000 times");
  const std::string empty = "<body = b (int64 i, bool go, float[2] x0) => (bool go, float[2] x0) { }>";
  EXPECT_HAS(of("many = Constant <value_int = 1000000000000> () y = Loop (many, , x) " + empty), "which is too large a graph");
  EXPECT_HAS(of("yes = Constant <value_int = 1> () go = Cast <to = 9> (yes) y = Loop ( , go, x) " + empty), "more than 200000 times");
  EXPECT_HAS(of("two = Constant <value_int = 2> () r, y = Loop (two, , x) <body = b (int64 i, bool go, float[2] x0) => (bool go, float[z] "
                "x1, float[z] x1) { "
                "x1 = Concat <axis = 0> (x0, x0) }>"),
             "can't be");
  EXPECT_HAS(of("two = Constant <value_int = 2> () r, y = Loop (two, , x) <body = b (int64 i, bool go, float[2] x0) => (bool go, float[2] "
                "x0, seq(float) s) { "
                "s = SequenceConstruct (x0) }>"),
             "stacks or joins what are no tensors");
  EXPECT_HAS(of("s = SplitToSequence <axis = 2> (x) y = SequenceAt (s, zero)"), "outside a tensor of rank 1");
  EXPECT_HAS(of("s = SequenceConstruct (x, x) y = SequenceAt (s, n)"),
             "the position in its sequence is computed from the model's input 'n'");
  EXPECT_HAS(of("s = SequenceConstruct (x) three = Constant <value_int = 3> () y = SequenceAt (s, three)"), "outside a sequence of 1");
  EXPECT_HAS(of("y = SequenceAt (x, zero)"), "reads a tensor where the standard has a sequence");
  EXPECT_HAS(of("s = SequenceConstruct (x) y = Relu (s)"), "reads a sequence of tensors where the standard has a tensor");
  EXPECT_HAS(of("s = SplitToSequence (x, n) y = SequenceAt (s, zero)"), "how it is split is computed from the model's input 'n'");
}

TEST_F(ControlFlowRuns, ABoundInputChoosesTheBranch) {
  const char* const text = R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[batch, 3, 2] x, int64 rate, float[batch, 2] gain) => (float[batch, 2] y) <int64 usual = {16000}, int64[1] axis = {1}, float[2] w = {1, 2}, float[2] v = {2, 1}> {
      m = ReduceMean <axes = [1], keepdims = 0> (x)
      is_usual = Equal (rate, usual)
      k = If (is_usual) <then_branch = a () => (float[n, 2] p) { p = Mul (m, w) }, else_branch = b () => (float[n, 2] q) { q = Add (m, v) }>
      y = Mul (k, gain)
    })";
  Options o = options(text);
  EXPECT_HAS(error_of([&] { Trainer trainer(o); }).what(), "(`bind` rate=VALUE fixes an input)");
  o.bind = {{"rate", "16000"}, {"gain", "0.5"}};
  const Run usual = train(o);
  o.bind["rate"] = "8000";
  EXPECT_NE(train(o).losses, usual.losses);
  o.bind = {{"rate", "16000"},
            {"gain", "@" + write_file(folder / "gain.npy", npy(npy_description("<f4", "(4, 2)"), bytes_of(std::vector<float>(8, 0.5f))))}};
  EXPECT_EQ(train(o).losses, usual.losses);
  o.bind = {{"rates", "16000"}};
  EXPECT_HAS(error_of([&] { Trainer trainer(o); }).what(), "`bind` rates: the model has no such input; it has 'x', 'rate', 'gain'");
  Options check_options{.model = o.model, .bind = {{"rate", "16000"}}};
  EXPECT_TRUE(check(check_options).trainable);
  check_options.bind.clear();
  EXPECT_FALSE(check(check_options).trainable);
}

TEST(BoundValue, IsANumberOrNumbersOrAFile) {
  EXPECT_EQ(bound_value("x", "2.5", DType::float32, {2}).to_double(), (std::vector<double>{2.5, 2.5}));
  EXPECT_EQ(bound_value("x", "3,-4", DType::int32, {-1}).to_double(), (std::vector<double>{3, -4}));
  EXPECT_EQ(bound_value("x", "1,2,3,4", DType::int64, {2, 2}).shape, (Shape{2, 2}));
  EXPECT_EQ(bound_value("x", "true", DType::boolean, {}).to_double(), (std::vector<double>{1}));
  const TestFolder folder;
  const std::string file = "@" + write_file(folder / "a.npy", npy(npy_description("<i8", "(2,)"), bytes_of(std::vector<int64_t>{1, 300})));
  EXPECT_EQ(bound_value("x", file, DType::int64, {-1}).to_double(), (std::vector<double>{1, 300}));
  const auto refused = [](const std::string& text, DType dtype, const std::vector<int64_t>& dims) {
    return std::string(error_of([&] { bound_value("x", text, dtype, dims); }).what());
  };
  EXPECT_HAS(refused("two", DType::int64, {}), "`bind` x=two: 'two' is no number");
  EXPECT_HAS(refused("", DType::int64, {}), "is no number");
  EXPECT_HAS(refused("2.5", DType::int64, {}), "2.5 is no int64");
  EXPECT_HAS(refused("300", DType::int8, {}), "has no room for it");
  EXPECT_HAS(refused("1e5", DType::float16, {2}), "the input is float16, which has no room for it");
  EXPECT_HAS(refused("1,-1e39", DType::bfloat16, {2}), "the input is bfloat16, which has no room for it");
  EXPECT_HAS(refused("1e39", DType::float32, {}), "the input is float32, which has no room for it");
  EXPECT_EQ(bound_value("x", "65504,-inf", DType::float16, {2}).to_double(), (std::vector<double>{65504, -INFINITY}));
  EXPECT_HAS(refused("2", DType::boolean, {}), "2 is no bool");
  EXPECT_HAS(refused("1,2,3", DType::int64, {2}), "these are 3 numbers, the input is [2]");
  EXPECT_HAS(refused("1", DType::int64, {2, -1}), "dimension 1 of the input is open: `shapes` x.1=SIZE binds it");
  EXPECT_HAS(refused(file, DType::int64, {3}), "the file's array is [2], the input is [3]");
  EXPECT_HAS(refused(file, DType::float32, {2}), "the file holds int64, the input is float32");
  EXPECT_HAS(refused(file, DType::int8, {2}), "element 1 is no int8");
}

// The gradient of a node's inputs as outputs of a model: x -> 3 x^2 and, by a gradient of that, 6 x.
TEST(GradientNodes, AreTakenOfTheGraphBeforeThem) {
  const TestFolder folder;
  const char* const model = R"(<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
    g (float[3] x) => (float[3] once, float[3] twice) {
      s = Mul (x, x)
      c = Mul (s, x)
      once = ai.onnx.preview.training.Gradient <xs = ["x"], y = "c"> (x)
      twice = ai.onnx.preview.training.Gradient <xs = ["x"], y = "once"> (x)
    })";
  const Imported imported = import_whole(write_model(folder, model));
  const auto y = run_imported(imported, {{"x", make_tensor<float>({3}, {1, -2, 0.5f})}});
  EXPECT_EQ(floats(y.at("once")), (std::vector<float>{3, 12, 0.75f}));
  EXPECT_EQ(floats(y.at("twice")), (std::vector<float>{6, -12, 3}));
  // Many of them one behind the other would make a graph without end.
  std::string nodes = "v0 = Mul (x, x)\n";
  for (int i = 0; i < 60; ++i)
    nodes += fmt::format("g{0} = ai.onnx.preview.training.Gradient <xs = [\"x\"], y = \"v{0}\"> (x)\nv{1} = Mul (g{0}, v{0})\n", i, i + 1);
  const Imported many =
      import_file(write_model(folder, fmt::format(R"(<ir_version: 8, opset_import: ["" : 17, "ai.onnx.preview.training" : 1]>
    g (float[3] x) => (float[3] v60) {{ {} }})",
                                                  nodes)));
  ASSERT_FALSE(many.obstacles.empty());
  EXPECT_HAS(many.obstacles[0].reason, "nodes");
}

}  // namespace
}  // namespace ort_train
