#include "frontend/cli_recipes.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "graph/error_type.h"

namespace ort_train {
namespace {

struct Recipe {
  std::string_view name;
  std::vector<std::pair<std::string, std::string>> options;  // a flag's value is empty
};

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> kRecipes{
      // qlora.py (github.com/artidoro/qlora), as its authors fine-tuned with it. Its constant schedule leaves out its warm-up, too.
      {"qlora",
       {{"--lora-rank", "64"},
        {"--lora-alpha", "16"},
        {"--base-dtype", "nf4"},
        {"--double-quant", ""},
        {"--bf16", ""},
        {"--learning-rate", "2e-4"},
        {"--lr-scheduler-type", "constant"},
        {"--max-grad-norm", "0.3"},
        {"--batch-size", "1"},
        {"--gradient-accumulation-steps", "16"}}},
      // Ben Zaken, Goldberg & Ravfogel, arXiv 2106.10199.
      {"bitfit", {{"--freeze", "*"}, {"--train", "*bias"}}}};
  return kRecipes;
}

// What an option has among the arguments, as --name=value or --name value: the last counts. Of a flag whatever stands behind it.
std::optional<std::string> value_of(const std::vector<std::string>& arguments, const std::string& option) {
  std::optional<std::string> value;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(option + "=")) value = arguments[i].substr(option.size() + 1);
    if (arguments[i] == option) value = i + 1 < arguments.size() ? arguments[i + 1] : std::string();
  }
  return value;
}

}  // namespace

void follow_recipe(std::vector<std::string>& arguments) {
  const std::string option = "--recipe";
  const std::optional<std::string> name = value_of(arguments, option);
  if (!name) return;
  const auto recipe = std::find_if(recipes().begin(), recipes().end(), [&](const Recipe& known) { return known.name == *name; });
  if (recipe == recipes().end()) throw Error(ErrorCode::usage, fmt::format("--recipe '{}' is not known: qlora or bitfit", *name));
  const auto has = [&](const std::string& option) { return value_of(arguments, option).value_or("false") != "false"; };
  std::vector<std::string> all;  // the recipe's come first: what is given counts, being the last, and lists go on with it
  for (const auto& [preset, value] : recipe->options) {
    const bool is_said_otherwise = (preset == "--bf16" && (has("--fp32") || has("--fp16") || has("--bf16-full"))) ||
                                   (preset == "--double-quant" && value_of(arguments, "--base-dtype").value_or("nf4") != "nf4") ||
                                   (preset.starts_with("--lora-") && has("--adapter"));
    if (is_said_otherwise) continue;
    all.push_back(preset);
    if (!value.empty()) all.push_back(value);
  }
  all.insert(all.end(), arguments.begin(), arguments.end());
  arguments = std::move(all);
}

}  // namespace ort_train
