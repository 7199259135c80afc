// What the kernels of batch normalisation share: how a tensor lies in channels, and which elements each sum takes.

#pragma once

#include <algorithm>

#include "exec/kernel.h"
#include "exec/math.h"
#include "exec/workspace.h"

ORT_TRAIN_OPS_BEGIN
namespace batch_normalization {

inline constexpr float kUsualEpsilon = 1e-5f, kUsualMomentum = 0.9f;

// x as samples of channels of `size` elements.
struct Layout {
  int64_t samples = 0, channels = 0, size = 1;

  static constexpr int64_t kShort = 16;     // elements of a channel: fewer are summed for many channels at once
  static constexpr int64_t kTogether = 64;  // channels
  static constexpr int64_t kPieces = 16;    // of the batch, at most
  static constexpr int64_t kPiece = 32768;  // elements, at least

  int64_t count() const { return samples * size; }  // of one channel
  int64_t width() const { return size < kShort ? std::min(kTogether, channels) : 1; }
  int64_t bands() const { return (channels + width() - 1) / std::max<int64_t>(1, width()); }
  int64_t piece_samples() const {
    const int64_t enough = (kPiece + width() * size - 1) / std::max<int64_t>(1, width() * size);
    return std::max({int64_t{1}, enough, (samples + kPieces - 1) / kPieces});
  }
  int64_t pieces() const { return std::max<int64_t>(1, (samples + piece_samples() - 1) / piece_samples()); }
  int64_t planes_per_task() const { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, size)); }
};

inline Layout layout_of(const Shape& x) {
  Layout layout{.samples = x[0], .channels = x[1]};
  for (size_t axis = 2; axis < x.size(); ++axis) layout.size *= x[axis];
  return layout;
}

inline constexpr int64_t kSumBlock = 1024;  // elements of a sum in lanes

// Double sums of each channel: K of them a channel and piece, in the workspace.
template <int K> int64_t sums_bytes(const Layout& l) { return whole_lines(l.pieces() * l.channels * K * int64_t{sizeof(double)}); }

template <typename T> HOST_DEVICE inline T inverse_deviation(T variance, T epsilon) { return T(1) / math::sqrt(variance + epsilon); }

inline bool is_live(const Attributes& attributes) { return attributes.get("live", 0) != 0; }
inline bool needs_sums(const KernelSpec& spec) { return is_live(spec.attributes) || spec.outputs.size() > 1; }

}  // namespace batch_normalization
ORT_TRAIN_OPS_END
