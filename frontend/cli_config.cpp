#include "frontend/cli_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

#include "frontend/cli_unknown.h"
#include "frontend/cli_values.h"
#include "frontend/ort_train.h"

namespace ort_train {
namespace {

constexpr const char* kOption = "--config";
constexpr std::uintmax_t kMostBytes = 1 << 20;

// Options of values that may be mappings: NAME=VALUE, or two words.
constexpr std::string_view kMappings[] = {"--shape",      "--bind",    "--lr-scheduler-kwargs", "--param-group", "--dropout",
                                          "--batch-norm", "--selects", "--dump-after"};
// Those that commas separate, beside options that may be given several times.
constexpr std::string_view kLists[] = {"--length-buckets", "--loss", "--lr-scheduler-kwargs"};
constexpr std::string_view kZeroOrOne[] = {"--quantize-embeddings", "--bitsandbytes-rounding"};
// Each says what the others of its line say: where the command line has one, a file's others don't count.
const std::vector<std::string_view> kAlternatives[] = {{"--warmup-steps", "--warmup-ratio"},
                                                       {"--max-steps", "--num-train-epochs"},
                                                       {"--bf16", "--fp16", "--bf16-full", "--fp32"},
                                                       {"--recompute", "--gradient-checkpointing"},
                                                       {"--resume", "--resume-from-checkpoint"}};

template <typename Words> bool is_one_of(const Words& words, std::string_view word) {
  return std::find(std::begin(words), std::end(words), word) != std::end(words);
}

std::string place_at(const std::string& path, const YAML::Mark& mark) { return fmt::format("{}: line {}: ", path, mark.line + 1); }

std::string text_of(const std::string& path) {
  std::error_code code;
  const auto status = std::filesystem::status(path, code);
  if (!std::filesystem::exists(status)) throw usage(fmt::format("--config {}: there is no such file", path));
  if (!std::filesystem::is_regular_file(status)) throw usage(fmt::format("--config {}: is no regular file: name one of options", path));
  if (std::filesystem::file_size(path, code) > kMostBytes || code)
    throw usage(fmt::format("--config {}: is larger than 1 MiB, and so no file of options", path));
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw usage(fmt::format("--config {}: can't be read", path));
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < ' ' && c != '\t' && c != '\n' && c != '\r'; };
  if (const auto wrong = std::find_if(text.begin(), text.end(), is_control); wrong != text.end())  // yaml-cpp may take it for the end
    throw usage(fmt::format("{}: line {}: has a control character, and so is no text", path, std::count(text.begin(), wrong, '\n') + 1));
  return text;
}

// What the nodes of a file don't tell: aliases, which make a long text of a short one, and what follows its first document.
class Contents : public YAML::EventHandler {
 public:
  static void check(const std::string& path, const std::string& text) {
    std::istringstream stream(text);
    YAML::Parser parser(stream);
    Contents contents;
    const bool has_more = parser.HandleNextDocument(contents) && parser.HandleNextDocument(contents);
    if (contents.alias_) throw usage(place_at(path, *contents.alias_) + "has an alias, which isn't taken: " + kQuote);
    if (has_more) throw usage(place_at(path, contents.begin_) + "is a second document, or no YAML: a file of options has one");
  }
  static constexpr const char* kQuote = "put a text that begins with * in quotes";

  void OnDocumentStart(const YAML::Mark& mark) override { begin_ = mark; }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t /*of*/) override { alias_ = alias_.value_or(mark); }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& /*mark*/, YAML::anchor_t /*name*/) override {}
  void OnScalar(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*name*/, const std::string& /*text*/) override {}
  void OnSequenceStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*name*/,
                       YAML::EmitterStyle::value /*style*/) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& /*mark*/, const std::string& /*tag*/, YAML::anchor_t /*name*/,
                  YAML::EmitterStyle::value /*style*/) override {}
  void OnMapEnd() override {}

 private:
  YAML::Mark begin_{};  // of the last document
  std::optional<YAML::Mark> alias_{};
};

