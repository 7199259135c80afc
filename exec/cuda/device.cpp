#include "exec/cuda/device.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "exec/cuda/kernels.h"
#include "exec/cuda/memory.h"
#include "exec/cuda/status.h"
#include "exec/float_environment.h"
#include "graph/error.h"

namespace ort_train::cuda {

CudaDevice::CudaDevice(const Program& program, const Gpu& gpu, int threads)
    : Device(threads, /*is_synchronous=*/false), gpu_(gpu), streams_(program.queues.size()) {
  use();
  const auto kind = [&](SpaceId space) { return program.spaces[space].kind; };
  for (const Queue& queue : program.queues) is_hosts_.push_back(queue.computes() && kind(queue.from) == SpaceKind::host);
  plan_points(program);
  for (size_t q = 0; q < program.queues.size(); ++q) {
    const Queue& queue = program.queues[q];
    if (kind(queue.from) == SpaceKind::file || kind(queue.to) == SpaceKind::file || is_hosts_[q]) continue;
    check(cudaStreamCreateWithFlags(&streams_[q], cudaStreamNonBlocking), "no stream");
  }
  check(cudaStreamCreateWithFlags(&side_, cudaStreamNonBlocking), "no stream");
  const size_t bytes = std::max<size_t>(instructions_, 1) * sizeof(DataError);
  check(cudaMalloc(&errors_, bytes), "no memory for error words");
  check(cudaMemsetAsync(errors_, 0, bytes, side_), "memory can't be cleared");
  check(cudaStreamSynchronize(side_), "memory can't be cleared");
  check(cudaMallocHost(&seen_, bytes), "no pinned memory");
  void* ticket = nullptr;
  check(cudaHostAlloc(&ticket, sizeof(uint32_t), cudaHostAllocMapped | cudaHostAllocPortable), "no pinned memory");
  ticket_ = static_cast<volatile uint32_t*>(ticket);
  *ticket_ = 0;
  void* mapped = nullptr;
  check(cudaHostGetDevicePointer(&mapped, ticket, 0), "pinned memory has no address on it");
  ticket_address_ = reinterpret_cast<CUdeviceptr>(mapped);
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion("cuStreamWaitValue32", &found, 12000, cudaEnableDefault, &result), "its driver is too old");
  require(found != nullptr, "the driver lacks cuStreamWaitValue32");
  wait_value_ = reinterpret_cast<decltype(wait_value_)>(found);
  tickets_.resize(instructions_);
  host_seconds_.resize(instructions_);
  const bool computes = std::any_of(points_.begin(), points_.end(), [](const std::vector<Point>& of) {
    return std::any_of(of.begin(), of.end(), [](const Point& point) { return point.computes_on_host; });
  });
  if (computes) {
    workers_ = std::make_unique<Workers>(threads);
    host_ = std::thread([this] { compute_on_host(); });
  }
}

CudaDevice::~CudaDevice() {
  (void)cudaSetDevice(gpu_.facts().number);
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  if (host_.joinable()) host_.join();
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) (void)cudaStreamSynchronize(stream);
  }
  if (side_ != nullptr) (void)cudaStreamSynchronize(side_);
  for (const Recording& recording : recordings_) {
    if (recording.graph != nullptr) (void)cudaGraphExecDestroy(recording.graph);
  }
  for (cudaEvent_t event : events_) (void)cudaEventDestroy(event);
  for (cudaEvent_t event : ends_of_) (void)cudaEventDestroy(event);
  for (const auto& of_entry : timers_) {
    for (const auto& pair : of_entry) {
      for (cudaEvent_t event : pair) {
        if (event != nullptr) (void)cudaEventDestroy(event);
      }
    }
  }
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr) (void)cudaStreamDestroy(stream);
  }
  if (side_ != nullptr) (void)cudaStreamDestroy(side_);
  (void)cudaFree(errors_);
  (void)cudaFreeHost(seen_);
  (void)cudaFreeHost(const_cast<uint32_t*>(ticket_));
}

void CudaDevice::use() const { check(cudaSetDevice(gpu_.facts().number), "it can't be used"); }

