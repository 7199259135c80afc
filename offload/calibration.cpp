#include "offload/calibration.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <thread>
#include <vector>

#include "exec/arena.h"
#include "exec/program.h"
#include "graph/error.h"
#include "offload/spill_file.h"

namespace ort_train {
namespace {

constexpr int64_t kRequest = int64_t{8} << 20;  // longer than any block tried; less where four buffers of it are too much

constexpr int64_t kSmall = int64_t{64} << 10;  // as the smallest activation that goes to the disk; packs of weights may be half as large

struct Setting {
  int64_t block_bytes;
  int depth;
};
// From modest to large: what costs least memory and queue wins a draw.
constexpr Setting kSettings[] = {{1 << 20, 4}, {1 << 20, 8}, {4 << 20, 4}, {1 << 20, 16}, {4 << 20, 8}, {1 << 20, 32}};

struct Rates {
  double read = 0, write = 0;
  double sum() const { return read + write; }
};

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Goes round the file in requests, each buffer in use by one request at a time.
class Trial {
 public:
  Trial(const SpillFile& spill, const Arena& buffers, int64_t request)
      : spill_(spill), buffers_(buffers), request_(request), sums_(static_cast<size_t>(spill.bytes() / request)) {}

  // Space that was only reserved reads as zeros, which cost nothing.
  void fill(DiskEngine& engine) {
    for (int64_t piece = 0; piece < pieces(); ++piece) submit(engine, true, piece, static_cast<size_t>(piece) % buffer_count());
    engine.drain();
  }

  // With checksums, as jobs do it. Of both as many bytes.
  Rates run(DiskEngine& engine, bool read, bool write, double seconds) {
    const size_t count = buffer_count();
    std::vector<DiskTicket> tickets(count);
    std::vector<int64_t> at(2, 0);
    at[0] = pieces() / 2;  // a read is as far from the writes as can be
    int64_t bytes[2] = {0, 0};
    const double begin = now();
    double end = begin;
    for (size_t i = 0; end - begin < seconds || i < 2 * count; ++i) {
      const size_t buffer = i % count;
      if (tickets[buffer] != 0) engine.wait(tickets[buffer]);
      const bool writes = write && (!read || buffer % 2 == 1);
      const int64_t piece = at[writes]++ % pieces();
      tickets[buffer] = submit(engine, writes, piece, buffer);
      bytes[writes] += request_;
      end = now();
    }
    engine.drain();
    const double took = now() - begin;
    return {.read = static_cast<double>(bytes[0]) / took, .write = static_cast<double>(bytes[1]) / took};
  }

  // Seconds that a small request takes beyond its bytes at this rate, where no other is under way. Writes spoil the checksums.
  double latency(DiskEngine& engine, bool write, double rate, double seconds) {
    const int64_t small = std::min(request_, kSmall);
    std::vector<double> took;
    for (double begin = now(), end = begin; end - begin < seconds;) {
      const double submitted = end;
      const int64_t piece = static_cast<int64_t>(took.size() * 7919) % pieces();  // not in the order of the file
      engine.wait(
          engine.submit({.write = write, .file = &spill_.file(), .offset = piece * request_, .data = buffers_.data(), .bytes = small}));
      end = now();
      took.push_back(end - submitted);
    }
    return std::max(0.0, median(std::move(took)) - static_cast<double>(small) / rate);
  }

 private:
  int64_t pieces() const { return spill_.bytes() / request_; }
  size_t buffer_count() const { return static_cast<size_t>(buffers_.bytes() / request_); }
  DiskTicket submit(DiskEngine& engine, bool write, int64_t piece, size_t buffer) {
    return engine.submit({.write = write,
                          .file = &spill_.file(),
                          .offset = piece * request_,
                          .data = buffers_.data() + static_cast<int64_t>(buffer) * request_,
                          .bytes = request_,
                          .checksum = &sums_[static_cast<size_t>(piece)]});
  }

