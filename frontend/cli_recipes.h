// Options that go together under one name, `--recipe NAME`: to add one, a row in the table of cli_recipes.cpp.

#pragma once

#include <string>
#include <vector>

namespace ort_train {

// The recipe among the arguments, the last one if there are several, becomes the options that it stands for: each that isn't given
// otherwise. Names of options have dashes. Throws Error(usage) where there is no such recipe.
void follow_recipe(std::vector<std::string>& arguments);

}  // namespace ort_train
