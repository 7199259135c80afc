// StreamClock: when steps compute and transfers take place, as plans are made and judged by it.
//
// A store that reads or writes makes one transfer after the other, in the order in which they begin; one that can do more at once
// (StreamRates::duplex > 1) has a line for reads and one for writes, each of which goes on at half of that while both are busy.
// Computing and transfers get in each other's way where they share memory or cores (a drive that is emulated, checksums): beside computing
// a transfer goes on at a share of its rate, and computing at a share of its own (StreamRates). A transfer that finds its line idle takes
// its latency besides, in which it slows nothing.

#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "passes/stream.h"

namespace ort_train {

class StreamClock {
 public:
  explicit StreamClock(const StreamRates& rates) : StreamClock(std::vector<StreamRates>{rates}) {}
  // Several stores, that of the nearest memory first.
  explicit StreamClock(const std::vector<StreamRates>& stores);

  double now() const { return now_; }

  // Begins a transfer; its number.
  size_t begin(bool write, int64_t bytes, size_t store = 0);
  // Waits until it is over; the seconds that this took.
  double wait(size_t transfer);
  void wait_until(double time);
  void compute(double seconds);

  bool is_over(size_t transfer) const { return transfers_[transfer].over; }
  // When it began and ended; the end only where it is over.
  double began(size_t transfer) const { return transfers_[transfer].began; }
  double ended(size_t transfer) const { return transfers_[transfer].ended; }
  // Seconds of computing until it is over, if nothing waits and no other line is in use; 0 where it is.
  double lead(size_t transfer) const;

 private:
  struct Transfer {
    size_t line = 0;
    double alone = 0, beside = 0;  // seconds that it takes while nothing is computed, beside computing
    double pace = 1;               // of computing meanwhile, if the other line is idle
    double computed_until = 0;     // that can be computed beside all transfers of its line until its end
    double began = 0, ended = 0;
    bool over = false;
  };
  // Transfers of a store that wait for each other.
  struct Line {
    std::vector<size_t> transfers{};
    size_t head = 0;      // the first that is not over
    double done = 0;      // of it: the share
    double computed = 0;  // beside all that was transferred
    size_t store = 0;
  };
  struct Store {
    StreamRates rates;
    size_t line[2];  // of reads, of writes
  };
  // Goes on until `seconds` have passed or a transfer ends: what has passed.
  double advance(double seconds, bool computing);
  bool is_busy(const Line& line) const { return line.head < line.transfers.size(); }
  // The share of its rate at which a store's line goes on.
  double speed(const Store& store) const;
  const Transfer& head(const Line& line) const { return transfers_[line.transfers[line.head]]; }

  std::vector<Store> stores_;
  std::vector<Line> lines_;
  std::vector<Transfer> transfers_;
  std::vector<double> speeds_;  // by store, while time goes on
  double now_ = 0;
};

}  // namespace ort_train
