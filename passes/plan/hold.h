// Holder: from a problem, an order of preference and a limit of bytes to what stays in memory: between which uses each piece is held, and
// which lasting values are resident, that is, held in all runs. Each is where at every step that it affects there is room for it.
//
// Refers to its problem.

#pragma once

#include <vector>

#include "passes/plan/assign.h"
#include "passes/plan/bound.h"

namespace ort_train::planning {

// Something that may be held: a piece between uses `use` and `use + 1`, or (use -1) the lasting value that it is of, everywhere.
struct HoldChoice {
  size_t run = 0;
  uint32_t piece = 0;
  int32_t use = -1;
  double gain = 0;  // seconds of transfers saved, for a byte-step of memory
};
using HoldOrder = std::vector<HoldChoice>;  // the first is tried first

// What lies below the runs: what always stays and what is resident.
int64_t bytes_below(const Problem& problem, const std::vector<bool>& resident);

class Holder {
 public:
  explicit Holder(const Problem& problem);

  // All choices, by gain.
  const HoldOrder& by_gain() const { return choices_; }
  // By the shares of a relaxed solution, in steps of a tenth; by gain where these are the same.
  HoldOrder by_shares(const Bound& bound) const;

  // Holds, in that order, what leaves no step that it affects with more than `limit` bytes.
  void fill(const HoldOrder& order, int64_t limit);

  const std::vector<bool>& resident() const { return resident_; }
  // The stays that the choices lead to, by first use; without addresses and transfers.
  std::vector<Stay> stays(size_t run) const;

 private:
  struct Owner {
    size_t run;
    uint32_t piece;
  };
  struct Span {
    int32_t begin, end;  // steps
  };

  bool held(size_t run, uint32_t piece, size_t use) const { return held_[run][piece][use]; }
  bool is_resident(const Piece& piece) const { return piece.lasting >= 0 && resident_[static_cast<size_t>(piece.lasting)]; }
  void find_choices();
  void hold(const HoldChoice& choice, int64_t limit);
  void make_resident(size_t lasting, int64_t limit);
  std::vector<Span> away(size_t run, size_t lasting) const;
  bool has_room(size_t run, const Span& span, int64_t bytes, int64_t limit) const;
  void take(size_t run, const Span& span, int64_t bytes);

  const Problem& problem_;
  const std::vector<Run>& runs_;
  std::vector<std::vector<Owner>> owners_;  // by lasting value, in the order of runs and steps
  std::vector<std::vector<int64_t>> least_, load_;
  HoldOrder choices_;
  std::vector<bool> resident_;
  std::vector<std::vector<std::vector<bool>>> held_;  // by run, piece, use: held from there to the next
};

}  // namespace ort_train::planning
