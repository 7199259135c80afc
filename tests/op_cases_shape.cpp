// Cases of the op test table: data movement, reductions, comparisons, integer ops.

#include <fmt/format.h>

#include "tests/op_cases.h"

namespace ort_train::fixtures {
namespace {

using Ints = std::vector<int64_t>;

int64_t number(DType dtype) { return static_cast<int64_t>(dtype); }

void movement_cases(std::vector<OpCase>& cases) {
  cases.insert(
      cases.end(),
      {
          {.name = "matrix",
           .op = "Reshape",
           .attributes = {{"shape", Ints{3, 2}}},
           .inputs = {counting({2, 3})},
           .expected = {{0, 1, 2, 3, 4, 5}}},
          {.name = "large", .op = "Reshape", .attributes = {{"shape", Ints{60, 1100}}}, .inputs = {random({600, 110})}},
          {.name = "scalar", .op = "Reshape", .attributes = {{"shape", Ints{}}}, .inputs = {random({1, 1})}},

          {.name = "matrix",
           .op = "Transpose",
           .attributes = {{"perm", Ints{1, 0}}},
           .inputs = {counting({2, 3})},
           .expected = {{0, 3, 1, 4, 2, 5}}},
          {.name = "default_reverses", .op = "Transpose", .inputs = {random({2, 3, 4})}},
          {.name = "heads", .op = "Transpose", .attributes = {{"perm", Ints{0, 2, 1, 3}}}, .inputs = {random({2, 5, 3, 8})}},
          {.name = "keys", .op = "Transpose", .attributes = {{"perm", Ints{0, 2, 3, 1}}}, .inputs = {random({2, 37, 3, 19})}},
          {.name = "channels_last", .op = "Transpose", .attributes = {{"perm", Ints{0, 2, 3, 1}}}, .inputs = {random({2, 9, 5, 7})}},
          {.name = "blocks", .op = "Transpose", .attributes = {{"perm", Ints{1, 0}}}, .inputs = {random({70, 131})}},
          {.name = "all_axes", .op = "Transpose", .attributes = {{"perm", Ints{2, 0, 3, 1}}}, .inputs = {random({3, 4, 5, 6})}},
          {.name = "bytes",
           .op = "Transpose",
           .attributes = {{"perm", Ints{1, 0}}},
           .inputs = {bools({2, 3}, {1, 0, 0, 1, 1, 0})},
           .expected = {{1, 1, 0, 1, 0, 0}}},

          {.name = "several_tiles",
           .op = "Transpose",
           .attributes = {{"perm", Ints{0, 2, 1}}},
           .inputs = {random({3, 150, 203})},
           .gradient = false},
          {.name = "wide_of_bytes",
           .op = "Transpose",
           .attributes = {{"perm", Ints{1, 0}}},
           .inputs = {random_ints({301, 77}, 0, 255, DType::uint8)}},
          {.name = "wide_of_int16",
           .op = "Transpose",
           .attributes = {{"perm", Ints{0, 2, 1}}},
           .inputs = {random_ints({2, 277, 301}, -30000, 30000, DType::int16)}},
          {.name = "wide_of_int64", .op = "Transpose", .attributes = {{"perm", Ints{1, 0}}}, .inputs = {random_ints({45, 97}, -9, 9)}},
          {.name = "few_rows",
           .op = "Transpose",
           .attributes = {{"perm", Ints{0, 2, 1}}},
           .inputs = {random({2, 1300, 3})},
           .gradient = false},
          {.name = "few_columns",
           .op = "Transpose",
           .attributes = {{"perm", Ints{0, 2, 1}}},
           .inputs = {random({2, 5, 1300})},
           .gradient = false},
          {.name = "two_columns_of_bytes",
           .op = "Transpose",
           .attributes = {{"perm", Ints{1, 0}}},
           .inputs = {random_ints({2, 5000}, 0, 255, DType::uint8)}},
          {.name = "pairs", .op = "Transpose", .attributes = {{"perm", Ints{1, 0, 2}}}, .inputs = {random({33, 70, 2})}, .gradient = false},
          {.name = "long_heads",
           .op = "Transpose",
           .attributes = {{"perm", Ints{0, 2, 1, 3}}},
           .inputs = {random({2, 65, 12, 64})},
           .gradient = false},

          {.name = "middle",
           .op = "Concat",
           .attributes = {{"axis", int64_t{1}}},
           .inputs = {random({2, 3, 4}), random({2, 1, 4}), random({2, 5, 4})}},
          {.name = "last",
           .op = "Concat",
           .attributes = {{"axis", int64_t{1}}},
           .inputs = {counting({2, 2}), floats({2, 1}, {8, 9})},
           .expected = {{0, 1, 8, 2, 3, 9}}},
          {.name = "empty_part",
           .op = "Concat",
           .attributes = {{"axis", int64_t{0}}},
           .inputs = {random({2, 3}), random({0, 3}), random({1, 3})}},
          {.name = "one_side",
           .op = "Concat",
           .attributes = {{"axis", int64_t{0}}},
           .inputs = {random({2, 3}), fixed(random({4, 3})), random({1, 3})}},
          {.name = "integers",
           .op = "Concat",
           .attributes = {{"axis", int64_t{0}}},
           .inputs = {ints({2}, {1, 2}), ints({1}, {-3})},
           .expected = {{1, 2, -3}}},

          {.name = "many",
           .op = "Concat",
           .attributes = {{"axis", int64_t{1}}},
           .inputs = std::vector<OpInput>(70, random({3, 4, 2})),
           .gradient = false},
          {.name = "wide",
           .op = "Concat",
           .attributes = {{"axis", int64_t{1}}},
           .inputs = {random({37, 64, 2}), random({37, 100, 2}), random({37, 8, 2})},
           .gradient = false},

          {.name = "heads",
           .op = "Split",
           .attributes = {{"axis", int64_t{2}}, {"split", Ints{4, 4, 4}}},
           .inputs = {random({2, 3, 12})},
           .outputs = 3},
          {.name = "uneven",
           .op = "Split",
           .attributes = {{"axis", int64_t{0}}, {"split", Ints{1, 2, 0}}},
           .inputs = {counting({3, 2})},
           .outputs = 3,
           .expected = {{0, 1}, {2, 3, 4, 5}, {}}},
          {.name = "one_output_used",
           .op = "Split",
           .attributes = {{"axis", int64_t{1}}, {"split", Ints{2, 3}}},
           .inputs = {random({4, 5})},
           .outputs = 2,
           .project = {1}},

          {.name = "inside",
           .op = "Slice",
           .attributes = {{"starts", Ints{1, 0}}, {"ends", Ints{3, 2}}, {"axes", Ints{0, 1}}, {"steps", Ints{1, 1}}},
           .inputs = {counting({4, 3})},
           .expected = {{3, 4, 6, 7}}},
          {.name = "steps",
           .op = "Slice",
           .attributes = {{"starts", Ints{4, 1}}, {"ends", Ints{-1, 6}}, {"axes", Ints{0, 2}}, {"steps", Ints{-2, 3}}},
           .inputs = {random({5, 2, 7})}},
          {.name = "reversed",
           .op = "Slice",
           .attributes = {{"starts", Ints{2}}, {"ends", Ints{-1}}, {"axes", Ints{0}}, {"steps", Ints{-1}}},
           .inputs = {counting({3})},
           .expected = {{2, 1, 0}}},
          {.name = "half_of_last",
           .op = "Slice",
           .attributes = {{"starts", Ints{8}}, {"ends", Ints{16}}, {"axes", Ints{3}}},
           .inputs = {random({2, 3, 5, 16})}},
          {.name = "channels_reversed",
           .op = "Slice",
           .attributes = {{"starts", Ints{2, 60}}, {"ends", Ints{-1, 3}}, {"axes", Ints{1, 2}}, {"steps", Ints{-1, -2}}},
           .inputs = {random({5, 3, 64, 9})},
           .gradient = false},
          {.name = "nothing",
           .op = "Slice",
           .attributes = {{"starts", Ints{2}}, {"ends", Ints{1}}, {"axes", Ints{0}}},
           .inputs = {random({3, 2})}},

          {.name = "inside",
           .op = "SliceGrad",
           .attributes = {{"starts", Ints{1, 0}}, {"ends", Ints{2, 2}}, {"axes", Ints{0, 1}}, {"shape", Shape{3, 3}}},
           .inputs = {floats({1, 2}, {5, 6})},
           .expected = {{0, 0, 0, 5, 6, 0, 0, 0, 0}}},
          {.name = "steps",
           .op = "SliceGrad",
           .attributes = {{"starts", Ints{4}}, {"ends", Ints{-1}}, {"axes", Ints{0}}, {"steps", Ints{-2}}, {"shape", Shape{5}}},
           .inputs = {floats({3}, {5, 6, 7})},
           .expected = {{7, 0, 6, 0, 5}}},

          {.name = "constant",
           .op = "Pad",
           .attributes = {{"pads", Ints{1, 0, 0, 2}}},
           .inputs = {counting({2, 2}), fixed(floats({}, {9}))},
           .expected = {{9, 9, 9, 9, 0, 1, 9, 9, 2, 3, 9, 9}}},
          {.name = "crops", .op = "Pad", .attributes = {{"pads", Ints{-1, 2, 1, -1}}}, .inputs = {random({4, 5})}},
          {.name = "crops_middle", .op = "Pad", .attributes = {{"pads", Ints{0, -1, 1, 0, 0, 2, 0, -1}}}, .inputs = {random({2, 4, 3, 5})}},
          {.name = "reflect",
           .op = "Pad",
           .attributes = {{"pads", Ints{0, 2, 0, 4}}, {"mode", text("reflect")}},
           .inputs = {counting({2, 3})},
           .expected = {{2, 1, 0, 1, 2, 1, 0, 1, 2, 5, 4, 3, 4, 5, 4, 3, 4, 5}}},
          {.name = "edge", .op = "Pad", .attributes = {{"pads", Ints{1, 2, 2, 0}}, {"mode", text("edge")}}, .inputs = {random({3, 4})}},
          {.name = "wrap",
           .op = "Pad",
           .attributes = {{"pads", Ints{0, 0, 1, 0, 0, 2}}, {"mode", text("wrap")}},
           .inputs = {random({2, 3, 4})}},

          {.name = "turns_back",
           .op = "Pad",
           .attributes = {{"pads", Ints{0, 9, 3, 0, 4, 11}}, {"mode", text("reflect")}},
           .inputs = {random({2, 4, 5})}},
          {.name = "turns_around",
           .op = "Pad",
           .attributes = {{"pads", Ints{5, 0, 7, 9, 0, -2}}, {"mode", text("wrap")}},
           .inputs = {random({3, 4, 5})}},
          {.name = "of_one_element",
           .op = "Pad",
           .attributes = {{"pads", Ints{2, 0, 3, 1}}, {"mode", text("reflect")}},
           .inputs = {random({1, 6})}},
          {.name = "crops_edge",
           .op = "Pad",
           .attributes = {{"pads", Ints{-1, 3, 0, 2, -2, 1}}, {"mode", text("edge")}},
           .inputs = {random({4, 5, 3})}},
          {.name = "images",
           .op = "Pad",
           .attributes = {{"pads", Ints{0, 0, 1, 1, 0, 0, 1, 1}}},
           .inputs = {random({4, 9, 30, 31})},
           .gradient = false},
          {.name = "wide_rows",
           .op = "Pad",
           .attributes = {{"pads", Ints{0, 4, 0, 0, 8, 0}}},
           .inputs = {random({3, 20, 24})},
           .gradient = false},
          {.name = "wide_reflection",
           .op = "PadGrad",
           .attributes = {{"pads", Ints{0, 0, 15, 14, 0, 0, 15, 14}}, {"mode", text("reflect")}, {"shape", Shape{2, 3, 16, 15}}},
           .inputs = {random({2, 3, 46, 43})},
           .gradient = false},

          {.name = "reflect",
           .op = "PadGrad",
           .attributes = {{"pads", Ints{2, 1}}, {"mode", text("reflect")}, {"shape", Shape{3}}},
           .inputs = {floats({6}, {1, 2, 4, 8, 16, 32})},
           .expected = {{4, 42, 17}}},

          {.name = "rows",
           .op = "Expand",
           .attributes = {{"shape", Shape{2, 3}}},
           .inputs = {counting({3})},
           .expected = {{0, 1, 2, 0, 1, 2}}},
          {.name = "inner", .op = "Expand", .attributes = {{"shape", Shape{4, 3, 5}}}, .inputs = {random({4, 3, 1})}},
          {.name = "middle", .op = "Expand", .attributes = {{"shape", Shape{2, 3, 4, 5}}}, .inputs = {random({2, 3, 1, 5})}},
          {.name = "scalar", .op = "Expand", .attributes = {{"shape", Shape{3, 2}}}, .inputs = {random({})}},

          {.name = "matrix",
           .op = "Tile",
           .attributes = {{"repeats", Ints{2, 2}}},
           .inputs = {counting({1, 2})},
           .expected = {{0, 1, 0, 1, 0, 1, 0, 1}}},
          {.name = "three_axes", .op = "Tile", .attributes = {{"repeats", Ints{2, 1, 3}}}, .inputs = {random({2, 3, 4})}},
      });
}

void choice_cases(std::vector<OpCase>& cases) {
  const OpInput a = fixed(floats({2, 3}, {1, 2, 3, 4, 5, 6})), b = fixed(floats({3}, {1, 5, 3}));
  const OpInput p = bools({4}, {0, 0, 1, 1}), q = bools({4}, {0, 1, 0, 1});
  cases.insert(
      cases.end(),
      {
          {.name = "rows", .op = "Equal", .inputs = {a, b}, .expected = {{1, 0, 1, 0, 1, 0}}},
          {.name = "integers", .op = "Equal", .inputs = {ints({3}, {1, 2, 3}), ints({}, {2})}, .expected = {{0, 1, 0}}},
          {.name = "bools", .op = "Equal", .inputs = {p, q}, .expected = {{1, 0, 0, 1}}},
          {.name = "rows", .op = "Greater", .inputs = {a, b}, .expected = {{0, 0, 0, 1, 0, 1}}},
          {.name = "rows", .op = "GreaterOrEqual", .inputs = {a, b}, .expected = {{1, 0, 1, 1, 1, 1}}},
          {.name = "rows", .op = "Less", .inputs = {a, b}, .expected = {{0, 1, 0, 0, 0, 0}}},
          {.name = "columns",
           .op = "Less",
           .inputs = {ints({2, 1}, {1, 3}, DType::int32), ints({1, 3}, {1, 2, 4}, DType::int32)},
           .expected = {{0, 1, 1, 0, 0, 1}}},
          {.name = "rows", .op = "LessOrEqual", .inputs = {a, b}, .expected = {{1, 1, 1, 0, 1, 0}}},
          {.name = "table", .op = "And", .inputs = {p, q}, .expected = {{0, 0, 0, 1}}},
          {.name = "table", .op = "Or", .inputs = {p, q}, .expected = {{0, 1, 1, 1}}},
          {.name = "table", .op = "Xor", .inputs = {p, q}, .expected = {{0, 1, 1, 0}}},
          {.name = "outer", .op = "And", .inputs = {bools({2, 1}, {0, 1}), bools({3}, {1, 0, 1})}, .expected = {{0, 0, 0, 1, 0, 1}}},
          {.name = "table", .op = "Not", .inputs = {p}, .expected = {{1, 1, 0, 0}}},
          {.name = "table",
           .op = "BitwiseAnd",
           .inputs = {ints({4}, {12, 10, -1, 7}), ints({4}, {10, 5, 6, 0})},
           .expected = {{8, 0, 6, 0}}},
          {.name = "rows",
           .op = "BitwiseOr",
           .inputs = {ints({2, 2}, {1, 2, 4, 8}, DType::int32), ints({2}, {16, 1}, DType::int32)},
           .expected = {{17, 3, 20, 9}}},
          {.name = "bytes",
           .op = "BitwiseXor",
           .inputs = {ints({3}, {255, 1, 170}, DType::uint8), ints({3}, {1, 1, 85}, DType::uint8)},
           .expected = {{254, 0, 255}}},
          {.name = "signed", .op = "BitwiseNot", .inputs = {ints({3}, {0, -1, 5}, DType::int8)}, .expected = {{-1, 0, -6}}},
          {.name = "bytes", .op = "BitwiseNot", .inputs = {ints({2}, {0, 250}, DType::uint8)}, .expected = {{255, 5}}},
          {.name = "left",
           .op = "BitShift",
           .attributes = {{"direction", text("LEFT")}},
           .inputs = {ints({4}, {1, 3, 200, 7}, DType::uint8), ints({4}, {3, 8, 1, 0}, DType::uint8)},
           .expected = {{8, 0, 144, 7}}},
          {.name = "right",
           .op = "BitShift",
           .attributes = {{"direction", text("RIGHT")}},
           .inputs = {ints({4}, {16, -16, -1, 5}), ints({4}, {2, 2, 70, 64})},
           .expected = {{4, -4, -1, 0}}},

          {.name = "integers",
           .op = "Mod",
           .inputs = {ints({6}, {-4, 7, 5, 4, -7, 8}), ints({6}, {2, -3, 8, -2, 3, 5})},
           .expected = {{0, -2, 5, 0, 2, 3}}},
          {.name = "integers_fmod",
           .op = "Mod",
           .attributes = {{"fmod", int64_t{1}}},
           .inputs = {ints({6}, {-4, 7, 5, 4, -7, 8}), ints({6}, {2, -3, 8, -2, 3, 5})},
           .expected = {{0, 1, 5, 0, -1, 3}}},
          {.name = "numbers",
           .op = "Mod",
           .attributes = {{"fmod", int64_t{1}}},
           .inputs = {floats({3, 2}, {5.5, -7.25, 3.0, 9.5, -2.5, 1.25}), floats({2}, {2.0, -3.0})},
           .expected = {{1.5, -1.25, 1, 0.5, -0.5, 1.25}}},

          {.name = "mask",
           .op = "Where",
           .inputs = {bools({2, 2}, {1, 0, 0, 1}), counting({2, 2}), floats({}, {-9})},
           .expected = {{0, -9, -9, 3}}},
          {.name = "all_broadcast", .op = "Where", .inputs = {random_bools({3, 1, 5}), random({4, 5}), random({2, 3, 1, 1})}},
          {.name = "same_shape", .op = "Where", .inputs = {random_bools({40, 50}), random({40, 50}), random({40, 50})}},
          {.name = "integers", .op = "Where", .inputs = {bools({2}, {1, 0}), ints({2}, {1, 2}), ints({1}, {7})}, .expected = {{1, 7}}},

          {.name = "words",
           .op = "BitCast",
           .attributes = {{"to", number(DType::int32)}},
           .inputs = {fixed(floats({3}, {1, -2, 0}))},
           .float64 = false,
           .expected = {{1065353216, -1073741824, 0}}},
          {.name = "bytes",
           .op = "BitCast",
           .attributes = {{"to", number(DType::uint8)}},
           .inputs = {ints({2}, {-1, 5}, DType::int8)},
           .expected = {{255, 5}}},

          {.name = "same_type",
           .op = "Cast",
           .attributes = {{"to", number(DType::float32)}},
           .inputs = {random({17})},
           .attributes64 = Attributes{{"to", number(DType::float64)}}},
          {.name = "integers_to_float",
           .op = "Cast",
           .attributes = {{"to", number(DType::float32)}},
           .inputs = {ints({3}, {-2, 0, 16777217})},
           .float64 = false,
           .expected = {{-2, 0, 16777216}}},
          {.name = "float_to_integers",
           .op = "Cast",
           .attributes = {{"to", number(DType::int64)}},
           .inputs = {fixed(floats({4}, {-1.7, 0.5, 2.99, 1e6}))},
           .expected = {{-1, 0, 2, 1000000}}},
          {.name = "float_to_bool",
           .op = "Cast",
           .attributes = {{"to", number(DType::boolean)}},
           .inputs = {fixed(floats({4}, {-1.7, 0, 0.25, -0.0}))},
           .expected = {{1, 0, 1, 0}}},
          {.name = "bool_to_float",
           .op = "Cast",
           .attributes = {{"to", number(DType::float32)}},
           .inputs = {bools({2}, {1, 0})},
           .float64 = false,
           .expected = {{1, 0}}},
          {.name = "narrow",
           .op = "Cast",
           .attributes = {{"to", number(DType::int8)}},
           .inputs = {ints({3}, {-128, 5, 127})},
           .expected = {{-128, 5, 127}}},
      });
  const std::vector<DType> types{DType::float32, DType::float16, DType::bfloat16, DType::int64,  DType::int32,
                                 DType::int16,   DType::int8,    DType::uint8,    DType::boolean};
  std::vector<double> numbers{0, -0.0, 0.49, -0.5, 1.5, 255.5, -128.25, 70000, 2.5e9, -3e9, 1e19, -1e30, kInfinity, -kInfinity, kNaN, 6e-8};
  for (size_t i = numbers.size(); i < 37; ++i) numbers.push_back(13.7 * static_cast<double>(i) - 300);
  for (const DType from : types) {
    for (const DType to : types) {
      if (from == to) continue;
      const OpInput x = from == DType::float32   ? fixed(floats({37}, numbers))
                        : is_half(from)          ? fixed({.dtype = from, .shape = {37}, .low = -300, .high = 300})
                        : from == DType::boolean ? random_bools({37})
                        : from == DType::uint8   ? random_ints({37}, 0, 255, from)
                        : from == DType::int8    ? random_ints({37}, -128, 127, from)
                                                 : random_ints({37}, -32768, 32767, from);
      cases.push_back({.name = fmt::format("{}_to_{}", to_string(from), to_string(to)),
                       .op = "Cast",
                       .attributes = {{"to", number(to)}},
                       .inputs = {x},
                       .gradient = false,
                       .float64 = false});
    }
  }
}

void reduction_cases(std::vector<OpCase>& cases) {
  const Attributes last{{"axes", Ints{1}}, {"keepdims", int64_t{0}}}, first{{"axes", Ints{0}}, {"keepdims", int64_t{1}}},
      none{{"axes", Ints{}}};
  const Attributes outer{{"axes", Ints{0, 2}}, {"keepdims", int64_t{0}}}, all{{"axes", Ints{0, 1, 2}}, {"keepdims", int64_t{0}}};
  for (const char* op : {"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL2", "ReduceSumSquare"}) {
    cases.insert(cases.end(),
                 {
                     {.name = "last", .op = op, .attributes = last, .inputs = {random({5, 40}, 0.5, 1.5)}},
                     {.name = "first", .op = op, .attributes = first, .inputs = {random({70, 33}, 0.5, 1.5)}, .tolerance = 2e-6},
                     {.name = "outer_and_inner", .op = op, .attributes = outer, .inputs = {random({3, 4, 7}, 0.5, 1.5)}},
                     {.name = "everything", .op = op, .attributes = all, .inputs = {random({3, 4, 5}, 0.8, 1.2)}},
                     {.name = "nothing", .op = op, .attributes = none, .inputs = {random({3, 4}, 0.5, 1.5)}},
                 });
  }
  for (const char* op : {"ReduceSum", "ReduceMax", "ReduceL2", "ReduceProd"}) {
    const auto add = [&](const char* name, const Attributes& attributes, Shape shape) {
      cases.push_back({.name = name,
                       .op = op,
                       .attributes = attributes,
                       .inputs = {random(std::move(shape), 0.99, 1.01)},
                       .tolerance = 2e-6,
                       .gradient = false});
    };
    add("blocks_of_rows", last, {40, 1100});
    add("odd_rows", last, {33, 1541});  // of 16 bits: not where packs of them begin
    add("many_blocks_of_rows", last, {36, 9000});
    add("short_rows", last, {1030, 7});
    add("runs", outer, {6, 40, 70});
    add("runs_of_blocks", outer, {5, 33, 1100});
    add("short_runs", outer, {70, 40, 9});
    add("few_columns", first, {3000, 5});
    add("many_columns", first, {33, 8200});
    add("blocks_of_columns", {{"axes", Ints{1}}}, {40, 70, 33});
    add("columns_of_axes", {{"axes", Ints{0, 2}}}, {9, 5, 50, 4});
    add("pieces_of_columns", {{"axes", Ints{0, 2}}}, {30, 3, 45, 2});
  }
  for (const DType dtype : {DType::int64, DType::int32}) {
    for (const char* op : {"ReduceSum", "ReduceMax", "ReduceMean"}) {
      const std::string of = std::string(to_string(dtype));
      cases.push_back(
          {.name = of + "_rows", .op = op, .attributes = last, .inputs = {random_ints({3, 2000}, -1'000'000, 1'000'000, dtype)}});
      cases.push_back({.name = of + "_columns", .op = op, .attributes = first, .inputs = {random_ints({300, 7}, -9, 9, dtype)}});
    }
  }
  for (const DType dtype : {DType::int16, DType::int8, DType::uint8}) {
    const std::string of = std::string(to_string(dtype));
    cases.push_back({.name = of, .op = "ReduceMin", .attributes = last, .inputs = {random_ints({3, 700}, 3, 99, dtype)}});
  }
  // Of 0 and -0 the first in its lane, of lanes the first.
  std::vector<double> zeros(3 * 600);
  for (size_t i = 0; i < zeros.size(); ++i) zeros[i] = i * i % 7 < 3 ? 0.0 : -0.0;
  for (const char* op : {"ReduceMax", "ReduceMin"})
    cases.push_back({.name = "zeros", .op = op, .attributes = last, .inputs = {floats({3, 600}, zeros)}, .gradient = false});
  // The products of halves of each row are too large for a float32, and too small.
  constexpr size_t kHalf = 13;
  std::vector<double> far(4 * kHalf), others(far.size());
  for (size_t i = 0; i < far.size(); ++i) {
    far[i] = i / kHalf % 3 == 0 ? 0x1p12 : 0x1p-12;
    others[i] = 1 / far[i];
  }
  cases.push_back({.name = "far_products",
                   .op = "ReduceProdGrad",
                   .attributes = last,
                   .inputs = {floats({2}, {1, 1}), floats({2, 2 * int64_t{kHalf}}, far)},
                   .expected = {others}});
  cases.insert(
      cases.end(),
      {
          {.name = "exact", .op = "ReduceSum", .attributes = last, .inputs = {counting({2, 3})}, .expected = {{3, 12}}},
          {.name = "bias", .op = "ReduceSum", .attributes = first, .inputs = {random({600, 300})}, .tolerance = 1e-6, .gradient = false},
          {.name = "pieces_of_rows",
           .op = "ReduceSum",
           .attributes = {{"axes", Ints{1}}},
           .inputs = {random({2, 100003})},
           .tolerance = 1e-6,
           .gradient = false},
          {.name = "pieces_of_everything",
           .op = "ReduceMean",
           .attributes = all,
           .inputs = {random({8, 256, 65}, 0, 1)},
           .tolerance = 1e-7,
           .gradient = false},
          {.name = "pieces_of_axes",
           .op = "ReduceSum",
           .attributes = outer,
           .inputs = {random({500, 3, 300})},
           .tolerance = 1e-6,
           .gradient = false},
          {.name = "piece_of_few",  // behind 32,768 elements
           .op = "ReduceSum",
           .attributes = last,
           .inputs = {random({2, 32'768 + 5}, 0, 1)},
           .gradient = false},
          {.name = "pieces_of_short_rows",
           .op = "ReduceSum",
           .attributes = outer,
           .inputs = {random({5000, 3, 9}, 0, 1)},
           .gradient = false},
          {.name = "empty", .op = "ReduceSum", .attributes = last, .inputs = {random({2, 0})}, .expected = {{0, 0}}},
          {.name = "integers", .op = "ReduceSum", .attributes = last, .inputs = {ints({2, 2}, {1, 2, -3, 4})}, .expected = {{3, 1}}},
          {.name = "integers",
           .op = "ReduceMean",
           .attributes = last,
           .inputs = {ints({2, 2}, {1, 2, 4, 8}, DType::int32)},
           .expected = {{1, 6}}},
          {.name = "integers", .op = "ReduceProd", .attributes = last, .inputs = {ints({2, 2}, {3, -2, 4, 8})}, .expected = {{-6, 32}}},
          {.name = "integers", .op = "ReduceMax", .attributes = first, .inputs = {ints({2, 2}, {3, -2, -4, -1})}, .expected = {{3, -1}}},
          {.name = "bools", .op = "ReduceMin", .attributes = last, .inputs = {bools({2, 2}, {1, 1, 1, 0})}, .expected = {{1, 0}}},
          {.name = "zero",
           .op = "ReduceProd",
           .attributes = last,
           .inputs = {floats({3, 3}, {1, 0, 2, 0, 3, 0, 4, 5, 6})},
           .expected = {{0, 0, 120}}},
          {.name = "of_zeros",
           .op = "ReduceProdGrad",
           .attributes = last,
           .inputs = {floats({2}, {1, 10}), floats({2, 3}, {3, 0, 2, 0, 3, 0})},
           .expected = {{0, 6, 0, 0, 0, 0}}},
          {.name = "middle",
           .op = "ReduceProdGrad",
           .attributes = {{"axes", Ints{1}}, {"keepdims", int64_t{1}}},
           .inputs = {random({2, 1, 3}), random({2, 4, 3})}},
      });
}

}  // namespace

std::vector<OpCase> shape_op_cases() {
  std::vector<OpCase> cases;
  movement_cases(cases);
  choice_cases(cases);
  reduction_cases(cases);
  return cases;
}

}  // namespace ort_train::fixtures
