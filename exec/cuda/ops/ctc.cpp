// CtcLoss on CUDA; exec/ops/ctc.cpp says what it is. A block a sample: its threads share the states of a time step. Of a class that several
// states stand for one thread adds the paths, in the states' order: the processor's.

#include "exec/ops/ctc.h"

#include "exec/block.h"
#include "exec/op_list.h"

ORT_TRAIN_OPS_BEGIN
namespace {

// Of a sample: doubles() as on the processor, and for each state the next one of the same class.
int64_t bytes_each(const CtcShape& shape) { return shape.doubles() * int64_t{sizeof(double)} + shape.states() * int64_t{sizeof(int64_t)}; }

template <typename T> struct CtcSamples {
  static constexpr int kThreads = 128;
  struct Shared {
    int64_t count, steps;
  };  // steps: 0 where the sample is left out
  CtcShape shape;
  int64_t blank;
  bool zero_infinity;
  const T* log_p;
  const int64_t *labels, *lengths;  // lengths: may be null
  T *losses, *paths;                // paths: may be null
  std::byte* workspace;
  int64_t bytes;  // of it, a sample
  DataError* error;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    const int64_t i = block.index, plane = shape.steps * shape.classes;
    T* const to = paths ? paths + i * plane : nullptr;
    block.each([&](int thread) {
      for (int64_t k = thread; to && k < plane; k += kThreads) to[k] = 0;
      if (thread != 0) return;
      losses[i] = 0;
      measure(i, block.shared);
    });
    if (block.shared.steps == 0) return;
    const CtcSample<T> sample{log_p + i * plane, labels + i * shape.labels, block.shared.count, block.shared.steps, shape.classes, blank};
    auto* const alpha = reinterpret_cast<double*>(workspace + i * bytes);
    double* const beta = alpha + shape.steps * shape.states();
    auto* const same = reinterpret_cast<int64_t*>(alpha + shape.doubles());
    const int64_t n = sample.states();
    for (int64_t t = 0; t < sample.steps; ++t) {
      const double* const before = t == 0 ? nullptr : alpha + (t - 1) * n;
      block.each([&](int thread) {
        for (int64_t s = thread; s < n; s += kThreads) alpha[t * n + s] = sample.forward(before, t, s);
      });
    }
    const double total = sample.total(alpha + (sample.steps - 1) * n);
    if (total == kImpossible && zero_infinity) return;
    block.each([&](int thread) {
      if (thread == 0) losses[i] = static_cast<T>(-total * sample.scale());
      for (int64_t s = thread; s < n; s += kThreads) same[s] = next_of_class(sample, s);
    });
    if (to == nullptr || !(total > kImpossible)) return;
    for (int64_t t = sample.steps - 1; t >= 0; --t) {  // alpha becomes the logarithm of the paths that are in s at t
      block.each([&](int thread) {
        for (int64_t s = thread; s < n; s += kThreads) {
          const double behind = sample.backward(beta + (t + 1) % 2 * n, t, s);
          beta[t % 2 * n + s] = behind;
          alpha[t * n + s] = alpha[t * n + s] + behind - total;
        }
      });
    }
    block.each([&](int thread) {
      for (int64_t k = thread; k < sample.steps * n; k += kThreads) {
        const int64_t t = k / n, s = k % n;
        if (is_first_of_class(sample, s)) to[t * shape.classes + sample.symbol(s)] = of_class(sample, alpha + t * n, same, s);
      }
    });
  }

 private:
  HOST_DEVICE void measure(int64_t i, Shared& sample) const {
    const int64_t* const own = labels + i * shape.labels;
    sample = {0, 0};
    for (; sample.count < shape.labels && own[sample.count] >= 0; ++sample.count) {
      const int64_t label = own[sample.count];
      if (label >= shape.classes || label == blank) return error->report(DataError::label, label, shape.classes, i);
    }
    const int64_t steps = lengths ? lengths[i] : shape.steps;
    if (steps < 1 || steps > shape.steps) return error->report(DataError::index, steps, shape.steps + 1, i);
    sample.steps = steps;
  }

  // Blanks are no label.
  static HOST_DEVICE bool is_first_of_class(const CtcSample<T>& sample, int64_t s) {
    if (s % 2 == 0) return s == 0;
    int64_t before = s / 2 - 1;
    while (before >= 0 && sample.labels[before] != sample.labels[s / 2]) --before;
    return before < 0;
  }
  static HOST_DEVICE int64_t next_of_class(const CtcSample<T>& sample, int64_t s) {
    int64_t next = s + 2;
    while (next < sample.states() && sample.symbol(next) != sample.symbol(s)) next += 2;
    return next;
  }
  static HOST_DEVICE T of_class(const CtcSample<T>& sample, const double* paths, const int64_t* same, int64_t s) {
    T sum = 0;
    for (; s < sample.states(); s = same[s]) sum = sample.with_path(sum, paths[s], sample.scale());
    return sum;
  }
};

template <typename T> KernelRun ctc_of(const KernelSpec& spec) {
  return [shape = CtcShape(spec), blank = spec.attributes.get("blank", int64_t{0}), has_lengths = spec.has(2),
          zero_infinity = spec.attributes.get("zero_infinity", int64_t{0}) != 0](const KernelArgs& args) {
    launch(CtcSamples<T>{.shape = shape,
                         .blank = blank,
                         .zero_infinity = zero_infinity,
                         .log_p = args.in<T>(0),
                         .labels = args.in<int64_t>(1),
                         .lengths = has_lengths ? args.in<int64_t>(2) : nullptr,
                         .losses = args.out<T>(0),
                         .paths = args.out<T>(1),
                         .workspace = args.workspace,
                         .bytes = bytes_each(shape),
                         .error = args.error},
           shape.samples, args);
  };
}

KernelRun prepare_ctc(const KernelSpec& spec) {
  return for_type(Wide{}, spec.inputs[0].dtype, [&]<typename T>() { return ctc_of<T>(spec); });
}

Workspace ctc_workspace(const KernelSpec& spec) {
  const CtcShape shape(spec);
  return {.shared = shape.samples * bytes_each(shape)};
}

}  // namespace

constexpr Kernel kCtcLossKernel{
    .types = kWide,
    .cost = ctc_cost,
    .workspace = ctc_workspace,
    .prepare = prepare_ctc,
};

ORT_TRAIN_OPS_END
