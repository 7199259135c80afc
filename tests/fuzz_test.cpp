// Replays the inputs of the fuzzers (tests/fuzz/corpus), those that once broke something among them.

#include "tests/fuzz/fuzz.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "test_paths.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

class Fuzz : public ::testing::TestWithParam<fuzz::Target> {};

TEST_P(Fuzz, Corpus) {
  const fs::path folder = fs::path(ORT_TRAIN_SOURCE_DIR) / "tests/fuzz/corpus" / GetParam().name;
  size_t inputs = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    SCOPED_TRACE(entry.path().filename().string());
    const std::string bytes = read_file(entry.path().string());
    EXPECT_NO_THROW(fuzz::run(GetParam(), {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}));
    ++inputs;
  }
  EXPECT_GE(inputs, 3u) << folder;
}

// The beginnings and damaged copies of what is there: little, but with every compiler.
TEST_P(Fuzz, DamagedCorpus) {
  const fs::path folder = fs::path(ORT_TRAIN_SOURCE_DIR) / "tests/fuzz/corpus" / GetParam().name;
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  std::mt19937 random(20250314);
  for (int round = 0; round < 400; ++round) {
    std::string bytes = read_file(files[random() % files.size()].string());
    if (round % 4 == 0) bytes.resize(random() % (bytes.size() + 1));
    for (size_t changes = 1 + random() % 8; changes > 0 && !bytes.empty(); --changes)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    EXPECT_NO_THROW(fuzz::run(GetParam(), {reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()})) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(All, Fuzz, ::testing::ValuesIn(fuzz::targets()), [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace ort_train
