// The one error type. A message names the thing, what is wrong with it and what to do, in one sentence.

#pragma once

#ifdef __CUDACC__
#define FMT_USE_CONSTEXPR 1  // fmt 9 takes nvcc for a compiler without C++14's constexpr, and then doesn't compile as C++20
#endif
#include <fmt/format.h>

#include <string>
#include <utility>

#include "graph/error_type.h"

namespace ort_train {

// throw error(ErrorCode::data, "{}: label {} is outside the {} classes", file, label, classes);
template <typename... Args> Error error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...));
}

// What can't be unless the program itself is wrong.
template <typename... Args> Error internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::internal, "internal error: {}; please report this", fmt::format(format, std::forward<Args>(args)...));
}

// An invariant of our own that guards the user's data: checked in release too.
inline void require(bool holds, const char* what) {
  if (!holds) throw internal_error("{}", what);
}

}  // namespace ort_train
