// How fast the products, attention and their gradients of GPT-2 are made in bfloat16 on a GPU: a line of JSON each. tests/gpu/bench has
// PyTorch make the same.

#pragma once

namespace ort_train {

// Returns the exit status of a program that does nothing else.
int print_rates();

}  // namespace ort_train
