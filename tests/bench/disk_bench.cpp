// The disk tier against fio: reading, writing and both at once, in turns in the same run, of the same file: a drive may have places of
// another speed.
//
//   bench-disk_bench [folder] [rounds] [gigabytes] [uring|threads] [block KiB] [depth]
//
// What isn't said of blocks and depth is as calibration finds it for this disk, as jobs have it.
// Prints one JSON line: GB/s of each by chunk size, and of fio (io_uring, O_DIRECT, its memory pinned where ours is) with the same blocks
// and file size, and as much memory: into caches a drive reads faster, and fio's memory is its depth, which is ours at least. And the ratio
// of each run to the runs of fio before and behind it; and the processor's time for a MiB. "16MB loose": in memory that isn't pinned. All
// are medians. Every chunk carries its place and is checked after it was read back. Run it on a drive that does nothing else.

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "exec/arena.h"
#include "graph/error.h"
#include "offload/calibration.h"
#include "offload/disk_engine.h"
#include "offload/spill_file.h"

namespace ort_train {
namespace {

constexpr int64_t kMega = int64_t{1} << 20;
constexpr int64_t kBuffers = 128 * kMega;  // of memory; each chunk in flight has its own place in it

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) { return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6; };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// One word at the head of each 4 KiB, over a filling that drives can't compress: marking costs next to nothing.
void mark(std::byte* data, int64_t bytes, int64_t offset, uint64_t version) {
  for (int64_t at = 0; at < bytes; at += kDiskAlignment) {
    const uint64_t word = (static_cast<uint64_t>(offset + at) ^ version << 56) * 0x9e3779b97f4a7c15;
    std::memcpy(data + at, &word, sizeof word);
  }
}
bool marked(const std::byte* data, int64_t bytes, int64_t offset, uint64_t version) {
  for (int64_t at = 0; at < bytes; at += kDiskAlignment) {
    const uint64_t word = (static_cast<uint64_t>(offset + at) ^ version << 56) * 0x9e3779b97f4a7c15;
    if (std::memcmp(data + at, &word, sizeof word) != 0) return false;
  }
  return true;
}

class Ours {
 public:
  Ours(const std::string& folder, int64_t bytes, const DiskOptions& options)
      : spill_(folder, bytes),
        buffers_(kBuffers),
        sums_(static_cast<size_t>(bytes / kMega)),
        in_flight_(options.depth * options.block_bytes),
        loose_(options),
        engine_(pinned(options)) {
    uint64_t state = 1;
    for (int64_t i = 0; i < buffers_.bytes(); i += 8) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      std::memcpy(buffers_.data() + i, &state, sizeof state);
    }
    fill();  // what was only reserved reads as zeros, for nothing
  }

  const std::string& path() const { return spill_.file().path(); }
  // With content and checksums for run() to read.
  void fill() { run("write", 16 * kMega, true); }

  // Chunks in memory: as many as keep the drive's depth.
  int64_t ring(int64_t chunk) const { return std::max<int64_t>(2, in_flight_ / chunk + 1); }

  struct Pace {
    double rate = 0;       // GB/s
    double processor = 0;  // us a MiB
  };

  // The whole file; mixed reads one half and writes the other. Checksums of a read are those of the last write, which had them too.
  Pace run(const std::string& mode, int64_t chunk, bool checksums, bool loose = false) {
    DiskEngine& engine = loose ? loose_ : engine_;
    const int64_t chunks = spill_.bytes() / chunk, half = chunks / 2;
    const bool mixed = mode == "mixed";
    if (mode != "read") versions_[1] = ++version_;
    if (mode == "write") versions_[0] = version_;
    std::vector<Turn> turns(static_cast<size_t>(ring(chunk)));
    const double begin = now(), before = processor_seconds();
    for (int64_t n = 0; n < chunks; ++n) {
      const size_t i = static_cast<size_t>(n) % turns.size();
      settle(engine, turns[i], at(i, chunk), chunk);
      const bool write = mode == "write" || (mixed && n % 2 == 1);
      const int64_t place = mixed ? n % 2 * half + n / 2 : n;
      Turn& turn = turns[i] = {.write = write, .offset = place * chunk, .version = versions_[place >= half]};
      if (write) mark(at(i, chunk), chunk, turn.offset, turn.version);
      turn.ticket = engine.submit({.write = write,
                                   .file = &spill_.file(),
                                   .offset = turn.offset,
                                   .data = at(i, chunk),
                                   .bytes = chunk,
                                   .checksum = checksums ? &sums_[static_cast<size_t>(place)] : nullptr});
    }
    for (size_t i = 0; i < turns.size(); ++i) settle(engine, turns[i], at(i, chunk), chunk);
    const auto moved = static_cast<double>(chunks * chunk);
    return {.rate = moved / (now() - begin) / 1e9, .processor = (processor_seconds() - before) * 1e6 / (moved / kMega)};
  }

  std::string note() const { return spill_.note() + engine_.note(); }
  bool pinned() const { return engine_.pinned_bytes() > 0; }
  const char* method() const { return engine_.method() == DiskMethod::uring ? "io_uring" : "threads"; }

 private:
  struct Turn {
    DiskTicket ticket = 0;
    bool write = false;
    int64_t offset = 0;
    uint64_t version = 0;
  };

  std::byte* at(size_t i, int64_t chunk) const { return buffers_.data() + static_cast<int64_t>(i) * chunk; }
  DiskOptions pinned(DiskOptions options) const {
    options.memory = {buffers_.data(), static_cast<size_t>(buffers_.bytes())};
    return options;
  }
  static void settle(DiskEngine& engine, const Turn& turn, const std::byte* data, int64_t chunk) {
    if (turn.ticket == 0) return;
    engine.wait(turn.ticket);
    if (!turn.write) require(marked(data, chunk, turn.offset, turn.version), "the disk returns what was written");
  }

