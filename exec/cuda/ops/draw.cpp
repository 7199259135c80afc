// DrawNumbers. Its meaning: exec/ops/draw.cpp. A thread stores a counter's four elements at once where they are aligned in this tensor.

#include "exec/ops/draw.h"

#include "exec/cuda/counters.h"
#include "exec/cuda/moves.h"
#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct DrawnElements : Counters {
  using Shared = NoShared;
  using Four = Vector<T, 4>;

  DrawnNumbers drawn;
  const int64_t* random;
  T* y;
  int64_t n;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    each_counter(block, drawn, random, n, [&](int64_t first, const PhiloxCounter& numbers, bool is_whole) {
      const uint32_t bits[4] = {numbers[0], numbers[1], numbers[2], numbers[3]};
      float standard[4];
      drawn.standard(bits, 4, standard);
      if (is_whole) {
        Four four;
        for (int i = 0; i < 4; ++i) four.of[i] = store<T>(drawn.template value<Compute<T>>(standard[i]));
        reinterpret_cast<Four*>(y)[first / 4] = four;
        return;
      }
      for (int i = 0; i < 4; ++i) {
        if (first + i >= 0 && first + i < n) y[first + i] = store<T>(drawn.template value<Compute<T>>(standard[i]));
      }
    });
  }
};

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Floats{}, spec.outputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [drawn = DrawnNumbers(spec.attributes), n = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
      const DrawnElements<T> elements{{}, drawn, args.in<int64_t>(0), args.out<T>(0), n};
      launch(elements, elements.blocks(n), args);
    };
  });
}

}  // namespace

constexpr Kernel kDrawNumbersKernel{
    .types = kFloating,
    .typed = kResult,
    .cost = elementwise_cost<40>,
    .prepare = prepare,
};

ORT_TRAIN_OPS_END
