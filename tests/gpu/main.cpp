// The tests of this folder or, with --rates alone, the rates of rates.h: one program for both, since each has all of the kernels in it.

#include <gtest/gtest.h>

#include <string_view>

#include "tests/gpu/rates.h"

int main(int argc, char** argv) {
  if (argc == 2 && std::string_view(argv[1]) == "--rates") return ort_train::print_rates();
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
