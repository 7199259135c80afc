// Checkpoints of streamed runs, on a state file: killed and failing at every call, damaged, copied, beside others.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>

#include "exec/arena.h"
#include "frontend/checkpoint.h"
#include "frontend/checkpoint_slots.h"
#include "graph/error.h"
#include "offload/disk_folder.h"
#include "offload/spill_disk.h"
#include "offload/state_file.h"
#include "tests/failures.h"
#include "tests/io_faults.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// A job of three tensors, of which one is on the disk between steps; its folder of checkpoints on the same file system, or on another.
struct SlotCheckpointTest : testing::TestWithParam<bool> {
  TestFolder nvme, near;
  std::string out = near.path;
  std::unique_ptr<TestFolder> none;
  Arena arena = Arena(64 * kDiskAlignment);
  std::vector<float> weight = std::vector<float>(3000), bias = std::vector<float>(5), moment = std::vector<float>(3000);
  std::unique_ptr<SpillDisk> disk;
  CheckpointContent content;
  std::vector<std::string> notes;
  size_t slots = 2;  // of each tensor: one more than checkpoints that are kept
  static constexpr int64_t kBytes = 12000, kMoved = 3 * kDiskAlignment;

  void SetUp() override {
    if (GetParam()) {
      std::string pattern = "/dev/shm/ort-train-XXXXXX";
      struct stat here {
      }, there{};
      if (mkdtemp(pattern.data()) == nullptr) GTEST_SKIP() << "/dev/shm, the second file system of this test, can't be written here";
      out = pattern;
      ASSERT_EQ(::stat(nvme.path.c_str(), &here) + ::stat(out.c_str(), &there), 0);
      if (here.st_dev == there.st_dev)
        GTEST_SKIP() << "/dev/shm is on the file system of temporary files here, and the test is about two of them";
    }
    const auto tensor = [](const char* name, const Shape& shape, std::vector<float>& values) {
      return StateTensor{.name = name,
                         .type = {DType::float32, shape},
                         .bytes = [&values](bool) { return std::as_writable_bytes(std::span(values)); },
                         .changed = [] {}};
    };
    content.weights = {tensor("b", {5}, bias), tensor("w", {30, 100}, weight)};
    content.optimizer = {tensor("w.exp_avg", {30, 100}, moment)};
    content.optimizer[0].bytes = [this](bool overwrite) {
      if (!overwrite) disk->wait(disk->read(0, arena.data(), kMoved));
      return std::span(arena.data(), kBytes);
    };
    content.optimizer[0].changed = [this] { disk->wait(disk->write(0, arena.data(), kMoved)); };
    content.optimizer[0].on_disk = true;
    content.model = "model";
    content.settings = {{"optim", "adamw"}};
  }
  void TearDown() override {
    disk.reset();
    if (out != near.path) fs::remove_all(out);
  }

