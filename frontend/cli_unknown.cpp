#include "frontend/cli_unknown.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/names.h"

namespace ort_train {
namespace {

// What options of other trainers, Hugging Face's above all, are called here that have other names; empty for all others.
std::string known_as(const std::string& name) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"--per-device-eval-batch-size", "--batch-size"},
      {"--train-batch-size", "--batch-size"},
      {"--block-size", "--seq-length"},
      {"--max-seq-length", "--seq-length"},
      {"--max-length", "--seq-length"},
      {"--target-modules", "--lora-target"},
      {"--feedforward-modules", "--ia3-feedforward"},
      {"--train-file", "--data"},
      {"--dataset-name", "--data"},
      {"--validation-file", "--data FOLDER with train and valid"},
      {"--model-name-or-path", "the first argument, MODEL.onnx"},
      {"--do-train", "what happens without it"},
      {"--do-eval", "--eval-strategy or --eval-steps"},
      {"--evaluation-strategy", "--eval-strategy"},
      {"--greater-is-better", "the held-out loss, without an option"},
      {"--use-cpu", "what happens without it"},
      {"--lr", "--learning-rate"},
      {"--precision", "--bf16 or --fp16"},
      {"--mixed-precision", "--bf16 or --fp16"},
      {"--memory", "--budget"},
      {"--gpu", "--device cuda"},
  };
  for (const auto& [theirs, ours] : kNames) {
    if (theirs == name) return std::string(ours);
  }
  return "";
}

std::vector<std::string> words_of(std::string_view option) {
  std::vector<std::string> words(1);
  option.remove_prefix(std::min(option.find_first_not_of('-'), option.size()));
  for (const char c : option) c == '-' ? words.emplace_back() : words.back() += c;
  return words;
}

// Whether each word of `name` is one of `known`, or begins like it: "--grad-accum" and "--gradient-accumulation-steps".
bool has_words(std::string_view known, std::string_view name) {
  const std::vector<std::string> there = words_of(known), wanted = words_of(name);
  return std::all_of(wanted.begin(), wanted.end(), [&](const std::string& word) {
    return std::any_of(there.begin(), there.end(), [&](const std::string& other) {
      constexpr size_t kLeast = 3;  // letters that say something
      return word == other || (std::min(word.size(), other.size()) >= kLeast && (word.starts_with(other) || other.starts_with(word)));
    });
  });
}

// What an unknown option may have been meant to be: the shortest that has its words, else the nearest, of which two thirds are right.
std::string nearest(const CLI::App& app, const std::string& name) {
  std::string best;
  bool best_has_words = false;
  size_t least = name.size() / 3 + 1;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& word : option->get_lnames()) {
      const std::string known = "--" + word;
      const bool has = has_words(known, name);
      const size_t far = has ? known.size() : distance(name, known);
      if (has > best_has_words || (has == best_has_words && far < least)) {
        best_has_words = has;
        least = far;
        best = known;
      }
    }
  }
  return best;
}

}  // namespace

std::string unknown_option(const std::string& name, const CLI::App& app) {
  if (const std::string known = known_as(name); !known.empty()) return fmt::format("unknown option {}: here it is {}", name, known);
  const std::string near = nearest(app, name);
  return near.empty() ? fmt::format("unknown option {}: --help shows all", name)
                      : fmt::format("unknown option {}; did you mean {}?", name, near);
}

bool is_about(const std::string& message, const std::string& option) {
  return message.starts_with(fmt::format("Could not convert: {} = ", option));
}

std::string unfit_value(const std::string& option, const std::string& value, const std::string& type) {
  const char* const wanted = type.starts_with("INT")    ? "a whole number, or is too large for one"
                             : type.starts_with("UINT") ? "a whole number from 0 on, or is too large for one"
                                                        : "a number";
  return fmt::format("{} {}: is not {}", option, value, wanted);
}

std::string misread_value(const std::string& option, const std::string& value, const std::string& type) {
  const auto fits = [&](auto number) {
    const char* const end = value.data() + value.size();
    const auto [stop, code] = std::from_chars(value.data() + (value.starts_with('+') ? 1 : 0), end, number);
    return code == std::errc() && stop == end;
  };
  const bool is_natural = type.starts_with("UINT");
  if (!is_natural && !type.starts_with("INT")) return {};
  if (!(is_natural ? fits(uint64_t{}) : fits(int64_t{}))) return unfit_value(option, value, type);
  const size_t digits = value.find_first_not_of("+-");
  if (value[digits] == '0' && digits + 1 < value.size()) return fmt::format("{} {}: write it without a zero in front", option, value);
  return {};
}

}  // namespace ort_train
