// Hash: a checksum of bytes that come some at a time (XXH3). Of bytes at hand: hash_bytes() of frontend/file.h.

#pragma once

#include <xxhash.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "frontend/file.h"
#include "graph/error.h"

namespace ort_train {

class Hash {
 public:
  Hash() : state_(XXH3_createState(), XXH3_freeState) {
    require(state_ != nullptr && XXH3_64bits_reset(state_.get()) == XXH_OK, "no hash state");
  }
  void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_.get(), bytes.data(), bytes.size()); }
  uint64_t number() const { return XXH3_64bits_digest(state_.get()); }
  std::string text() const { return hex16(number()); }

 private:
  std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> state_;
};

}  // namespace ort_train
