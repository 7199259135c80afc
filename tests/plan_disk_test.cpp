// The limits of a device with memory of its own, and of a disk beside it.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "graph/error.h"
#include "tests/chain_model.h"
#include "tests/discrete_device.h"
#include "tests/failures.h"

namespace ort_train {
namespace {

using ::testing::HasSubstr;

struct PlannedDisk : TrainerRuns {
  Options options;   // with a disk
  std::string hash;  // in all memory

  void SetUp() override {
    options = chain_job(folder / "job", /*layers=*/4, /*width=*/64, /*samples=*/48);
    options.batch_size = 16;
    options.max_steps = 3;
    options.threads = 1;
    options.profile = profile;
    hash = train(options).summary.weights_hash;
    options.nvme_path = folder / "nvme";
    std::filesystem::create_directory(options.nvme_path);
  }
};

TEST_F(PlannedDisk, OfADeviceWithMemoryOfItsOwnIsWithinItsLimit) {
  const int64_t arena = Trainer(options).plan().arena_bytes;
  on.make = [](const Program& program, const std::vector<const Graph*>& graphs) {
    return std::make_unique<fixtures::DiscreteDevice>(program, graphs, /*threads=*/1, /*seed=*/1);
  };
  int64_t disk_bytes = 0;
  for (int64_t eighths = 1; eighths <= 8 && disk_bytes == 0; ++eighths) {  // the least of these that does
    on.memories = {.device = arena, .host = arena * eighths / 8};
    try {
      disk_bytes = fixtures::TrainerOn(on, options).plan().disk_bytes;
    } catch (const Error& problem) {
      ASSERT_EQ(problem.code(), ErrorCode::budget) << problem.what();
    }
  }
  ASSERT_GT(disk_bytes, 0);
  options.nvme_budget = disk_bytes - 1;
  EXPECT_THAT(error_of(ErrorCode::budget, [&] { fixtures::TrainerOn trainer(on, options); }),
              HasSubstr(fmt::format("more than `nvme_budget` {}", disk_bytes - 1)));
  options.nvme_budget = disk_bytes;
  EXPECT_EQ(train(options).summary.weights_hash, hash);
}

// The least memory of the device, to a page, with the host's that is said to do: that trains, less is refused with the same number. With
// page tables in the device's memory, which map the host's, it is a page more.
TEST_F(PlannedDisk, TheSmallestBudgetOfADeviceIsExact) {
  constexpr int64_t kPage = 4096, kTaken = 3'000'000;  // kTaken: by the device's context
  on.make = [](const Program& program, const std::vector<const Graph*>& graphs) {
    return std::make_unique<fixtures::DiscreteDevice>(program, graphs, /*threads=*/1, /*seed=*/3);
  };
  on.reserve = kTaken;
  on.page = kPage;
  const auto refusal = [&](int64_t device, int64_t host) {
    on.memories = {.device = device, .host = host};
    return error_of(ErrorCode::budget, [&] { fixtures::TrainerOn trainer(on, options); });
  };
  int64_t without_tables = 0;
  for (const int64_t mapping : {0, 512}) {
    SCOPED_TRACE(mapping);
    on.mapping = mapping;
    const std::string said = refusal(kPage, kPage);
    const auto number_behind = [&](const std::string& words) {
      const size_t at = said.find(words);
      EXPECT_NE(at, said.npos) << said;
      return at == said.npos ? 0 : std::stoll(said.substr(at + words.size()));
    };
    const int64_t device = number_behind("(`budget` ") - kTaken, host = number_behind("(`host_budget` ");
    on.memories = {.device = device, .host = host};
    const auto run = train(options);
    EXPECT_EQ(run.summary.weights_hash, hash);
    EXPECT_EQ(run.plan.minimum_budget, device + kTaken);
    const auto numbers = HasSubstr(fmt::format("(`budget` {})", device + kTaken));
    EXPECT_THAT(refusal(device - kPage, host), numbers);
    EXPECT_THAT(refusal(device - kPage, int64_t{1} << 30), numbers) << "more of the host's memory doesn't help";
    if (mapping == 0)
      without_tables = device;
    else
      EXPECT_EQ(device, without_tables + kPage);
  }
}

}  // namespace
}  // namespace ort_train
