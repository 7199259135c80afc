// Range, ConstantOfShape, OneHot and Trilu: a thread an element of the result (16 bytes of it, ConstantOfShape). Their meaning:
// exec/ops/generate.cpp.

#include "exec/ops/generate.h"

#include "exec/cuda/copy.h"
#include "exec/cuda/indexing.h"
#include "exec/op_list.h"
#include "exec/strided.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct RangeElement {
  const T *start, *delta;
  T* out;
  HOST_DEVICE void operator()(int64_t i) const { out[i] = in_steps(*start, *delta, i); }
};

KernelRun prepare_range(const KernelSpec& spec) {
  return for_type(Counted{}, spec.outputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [count = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
      launch_elements(RangeElement<T>{args.in<T>(0), args.in<T>(2), args.out<T>(0)}, count, args);
    };
  });
}

KernelRun prepare_constant_of_shape(const KernelSpec& spec) {
  const Tensor value = constant_of(spec.attributes);
  return [word = repeated(value.bytes.data(), size_of(value.dtype)), bytes = spec.outputs[0].bytes()](const KernelArgs& args) {
    fill_words(args.outputs[0], word, bytes, args);
  };
}

template <typename Word, typename Index> struct OneHotElement {
  Size depth, inner;
  bool small;
  const Index* indices;
  const Word* values;  // off, on
  Word* out;
  HOST_DEVICE void operator()(int64_t i) const {
    const Size::Place row = inner.split(i, small), table = depth.split(row.above, small);
    const int64_t index = indices[table.above * inner.size + row.place];
    out[i] = values[table.place == (index < 0 ? index + depth.size : index) ? 1 : 0];  // outside: all off, says ONNX
  }
};

KernelRun prepare_one_hot(const KernelSpec& spec) {
  const OneHotShape shape(spec);
  const int64_t count = element_count(spec.outputs[0].shape);
  return for_word(size_of(spec.outputs[0].dtype), [&]<typename Word>() {
    return for_type(Indices{}, spec.inputs[0].dtype, [&]<typename Index>() -> KernelRun {
      return [depth = Size(shape.depth), inner = Size(shape.inner), count](const KernelArgs& args) {
        launch_elements(
            OneHotElement<Word, Index>{depth, inner, count <= INT32_MAX, args.in<Index>(0), args.in<Word>(1), args.out<Word>(0)}, count,
            args);
      };
    });
  });
}

template <typename Word> struct TriangleWords {
  Triangle triangle;
  Size columns, rows;
  bool small;
  const Word* in;
  Word* out;
  HOST_DEVICE Word take(int64_t i) const {
    const Size::Place at = columns.split(i, small);
    const bool behind = at.place >= triangle.edge(rows.split(at.above, small).place);
    return behind == triangle.upper ? in[i] : Word{};
  }
  HOST_DEVICE void put(int64_t i, Word word) const { out[i] = word; }
};

KernelRun prepare_trilu(const KernelSpec& spec) {
  const int64_t count = element_count(spec.outputs[0].shape);
  return for_word(size_of(spec.outputs[0].dtype), [&]<typename Word>() -> KernelRun {
    return [triangle = Triangle(spec), count](const KernelArgs& args) {
      launch_moves(TriangleWords<Word>{triangle, Size(triangle.columns), Size(triangle.rows), count <= INT32_MAX, args.in<Word>(0),
                                       args.out<Word>(0)},
                   count, args);
    };
  });
}

}  // namespace

constexpr Kernel kRangeKernel{
    .types = dtypes_of(Counted{}),
    .typed = kResult,
    .cost = movement_cost,
    .prepare = prepare_range,
};
constexpr Kernel kConstantOfShapeKernel{
    .types = kAnyType,
    .typed = kResult,
    .cost = movement_cost,
    .prepare = prepare_constant_of_shape,
};
constexpr Kernel kOneHotKernel{
    .types = kAnyType,
    .typed = kResult,
    .cost = movement_cost,
    .prepare = prepare_one_hot,
};
constexpr Kernel kTriluKernel{
    .types = kAnyType,
    .in_place = {{.output = 0, .input = 0}},
    .cost = movement_cost,
    .prepare = prepare_trilu,
};

ORT_TRAIN_OPS_END
