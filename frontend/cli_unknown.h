// What to say of an option that there is none of, and of a value that an option doesn't take.

#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace ort_train {

// One sentence: what it is called here, or which of the options of `app` it may have been meant to be. `name` begins with "--".
std::string unknown_option(const std::string& name, const CLI::App& app);

// Whether CLI11 says that the option doesn't take a value: "Could not convert: --max-steps = ten".
bool is_about(const std::string& message, const std::string& option);
// One sentence in place of that. `type`: the option's, as CLI11 calls it: "INT".
std::string unfit_value(const std::string& option, const std::string& value, const std::string& type);
// The same for a whole number that CLI11 takes for another one: that is too large, negative where none may be, or octal by a leading zero.
// Empty: it isn't one.
std::string misread_value(const std::string& option, const std::string& value, const std::string& type);

}  // namespace ort_train
