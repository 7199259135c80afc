#include "passes/stream_clock.h"

#include <algorithm>
#include <limits>

namespace ort_train {

StreamClock::StreamClock(const std::vector<StreamRates>& stores) {
  for (const StreamRates& rates : stores) {
    const size_t reads = lines_.size(), writes = reads + (rates.duplex > 1 ? 1 : 0);
    lines_.resize(writes + 1, {.store = stores_.size()});
    stores_.push_back({.rates = rates, .line = {reads, writes}});
  }
}

size_t StreamClock::begin(bool write, int64_t bytes, size_t store) {
  const StreamRates& rates = stores_[store].rates;
  Line& line = lines_[stores_[store].line[write]];
  const double seconds = static_cast<double>(bytes) / rates.rate(write);
  const double latency = is_busy(line) ? 0 : rates.latency(write);
  const double took = latency + seconds / rates.while_computing;  // beside computing
  const double computed = took - rates.compute_lost / rates.duplex * (took - latency);
  const double until = line.transfers.empty() ? 0 : transfers_[line.transfers.back()].computed_until;
  line.transfers.push_back(transfers_.size());
  transfers_.push_back({.line = stores_[store].line[write],
                        .alone = latency + seconds,
                        .beside = took,
                        .pace = took > 0 ? computed / took : 1,
                        .computed_until = until + computed,
                        .began = now_});
  return transfers_.size() - 1;
}

double StreamClock::lead(size_t transfer) const {
  const Transfer& of = transfers_[transfer];
  return of.over ? 0 : of.computed_until - lines_[of.line].computed;
}

double StreamClock::speed(const Store& store) const {
  const bool both = store.line[0] != store.line[1] && is_busy(lines_[store.line[0]]) && is_busy(lines_[store.line[1]]);
  return both ? store.rates.duplex / 2 : 1;
}

double StreamClock::advance(double seconds, bool computing) {
  speeds_.clear();
  for (const Store& store : stores_) speeds_.push_back(speed(store));
  const auto takes = [&](const Line& line) { return (computing ? head(line).beside : head(line).alone) / speeds_[line.store]; };
  double passed = seconds;
  for (const Line& line : lines_) {
    if (is_busy(line)) passed = std::min(passed, (1 - line.done) * takes(line));
  }
  now_ += passed;
  for (Line& line : lines_) {
    if (!is_busy(line)) continue;
    Transfer& transfer = transfers_[line.transfers[line.head]];
    if (passed < (1 - line.done) * takes(line)) {
      const double share = passed / takes(line);
      line.done += share;
      line.computed += share * transfer.beside * transfer.pace;
      continue;
    }
    transfer.over = true;
    transfer.ended = now_;
    line.computed = transfer.computed_until;
    line.done = 0;
    if (++line.head < line.transfers.size()) transfers_[line.transfers[line.head]].began = now_;
  }
  return passed;
}

double StreamClock::wait(size_t transfer) {
  const double before = now_;
  while (!transfers_[transfer].over) advance(std::numeric_limits<double>::infinity(), /*computing=*/false);
  return now_ - before;
}

void StreamClock::wait_until(double time) {
  while (now_ < time) {
    const double left = time - now_;
    if (advance(left, /*computing=*/false) < left) continue;  // a transfer ended
    now_ = time;
  }
}

void StreamClock::compute(double seconds) {
  while (seconds > 0) {
    double pace = 1;
    bool is_idle = true;
    for (const Store& store : stores_) {
      double lost = 0;
      for (size_t line = store.line[0]; line <= store.line[1]; ++line) {
        if (is_busy(lines_[line])) lost += speed(store) * (1 - head(lines_[line]).pace), is_idle = false;
      }
      pace *= 1 - lost;
    }
    if (is_idle) {
      now_ += seconds;
      return;
    }
    const double wanted = seconds / pace, passed = advance(wanted, /*computing=*/true);
    seconds = passed < wanted ? seconds - passed * pace : 0;
  }
}

}  // namespace ort_train
