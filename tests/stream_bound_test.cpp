// The lower bound of a step: that no plan beats it, whatever is held, and that it says what can be computed by hand.

#include "passes/stream_bound.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "passes/linear_program.h"
#include "passes/stream.h"
#include "passes/stream_hold.h"
#include "passes/stream_spread.h"

namespace ort_train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(LinearProgram, GoesOnFromASolution) {
  LinearProgram program;  // max x + 2 y, x + y <= 1.5, of x and y in [0, 1]
  const int32_t x = program.add_column(-1, 0, 1), y = program.add_column(-2, 0, 1);
  program.add_row(-kInfinity, 1.5, {{x, 1}, {y, 1}});
  ASSERT_TRUE(program.solve());
  EXPECT_NEAR(program.value(x), 0.5, 1e-9);
  EXPECT_NEAR(program.value(y), 1, 1e-9);
  EXPECT_NEAR(program.bound(), -2.5, 1e-9);
  const int32_t z = program.add_column(-4, 0, 2);
  program.add_row(0, kInfinity, {{y, 1}, {z, -1}});  // z <= y
  program.add_row(-kInfinity, 1, {{x, 1}, {z, 1}});
  ASSERT_TRUE(program.solve());
  EXPECT_NEAR(program.value(z), 1, 1e-9);
  EXPECT_NEAR(program.bound(), -6, 1e-9);
  program.set_cost(x, -9);
  program.set_upper(y, 0.25);
  ASSERT_TRUE(program.solve());
  EXPECT_NEAR(program.bound(), -9.5, 1e-9);
  program.add_row(3, kInfinity, {{x, 1}, {y, 1}});
  EXPECT_FALSE(program.solve());
}

StreamPiece piece_of(int64_t bytes, std::vector<StreamUse> uses, int32_t persistent = -1) {
  return {.bytes = bytes, .uses = std::move(uses), .persistent = persistent};
}

// A tensor of 100 bytes waits while another takes the memory: half of it can stay.
TEST(StreamBound, IsWhatOneComputesByHand) {
  const StreamRates rates{.read = 10, .write = 20};
  StreamEntry entry{.fixed = {0, 0, 60, 0, 0}, .seconds = {1, 1, 1, 1, 1}};
  entry.pieces.push_back(piece_of(100, {{.step = 0, .reads = false, .changes = true}, {.step = 4, .reads = true, .changes = false}}));
  // Everything fits: 5 s of computing. Else what doesn't is written before the full step and read behind it, besides a step each.
  EXPECT_NEAR(StreamBound({entry}, 0, 160, rates, kInfinity).seconds(), 5, 1e-9);
  EXPECT_NEAR(StreamBound({entry}, 0, 110, rates, kInfinity).seconds(), 5 + (50 / 20. - 1) + (50 / 10. - 1), 1e-6);
  EXPECT_NEAR(StreamBound({entry}, 0, 100, rates, kInfinity).seconds(), 5 + (60 / 20. - 1) + (60 / 10. - 1), 1e-6);
  // A weight that is changed: read before its first use, written behind its last one, where it isn't resident.
  StreamEntry weight{.fixed = {50, 0, 50}, .seconds = {1, 1, 1}};
  weight.pieces.push_back(piece_of(100, {{.step = 1, .reads = true, .changes = true}}, 0));
  EXPECT_NEAR(StreamBound({weight}, 1, 150, rates, kInfinity).seconds(), 3, 1e-9);
  EXPECT_NEAR(StreamBound({weight}, 1, 100, rates, kInfinity).seconds(), 3 + 50 / 10. + 50 / 20., 1e-6);
}

// What is under way takes memory too: where there is none, transfers don't hide behind computing.
TEST(StreamBound, TransfersUnderWayNeedRoom) {
  const StreamRates rates{.read = 10, .write = 20};
  StreamEntry weight{.fixed = {100, 0}, .seconds = {10, 1}};
  weight.pieces.push_back(piece_of(100, {{.step = 1, .reads = true, .changes = false}}, 0));
  EXPECT_NEAR(StreamBound({weight}, 1, 200, rates, kInfinity).seconds(), 11, 1e-9);
  EXPECT_NEAR(StreamBound({weight}, 1, 150, rates, kInfinity).seconds(), 16, 1e-6) << "half of it is there, or read ahead";
  EXPECT_NEAR(StreamBound({weight}, 1, 100, rates, kInfinity).seconds(), 21, 1e-6);
  // Made, out of the way of a full step, and back: its write is over before that step, its read begins behind it.
  StreamEntry made{.fixed = {0, 100, 0, 0}, .seconds = {1, 20, 4, 1}};
  made.pieces.push_back(piece_of(100, {{.step = 0, .reads = false, .changes = true}, {.step = 3, .reads = true, .changes = false}}));
  const double bound = StreamBound({made}, 0, 100, rates, kInfinity).seconds();
  EXPECT_GE(bound, 26 + (5 - 1) + (10 - 4) - 1e-6);
  EXPECT_LE(bound, 26 + 5 + (10 - 4) + 1e-6);
}

