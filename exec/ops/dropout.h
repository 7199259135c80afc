// What Dropout draws for which element, for the kernels of every device.

#pragma once

#include <cstdint>

#include "exec/kernel.h"
#include "exec/random.h"
#include "graph/half.h"

ORT_TRAIN_OPS_BEGIN

inline constexpr float kUsualRatio = 0.5f;

struct DropoutDraw : DrawAddress {
  float ratio;
  uint32_t least;  // of the numbers that keep an element

  explicit DropoutDraw(const Attributes& attributes)
      : DrawAddress(attributes),
        ratio(attributes.get("ratio", kUsualRatio)),
        least(static_cast<uint32_t>(static_cast<double>(ratio) * 0x1p32)) {}

  template <typename T> HOST_DEVICE T scale() const { return T(1) / (T(1) - T(ratio)); }
  template <typename T> HOST_DEVICE T value(T x, uint32_t number, T scale) const { return number >= least ? x * scale : T(0); }
};

ORT_TRAIN_OPS_END
