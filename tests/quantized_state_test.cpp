// Optimizer state in 8 bits: its codes against bitsandbytes' (tests/golden/dynamic8.safetensors, written by models/golden_dynamic8.py),
// what rounding costs, which weights have it, and runs with it: in parts, in packs, streamed, resumed.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>

#include "exec/dynamic8.h"
#include "exec/kernel.h"
#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "graph/onnx/writer.h"
#include "passes/pack_weights.h"
#include "test_paths.h"
#include "tests/arrays.h"
#include "tests/chain_model.h"
#include "tests/discrete_device.h"
#include "tests/onnx_models.h"
#include "tests/plan_support.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using ::testing::HasSubstr;

// --- codes ----------------------------------------------------------------------------------------------------------------------------

struct Golden {
  Golden() : file(File::open(std::string(ORT_TRAIN_SOURCE_DIR) + "/tests/golden/dynamic8.safetensors")) {
    for (const SafetensorsEntry& entry : read_safetensors_header(file, ErrorCode::data).entries) entries.emplace(entry.name, entry);
  }
  template <typename T = float> std::vector<T> values(const std::string& name) const {
    const SafetensorsEntry& entry = entries.at(name);
    std::vector<T> result(static_cast<size_t>(entry.bytes) / sizeof(T));
    file.read(entry.offset, std::as_writable_bytes(std::span(result)));
    return result;
  }
  File file;
  std::map<std::string, SafetensorsEntry> entries;
};

constexpr DType kTypes[] = {DType::dynamic8, DType::dynamic8_unsigned};
const char* kind_of(DType type) { return type == DType::dynamic8 ? "signed" : "unsigned"; }

std::vector<uint8_t> encoded(DType type, const std::vector<float>& numbers, bool as_bitsandbytes = false) {
  std::vector<uint8_t> blocks(static_cast<size_t>(bytes_of(type, static_cast<int64_t>(numbers.size()))));
  for (size_t at = 0; at * kDynamic8Block < numbers.size(); ++at)
    dynamic8::codec(type, as_bitsandbytes).encode(numbers.data() + at * kDynamic8Block, blocks.data() + at * kDynamic8BlockBytes);
  return blocks;
}
std::vector<float> decoded(DType type, const std::vector<uint8_t>& blocks) {
  std::vector<float> numbers(blocks.size() / kDynamic8BlockBytes * kDynamic8Block);
  for (size_t at = 0; at * kDynamic8Block < numbers.size(); ++at)
    dynamic8::codec(type, false).decode(blocks.data() + at * kDynamic8BlockBytes, numbers.data() + at * kDynamic8Block);
  return numbers;
}
uint8_t code_of(const std::vector<uint8_t>& blocks, size_t i) {
  return blocks[i / kDynamic8Block * kDynamic8BlockBytes + i % kDynamic8Block];
}

TEST(Dynamic8, MapIsThatOfBitsandbytes) {
  const Golden golden;
  for (const DType type : kTypes) {
    const std::vector<float> wanted = golden.values(std::string("map/") + kind_of(type));
    const std::array<float, 256>& map = dynamic8_map(type);
    EXPECT_TRUE(std::equal(map.begin(), map.end(), wanted.begin(), wanted.end())) << kind_of(type);
  }
}

TEST(Dynamic8, RoundsAsBitsandbytesWhereThatIsAskedFor) {
  const Golden golden;
  for (const DType type : kTypes) {
    const std::vector<float> numbers = golden.values(std::string("numbers/") + kind_of(type));
    const std::vector<uint8_t> found = encoded(type, numbers, true), codes = golden.values<uint8_t>(std::string("codes/") + kind_of(type));
    const std::vector<float> scales = golden.values(std::string("scales/") + kind_of(type));
    for (size_t i = 0; i < numbers.size(); ++i) {
      ASSERT_EQ(int{code_of(found, i)}, int{codes[i]}) << kind_of(type) << ' ' << i << ": " << numbers[i];
      if (i % kDynamic8Block == 0) {
        EXPECT_EQ(dynamic8::scale_of(found.data() + i / kDynamic8Block * kDynamic8BlockBytes), scales[i / kDynamic8Block]);
      }
    }
  }
}

