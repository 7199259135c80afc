// stream: what stays in memory and what waits on the disk, where the arena is smaller than what a job holds at its peak.
//
// A piece is memory that may leave the arena: a weight, its optimizer state or accumulator, or a chain of activations. Between two of its
// uses it is held, or it goes to the disk and comes back; a persistent piece may be resident: held through all runs of all entries. Choices
// fill the memory in an order of preference: the greedy one, by the transfers that they save for the memory that they take, and that of the
// linear program (stream_bound.h), which says as well how fast a plan could be at best. What is left of the memory lets reads begin ahead
// of their use and writes end behind it. Which order, and how much is left free for that, is tried out on a simulation of the run.

#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <vector>

namespace ort_train {

struct StreamUse {
  int32_t step = 0;
  bool reads = true;  // needs the content as it was; else it writes all of it anew
  bool changes = false;
};

struct StreamPiece {
  int64_t bytes = 0;            // of the arena
  std::vector<StreamUse> uses;  // ascending, each step once; at least one
  int32_t persistent =
      -1;  // number of the persistent value: its content is on the disk before and after the run; -1: made by the first use
};

// What one entry asks, in the order of its steps.
struct StreamEntry {
  std::vector<StreamPiece> pieces;
  std::vector<int64_t> fixed;   // live bytes of all else, by step
  std::vector<double> seconds;  // that each step computes
  double weight = 1;            // how often it runs, for an optimizer step
};
inline constexpr double kRarely = 0.1;  // entries of less weight are no part of an optimizer step

// A stay of a piece in memory.
struct Visit {
  uint32_t piece = 0;
  int32_t first = 0, last = 0;  // steps of its first and last use
  int32_t issue = -1;           // the step before which its read begins; -1: it is made here
  int32_t written = -1;         // the step before which its write, begun after `last`, is waited for; -1: not written
};

struct StreamRates {
  double read = 2e9, write = 2e9;              // bytes per second, while nothing is computed
  double beside = 1;                           // the share of these that is left beside computing; at most 1
  double slowed = 0;                           // the share of computing that is lost meanwhile; below the one above
  double read_latency = 0, write_latency = 0;  // seconds that a transfer takes besides, where no other is under way
  double rate(bool of_write) const { return of_write ? write : read; }
  double latency(bool of_write) const { return of_write ? write_latency : read_latency; }
  bool operator==(const StreamRates&) const = default;
};

// What a run is expected to take.
struct StreamForecast {
  double seconds = 0;          // the whole
  double compute = 0;          // of these, in steps
  double stalled = 0;          // of these, waiting for the disk
  double slowed = 0;           // of these, lost because transfers get in the way of computing
  double read = 0, write = 0;  // seconds that the disk is busy
  int64_t bytes_read = 0, bytes_written = 0;
};

struct StreamPlan {
  std::vector<bool> resident;              // by persistent number
  std::vector<std::vector<Visit>> visits;  // by entry; of pieces that aren't resident, by first use
  std::vector<StreamForecast> forecasts;   // by entry
};

// Bytes at each step if every piece is there only while it is used.
std::vector<int64_t> least_load(const StreamEntry& entry);
// The least bytes that will do: at every step what it uses.
int64_t stream_floor(const std::vector<StreamEntry>& entries);
// A plan that holds only what takes no more than `limit`, at least the floor; the same whatever the rates.
StreamPlan least_streams(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit);

class StreamBound;

// Plans for one memory and one disk. Refers to the entries.
class Streamer {
 public:
  // `limit` is at least the floor. `persistents`: how many there are. `enough`: of the bound; no higher one is looked for. `planners`:
  // threads that look for plans, one or two; they find the same.
  Streamer(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates,
           double enough = std::numeric_limits<double>::infinity(), int planners = 1);
  ~Streamer();
  // One that goes on from here, on a thread of its own.
  Streamer fork() const;

  int planners() const;
  // No plan within the limit takes less, for an optimizer step: entries that run rarely left out.
  double bound() const;
  // What plans() can be expected to find within `target` bytes, between the floor and the limit: the fastest of a few.
  StreamPlan outlook(int64_t target);
  // The fastest that are found within so many bytes, in their order; at least one.
  // `early`: seconds that are computed at most between the first step that a read has for itself and the one that wants it, unless there is
  // much room.
  std::vector<StreamPlan> plans(int64_t target, double early = std::numeric_limits<double>::infinity());

 private:
  struct Impl;
  explicit Streamer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ort_train
