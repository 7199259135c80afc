// Sums in one order: a chain of additions, which one thread makes, while others load what comes next into shared memory. So is the sum of
// several inputs' numbers, in the order of sum_of_inputs (exec/ops/update.h).

#pragma once

#include <algorithm>
#include <vector>

#include "exec/block.h"

ORT_TRAIN_OPS_BEGIN

// A block of threads sums one unit. Source is a functor, HOST_DEVICE:
//
//   int64_t count(int64_t unit) const;
//   double start(int64_t unit) const;                 that the sum goes on from
//   double operator()(int64_t unit, int64_t i) const;
//   void put(int64_t unit, double sum) const;
template <class Source> struct OrderedSum {
  static constexpr int kLoaders = 256, kThreads = kLoaders + 32, kChunk = 2048;
  struct Shared {
    double values[2][kChunk];
  };

  Source source;

  template <class Block> HOST_DEVICE void operator()(Block& block) const {
    typename Block::template Own<double> sum;
    block.each([&](int t) {
      if (t == kLoaders) sum[t] = source.start(block.index);
    });
    const int64_t n = source.count(block.index), chunks = (n + kChunk - 1) / kChunk;
    for (int64_t chunk = 0; chunk <= chunks; ++chunk) {
      block.each([&](int t) {
        if (t < kLoaders) {
          const int64_t first = chunk * kChunk;
          for (int i = t; i < kChunk && first + i < n; i += kLoaders) block.shared.values[chunk % 2][i] = source(block.index, first + i);
        } else if (t == kLoaders && chunk > 0) {
          const int64_t left = n - (chunk - 1) * kChunk;
          sum[t] = chain(block.shared.values[(chunk - 1) % 2], static_cast<int>(left < kChunk ? left : kChunk), sum[t]);
        }
      });
    }
    block.each([&](int t) {
      if (t == kLoaders) source.put(block.index, sum[t]);
    });
  }

  static HOST_DEVICE double chain(const double* values, int n, double sum) {
    int i = 0;
    for (; i + 16 <= n; i += 16) {
      for (int k = 0; k < 16; ++k) sum += values[i + k];
    }
    for (; i < n; ++i) sum += values[i];
    return sum;
  }
};

// --- of inputs --------------------------------------------------------------------------------------------------------------------------

inline constexpr int kInputsAtOnce = 128;  // that a launch takes; the next goes on from its sum

// Finish is a functor, HOST_DEVICE: finish(sum), called once.
template <class Finish> struct InputNumbers {
  const double* inputs[kInputsAtOnce];
  int64_t starts[kInputsAtOnce + 1];  // of each among the numbers of all
  int inputs_count;
  const double* before;  // the sum that it goes on from; null: 0
  double* sum;           // null: it is finished
  Finish finish;

  HOST_DEVICE int64_t count(int64_t) const { return starts[inputs_count]; }
  HOST_DEVICE double start(int64_t) const { return before ? *before : 0; }
  HOST_DEVICE double operator()(int64_t, int64_t i) const {
    int input = 0;
    for (int half = kInputsAtOnce / 2; half > 0; half /= 2) {
      if (input + half < inputs_count && starts[input + half] <= i) input += half;
    }
    return inputs[input][i - starts[input]];
  }
  HOST_DEVICE void put(int64_t, double of_all) const {
    if (sum)
      *sum = of_all;
    else
      finish(of_all);
  }
};

// Of the inputs [first, end). `partial`: on the device, used where they are more than a launch takes.
template <class Finish>
void launch_input_sum(const KernelArgs& args, const std::vector<int64_t>& counts, size_t first, size_t end, double* partial,
                      const Finish& finish) {
  const double* before = nullptr;
  do {
    const size_t next = std::min(end, first + kInputsAtOnce);
    InputNumbers<Finish> numbers{.inputs = {},
                                 .starts = {},
                                 .inputs_count = static_cast<int>(next - first),
                                 .before = before,
                                 .sum = next < end ? partial : nullptr,
                                 .finish = finish};
    for (size_t i = first; i < next; ++i) {
      numbers.inputs[i - first] = args.in<double>(i);
      numbers.starts[i - first + 1] = numbers.starts[i - first] + counts[i];
    }
    launch(OrderedSum<InputNumbers<Finish>>{numbers}, 1, args);
    before = partial;
    first = next;
  } while (first < end);
}

// What a sum is before it is finished.
struct KeepSum {
  double* to;
  HOST_DEVICE void operator()(double sum) const { *to = sum; }
};

ORT_TRAIN_OPS_END
