// What tests/judge.py compares with ONNX Runtime: models that were trained here, and our own outputs of the trained weights. Each exported
// model is also read back, and must give the outputs of the weights in memory, bit for bit.
//
// Writes, into the folder that ORT_TRAIN_JUDGE_FOLDER names, NAME/model.onnx and NAME/outputs.npz: an array `input/I` for each input and
// `output/O` (flat) for each output of the model.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "frontend/import.h"
#include "frontend/ort_train.h"
#include "tests/golden_model.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

namespace fs = std::filesystem;

const std::string kSource = ORT_TRAIN_SOURCE_DIR;
constexpr int64_t kBatch = 3;

struct Case {
  std::string name;
  Options options;
};

Case golden(const std::string& file, const std::string& name) {
  Options options = golden_options(file);
  options.learning_rate = 1e-2;
  options.weight_decay = 0.01;
  options.max_steps = 6;
  options.batch_size = 2;
  return {.name = name, .options = options};
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const auto& entry : fs::directory_iterator(kSource + "/tests/golden")) {
    if (entry.path().extension() != ".onnx") continue;
    const std::string file = entry.path().stem().string();
    all.push_back(golden(file, file));
  }
  for (const char* file : {"gpt2-torchscript-17-sdpa", "gpt2-dynamo-20-folded"}) {
    Case split = golden(file, std::string(file) + "-split");
    split.options.gradient_accumulation_steps = 2;
    split.options.untie = true;
    all.push_back(split);
  }
  Case text{.name = "char-gpt", .options = {.model = kSource + "/models/char-gpt.onnx", .data = kSource + "/models/tinyshakespeare.txt"}};
  text.options.task = "causal-lm";
  text.options.seq_length = 64;
  text.options.learning_rate = 1e-3;
  text.options.max_steps = 5;
  all.push_back(text);
  std::sort(all.begin(), all.end(), [](const Case& a, const Case& b) { return a.name < b.name; });
  return all;
}

struct Inputs {
  std::map<std::string, std::vector<int64_t>> integers;
  std::map<std::string, std::vector<float>> reals;
  std::map<std::string, std::string> shapes;  // as NumPy writes them
};

// Tokens, the last two positions of the second sample masked. The axis behind the batch may be free: the sequence.
Inputs inputs_for(const std::string& model, int64_t sequence) {
  Inputs inputs;
  for (const DeclaredInput& input : declared(model).inputs) {
    int64_t width = 1;  // elements of a sample
    std::string shape;
    for (size_t axis = 1; axis < input.dims.size(); ++axis) {
      const bool fixed = !input.dims[axis].empty() && input.dims[axis].find_first_not_of("0123456789") == std::string::npos;
      const int64_t size = fixed ? std::stoll(input.dims[axis]) : sequence;
      width *= size;
      shape += ", " + std::to_string(size);
    }
    inputs.shapes[input.name] = "(" + std::to_string(kBatch) + shape + ")";
    for (int64_t i = 0; i < kBatch * width; ++i) {
      if (input.dtype == DType::float32)
        inputs.reals[input.name].push_back(static_cast<float>((i * 37 + 11) % 64 - 32) / 16);
      else if (input.name == "attention_mask")
        inputs.integers[input.name].push_back(i / width == 1 && i % width >= width - 2 ? 0 : 1);
      else if (input.name == "position_ids")
        inputs.integers[input.name].push_back(i % width);
      else if (input.name == "token_type_ids")
        inputs.integers[input.name].push_back(i % 2);
      else
        inputs.integers[input.name].push_back((i * i * 7 + 5 * i + 3) % 41);  // the smallest of their vocabularies
    }
  }
  return inputs;
}

struct Judge : testing::TestWithParam<Case> {};

TEST_P(Judge, AnExportedModelGivesTheOutputsOfTheWeightsInMemory) {
  const TestFolder temporary;
  const char* wanted = std::getenv("ORT_TRAIN_JUDGE_FOLDER");
  const std::string folder = (wanted != nullptr ? std::string(wanted) : temporary.path.string()) + "/" + GetParam().name;
  Options options = GetParam().options;
  options.output_dir = folder;
  options.predict_batch_size = kBatch;
  Trainer trainer(options);
  const Inputs inputs = inputs_for(options.model, trainer.plan().sequence);
  const auto untrained = trainer.predict(inputs.integers, inputs.reals);
  const Summary summary = trainer.train();
  ASSERT_EQ(summary.steps, options.max_steps);
  const auto outputs = trainer.predict(inputs.integers, inputs.reals);
  ASSERT_FALSE(outputs.empty());
  EXPECT_NE(outputs, untrained);

  options.model = summary.model_path;
  options.output_dir = folder + "/again";
  options.untie = false;  // it is
  options.retie = !GetParam().options.untie;
  if (options.task == "causal-lm") fs::copy_file(kSource + "/models/char-gpt.vocab.json", folder + "/model.vocab.json");
  Trainer again(options);
  EXPECT_EQ(again.predict(inputs.integers, inputs.reals), outputs);

  std::vector<ZipMember> arrays;
  for (const auto& [name, shape] : inputs.shapes) {
    const bool real = inputs.reals.contains(name);
    arrays.push_back({.name = "input/" + name + ".npy",
                      .content = npy(npy_description(real ? "<f4" : "<i8", shape),
                                     real ? bytes_of(inputs.reals.at(name)) : bytes_of(inputs.integers.at(name)))});
  }
  for (const auto& [name, values] : outputs) {
    arrays.push_back({.name = "output/" + name + ".npy",
                      .content = npy(npy_description("<f4", "(" + std::to_string(values.size()) + ",)"), bytes_of(values))});
  }
  write_file(folder + "/outputs.npz", zip(arrays));
}

INSTANTIATE_TEST_SUITE_P(Models, Judge, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace ort_train
