// Libraries of the tests' own in place of NVIDIA's: what CUDA's kernels of 16 bits ask cuBLASLt and cuDNN for (exec/cuda/libraries.h), by
// plain sums on the host. They are as strict: addresses that aren't aligned as was promised, and steps that are shorter than a row, throw;
// their workspaces are overwritten.

#pragma once

#include <cstdint>

namespace ort_train::fixtures {

// While one lives, CUDA's kernels on the host that are prepared ask them. One at a time.
class HostLibrariesInUse {
 public:
  HostLibrariesInUse();
  HostLibrariesInUse(const HostLibrariesInUse&) = delete;
  HostLibrariesInUse& operator=(const HostLibrariesInUse&) = delete;
  ~HostLibrariesInUse();
};

// How often they computed something, all together.
struct LibraryCalls {
  int64_t products = 0, attention = 0, attention_gradients = 0, convolutions = 0;
};
LibraryCalls host_library_calls();

}  // namespace ort_train::fixtures