void CudaDevice::plan_points(const Program& program) {
  size_t most = 0;
  for (const Entry& entry : program.entries) {
    std::vector<Point>& points = points_.emplace_back();
    for (const Instruction& instruction : entry.code)
      points.push_back({.queue = instruction.queue, .computes_on_host = is_hosts_[instruction.queue]});
    size_t events = 0;
    for (const Instruction& instruction : entry.code) {
      for (const int32_t earlier : instruction.waits) {
        Point& of = points[static_cast<size_t>(earlier)];
        const bool other = of.queue != instruction.queue && !uses_file(entry.code[static_cast<size_t>(earlier)]);
        if (other && !of.computes_on_host && of.event < 0) of.event = static_cast<int32_t>(events++);
      }
    }
    recordings_.push_back({.is_possible = std::none_of(entry.code.begin(), entry.code.end(), [&](const Instruction& instruction) {
                             return uses_file(instruction) || is_hosts_[instruction.queue];
                           })});
    most = std::max(most, events);
    instructions_ = std::max(instructions_, entry.code.size());
  }
  events_.resize(most);
  ends_of_.resize(program.queues.size());
  for (std::vector<cudaEvent_t>* const events : {&events_, &ends_of_}) {
    for (cudaEvent_t& event : *events) check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync), "no event");
  }
}

std::unique_ptr<Memory> CudaDevice::allocate(SpaceKind kind, int64_t bytes) {
  use();
  require(kind != SpaceKind::file, "no device gives a file");
  if (kind == SpaceKind::host) return std::make_unique<PinnedMemory>(bytes);
  return std::make_unique<DeviceMemory>(bytes, gpu_.memory_of_devices());
}

const KernelTable* CudaDevice::kernels(SpaceKind where) const {
  return where == SpaceKind::device ? &cuda_kernels() : where == SpaceKind::host ? &cpu_kernels() : nullptr;
}

template <typename Body> void CudaDevice::on_work(int32_t number, Body body) {
  try {
    body();
  } catch (...) {
    failed_ = -1;
    check(fault(), "a step failed on it");
    failed_ = number;
    throw;
  }
}

// Once a kernel or the GPU itself has failed, whatever is asked says so, of whichever work it was; else cudaSuccess.
cudaError_t CudaDevice::fault() const {
  if (mode_ == Mode::recording) return cudaSuccess;  // nothing has run
  (void)cudaGetLastError();
  const cudaError_t status = cudaStreamQuery(side_);
  (void)cudaGetLastError();  // "not ready" mustn't be taken for the next kernel's error; a fault stays
  return status == cudaErrorNotReady ? cudaSuccess : status;
}

void CudaDevice::begin(size_t entry) {
  entry_ = entry;
  failed_ = -1;
  use();  // in the thread that trains
  Recording& recording = recordings_[entry];
  mode_ = recording.graph != nullptr ? Mode::replaying : recording.is_possible && recording.has_run ? Mode::recording : Mode::issuing;
  if (mode_ == Mode::recording) begin_recording();
  recording.has_run = true;
}

// What is issued to any queue from here on becomes a part of the graph: the others' streams begin behind the first's.
void CudaDevice::begin_recording() {
  cudaStream_t const first = streams_.at(kCompute);
  check(cudaStreamBeginCapture(first, cudaStreamCaptureModeThreadLocal), "a step can't be recorded");
  check(cudaEventRecord(ends_of_.at(kCompute), first), "a step can't be recorded");
  for (cudaStream_t stream : streams_) {
    if (stream != nullptr && stream != first) check(cudaStreamWaitEvent(stream, ends_of_.at(kCompute), 0), "a step can't be recorded");
  }
}

// Null where what was recorded isn't whole.
cudaGraph_t CudaDevice::end_recording() {
  mode_ = Mode::issuing;
  cudaStream_t const first = streams_.at(kCompute);
  for (size_t q = 0; q < streams_.size(); ++q) {
    if (streams_[q] == nullptr || streams_[q] == first) continue;
    (void)cudaEventRecord(ends_of_[q], streams_[q]);
    (void)cudaStreamWaitEvent(first, ends_of_[q], 0);
  }
  cudaGraph_t graph = nullptr;
  const cudaError_t status = cudaStreamEndCapture(first, &graph);
  (void)cudaGetLastError();
  return status == cudaSuccess ? graph : nullptr;
}

