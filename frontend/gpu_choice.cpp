#include "frontend/gpu_choice.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>

#include "exec/pages.h"
#include "frontend/machine.h"
#include "graph/error.h"

namespace ort_train {
namespace {

// Of the device's memory, for what comes beside the slab: error words, events, steps as graphs (3 MB were measured with GPT-2 124M); and of
// products of 16 bits the kernels of cuBLAS and cuDNN, which these load on first use, measure_compute() included (15 MB in all).
constexpr int64_t kBeside = 8 * kDevicePage, kBesideHalves = 20 * kDevicePage;
// Bytes a second of a disk that there isn't: a plan that uses it is the last resort, and is refused.
constexpr double kNoDisk = 1e3;
// Without a budget, that other processes may take meanwhile.
constexpr int64_t kLeftAlone = int64_t{64} << 20;

}  // namespace

int gpu_number(const std::string& device) {
  if (device == "cpu") return -1;
  constexpr std::string_view kCuda = "cuda";
  if (device == kCuda) return 0;
  int number = -1;
  if (device.starts_with("cuda:")) {
    const char* const end = device.data() + device.size();
    const auto [last, code] = std::from_chars(device.data() + kCuda.size() + 1, end, number);
    if (code == std::errc() && last == end && number >= 0) return number;
  }
  throw error(ErrorCode::usage, "`device` {}: is not known: cpu, cuda, or cuda:1 for the second GPU", device);
}

void refuse_other_arithmetic() {
  constexpr std::string_view kPrefixes[] = {"NVIDIA_TF32_OVERRIDE=", "CUBLAS_EMULAT"};
  for (char** variable = environ; variable != nullptr && *variable != nullptr; ++variable) {
    const std::string_view text = *variable;
    for (const std::string_view prefix : kPrefixes) {
      if (text.starts_with(prefix))
        throw error(ErrorCode::usage, "the environment's {} changes what GPUs compute: unset it", text.substr(0, text.find('=')));
    }
  }
}

DeviceChoice on_gpu(Gpu& gpu, const Options& options, bool halves, int64_t kept, int threads, const Note& note) {
  if (const std::string lacking = halves ? gpu.start_libraries() : std::string(); !lacking.empty())
    note(lacking + "; attention and convolutions run on kernels that compute in float32, which are slower and give other last bits");
  // Before anything is measured: which kernels cuBLAS loads for that depends on the budget, and the smallest budget that is named mustn't.
  const int64_t taken = gpu.taken_bytes();
  // What there is to measure in: of the budget what isn't taken. (Much less than that is refused later.)
  constexpr int64_t kLeastTrial = 2 * kDevicePage;
  const int64_t unused = options.budget > 0 ? options.budget - taken : gpu.free_bytes();
  const int64_t trial = std::max(std::min(unused, gpu.free_bytes() / 2), kLeastTrial);
  const ComputeRates compute = gpu.measure_compute(halves, trial);
  const int64_t reserve = kept > 0 ? std::max(kept, taken) : taken + (halves ? kBesideHalves : kBeside);
  const int64_t left = options.budget > 0 ? options.budget - reserve : gpu.free_bytes() - (reserve - taken) - kLeftAlone;
  const Gpu::LinkRates link = gpu.measure_link(options.host_budget > 0 ? std::min(trial, options.host_budget) : trial);
  const GpuFacts& facts = gpu.facts();
  return {.kernels = &gpu.kernels(),
          .make = [&gpu, threads](const Program& program, const std::vector<const Graph*>&) { return gpu.device(program, threads); },
          .memories = {.device = std::max<int64_t>(left, 0) / kDevicePage * kDevicePage,
                       .host = (options.host_budget > 0 ? options.host_budget : available_memory() / 2) / kPage * kPage,
                       .compute = compute,
                       .link = {.read = link.up,
                                .write = link.down,
                                .duplex = std::clamp(link.both / link.up + link.both / link.down, 1.0, 2.0)},
                       .disk = {.read = kNoDisk, .write = kNoDisk},
                       .host_updates = true},
          .reserve = reserve,
          .page = kDevicePage,
          .mapping = kMappedByTable,
          .name = facts.name,
          .algorithms = halves ? &gpu.algorithms() : nullptr,
          .makes_products = halves ? gpu.makes_products() : std::string()};
}

void note_own_kernels(const AlgorithmTable& algorithms, const Note& note) {
  const Algorithms all = algorithms.all();
  const auto is_own = [](const auto& choice) { return choice.second == kOwnKernels; };
  const auto first = std::find_if(all.begin(), all.end(), is_own);
  if (first == all.end()) return;
  const auto count = std::count_if(first, all.end(), is_own);
  note(fmt::format("cuDNN has no deterministic algorithm for {}{}: slower kernels of ort-train compute it, in float32", first->first,
                   count > 1 ? fmt::format(" (and {} more)", count - 1) : ""));
}

}  // namespace ort_train
