// Names that users give: patterns of them, and which known names are near one that isn't known.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace ort_train {

// Whether a name is what a pattern says, in which * stands for any text.
bool fits(std::string_view pattern, std::string_view name);

// The number of letters to insert, delete or replace (Levenshtein).
size_t distance(std::string_view a, std::string_view b);

// Up to `count` of the known names, those first that hold what the pattern has between its stars, then those that differ least from it.
std::vector<std::string> nearest_names(std::string_view pattern, const std::vector<std::string>& known, size_t count);

// "a, b or c"
std::string alternatives(const std::vector<std::string_view>& names);

}  // namespace ort_train
