// Holder: fills the memory with what is to be held between uses, and with what is resident, in a given order of preference.
//
// A piece is held from one use to the next, or a persistent value is resident in all runs, where at each step that it affects there is room
// for it. Refers to its runs.

#pragma once

#include <vector>

#include "passes/plan/assign.h"
#include "passes/plan/bound.h"
#include "passes/plan/problem.h"

namespace ort_train::planning {

// Something that may be held: a piece between uses `use` and `use + 1`, or (use -1) a persistent value everywhere.
struct HoldCandidate {
  size_t run = 0;
  uint32_t piece = 0;
  int32_t use = -1;
  double gain = 0;  // seconds of transfers saved, for a byte-step of memory
  bool operator==(const HoldCandidate&) const = default;
};
using HoldOrder = std::vector<HoldCandidate>;  // the first is tried first

class Holder {
 public:
  explicit Holder(const Problem& problem);

  // By gain.
  const HoldOrder& greedy() const { return candidates_; }
  // By the shares of a relaxed solution, in steps of a tenth; by gain where these are the same.
  HoldOrder like(const Bound& bound) const;

  // The choices that take no more than `limit` bytes at each step that they affect.
  void choose(const HoldOrder& order, int64_t limit);

  const std::vector<bool>& resident() const { return resident_; }
  // The stays that the choices lead to, by first use; without addresses and transfers.
  std::vector<Stay> stays(size_t run) const;
  // What lies below the runs: what always stays and what is resident.
  int64_t resident_bytes() const;

 private:
  bool held(size_t run, uint32_t piece, size_t use) const { return held_[run][piece][use]; }
  bool is_resident(const Piece& piece) const { return piece.lasting >= 0 && resident_[static_cast<size_t>(piece.lasting)]; }

  struct Owner {
    size_t run;
    uint32_t piece;
  };
  struct Span {
    int32_t begin, end;  // steps
  };

  void find_candidates();
  void hold(const HoldCandidate& candidate, int64_t cap);
  void make_resident(const HoldCandidate& candidate, int64_t cap);
  std::vector<Span> away(size_t run, const std::vector<Owner>& owners) const;

  const Problem& problem_;
  const std::vector<Run>& runs_;
  std::vector<std::vector<Owner>> owners_;  // by persistent, in the order of runs
  std::vector<std::vector<int64_t>> least_, load_;
  HoldOrder candidates_;
  std::vector<bool> resident_;
  std::vector<std::vector<std::vector<bool>>> held_;  // by run, piece, use: held from there to the next
};

}  // namespace ort_train::planning
