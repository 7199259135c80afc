// What to say of an option that there is none of.

#pragma once

#include <string>
#include <vector>

namespace ort_train {

// One sentence: what it is called here, or which of `options` it may have been meant to be. All begin with "--".
std::string unknown_option(const std::string& name, const std::vector<std::string>& options);

}  // namespace ort_train
