// call_both: two calls that don't touch each other's data, at once where that is wanted.

#pragma once

#include <future>
#include <utility>

namespace ort_train {

// At once, the second on a thread of its own; otherwise one after the other, so that the second may look at what the first has found.
// Returns when both have; what either throws comes out.
template <typename First, typename Second> void call_both(bool at_once, First&& first, Second&& second) {
  std::future<void> other = std::async(at_once ? std::launch::async : std::launch::deferred, std::forward<Second>(second));
  first();
  other.get();
}

}  // namespace ort_train
