// Dropout. Its meaning: exec/ops/dropout.cpp. A thread loads and stores a counter's four elements at once where they are aligned in this
// tensor.

#include "exec/ops/dropout.h"

#include "exec/cuda/counters.h"
#include "exec/cuda/moves.h"
#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct DroppedElements : Counters {
  using Shared = NoShared;
  using Four = Vector<T, 4>;

  DropoutDraw draw;
  Compute<T> scale;
  const T* x;
  const int64_t* random;
  T* y;
  int64_t n;

  HOST_DEVICE T value(T from, uint32_t number) const { return store<T>(draw.value(load(from), number, scale)); }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    each_counter(block, draw, random, n, [&](int64_t first, const PhiloxCounter& numbers, bool is_whole) {
      if (is_whole) {
        Four four = reinterpret_cast<const Four*>(x)[first / 4];
        for (int i = 0; i < 4; ++i) four.of[i] = value(four.of[i], numbers[i]);
        reinterpret_cast<Four*>(y)[first / 4] = four;
        return;
      }
      for (int i = 0; i < 4; ++i) {
        if (first + i >= 0 && first + i < n) y[first + i] = value(x[first + i], numbers[i]);
      }
    });
  }
};

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Floats{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    const DropoutDraw draw(spec.attributes);
    return [draw, scale = draw.scale<Compute<T>>(), n = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
      const DroppedElements<T> dropped{{}, draw, scale, args.in<T>(0), args.in<int64_t>(1), args.out<T>(0), n};
      launch(dropped, dropped.blocks(n), args);
    };
  });
}

}  // namespace

constexpr Kernel kDropoutKernel{
    .types = kFloating,
    .in_place = {{.output = 0, .input = 0}},
    .cost = elementwise_cost<12>,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
