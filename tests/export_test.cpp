// Export: the user's bytes with the weights replaced, in their layouts; nothing else is ever overwritten.

#include "frontend/export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "graph/error.h"
#include "tests/failures.h"
#include "tests/io_faults.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::HasSubstr;
namespace fs = std::filesystem;

// A model file and two of external data; to export, a file is bytes with places in it.
struct ExportTest : testing::Test {
  TestFolder folder;
  const std::string in = folder / "in", out = folder / "out";
  std::vector<float> w{1, 2, 3, 4, 5, 6}, b{7, 8};
  ModelInfo model;
  std::vector<Weight> weights;

  ExportTest() {
    fs::create_directories(in + "/parts");
    model.path = write_file(in + "/m.onnx", "head" + std::string(24, 'w') + "middle" + std::string(8, 'b') + "tail");
    write_file(in + "/m.data", std::string(5, '.') + std::string(24, 't') + "end");
    write_file(in + "/parts/other", "untouched");
    model.external_files = {"m.data", "parts/other"};
    import();
    weights = {{.parameter = "w",
                .places = {{.name = "w",
                            .bytes = {.path = model.path, .offset = 4, .bytes = 24},
                            .dtype = DType::float32,
                            .shape = {2, 3},
                            .transposed = false},
                           {.name = "w.t",
                            .bytes = {.path = in + "/m.data", .offset = 5, .bytes = 24},
                            .dtype = DType::float32,
                            .shape = {3, 2},
                            .transposed = true}}},
               {.parameter = "b",
                .places = {{.name = "b",
                            .bytes = {.path = model.path, .offset = 34, .bytes = 8},
                            .dtype = DType::float32,
                            .shape = {2},
                            .transposed = false}}}};
  }

  // Remembers what the files are now.
  void import() {
    model.stamps[""] = *stamp_of(model.path);
    for (const std::string& external : model.external_files) model.stamps[external] = *stamp_of(in + "/" + external);
    remember_contents(model);
  }
  // In one piece, or row by row.
  bool hand_over(const std::string& name, const ByteSink& sink) const {
    const auto bytes = std::as_bytes(std::span(name == "w" ? w : b));
    const size_t piece = name == "w" && by_rows ? bytes.size() / 2 : bytes.size();
    for (size_t at = 0; sink && at < bytes.size(); at += piece) sink(static_cast<int64_t>(at), bytes.subspan(at, piece));
    return true;
  }
  WeightBytes weight_bytes() const {
    return [this](const std::string& name, const ByteSink& sink) { return hand_over(name, sink); };
  }
  bool by_rows = false;
  std::string run() { return export_model(model, weights, weight_bytes(), out); }
  void expect_written() const {
    EXPECT_EQ(read_file(out + "/model.onnx"), "head" + bytes_of(w) + "middle" + bytes_of(b) + "tail");
    const std::vector<float> transposed{w[0], w[3], w[1], w[4], w[2], w[5]};
    EXPECT_EQ(read_file(out + "/m.data"), std::string(5, '.') + bytes_of(transposed) + "end");
    EXPECT_EQ(read_file(out + "/parts/other"), "untouched");
  }
  std::string refusal() {
    try {
      run();
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::usage) << problem.what();
      return problem.what();
    }
    ADD_FAILURE() << "written";
    return "";
  }
};

TEST_F(ExportTest, WeightsAreReplacedInTheirLayouts) {
  fs::create_directory(out);
  EXPECT_EQ(run(), out + "/model.onnx");
  expect_written();
  EXPECT_EQ(export_bytes(model), 46 + 32 + 9);
}

TEST_F(ExportTest, WhatItWroteItMayOverwrite) {
  fs::create_directory(out);
  run();
  w[1] = 50;
  run();
  expect_written();
  // Touched, and copied from elsewhere: the content is what counts.
  fs::last_write_time(out + "/model.onnx", fs::last_write_time(out + "/model.onnx") + std::chrono::seconds(5));
  fs::copy_file(out + "/m.data", folder / "copy");
  fs::rename(folder / "copy", out + "/m.data");
  w[2] = 60;
  run();
  expect_written();
}

