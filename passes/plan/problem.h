// Problem: what the planner solves, as a value: which memory a job's steps want, when, and what there is of it. It knows no graph and no
// machine; `ort-train plan --dump-problem` writes it, tests and benchmarks plan it again.
//
// A job is some runs (entry points of a Program) that share one memory. In each, steps compute one after the other. A block is memory that
// stays where it is. A piece may leave the memory between its uses for a file, and come back: a weight, its optimizer state or accumulator,
// or activations. What lives across runs is `lasting`: its content is in the file before and after each run, unless it is resident, that
// is, held in memory by all of them. Bytes are as they are laid out: whole sectors where something moves.

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
};

struct Piece {
  std::string name{};
  int64_t bytes = 0;
  int32_t lasting = -1;     // its number in Problem::lasting; -1: made by its first use, forgotten after its last
  std::vector<Use> uses{};  // ascending, each step once; at least one
};

struct Block {
  int64_t bytes = 0;
  int32_t first = 0, last = 0;  // steps, inclusive
};

struct Run {
  std::string name{};
  double weight = 1;              // how often it runs, for an optimizer step: below kRarely it is no part of one
  std::vector<double> seconds{};  // that each step computes
  std::vector<Block> blocks{};
  std::vector<Piece> pieces{};
  size_t steps() const { return seconds.size(); }
};

struct Lasting {
  std::string name{};
  int64_t bytes = 0;  // of its pieces
  int64_t held = 0;   // of memory, where it is resident
};

struct Problem {
  int64_t memory = 0;              // bytes
  int64_t always = 0;              // of these, taken by what lives across runs and never moves
  StreamRates disk{};              // transfers between memory and file, one after the other
  std::vector<Lasting> lasting{};  // what may move
  std::vector<Run> runs{};
};

// Bytes at each step: of what doesn't move; with each piece while it is used.
std::vector<int64_t> fixed_load(const Problem& problem, const Run& run);
std::vector<int64_t> least_load(const Problem& problem, const Run& run);
// The least memory that will do: at every step what it uses.
int64_t floor_bytes(const Problem& problem);
// Of an optimizer step, from those of each run: runs that run rarely left out.
double step_seconds(const Problem& problem, const std::vector<double>& seconds);
// Seconds of computing.
double computing(const Run& run);

std::string to_json(const Problem& problem);
// Throws Error(data) where it isn't one.
Problem problem_from_json(const std::string& text);

}  // namespace ort_train::planning
