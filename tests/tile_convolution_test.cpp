// Convolutions and their gradients in tile registers (exec/tile_convolution.h, exec/tile_weight_gradient.h), on any processor, with a model
// of the registers: near the sums by the definition in double, and with the same bits however the weight is divided.

#define ORT_TRAIN_ISA isa_of_tile_convolution_test  // copies of its own of what the library compiles, too

#include "exec/tile_convolution.h"

#include <gtest/gtest.h>

#include <vector>

#include "exec/tile_weight_gradient.h"
#include "tests/tile_model.h"

namespace ort_train {
inline namespace ORT_TRAIN_ISA {
namespace {

using namespace convolution;

struct Case {
  const char* name;
  int64_t batch, groups, in, out;  // channels of a group
  WindowAxis h, w;                 // without `out`
};

// Numbers, as float32 and as bfloat16.
struct Numbers {
  std::vector<float> floats;
  std::vector<bfloat16> halves;

  Numbers(int64_t n, uint32_t seed) {
    for (int64_t i = 0; i < n; ++i) {
      seed = seed * 1664525 + 1013904223;
      halves.push_back(to_bfloat16(static_cast<float>(seed >> 8) * 0x1p-23f - 1));
      floats.push_back(to_float(halves.back()));
    }
  }
  double at(int64_t i) const { return double{floats[static_cast<size_t>(i)]}; }
  const std::byte* bytes(Element element) const {
    return element == Element::bfloat16 ? reinterpret_cast<const std::byte*>(halves.data())
                                        : reinterpret_cast<const std::byte*>(floats.data());
  }
};

Layout layout_of(const Case& c) {
  Layout l{.windows = {c.h, c.w}, .batch = c.batch, .groups = c.groups, .in_channels = c.in, .out_channels = c.out};
  for (WindowAxis* axis : {&l.windows.h, &l.windows.w})
    axis->out = (axis->in + axis->begin + axis->end - (axis->kernel - 1) * axis->dilation - 1) / axis->stride + 1;
  l.total = c.groups * c.out;
  return l;
}

// body(y, x, w): where one product of an output's sum is.
template <typename Body> void for_products(const Layout& l, Body&& body) {
  const auto& [h, w] = l.windows;
  for (int64_t n = 0; n < l.batch; ++n) {
    for (int64_t g = 0; g < l.groups; ++g) {
      for (int64_t o = 0; o < l.out_channels; ++o) {
        for (int64_t c = 0; c < l.in_channels; ++c) {
          for (int64_t t = 0; t < l.windows.taps(); ++t) {
            for (int64_t i = 0; i < h.out; ++i) {
              const int64_t down = h.at(i, t / w.kernel);
              for (int64_t j = 0; j < w.out; ++j) {
                const int64_t across = w.at(j, t % w.kernel);
                if (down < 0 || down >= h.in || across < 0 || across >= w.in) continue;
                body(l.y_at(n, g, o) + i * w.out + j, l.x_at(n, g, c) + down * w.in + across,
                     (g * l.out_channels + o) * l.depth() + c * l.windows.taps() + t);
              }
            }
          }
        }
      }
    }
  }
}

void expect_near(const std::vector<float>& made, const std::vector<double>& exact, const std::vector<double>& size) {
  ASSERT_EQ(made.size(), exact.size());
  for (size_t i = 0; i < made.size(); ++i) ASSERT_NEAR(double{made[i]}, exact[i], 1e-6 * size[i] + 1e-12) << "element " << i;
}

// All tasks, with a workspace in which nothing is zero.
template <typename Way>
void run(const Way& way, const std::byte* read, const std::byte* w, const float* bias, std::byte* made, const float* before = nullptr) {
  std::vector<float> shared(static_cast<size_t>(way.shared_bytes() / 4), NAN), place(static_cast<size_t>(way.bytes() / 4), NAN);
  const Operands operands{.from = read, .w = w, .to = made, .shared = shared.data(), .bias = bias, .before = before};
  for (int64_t i = 0; i < way.preparations(); ++i) way.prepare(operands, i, nullptr);
  for (int64_t task = way.tasks() - 1; task >= 0; --task) way.run(operands, task, reinterpret_cast<std::byte*>(place.data()));
}

constexpr Case kCases[] = {
    {"3 x 3", 2, 1, 64, 48, {.in = 13, .kernel = 3, .begin = 1, .end = 1}, {.in = 21, .kernel = 3, .begin = 1, .end = 1}},
    {"small planes", 5, 1, 70, 33, {.in = 7, .kernel = 3, .begin = 1, .end = 1}, {.in = 7, .kernel = 3, .begin = 1, .end = 1}},
    {"1 x 1", 3, 1, 40, 70, {.in = 9}, {.in = 11}},
    {"1 x 1 in steps", 2, 1, 34, 20, {.in = 8, .stride = 2}, {.in = 9, .stride = 2}},
    {"in steps",
     2,
     1,
     33,
     34,
     {.in = 12, .kernel = 3, .stride = 2, .begin = 1, .end = 1},
     {.in = 15, .kernel = 3, .stride = 2, .begin = 1}},
    {"in steps of 3 and 1", 1, 1, 32, 17, {.in = 20, .kernel = 2, .stride = 3}, {.in = 9, .kernel = 4, .begin = 2, .end = 1}},
    {"three channels",
     3,
     1,
     3,
     40,
     {.in = 30, .kernel = 7, .stride = 2, .begin = 3, .end = 3},
     {.in = 34, .kernel = 7, .stride = 2, .begin = 3, .end = 3}},
    {"dilated",
     2,
     1,
     36,
     16,
     {.in = 16, .kernel = 3, .begin = 2, .end = 2, .dilation = 2},
     {.in = 17, .kernel = 3, .begin = 3, .end = 3, .dilation = 3}},
    {"groups", 2, 3, 20, 24, {.in = 10, .kernel = 3, .begin = 1, .end = 1}, {.in = 12, .kernel = 3, .begin = 1, .end = 1}},
    {"several bands", 16, 1, 16, 128, {.in = 134}, {.in = 6, .kernel = 3, .begin = 1, .end = 1}},
    {"steps beyond x", 16, 1, 8, 8, {.in = 1, .kernel = 1, .stride = 4, .begin = 1}, {.in = 16, .kernel = 5, .begin = 2, .end = 2}},
    {"one axis", 2, 1, 48, 32, {}, {.in = 50, .kernel = 5, .begin = 2, .end = 2}},
};

class InTileRegisters : public ::testing::TestWithParam<Case> {};

TEST_P(InTileRegisters, AConvolutionIsItsDefinition) {
  const Layout l = layout_of(GetParam());
  const Numbers x(l.batch * l.image(), 1), w(l.weights(), 2), bias(l.total, 3);
  std::vector<double> exact(static_cast<size_t>(l.batch * l.result())), size(exact.size(), 1);
  for (size_t i = 0; i < exact.size(); ++i) exact[i] = bias.at(static_cast<int64_t>(i) / l.windows.out_size() % l.total);
  for_products(l, [&](int64_t at, int64_t from, int64_t weight) {
    exact[static_cast<size_t>(at)] += x.at(from) * w.at(weight);
    size[static_cast<size_t>(at)] += std::abs(x.at(from) * w.at(weight));
  });
  for (const Element element : {Element::bfloat16, Element::to_bfloat16}) {
    const auto way = TileSums<ModelOfTiles>::of_output(l, element, element, Element::own);
    ASSERT_TRUE(way.applies());
    std::vector<float> y(exact.size(), NAN);
    run(way, x.bytes(element), w.bytes(element), bias.floats.data(), reinterpret_cast<std::byte*>(y.data()));
    expect_near(y, exact, size);
    std::vector<bfloat16> rounded(y.size());
    run(TileSums<ModelOfTiles>::of_output(l, element, element, Element::bfloat16), x.bytes(element), w.bytes(element), bias.floats.data(),
        reinterpret_cast<std::byte*>(rounded.data()));
    for (size_t i = 0; i < y.size(); ++i) ASSERT_EQ(rounded[i], to_bfloat16(y[i])) << i;
    if (l.groups > 1) continue;
    for (int64_t first = 0; first < l.total; first += 17) {
      Layout part = l;
      part.first = first;
      part.out_channels = std::min<int64_t>(17, l.total - first);
      const auto of_part = TileSums<ModelOfTiles>::of_output(part, element, element, Element::own);
      ASSERT_TRUE(of_part.applies());
      std::vector<float> again = y;
      const int64_t skipped = first * l.depth() * (element == Element::bfloat16 ? 2 : 4);
      run(of_part, x.bytes(element), w.bytes(element) + skipped, bias.floats.data(), reinterpret_cast<std::byte*>(again.data()));
      ASSERT_EQ(again, y) << "channels from " << first << " on";
    }
  }
}

TEST_P(InTileRegisters, TheGradientOfXIsItsDefinition) {
  Layout l = layout_of(GetParam());
  if (!l.windows.plain() && !is_undivided(l)) l.batch = 64;
  if (!l.windows.plain() && !is_undivided(l)) GTEST_SKIP() << "its weight is larger than what it makes";
  const Numbers dy(l.batch * l.result(), 1), w(l.weights(), 2);
  std::vector<double> exact(static_cast<size_t>(l.batch * l.image())), size(exact.size(), 1);
  for_products(l, [&](int64_t from, int64_t at, int64_t weight) {
    exact[static_cast<size_t>(at)] += dy.at(from) * w.at(weight);
    size[static_cast<size_t>(at)] += std::abs(dy.at(from) * w.at(weight));
  });
  const Element element = Element::bfloat16;
  const auto way = TileSums<ModelOfTiles>::of_input(l, element, element, Element::own);
  ASSERT_TRUE(way.applies());
  std::vector<float> dx(exact.size(), NAN);
  run(way, dy.bytes(element), w.bytes(element), nullptr, reinterpret_cast<std::byte*>(dx.data()));
  expect_near(dx, exact, size);
  // A weight that is infinite shows only where it is multiplied.
  Numbers infinite = w;
  infinite.floats[0] = INFINITY;
  infinite.halves[0] = to_bfloat16(INFINITY);
  std::vector<float> some(dx.size(), NAN);
  run(way, dy.bytes(element), infinite.bytes(element), nullptr, reinterpret_cast<std::byte*>(some.data()));
  std::vector<bool> meets(dx.size());
  for_products(l, [&](int64_t, int64_t at, int64_t weight) {
    if (weight == 0) meets[static_cast<size_t>(at)] = true;
  });
  for (size_t i = 0; i < some.size(); ++i) ASSERT_EQ(!std::isfinite(some[i]), meets[i]) << i;
}

// Where each window is one element the weight may be in parts, by channels of y: sums go on from part to part.
TEST(InTileRegistersByParts, TheGradientOfXGoesOnFromPartToPart) {
  const Layout l = layout_of({"", 3, 1, 40, 200, {.in = 9}, {.in = 11}});
  const Element element = Element::bfloat16;
  const Numbers dy(l.batch * l.result(), 1), w(l.weights(), 2);
  std::vector<float> whole(static_cast<size_t>(l.batch * l.image()), NAN), parts = whole;
  run(TileSums<ModelOfTiles>::of_input(l, element, element, Element::own), dy.bytes(element), w.bytes(element), nullptr,
      reinterpret_cast<std::byte*>(whole.data()));
  for (int64_t first = 0; first < l.total; first += 64) {
    Layout part = l;
    part.first = first;
    part.out_channels = std::min<int64_t>(64, l.total - first);
    run(TileSums<ModelOfTiles>::of_input(part, element, element, Element::own), dy.bytes(element), w.bytes(element) + first * l.depth() * 2,
        nullptr, reinterpret_cast<std::byte*>(parts.data()), first > 0 ? parts.data() : nullptr);
  }
  EXPECT_EQ(parts, whole);
}

TEST_P(InTileRegisters, TheGradientOfTheWeightIsItsDefinition) {
  const Layout l = layout_of(GetParam());
  const Numbers dy(l.batch * l.result(), 1), x(l.batch * l.image(), 2);
  std::vector<double> exact(static_cast<size_t>(l.weights())), size(exact.size(), 1);
  for_products(l, [&](int64_t from_y, int64_t from_x, int64_t at) {
    exact[static_cast<size_t>(at)] += dy.at(from_y) * x.at(from_x);
    size[static_cast<size_t>(at)] += std::abs(dy.at(from_y) * x.at(from_x));
  });
  for (const Element element : {Element::bfloat16, Element::to_bfloat16}) {
    const auto make = [&](const Layout& of) {
      const TileWeights<ModelOfTiles> way(of, element, element, Element::own);
      EXPECT_TRUE(way.applies());
      const int64_t pieces = way.tiles().pieces;
      std::vector<float> made(static_cast<size_t>(pieces * of.weights()), NAN), place(static_cast<size_t>(way.bytes() / 4), NAN);
      for (int64_t task = way.tasks() - 1; task >= 0; --task)
        way.run(dy.bytes(element), x.bytes(element), reinterpret_cast<std::byte*>(made.data()), task,
                reinterpret_cast<std::byte*>(place.data()));
      for (int64_t i = 0; i < of.weights(); ++i) {
        for (int64_t piece = 1; piece < pieces; ++piece)
          made[static_cast<size_t>(i)] += made[static_cast<size_t>(piece * of.weights() + i)];
      }
      made.resize(static_cast<size_t>(of.weights()));
      return made;
    };
    const std::vector<float> dw = make(l);
    expect_near(dw, exact, size);
    if (l.groups > 1) continue;
    for (int64_t first = 0; first < l.total; first += 17) {
      Layout part = l;
      part.first = first;
      part.out_channels = std::min<int64_t>(17, l.total - first);
      const std::vector<float> rows = make(part);
      ASSERT_EQ(rows, std::vector<float>(dw.begin() + first * l.depth(), dw.begin() + (first + part.out_channels) * l.depth())) << first;
    }
  }
}

// A part is made as the whole is, whatever is larger than its copies may be: else it would have other bits.
TEST(InTileRegistersByParts, AreMadeAsTheWholeIs) {
  const Element element = Element::bfloat16;
  int64_t made = 0, all = 0;
  for (const int64_t in : {3, 64, 700, 2048, 9000}) {
    for (const int64_t out : {40, 512, 2048, 9000}) {
      for (const int64_t side : {7, 60, 300, 5000, 40000}) {
        for (const int64_t kernel : {1, 3, 7}) {
          for (const int64_t stride : {1, 2, 4}) {
            const WindowAxis axis{.in = side, .kernel = kernel, .stride = stride, .begin = kernel / 2, .end = kernel / 2};
            const Layout whole = layout_of({"", 4, 1, in, out, side > 1000 ? WindowAxis{} : axis, axis});
            Layout part = whole, last = whole;
            part.out_channels = 32;
            last.out_channels = out % 64 + 64 <= out ? out % 64 + 64 : out;
            last.first = out - last.out_channels;
            for (const Layout& of : {part, last}) {
              const auto alike = [&](bool whole_applies, bool applies) {
                EXPECT_EQ(whole_applies, applies) << in << " -> " << out << ", " << kernel << " /" << stride << " at " << side;
                made += applies;
                ++all;
              };
              alike(TileSums<ModelOfTiles>::of_output(whole, element, element, element).applies(),
                    TileSums<ModelOfTiles>::of_output(of, element, element, element).applies());
              alike(TileWeights<ModelOfTiles>(whole, element, element, element).applies(),
                    TileWeights<ModelOfTiles>(of, element, element, element).applies());
              if (whole.windows.plain())
                alike(TileSums<ModelOfTiles>::of_input(whole, element, element, element).applies(),
                      TileSums<ModelOfTiles>::of_input(of, element, element, element).applies());
            }
          }
        }
      }
    }
  }
  EXPECT_GT(made, all / 2);
  EXPECT_LT(made, all);
}

INSTANTIATE_TEST_SUITE_P(Shapes, InTileRegisters, ::testing::ValuesIn(kCases), [](const auto& info) {
  std::string name = info.param.name;
  std::erase_if(name, [](char c) { return !std::isalnum(static_cast<unsigned char>(c)); });
  return name;
});

}  // namespace
}  // namespace ORT_TRAIN_ISA
}  // namespace ort_train
