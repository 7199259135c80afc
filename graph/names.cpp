#include "graph/names.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ort_train {

// Greedy: of the last star it is enough to try what comes behind it.
bool fits(std::string_view pattern, std::string_view name) {
  size_t p = 0, n = 0, star = std::string_view::npos, tried = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      tried = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      n = ++tried;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::vector<std::string> nearest_names(std::string_view pattern, const std::vector<std::string>& known, size_t count) {
  constexpr size_t kMost = 10'000, kLongest = 200;  // names, letters: what is compared takes a moment at most
  std::string letters(pattern.substr(0, kLongest));
  std::erase(letters, '*');
  std::vector<std::pair<size_t, const std::string*>> ranked;
  for (const std::string& name : known) {
    if (ranked.size() == kMost) break;
    const bool holds = letters.size() >= 2 && name.find(letters) != std::string::npos;
    ranked.emplace_back(holds ? 0 : distance(letters, std::string_view(name).substr(0, kLongest)), &name);
  }
  std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> names;
  for (const auto& [far, name] : ranked) {
    if (names.size() == count) break;
    names.push_back(*name);
  }
  return names;
}

std::string alternatives(const std::vector<std::string_view>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) text += i + 1 < names.size() ? ", " : " or ";
    text += names[i];
  }
  return text;
}

}  // namespace ort_train
