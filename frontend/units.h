// Quantities and lists as people read them. Header only: library and program both use it.

#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace ort_train {

// "0.42 ms", "37.8 ms", "54.3 s", "12.5 min".
inline std::string shown_duration(double milliseconds) {
  if (milliseconds < 999.5) return fmt::format("{:.{}f} ms", milliseconds, milliseconds < 9.995 ? 2 : milliseconds < 99.95 ? 1 : 0);
  const double seconds = milliseconds / 1e3;
  if (seconds < 999.5) return fmt::format("{:.{}f} s", seconds, seconds < 9.995 ? 2 : seconds < 99.95 ? 1 : 0);
  return fmt::format("{:.1f} min", seconds / 60);
}

// "0", "4.1 kB", "102 MB", "3.99 GB", "1.20 TB".
inline std::string shown_bytes(double bytes) {
  constexpr const char* kUnits[] = {"kB", "MB", "GB", "TB"};
  if (bytes == 0) return "0";
  double scaled = bytes / 1e3;
  int unit = 0;
  for (; scaled >= 999.5 && unit < 3; ++unit) scaled /= 1e3;
  return fmt::format("{:.{}f} {}", scaled, scaled < 9.995 ? 2 : scaled < 99.95 ? 1 : 0, kUnits[unit]);
}

// "-1,500".
inline std::string grouped(int64_t number) {
  std::string text = std::to_string(number);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3)
    text.insert(static_cast<size_t>(at), ",");
  return text;
}

// "a, b, …": the first `most` names.
inline std::string first_of(const std::vector<std::string>& names, size_t most) {
  const auto end = names.begin() + static_cast<std::ptrdiff_t>(std::min(most, names.size()));
  return fmt::format("{}{}", fmt::join(names.begin(), end, ", "), end == names.end() ? "" : ", …");
}

}  // namespace ort_train
