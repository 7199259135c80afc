// Samples that the program gives itself (SampleSource), instead of files.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "tests/classifier_runs.h"
#include "tests/failures.h"

namespace ort_train {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

struct SampleSources : ClassifierRuns {
  // The arrays of ClassifierRuns::Samples in memory.
  class Memory : public SampleSource {
   public:
    explicit Memory(Samples samples) : samples_(std::move(samples)) {}
    std::vector<SampleField> fields() const override { return {{.name = "labels", .type = "int64"}, {.name = "ids", .type = "int64"}}; }
    int64_t size() const override { return static_cast<int64_t>(samples_.ids.size()); }
    void read(size_t field, int64_t sample, std::span<std::byte> to) override {
      rounding = std::fegetround();
      if (++reads == failing_read) throw std::runtime_error("the server is gone");
      const std::vector<int64_t>& from = field == 0 ? samples_.labels : samples_.ids;
      std::memcpy(to.data(), &from.at(static_cast<size_t>(sample)), to.size());
    }
    std::string content_hash() const override { return hash; }

    std::string hash{};
    int rounding = -1;  // in the last call
    int64_t reads = 0, failing_read = -1;

   private:
    const Samples samples_;
  };

  Options in_memory() const {
    Options o = options();
    o.data.clear();
    o.train_samples = std::make_shared<Memory>(trained());
    o.eval_samples = std::make_shared<Memory>(held_out());
    return o;
  }
};

// A source with other fields than the classifier's data.
struct OddSource : SampleSource {
  std::vector<SampleField> its_fields{{.name = "ids", .type = "int64"}};
  int64_t its_size = 8;
  std::vector<SampleField> fields() const override { return its_fields; }
  int64_t size() const override { return its_size; }
  void read(size_t, int64_t, std::span<std::byte> to) override { std::memset(to.data(), 0, to.size()); }
};

TEST_F(SampleSources, GiveTheBitsOfFiles) {
  Options files = options(), memory = in_memory();
  for (Options* o : {&files, &memory}) {
    o->eval_steps = 4;
    o->shuffle = true;
  }
  const Run expected = train(files), seen = train(memory);
  EXPECT_EQ(seen.losses, expected.losses);
  EXPECT_EQ(seen.summary.weights_hash, expected.summary.weights_hash);
  EXPECT_EQ(seen.summary.eval_loss, expected.summary.eval_loss);
  memory.output_dir = folder / "stopped";
  EXPECT_EQ(train_in_two(memory, 5).weights_hash, expected.summary.weights_hash);
}

TEST_F(SampleSources, CanBeHeldOutOfTheOnesToTrainOn) {
  Options files = options(), memory = in_memory();
  files.data = files.data + "/train.safetensors";
  memory.eval_samples.reset();
  for (Options* o : {&files, &memory}) {
    o->eval_steps = 4;
    o->validation_split = 0.25;
  }
  EXPECT_EQ(train(memory).summary.eval_loss, train(files).summary.eval_loss);
}

TEST_F(SampleSources, AreReadWithTheProgramsRounding) {
  const Options o = in_memory();
  std::fesetround(FE_UPWARD);
  const Run run = train(o);
  const int after = std::fegetround();
  std::fesetround(FE_TONEAREST);
  EXPECT_EQ(after, FE_UPWARD);
  EXPECT_EQ(static_cast<Memory&>(*o.train_samples).rounding, FE_UPWARD);
  EXPECT_EQ(run.summary.weights_hash, train(options()).summary.weights_hash);
}

TEST_F(SampleSources, WhatTheyThrowEndsTheRunSaved) {
  const std::string expected = train(options()).summary.weights_hash;
  Options o = in_memory();
  o.output_dir = folder / "interrupted";
  static_cast<Memory&>(*o.train_samples).failing_read = 2 * kBatch * 6 + 3;  // in the seventh step
  fixtures::TrainerOn trainer(on, o);
  const std::string failure = error_of(ErrorCode::data, [&] { trainer.train(); });
  EXPECT_THAT(failure, HasSubstr("`train_samples`: sample 26 can't be had: the server is gone"));
  EXPECT_THAT(failure, HasSubstr("saved after step 6 of 16"));
  o.resume = true;
  EXPECT_EQ(fixtures::TrainerOn(on, o).train().weights_hash, expected);
}

TEST_F(SampleSources, OthersAreNoticedByAResumedRun) {
  for (const bool is_other : {false, true}) {
    Options o = in_memory();
    o.output_dir = folder / (is_other ? "other" : "same");
    o.max_steps = 4;
    static_cast<Memory&>(*o.train_samples).hash = "first";
    fixtures::TrainerOn(on, o).train();
    static_cast<Memory&>(*o.train_samples).hash = is_other ? "second" : "first";
    o.max_steps = 8;
    o.resume = true;
    std::vector<std::string> notes;
    fixtures::TrainerOn(on, o, {.on_note = [&](const std::string& note) { notes.push_back(note); }}).train();
    const auto told = Contains(HasSubstr("`train_samples`: holds other data"));
    if (is_other)
      EXPECT_THAT(notes, told);
    else
      EXPECT_THAT(notes, Not(told));
  }
}

TEST_F(SampleSources, ThatAreNoSamplesAreRefused) {
  const auto refusal = [&](const auto& spoil) {
    Options o = in_memory();
    auto odd = std::make_shared<OddSource>();
    spoil(*odd);
    o.train_samples = odd;
    return error_of(ErrorCode::data, [&] { fixtures::TrainerOn(on, o); });
  };
  EXPECT_THAT(refusal([](OddSource& s) { s.its_fields[0].type = "int"; }), HasSubstr("'ids' is of type 'int', which is not known"));
  EXPECT_THAT(refusal([](OddSource& s) { s.its_fields.push_back(s.its_fields[0]); }), HasSubstr("has two arrays 'ids'"));
  EXPECT_THAT(refusal([](OddSource& s) { s.its_fields.clear(); }), HasSubstr("`train_samples`: has no arrays"));
  EXPECT_THAT(refusal([](OddSource& s) { s.its_size = 0; }), HasSubstr("has 0 samples"));
  EXPECT_THAT(refusal([](OddSource& s) { s.its_fields[0].shape = {-1}; }), HasSubstr("samples of shape [-1]"));
  EXPECT_THAT(refusal([](OddSource& s) { s.its_fields[0].name = "other"; }), HasSubstr("'ids'"));
  EXPECT_THAT(refusal([](OddSource&) {}), HasSubstr("has no array 'labels'"));
}

TEST_F(SampleSources, GoWithoutData) {
  Options both = in_memory();
  both.data = options().data;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { fixtures::TrainerOn(on, both); }), HasSubstr("`train_samples` are given, too"));
  Options only_held_out = options();
  only_held_out.eval_samples = std::make_shared<Memory>(held_out());
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { fixtures::TrainerOn(on, only_held_out); }), HasSubstr("`eval_samples` go with"));
  Options none = options();
  none.data.clear();
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { fixtures::TrainerOn(on, none); }), HasSubstr("`train_samples` are samples of"));
}

}  // namespace
}  // namespace ort_train
