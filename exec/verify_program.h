// What the verifier checks of a Program without replaying it. Private to exec/verify*.cpp.

#pragma once

#include <utility>

#include "exec/program.h"
#include "graph/error.h"

namespace ort_train::verifying {

inline bool overlap(const Place& a, const Place& b) {
  return a.space == b.space && a.bytes > 0 && b.bytes > 0 && a.offset < b.end() && b.offset < a.end();
}

template <typename... Args> [[noreturn]] void fail_program(fmt::format_string<Args...> format, Args&&... args) {
  throw internal_error("the plan is wrong: {}", fmt::format(format, std::forward<Args>(args)...));
}

// Its spaces, queues and what lives across runs; what the executor touches between runs; that each update is made.
void check_program(const Program& program);

// What an entry keeps in a device's memory is looked at in the staging area, too, and nothing that it keeps in the host's lies there.
void check_kept(const Program& program, const Entry& entry, const Graph& graph);

}  // namespace ort_train::verifying
