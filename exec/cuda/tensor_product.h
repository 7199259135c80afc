// Products of 16-bit matrices on tensor cores, by cuBLASLt, with sums in float32.
//
// The library is opened when the first one is prepared. Which of its algorithms a product has is its first suggestion for shape, layout,
// types and alignment, with a workspace of a constant size and without sums that are split: a fixed function of these, the GPU and the
// library's version. The order of a sum is the library's own, so the bits are not the processor's.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "graph/types.h"

namespace ort_train::cuda {

inline constexpr int64_t kLibraryAlignment = 256;               // bytes: what NVIDIA's libraries want of a workspace
inline constexpr int64_t kTensorWorkspace = int64_t{32} << 20;  // bytes, so aligned within the kernel's

// d (rows, columns) = alpha * op(a) op(b) [+ bias (columns)] [+ c, like d]; op transposes what is stored so. All are stored in rows, each
// `pitch` elements from the next.
struct TensorProduct {
  int64_t rows = 0, columns = 0, depth = 0;
  bool trans_a = false, trans_b = false;
  int64_t a_pitch = 0, b_pitch = 0, d_pitch = 0;
  int64_t items = 1, a_stride = 0, b_stride = 0, d_stride = 0;   // of several, elements from one to the next
  int64_t a_alignment = 64, b_alignment = 64, d_alignment = 64;  // bytes that the addresses are multiples of
  DType operands = DType::bfloat16;                              // or float16
  DType result = DType::float32;                                 // or the operands'
  float alpha = 1;
  bool has_bias = false;  // of the result's type
  bool adds = false;      // c
};

class PreparedProduct {
 public:
  virtual ~PreparedProduct() = default;
  // Device addresses, and a cudaStream_t. `c`: may be d. Throws Error(device).
  virtual void run(const void* a, const void* b, const void* bias, const void* c, void* d, void* workspace, void* stream) const = 0;
};

// On the thread's current device. Throws Error(device): the library isn't found, or can't make such a product.
std::unique_ptr<const PreparedProduct> prepare_product(const TensorProduct& product);

// The library and its version: "cuBLASLt 13.1.0". Throws Error(device): it isn't found.
std::string tensor_library();

}  // namespace ort_train::cuda
