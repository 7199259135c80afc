// Whose a folder is: what other tools keep under names like ours survives everything; what is ours is recognised wherever a run was killed.

#include "frontend/checkpoint_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "frontend/checkpoint.h"
#include "graph/error.h"
#include "tests/failures.h"
#include "tests/foreign_files.h"
#include "tests/io_faults.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
namespace fs = std::filesystem;

struct CheckpointFolders : testing::Test {
  TestFolder folder;
  const std::string out = folder.path.string();
  std::vector<float> weight = std::vector<float>(100);
  CheckpointContent content;

  CheckpointFolders() {
    content.weights = {{.name = "w",
                        .type = {DType::float32, {100}},
                        .bytes = [this](bool) { return std::as_writable_bytes(std::span(weight)); },
                        .changed = [] {}}};
    content.model = "model";
  }
  void save(int64_t step, int64_t run = 7) { save_checkpoint(out, {.run = run, .step = step}, content, {.count = 2}); }
  int64_t load(const std::string& only = {}) {
    return load_checkpoint(
               out, content, [](const std::string& note) { ADD_FAILURE() << note; }, {}, nullptr, only)
        .state.step;
  }

  // Other people's: of every name that a checkpoint has on its way in or out.
  const std::vector<std::string> foreign{"checkpoint-2",
                                         "checkpoint-500",
                                         "checkpoint-1000",
                                         "checkpoint-best",
                                         "checkpoint-05",
                                         ".tmp-checkpoint-4",
                                         "checkpoint-7",
                                         ".tmp-old-checkpoint-5",
                                         "checkpoint-600",
                                         "checkpoint-700",
                                         ".tmp-checkpoint-500",
                                         "tmp-checkpoint-3",
                                         ".tmp-replaced-checkpoint-800",
                                         "checkpoint-900",
                                         "runs"};
  std::map<std::string, std::string> add_foreign() {
    for (const std::string& name : foreign) {
      if (name != "checkpoint-7" && name != "checkpoint-600" && name != "checkpoint-700") write_trainer_checkpoint(folder.path / name);
    }
    write_file(folder / "checkpoint-7", "a file");
    fs::create_directory_symlink("checkpoint-500", folder.path / "checkpoint-600");
    fs::create_directory(folder.path / "checkpoint-700");
    write_file(folder / "checkpoint-900/state.json",
               R"({"body": {"format": 2, "model": "m", "settings": {}, "state": {"run": 7}}, "xxh3": "0123456789abcdef"})");
    return contents_of(folder.path, foreign);
  }
};

TEST_F(CheckpointFolders, OtherPeoplesSurviveEverything) {
  const auto before = add_foreign();
  EXPECT_THAT(find_checkpoints(out), testing::IsEmpty());
  EXPECT_EQ(code_of([&] { load(); }), ErrorCode::usage);  // there is none
  for (const std::string& name : foreign) EXPECT_EQ(code_of([&] { load(out + "/" + name); }), ErrorCode::usage) << name;
  remove_checkpoint_leftovers(out);
  EXPECT_EQ(contents_of(folder.path, foreign), before);
  for (const int64_t step : {1, 3, 6, 8}) {
    save(step);
    EXPECT_EQ(contents_of(folder.path, foreign), before) << step;
  }
  EXPECT_EQ(load(), 8);
  save(1, /*run=*/8);
  save(3, /*run=*/8);  // those of the first run go
  std::vector<int64_t> steps;
  for (const CheckpointFolder& found : find_checkpoints(out)) steps.push_back(found.step);
  EXPECT_THAT(steps, ElementsAre(3, 1));
  remove_superseded(out, out + "/checkpoint-3", 1);
  for (const int64_t step : {2, 7, 500, 600, 700, 900, 4}) {  // where theirs stand
    std::string message;
    EXPECT_EQ(code_of([&] { save(step, 8); }, &message), ErrorCode::io);
    EXPECT_THAT(message, HasSubstr("checkpoint-" + std::to_string(step) + ": was not written by ort-train"));
  }
  EXPECT_EQ(load(), 3);
  EXPECT_EQ(contents_of(folder.path, foreign), before);
}

