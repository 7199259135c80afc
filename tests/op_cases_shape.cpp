// Cases of the op test table: data movement, indexing, reductions, comparisons, integer ops.

#include "tests/op_cases.h"

namespace ort_train::testing {
namespace {

using Ints = std::vector<int64_t>;

Attribute text(const char* value) { return std::string(value); }
int64_t number(DType dtype) { return static_cast<int64_t>(dtype); }

OpInput counting(Shape shape) {
  std::vector<double> values(static_cast<size_t>(element_count(shape)));
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
  return floats(std::move(shape), values);
}

void movement_cases(std::vector<OpCase>& cases) {
  cases.insert(cases.end(), {
      {.name = "matrix", .op = "Reshape", .attributes = {{"shape", Ints{3, 2}}}, .inputs = {counting({2, 3})}, .expected = {{0, 1, 2, 3, 4, 5}}},
      {.name = "large", .op = "Reshape", .attributes = {{"shape", Ints{60, 1100}}}, .inputs = {random({600, 110})}},
      {.name = "scalar", .op = "Reshape", .attributes = {{"shape", Ints{}}}, .inputs = {random({1, 1})}},

      {.name = "matrix", .op = "Transpose", .attributes = {{"perm", Ints{1, 0}}}, .inputs = {counting({2, 3})}, .expected = {{0, 3, 1, 4, 2, 5}}},
      {.name = "default_reverses", .op = "Transpose", .inputs = {random({2, 3, 4})}},
      {.name = "heads", .op = "Transpose", .attributes = {{"perm", Ints{0, 2, 1, 3}}}, .inputs = {random({2, 5, 3, 8})}},
      {.name = "keys", .op = "Transpose", .attributes = {{"perm", Ints{0, 2, 3, 1}}}, .inputs = {random({2, 37, 3, 19})}},
      {.name = "channels_last", .op = "Transpose", .attributes = {{"perm", Ints{0, 2, 3, 1}}}, .inputs = {random({2, 9, 5, 7})}},
      {.name = "blocks", .op = "Transpose", .attributes = {{"perm", Ints{1, 0}}}, .inputs = {random({70, 131})}},
      {.name = "all_axes", .op = "Transpose", .attributes = {{"perm", Ints{2, 0, 3, 1}}}, .inputs = {random({3, 4, 5, 6})}},
      {.name = "bytes", .op = "Transpose", .attributes = {{"perm", Ints{1, 0}}}, .inputs = {bools({2, 3}, {1, 0, 0, 1, 1, 0})}, .expected = {{1, 1, 0, 1, 0, 0}}},

      {.name = "middle", .op = "Concat", .attributes = {{"axis", int64_t{1}}}, .inputs = {random({2, 3, 4}), random({2, 1, 4}), random({2, 5, 4})}},
      {.name = "last", .op = "Concat", .attributes = {{"axis", int64_t{1}}}, .inputs = {counting({2, 2}), floats({2, 1}, {8, 9})}, .expected = {{0, 1, 8, 2, 3, 9}}},
      {.name = "empty_part", .op = "Concat", .attributes = {{"axis", int64_t{0}}}, .inputs = {random({2, 3}), random({0, 3}), random({1, 3})}},
      {.name = "one_side", .op = "Concat", .attributes = {{"axis", int64_t{0}}}, .inputs = {random({2, 3}), fixed(random({4, 3})), random({1, 3})}},
      {.name = "integers", .op = "Concat", .attributes = {{"axis", int64_t{0}}}, .inputs = {ints({2}, {1, 2}), ints({1}, {-3})}, .expected = {{1, 2, -3}}},

      {.name = "heads", .op = "Split", .attributes = {{"axis", int64_t{2}}, {"split", Ints{4, 4, 4}}}, .inputs = {random({2, 3, 12})}, .outputs = 3},
      {.name = "uneven", .op = "Split", .attributes = {{"axis", int64_t{0}}, {"split", Ints{1, 2, 0}}}, .inputs = {counting({3, 2})}, .outputs = 3,
       .expected = {{0, 1}, {2, 3, 4, 5}, {}}},
      {.name = "one_output_used", .op = "Split", .attributes = {{"axis", int64_t{1}}, {"split", Ints{2, 3}}}, .inputs = {random({4, 5})}, .outputs = 2, .project = {1}},

      {.name = "inside", .op = "Slice",
       .attributes = {{"starts", Ints{1, 0}}, {"ends", Ints{3, 2}}, {"axes", Ints{0, 1}}, {"steps", Ints{1, 1}}}, .inputs = {counting({4, 3})},
       .expected = {{3, 4, 6, 7}}},
      {.name = "steps", .op = "Slice",
       .attributes = {{"starts", Ints{4, 1}}, {"ends", Ints{-1, 6}}, {"axes", Ints{0, 2}}, {"steps", Ints{-2, 3}}}, .inputs = {random({5, 2, 7})}},
      {.name = "reversed", .op = "Slice", .attributes = {{"starts", Ints{2}}, {"ends", Ints{-1}}, {"axes", Ints{0}}, {"steps", Ints{-1}}}, .inputs = {counting({3})},
       .expected = {{2, 1, 0}}},
      {.name = "half_of_last", .op = "Slice", .attributes = {{"starts", Ints{8}}, {"ends", Ints{16}}, {"axes", Ints{3}}}, .inputs = {random({2, 3, 5, 16})}},
      {.name = "nothing", .op = "Slice", .attributes = {{"starts", Ints{2}}, {"ends", Ints{1}}, {"axes", Ints{0}}}, .inputs = {random({3, 2})}},

      {.name = "inside", .op = "SliceGrad", .attributes = {{"starts", Ints{1, 0}}, {"ends", Ints{2, 2}}, {"axes", Ints{0, 1}}, {"shape", Shape{3, 3}}},
       .inputs = {floats({1, 2}, {5, 6})}, .expected = {{0, 0, 0, 5, 6, 0, 0, 0, 0}}},
      {.name = "steps", .op = "SliceGrad", .attributes = {{"starts", Ints{4}}, {"ends", Ints{-1}}, {"axes", Ints{0}}, {"steps", Ints{-2}}, {"shape", Shape{5}}},
       .inputs = {floats({3}, {5, 6, 7})}, .expected = {{7, 0, 6, 0, 5}}},

      {.name = "constant", .op = "Pad", .attributes = {{"pads", Ints{1, 0, 0, 2}}}, .inputs = {counting({2, 2}), fixed(floats({}, {9}))},
       .expected = {{9, 9, 9, 9, 0, 1, 9, 9, 2, 3, 9, 9}}},
      {.name = "crops", .op = "Pad", .attributes = {{"pads", Ints{-1, 2, 1, -1}}}, .inputs = {random({4, 5})}},
      {.name = "crops_middle", .op = "Pad", .attributes = {{"pads", Ints{0, -1, 1, 0, 0, 2, 0, -1}}}, .inputs = {random({2, 4, 3, 5})}},
      {.name = "reflect", .op = "Pad", .attributes = {{"pads", Ints{0, 2, 0, 4}}, {"mode", text("reflect")}}, .inputs = {counting({2, 3})},
       .expected = {{2, 1, 0, 1, 2, 1, 0, 1, 2, 5, 4, 3, 4, 5, 4, 3, 4, 5}}},
      {.name = "edge", .op = "Pad", .attributes = {{"pads", Ints{1, 2, 2, 0}}, {"mode", text("edge")}}, .inputs = {random({3, 4})}},
      {.name = "wrap", .op = "Pad", .attributes = {{"pads", Ints{0, 0, 1, 0, 0, 2}}, {"mode", text("wrap")}}, .inputs = {random({2, 3, 4})}},

      {.name = "reflect", .op = "PadGrad", .attributes = {{"pads", Ints{2, 1}}, {"mode", text("reflect")}, {"shape", Shape{3}}},
       .inputs = {floats({6}, {1, 2, 4, 8, 16, 32})}, .expected = {{4, 42, 17}}},

      {.name = "rows", .op = "Expand", .attributes = {{"shape", Shape{2, 3}}}, .inputs = {counting({3})}, .expected = {{0, 1, 2, 0, 1, 2}}},
      {.name = "inner", .op = "Expand", .attributes = {{"shape", Shape{4, 3, 5}}}, .inputs = {random({4, 3, 1})}},
      {.name = "middle", .op = "Expand", .attributes = {{"shape", Shape{2, 3, 4, 5}}}, .inputs = {random({2, 3, 1, 5})}},
      {.name = "scalar", .op = "Expand", .attributes = {{"shape", Shape{3, 2}}}, .inputs = {random({})}},

      {.name = "matrix", .op = "Tile", .attributes = {{"repeats", Ints{2, 2}}}, .inputs = {counting({1, 2})}, .expected = {{0, 1, 0, 1, 0, 1, 0, 1}}},
      {.name = "three_axes", .op = "Tile", .attributes = {{"repeats", Ints{2, 1, 3}}}, .inputs = {random({2, 3, 4})}},
  });
}

void index_cases(std::vector<OpCase>& cases) {
  cases.insert(cases.end(), {
      {.name = "rows", .op = "Gather", .attributes = {{"axis", int64_t{0}}}, .inputs = {counting({3, 2}), ints({2, 2}, {2, 0, -1, 2})},
       .expected = {{4, 5, 0, 1, 4, 5, 4, 5}}},
      {.name = "embedding", .op = "Gather", .attributes = {{"axis", int64_t{0}}}, .inputs = {random({300, 96}), random_ints({4, 7}, -300, 299)}},
      {.name = "characters", .op = "Gather", .attributes = {{"axis", int64_t{0}}}, .inputs = {random({5, 70}), random_ints({3, 20}, 0, 4, DType::int32)}},
      {.name = "columns", .op = "Gather", .attributes = {{"axis", int64_t{1}}}, .inputs = {random({3, 5, 4}), ints({3}, {4, 0, 4}, DType::int32)}},
      {.name = "one_position", .op = "Gather", .attributes = {{"axis", int64_t{1}}}, .inputs = {random({3, 5, 4}), ints({}, {0})}},
      {.name = "last_axis", .op = "Gather", .attributes = {{"axis", int64_t{1}}}, .inputs = {random({6, 5}), ints({2}, {1, -5})}},

      {.name = "repeated", .op = "GatherGrad", .attributes = {{"axis", int64_t{0}}, {"shape", Shape{3, 2}}}, .inputs = {counting({4, 2}), ints({4}, {2, 0, -1, 2})},
       .expected = {{2, 3, 0, 0, 10, 13}}},
      {.name = "few_rows", .op = "GatherGrad", .attributes = {{"axis", int64_t{0}}, {"shape", Shape{3, 200}}}, .inputs = {random({500, 200}), random_ints({500}, 0, 2)}},
      {.name = "many_rows", .op = "GatherGrad", .attributes = {{"axis", int64_t{0}}, {"shape", Shape{5000, 200}}}, .inputs = {random({300, 200}), random_ints({300}, 0, 4999)}},

      {.name = "last", .op = "GatherElements", .attributes = {{"axis", int64_t{1}}}, .inputs = {counting({2, 2}), ints({2, 2}, {0, 0, 1, -2})},
       .expected = {{0, 0, 3, 2}}},
      {.name = "first_smaller", .op = "GatherElements", .attributes = {{"axis", int64_t{0}}}, .inputs = {random({3, 4, 5}), random_ints({2, 4, 3}, -3, 2)}},
      {.name = "middle", .op = "GatherElements", .attributes = {{"axis", int64_t{1}}}, .inputs = {random({3, 4, 5}), random_ints({3, 9, 5}, 0, 3, DType::int32)}},

      {.name = "elements", .op = "GatherND", .inputs = {counting({2, 2}), ints({2, 2}, {0, 0, 1, -1})}, .expected = {{0, 3}}},
      {.name = "slices", .op = "GatherND", .inputs = {random({3, 4, 5}), random_ints({6, 1}, 0, 2)}},
      {.name = "batches", .op = "GatherND", .attributes = {{"batch_dims", int64_t{1}}}, .inputs = {random({2, 3, 4}), random_ints({2, 5, 1}, -3, 2)}},
      {.name = "two_batches", .op = "GatherND", .attributes = {{"batch_dims", int64_t{2}}}, .inputs = {random({2, 3, 4, 2}), random_ints({2, 3, 1}, 0, 3)}},

      {.name = "repeated", .op = "GatherNDGrad", .attributes = {{"shape", Shape{2, 2}}}, .inputs = {floats({3}, {1, 2, 4}), ints({3, 2}, {0, 1, 1, 0, -2, 1})},
       .expected = {{0, 5, 2, 0}}},
      {.name = "batches", .op = "GatherNDGrad", .attributes = {{"batch_dims", int64_t{1}}, {"shape", Shape{2, 3, 4}}},
       .inputs = {random({2, 5, 4}), random_ints({2, 5, 1}, 0, 2)}},

      {.name = "replaces", .op = "ScatterElements", .attributes = {{"axis", int64_t{0}}},
       .inputs = {counting({3, 2}), ints({2, 2}, {1, 0, -1, 2}), floats({2, 2}, {10, 20, 30, 40})}, .expected = {{0, 20, 10, 3, 30, 40}}},
      {.name = "adds", .op = "ScatterElements", .attributes = {{"axis", int64_t{1}}, {"reduction", text("add")}},
       .inputs = {random({3, 4, 5}), random_ints({3, 7, 4}, -4, 3), random({3, 7, 4})}},
      {.name = "adds_rows", .op = "ScatterElements", .attributes = {{"axis", int64_t{1}}, {"reduction", text("add")}},
       .inputs = {random({40, 30}), random_ints({40, 100}, 0, 29), random({40, 100})}},
      {.name = "maximum", .op = "ScatterElementsReduce", .attributes = {{"axis", int64_t{1}}, {"reduction", text("max")}},
       .inputs = {floats({1, 3}, {5, 5, 5}), ints({1, 4}, {0, 1, 1, 2}), floats({1, 4}, {7, 1, 6, 5})}, .expected = {{7, 6, 5}}},
      {.name = "products", .op = "ScatterElementsReduce", .attributes = {{"axis", int64_t{0}}, {"reduction", text("mul")}},
       .inputs = {ints({2}, {3, 5}), ints({3}, {0, 0, 1}), ints({3}, {2, 7, -1})}, .expected = {{42, -5}}},

      {.name = "rows", .op = "ScatterND", .inputs = {counting({3, 2}), ints({2, 1}, {2, 0}), floats({2, 2}, {10, 20, 30, 40})}, .expected = {{30, 40, 2, 3, 10, 20}}},
      {.name = "elements", .op = "ScatterND", .inputs = {random({4, 5}), ints({3, 2}, {0, 1, 3, -1, 2, 2}), random({3})}},
      {.name = "adds", .op = "ScatterND", .attributes = {{"reduction", text("add")}}, .inputs = {random({6, 70}), random_ints({20, 1}, -6, 5), random({20, 70})}},
      {.name = "booleans", .op = "ScatterND", .inputs = {bools({3}, {0, 0, 0}), ints({1, 1}, {1}), bools({1}, {1})}, .expected = {{0, 1, 0}}},
      {.name = "minimum", .op = "ScatterNDReduce", .attributes = {{"reduction", text("min")}},
       .inputs = {floats({3}, {5, 5, 5}), ints({3, 1}, {0, 1, 1}), floats({3}, {7, 1, 6})}, .expected = {{5, 1, 5}}},

      {.name = "integers", .op = "Range", .inputs = {constant(ints({}, {10})), constant(ints({}, {3})), constant(ints({}, {-3}))}, .expected = {{10, 7, 4}}},
      {.name = "empty", .op = "Range", .inputs = {constant(ints({}, {1})), constant(ints({}, {1})), constant(ints({}, {2}))}},
      {.name = "numbers", .op = "Range", .inputs = {constant(fixed(floats({}, {1}))), constant(fixed(floats({}, {2.2}))), constant(fixed(floats({}, {0.5})))},
       .expected = {{1, 1.5, 2}}},

      {.name = "sevens", .op = "ConstantOfShape", .attributes = {{"shape", Shape{2, 2}}, {"value", make_tensor<int64_t>({1}, {7})}}, .float64 = false, .expected = {{7, 7, 7, 7}}},
      {.name = "zeros", .op = "ConstantOfShape", .attributes = {{"shape", Shape{3}}}, .float64 = false, .expected = {{0, 0, 0}}},

      {.name = "last", .op = "OneHot", .attributes = {{"axis", int64_t{-1}}, {"depth", int64_t{3}}},
       .inputs = {ints({4}, {0, -1, 3, 1}), fixed(floats({2}, {2, 5}))}, .expected = {{5, 2, 2, 2, 2, 5, 2, 2, 2, 2, 5, 2}}},
      {.name = "first", .op = "OneHot", .attributes = {{"axis", int64_t{0}}, {"depth", int64_t{2}}}, .inputs = {ints({3}, {0, 1, 0}, DType::int32), ints({2}, {0, 1})},
       .expected = {{1, 0, 1, 0, 1, 0}}},

      {.name = "matrix", .op = "NonZero", .inputs = {constant(ints({2, 3}, {0, 4, 0, 5, 0, 6}))}, .expected = {{0, 1, 1, 1, 0, 2}}},
      {.name = "numbers", .op = "NonZero", .inputs = {constant(fixed(floats({4}, {-0.0, 2, 0, -1})))}, .expected = {{1, 3}}},

      {.name = "upper", .op = "Trilu", .attributes = {{"upper", int64_t{1}}, {"k", int64_t{1}}}, .inputs = {counting({3, 3})}, .expected = {{0, 1, 2, 0, 0, 5, 0, 0, 0}}},
      {.name = "lower", .op = "Trilu", .attributes = {{"upper", int64_t{0}}, {"k", int64_t{-1}}}, .inputs = {random({2, 4, 5})}},
      {.name = "lower_bools", .op = "Trilu", .attributes = {{"upper", int64_t{0}}}, .inputs = {bools({2, 3}, {1, 1, 1, 1, 1, 1})}, .expected = {{1, 0, 0, 1, 1, 0}}},
      {.name = "far_off", .op = "Trilu", .attributes = {{"upper", int64_t{1}}, {"k", int64_t{50}}}, .inputs = {floats({2, 2}, {1, 2, 3, 4})}, .expected = {{0, 0, 0, 0}}},

      {.name = "plain", .op = "CumSum", .attributes = {{"axis", int64_t{0}}}, .inputs = {ints({4}, {1, 2, 3, 4})}, .expected = {{1, 3, 6, 10}}},
      {.name = "exclusive", .op = "CumSum", .attributes = {{"axis", int64_t{1}}, {"exclusive", int64_t{1}}}, .inputs = {floats({2, 3}, {1, 2, 3, 4, 5, 6})},
       .expected = {{0, 1, 3, 0, 4, 9}}},
      {.name = "reverse", .op = "CumSum", .attributes = {{"axis", int64_t{1}}, {"reverse", int64_t{1}}}, .inputs = {random({3, 40, 7})}},
      {.name = "both", .op = "CumSum", .attributes = {{"axis", int64_t{0}}, {"exclusive", int64_t{1}}, {"reverse", int64_t{1}}}, .inputs = {random({9, 150})}},

      {.name = "last", .op = "ArgMax", .attributes = {{"axis", int64_t{1}}, {"keepdims", int64_t{0}}}, .inputs = {fixed(floats({2, 3}, {1, 3, 3, 2, 0, 1}))}, .expected = {{1, 0}}},
      {.name = "last_of_equals", .op = "ArgMax", .attributes = {{"axis", int64_t{1}}, {"select_last_index", int64_t{1}}}, .inputs = {fixed(floats({2, 3}, {1, 3, 3, 2, 0, 1}))},
       .expected = {{2, 0}}},
      {.name = "first_axis", .op = "ArgMax", .attributes = {{"axis", int64_t{0}}}, .inputs = {fixed(floats({2, 3}, {1, 3, 3, 2, 0, 4}))}, .expected = {{1, 0, 1}}},
      {.name = "integers", .op = "ArgMin", .attributes = {{"axis", int64_t{0}}}, .inputs = {ints({4}, {3, -1, -1, 7})}, .expected = {{1}}},

      {.name = "largest", .op = "TopK", .attributes = {{"axis", int64_t{1}}, {"k", int64_t{2}}}, .inputs = {floats({2, 4}, {1, 4, 2, 4, 0, -1, -2, -3})}, .outputs = 2,
       .gradient = false, .expected = {{4, 4, 0, -1}, {1, 3, 0, 1}}},
      {.name = "smallest_middle", .op = "TopK", .attributes = {{"axis", int64_t{1}}, {"k", int64_t{3}}, {"largest", int64_t{0}}}, .inputs = {random({3, 8, 5})}, .outputs = 2},
  });
}

void choice_cases(std::vector<OpCase>& cases) {
  const OpInput a = fixed(floats({2, 3}, {1, 2, 3, 4, 5, 6})), b = fixed(floats({3}, {1, 5, 3}));
  const OpInput p = bools({4}, {0, 0, 1, 1}), q = bools({4}, {0, 1, 0, 1});
  cases.insert(cases.end(), {
      {.name = "rows", .op = "Equal", .inputs = {a, b}, .expected = {{1, 0, 1, 0, 1, 0}}},
      {.name = "integers", .op = "Equal", .inputs = {ints({3}, {1, 2, 3}), ints({}, {2})}, .expected = {{0, 1, 0}}},
      {.name = "bools", .op = "Equal", .inputs = {p, q}, .expected = {{1, 0, 0, 1}}},
      {.name = "rows", .op = "Greater", .inputs = {a, b}, .expected = {{0, 0, 0, 1, 0, 1}}},
      {.name = "rows", .op = "GreaterOrEqual", .inputs = {a, b}, .expected = {{1, 0, 1, 1, 1, 1}}},
      {.name = "rows", .op = "Less", .inputs = {a, b}, .expected = {{0, 1, 0, 0, 0, 0}}},
      {.name = "columns", .op = "Less", .inputs = {ints({2, 1}, {1, 3}, DType::int32), ints({1, 3}, {1, 2, 4}, DType::int32)}, .expected = {{0, 1, 1, 0, 0, 1}}},
      {.name = "rows", .op = "LessOrEqual", .inputs = {a, b}, .expected = {{1, 1, 1, 0, 1, 0}}},
      {.name = "table", .op = "And", .inputs = {p, q}, .expected = {{0, 0, 0, 1}}},
      {.name = "table", .op = "Or", .inputs = {p, q}, .expected = {{0, 1, 1, 1}}},
      {.name = "table", .op = "Xor", .inputs = {p, q}, .expected = {{0, 1, 1, 0}}},
      {.name = "outer", .op = "And", .inputs = {bools({2, 1}, {0, 1}), bools({3}, {1, 0, 1})}, .expected = {{0, 0, 0, 1, 0, 1}}},
      {.name = "table", .op = "Not", .inputs = {p}, .expected = {{1, 1, 0, 0}}},
      {.name = "integers", .op = "Mod", .inputs = {ints({6}, {-4, 7, 5, 4, -7, 8}), ints({6}, {2, -3, 8, -2, 3, 5})}, .expected = {{0, -2, 5, 0, 2, 3}}},
      {.name = "integers_fmod", .op = "Mod", .attributes = {{"fmod", int64_t{1}}}, .inputs = {ints({6}, {-4, 7, 5, 4, -7, 8}), ints({6}, {2, -3, 8, -2, 3, 5})},
       .expected = {{0, 1, 5, 0, -1, 3}}},
      {.name = "numbers", .op = "Mod", .attributes = {{"fmod", int64_t{1}}}, .inputs = {floats({3, 2}, {5.5, -7.25, 3.0, 9.5, -2.5, 1.25}), floats({2}, {2.0, -3.0})},
       .expected = {{1.5, -1.25, 1, 0.5, -0.5, 1.25}}},

      {.name = "mask", .op = "Where", .inputs = {bools({2, 2}, {1, 0, 0, 1}), counting({2, 2}), floats({}, {-9})}, .expected = {{0, -9, -9, 3}}},
      {.name = "all_broadcast", .op = "Where", .inputs = {random_bools({3, 1, 5}), random({4, 5}), random({2, 3, 1, 1})}},
      {.name = "same_shape", .op = "Where", .inputs = {random_bools({40, 50}), random({40, 50}), random({40, 50})}},
      {.name = "integers", .op = "Where", .inputs = {bools({2}, {1, 0}), ints({2}, {1, 2}), ints({1}, {7})}, .expected = {{1, 7}}},

      {.name = "same_type", .op = "Cast", .attributes = {{"to", number(DType::float32)}}, .inputs = {random({17})}, .attributes64 = Attributes{{"to", number(DType::float64)}}},
      {.name = "integers_to_float", .op = "Cast", .attributes = {{"to", number(DType::float32)}}, .inputs = {ints({3}, {-2, 0, 16777217})}, .float64 = false,
       .expected = {{-2, 0, 16777216}}},
      {.name = "float_to_integers", .op = "Cast", .attributes = {{"to", number(DType::int64)}}, .inputs = {fixed(floats({4}, {-1.7, 0.5, 2.99, 1e6}))}, .expected = {{-1, 0, 2, 1000000}}},
      {.name = "float_to_bool", .op = "Cast", .attributes = {{"to", number(DType::boolean)}}, .inputs = {fixed(floats({4}, {-1.7, 0, 0.25, -0.0}))}, .expected = {{1, 0, 1, 0}}},
      {.name = "bool_to_float", .op = "Cast", .attributes = {{"to", number(DType::float32)}}, .inputs = {bools({2}, {1, 0})}, .float64 = false, .expected = {{1, 0}}},
      {.name = "narrow", .op = "Cast", .attributes = {{"to", number(DType::int8)}}, .inputs = {ints({3}, {-128, 5, 127})}, .expected = {{-128, 5, 127}}},
  });
}

void reduction_cases(std::vector<OpCase>& cases) {
  const Attributes last{{"axes", Ints{1}}, {"keepdims", int64_t{0}}}, first{{"axes", Ints{0}}, {"keepdims", int64_t{1}}}, none{{"axes", Ints{}}};
  const Attributes outer{{"axes", Ints{0, 2}}, {"keepdims", int64_t{0}}}, all{{"axes", Ints{0, 1, 2}}, {"keepdims", int64_t{0}}};
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare"}) {
    cases.insert(cases.end(), {
        {.name = "last", .op = op, .attributes = last, .inputs = {random({5, 40}, 0.5, 1.5)}},
        {.name = "first", .op = op, .attributes = first, .inputs = {random({70, 33}, 0.5, 1.5)}, .tolerance = 2e-6},
        {.name = "outer_and_inner", .op = op, .attributes = outer, .inputs = {random({3, 4, 7}, 0.5, 1.5)}},
        {.name = "everything", .op = op, .attributes = all, .inputs = {random({3, 4, 5}, 0.8, 1.2)}},
        {.name = "nothing", .op = op, .attributes = none, .inputs = {random({3, 4}, 0.5, 1.5)}},
    });
  }
  cases.insert(cases.end(), {
      {.name = "exact", .op = "ReduceSum", .attributes = last, .inputs = {counting({2, 3})}, .expected = {{3, 12}}},
      {.name = "bias", .op = "ReduceSum", .attributes = first, .inputs = {random({600, 300})}, .tolerance = 1e-6, .gradient = false},
      {.name = "pieces_of_rows", .op = "ReduceSum", .attributes = {{"axes", Ints{1}}}, .inputs = {random({2, 100003})}, .tolerance = 1e-6, .gradient = false},
      {.name = "pieces_of_everything", .op = "ReduceMean", .attributes = all, .inputs = {random({8, 256, 65}, 0, 1)}, .tolerance = 1e-7, .gradient = false},
      {.name = "pieces_of_axes", .op = "ReduceSum", .attributes = outer, .inputs = {random({500, 3, 300})}, .tolerance = 1e-6, .gradient = false},
      {.name = "empty", .op = "ReduceSum", .attributes = last, .inputs = {random({2, 0})}, .expected = {{0, 0}}},
      {.name = "integers", .op = "ReduceSum", .attributes = last, .inputs = {ints({2, 2}, {1, 2, -3, 4})}, .expected = {{3, 1}}},
      {.name = "integers", .op = "ReduceMean", .attributes = last, .inputs = {ints({2, 2}, {1, 2, 4, 8}, DType::int32)}, .expected = {{1, 6}}},
      {.name = "integers", .op = "ReduceProd", .attributes = last, .inputs = {ints({2, 2}, {3, -2, 4, 8})}, .expected = {{-6, 32}}},
      {.name = "integers", .op = "ReduceMax", .attributes = first, .inputs = {ints({2, 2}, {3, -2, -4, -1})}, .expected = {{3, -1}}},
      {.name = "bools", .op = "ReduceMin", .attributes = last, .inputs = {bools({2, 2}, {1, 1, 1, 0})}, .expected = {{1, 0}}},
      {.name = "zero", .op = "ReduceProd", .attributes = last, .inputs = {floats({3, 3}, {1, 0, 2, 0, 3, 0, 4, 5, 6})}, .expected = {{0, 0, 120}}},
      {.name = "of_zeros", .op = "ReduceProdGrad", .attributes = last, .inputs = {floats({2}, {1, 10}), floats({2, 3}, {3, 0, 2, 0, 3, 0})}, .expected = {{0, 6, 0, 0, 0, 0}}},
      {.name = "middle", .op = "ReduceProdGrad", .attributes = {{"axes", Ints{1}}, {"keepdims", int64_t{1}}}, .inputs = {random({2, 1, 3}), random({2, 4, 3})}},
  });
}

}  // namespace

std::vector<OpCase> shape_op_cases() {
  std::vector<OpCase> cases;
  movement_cases(cases);
  index_cases(cases);
  choice_cases(cases);
  reduction_cases(cases);
  return cases;
}

}  // namespace ort_train::testing
