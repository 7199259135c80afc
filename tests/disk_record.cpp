#include "tests/disk_record.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <mutex>
#include <set>
#include <string_view>

#include "frontend/file.h"
#include "tests/io_faults.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

struct Call {
  enum Kind { write, resize, hole, sync, make, link, remove, rename } kind;
  int node = 0;                   // of the file; of sync: or folder
  int64_t offset = 0, bytes = 0;  // resize: the new size
  std::string data{}, name{}, to_name{};
  int folder = -1, to_folder = -1;  // nodes in which the names are
  bool is_folder = false;           // what is made
  int replaced = -1;
};

struct Inode {
  bool is_folder = false;
  std::string content{};
  std::map<std::string, int> names{};
};

void write_into(std::string& content, const Call& call) {
  const auto end = static_cast<size_t>(call.offset) + call.data.size();
  if (content.size() < end) content.resize(end);
  content.replace(static_cast<size_t>(call.offset), call.data.size(), call.data);
}

void change(std::string& content, const Call& call) {
  if (call.kind == Call::write) write_into(content, call);
  if (call.kind == Call::resize) content.resize(static_cast<size_t>(call.bytes));
  if (call.kind == Call::hole && static_cast<size_t>(call.offset) < content.size()) {
    const size_t bytes = std::min(static_cast<size_t>(call.bytes), content.size() - static_cast<size_t>(call.offset));
    content.replace(static_cast<size_t>(call.offset), bytes, bytes, '\0');
  }
}

void change_names(std::vector<Inode>& nodes, const Call& call) {
  if (call.kind == Call::make || call.kind == Call::link) nodes[static_cast<size_t>(call.folder)].names[call.name] = call.node;
  if (call.kind == Call::remove || call.kind == Call::rename) {
    auto& names = nodes[static_cast<size_t>(call.folder)].names;
    if (const auto found = names.find(call.name); found != names.end() && found->second == call.node) names.erase(found);
  }
  if (call.kind == Call::rename) nodes[static_cast<size_t>(call.to_folder)].names[call.to_name] = call.node;
}

bool of_names(const Call& call) {
  return call.kind == Call::make || call.kind == Call::link || call.kind == Call::remove || call.kind == Call::rename;
}

bool coin(uint64_t seed, size_t call) {
  uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u + call * 0xbf58476d1ce4e5b9u;
  x ^= x >> 30, x *= 0x94d049bb133111ebu, x ^= x >> 31;
  return (x & 1) != 0;
}

}  // namespace

struct DiskRecord::Model {
  std::string root;
  std::vector<Inode> first;  // when the record began; node 0 is the root
  std::vector<Inode> nodes;  // now; of names alone
  std::map<uint64_t, int> by_inode;
  std::vector<Call> calls;

  int add(bool is_folder) {
    nodes.push_back({.is_folder = is_folder});
    return static_cast<int>(nodes.size()) - 1;
  }
  // The folder that a path lies in and the name there; false where it isn't beneath the root.
  bool find(const std::string& path, int& folder, std::string& name) const {
    const fs::path relative = fs::absolute(path).lexically_normal().lexically_relative(root);
    if (relative.empty() || *relative.begin() == ".." || relative == ".") return false;
    folder = 0;
    for (const fs::path& part : relative.parent_path()) {
      const auto& names = nodes[static_cast<size_t>(folder)].names;
      const auto found = names.find(part.string());
      if (found == names.end()) return false;
      folder = found->second;
    }
    name = relative.filename().string();
    if (name.empty()) return false;
    return true;
  }
  int node_of(int descriptor) const {
    struct stat status {};
    if (::fstat(descriptor, &status) != 0) return -1;
    const auto found = by_inode.find(status.st_ino);
    return found == by_inode.end() ? -1 : found->second;
  }
  int node_at(int folder, const std::string& name) const {
    const auto& names = nodes[static_cast<size_t>(folder)].names;
    const auto found = names.find(name);
    return found == names.end() ? -1 : found->second;
  }
  void append(Call call) {
    change_names(nodes, call);
    calls.push_back(std::move(call));
  }
  void scan(const fs::path& folder, int node) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      struct stat status {};
      ::lstat(entry.path().c_str(), &status);
      const auto known = by_inode.find(status.st_ino);
      const int inner = known != by_inode.end() ? known->second : add(entry.is_directory());
      by_inode[status.st_ino] = inner;
      nodes[static_cast<size_t>(node)].names[entry.path().filename().string()] = inner;
      if (known != by_inode.end()) continue;
      if (entry.is_directory())
        scan(entry.path(), inner);
      else
        nodes[static_cast<size_t>(inner)].content = read_file(entry.path().string());
    }
  }
};

