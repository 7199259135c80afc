// Forward values against the standard: each model of tests/golden/ops.safetensors (one node; written by models/golden_ops.py) is imported
// and its graph evaluated node by node.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "exec/kernel.h"
#include "exec/random.h"
#include "frontend/file.h"
#include "frontend/import.h"
#include "frontend/safetensors.h"
#include "graph/op_def.h"
#include "test_paths.h"

namespace ort_train {
namespace {

// What may be refused: the beginning of a case's name, and the reason. Everything else must run.
const std::vector<std::pair<std::string, std::string>> kRefused{
    {"attention_", "outputs other than Y are not supported"},
    {"attention_", "past keys and values and nonpad_kv_seqlen are not supported"},
    {"attention_", "softcap is not supported"},
    {"attention_", "windows of positions are not supported"},
    {"batchnorm_", "its running statistics are no initializers, so live ones have no place to be kept"},
    {"maxpool_2d_uint8", "there is no pool of uint8"},
    {"maxpool_with_argmax", "is not supported"},
    {"sce_", "class weights are not supported"},
    {"sce_none", "reduction=none leaves no single loss"},
};

struct Archive {
  Archive() : file(File::open(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/ops.safetensors")) {
    for (const SafetensorsEntry& entry : read_safetensors_header(file, ErrorCode::data).entries) entries.emplace(entry.name, entry);
  }
  std::vector<std::byte> bytes(const std::string& name) const {
    const SafetensorsEntry& entry = entries.at(name);
    std::vector<std::byte> result(static_cast<size_t>(entry.bytes));
    file.read(entry.offset, result);
    return result;
  }
  Tensor tensor(const std::string& name) const {
    static const std::map<Element, DType> types{{Element::float32, DType::float32}, {Element::float64, DType::float64},
                                                {Element::int64, DType::int64},     {Element::int32, DType::int32},
                                                {Element::int16, DType::int16},     {Element::int8, DType::int8},
                                                {Element::uint8, DType::uint8},     {Element::boolean, DType::boolean}};
    const SafetensorsEntry& entry = entries.at(name);
    Tensor result(types.at(entry.element), entry.shape);
    result.bytes = bytes(name);
    return result;
  }
  File file;
  std::map<std::string, SafetensorsEntry> entries;
};

const Archive& archive() {
  static const Archive all;
  return all;
}

std::vector<std::string> case_names() {
  std::set<std::string> names;
  for (const auto& [name, entry] : archive().entries) names.insert(name.substr(0, name.find('/')));
  return {names.begin(), names.end()};
}

Workers& workers() {
  static Workers two(2);
  return two;
}

// All values of an imported graph, its weights read from the model's file.
std::map<ValueId, Tensor> run(const Imported& imported, std::map<ValueId, Tensor> values) {
  const Graph& graph = imported.graph;
  for (const Weight& weight : imported.weights) {
    const ValueId id = graph.find_value(weight.parameter);
    Tensor& tensor = values[id] = Tensor(graph.value(id).dtype, graph.value(id).shape);
    const FileRange& range = weight.places.at(0).bytes;
    File::open(range.path).read(range.offset, tensor.bytes);
  }
  for (NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<const Tensor*> inputs;
    for (ValueId input : node.inputs)
      inputs.push_back(input == kNone ? nullptr : graph.constant(input) ? graph.constant(input) : &values.at(input));
    std::vector<Tensor> outputs = evaluate(*node.op, node.attributes, inputs, node.outputs.size(), workers());
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (node.outputs[i] != kNone) values[node.outputs[i]] = std::move(outputs[i]);
    }
  }
  return values;
}

void expect_close(const Tensor& actual, const Tensor& wanted, size_t output) {
  ASSERT_EQ(to_string(actual.type()), to_string(wanted.type())) << "output " << output;
  const std::vector<double> a = actual.to_double(), b = wanted.to_double();
  double largest = 0;
  for (double x : b) largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    ASSERT_TRUE(is_floating(actual.dtype)) << "output " << output << ", element " << i << ": " << a[i] << ", should be " << b[i];
    ASSERT_LE(std::abs(a[i] - b[i]), 1e-5 * std::abs(b[i]) + 1e-6 * largest)
        << "output " << output << ", element " << i << ": " << a[i] << ", should be " << b[i];
  }
}

// A mask that is drawn: what is kept is scaled, and about as much is kept as should be.
void expect_dropped(const Imported& imported, const std::map<ValueId, Tensor>& values) {
  const Graph& graph = imported.graph;
  const auto node =
      std::find_if(graph.order().begin(), graph.order().end(), [&](NodeId id) { return graph.node(id).op->name == "Dropout"; });
  ASSERT_NE(node, graph.order().end());
  const double keep = 1 - static_cast<double>(graph.node(*node).attributes.get("ratio", 0.5f));
  const std::vector<double> x = values.at(graph.inputs[0]).to_double(), y = values.at(graph.outputs[0]).to_double();
  double kept = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    kept += y[i] != 0;
    ASSERT_TRUE(y[i] == 0 || std::abs(y[i] - x[i] / keep) <= 1e-6 * std::abs(y[i])) << "element " << i;
  }
  const auto n = static_cast<double>(y.size());
  EXPECT_LE(std::abs(kept - n * keep), 4 * std::sqrt(n * keep * (1 - keep)));
  if (graph.outputs.size() < 2) return;
  const std::vector<double> mask = values.at(graph.outputs[1]).to_double();
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(mask[i] != 0, y[i] != 0) << "element " << i;
}

