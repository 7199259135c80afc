#include "frontend/bound_value.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "frontend/npz.h"
#include "graph/error.h"

namespace ort_train {
namespace {

class Bound {
 public:
  Bound(const std::string& input, const std::string& text, DType dtype, const std::vector<int64_t>& dims)
      : input_(input), text_(text), dtype_(dtype), dims_(dims) {}

  Tensor value() const { return text_.starts_with('@') ? from_file(text_.substr(1)) : from_numbers(); }

 private:
  template <typename... T> Error wrong(fmt::format_string<T...> format, T&&... arguments) const {
    return error(ErrorCode::usage, "`bind` {}={}: {}", input_, text_, fmt::format(format, std::forward<T>(arguments)...));
  }

  Tensor from_file(const std::string& path) const {
    const File file = File::open(path);
    const NpyArray array = read_npy(file);
    const bool fits = array.shape.size() == dims_.size() && std::equal(dims_.begin(), dims_.end(), array.shape.begin(),
                                                                       [](int64_t dim, int64_t size) { return dim < 0 || dim == size; });
    if (!fits) throw wrong("the file's array is {}, the input {}", to_string(array.shape), wanted());
    if (!converts(array.element, dtype_)) throw wrong("the file holds {}, the input is {}", to_string(array.element), to_string(dtype_));
    Tensor tensor(dtype_, array.shape);
    std::vector<std::byte> bytes(static_cast<size_t>(array.bytes));
    file.read(array.offset, bytes);
    if (const int64_t bad = convert(array.element, bytes, dtype_, tensor.bytes); bad >= 0)
      throw error(ErrorCode::data, "{}: element {} is no {}, which input '{}' is", path, bad, to_string(dtype_), input_);
    return tensor;
  }

  std::vector<double> numbers() const {
    std::vector<double> result;
    for (size_t at = 0; at <= text_.size();) {
      const size_t end = std::min(text_.find(',', at), text_.size());
      const std::string item = text_.substr(at, end - at);
      double number = item == "true" ? 1 : 0;
      const auto [stop, code] = std::from_chars(item.data(), item.data() + item.size(), number);
      if (item != "true" && item != "false" && (code != std::errc() || stop != item.data() + item.size()))
        throw wrong("'{}' is no number; a value is a number, numbers separated by commas, or @FILE.npy", item);
      const bool whole = is_floating(dtype_) || (std::trunc(number) == number && std::abs(number) <= 0x1p53);
      if (!whole || (dtype_ == DType::boolean && number != 0 && number != 1))
        throw wrong("{} is no {}, which the input is", item, to_string(dtype_));
      result.push_back(number);
      at = end + 1;
    }
    return result;
  }

  Tensor from_numbers() const {
    const std::vector<double> given = numbers();
    Shape shape = dims_;
    if (given.size() > 1 && shape.size() == 1 && shape[0] < 0) shape[0] = static_cast<int64_t>(given.size());
    if (const auto open = std::find_if(shape.begin(), shape.end(), [](int64_t dim) { return dim < 0; }); open != shape.end())
      throw wrong("dimension {} of the input is open: `shapes` {}.{}=SIZE binds it", open - shape.begin(), input_, open - shape.begin());
    const auto count = static_cast<size_t>(element_count(shape));
    if (given.size() > 1 && given.size() != count) throw wrong("these are {} numbers, the input {}", given.size(), wanted());
    Tensor tensor(DType::float64, shape);
    const auto elements = tensor.data<double>();
    for (size_t i = 0; i < count; ++i) elements[i] = given[given.size() == 1 ? 0 : i];
    if (dtype_ == DType::float64) return tensor;
    Tensor result(dtype_, shape);
    const auto no_room = [&] { return wrong("the input is {}, which has no room for it", to_string(dtype_)); };
    if (is_floating(dtype_)) {
      const auto is_beyond = [](double x) { return std::isfinite(x) && std::isinf(static_cast<float>(x)); };
      if (std::any_of(given.begin(), given.end(), is_beyond)) throw no_room();
      if (convert(Element::float64, tensor.bytes, dtype_, result.bytes) >= 0) throw no_room();
      return result;
    }
    Tensor integers(DType::int64, shape);
    std::transform(elements.begin(), elements.end(), integers.data<int64_t>().begin(), [](double x) { return static_cast<int64_t>(x); });
    if (convert(Element::int64, integers.bytes, dtype_, result.bytes) >= 0) throw no_room();
    return result;
  }

  std::string wanted() const {
    std::vector<std::string> sizes;
    for (const int64_t dim : dims_) sizes.push_back(dim < 0 ? "?" : std::to_string(dim));
    return fmt::format("is [{}]", fmt::join(sizes, ", "));
  }

  const std::string &input_, &text_;
  DType dtype_;
  const std::vector<int64_t>& dims_;
};

}  // namespace

Tensor bound_value(const std::string& input, const std::string& text, DType dtype, const std::vector<int64_t>& dims) {
  return Bound(input, text, dtype, dims).value();
}

void check_bound_names(const std::map<std::string, std::string>& bind, const std::vector<std::string>& inputs) {
  for (const auto& [name, text] : bind) {
    if (std::find(inputs.begin(), inputs.end(), name) == inputs.end())
      throw error(ErrorCode::usage, "`bind` {}: the model has no such input; it has '{}'", name, fmt::join(inputs, "', '"));
  }
}

}  // namespace ort_train
