// Cases of the op test table: products, attention.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "tests/op_cases.h"

namespace ort_train::fixtures {
namespace {

void determinant_cases(std::vector<OpCase>& cases) {
  cases.insert(cases.end(),
               {
                   {.name = "one", .op = "Det", .inputs = {floats({2, 2}, {1, 2, 3, 4})}, .expected = {{-2}}, .ulps = 2},
                   {.name = "batch", .op = "Det", .inputs = {random({2, 3, 4, 4})}},
                   {.name = "scalars", .op = "Det", .inputs = {random({3, 1, 1})}},
                   {.name = "singular", .op = "Det", .inputs = {floats({3, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 10})}},
                   {.name = "of_rank_two", .op = "Det", .inputs = {floats({3, 3}, {1, 2, 3, 2, 4, 6, 0, 1, 5})}, .tolerance = 1e-5},
                   {.name = "of_rank_one",
                    .op = "DetGrad",
                    .inputs = {floats({}, {1}), floats({3, 3}, {1, 2, 3, 2, 4, 6, 3, 6, 9})},
                    .expected = {{0, 0, 0, 0, 0, 0, 0, 0, 0}}},
                   {.name = "cofactors",
                    .op = "DetGrad",
                    .inputs = {floats({}, {2}), floats({2, 2}, {1, 2, 3, 4})},
                    .expected = {{8, -6, -4, 2}},
                    .ulps = 4},
               });
}

void matmul_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    Shape a, b;
    bool trans_a = false, trans_b = false, bias = false;
    float alpha = 1;
  };
  const std::vector<Form> forms{
      {"plain", {5, 7}, {7, 3}},
      {"trans_a", {7, 5}, {7, 3}, true},
      {"trans_b", {5, 7}, {3, 7}, false, true},
      {"trans_both", {7, 5}, {3, 7}, true, true},
      {"bias", {5, 7}, {7, 3}, false, false, true},
      {"bias_alpha", {4, 9}, {6, 9}, false, true, true, -0.75f},
      {"rows_of_a_batch", {2, 3, 4, 5}, {5, 6}, false, false, true},
      {"rows_of_a_batch_trans_b", {2, 3, 5}, {6, 5}, false, true},
      {"one_in_front", {3, 4, 5}, {1, 5, 6}},
      {"shared_b_trans_a", {3, 5, 4}, {5, 6}, true},
      {"batch", {2, 3, 4, 5}, {2, 3, 5, 2}},
      {"batch_trans_b", {2, 3, 4, 5}, {2, 3, 6, 5}, false, true, false, 0.125f},
      {"broadcast_both", {2, 1, 4, 5}, {3, 5, 6}},
      {"broadcast_a", {4, 5}, {3, 2, 5, 6}, false, false, true},
      {"row", {1, 40}, {40, 9}},
      {"column", {9, 40}, {40, 1}},
      {"outer", {6, 1}, {1, 50}},
      {"no_depth", {3, 0}, {0, 4}, false, false, true},
      {"no_rows", {0, 3}, {3, 4}},
      {"no_batch", {0, 2, 3}, {0, 3, 4}},
      // Panels whole and in part, direct and copied; several tiles, several blocks of depth.
      {"few_rows", {3, 65}, {65, 145}},
      {"panels", {37, 100}, {100, 200}},
      {"panels_trans_a", {100, 37}, {100, 97}, true},
      {"panels_trans_b", {37, 101}, {161, 101}, false, true, true},
      {"depth", {19, 1001}, {1001, 70}, false, false, true},
      {"depth_trans_b", {50, 777}, {64, 777}, false, true},
      {"tiles", {530, 70}, {70, 800}, false, false, true, 2.0f},
      {"tiles_trans_a", {70, 530}, {70, 801}, true},
      {"tiles_trans_b", {531, 70}, {799, 70}, false, true},
      {"heads", {1, 12, 64, 32}, {1, 12, 64, 32}, false, true},
      {"odd_heads", {2, 3, 35, 70}, {3, 70, 45}, false, false, true, 0.5f},
      {"heads_trans_a", {2, 3, 401, 36}, {2, 1, 401, 44}, true},
      {"depth_trans_both", {801, 37}, {41, 801}, true, true, true, -1.5f},
      {"depth_in_fours", {64, 1600}, {1600, 68}},
      {"depth_in_fours_trans_a", {776, 132}, {776, 64}, true},
      {"many_tiles", {1541, 7}, {7, 1549}, false, false, true},
      {"many_tiles_trans_b", {1030, 24}, {1027, 24}, false, true},
  };
  for (const Form& form : forms) {
    OpCase op_case{.name = form.name,
                   .op = "MatMul",
                   .attributes = {{"trans_a", int64_t{form.trans_a}}, {"trans_b", int64_t{form.trans_b}}, {"alpha", form.alpha}},
                   .inputs = {random(form.a), random(form.b)}};
    if (form.bias) op_case.inputs.push_back(random({form.b[form.b.size() - (form.trans_b ? 2 : 1)]}));
    op_case.gradient = element_count(form.a) < 8000 && element_count(form.b) < 8000;
    cases.push_back(std::move(op_case));
  }
  for (const DType dtype : {DType::int64, DType::int32}) {
    cases.push_back({.name = "integers_" + std::string(to_string(dtype)),
                     .op = "MatMul",
                     .attributes = {{"trans_b", int64_t{1}}},
                     .inputs = {ints({2, 3}, {1, 2, 3, 4, 5, 6}, dtype), ints({2, 3}, {1, 0, -1, 2, 2, 2}, dtype)},
                     .expected = {{-2, 12, -2, 30}}});
  }
  // Operands of different types, and rounded when they are read.
  for (const DType compute : {DType::float32, DType::float16, DType::bfloat16}) {
    const auto number = [](DType type) { return static_cast<int64_t>(type); };
    const Attributes rounded{{"compute", number(compute)}}, to_half{{"compute", number(compute)}, {"to", number(DType::bfloat16)}};
    const std::string name = fmt::format("mixed_{}", to_string(compute));
    const auto add = [&](const char* suffix, Attributes attributes, std::vector<OpInput> inputs) {
      cases.push_back({.name = name + suffix,
                       .op = "MatMul",
                       .attributes = std::move(attributes),
                       .inputs = std::move(inputs),
                       .tolerance = 1e-2,
                       .gradient = false,
                       .float64 = false});
    };
    add("", rounded, {statistic(random({37, 420})), random({420, 45}), random({45})});
    add("_right", rounded, {random({36, 420}), statistic(random({420, 44})), statistic(random({44}))});
    add("_to_half", to_half, {random({36, 420}), statistic(random({420, 43}))});
  }
  cases.push_back({.name = "infinite",
                   .op = "MatMul",
                   .inputs = {floats({1, 2}, {1, 1}), floats({2, 3}, {kInfinity, kInfinity, 1, 1, -kInfinity, 2})},
                   .gradient = false,
                   .expected = {{kInfinity, kNaN, 3}}});
}

