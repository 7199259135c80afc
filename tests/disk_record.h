// DiskRecord: what a power loss leaves of a folder. The calls that change files beneath it are recorded as they are made (disk_record.cpp
// has them come by before libc's, as io_faults.cpp does); then the folder can be set back to what would have survived at any moment.
//
// The model: what was written to a file survives for sure once the file was synced, a name (made, renamed, removed) once the folder that
// holds it was. Of the rest, a drive and its file system may keep anything.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace ort_train {

class DiskRecord {
 public:
  enum class Survives {
    synced,      // only what was synced
    everything,  // as when the process alone ends
    names,       // every name, but only synced contents
    contents,    // all contents, but only synced names
    some,        // of each call that was not synced, by a coin
  };
  struct Entry {
    int node = 0;  // one file may have several names
    bool is_folder = false;
    std::shared_ptr<const std::string> content{};
  };
  using Tree = std::map<std::string, Entry>;  // by path beneath the folder

  // From here on, until stop(). What is there already is on the drive.
  explicit DiskRecord(const std::string& root);
  ~DiskRecord();
  DiskRecord(const DiskRecord&) = delete;
  DiskRecord& operator=(const DiskRecord&) = delete;
  void stop();

  size_t calls() const;                 // so far
  std::string what(size_t call) const;  // "rename A B"
  bool is_transfer(size_t call) const;  // writes bytes, and changes no name and syncs nothing
  Tree after(size_t calls, Survives survives, uint64_t seed = 0) const;
  Tree now() const;                      // what really is there
  void restore(const Tree& tree) const;  // makes that the folder's content
  static uint64_t hash(const Tree& tree);

  struct Model;

 private:
  std::unique_ptr<Model> model_;
};

}  // namespace ort_train
