// What Dropout draws for which element, for the kernels of every device.

#pragma once

#include <cstdint>

#include "exec/kernel.h"
#include "exec/random.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr float kUsualRatio = 0.5f;

// `random` is the kernel's second input, kRandomInput.
struct DropoutDraw {
  float ratio;
  uint32_t least;  // of the numbers that keep an element
  uint32_t ordinal;
  bool shared;

  explicit DropoutDraw(const Attributes& attributes)
      : ratio(attributes.get("ratio", kUsualRatio)),
        least(static_cast<uint32_t>(static_cast<double>(ratio) * 0x1p32)),
        ordinal(static_cast<uint32_t>(attributes.get("ordinal", 0))),
        shared(attributes.get("shared", 0) != 0) {}

  HOST_DEVICE PhiloxKey key(const int64_t* random) const { return {static_cast<uint32_t>(random[kRandomSeed]), ordinal}; }
  // Element i of the step's batch has number i % 4 of counter i / 4.
  HOST_DEVICE static PhiloxCounter counter(const int64_t* random, int64_t number) {
    const auto seed = static_cast<uint64_t>(random[kRandomSeed]), step = static_cast<uint64_t>(random[kRandomStep]),
               block = static_cast<uint64_t>(number);
    return {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(step),
            static_cast<uint32_t>(step >> 32) ^ static_cast<uint32_t>(seed >> 32)};
  }
  // Elements of the step's batch that come before the n of this tensor.
  HOST_DEVICE int64_t before(const int64_t* random, int64_t n) const {
    const int64_t samples = random[kRandomSamples] > 1 ? random[kRandomSamples] : 1;
    return shared ? 0 : random[kRandomFirst] * ((n + samples - 1) / samples);
  }

  template <typename T> HOST_DEVICE T scale() const { return T(1) / (T(1) - T(ratio)); }
  template <typename T> HOST_DEVICE T value(T x, uint32_t number, T scale) const { return number >= least ? x * scale : T(0); }
};

ORT_TRAIN_OPS_END