void matmul_part_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    Shape a, b;
    bool trans_a, trans_b, bias;
    int64_t a_from, a_width, y_from, y_columns;
    Shape base;  // none where empty
    float alpha = 1;
  };
  const std::vector<Form> forms{
      {"columns_of_y", {2, 5, 12}, {7, 12}, false, true, true, 0, 0, 3, 40, {2, 5, 40}},
      {"all_columns_of_y", {5, 12}, {12, 7}, false, false, true, 0, 0, 0, 7, {}},
      {"columns_of_a", {2, 5, 40}, {12, 7}, false, true, false, 11, 7, 0, 0, {2, 5, 12}, 0.7f},
      {"columns_of_a_first", {5, 40}, {7, 12}, false, false, true, 33, 7, 0, 0, {}},
      {"rows_of_y", {9, 40}, {9, 12}, true, false, false, 17, 20, 0, 0, {}},
      {"rows_of_y_added", {9, 40}, {9, 12}, true, false, false, 17, 20, 0, 0, {20, 12}},
      {"both", {6, 30}, {10, 8}, false, false, false, 4, 10, 5, 21, {6, 21}, 2.0f},
      {"tiles", {530, 90}, {800, 70}, false, true, true, 13, 70, 100, 1000, {530, 1000}},
      {"tiles_added", {530, 1000}, {801, 70}, false, false, false, 60, 801, 0, 0, {530, 70}},
      {"nothing", {0, 8}, {3, 8}, false, true, false, 0, 0, 2, 5, {0, 5}},
      {"fours_of_a", {36, 800}, {396, 44}, false, false, false, 384, 396, 0, 0, {36, 44}},
      {"fours_of_y", {36, 72}, {64, 72}, false, true, true, 0, 0, 8, 132, {36, 132}, 0.5f},
      {"other_columns_of_a", {36, 803}, {401, 44}, false, false, true, 402, 401, 0, 0, {}},
  };
  for (const Form& form : forms) {
    const int64_t columns = form.y_columns > 0 ? form.y_columns : form.b[form.trans_b ? 0 : 1];
    OpCase op_case{.name = form.name,
                   .op = "MatMulPart",
                   .attributes = {{"trans_a", int64_t{form.trans_a}},
                                  {"trans_b", int64_t{form.trans_b}},
                                  {"alpha", form.alpha},
                                  {"a_from", form.a_from},
                                  {"a_width", form.a_width},
                                  {"y_from", form.y_from},
                                  {"y_columns", form.y_columns}},
                   .inputs = {random(form.a), random(form.b), form.bias ? random({columns}) : absent()}};
    if (!form.base.empty()) op_case.inputs.push_back(form.y_columns > 0 ? random(form.base) : statistic(random(form.base)));
    if (!form.base.empty() && form.y_columns == 0) {  // the sum is float32, or float64
      OpCase accumulates = op_case;
      accumulates.op = "AccumulateMatMul";
      accumulates.attributes64 = op_case.attributes;
      accumulates.attributes.set("to", static_cast<int64_t>(DType::float32));
      cases.push_back(std::move(accumulates));
    }
    cases.push_back(std::move(op_case));
  }
}

