// Holder: fills the memory with what is to be held between uses, and with what is resident, in a given order of preference.
//
// A piece is held from one use to the next, or a persistent value is resident in all runs, where at each step that it affects there is room
// for it. Refers to its entries.

#pragma once

#include <vector>

#include "passes/stream.h"
#include "passes/stream_bound.h"
#include "passes/stream_spread.h"

namespace ort_train {

// Something that may be held: a piece between uses `use` and `use + 1`, or (use -1) a persistent value everywhere.
struct HoldCandidate {
  size_t entry = 0;
  uint32_t piece = 0;
  int32_t use = -1;
  double gain = 0;  // seconds of transfers saved, for a byte-step of contended memory
  bool operator==(const HoldCandidate&) const = default;
};
using HoldOrder = std::vector<HoldCandidate>;  // the first is tried first

class Holder {
 public:
  Holder(const std::vector<StreamEntry>& entries, size_t persistents, int64_t limit, const StreamRates& rates);

  // By gain.
  const HoldOrder& greedy() const { return candidates_; }
  // By the shares of a relaxed solution, in steps of a tenth; by gain where these are the same.
  HoldOrder like(const StreamBound& bound) const;

  // The choices that leave `free` bytes below the limit at each step that they affect.
  void choose(const HoldOrder& order, int64_t limit, int64_t free);

  const std::vector<bool>& resident() const { return resident_; }
  const std::vector<int64_t>& load(size_t entry) const { return load_[entry]; }
  bool held(size_t entry, uint32_t piece, size_t use) const { return held_[entry][piece][use]; }
  bool is_resident(const StreamPiece& piece) const { return piece.persistent >= 0 && resident_[static_cast<size_t>(piece.persistent)]; }

 private:
  struct Owner {
    size_t entry;
    uint32_t piece;
  };
  struct Span {
    int32_t begin, end;  // steps
  };

  void find_contended(int64_t limit);
  double span(size_t entry, int32_t after, int32_t before) const;
  void find_candidates(const StreamRates& rates);
  void hold(const HoldCandidate& candidate, int64_t cap);
  void make_resident(const HoldCandidate& candidate, int64_t cap);
  bool is_there(const Owner& owner, int32_t step) const;  // used, or held from its last use

  const std::vector<StreamEntry>& entries_;
  std::vector<std::vector<Owner>> owners_;  // by persistent, in the order of entries
  std::vector<std::vector<int64_t>> least_, load_;
  std::vector<std::vector<double>> contended_;
  HoldOrder candidates_;
  std::vector<size_t> full_;  // by entry: a step at which something found no room
  std::vector<bool> resident_;
  std::vector<std::vector<std::vector<bool>>> held_;  // by entry, piece, use: held from there to the next
  std::vector<Span> busy_;                            // while something is made resident: where it is in memory already
  std::vector<std::vector<Span>> away_;               // and by entry, where it isn't
};

// The choices with their transfers, and what they are expected to take. `eagerness.queued` is a share of the time that an entry computes.
// In stream.cpp.
StreamPlan make_plan(const std::vector<StreamEntry>& entries, const Holder& holder, int64_t limit, const StreamRates& rates,
                     Eagerness eagerness);

}  // namespace ort_train