TEST(Dynamic8, CodesAreNumbersOfTheMapTimesTheScale) {
  for (const DType type : kTypes) {
    for (const float scale : {1.0f, 1.7e-5f, 3e20f}) {
      std::vector<uint8_t> block(kDynamic8BlockBytes);
      for (int i = 0; i < 256; ++i) block[static_cast<size_t>(i)] = static_cast<uint8_t>(i);
      std::memcpy(block.data() + kDynamic8Block, &scale, sizeof(scale));
      const std::vector<float> found = decoded(type, block);
      std::vector<float> exact(256);
      dequantize(type, std::as_bytes(std::span(block)), exact);
      for (size_t i = 0; i < 256; ++i) {
        EXPECT_EQ(exact[i], dynamic8_map(type)[i] * scale);
        EXPECT_NEAR(found[i], exact[i], 1.1e-6 * std::abs(exact[i])) << kind_of(type) << ' ' << i;
      }
    }
  }
}

std::vector<float> over_all_decades(bool is_signed, size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<float> numbers(n);
  for (size_t i = 0; i < n; ++i) {
    const double u = random() * 0x1p-32;
    numbers[i] = static_cast<float>(random() % 3 == 0 ? u : std::pow(10.0, -8 * u));
    if (is_signed && random() % 2 == 0) numbers[i] = -numbers[i];
  }
  return numbers;
}

TEST(Dynamic8, TakesTheNearestCodeAndKeepsWhatIsntZero) {
  for (const DType type : kTypes) {
    std::vector<float> numbers = over_all_decades(type == DType::dynamic8, 4096 * kDynamic8Block, 5);
    for (size_t i = 0; i < numbers.size(); i += kDynamic8Block) numbers[i] = 1, numbers[i + 1] = 0, numbers[i + 2] = -0.0f;
    const std::vector<uint8_t> blocks = encoded(type, numbers);
    const std::array<float, 256>& map = dynamic8_map(type);
    for (size_t i = 0; i < numbers.size(); ++i) {
      const float x = numbers[i];
      const auto above = static_cast<size_t>(std::lower_bound(map.begin(), map.end(), x) - map.begin());
      const double nearest = above == 0 ? std::abs(map[0] - x) : std::min<double>(std::abs(map[above] - x), std::abs(map[above - 1] - x));
      const uint8_t code = code_of(blocks, i);
      if (type == DType::dynamic8_unsigned && x > 0 && x < map[1]) {
        ASSERT_EQ(code, 1) << x;
      } else {
        ASSERT_LE(std::abs(map[code] - double{x}), nearest + 4e-7 * std::abs(x)) << kind_of(type) << ' ' << x;
      }
      if (x == 0) {
        ASSERT_EQ(map[code], 0);
      }
    }
  }
  for (const DType type : kTypes) {  // nothing to divide by
    for (const float x : {0.0f, 1e-42f}) {
      const std::vector<float> found = decoded(type, encoded(type, std::vector<float>(kDynamic8Block, x)));
      for (const float y : found) EXPECT_LE(std::abs(y), 1e-42f);
    }
  }
}

// Dettmers et al. and the measurements of bitsandbytes' own tests: mean absolute error, and relative to the number.
TEST(Dynamic8, ErrorIsThatOfTheMap) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform(0, 1);
  struct Case {
    DType type;
    bool normal;
    double absolute, relative;
  };
  for (const Case& c : {Case{DType::dynamic8, true, 0.0085, 0.0154},
                        {DType::dynamic8, false, 0.00318, 0.00993},
                        {DType::dynamic8_unsigned, false, 0.0016, 0.00501}}) {
    std::vector<float> numbers(4096 * kDynamic8Block);
    for (float& x : numbers) x = c.normal ? normal(random) : uniform(random);
    const std::vector<float> found = decoded(c.type, encoded(c.type, numbers));
    double absolute = 0, relative = 0;
    for (size_t i = 0; i < numbers.size(); ++i) {
      const double off = std::abs(double{found[i]} - numbers[i]);
      absolute += off, relative += off / (std::abs(numbers[i]) + 1e-8);
    }
    EXPECT_NEAR(absolute / static_cast<double>(numbers.size()), c.absolute, 0.01 * c.absolute);
    EXPECT_NEAR(relative / static_cast<double>(numbers.size()), c.relative, 0.02 * c.relative);
  }
}

// --- updates --------------------------------------------------------------------------------------------------------------------------

