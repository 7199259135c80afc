// Job: what a run computes, before anything is planned. In go the options; out come the parts below, each made from the ones before it.
// Nothing about memory is decided here.
//
// The options, the start, the workers and the note outlive it. For one thread at a time.

#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "exec/workers.h"
#include "frontend/adapters.h"
#include "frontend/job_data.h"
#include "frontend/job_graphs.h"
#include "frontend/job_model.h"
#include "frontend/memory.h"
#include "frontend/note.h"
#include "frontend/ort_train.h"
#include "frontend/run_start.h"
#include "frontend/schedule.h"

namespace ort_train {

struct Job {
  // Opens the data and binds the model's inputs; the model is read when it is first needed. `part_bytes`: PassOptions::part_bytes. Throws
  // Error: usage, data, unsupported.
  Job(const Options& options, const RunStart& start, int64_t part_bytes, const KernelTable* kernels, Workers& workers, const Note& note);
  Job(const Job&) = delete;

  // The options that change numbers, as a checkpoint keeps them. Of a job whose graphs were made.
  std::map<std::string, std::string> settings() const;

  PeakSince peak;  // from the import on
  const Options& options;
  const Optimizer optimizer;
  const AdapterSettings adapting;
  JobData data;
  const Schedule schedule;
  JobModel model;
  JobGraphs graphs;
};

}  // namespace ort_train
