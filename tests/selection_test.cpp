// Selections by a mask that is fed (frontend/import_selection.h): results and gradients are those of the model in which the mask is known
// at import, whose shapes are those of what is selected. For masks that select nothing, something and everything.

#include <gmock/gmock.h>

#include <cmath>

#include "graph/autodiff.h"
#include "graph/builder.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/projected_loss.h"
#include "tests/promised_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using ::testing::HasSubstr;

constexpr int64_t kRows = 6;  // of x and of the mask

struct Selecting {
  std::string name;
  std::string nodes;              // from m (bool[6]), x, z (double[6, 3]), w (double[3, 3]), ids (int64[6]), to y
  std::string type = "double y";  // of that
  std::string constants{};
  bool needs_one = false;  // where nothing is selected, the model is not defined
};

std::ostream& operator<<(std::ostream& out, const Selecting& selecting) { return out << selecting.name; }

class Selections : public ::testing::TestWithParam<Selecting> {};

Tensor mask_of(unsigned bits) {
  Tensor mask(DType::boolean, {kRows});
  for (int64_t i = 0; i < kRows; ++i) mask.bytes[static_cast<size_t>(i)] = std::byte{static_cast<uint8_t>(bits >> i & 1)};
  return mask;
}

Tensor numbers(Shape shape, int seed) {
  Tensor tensor(DType::float64, std::move(shape));
  int i = seed;
  for (double& x : tensor.data<double>()) x = std::sin(1.7 * ++i) + 1.5;  // above 0
  return tensor;
}

// What the model's outputs are, and the gradients of their squares' sum, under the names of what they are gradients of.
std::map<std::string, std::vector<double>> run_with_gradients(const std::string& path, const ImportOptions& options,
                                                              std::map<std::string, Tensor> inputs) {
  Imported imported = import_whole(path, options);
  if (!imported.obstacles.empty()) return {};
  Graph& graph = imported.graph;
  std::vector<ValueId> differentiated;
  for (const ValueId id : std::vector(graph.inputs)) {
    if (graph.value(id).dtype != DType::float64) continue;
    train_input(graph, id);
    differentiated.push_back(id);
  }
  Builder builder(graph);
  const ValueId y = graph.outputs.at(0);
  const int64_t size = element_count(graph.value(y).shape);
  const ValueId loss = builder.emit("ReduceSum", {builder.reshape(builder.emit("Mul", {y, y}), {size})},
                                    {{"axes", std::vector<int64_t>{0}}, {"keepdims", int64_t{0}}});
  const std::map<ValueId, ValueId> gradients = differentiate(graph, loss);
  graph.verify("differentiate");
  std::map<std::string, std::string> names;
  for (const ValueId id : differentiated) {
    if (!gradients.contains(id)) continue;
    const ValueId gradient = gradients.at(id);
    if (graph.constant(gradient) != nullptr) continue;
    names[graph.value(gradient).name] = graph.value(id).name;
    graph.outputs.push_back(gradient);
  }
  std::erase_if(inputs, [&](const auto& input) { return options.bound_inputs.contains(input.first); });
  std::map<std::string, std::vector<double>> result;
  for (const auto& [name, tensor] : run_imported(imported, inputs)) {
    const auto gradient = names.find(name);
    result[gradient == names.end() ? name : "gradient of " + gradient->second] = tensor.to_double();
  }
  return result;
}

