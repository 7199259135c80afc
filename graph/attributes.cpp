#include "graph/attributes.h"

#include <algorithm>

#include "graph/error.h"

namespace ort_train {
namespace {

template <typename T, typename Entries> T typed(const Entries* found, std::string_view name, T otherwise, const char* what) {
  if (!found) return otherwise;
  if (const T* value = std::get_if<T>(found)) return *value;
  throw error(ErrorCode::unsupported, "attribute '{}' is not {}", name, what);
}

}  // namespace

Attributes::Attributes(std::initializer_list<std::pair<std::string, Attribute>> entries) {
  for (const auto& [name, value] : entries) set(name, value);
}

void Attributes::set(std::string name, Attribute value) {
  const auto at =
      std::lower_bound(entries_.begin(), entries_.end(), name, [](const auto& entry, const std::string& n) { return entry.first < n; });
  if (at != entries_.end() && at->first == name) {
    at->second = std::move(value);
  } else {
    entries_.emplace(at, std::move(name), std::move(value));
  }
}

void Attributes::erase(std::string_view name) {
  std::erase_if(entries_, [&](const auto& entry) { return entry.first == name; });
}

const Attribute* Attributes::find(std::string_view name) const {
  const auto at = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) { return entry.first == name; });
  return at == entries_.end() ? nullptr : &at->second;
}

int64_t Attributes::get(std::string_view name, int64_t otherwise) const { return typed(find(name), name, otherwise, "an integer"); }
int64_t Attributes::between(std::string_view name, int64_t least, int64_t most, int64_t otherwise) const {
  const int64_t value = get(name, otherwise);
  if (value < least || value > most)
    throw error(ErrorCode::unsupported, "its attribute '{}' is {}, but must lie between {} and {}", name, value, least, most);
  return value;
}
float Attributes::get(std::string_view name, float otherwise) const { return typed(find(name), name, otherwise, "a number"); }
std::string Attributes::get(std::string_view name, const char* otherwise) const {
  return typed(find(name), name, std::string(otherwise), "a text");
}
std::vector<int64_t> Attributes::get(std::string_view name, std::vector<int64_t> otherwise) const {
  return typed(find(name), name, std::move(otherwise), "a list of integers");
}

}  // namespace ort_train
