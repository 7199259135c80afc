#include "offload/state_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "graph/error.h"
#include "offload/checksum.h"
#include "offload/disk_folder.h"

namespace ort_train {
namespace {

// The first block of the file: this, the id, "kept" or "free", the owner, a line each; zeros.
constexpr std::string_view kMagic = "ort-train state 1";
constexpr int64_t kBlock = kDiskAlignment;

constexpr int64_t whole_blocks(int64_t bytes) { return (bytes + kBlock - 1) / kBlock * kBlock; }

std::string id_of(const std::string& path) { return path.substr(path.size() - kNameDigits); }

SlotTable lay_out(const std::vector<StateFile::Tensor>& tensors, int slots) {
  require(slots >= 2, "a state file has two slots for each tensor at least");
  SlotTable table{.bytes = kBlock};
  for (const StateFile::Tensor& tensor : tensors) {
    SlotEntry entry{.name = tensor.name, .bytes = tensor.bytes};
    for (int slot = 0; slot < slots; ++slot) {
      entry.slots.push_back(table.bytes);
      table.bytes += whole_blocks(tensor.bytes);
    }
    table.entries.push_back(std::move(entry));
  }
  return table;
}

Error foreign(const std::string& path) {
  return error(ErrorCode::corrupt, "'{}' is not the state file to which the checkpoint refers", path);
}

Error unreadable(const std::string& path, int code) {
  return error(ErrorCode::io, "'{}', the state file to which the checkpoint refers, can't be read: {}", path, reason(code));
}

// The file that a checkpoint refers to.
File open_state(const std::string& path, const SlotTable& table, Access access) {
  int code = 0;
  std::optional<File> file = File::find(path, access, code);
  if (!file) {
    if (code == ENOENT) throw error(ErrorCode::corrupt, "'{}', the state file to which the checkpoint refers, is missing", path);
    throw error(ErrorCode::corrupt, "'{}', the state file to which the checkpoint refers, can't be opened: {}", path, reason(code));
  }
  const StateHeader header = read_state_header(*file);
  if (header.failed != 0) throw unreadable(path, header.failed);
  if (file->size() != table.bytes || header.id != table.id) throw foreign(path);
  return std::move(*file);
}

// Others look at it for a moment only, unless they use it; and the kernel lets go of a killed process's files when their requests have
// ended.
bool lock(const File& file) {
  for (int tries = 0; tries < 1000; ++tries) {
    if (file.try_lock()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

DiskFile open_locked(const std::string& path, const SlotTable& table, Direct direct) {
  File file = open_state(path, table, Access::update);
  if (!lock(file))
    throw error(ErrorCode::usage,
                "'{}': another run uses this state file: wait for its end (a trainer keeps its file until it is destroyed)", path);
  return DiskFile(std::move(file), direct);
}

}  // namespace

const SlotEntry* SlotTable::find(std::string_view name) const {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const SlotEntry& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

void check_table(const SlotTable& table) {
  const auto refuse = [&](const SlotEntry& entry, const char* what) {
    return error(ErrorCode::corrupt, "the table of slots is wrong: '{}' {}", entry.name, what);
  };
  constexpr int64_t kMostBytes = int64_t{1} << 60;  // below, nothing here leaves 64 bits
  if (table.bytes < 0 || table.bytes > kMostBytes)
    throw error(ErrorCode::corrupt, "the table of slots is wrong: a state file of {} bytes", table.bytes);
  std::vector<std::pair<int64_t, int64_t>> places;
  for (const SlotEntry& entry : table.entries) {
    if (entry.bytes < 0 || entry.bytes > table.bytes) throw refuse(entry, "has no size");
    if (entry.slots.size() < 2 || entry.slots.size() != table.entries[0].slots.size()) throw refuse(entry, "has another number of slots");
    if (entry.current < -1 || entry.current >= static_cast<int>(entry.slots.size())) throw refuse(entry, "is in no slot");
    for (const int64_t slot : entry.slots) {
      if (slot < kBlock || slot % kBlock != 0 || slot > table.bytes - whole_blocks(entry.bytes))
        throw refuse(entry, "lies outside the file");
      if (entry.bytes > 0) places.emplace_back(slot, slot + whole_blocks(entry.bytes));
    }
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) {
    if (places[i].first < places[i - 1].second) throw error(ErrorCode::corrupt, "the table of slots is wrong: two of them overlap");
  }
}

StateHeader read_state_header(const File& file) {
  alignas(kBlock) char block[kBlock];
  int code = 0;
  const size_t got = file.read_up_to(0, std::as_writable_bytes(std::span(block)), code);
  if (code != 0) return {.id = {}, .owner = {}, .failed = code};
  if (got < sizeof block) return {};
  std::string_view text(block, ::strnlen(block, sizeof block));
  const auto line = [&] {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view result = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    return result;
  };
  if (line() != kMagic) return {};
  StateHeader header;
  header.id = line();
  header.kept = line() == "kept";
  header.owner = text.empty() ? text : text.substr(0, text.size() - 1);  // it may hold line breaks
  return header;
}

StateHeader read_state_header(const std::string& path) {
  int code = 0;
  const std::optional<File> file = File::find(path, Access::read, code);
  return file ? read_state_header(*file) : StateHeader{};
}

int64_t StateFile::file_bytes(const std::vector<Tensor>& tensors, int slots) { return lay_out(tensors, slots).bytes; }

StateFile::StateFile(const std::string& folder, const std::vector<Tensor>& tensors, const std::string& owner, int slots, Direct direct)
    : table_(lay_out(tensors, slots)),
      slots_(static_cast<size_t>(slots)),
      owner_(owner),
      removed_(remove_leftovers(folder)),
      file_(create_disk_file(folder, kStatePrefix, direct)) {
  try {
    table_.path = std::filesystem::absolute(file_.path()).string();
    table_.id = id_of(file_.path());
    reserved_ = reserve_space(file_, folder, table_.bytes);
    file_.probe(direct);
    write_header(false);
  } catch (...) {
    file_.file().remove_name();
    throw;
  }
}

StateFile::StateFile(const std::string& path, const SlotTable& table, const std::string& owner, const std::vector<SlotTable>& before,
                     Direct direct)
    : table_(table), owner_(owner), referred_(true), file_(open_locked(path, table, direct)) {
  check_table(table_);
  slots_ = table_.entries.empty() ? 2 : table_.entries[0].slots.size();
  require(before.size() + 2 <= slots_, "a state file that has no slot left to write to");
  for (const SlotTable& earlier : before) {
    check_table(earlier);
    const bool same = std::equal(earlier.entries.begin(), earlier.entries.end(), table_.entries.begin(), table_.entries.end(),
                                 [](const SlotEntry& a, const SlotEntry& b) { return a.name == b.name && a.slots == b.slots; });
    if (!same) throw error(ErrorCode::corrupt, "'{}': two checkpoints list its slots differently", path);
    hold(earlier);
  }
  hold(table_);
  table_.path = std::filesystem::absolute(path).string();
  file_.probe(direct);
  const StateHeader header = read_state_header(file_.file());
  if (header.failed != 0) throw unreadable(path, header.failed);
  kept_ = header.kept;
  const std::string folder = std::filesystem::path(table_.path).parent_path().string();
  removed_ = remove_leftovers(folder);
  reserved_ = reserve_space(file_, folder, table_.bytes);
  if (header.owner != owner_) write_header(kept_);
}

StateFile::~StateFile() {
  try {
    if (referred_) {
      if (latest_ && !publishing_) free_unused();
    } else if (file_.file().names() == 1 && !kept_) {
      file_.file().remove_name();
    }
  } catch (const Error&) {  // then it stays for whoever looks for leftovers
  }
}

size_t StateFile::number_of(std::string_view name) const {
  const SlotEntry* const entry = table_.find(name);
  if (entry == nullptr) throw internal_error("'{}' has no slots", name);
  return static_cast<size_t>(entry - table_.entries.data());
}

int64_t StateFile::write_to(size_t number, uint64_t*& sum) {
  if (publishing_) throw error(ErrorCode::io, "'{}': the last checkpoint failed, so its slots are left as they are", file_.path());
  SlotEntry& entry = table_.entries[number];
  if (entry.current < 0 || is_held(number, entry.current)) {
    entry.current = 0;
    while (is_held(number, entry.current)) ++entry.current;
  }
  sum = &entry.sum;
  return entry.slots[static_cast<size_t>(entry.current)];
}

void StateFile::hold(const SlotTable& table) {
  std::vector<int>& slots = held_.emplace_back();
  for (const SlotEntry& entry : table.entries) slots.push_back(entry.current);
  if (held_.size() >= slots_) held_.pop_front();
}

bool StateFile::is_held(size_t number, int slot) const {
  return std::any_of(held_.begin(), held_.end(), [&](const std::vector<int>& slots) { return slots[number] == slot; });
}

const SlotTable& StateFile::sync() {
  publishing_ = true;
  file_.file().sync();
  if (!named_) sync_folder(folder_of(table_.path));
  named_ = true;
  return table_;
}

void StateFile::name_for(const std::string& path) {
  if (file_.file().link_as(path) || kept_) return;
  write_header(true);
  sync();
}

void StateFile::published() {
  hold(table_);
  referred_ = latest_ = true;
  publishing_ = false;
}

void StateFile::withdrawn() { kept_ = kept_ && referred_; }

void StateFile::write_header(bool kept) {
  alignas(kBlock) char block[kBlock] = {};
  std::string text = fmt::format("{}\n{}\n{}\n{}\n", kMagic, table_.id, kept ? "kept" : "free", owner_);
  if (text.size() >= sizeof block) text = fmt::format("{}\n{}\n{}\n\n", kMagic, table_.id, kept ? "kept" : "free");
  std::memcpy(block, text.data(), text.size());
  file_.file().write(0, std::as_bytes(std::span(block)));
  kept_ = kept;
}

// Between runs the file takes what its checkpoints need; the space comes back when a run goes on with it.
void StateFile::free_unused() noexcept {
  for (size_t i = 0; i < table_.entries.size(); ++i) {
    const SlotEntry& entry = table_.entries[i];
    for (int slot = 0; slot < static_cast<int>(slots_); ++slot) {
      if (is_held(i, slot) || entry.bytes == 0) continue;
      if (!file_.file().punch_hole(entry.slots[static_cast<size_t>(slot)], whole_blocks(entry.bytes))) return;
    }
  }
}

std::string StateFile::note() const { return note_of(file_, reserved_, removed_); }

SlotReader::SlotReader(const std::string& path, const SlotTable& table) : file_(open_state(path, table, Access::read)) {}

void SlotReader::each_piece(const SlotEntry& entry, const std::function<void(int64_t, std::span<const std::byte>)>& body) const {
  if (entry.current < 0) return;
  const int64_t start = entry.slots[static_cast<size_t>(entry.current)], end = whole_blocks(entry.bytes);
  std::vector<std::byte> buffer(static_cast<size_t>(std::min(end, kChecksumPiece)));
  uint64_t sum = 0;
  for (int64_t at = 0; at < end; at += kChecksumPiece) {
    const auto piece = std::span(buffer).first(static_cast<size_t>(std::min(end - at, kChecksumPiece)));
    read_at(entry, at, piece);
    sum += checksum(piece, static_cast<uint64_t>(at / kChecksumPiece));
    body(at, piece);
  }
  ::posix_fadvise(file_.descriptor(), start, end, POSIX_FADV_DONTNEED);
  if (sum != entry.sum) throw error(ErrorCode::corrupt, "'{}': '{}' fails its checksum", file_.path(), entry.name);
}

void SlotReader::read_at(const SlotEntry& entry, int64_t from, std::span<std::byte> to) const {
  try {
    file_.read(entry.slots[static_cast<size_t>(entry.current)] + from, to);
  } catch (const Error& problem) {
    throw error(problem.code(), "'{}': {}", entry.name, problem.what());
  }
}

void SlotReader::read_range(const SlotEntry& entry, int64_t from, std::span<std::byte> to) const {
  require(from >= 0 && from + static_cast<int64_t>(to.size()) <= entry.bytes, "a range that a tensor doesn't have");
  if (entry.current < 0) {
    std::fill(to.begin(), to.end(), std::byte{0});
    return;
  }
  read_at(entry, from, to);
  ::posix_fadvise(file_.descriptor(), entry.slots[static_cast<size_t>(entry.current)] + from, static_cast<off_t>(to.size()),
                  POSIX_FADV_DONTNEED);
}

void SlotReader::read(const SlotEntry& entry, std::span<std::byte> to) const {
  require(static_cast<int64_t>(to.size()) == entry.bytes, "a tensor is read into a place of its size");
  if (entry.current < 0) std::fill(to.begin(), to.end(), std::byte{0});
  each_piece(entry, [&](int64_t at, std::span<const std::byte> piece) {
    const auto place = to.subspan(static_cast<size_t>(at));
    std::memcpy(place.data(), piece.data(), std::min(place.size(), piece.size()));
  });
}

void SlotReader::check(const SlotEntry& entry) const {
  each_piece(entry, [](int64_t, std::span<const std::byte>) {});
}

void remove_state_file(const std::string& path, const std::string& id, const std::function<bool(const std::string&)>& referred) {
  int code = 0;
  const std::optional<File> file = File::find(path, Access::update, code);
  if (!file) return;
  const StateHeader header = read_state_header(*file);
  if (header.id == id && file->try_lock() && file->names() == 1 && !(header.kept && referred(header.owner))) file->remove_name();
}

std::vector<KeptFile> kept_state_files(const std::string& folder) {
  std::vector<KeptFile> files;
  std::error_code failure;
  for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
    const std::string path = entry.path().string();
    if (!entry.path().filename().string().starts_with(kStatePrefix)) continue;
    int code = 0;
    const std::optional<File> file = File::find(path, Access::read, code);
    if (!file) continue;
    StateHeader header = read_state_header(*file);
    if (header.kept && file->names() == 1 && file->try_lock())
      files.push_back({.path = path, .bytes = file->held(), .header = std::move(header)});
  }
  return files;
}

}  // namespace ort_train
