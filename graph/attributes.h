// A node's attributes: a small sorted list of name -> number, text, list or tensor.

#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "graph/types.h"

namespace ort_train {

using Attribute = std::variant<int64_t, float, std::string, std::vector<int64_t>, std::vector<float>, Tensor>;

class Attributes {
 public:
  Attributes() = default;
  Attributes(std::initializer_list<std::pair<std::string, Attribute>> entries);

  void set(std::string name, Attribute value);
  void erase(std::string_view name);
  bool has(std::string_view name) const { return find(name) != nullptr; }

  // The value, or `otherwise` where the attribute is absent; throws Error(unsupported) if it has another type.
  int64_t get(std::string_view name, int64_t otherwise) const;
  int64_t get(std::string_view name, int otherwise) const { return get(name, int64_t{otherwise}); }
  float get(std::string_view name, float otherwise) const;
  std::string get(std::string_view name, const char* otherwise) const;
  std::vector<int64_t> get(std::string_view name, std::vector<int64_t> otherwise) const;
  // The same; throws Error(unsupported), too, where it is outside [least, most].
  int64_t between(std::string_view name, int64_t least, int64_t most, int64_t otherwise) const;
  const Attribute* find(std::string_view name) const;

  const std::vector<std::pair<std::string, Attribute>>& entries() const { return entries_; }
  bool operator==(const Attributes&) const = default;

 private:
  std::vector<std::pair<std::string, Attribute>> entries_;  // sorted by name
};

}  // namespace ort_train
