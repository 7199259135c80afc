// The value of an input that a job fixes (Options::bind), from the text that says it.

#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/types.h"

namespace ort_train {

// `text`: a number, which every element is; numbers separated by commas, in C order; or @FILE.npy. `dims` are those of the input, -1 where
// nothing is known: numbers for a vector give its length, a file all dimensions. Throws Error(usage) where the text is no such thing or
// doesn't fit, Error(data) where the file can't be read or holds what the type can't.
Tensor bound_value(const std::string& input, const std::string& text, DType dtype, const std::vector<int64_t>& dims);

// Throws Error(usage) where Options::bind names what is none of the model's inputs.
void check_bound_names(const std::map<std::string, std::string>& bind, const std::vector<std::string>& inputs);

}  // namespace ort_train
