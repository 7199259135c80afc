// Cases of the op test table: numbers that are stored as codes and scales.

#include <fmt/format.h>

#include "tests/op_cases.h"

namespace ort_train::fixtures {

std::vector<OpCase> quantization_op_cases() {
  std::vector<OpCase> cases;
  const auto codes = [](Shape shape, DType dtype) {
    return random_ints(std::move(shape), dtype == DType::uint8 ? 0 : -128, dtype == DType::uint8 ? 255 : 127, dtype);
  };
  for (const DType dtype : {DType::int8, DType::uint8, DType::int16, DType::int32}) {
    for (const int64_t axis : {0, 1, 2}) {
      const Shape shape{6, 8, 5};
      const int64_t size = shape[static_cast<size_t>(axis)];
      Shape blocks = shape;
      blocks[static_cast<size_t>(axis)] = (size + 2) / 3;
      const std::string name = fmt::format("{}_{}", to_string(dtype), axis);
      const OpInput of_axis = statistic(fixed(random({size}, 0.1, 1))), of_blocks = statistic(fixed(random(blocks, 0.1, 1)));
      cases.insert(cases.end(), {{.name = name + "_axis",
                                  .op = "Dequantize",
                                  .attributes = {{"axis", axis}},
                                  .inputs = {codes(shape, dtype), of_axis, codes({size}, dtype)}},
                                 {.name = name + "_blocks",
                                  .op = "Dequantize",
                                  .attributes = {{"axis", axis}, {"block_size", int64_t{3}}},
                                  .inputs = {codes(shape, dtype), of_blocks, codes(blocks, dtype)}}});
    }
    cases.push_back({.name = fmt::format("{}_tensor", to_string(dtype)),
                     .op = "Dequantize",
                     .attributes = {{"zero", int64_t{3}}},
                     .inputs = {codes({70, 1000}, dtype), statistic(fixed(floats({}, {0.5})))}});
  }
  for (const int64_t bits : {2, 4}) {
    for (const bool by_number : {false, true}) {
      const Shape blocks{5, 4};
      OpCase packed{.name = fmt::format("packed_{}_{}", bits, by_number),
                    .op = "Dequantize",
                    .attributes = {{"axis", int64_t{1}}, {"block_size", int64_t{8}}, {"bits", bits}},
                    .inputs = {codes({5, 32 * bits / 8}, DType::uint8), statistic(fixed(random(blocks, 0.1, 1))),
                               by_number ? statistic(fixed(random(blocks, 0, 8))) : random_ints(blocks, 0, 3, DType::uint8)}};
      cases.push_back(packed);
    }
  }
  cases.push_back({.name = "packed_4_values",
                   .op = "Dequantize",
                   .attributes = {{"bits", int64_t{4}}, {"zero", int64_t{8}}},
                   .inputs = {ints({2}, {0x98, 0xF0}, DType::uint8), statistic(fixed(floats({}, {2})))},
                   .expected = {{0, 2, -16, 14}}});
  return cases;
}

}  // namespace ort_train::fixtures
