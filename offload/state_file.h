// StateFile: what of a streamed run outlives its process: every weight and every tensor of optimizer state, each with one slot more than
// checkpoints are kept (two slots where only the last one is).
//
// A write goes to a slot to which no kept checkpoint refers, so nothing that was saved is ever overwritten; a read takes the slot written
// last. To publish is to sync the file and to write down, in a checkpoint, which slot is current (SlotTable): it copies nothing. When more
// are published than are kept, the slots of the oldest are free again. What a process that is killed had written since the last one is in
// slots to which nothing refers.
//
// The layout knows nothing of plans and budgets. A checkpoint on the same file system has a name of the file of its own (a hard link), so
// that a file with one name is nobody's; where links can't be had the file's header says that it is kept. Locked (flock) by the run that
// uses it. One thread at a time.

#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "offload/disk_file.h"

namespace ort_train {

// One tensor in a state file.
struct SlotEntry {
  std::string name;
  int64_t bytes = 0;             // the tensor's; a slot has whole blocks
  std::vector<int64_t> slots{};  // where they begin in the file
  int current = -1;              // -1: in none, it is all zeros
  uint64_t sum = 0;              // checksum of the current slot's blocks
  bool operator==(const SlotEntry&) const = default;
};

// What a checkpoint says of a state file.
struct SlotTable {
  std::string path;  // in the folder `nvme_path`, absolute
  std::string id;    // 16 hex digits
  int64_t bytes = 0;
  std::vector<SlotEntry> entries;
  const SlotEntry* find(std::string_view name) const;
};

// Throws Error(corrupt) unless its slots lie inside the file, apart from each other.
void check_table(const SlotTable& table);

struct StateHeader {
  std::string id;     // empty: the file is no state file
  std::string owner;  // the folder whose checkpoints refer to it
  bool kept = false;  // a checkpoint refers to it that has no name of it
  int failed = 0;     // errno of the read that failed: nothing is known of the file, and somebody may need it
};
StateHeader read_state_header(const File& file);
StateHeader read_state_header(const std::string& path);

class StateFile {
 public:
  struct Tensor {
    std::string name;
    int64_t bytes = 0;
  };
  // What a file for these takes. `slots`: of each tensor, at least 2; for one checkpoint fewer.
  static int64_t file_bytes(const std::vector<Tensor>& tensors, int slots = 2);

  // A new one, all zeros. `owner`: the folder of its checkpoints. Throws Error(io) as SpillFile does. Goes with the object, unless a
  // checkpoint was published.
  StateFile(const std::string& folder, const std::vector<Tensor>& tensors, const std::string& owner, int slots = 2,
            Direct direct = Direct::automatic);
  // Goes on with one to which a checkpoint refers. `before`: the tables of earlier checkpoints that are kept, too, the oldest first. Throws
  // Error(corrupt) where it isn't that one, Error(usage) where another run uses it, Error(io) where the space for the slots that aren't in
  // use is gone.
  StateFile(const std::string& path, const SlotTable& table, const std::string& owner, const std::vector<SlotTable>& before = {},
            Direct direct = Direct::automatic);
  ~StateFile();
  StateFile(const StateFile&) = delete;
  StateFile& operator=(const StateFile&) = delete;

  const DiskFile& file() const { return file_; }
  int64_t bytes() const { return table_.bytes; }
  size_t size() const { return table_.entries.size(); }
  size_t number_of(std::string_view name) const;
  const SlotEntry& entry(size_t number) const { return table_.entries[number]; }
  size_t slots() const { return slots_; }  // of each tensor
  // The slot that is to be written now, and is current from here on; the checksum of what is written belongs into `sum`, which stays where
  // it is.
  int64_t write_to(size_t number, uint64_t*& sum);

  // Publishing, in this order; whoever doesn't get to the end can't write any more.
  const SlotTable& sync();                 // all that was written is on the drive, and the file's name
  void name_for(const std::string& path);  // gives a checkpoint a name of the file, or keeps the file
  void published();
  void withdrawn();  // in place of that, where the checkpoint didn't get its name: what was kept for it goes with the object
  // Hard links: its own, and one in each checkpoint that is in the same file system.
  int64_t names() const { return file_.file().names(); }
  // Whether somebody has deleted it: no checkpoint can refer to it any more.
  bool gone() const { return names() == 0; }

  std::string note() const;  // as SpillFile's

 private:
  void write_header(bool kept);
  void hold(const SlotTable& table);
  bool is_held(size_t number, int slot) const;
  void free_unused() noexcept;

  SlotTable table_;
  size_t slots_ = 0;
  std::deque<std::vector<int>> held_;  // slots of the checkpoints that are kept, by tensor; the oldest checkpoint first
  std::string owner_;
  bool kept_ = false;      // as the header says
  bool referred_ = false;  // a checkpoint refers to it
  bool latest_ = false;    // and was published by this object
  bool publishing_ = false;
  bool named_ = false;  // its name is on the drive
  bool reserved_ = true;
  int64_t removed_ = 0;  // bytes of leftovers
  DiskFile file_;
};

// Reads the tensors to which a checkpoint refers, and checks them.
class SlotReader {
 public:
  // Throws Error(corrupt) where the file isn't there or is another one.
  SlotReader(const std::string& path, const SlotTable& table);

  // Throws Error(corrupt) where the bytes have another checksum.
  void read(const SlotEntry& entry, std::span<std::byte> to) const;
  void check(const SlotEntry& entry) const;
  // Some of its bytes, unchecked.
  void read_range(const SlotEntry& entry, int64_t from, std::span<std::byte> to) const;

 private:
  void each_piece(const SlotEntry& entry, const std::function<void(int64_t at, std::span<const std::byte>)>& body) const;
  void read_at(const SlotEntry& entry, int64_t from, std::span<std::byte> to) const;
  File file_;
};

// Removes a state file that is in nobody's use: it has no other name, and, where it is kept, `referred` doesn't say of its owner's folder
// that a checkpoint there refers to it.
void remove_state_file(const std::string& path, const std::string& id, const std::function<bool(const std::string& owner)>& referred);

// Files in `folder` that are kept and in no run's use.
struct KeptFile {
  std::string path;
  int64_t bytes = 0;  // that it takes
  StateHeader header;
};
std::vector<KeptFile> kept_state_files(const std::string& folder);

}  // namespace ort_train
