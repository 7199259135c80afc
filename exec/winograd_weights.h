// The gradient of the weight of a convolution with windows of 3 x 3 in steps of one, by Winograd's filtering (exec/winograd.h).

#pragma once

#include "exec/winograd.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

// dw of one piece of the batch, of some channels of y and some of x, is a task. Tiles of the piece are summed in blocks, upwards. Of a
// thread's workspace: x of a block, transformed; dy of a panel of its channels, element by element of its tiles, then transposed, then
// transformed; the sums, [element of a tile][channel of x][channel of y]; what transforms need.
class WinogradWeights {
 public:
  WinogradWeights() = default;
  WinogradWeights(const Layout& l, Element dy, Element x, Element dw)
      : l_(l), dy_(dy), x_(x), dw_(dw), pieces_(weight_tiles(l, sizeof(float))) {
    // Rows of 80 tiles, unlike those of 64 or 96, don't meet in few sets of the first-level cache.
    constexpr int64_t kBlock = 80, kMostOutputs = 2 * gemm::kPanel, kMostChannels = 64, kLeastChannels = 32;
    applies_ = takes_winograd(l) && gemm::way_of(dy, x) == gemm::Way::floats;
    if (!applies_) return;
    tiles_ = WinogradTiles(l.windows);
    block_ = std::min(kBlock, divided_up(l.batch * tiles_.count(), 16) * 16);
    outputs_ = std::min(kMostOutputs, divided_up(l.out_channels, gemm::kWidth) * gemm::kWidth);
    channels_ = std::min(kMostChannels, l.in_channels);
    const auto equal = [&](int64_t parts) { return equal_part(l.in_channels, parts, gemm::kRows); };
    across_ = divided_up(l.in_channels, channels_);
    down_ = divided_up(l.out_channels, outputs_);
    while (pieces_.pieces * across_ * down_ < kFewTasks && equal(across_ + 1) >= kLeastChannels) ++across_;
    channels_ = equal(across_);
    across_ = divided_up(l.in_channels, channels_);
    WorkspaceLayout layout;
    layout.take<float>(kTileElements * transformed_each());
    dy_at_ = layout.take<float>(gemm::kPanel * kOutputs * dy_row() + gemm::kWidth);
    panel_at_ = layout.take<float>(kOutputs * kSomeTiles * gemm::kPanel);
    filters_at_ = layout.take<float>(kTileElements * block_ * gemm::kPanel);
    sums_at_ = layout.take<float>(kTileElements * sums_each());
    room_at_ = layout.take<float>(std::max({tiles_.room(std::min(block_, tiles_.count())), l.windows.w.out, kSide * channels_ * kTaps}));
    bytes_ = layout.all();
  }

  bool applies() const { return applies_; }
  int64_t bytes() const { return bytes_; }
  int64_t tasks() const { return pieces_.pieces * across_ * down_; }
  const WeightTiles& tiles() const { return pieces_; }
  // As WinogradSums'.
  double efficiency(double) const {
    constexpr double kOfProducts = 0.85, kTransforming = 19, kTurning = 13, kJoining = 90;
    const auto outputs = static_cast<double>(std::min(outputs_, l_.out_channels)), channels = static_cast<double>(channels_),
               tiles = static_cast<double>(pieces_.piece_samples * tiles_.count());
    return 2.25 * tiles_.share() / (1 / kOfProducts + kTransforming / outputs + kTurning / channels + kJoining / tiles);
  }