namespace {

std::recursive_mutex mutex;
DiskRecord::Model* recording = nullptr;

template <typename Function> Function* real(const char* name) { return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name)); }

void add_node(const std::string& path, bool is_folder, uint64_t inode) {
  int folder = 0;
  std::string name;
  if (!recording->find(path, folder, name)) return;
  const int node = recording->add(is_folder);
  recording->by_inode[inode] = node;
  recording->append({.kind = Call::make, .node = node, .name = name, .folder = folder, .is_folder = is_folder});
}

void removed(const std::string& path) {
  int folder = 0;
  std::string name;
  if (!recording->find(path, folder, name)) return;
  if (const int node = recording->node_at(folder, name); node >= 0)
    recording->append({.kind = Call::remove, .node = node, .name = name, .folder = folder});
}

// A path as the at-functions have it.
std::string path_at(int folder, const char* path) {
  if (folder == AT_FDCWD || path[0] == '/') return path;
  std::error_code code;
  return (fs::read_symlink("/proc/self/fd/" + std::to_string(folder), code) / path).string();
}

void collect(const std::vector<Inode>& nodes, int node, const std::string& path, DiskRecord::Tree& tree) {
  for (const auto& [name, inner] : nodes[static_cast<size_t>(node)].names) {
    const Inode& at = nodes[static_cast<size_t>(inner)];
    const std::string full = path.empty() ? name : path + "/" + name;
    tree[full] = {.node = inner, .is_folder = at.is_folder, .content = std::make_shared<const std::string>(at.content)};
    if (at.is_folder) collect(nodes, inner, full, tree);
  }
}

}  // namespace

namespace {

void record_write(int descriptor, const void* from, int64_t bytes, int64_t offset) {
  const std::lock_guard lock(mutex);
  const int node = recording == nullptr ? -1 : recording->node_of(descriptor);
  if (node < 0) return;
  recording->append({.kind = Call::write,
                     .node = node,
                     .offset = offset,
                     .data = std::string(static_cast<const char*>(from), static_cast<size_t>(bytes))});
}

void record_resize(int descriptor, int64_t bytes, bool only_grow) {
  const std::lock_guard lock(mutex);
  const int node = recording == nullptr ? -1 : recording->node_of(descriptor);
  struct stat status {};
  if (node < 0 || (only_grow && (::fstat(descriptor, &status) != 0 || status.st_size != bytes))) return;
  recording->append({.kind = Call::resize, .node = node, .bytes = bytes});
}

void record_hole(int descriptor, int64_t offset, int64_t bytes) {
  const std::lock_guard lock(mutex);
  const int node = recording == nullptr ? -1 : recording->node_of(descriptor);
  if (node >= 0) recording->append({.kind = Call::hole, .node = node, .offset = offset, .bytes = bytes});
}

void record_sync(int descriptor) {
  const std::lock_guard lock(mutex);
  const int node = recording == nullptr ? -1 : recording->node_of(descriptor);
  if (node >= 0) recording->append({.kind = Call::sync, .node = node});
}

void record_rename(const char* from, const char* to) {
  const std::lock_guard lock(mutex);
  if (recording == nullptr) return;
  Call call{.kind = Call::rename};
  if (!recording->find(from, call.folder, call.name) || !recording->find(to, call.to_folder, call.to_name)) return;
  call.node = recording->node_at(call.folder, call.name);
  if (call.node >= 0) recording->append(std::move(call));
}

}  // namespace