// AdamW on a vector, with its state in 8 bits or not.
struct Adam {
  Tensor p, m, v;
  Workers* workers;
  int64_t step = 0;
  double rate = 1e-3;
  bool as_bitsandbytes = false;

  Adam(const std::vector<float>& start, bool quantized, Workers& by)
      : p(make_tensor<float>({static_cast<int64_t>(start.size())}, start)),
        m(quantized ? DType::dynamic8 : DType::float32, p.shape),
        v(quantized ? DType::dynamic8_unsigned : DType::float32, p.shape),
        workers(&by) {}
  void update(const std::vector<float>& gradient) {
    const std::vector<float> numbers = make_optimizer("adamw").scalars(++step, rate);
    const Tensor g = make_tensor<float>(p.shape, gradient), factor = scalar_tensor(1.0f),
                 scalars = make_tensor<float>({static_cast<int64_t>(numbers.size())}, numbers);
    const Attributes attributes{{"bitsandbytes", static_cast<int64_t>(as_bitsandbytes)}};
    std::vector<Tensor> next = evaluate(op_named("AdamW"), attributes, {&p, &g, &factor, &scalars, &m, &v}, 3, *workers);
    p = next[0], m = next[1], v = next[2];
  }
};

TEST(QuantizedState, AdamAsBitsandbytesGoesWhereItsOwnGoes) {
  const Golden golden;
  Workers workers(1);
  Adam adam(golden.values("adam/start"), true, workers);
  adam.as_bitsandbytes = true;
  adam.rate = 1e-2;
  const std::vector<float> gradients = golden.values("adam/gradients"), values = golden.values("adam/values");
  const size_t n = adam.p.bytes.size() / 4;
  for (size_t step = 0; step * n < values.size(); ++step) {
    adam.update(
        {gradients.begin() + static_cast<std::ptrdiff_t>(step * n), gradients.begin() + static_cast<std::ptrdiff_t>((step + 1) * n)});
    size_t off = 0;
    for (size_t i = 0; i < n; ++i) off += std::abs(adam.p.data<float>()[i] - values[step * n + i]) > 1e-6f;
    EXPECT_LE(off, 2u) << "but for what lies between two codes: step " << step;
  }
}

TEST(QuantizedState, StepsAreWithinBitsandbytesBoundsOfThoseInFloat32) {
  Workers workers(2);
  std::mt19937 random(11);
  std::normal_distribution<float> normal(0, 0.1f), small(0, 0.01f);
  std::vector<float> start(32768);
  for (float& x : start) x = normal(random);
  Adam plain(start, false, workers), quantized(start, true, workers);
  for (int step = 0; step < 50; ++step) {
    std::vector<float> gradient(start.size());
    for (float& x : gradient) x = small(random);
    plain.update(gradient);
    quantized.update(gradient);
    double absolute = 0, relative = 0;
    for (size_t i = 0; i < start.size(); ++i) {
      const double off = std::abs(double{plain.p.data<float>()[i]} - quantized.p.data<float>()[i]);
      absolute += off, relative += off / (std::abs(double{plain.p.data<float>()[i]}) + 1e-9);
    }
    EXPECT_LT(absolute / static_cast<double>(start.size()), 6e-5) << step;
    EXPECT_LT(relative / static_cast<double>(start.size()), 6e-4 * 10) << step;  // some parameters are nearly 0
    quantized.p = plain.p;
  }
}

// Gradients of very different sizes in one block: no mean square that isn't 0 becomes 0, and so no step grows without bounds.
TEST(QuantizedState, NoStepIsDividedByAMeanSquareThatBecameZero) {
  Workers workers(2);
  for (const double sigma : {1.0, 2.0}) {
    std::mt19937 random(13);
    std::normal_distribution<double> normal;
    std::vector<float> sizes(65536);
    for (float& size : sizes) size = static_cast<float>(std::exp(sigma * normal(random)) * 1e-3);
    double longest[2] = {};
    for (const bool as_bitsandbytes : {false, true}) {
      Adam adam(std::vector<float>(sizes.size()), true, workers);
      adam.as_bitsandbytes = as_bitsandbytes;
      std::mt19937 of_step(17);
      std::normal_distribution<float> noise;
      for (int step = 0; step < 50; ++step) {
        std::vector<float> gradient = sizes;
        for (float& x : gradient) x *= noise(of_step);
        const Tensor before = adam.p;
        adam.update(gradient);
        if (step < 49) continue;
        for (size_t i = 0; i < sizes.size(); ++i)
          longest[as_bitsandbytes] =
              std::max(longest[as_bitsandbytes], std::abs(double{adam.p.data<float>()[i]} - before.data<float>()[i]) / 1e-3);
      }
    }
    EXPECT_LT(longest[0], 2) << sigma;
    if (sigma == 2) {
      EXPECT_GT(longest[1], 100) << "the rule is needed";
    }
  }
}

