#include "frontend/loss_scaling.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "graph/error.h"

namespace ort_train {
namespace {

constexpr float kLeast = std::numeric_limits<float>::min();  // a smaller one loses digits, then all
constexpr int64_t kMostInRow = 100;                          // skipped steps with a fixed scale

bool is_scale(double scale) { return scale >= kLeast && scale <= std::numeric_limits<float>::max(); }

}  // namespace

LossScaling::LossScaling(const Options& options, bool in_float16)
    : growth_(options.loss_scale_growth), backoff_(options.loss_scale_backoff), window_(options.loss_scale_window) {
  const Options usual;
  const std::string& wanted = options.loss_scale;
  double scale = options.loss_scale_init;
  std::string given = fmt::format("`loss_scale_init` {}", scale);
  if (wanted == "dynamic" || (wanted == "auto" && in_float16)) {
    mode_ = Mode::dynamic;
  } else if (wanted != "auto" && wanted != "none") {
    mode_ = Mode::fixed;
    given = fmt::format("`loss_scale` {}", wanted);
    const auto [end, code] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), scale);
    if (code != std::errc() || end != wanted.data() + wanted.size())
      throw error(ErrorCode::usage, "{}: is not known: auto, none, dynamic or a number", given);
  }
  if (!is_scale(scale)) throw error(ErrorCode::usage, "{}: has to lie between 1.2e-38 and 3.4e38", given);
  if (!(growth_ > 1)) throw error(ErrorCode::usage, "`loss_scale_growth` {}: has to be more than 1", growth_);
  if (!(backoff_ > 0 && backoff_ < 1)) throw error(ErrorCode::usage, "`loss_scale_backoff` {}: has to lie between 0 and 1", backoff_);
  if (window_ < 1) throw error(ErrorCode::usage, "`loss_scale_window` {}: is at least 1", window_);
  initial_ = static_cast<float>(scale);
  if (mode_ == Mode::dynamic || wanted == "none") return;
  const std::pair<const char*, bool> given_for_dynamic[] = {{"loss_scale_init", options.loss_scale_init != usual.loss_scale_init},
                                                            {"loss_scale_window", window_ != usual.loss_scale_window},
                                                            {"loss_scale_growth", growth_ != usual.loss_scale_growth},
                                                            {"loss_scale_backoff", backoff_ != usual.loss_scale_backoff}};
  for (const auto& [name, is_given] : given_for_dynamic) {
    if (is_given)
      throw error(ErrorCode::usage,
                  "`{}` goes with a `loss_scale` that is dynamic, which it isn't here: leave it out, or choose `loss_scale` dynamic", name);
  }
}

void LossScaling::begin(LossScaleState& state) const {
  if (mode_ == Mode::none || (mode_ == Mode::dynamic && state.scale > 0)) return;
  if (state.scale != initial_) state.finite_steps = state.skipped_in_row = 0;
  state.scale = initial_;
}

std::string LossScaling::update(LossScaleState& state, bool is_finite) const {
  if (mode_ == Mode::none) return {};
  if (!is_finite) {
    ++state.skipped;
    ++state.skipped_in_row;
    state.finite_steps = 0;
    if (mode_ == Mode::fixed && state.skipped_in_row >= kMostInRow)
      return fmt::format("the gradients of {} steps in a row weren't finite with `loss_scale` {}: try a smaller one, or dynamic",
                         state.skipped_in_row, state.scale);
    if (mode_ == Mode::fixed) return {};
    const auto scale = static_cast<float>(static_cast<double>(state.scale) * backoff_);
    if (scale < kLeast)
      return fmt::format(
          "the gradients of {} steps in a row weren't finite, however small the loss scale, which is {:.2g} by now: it isn't what makes "
          "them so (`detect_anomaly` finds the node that does)",
          state.skipped_in_row, state.scale);
    state.scale = scale;
    return {};
  }
  state.skipped_in_row = 0;
  ++state.finite_steps;
  if (mode_ == Mode::fixed || state.finite_steps < window_) return {};
  state.finite_steps = 0;
  const auto scale = static_cast<float>(static_cast<double>(state.scale) * growth_);
  if (std::isfinite(scale)) state.scale = scale;
  return {};
}

}  // namespace ort_train