void attention_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    int64_t batch, heads, rows, columns, depth, width;
    bool causal, safe;
    Shape bias;
    bool trained = false;
    int64_t group = 1;
  };
  const std::vector<Form> forms{
      {"plain", 2, 3, 4, 5, 6, 3, false, false, {}},
      {"causal", 2, 2, 6, 6, 4, 4, true, false, {}},
      {"causal_more_keys", 1, 2, 3, 7, 4, 5, true, false, {}},
      {"causal_more_rows", 1, 2, 9, 4, 4, 5, true, true, {}},
      {"bias", 2, 2, 3, 4, 4, 3, false, false, {2, 2, 3, 4}},
      {"bias_of_columns", 2, 2, 3, 4, 4, 3, false, false, {2, 1, 1, 4}},
      {"bias_of_heads", 2, 2, 3, 4, 4, 3, true, false, {2, 1, 1}},
      {"bias_matrix", 1, 2, 3, 4, 4, 3, true, true, {3, 4}},
      {"trained_bias", 2, 2, 3, 4, 4, 3, false, false, {2, 3, 4}, true},
      {"trained_bias_causal", 2, 1, 4, 4, 3, 3, true, false, {1, 1, 4, 4}, true},
      {"one_key", 1, 1, 3, 1, 2, 2, false, false, {}},
      {"no_rows", 1, 2, 0, 3, 2, 2, false, false, {}},
      {"blocks", 1, 2, 131, 259, 8, 5, false, false, {259}},  // more rows and keys than a block
      {"blocks_causal", 1, 2, 260, 260, 7, 9, true, false, {}},
      {"blocks_causal_more_keys", 1, 1, 140, 530, 16, 16, true, false, {140, 530}},
      {"blocks_causal_more_rows", 1, 1, 400, 270, 16, 24, true, true, {}},
      {"wide", 1, 1, 130, 130, 64, 64, true, false, {}},
      {"heads", 1, 2, 128, 128, 64, 64, false, false, {}},
      {"heads_causal", 1, 2, 128, 128, 64, 64, true, true, {}},
      {"heads_more_keys", 2, 2, 36, 75, 40, 24, false, true, {}},
      {"heads_causal_more_keys", 1, 2, 44, 101, 64, 64, true, false, {}},
      {"heads_causal_more_rows", 1, 2, 101, 44, 32, 32, true, false, {}},
      {"many_heads", 2, 7, 65, 33, 16, 16, false, false, {}},
      {"bias_of_rows", 2, 2, 37, 45, 12, 20, true, false, {2, 1, 37, 1}},
      {"three_blocks_of_keys", 1, 1, 140, 530, 20, 12, false, false, {1, 140, 530}},
      {"three_blocks_of_rows_causal", 1, 1, 330, 530, 36, 44, true, false, {1, 1, 530}},
      {"wide_causal", 1, 2, 75, 300, 128, 128, true, false, {}},
      {"wider_than_a_tile", 1, 1, 140, 45, 136, 200, true, false, {}},
      {"narrower_keys", 1, 1, 40, 70, 30, 150, false, false, {}},
      {"narrower_values", 1, 1, 70, 40, 150, 30, true, false, {}},
      {"blocks_of_the_depth", 1, 1, 35, 70, 500, 390, true, false, {70}},
      {"groups", 2, 6, 4, 5, 6, 3, false, false, {}, false, 3},
      {"one_group_causal", 2, 3, 6, 6, 4, 4, true, true, {3, 6, 6}, false, 3},
      {"groups_trained_bias", 2, 4, 3, 4, 4, 3, false, false, {4, 3, 4}, true, 2},
      {"groups_of_blocks", 1, 4, 140, 530, 32, 24, false, false, {4, 1, 530}, false, 2},
      {"groups_of_blocks_causal", 2, 4, 330, 530, 64, 64, true, false, {}, false, 2},
  };
  for (const Form& f : forms) {
    const Attributes attributes{{"scale", 0.6f}, {"causal", int64_t{f.causal}}, {"safe", int64_t{f.safe}}};
    const Shape q{f.batch, f.heads, f.rows, f.depth}, k{f.batch, f.heads / f.group, f.columns, f.depth};
    const Shape v{f.batch, f.heads / f.group, f.columns, f.width};
    const Shape o{f.batch, f.heads, f.rows, f.width};
    OpCase forward{.name = f.name, .op = "Attention", .attributes = attributes, .inputs = {random(q), random(k), random(v)}, .outputs = 2};
    OpCase backward{.name = f.name,
                    .op = "AttentionGrad",
                    .attributes = attributes,
                    .inputs = {random(o), random(q), random(k), random(v), random(o), statistic(random({f.batch, f.heads, f.rows}, 5, 6))},
                    .outputs = 3,
                    .tolerance = 2e-6};
    if (!f.bias.empty()) {
      forward.inputs.push_back(f.trained ? random(f.bias) : fixed(random(f.bias)));
      forward.outputs = 3;
      backward.inputs.insert(backward.inputs.end(), {random(f.bias), statistic(random({f.batch, f.heads, f.rows}, -1e-3, 1e-3))});
      backward.tolerance = 3e-6;
    }
    forward.project = {0};
    forward.gradient = f.rows * f.columns < 10000;  // naive loops in double
    cases.push_back(std::move(forward));
    cases.push_back(std::move(backward));
  }
  // Without scores the weights are equal among what is seen: lse is the log of how many.
  const auto uniform = [&](const char* name, int64_t causal, int64_t safe, std::vector<double> bias, std::vector<double> o,
                           std::vector<double> lse, std::vector<double> rest) {
    cases.push_back(
        {.name = name,
         .op = "Attention",
         .attributes = {{"scale", 1.0f}, {"causal", causal}, {"safe", safe}},
         .inputs = {floats({1, 1, 2, 1}, {0}), floats({1, 1, 3, 1}, {0}), floats({1, 1, 3, 1}, {1, 2, 6}), floats({2, 3}, std::move(bias))},
         .outputs = 3,
         .gradient = false,
         .expected = {std::move(o), std::move(lse), std::move(rest)},
         .ulps = 2});
  };
  uniform("seen", 0, 0, {0, 0, 0, 0, -kInfinity, 0}, {3, 3.5}, {std::log(3), std::log(2)}, {0, 0});
  uniform("seen_causal", 1, 0, {0, 0, 0, 0, 0, 0}, {1, 1.5}, {0, std::log(2)}, {0, 0});
  uniform("hidden", 0, 0, {0, 0, -kInfinity, -kInfinity, -kInfinity, -kInfinity}, {1.5, kNaN}, {std::log(2), -kInfinity}, {0, kNaN});
  uniform("hidden_safe", 0, 1, {0, 0, -kInfinity, -kInfinity, -kInfinity, -kInfinity}, {1.5, 0}, {std::log(2), kInfinity}, {0, 0});
  uniform("hidden_by_a_number", 0, 0, {0, 0, 0, -3e38, -3e38, -3e38}, {3, 3}, {std::log(3), -3e38}, {0, std::log(3)});
  cases.back().inputs[3].statistic = true;  // beyond float16
  for (const int64_t replaces : {0, 1}) {
    cases.push_back({.name = replaces ? "hidden_and_replaced" : "hidden_by_a_number",
                     .op = "AttentionGrad",
                     .attributes = {{"scale", 1.0f}, {"replaces", replaces}},
                     .inputs = {floats({1, 1, 1, 1}, {3}), floats({1, 1, 1, 1}, {1}), floats({1, 1, 3, 1}, {2, 4, 6}),
                                floats({1, 1, 3, 1}, {1, 2, 6}), floats({1, 1, 1, 1}, {3}), statistic(floats({1, 1, 1}, {-3e38})),
                                statistic(floats({3}, {-3e38})), statistic(floats({1, 1, 1}, {std::log(3.0)}))},
                     .outputs = 3,
                     .gradient = false,
                     .expected = replaces ? std::vector<std::vector<double>>{{0}, {0, 0, 0}, {1, 1, 1}}
                                          : std::vector<std::vector<double>>{{10}, {-2, -1, 3}, {1, 1, 1}},
                     .ulps = 8});
  }
  uniform("not_a_number", 0, 1, {0, 0, 0, kNaN, kNaN, kNaN}, {3, kNaN}, {std::log(3), kNaN}, {0, kNaN});
  // Everything is hidden up to the second block of keys.
  std::vector<double> hidden(300, -kInfinity);
  std::fill(hidden.begin() + 270, hidden.end(), 0.5);
  cases.push_back({.name = "hidden_block",
                   .op = "Attention",
                   .attributes = {{"scale", 0.5f}},
                   .inputs = {random({1, 1, 5, 8}), random({1, 1, 300, 8}), random({1, 1, 300, 4}), floats({300}, hidden)},
                   .outputs = 3,
                   .gradient = false});
  // Operands of 16 bits, and a result of float32.
  cases.push_back({.name = "float32_result",
                   .op = "Attention",
                   .attributes = {{"scale", 0.4f}, {"causal", int64_t{1}}, {"to", static_cast<int64_t>(DType::float32)}},
                   .inputs = {random({1, 2, 40, 24}), random({1, 2, 50, 24}), random({1, 2, 50, 32})},
                   .outputs = 2,
                   .tolerance = 1e-2,
                   .gradient = false,
                   .float64 = false});
  // Operands that are rounded when they are read.
  for (const DType compute : {DType::float16, DType::bfloat16})
    for (const int64_t width : {20, 24}) {
      const Attributes attributes{{"scale", 0.4f}, {"causal", int64_t{1}}, {"compute", static_cast<int64_t>(compute)}};
      const Shape q{1, 2, 40, 24}, k{1, 2, 50, 24}, v{1, 2, 50, width}, o{1, 2, 40, width};
      const std::string name = fmt::format("rounded_to_{}_{}", to_string(compute), width);
      cases.push_back({.name = name,
                       .op = "Attention",
                       .attributes = attributes,
                       .inputs = {random(q), random(k), random(v)},
                       .outputs = 2,
                       .tolerance = 1e-2,
                       .gradient = false,
                       .float64 = false});
      cases.push_back({.name = name,
                       .op = "AttentionGrad",
                       .attributes = attributes,
                       .inputs = {random(o), random(q), random(k), random(v), random(o), statistic(random({1, 2, 40}, 5, 6))},
                       .outputs = 3,
                       .tolerance = 1e-2,
                       .gradient = false,
                       .float64 = false});
    }
  // A hidden row gives no gradient.
  cases.push_back(
      {.name = "hidden_safe",
       .op = "AttentionGrad",
       .attributes = {{"scale", 1.0f}, {"safe", int64_t{1}}},
       .inputs = {floats({1, 1, 1, 1}, {5}), floats({1, 1, 1, 1}, {2}), floats({1, 1, 2, 1}, {1, 3}), floats({1, 1, 2, 1}, {7, 4}),
                  floats({1, 1, 1, 1}, {0}), statistic(floats({1, 1, 1}, {kInfinity})), floats({2}, {-kInfinity, -kInfinity})},
       .outputs = 3,
       .expected = {{0}, {0, 0}, {0, 0}}});
}

