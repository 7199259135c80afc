// Errors that tests expect.

#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "graph/error.h"

namespace ort_train {

// The code of the Error that `body` throws; fails where it throws none.
inline ErrorCode code_of(const std::function<void()>& body, std::string* message = nullptr) {
  try {
    body();
  } catch (const Error& failure) {
    if (message != nullptr) *message = failure.what();
    return failure.code();
  }
  ADD_FAILURE() << "no error";
  return ErrorCode::internal;
}

// The sentence of the Error of this code that `body` throws; fails where it throws none.
inline std::string error_of(ErrorCode code, const std::function<void()>& body) {
  std::string message;
  EXPECT_EQ(static_cast<int>(code_of(body, &message)), static_cast<int>(code)) << message;
  return message;
}

// The sentence of the Error(io) that `body` throws; "no error" where it throws none.
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& failure) {
    EXPECT_EQ(failure.code(), ErrorCode::io) << failure.what();
    return failure.what();
  }
  return "no error";
}

}  // namespace ort_train