  static std::vector<StateFile::Tensor> tensors() { return {{"b", 20}, {"w", kBytes}, {"w.exp_avg", kBytes}}; }
  void start(std::unique_ptr<StateFile> file) {
    if (!file) file = std::make_unique<StateFile>(nvme.path, tensors(), out, static_cast<int>(slots));
    disk = std::make_unique<SpillDisk>(SpillOptions{.folder = nvme.path}, kMoved, kMoved, std::move(file),
                                       std::vector<StateHome>{{.offset = 0, .name = "w.exp_avg"}});
  }
  // Values that tell the step; those of the disk go through a step of their own before.
  void step(int64_t step) {
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = static_cast<float>(step) + static_cast<float>(i) / 7;
    for (float& b : bias) b = static_cast<float>(step);
    for (const float more : {0.5f, 0.0f}) {
      auto* const values = reinterpret_cast<float*>(arena.data());
      for (size_t i = 0; i < weight.size(); ++i) values[i] = -weight[i] - more;
      disk->wait(disk->write(0, arena.data(), kMoved));
    }
  }
  void save(int64_t step, int64_t run = 7) {
    for (const StateTensor& tensor : content.weights)
      disk->write_state(tensor.name, tensor.bytes(false), {arena.data() + 32 * kDiskAlignment, static_cast<size_t>(4 * kDiskAlignment)});
    disk->finish();
    save_checkpoint(out, {.run = run, .step = step}, content, {.count = slots - 1}, disk->state());
  }
  // Goes on with what was saved last, or with one checkpoint: its step, whose values must be there.
  int64_t resume(bool in_place = true, const std::string& only = {}) {
    notes.clear();
    std::fill(weight.begin(), weight.end(), -1.0f);
    std::fill(bias.begin(), bias.end(), -1.0f);
    disk.reset();
    const Loaded loaded = load_checkpoint(
        out, content, [&](const std::string& note) { notes.push_back(note); }, nvme.path,
        [&](const SlotTable* table, const std::string&, const std::string& checkpoint) {
          const bool continued = table != nullptr && in_place;
          start(continued ? std::make_unique<StateFile>(nvme / fs::path(table->path).filename(), *table, out,
                                                        tables_before(out, checkpoint, slots - 1))
                          : nullptr);
          return continued;
        },
        only);
    const int64_t found = loaded.state.step;
    const auto w = weight, b = bias;
    const auto moved = content.optimizer[0].bytes(false);
    std::vector<float> m(3000);
    std::memcpy(m.data(), moved.data(), moved.size());
    for (size_t i = 0; i < weight.size(); ++i) {
      EXPECT_EQ(w[i], static_cast<float>(found) + static_cast<float>(i) / 7);
      EXPECT_EQ(m[i], -w[i]);
    }
    for (const float value : b) EXPECT_EQ(value, static_cast<float>(found));
    return found;
  }
  size_t state_files() const {
    const auto names = names_in(nvme.path);
    return static_cast<size_t>(
        std::count_if(names.begin(), names.end(), [](const std::string& name) { return name.starts_with(kStatePrefix); }));
  }
};

TEST_P(SlotCheckpointTest, ComesBackAndGoesOn) {
  start(nullptr);
  for (const int64_t at : {1, 2, 3}) {
    step(at);
    save(at);
    EXPECT_EQ(names_in(out), std::vector<std::string>{"checkpoint-" + std::to_string(at)});
  }
  const int64_t written = disk->bytes_written();
  EXPECT_EQ(resume(), 3);
  EXPECT_EQ(disk->bytes_written(), 0) << "nothing is copied, of " << written;
  step(4);  // and is lost
  EXPECT_EQ(resume(), 3);
  step(4);
  save(4);
  EXPECT_EQ(resume(), 4);
  EXPECT_EQ(state_files(), 1u);
  EXPECT_EQ(resume(/*in_place=*/false), 4);  // into another one
  EXPECT_EQ(state_files(), 2u);
  step(5);
  save(5);
  EXPECT_EQ(state_files(), 1u);
  EXPECT_EQ(resume(), 5);
  disk.reset();
  EXPECT_EQ(names_in(nvme.path).size(), 1u);
}