TEST_P(Selections, AreThoseOfAMaskThatIsKnown) {
  const Selecting& selecting = GetParam();
  const TestFolder folder;
  const std::string path = write_model(
      folder, fmt::format(R"(<ir_version: 10, opset_import: ["" : 18]> g (bool[6] m, double[6, 3] x, double[6, 3] z, double[3, 3] w,
        int64[6] ids) => ({}) <int64[1] zero = {{0}}, int64[1] first = {{-1}}, int64 one = {{1}} {}> {{ {} }})",
                          selecting.type, selecting.constants, selecting.nodes));
  for (const unsigned bits : {0u, 0b000001u, 0b100000u, 0b011010u, 0b101111u, 0b111111u}) {
    if (bits == 0 && selecting.needs_one) continue;
    SCOPED_TRACE(fmt::format("mask {:06b}", bits));
    Tensor ids(DType::int64, {kRows});
    int64_t id = 0;
    for (int64_t& x : ids.data<int64_t>()) x = (id = (id + 2) % 5) % 3;
    const std::map<std::string, Tensor> inputs{
        {"m", mask_of(bits)}, {"x", numbers({6, 3}, 0)}, {"z", numbers({6, 3}, 40)}, {"w", numbers({3, 3}, 70)}, {"ids", ids}};
    const auto fed = run_with_gradients(path, {}, inputs);
    const auto known = run_with_gradients(path, {.bound_inputs = {{"m", mask_of(bits)}}}, inputs);
    ASSERT_FALSE(fed.empty());
    EXPECT_TRUE(fed.contains("gradient of x"));
    for (const auto& [name, values] : fed) {
      const auto expected = known.find(name);
      for (size_t i = 0; i < values.size(); ++i) {
        // What is not computed at all has no gradient.
        const double is = expected == known.end() ? 0 : expected->second.at(i);
        EXPECT_NEAR(values[i], is, 1e-12 * std::max(1.0, std::abs(is))) << name << " " << i;
      }
      if (expected != known.end()) {
        EXPECT_EQ(values.size(), expected->second.size()) << name;
      }
    }
  }
}

// Where nothing is selected a sum is 0 and a mean NaN, as PyTorch's are, and no gradient comes of either: there are no rows.
TEST(SelectionOfNothing, HasNoGradients) {
  const TestFolder folder;
  const std::string n = "n = Shape <end = 1> (s) f = Cast <to = 11> (n) p = MatMul (s, w) ";
  const std::tuple<std::string, std::string, bool> cases[] = {
      {"sum", "p = MatMul (s, w) q = Exp (p) y = ReduceSum <keepdims = 0> (q)", false},
      {"of shares", n + "q = Div (p, f) y = ReduceSum <keepdims = 0> (q)", false},
      {"of places", n + R"(i = Squeeze (f)
                           begin = Constant <value = double {0}> ()
                           step = Constant <value = double {1}> ()
                           r = Range (begin, i, step)
                           q = Div (r, i)
                           c = Unsqueeze (q, last)
                           v = Mul (p, c)
                           y = ReduceSum <keepdims = 0> (v))",
       false},
      {"mean", "p = MatMul (s, w) q = Exp (p) y = ReduceMean <keepdims = 0> (q)", true},
      {"mean by hand", n + "a = ReduceSum <keepdims = 0> (p) d = Div (a, f) y = Squeeze (d)", true},
      {"loss", "l = GatherND (ids, t) p = MatMul (s, w) y = SoftmaxCrossEntropyLoss (p, l)", true}};
  for (const auto& [name, nodes, is_mean] : cases) {
    SCOPED_TRACE(name);
    const std::string path = write_model(
        folder, fmt::format(R"(<ir_version: 10, opset_import: ["" : 18]> g (bool[6] m, double[6, 3] x, double[3, 3] w, int64[6] ids)
                                 => (double y) <int64[1] last = {{-1}}> {{ at = NonZero (m) t = Transpose (at) s = GatherND (x, t) {} }})",
                            nodes));
    const auto run = run_with_gradients(
        path, {}, {{"m", mask_of(0)}, {"x", numbers({6, 3}, 0)}, {"w", numbers({3, 3}, 70)}, {"ids", Tensor(DType::int64, {kRows})}});
    const double y = run.at("y").at(0);
    EXPECT_TRUE(is_mean ? std::isnan(y) : y == 0) << y;
    for (const char* of : {"gradient of x", "gradient of w"}) EXPECT_THAT(run.at(of), ::testing::Each(0.0)) << of;
  }
}

constexpr const char* kSelected = "at = NonZero (m)\n t = Transpose (at)\n s = GatherND (x, t)\n";