DiskRecord::DiskRecord(const std::string& root) : model_(std::make_unique<Model>()) {
  const std::lock_guard lock(mutex);
  model_->root = fs::canonical(root).string();
  model_->add(true);
  struct stat status {};
  ::stat(root.c_str(), &status);
  model_->by_inode[status.st_ino] = 0;
  model_->scan(root, 0);
  model_->first = model_->nodes;
  recording = model_.get();
  call_listener = {.write = record_write, .resize = record_resize, .hole = record_hole, .sync = record_sync, .rename = record_rename};
}

DiskRecord::~DiskRecord() { stop(); }

void DiskRecord::stop() {
  const std::lock_guard lock(mutex);
  if (recording != model_.get()) return;
  recording = nullptr;
  call_listener = {};
}

size_t DiskRecord::calls() const {
  const std::lock_guard lock(mutex);
  return model_->calls.size();
}

std::string DiskRecord::what(size_t call) const {
  static const char* const kinds[] = {"write", "resize", "hole", "sync", "make", "link", "remove", "rename"};
  const Call& c = model_->calls[call];
  return std::string(kinds[c.kind]) + " " + c.name + " " + c.to_name + " (node " + std::to_string(c.node) + ")";
}

bool DiskRecord::is_transfer(size_t call) const { return model_->calls[call].kind < Call::sync; }

DiskRecord::Tree DiskRecord::after(size_t calls, Survives survives, uint64_t seed) const {
  std::vector<Inode> live = model_->first, kept = model_->first;
  live.resize(model_->nodes.size());
  kept.resize(model_->nodes.size());
  for (size_t i = 0; i < calls; ++i) {
    const Call& call = model_->calls[i];
    const auto node = static_cast<size_t>(call.node);
    if (call.kind == Call::make) live[node].is_folder = kept[node].is_folder = call.is_folder;
    if (call.kind == Call::sync) {
      kept[node] = live[node];
      continue;
    }
    const bool lucky = survives == Survives::some && coin(seed, i);
    change(live[node].content, call);
    change_names(live, call);
    const bool survived = lucky || survives == Survives::everything || survives == (of_names(call) ? Survives::names : Survives::contents);
    if (!survived) continue;
    change(kept[node].content, call);
    change_names(kept, call);
  }
  Tree tree;
  collect(kept, 0, "", tree);
  return tree;
}

DiskRecord::Tree DiskRecord::now() const {
  Model there;
  there.root = model_->root;
  there.add(true);
  there.scan(there.root, 0);
  Tree tree;
  collect(there.nodes, 0, "", tree);
  return tree;
}

void DiskRecord::restore(const Tree& tree) const {
  for (const auto& entry : fs::directory_iterator(model_->root)) fs::remove_all(entry.path());
  std::map<int, std::string> made;
  for (const auto& [name, entry] : tree) {  // folders come before what they hold
    const std::string path = model_->root + "/" + name;
    if (entry.is_folder)
      fs::create_directory(path);
    else if (const auto other = made.find(entry.node); other != made.end())
      fs::create_hard_link(other->second, path);
    else
      made[entry.node] = write_file(path, *entry.content);
  }
}

uint64_t DiskRecord::hash(const Tree& tree) {
  std::string text;
  std::map<int, size_t> numbers;  // which names are of one file
  for (const auto& [name, entry] : tree) {
    const size_t number = numbers.emplace(entry.node, numbers.size()).first->second;
    text +=
        name + '\0' + std::to_string(number) + '\0' + (entry.is_folder ? "/" : hex16(hash_bytes(std::as_bytes(std::span(*entry.content)))));
  }
  return hash_bytes(std::as_bytes(std::span(text)));
}

}  // namespace ort_train

using ort_train::mutex;
using ort_train::recording;

