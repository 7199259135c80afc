// Dequantize: a thread an element. Its meaning: exec/ops/quantization.cpp.

#include "exec/ops/quantization.h"

#include "exec/cuda/indexing.h"
#include "exec/cuda/moves.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// Where in the scales that of an element of y is.
struct ScaleLoop {
  Size inner, axis, block;
  int64_t per_outer, per_block, per_inner;
  bool small;

  ScaleLoop(const Scaling& scaling, int64_t count)
      : inner(scaling.inner),
        axis(scaling.size),
        block(scaling.block),
        per_outer(scaling.per_outer),
        per_block(scaling.per_block),
        per_inner(scaling.per_inner),
        small(count <= INT32_MAX) {}

  HOST_DEVICE int64_t place(int64_t i) const {
    const Size::Place row = inner.split(i, small), table = axis.split(row.above, small);
    return table.above * per_outer + block.split(table.place, small).above * per_block + row.place * per_inner;
  }
};

template <typename Code, typename T> struct DequantizedElements {
  ScaleLoop loop;
  int64_t bits;
  T zero;  // of all, where neither of these is there
  const Code *codes, *zero_codes;
  const T *scales, *zeros;
  T* y;

  HOST_DEVICE T take(int64_t i) const {
    const int64_t at = loop.place(i);
    const T shift = zero_codes ? static_cast<T>(zero_codes[at]) : zeros ? zeros[at] : zero;
    return bits == 8 ? dequantized(codes[i], shift, scales[at]) : dequantized(packed_code(codes, i, bits), shift, scales[at]);
  }
  HOST_DEVICE void put(int64_t i, T value) const { y[i] = value; }
};

template <typename Code, typename T> KernelRun dequantize_of(const KernelSpec& spec) {
  const int64_t count = element_count(spec.outputs[0].shape);
  const bool has_zeros = spec.has(2), are_codes = has_zeros && spec.inputs[2].dtype == spec.inputs[0].dtype;
  const ScaleLoop loop(Scaling(spec.outputs[0].shape, spec.inputs[1].shape, spec.attributes), count);
  return [=, bits = bits_of(spec.attributes), zero = static_cast<T>(spec.attributes.get("zero", int64_t{0}))](const KernelArgs& args) {
    launch_moves(DequantizedElements<Code, T>{.loop = loop,
                                              .bits = bits,
                                              .zero = zero,
                                              .codes = args.in<Code>(0),
                                              .zero_codes = are_codes ? args.in<Code>(2) : nullptr,
                                              .scales = args.in<T>(1),
                                              .zeros = has_zeros && !are_codes ? args.in<T>(2) : nullptr,
                                              .y = args.out<T>(0)},
                 count, args);
  };
}

KernelRun prepare_dequantize(const KernelSpec& spec) {
  return for_type(Codes{}, spec.inputs[0].dtype, [&]<typename Code>() {
    return for_type(Wide{}, spec.outputs[0].dtype, [&]<typename T>() { return dequantize_of<Code, T>(spec); });
  });
}

}  // namespace

constexpr Kernel kDequantizeKernel{
    .types = dtypes_of(Codes{}),
    .cost = dequantize_cost,
    .prepare = prepare_dequantize,
};

ORT_TRAIN_OPS_END