  // dw: of the whole; or of all pieces, one behind the other, in float32
  void run(const std::byte* dy, const std::byte* x, std::byte* dw, int64_t task, std::byte* workspace) const {
    const int64_t down = task % down_, across = task / down_ % across_, piece = task / down_ / across_;
    const int64_t output = down * outputs_, outputs = std::min(outputs_, l_.out_channels - output);
    const int64_t channel = across * channels_, channels = std::min(channels_, l_.in_channels - channel);
    const int64_t begin = piece * pieces_.piece_samples * tiles_.count(),
                  end = std::min(l_.batch, (piece + 1) * pieces_.piece_samples) * tiles_.count();
    for (int64_t first = begin; first < end; first += block_) {
      const int64_t count = std::min(block_, end - first);
      transform_x(x, channel, channels, first, count, workspace);
      for (int64_t j = 0, width; j < outputs; j += width) {
        width = gemm::Fused::panel(outputs - j);
        transform_dy(dy, output + j, std::min(width, outputs - j), width, first, count, workspace);
        multiply_tiles(channels, j, width, count, first > begin, workspace);
      }
    }
    const int64_t row = l_.depth(), made_row = channels * kTaps;
    Result<float> result(dw, row, 1, dw_);
    if (pieces_.pieces > 1) result = {reinterpret_cast<float*>(dw) + piece * l_.weights(), row};
    for (int64_t r = 0; r < outputs; r += kSide) {
      const float* const sums = reinterpret_cast<const float*>(workspace + sums_at_) + r;
      const Result<float> to = result.from(output + r, channel * kTaps);
      if (to.element == Element::own && r + kSide <= outputs) {
        join(sums, channels, to.own(), row);
      } else {
        auto* const room = reinterpret_cast<float*>(workspace + room_at_);
        join(sums, channels, room, made_row);
        store_rows(room, made_row, to, std::min(kSide, outputs - r), made_row);
      }
    }
  }

 private:
  static constexpr int64_t kSomeTiles = 16;

  int64_t transformed_each() const { return divided_up(channels_, gemm::kRows) * gemm::kRows * block_ + gemm::kPanel; }
  int64_t dy_row() const { return block_ + gemm::kWidth; }  // no power of two
  int64_t sums_row() const { return outputs_ + gemm::kWidth; }
  int64_t sums_each() const { return divided_up(channels_, gemm::kRows) * gemm::kRows * sums_row() + gemm::kWidth; }

  void transform_x(const std::byte* x, int64_t channel, int64_t channels, int64_t first, int64_t count, std::byte* workspace) const {
    const auto plane = [&](int64_t n, int64_t c) { return Plane(x_, x + l_.x_at(n, 0, c) * bytes_each<float>(x_)); };
    for (int64_t i = 0; i < channels; ++i) {
      const int64_t c = channel + i, next = std::min(c + 1, l_.in_channels - 1);
      for_samples(first, count, tiles_.count(), [&](int64_t n, int64_t begin, int64_t end, int64_t at) {
        tiles_.transform(plane(n, c), plane(n, next), begin, end, reinterpret_cast<float*>(workspace + room_at_),
                         reinterpret_cast<float*>(workspace) + i * block_ + at, transformed_each());
      });
    }
  }

  // A dy A' of a panel: [element of a tile][tile][channel].
  void transform_dy(const std::byte* dy, int64_t output, int64_t outputs, int64_t width, int64_t first, int64_t count,
                    std::byte* workspace) const {
    auto* const divided = reinterpret_cast<float*>(workspace + dy_at_);
    const auto& [h, w] = l_.windows;
    for (int64_t r = 0; r < outputs; ++r) {
      for_samples(first, count, tiles_.count(), [&](int64_t n, int64_t begin, int64_t end, int64_t at) {
        const Plane plane(dy_, dy + l_.y_at(n, 0, output + r) * bytes_each<float>(dy_));
        tiles_.rows(begin, end, [&](int64_t row, int64_t from, int64_t until, int64_t tile) {
          for (int64_t half = 0; half < 2; ++half) {
            float* const even = divided + (r * kOutputs + 2 * half) * dy_row() + at + tile;
            const int64_t y = 2 * row + half;
            if (y >= h.out) {
              std::fill_n(even, until - from, 0.0f);
              std::fill_n(even + dy_row(), until - from, 0.0f);
              continue;
            }
            const float* line = plane.floats() ? plane.floats() + y * w.out : reinterpret_cast<float*>(workspace + room_at_);
            if (r + 1 < outputs) plane.fetch(l_.windows.out_size() + y * w.out + 2 * from, std::min(2 * until, w.out) - 2 * from);
            if (!plane.floats()) plane.read(y * w.out, w.out, reinterpret_cast<float*>(workspace + room_at_));
            tiles_.divide_row(line, from, until, even, even + dy_row());
          }
        });
      });
    }
    auto* const panel = reinterpret_cast<float*>(workspace + panel_at_);
    for (int64_t tile = 0; tile < count; tile += kSomeTiles) {
      const int64_t tiles = std::min(kSomeTiles, count - tile), size = kSomeTiles * width;
      for (int64_t i = 0; i < kOutputs; ++i)
        gemm::pack(divided + i * dy_row() + tile, 1, kOutputs * dy_row(), tiles, outputs, width, panel + i * size);
      transform_tiles(panel, size, tiles * width, reinterpret_cast<float*>(workspace + filters_at_) + tile * width, block_ * width);
    }
  }

