// Addresses of blocks of memory, offline ("dynamic storage allocation"): those that live at the same time get disjoint ones.
//
// Deterministic: the same blocks give the same addresses on every machine; no clock, no thread count enters.

#pragma once

#include <cstdint>
#include <vector>

#include "exec/program.h"

namespace ort_train {

struct AddressBlock {
  int64_t bytes = 0;                    // rounded up to the alignment here
  int32_t first = 0, last = 0;          // when it is live, inclusive
  int32_t spare_before = 0;             // of that, the first steps and the last ones, which are given up, half of them or all,
  int32_t spare_after = 0;              // where with them it would lie above AddressOptions::enough
  int64_t alignment = kPlaceAlignment;  // a power of two
  int64_t offset = 0;                   // the result, from 0
};

// The highest sum of live bytes (after alignment): no packing can be lower. `when`, if given, is the earliest time of it.
int64_t max_live_bytes(const std::vector<AddressBlock>& blocks, int32_t* when = nullptr);

struct AddressOptions {
  int64_t enough = 0;  // no lower end is looked for; 0: the lowest is
};

// Sets every offset, to a multiple of the block's alignment; returns the highest end.
int64_t assign_addresses(std::vector<AddressBlock>& blocks, const AddressOptions& options = {});

}  // namespace ort_train
