#include "tests/device_problems.h"

#include <fmt/format.h>

#include <algorithm>

#include "exec/program.h"

namespace ort_train::fixtures {
namespace {

using planning::Piece;
using planning::Run;
using planning::Use;

constexpr int64_t kGB = 1'000'000'000, kChunk = int64_t{64} << 20;

// Parts of `bytes`, each a chunk at most.
std::vector<int64_t> chunks(double bytes) {
  const auto count = std::max<int64_t>(1, static_cast<int64_t>((bytes + kChunk - 1) / kChunk));
  return std::vector<int64_t>(static_cast<size_t>(count), whole_sectors(static_cast<int64_t>(bytes / static_cast<double>(count))));
}

class Maker {
 public:
  explicit Maker(const DeviceCase& of) : of_(of) {}

  planning::Problem make() {
    problem_.memory = of_.device_bytes;
    problem_.immovable = kGB;  // context, libraries, what is small
    problem_.store = {.read = of_.link, .write = of_.link, .duplex = 2};
    problem_.backing = {
        {.name = "host", .bytes = of_.host_bytes, .between_runs = 4 * kChunk, .store = {.read = of_.disk_read, .write = of_.disk_write}}};
    run_ = {.name = "train"};
    const double per_layer = of_.parameters / of_.layers, work = per_layer * static_cast<double>(of_.tokens) / of_.flops;
    const int32_t layers = of_.layers, steps = 3 * layers;
    run_.seconds.assign(static_cast<size_t>(steps), 0);
    run_.backing_seconds.assign(static_cast<size_t>(steps), 0);
    const int64_t boundary = whole_sectors(of_.tokens * of_.width * 2);
    for (int32_t l = 0; l < layers; ++l) {
      const int32_t forward = l, backward = layers + 2 * (layers - 1 - l), update = backward + 1;
      run_.seconds[static_cast<size_t>(forward)] = 2 * work;
      run_.seconds[static_cast<size_t>(backward)] = 6 * work;
      for (const int32_t at : {forward, backward}) run_.blocks.push_back({.bytes = 8 * boundary, .first = at, .last = at});
      if (l + 1 < layers) add_activation(fmt::format("h{}", l), boundary, forward, backward);
      for (const int64_t bytes : chunks(2 * per_layer)) {
        add_weight(fmt::format("w{}", l), bytes, forward, backward, update);
        add_gradient(fmt::format("g{}", l), bytes, backward, update);
      }
      const double state = per_layer * static_cast<double>(of_.state_bytes);
      for (const int64_t bytes : chunks(state)) add_state(fmt::format("s{}", l), bytes, update);
      run_.backing_seconds[static_cast<size_t>(update)] = (2 * state + 4 * per_layer) / of_.host_rate;
    }
    problem_.runs = {std::move(run_)};
    return std::move(problem_);
  }

 private:
  int32_t add_lasting(const std::string& name, int64_t bytes) {
    problem_.lasting.push_back({.name = name, .bytes = bytes, .held = bytes, .may_be_resident = false});
    return static_cast<int32_t>(problem_.lasting.size()) - 1;
  }
  void add_activation(const std::string& name, int64_t bytes, int32_t made, int32_t wanted) {
    run_.pieces.push_back(
        {.name = name,
         .bytes = bytes,
         .uses = {{.step = made, .reads = false, .changes = true}, {.step = made + 1, .reads = true}, {.step = wanted, .reads = true}},
         .value_number = values_++});
    if (run_.pieces.back().uses[1].step == wanted) run_.pieces.back().uses.pop_back();
  }
  void add_weight(const std::string& name, int64_t bytes, int32_t forward, int32_t backward, int32_t update) {
    const int32_t lasting = add_lasting(name, bytes), value = values_++;
    Piece piece{
        .name = name, .bytes = bytes, .lasting = lasting, .uses = {{.step = forward}}, .value_number = value, .written_by_step = update};
    if (backward > forward) piece.uses.push_back({.step = backward});
    run_.pieces.push_back(std::move(piece));
    use_behind(value, bytes, lasting, {.step = update, .reads = false, .changes = true});
  }
  void add_gradient(const std::string& name, int64_t bytes, int32_t made, int32_t update) {
    const int32_t value = values_++;
    run_.pieces.push_back({.name = name,
                           .bytes = bytes,
                           .uses = {{.step = made, .reads = false, .changes = true}},
                           .value_number = value,
                           .used_in_store_later = true,
                           .written_by_step = update});
    use_behind(value, bytes, -1, {.step = update});
  }
  void add_state(const std::string& name, int64_t bytes, int32_t update) {
    use_behind(values_++, bytes, add_lasting(name, bytes), {.step = update, .reads = true, .changes = true});
  }
  void use_behind(int32_t value, int64_t bytes, int32_t lasting, const Use& use) {
    run_.backing_uses.push_back({.value_number = value, .bytes = bytes, .lasting = lasting, .use = use});
  }