// What is wrong with a file that can't be parsed.
Error no_yaml(const std::string& path, const YAML::Exception& problem) {
  if (dynamic_cast<const YAML::DeepRecursion*>(&problem) != nullptr)
    return usage(fmt::format("{}: is nested deeper than a file of options is", path));
  const bool is_alias = is_one_of(std::initializer_list<std::string_view>{YAML::ErrorMsg::ALIAS_NOT_FOUND, YAML::ErrorMsg::CHAR_IN_ALIAS,
                                                                          YAML::ErrorMsg::UNKNOWN_ANCHOR},
                                  problem.msg);
  return usage(fmt::format("{}is no YAML: {}{}", problem.mark.is_null() ? path + ": " : place_at(path, problem.mark), problem.msg,
                           is_alias ? fmt::format(" ({})", Contents::kQuote) : ""));
}

bool is_plain(const YAML::Node& node, std::initializer_list<std::string_view> words) {
  return node.IsScalar() && node.Tag() == "?" && is_one_of(words, node.Scalar());
}
bool is_true(const YAML::Node& node) { return is_plain(node, {"true", "True", "TRUE"}); }
bool is_false(const YAML::Node& node) { return is_plain(node, {"false", "False", "FALSE"}); }

// Of a flag of optimizers, such as --lamb-bias-correction, whether it is on where it isn't given; none: it is no flag of theirs.
std::optional<bool> default_of_optimizers(const std::string& flag) {
  for (const OptimizerChoice& choice : optimizers()) {
    for (const OptimizerChoice::Option& option : choice.options) {
      std::string known = "--" + option.name;
      std::replace(known.begin(), known.end(), '_', '-');
      if (option.flag && known == flag) return option.value != 0;
    }
  }
  return std::nullopt;
}

// The arguments that one option of a file stands for.
class OptionReader {
 public:
  OptionReader(const CLI::Option& option, std::string name, std::string place)
      : option_(option), name_(std::move(name)), place_(std::move(place)), canonical_(option.get_name()) {}

  void read(const YAML::Node& value, std::vector<std::string>& arguments) const {
    if (value.IsNull()) return;
    if (option_.get_items_expected_max() == 0) return read_flag(value, arguments);
    const bool is_repeatable = option_.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    std::vector<std::string> items;
    if (value.IsSequence()) {
      if (!is_repeatable && !is_one_of(kLists, canonical_)) throw refuse("takes one value, not a list");
      for (const YAML::Node& item : value) items.push_back(scalar(item));
    } else if (value.IsMap()) {
      if (!is_one_of(kMappings, canonical_)) throw refuse("takes no mapping of names to values");
      refuse_twice(value);
      for (const auto& item : value) append(item.first, item.second, items);
    } else {
      items.push_back(scalar(value));
    }
    if (takes_pairs()) {
      if (items.size() % 2 != 0) throw refuse("takes pairs: a mapping, or a list of twice as many words");
      for (size_t i = 0; i < items.size(); i += 2) arguments.insert(arguments.end(), {name_, items[i], items[i + 1]});
    } else if (is_repeatable) {
      for (const std::string& item : items) arguments.push_back(name_ + "=" + item);
    } else if (!items.empty()) {
      arguments.push_back(fmt::format("{}={}", name_, fmt::join(items, ",")));
    }
  }

 private:
  Error refuse(const std::string& why) const { return usage(fmt::format("{}{} {}", place_, name_, why)); }
  bool takes_pairs() const { return option_.get_type_size() == 2; }

  void read_flag(const YAML::Node& value, std::vector<std::string>& arguments) const {
    if (!is_true(value) && !is_false(value)) throw refuse("is true or false");
    if (is_true(value))
      arguments.push_back(name_);
    else if (default_of_optimizers(canonical_).value_or(true))  // an optimizer refuses those of others
      arguments.push_back(name_ + "=false");
  }
  std::string scalar(const YAML::Node& value) const {
    if (!value.IsScalar()) throw refuse("has a value that is neither a number nor a text");
    if (is_one_of(kZeroOrOne, canonical_) && (is_true(value) || is_false(value))) return is_true(value) ? "1" : "0";
    if (value.Scalar().empty()) throw refuse("has no value: leave it out");
    return value.Scalar();
  }
  void refuse_twice(const YAML::Node& mapping) const {
    std::set<std::string> seen;
    for (const auto& item : mapping) {
      if (item.first.IsScalar() && !seen.insert(item.first.Scalar()).second)
        throw refuse(fmt::format("has '{}' twice", item.first.Scalar()));
    }
  }
  // "name=value"; of a group of options "name:key=value,key=value"; two where the option takes them.
  void append(const YAML::Node& name, const YAML::Node& value, std::vector<std::string>& items) const {
    if (value.IsNull()) return;
    if (takes_pairs()) {
      items.insert(items.end(), {scalar(name), scalar(value)});
    } else if (value.IsMap() && canonical_ == "--param-group") {
      refuse_twice(value);
      std::vector<std::string> keys;
      for (const auto& item : value) keys.push_back(scalar(item.first) + "=" + scalar(item.second));
      items.push_back(fmt::format("{}:{}", scalar(name), fmt::join(keys, ",")));
    } else if (value.IsSequence() && canonical_ == "--bind") {
      std::vector<std::string> numbers;
      for (const YAML::Node& item : value) numbers.push_back(scalar(item));
      items.push_back(fmt::format("{}={}", scalar(name), fmt::join(numbers, ",")));
    } else {
      items.push_back(scalar(name) + "=" + scalar(value));
    }
  }

