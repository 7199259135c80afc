// What a program with memory to spare does so that its updates run beside products (Queue::background) and nobody waits for them.

#pragma once

#include "passes/plan/drafts.h"

namespace ort_train {

// The order with products of weights' gradients put off until the end, where updates would have nothing left to run beside: that of a table
// that the model both begins and ends with is complete last of all. `background` and `seconds` are by step. `share`: of the threads, that
// do what is in the background. Products that something else than updates reads stay where they are.
//
//   product a, update a, product b, update b, lookup c, update c  ->  lookup c, update c, product a, update a, product b, update b
StepOrder with_products_last(const MemoryModel& model, const StepOrder& order, const std::vector<bool>& background,
                             const std::vector<double>& seconds, double share);

// Puts products last, and keeps what updates read until some more of them have come, so that what is made meanwhile needs not wait for its
// place.
void overlap_updates_of(Draft& draft, int threads);

}  // namespace ort_train
