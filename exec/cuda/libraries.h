// Where kernels of 16 bits find NVIDIA's libraries (exec/cuda/tensor_product.h, exec/cuda/cudnn_plan.h), and sizes that decide what they
// ask these for. Kernels that are compiled for the host, in tests, find a library of the tests' own (tests/host_libraries.cpp), if it is
// switched on. A program may have both: their functions are in namespaces of their own.

#pragma once

#include <cstdint>

#ifdef ORT_TRAIN_ON_HOST
#define ORT_TRAIN_LIBRARIES_BEGIN \
  namespace ort_train::cuda {     \
  inline namespace on_host {
#define ORT_TRAIN_LIBRARIES_END \
  }                             \
  }
#else
#define ORT_TRAIN_LIBRARIES_BEGIN namespace ort_train::cuda {
#define ORT_TRAIN_LIBRARIES_END }
#endif

ORT_TRAIN_LIBRARIES_BEGIN

inline constexpr int64_t kLibraryAlignment = 256;  // bytes: what libraries want of a workspace

struct LibraryLimits {
  int64_t product_workspace = int64_t{32} << 20;  // bytes, of each product: it decides which algorithms there are
  int64_t aligned_products = int64_t{1} << 24;    // multiply-adds of a product from which on copies of what isn't aligned are worth it
  int64_t score_bytes = int64_t{256} << 20;       // of attention's scores, whose gradients are kept for heads that go together
};

#ifdef ORT_TRAIN_ON_HOST
bool has_libraries();
LibraryLimits library_limits();
#else
constexpr bool has_libraries() { return true; }
constexpr LibraryLimits library_limits() { return {}; }
#endif

ORT_TRAIN_LIBRARIES_END