TEST_F(ExportTest, WhatItDidNotWriteStays) {
  fs::create_directory(out);
  write_file(out + "/model.onnx", "mine");
  EXPECT_THAT(refusal(), HasSubstr("was not written by ort-train"));
  EXPECT_EQ(read_file(out + "/model.onnx"), "mine");
  fs::remove(out + "/model.onnx");
  run();
  write_file(out + "/parts/other", "changed since");
  EXPECT_THAT(refusal(), HasSubstr("parts/other"));
  EXPECT_EQ(read_file(out + "/parts/other"), "changed since");
}

TEST_F(ExportTest, TheInputIsNeverTheOutput) {
  fs::rename(model.path, in + "/model.onnx");
  model.path = in + "/model.onnx";
  weights[0].places[0].bytes.path = weights[1].places[0].bytes.path = model.path;
  const std::string before = read_file(model.path);
  try {
    check_output(model, in);
    FAIL();
  } catch (const Error& problem) {
    EXPECT_THAT(problem.what(), HasSubstr("is the input"));
  }
  fs::create_directory(out);
  fs::create_hard_link(in + "/m.data", out + "/m.data");
  EXPECT_THAT(refusal(), HasSubstr("is the input"));
  EXPECT_EQ(read_file(model.path), before);
}

TEST_F(ExportTest, AModelThatChangedSinceImportIsNotCopied) {
  fs::create_directory(out);
  write_file(model.path, "short");
  EXPECT_THROW(run(), Error);
  EXPECT_FALSE(fs::exists(out + "/model.onnx"));
}

TEST_F(ExportTest, WhatChangedSinceImportIsNotCopied) {
  const auto refused = [&] { return error_of(ErrorCode::io, [&] { run(); }); };
  const std::string other = in + "/parts/other", before = read_file(other);
  // In place, with as many bytes; by a file with the same bytes and times; by a link.
  const auto time = fs::last_write_time(other);
  write_file(other, "unt0uched");
  fs::last_write_time(other, time);
  EXPECT_THAT(refused(), HasSubstr("parts/other' was changed since it was imported, so the new weights can't be put into a copy of it: put "
                                   "back what it was, and go on with `resume`"));
  EXPECT_THAT(error_of(ErrorCode::io, [&] { export_model(model, weights, weight_bytes(), out, "export it again"); }),
              HasSubstr("put back what it was, and export it again"));
  write_file(other, before);
  import();
  fs::copy_file(other, in + "/copy");
  fs::last_write_time(in + "/copy", fs::last_write_time(other));
  fs::rename(in + "/copy", other);
  EXPECT_THAT(refused(), HasSubstr("was changed since"));
  import();
  fs::rename(other, folder / "elsewhere");
  fs::create_symlink(folder / "elsewhere", other);
  EXPECT_THAT(refused(), HasSubstr("symbolic link"));
  fs::remove(other);
  fs::rename(folder / "elsewhere", other);
  EXPECT_FALSE(fs::exists(out + "/model.onnx"));
  EXPECT_FALSE(fs::exists(out + "/m.data"));
  import();
  run();
  expect_written();
}

TEST_F(ExportTest, OtherPermissionsAreNoOtherContent) {
  fs::create_directory(out);
  for (bool is_open = false; stamp_of(model.path)->changed == model.stamps.at("").changed; is_open = !is_open)
    fs::permissions(model.path, fs::perms::group_write, is_open ? fs::perm_options::add : fs::perm_options::remove);
  run();
  expect_written();
  model.hashes.clear();
  EXPECT_THAT(error_of(ErrorCode::io, [&] { run(); }), HasSubstr("has other permissions or names than when it was imported"));
}

