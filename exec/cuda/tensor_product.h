// Products of 16-bit matrices on tensor cores, by cuBLASLt, with sums in float32.
//
// The library is opened when the first one is prepared. Which of its algorithms a product has is its first suggestion for shape, layout,
// types and alignment, with a workspace of a constant size and without sums that are split: a fixed function of these, the GPU and the
// library's version, unless the GPU's table (exec/algorithms.h) has one already. The order of a sum is the library's own, so the bits are
// not the processor's.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "exec/algorithms.h"
#include "exec/cuda/libraries.h"
#include "graph/types.h"

ORT_TRAIN_LIBRARIES_BEGIN

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
  int64_t bias_alignment = 64;
  bool adds = false;  // c
};

class PreparedProduct {
 public:
  virtual ~PreparedProduct() = default;
  // Device addresses, and a cudaStream_t. `c`: may be d. Throws Error(device), or Error(budget) where the library finds no memory.
  virtual void run(const void* a, const void* b, const void* bias, const void* c, void* d, void* workspace, void* stream) const = 0;
};

// By which algorithms cuBLASLt and cuDNN compute on that GPU, on the thread's current one.
AlgorithmTable& algorithms_of(int device);
AlgorithmTable& algorithms_of_current_device();

// On the thread's current device, by the table's algorithm; it gets the one that is chosen. Throws Error(device): the library isn't found,
// can't make such a product, or not by that algorithm; Error(budget): it finds no memory.
std::unique_ptr<const PreparedProduct> prepare_product(const TensorProduct& product, AlgorithmTable& algorithms);
// By its own table's.
std::unique_ptr<const PreparedProduct> prepare_product(const TensorProduct& product);

// The library and its version: "cuBLASLt 13.1.0". Throws Error(device): it isn't found.
std::string tensor_library();

ORT_TRAIN_LIBRARIES_END
