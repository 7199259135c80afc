// Transfers are given the time in which their places are free, by hand.

#include "passes/stream_fit.h"

#include <gtest/gtest.h>

#include "passes/stream_spread.h"

namespace ort_train {
namespace {

constexpr int64_t kBytes = 4096;

struct Piece {
  int64_t offset = 0;
  Visit visit{};
};

// Steps of a second each, transfers of the visits between them, and what else has places; all of one size.
struct Fit {
  StreamEntry asked;
  Entry entry;
  std::vector<Visit> visits;
  StreamRates rates{.read = kBytes / 2.0, .write = kBytes / 2.0};  // two seconds each

  Fit(int32_t steps, const std::vector<Storage>& others, const std::vector<Piece>& pieces) {
    asked.seconds.assign(static_cast<size_t>(steps), 1.0);
    asked.fixed.assign(static_cast<size_t>(steps), 0);
    for (const Piece& piece : pieces) {
      Visit visit = piece.visit;
      visit.piece = static_cast<uint32_t>(visits.size());
      visits.push_back(visit);
      asked.pieces.push_back({.bytes = kBytes, .uses = {{.step = visit.first}}});
    }
    std::vector<int32_t> step_at(static_cast<size_t>(steps)), first(visits.size()), last(visits.size());
    const auto add = [&](Action action) {
      entry.code.push_back({.action = action});
      return static_cast<int32_t>(entry.code.size()) - 1;
    };
    for (int32_t t = 0; t <= steps; ++t) {
      for (const Visit& visit : visits) {
        if (visit.written >= 0 && visit.last + 1 == t) add(Action::copy);
      }
      for (size_t v = 0; v < visits.size(); ++v) {
        if (visits[v].written == t) last[v] = static_cast<int32_t>(entry.code.size()) - 1;  // the next waits
      }
      for (size_t v = 0; v < visits.size(); ++v) {
        if (visits[v].issue == t) first[v] = add(Action::copy);
      }
      if (t == steps) break;
      step_at[static_cast<size_t>(t)] = add(Action::compute);
      for (size_t v = 0; v < visits.size(); ++v) {
        if (visits[v].issue < 0 && visits[v].first == t) first[v] = step_at[static_cast<size_t>(t)];
        if (visits[v].written < 0 && visits[v].last == t) last[v] = step_at[static_cast<size_t>(t)];
      }
    }
    for (Storage storage : others) {
      storage.first = step_at[static_cast<size_t>(storage.first)];
      storage.last = step_at[static_cast<size_t>(storage.last)];
      entry.storages.push_back(storage);
    }
    for (size_t v = 0; v < visits.size(); ++v)
      entry.storages.push_back({.place = {.offset = pieces[v].offset, .bytes = kBytes}, .first = first[v], .last = last[v]});
  }

  // The seconds that it saves.
  double run() {
    StreamForecast forecast = simulate(asked, visits, rates);
    const double before = forecast.seconds;
    const bool any = stretch(entry, asked, rates, visits, forecast);
    EXPECT_EQ(any, forecast.seconds < before);
    EXPECT_DOUBLE_EQ(simulate(asked, visits, rates).seconds, forecast.seconds);
    return before - forecast.seconds;
  }
};

Storage other(int64_t offset, int32_t first, int32_t last) {
  return {.place = {.offset = offset, .bytes = kBytes}, .first = first, .last = last};
}

TEST(StreamFit, AReadBeginsWhenItsPlaceIsFree) {
  Fit free(6, {other(0, 0, 1), other(kBytes, 0, 5), other(0, 5, 5)}, {{.offset = 0, .visit = {.first = 4, .last = 4, .issue = 4}}});
  EXPECT_DOUBLE_EQ(free.run(), 2);
  EXPECT_EQ(free.visits[0].issue, 2);
  Fit half(6, {other(0, 0, 2)}, {{.offset = 0, .visit = {.first = 4, .last = 4, .issue = 4}}});
  EXPECT_DOUBLE_EQ(half.run(), 1);
  EXPECT_EQ(half.visits[0].issue, 3);
  Fit taken(6, {other(kBytes / 2, 0, 3)}, {{.offset = 0, .visit = {.first = 4, .last = 4, .issue = 4}}});
  EXPECT_DOUBLE_EQ(taken.run(), 0);
  EXPECT_EQ(taken.visits[0].issue, 4);
}

TEST(StreamFit, AWriteIsWaitedForWhenItsPlaceIsWanted) {
  Fit free(6, {other(0, 3, 3)}, {{.offset = 0, .visit = {.first = 0, .last = 0, .written = 1}}});
  EXPECT_DOUBLE_EQ(free.run(), 2);
  EXPECT_EQ(free.visits[0].written, 3);
  Fit end(2, {}, {{.offset = 0, .visit = {.first = 0, .last = 0, .written = 1}}});
  EXPECT_DOUBLE_EQ(end.run(), 1);
  EXPECT_EQ(end.visits[0].written, 2);
}

// What the one lets go the other takes, whichever helps more.
TEST(StreamFit, AReadTakesThePlaceOfAWrite) {
  Fit fit(8, {},
          {{.offset = 0, .visit = {.first = 0, .last = 0, .written = 6}}, {.offset = 0, .visit = {.first = 6, .last = 6, .issue = 6}}});
  EXPECT_DOUBLE_EQ(fit.run(), 2) << "the place was the write's until step 6";
  Fit short_write(
      8, {}, {{.offset = 0, .visit = {.first = 0, .last = 0, .written = 2}}, {.offset = 0, .visit = {.first = 6, .last = 6, .issue = 6}}});
  EXPECT_DOUBLE_EQ(short_write.run(), 3);
  EXPECT_EQ(short_write.visits[0].written, short_write.visits[1].issue);
}

// Reads stay in the order in which they are wanted; a piece is read again behind its own write.
TEST(StreamFit, ReadsKeepTheirOrder) {
  Fit fit(8, {other(0, 0, 3)},
          {{.offset = 0, .visit = {.first = 6, .last = 6, .issue = 6}}, {.offset = kBytes, .visit = {.first = 7, .last = 7, .issue = 7}}});
  EXPECT_GT(fit.run(), 0);
  EXPECT_EQ(fit.visits[0].issue, 4);
  EXPECT_GE(fit.visits[1].issue, 4);
  Fit again(
      8, {},
      {{.offset = 0, .visit = {.first = 0, .last = 0, .written = 3}}, {.offset = kBytes, .visit = {.first = 6, .last = 6, .issue = 6}}});
  again.asked.pieces[0].uses.push_back({.step = 6});
  again.visits[1].piece = 0;
  EXPECT_DOUBLE_EQ(again.run(), 2);
  EXPECT_EQ(again.visits[1].issue, 3);
}

}  // namespace
}  // namespace ort_train
