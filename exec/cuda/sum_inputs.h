// The sum of several inputs' numbers, in the order of sum_of_inputs (exec/ops/update.h).

#pragma once

#include <algorithm>
#include <vector>

#include "exec/cuda/ordered_sum.h"

ORT_TRAIN_OPS_BEGIN

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
