// Convolutions and pools whose attributes contradict their tensors, or each other: each is one sentence at import.

#include <gtest/gtest.h>

#include "tests/onnx_models.h"

namespace ort_train {
namespace {

using namespace fixtures;

// What stands in the way of a node that reads an image x (2, 4, 6, 7), a line (2, 4, 9), weights w (6, 2, 3, 3) and a bias b.
std::string obstacle(const std::string& node) {
  const TestFolder folder;
  const std::string text = fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 4, 6, 7] x, float[2, 4, 9] line, float[2, 4] flat, float[1, 2, 3, 4, 5] volume, float[1, 1, 2, 2, 2, 2] hyper, float[6, 2, 3, 3] w, float[6] b, float[5] wrong)
      => (float y) {{ [here] y = {} }})",
                                       node);
  const Imported imported = import_file(write_model(folder, text));
  if (imported.obstacles.empty()) return "";
  return imported.obstacles[0].node + ": " + imported.obstacles[0].reason;
}

TEST(Windows, WhatFitsIsImported) {
  EXPECT_EQ(obstacle("Conv <group = 2> (x, w, b)"), "");
  EXPECT_EQ(obstacle("Conv <group = 2, pads = [9, 0, 0, 9]> (x, w)"), "");
  EXPECT_EQ(obstacle("Conv (volume, volume)"), "");
  EXPECT_EQ(obstacle("Conv <auto_pad = \"SAME_UPPER\", strides = [2, 1, 2]> (volume, volume)"), "");
  EXPECT_EQ(obstacle("MaxPool <kernel_shape = [2, 2, 2], auto_pad = \"SAME_LOWER\"> (volume)"), "");
  EXPECT_EQ(obstacle("MaxPool <kernel_shape = [6, 7]> (x)"), "");
  EXPECT_EQ(obstacle("AveragePool <kernel_shape = [3], auto_pad = \"SAME_UPPER\"> (line)"), "");
}

TEST(Windows, WhatDoesNotFitIsOneSentence) {
  const std::pair<const char*, const char*> wrong[] = {
      {"Conv (x, w)", "Conv 'here': 4 channels, a weight of [6, 2, 3, 3] and 1 groups don't go together"},
      {"Conv <group = 0> (x, w)", "and 0 groups don't go together"},
      {"Conv <group = -2> (x, w)", "and -2 groups don't go together"},
      {"Conv <group = 2, kernel_shape = [3, 2]> (x, w)", "its kernel_shape is not that of its weight"},
      {"Conv <group = 2, strides = [0, 1]> (x, w)", "its strides are [0, 1], but must be 2 numbers of 1 and more"},
      {"Conv <group = 2, strides = [1]> (x, w)", "its strides are [1]"},
      {"Conv <group = 2, dilations = [1, -1]> (x, w)", "its dilations are [1, -1]"},
      {"Conv <group = 2, dilations = [3, 1]> (x, w)",
       "its window of 3 elements in steps of 3 is larger than the padded axis 2 of [2, 4, 6, 7]"},
      {"Conv <group = 2, pads = [0, -1, 0, 0]> (x, w)", "its pads are [0, -1, 0, 0], but must be 4 numbers of 0 and more"},
      {"Conv <group = 2, pads = [0, 1152921504606846976, 0, 0]> (x, w)", "its pads are"},
      {"Conv <group = 2, pads = [1, 1]> (x, w)", "its pads are [1, 1]"},
      {"Conv <group = 2, auto_pad = \"SOME\"> (x, w)", "its auto_pad is 'SOME', which the standard does not know"},
      {"Conv <group = 2, auto_pad = \"SAME_UPPER\", strides = [0, 0]> (x, w)", "its strides are [0, 0]"},
      {"Conv <group = 2, strides = 3> (x, w)", "is not a valid node"},
      {"Conv <group = 2> (x, w, wrong)", "the bias is float32 [5] instead of 6 numbers"},
      {"Conv (line, w)", "its window has 2 axes, its input is [2, 4, 9]"},
      {"Conv (x, flat)", "its weight is [2, 4], but has at least three axes"},
      {"Conv (hyper, hyper)", "it slides over 4 axes of [1, 1, 2, 2, 2, 2]; over one to three it is supported"},
      {"Conv <strides = [1]> (volume, volume)", "its strides are [1], but must be 3 numbers of 1 and more"},
      {"Conv <pads = [1, 1]> (volume, volume)", "its pads are [1, 1], but must be 6 numbers of 0 and more"},
      {"MaxPool <kernel_shape = [2, 2, 2], dilations = [1]> (volume)", "its dilations are [1]"},
      {"MaxPool <kernel_shape = [7, 7]> (x)", "is larger than the padded axis 2"},
      {"MaxPool <kernel_shape = [0, 1]> (x)", "its kernel_shape are [0, 1]"},
      {"MaxPool <kernel_shape = [2]> (x)", "its window has 1 axes"},
      {"MaxPool (x)", "is not a valid node"},
      {"AveragePool <kernel_shape = [2147483648, 1], pads = [2147483648, 0, 0, 0]> (x)", "its kernel_shape are"},
      {"BatchNormalization (x, b, b, b, b)", "input 1 is float32 [6], but must be float32 [4]"},
      {"BatchNormalization (wrong, wrong, wrong, wrong, wrong)", "has no axis of channels"},
  };
  for (const auto& [node, message] : wrong) EXPECT_HAS(obstacle(node), message) << " " << node;
}

}  // namespace
}  // namespace ort_train
