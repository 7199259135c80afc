// Problem: what the planner solves, as a value: which memory a job's steps want, when, and what there is of it. It knows no graph and no
// machine; `ort-train plan --dump-problem` writes it (passes/problem_dump.h), tests and benchmarks plan it again. What is recomputed, which
// updates wait for the next step, and how many micro-batches go together make other problems of one job: its candidates, of which the
// fastest plan is wanted.
//
// A job is some runs (entry points of a Program) that share one memory. In each, steps compute one after the other. A block is memory that
// stays where it is. A piece may leave the memory between its uses for a store, and come back: a weight, its optimizer state or
// accumulator, or activations. What lives across runs is `lasting`: its content is in the store before and after each run, unless it is
// resident, that is, held in memory by all of them. Bytes are as they are laid out: whole sectors where something moves.
//
// The store is a file, or another memory (a GPU's is the host's), which has a store of its own: `backing` lists them. Each memory is
// planned by itself, the nearest first: what a plan moves is what the memory behind it has to hold (backing_problem()). Some steps may
// compute there (updates by the host): what they use has to be there by then, and comes back from there.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "passes/stream.h"

namespace ort_train::planning {

struct Use {
  int32_t step = 0;
  bool reads = true;  // needs the content as it was; else it writes all of it anew
  bool changes = false;
  int32_t steps = 1;  // that it lasts
  int32_t last() const { return step + steps - 1; }
};

struct Piece {
  std::string name{};
  int64_t bytes = 0;
  int32_t lasting = -1;     // its number in Problem::lasting; -1: made by its first use, forgotten after its last
  std::vector<Use> uses{};  // ascending, each step once; at least one
  // The rest is set where steps compute in the backing memory. A value that these use is a piece before such a step and another one after
  // it.
  int32_t value_number = -1;         // which value of the run it is of; -1: the value has no other piece
  bool starts_in_store = false;      // besides what lasts: made in the backing memory before its first use
  bool used_in_store_later = false;  // likewise: used there after its last use
  int32_t first_readable_step = 0;   // the step before which it can't be read: until then the store has no content, or an old one
  int32_t written_by_step = -1;      // the step that uses it in the backing memory, before which its write is complete; -1: none
  bool is_read() const { return lasting >= 0 || starts_in_store; }
  bool needed_in_store() const { return lasting >= 0 || used_in_store_later; }
};

struct Block {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // steps, inclusive
  bool fed = false;             // filled from the backing memory, if there is one, before the first step
};

// What a step that computes in the backing memory uses there.
struct BackingUse {
  int32_t value_number = 0;  // as Piece::value_number
  int64_t bytes = 0;
  int32_t lasting = -1;
  Use use{};
};

struct Run {
  std::string name{};
  double runs_per_step = 1;       // of an optimizer; rarer than min_counted_runs_per_step() it constrains the memory alone
  std::vector<double> seconds{};  // that each step computes
  std::vector<Block> blocks{};
  std::vector<Piece> pieces{};
  // Steps that compute in the backing memory: their seconds there (by step; empty: none do), what they use, and memory that only they use.
  std::vector<double> backing_seconds{};
  std::vector<BackingUse> backing_uses{};
  std::vector<Block> backing_blocks{};
  size_t steps() const { return seconds.size(); }
};

struct Lasting {
  std::string name{};
  int64_t bytes = 0;            // of its pieces
  int64_t held = 0;             // of memory, where it is resident
  bool may_be_resident = true;  // false: it is changed in the backing memory
};

// A memory between the one that is computed in and the file.
struct BackingMemory {
  std::string name{};
  int64_t bytes = 0;
  int64_t between_runs = 0;  // of these, that are taken between runs, above what is resident
  StreamRates store{};       // between it and its own store
};

struct Problem {
  std::string name{};                    // which candidate of a job this is
  int64_t memory = 0;                    // bytes
  int64_t immovable = 0;                 // of these, taken by what lives across runs and never moves
  StreamRates store{};                   // transfers between memory and store
  std::vector<BackingMemory> backing{};  // the nearest first; none: the store is a file
  std::vector<Lasting> lasting{};        // what may move
  std::vector<Run> runs{};
};

// Bytes at each step: of what doesn't move, and of each piece while it is used.
std::vector<int64_t> used_bytes_by_step(const Problem& problem, const Run& run);
// The least memory that will do: at every step what it uses.
int64_t floor_bytes(const Problem& problem);
// Seconds of computing.
double computing(const Run& run);
// Seconds of an optimizer step; seconds(r) is what run r takes. Rare runs are left out.
template <typename Seconds> double step_seconds(const Problem& problem, Seconds&& seconds) {
  double sum = 0;
  const double least = min_counted_runs_per_step(problem.runs);
  for (size_t r = 0; r < problem.runs.size(); ++r) {
    if (problem.runs[r].runs_per_step >= least) sum += problem.runs[r].runs_per_step * seconds(r);
  }
  return sum;
}

}  // namespace ort_train::planning
