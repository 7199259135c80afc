// make_program: from an instance and a plan of it, in one memory or in several, to the Program: where persistent values live, the
// instructions of each entry (emit.h), staging areas (staging.h), and the bytes of each space.

#pragma once

#include "exec/program.h"
#include "passes/plan/backing.h"
#include "passes/plan/drafts.h"
#include "passes/plan/instance.h"

namespace ort_train {

Program make_program(const JobDraft& job, const Instance& instance, const planning::HierarchyPlan& plan);

}  // namespace ort_train
