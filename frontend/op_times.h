// OpTimes: how long each op and node took in a run of a job's entries, beside the work that it did: Options::op_times.
//
// The first run of an entry doesn't count: it fills caches and loads libraries.

#pragma once

#include <string>
#include <vector>

#include "exec/executor.h"
#include "exec/kernel.h"
#include "exec/program.h"

namespace ort_train {

class OpTimes {
 public:
  // The program and its graphs outlive it. `kernels`: those that the nodes run with, by which their work is counted.
  OpTimes(const Program& program, const std::vector<const Graph*>& graphs, const KernelTables& kernels, int threads);

  // What a run of the entry took.
  void add(size_t entry, const RunTimes& times);
  // {"entries": [{"entry": "train", "runs": 9, "ops": [{"op": "MatMul", "nodes": 97, "ms": 12.3, "share": 0.6, "gflops": 410,
  // "gigabytes_per_second": 8}, …], "nodes": [{"op": "MatMul", "node": "/lm_head/MatMul", "result": [1, 256, 50257], "ms": 12.3, …}, …]}]}:
  // of a run, the ops that took longest first, and each node as they follow each other; entries that ran but once are left out. On a
  // processor there is "threads" beside "entries", and each node has "tasks" ({"loops", "count", "ms", "longest_ms", "outside_ms",
  // "scheduled_ms"}) of the run with the least of the last of them. Throws Error(io).
  void write(const std::string& path) const;

 private:
  struct Timed {
    std::string op, node;
    Shape result;
    Cost work;           // of a run
    double seconds = 0;  // of all runs that count
    TaskTimes tasks{};   // in the run where they would have been done first with all threads
    double outside = 0;  // seconds beside its tasks, in that run
  };
  struct EntryTimes {
    std::string name;
    std::vector<size_t> node_of;  // by instruction: the position in `nodes`; kNoNode: nothing is computed
    std::vector<Timed> nodes;
    int64_t runs = -1;  // that count
  };
  static constexpr size_t kNoNode = SIZE_MAX;
  std::vector<EntryTimes> entries_;
  int threads_;
  bool has_tasks_ = false;
};

}  // namespace ort_train
