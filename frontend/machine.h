// What the machine, and the groups that it runs this process in (cgroups, as containers and job schedulers use them), leave to it.
//
// `root` is where /proc and /sys are: tests give a folder of their own.

#pragma once

#include <cstdint>
#include <string>

namespace ort_train {

// Bytes that this process may still take: the machine's available memory, or what its memory cgroups leave, if that is less.
int64_t available_memory(const std::string& root = "");

// Bytes that it could take at most, whatever other processes give back: the machine's memory, or what its memory cgroups leave, if that is
// less. Beyond that the kernel ends a process rather than refuse.
int64_t obtainable_memory(const std::string& root = "");

// Threads that can run at once: the processors that the calling thread may run on, or as many as the CPU quota of its cgroups pays for
// (rounded up), if that is less. At least 1.
int available_processors(const std::string& root = "");

// The budget within which a job that no budget was given for has to be planned: 0 (none) where `wanted` bytes are there, else what there
// is. `taken` of them the process holds already. A share of what is available is left alone: the figure is the kernel's estimate.
int64_t budget_by_machine(int64_t wanted, int64_t taken, int64_t available);

}  // namespace ort_train
