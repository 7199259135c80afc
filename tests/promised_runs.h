// A fixture for tests of one kind of job: the promises that every job keeps.

#pragma once

#include <filesystem>

#include "tests/trainer_runs.h"

namespace ort_train {

struct PromisedRuns : TrainerRuns {
  // Nine steps of batches of 4.
  Options short_job(Options o) const {
    o.batch_size = 4;
    o.learning_rate = 1e-2;
    o.lr_scheduler_type = "constant";
    o.max_steps = 9;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
  // The same bits with as little memory as there may be, with a disk, in one thread, and resumed after a step.
  void expect_promises(Options o, int64_t stop_after) {
    const Run plain = train(o);
    Options small = o;
    small.nvme_path = folder / "disk";
    std::filesystem::create_directories(small.nvme_path);
    small.budget = Trainer(small).plan().minimum_budget;
    small.threads = 1;
    const Run streamed = train(small);
    EXPECT_EQ(streamed.losses, plain.losses);
    EXPECT_EQ(streamed.summary.weights_hash, plain.summary.weights_hash);
    o.output_dir = folder / "two";
    EXPECT_EQ(train_in_two(o, stop_after).weights_hash, plain.summary.weights_hash);
    std::filesystem::remove_all(o.output_dir);
  }
};

}  // namespace ort_train