// A run that is killed at the n-th call, for every n, and all that comes after it.
TEST_F(CheckpointFolders, OtherPeoplesSurviveKillsAndWhatTheyLeave) {
  const auto before = add_foreign();
  for (int64_t n = 1;; ++n) {
    save(1, 1);
    const pid_t child = fork();
    if (child == 0) {
      const IoFaults faults(Fault::kill, n);
      for (const int64_t step : {3, 1, 8, 9}) save(step, /*run=*/2);
      _exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    remove_checkpoint_leftovers(out);
    ASSERT_EQ(contents_of(folder.path, foreign), before) << "call " << n;
    for (const CheckpointFolder& found : find_checkpoints(out)) EXPECT_EQ(load(found.path), found.step);
    std::vector<std::string> left;
    for (const std::string& name : names_in(folder.path)) {
      if (std::find(foreign.begin(), foreign.end(), name) == foreign.end()) left.push_back(name);
    }
    EXPECT_THAT(left, testing::Each(testing::StartsWith("checkpoint-"))) << "call " << n;
    for (const std::string& name : left) fs::remove_all(folder.path / name);
    if (WEXITSTATUS(status) == 0) {
      EXPECT_GT(n, 30);
      break;
    }
  }
}

TEST_F(CheckpointFolders, NamesThatARunMayNeedAreRefused) {
  const auto before = add_foreign();
  const auto refused = [&](int64_t first, int64_t last) {
    std::string message;
    try {
      refuse_foreign_names(out, first, last);
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::usage);
      EXPECT_THAT(problem.what(), HasSubstr("was not written by ort-train"));
      message = problem.what();
    }
    return message;
  };
  EXPECT_EQ(refused(0, 1), "");
  EXPECT_THAT(refused(0, 2), HasSubstr("/checkpoint-2:"));
  EXPECT_EQ(refused(3, 3), "");
  EXPECT_THAT(refused(3, 4), HasSubstr("/.tmp-checkpoint-4:"));
  EXPECT_THAT(refused(5, 6), HasSubstr("/.tmp-old-checkpoint-5:"));
  EXPECT_THAT(refused(7, 7), HasSubstr("/checkpoint-7:"));
  EXPECT_EQ(refused(8, 499), "");
  EXPECT_THAT(refused(600, 600), HasSubstr("/checkpoint-600:"));
  EXPECT_THAT(refused(601, 799), HasSubstr("/checkpoint-700:"));
  EXPECT_THAT(refused(800, 800), HasSubstr("/.tmp-replaced-checkpoint-800:"));
  EXPECT_THAT(refused(801, 999), HasSubstr("/checkpoint-900:"));
  EXPECT_EQ(refused(1001, INT64_MAX), "");
  save(20);
  EXPECT_EQ(refused(20, 20), "");
  write_file(folder / "checkpoint-20/notes.txt", "precious");  // ours, and somebody's
  EXPECT_THAT(refused(20, 20), HasSubstr("/checkpoint-20:"));
  EXPECT_EQ(contents_of(folder.path, foreign), before);
}

// What somebody put into one of ours stays where it is when ours goes.
TEST_F(CheckpointFolders, OnlyOurOwnFilesAreRemoved) {
  save(1);
  write_trainer_checkpoint(folder.path / "checkpoint-1");
  for (const int64_t step : {2, 3, 4}) save(step);
  EXPECT_THAT(names_in(folder.path), ElementsAre("checkpoint-1", "checkpoint-3", "checkpoint-4"));
  EXPECT_EQ(names_in(folder / "checkpoint-1").size(), 11u);
  EXPECT_FALSE(is_our_checkpoint(out + "/checkpoint-1"));
  EXPECT_EQ(read_file(folder / "checkpoint-1/optimizer.pt"), "checkpoint-1's optimizer.pt");
}

TEST_F(CheckpointFolders, OursAreRecognised) {
  save(1);
  const std::string path = out + "/checkpoint-1";
  EXPECT_TRUE(is_our_checkpoint(path));
  fs::remove(path + "/" + kMarkerFile);  // as of a version that had no markers, or copied without hidden files
  EXPECT_TRUE(is_our_checkpoint(path));
  EXPECT_EQ(load(), 1);
  const std::string manifest = read_file(path + "/state.json");
  std::string damaged = manifest;
  damaged[manifest.size() / 2] ^= 1;
  write_file(path + "/state.json", damaged);
  EXPECT_FALSE(is_our_checkpoint(path));
  write_file(path + "/" + kMarkerFile, "");
  EXPECT_TRUE(is_our_checkpoint(path));  // damaged, and ours
  write_file(path + "/state.json", manifest);
  fs::create_directory_symlink(path, out + "/checkpoint-9");
  EXPECT_FALSE(is_our_checkpoint(out + "/checkpoint-9"));
}