void dora_cases(std::vector<OpCase>& cases) {
  cases.push_back({.name = "norms",  // W = [[3, 0], [0, 4]], A = [1, 0], B = [1, 0]': that of the first row becomes 5
                   .op = "DoraScale",
                   .attributes = {{"scale", 2.0f}},
                   .inputs = {floats({2}, {10, 2}), fixed(floats({2}, {9, 16})), fixed(floats({1, 2}, {3, 0})),
                              fixed(floats({2, 1}, {1, 0})), fixed(floats({2, 1}, {1, 0}))},
                   .outputs = 2,
                   .project = {0},
                   .expected = {{2, 0.5}, {}}});
  cases.push_back({.name = "many_rows",
                   .op = "DoraScale",
                   .attributes = {{"scale", 0.5f}},
                   .inputs = {random({3001}, 0.5, 2), fixed(random({3001}, 6, 9)), fixed(random({5, 3001})), fixed(random({3001, 5})),
                              fixed(random({3001, 5}))},
                   .outputs = 2,
                   .project = {0}});
  cases.push_back({.name = "zeros",
                   .op = "DoraScale",
                   .inputs = {floats({1}, {0}), fixed(floats({1}, {0})), fixed(floats({1, 1}, {0})), fixed(floats({1, 1}, {0})),
                              fixed(floats({1, 1}, {0}))},
                   .outputs = 2,
                   .gradient = false,
                   .expected = {{0}, {}}});
}

}  // namespace

std::vector<OpCase> product_op_cases() {
  std::vector<OpCase> cases;
  dora_cases(cases);
  determinant_cases(cases);
  matmul_cases(cases);
  matmul_part_cases(cases);
  attention_cases(cases);
  return cases;
}

}  // namespace ort_train::fixtures
