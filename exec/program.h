// Program: what the planner decided, as data. Flat lists of instructions on queues, with places in spaces and what each waits for; several
// entry points.
//
// A Program prints as text, is checked by verify() (exec/verify.cpp, written apart from the planner) and run by the Executor, which
// decides nothing. It is a value; it refers to the entry graphs by index and never owns them.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace ort_train {

class KernelTable;

inline constexpr int64_t kPlaceAlignment = 64;  // bytes: a cache line, and the width of the widest vector
inline constexpr int64_t kSector = 4096;        // bytes: what goes to or comes from the disk begins at a multiple of it, in memory too

// Bytes as the arena counts them.
constexpr int64_t aligned(int64_t bytes) { return (bytes + kPlaceAlignment - 1) / kPlaceAlignment * kPlaceAlignment; }
// Bytes that a transfer moves.
constexpr int64_t whole_sectors(int64_t bytes) { return (bytes + kSector - 1) / kSector * kSector; }

// What has addresses of its own.
enum class SpaceKind : uint8_t {
  host,    // memory that the host touches, and that nodes computed by it are in
  device,  // memory that only a device touches: the host reaches it by copies (exec/device.h)
  file,
};
using SpaceId = uint8_t;
struct Space {
  std::string name;
  SpaceKind kind = SpaceKind::host;
  int64_t bytes = 0;
  int64_t persistent_bytes = 0;         // what lives across runs is in [0, persistent_bytes)
  int64_t alignment = kPlaceAlignment;  // of places
};
// Of every program: the memory that most nodes are computed in, and the disk. Where the former is a device's, a third space is the host's.
inline constexpr SpaceId kMemory = 0, kFile = 1, kHost = 2;

struct Place {
  int64_t offset = 0;  // in its space, a multiple of the space's alignment
  int64_t bytes = 0;   // 0: nothing there
  SpaceId space = kMemory;
  int64_t end() const { return offset + bytes; }
  bool operator==(const Place&) const = default;
};

// Instructions of a queue begin in their order, each when what it waits for is complete. On an ordered queue each is complete before the
// next begins; on the others they overlap, and end in any order. Queues know nothing of each other but by waits.
using QueueId = uint8_t;
struct Queue {
  std::string name;
  bool ordered = true;
  SpaceId from = kMemory, to = kMemory;  // one space: it computes there; two: it copies
  bool background = false;               // it computes beside another queue of its space, with what that one leaves of the threads
  bool computes() const { return from == to; }
};
// Of every program; read and write are between the file and the host's memory.
inline constexpr QueueId kCompute = 0, kRead = 1, kWrite = 2;
// Where the memory that most nodes are computed in is a device's: to there from the host's, back, and what the host computes.
inline constexpr QueueId kUp = 3, kDown = 4, kHostCompute = 5;

// What a byte of the arena is for: the rows of the plan's table.
enum class Purpose : uint8_t { weights, gradients, optimizer, activations, inputs, constants, workspace };
inline constexpr size_t kPurposes = 7;
std::string_view to_string(Purpose purpose);

// An alias class of values, or a workspace: one piece of memory, one lifetime. What goes to the disk and comes back has a storage for each
// of its stays in memory. What waits for the copy that ends a stay comes behind it.
struct Storage {
  std::string name;                        // of its first value; of the node, for a workspace
  Purpose purpose = Purpose::activations;  // of its first value
  Place place;                             // in whole sectors where transfers use it
  std::vector<ValueId> values;             // in the order in which they come to be; empty for a workspace
  int32_t first = 0, last = 0;             // indices into the entry's code between which it is live, inclusive
};

// A value that lives across runs: the same bytes in every entry.
struct Persistent {
  std::string name;
  Purpose purpose = Purpose::weights;  // weights, optimizer, constants, gradients (accumulators)
  TensorType type;
  Place home{};                             // in memory or in the file
  std::shared_ptr<const Tensor> initial{};  // constants, in memory; null else (weights are loaded)
  double fill = 0;                          // what each element of state begins as
  bool read_only = false;                   // a weight that no entry changes
};

enum class Action : uint8_t {
  compute,  // runs the node
  copy,     // copies `from` to `to`
};

struct Instruction {
  Action action = Action::compute;
  QueueId queue = kCompute;
  NodeId node = kNone;           // compute: in the entry's graph
  std::vector<Place> inputs{};   // by the node's inputs; bytes 0 where absent
  std::vector<Place> outputs{};  // by the node's outputs; bytes 0 where absent
  Place workspace{};             // bytes 0: none
  Place from{}, to{};            // copy: of two spaces, as many bytes as the tensor has; to or from a file, whole sectors are moved
  std::vector<int32_t> waits{};  // earlier instructions, of any queue, that are complete before this one begins
};

enum class EntryKind : uint8_t { train, update, evaluate, predict };

// What an entry does between the entries that run before and after it.
struct EntryRole {
  EntryKind kind = EntryKind::train;
  bool completes_update = false;  // makes the update for which the entry before it left gradients
  bool leaves_update = false;     // leaves gradients, in accumulators, to an entry that makes the update
  bool adds_up = false;           // adds its gradients to those that were left
  bool operator==(const EntryRole&) const = default;
};

// Whether an entry may run where gradients have been left for an update that isn't made (`waiting`), or where none have.
constexpr bool may_run(const EntryRole& role, bool waiting) {
  return waiting ? role.completes_update || role.adds_up : !role.completes_update;
}

