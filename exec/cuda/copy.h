// Copies and fills of memory that begins at multiples of 16 bytes, as the place of every tensor does.

#pragma once

#include "exec/cuda/moves.h"

ORT_TRAIN_OPS_BEGIN

// Words of 16 bytes; the last one, which may be shorter, by single bytes.
struct CopiedWords {
  const std::byte* in;
  std::byte* out;
  int64_t bytes;
  HOST_DEVICE WideWord take(int64_t i) const {
    WideWord word{};
    if (16 * (i + 1) <= bytes) return *reinterpret_cast<const WideWord*>(in + 16 * i);
    for (int64_t at = bytes; at-- > 16 * i;) {
      word.high = word.high << 8 | word.low >> 56;
      word.low = word.low << 8 | static_cast<uint8_t>(in[at]);
    }
    return word;
  }
  HOST_DEVICE void put(int64_t i, WideWord word) const {
    if (16 * (i + 1) <= bytes) {
      *reinterpret_cast<WideWord*>(out + 16 * i) = word;
      return;
    }
    for (int64_t at = 16 * i; at < bytes; ++at) {
      out[at] = static_cast<std::byte>(word.low);
      word.low = word.low >> 8 | word.high << 56;
      word.high >>= 8;
    }
  }
};
inline void copy_bytes(void* out, const void* in, int64_t bytes, const KernelArgs& args) {
  launch_moves(CopiedWords{static_cast<const std::byte*>(in), static_cast<std::byte*>(out), bytes}, (bytes + 15) / 16, args);
}

// An element of 1, 2, 4 or 8 bytes over and over.
inline WideWord repeated(const void* element, int64_t element_bytes) {
  std::byte bytes[16];
  for (int64_t at = 0; at < 16; at += element_bytes) std::memcpy(bytes + at, element, static_cast<size_t>(element_bytes));
  WideWord word;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

struct FilledWords {
  CopiedWords words;
  WideWord word;
  HOST_DEVICE void operator()(int64_t i) const { words.put(i, word); }
};
inline void fill_words(void* out, WideWord word, int64_t bytes, const KernelArgs& args) {
  launch_elements(FilledWords{{nullptr, static_cast<std::byte*>(out), bytes}, word}, (bytes + 15) / 16, args);
}
inline void fill_zeros(void* out, int64_t bytes, const KernelArgs& args) { fill_words(out, WideWord{}, bytes, args); }

ORT_TRAIN_OPS_END
