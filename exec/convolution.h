// What the convolution and its gradients share on all devices: shapes, which part of the weight a node has, and the tiles by whose sizes
// the sums are ordered.

#pragma once

#include <algorithm>

#include "exec/depth_block.h"
#include "exec/element.h"
#include "exec/element_types.h"
#include "exec/product_types.h"
#include "exec/window.h"
#include "graph/rounding.h"

ORT_TRAIN_OPS_BEGIN
namespace convolution {

inline constexpr int64_t kColumnBytes = 384 << 10;  // of a tile of columns: beside the packed panel it fits in the second-level cache
inline constexpr int64_t kFewTasks = 16;            // with fewer, channels are divided too

struct Layout {
  Windows windows;
  int64_t batch = 0, groups = 1, in_channels = 0, out_channels = 0;  // channels of one group
  int64_t first = 0, total = 0;                                      // of y's channels: where a part begins; all of them

  HOST_DEVICE int64_t depth() const { return in_channels * windows.taps(); }
  HOST_DEVICE int64_t weights() const { return groups * out_channels * depth(); }
  HOST_DEVICE int64_t image() const { return groups * in_channels * windows.in_size(); }  // elements of a sample of x
  HOST_DEVICE int64_t result() const { return total * windows.out_size(); }               // and of y
  HOST_DEVICE int64_t products() const { return groups * depth() * windows.out_size(); }  // and of what dx is made from
  HOST_DEVICE int64_t x_at(int64_t n, int64_t g, int64_t channel) const {
    return n * image() + (g * in_channels + channel) * windows.in_size();
  }
  HOST_DEVICE int64_t y_at(int64_t n, int64_t g, int64_t channel) const {
    return n * result() + (first + g * out_channels + channel) * windows.out_size();
  }
  HOST_DEVICE int64_t products_at(int64_t n, int64_t g, int64_t channel) const {
    return n * products() + (g * in_channels + channel) * windows.taps() * windows.out_size();
  }
  bool is_last() const { return first + groups * out_channels == total; }
};

inline Layout whole_layout(const Attributes& attributes, const Shape& x, const Shape& w) {
  Layout l{.windows = windows_of(attributes, x)};
  l.groups = attributes.get("group", int64_t{1});
  if (w.size() != x.size()) throw error(ErrorCode::unsupported, "a weight of {} does not fit {}", to_string(w), to_string(x));
  const bool divides = l.groups > 0 && w[0] > 0 && w[1] > 0 && w[0] % l.groups == 0 && x[1] == w[1] * l.groups;
  if (!divides) {
    throw error(ErrorCode::unsupported, "{} channels, a weight of {} and {} groups don't go together", x[1], to_string(w), l.groups);
  }
  if (attributes.get("kernel_shape", std::vector<int64_t>{}) != std::vector<int64_t>(w.begin() + 2, w.end()))
    throw error(ErrorCode::unsupported, "its kernel_shape is not that of its weight {}", to_string(w));
  l.batch = x[0];
  l.in_channels = w[1];
  l.out_channels = w[0] / l.groups;
  l.total = w[0];
  return l;
}

// Where w is a part that begins at channel `first` of `total`.
inline Layout part_layout(Layout l, int64_t first, int64_t total) {
  const int64_t count = l.groups * l.out_channels;
  if (first < 0 || count > total || first > total - count || (l.groups > 1 && count < total))
    throw error(ErrorCode::unsupported, "{} channels from {} on are no part of {} in {} groups", count, first, total, l.groups);
  l.first = first;
  l.total = total;
  return l;
}

inline Layout layout_of(const Attributes& attributes, const Shape& x, const Shape& w) {
  const Layout l = whole_layout(attributes, x, w);  // checks w
  return part_layout(l, attributes.get("first", int64_t{0}), attributes.get("total", w[0]));
}

// Of the gradients: the tensor's that they are of.
inline Shape shape_of(const Attributes& attributes) { return attributes.get("shape", Shape{}); }

inline Layout layout_of_y(const KernelSpec& spec) { return layout_of(spec.attributes, spec.inputs[0].shape, spec.inputs[1].shape); }

inline Layout layout_of_dx(const KernelSpec& spec) { return layout_of(spec.attributes, shape_of(spec.attributes), spec.inputs[1].shape); }

inline Layout layout_of_dw(const KernelSpec& spec) {
  const Shape whole = shape_of(spec.attributes);
  Layout l = whole_layout(spec.attributes, spec.inputs[1].shape, whole);
  l.out_channels = spec.outputs[0].shape[0] / l.groups;
  return part_layout(l, spec.attributes.get("first", int64_t{0}), whole[0]);
}

// Whether the processor makes it and its gradients, in float32, by Winograd's filtering of tiles of 2 x 2 (exec/winograd.h). Chosen by the
// whole weight.
inline bool takes_winograd(const Layout& l) {
  constexpr int64_t kFewChannels = 16, kFewTiles = 64;  // else transforms take longer than the products that they save
  constexpr int64_t kMostWeights = int64_t{1} << 18;    // each is transformed to 16 floats: 16 MiB
  const auto is_plain = [](const WindowAxis& a) { return a.kernel == 3 && a.stride == 1 && a.dilation == 1 && a.out > 0; };
  if (l.groups != 1 || !is_plain(l.windows.h) || !is_plain(l.windows.w)) return false;
  const int64_t tiles = (l.windows.h.out + 1) / 2 * ((l.windows.w.out + 1) / 2);
  return l.in_channels >= kFewChannels && l.total >= kFewChannels && l.in_channels * l.total <= kMostWeights &&
         l.batch * tiles >= kFewTiles && 10 * l.windows.out_size() >= 7 * 4 * tiles;  // of a small plane tiles may lie beside it
}

inline Attributes attributes_of_part(const Node& node, const RowRange& rows, const char* size, int64_t value) {
  Attributes attributes = node.attributes;
  attributes.set("first", rows.first);
  attributes.set(size, value);
  return attributes;
}

// Where a weight's parts may begin, so that sums over its rows have the bits of the whole.
inline int64_t rows_of_parts(const Graph& graph, const Node& node, size_t input) {
  const bool can = input == 1 && node.attributes.get("group", int64_t{1}) == 1;
  return can ? depth_block(graph.value(node.inputs[1]).shape[0]) : 0;
}

// --- tiles ---------------------------------------------------------------------------------------------------------------------------

// So many samples share a tile of about `columns` windows.
inline int64_t samples_together(const Layout& l, int64_t columns) {
  return std::clamp<int64_t>(columns / l.windows.out_size(), 1, std::max<int64_t>(1, l.batch));
}

// The size of so many equal parts, a multiple of `each`.
inline int64_t equal_part(int64_t size, int64_t parts, int64_t each) { return divided_up(divided_up(size, parts), each) * each; }

// Which tile a task is: those of `down` lie one behind another, then `across`, groups, and samples or pieces of the batch.
struct TileNumber {
  int64_t down, across, group, samples;
};
inline TileNumber tile_of(const Layout& l, int64_t down, int64_t across, int64_t task) {
  const int64_t item = task / down / across;
  return {.down = task % down, .across = task / down % across, .group = item % l.groups, .samples = item / l.groups};
}

inline constexpr int64_t kPlainWindows = 480;  // of a tile of plain windows

// Of the convolution.
struct Tiles {
  int64_t samples = 1, groups_of_samples = 0;
  int64_t columns = 0, across = 0;  // windows of a tile; tiles of a sample
  int64_t channels = 0;             // of x, in a chunk
  int64_t rows = 0, down = 0;       // channels of y

