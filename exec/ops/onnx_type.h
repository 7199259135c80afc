// What ONNX's attributes hold that no op of ours has: numbers of element types (Cast's `to`, EyeLike's `dtype`), lists of floats and of
// names.

#pragma once

#include <algorithm>
#include <string>
#include <variant>
#include <vector>

#include "graph/builder.h"
#include "graph/error.h"

namespace ort_train {

// What the type is in the graph; throws Error(unsupported) for types that no tensor of ours has. `what`: "it casts to".
inline DType onnx_type(const Lowering& l, int64_t number, std::string_view what) {
  switch (number) {
    case 1:
      return DType::float32;
    case 2:
      return DType::uint8;
    case 3:
      return DType::int8;
    case 5:
      return DType::int16;
    case 6:
      return DType::int32;
    case 7:
      return DType::int64;
    case 9:
      return DType::boolean;
    case 10:
      return l.type(DType::float16);
    case 11:
      return DType::float64;
    case 16:
      return l.type(DType::bfloat16);
    default:
      throw error(ErrorCode::unsupported, "{} ONNX's element type {}, which is not supported", what, number);
  }
}

// Empty where the attribute is absent.
inline std::vector<float> float_list(const Attributes& attributes, std::string_view name) {
  const Attribute* const found = attributes.find(name);
  if (found == nullptr) return {};
  if (const auto* list = std::get_if<std::vector<float>>(found)) return *list;
  throw error(ErrorCode::unsupported, "attribute '{}' is not a list of numbers", name);
}

// The same; the reader has put commas between them.
inline std::vector<std::string> name_list(const Attributes& attributes, std::string_view name) {
  std::vector<std::string> names;
  const std::string text = attributes.get(name, "");
  for (size_t at = 0, end; at < text.size(); at = end + 1) {
    end = std::min(text.find(',', at), text.size());
    names.push_back(text.substr(at, end - at));
  }
  return names;
}

}  // namespace ort_train
