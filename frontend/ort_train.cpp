// The functions of the public API beside Trainer: bytes from text, what can be chosen by name, the version.

#include "frontend/ort_train.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "frontend/boundary.h"
#include "frontend/schedule.h"
#include "graph/error.h"
#include "passes/losses.h"
#include "passes/optimizer.h"

namespace ort_train {
namespace {

int64_t bytes_in(const std::string& text) {
  double number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string unit(end, text.data() + text.size());
  std::erase(unit, ' ');
  std::transform(unit.begin(), unit.end(), unit.begin(),
                 [](char c) { return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c; });
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  constexpr const char* letters = "KMGT";
  for (int i = 0; i < 4; ++i) {
    if (unit == std::string(1, letters[i]) + "B") factor = std::pow(1000.0, i + 1);
    if (unit == std::string(1, letters[i]) + "IB") factor = std::pow(1024.0, i + 1);
  }
  if (code != std::errc() || factor == 0 || !(number >= 0) || number * factor > 9e18) {
    throw error(ErrorCode::usage, "'{}' is no number of bytes: write 12GB, 12GiB, 300MB or plain bytes", text);
  }
  return static_cast<int64_t>(std::llround(number * factor));
}

}  // namespace

int64_t parse_bytes(const std::string& text) {
  return in_library([&] { return bytes_in(text); });
}

std::vector<std::string> losses() {
  return in_library([] { return loss_names(); });
}

std::vector<OptimizerChoice> optimizers() {
  return in_library([] {
    std::vector<OptimizerChoice> choices;
    for (const OptimizerDef* def : all_optimizers()) {
      OptimizerChoice& choice =
          choices.emplace_back(OptimizerChoice{.name = std::string(def->name), .synonyms = {def->synonyms.begin(), def->synonyms.end()}});
      for (const OptimizerOption& option : def->options) {
        choice.options.push_back(
            {.name = std::string(option.name), .value = option.value, .help = std::string(option.help), .flag = option.flag});
      }
    }
    return choices;
  });
}

std::vector<OptimizerChoice::Option> eight_bit_options() {
  return in_library([] {
    std::vector<OptimizerChoice::Option> options;
    for (const OptimizerOption& option : quantized_options())
      options.push_back({.name = std::string(option.name), .value = option.value, .help = std::string(option.help)});
    return options;
  });
}

std::vector<ScheduleChoice> schedules() {
  return in_library([] {
    std::vector<ScheduleChoice> choices;
    for (const ScheduleDef& def : all_schedules()) {
      ScheduleChoice& choice = choices.emplace_back(ScheduleChoice{.name = std::string(def.name)});
      for (const ScheduleArgument& argument : def.arguments)
        choice.arguments.push_back(
            {.name = std::string(argument.name), .value = default_text(argument), .help = std::string(argument.help)});
    }
    return choices;
  });
}

std::string version() { return ORT_TRAIN_VERSION; }

}  // namespace ort_train
