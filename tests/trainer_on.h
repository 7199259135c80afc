// A trainer on another device than the usual one, or in other parts.

#pragma once

#include <utility>

#include "frontend/device_choice.h"
#include "frontend/ort_train.h"

namespace ort_train::fixtures {

struct TrainerOn : Trainer {
  TrainerOn(const DeviceChoice& on, const Options& options, Callbacks callbacks = {}) : Trainer(options, std::move(callbacks), on) {}
};

}  // namespace ort_train::fixtures
