// What the planner's modules hand to each other, as text.

#pragma once

#include <fmt/format.h>

#include <string>

#include "passes/plan/search.h"

namespace ort_train::planning {

inline std::string shown_steps(int32_t first, int32_t last) {
  return first == last ? fmt::format("step {}", first) : fmt::format("steps {}-{}", first, last);
}

// A line for memory and disk, and for each run, block and piece.
inline std::string print(const Problem& problem) {
  const StreamRates& disk = problem.store;
  std::string text = fmt::format("memory {}, of which {} never moves; disk: {:g} bytes/s read, {:g} written\n", problem.memory,
                                 problem.immovable, disk.read, disk.write);
  for (const Run& run : problem.runs) {
    text += fmt::format("run '{}', {:g} times a step: {} steps, {:g} s of computing\n", run.name, run.runs_per_step, run.steps(),
                        computing(run));
    for (const Block& block : run.blocks) text += fmt::format("  block {}, {}\n", block.bytes, shown_steps(block.first, block.last));
    for (const Piece& piece : run.pieces) {
      text += fmt::format("  {} {} {}, ", piece.lasting >= 0 ? "lasting" : "piece", piece.name, piece.bytes);
      std::vector<std::string> uses;
      for (const Use& use : piece.uses)
        uses.push_back(fmt::format("{} at step {}", use.changes ? use.reads ? "changed" : "made" : "read", use.step));
      text += fmt::format("{}\n", fmt::join(uses, ", "));
    }
  }
  return text;
}

// A line for each stay: when it is used, and whether its content comes from the file and goes there.
inline std::string print(const Run& run, const std::vector<Stay>& stays) {
  std::string text;
  for (const Stay& stay : stays)
    text += fmt::format("  {} {}{}{}\n", run.pieces[stay.piece].name, shown_steps(stay.first, stay.last), stay.reads ? ", read" : "",
                        stay.writes ? ", written" : "");
  return text;
}

// The same with addresses and transfers, and a line for each block.
inline std::string print(const Run& run, const RunPlan& plan) {
  std::string text;
  for (const Stay& stay : plan.stays) {
    text += fmt::format("  {} {} at {}", run.pieces[stay.piece].name, shown_steps(stay.first, stay.last), stay.offset);
    if (stay.reads) text += fmt::format(", read from before step {}", stay.issue);
    if (stay.writes) text += fmt::format(", written by step {}", stay.released);
    text += "\n";
  }
  for (size_t i = 0; i < run.blocks.size(); ++i)
    text += fmt::format("  block {} at {}\n", shown_steps(run.blocks[i].first, run.blocks[i].last), plan.block_offsets[i]);
  return text;
}

}  // namespace ort_train::planning