// The highest sum of live bytes in a space, after alignment, with what lives there across runs.
struct SpacePeak {
  int64_t bytes = 0;
  int32_t instruction = 0;  // where
};

struct Entry {
  std::string name;  // for people: "train", "train-remainder", "evaluate" …
  EntryRole role{};
  std::vector<Instruction> code;  // every node of the graph, once, and copies; it ends when all of them are complete
  std::vector<Storage> storages;  // transient ones, workspaces included
  // By ValueId: where each value of the graph is in the end (inputs: in the beginning, in the host's memory), or was last.
  std::vector<Place> value_places;
  std::vector<ValueId> keep;     // what must be intact after the last instruction, the graph's outputs included
  std::vector<SpacePeak> peaks;  // by space; of a file nothing is stated

  const SpacePeak& peak(SpaceId space = kMemory) const { return peaks.at(space); }
};

struct Program {
  int threads = 1;  // the workspaces are for so many workers
  // Those of the CPU, by kMemory and kFile, kCompute, kRead and kWrite; the last queue is for what memory bounds (Kernel::background). A
  // file of no bytes: there is none.
  std::vector<Space> spaces{{.name = "arena"}, {.name = "disk", .kind = SpaceKind::file, .alignment = kSector}};
  std::vector<Queue> queues{{.name = "compute"},
                            {.name = "read", .ordered = false, .from = kFile, .to = kMemory},
                            {.name = "write", .ordered = false, .from = kMemory, .to = kFile},
                            {.name = "background", .background = true}};
  std::vector<Persistent> persistent;
  std::vector<Entry> entries;
  // The host's memory that nothing lives in between runs. Where a value that the host can't touch, on the disk or in a device's memory, is
  // while somebody looks at it: beside one accumulator there is room for another.
  Place staging[2]{};
  Place spare{};  // for a caller that copies: all of it, so that it shares its bytes with areas for what is on the disk, and no others

  Space& memory() { return spaces[kMemory]; }
  const Space& memory() const { return spaces[kMemory]; }
  Space& file() { return spaces[kFile]; }
  const Space& file() const { return spaces[kFile]; }
  std::string to_text(const std::vector<const Graph*>& graphs) const;
};

// One without entries for a device with memory of its own: its three spaces, and its queues.
Program discrete_program();

// "Reshape": the node's only output is a view of an input; where it lies in that one's place, as far in as the node says, there is nothing
// to run.
bool is_view(const Node& node, const Instruction& instruction);

// What a run changes and the next one needs: weights and optimizer state. A read-only weight is in the model's file.
inline bool survives(const Persistent& value) {
  return value.purpose == Purpose::optimizer || (value.purpose == Purpose::weights && !value.read_only);
}
inline bool is_in_file(const Persistent& value) { return value.home.space == kFile; }
// The bytes that it takes of memory.
inline int64_t memory_bytes(const Persistent& value) { return is_in_file(value) ? 0 : value.home.bytes; }
// … and of the file.
inline int64_t file_bytes(const Persistent& value) { return is_in_file(value) ? whole_sectors(value.home.bytes) : 0; }

// Whether the host can't touch what lies there.
inline bool is_far(const Program& program, const Place& place) { return program.spaces.at(place.space).kind != SpaceKind::host; }

inline bool is_copy(const Instruction& instruction) { return instruction.action == Action::copy; }
inline bool is_read(const Instruction& instruction) { return is_copy(instruction) && instruction.from.space == kFile; }
inline bool is_write(const Instruction& instruction) { return is_copy(instruction) && instruction.to.space == kFile; }
inline bool uses_file(const Instruction& instruction) { return is_read(instruction) || is_write(instruction); }
// The places of a copy between memory and the file.
inline const Place& memory_of(const Instruction& copy) { return copy.from.space == kFile ? copy.to : copy.from; }
inline const Place& file_of(const Instruction& copy) { return copy.from.space == kFile ? copy.from : copy.to; }

// By instruction of a copy: the first that waits for it, or the end of the code.
std::vector<int32_t> first_waits(const Entry& entry);

// Counted from the oldest copy that nothing has waited for yet to the newest: the most that there ever are.
int64_t copies_under_way(const Program& program);

// The node that instruction `at` runs; of a transfer, the next one that is run, or the last. kNone where the entry runs none.
NodeId node_at(const Entry& entry, size_t at);

// How nodes run that are computed in a space of that kind; null where nothing is.
using KernelTables = std::function<const KernelTable*(SpaceKind)>;
// The CPU's.
const KernelTable* cpu_kernels_for(SpaceKind where);

// Replays every entry's instructions and throws Error(internal) at the first violation. What it proves holds for any order in which queues
// may really run: two instructions that touch the same bytes, one of which writes them, are ordered by their queue or by waits. Besides: a
// read of bytes that another storage has overwritten since, an output or workspace over something that its instruction reads, two live
// storages that overlap, a place outside its space or misaligned, a node whose places are in another space than its queue computes in, a
// wait for what doesn't come before, a storage that ends before its copies do, a workspace smaller than the kernel wants, a node left out
// or run twice, a kept value that isn't intact at the end, state not written by its writer, not in place or not brought back to where it
// lives, a peak of a space that isn't the stated one, an entry that isn't of its role, an update that no entry makes, an input that the
// host can't fill, a staging area or spare memory over something that lives then. Written apart from the planner: it looks at places, waits
// and graphs only, and at the kernels that the program will run, for their workspace and for what they may write over.
void verify(const Program& program, const std::vector<const Graph*>& graphs, const KernelTables& kernels = cpu_kernels_for);

}  // namespace ort_train