// Pieces with any uses, made or persistent, in one entry or two.
std::vector<StreamEntry> random_entries(std::mt19937& random, size_t persistents) {
  const auto upto = [&](uint32_t most) { return static_cast<int32_t>(random() % (most + 1)); };
  std::vector<StreamEntry> entries(1 + random() % 2);
  std::vector<int64_t> sizes(persistents);
  for (int64_t& bytes : sizes) bytes = 100 * (1 + upto(20));
  for (size_t e = 0; e < entries.size(); ++e) {
    StreamEntry& entry = entries[e];
    const auto steps = static_cast<size_t>(8 + upto(30));
    for (size_t t = 0; t < steps; ++t) {
      entry.fixed.push_back(100 * upto(5));
      entry.seconds.push_back(random() % 4 == 0 ? 0.01 : 0.2 * upto(10));
    }
    entry.weight = e == 0 ? 1 : random() % 2 ? 0.5 : 0.01;
    const auto add = [&](int64_t bytes, int32_t persistent) {
      StreamPiece piece{.bytes = bytes, .persistent = persistent};
      for (int32_t step = upto(static_cast<uint32_t>(steps) - 1); step < static_cast<int32_t>(steps); step += 1 + upto(12)) {
        const bool made = persistent < 0 && piece.uses.empty();
        const bool changes = made || random() % 4 == 0;
        piece.uses.push_back({.step = step, .reads = !made && (!changes || random() % 4 != 0), .changes = changes});
      }
      entry.pieces.push_back(std::move(piece));
    };
    for (size_t i = 0; i < persistents; ++i) {
      if (random() % 4 != 0) add(sizes[i], static_cast<int32_t>(i));
    }
    for (int32_t i = upto(20); i >= 0; --i) add(100 * (1 + upto(20)), -1);
  }
  return entries;
}

double seconds_of(const std::vector<StreamEntry>& entries, const std::vector<StreamForecast>& forecasts) {
  double seconds = 0;
  for (size_t e = 0; e < entries.size(); ++e) seconds += entries[e].weight < kRarely ? 0 : entries[e].weight * forecasts[e].seconds;
  return seconds;
}

TEST(StreamBound, NoPlanIsFaster) {
  int64_t plans = 0, waiting = 0, close = 0;
  double gaps = 0;
  for (uint32_t seed = 0; seed < 150; ++seed) {
    std::mt19937 random(seed);
    const size_t persistents = random() % 12;
    const std::vector<StreamEntry> entries = random_entries(random, persistents);
    StreamRates rates{.read = 100.0 + static_cast<double>(random() % 1500), .write = 100.0 + static_cast<double>(random() % 1500)};
    if (random() % 2) {  // computing and transfers get in each other's way
      const auto share = [&](double most) { return most * static_cast<double>(random() % 1000) / 1000; };
      rates.beside = 1 - share(0.9);
      rates.slowed = share(0.95 * rates.beside);
    }
    const int64_t floor = stream_floor(entries);
    double computing = 0, last = kInfinity;
    for (const StreamEntry& entry : entries) {
      for (const double seconds : entry.seconds) computing += entry.weight < kRarely ? 0 : entry.weight * seconds;
    }
    for (const double more : {0.0, 0.1, 0.25, 0.5, 1.0, 100.0}) {
      const auto limit = static_cast<int64_t>((1 + more) * static_cast<double>(floor));
      Streamer streamer(entries, persistents, limit, rates);
      const double bound = streamer.bound();
      EXPECT_GE(bound, computing * (1 - 1e-9)) << "seed " << seed;
      EXPECT_LE(bound, last * 1.02) << "seed " << seed;  // up to what the rounds leave out
      last = bound;
      const double planned = seconds_of(entries, streamer.plans(limit)[0].forecasts);
      EXPECT_GE(planned, bound * (1 - 1e-9)) << "seed " << seed << ", limit " << limit;
      waiting += bound > computing * 1.01;
      close += planned <= bound * 1.01;
      gaps += planned / bound - 1;
      ++plans;
      // Nor one that holds what chance says.
      Holder holder(entries, persistents, limit, rates);
      for (int round = 0; round < 3; ++round) {
        HoldOrder order = holder.greedy();
        std::shuffle(order.begin(), order.end(), random);
        order.resize(order.size() * (1 + random() % 4) / 4);
        holder.choose(order, limit, 0);
        const StreamPlan plan = make_plan(entries, holder, limit, rates, {.queued = random() % 2 ? 1.0 : 0.0});
        EXPECT_GE(seconds_of(entries, plan.forecasts), bound * (1 - 1e-9)) << "seed " << seed << ", limit " << limit;
      }
    }
  }
  std::printf("%ld plans, %ld of them bound by the disk, %ld within 1 %% of the bound, %.2f %% above it in the mean\n", plans, waiting,
              close, 100 * gaps / static_cast<double>(plans));
  EXPECT_GE(waiting * 4, plans);
}

}  // namespace
}  // namespace ort_train