  bool gathers(const Layout& l) const { return samples > 1 || !l.windows.plain(); }
};

inline Tiles tiles_of(const Layout& l) {
  constexpr int64_t kColumns = 192, kDepth = 384, kMostRows = 256, kLeastRows = 64;
  const int64_t all = l.windows.out_size();
  Tiles tiles{.samples = samples_together(l, kColumns)};
  tiles.groups_of_samples = divided_up(l.batch, tiles.samples);
  tiles.columns = std::min(all, l.windows.plain() ? kPlainWindows : kColumns);
  tiles.across = divided_up(all, tiles.columns);
  tiles.channels = tiles.gathers(l) ? std::clamp<int64_t>(kDepth / l.windows.taps(), 1, l.in_channels) : l.in_channels;
  tiles.rows = tiles.samples > 1 ? std::min(kMostRows, l.out_channels) : l.out_channels;
  while (tiles.groups_of_samples * l.groups * tiles.across * divided_up(l.out_channels, tiles.rows) < kFewTasks &&
         tiles.rows >= 2 * kLeastRows)
    tiles.rows = divided_up(tiles.rows, 2);
  tiles.down = divided_up(l.out_channels, tiles.rows);
  return tiles;
}

// Of dx.
struct InputTiles {
  int64_t samples = 1, groups_of_samples = 0;
  int64_t columns = 0, across = 0;  // windows of a tile; tiles of a sample
  int64_t channels = 0, down = 0;   // of x

