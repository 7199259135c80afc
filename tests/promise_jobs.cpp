#include "tests/promise_jobs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <functional>
#include <random>

#include "test_paths.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"

namespace ort_train::fixtures {
namespace {

const std::string kRoot = ORT_TRAIN_SOURCE_DIR;

// The same numbers with every standard library, which std::uniform_real_distribution doesn't promise.
struct Numbers {
  std::mt19937 bits{1};
  int64_t below(int64_t limit) { return static_cast<int64_t>(bits() % static_cast<uint32_t>(limit)); }
  std::vector<float> reals(int64_t count, float low, float high) {
    std::vector<float> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(low + (high - low) * static_cast<float>(bits() >> 8) / 16777216.0f);
    return values;
  }
  std::vector<int64_t> integers(int64_t count, int64_t limit) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < count; ++i) values.push_back(below(limit));
    return values;
  }
};

// A model in ONNX's text, its weights added one by one.
struct ModelText {
  explicit ModelText(Numbers& from) : numbers(from) {}

  Numbers& numbers;
  std::string body{};
  std::vector<ort_train_onnx::TensorProto> weights{};

  std::string weight(const std::vector<int64_t>& shape, float low = -0.1f, float high = 0.1f) {
    int64_t count = 1;
    for (int64_t dim : shape) count *= dim;
    weights.push_back(tensor_of(fmt::format("w{}", weights.size()), shape, numbers.reals(count, low, high)));
    return weights.back().name();
  }
  // `op` may have attributes; returns the name of the result.
  std::string node(const std::string& op, const std::vector<std::string>& inputs) {
    const std::string result = fmt::format("t{}", count_++);
    body += fmt::format("{} = {} ({})\n", result, op, fmt::join(inputs, ", "));
    return result;
  }
  std::string batch_norm(const std::string& x, int64_t channels) {
    const std::string scale = weight({channels}, 0.5f, 1.5f), bias = weight({channels}), mean = weight({channels}),
                      variance = weight({channels}, 0.5f, 1.5f);
    const std::string result = fmt::format("t{}", count_++);
    body += fmt::format("{0}, mean_{0}, variance_{0} = BatchNormalization <training_mode = 1> ({1}, {2}, {3}, {4}, {5})\n", result, x,
                        scale, bias, mean, variance);
    return result;
  }
  std::string write(const std::string& path, const std::string& ends) const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(R"(<ir_version: 8, opset_import: ["" : 17]> g {} {{ {} }})", ends, body));
    for (const auto& tensor : weights) *model.mutable_graph()->add_initializer() = tensor;
    return write_file(path, model.SerializeAsString());
  }

 private:
  int count_ = 0;
};

// Weights and optimizer state are most of its memory.
std::string write_perceptron(const TestFolder& folder, Numbers& numbers) {
  constexpr int64_t kWidth = 512, kInner = 2048;
  ModelText text(numbers);
  const std::string hidden = text.node("MatMul", {"x", text.weight({kWidth, kInner}, -0.05f, 0.05f)});
  const std::string active = text.node("Relu", {text.node("Add", {hidden, text.weight({kInner}, -0.05f, 0.05f)})});
  const std::string last = text.weight({kInner, kWidth}, -0.05f, 0.05f);
  text.body += fmt::format("out = Tanh ({})\n", text.node("MatMul", {active, last}));
  return text.write(folder / "perceptron.onnx", fmt::format("(float[batch, {0}] x) => (float[batch, {0}] out)", kWidth));
}