std::vector<Selecting> selecting_cases() {
  const std::string s = kSelected, n = "n = Shape <end = 1> (s)\n f = Cast <to = 11> (n)\n a = ReduceSum <keepdims = 0> (s, zero)\n";
  return {
      {"sum", s + "p = MatMul (s, w)\n q = Tanh (p)\n y = ReduceSum <keepdims = 0> (q)"},
      {"sum_over_rows", s + "p = Mul (s, s)\n y = ReduceSum <keepdims = 0> (p, zero)", "double[3] y"},
      {"mean", s + "p = MatMul (s, w)\n q = Log (p)\n y = ReduceMean <keepdims = 0> (q)", "double y", "", true},
      {"mean_over_rows", s + "y = ReduceMean <keepdims = 1> (s, zero)", "double[1, 3] y", "", true},
      {"mean_by_hand", s + R"(n = Shape (s)
                              k = Gather (n, zero)
                              f = Cast <to = 11> (k)
                              a = ReduceSum <keepdims = 0> (s, zero)
                              y = Div (a, f))",
       "double[3] y", "", true},
      // Numbers that are made of how many there are.
      {"by_count", s + n + "p = Div (s, f)\n y = ReduceSum <keepdims = 0> (p)", "double y", "", true},
      {"at_least_one", s + n + "k = Max (n, more)\n g = Cast <to = 11> (k)\n y = Div (a, g)", "double[3] y", ", int64[1] more = {1}"},
      {"at_most_two", s + n + "k = Min (n, more)\n g = Cast <to = 11> (k)\n y = Mul (a, g)", "double[3] y", ", int64[1] more = {2}"},
      {"more_than_three", s + n + "k = Greater (n, more)\n g = Cast <to = 11> (k)\n y = Mul (a, g)", "double[3] y",
       ", int64[1] more = {3}"},
      {"half", s + n + "k = Div (n, more)\n g = Cast <to = 11> (k)\n y = Mul (a, g)", "double[3] y", ", int64[1] more = {2}"},
      {"one_less", s + n + "k = Sub (n, more)\n g = Cast <to = 11> (k)\n y = Mul (a, g)", "double[3] y", ", int64[1] more = {1}"},
      {"ones", s + n + "v = ConstantOfShape <value = double[1] {1}> (n)\n c = ReduceSum <keepdims = 0> (v)\n y = Div (a, c)", "double[3] y",
       "", true},
      {"positions", s + n + R"(i = Squeeze (f)
                               begin = Constant <value = double {0}> ()
                               step = Constant <value = double {1}> ()
                               r = Range (begin, i, step)
                               q = Div (r, i)
                               c = Unsqueeze (q, first)
                               v = Mul (s, c)
                               y = ReduceSum <keepdims = 0> (v, zero))",
       "double[3] y", "", true},
      {"largest", s + "y = ReduceMax <keepdims = 0> (s, zero)", "double[3] y", "", true},
      {"smallest", s + "y = ReduceMin <keepdims = 0> (s, zero)", "double[3] y", "", true},
      {"product", s + "y = ReduceProd <keepdims = 0> (s, zero)", "double[3] y"},
      {"norm", s + "y = ReduceL2 <keepdims = 0> (s, zero)", "double[3] y", "", true},
      {"log_sum_exp", s + "y = ReduceLogSumExp <keepdims = 0> (s, zero)", "double[3] y", "", true},
      {"softmax_over_rows", s + "p = Softmax <axis = 0> (s)\n q = Mul (p, s)\n y = ReduceSum <keepdims = 0> (q, zero)", "double[3] y", "",
       true},
      {"gram", s + "t2 = Transpose (s)\n y = MatMul (t2, s)", "double[3, 3] y"},
      {"normalized",
       s + "scale = Constant <value = double[3] {1, 2, 3}> ()\n p = LayerNormalization (s, scale)\n q = Mul (p, s)\n "
           "y = ReduceSum <keepdims = 0> (q, zero)",
       "double[3] y"},
      {"put_back", s + "p = MatMul (s, w)\n y = ScatterND (z, t, p)", "double[6, 3] y"},
      {"added_back", s + "p = MatMul (s, w)\n y = ScatterND <reduction = \"add\"> (z, t, p)", "double[6, 3] y"},
      {"put_back_by_elements", s + R"(i = Reshape (at, first)
                                     c = Unsqueeze (i, last)
                                     n = Shape (s)
                                     e = Expand (c, n)
                                     p = MatMul (s, w)
                                     y = ScatterElements <axis = 0> (z, e, p))",
       "double[6, 3] y", ", int64[1] last = {1}"},
      {"added_by_elements", s + R"(i = Reshape (at, first)
                                  c = Unsqueeze (i, last)
                                  e = Expand (c, row)
                                  p = MatMul (s, w)
                                  y = ScatterElements <axis = 0, reduction = "add"> (z, e, p))",
       "double[6, 3] y", ", int64[1] last = {1}, int64[2] row = {1, 3}"},
      {"a_number_put", R"(at = NonZero (m)
                          t = Transpose (at)
                          n = Shape <end = 1> (t)
                          c = Concat <axis = 0> (n, three)
                          v = Expand (half, c)
                          q = ScatterND (x, t, v)
                          y = Mul (q, x))",
       "double[6, 3] y", ", int64[1] three = {3}, double half = {0.5}"},
      {"compress", "s = Compress <axis = 0> (x, m)\n p = MatMul (s, w)\n q = Exp (p)\n y = ReduceMean <keepdims = 0> (q)", "double y", "",
       true},
      {"two_of_one_mask", R"(at = NonZero (m)
                             t = Transpose (at)
                             s = GatherND (x, t)
                             at2 = NonZero (m)
                             t2 = Transpose (at2)
                             s2 = GatherND (z, t2)
                             p = Mul (s, s2)
                             y = ReduceSum <keepdims = 0> (p))"},
      {"equal_masks", R"(m1 = Not (m)
                         s = Compress <axis = 0> (x, m1)
                         m2 = Not (m)
                         s2 = Compress <axis = 0> (z, m2)
                         p = Mul (s, s2)
                         y = ReduceSum <keepdims = 0> (p))"},
      {"loss", s + "l = GatherND (ids, t)\n y = SoftmaxCrossEntropyLoss (s, l)", "double y", "", true},
      {"summed_loss", s + "l = GatherND (ids, t)\n y = SoftmaxCrossEntropyLoss <reduction = \"sum\"> (s, l)"},
      {"weighted_loss", s + "l = GatherND (ids, t)\n y = SoftmaxCrossEntropyLoss <ignore_index = 1> (s, l, cw)", "double y",
       ", double[3] cw = {0.5, 1, 2}", true},
      {"picked_loss", s + "l = GatherND (ids, t)\n g = LogSoftmax <axis = -1> (s)\n y = NegativeLogLikelihoodLoss (g, l)", "double y", "",
       true},
      {"heads", s + R"(n = Shape <end = 1> (s)
                       h = Concat <axis = 0> (n, split)
                       r = Reshape (s, h)
                       u = Unsqueeze (s, last)
                       a = MatMul (u, r)
                       y = ReduceSum <keepdims = 0> (a))",
       "double y", ", int64[2] split = {1, 3}, int64[1] last = {2}"},
      {"rows_put_by_elements", s + R"(p = MatMul (s, w)
                                      u = Unsqueeze (m, last)
                                      n = Shape (z)
                                      e = Expand (u, n)
                                      at2 = NonZero (e)
                                      t2 = Transpose (at2)
                                      f = Reshape (p, first)
                                      k = Shape <end = 1> (t2)
                                      v = Slice (f, zero, k, zero)
                                      y = ScatterND (z, t2, v))",
       "double[6, 3] y", ", int64[1] last = {1}"},
      {"as_many_as_are_true", s + R"(p = MatMul (s, w)
                                     c = Cast <to = 7> (m)
                                     n = ReduceSum <keepdims = 1> (c)
                                     size = Concat <axis = 0> (n, three)
                                     v = Expand (p, size)
                                     q = Mul (v, v)
                                     r = ReduceSum <keepdims = 0> (q, zero)
                                     i = Size (v)
                                     f = Cast <to = 11> (i)
                                     y = Div (r, f))",
       "double[3] y", ", int64[1] three = {3}", true},
      {"through_a_sequence", s + R"(q = SplitToSequence <axis = 1, keepdims = 1> (s)
                                    e = SequenceAt (q, one)
                                    y = ReduceSum <keepdims = 0> (e))"},
      // A tensor of images' features takes the places of the tokens that stand for them.
      {"masked_scatter", R"(f = Reshape (z, flat)
                            c = Unsqueeze (m, last)
                            n = Shape (x)
                            mm = Expand (c, n)
                            at = NonZero (mm)
                            t = Transpose (at)
                            k = Shape <end = 1> (t)
                            u = Slice (f, zero, k, zero)
                            o = ScatterND (x, t, u)
                            y = MatMul (o, w))",
       "double[6, 3] y", ", int64[1] flat = {-1}, int64[1] last = {1}"},
  };
}

