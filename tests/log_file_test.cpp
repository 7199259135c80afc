// StepLog on what is no regular file.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "frontend/log.h"
#include "tests/failures.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

struct LogPipe : ::testing::Test {
  const TestFolder folder;
  const std::string path = folder / "pipe";
  void SetUp() override { ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0); }
};

TEST_F(LogPipe, ThatNobodyReadsIsOneSentence) {
  EXPECT_EQ(error_of(ErrorCode::io, [&] { StepLog(path, 0); }),
            path + ": is a pipe that nobody reads: start its reader first, or choose another `log_file`");
}

TEST_F(LogPipe, GivesItsReaderTheLines) {
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ASSERT_GE(reader, 0);
  StepLog::refuse_foreign(path);
  StepLog log(path, 0);
  log.step(R"({"step":1})");
  EXPECT_EQ(log.failure(), "");
  char text[64] = {};
  EXPECT_EQ(::read(reader, text, sizeof(text)), 11);
  EXPECT_STREQ(text, "{\"step\":1}\n");
  ::close(reader);
}

}  // namespace
}  // namespace ort_train