// Behind the last work of a run.
void CudaDevice::launch_recorded() {
  cudaGraphExec_t& graph = recordings_[entry_].graph;
  if (mode_ == Mode::recording) {
    cudaGraph_t const recorded = end_recording();
    if (recorded == nullptr) throw error(ErrorCode::device, "the GPU: a step can't be recorded");
    const cudaError_t status = cudaGraphInstantiate(&graph, recorded, 0);
    (void)cudaGraphDestroy(recorded);
    check(status, "a recorded step can't be made ready");
  }
  mode_ = Mode::issuing;
  check(cudaGraphLaunch(graph, streams_.at(kCompute)), "a recorded step can't be launched");
}

void CudaDevice::wait_for(cudaStream_t stream, QueueId queue, int32_t number) {
  const Point& of = point(number);
  if (of.computes_on_host) {
    const CUresult status = wait_value_(stream, ticket_address_, tickets_[static_cast<size_t>(number)], CU_STREAM_WAIT_VALUE_GEQ);
    if (status != CUDA_SUCCESS) throw error(ErrorCode::device, "the GPU: it can't wait for the host (error {})", static_cast<int>(status));
  } else if (of.queue != queue) {
    check(cudaStreamWaitEvent(stream, events_.at(static_cast<size_t>(of.event)), 0), "it can't wait");
  }
}

// Before (0) and behind (1) what it computes.
void CudaDevice::time(int32_t number, size_t side, cudaStream_t stream) {
  if (!times_work_) return;
  cudaEvent_t& event = timers_[entry_].at(static_cast<size_t>(number))[side];
  if (event == nullptr) check(cudaEventCreate(&event), "no event");
  // In a recording, which other streams don't wait for, it is recorded each time that the graph runs.
  check(cudaEventRecordWithFlags(event, stream, mode_ == Mode::recording ? cudaEventRecordExternal : cudaEventRecordDefault),
        "it can't be timed");
}

void CudaDevice::time_work() {
  times_work_ = true;
  for (const std::vector<Point>& points : points_) timers_.emplace_back(points.size());
}

double CudaDevice::seconds(int32_t number) const {
  const auto i = static_cast<size_t>(number);
  if (!times_work_) return 0;
  if (point(number).computes_on_host) return host_seconds_[i];
  if (timers_[entry_].at(i)[1] == nullptr) return 0;
  float milliseconds = 0;
  const auto& [before, behind] = timers_[entry_][i];
  if (cudaEventElapsedTime(&milliseconds, before, behind) == cudaSuccess) return static_cast<double>(milliseconds) * 1e-3;
  (void)cudaGetLastError();  // it mustn't be taken for the next kernel's
  return 0;
}

void CudaDevice::issue_on_gpu(const Work& work) {
  cudaStream_t const stream = stream_of(work.queue);
  for (const int32_t earlier : work.waits) wait_for(stream, work.queue, earlier);
  if (work.kernel != nullptr) {
    time(work.number, 0, stream);
    (*work.kernel)(
        {.inputs = work.inputs, .outputs = work.outputs, .workspace = work.workspace, .queue = stream, .error = errors_ + work.number});
    check(cudaPeekAtLastError(), "a kernel can't be launched");
    time(work.number, 1, stream);
  } else if (work.bytes > 0) {
    check(cudaMemcpyAsync(work.to, work.from, static_cast<size_t>(work.bytes), cudaMemcpyDefault, stream), "a copy can't be made");
  }
  if (const int32_t event = point(work.number).event; event >= 0)
    check(cudaEventRecord(events_[static_cast<size_t>(event)], stream), "an event can't be recorded");
}

void CudaDevice::issue(const Work& work) {
  on_work(work.number, [&] {
    if (is_hosts_.at(work.queue)) {
      HostWork item{.work = work, .events = {}, .ticket = ++issued_};
      tickets_[static_cast<size_t>(work.number)] = item.ticket;
      for (const int32_t earlier : work.waits) {
        if (!point(earlier).computes_on_host) item.events.push_back(point(earlier).event);
      }
      {
        const std::lock_guard lock(mutex_);
        waiting_.push_back(std::move(item));
      }
      changed_.notify_all();
      return;
    }
    if (mode_ != Mode::replaying) issue_on_gpu(work);
  });
  if (mode_ != Mode::issuing && static_cast<size_t>(work.number) + 1 == points_[entry_].size()) launch_recorded();
}

