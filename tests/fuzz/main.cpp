// ort-train-fuzz --target=NAME [libFuzzer's own options] [folders of inputs]
//
// libFuzzer gives the bytes and learns from the coverage that GCC reports (coverage.cpp). The script .ci/fuzz runs all targets in turn.

#include <cstdio>
#include <cstdlib>

#include "tests/fuzz/fuzz.h"

namespace {

const ort_train::fuzz::Target* chosen = nullptr;

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  for (int i = 1; i < *count; ++i) {
    const std::string_view argument = (*arguments)[i];
    constexpr std::string_view option = "--target=";
    if (argument.starts_with(option)) chosen = ort_train::fuzz::find_target(argument.substr(option.size()));
  }
  if (chosen) return 0;
  std::fputs("give one of", stderr);
  for (const auto& target : ort_train::fuzz::targets()) std::fprintf(stderr, " --target=%s", std::string(target.name).c_str());
  std::fputs("\n", stderr);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size > chosen->longest) return -1;
  ort_train::fuzz::run(*chosen, {data, size});
  return 0;
}
