// Neighbouring elements that a thread loads and stores at once.

#pragma once

#include <cstdint>

#include "graph/half.h"

namespace ort_train {

template <typename T, int n> struct alignas(sizeof(T) * n) Pack { T of[n]; };

// The address must be a multiple of the pack's size.
template <int n, typename T> HOST_DEVICE inline Pack<T, n> load_pack(const T* from) { return *reinterpret_cast<const Pack<T, n>*>(from); }
template <int n, typename T> HOST_DEVICE inline void store_pack(T* to, const Pack<T, n>& pack) {
  *reinterpret_cast<Pack<T, n>*>(to) = pack;
}

// Whether packs of so many elements from here on may be loaded.
template <int n, typename T> HOST_DEVICE inline bool is_aligned(const T* at) {
  return reinterpret_cast<uintptr_t>(at) % (sizeof(T) * n) == 0;
}

}  // namespace ort_train
