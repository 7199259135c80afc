// UTF-8, character by character.

#pragma once

#include <string_view>

namespace ort_train {

// Takes one character off the front of UTF-8 text. 0 < result <= 4 bytes, 0 where the text ends inside it, -1 where it is not UTF-8
// (overlong forms, surrogates and numbers above 10FFFF included).
int decode_utf8(std::string_view text, char32_t& character);

}  // namespace ort_train