  SpillFile spill_;
  Arena buffers_;
  std::vector<uint64_t> sums_;
  const int64_t in_flight_;                      // bytes, of one direction
  uint64_t version_ = 0, versions_[2] = {0, 0};  // of what was written last, by half of the file
  DiskEngine loose_, engine_;
};

// GB/s, both directions together, in so much memory; 0 where there is no fio.
double fio(const std::string& path, const std::string& mode, int64_t bytes, const DiskOptions& options, int64_t memory, bool pinned) {
  // Ours has its depth each way.
  const int64_t depth = std::max<int64_t>(mode == "mixed" ? 2 * options.depth : options.depth, memory / options.block_bytes);
  // In huge pages at their boundaries, as ours: with small pages it has half of this speed on some drives.
  const std::string command = fmt::format(
      "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 fio --name=peer --filename='{}' --fallocate=none --size={} --rw={} --bs={} --iodepth={} "
      "--ioengine=io_uring --direct=1 --mem=malloc --iomem_align=2m {} --output-format=json 2>/dev/null",
      path, bytes, mode == "mixed" ? "rw" : mode, options.block_bytes, depth, pinned ? "--fixedbufs=1" : "");
  FILE* const pipe = popen(command.c_str(), "r");
  std::string text;
  char piece[4096];
  for (size_t n; pipe != nullptr && (n = fread(piece, 1, sizeof piece, pipe)) > 0;) text.append(piece, n);
  if (pipe == nullptr || pclose(pipe) != 0) return 0;
  const nlohmann::json job = nlohmann::json::parse(text.substr(text.find('{'))).at("jobs").at(0);
  const double moved = job["read"]["io_bytes"].get<double>() + job["write"]["io_bytes"].get<double>();
  return moved / std::max(job["read"]["runtime"].get<double>(), job["write"]["runtime"].get<double>()) / 1e6;
}

double rounded(double value) { return std::round(value * 1000) / 1000; }

int run(const std::string& folder, int rounds, int64_t bytes, const DiskOptions& options) {
  Ours ours(folder, bytes, options);
  const bool peer = fio(ours.path(), "write", bytes, options, 0, ours.pinned()) > 0;
  nlohmann::ordered_json line{{"folder", folder},       {"file_bytes", bytes},     {"block_bytes", options.block_bytes},
                              {"depth", options.depth}, {"method", ours.method()}, {"pinned", ours.pinned()},
                              {"rounds", rounds}};
  if (!ours.note().empty()) line["note"] = ours.note();
  if (!peer) line["fio"] = "missing: apt-get install fio";
  for (const std::string mode : {"write", "read", "mixed"}) {
    if (mode == "read") ours.fill();  // fio has written last
    std::map<std::string, std::vector<double>> rates, ratios, processor;
    for (int round = 0; round < rounds; ++round) {
      const auto pair = [&](const std::string& name, int64_t chunk, bool checksums, bool loose = false) {
        const auto their_rate = [&] {
          return peer ? fio(ours.path(), mode, bytes, options, ours.ring(chunk) * chunk, ours.pinned() && !loose) : 0;
        };
        const double before = their_rate();
        if (mode == "mixed") ours.fill();
        const Ours::Pace mine = ours.run(mode, chunk, checksums, loose);
        const double theirs = 2 / (1 / before + 1 / their_rate());  // of half of the bytes each
        rates[name].push_back(mine.rate);
        processor[name].push_back(mine.processor);
        if (!peer) return;
        if (chunk == kMega) rates["fio"].push_back(theirs);
        ratios[name].push_back(mine.rate / theirs);
      };
      for (const int64_t mega : {1, 4, 16, 64}) pair(std::to_string(mega) + "MB", mega * kMega, false);
      if (ours.pinned()) pair("16MB loose", 16 * kMega, false, true);
      if (mode != "mixed") pair("16MB checked", 16 * kMega, true);
    }
    for (const auto& [name, values] : rates) line[mode]["GB/s"][name] = rounded(median(values));
    for (const auto& [name, values] : ratios) line[mode]["to fio"][name] = rounded(median(values));
    for (const auto& [name, values] : processor) line[mode]["us of the processor a MiB"][name] = rounded(median(values));
  }
  std::printf("%s\n", line.dump().c_str());
  return 0;
}

}  // namespace
}  // namespace ort_train

int main(int argc, char** argv) {
  try {
    const std::string folder = argc > 1 ? argv[1] : ".";
    const int rounds = argc > 2 ? std::max(1, std::atoi(argv[2])) : 3;
    const int64_t bytes = (argc > 3 ? std::max(1, std::atoi(argv[3])) : 4) * int64_t{1024} * ort_train::kMega;
    const auto method = argc > 4 && std::string(argv[4]) == "threads" ? ort_train::DiskMethod::threads : ort_train::DiskMethod::automatic;
    ort_train::DiskOptions options{.method = method};
    if (argc <= 6) {
      const ort_train::DiskRates found = ort_train::measure_disk(folder, {.method = method});
      options.block_bytes = found.block_bytes;
      options.depth = found.depth;
    }
    if (argc > 5) options.block_bytes = std::atoi(argv[5]) * int64_t{1024};
    if (argc > 6) options.depth = std::atoi(argv[6]);
    return ort_train::run(folder, rounds, bytes, options);
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
