// Whether a plan of a run can be carried out.

#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "passes/plan/assign.h"

namespace ort_train::fixtures {

struct Taken {
  int64_t begin, end;
  int32_t from, until;  // steps before which it begins and is over
};

inline void expect_sound(const planning::Run& run, const planning::RunPlan& plan, int64_t bytes) {
  std::vector<Taken> all;
  std::vector<int32_t> released(run.pieces.size(), -1);
  for (const planning::Stay& stay : plan.stays) {
    const int32_t from = stay.reads ? stay.issue : stay.first;
    EXPECT_LE(from, stay.first);
    EXPECT_GT(stay.released, stay.last);
    EXPECT_EQ(stay.offset % 4096, 0);
    // What is read was written before.
    if (stay.reads) {
      EXPECT_GE(from, released[stay.piece]) << run.pieces[stay.piece].name;
    }
    released[stay.piece] = stay.released;
    all.push_back({stay.offset, stay.offset + run.pieces[stay.piece].bytes, from, stay.writes ? stay.released : stay.last + 1});
  }
  for (size_t i = 0; i < run.blocks.size(); ++i)
    all.push_back({plan.block_offsets[i], plan.block_offsets[i] + run.blocks[i].bytes, run.blocks[i].first, run.blocks[i].last + 1});
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_GE(all[i].begin, 0);
    EXPECT_LE(all[i].end, bytes);
    for (size_t k = i + 1; k < all.size(); ++k) {
      const bool at_once = all[i].from < all[k].until && all[k].from < all[i].until;
      if (at_once && all[i].begin < all[k].end && all[k].begin < all[i].end) ADD_FAILURE() << i << " and " << k << " lie on each other";
    }
  }
}

}  // namespace ort_train::fixtures
