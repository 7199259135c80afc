// The value of an input that a job fixes (Options::bind), from the text that says it.

#pragma once

#include <string>
#include <vector>

#include "frontend/import.h"
#include "graph/types.h"

namespace ort_train {

// `text`: a number, which every element is; numbers separated by commas, in C order; or @FILE.npy. `dims` are those of the input, -1 where
// nothing is known: numbers for a vector give its length, a file all dimensions. Throws Error(usage) where the text is no such thing or
// doesn't fit, Error(data) where the file can't be read or holds what the type can't.
Tensor bound_value(const std::string& input, const std::string& text, DType dtype, const std::vector<int64_t>& dims);

// As one of `declared`. Throws Error(usage) that lists the model's inputs.
const DeclaredInput& bound_input(const std::vector<DeclaredInput>& declared, const std::string& name);

}  // namespace ort_train
