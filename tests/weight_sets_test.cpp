// Which tensors are trained: small models of many families as PyTorch's two exporters write them, folded and not (tests/weights/, made by
// models/export_weight_sets.py, which knows each tensor's elements and so where it comes from). What trains is PyTorch's parameters; a
// difference is named in a note.

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "frontend/ort_train.h"
#include "test_paths.h"

namespace ort_train {
namespace {

using Json = nlohmann::json;

Json expected_sets() {
  std::ifstream file(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/weights/expected.json");
  return Json::parse(file);
}

CheckReport check_file(const std::string& name) {
  return check({.model = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/weights/" + name + ".onnx"});
}

bool is_noted(const CheckReport& report, const std::string& name) {
  return std::any_of(report.notes.begin(), report.notes.end(),
                     [&](const std::string& note) { return note.find(name) != std::string::npos; });
}

// Names of a file's tensors, each under the name by which PyTorch lists a parameter that has several.
std::set<std::string> known_as(const CheckTensor& tensor, const Json& tied) {
  std::set<std::string> names;
  std::string rest = tensor.original.empty() ? tensor.name : tensor.original;
  for (size_t at = 0; at <= rest.size();) {
    const size_t end = std::min(rest.find(", ", at), rest.size());
    const std::string name = rest.substr(at, end - at);
    names.insert(tied.value(name, name));
    at = end + 2;
  }
  return names;
}

TEST(WeightSets, WhatTrainsIsPyTorchsParameters) {
  const Json sets = expected_sets();
  EXPECT_GE(sets.size(), 40u);
  std::vector<std::string> left;  // parameters that aren't trained
  for (const auto& [file, set] : sets.items()) {
    SCOPED_TRACE(file);
    const CheckReport report = check_file(file);
    const bool has_metadata = file.find("dynamo") != std::string::npos;
    std::set<std::string> sources, listed;
    for (const CheckTensor& tensor : report.tensors) {
      listed.insert(tensor.name);
      const bool is_parameter = set["trained"].contains(tensor.name), is_computed = set["computed"].contains(tensor.name);
      if (tensor.trained) {
        EXPECT_TRUE(is_parameter || is_computed) << tensor.name << " is a constant, and trained: " << tensor.why;
      } else if (is_parameter || is_computed) {
        left.push_back(file + " " + tensor.name);
        EXPECT_TRUE(is_noted(report, "'" + tensor.name + "'")) << tensor.name << " is a parameter, and left: " << tensor.why;
      }
      if (!is_parameter && !is_computed) continue;
      const std::set<std::string> from = set[is_parameter ? "trained" : "computed"][tensor.name];
      sources.insert(from.begin(), from.end());
      if (!has_metadata) continue;
      if (is_parameter) {
        EXPECT_EQ(known_as(tensor, set["tied"]), from) << tensor.name;
      } else {
        EXPECT_TRUE(tensor.why.starts_with("computed at export") || is_noted(report, *from.begin())) << tensor.name << ": " << tensor.why;
      }
    }
    for (const char* kind : {"trained", "computed"}) {
      for (const auto& [name, from] : set[kind].items()) EXPECT_TRUE(listed.contains(name)) << name;
    }
    for (const std::string parameter : set["parameters"]) {
      EXPECT_TRUE(sources.contains(parameter) || is_noted(report, parameter) || is_noted(report, "do_constant_folding=False"))
          << parameter << " is in no tensor of the file";
    }
    if (!set["computed"].empty()) {
      EXPECT_TRUE(is_noted(report, "optimize=False") || is_noted(report, "do_constant_folding=False"));
    }
  }
  EXPECT_EQ(left, (std::vector<std::string>{"unet-torchscript scale", "unet-torchscript-plain scale"}));
}

// The note of a parameter of one element says what to do, and that does it.
TEST(WeightSets, TheUserHasTheLastWord) {
  Options options{.model = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/weights/unet-torchscript.onnx"};
  const auto treatment = [&](const std::string& name) {
    const CheckReport report = check(options);
    const auto row = std::find_if(report.tensors.begin(), report.tensors.end(), [&](const CheckTensor& t) { return t.name == name; });
    return row == report.tensors.end() ? "" : row->treatment;
  };
  EXPECT_EQ(treatment("scale"), "constant");
  options.train = {"scale"};
  EXPECT_EQ(treatment("scale"), "trained");
  options.freeze = {"mid.*"};
  EXPECT_EQ(treatment("mid.weight"), "frozen");
  EXPECT_EQ(treatment("out.weight"), "trained");
}

// A folded tensor is known by the name of the parameter that it was, too.
TEST(WeightSets, PatternsKnowTheOriginalNames) {
  const std::string model = std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/weights/falcon-dynamo.onnx";
  const CheckReport report = check({.model = model, .freeze = {"*query_key_value*"}});
  const auto row =
      std::find_if(report.tensors.begin(), report.tensors.end(), [](const CheckTensor& tensor) { return tensor.treatment == "frozen"; });
  ASSERT_NE(row, report.tensors.end());
  EXPECT_EQ(row->name, "permute");
  EXPECT_EQ(row->original, "model.transformer.h.0.self_attention.query_key_value.weight");
}

}  // namespace
}  // namespace ort_train
