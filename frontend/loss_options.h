// The losses of a job, from the text that says them (Options::loss).
//
//   LOSS   = TERM, TERM, …
//   TERM   = [OUTPUT[+OUTPUT…]:] NAME [(PARAMETER=VALUE, …)] [*WEIGHT] [@LABELS[+LENGTHS]]
//   VALUE  = a number, [number, …], or @FILE.npy
//
//   logits:cross_entropy*1.0, boxes:smooth_l1(beta=0.5)*0.5@targets

#pragma once

#include "frontend/ort_train.h"
#include "passes/losses.h"

namespace ort_train {

// What begins the names of a teacher's tensors.
inline const std::string kTeacherPrefix = "teacher/";
// And those of a loss model's.
inline const std::string kLossModelPrefix = "loss/";

// Throws Error(usage) for what is no loss, a parameter that it doesn't have, or a value outside its range.
LossSpec parse_losses(const Options& options);

}  // namespace ort_train
