// Where the library is built for fuzzing (with the sanitizers), GCC calls the first of these functions at the beginning of each basic
// block. libFuzzer reads the section of counters after each input; in other programs nobody does. Comparisons of integers GCC reports to
// libFuzzer itself, those of floating-point numbers, which it does not know, to the others here.

#include <cstddef>
#include <cstdint>

namespace {

constexpr size_t kCounters = size_t{1} << 16;
__attribute__((section("__libfuzzer_extra_counters"))) uint8_t counters[kCounters];

}  // namespace

extern "C" __attribute__((no_sanitize_coverage, no_sanitize("address"), no_sanitize("undefined"))) void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  ++counters[(place ^ (place >> 16)) % kCounters];
}
extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_cmpf(float, float) {}
extern "C" __attribute__((no_sanitize_coverage)) void __sanitizer_cov_trace_cmpd(double, double) {}
