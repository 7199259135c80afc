#include "passes/stream_clock.h"

namespace ort_train {

size_t StreamClock::begin(bool write, int64_t bytes) {
  const double seconds = static_cast<double>(bytes) / rates_.rate(write);
  const double latency = head_ < transfers_.size() ? 0 : rates_.latency(write);
  const double took = latency + seconds / rates_.beside;  // beside computing
  const double beside = took - rates_.slowed * (took - latency);
  const double until = transfers_.empty() ? 0 : transfers_.back().computed_until;
  transfers_.push_back(
      {.seconds = latency + seconds, .beside = beside, .pace = beside / took, .computed_until = until + beside, .began = now_});
  return transfers_.size() - 1;
}

void StreamClock::end_head() {
  transfers_[head_].ended = now_;
  computed_ = transfers_[head_].computed_until;
  done_ = 0;
  if (++head_ < transfers_.size()) transfers_[head_].began = now_;
}

double StreamClock::wait(size_t transfer) {
  const double before = now_;
  while (head_ <= transfer) {
    now_ += (1 - done_) * transfers_[head_].seconds;
    end_head();
  }
  return now_ - before;
}

void StreamClock::compute(double seconds) {
  while (head_ < transfers_.size() && seconds > 0) {
    const Transfer& transfer = transfers_[head_];
    const double left = (1 - done_) * transfer.beside, pace = transfer.pace;
    if (left > seconds) {
      done_ += seconds / transfer.beside;
      computed_ += seconds;
      now_ += seconds / pace;
      return;
    }
    seconds -= left;
    now_ += left / pace;
    end_head();
  }
  now_ += seconds;
}

}  // namespace ort_train
