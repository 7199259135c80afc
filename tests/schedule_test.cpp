// Learning-rate schedules against Hugging Face's (tests/golden/schedules.json, written by models/golden_schedules.py); what is refused.

#include "frontend/schedule.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "frontend/ort_train.h"
#include "test_paths.h"
#include "tests/failures.h"

namespace ort_train {
namespace {

using Arguments = std::map<std::string, std::string>;

Schedule begun(const std::string& type, const Arguments& arguments, double warmup, int64_t total, double rate = 3e-4) {
  Schedule schedule = make_schedule(type, arguments);
  schedule.begin(rate, warmup, total);
  return schedule;
}

TEST(Schedule, IsHuggingFaces) {
  std::ifstream file(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/schedules.json");
  std::map<std::string, int> seen;
  for (const auto& c : nlohmann::json::parse(file)) {
    const std::string type = c.at("type");
    ++seen[type];
    const Schedule schedule = begun(type, c.at("kwargs"), c.at("warmup"), c.at("total"), c.at("groups")[0].at("rate"));
    ASSERT_EQ(schedule.follows_loss(), c.contains("losses")) << type;
    for (const auto& group : c.at("groups")) {
      const double highest = group.at("rate");
      const std::vector<double> rates = group.at("rates");
      ASSERT_EQ(static_cast<double>(rates.size()), schedule.total_steps);
      ScheduleState state;
      for (size_t i = 0; i < rates.size(); ++i) {
        if (schedule.follows_loss()) {
          const auto& loss = c.at("losses")[i];
          schedule.def->observe(schedule, state, loss.is_null() ? std::numeric_limits<double>::infinity() : loss.get<double>());
        }
        EXPECT_DOUBLE_EQ(schedule.at(static_cast<int64_t>(i), highest, state), rates[i])
            << type << ' ' << c.at("kwargs") << " step " << i + 1;
      }
    }
  }
  for (const ScheduleDef& def : all_schedules()) EXPECT_GE(seen[std::string(def.name)], 1) << def.name;
  EXPECT_EQ(seen.size(), all_schedules().size());
}

TEST(Schedule, WarmsUpForStepsOrAShareOfAll) {
  EXPECT_EQ(begun("linear", {}, 0.1, 95).warmup_steps, 10);  // TrainingArguments.get_warmup_steps: rounded up
  EXPECT_EQ(begun("linear", {}, 5.9, 95).warmup_steps, 5);
  EXPECT_EQ(begun("linear", {}, 0, 95).warmup_steps, 0);
  const Schedule steps = begun("cosine", {}, 10, 95), share = begun("cosine", {}, 0.1, 95);
  for (int64_t updates = 0; updates < 95; ++updates) EXPECT_EQ(steps.at(updates, 1), share.at(updates, 1));
}

TEST(Schedule, EndsWhereItsArgumentsSay) {
  EXPECT_NEAR(begun("cosine_with_min_lr", {{"min_lr", "5e-5"}}, 3, 1000).at(999, 3e-4), 5e-5, 1e-9);
  EXPECT_EQ(begun("cosine_warmup_with_min_lr", {{"min_lr", "5e-5"}}, 3, 1000).at(999, 3e-4), 5e-5);
  EXPECT_NEAR(begun("polynomial", {{"lr_end", "1e-5"}}, 0, 100).at(100, 3e-4), 1e-5, 1e-18);
  EXPECT_EQ(begun("warmup_stable_decay", {{"num_decay_steps", "10"}, {"min_lr_ratio", "0.25"}}, 0, 100).at(100, 3e-4), 0.25 * 3e-4);
  EXPECT_EQ(begun("linear", {}, 7, 100).at(100, 3e-4), 0);
}

TEST(Schedule, HasSynonyms) {
  std::set<std::string_view> names;
  for (const ScheduleDef& def : all_schedules()) {
    EXPECT_TRUE(names.insert(def.name).second) << def.name;
    EXPECT_EQ(make_schedule(def.name).def, &def);
    for (const std::string_view synonym : def.synonyms) {
      EXPECT_TRUE(names.insert(synonym).second) << synonym;
      EXPECT_EQ(make_schedule(synonym).def, &def);
    }
    EXPECT_NE(def.factor == nullptr, def.observe == nullptr) << def.name;
  }
  EXPECT_EQ(schedules().size(), all_schedules().size());
}

TEST(Schedule, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::string& type, const Arguments& arguments, const std::string& what, double warmup = 0,
                          double rate = 3e-4) {
    const std::string text = error_of(ErrorCode::usage, [&] { begun(type, arguments, warmup, 10, rate); });
    EXPECT_NE(text.find(what), std::string::npos) << text;
  };
  refused("cosin", {}, "`lr_scheduler_type` cosin is not known: linear, cosine, ");
  refused("linear", {{"num_cycles", "2"}}, "`lr_scheduler_kwargs` num_cycles=2: linear has no such argument; it has none");
  refused("cosine", {{"cycles", "2"}}, "cosine has no such argument; it has num_cycles");
  refused("cosine", {{"num_cycles", "two"}}, "num_cycles=two of cosine: is no number");
  refused("cosine", {{"num_cycles", "2 "}}, "is no number");
  refused("cosine", {{"num_cycles", "inf"}}, "is no number");
  refused("cosine", {{"num_cycles", "-1"}}, "is negative");
  refused("cosine_with_restarts", {{"num_cycles", "1.5"}}, "is no whole number of 1 or more");
  refused("cosine_with_min_lr", {}, "needs one of min_lr");
  refused("cosine_with_min_lr", {{"min_lr", "0"}, {"min_lr_rate", "0"}}, "needs only one of min_lr");
  refused("cosine_with_min_lr", {{"min_lr", "0"}}, "give min_lr_rate", 0, 0);
  refused("polynomial", {{"lr_end", "0.1"}}, "ends at lr_end 0.1, which isn't below `learning_rate` 0.0003");
  refused("inverse_sqrt", {{"timescale", "0"}}, "is no whole number of 1 or more");
  refused("warmup_stable_decay", {}, "needs num_decay_steps");
  refused("warmup_stable_decay", {{"num_decay_steps", "8"}}, "3 steps of warm-up and 8 of decay, more than the 10", 3);
  refused("warmup_stable_decay", {{"num_decay_steps", "2"}, {"decay_type", "root"}}, "has to be linear, cosine or 1-sqrt");
  Schedule shortened = make_schedule("warmup_stable_decay", {{"num_decay_steps", "8"}});  // to the steps that are made
  shortened.begin(3e-4, 3, 10, /*over=*/true);
  refused("reduce_lr_on_plateau", {{"factor", "1"}}, "has to lie between 0 and 1");
  refused("reduce_lr_on_plateau", {{"mode", "max"}}, "has to be min");
  refused("linear", {}, "`warmup_steps` -1", -1);
  refused("linear", {}, "`warmup_steps` inf", std::numeric_limits<double>::infinity());
}

}  // namespace
}  // namespace ort_train