  const CLI::Option& option_;
  std::string name_, place_;
  std::string canonical_;  // its first name
};

// Whether these arguments have the option, by whichever of its names, or another that says the same.
bool has(const std::vector<std::string>& arguments, const CLI::Option& option) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    const std::string name = argument.substr(0, argument.find('='));
    if (name.starts_with("--") && is_one_of(option.get_lnames(), std::string_view(name).substr(2))) return true;
    return !argument.ends_with("=false") && std::any_of(std::begin(kAlternatives), std::end(kAlternatives), [&](const auto& all) {
      return is_one_of(all, option.get_name()) && is_one_of(all, name);
    });
  });
}

}  // namespace

ConfigFiles::ConfigFiles(const CLI::App& app, std::vector<std::string>& arguments) {
  std::vector<std::string> paths;
  const auto end = std::find(arguments.begin(), arguments.end(), "--");
  for (auto at = arguments.begin(); at != end; ++at) {
    if (at->starts_with(std::string(kOption) + "=")) paths.push_back(at->substr(std::string(kOption).size() + 1));
    if (*at == kOption && at + 1 != end) paths.push_back(*(at + 1));
  }
  std::vector<std::string> given(arguments.begin(), end), all;  // given: on the command line, and in later files
  for (auto path = paths.rbegin(); path != paths.rend(); ++path) {
    std::vector<std::string> added;
    read(app, *path, given, added);
    given.insert(given.end(), added.begin(), added.end());
    all.insert(all.begin(), added.begin(), added.end());
  }
  arguments.insert(arguments.begin(), all.begin(), all.end());
}

void ConfigFiles::read(const CLI::App& app, const std::string& path, const std::vector<std::string>& given,
                       std::vector<std::string>& arguments) {
  try {
    const std::string text = text_of(path);
    Contents::check(path, text);
    const YAML::Node file = YAML::Load(text);
    if (file.IsNull()) return;
    if (!file.IsMap()) throw usage(fmt::format("{}: has no options: it is lines such as `learning_rate: 1e-4`", path));
    std::set<const CLI::Option*> seen;
    bool has_model = false;
    for (const auto& item : file) {
      const YAML::Node &key = item.first, &value = item.second;
      const std::string here = place_at(path, key.Mark());
      if (!key.IsScalar()) throw usage(here + "is no name of an option");
      if (key.Scalar() == "model") {
        if (has_model) throw usage(here + "model is there twice");
        if (!value.IsNull() && (!value.IsScalar() || value.Scalar().empty())) throw usage(here + "model is no path");
        if (model_.empty() && !value.IsNull()) model_ = value.Scalar();
        has_model = true;
        continue;
      }
      std::string name = "--" + key.Scalar();
      std::replace(name.begin(), name.end(), '_', '-');
      if (name == kOption || name == "--help" || name == "--version")
        throw usage(fmt::format("{}{} belongs on the command line", here, name));
      const CLI::Option* const option = app.get_option_no_throw(name);
      if (option == nullptr) throw usage(here + unknown_option(name, app));
      if (!seen.insert(option).second) throw usage(fmt::format("{}{} is there twice", here, name));
      if (has(given, *option)) continue;
      OptionReader(*option, name, here).read(value, arguments);
      places_.push_back({option->get_name(), here});
    }
  } catch (const YAML::Exception& problem) {
    throw no_yaml(path, problem);
  }
}

std::string ConfigFiles::with_place(const std::string& sentence) const {
  for (const Place& of : places_) {
    if (sentence.starts_with(of.option + " ") || sentence.starts_with(of.option + ":")) return of.place + sentence;
  }
  return sentence;
}

}  // namespace ort_train
