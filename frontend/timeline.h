// RunTimeline: what some steps did when, as it was measured: Options::timeline, a Chrome trace that Perfetto opens.
//
// Tracks of slices: steps; entries; the nodes' kernels, with the time that is spent waiting for the disk; what was computed in the
// background; reads and writes of the disk, on several tracks where some overlap. Counters: live bytes of the arena and of the disk, which
// are the plan's for the instruction that begins. Written run by run, so it takes no more memory for more steps; the time that writing
// takes is cut out of the timeline. What can't be written ends the timeline, and nothing else: finish() says so.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "exec/program.h"
#include "exec/run_trace.h"
#include "frontend/report_files.h"
#include "offload/disk_engine.h"

namespace ort_train {

inline constexpr int64_t kMostTimelineSteps = 32;

// First and last of Options::timeline_steps; 0 and 0 where it is empty. Throws Error(usage).
std::pair<int64_t, int64_t> timeline_steps(const Options& options);

class RunTimeline {
 public:
  // All three outlive it.
  RunTimeline(const Options& options, const Program& program, std::vector<const Graph*> graphs);

  // Whether the step that begins is to be traced. Without Options::timeline_steps that are the second to the fourth of these calls, and the
  // first where there is but one.
  bool begin_step(int64_t step, bool is_last);
  RunTrace& trace() { return trace_; }  // of the run that comes, of whichever entry
  // A run of the step is over: its trace, and what the disk did for it.
  void add(size_t entry, std::vector<TransferRecord> transfers);
  bool is_in_step() const { return is_in_step_; }
  // The last one publishes the file.
  void end_step(bool is_last);

  // That were traced; 0: none.
  int64_t first_step() const { return first_; }
  int64_t last_step() const { return last_; }
  // Publishes what there is, if it isn't yet. Throws Error(io), also for what failed before.
  void finish();

 private:
  struct Times {
    int64_t begin = 0, end = 0;  // nanoseconds since the first step began
  };
  struct Lane {
    int track = 0;
    int64_t end = 0;  // of its last slice
  };
  // What the plan says of an entry that a step may run, by instruction.
  struct PlanOf {
    std::vector<int64_t> arena;         // live bytes
    std::map<int32_t, int64_t> disk;    // bytes in use, where they change
    std::vector<const Storage*> moved;  // by a copy of the file; null elsewhere
  };
  struct Slice {
    int track = 0;
    std::string_view name, category;
    Times times{};
    std::string arguments{};  // what stands between an object's braces in JSON
  };

  // Calls it, and ends the timeline where that throws Error(io).
  template <typename Body> void guarded(Body body);
  void write_run(size_t entry, std::vector<TransferRecord>& transfers);
  void write_instruction(size_t entry, size_t number, const PlanOf& plan);
  void write_transfers(std::vector<TransferRecord>& transfers, const PlanOf& plan);
  int64_t at(RunClock::time_point time) const;
  Times at(const RunSpan& span) const { return {.begin = at(span.begin), .end = at(span.end)}; }
  void put(const Slice& slice);
  void put_wait(const RunSpan& span);
  void count(const char* counter, int64_t time, int64_t bytes);
  void name_track(int track, std::string_view name);
  void event(std::string_view text);
  void flush();
  void publish();

  const Options& options_;
  const Program& program_;
  const std::vector<const Graph*> graphs_;
  const std::pair<int64_t, int64_t> wanted_;
  RunTrace trace_;
  std::vector<PlanOf> plans_;                       // by entry
  std::vector<std::pair<int64_t, size_t>> copies_;  // of a run: ticket and instruction
  std::vector<Lane> lanes_[2];                      // reads, writes
  std::optional<ReportFile> file_;
  std::string text_, failure_;
  int64_t begun_ = 0;  // steps of the run
  int64_t first_ = 0, last_ = 0;
  bool is_in_step_ = false, has_events_ = false, is_published_ = false;
  RunClock::time_point origin_{};
  RunClock::duration left_out_{};  // what writing has taken
  int64_t step_begin_ = 0;
  std::map<std::string_view, int64_t> counted_;  // the last number of each counter
};

}  // namespace ort_train
