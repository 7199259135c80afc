// A data set for the golden language models: each sample has another length and another number of labels.

#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/test_files.h"

namespace ort_train {

struct TokenData {
  int64_t samples = 30, length = 12, vocabulary = 61;

  int64_t labelled(int64_t sample) const { return 1 + sample * 5 % 7; }  // the first positions of a sample

  // A safetensors file with all that the models may ask for.
  std::string write(const std::string& path) const {
    std::vector<int64_t> tokens, mask, positions, types, labels;
    for (int64_t i = 0; i < samples * length; ++i) {
      const int64_t sample = i / length, at = i % length;
      tokens.push_back((i * i * 7 + 5 * i + 3) % vocabulary);
      mask.push_back(at < length - sample % 4);
      positions.push_back(at);
      types.push_back(at > length / 2);
      labels.push_back(at < labelled(sample) ? (tokens.back() * 5 + 2) % vocabulary : -100);
    }
    std::string header, data;
    const auto add = [&](const char* name, const std::vector<int64_t>& values) {
      header += fmt::format(R"({}"{}":{{"dtype":"I64","shape":[{},{}],"data_offsets":[{},{}]}})", header.empty() ? "{" : ",", name, samples,
                            length, data.size(), data.size() + values.size() * 8);
      data += bytes_of(values);
    };
    add("input_ids", tokens);
    add("attention_mask", mask);
    add("position_ids", positions);
    add("token_type_ids", types);
    add("labels", labels);
    return write_file(path, safetensors(header + "}", data));
  }
};

}  // namespace ort_train