#pragma GCC visibility push(default)  // the C++ library's own calls come by, too
extern "C" {

int open(const char* path, int flags, ...) {
  static auto* const call = ort_train::real<int(const char*, int, ...)>("open");
  mode_t mode = 0;
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) {
    va_list list;
    va_start(list, flags);
    mode = va_arg(list, mode_t);
    va_end(list);
  }
  if ((flags & (O_CREAT | O_TRUNC)) == 0) return call(path, flags, mode);
  if ((flags & O_CREAT) != 0 && ort_train::name_call_fails("create", path)) return -1;
  const std::lock_guard lock(mutex);
  struct stat status {};
  const bool is_new = ::lstat(path, &status) != 0;
  const int descriptor = call(path, flags, mode);
  if (descriptor < 0 || recording == nullptr) return descriptor;
  const int code = errno;
  if (is_new && ::fstat(descriptor, &status) == 0) ort_train::add_node(path, false, status.st_ino);
  if (!is_new && (flags & O_TRUNC) != 0) ort_train::record_resize(descriptor, 0, false);
  errno = code;
  return descriptor;
}

int mkdir(const char* path, mode_t mode) noexcept {
  static auto* const call = ort_train::real<int(const char*, mode_t)>("mkdir");
  if (ort_train::name_call_fails("mkdir", path)) return -1;
  const std::lock_guard lock(mutex);
  const int result = call(path, mode);
  struct stat status {};
  if (result == 0 && recording != nullptr && ::stat(path, &status) == 0) ort_train::add_node(path, true, status.st_ino);
  return result;
}

int unlink(const char* path) noexcept {
  static auto* const call = ort_train::real<int(const char*)>("unlink");
  if (ort_train::name_call_fails("unlink", path)) return -1;
  const std::lock_guard lock(mutex);
  const int result = call(path), code = errno;
  if (result == 0 && recording != nullptr) ort_train::removed(path);
  errno = code;
  return result;
}

int rmdir(const char* path) noexcept {
  static auto* const call = ort_train::real<int(const char*)>("rmdir");
  if (ort_train::name_call_fails("rmdir", path)) return -1;
  const std::lock_guard lock(mutex);
  const int result = call(path), code = errno;
  if (result == 0 && recording != nullptr) ort_train::removed(path);
  errno = code;
  return result;
}

int remove(const char* path) noexcept {
  static auto* const call = ort_train::real<int(const char*)>("remove");
  const std::lock_guard lock(mutex);
  const int result = call(path), code = errno;
  if (result == 0 && recording != nullptr) ort_train::removed(path);
  errno = code;
  return result;
}

int unlinkat(int folder, const char* path, int flags) noexcept {
  static auto* const call = ort_train::real<int(int, const char*, int)>("unlinkat");
  const std::lock_guard lock(mutex);
  const std::string full = recording != nullptr ? ort_train::path_at(folder, path) : std::string();
  const int result = call(folder, path, flags), code = errno;
  if (result == 0 && recording != nullptr) ort_train::removed(full);
  errno = code;
  return result;
}

int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) noexcept {
  static auto* const call = ort_train::real<int(int, const char*, int, const char*, int)>("linkat");
  if (ort_train::links_refused()) {
    errno = EXDEV;
    return -1;
  }
  if (ort_train::name_call_fails("link", to)) return -1;
  const std::lock_guard lock(mutex);
  const int result = call(from_folder, from, to_folder, to, flags), code = errno;
  struct stat status {};
  int folder = 0;
  std::string name;
  const std::string path = recording != nullptr ? ort_train::path_at(to_folder, to) : std::string();
  if (result == 0 && recording != nullptr && ::stat(path.c_str(), &status) == 0 && recording->by_inode.contains(status.st_ino) &&
      recording->find(path, folder, name)) {
    recording->append({.kind = ort_train::Call::link, .node = recording->by_inode.at(status.st_ino), .name = name, .folder = folder});
  }
  errno = code;
  return result;
}

int link(const char* from, const char* to) noexcept { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int ftruncate(int descriptor, off_t bytes) noexcept {
  static auto* const call = ort_train::real<int(int, off_t)>("ftruncate");
  if (ort_train::name_call_fails("resize", std::to_string(descriptor))) return -1;
  const int result = call(descriptor, bytes);
  if (result == 0) ort_train::record_resize(descriptor, bytes, false);
  return result;
}

}  // extern "C"
#pragma GCC visibility pop
