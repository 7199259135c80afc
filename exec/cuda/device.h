// CudaDevice: an NVIDIA GPU as a Device (exec/device.h). A stream for each queue between the device's memory and the host's, one for what
// it computes, a thread of the host for what the host computes.
//
// One event for each instruction that another queue waits for, made once. What the host computes completes with a ticket in pinned memory,
// which streams wait for (cuStreamWaitValue32): neither side holds up the thread that issues.
//
// An entry in which neither the host computes nor a file is copied runs as one CUDA graph: its first run is issued work by work, the second
// is recorded, and from then on each is one launch.

#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "exec/cuda/gpu.h"
#include "exec/device.h"
#include "exec/workers.h"

namespace ort_train::cuda {

class CudaDevice : public Device {
 public:
  // The GPU outlives it; of the program it keeps what it needs.
  CudaDevice(const Program& program, const Gpu& gpu, int threads);
  ~CudaDevice() override;

  std::unique_ptr<Memory> allocate(SpaceKind kind, int64_t bytes) override;
  const KernelTable* kernels(SpaceKind where) const override;
  void begin(size_t entry) override;
  void issue(const Work& work) override;
  void wait(int32_t number) override;
  void finish() override;
  void time_work() override;
  double seconds(int32_t number) const override;
  void transfer(std::byte* to, const std::byte* from, int64_t bytes) override;
  void fill(std::byte* at, std::byte value, int64_t bytes) override;
  std::string makes_products(DType) const override { return gpu_.makes_products(); }
  const AlgorithmTable* algorithms() const override { return &gpu_.algorithms(); }
  bool loads_late() const override { return true; }
  int64_t used_bytes() const override { return gpu_.used_bytes(); }

 private:
  // How an instruction of an entry is waited for.
  struct Point {
    QueueId queue = 0;
    bool computes_on_host = false;
    int32_t event = -1;  // none: no other queue waits for it
  };

  void use() const;  // from this thread
  void plan_points(const Program& program);
  cudaStream_t stream_of(QueueId queue) const { return streams_.at(queue); }
  const Point& point(int32_t number) const { return points_[entry_].at(static_cast<size_t>(number)); }
  void wait_for(cudaStream_t stream, QueueId queue, int32_t number);
  void check_errors();
  void issue_on_gpu(const Work& work);
  void time(int32_t number, size_t side, cudaStream_t stream);

  // --- entries as graphs
  struct Recording {
    bool is_possible = false;
    bool has_run = false;
    cudaGraphExec_t graph = nullptr;  // null: not recorded yet
  };
  enum class Mode : uint8_t { issuing, recording, replaying };  // of the entry's present run
  void begin_recording();
  cudaGraph_t end_recording();
  void launch_recorded();
  template <typename Body> void on_work(int32_t number, Body body);
  cudaError_t fault() const;

  // --- what the host computes
  struct HostWork {
    Work work;
    std::vector<int32_t> events;  // that are complete before it begins
    uint32_t ticket = 0;
  };
  void compute_on_host();
  void wait_for_ticket(uint32_t ticket);

  const Gpu& gpu_;
  std::vector<bool> is_hosts_;              // by queue: the host computes
  std::vector<std::vector<Point>> points_;  // by entry and instruction
  std::vector<cudaStream_t> streams_;       // by queue; null where it has none
  cudaStream_t side_ = nullptr;             // of transfers while nothing runs
  std::vector<cudaEvent_t> events_;
  std::vector<cudaEvent_t> ends_of_;   // by queue: where a recording of it ends; the first: where it begins
  std::vector<Recording> recordings_;  // by entry
  size_t entry_ = 0;
  Mode mode_ = Mode::issuing;
  bool times_work_ = false;
  std::vector<std::vector<std::array<cudaEvent_t, 2>>> timers_;  // by entry and instruction: before and behind it; null: not recorded yet

  size_t instructions_ = 0;              // of the longest entry
  DataError* errors_ = nullptr;          // on the device, by instruction
  DataError* seen_ = nullptr;            // a copy of them, pinned
  volatile uint32_t* ticket_ = nullptr;  // pinned: of the host's work that was completed last
  CUdeviceptr ticket_address_ = 0;
  CUresult (*wait_value_)(CUstream, CUdeviceptr, cuuint32_t, unsigned int) = nullptr;
  std::vector<uint32_t> tickets_;     // by instruction, of the run
  std::vector<double> host_seconds_;  // by instruction: what the host's work took
  uint32_t issued_ = 0;               // the newest ticket

  std::unique_ptr<Workers> workers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<HostWork> waiting_;
  std::exception_ptr failure_;
  int32_t failed_on_host_ = -1;
  bool ends_ = false;
  std::thread host_;
};

}  // namespace ort_train::cuda
