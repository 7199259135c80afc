#include "tests/stream_support.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "graph/op_def.h"
#include "passes/optimizer.h"
#include "tests/plan_support.h"

namespace ort_train::fixtures {
namespace {

constexpr int kRubbish = 0xa5;

template <typename T> bool meet(T* a, int64_t a_bytes, T* b, int64_t b_bytes) { return a < b + b_bytes && b < a + a_bytes; }

void append(std::vector<std::byte>& to, std::span<const std::byte> bytes) { to.insert(to.end(), bytes.begin(), bytes.end()); }

}  // namespace

int64_t LazyDisk::read(int64_t offset, std::byte* to, int64_t bytes) {
  const int64_t ticket = start({.write = false, .offset = offset, .memory = to, .bytes = bytes, .was = {}});
  std::memset(to, kRubbish, static_cast<size_t>(bytes));
  bytes_read_ += bytes;
  return ticket;
}

int64_t LazyDisk::write(int64_t offset, const std::byte* from, int64_t bytes) {
  const int64_t ticket = start({.write = true, .offset = offset, .memory = const_cast<std::byte*>(from), .bytes = bytes, .was = {}});
  transfers_.at(ticket).was.assign(from, from + bytes);
  std::memset(at(offset), kRubbish, static_cast<size_t>(bytes));
  bytes_written_ += bytes;
  return ticket;
}

int64_t LazyDisk::start(Transfer transfer) {
  be_early();
  const auto address = reinterpret_cast<uintptr_t>(transfer.memory);
  require(transfer.offset % kSector == 0 && transfer.bytes % kSector == 0 && address % kSector == 0, "a misaligned transfer");
  require(transfer.bytes > 0 && transfer.offset >= 0 && transfer.offset + transfer.bytes <= static_cast<int64_t>(content_.size()),
          "a transfer outside the disk");
  for (const auto& [ticket, other] : transfers_) {
    const bool both_read = !transfer.write && !other.write, both_write = transfer.write && other.write;
    require(both_read || !meet(at(transfer.offset), transfer.bytes, at(other.offset), other.bytes), "a place of the disk that is in use");
    require(both_write || !meet(transfer.memory, transfer.bytes, other.memory, other.bytes), "memory that a transfer uses");
  }
  transfers_.emplace(++tickets_, std::move(transfer));
  return tickets_;
}

void LazyDisk::carry_out(Transfer& transfer) {
  if (transfer.done) return;
  transfer.done = true;
  if (transfer.write)
    std::memcpy(at(transfer.offset), transfer.memory, static_cast<size_t>(transfer.bytes));
  else
    std::memcpy(transfer.memory, at(transfer.offset), static_cast<size_t>(transfer.bytes));
}

void LazyDisk::be_early() {
  for (auto& [ticket, transfer] : transfers_) {
    if (random_() % 8 == 0) carry_out(transfer);
  }
}

void LazyDisk::wait(int64_t ticket) {
  be_early();
  const auto found = transfers_.find(ticket);
  require(found != transfers_.end(), "a ticket that nobody has");
  Transfer& transfer = found->second;
  carry_out(transfer);
  require(!transfer.write || std::memcmp(transfer.memory, transfer.was.data(), transfer.was.size()) == 0, "memory that changed in a write");
  transfers_.erase(found);
}

void LazyDisk::drain() noexcept {
  for (auto& [ticket, transfer] : transfers_) carry_out(transfer);
}

StreamMachine::StreamMachine(const Program& program, std::vector<const Graph*> graphs, Device& device, Disk* disk)
    : device_(device), program_(program), graphs_(graphs), executor_(program, std::move(graphs), device_) {
  std::vector<Memory*> spaces;
  for (const Space& space : program.spaces) {
    memory_.push_back(space.kind == SpaceKind::file ? nullptr : device_.allocate(space.kind, space.bytes));
    spaces.push_back(memory_.back().get());
  }
  executor_.attach(std::move(spaces), disk);
}

StreamMachine::StreamMachine(const Program& program, std::vector<const Graph*> graphs, std::unique_ptr<Device> own, Disk* disk)
    : StreamMachine(program, std::move(graphs), *own, disk) {
  own_ = std::move(own);
}

StreamMachine::StreamMachine(const Program& program, std::vector<const Graph*> graphs, Workers& workers, Disk* disk)
    : StreamMachine(program, std::move(graphs), std::make_unique<CpuDevice>(workers), disk) {}

void StreamMachine::spoil_memory() {
  for (size_t s = 0; s < program_.spaces.size(); ++s) {
    const Space& space = program_.spaces[s];
    if (space.kind == SpaceKind::file) continue;
    const std::vector<std::byte> rubbish(static_cast<size_t>(space.bytes - space.persistent_bytes), std::byte{kRubbish});
    if (!rubbish.empty())
      device_.transfer(memory_[s]->data() + space.persistent_bytes, rubbish.data(), static_cast<int64_t>(rubbish.size()));
  }
}

void StreamMachine::set_parameters(uint32_t seed) {
  std::set<std::string> done;
  for (const Graph* graph : graphs_) {
    for (ValueId id : graph->parameters()) {
      const Value& value = graph->value(id);
      if (!done.insert(value.name).second) continue;
      const Tensor tensor = random_tensor(value.type(), seed + static_cast<uint32_t>(std::hash<std::string>{}(value.name) % 1000));
      std::memcpy(executor_.blank(value.name).data(), tensor.bytes.data(), tensor.bytes.size());
      executor_.changed(value.name);
    }
  }
}

void StreamMachine::run(size_t entry, uint32_t seed, int64_t limit, std::vector<std::byte>& left) {
  std::map<ValueId, uint32_t> seeds;
  for (ValueId id : graphs_[entry]->inputs) seeds[id] = seed++;
  run(entry, seeds, limit, program_.entries[entry].keep, left);
}

void StreamMachine::run(size_t entry, const std::map<ValueId, uint32_t>& seeds, int64_t limit, std::span<const ValueId> wanted,
                        std::vector<std::byte>& left) {
  spoil_memory();
  for (ValueId id : graphs_[entry]->inputs) {
    const auto place = program_.entries[entry].value_places[id];
    if (place.bytes == 0) continue;  // nobody reads it
    const Value& value = graphs_[entry]->value(id);
    Tensor tensor = random_tensor(value.type(), seeds.at(id), limit);
    const auto scalars = make_optimizer().scalars(2, 1e-2);
    if (value.name == kScalarsInput || value.name == kDeferredScalarsInput)
      std::copy_n(scalars.begin(), std::min(scalars.size(), tensor.data<float>().size()), tensor.data<float>().begin());
    std::memcpy(executor_.input(entry, id).data(), tensor.bytes.data(), tensor.bytes.size());
  }
  require(executor_.run(entry), "a run that was stopped");
  for (ValueId id : wanted) append(left, executor_.bytes(entry, id));
}

void StreamMachine::append_state(std::vector<std::byte>& left) {
  std::set<std::string> names;
  for (const Persistent& value : program_.persistent) {
    if (!value.initial) names.insert(value.name);
  }
  for (const std::string& name : names) append(left, executor_.persistent(name));
}

Moves moves_of(const Program& program, size_t entry, const Graph& graph) {
  Moves moves;
  std::set<int64_t> state, written;
  for (const Persistent& value : program.persistent) {
    if (is_in_file(value)) state.insert(value.home.offset);
  }
  const Entry& e = program.entries[entry];
  for (int32_t at = 0; at < static_cast<int32_t>(e.code.size()); ++at) {
    const Instruction& instruction = e.code[static_cast<size_t>(at)];
    if (!is_copy(instruction)) continue;
    const bool reads = is_read(instruction);
    const int64_t offset = file_of(instruction).offset;
    (reads ? moves.read : moves.written) += whole_sectors(memory_of(instruction).bytes);
    if (state.count(offset)) {
      ++moves.state;
      continue;
    }
    if (!reads) written.insert(offset);
    if (!reads || !written.count(offset)) continue;
    ++moves.activations;
    const auto storage = std::find_if(e.storages.begin(), e.storages.end(), [&](const Storage& s) {
      return s.purpose != Purpose::workspace && s.place.offset == memory_of(instruction).offset && s.first <= at && at <= s.last;
    });
    if (storage == e.storages.end()) continue;
    moves.in_place += std::any_of(storage->values.begin(), storage->values.end(), [&](ValueId value) {
      const NodeId producer = graph.value(value).producer;
      if (producer == kNone || cpu_kernels().find(*graph.node(producer).op)->in_place.empty()) return false;
      const auto& inputs = graph.node(producer).inputs;
      return std::any_of(inputs.begin(), inputs.end(), [&](ValueId input) {
        return std::find(storage->values.begin(), storage->values.end(), input) != storage->values.end();
      });
    });
  }
  return moves;
}

}  // namespace ort_train::fixtures