// A slot more for each tensor: the run never writes to what one of its last two checkpoints refers to, wherever it is killed.
TEST_P(SlotCheckpointTest, TwoAreKeptWithThreeSlots) {
  slots = 3;
  const auto both = [&](int64_t last) {
    remove_checkpoint_leftovers(out);
    disk.reset();
    for (const int64_t at : {last - 1, last}) EXPECT_EQ(resume(/*in_place=*/false, out + "/checkpoint-" + std::to_string(at)), at);
    disk.reset();
    remove_leftovers(nvme.path);
  };
  start(nullptr);
  for (const int64_t at : {1, 2, 3, 4, 5}) {
    step(at);
    save(at);
  }
  EXPECT_THAT(names_in(out), testing::ElementsAre("checkpoint-4", "checkpoint-5"));
  step(6);  // and is lost
  both(5);
  EXPECT_EQ(resume(), 5);
  EXPECT_EQ(disk->bytes_written(), 0) << "nothing is copied";
  step(6);
  step(7);  // twice to the same slot
  both(5);
  int64_t last = 5;
  bool ended = false;
  for (int64_t n = 1; !ended; n += 2) {
    const pid_t child = fork();
    if (child == 0) {
      resume();
      const IoFaults faults(Fault::kill, n);
      step(last + 1);
      save(last + 1);
      disk.reset();
      _exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    ended = WEXITSTATUS(status) == 0;
    ASSERT_TRUE(ended || WEXITSTATUS(status) == 77) << status;
    last += fs::exists(out + "/checkpoint-" + std::to_string(last + 1));
    both(last);
    remove_superseded(out, out + "/checkpoint-" + std::to_string(last), slots - 1);
    EXPECT_EQ(names_in(out).size(), 2u) << "call " << n;
    EXPECT_EQ(state_files(), 1u) << "call " << n;
  }
  EXPECT_GT(last, 6);
}

// The process dies at the n-th call that changes something on disk, for every n: in a step, while a checkpoint is made, when the old one
// goes.
TEST_P(SlotCheckpointTest, AKillAtAnyCallLosesNothing) {
  for (const bool first : {false, true}) {  // the run's first checkpoint, or one that follows another
    for (int64_t n = 1;; ++n) {
      if (!first) {
        start(nullptr);
        step(1);
        save(1);
        disk.reset();
      }
      const pid_t child = fork();
      if (child == 0) {
        if (first)
          start(nullptr);
        else
          resume();
        const IoFaults faults(Fault::kill, n);
        step(2);
        save(2);
        disk.reset();
        _exit(0);
      }
      int status = 0;
      ::waitpid(child, &status, 0);
      const bool ended = WEXITSTATUS(status) == 0;
      ASSERT_TRUE(ended || WEXITSTATUS(status) == 77) << status;
      remove_checkpoint_leftovers(out);  // as each start does
      remove_leftovers(nvme.path);
      if (first && !fs::exists(out + "/checkpoint-2")) {
        EXPECT_FALSE(ended);
        // The kernel may hold a dead process's files until it has ended their requests.
        for (int tries = 0; tries < 1000 && !names_in(nvme.path).empty(); ++tries) {
          ::usleep(10'000);
          remove_leftovers(nvme.path);
        }
        EXPECT_THAT(names_in(nvme.path), testing::IsEmpty()) << "call " << n;
        continue;
      }
      const int64_t found = resume();
      EXPECT_TRUE(found == 2 || (found == 1 && !ended && !first)) << "call " << n;
      EXPECT_THAT(notes, testing::IsEmpty()) << "call " << n;
      EXPECT_EQ(state_files(), 1u) << "call " << n;
      remove_superseded(out, out + "/checkpoint-" + std::to_string(found), slots - 1);
      EXPECT_THAT(names_in(out), testing::ElementsAre("checkpoint-" + std::to_string(found)));
      step(3);  // what the killed one left is no obstacle
      save(3);
      EXPECT_EQ(resume(), 3);
      EXPECT_THAT(names_in(out), testing::ElementsAre("checkpoint-3"));
      disk.reset();
      EXPECT_EQ(names_in(nvme.path).size(), 1u);
      for (const fs::path& folder : {fs::path(out), nvme.path}) {
        for (const std::string& name : names_in(folder)) fs::remove_all(folder / name);
      }
      if (!ended) continue;
      EXPECT_GT(n, 8);
      break;
    }
  }
}

// The n-th call fails, for every n: what was saved before stays, or the new one is there.
TEST_P(SlotCheckpointTest, AFailedCallLeavesTheLastOneGood) {
  for (const Fault fault : {Fault::error, Fault::full, Fault::name_error}) {
    bool happened = true;
    for (int64_t n = 1; happened; ++n) {
      start(nullptr);
      step(1);
      save(1);
      const auto [problem, struck] = with_fault(fault, n, [&] {
        step(2);
        save(2);
      });
      happened = struck;
      if (problem) {
        EXPECT_EQ(problem->code(), ErrorCode::io);
      }
      const int64_t found = resume();
      EXPECT_TRUE(found == 2 || (found == 1 && problem)) << "call " << n;
      EXPECT_THAT(notes, testing::IsEmpty()) << "call " << n;
      step(3);
      save(3);
      EXPECT_EQ(resume(), 3);
      disk.reset();
      for (const fs::path& folder : {fs::path(out), nvme.path}) {
        for (const std::string& name : names_in(folder)) fs::remove_all(folder / name);
      }
      if (!happened) {
        EXPECT_GT(n, 8);
      }
    }
  }
}

TEST_P(SlotCheckpointTest, DamageIsOneSentence) {
  start(nullptr);
  step(1);
  save(1);
  const SlotTable table = disk->state()->sync();
  disk.reset();
  const std::string manifest = out + "/checkpoint-1/state.json", text = read_file(manifest), state = read_file(table.path);
  const auto corrupt = [&](const std::string& why) {
    std::string message;
    EXPECT_EQ(code_of([&] { resume(); }, &message), ErrorCode::corrupt);
    EXPECT_THAT(message, HasSubstr(why));
    EXPECT_EQ(std::count(message.begin(), message.end(), '\n'), 0);
  };
  const auto rewrite = [&](const std::string& bytes) {  // the same file: it may have two names
    std::fstream file(table.path, std::ios::binary | std::ios::in | std::ios::out);
    file << bytes;
  };
  for (size_t bit = 0; bit < text.size() * 8; bit += 971) {
    std::string bytes = text;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    write_file(manifest, bytes);
    corrupt("state.json");
  }
  for (const size_t size : {size_t{0}, text.size() / 2, text.size() - 2}) {
    write_file(manifest, text.substr(0, size));
    corrupt("state.json");
  }
  write_file(manifest, text);
  EXPECT_EQ(resume(), 1);
  disk.reset();
  for (const SlotEntry& entry : table.entries) {
    std::string bytes = state;
    bytes[static_cast<size_t>(entry.slots[static_cast<size_t>(entry.current)] + entry.bytes / 2)] ^= 1;
    rewrite(bytes);
    corrupt("'" + entry.name + "' fails its checksum");
  }
  std::string unused = state;  // in slots to which nothing refers, anything may be
  for (const SlotEntry& entry : table.entries)
    std::fill_n(unused.begin() + entry.slots[static_cast<size_t>(1 - entry.current)], entry.bytes, 'x');
  rewrite(unused);
  EXPECT_EQ(resume(), 1);
  disk.reset();
  rewrite("something else");
  corrupt("is not the state file");
  rewrite(state);
  EXPECT_EQ(resume(), 1);
  disk.reset();
  fs::resize_file(table.path, static_cast<size_t>(table.bytes) - 1);
  corrupt("is not the state file");
  fs::remove(table.path);
  fs::remove(out + "/checkpoint-1/state.bin");
  corrupt("is missing");
}

TEST_P(SlotCheckpointTest, AManifestThatCannotBeReadMayReferToAStateFile) {
  start(nullptr);
  step(1);
  save(1);
  const std::string id = disk->state()->sync().id;
  EXPECT_TRUE(refers_to_state(out, id));
  EXPECT_FALSE(refers_to_state(out, "0123456789abcdef"));
  EXPECT_FALSE(refers_to_state(out + "/none", id));
  // One that was moved out of the way counts until another has its place.
  const std::string place = out + "/checkpoint-1", aside = out + "/.tmp-replaced-checkpoint-1";
  fs::rename(place, aside);
  EXPECT_TRUE(refers_to_state(out, id));
  fs::create_directory(place);
  EXPECT_FALSE(refers_to_state(out, id));
  fs::remove(place);
  fs::rename(aside, place);
  const IoFaults faults(Fault::read_error, 1);
  EXPECT_TRUE(refers_to_state(out, id));
  EXPECT_TRUE(faults.happened());
}

TEST_P(SlotCheckpointTest, OthersOfTheFolderGo) {
  const auto ordinary = [&](int64_t at, int64_t run) {
    start(nullptr);
    step(at);
    save_checkpoint(out, {.run = run, .step = at}, content, {.count = 2});
    disk.reset();
  };
  ordinary(100, /*run=*/1);
  ordinary(1, /*run=*/7);
  EXPECT_EQ(resume(), 1);
  step(2);
  save(2);
  EXPECT_THAT(names_in(out), testing::ElementsAre("checkpoint-2"));
  // Another run in the folder: the old one goes, with its state file, when the new one has a checkpoint.
  start(nullptr);
  EXPECT_EQ(state_files(), 2u);
  step(1);
  save(1, /*run=*/8);
  EXPECT_THAT(names_in(out), testing::ElementsAre("checkpoint-1"));
  EXPECT_EQ(state_files(), 1u);
  // One that doesn't stream any more keeps two; the state file goes with the last checkpoint that refers to it.
  disk.reset();
  for (const int64_t at : {2, 3}) {
    EXPECT_EQ(state_files(), 1u);
    start(nullptr);
    step(at);
    save_checkpoint(out, {.run = 8, .step = at}, content, {.count = 2});
    disk.reset();
  }
  EXPECT_THAT(names_in(out), testing::ElementsAre("checkpoint-2", "checkpoint-3"));
  EXPECT_EQ(state_files(), 0u);
}

// A state file that a checkpoint in another folder refers to is not this one's to remove.
TEST_P(SlotCheckpointTest, ThatOfACopiedFolderStays) {
  start(nullptr);
  step(1);
  save(1);
  disk.reset();
  const std::string first = out;
  const TestFolder copies;
  out = copies / "copy";
  fs::copy(first, out, fs::copy_options::recursive);
  EXPECT_EQ(resume(/*in_place=*/false), 1);
  step(2);
  save(2);
  EXPECT_EQ(state_files(), 2u);
  disk.reset();
  out = first;
  EXPECT_EQ(resume(), 1);
  disk.reset();
  EXPECT_EQ(kept_state_files(nvme.path).size(), GetParam() ? 1u : 0u);
}

// Against power loss: all that a table refers to is synced before the table is there.
TEST_P(SlotCheckpointTest, NothingIsPublishedBeforeItIsOnDisk) {
  start(nullptr);
  step(1);
  const IoFaults faults(Fault::none, 0);
  save(1);
  const std::vector<std::string> trace = IoFaults::trace();
  const auto last = [&](const std::string& call) {
    const auto found = std::find(trace.rbegin(), trace.rend(), call);
    EXPECT_NE(found, trace.rend()) << call;
    return trace.rend() - found;
  };
  const std::string temporary = out + "/.tmp-checkpoint-1", state = disk->state()->file().path();
  const auto published = last("rename " + temporary + " " + out + "/checkpoint-1");
  EXPECT_LT(last("write " + state), last("fsync " + state));
  EXPECT_LT(last("fsync " + state), published);
  EXPECT_LT(last("write " + temporary + "/state.json"), last("fsync " + temporary + "/state.json"));
  EXPECT_LT(last("fsync " + temporary + "/state.json"), last("fsync " + temporary));
  EXPECT_LT(last("fsync " + temporary), published);
  EXPECT_GT(last("fsync " + out), published);
}

INSTANTIATE_TEST_SUITE_P(FileSystems, SlotCheckpointTest, testing::Bool(), [](const auto& info) { return info.param ? "Two" : "One"; });

}  // namespace
}  // namespace ort_train
