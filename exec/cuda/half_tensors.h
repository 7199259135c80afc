// Tensors of 16 bits for libraries on devices: operands of float32 that are rounded when they are read, and results that are to be of
// float32, have copies of 16 bits in the workspace.

#pragma once

#include <cstdint>

#include "exec/block.h"
#include "exec/cuda/libraries.h"
#include "exec/cuda/unroll.h"
#include "exec/product_types.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN
namespace halves {

// What an operand is when it is multiplied.
inline DType operand_type(const KernelSpec& spec, size_t input) {
  const DType stored = spec.inputs[input].dtype;
  return stored == DType::float32 ? type_from(spec.attributes, "compute", DType::float32) : stored;
}

// A tensor as a library takes it, or makes it.
struct HalfTensor {
  DType stored = DType::float32, type = DType::bfloat16;
  int64_t elements = 0;
  int64_t at = 0;  // of the copy, in bytes from the workspace's beginning

  bool is_copied() const { return stored != type; }
};

// Gives out the workspace of a kernel. Counts from the first multiple of the alignment on.
struct HalfWorkspace {
  int64_t bytes = 0;

  int64_t take(int64_t size) {
    const int64_t at = bytes;
    bytes += (size + cuda::kLibraryAlignment - 1) / cuda::kLibraryAlignment * cuda::kLibraryAlignment;
    return at;
  }
  HalfTensor tensor(const TensorType& stored, DType type) {
    HalfTensor tensor{.stored = stored.dtype, .type = type, .elements = element_count(stored.shape)};
    if (tensor.is_copied()) tensor.at = take(bytes_of(type, tensor.elements));
    return tensor;
  }
  int64_t all() const { return bytes + cuda::kLibraryAlignment; }
};
inline std::byte* workspace_of(const KernelArgs& args) {
  const auto place = reinterpret_cast<uintptr_t>(args.workspace);
  return args.workspace + (cuda::kLibraryAlignment - place % cuda::kLibraryAlignment) % cuda::kLibraryAlignment;
}

// A kernel by a library where that has a way, else by blocks of threads. way(spec): std::optional of what has run(args) and bytes, those of
// its workspace; own(spec): as Kernel has it.
template <auto way, auto own> KernelRun prepare_either(const KernelSpec& spec) {
  if (const auto found = way(spec)) return [found = *found](const KernelArgs& args) { found.run(args); };
  return own(spec);
}
template <auto way, auto own> Workspace workspace_of_either(const KernelSpec& spec) {
  const auto found = way(spec);
  return found ? Workspace{.shared = found->bytes} : own(spec);
}
inline Workspace no_workspace(const KernelSpec&) { return {}; }

// Rows of a matrix, each so many elements from the next, as rows of another type or with other steps. Loads come before stores.
template <typename To, typename From> struct RoundRows {
  static constexpr int kThreads = 256, kEach = 8;
  using Shared = NoShared;
  const From* from;
  To* to;
  int64_t columns, from_row, to_row, chunks;  // chunks: of a row, each for a block

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const int64_t row = block.index / chunks, first = block.index % chunks * (kThreads * kEach);
    block.each([&](int t) {
      From here[kEach];
      ORT_TRAIN_UNROLL
      for (int k = 0; k < kEach; ++k) {
        const int64_t column = first + k * kThreads + t;
        if (column < columns) here[k] = from[row * from_row + column];
      }
      ORT_TRAIN_UNROLL
      for (int k = 0; k < kEach; ++k) {
        const int64_t column = first + k * kThreads + t;
        if (column < columns) to[row * to_row + column] = store<To>(load(here[k]));
      }
    });
  }
};

// A matrix in float32 or 16 bits.
struct Place {
  DType type;
  void* data;
  int64_t row;  // elements from one row to the next
};

template <typename To> void round_rows_as(const Place& from, const Place& to, int64_t rows, int64_t columns, const KernelArgs& args) {
  const auto run = [&]<typename From>(From) {
    using Kernel = RoundRows<To, From>;
    constexpr int64_t kChunk = Kernel::kThreads * Kernel::kEach;
    const int64_t chunks = (columns + kChunk - 1) / kChunk;
    launch(Kernel{static_cast<const From*>(from.data), static_cast<To*>(to.data), columns, from.row, to.row, chunks}, rows * chunks, args);
  };
  if (from.type == DType::float32)
    run(float{});
  else if (from.type == DType::bfloat16)
    run(bfloat16{});
  else
    run(float16{});
}
inline void round_rows(const Place& from, const Place& to, int64_t rows, int64_t columns, const KernelArgs& args) {
  if (rows > 1 && from.row == columns && to.row == columns)  // one row
    return round_rows({from.type, from.data, rows * columns}, {to.type, to.data, rows * columns}, 1, rows * columns, args);
  if (to.type == DType::float32)
    round_rows_as<float>(from, to, rows, columns, args);
  else if (to.type == DType::bfloat16)
    round_rows_as<bfloat16>(from, to, rows, columns, args);
  else
    round_rows_as<float16>(from, to, rows, columns, args);
}
// Of n elements, to float32 or to 16 bits.
inline void round_to(DType type, const void* from, DType stored, void* to, int64_t n, const KernelArgs& args) {
  round_rows({stored, const_cast<void*>(from), n}, {type, to, n}, 1, n, args);
}

// Where the library reads an input; rounded there, if that is a copy.
inline std::byte* rounded_input(const HalfTensor& tensor, size_t input, const KernelArgs& args) {
  if (!tensor.is_copied()) return const_cast<std::byte*>(args.in<std::byte>(input));
  std::byte* const copy = workspace_of(args) + tensor.at;
  round_to(tensor.type, args.inputs[input], tensor.stored, copy, tensor.elements, args);
  return copy;
}
// Where it writes an output, which is widened behind it, if that is a copy.
inline std::byte* output_place(const HalfTensor& tensor, size_t output, const KernelArgs& args) {
  return tensor.is_copied() ? workspace_of(args) + tensor.at : args.out<std::byte>(output);
}
inline void widen_output(const HalfTensor& tensor, size_t output, const KernelArgs& args) {
  if (tensor.is_copied()) round_to(tensor.stored, workspace_of(args) + tensor.at, tensor.type, args.outputs[output], tensor.elements, args);
}

}  // namespace halves
ORT_TRAIN_OPS_END
