#include "graph/utf8.h"

namespace ort_train {

int decode_utf8(std::string_view text, char32_t& character) {
  if (text.empty()) return 0;
  const unsigned char first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) {
    character = first;
    return 1;
  }
  const int length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4) return -1;
  char32_t value = first & (0x7f >> length);
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= text.size()) return 0;
    const unsigned char next = static_cast<unsigned char>(text[static_cast<size_t>(i)]);
    if ((next & 0xc0) != 0x80) return -1;
    value = (value << 6) | (next & 0x3f);
  }
  constexpr char32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
  if (value < least[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) return -1;
  character = value;
  return length;
}

}  // namespace ort_train