// A classifier of images with live BatchNorm: two convolutions, a residual one of two groups, pools; 70,000 parameters.
std::string write_residual(const TestFolder& folder, Numbers& numbers) {
  ModelText text(numbers);
  const std::string conv = "Conv <pads = [1, 1, 1, 1]>";
  std::string x = text.node("Relu", {text.batch_norm(text.node(conv, {"image", text.weight({32, 3, 3, 3})}), 32)});
  x = text.batch_norm(text.node(conv, {x, text.weight({48, 32, 3, 3})}), 48);
  x = text.node("MaxPool <kernel_shape = [2, 2], strides = [2, 2]>", {x});
  std::string y = text.node("Conv <pads = [1, 1, 1, 1], group = 2>", {x, text.weight({48, 24, 3, 3})});
  y = text.node("Relu", {text.batch_norm(y, 48)});
  y = text.batch_norm(text.node(conv, {y, text.weight({48, 48, 3, 3}), text.weight({48})}), 48);
  x = text.node("Flatten", {text.node("GlobalAveragePool", {text.node("Relu", {text.node("Add", {x, y})})})});
  const std::string last = text.weight({48, 5}), bias = text.weight({5});
  text.body += fmt::format("out = Gemm ({}, {}, {})\n", x, last, bias);
  return text.write(folder / "residual.onnx", "(float[batch, 3, 8, 8] image) => (float[batch, 5] out)");
}

