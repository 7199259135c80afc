// When steps and transfers take place, by hand.

#include "passes/stream_clock.h"

#include <gtest/gtest.h>

namespace ort_train {
namespace {

TEST(StreamClock, TransfersOneAfterTheOtherBesideComputing) {
  StreamClock clock({.read = 10, .write = 20});
  const size_t read = clock.begin(false, 30), write = clock.begin(true, 20);
  EXPECT_DOUBLE_EQ(clock.lead(read), 3);
  EXPECT_DOUBLE_EQ(clock.lead(write), 4);
  clock.compute(2);
  EXPECT_FALSE(clock.is_over(read));
  EXPECT_DOUBLE_EQ(clock.wait(read), 1);
  EXPECT_TRUE(clock.is_over(read));
  clock.compute(5);
  EXPECT_TRUE(clock.is_over(write));
  EXPECT_DOUBLE_EQ(clock.began(write), 3);
  EXPECT_DOUBLE_EQ(clock.ended(write), 4);
  EXPECT_DOUBLE_EQ(clock.wait(write), 0);
  EXPECT_DOUBLE_EQ(clock.now(), 8);
  const size_t later = clock.begin(false, 10);  // the disk was idle until now
  EXPECT_DOUBLE_EQ(clock.wait(later), 1);
  EXPECT_DOUBLE_EQ(clock.began(later), 8);
}

TEST(StreamClock, ComputingAndTransfersTakeFromEachOther) {
  // Beside a read computing goes on at four fifths, the read at half of its rate.
  StreamClock clock({.read = 10, .write = 20, .while_computing = 0.5, .compute_lost = 0.2});
  const size_t read = clock.begin(false, 10);  // a second alone; two beside computing, of which 1.6 s are computed
  EXPECT_DOUBLE_EQ(clock.lead(read), 1.6);
  clock.compute(0.8);
  EXPECT_DOUBLE_EQ(clock.now(), 1);
  EXPECT_DOUBLE_EQ(clock.lead(read), 0.8);
  EXPECT_DOUBLE_EQ(clock.wait(read), 0.5);
  const size_t again = clock.begin(false, 10);
  clock.compute(2);
  EXPECT_DOUBLE_EQ(clock.ended(again), 3.5);
  EXPECT_DOUBLE_EQ(clock.now(), 3.9);
}

TEST(StreamClock, ATransferThatFindsTheDiskIdleTakesItsLatencyBesides) {
  StreamClock clock({.read = 10, .write = 20, .while_computing = 0.5, .compute_lost = 0.2, .read_latency = 0.5, .write_latency = 3});
  const size_t read = clock.begin(false, 10), write = clock.begin(true, 20);
  EXPECT_DOUBLE_EQ(clock.wait(read), 1.5);
  EXPECT_DOUBLE_EQ(clock.wait(write), 1);        // it was waiting in line
  const size_t beside = clock.begin(false, 10);  // half a second in which nothing is slowed, then two, of which 1.6 s are computed
  EXPECT_DOUBLE_EQ(clock.lead(beside), 2.1);
  clock.compute(2.1);
  EXPECT_DOUBLE_EQ(clock.now(), 5);
  EXPECT_TRUE(clock.is_over(beside));
  EXPECT_DOUBLE_EQ(clock.wait(clock.begin(true, 20)), 4);
}

TEST(StreamClock, ReadsAndWritesAtOnceShareWhatTheStoreCanDo) {
  for (const double together : {1.25, 2.0}) {
    StreamClock clock({.read = 10, .write = 20, .duplex = together});
    const size_t read = clock.begin(false, 10), write = clock.begin(true, 40);  // a second and two, each alone
    EXPECT_DOUBLE_EQ(clock.wait(read), 2 / together);
    EXPECT_DOUBLE_EQ(clock.wait(write), 1);  // of two seconds one was left, which it has for itself
    EXPECT_DOUBLE_EQ(clock.now(), 2 / together + 1);
  }
}

TEST(StreamClock, ReadsAndWritesAtOnceTakeFromComputingWhatBothCost) {
  StreamClock clock({.read = 10, .write = 10, .duplex = 1.6, .while_computing = 0.5, .compute_lost = 0.4});
  clock.begin(false, 10);
  clock.begin(true, 10);
  clock.compute(1.5);  // at 0.6 of its rate; the transfers at 0.8 of half of theirs
  EXPECT_DOUBLE_EQ(clock.now(), 2.5);
  EXPECT_DOUBLE_EQ(clock.wait(1), 0);
  clock.begin(false, 10);
  clock.compute(1.5);  // at 0.75
  EXPECT_DOUBLE_EQ(clock.now(), 4.5);
}

}  // namespace
}  // namespace ort_train
