// StreamClock: when steps compute and transfers take place, as plans are made and judged by it.
//
// The disk makes one transfer after the other, in the order in which they begin. Computing and transfers get in each other's way where they
// share memory or cores (a drive that is emulated, checksums): beside computing a transfer goes on at a share of its rate, and computing at
// a share of its own (StreamRates). A transfer that finds the disk idle takes its latency besides, in which it slows nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "passes/stream.h"

namespace ort_train {

class StreamClock {
 public:
  explicit StreamClock(const StreamRates& rates) : rates_(rates) {}

  double now() const { return now_; }

  // Begins a transfer; its number.
  size_t begin(bool write, int64_t bytes);
  // Waits until it is over; the seconds that this took.
  double wait(size_t transfer);
  void compute(double seconds);

  bool is_over(size_t transfer) const { return transfer < head_; }
  // When it began and ended; the end only where it is over.
  double began(size_t transfer) const { return transfers_[transfer].began; }
  double ended(size_t transfer) const { return transfers_[transfer].ended; }
  // Seconds of computing until it is over, if nothing waits; 0 where it is.
  double lead(size_t transfer) const { return is_over(transfer) ? 0 : transfers_[transfer].computed_until - computed_; }
  // Of the last one.
  double backlog() const { return transfers_.empty() ? 0 : lead(transfers_.size() - 1); }

 private:
  struct Transfer {
    double seconds = 0;         // if nothing is computed
    double beside = 0;          // that can be computed meanwhile
    double pace = 1;            // of computing meanwhile
    double computed_until = 0;  // `beside` of all transfers until here
    double began = 0, ended = 0;
  };
  void end_head();

  const StreamRates rates_;
  std::vector<Transfer> transfers_;
  size_t head_ = 0;      // the first that is not over
  double done_ = 0;      // of it: the share
  double computed_ = 0;  // `beside` of all that was transferred
  double now_ = 0;
};

}  // namespace ort_train