  const SpillFile& spill_;
  const Arena& buffers_;
  const int64_t request_;
  std::vector<uint64_t> sums_;  // by piece
};

// Bytes that no drive can shorten.
void scramble(const Arena& arena) {
  uint64_t state = 0x9e3779b97f4a7c15;
  for (int64_t i = 0; i < arena.bytes(); i += 8) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    std::memcpy(arena.data() + i, &state, sizeof state);
  }
}

// Runs of `work` a second, until `is_over`.
template <typename IsOver> double pace(const std::function<void()>& work, IsOver&& is_over) {
  const double begin = now();
  int64_t runs = 0;
  for (; runs == 0 || !is_over(); ++runs) work();
  return static_cast<double>(runs) / (now() - begin);
}

struct Shares {
  double duplex = 1, while_computing = 1, compute_lost = 0;
};

// What reads and writes leave each other, and transfers and `work`: by turns alone and beside each other, since a machine's pace changes
// from second to second. Without work, nothing is said of that. Drives that are slower with both at once than with one after the other
// count as those that share one channel, and as slower beside computing.
Shares measure_shares(Trial& trial, DiskEngine& engine, double seconds, const std::function<void()>& work) {
  constexpr int kTurns = 5;
  constexpr double kLeast = 0.02, kMost = 0.95;
  const double turn = seconds / (5 * kTurns);
  std::vector<double> together, beside, slowed;
  for (int i = 0; i < kTurns; ++i) {
    const double read = trial.run(engine, true, false, turn).read, write = trial.run(engine, false, true, turn).write;
    const auto share = [&](const Rates& both) { return both.read / read + both.write / write; };
    together.push_back(share(trial.run(engine, true, true, turn)));
    if (!work) continue;
    const double end = now() + turn;
    const double alone = pace(work, [&] { return now() >= end; });
    Rates both;
    std::exception_ptr problem;
    std::atomic<bool> over = false;
    std::jthread other([&] {  // joined, too, where `work` throws
      try {
        both = trial.run(engine, true, true, turn);
      } catch (...) {
        problem = std::current_exception();
      }
      over = true;
    });
    const double meanwhile = pace(work, [&] { return over.load(); });
    other.join();
    if (problem) std::rethrow_exception(problem);
    beside.push_back(share(both));
    slowed.push_back(1 - meanwhile / alone);
  }
  Shares shares{.duplex = std::clamp(median(together), 1.0, 2.0)};
  if (!work) return shares;
  shares.while_computing = std::clamp(median(beside) / shares.duplex, kLeast, 1.0);
  shares.compute_lost = std::clamp(median(slowed), 0.0, kMost * shares.while_computing);  // more would be worse than one after the other
  return shares;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

DiskRates measure_disk(const std::string& folder, const DiskTrial& trial) {
  constexpr int64_t kBuffers = 4;
  const int64_t request = std::clamp(trial.buffer_bytes / kBuffers / kSector * kSector, kSector, kRequest);
  const int64_t requests = std::max(kBuffers, trial.buffer_bytes / request / 2 * 2);
  const Arena buffers(requests * request);
  scramble(buffers);
  const SpillFile spill(folder, std::max(trial.file_bytes / request, requests) * request);
  Trial run(spill, buffers, request);
  const auto options = [&](const Setting& setting) {
    return DiskOptions{.method = trial.method,
                       .block_bytes = setting.block_bytes,
                       .depth = setting.depth,
                       .memory = {buffers.data(), static_cast<size_t>(buffers.bytes())}};
  };
  {
    DiskEngine engine(options(kSettings[1]));
    run.fill(engine);
  }
  // Half of the time to choose by the sum of both directions, half to measure what was chosen.
  constexpr int kTurns = 2;
  constexpr double kDraw = 0.98;  // of the best
  const double turn = trial.seconds / 2 / kTurns / static_cast<double>(std::size(kSettings));
  std::vector<double> sums(std::size(kSettings));
  for (int i = 0; i < kTurns; ++i) {
    for (size_t k = 0; k < sums.size(); ++k) {
      DiskEngine engine(options(kSettings[k]));
      sums[k] += run.run(engine, true, true, turn).sum();
    }
  }
  const double enough = kDraw * *std::max_element(sums.begin(), sums.end());
  const Setting best = kSettings[std::find_if(sums.begin(), sums.end(), [&](double sum) { return sum >= enough; }) - sums.begin()];
  DiskEngine engine(options(best));
  const double part = trial.seconds / 4;
  DiskRates rates{.read = run.run(engine, true, false, part).read,
                  .write = run.run(engine, false, true, part).write,
                  .block_bytes = best.block_bytes,
                  .depth = best.depth,
                  .buffer_bytes = trial.buffer_bytes};
  const Shares shares = measure_shares(run, engine, trial.seconds, trial.work);
  rates.duplex = shares.duplex, rates.while_computing = shares.while_computing, rates.compute_lost = shares.compute_lost;
  rates.read_latency = run.latency(engine, false, rates.read, trial.seconds / 30);
  rates.write_latency = run.latency(engine, true, rates.write, trial.seconds / 30);
  return rates;
}

}  // namespace ort_train