void CudaDevice::wait(int32_t number) {
  if (point(number).computes_on_host) return wait_for_ticket(tickets_[static_cast<size_t>(number)]);  // which knows what failed
  on_work(number, [&] {
    const int32_t event = point(number).event;
    require(event >= 0, "a wait that the program doesn't have");
    check(cudaEventSynchronize(events_[static_cast<size_t>(event)]), "it failed");
  });
}

// Whatever failed, nothing runs any more behind it. Of a recording that was abandoned nothing has run.
void CudaDevice::finish() {
  if (mode_ == Mode::recording) {
    if (cudaGraph_t const recorded = end_recording(); recorded != nullptr) (void)cudaGraphDestroy(recorded);
  }
  std::exception_ptr problem;
  try {
    wait_for_ticket(issued_);
  } catch (...) {
    problem = std::current_exception();
  }
  cudaError_t status = cudaSuccess;
  for (cudaStream_t stream : streams_) {
    if (stream == nullptr) continue;
    const cudaError_t of_stream = cudaStreamSynchronize(stream);
    if (status == cudaSuccess) status = of_stream;
  }
  if (problem != nullptr) std::rethrow_exception(problem);
  failed_ = -1;  // of what ran, whichever it was
  check(status, "a step failed on it");
  check_errors();
}

// What kernels reported (exec/data_error.h).
void CudaDevice::check_errors() {
  const size_t count = points_.empty() ? 0 : points_[entry_].size();
  if (count == 0) return;
  const size_t bytes = count * sizeof(DataError);
  check(cudaMemcpyAsync(seen_, errors_, bytes, cudaMemcpyDeviceToHost, side_), "error words can't be read");
  check(cudaStreamSynchronize(side_), "error words can't be read");
  for (size_t i = 0; i < count; ++i) {
    if (seen_[i].kind == DataError::none) continue;
    check(cudaMemsetAsync(errors_, 0, bytes, side_), "memory can't be cleared");
    check(cudaStreamSynchronize(side_), "memory can't be cleared");
    on_work(static_cast<int32_t>(i), [&] { seen_[i].check(); });
  }
}

void CudaDevice::transfer(std::byte* to, const std::byte* from, int64_t bytes) {
  use();
  check(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, side_), "a copy can't be made");
  check(cudaStreamSynchronize(side_), "a copy failed");
}

void CudaDevice::fill(std::byte* at, std::byte value, int64_t bytes) {
  use();
  check(cudaMemsetAsync(at, static_cast<int>(value), static_cast<size_t>(bytes), side_), "memory can't be filled");
  check(cudaStreamSynchronize(side_), "memory can't be filled");
}

// --- what the host computes -------------------------------------------------------------------------------------------------------------

void CudaDevice::compute_on_host() {
  const FloatEnvironment environment;
  DataError wrong;
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return ends_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    HostWork item = std::move(waiting_.front());
    waiting_.pop_front();
    const bool drop = failure_ != nullptr;
    lock.unlock();
    std::exception_ptr problem;
    if (!drop) {
      try {
        use();
        for (const int32_t event : item.events) check(cudaEventSynchronize(events_[static_cast<size_t>(event)]), "it failed");
        if (item.work.kernel != nullptr) {
          const auto start = std::chrono::steady_clock::now();
          (*item.work.kernel)({.inputs = item.work.inputs,
                               .outputs = item.work.outputs,
                               .workspace = item.work.workspace,
                               .queue = workers_.get(),
                               .error = &wrong});
          wrong.check();
          host_seconds_[static_cast<size_t>(item.work.number)] =
              std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
        }
      } catch (...) {
        problem = std::current_exception();
      }
    }
    lock.lock();
    if (problem != nullptr && failure_ == nullptr) {
      failure_ = problem;
      failed_on_host_ = fault() == cudaSuccess ? item.work.number : -1;
    }
    std::atomic_thread_fence(std::memory_order_seq_cst);
    *ticket_ = item.ticket;
    changed_.notify_all();
  }
}

void CudaDevice::wait_for_ticket(uint32_t ticket) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !host_.joinable() || static_cast<int32_t>(*ticket_ - ticket) >= 0; });
  if (failure_ == nullptr) return;
  failed_ = failed_on_host_;
  std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace ort_train::cuda
