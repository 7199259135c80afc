#include "frontend/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "graph/error.h"

namespace ort_train {

double Schedule::at(int64_t step) const {
  const double s = static_cast<double>(step - 1), warmup = static_cast<double>(warmup_steps), total = static_cast<double>(total_steps);
  double factor = 1;
  if (type != "constant" && s < warmup) {
    factor = s / std::max(1.0, warmup);
  } else if (type == "linear") {
    factor = std::max(0.0, (total - s) / std::max(1.0, total - warmup));
  } else if (type == "cosine") {  // half a wave, from 1 to 0
    const double progress = (s - warmup) / std::max(1.0, total - warmup);
    factor = std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * 0.5 * 2.0 * progress)));
  }
  return learning_rate * factor;
}

Schedule make_schedule(const std::string& type, double learning_rate, double warmup, int64_t total_steps) {
  if (type != "linear" && type != "cosine" && type != "constant" && type != "constant_with_warmup") {
    throw error(ErrorCode::usage, "`lr_scheduler_type` {} is not known: linear, cosine, constant or constant_with_warmup", type);
  }
  if (!(warmup >= 0)) throw error(ErrorCode::usage, "`warmup_steps` {} is negative", warmup);
  const double steps = warmup >= 1 ? std::floor(warmup) : std::ceil(static_cast<double>(total_steps) * warmup);
  return {.type = type, .learning_rate = learning_rate, .warmup_steps = static_cast<int64_t>(steps), .total_steps = total_steps};
}

}  // namespace ort_train
