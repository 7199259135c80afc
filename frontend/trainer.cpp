// The public face: Trainer's calls and the few functions beside them.

#include <algorithm>
#include <charconv>
#include <cmath>
#include <thread>

#include "frontend/trainer_impl.h"

namespace ort_train {

Trainer::Impl::Impl(const Options& options_, Callbacks callbacks_)
    : options(checked(options_)),  // before threads are started
      callbacks(std::move(callbacks_)),
      workers(options_.threads > 0 ? options_.threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  build();
}

void Trainer::Impl::note(const std::string& text) const {
  if (callbacks.on_note) callbacks.on_note(text);
}

Trainer::Trainer(const Options& options, Callbacks callbacks) : impl_(std::make_unique<Impl>(options, std::move(callbacks))) {}
Trainer::~Trainer() = default;
const PlanReport& Trainer::plan() const { return impl_->report; }
Summary Trainer::train() { return impl_->train(); }
double Trainer::evaluate() { return impl_->evaluate().loss; }
bool Trainer::can_sample() const { return impl_->data.vocabulary != nullptr; }
std::string Trainer::sample(const std::string& prompt, int64_t length, double temperature, uint64_t seed) {
  return impl_->sample(prompt, length, temperature, seed);
}
std::map<std::string, std::vector<float>> Trainer::predict(const std::map<std::string, std::vector<int64_t>>& integers,
                                                           const std::map<std::string, std::vector<float>>& reals) {
  return impl_->predict(integers, reals);
}
void Trainer::request_stop() noexcept { impl_->stop.store(true, std::memory_order_relaxed); }

int64_t parse_bytes(const std::string& text) {
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  constexpr const char* letters = "KMGT";
  for (int i = 0; i < 4; ++i) {
    if (unit == std::string(1, letters[i]) + "B") factor = std::pow(1000.0, i + 1);
    if (unit == std::string(1, letters[i]) + "IB") factor = std::pow(1024.0, i + 1);
  }
  if (code != std::errc() || factor == 0 || !(number >= 0) || number * factor > 9e18) {
    throw error(ErrorCode::usage, "'{}' is no number of bytes: write 12GB, 12GiB, 300MB or plain bytes", text);
  }
  return static_cast<int64_t>(std::llround(number * factor));
}

std::string version() { return ORT_TRAIN_VERSION; }

}  // namespace ort_train