class OnnxOps : public ::testing::TestWithParam<std::string> {};

TEST_P(OnnxOps, GivesWhatTheStandardSays) {
  const std::string name = GetParam();
  const std::string path = (std::filesystem::temp_directory_path() / fmt::format("ort-train-{}-{}.onnx", name, ::getpid())).string();
  {
    File file = File::create(path);
    file.write(0, archive().bytes(name + "/model"));
  }
  struct Remove {
    std::string path;
    ~Remove() { std::filesystem::remove(path); }
  } remove{path};

  ImportOptions options;
  std::map<std::string, Tensor> fed;
  const Declared model = declared(path);
  for (size_t i = 0, at = 0; at < model.inputs.size(); ++i, ++at) {
    const std::string input = fmt::format("{}/input/{}", name, i), constant = fmt::format("{}/constant/{}", name, i);
    if (archive().entries.contains(constant))
      options.bound_inputs[model.inputs[at].name] = archive().tensor(constant);
    else
      fed[model.inputs[at].name] = archive().tensor(input);
  }
  const Imported imported = import_model(path, options, workers());

  std::string refusal;
  for (const Obstacle& obstacle : imported.obstacles) refusal += obstacle.node + ": " + obstacle.reason + "\n";
  for (const auto& [begin, reason] : kRefused) {
    if (name.starts_with(begin) && refusal.find(reason) != std::string::npos) return;
  }
  ASSERT_EQ(refusal, "");

  std::map<ValueId, Tensor> values;
  const ValueId random = imported.graph.find_value(kRandomInput);
  if (random != kNone) fed[kRandomInput] = make_tensor<int64_t>({kRandomNumbers}, {7, 1, 0, 1});
  for (ValueId input : imported.graph.inputs) values[input] = fed.at(imported.graph.value(input).name);
  values = run(imported, std::move(values));
  if (random != kNone) return expect_dropped(imported, values);
  size_t outputs = 0;
  for (; archive().entries.contains(fmt::format("{}/output/{}", name, outputs)); ++outputs) {
    const ValueId id = imported.graph.outputs.at(outputs);
    const Tensor* constant = imported.graph.constant(id);
    expect_close(constant ? *constant : values.at(id), archive().tensor(fmt::format("{}/output/{}", name, outputs)), outputs);
  }
  EXPECT_EQ(outputs, imported.graph.outputs.size());
}

INSTANTIATE_TEST_SUITE_P(Golden, OnnxOps, ::testing::ValuesIn(case_names()), [](const auto& info) {
  std::string name = info.param;
  for (char& c : name) c = std::isalnum(static_cast<unsigned char>(c)) ? c : '_';
  return name;
});

// Here, or among the standard's tests (tests/conformance.py).
TEST(OnnxOpsList, EveryFormHasAModel) {
  std::ifstream list(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/conformance/cases.tsv");
  std::set<std::string> passed;  // operators
  for (std::string line; std::getline(list, line);) {
    std::istringstream row(line);
    std::string name, op, result;
    if (std::getline(row, name, '\t') && std::getline(row, op, '\t') && std::getline(row, result, '\t') && result == "passed")
      passed.insert(op);
  }
  std::string models;
  for (const std::string& name : case_names()) {
    const std::vector<std::byte> bytes = archive().bytes(name + "/model");
    models.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  for (const OpDef* op : all_ops()) {
    if (op->name == "DrawNumbers") continue;  // which numbers, the standard doesn't say: tests/draw_test.cpp
    for (const OnnxForm& form : op->onnx) {
      // NodeProto.op_type is field 4: tag, length, name.
      const std::string field = std::string("\x22") + static_cast<char>(form.name.size()) + std::string(form.name);
      EXPECT_TRUE(models.find(field) != std::string::npos || passed.contains(std::string(form.name))) << form.domain << " " << form.name;
    }
  }
}

}  // namespace
}  // namespace ort_train