INSTANTIATE_TEST_SUITE_P(Models, Selections, ::testing::ValuesIn(selecting_cases()), [](const auto& info) { return info.param.name; });

// Padding is what changes no extreme, in types that have no infinity, too.
TEST(SelectedIntegers, HaveTheExtremesOfAMaskThatIsKnown) {
  const TestFolder folder;
  const Tensor ids = make_tensor<int64_t>({kRows}, {3, -2, 0, 5, -4, 1});
  const auto expect = [&](const std::string& type, const std::string& nodes) {
    const std::string path =
        write_model(folder, fmt::format(R"(<ir_version: 10, opset_import: ["" : 18]> g (bool[6] m, int64[6] ids) => ({} y)
      <int64[1] first = {{-1}}> {{ at = NonZero (m) t = Transpose (at) s = GatherND (ids, t) {} }})",
                                        type, nodes));
    for (const unsigned bits : {0u, 0b000001u, 0b010010u, 0b101101u, 0b111111u}) {
      SCOPED_TRACE(fmt::format("{} of mask {:06b}: {}", type, bits, nodes));
      const Tensor mask = mask_of(bits);
      const Imported fed = import_file(path), known = import_file(path, {.bound_inputs = {{"m", mask}}});
      ASSERT_TRUE(fed.obstacles.empty() && known.obstacles.empty());
      EXPECT_EQ(run_imported(fed, {{"m", mask}, {"ids", ids}}).at("y").to_double(),
                run_imported(known, {{"ids", ids}}).at("y").to_double());
    }
  };
  for (const auto& [type, code] : {std::pair("uint8", 2), {"int8", 3}, {"int16", 5}, {"int32", 6}, {"int64", 7}, {"bool", 9}}) {
    for (const char* op : {"ReduceMin", "ReduceMax"})
      expect(type, fmt::format("c = Cast <to = {}> (s) y = {} <keepdims = 0> (c)", code, op));
  }
  for (const char* reduction : {"min", "max"})
    expect("int64[6]",
           fmt::format(R"(i = Reshape (at, first) n = Neg (s) y = ScatterElements <axis = 0, reduction = "{}"> (ids, i, n))", reduction));
}

