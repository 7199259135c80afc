// A safetensors file of named arrays, as data sets are.

#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/test_files.h"

namespace ort_train {

struct Arrays {
  std::string header, bytes;

  template <typename T> Arrays& add(const std::string& name, const std::vector<int64_t>& shape, const std::vector<T>& values) {
    static_assert(std::same_as<T, float> || std::same_as<T, int64_t>);
    const std::string array = bytes_of(values);
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", header.empty() ? "{" : ",", name,
                          std::same_as<T, float> ? "F32" : "I64", fmt::join(shape, ","), bytes.size(), bytes.size() + array.size());
    bytes += array;
    return *this;
  }
  std::string write(const std::string& path) const { return write_file(path, safetensors(header + "}", bytes)); }
};

}  // namespace ort_train
