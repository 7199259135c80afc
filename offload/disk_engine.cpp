#include "offload/disk_engine.h"

#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <system_error>

#include "graph/error.h"
#include "offload/checksum.h"
#include "offload/disk_queue.h"

namespace ort_train {

// An address, a length and an offset for each page, or for each huge one where memory is made of these; and a list of the pages of a part
// while that is pinned.
int64_t pinning_bytes(int64_t memory) {
  constexpr int64_t kEntry = 16, kList = int64_t{256} << 10;
  return (memory / kDiskAlignment + 1) * kEntry + kList;
}

bool may_pin(int64_t memory) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return false;
  if (limit.rlim_cur == RLIM_INFINITY || static_cast<int64_t>(limit.rlim_cur) >= memory) return true;
  __user_cap_header_struct header{.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3]{};
  if (syscall(SYS_capget, &header, data) != 0) return false;
  return (data[CAP_TO_INDEX(CAP_IPC_LOCK)].effective & CAP_TO_MASK(CAP_IPC_LOCK)) != 0;
}

DiskEngine::DiskEngine(const DiskOptions& options) : method_(options.method) {
  require(options.block_bytes > 0 && options.block_bytes % kChecksumPiece == 0, "disk blocks are made of whole checksum pieces");
  require(options.depth > 0 && options.requests > 0, "a disk engine has room for a block and a request");
  queue_ = std::make_unique<DiskQueue>(options);
  if (method_ != DiskMethod::threads) {
    int code = 0;
    worker_ = start_uring(*queue_, options, code);
    if (!worker_) {
      const std::string why = std::generic_category().message(code);
      if (method_ == DiskMethod::uring) throw error(ErrorCode::io, "io_uring can't be used here: {}", why);
      note_ = fmt::format("the kernel refuses io_uring ({}), so the disk tier uses threads in its place", why);
    }
    method_ = worker_ ? DiskMethod::uring : DiskMethod::threads;
  }
  if (!worker_) worker_ = start_threads(*queue_, options);
}

DiskEngine::~DiskEngine() {
  queue_->stop();
  worker_->wake();
}

DiskTicket DiskEngine::submit(const DiskRequest& request) {
  bool wake = false;
  const DiskTicket ticket = queue_->submit(request, wake);
  if (wake) worker_->wake();
  return ticket;
}

void DiskEngine::wait(DiskTicket ticket) { queue_->wait(ticket); }

void DiskEngine::drain() { queue_->drain(); }

void DiskEngine::record(bool on) { queue_->record(on); }

std::vector<TransferRecord> DiskEngine::take_records() { return queue_->take_records(); }

int64_t DiskEngine::pinned_bytes() const { return worker_->pinned_bytes(); }

}  // namespace ort_train