// --- what is refused ------------------------------------------------------------------------------------------------------------------

std::string refusal(const std::string& nodes, const std::string& type, const ImportOptions& options = {}) {
  const TestFolder folder;
  const Imported imported =
      import_file(write_model(folder, fmt::format(R"(<ir_version: 10, opset_import: ["" : 18]> g (bool[6] m, float[6, 3] x) => ({})
                                           <float[3, 3] w = {{1, 2, 3, 4, 5, 6, 7, 8, 9}}, int64[1] zero = {{0}}, int64[1] one = {{1}}> {{ {} }})",
                                                  type, nodes)),
                  options);
  return imported.obstacles.empty() ? "" : imported.obstacles[0].node + " " + imported.obstacles[0].reason;
}

TEST(SelectionRefusals, NameWhatSelectsAndWhatMeets) {
  const std::string s = "[pick] at = NonZero (m)\n t = Transpose (at)\n g = GatherND (x, t)\n s = MatMul (g, w)\n";
  EXPECT_HAS(refusal(s + "[sum] y = CumSum (s, zero)", "float[n, 3] y"),
             "CumSum 'sum' reads 's', which has as many elements along axis 0 as 'pick' selects");
  EXPECT_HAS(refusal(s + "[all] y = Identity (s)", "float[n, 3] y"), "output 'y' has as many elements as 'pick' selects of each batch");
  EXPECT_HAS(refusal(s + "[meet] y = Add (s, x)", "float[n, 3] y"), "it meets an axis of fixed size there");
  EXPECT_HAS(refusal(s + "[other] b = Not (m)\n [rest] r = Compress <axis = 0> (x, b)\n y = Add (s, r)", "float[n, 3] y"),
             "meets what another node selects");
  EXPECT_HAS(refusal(s + "s1 = Shape (s)\n n = Sub (s1, one)\n f = Cast <to = 1> (n)\n a = ReduceSum (s)\n [divide] y = Div (a, f)",
                     "float[1, 1] y"),
             "Cast 'f' reads 'n', which is computed from the number of elements that 'pick' selects of a batch");
  EXPECT_THAT(error_of([&] { refusal(s + "y = ReduceSum (s)", "float[1, 1] y", {.selects = {{.node = "pic", .count = 3}}}); }).what(),
              HasSubstr("`selects` pic: no node of that name selects by a mask of the batch; there are 'pick'"));
  EXPECT_THAT(error_of([&] {
                refusal(s + "[again] b = NonZero (m)\n t2 = Transpose (b)\n g2 = GatherND (x, t2)\n h = Add (s, g2)\n y = ReduceSum (h)",
                        "float[1, 1] y", {.selects = {{.node = "again", .count = 3}}});
              }).what(),
              HasSubstr("`selects` again: 'again' selects by the same mask as 'pick': give the limit to that node"));
}

