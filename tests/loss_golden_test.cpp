// Every loss against PyTorch (tests/golden/losses.safetensors, written by models/golden_losses.py): its value, and its gradient with
// respect to the outputs that it reads, in float64 and float32; and what Options::loss may say.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "exec/kernel.h"
#include "exec/workers.h"
#include "frontend/element.h"
#include "frontend/file.h"
#include "frontend/loss_options.h"
#include "frontend/safetensors.h"
#include "graph/autodiff.h"
#include "passes/losses.h"
#include "test_paths.h"
#include "tests/onnx_models.h"

namespace ort_train {
namespace {

struct GoldenLosses {
  GoldenLosses() : file(File::open(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/losses.safetensors")) {
    SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);
    texts = std::move(header.metadata);
    for (const SafetensorsEntry& entry : header.entries) entries.emplace(entry.name, entry);
  }
  bool has(const std::string& name) const { return entries.contains(name); }
  Tensor at(const std::string& name, DType floating) const {
    const SafetensorsEntry& entry = entries.at(name);
    std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes));
    file.read(entry.offset, bytes);
    Tensor tensor(entry.element == Element::int64 ? DType::int64 : floating, entry.shape);
    convert(entry.element, bytes, tensor.dtype, tensor.bytes);
    return tensor;
  }
  File file;
  std::map<std::string, std::string> texts;  // --loss by case
  std::map<std::string, SafetensorsEntry> entries;
};

std::map<ValueId, Tensor> run(const Graph& graph, std::map<ValueId, Tensor> values) {
  Workers workers(2);
  for (ValueId id = 0; id < graph.value_count(); ++id) {
    if (graph.constant(id) != nullptr) values[id] = *graph.constant(id);
  }
  for (const NodeId id : graph.order()) {
    const Node& node = graph.node(id);
    std::vector<const Tensor*> inputs;
    for (const ValueId input : node.inputs) inputs.push_back(input == kNone ? nullptr : &values.at(input));
    std::vector<Tensor> outputs = evaluate(*node.op, node.attributes, inputs, node.outputs.size(), workers);
    for (size_t i = 0; i < outputs.size(); ++i) {
      if (node.outputs[i] != kNone) values[node.outputs[i]] = std::move(outputs[i]);
    }
  }
  return values;
}

double relative_distance(const std::vector<double>& a, const std::vector<double>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (a[i] - b.at(i)) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference) / std::max(std::sqrt(norm), 1e-30);
}

TEST(LossesOfPyTorch, AreOurs) {
  const GoldenLosses golden;
  std::set<std::string> kinds;
  for (const auto& [name, text] : golden.texts) {
    for (const DType dtype : {DType::float64, DType::float32}) {
      SCOPED_TRACE(name + " " + std::string(to_string(dtype)) + ": " + text);
      Options options;
      options.loss = text;
      options.labels = "l0";
      LossSpec spec = parse_losses(options);
      Graph graph;
      std::map<ValueId, Tensor> values;
      for (size_t i = 0; golden.has(fmt::format("{}/outputs/{}", name, i)); ++i) {
        Tensor output = golden.at(fmt::format("{}/outputs/{}", name, i), dtype);
        const ValueId id = graph.add_value(
            {.name = fmt::format("y{}", i), .dtype = output.dtype, .shape = output.shape, .kind = ValueKind::parameter, .trainable = true});
        graph.outputs.push_back(id);
        values[id] = std::move(output);
      }
      const std::vector<ValueId> outputs = graph.outputs;
      for (LossTerm& term : spec.terms) {
        kinds.insert(term.kind);
        if (term.kind == "ctc") term.longest = golden.entries.at(name + "/labels/0").shape[1];
      }
      const std::vector<JobLoss> losses = build_losses(graph, spec);
      ASSERT_EQ(losses.size(), spec.terms.size());
      for (size_t i = 0; i < losses.size(); ++i) {
        for (size_t at = 0; at < losses[i].labels.size(); ++at)
          values[losses[i].labels[at]] = golden.at(fmt::format("{}/labels/{}", name, spec.terms[i].labels.at(at).substr(1)), dtype);
      }
      const std::map<ValueId, Tensor> forward = run(graph, values);
      double total = 0;
      std::vector<Seed> seeds;
      for (const JobLoss& loss : losses) {
        const auto samples = static_cast<double>(graph.value(outputs[0]).shape[0]);
        const double counted = loss.counted == Counted::labels    ? forward.at(loss.count).to_double()[0]
                               : loss.counted == Counted::samples ? samples * loss.per_sample
                                                                  : 1;
        total += loss.weight * forward.at(loss.sum).to_double()[0] / counted;
        const DType type = graph.value(loss.sum).dtype;
        const double factor = loss.weight / counted;
        Tensor scale = type == DType::float64 ? scalar_tensor(factor) : scalar_tensor(static_cast<float>(factor));
        seeds.push_back({.value = loss.sum, .gradient = graph.add_constant(std::move(scale))});
      }
      const double tolerance = dtype == DType::float64 ? 1e-7 : 3e-6;  // weights of classes and smoothing are float32
      const double wanted = golden.at(name + "/loss", DType::float64).to_double()[0];
      EXPECT_NEAR(total, wanted, tolerance * std::max(1.0, std::abs(wanted)));

      const auto uses = differentiate_uses(graph, seeds);
      std::map<ValueId, ValueId> gradients;
      for (const auto& [parameter, of_uses] : uses) {
        Builder builder(graph, Stage::backward);
        gradients[parameter] = add_up(builder, of_uses);
      }
      graph.verify("differentiate");
      const std::map<ValueId, Tensor> backward = run(graph, values);
      for (size_t i = 0; i < outputs.size(); ++i) {
        const std::vector<double> expected = golden.at(fmt::format("{}/gradients/{}", name, i), DType::float64).to_double();
        ASSERT_TRUE(gradients.contains(outputs[i]));
        EXPECT_LE(relative_distance(backward.at(gradients.at(outputs[i])).to_double(), expected), tolerance) << "output " << i;
      }
    }
  }
  for (const std::string& kind : loss_names()) {
    if (kind == "distillation") continue;  // that of its graph, with a teacher: attached_models_test.cpp
    EXPECT_TRUE(kinds.contains(kind)) << kind << " has no golden values";
  }
}

