#include "offload/disk_engine.h"

#include <system_error>

#include "graph/error.h"
#include "offload/checksum.h"
#include "offload/disk_queue.h"

namespace ort_train {

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

}  // namespace ort_train