// Any number of threads, and in parts that begin at blocks; the last block is short.
TEST(QuantizedState, PartsAndThreadsHaveTheBitsOfTheWhole) {
  constexpr size_t kElements = 3 * 32768 + 77;
  std::mt19937 random(19);
  std::normal_distribution<float> normal;
  std::vector<float> start(kElements);
  std::vector<std::vector<float>> gradients(4, start);
  for (float& x : start) x = normal(random);
  for (auto& gradient : gradients) {
    for (float& x : gradient) x = normal(random);
  }
  std::vector<std::byte> wanted[3];
  for (const int threads : {1, 2, 3, 8}) {
    Workers workers(threads);
    Adam adam(start, true, workers);
    for (const auto& gradient : gradients) adam.update(gradient);
    const std::vector<std::byte>* const found[3] = {&adam.p.bytes, &adam.m.bytes, &adam.v.bytes};
    for (int i = 0; i < 3; ++i) {
      if (threads == 1) wanted[i] = *found[i];
      EXPECT_TRUE(wanted[i] == *found[i]) << threads;
    }
  }
  Workers workers(2);
  std::vector<std::byte> joined[3];
  for (size_t first = 0, rows; first < kElements; first += rows) {
    rows = std::min<size_t>(kElements - first, (first / 256 % 5 + 1) * 256 * 31);
    const auto range = [&](const std::vector<float>& all) {
      return std::vector<float>(all.begin() + static_cast<std::ptrdiff_t>(first), all.begin() + static_cast<std::ptrdiff_t>(first + rows));
    };
    Adam adam(range(start), true, workers);
    for (const auto& gradient : gradients) adam.update(range(gradient));
    const std::vector<std::byte>* const found[3] = {&adam.p.bytes, &adam.m.bytes, &adam.v.bytes};
    for (int i = 0; i < 3; ++i) joined[i].insert(joined[i].end(), found[i]->begin(), found[i]->end());
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(joined[i] == wanted[i]) << i;
}

TEST(QuantizedState, BeginsAsItsDefinitionSays) {
  Tensor state(DType::dynamic8_unsigned, {1000});
  EXPECT_EQ(state.bytes.size(), 4 * kDynamic8BlockBytes);
  fill_elements(state.bytes, state.dtype, 0.25);
  for (const double x : state.to_double()) EXPECT_EQ(x, 0.25);
  EXPECT_THROW(fill_elements(state.bytes, DType::dynamic8, -0.25), Error);
}

TEST(QuantizedState, IsOfParametersThatAreComputedWithInFloat32) {
  Workers workers(1);
  const Tensor p(DType::float64, {300}), factor = scalar_tensor(1.0f), m(DType::dynamic8, p.shape), v(DType::dynamic8_unsigned, p.shape);
  for (const auto& [optim, op, outputs] : {std::tuple("adamw", "AdamW", 3), {"lamb", "LambSquares", 2}, {"lamb", "Lamb", 3}}) {
    const std::vector<float> numbers = make_optimizer(optim).scalars(1, 1e-3);
    const Tensor scalars = make_tensor<float>({static_cast<int64_t>(numbers.size())}, numbers);
    const auto update = [&] {
      evaluate(op_named(op), {{"weight_decay", 0.0f}}, {&p, &p, &factor, &scalars, &m, &v}, static_cast<size_t>(outputs), workers);
    };
    EXPECT_HAS(error_of(update).what(), "float64 [300] isn't updated with state in 8 bits") << op;
  }
}

// --- which weights --------------------------------------------------------------------------------------------------------------------

constexpr GptShape kShape{.layers = 2, .heads = 4, .width = 64, .vocabulary = 300, .batch = 2, .length = 16};

TEST(QuantizedState, IsOfLargeWeightsThatAreNoEmbeddings) {
  struct Case {
    std::map<std::string, double> options;
    bool embedding, attention, bias;
  };
  for (const Case& c : {Case{{}, false, true, false},
                        {{{"quantize_embeddings", 1}}, true, true, false},
                        {{{"min_8bit_size", 1}}, false, true, true},
                        {{{"min_8bit_size", 100'000}}, false, false, false}}) {
    for (const int64_t part_bytes : {int64_t{1} << 30, int64_t{8} << 10}) {
      const EntryGraph train = gpt_training(kShape, {.optimizer = make_optimizer("adamw_8bit", c.options)}, part_bytes, /*packed=*/true);
      std::map<std::string, bool> found;
      int64_t bytes = 0, parameters = 0;
      for (const ValueId id : train.graph.values_of(ValueKind::optimizer_state)) {
        const Value& state = train.graph.value(id);
        const std::string whole = state.owner.substr(0, state.owner.find('['));
        const auto [known, is_first] = found.emplace(whole, is_quantized(state.dtype));
        EXPECT_EQ(known->second, is_quantized(state.dtype)) << "all parts of " << whole;
        if (!state.whole.empty() && is_quantized(state.dtype)) {
          EXPECT_EQ(state.whole_offset % kDynamic8BlockBytes, 0);
        }
        bytes += state.bytes();
      }
      for (const ValueId id : train.graph.parameters()) parameters += element_count(train.graph.value(id).shape);
      EXPECT_EQ(found.at("wte.weight"), c.embedding);
      EXPECT_EQ(found.at("h.0.mlp.c_fc.weight"), c.attention);
      for (const auto& [name, quantized] : found) {
        if (name.find("..") != std::string::npos && name.find("bias") != std::string::npos) {
          EXPECT_EQ(quantized, c.bias) << name;
        }
      }
      EXPECT_LE(bytes, 8 * parameters);
    }
  }
}

TEST(QuantizedState, GraphsAreWrittenWithItsBytes) {
  const TestFolder folder;
  const EntryGraph train = gpt_training(kShape, {.optimizer = make_optimizer("adamw_8bit")});
  write_graph(train.graph, folder / "train.onnx");
  const Graph read = read_graph(folder / "train.onnx");
  size_t quantized = 0;
  for (const ValueId id : train.graph.values_of(ValueKind::optimizer_state)) {
    const Value& value = train.graph.value(id);
    EXPECT_EQ(read.value(read.find_value(value.name)).type(), value.type()) << value.name;
    quantized += is_quantized(value.dtype);
  }
  EXPECT_GT(quantized, 4u);
}

TEST(QuantizedState, NamesSayIt) {
  for (const char* name : {"adamw_8bit", "adamw_bnb_8bit", "paged_adamw_8bit"}) {
    EXPECT_TRUE(make_optimizer(name).quantized);
    EXPECT_EQ(make_optimizer(name).state_label(), "adamw_8bit");
  }
  EXPECT_FALSE(make_optimizer("paged_adamw_32bit").quantized);
  EXPECT_EQ(make_optimizer("sgd_8bit", {{"momentum", 0.9}}).state_label(), "sgd_8bit with momentum");
  EXPECT_EQ(make_optimizer("adamw_8bit", {{"quantize_embeddings", 1}, {"bitsandbytes_rounding", 1}}).state_label(),
            "adamw_8bit quantize_embeddings=1");
  const auto refusal = [](const char* name, const std::map<std::string, double>& options) {
    try {
      make_optimizer(name, options);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_THAT(refusal("sgd_8bit", {}), HasSubstr("`optim` sgd_8bit: sgd keeps no state that is stored in 8 bits; these do: adamw_8bit, "));
  EXPECT_THAT(refusal("adafactor_8bit", {}), HasSubstr("keeps no state that is stored in 8 bits"));
  EXPECT_EQ(refusal("paged_adamw", {}), "");
  EXPECT_THAT(refusal("paged_adafactor_8bit", {}), HasSubstr("keeps no state"));
  EXPECT_THAT(refusal("adamw", {{"min_8bit_size", 1}}), HasSubstr("has no such option"));
  EXPECT_THAT(refusal("adamw_8bit", {{"min_8bit_size", 0.5}}), HasSubstr("is no number of elements"));
  EXPECT_THAT(refusal("rmsprop_8bit", {{"rmsprop_centered", 1}}),
              HasSubstr("`optim` rmsprop_8bit: `rmsprop_centered` takes the difference of two states, which 8 bits are too few for"));
  EXPECT_EQ(refusal("rmsprop_8bit", {{"momentum", 0.9}}), "");
  EXPECT_EQ(refusal("rmsprop", {{"rmsprop_centered", 1}}), "");
}

// --- runs -----------------------------------------------------------------------------------------------------------------------------

struct QuantizedRuns : TrainerRuns {
  static constexpr int64_t kSamples = 14, kIn = 256, kInner = 4500, kOut = 4;

  // Two matrices that are divided, vectors of more than 4,096 elements that make a pack.
  Options options(const std::string& optim) const {
    ort_train_onnx::ModelProto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17]> g (float[batch, {}] x) => (float[batch, {}] y) {{
             h0 = MatMul (x, w)
             h1 = Mul (h0, a)
             h2 = Add (h1, b)
             h3 = Tanh (h2)
             h4 = Mul (h3, c)
             y0 = MatMul (h4, v)
             y = Add (y0, d) }})",
        kIn, kOut));
    *model.mutable_graph()->add_initializer() = tensor_of("w", {kIn, kInner}, numbers(kIn * kInner, 7919));
    for (const auto& [name, step] : {std::pair("a", 613), {"b", 617}, {"c", 619}})
      *model.mutable_graph()->add_initializer() = tensor_of(name, {kInner}, numbers(kInner, step));
    *model.mutable_graph()->add_initializer() = tensor_of("v", {kInner, kOut}, numbers(kInner * kOut, 7907));
    *model.mutable_graph()->add_initializer() = tensor_of("d", {kOut}, numbers(kOut, 7901));
    Options o{.model = write_model(folder, model)};
    Arrays arrays;
    for (const auto& [name, width] : {std::pair("x", kIn), {"labels", kOut}})
      arrays.add(name, {kSamples, width}, numbers(kSamples * width, 104'729 + width));
    o.data = arrays.write(folder / "data.safetensors");
    o.loss = "mse";
    o.optim = optim;
    o.batch_size = 4;
    o.learning_rate = 1e-3;
    o.weight_decay = 0.1;
    o.max_steps = 6;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
  Options on_disk(Options o) const {
    o.nvme_path = folder / "disk";
    std::filesystem::create_directory(o.nvme_path);
    return o;
  }
};

TEST_F(QuantizedRuns, HaveTheSameBitsResidentStreamedInPartsAndResumed) {
  const Run plain = train(options("adamw_8bit")), wide = train(options("adamw"));
  EXPECT_NE(plain.summary.weights_hash, wide.summary.weights_hash);
  const int64_t matrix = 8 * kIn * kInner;
  EXPECT_GT(wide.plan.at_peak.optimizer - plain.plan.at_peak.optimizer, matrix * 7 / 10) << "8 bytes for each parameter, or 2.03";
  for (const int threads : {1, 3, 8}) {
    Options o = options("adamw_8bit");
    o.threads = threads;
    EXPECT_EQ(train(o).losses, plain.losses);
  }
  for (const int64_t part : {int64_t{0}, int64_t{1} << 20, int64_t{1} << 19}) {
    Options o = on_disk(options("adamw_8bit"));
    on.part_bytes = part;
    o.budget = train(o).plan.minimum_budget;
    const Run streamed = train(o);
    EXPECT_GT(streamed.plan.disk_read_per_step, 0) << part;
    EXPECT_EQ(streamed.losses, plain.losses) << part;
    EXPECT_EQ(streamed.summary.weights_hash, plain.summary.weights_hash) << part;
    o.output_dir = folder / fmt::format("two{}", part);
    EXPECT_EQ(train_in_two(o, 3).weights_hash, plain.summary.weights_hash) << part;
  }
  on.part_bytes = 0;
  Options o = options("adamw_8bit");
  o.output_dir = folder / "resident";
  EXPECT_EQ(train_in_two(o, 3).weights_hash, plain.summary.weights_hash);
}

// A checkpoint of one division goes on in another: its parts are ranges of the whole's bytes.
TEST_F(QuantizedRuns, GoOnInOtherParts) {
  Options o = options("adamw_8bit");
  on.part_bytes = int64_t{1} << 20;
  o.output_dir = folder / "out";
  const std::string wanted = train(o).summary.weights_hash;
  {
    Trainer* running = nullptr;
    fixtures::TrainerOn trainer(on, o, {.on_step = [&](const StepReport& step) {
                                  if (step.step == 2) running->request_stop();
                                }});
    running = &trainer;
    EXPECT_TRUE(trainer.train().stopped);
  }
  on.part_bytes = int64_t{1} << 19;
  o.resume = true;
  EXPECT_EQ(fixtures::TrainerOn(on, o).train().weights_hash, wanted);
}

// Under the weights' own names, whatever parts and packs they were in.
TEST_F(QuantizedRuns, StateIsWrittenForOtherPrograms) {
  std::string first;
  for (const int64_t part : {int64_t{1} << 30, int64_t{1} << 19}) {
    Options o = options("adamw_8bit");
    on.part_bytes = part;
    o.save_optimizer_state = folder / fmt::format("state{}.safetensors", part);
    const Run run = train(o);
    const std::string bytes = read_file(o.save_optimizer_state);
    if (first.empty()) first = bytes;
    EXPECT_TRUE(bytes == first) << part;
    const File file = File::open(o.save_optimizer_state);
    const SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);
    EXPECT_EQ(header.metadata.at("optim"), "adamw_8bit");
    EXPECT_EQ(header.metadata.at("step"), "6");
    std::map<std::string, Shape> found;
    for (const SafetensorsEntry& entry : header.entries) found[entry.name] = entry.shape;
    for (const auto& [weight, shape] : {std::pair{"w", Shape{kIn, kInner}}, {"v", {kInner, kOut}}, {"a", {kInner}}, {"b", {kInner}}}) {
      for (const std::string state : {".exp_avg", ".exp_avg_sq"}) {
        EXPECT_EQ(found.at(weight + state + ".codes"), shape);
        EXPECT_EQ(found.at(weight + state + ".absmax"), Shape{(element_count(shape) + 255) / 256});
        EXPECT_THAT(header.metadata.at(weight + state), HasSubstr(state == ".exp_avg" ? "signed=True" : "signed=False"));
      }
    }
    EXPECT_EQ(found.at("d.exp_avg"), Shape{kOut});
    const SafetensorsEntry* const scales = header.find("a.exp_avg_sq.absmax");
    std::vector<float> numbers(static_cast<size_t>(scales->bytes) / 4);
    file.read(scales->offset, std::as_writable_bytes(std::span(numbers)));
    for (const float x : numbers) EXPECT_GT(x, 0);
  }
}

TEST_F(QuantizedRuns, ACheckpointOfOtherStateIsRefused) {
  for (const auto& [saved, wanted] : {std::pair("adamw_8bit", "adamw"), {"adamw", "adamw_8bit"}}) {
    Options o = options(saved);
    o.output_dir = folder / saved;
    o.max_steps = 1;
    Trainer(o).train();
    o.optim = wanted;
    o.resume = true;
    try {
      Trainer(o).train();
      ADD_FAILURE() << saved;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage);
      EXPECT_THAT(std::string(e.what()), HasSubstr(fmt::format("was saved with `optim` {}, not {}", saved, wanted)));
    }
  }
}

// What doesn't begin as zeros is brought to a device with memory of its own in pieces of whole blocks.
TEST_F(QuantizedRuns, OnADeviceBeginAsOnTheProcessor) {
  constexpr int64_t kBytes = 500'000'000;  // of each memory
  Options o = chain_job(folder / "chain", 2, 512, 256);
  o.profile = profile;
  o.threads = 1;
  o.max_steps = 2;
  o.optim = "adagrad_8bit";
  o.optim_args["adagrad_initial_accumulator_value"] = 0.1;
  const Run plain = train(o);
  on = {.make = [](const Program& program, const std::vector<const Graph*>& graphs) -> std::unique_ptr<Device> {
          return std::make_unique<DiscreteDevice>(program, graphs, /*threads=*/1, /*seed=*/8);
        },
        .memories = {.device = kBytes, .host = kBytes},
        .page = 4096};
  o.budget = 1'000'000'000;
  const Run discrete = train(o);
  EXPECT_EQ(discrete.losses, plain.losses);
  EXPECT_EQ(discrete.summary.weights_hash, plain.summary.weights_hash);
}

}  // namespace
}  // namespace ort_train
