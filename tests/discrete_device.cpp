#include "tests/discrete_device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>

#include "exec/float_environment.h"
#include "graph/error.h"

namespace ort_train::fixtures {
namespace {

constexpr int kRubbish = 0xb7;

// Memory whose address traps, and the real one behind it.
class HiddenMemory : public Memory {
 public:
  explicit HiddenMemory(int64_t bytes) : Memory(bytes), real_(bytes) {
    void* const shown = mmap(nullptr, static_cast<size_t>(std::max<int64_t>(bytes, 1)), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    require(shown != MAP_FAILED, "no addresses are left");
    data_ = static_cast<std::byte*>(shown);
  }
  ~HiddenMemory() override { munmap(data_, static_cast<size_t>(std::max<int64_t>(bytes_, 1))); }
  std::byte* real() const { return real_.data(); }

 private:
  Arena real_;
};

struct Access {
  Place place;
  bool writes;
};

std::vector<Access> accesses_of(const Instruction& instruction) {
  if (is_copy(instruction)) {
    Place from = instruction.from, to = instruction.to;
    if (uses_file(instruction)) from.bytes = to.bytes = whole_sectors(from.bytes);
    return {{from, false}, {to, true}};
  }
  std::vector<Access> all;
  for (const Place& place : instruction.inputs) all.push_back({place, false});
  for (const Place& place : instruction.outputs) all.push_back({place, true});
  all.push_back({instruction.workspace, true});
  return all;
}

bool meet(const Place& a, const Place& b) {
  return a.space == b.space && a.bytes > 0 && b.bytes > 0 && a.offset < b.end() && b.offset < a.end();
}

// What is left of `pieces` without `place`.
void subtract(std::vector<Place>& pieces, const Place& place) {
  std::vector<Place> left;
  for (const Place& piece : pieces) {
    if (!meet(piece, place)) {
      left.push_back(piece);
      continue;
    }
    if (piece.offset < place.offset) left.push_back({.offset = piece.offset, .bytes = place.offset - piece.offset, .space = piece.space});
    if (place.end() < piece.end()) left.push_back({.offset = place.end(), .bytes = piece.end() - place.end(), .space = piece.space});
  }
  pieces = std::move(left);
}

// By copy within memory: whether nothing reads its source behind it, nor can be reading it beside it.
std::vector<bool> dying_sources(const Program& program, const Entry& entry, const Graph& graph) {
  const auto& code = entry.code;
  std::vector<std::vector<Access>> accesses;
  for (const Instruction& instruction : code) accesses.push_back(accesses_of(instruction));
  std::vector<std::vector<bool>> complete(code.size(), std::vector<bool>(code.size()));  // [later][earlier]
  const auto also = [&](size_t later, size_t earlier, bool itself) {
    for (size_t i = 0; i < earlier; ++i) {
      if (complete[earlier][i]) complete[later][i] = true;
    }
    if (itself) complete[later][earlier] = true;
  };
  std::vector<size_t> latest(program.queues.size(), code.size());
  for (size_t i = 0; i < code.size(); ++i) {
    const QueueId queue = code[i].queue;
    if (latest[queue] < code.size()) also(i, latest[queue], program.queues[queue].ordered);
    for (const int32_t earlier : code[i].waits) also(i, static_cast<size_t>(earlier), true);
    latest[queue] = i;
  }
  std::vector<Place> stays;  // at the end
  for (size_t s = 0; s < program.spaces.size(); ++s)
    stays.push_back({.offset = 0, .bytes = program.spaces[s].persistent_bytes, .space = static_cast<SpaceId>(s)});
  for (const auto* values : {&entry.keep, &graph.outputs}) {
    for (const ValueId value : *values) stays.push_back(entry.value_places[value]);
  }

  std::vector<bool> dies(code.size());
  for (size_t i = 0; i < code.size(); ++i) {
    if (!is_copy(code[i]) || uses_file(code[i])) continue;
    const auto reads = [&](size_t other, const Place& place) {
      return std::any_of(accesses[other].begin(), accesses[other].end(),
                         [&](const Access& access) { return !access.writes && meet(access.place, place); });
    };
    bool is_read = false;
    for (size_t k = 0; k < i && !is_read; ++k) is_read = !complete[i][k] && reads(k, code[i].from);
    std::vector<Place> left{code[i].from};
    for (size_t k = i + 1; k < code.size() && !is_read && !left.empty(); ++k) {
      is_read = std::any_of(left.begin(), left.end(), [&](const Place& place) { return reads(k, place); });
      for (const Access& access : accesses[k]) {
        if (access.writes) subtract(left, access.place);
      }
    }
    for (const Place& piece : left) {
      is_read = is_read || std::any_of(stays.begin(), stays.end(), [&](const Place& place) { return meet(place, piece); });
    }
    dies[i] = !is_read;
  }
  return dies;
}

}  // namespace

DiscreteDevice::DiscreteDevice(const Program& program, const std::vector<const Graph*>& graphs, int threads, uint32_t seed,
                               const KernelTable& kernels)
    : Device(threads, /*is_synchronous=*/false),
      kernels_(kernels),
      loads_late_(seed % 2 == 1),
      of_queue_(program.queues.size()),
      random_(seed),
      workers_(program.queues.size()) {
  for (size_t e = 0; e < program.entries.size(); ++e) dies_.push_back(dying_sources(program, program.entries[e], *graphs[e]));
  for (size_t q = 0; q < program.queues.size(); ++q) {
    const Queue& queue = program.queues[q];
    if (program.spaces[queue.from].kind == SpaceKind::file || program.spaces[queue.to].kind == SpaceKind::file) continue;
    if (queue.computes()) workers_[q] = std::make_unique<Workers>(threads);
    threads_.emplace_back([this, q] { work_on(static_cast<QueueId>(q)); });
  }
}

DiscreteDevice::~DiscreteDevice() {
  {
    const std::lock_guard lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

std::unique_ptr<Memory> DiscreteDevice::allocate(SpaceKind kind, int64_t bytes) {
  if (kind == SpaceKind::host) return std::make_unique<Arena>(bytes);
  require(kind == SpaceKind::device, "no device gives a file");
  auto memory = std::make_unique<HiddenMemory>(bytes);
  ranges_.push_back({.shown = memory->data(), .real = memory->real(), .bytes = bytes});
  return memory;
}

const KernelTable* DiscreteDevice::kernels(SpaceKind where) const { return where == SpaceKind::device ? &kernels_ : &cpu_kernels(); }

std::byte* DiscreteDevice::real(const void* address) const {
  const auto* const at = static_cast<const std::byte*>(address);
  for (const Range& range : ranges_) {
    if (at >= range.shown && at < range.shown + range.bytes) return range.real + (at - range.shown);
  }
  return const_cast<std::byte*>(at);
}

std::byte* DiscreteDevice::on_device(const void* address) const {
  std::byte* const found = real(address);
  require(found != address, "an address of the host is used on the device");
  return found;
}

void DiscreteDevice::fill(std::byte* at, std::byte value, int64_t bytes) {
  require(items_.empty(), "memory is filled while something runs");
  std::memset(real(at), static_cast<int>(value), static_cast<size_t>(bytes));
}

void DiscreteDevice::transfer(std::byte* to, const std::byte* from, int64_t bytes) {
  require(items_.empty(), "a transfer while something runs");
  std::memcpy(real(to), real(from), static_cast<size_t>(bytes));
}

void DiscreteDevice::issue(const Work& work) {
  const std::lock_guard lock(mutex_);
  require(work.queue < of_queue_.size() && !items_.contains(work.number), "work that isn't the program's");
  is_rehearsal_ |= loads_late_ && work.number != static_cast<int32_t>(items_.size());
  const bool is_node = work.kernel != nullptr;
  Item item{.work = work, .late = is_node ? random_() % 4 == 0 : random_() % 8 != 0};
  (is_node ? tricks_.late_nodes : tricks_.late_copies) += item.late;
  items_.emplace(work.number, item);
  of_queue_[work.queue].push_back(work.number);
  if (!item.late) want(work.number);
  changed_.notify_all();
}

// It, what it waits for, and what is before it on its queue.
void DiscreteDevice::want(int32_t number) {
  std::vector<int32_t> left{number};
  while (!left.empty()) {
    const auto found = items_.find(left.back());
    left.pop_back();
    require(found != items_.end() || is_rehearsal_, "a wait for work that wasn't issued");
    if (found == items_.end()) continue;
    Item& item = found->second;
    if (item.wanted || item.done) continue;
    item.wanted = true;
    left.insert(left.end(), item.work.waits.begin(), item.work.waits.end());
    for (const int32_t earlier : of_queue_[item.work.queue]) {
      if (earlier >= item.work.number) break;
      left.push_back(earlier);
    }
  }
}

void DiscreteDevice::want_all() {
  for (auto& [number, item] : items_) item.wanted = true;
}

bool DiscreteDevice::may_begin(const Item& item) const {
  return std::all_of(item.work.waits.begin(), item.work.waits.end(), [&](int32_t earlier) {
    const auto found = items_.find(earlier);
    require(found != items_.end() || is_rehearsal_, "a wait for work that wasn't issued");
    return found == items_.end() || found->second.done;
  });
}

void DiscreteDevice::work_on(QueueId queue) {
  const FloatEnvironment environment;
  std::unique_lock lock(mutex_);
  while (true) {
    std::vector<int32_t>& mine = of_queue_[queue];
    Item* const next = mine.empty() ? nullptr : &items_.at(mine.front());
    const bool ready = next != nullptr && (failure_ != nullptr || may_begin(*next));
    if (ready && failure_ == nullptr && next->work.kernel == nullptr && !next->scribbled) {
      std::memset(real(next->work.to), kRubbish, static_cast<size_t>(next->work.bytes));
      next->scribbled = true;
    }
    if (ready && (next->wanted || failure_ != nullptr)) {
      const bool drop = failure_ != nullptr;
      lock.unlock();
      std::exception_ptr problem;
      if (!drop) {
        try {
          carry_out(*next);
        } catch (...) {
          problem = std::current_exception();
        }
      }
      lock.lock();
      if (problem != nullptr && failure_ == nullptr) {
        failure_ = problem;
        failed_ = next->work.number;
      }
      next->done = true;
      mine.erase(mine.begin());
      changed_.notify_all();
      continue;
    }
    if (ends_) return;
    changed_.wait(lock);
  }
}

void DiscreteDevice::carry_out(const Item& item) {
  const Work& work = item.work;
  if (work.kernel == nullptr) {
    if (work.bytes == 0) return;
    std::byte* const from = real(work.from);
    require((from == work.from) != (real(work.to) == work.to), "a copy that isn't between the host and the device");
    std::memcpy(real(work.to), from, static_cast<size_t>(work.bytes));
    if (!dies_[entry_][static_cast<size_t>(work.number)]) return;
    std::memset(from, kRubbish, static_cast<size_t>(work.bytes));
    const std::lock_guard lock(mutex_);
    ++tricks_.poisoned_sources;
    return;
  }
  const bool is_far = work.where == SpaceKind::device;
  const auto translated = [&](const void* address) -> std::byte* {
    if (address == nullptr) return nullptr;
    require(is_far || real(address) == address, "an address of the device is used on the host");
    return is_far ? on_device(address) : real(address);
  };
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const void* input : work.inputs) inputs.push_back(translated(input));
  for (void* output : work.outputs) outputs.push_back(translated(output));
  DataError wrong;
  (*work.kernel)({.inputs = inputs,
                  .outputs = outputs,
                  .workspace = translated(work.workspace),
                  .queue = workers_[work.queue].get(),
                  .error = &wrong});
  wrong.check();
}

void DiscreteDevice::wait(int32_t number) {
  std::unique_lock lock(mutex_);
  want(number);
  changed_.notify_all();
  changed_.wait(lock, [&] { return items_.at(number).done; });
  if (failure_ != nullptr) std::rethrow_exception(failure_);
}

void DiscreteDevice::finish() {
  std::unique_lock lock(mutex_);
  want_all();
  changed_.notify_all();
  changed_.wait(lock, [&] { return std::all_of(items_.begin(), items_.end(), [](const auto& item) { return item.second.done; }); });
  items_.clear();
  is_rehearsal_ = false;
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

}  // namespace ort_train::fixtures