// The n-th write, fsync or rename fails: each file is the old one or the new one, and the next run may overwrite it.
TEST_F(ExportTest, AFailureAnywhereIsNoObstacleForTheNext) {
  const std::string files[] = {"/model.onnx", "/m.data", "/parts/other"};
  std::vector<std::string> before;
  fs::create_directory(out);
  run();
  bool happened = true;
  int64_t kept = 0, mixed = 0;
  for (int64_t n = 1; happened; ++n) {
    before.clear();
    for (const std::string& file : files) before.push_back(read_file(out + file));
    w[0] = static_cast<float>(100 + n);
    b[1] = static_cast<float>(200 + n);
    const auto [problem, struck] = with_fault(Fault::full, n, [&] { run(); });
    happened = struck;
    if (problem) {
      EXPECT_EQ(problem->code(), ErrorCode::io) << n;
    }
    std::vector<std::string> after;
    for (const std::string& file : files) after.push_back(read_file(out + file));
    EXPECT_THAT(names_in(out), testing::IsSupersetOf({".ort-train-model.json", "m.data", "model.onnx", "parts"})) << n;
    EXPECT_EQ(names_in(out).size() + names_in(out + "/parts").size(), 5u) << n << ": nothing else is left";
    run();
    expect_written();
    int64_t old = 0;
    for (size_t i = 0; i < before.size(); ++i) {
      const bool is_old = after[i] == before[i], is_new = after[i] == read_file(out + files[i]);
      EXPECT_TRUE(is_old || is_new) << n << " " << files[i];
      old += is_old && !is_new;
    }
    kept += old == 2;  // all whose weights have changed
    mixed += old == 1;
    if (!problem) {
      EXPECT_EQ(old, 0) << n;
    }
  }
  EXPECT_GT(kept, 8);
  EXPECT_GT(mixed, 0);
}

TEST_F(ExportTest, LargeTransposesGoInBlocks) {
  const int64_t rows = 700, columns = 900;
  std::vector<float> parameter(static_cast<size_t>(rows * columns)), result(parameter.size());
  for (size_t i = 0; i < parameter.size(); ++i) parameter[i] = static_cast<float>(i);
  const WeightPlace place{.name = "t",
                          .bytes = {.path = "", .offset = 0, .bytes = 4 * rows * columns},
                          .dtype = DType::float32,
                          .shape = {rows, columns},
                          .transposed = true};
  for (const int64_t parts : {1, 3}) {  // ranges of the parameter's rows
    std::fill(result.begin(), result.end(), -1.0f);
    int pieces = 0;
    for (int64_t part = 0; part < parts; ++part) {
      const auto begin = static_cast<size_t>(columns / parts * part * rows), end = static_cast<size_t>(columns / parts * (part + 1) * rows);
      in_layout(place, static_cast<int64_t>(4 * begin), std::as_bytes(std::span(parameter).subspan(begin, end - begin)),
                [&](int64_t offset, std::span<const std::byte> bytes) {
                  std::memcpy(reinterpret_cast<std::byte*>(result.data()) + offset, bytes.data(), bytes.size());
                  ++pieces;
                });
    }
    EXPECT_GT(pieces, parts);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        ASSERT_EQ(result[static_cast<size_t>(row * columns + column)], parameter[static_cast<size_t>(column * rows + row)]);
      }
    }
  }
}

TEST_F(ExportTest, GradientsAreWrittenUnderEveryNameInItsLayout) {
  const std::string path = folder / "g.safetensors";
  write_layouts(path, weights, [this](const std::string& name, const ByteSink& sink) { return name == "w" && hand_over(name, sink); });
  const SafetensorsHeader header = read_safetensors_header(File::open(path), ErrorCode::data);
  ASSERT_EQ(header.entries.size(), 2u);
  EXPECT_EQ(header.find("w.t")->shape, (Shape{3, 2}));
  const std::string file = read_file(path);
  EXPECT_EQ(file.substr(static_cast<size_t>(header.find("w")->offset), 24), bytes_of(w));
  EXPECT_EQ(file.substr(static_cast<size_t>(header.find("w.t")->offset), 24), bytes_of(std::vector<float>{1, 4, 2, 5, 3, 6}));
}

}  // namespace
}  // namespace ort_train