  // A y A' of n tiles, as floats side by side, whose elements lie `size` floats apart.
  static void transform_tiles(const float* y, int64_t size, int64_t n, float* to, int64_t step) {
    for (int64_t at = 0; at < n; at += gemm::kWidth) {
      const auto element = [&](int64_t i) { return gemm::load(y + i * size + at); };
      const auto put = [&](int64_t row, gemm::Vector left, gemm::Vector right) {
        float* const out = to + 4 * row * step + at;
        gemm::store(out, left);
        gemm::store(out + step, left + right);
        gemm::store(out + 2 * step, left - right);
        gemm::store(out + 3 * step, -right);
      };
      const gemm::Vector y00 = element(0), y01 = element(1), y10 = element(2), y11 = element(3);
      put(0, y00, y01);
      put(1, y00 + y10, y01 + y11);
      put(2, y00 - y10, y01 - y11);
      put(3, -y10, -y11);
    }
  }

  void multiply_tiles(int64_t channels, int64_t j, int64_t width, int64_t count, bool adds, std::byte* workspace) const {
    const auto* const x = reinterpret_cast<const float*>(workspace);
    const auto* const filters = reinterpret_cast<const float*>(workspace + filters_at_);
    auto* const sums = reinterpret_cast<float*>(workspace + sums_at_);
    for (int64_t i = 0; i < kTileElements; ++i) {
      for (int64_t r = 0; r < channels; r += gemm::kRows) {
        const int64_t rows = std::min<int64_t>(gemm::kRows, channels - r);
        float* const to = sums + i * sums_each() + r * sums_row() + j;
        gemm::Fused::kernel(rows, width)(micro_of(x + i * transformed_each() + r * block_, block_, 1, filters + i * block_ * width, width,
                                                  count, to, sums_row(), adds ? to : nullptr));
      }
    }
  }

  // G' W G of the sums of kSide channels of y: of each [channel of x][tap].
  void join(const float* sums, int64_t channels, float* to, int64_t to_row) const {
    struct Three {
      __m256 of[3];
    };
    const auto three = [half = _mm256_set1_ps(0.5f)](__m256 m0, __m256 m1, __m256 m2, __m256 m3) {
      const __m256 sum = half * (m1 + m2);
      return Three{{m0 + sum, half * (m1 - m2), sum + m3}};
    };
    for (int64_t c = 0; c < channels; ++c, sums += sums_row(), to += kTaps) {
      const auto m = [&](int64_t i) { return _mm256_loadu_ps(sums + i * sums_each()); };
      Three columns[4];
      for (int64_t j = 0; j < 4; ++j) columns[j] = three(m(j), m(4 + j), m(8 + j), m(12 + j));
      __m256 taps[kSide];
      float last[kSide];
      for (int i = 0; i < 3; ++i) {
        const Three row = three(columns[0].of[i], columns[1].of[i], columns[2].of[i], columns[3].of[i]);
        for (int j = 0; j < 3; ++j) i + j < 4 ? void(taps[3 * i + j] = row.of[j]) : _mm256_storeu_ps(last, row.of[j]);
      }
      transpose8(taps, to, to_row);
      for (int64_t r = 0; r < kSide; ++r) to[r * to_row + 8] = last[r];
    }
  }

  Layout l_;
  Element dy_ = Element::own, x_ = Element::own, dw_ = Element::own;
  WeightTiles pieces_;  // of which the batch's division counts
  WinogradTiles tiles_;
  int64_t block_ = 0;                                           // tiles that are summed in a chain
  int64_t channels_ = 0, across_ = 0, outputs_ = 0, down_ = 0;  // of a task: channels of x and of y
  int64_t dy_at_ = 0, panel_at_ = 0, filters_at_ = 0, sums_at_ = 0, room_at_ = 0, bytes_ = 0;
  bool applies_ = false;
};

}  // namespace convolution
ORT_TRAIN_OPS_END