LossSpec parsed(const std::string& text) {
  Options options;
  options.loss = text;
  return parse_losses(options);
}

TEST(LossText, NamesOutputsWeightsParametersAndLabels) {
  const LossSpec spec = parsed("logits:0:cross_entropy(label_smoothing=0.1, weight=[1, 2,3])*0.5@y, a+b:info_nce (temperature = 0.1), mse");
  ASSERT_EQ(spec.terms.size(), 3u);
  EXPECT_EQ(spec.terms[0].outputs, std::vector<std::string>{"logits:0"});
  EXPECT_EQ(spec.terms[0].weight, 0.5);
  EXPECT_EQ(spec.terms[0].labels, std::vector<std::string>{"y"});
  EXPECT_EQ(spec.terms[0].parameters.at("weight"), (std::vector<double>{1, 2, 3}));
  EXPECT_EQ(spec.terms[1].outputs, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(spec.terms[1].parameters.at("temperature"), std::vector<double>{0.1});
  EXPECT_EQ(spec.terms[2].outputs, std::vector<std::string>{});
  // Where several read labels, each has an array of its own.
  const LossSpec two = parsed("logits:cross_entropy*1.0,boxes:smooth_l1*0.5");
  EXPECT_EQ(two.terms[0].labels, std::vector<std::string>{"logits_labels"});
  EXPECT_EQ(two.terms[1].labels, std::vector<std::string>{"boxes_labels"});
  EXPECT_EQ(parsed("").terms[0].kind, "cross_entropy");
}

TEST(LossText, WhatIsWrongIsSaid) {
  const auto refusal = [](const std::string& text) { return std::string(fixtures::error_of([&] { parsed(text); }).what()); };
  using ::testing::HasSubstr;
  EXPECT_THAT(refusal("hinge"), HasSubstr("`loss` hinge is not known; these are: cross_entropy, nll, mse"));
  EXPECT_THAT(refusal("mse(beta=1)"), HasSubstr("mse has no parameter 'beta'; it has none"));
  EXPECT_THAT(refusal("smooth_l1(delta=1)"), HasSubstr("smooth_l1 has no parameter 'delta'; it has beta"));
  EXPECT_THAT(refusal("smooth_l1(beta=-1)"), HasSubstr("`beta` -1: has to lie between 0 and"));
  EXPECT_THAT(refusal("smooth_l1(beta=x)"), HasSubstr("'x' is no number"));
  EXPECT_THAT(refusal("smooth_l1(beta=[1,2])"), HasSubstr("`beta` is one number"));
  EXPECT_THAT(refusal("smooth_l1(beta=1"), HasSubstr("a ')' is missing"));
  EXPECT_THAT(refusal("mse*"), HasSubstr("'' is no number"));
  EXPECT_THAT(refusal("mse,"), HasSubstr("names no loss"));
  EXPECT_THAT(refusal("triplet@y"), HasSubstr("triplet reads no labels"));
  EXPECT_THAT(refusal("mse@a+b"), HasSubstr("mse reads one array of labels"));
  EXPECT_THAT(refusal("cross_entropy(weight=@/nowhere.npy)"), HasSubstr("/nowhere.npy"));
  EXPECT_THAT(refusal("cross_entropy(axis)"), HasSubstr("'axis' has no value"));
}

}  // namespace
}  // namespace ort_train
