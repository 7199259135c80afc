// Values of options that are more than one word or number.

#pragma once

#include <charconv>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "frontend/ort_train.h"

namespace ort_train {

inline Error usage(const std::string& text) { return Error(ErrorCode::usage, text); }

// "NAME=NUMBER"; false where it is none.
template <typename Number> bool split_number(const std::string& item, std::string& name, Number& number) {
  const size_t equals = item.rfind('=');
  if (equals == std::string::npos || equals == 0 || equals + 1 == item.size()) return false;
  name = item.substr(0, equals);
  const char* const end = item.data() + item.size();
  const auto [stop, code] = std::from_chars(item.data() + equals + 1, end, number);
  return code == std::errc() && stop == end;
}

// These throw Error(usage) for what isn't as they say.

// "batch=4,sequence=512"
void add_shapes(const std::string& text, std::map<std::string, int64_t>& shapes);
// "64,128,256"
std::vector<int64_t> whole_numbers(const char* option, const std::string& text);
// "num_cycles=2,power=1", or {"num_cycles": 2}; of JSON, null is as if it weren't given.
void add_scheduler_arguments(const std::string& text, std::map<std::string, std::string>& arguments);
// "h.*.bias:weight_decay=0,lr=1e-4"
ParamGroup parse_param_group(const std::string& text);

}  // namespace ort_train