// What is settled at import, once for all batches, can't hang on them; nor can rows be laid out anew, or come in another order.
TEST(SelectionRefusals, NoNumberOfTurns) {
  const std::string s = "[pick] at = NonZero (m)\n t = Transpose (at)\n g = GatherND (x, t)\n k = Shape <end = 1> (g)\n n = Squeeze (k)\n";
  EXPECT_HAS(refusal(s + R"([turns] y = Loop (n, , w) <body = b (int64 i, bool c, float[3, 3] v) => (bool d, float[3, 3] o)
                            { d = Identity (c) o = Add (v, v) }>)",
                     "float[3, 3] y"),
             "reads 'n', the number of elements that a node selects of each batch");
  EXPECT_HAS(refusal(s + R"(none = Constant <value = int64 {0}> ()
                            step = Constant <value = int64 {-1}> ()
                            [down] r = Range (n, none, step)
                            f = Cast <to = 1> (r)
                            y = ReduceSum (f))",
                     "float[1] y"),
             "makes a tensor whose size is computed from the number of elements that 'pick' selects");
  EXPECT_HAS(refusal(s + R"(wide = Concat <axis = 1> (g, g)
                            sizes = Constant <value_ints = [6, -1]> ()
                            [fixed] r = Reshape (wide, sizes)
                            y = ReduceSum <keepdims = 0> (r, one))",
                     "float[6] y"),
             "it meets an axis of fixed size there");
  EXPECT_HAS(refusal(s + R"(six = Constant <value_ints = [6]> ()
                            [turns] t2, y = Loop (six, , w) <body = b (int64 i, bool c, float[3, 3] v) => (bool d, float[3, 3] o, int64[1] e)
                            { d = Identity (c) o = Add (v, v) e = Identity (k) }>)",
                     "int64[6, 1] y"),
             "reads 'k', the number of elements that a node selects of each batch");
  EXPECT_HAS(refusal(s + "f = Cast <to = 1> (k)\n y = Identity (f)", "float[1] y"),
             "is made of the number of elements that 'pick' selects of each batch, which is no constant");
  EXPECT_NE(refusal(s + R"(all = Constant <value = float[6] {1, 2, 3, 4, 5, 6}> ()
                           last = Constant <value_ints = [9]> ()
                           r = Slice (all, k, last)
                           y = ReduceSum <keepdims = 0> (r))",
                    "float y"),
            "");
}

TEST(SelectionRefusals, FollowPaddingThroughDropoutThatIsPutIn) {
  const std::string s = "[pick] at = NonZero (m)\n t = Transpose (at)\n g = GatherND (x, t)\n [product] s = MatMul (g, w)\n";
  EXPECT_HAS(refusal(s + "y = Identity (s)", "float[n, 3] y", {.dropout = {{"product", 0.5}}}),
             "output 'y' has as many elements as 'pick'");
}

TEST(SelectionRefusals, CountWhatThereIsToTake) {
  const TestFolder folder;
  const Imported imported = import_file(write_model(folder, R"(<ir_version: 10, opset_import: ["" : 18]>
    g (bool[6] m, float[6] x, float[4] few) => (float[6] y) <int64[1] zero = {0}> {
      at = NonZero (m)
      t = Transpose (at)
      k = Shape <end = 1> (t)
      u = Slice (few, zero, k)
      y = ScatterND (x, t, u)
    })"));
  ASSERT_TRUE(imported.obstacles.empty());
  const Tensor x = make_tensor<float>({6}, {1, 2, 3, 4, 5, 6}), few = make_tensor<float>({4}, {10, 20, 30, 40});
  EXPECT_EQ(floats(run_imported(imported, {{"m", mask_of(0b101011)}, {"x", x}, {"few", few}}).at("y")),
            (std::vector<float>{10, 20, 3, 30, 5, 40}));
  EXPECT_HAS(error_of([&] {
               run_imported(imported, {{"m", mask_of(0b101111)}, {"x", x}, {"few", few}});
             }).what(),
             "a mask selects 5 elements of this batch, but at most 4");
}

TEST(SelectionRefusals, ANumberThatIsAlwaysTheSameIsASize) {
  const std::string counted = R"([pick] at = NonZero (m)
    t = Transpose (at)
    g = GatherND (x, t)
    c = Cast <to = 7> (m)
    n = ReduceSum <keepdims = 1> (c)
    three = Constant <value_ints = [3]> ()
    size = Concat <axis = 0> (n, three)
    v = Expand (g, size)
    y = CumSum (v, zero))";
  EXPECT_HAS(refusal(counted, "float[n, 3] y"), "CumSum");
  EXPECT_EQ(refusal(counted, "float[n, 3] y", {.selects = {{.node = "pick", .count = 4, .exact = true}}}), "");
}

