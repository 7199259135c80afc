// DrawNumbers. Its meaning: exec/ops/draw.cpp. A thread draws one counter's four numbers, which are those of four neighbours in the step's
// batch; where these are aligned in this tensor, it stores them at once.

#include "exec/ops/draw.h"

#include "exec/cuda/moves.h"
#include "exec/elementwise.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T> struct DrawnElements {
  static constexpr int kThreads = 256, kEach = 4;  // counters of a thread
  using Shared = NoShared;
  using Four = Vector<T, 4>;

  DrawnNumbers drawn;
  const int64_t* random;
  T* y;
  int64_t n;

  static int64_t blocks(int64_t n) { return (n / 4 + 1 + kThreads * kEach) / (kThreads * kEach); }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    block.each([&](int t) {
      const int64_t before = drawn.before(random, n);
      const PhiloxKey key = drawn.key(random);
      for (int k = 0; k < kEach; ++k) {
        const int64_t counter = before / 4 + (block.index * kEach + k) * kThreads + t, first = 4 * counter - before;
        if (first >= n) continue;
        const PhiloxCounter numbers = philox_numbers(drawn.counter(random, counter), key);
        const uint32_t bits[4] = {numbers[0], numbers[1], numbers[2], numbers[3]};
        float standard[4];
        drawn.standard(bits, 4, standard);
        if (before % 4 == 0 && first + 4 <= n) {
          Four four;
          for (int i = 0; i < 4; ++i) four.of[i] = store<T>(drawn.template value<Compute<T>>(standard[i]));
          reinterpret_cast<Four*>(y)[first / 4] = four;
          continue;
        }
        for (int i = 0; i < 4; ++i) {
          if (first + i >= 0 && first + i < n) y[first + i] = store<T>(drawn.template value<Compute<T>>(standard[i]));
        }
      }
    });
  }
};

KernelRun prepare(const KernelSpec& spec) {
  return for_type(Floats{}, spec.outputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [drawn = DrawnNumbers(spec.attributes), n = element_count(spec.outputs[0].shape)](const KernelArgs& args) {
      const DrawnElements<T> elements{drawn, args.in<int64_t>(0), args.out<T>(0), n};
      launch(elements, n == 0 ? 0 : elements.blocks(n), args);
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
