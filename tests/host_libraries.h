// Libraries of the tests' own in place of NVIDIA's: what CUDA's kernels of 16 bits ask cuBLASLt and cuDNN for (exec/cuda/libraries.h), by
// plain sums on the host. They are as strict: addresses that aren't aligned as was promised, and steps that are shorter than a row, throw;
// their workspaces are overwritten.

#pragma once

#include <cstdint>

namespace ort_train::fixtures {

// Whether CUDA's kernels on the host ask them, from when these are prepared on. They don't, unless it is said.
void use_host_libraries(bool uses);

// How often they computed something, all together.
struct LibraryCalls {
  int64_t products = 0, attention = 0, attention_gradients = 0, convolutions = 0;
};
LibraryCalls host_library_calls();

}  // namespace ort_train::fixtures