// Running statistics of 80 kB each: large enough to leave the memory.
std::string write_wide(const TestFolder& folder, Numbers& numbers) {
  ModelText text(numbers);
  const std::string x = text.batch_norm(text.node("Flatten", {"image"}), 20'000);
  const std::string last = text.weight({20'000, 5}), bias = text.weight({5});
  text.body += fmt::format("out = Gemm ({}, {}, {})\n", x, last, bias);
  return text.write(folder / "wide.onnx", "(float[batch, 20000] image) => (float[batch, 5] out)");
}

// Data for all of them; samples of sequences have all lengths.
struct Data {
  std::string tokens, masked, classes, images, wide, vectors;
};
Data write_data(const TestFolder& folder, Numbers& numbers) {
  constexpr int64_t kSamples = 150, kLength = 16, kWide = 60;
  Data data;
  std::vector<uint16_t> text;
  for (int64_t i = 0; i < 8000; ++i) text.push_back(static_cast<uint16_t>(numbers.below(50)));
  data.tokens = write_file(folder / "tokens.bin", bytes_of(text));

  std::vector<int64_t> tokens, mask, types, labels, kinds;
  for (int64_t sample = 0; sample < kSamples; ++sample) {
    const int64_t end = 5 + numbers.below(12);
    for (int64_t at = 0; at < kLength; ++at) {
      tokens.push_back(1 + numbers.below(60));
      mask.push_back(at < end);
      types.push_back(numbers.below(2));
      labels.push_back(at < end && numbers.below(10) < 3 ? tokens.back() : -100);
    }
    kinds.push_back(tokens[static_cast<size_t>(sample * kLength + 1)] % 3);
  }
  Arrays sequences;
  sequences.add("input_ids", {kSamples, kLength}, tokens)
      .add("attention_mask", {kSamples, kLength}, mask)
      .add("token_type_ids", {kSamples, kLength}, types);
  data.masked = Arrays(sequences).add("labels", {kSamples, kLength}, labels).write(folder / "masked.safetensors");
  data.classes = Arrays(sequences).add("labels", {kSamples}, kinds).write(folder / "classes.safetensors");

  Numbers more;  // so that the other data stay what they are
  data.images = Arrays{}
                    .add("image", {kSamples, 3, 8, 8}, numbers.reals(kSamples * 3 * 8 * 8, -2, 2))
                    .add("labels", {kSamples}, numbers.integers(kSamples, 5))
                    .add("hint", {kSamples, 2, 8, 8}, more.reals(kSamples * 2 * 8 * 8, -2, 2))
                    .write(folder / "images.safetensors");
  data.wide = Arrays{}
                  .add("image", {kWide, 20'000}, numbers.reals(kWide * 20'000, -2, 2))
                  .add("labels", {kWide}, numbers.integers(kWide, 5))
                  .write(folder / "wide.safetensors");
  data.vectors = Arrays{}
                     .add("x", {kWide, 512}, numbers.reals(kWide * 512, -2, 2))
                     .add("labels", {kWide, 512}, numbers.reals(kWide * 512, -2, 2))
                     .write(folder / "vectors.safetensors");
  return data;
}

}  // namespace

std::vector<PromiseJob> promise_jobs(const TestFolder& folder, const std::string& profile) {
  Numbers numbers;
  const std::string perceptron = write_perceptron(folder, numbers), residual = write_residual(folder, numbers),
                    wide = write_wide(folder, numbers);
  const Data data = write_data(folder, numbers);
  std::vector<PromiseJob> jobs;
  const auto add = [&](const char* name, const std::string& model, const std::string& samples, int64_t batch, int64_t steps,
                       const std::function<void(Options&)>& more) {
    Options o{.model = model, .data = samples, .batch_size = batch};
    o.learning_rate = 1e-3;
    o.max_steps = steps;
    o.threads = 1;
    o.profile = profile;
    more(o);
    jobs.push_back({name, o});
  };
  const auto accumulating = [](Options& o) { o.gradient_accumulation_steps = 3; };
  const auto evaluated = [](Options& o) {
    o.eval_steps = 2;
    o.eval_batches = 1;
  };
  const auto both = [&](Options& o) {
    accumulating(o);
    evaluated(o);
  };
  const auto text = [&](const char* name, int64_t steps, const std::function<void(Options&)>& more) {
    add(name, kRoot + "/models/char-gpt.onnx", kRoot + "/models/tinyshakespeare.txt", 2, steps, [&](Options& o) {
      o.task = "causal-lm";
      o.seq_length = 128;
      evaluated(o);
      more(o);
    });
  };
  const auto vectors = [&](const char* name, int64_t batch, int64_t steps, const std::function<void(Options&)>& more) {
    add(name, perceptron, data.vectors, batch, steps, [&](Options& o) {
      o.loss = "mse";
      more(o);
    });
  };
  const auto gpt2 = [&](const char* name, const char* model, int64_t steps, const std::function<void(Options&)>& more) {
    add(name, kRoot + "/tests/golden/" + model + ".onnx", data.tokens, 64, steps, [&](Options& o) {
      o.task = "causal-lm";
      o.seq_length = 16;
      more(o);
    });
  };
  const auto bert = [&](const char* name, const char* model, const std::string& samples, int64_t batch, int64_t steps,
                        const std::function<void(Options&)>& more) {
    add(name, kRoot + "/tests/golden/" + model + ".onnx", samples, batch, steps, more);
  };
  const auto nothing = [](Options&) {};

  text("char-gpt", 3, accumulating);
  text("char-gpt, weight decay", 3, [](Options& o) { o.weight_decay = 0.1; });
  vectors("perceptron", 16, 6, evaluated);
  vectors("perceptron, accumulating", 8, 3, accumulating);
  vectors("perceptron, sgd", 16, 3, [](Options& o) {
    o.optim = "sgd";
    o.max_grad_norm = 0;
  });
  vectors("perceptron, adafactor", 16, 3, [](Options& o) { o.optim = "adafactor"; });
  vectors("perceptron, lamb, accumulating", 8, 3, [&](Options& o) {
    o.optim = "lamb";
    o.weight_decay = 0.1;
    accumulating(o);
  });
  gpt2("gpt2 of dynamo", "gpt2-dynamo-20-folded", 4, evaluated);
  gpt2("gpt2 of torchscript", "gpt2-torchscript-18-folded", 3, nothing);
  gpt2("gpt2 of torchscript, accumulating", "gpt2-torchscript-23-eager", 2, accumulating);
  gpt2("gpt2 of dynamo, accumulating", "gpt2-dynamo-20-sdpa-odd", 2, accumulating);
  gpt2("gpt2 of dynamo, adafactor, accumulating", "gpt2-dynamo-20-sdpa-odd", 2, [&](Options& o) {
    o.optim = "adafactor";
    o.weight_decay = 0.1;
    accumulating(o);
  });
  bert("bert of dynamo", "bert-dynamo-18-masked", data.masked, 64, 3, evaluated);
  bert("bert of torchscript, accumulating", "bert-torchscript-20-classes", data.classes, 48, 2, accumulating);
  bert("bert of torchscript, dropout", "dropout/bert-torchscript-17", data.masked, 64, 4, evaluated);
  bert("bert of dynamo, dropout, accumulating", "dropout/bert-dynamo-20", data.classes, 32, 3, accumulating);
  add("cnn of torchscript, accumulating", kRoot + "/tests/golden/cnn-torchscript-17-live.onnx", data.images, 40, 3, both);
  add("residual cnn", residual, data.images, 32, 4, evaluated);
  add("residual cnn, sgd, accumulating", residual, data.images, 16, 2, [&](Options& o) {
    o.optim = "sgd";
    o.optim_args["momentum"] = 0.9;
    accumulating(o);
  });
  add("residual cnn, adafactor, frozen", residual, data.images, 32, 3, [](Options& o) {
    o.optim = "adafactor";
    o.batch_norm = "frozen";
    o.max_grad_norm = 0;
  });
  // In mixed precision, and with 16-bit weights.
  text("char-gpt, bf16", 3, [&](Options& o) {
    o.bf16 = true;
    accumulating(o);
  });
  vectors("perceptron, bf16", 16, 3, [](Options& o) { o.bf16 = true; });
  vectors("perceptron, fp16, adafactor, its first step overflows", 16, 3, [](Options& o) {
    o.fp16 = true;
    o.optim = "adafactor";
    o.loss_scale_init = 1e12;
    o.loss_scale_backoff = 1e-8;
  });
  vectors("perceptron, bf16 weights, 8-bit state", 16, 4, [&](Options& o) {
    o.bf16_full = true;
    o.optim = "adamw_8bit";
    evaluated(o);
  });
  gpt2("gpt2 of dynamo, bf16 weights, accumulating", "gpt2-dynamo-20-sdpa-odd", 2, [&](Options& o) {
    o.bf16_full = true;
    accumulating(o);
  });
  bert("bert of torchscript, dropout, bf16", "dropout/bert-torchscript-17", data.masked, 64, 3, [](Options& o) { o.bf16 = true; });
  add("residual cnn, bf16", residual, data.images, 32, 4, [&](Options& o) {
    o.bf16 = true;
    evaluated(o);
  });
  add("running statistics that leave the memory", wide, data.wide, 8, 2, both);
  // Adapters beside frozen weights, in the file's numbers and in few bits.
  text("char-gpt, adapters", 3, [&](Options& o) {
    o.lora_rank = 4;
    o.lora_dropout = 0.1;
    accumulating(o);
  });
  vectors("perceptron, adapters on 4 bits", 16, 3, [](Options& o) {
    o.lora_rank = 2;
    o.base_dtype = "nf4";
  });
  add("residual cnn, adapters", residual, data.images, 32, 3, [](Options& o) {
    o.lora_rank = 2;
    o.lora_target = {"*"};
  });
  text("char-gpt, DoRA, dropout", 3, [&](Options& o) {
    o.lora_rank = 4;
    o.lora_dropout = 0.1;
    o.use_dora = true;
    accumulating(o);
  });
  vectors("perceptron, DoRA on 4 bits, bf16", 16, 3, [](Options& o) {
    o.lora_rank = 2;
    o.use_dora = true;
    o.base_dtype = "nf4";
    o.double_quant = true;
    o.bf16 = true;
  });
  add("residual cnn, DoRA", residual, data.images, 32, 3, [](Options& o) {
    o.lora_rank = 2;
    o.use_dora = true;
    o.lora_target = {"*"};
  });
  text("char-gpt, (IA)3 on 8 bits, head and table, too", 3, [](Options& o) {
    o.ia3_target = {"*attn*"};
    o.ia3_feedforward = {"*mlp*"};
    o.base_dtype = "int8";
    o.base_target = {"*"};
  });
  // Trained copies of frozen blocks.
  text("char-gpt, control", 3, [&](Options& o) {
    o.control = {"h.1"};
    accumulating(o);
  });
  bert("bert of torchscript, dropout, control", "dropout/bert-torchscript-17", data.masked, 64, 3,
       [](Options& o) { o.control = {"layer.0"}; });
  add("residual cnn, control with a condition", residual, data.images, 32, 3, [](Options& o) {
    o.control = {"w5", "w6", "w10"};  // two convolutions, a BatchNorm, and the pool between them
    o.control_input = "hint=2,8,8";
  });
  return jobs;
}

}  // namespace ort_train::fixtures
