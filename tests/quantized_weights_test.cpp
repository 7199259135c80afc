// Models with quantized weights: they are frozen, dequantized where they are used, and leave as they came.

#include <gmock/gmock.h>

#include <cmath>

#include "frontend/file.h"
#include "tests/arrays.h"
#include "tests/onnx_models.h"
#include "tests/promised_runs.h"

namespace ort_train {
namespace {

using namespace fixtures;
using ::testing::HasSubstr;
using Proto = ort_train_onnx::TensorProto;

struct QuantizedWeights : PromisedRuns {
  static constexpr int64_t kSamples = 24, kIn = 64, kHidden = 48, kOut = 5;

  static Proto codes(const std::string& name, const std::vector<int64_t>& dims, Proto::DataType type, int64_t step) {
    Proto tensor;
    tensor.set_name(name);
    tensor.set_data_type(type);
    int64_t count = 1;
    for (const int64_t dim : dims) {
      tensor.add_dims(dim);
      count *= dim;
    }
    std::string bytes;
    for (int64_t i = 0; i < count; ++i) bytes += static_cast<char>(i * step % 251);
    tensor.set_raw_data(bytes);
    return tensor;
  }
  static std::vector<float> scales(int64_t count) {
    std::vector<float> values = numbers(count, 41);
    for (float& value : values) value = 0.002f + 0.001f * std::abs(value);
    return values;
  }
  // 4-bit codes in blocks, int8 ones with a scale a column, and a head that is trained.
  Options job() {
    auto model = model_of(fmt::format(
        R"(<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]> g (float[batch, {0}] x) => (float[batch, {2}] y) {{
             a = com.microsoft.MatMulNBits <K = {0}, N = {1}, bits = 4, block_size = 16> (x, packed, packed_scales)
             h = Tanh (a)
             w = DequantizeLinear <axis = 1> (int8, int8_scales, int8_zeros)
             c = MatMul (h, w)
             d = Add (c, bias)
             e = Tanh (d)
             y = MatMul (e, head)
           }})",
        kIn, kHidden, kOut));
    auto& graph = *model.mutable_graph();
    *graph.add_initializer() = codes("packed", {kHidden, kIn / 16, 8}, Proto::UINT8, 37);
    *graph.add_initializer() = tensor_of("packed_scales", {kHidden * kIn / 16}, scales(kHidden * kIn / 16));
    *graph.add_initializer() = codes("int8", {kHidden, kHidden}, Proto::INT8, 91);
    *graph.add_initializer() = tensor_of("int8_scales", {kHidden}, scales(kHidden));
    *graph.add_initializer() = codes("int8_zeros", {kHidden}, Proto::INT8, 3);
    *graph.add_initializer() = tensor_of("bias", {kHidden}, numbers(kHidden, 17));
    *graph.add_initializer() = tensor_of("head", {kHidden, kOut}, numbers(kHidden * kOut, 7919));
    Options o{.model = write_model(folder, model)};
    o.data = Arrays()
                 .add("x", {kSamples, kIn}, numbers(kSamples * kIn, 104'729))
                 .add("labels", {kSamples, kOut}, numbers(kSamples * kOut, 104'743))
                 .write(folder / "data.safetensors");
    o.loss = "mse";
    o.batch_size = 4;
    o.learning_rate = 1e-2;
    o.max_steps = 8;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
};

TEST_F(QuantizedWeights, AreFrozenAndUsed) {
  Options o = job();
  std::vector<std::string> notes;
  o.output_dir = folder / "noted";
  Trainer trainer(o, {.on_note = [&](const std::string& note) { notes.push_back(note); }});
  const Summary summary = trainer.train();
  EXPECT_THAT(notes,
              ::testing::Contains(HasSubstr("2 quantized weights ('packed', …), 3840 bytes: frozen, dequantized where they are used")));
  EXPECT_LT(summary.last_loss, summary.first_loss);
  const auto before = import_file(o.model, {.shapes = {{"batch", 4}}}), after = import_file(summary.model_path, {.shapes = {{"batch", 4}}});
  ort_train_onnx::ModelProto old_model, new_model;
  ASSERT_TRUE(old_model.ParseFromString(read_file(o.model)));
  ASSERT_TRUE(new_model.ParseFromString(read_file(summary.model_path)));
  int changed = 0;
  for (int i = 0; i < old_model.graph().initializer_size(); ++i) {
    const Proto &was = old_model.graph().initializer(i), &is = new_model.graph().initializer(i);
    const bool is_trained = was.name() == "bias" || was.name() == "head";
    EXPECT_EQ(was.raw_data() != is.raw_data(), is_trained) << was.name();
    changed += was.raw_data() != is.raw_data();
  }
  EXPECT_EQ(changed, 2);
  for (const Imported* imported : {&before, &after}) {
    EXPECT_EQ(imported->graph.value(imported->graph.find_value("packed")).dtype, DType::uint8);
    EXPECT_EQ(imported->graph.value(imported->graph.find_value("packed")).kind, ValueKind::parameter);
  }
  o.freeze = {"head", "bias"};
  o.output_dir = folder / "frozen";
  EXPECT_THAT(error_of([&] { Trainer{o}; }).what(), HasSubstr("nothing is left to train"));
}

// The same numbers as the model with what the codes stand for in their place.
TEST_F(QuantizedWeights, ComputeWhatTheyStandFor) {
  Options o = job();
  o.predict_batch_size = 4;
  const std::vector<float> all = numbers(kSamples * kIn, 104'729), x(all.begin(), all.begin() + 4 * kIn);
  const std::vector<float> found = Trainer(o).predict({}, {{"x", x}}).at("y");
  const auto code = [](int64_t i, int64_t step) { return i * step % 251; };
  const std::vector<float> packed_scales = scales(kHidden * kIn / 16), int8_scales = scales(kHidden), bias = numbers(kHidden, 17),
                           head = numbers(kHidden * kOut, 7919);
  for (int64_t row = 0; row < 4; ++row) {
    std::vector<double> h(kHidden), e(kHidden);
    for (int64_t n = 0; n < kHidden; ++n) {
      double sum = 0;
      for (int64_t k = 0; k < kIn; ++k) {
        const int64_t byte = code(n * kIn / 2 + k / 2, 37), nibble = k % 2 == 0 ? byte & 15 : byte >> 4;
        sum += static_cast<double>(x[static_cast<size_t>(row * kIn + k)]) *
               static_cast<double>(packed_scales[static_cast<size_t>(n * kIn / 16 + k / 16)]) * static_cast<double>(nibble - 8);
      }
      h[static_cast<size_t>(n)] = std::tanh(sum);
    }
    for (int64_t n = 0; n < kHidden; ++n) {
      double sum = static_cast<double>(bias[static_cast<size_t>(n)]);
      for (int64_t k = 0; k < kHidden; ++k) {
        const auto weight = static_cast<int8_t>(code(k * kHidden + n, 91)), zero = static_cast<int8_t>(code(n, 3));
        sum += h[static_cast<size_t>(k)] * (weight - zero) * static_cast<double>(int8_scales[static_cast<size_t>(n)]);
      }
      e[static_cast<size_t>(n)] = std::tanh(sum);
    }
    for (int64_t n = 0; n < kOut; ++n) {
      double y = 0;
      for (int64_t k = 0; k < kHidden; ++k) y += e[static_cast<size_t>(k)] * static_cast<double>(head[static_cast<size_t>(k * kOut + n)]);
      EXPECT_NEAR(found[static_cast<size_t>(row * kOut + n)], y, 1e-4 * std::max(1.0, std::abs(y))) << row << ' ' << n;
    }
  }
}

TEST_F(QuantizedWeights, KeepThePromises) { expect_promises(job(), 3); }

// Dropout on request: behind the nodes that a pattern fits, in training alone.
TEST_F(QuantizedWeights, DropoutIsPutBehindNodes) {
  Options o = job();
  const Run plain = train(o);
  o.dropout = {{"Tanh", 0.5}};
  const Run dropped = train(o);
  EXPECT_NE(dropped.losses, plain.losses);
  EXPECT_EQ(train(o).losses, dropped.losses);
  o.threads = 1;
  o.recompute = "all";
  EXPECT_EQ(train(o).losses, dropped.losses);
  Options parts = o;
  parts.batch_size = 2;
  parts.gradient_accumulation_steps = 2;
  const Run together = train(parts);  // the same masks
  ASSERT_EQ(together.losses.size(), dropped.losses.size());
  for (size_t i = 0; i < dropped.losses.size(); ++i)
    EXPECT_NEAR(together.losses[i], dropped.losses[i], 1e-5 * std::max(1.0, dropped.losses[i]));
  // Predictions drop nothing.
  o.predict_batch_size = 4;
  Options without = job();
  without.predict_batch_size = 4;
  const std::vector<float> all = numbers(kSamples * kIn, 104'729), x(all.begin(), all.begin() + 4 * kIn);
  EXPECT_EQ(Trainer(o).predict({}, {{"x", x}}).at("y"), Trainer(without).predict({}, {{"x", x}}).at("y"));
  const auto losses = [&](std::vector<std::pair<std::string, double>> dropout) {
    o.dropout = std::move(dropout);
    return train(o).losses;
  };
  const std::vector<double> of_h = losses({{"h", 0.5}});
  EXPECT_NE(of_h, dropped.losses);
  EXPECT_EQ(losses({{"Tanh", 0.5}, {"e", 0.0}}), of_h);  // the last that fits counts
  EXPECT_EQ(losses({{"h", 0.1}, {"Tanh", 0.5}}), dropped.losses);
  o.dropout = {{"encoder.*", 0.1}};
  EXPECT_THAT(error_of([&] { Trainer{o}; }).what(), HasSubstr("`dropout` encoder.*=0.1: fits no node"));
  o.dropout = {{"Tanh", 1.0}};
  EXPECT_THAT(error_of([&] { Trainer{o}; }).what(), HasSubstr("has to lie in [0, 1)"));
}

}  // namespace
}  // namespace ort_train