  bool products_are_dx(const Layout& l) const { return samples == 1 && l.windows.plain(); }
};

inline InputTiles input_tiles(const Layout& l, int64_t size) {
  constexpr int64_t kColumns = 192, kPlainChannels = 192, kRows = 8;
  const int64_t all = l.windows.out_size();
  InputTiles tiles{.samples = samples_together(l, kColumns)};
  tiles.groups_of_samples = divided_up(l.batch, tiles.samples);
  tiles.columns = tiles.products_are_dx(l) ? std::min(all, kPlainWindows) : all;
  tiles.across = divided_up(all, tiles.columns);
  const int64_t bytes = l.windows.taps() * tiles.samples * all * size;
  if (tiles.products_are_dx(l))
    tiles.channels = l.in_channels;
  else if (l.windows.plain())
    tiles.channels = std::min(l.in_channels, equal_part(l.in_channels, divided_up(l.in_channels, kPlainChannels), kRows));
  else
    tiles.channels = std::clamp<int64_t>(kColumnBytes / bytes, 1, l.in_channels);
  while (tiles.groups_of_samples * l.groups * tiles.across * divided_up(l.in_channels, tiles.channels) < kFewTasks && tiles.channels > 1)
    tiles.channels = divided_up(tiles.channels, 2);
  tiles.down = divided_up(l.in_channels, tiles.channels);
  return tiles;
}

// Of dw.
struct WeightTiles {
  int64_t pieces = 1, piece_samples = 0;  // of the batch
  int64_t samples = 1;                    // in a tile
  int64_t columns = 0;                    // windows of a tile, in each of its samples
  int64_t channels = 0, across = 0;       // of x
  int64_t rows = 0, down = 0;             // channels of y

  bool gathers(const Layout& l) const { return samples > 1 || !l.windows.plain(); }
};

inline WeightTiles weight_tiles(const Layout& l, int64_t size) {
  constexpr int64_t kPieces = 8, kPartials = int64_t{1} << 19, kColumns = 768, kMostRows = 128, kLeastRows = 32;
  constexpr int64_t kPlainColumns = 384, kPlainChannels = 96, kPlainRows = 512, kLanes = 16;
  const bool plain = l.windows.plain();
  WeightTiles tiles;
  const int64_t weights = l.total * l.depth();  // of the whole
  tiles.piece_samples = std::max<int64_t>(1, divided_up(l.batch, std::clamp<int64_t>(kPartials / weights, 1, kPieces)));
  tiles.pieces = std::max<int64_t>(1, divided_up(l.batch, tiles.piece_samples));
  tiles.samples = std::min(samples_together(l, plain ? kPlainColumns : kColumns), tiles.piece_samples);
  tiles.columns = std::min(kColumns, l.windows.out_size());
  const int64_t bytes = l.windows.taps() * tiles.samples * tiles.columns * size;
  tiles.channels =
      plain ? equal_part(l.in_channels, divided_up(l.in_channels, kPlainChannels), kLanes) : std::max<int64_t>(1, kColumnBytes / bytes);
  tiles.channels = std::min(tiles.channels, l.in_channels);
  tiles.across = divided_up(l.in_channels, tiles.channels);
  tiles.rows = tiles.samples > 1 ? std::min(plain ? kPlainRows : kMostRows, l.out_channels) : l.out_channels;
  while (tiles.pieces * l.groups * tiles.across * divided_up(l.out_channels, tiles.rows) < kFewTasks && tiles.rows >= 2 * kLeastRows)
    tiles.rows = divided_up(tiles.rows, 2);
  tiles.down = divided_up(l.out_channels, tiles.rows);
  return tiles;
}

// --- tensors of T, or of 16 bits ------------------------------------------------------------------------------------------------------

// What the elements of an operand are, and of a result.
inline Element operand_element(const KernelSpec& spec, size_t input) {
  return element_of(spec.inputs[input].dtype, type_from(spec.attributes, "compute", DType::float32));
}
inline Element result_element(const KernelSpec& spec) { return element_of(spec.outputs[0].dtype); }

// Prepares for the T of the sums: kernel.operator()<T>().
template <typename Kernel> auto for_sums(const KernelSpec& spec, Kernel&& kernel) {
  return for_type(Wide{}, compute_type(spec.outputs[0].dtype), kernel);
}
inline constexpr DTypes kTypes = kWide | kMixed;

// --- cost -----------------------------------------------------------------------------------------------------------------------------

// All three are the same multiply-adds.
template <Layout (*layout)(const KernelSpec&)> Cost cost(const KernelSpec& spec) {
  const Layout l = layout(spec);
  Cost cost{.flops = 2.0 * static_cast<double>(l.batch * l.groups * l.out_channels) * static_cast<double>(l.depth()) *
                     static_cast<double>(l.windows.out_size())};
  for (size_t i = 0; i < spec.inputs.size(); ++i) cost.bytes += spec.has(i) ? static_cast<double>(spec.inputs[i].bytes()) : 0;
  cost.bytes += static_cast<double>(spec.outputs[0].bytes());
  const int64_t others = l.total - l.groups * l.out_channels;  // channels of y, or dy, that a part leaves alone
  cost.bytes -= static_cast<double>(l.batch * others * l.windows.out_size() * size_of(spec.outputs[0].dtype));
  if (spec.has(3)) cost.bytes -= static_cast<double>(spec.inputs[3].bytes());  // y as it was
  return cost;
}

}  // namespace convolution
ORT_TRAIN_OPS_END
