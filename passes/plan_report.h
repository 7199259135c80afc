// What a plan does with memory: as numbers, as a line of text, as JSON for programs and as a picture for people.

#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "exec/program.h"
#include "passes/timeline.h"

namespace ort_train {

using PurposeBytes = std::array<int64_t, kPurposes>;  // by Purpose

// The fullest moment of a program.
struct MemoryPeak {
  size_t entry = 0;  // index
  int32_t instruction = 0;
  std::string op;        // "MatMul '/lm_head' backward"
  PurposeBytes bytes{};  // live then, as the arena counts them
  int64_t live = 0;      // their sum
  int64_t gaps = 0;      // what the arena has beyond that
};
MemoryPeak memory_peak(const Program& program, const std::vector<const Graph*>& graphs);

// Live bytes by purpose at each instruction of an entry, persistent ones included.
std::vector<PurposeBytes> live_bytes(const Program& program, const Entry& entry);

// Bytes in use on the disk, of what lives there across runs and of activations that are to be read again: for each instruction of an
// entry at which they change, and the first.
std::map<int32_t, int64_t> disk_levels(const Program& program, const Entry& entry);

// The fullest moment of the disk in an entry.
struct DiskPeak {
  int64_t bytes = 0;
  int32_t instruction = 0;
  std::string op;  // empty where it is the same all the time
};
DiskPeak disk_peak(const Program& program, const Entry& entry, const Graph& graph);

// What a run of an entry moves of one purpose.
struct DiskTraffic {
  int64_t tensors = 0, bytes = 0;  // that have a place on the disk
  int64_t read = 0, written = 0;   // bytes
};
std::array<DiskTraffic, kPurposes> disk_traffic(const Program& program, const Entry& entry);

// What the memory stands in: the job's name, what the process takes beside the arena, what it may take in all.
struct MemoryFrame {
  std::string title;
  int64_t reserve = 0;                 // 0: not counted
  int64_t budget = 0;                  // 0: none
  const Timeline* timeline = nullptr;  // of an entry: the picture then is of it, over its seconds; null: over instructions
  size_t entry = 0;                    // the timeline's
};

//             program  weights  gradients  optimizer  activations  inputs  workspace   gaps   total
//   RAM          0.07     0.71       0.42       0.64         1.77    0.00       0.38   0.01    4.00 GB of 4.00, at MatMul '/h.47/mlp/c_fc'
//   backward
// Purposes of which there is nothing have no column.
std::string memory_table(const Program& program, const std::vector<const Graph*>& graphs, const MemoryFrame& frame);

// Every persistent value and every storage with offset, bytes and lifetime; each entry's peak; the arena.
nlohmann::ordered_json memory_json(const Program& program, const std::vector<const Graph*>& graphs);

// Live bytes by purpose over the instructions of the entry with the peak, and the map of the arena's addresses. With a timeline: over its
// entry's seconds, and between them what it computes, waits, reads and writes when, and how full the disk is.
std::string memory_svg(const Program& program, const std::vector<const Graph*>& graphs, const MemoryFrame& frame);

}  // namespace ort_train
