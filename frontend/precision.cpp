#include "frontend/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

#include "frontend/file.h"
#include "graph/error.h"

namespace ort_train {
namespace {

// A line is the name of an op, or a pattern over names of nodes, and how they run. '#' begins a comment.
std::vector<AutocastRule> read_list(const std::string& path) {
  constexpr int64_t kLimit = int64_t{1} << 20;
  std::vector<AutocastRule> rules;
  std::istringstream lines(read_small_file(path, kLimit));
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    line.resize(std::min(line.find('#'), line.size()));
    const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r'; };
    while (!line.empty() && blank(line.back())) line.pop_back();
    const auto first = std::find_if_not(line.begin(), line.end(), blank);
    if (first == line.end()) continue;
    const size_t before_word = line.find_last_of(" \t");
    const std::string word = line.substr(before_word + 1);
    std::string name(first, before_word == std::string::npos ? first : std::max(first, line.begin() + static_cast<ptrdiff_t>(before_word)));
    while (!name.empty() && blank(name.back())) name.pop_back();
    const bool is_known = word == "low" || word == "float32" || word == "follow";
    if (name.empty() || !is_known)
      throw error(ErrorCode::data, "{}: line {} is '{}'; a line is the name of an op or of a node, and low, float32 or follow", path,
                  number, line);
    rules.push_back({.name = std::move(name),
                     .runs = word == "low"       ? Precision::low
                             : word == "float32" ? Precision::float32
                                                 : Precision::follow});
  }
  if (rules.empty()) throw error(ErrorCode::data, "{}: has no line with the name of an op or of a node", path);
  return rules;
}

}  // namespace

NumberTypes number_types(const Options& options, DType model) {
  if ((options.bf16 || options.bf16_full) + options.fp16 + options.fp32 > 1)
    throw error(ErrorCode::usage, "`bf16`, `fp16` and `fp32` are choices of one type: give one of them");
  if (options.tf32)
    throw error(ErrorCode::usage, "`tf32` is a way of computing that some GPUs have, and that isn't used here: `bf16` is the nearest");
  NumberTypes types{.low = options.fp32 ? DType::float32 : model};
  types.low_weights = options.bf16_full;
  if (options.bf16 || options.bf16_full) types.low = DType::bfloat16;
  if (options.fp16) types.low = DType::float16;
  if (options.autocast_list.empty()) return types;
  if (types.low == DType::float32 && (options.fp32 || model == types.low))
    throw error(ErrorCode::usage, "`autocast_list` {} says which ops run in 16 bits; it goes with `bf16` or `fp16`", options.autocast_list);
  types.autocast = read_list(options.autocast_list);
  return types;
}

std::optional<DType> base_type(const Options& options) {
  constexpr std::pair<std::string_view, DType> kTypes[] = {{"float32", DType::float32},
                                                           {"bfloat16", DType::bfloat16},
                                                           {"float16", DType::float16},
                                                           {"int8", DType::block_int8},
                                                           {"nf4", DType::nf4}};
  if (options.base_dtype.empty() && !options.double_quant) return std::nullopt;
  const auto found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& type) { return type.first == options.base_dtype; });
  if (found == std::end(kTypes) && !options.base_dtype.empty())
    throw error(ErrorCode::usage, "`base_dtype` {}: is not known: float32, bfloat16, float16, int8 or nf4", options.base_dtype);
  if (options.double_quant && options.base_dtype != "nf4")
    throw error(ErrorCode::usage, "`double_quant` stores the scales of nf4 in 8 bits: it goes with `base_dtype` nf4{}",
                options.base_dtype.empty() ? "" : ", not " + options.base_dtype);
  return options.double_quant ? DType::nf4_double : found->second;
}

}  // namespace ort_train
