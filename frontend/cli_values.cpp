#include "frontend/cli_values.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <nlohmann/json.hpp>

#include "frontend/cli_unknown.h"

namespace ort_train {
namespace {

// Of a list that commas separate; empty text is one empty item.
std::vector<std::string> items_of(const std::string& text) {
  std::vector<std::string> items;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    items.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return items;
}

}  // namespace

void add_shapes(const std::string& text, std::map<std::string, int64_t>& shapes) {
  for (const std::string& item : items_of(text)) {
    const size_t equals = item.rfind('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == item.size())
      throw usage(fmt::format("--shape '{}' is not name=value", item));
    const std::string name = item.substr(0, equals), size = item.substr(equals + 1);
    if (const std::string wrong = misread_value("--shape " + name, size, "INT"); !wrong.empty()) throw usage(wrong);
    CLI::detail::lexical_cast(size, shapes[name]);
  }
}

std::vector<int64_t> whole_numbers(const char* option, const std::string& text) {
  std::vector<int64_t> numbers;
  for (const std::string& item : items_of(text)) {
    if (item.empty()) throw usage(fmt::format("{} '{}' is no list of numbers separated by commas", option, text));
    if (const std::string wrong = misread_value(option, item, "INT"); !wrong.empty()) throw usage(wrong);
    CLI::detail::lexical_cast(item, numbers.emplace_back());
  }
  return numbers;
}

void add_scheduler_arguments(const std::string& text, std::map<std::string, std::string>& arguments) {
  const auto refuse = [&](const std::string& item, const char* why) {
    return usage(fmt::format("--lr-scheduler-kwargs '{}' {}", item, why));
  };
  if (text.find_first_not_of(' ') != std::string::npos && text[text.find_first_not_of(' ')] == '{') {
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!json.is_object()) throw refuse(text, "is no JSON object");
    for (const auto& [name, value] : json.items()) {
      if (value.is_null()) continue;
      if (!value.is_number() && !value.is_string()) throw refuse(name, "has to be a number or a string");
      arguments[name] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    return;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size());
    const std::string item = text.substr(at, end - at);
    const size_t equals = item.find('=');
    if (equals == std::string::npos || equals == 0) throw refuse(item, "is not name=value");
    std::string name = item.substr(0, equals);
    std::replace(name.begin(), name.end(), '-', '_');
    arguments[name] = item.substr(equals + 1);
    at = end + 1;
  }
}

ParamGroup parse_param_group(const std::string& text) {
  const auto refuse = [&](const std::string& why) { return usage(fmt::format("--param-group '{}': {}", text, why)); };
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0 || text.find('=', colon) == std::string::npos) throw refuse("is not PATTERN:key=value,...");
  ParamGroup group{.pattern = text.substr(0, colon)};
  for (size_t at = colon + 1; at < text.size();) {
    const size_t end = std::min(text.find(',', at), text.size()), equals = std::min(text.find('=', at), end);
    const std::string key = text.substr(at, equals - at), value = equals < end ? text.substr(equals + 1, end - equals - 1) : "";
    double number = 0;
    if (key != "lr" && key != "lr_scale" && key != "weight_decay")
      throw refuse(fmt::format("'{}' is not known: lr, lr_scale or weight_decay", key));
    if (value.empty() || !CLI::detail::lexical_cast(value, number)) throw refuse(fmt::format("{} '{}' is no number", key, value));
    if (key == "lr")
      group.lr = number;
    else if (key == "lr_scale")
      group.lr_scale = number;
    else
      group.weight_decay = number;
    at = end + 1;
  }
  return group;
}

}  // namespace ort_train
