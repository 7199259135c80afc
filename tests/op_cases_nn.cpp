// Cases of the op test table: products, attention, losses, optimizers.

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "exec/ops/adafactor.h"
#include "exec/ops/adagrad.h"
#include "exec/ops/adamw.h"
#include "exec/ops/lamb.h"
#include "exec/ops/lars.h"
#include "exec/ops/lion.h"
#include "exec/ops/rmsprop.h"
#include "exec/ops/sgd.h"
#include "exec/random.h"
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
      {"many_heads", 2, 7, 65, 33, 16, 16, false, false, {}},
      {"bias_of_rows", 2, 2, 37, 45, 12, 20, true, false, {2, 1, 37, 1}},
      {"three_blocks_of_keys", 1, 1, 140, 530, 20, 12, false, false, {1, 140, 530}},
      {"three_blocks_of_rows_causal", 1, 1, 330, 530, 36, 44, true, false, {1, 1, 530}},
      {"wide_causal", 1, 2, 75, 300, 128, 128, true, false, {}},
      {"wider_than_a_tile", 1, 1, 140, 45, 136, 200, true, false, {}},
      {"narrower_keys", 1, 1, 40, 70, 30, 150, false, false, {}},
      {"narrower_values", 1, 1, 70, 40, 150, 30, true, false, {}},
      {"blocks_of_the_depth", 1, 1, 35, 70, 500, 390, true, false, {70}},
  };
  for (const Form& f : forms) {
    const Attributes attributes{{"scale", 0.6f}, {"causal", int64_t{f.causal}}, {"safe", int64_t{f.safe}}};
    const Shape q{f.batch, f.heads, f.rows, f.depth}, k{f.batch, f.heads, f.columns, f.depth}, v{f.batch, f.heads, f.columns, f.width};
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
      backward.inputs.push_back(random(f.bias));
    }
    forward.project = {0};
    forward.gradient = f.rows * f.columns < 10000;  // naive loops in double
    cases.push_back(std::move(forward));
    cases.push_back(std::move(backward));
  }
  // Without scores the weights are equal among what is seen: lse is the log of how many.
  const auto uniform = [&](const char* name, int64_t causal, int64_t safe, std::vector<double> bias, std::vector<double> o,
                           std::vector<double> lse) {
    cases.push_back(
        {.name = name,
         .op = "Attention",
         .attributes = {{"scale", 1.0f}, {"causal", causal}, {"safe", safe}},
         .inputs = {floats({1, 1, 2, 1}, {0}), floats({1, 1, 3, 1}, {0}), floats({1, 1, 3, 1}, {1, 2, 6}), floats({2, 3}, std::move(bias))},
         .outputs = 2,
         .gradient = false,
         .expected = {std::move(o), std::move(lse)},
         .ulps = 2});
  };
  uniform("seen", 0, 0, {0, 0, 0, 0, -kInfinity, 0}, {3, 3.5}, {std::log(3), std::log(2)});
  uniform("seen_causal", 1, 0, {0, 0, 0, 0, 0, 0}, {1, 1.5}, {0, std::log(2)});
  uniform("hidden", 0, 0, {0, 0, -kInfinity, -kInfinity, -kInfinity, -kInfinity}, {1.5, kNaN}, {std::log(2), -kInfinity});
  uniform("hidden_safe", 0, 1, {0, 0, -kInfinity, -kInfinity, -kInfinity, -kInfinity}, {1.5, 0}, {std::log(2), kInfinity});
  // Everything is hidden up to the second block of keys.
  std::vector<double> hidden(300, -kInfinity);
  std::fill(hidden.begin() + 270, hidden.end(), 0.5);
  cases.push_back({.name = "hidden_block",
                   .op = "Attention",
                   .attributes = {{"scale", 0.5f}},
                   .inputs = {random({1, 1, 5, 8}), random({1, 1, 300, 8}), random({1, 1, 300, 4}), floats({300}, hidden)},
                   .outputs = 2,
                   .gradient = false});
  // Operands that are rounded when they are read.
  for (const DType compute : {DType::float16, DType::bfloat16}) {
    const Attributes attributes{{"scale", 0.4f}, {"causal", int64_t{1}}, {"compute", static_cast<int64_t>(compute)}};
    const Shape q{1, 2, 40, 24}, k{1, 2, 50, 24}, v{1, 2, 50, 20}, o{1, 2, 40, 20};
    const std::string name = fmt::format("rounded_to_{}", to_string(compute));
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

void loss_cases(std::vector<OpCase>& cases) {
  struct Form {
    const char* name;
    Shape labels;
    int64_t classes;
  };
  for (const Form& f : {Form{"rows", {5}, 7}, Form{"sequences", {2, 3}, 17}, Form{"one_row", {}, 4}, Form{"many_rows", {3001}, 5},
                        Form{"many_classes", {3}, 50257}, Form{"even_classes", {3}, 34824}, Form{"some_classes", {11}, 3001}}) {
    Shape logits = f.labels;
    logits.push_back(f.classes);
    const Attributes attributes{{"ignore_index", int64_t{3}}};
    for (const auto& [smoothing, z_loss] : {std::pair{0.1f, 0.0f}, {0.0f, 0.25f}, {0.3f, 0.01f}}) {
      cases.push_back({.name = fmt::format("{}_smoothed_{}_z_{}", f.name, static_cast<int>(smoothing * 10), static_cast<int>(z_loss * 100)),
                       .op = "SoftmaxCrossEntropy",
                       .attributes = {{"ignore_index", int64_t{3}}, {"smoothing", smoothing}, {"z_loss", z_loss}},
                       .inputs = {random(logits, -3, 3), random_ints(f.labels, 0, f.classes - 1)},
                       .outputs = 2,
                       .project = {0},
                       .gradient = f.classes < 100 && element_count(f.labels) < 100});
    }
    cases.push_back({.name = f.name,
                     .op = "SoftmaxCrossEntropy",
                     .attributes = attributes,
                     .inputs = {random(logits, -3, 3), random_ints(f.labels, 0, f.classes - 1)},
                     .outputs = 2,
                     .project = {0},
                     .gradient = f.classes < 100 && element_count(f.labels) < 100});
    cases.push_back({.name = f.name,
                     .op = "SoftmaxCrossEntropyGrad",
                     .attributes = attributes,
                     .inputs = {statistic(floats({}, {0.3})), random(logits, -3, 3), statistic(random(f.labels, 3, 5)),
                                random_ints(f.labels, 0, f.classes - 1)},
                     .tolerance = 2e-6});
    cases.push_back({.name = f.name, .op = "CountLabels", .attributes = attributes, .inputs = {random_ints(f.labels, 0, 4)}});
    const OpInput weights = statistic(fixed(random({f.classes}, 0.1, 2)));
    for (const auto& [smoothing, z_loss] : {std::pair{0.0f, 0.0f}, {0.3f, 0.01f}}) {
      cases.push_back({.name = fmt::format("{}_weighted_{}", f.name, static_cast<int>(smoothing * 10)),
                       .op = "SoftmaxCrossEntropy",
                       .attributes = {{"ignore_index", int64_t{3}}, {"smoothing", smoothing}, {"z_loss", z_loss}},
                       .inputs = {random(logits, -3, 3), random_ints(f.labels, 0, f.classes - 1), weights},
                       .outputs = 2,
                       .project = {0},
                       .gradient = f.classes < 100 && element_count(f.labels) < 100});
      OpCase slope{.name = fmt::format("{}_smoothed_{}", f.name, static_cast<int>(smoothing * 10)),
                   .op = "SoftmaxCrossEntropyGrad",
                   .attributes = {{"ignore_index", int64_t{3}}, {"smoothing", smoothing}, {"z_loss", z_loss}},
                   .inputs = {statistic(floats({}, {0.3})), random(logits, -3, 3), statistic(random(f.labels, 3, 5)),
                              random_ints(f.labels, 0, f.classes - 1)},
                   .tolerance = 2e-6};
      if (smoothing != 0) cases.push_back(slope);
      slope.name = fmt::format("{}_weighted_{}", f.name, static_cast<int>(smoothing * 10));
      slope.inputs.push_back(weights);
      cases.push_back(slope);
    }
    cases.push_back({.name = fmt::format("{}_weighted", f.name),
                     .op = "CountLabels",
                     .attributes = attributes,
                     .inputs = {random_ints(f.labels, 0, f.classes - 1), weights}});
  }
  // Labels of several lengths, with repetitions (which need a blank between them); as many time steps as they need at the least, and more.
  const OpInput sequences = ints({3, 4}, {1, 2, 2, 1, 3, -100, -100, -100, -1, 0, 0, 0});
  for (const int64_t blank : {0, 4}) {
    for (const bool has_lengths : {false, true}) {
      OpCase ctc{.name = fmt::format("blank_{}{}", blank, has_lengths ? "_lengths" : ""),
                 .op = "CtcLoss",
                 .attributes = {{"blank", blank}},
                 .inputs = {random({3, 7, 5}, -4, 0), sequences},
                 .outputs = 2,
                 .tolerance = 3e-6,
                 .project = {0}};
      if (has_lengths) ctc.inputs.push_back(ints({3}, {5, 4, 7}));
      cases.push_back(ctc);
    }
  }
  cases.push_back({.name = "many_labels",
                   .op = "CtcLoss",
                   .inputs = {random({3, 170, 11}, -4, 0), random_ints({3, 70}, 1, 10)},
                   .outputs = 2,
                   .tolerance = 3e-6,
                   .gradient = false});
  // Four labels and a repetition in four steps: no path spells them.
  cases.push_back({.name = "impossible",
                   .op = "CtcLoss",
                   .attributes = {{"zero_infinity", int64_t{1}}},
                   .inputs = {random({1, 4, 5}, -4, 0), ints({1, 4}, {1, 2, 2, 1})},
                   .outputs = 2,
                   .gradient = false,
                   .expected = {{0}, std::vector<double>(20, 0)}});
  cases.push_back({.name = "ignored",
                   .op = "SoftmaxCrossEntropy",
                   .attributes = {{"ignore_index", int64_t{-100}}},
                   .inputs = {floats({3, 2}, {0, 0, 0, 0, 1000, 0}), ints({3}, {1, -100, 0})},
                   .outputs = 2,
                   .gradient = false,
                   .expected = {{std::log(2)}, {std::log(2), std::log(2), 1000}},
                   .ulps = 1});
  cases.push_back(
      {.name = "ignored",
       .op = "SoftmaxCrossEntropyGrad",
       .attributes = {{"ignore_index", int64_t{-100}}},
       .inputs = {statistic(floats({}, {2})), floats({2, 2}, {0, 0, 0, 0}), statistic(floats({2}, {std::log(2)})), ints({2}, {1, -100})},
       .expected = {{1, -1, 0, 0}},
       .ulps = 1});
  cases.push_back({.name = "ignored",
                   .op = "CountLabels",
                   .attributes = {{"ignore_index", int64_t{-100}}},
                   .inputs = {ints({4}, {1, -100, 0, -100})},
                   .expected = {{2}}});
  cases.push_back({.name = "matrix", .op = "SquaredError", .inputs = {random({5, 7}), random({5, 7})}});
  cases.push_back(
      {.name = "numbers", .op = "SquaredError", .inputs = {floats({3}, {1, 2, 3}), floats({3}, {1, 4, 0})}, .expected = {{13}}});
  cases.push_back({.name = "blocks", .op = "SquaredError", .inputs = {random({3, 50021}), random({3, 50021})}, .gradient = false});
}

// Small ones with numbers that are easily computed; large ones of several tasks, of rows shorter and longer than the lanes of a sum.
void adafactor_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const char* name, const char* op, Attributes attributes, std::vector<OpInput> inputs, size_t outputs,
                       std::vector<std::vector<double>> expected = {}) {
    cases.push_back({.name = name,
                     .op = op,
                     .attributes = std::move(attributes),
                     .inputs = std::move(inputs),
                     .outputs = outputs,
                     .float64 = false,
                     .expected = std::move(expected)});
  };
  const auto doubles = [](Shape shape, std::vector<double> values) {
    return OpInput{.dtype = DType::float64, .shape = std::move(shape), .values = std::move(values)};
  };
  // rate, decay rate, beta1, 1 - beta1, beta2, 1 - beta2, epsilon
  const OpInput half = floats({}, {0.5}), scalars = floats({kAdafactorScalars}, {0.5, 0.125, 0.5, 0.5, 0.5, 0.5, 0}),
                g = floats({2, 2}, {1, 2, 3, 4}), factor = floats({2}, {0.5, 2}), rates = floats({2}, {0.5, 0.25});
  const Attributes rows{{"rows", int64_t{2}}}, decay{{"weight_decay", 0.5f}, {"rows", int64_t{2}}};
  Attributes floored = decay;
  floored.set("floor", 2.0f);
  add("numbers", "AdafactorRows", {}, {g, floats({2}, {2, 4}), half, scalars}, 3, {{1.3125, 3.5625}, {2.5, 5}, {4.875}});
  add("goes_on", "AdafactorRows", {}, {g, floats({2}, {2, 4}), half, scalars, doubles({1, 2}, {10, 20}), doubles({1}, {1})}, 3,
      {{1.3125, 3.5625}, {12.5, 25}, {5.875}});
  add("numbers", "AdafactorColumns", rows, {floats({2}, {2, 0.25}), doubles({1, 2}, {12, 0.5}), half, scalars}, 2, {{4, 0.25}, {0.5, 2}});
  add("numbers", "AdafactorSquares", rows, {g, floats({2}, {1, 4}), doubles({1}, {8}), factor, half}, 1, {{32.8125}});
  const Attributes scale{{"clip_threshold", 2.0f}, {"elements", int64_t{4}}};
  add("numbers", "AdafactorScale", scale, {scalars, doubles({1}, {32}), doubles({2}, {16, 16})}, 1, {{0.5, 0.25}});
  add("below", "AdafactorScale", scale, {scalars, doubles({1}, {15})}, 1, {{0.5, 0.5}});
  Attributes scaled = scale;
  scaled.set("scale_epsilon", 1.0f);
  add("scaled", "AdafactorScale", scaled, {scalars, doubles({1}, {32}), doubles({1}, {32}), doubles({1}, {15}), doubles({1}, {1})}, 1,
      {{1, 0.5}});
  scaled.set("decay_by_rate", int64_t{1});
  add("scaled by the least", "AdafactorScale", scaled, {scalars, doubles({1}, {64}), doubles({1}, {1})}, 1, {{0.125, 0.25}});
  const std::vector<OpInput> of_matrix{
      floats({2, 2}, {4, 8, 12, 16}), g, floats({2}, {1, 4}), doubles({1}, {8}), factor, half, rates, scalars};
  add("numbers", "AdafactorFactored", decay, of_matrix, 1, {{2.875, 5, 8.8125, 11}});
  add("floor", "AdafactorFactored", floored, of_matrix, 1, {{2.9375, 5.875, 8.8125, 11.75}});
  std::vector<OpInput> with_mean = of_matrix;
  with_mean.push_back(floats({2, 2}, {1, 1, 1, 1}));
  add("mean", "AdafactorFactored", decay, with_mean, 2, {{2.4375, 5, 8.40625, 11}, {0.5625, 1, 0.59375, 1}});
  add("numbers", "AdafactorMoment", {}, {floats({2}, {1, 2}), floats({2}, {0.25, 7}), half, scalars}, 2, {{0.25, 4}, {1.25}});
  add("floor", "AdafactorMoment", {{"floor", 1.0f}}, {floats({2}, {1, 2}), floats({2}, {0.25, 7}), half, scalars}, 2, {{0.25, 4}, {0.5}});
  std::vector<OpInput> of_vector{floats({2}, {4, 8}), floats({2}, {1, 2}), floats({2}, {0.25, 4}), half, rates, scalars};
  add("numbers", "AdafactorPlain", {{"weight_decay", 0.5f}}, of_vector, 1, {{2.75, 5.875}});
  of_vector.push_back(floats({2}, {1, 1}));
  add("mean", "AdafactorPlain", {{"weight_decay", 0.5f}}, of_vector, 2, {{2.375, 5.4375}, {0.625, 0.5625}});
  for (const auto& [name, shape] : {std::pair{"matrix", Shape{1000, 301}}, {"wide", {3, 70'000}}, {"kernels", {64, 300, 3, 3}}}) {
    const int64_t count = shape[shape.size() - 2], batch = element_count(shape.before(shape.size() - 2));
    Shape columns = shape.before(shape.size() - 2);
    columns.push_back(shape.back());
    const OpInput row = random(shape.before(shape.size() - 1), 0.1, 1), sum = doubles({batch}, {0.5 * static_cast<double>(count)});
    const Attributes of{{"rows", count}};
    add(name, "AdafactorRows", {}, {random(shape), row, half, scalars}, 3);
    add(name, "AdafactorColumns", of, {random(columns, 0.1, 1), doubles({batch, shape.back()}, {3}), half, scalars}, 2);
    add(name, "AdafactorSquares", of, {random(shape), row, sum, random(columns, 0.1, 1), half}, 1);
    add(name, "AdafactorFactored", of, {random(shape), random(shape), row, sum, random(columns, 0.1, 1), half, rates, scalars}, 1);
  }
  add("rows of mean", "AdafactorFactored", {{"rows", int64_t{40}}, {"weight_decay", 0.5f}},
      {random({40, 64}), random({40, 64}), random({40}, 0.1, 1), doubles({1}, {20}), random({64}, 0.1, 1), half, rates, scalars,
       random({40, 64})},
      2);
  add("blocks", "AdafactorMoment", {}, {random({200'003}), random({200'003}, 0.1, 1), half, scalars}, 2);
  add("blocks", "AdafactorPlain", {}, {random({200'003}), random({200'003}), random({200'003}, 0.1, 1), half, rates, scalars}, 1);
}

void trust_ratio_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const char* name, const char* op, Attributes attributes, std::vector<OpInput> inputs, size_t outputs,
                       std::vector<std::vector<double>> expected = {}) {
    cases.push_back({.name = name,
                     .op = op,
                     .attributes = std::move(attributes),
                     .inputs = std::move(inputs),
                     .outputs = outputs,
                     .float64 = false,
                     .expected = std::move(expected)});
  };
  const auto squares = [](std::vector<double> values) {
    const auto n = static_cast<int64_t>(values.size());
    return OpInput{.dtype = DType::float64, .shape = {n}, .values = std::move(values)};
  };
  // rate, trust ratio, beta1, gain1, beta2, 1 - beta2, both corrections, epsilon
  const OpInput lamb = floats({kLambScalars}, {0.5, 1, 0.5, 0.5, 0, 1, 2, 0.5, 0}), half = floats({}, {0.5});
  add("numbers", "LambSquares", {{"weight_decay", 0.5f}},
      {floats({2}, {1, -2}), floats({2}, {2, 4}), half, lamb, floats({2}, {1, 2}), floats({2}, {9, 9})}, 2, {{29.25}, {5}});
  for (const auto& [name, shape] : {std::pair{"matrix", Shape{1000, 301}}, {"wide", {3, 70'000}}, {"vector", {200'003}}, {"one", {1}}})
    add(name, "LambSquares", {{"weight_decay", 0.5f}}, {random(shape), random(shape), half, lamb, random(shape), random(shape, 0, 1)}, 2);
  add("two parts", "LambTrust", {}, {lamb, squares({16}), squares({0, 48}), squares({1, 2}), squares({1})}, 1,
      {{0.5, 0.25, 0.5, 0.5, 0, 1, 2, 0.5, 0}});
  add("no update", "LambTrust", {}, {lamb, squares({0}), squares({1})}, 1, {{0.5, 1, 0.5, 0.5, 0, 1, 2, 0.5, 0}});
  const Attributes of{{"trust_coefficient", 0.5f}, {"epsilon", 1.0f}, {"weight_decay", 0.25f}};
  const OpInput lars = floats({kLarsScalars}, {0.5, 1, 0.75});
  add("two parts", "LarsTrust", of, {lars, half, squares({16}), squares({20}), squares({0}), squares({16})}, 1, {{0.5, 0.4, 0.75}});
  add("no weight", "LarsTrust", of, {lars, half, squares({16}), squares({0})}, 1, {{0.5, 1, 0.75}});
}

void optimizer_cases(std::vector<OpCase>& cases) {
  adafactor_cases(cases);
  trust_ratio_cases(cases);
  for (const int64_t n : {1, 17, 65536, 200003}) {
    const std::string name = std::to_string(n);
    cases.push_back({.name = name, .op = "SumSquares", .inputs = {random({n})}});
    // Each of which the numbers of a step are all between 0.001 and 0.1.
    const auto update = [&](const std::string& of, const char* op, int64_t scalars, size_t states, Attributes attributes = {}) {
      std::vector<OpInput> inputs{random({n}), random({n}), floats({}, {0.5}), random({scalars}, 0.001, 0.1)};
      for (size_t i = 0; i < states; ++i) inputs.push_back(random({n}, 0, 1));
      attributes.set("weight_decay", 0.1f);
      cases.push_back({.name = of + name,
                       .op = op,
                       .attributes = std::move(attributes),
                       .inputs = std::move(inputs),
                       .outputs = 1 + states,
                       .float64 = false});
    };
    update("", "AdamW", kAdamWScalars, 2);
    update("", "Adam", kAdamWScalars, 2);
    update("plain_", "SGD", kSgdScalars, 0);
    update("", "SGD", kSgdScalars, 1);
    update("nesterov_", "SGD", kSgdScalars, 1, {{"nesterov", int64_t{1}}});
    update("", "Lion", kLionScalars, 1);
    update("", "Lamb", kLambScalars, 2);
    update("plain_", "Lars", kLarsScalars, 0);
    update("", "Lars", kLarsScalars, 1);
    update("", "Adagrad", kAdagradScalars, 1);
    update("", "RMSprop", kRmspropScalars, 1);
    update("momentum_", "RMSprop", kRmspropScalars, 2);
    update("centered_", "RMSprop", kRmspropScalars, 2, {{"centered", int64_t{1}}});
    update("centered_momentum_", "RMSprop", kRmspropScalars, 3, {{"centered", int64_t{1}}});
    cases.push_back({.name = name, .op = "Accumulate", .inputs = {random({n}), random({n})}});
    cases.push_back({.name = name, .op = "Store", .inputs = {floats({n}, std::vector<double>(static_cast<size_t>(n))), random({n})}});
    cases.push_back({.name = name, .op = "Clear", .inputs = {random({n})}, .expected = {std::vector<double>(static_cast<size_t>(n))}});
  }
  cases.push_back({.name = "numbers", .op = "SumSquares", .inputs = {floats({2, 2}, {1, -2, 3, 4})}, .expected = {{30}}});
  cases.push_back({.name = "rows", .op = "SumSquares", .inputs = {random({1000, 700})}});
  cases.push_back({.name = "wide rows", .op = "SumSquares", .inputs = {random({3, 70'000})}});
  cases.push_back({.name = "blocks of rows",  // 64 of them each
                   .op = "SumSquares",
                   .inputs = {floats({130, 1}, std::vector<double>(130, 2.0))},
                   .expected = {{256, 256, 8}}});
  const OpInput nine{.dtype = DType::float64, .shape = {1}, .values = {9}},
      sixteen{.dtype = DType::float64, .shape = {2}, .values = {12, 4}};
  cases.push_back({.name = "two", .op = "GlobalNorm", .inputs = {nine, sixteen}, .float64 = false, .expected = {{5}}});
  cases.push_back({.name = "one", .op = "GlobalNorm", .inputs = {nine}, .float64 = false, .expected = {{3}}});
  std::vector<OpInput> many;
  for (int64_t i = 0; i < 300; ++i) many.push_back({.dtype = DType::float64, .shape = {i == 200 ? 5000 : i % 4}, .low = 0, .high = 1});
  cases.push_back({.name = "many", .op = "GlobalNorm", .inputs = std::move(many), .float64 = false});
  const auto clip = [&](const char* name, double norm, double coefficient) {
    cases.push_back({.name = name,
                     .op = "UpdateFactor",
                     .attributes = {{"max_norm", 2.0f}},
                     .inputs = {floats({}, {norm})},
                     .float64 = false,
                     .expected = {{coefficient}},
                     .ulps = 1});
  };
  clip("above", 8, 2 / (8 + 1e-6));
  clip("below", 1.5, 1);
  clip("zero", 0, 1);
  clip("infinite", kInfinity, std::numeric_limits<double>::quiet_NaN());
  const auto scaled = [&](const char* name, float max_norm, double norm, double scale, double factor) {
    cases.push_back({.name = name,
                     .op = "UpdateFactor",
                     .attributes = {{"max_norm", max_norm}},
                     .inputs = {floats({}, {norm}), floats({}, {scale})},
                     .float64 = false,
                     .expected = {{factor}},
                     .ulps = 1});
  };
  scaled("scaled, above", 2, 8 * 1024, 1024, 2 / (8 + 1e-6) / 1024);
  scaled("scaled, below", 2, 1.5 * 1024, 1024, 1.0 / 1024);
  scaled("scaled by no power of two", 0, 7, 3, 1.0 / 3);
  scaled("scaled, infinite", 0, kInfinity, 1024, std::numeric_limits<double>::quiet_NaN());
  scaled("scaled down, beyond float32", 2, 1e30, 1e-30, std::numeric_limits<double>::quiet_NaN());
}

void dropout_cases(std::vector<OpCase>& cases) {
  const auto add = [&](const char* name, Shape shape, float ratio, std::vector<double> random_numbers, int64_t shared = 0) {
    cases.push_back({.name = name,
                     .op = "Dropout",
                     .attributes = {{"ratio", ratio}, {"ordinal", int64_t{17}}, {"shared", shared}},
                     .inputs = {random(std::move(shape)), ints({kRandomNumbers}, std::move(random_numbers))}});
  };
  add("tenth", {3, 7, 11}, 0.1f, {42, 1, 0, 3});
  add("half", {2, 32771}, 0.5f, {42, 900000, 0, 2});
  add("most", {5, 13}, 0.9f, {-1, 1, 6, 5});
  add("later", {3, 50021}, 0.25f, {7, 3, 1000000, 3});
  add("shared", {4, 9}, 0.3f, {7, 3, 5, 2}, 1);
  add("empty", {0, 9}, 0.3f, {7, 3, 0, 1});
}

}  // namespace

std::vector<OpCase> nn_op_cases() {
  std::vector<OpCase> cases;
  determinant_cases(cases);
  matmul_cases(cases);
  matmul_part_cases(cases);
  attention_cases(cases);
  loss_cases(cases);
  optimizer_cases(cases);
  dropout_cases(cases);
  return cases;
}

}  // namespace ort_train::fixtures
