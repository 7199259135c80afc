// What plans know of a store (a disk, or the memory behind a device's), and what they say of a run.

#pragma once

#include <cstdint>

namespace ort_train {

struct StreamRates {
  double read = 2e9, write = 2e9;  // bytes per second, while nothing is computed
  // Reads and writes at once: the sum of the shares of their rates that they reach, from 1 (one channel: they take turns) to 2 (neither
  // slows the other).
  double duplex = 1;
  double while_computing = 1;  // the share of the rates that is left beside computing; at most 1
  double compute_lost = 0;  // the share of the computing speed that is lost while reads and writes are under way at once; < while_computing
  double read_latency = 0, write_latency = 0;  // seconds that a transfer takes besides, where no other is under way
  double rate(bool of_write) const { return of_write ? write : read; }
  double latency(bool of_write) const { return of_write ? write_latency : read_latency; }
  bool operator==(const StreamRates&) const = default;
};

// What a run takes, as its plan foresees it.
struct StreamForecast {
  double seconds = 0;          // the whole
  double compute = 0;          // of these, in steps
  double stalled = 0;          // of these, waiting for the disk
  double contention = 0;       // of these, lost because transfers get in the way of computing
  double read = 0, write = 0;  // seconds that the disk is busy
  int64_t bytes_read = 0, bytes_written = 0;
  double up = 0, down = 0;  // seconds of copies to a device's memory and from there
  int64_t bytes_up = 0, bytes_down = 0;
};

// Runs that are rarer than this (evaluation, the end of an epoch) constrain the memory but don't count towards the time of an optimizer
// step. Of a step that many runs share (lengths of samples) all count.
template <typename Runs> double min_counted_runs_per_step(const Runs& runs) {
  constexpr double kRarely = 0.1;
  double most = 0;
  for (const auto& run : runs) most = run.runs_per_step > most ? run.runs_per_step : most;
  return most < 1 ? kRarely * most : kRarely;
}

}  // namespace ort_train