  const DeviceCase& of_;
  planning::Problem problem_;
  Run run_;
  int32_t values_ = 0;
};

}  // namespace

const std::vector<DeviceCase>& device_cases() {
  const auto gpu = [](std::string name, double above, double parameters, int layers, int64_t width, int64_t tokens, DeviceCase on) {
    on.name = std::move(name), on.above = above, on.parameters = parameters, on.layers = layers, on.width = width, on.tokens = tokens;
    return on;
  };
  // RTX 3060, RTX 4090, A100 and H200: sustained FLOP/s of bfloat16, link, host's memory, disk.
  const auto small = [](int64_t host) {
    return DeviceCase{.flops = 25e12,
                      .link = 22e9,
                      .host_rate = 40e9,
                      .device_bytes = 12 * kGB,
                      .host_bytes = host * kGB,
                      .disk_read = 7e9,
                      .disk_write = 5e9};
  };
  const auto middle = [](int64_t host) {
    return DeviceCase{.flops = 110e12,
                      .link = 24e9,
                      .host_rate = 40e9,
                      .device_bytes = 24 * kGB,
                      .host_bytes = host * kGB,
                      .disk_read = 7e9,
                      .disk_write = 5e9};
  };
  const auto large = [](int64_t host) {
    return DeviceCase{.flops = 250e12,
                      .link = 24e9,
                      .host_rate = 200e9,
                      .device_bytes = 80 * kGB,
                      .host_bytes = host * kGB,
                      .disk_read = 14e9,
                      .disk_write = 10e9};
  };
  const auto largest = [](int64_t host) {
    return DeviceCase{.flops = 550e12,
                      .link = 52e9,
                      .host_rate = 200e9,
                      .device_bytes = 141 * kGB,
                      .host_bytes = host * kGB,
                      .disk_read = 14e9,
                      .disk_write = 10e9};
  };
  const auto in_8_bits = [](DeviceCase of) {
    of.state_bytes = 6;
    return of;
  };
  static const std::vector<DeviceCase> cases{
      gpu("xl_12GB_host_28GB", 4, 1.56e9, 48, 1600, 8192, small(28)),
      gpu("xl_12GB_host_8GB", 42, 1.56e9, 48, 1600, 8192, small(8)),
      gpu("xl_12GB_host_8GB_8bit", 4, 1.56e9, 48, 1600, 8192, in_8_bits(small(8))),
      gpu("7B_12GB_host_120GB", 5, 6.7e9, 32, 4096, 8192, small(120)),
      gpu("7B_12GB_host_60GB", 30, 6.7e9, 32, 4096, 8192, small(60)),
      gpu("7B_12GB_host_24GB_8bit", 4, 6.7e9, 32, 4096, 8192, in_8_bits(small(24))),
      gpu("7B_24GB_host_60GB", 120, 6.7e9, 32, 4096, 16384, middle(60)),
      gpu("13B_24GB_host_60GB", 22, 13e9, 40, 5120, 16384, middle(60)),
      gpu("13B_24GB_host_60GB_8bit", 30, 13e9, 40, 5120, 16384, in_8_bits(middle(60))),
      gpu("13B_80GB_host_240GB", 6, 13e9, 40, 5120, 32768, large(240)),
      gpu("35B_24GB_host_500GB", 7, 35e9, 48, 7168, 16384, middle(500)),
      gpu("35B_80GB_host_240GB", 75, 35e9, 48, 7168, 32768, large(240)),
      gpu("80B_80GB_host_1TB", 6, 80e9, 80, 8192, 65536, large(1000)),
      gpu("80B_141GB_host_1TB", 7, 80e9, 80, 8192, 65536, largest(1000)),
  };
  return cases;
}

planning::Problem problem_of(const DeviceCase& of) { return Maker(of).make(); }

}  // namespace ort_train::fixtures