// --- training -------------------------------------------------------------------------------------------------------------------------

// A masked language model's loss, taken in the model of the positions that have a target.
struct MaskedLoss : PromisedRuns {
  static constexpr int64_t kSamples = 26, kIn = 12, kHidden = 96, kClasses = 5;

  std::string model(const std::string& name, const std::string& loss) {
    auto proto =
        model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x, int64[batch] targets) => (float loss)
                                           <int64 none = {{-100}}> {{ a = MatMul (x, w) h = Tanh (a) {} }})",
                             kIn, loss));
    *proto.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kHidden}, numbers(kIn * kHidden, 7919));
    *proto.mutable_graph()->add_initializer() = tensor_of("u", {kHidden, kClasses}, numbers(kHidden * kClasses, 7927));
    return write_model(folder, proto, name);
  }
  // In a batch of 4 there are 2 to 4 targets.
  Options job(const std::string& path) {
    std::vector<int64_t> targets;
    for (int64_t i = 0; i < kSamples; ++i) targets.push_back(i % 7 == 3 || i % 5 == 1 ? -100 : i * 3 % kClasses);
    Options o{.model = path};
    o.data = Arrays()
                 .add("x", {kSamples, kIn}, numbers(kSamples * kIn, 104'729))
                 .add("targets", {kSamples}, targets)
                 .write(folder / "data.safetensors");
    o.loss = "output";
    return short_job(std::move(o));
  }
  std::string selecting() {
    return model("selecting.onnx", R"(e = Equal (targets, none)
                                      m = Not (e)
                                      [pick] at = NonZero (m)
                                      t = Transpose (at)
                                      s = GatherND (h, t)
                                      l = GatherND (targets, t)
                                      logits = MatMul (s, u)
                                      loss = SoftmaxCrossEntropyLoss (logits, l))");
  }
};

TEST_F(MaskedLoss, IsThatOfTheModelThatIgnoresTheRest) {
  const Run run = train(job(selecting()));
  const Run plain =
      train(job(model("plain.onnx", "logits = MatMul (h, u) loss = SoftmaxCrossEntropyLoss <ignore_index = -100> (logits, targets)")));
  ASSERT_EQ(run.losses.size(), 18u);
  for (size_t i = 0; i < run.losses.size(); ++i) EXPECT_NEAR(run.losses[i], plain.losses[i], 2e-6 * plain.losses[i]) << i;
}

TEST_F(MaskedLoss, KeepsThePromises) { expect_promises(job(selecting()), 4); }

TEST_F(MaskedLoss, HasAsManyRowsAsItsLimitSays) {
  Options o = job(selecting());
  const Run all = train(o);
  o.shuffle = false;
  o.selects = {{.node = "pi*", .count = 3}};
  const std::string refused = error_of([&] { train(o); }).what();
  EXPECT_HAS(refused, "a mask selects 4 elements of this batch, but at most 3");
  o.selects = {{.node = "NonZero", .count = 2, .exact = true}};
  EXPECT_HAS(error_of([&] { train(o); }).what(), "elements of this batch, but just 2");
  // Every batch of 2 has one, without shuffling.
  Options exact = o;
  exact.batch_size = 5;
  exact.max_steps = 1;
  exact.selects = {{.node = "pick", .count = 3, .exact = true}};  // of the samples 0 to 4, three have a target
  EXPECT_GT(train(exact).losses.at(0), 0);
}

}  // namespace
}  // namespace ort_train
