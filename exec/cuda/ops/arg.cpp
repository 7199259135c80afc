// ArgMax and ArgMin on CUDA. Their meaning: exec/ops/arg.cpp. Each thread looks at a part of a line, then a tree joins what they found:
// which element is the first (or last) of the best doesn't depend on the order.

#include "exec/ops/arg.h"

#include "exec/block.h"
#include "exec/cuda/indexing.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

template <typename T, bool largest, bool last> struct FindBest {
  static constexpr int kThreads = 256;
  using Value = Compute<T>;
  struct Found {
    Value value;
    int64_t at;  // negative: nothing
  };
  struct Shared {
    Found found[kThreads];
  };
  const T* x;
  int64_t* positions;
  int64_t lines, length;
  Size inner;
  bool small;
  int shift;  // 2^shift threads look at one line

  FindBest(const Lines& of, const T* x, int64_t* positions)
      : x(x),
        positions(positions),
        lines(of.outer * of.inner),
        length(of.length),
        inner(of.inner),
        small(of.outer * of.inner <= INT32_MAX),
        shift(0) {
    constexpr int64_t kEach = 4, kEnough = 1 << 17;
    // Neighbours read one line where that lies in memory as it is, else neighbouring lines.
    if (of.inner == 1) {
      while (shift < 5 && int64_t{2} << shift <= length) ++shift;
    }
    while (int64_t{1} << shift < kThreads && (kEach << shift) < length && lines << shift < kEnough) ++shift;
  }
  int64_t blocks() const { return (lines + (kThreads >> shift) - 1) / (kThreads >> shift); }

  HOST_DEVICE static bool is_better(const Found& a, const Found& b) {
    if (a.at < 0 || b.at < 0) return a.at > b.at;
    if (beats<largest>(a.value, b.value)) return true;
    return !beats<largest>(b.value, a.value) && (last ? a.at > b.at : a.at < b.at);
  }

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const int parts = 1 << shift, together = kThreads >> shift;
    // Thread part * part_step + line * line_step.
    const int part_step = inner.size == 1 ? 1 : together, line_step = inner.size == 1 ? parts : 1;
    Found* const found = block.shared.found;
    block.each([&](int t) {
      const int part = t / part_step % parts, own = t / line_step % together;
      const int64_t line = block.index * together + own;
      Found best{Value{}, -1};
      if (line < lines) {
        const Size::Place place = inner.split(line, small);
        const T* const at = x + place.above * length * inner.size + place.place;
        for (int64_t k = part; k < length; k += parts) {
          const Found here{load(at[k * inner.size]), k};
          if (is_better(here, best)) best = here;
        }
      }
      found[t] = best;
    });
    for (int half = parts / 2; half > 0; half /= 2) {
      block.each([&](int t) {
        if (t / part_step % parts >= half) return;
        const Found other = found[t + half * part_step];
        if (is_better(other, found[t])) found[t] = other;
      });
    }
    block.each([&](int t) {
      const int64_t line = block.index * together + t;
      if (t < together && line < lines) positions[line] = found[t * line_step].at;
    });
  }
};

using Compared = Types<float, double, float16, bfloat16, int64_t, int32_t, int8_t, uint8_t>;

template <bool largest> KernelRun prepare_arg(const KernelSpec& spec) {
  const Lines lines(spec.inputs[0].shape, line_axis(spec.attributes, spec.inputs[0].shape, 0));
  const bool last = spec.attributes.get("select_last_index", 0) != 0;
  return for_type(Compared{}, spec.inputs[0].dtype, [&]<typename T>() -> KernelRun {
    return [lines, last](const KernelArgs& args) {
      const auto run = [&](const auto& kernel) { launch(kernel, kernel.blocks(), args); };
      if (last)
        run(FindBest<T, largest, true>(lines, args.in<T>(0), args.out<int64_t>(0)));
      else
        run(FindBest<T, largest, false>(lines, args.in<T>(0), args.out<int64_t>(0)));
    };
  });
}

constexpr Kernel arg_kernel(Prepare prepare) { return {.types = dtypes_of(Compared{}), .cost = arg_cost, .prepare = prepare}; }

}  // namespace

constexpr Kernel kArgMaxKernel = arg_kernel(prepare_arg<true>);
constexpr Kernel kArgMinKernel = arg_kernel(prepare_arg<false>);

ORT_TRAIN_OPS_END
