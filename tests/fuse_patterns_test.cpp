// What the fusions leave alone because a fused node would be of another shape, or have fewer digits; which spellings of a constant they
// know.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "passes/passes.h"
#include "tests/after_pass.h"
#include "tests/graph_ops.h"

namespace ort_train {
namespace {

using ::testing::ElementsAre;
using ::testing::SizeIs;

std::vector<std::string> ops_after(Pass pass, const std::string& text) { return fixtures::op_names(fixtures::after_pass(text, pass)); }

std::string erf_form(const std::string& type, const std::string& root, const std::string& axes = "") {
  return fmt::format(R"(g ({0}[40] x) => ({0}[{2}40] y) <{0} r = {{{1}}}, {0} half = {{0.5}}, {0}{3} one = {{1.0}}> {{
    d = Div(x, r)
    e = Erf(d)
    o = Add(e, one)
    h = Mul(x, half)
    y = Mul(h, o)
  }})",
                     type, root, axes, axes.empty() ? "" : fmt::format("[{}1]", axes));
}

std::string tanh_form(const std::string& type, const std::string& root, const std::string& cubic) {
  return fmt::format(
      R"(g ({0}[40] x) => ({0}[40] y) <{0} half = {{0.5}}, {0} one = {{1.0}}, {0} three = {{3.0}}, {0} c = {{{2}}}, {0} r = {{{1}}}> {{
    p = Pow(x, three)
    q = Mul(p, c)
    s = Add(x, q)
    u = Mul(s, r)
    t = Tanh(u)
    o = Add(t, one)
    h = Mul(x, half)
    y = Mul(h, o)
  }})",
      type, root, cubic);
}

TEST(FusePatterns, AConstantOfMoreAxesGivesThemToAGelu) {
  EXPECT_THAT(ops_after(fuse_gelu, erf_form("float", "1.41421356")), ElementsAre("Gelu"));
  EXPECT_THAT(ops_after(fuse_gelu, erf_form("float", "1.41421356", "1, 1, ")), SizeIs(5));
}

TEST(FusePatterns, AGelusConstantsHaveItsDigitsOrAreWrittenShort) {
  for (const char* root : {"1.4142135", "1.41421", "1.4142"})
    EXPECT_THAT(ops_after(fuse_gelu, erf_form("float", root)), ElementsAre("Gelu")) << root;
  for (const char* root : {"1.41425", "1.41418", "1.414", "1.42"})
    EXPECT_THAT(ops_after(fuse_gelu, erf_form("float", root)), SizeIs(5)) << root;
  for (const char* root : {"0.7978845608", "0.79788456", "0.797885", "0.79788", "0.7979"})
    EXPECT_THAT(ops_after(fuse_gelu, tanh_form("float", root, "0.044715")), ElementsAre("Gelu")) << root;
  for (const char* root : {"0.79786", "0.798"}) EXPECT_THAT(ops_after(fuse_gelu, tanh_form("float", root, "0.044715")), SizeIs(8)) << root;
  EXPECT_THAT(ops_after(fuse_gelu, tanh_form("float", "0.79788456", "0.04472")), SizeIs(8));
}

TEST(FusePatterns, AGeluOfFloat64HasAllDigits) {
  EXPECT_THAT(ops_after(fuse_gelu, erf_form("double", "1.4142135623730951")), ElementsAre("Gelu"));
  EXPECT_THAT(ops_after(fuse_gelu, erf_form("double", "1.41421356")), SizeIs(5));
  EXPECT_THAT(ops_after(fuse_gelu, tanh_form("double", "0.7978845608028654", "0.044715")), ElementsAre("Gelu"));
  EXPECT_THAT(ops_after(fuse_gelu, tanh_form("double", "0.79788456", "0.044715")), SizeIs(8));
}

std::string normalization(const std::string& type, const std::string& epsilon, const std::string& axes = "") {
  return fmt::format(R"(g ({0}[8] x) => ({0}[{2}8] y) <{0}[8] w, {0} two = {{2.0}}, {0}{3} eps = {{{1}}}> {{
    mean = ReduceMean<axes = [-1], keepdims = 1>(x)
    d = Sub(x, mean)
    q = Pow(d, two)
    v = ReduceMean<axes = [-1], keepdims = 1>(q)
    e = Add(v, eps)
    r = Sqrt(e)
    n = Div(d, r)
    y = Mul(n, w)
  }})",
                     type, epsilon, axes, axes.empty() ? "" : fmt::format("[{}1]", axes));
}

TEST(FusePatterns, AnEpsilonOfMoreAxesGivesThemToANormalization) {
  EXPECT_THAT(ops_after(fuse_normalization, normalization("float", "1e-5")), ElementsAre("LayerNormalization"));
  EXPECT_THAT(ops_after(fuse_normalization, normalization("float", "1e-5", "1, 1, ")), SizeIs(8));
}

TEST(FusePatterns, AnEpsilonOfFloat64IsNotRounded) {
  EXPECT_THAT(ops_after(fuse_normalization, normalization("double", "1e-5")), SizeIs(8));
  EXPECT_THAT(ops_after(fuse_normalization, normalization("double", "0.0009765625")), ElementsAre("LayerNormalization"));
}

TEST(FusePatterns, AnAttentionsScaleOfFloat64IsNotRounded) {
  const auto attention = [](const char* type, const char* scale) {
    return fmt::format(R"(g ({0}[2, 3, 6, 4] q, {0}[2, 3, 6, 4] k, {0}[2, 3, 6, 4] v) => ({0}[2, 3, 6, 4] y) <{0} scale = {{{1}}}> {{
      s = MatMul<trans_b = 1>(q, k)
      m = Mul(s, scale)
      p = Softmax<axis = -1>(m)
      y = MatMul(p, v)
    }})",
                       type, scale);
  };
  EXPECT_THAT(ops_after(fuse_attention, attention("float", "0.3")), ElementsAre("Attention"));
  EXPECT_THAT(ops_after(fuse_attention, attention("double", "0.25")), ElementsAre("Attention"));
  EXPECT_THAT(ops_after(fuse_attention, attention("double", "0.3")), SizeIs(4));
}

}  // namespace
}  // namespace ort_train