// From the first moment on, in each of the names that a checkpoint has on its way.
TEST_F(CheckpointFolders, LeftoversAreToldApart) {
  save(4);
  save(5);
  fs::create_directory(folder.path / ".tmp-checkpoint-1");  // made, and nothing in it
  fs::create_directory(folder.path / ".tmp-checkpoint-2");
  write_file(folder / ".tmp-checkpoint-2/.ort-train-checkpoint", "");  // and its marker
  write_trainer_checkpoint(folder.path / ".tmp-checkpoint-3");         // another tool's
  fs::rename(folder.path / "checkpoint-4", folder.path / ".tmp-old-checkpoint-4");
  fs::rename(folder.path / "checkpoint-5", folder.path / ".tmp-replaced-checkpoint-5");
  const CheckpointLeftovers found = find_leftovers(out);
  EXPECT_THAT(found.lost,
              testing::UnorderedElementsAre(out + "/.tmp-checkpoint-1", out + "/.tmp-checkpoint-2", out + "/.tmp-old-checkpoint-4"));
  EXPECT_THAT(found.put_back, ElementsAre(out + "/.tmp-replaced-checkpoint-5"));
  remove_checkpoint_leftovers(out);
  EXPECT_THAT(names_in(folder.path), ElementsAre(".tmp-checkpoint-3", "checkpoint-5"));
  EXPECT_EQ(load(), 5);
}

TEST_F(CheckpointFolders, OneThatIsNamedIsLoadedWhateverElseThereIs) {
  save(5, /*run=*/1);
  save(3, /*run=*/2);
  EXPECT_EQ(load(), 3);
  EXPECT_EQ(load(out + "/checkpoint-5"), 5);
  EXPECT_EQ(load(out + "/checkpoint-5/"), 5);
  EXPECT_THAT(checkpoints_newer_than(out, {}), ElementsAre(out + "/checkpoint-3", out + "/checkpoint-5"));
  EXPECT_THAT(checkpoints_newer_than(out, out + "/checkpoint-5"), ElementsAre(out + "/checkpoint-3"));
  EXPECT_THAT(checkpoints_newer_than(out, out + "/checkpoint-3/"), testing::IsEmpty());
  fs::copy(out + "/checkpoint-5", out + "/elsewhere", fs::copy_options::recursive);
  EXPECT_EQ(load(out + "/elsewhere"), 5);  // whatever it is called
  EXPECT_EQ(checkpoints_newer_than(out, out + "/elsewhere").size(), 2u);
  write_file(out + "/checkpoint-5/weights.safetensors", "");
  const auto silent = [&] {
    load_checkpoint(
        out, content, [](const std::string&) {}, {}, nullptr, out + "/checkpoint-5");
  };
  EXPECT_EQ(code_of(silent), ErrorCode::corrupt);  // and no other in its place
}

// Against a simulation that has every file on a disk.
TEST(CheckpointSpace, IsThatOfAllThatIsThereAtOnce) {
  for (int64_t kept = 1; kept <= 4; ++kept) {
    for (int64_t saves = 0; saves <= 8; ++saves) {
      for (int64_t own = 0; own <= kept; ++own) {
        for (const int64_t others : {0, 5, 100}) {
          const int64_t each = 10, model = 7;
          std::vector<int64_t> mine(static_cast<size_t>(own), each);
          int64_t rest = others, most = 0;
          const int64_t start = own * each + others;
          const auto look = [&](int64_t more) { most = std::max(most, static_cast<int64_t>(mine.size()) * each + rest + more - start); };
          for (int64_t i = 0; i < saves; ++i) {
            mine.push_back(each);
            look(0);
            if (static_cast<int64_t>(mine.size()) > kept) mine.pop_back();
            if (static_cast<int64_t>(mine.size()) >= kept) rest = 0;
          }
          look(model);
          EXPECT_EQ(space_needed(each, kept, saves, own, others, model), most) << kept << " " << saves << " " << own << " " << others;
        }
      }
    }
  }
  EXPECT_EQ(space_needed(10, 2, 1000, 0, 0, 7), 30);
}

}  // namespace
}  // namespace ort_train
