// The optimizers, one file each, and what their definitions share.

#pragma once

#include <cmath>

#include "passes/optimizer.h"

namespace ort_train {

extern const OptimizerDef kAdamWOptimizer, kAdamOptimizer, kSgdOptimizer, kAdafactorOptimizer, kAdafactorTorchOptimizer, kLionOptimizer,
    kLambOptimizer, kLarsOptimizer, kAdagradOptimizer, kRmspropOptimizer;

// --- options --------------------------------------------------------------------------------------------------------------------------

inline OptimizerOption share(std::string_view name, double value, std::string_view help) {
  return {.name = name, .value = value, .help = help, .fits = [](double x) { return x >= 0 && x < 1; }, .wrong = "has to lie in [0, 1)"};
}
inline OptimizerOption not_negative(std::string_view name, double value, std::string_view help) {
  return {.name = name,
          .value = value,
          .help = help,
          .fits = [](double x) { return x >= 0 && std::isfinite(x); },
          .wrong = "has to be 0 or more, and finite"};
}
inline OptimizerOption flag(std::string_view name, bool value, std::string_view help) {
  return {.name = name,
          .value = value ? 1.0 : 0.0,
          .help = help,
          .fits = [](double x) { return x == 0 || x == 1; },
          .wrong = "is neither 0 nor 1",
          .flag = true};
}

}  // namespace ort_train
