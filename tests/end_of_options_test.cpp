// `--` on the command line: what follows are no options. Runs the built program.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <sys/wait.h>

#include <filesystem>
#include <string>

#include "test_paths.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using ::testing::HasSubstr;

struct EndOfOptions : ::testing::Test {
  const TestFolder folder;
  int code = -1;
  // What the program writes where it is run in the folder.
  std::string output_of(const std::string& arguments) {
    std::FILE* const pipe =
        ::popen(fmt::format("cd '{}' && '{}/ort-train' {} 2>&1", folder.path.string(), ORT_TRAIN_BINARY_DIR, arguments).c_str(), "r");
    std::string text;
    for (int byte = std::fgetc(pipe); byte != EOF; byte = std::fgetc(pipe)) text += static_cast<char>(byte);
    code = WEXITSTATUS(::pclose(pipe));
    return text;
  }
};

TEST_F(EndOfOptions, IsFollowedByTheModel) {
  for (const char* name : {"model.onnx", "--my_model.onnx"})
    std::filesystem::copy_file(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/gpt2-dynamo-20-folded.onnx", folder / name);
  for (const char* arguments : {"check -- model.onnx", "check --seq_length 8 -- model.onnx", "check model.onnx --"}) {
    EXPECT_THAT(output_of(arguments), HasSubstr("model.onnx  ")) << arguments;
    EXPECT_EQ(code, 0) << arguments;
  }
  EXPECT_THAT(output_of("check -- --my_model.onnx"), HasSubstr("--my_model.onnx  "));
  EXPECT_EQ(code, 0);
  EXPECT_EQ(output_of("check -- model.onnx other.onnx"),
            "error: 'other.onnx' is one argument too many: there is one model, 'model.onnx'\n");
  EXPECT_EQ(code, 2);
  EXPECT_THAT(output_of("check --my-model.onnx -- model.onnx"), HasSubstr("--my-model.onnx"));
  EXPECT_EQ(code, 2) << "in front of it that is an option";
}

}  // namespace
}  // namespace ort_train
