// A data set for the golden language models: each sample has another length and another number of labels.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/arrays.h"

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
    const std::vector<int64_t> shape{samples, length};
    return Arrays()
        .add("input_ids", shape, tokens)
        .add("attention_mask", shape, mask)
        .add("position_ids", shape, positions)
        .add("token_type_ids", shape, types)
        .add("labels", shape, labels)
        .write(path);
  }
};

}  // namespace ort_train
