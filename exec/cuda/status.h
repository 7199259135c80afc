// What CUDA's functions return, as Errors.

#pragma once

#include <cuda_runtime.h>

#include <string_view>

namespace ort_train::cuda {

// Throws Error(device), or Error(budget) where memory is lacking: "what" failed, and what CUDA says of it.
void check(cudaError_t status, std::string_view what);

}  // namespace ort_train::cuda
