// The GPU that Options::device names, as the device of a trainer.

#pragma once

#include "exec/cuda/gpu.h"
#include "frontend/checkpoint.h"
#include "frontend/device_choice.h"
#include "frontend/ort_train.h"

namespace ort_train {

// The number of the GPU; -1: the processor. Throws Error(usage) for a name that is neither's.
int gpu_number(const std::string& device);

// Throws Error(usage) where a variable of the environment has NVIDIA's libraries compute in other ways: what a run gives would depend on
// it.
void refuse_other_arithmetic();

// A device on that GPU, which outlives it. Its memory is that of Options::budget less what the process takes there besides, the host's that
// of Options::host_budget. halves: numbers of 16 bits are multiplied, for which libraries are loaded. kept: the bytes that the
// process is known to take there besides once all is loaded; 0: as many as it mostly does. Throws Error(device).
DeviceChoice on_gpu(Gpu& gpu, const Options& options, bool halves, int64_t kept, int threads, const Note& note);

// Notes which problems of 16 bits cuDNN has no deterministic algorithm for.
void note_own_kernels(const AlgorithmTable& algorithms, const Note& note);

}  // namespace ort_train
