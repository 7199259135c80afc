// Data sets as a job sees them: rows of tokens, binding of dimensions, feeding, shuffling.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

#include "frontend/binding.h"
#include "frontend/data_set.h"
#include "frontend/feed.h"
#include "frontend/shuffle.h"
#include "tests/failures.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::HasSubstr;

std::vector<int64_t> tokens_of(DataSet& data, int64_t sample) {
  std::vector<int64_t> tokens(static_cast<size_t>(data.fields()[0].shape[0]));
  data.read(0, sample, std::as_writable_bytes(std::span(tokens)));
  return tokens;
}

TEST(Tokens, BothWidthsAreReadInBlocks) {
  TestFolder folder;
  const std::vector<uint16_t> narrow{1, 2, 3, 65535, 5, 6, 7};
  const DataSets sets = open_data(write_file(folder / "t.bin", bytes_of(narrow)), "m.onnx", "uint16");
  sets.train->cut(3);
  EXPECT_EQ(sets.train->samples(), 2);
  EXPECT_EQ(tokens_of(*sets.train, 1), (std::vector<int64_t>{65535, 5, 6}));
  const std::vector<uint32_t> wide{1, 4000000000u, 3};
  const DataSets other = open_data(write_file(folder / "u.bin", bytes_of(wide)), "m.onnx", "uint32");
  other.train->cut(3);
  EXPECT_EQ(tokens_of(*other.train, 0), (std::vector<int64_t>{1, 4000000000, 3}));
  EXPECT_THAT(error_of(ErrorCode::data, [&] { other.train->cut(4); }), HasSubstr("3 tokens"));
  EXPECT_THAT(error_of(ErrorCode::data, [&] { open_data(write_file(folder / "v.bin", "123"), "m.onnx", "uint16"); }), HasSubstr("3 bytes"));
}

// github.com/karpathy/llm.c, dev/data/data_common.py
std::string shard(int32_t magic, int32_t version, int32_t tokens, const std::string& content) {
  std::vector<int32_t> header(256);
  header[0] = magic, header[1] = version, header[2] = tokens;
  return bytes_of(header) + content;
}

TEST(Tokens, ShardsOfLlmcAreKnownByTheirHeader) {
  TestFolder folder;
  const auto opened = [&](const std::string& content, const std::string& type) {
    return open_data(write_file(folder / "t.bin", content), "m.onnx", type);
  };
  const std::string narrow = bytes_of(std::vector<uint16_t>{7, 8, 9, 65535, 11});
  for (const char* type : {"uint16", "uint32"}) {
    const DataSets sets = opened(shard(20240520, 1, 5, narrow), type);
    sets.train->cut(2);
    EXPECT_EQ(sets.train->samples(), 2);
    EXPECT_EQ(tokens_of(*sets.train, 1), (std::vector<int64_t>{9, 65535}));
  }
  const DataSets wide = opened(shard(20240801, 7, 3, bytes_of(std::vector<uint32_t>{1, 128'255, 3})), "uint16");
  wide.train->cut(3);
  EXPECT_EQ(tokens_of(*wide.train, 0), (std::vector<int64_t>{1, 128'255, 3}));
  const auto refusal = [&](const std::string& content) { return error_of(ErrorCode::data, [&] { opened(content, "uint16"); }); };
  EXPECT_THAT(refusal(shard(20240520, 2, 5, narrow)), HasSubstr("in version 2; version 1 is known"));
  EXPECT_THAT(refusal(shard(20240520, 1, 6, narrow)), HasSubstr("says 6 tokens of uint16, which are 12 bytes, but 10 bytes follow it"));
  EXPECT_THAT(refusal(shard(20240520, 1, -1, narrow)), HasSubstr("says -1 tokens"));
  EXPECT_THAT(refusal(shard(20240520, 1, 0, "").substr(0, 100)), HasSubstr("but 0 bytes follow it"));
  EXPECT_THAT(refusal(shard(20240522, 1, 1, narrow)), HasSubstr("no row of tokens"));
}

TEST(Tokens, OneArrayOfWholeNumbersIsARow) {
  TestFolder folder;
  const auto opened = [&](const std::string& type, const std::string& shape, const std::string& content) {
    return open_data(write_file(folder / "t.npy", npy(npy_description(type, shape), content)), "m.onnx", "uint16");
  };
  const DataSets sets = opened("<i4", "(5,)", bytes_of(std::vector<int32_t>{1, 2, 70'000, 4, 5}));
  EXPECT_TRUE(sets.train->is_row());
  sets.train->cut(2);
  EXPECT_EQ(sets.train->samples(), 2);
  EXPECT_EQ(tokens_of(*sets.train, 1), (std::vector<int64_t>{70'000, 4}));
  const DataSets as_they_are = opened("<i8", "(2,)", bytes_of(std::vector<int64_t>{-1, 2}));
  as_they_are.train->cut(2);
  EXPECT_EQ(tokens_of(*as_they_are.train, 0), (std::vector<int64_t>{-1, 2}));
  const DataSets too_large = opened("<u8", "(2,)", bytes_of(std::vector<uint64_t>{1, ~uint64_t{0}}));
  too_large.train->cut(2);
  EXPECT_THAT(error_of(ErrorCode::data, [&] { tokens_of(*too_large.train, 0); }), HasSubstr("token 1 is no int64"));
  const std::string eight(8, '\0');
  for (const auto& [type, shape] : {std::pair("<f4", "(2,)"), {"<i4", "(1, 2)"}, {"|b1", "(8,)"}})
    EXPECT_THAT(error_of(ErrorCode::data, [&, type = type, shape = shape] { opened(type, shape, eight); }), HasSubstr("(numpy.savez)"));
  EXPECT_THAT(error_of(ErrorCode::data, [&] { opened(">i4", "(2,)", eight); }), HasSubstr("big-endian"));
}

TEST(Text, CharactersBecomeTokensAnywhereInTheFile) {
  TestFolder folder;
  write_file(folder / "m.vocab.json", R"({"tokens": ["\n", "a", "ä", "€", "𝄞"]})");
  // Longer than the index's stride and the reader's buffer, in characters of one to four bytes.
  const char* const characters[] = {"\n", "a", "ä", "€", "𝄞"};
  std::string text;
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 200'000; ++i) {
    expected.push_back((i * i / 7 + i / 3) % 5);
    text += characters[expected.back()];
  }
  const DataSets sets = open_data(write_file(folder / "t.txt", text), folder / "m.onnx", "uint16");
  for (const int64_t length : {1, 7, 4096, 5000, 199'999}) {
    sets.train->cut(length);
    ASSERT_EQ(sets.train->samples(), 200'000 / length);
    for (const int64_t sample : {int64_t{0}, sets.train->samples() / 2, sets.train->samples() - 1}) {
      const auto begin = expected.begin() + sample * length;
      ASSERT_EQ(tokens_of(*sets.train, sample), std::vector<int64_t>(begin, begin + length)) << length << " " << sample;
    }
  }
  EXPECT_LT(sets.train->memory_bytes(), 2000);
}

TEST(Text, AnUnknownCharacterIsNamedWithItsLine) {
  TestFolder folder;
  write_file(folder / "vocab.json", R"({"tokens": ["\n", "a"]})");
  const auto refusal = [&](const std::string& text) {
    return error_of(ErrorCode::data, [&] { open_data(write_file(folder / "t.txt", text), folder / "m.onnx", "uint16"); });
  };
  EXPECT_THAT(refusal("a\na\naéa"), testing::AllOf(HasSubstr("line 3"), HasSubstr("'é' (U+00E9)")));
  EXPECT_THAT(refusal("a\n\xff"), testing::AllOf(HasSubstr("line 2"), HasSubstr("not UTF-8")));
  EXPECT_THAT(refusal("a\xc3"), HasSubstr("not UTF-8"));
}

TEST(Folder, TrainAndValidAreFound) {
  TestFolder folder;
  write_file(folder / "train.bin", bytes_of(std::vector<uint16_t>{1, 2, 3, 4}));
  EXPECT_EQ(open_data(folder.path.string(), "m.onnx", "uint16").valid, nullptr);
  write_file(folder / "val.bin", bytes_of(std::vector<uint16_t>{5, 6}));
  const DataSets sets = open_data(folder.path.string(), "m.onnx", "uint16");
  ASSERT_NE(sets.valid, nullptr);
  sets.valid->cut(2);
  EXPECT_EQ(tokens_of(*sets.valid, 0), (std::vector<int64_t>{5, 6}));
  write_file(folder / "valid.bin", "");
  EXPECT_THAT(error_of(ErrorCode::data, [&] { open_data(folder.path.string(), "m.onnx", "uint16"); }), HasSubstr("both there"));
  std::filesystem::remove(folder / "valid.bin");
  std::filesystem::remove(folder / "train.bin");
  write_file(folder / "train.npz", zip({{"x.npy", npy(npy_description("<f4", "(1, 3)"), std::string(12, '\0'))}}));
  EXPECT_THAT(error_of(ErrorCode::data, [&] { open_data(folder.path.string(), "m.onnx", "uint16"); }), HasSubstr("in the same form"));
  TestFolder empty;
  EXPECT_THAT(error_of(ErrorCode::data, [&] { open_data(empty.path.string(), "m.onnx", "uint16"); }), HasSubstr("no train"));
  error_of(ErrorCode::data, [&] { open_data(empty / "missing.npz", "m.onnx", "uint16"); });
  error_of(ErrorCode::data, [&] { open_data(write_file(empty / "data.csv", "1,2"), "m.onnx", "uint16"); });
}

TEST(Folder, AValidationFileThatCantBeOpenedMayBeLeftOut) {
  TestFolder folder;
  write_file(folder / "train.bin", bytes_of(std::vector<uint16_t>{1, 2, 3, 4}));
  write_file(folder / "valid.npz", "no archive");
  EXPECT_THAT(error_of(ErrorCode::data, [&] { open_data(folder.path.string(), "m.onnx", "uint16"); }), HasSubstr("valid.npz"));
  const DataSets optional = open_data(folder.path.string(), "m.onnx", "uint16", ValidFile::optional);
  EXPECT_EQ(optional.valid, nullptr);
  EXPECT_THAT(optional.valid_problem, HasSubstr("valid.npz"));
  EXPECT_EQ(open_data(folder.path.string(), "m.onnx", "uint16", ValidFile::ignored).valid_problem, "");
}

struct BindingTest : testing::Test {
  TestFolder folder;
  Declared model;
  Options options;
  DataSets sets;

  void declare(const std::string& name, std::vector<std::string> dims, DType dtype = DType::int64) {
    model.inputs.push_back({.name = name, .dtype = dtype, .dims = std::move(dims)});
  }
  Binding bind_tokens() {
    sets = open_data(write_file(folder / "t.bin", bytes_of(std::vector<uint16_t>(100, 1))), "m.onnx", "uint16");
    options.task = "causal-lm";
    return bind_inputs(model, options, *sets.train);
  }
  Binding bind_array(const std::string& name, const std::string& shape, size_t elements) {
    sets =
        open_data(write_file(folder / "a.npz", zip({{name + ".npy", npy(npy_description("<f4", shape), std::string(4 * elements, '\0'))}})),
                  "m.onnx", "uint16");
    return bind_inputs(model, options, *sets.train);
  }
};

TEST_F(BindingTest, TextFillsInWhatItDoesNotGive) {
  declare("input_ids", {"batch", "sequence"});
  declare("attention_mask", {"batch", "sequence"});
  declare("position_ids", {"1", "sequence"}, DType::int32);
  declare("token_type_ids", {"batch", ""});
  options.seq_length = 5;
  options.batch_size = 3;
  const Binding binding = bind_tokens();
  EXPECT_EQ(binding.batch, 3);
  EXPECT_EQ(binding.sequence, 5);
  EXPECT_EQ(sets.train->samples(), 20);
  const ImportOptions import = binding.import_options(2, binding.sequence, options);
  EXPECT_EQ(import.shapes.at("batch"), 2);
  EXPECT_EQ(import.shapes.at("sequence"), 5);
  EXPECT_EQ(import.shapes.at("token_type_ids.1"), 5);
  EXPECT_EQ(import.bound_inputs.at("attention_mask"), make_tensor<int64_t>({2, 5}, std::vector<int64_t>(10, 1)));
  EXPECT_EQ(import.bound_inputs.at("position_ids"), make_tensor<int32_t>({1, 5}, {0, 1, 2, 3, 4}));
  EXPECT_EQ(import.bound_inputs.at("token_type_ids"), make_tensor<int64_t>({2, 5}, std::vector<int64_t>(10, 0)));
}

TEST_F(BindingTest, TheBatchIsEightAndTheOnlyIntegerInputIsTheTokens) {
  declare("idx", {"", ""});
  options.shapes = {{"idx.1", 4}};
  const Binding binding = bind_tokens();
  EXPECT_EQ(binding.batch, 8);
  EXPECT_EQ(binding.sequence, 4);
  EXPECT_EQ(binding.fed[0].input, "idx");
  EXPECT_EQ(binding.import_options(8, binding.sequence, options).shapes.at("idx.0"), 8);
}

TEST_F(BindingTest, WhatTheFileFixesWins) {
  declare("input_ids", {"2", "16"});
  const Binding binding = bind_tokens();
  EXPECT_EQ(binding.batch, 2);
  EXPECT_EQ(binding.sequence, 16);
  EXPECT_TRUE(binding.batch_is_fixed);
  options.batch_size = 4;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { bind_tokens(); }), HasSubstr("`batch_size` 4"));
  options.batch_size = 2;
  options.seq_length = 8;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { bind_tokens(); }), HasSubstr("`seq_length` 8"));
}

TEST_F(BindingTest, WhatIsMissingOrUnknownIsNamed) {
  declare("input_ids", {"batch", "sequence"});
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { bind_tokens(); }), HasSubstr("`seq_length`"));
  options.shapes = {{"sequnce", 4}};
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { bind_tokens(); }), testing::AllOf(HasSubstr("sequnce"), HasSubstr("sequence")));
  options.shapes = {{"sequence", 4}, {"batch", 0}};
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { bind_tokens(); }), HasSubstr("batch=0"));
  options.shapes = {{"sequence", 4}};
  declare("past_key_values.0.key", {"batch", "12", "past", "64"}, DType::float32);
  EXPECT_THAT(error_of(ErrorCode::data, [&] { bind_tokens(); }), HasSubstr("past_key_values.0.key"));
}

// By whichever name its size is given: an epoch's last batch may be smaller.
TEST_F(BindingTest, TheSizeOfABatchIsNoShape) {
  declare("x", {"batch", "width"}, DType::float32);
  options.shapes = {{"x.0", 4}};
  const Binding binding = bind_array("x", "(10, 3)", 30);
  EXPECT_EQ(binding.batch, 4);
  EXPECT_EQ(binding.shapes, (std::map<std::string, int64_t>{{"width", 3}}));
}

// As the job's, whose data feed the inputs that aren't bound or filled in.
TEST_F(BindingTest, TheLikelyBatchIsThatOfTheFirstInputWithAKnownOne) {
  EXPECT_EQ(likely_batch(model, options), 8);
  declare("scale", {}, DType::float32);
  declare("attention_mask", {"3", "sequence"});
  declare("gain", {"5"}, DType::float32);
  declare("x", {"N", "3"}, DType::float32);
  declare("y", {"4", "2"}, DType::float32);
  options.bind["gain"] = "1";
  EXPECT_EQ(likely_batch(model, options), 3);
  options.task = "causal-lm";
  EXPECT_EQ(likely_batch(model, options), 4);
  options.shapes = {{"N", 6}};
  EXPECT_EQ(likely_batch(model, options), 6);
  options.shapes.clear();
  model.inputs.pop_back();
  options.batch_size = 2;
  EXPECT_EQ(likely_batch(model, options), 2);
}

TEST_F(BindingTest, ArraysGiveTheirShapes) {
  declare("x", {"N", "3", "height", "width"}, DType::float32);
  const Binding binding = bind_array("x", "(5, 3, 4, 2)", 120);
  EXPECT_EQ(binding.shapes.at("height"), 4);
  EXPECT_EQ(binding.shapes.at("width"), 2);
  EXPECT_EQ(binding.batch_names, std::vector<std::string>{"N"});
  EXPECT_THAT(error_of(ErrorCode::data, [&] { bind_array("x", "(5, 4, 4, 2)", 160); }), HasSubstr("has 3 as dimension 1"));
  EXPECT_THAT(error_of(ErrorCode::data, [&] { bind_array("x", "(5, 3)", 15); }), HasSubstr("3 dimensions after the batch"));
  EXPECT_THAT(error_of(ErrorCode::data, [&] { bind_array("y", "(5, 3)", 15); }),
              testing::AllOf(HasSubstr("no array 'x'"), HasSubstr("'y'")));
}

// As the batch does, an epoch's last one and others.
TEST_F(BindingTest, ABoundInputWithoutNamesFollowsTheBatch) {
  declare("x", {"batch", "2"}, DType::float32);
  declare("gain", {"", "2"}, DType::float32);
  options.batch_size = 4;
  const auto gain = [&](const std::string& text, int64_t batch) {
    options.bind["gain"] = text;
    const Binding binding = bind_array("x", "(10, 2)", 20);
    const ImportOptions import = binding.import_options(batch, binding.sequence, options);
    const Tensor value = import.bound_inputs.at("gain");
    if (const auto size = import.shapes.find("gain.0"); size != import.shapes.end()) {
      EXPECT_EQ(size->second, value.shape[0]);
    }
    return value;
  };
  const auto file = [&](int64_t rows) {
    std::vector<float> numbers;
    for (int64_t i = 0; i < 2 * rows; ++i) numbers.push_back(static_cast<float>(i));
    return "@" + write_file(folder / "gain.npy", npy(npy_description("<f4", fmt::format("({}, 2)", rows)), bytes_of(numbers)));
  };
  for (const int64_t batch : {4, 3, 6})
    EXPECT_EQ(gain("0.5", batch), make_tensor<float>({batch, 2}, std::vector<float>(static_cast<size_t>(2 * batch), 0.5f)));
  EXPECT_EQ(gain(file(4), 4).shape, (Shape{4, 2}));
  EXPECT_EQ(gain(file(4), 2), make_tensor<float>({2, 2}, {0, 1, 2, 3}));
  EXPECT_EQ(gain("0,1,2,3,4,5,6,7", 1), make_tensor<float>({1, 2}, {0, 1}));
  EXPECT_EQ(gain(file(1), 3), make_tensor<float>({1, 2}, {0, 1})) << "one row is for all samples";
  options.shapes = {{"gain.0", 1}};
  EXPECT_EQ(gain("0.5", 3), make_tensor<float>({1, 2}, {0.5f, 0.5f}));
  options.shapes = {{"gain.0", 4}};
  EXPECT_EQ(gain("0.5", 3).shape, (Shape{3, 2}));
  options.shapes = {{"gain.0", 5}};
  EXPECT_EQ(gain("0.5", 3).shape, (Shape{5, 2}));
  options.batch_size = 1;
  options.shapes = {{"gain.0", 1}};
  EXPECT_EQ(gain("0.5", 3).shape, (Shape{1, 2})) << "as long as the batch by chance";
  options.shapes.clear();
  EXPECT_EQ(gain("0.5", 3).shape, (Shape{3, 2}));
  EXPECT_EQ(gain(file(1), 3).shape, (Shape{1, 2}));
}

// Where samples are cut to shorter ones, so is what is given for all of them.
TEST_F(BindingTest, ABoundInputIsCutWithTheSamples) {
  declare("input_ids", {"batch", "seq"});
  declare("bias", {"seq", "2"}, DType::float32);
  declare("scale", {"", ""}, DType::float32);
  const auto ids = npy(npy_description("<i8", "(3, 4)"), std::string(96, '\0'));
  const std::string data = write_file(folder / "a.npz", zip({{"input_ids.npy", ids}, {"attention_mask.npy", ids}}));
  std::vector<float> numbers;
  for (int i = 0; i < 8; ++i) numbers.push_back(static_cast<float>(i));
  options.batch_size = 2;
  options.length_buckets = {3};
  options.bind = {{"bias", "@" + write_file(folder / "bias.npy", npy(npy_description("<f4", "(4, 2)"), bytes_of(numbers)))},
                  {"scale", "0,1,2,3,4,5,6,7"}};
  options.shapes = {{"scale.1", 4}};
  sets = open_data(data, "m.onnx", "uint16");
  const Binding binding = bind_inputs(model, options, *sets.train);
  const auto bound = [&](const char* name, int64_t batch, int64_t length) {
    const ImportOptions import = binding.import_options(batch, length, options);
    EXPECT_EQ(import.shapes.at("seq"), length);
    EXPECT_EQ(import.shapes.at("scale.1"), length);
    return import.bound_inputs.at(name);
  };
  EXPECT_EQ(bound("bias", 2, 4), make_tensor<float>({4, 2}, numbers));
  EXPECT_EQ(bound("bias", 2, 3), make_tensor<float>({3, 2}, {0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(bound("scale", 2, 3), make_tensor<float>({2, 3}, {0, 1, 2, 4, 5, 6}));
  EXPECT_EQ(bound("scale", 1, 3), make_tensor<float>({1, 3}, {0, 1, 2}));
}

TEST_F(BindingTest, ALengthOfArraysIsTheirsOrRefused) {
  declare("x", {"batch", "width"}, DType::float32);
  options.seq_length = 4;
  EXPECT_THAT(error_of(ErrorCode::usage, [&] { bind_array("x", "(10, 3)", 30); }), HasSubstr("`seq_length` 4: "));
  options.seq_length = 3;
  EXPECT_NO_THROW(bind_array("x", "(10, 3)", 30)) << "of numbers, too, which are no tokens";
  model.inputs.clear();
  declare("codes", {"batch", "time"});
  const auto bind_codes = [&] {
    const auto codes = npy(npy_description("<i8", "(2, 3)"), std::string(48, '\0'));
    sets = open_data(write_file(folder / "a.npz", zip({{"codes.npy", codes}})), "m.onnx", "uint16");
    return bind_inputs(model, options, *sets.train);
  };
  EXPECT_EQ(bind_codes().sequence, 3);
  options.seq_length = 4;
  EXPECT_THAT(error_of(ErrorCode::usage, bind_codes), HasSubstr("`seq_length` 4: "));
}

TEST_F(BindingTest, AnInputWithoutAShapeIsSaidToHaveNone) {
  declare("x", {}, DType::float32);
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { bind_array("x", "(10,)", 10); }), HasSubstr("is a single number"));
  model.inputs[0].has_shape = false;
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { bind_array("x", "(10,)", 10); }), HasSubstr("declares no shape for its input 'x'"));
}

struct FeedTest : testing::Test {
  TestFolder folder;
  Graph graph;
  Binding binding;
  std::vector<std::vector<std::byte>> memory;

  ValueId add(const std::string& name, DType dtype, Shape shape) {
    const ValueId id = graph.add_value({.name = name, .dtype = dtype, .shape = std::move(shape), .kind = ValueKind::input});
    graph.inputs.push_back(id);
    memory.resize(id + 1);
    memory[id].resize(static_cast<size_t>(graph.value(id).bytes()));
    return id;
  }
  Feed::Places places() {
    return [this](ValueId id) { return std::span(memory[id]); };
  }
  template <typename T> std::vector<T> values(ValueId id) const {
    std::vector<T> result(memory[id].size() / sizeof(T));
    std::memcpy(result.data(), memory[id].data(), memory[id].size());
    return result;
  }
  // What its labels count.
  double filled(Feed& feed, std::span<const int64_t> samples) {
    double counted = 0;
    feed.fill(samples, places(), {&counted, 1});
    return counted;
  }
};

TEST_F(FeedTest, LabelsAreTheTokensShiftedInsideEachSample) {
  const DataSets sets = open_data(write_file(folder / "t.bin", bytes_of(std::vector<uint16_t>{1, 2, 3, 4, 5, 6})), "m.onnx", "uint16");
  sets.train->cut(3);
  const ValueId ids = add("input_ids", DType::int32, {2, 3}), labels = add("labels", DType::int64, {2, 3});
  binding.fed = {{.input = "input_ids", .field = "input_ids"}};
  Feed feed(*sets.train, graph, binding, {{.value = labels, .field = "input_ids", .causal = true, .class_count = 7}});
  const int64_t samples[] = {1, 0};
  EXPECT_EQ(filled(feed, samples), 4);
  double counted = 0;
  feed.count(samples, {&counted, 1});
  EXPECT_EQ(counted, 4);
  EXPECT_EQ(values<int32_t>(ids), (std::vector<int32_t>{4, 5, 6, 1, 2, 3}));
  EXPECT_EQ(values<int64_t>(labels), (std::vector<int64_t>{5, 6, -100, 2, 3, -100}));
}

TEST_F(FeedTest, GivenLabelsOfACausalModelAreShiftedToo) {
  const auto ids = npy(npy_description("<i8", "(1, 3)"), bytes_of(std::vector<int64_t>{1, 2, 3}));
  const auto given = npy(npy_description("<i2", "(1, 3)"), bytes_of(std::vector<int16_t>{-100, -100, 3}));
  const DataSets sets = open_data(write_file(folder / "a.npz", zip({{"input_ids.npy", ids}, {"labels.npy", given}})), "m.onnx", "uint16");
  add("input_ids", DType::int64, {1, 3});
  const ValueId labels = add("labels", DType::int64, {1, 3});
  binding.fed = {{.input = "input_ids", .field = "input_ids"}};
  Feed feed(*sets.train, graph, binding, {{.value = labels, .causal = true, .class_count = 7}});
  const int64_t samples[] = {0};
  EXPECT_EQ(filled(feed, samples), 1);
  EXPECT_EQ(values<int64_t>(labels), (std::vector<int64_t>{-100, 3, -100}));
}

// The label of a position is what stands at the next one, all of it where that is several numbers.
TEST_F(FeedTest, LabelsOfSeveralCodesAreShiftedByAPosition) {
  const auto codes = npy(npy_description("<i8", "(1, 3, 2)"), bytes_of(std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  const DataSets sets = open_data(write_file(folder / "a.npz", zip({{"input_ids.npy", codes}})), "m.onnx", "uint16");
  add("input_ids", DType::int64, {1, 3, 2});
  const ValueId labels = add("labels", DType::int64, {1, 3, 2});
  binding.fed = {{.input = "input_ids", .field = "input_ids"}};
  Feed feed(*sets.train, graph, binding, {{.value = labels, .field = "input_ids", .causal = true, .class_count = 7}});
  const int64_t samples[] = {0};
  EXPECT_EQ(filled(feed, samples), 4);
  EXPECT_EQ(values<int64_t>(labels), (std::vector<int64_t>{3, 4, 5, 6, -100, -100}));
}

// As transformers.DataCollatorForLanguageModeling has it: -100 where padding is, then shifted.
TEST_F(FeedTest, LabelsOfPaddingAreIgnored) {
  const auto ids = npy(npy_description("<i8", "(2, 4)"), bytes_of(std::vector<int64_t>{1, 2, 3, 4, 5, 6, 0, 0}));
  add("input_ids", DType::int64, {2, 4});
  const ValueId labels = add("labels", DType::int64, {2, 4});
  binding.fed = {{.input = "input_ids", .field = "input_ids"}};
  const auto labels_by = [&](const std::string& mask, double counted) {
    const DataSets sets =
        open_data(write_file(folder / "a.npz", zip({{"input_ids.npy", ids}, {"attention_mask.npy", mask}})), "m.onnx", "uint16");
    Feed feed(*sets.train, graph, binding,
              {{.value = labels, .field = "input_ids", .causal = true, .class_count = 7, .mask = "attention_mask"}});
    const int64_t samples[] = {0, 1};
    double again = 0;
    feed.count(samples, {&again, 1});
    EXPECT_EQ(filled(feed, samples), counted);
    EXPECT_EQ(again, counted);
    return values<int64_t>(labels);
  };
  const std::vector<int64_t> expected{2, 3, 4, -100, 6, -100, -100, -100};
  EXPECT_EQ(labels_by(npy(npy_description("|i1", "(2, 4)"), std::string("\1\1\1\1\1\1\0\0", 8)), 4), expected);
  EXPECT_EQ(labels_by(npy(npy_description("<f4", "(2, 4)"), bytes_of(std::vector<float>{1, 1, 1, 1, 1, 1, 0, 0})), 4), expected);
  // One that is added to scores: the first sample has no padding.
  EXPECT_EQ(labels_by(npy(npy_description("<f4", "(2, 4)"), bytes_of(std::vector<float>{0, 0, 0, 0, 0, -0.0f, -1e9f, -1e9f})), 4),
            expected);
  // Of padding on the left, the last one predicts the first token.
  const std::vector<int64_t> left{2, 3, 4, -100, -100, 0, 0, -100};
  EXPECT_EQ(labels_by(npy(npy_description("<i4", "(2, 4)"), bytes_of(std::vector<int32_t>{1, 1, 1, 1, 0, 0, 1, 1})), 5), left);
}

// Logits of a batch whose samples the model has put one behind the other.
TEST_F(FeedTest, LabelsNeedTheBatchAsFirstAxis) {
  const auto ids = npy(npy_description("<i8", "(2, 3)"), std::string(48, '\0'));
  const DataSets sets = open_data(write_file(folder / "a.npz", zip({{"input_ids.npy", ids}, {"labels.npy", ids}})), "m.onnx", "uint16");
  add("input_ids", DType::int64, {2, 3});
  const ValueId labels = add("labels", DType::int64, {6});
  binding.fed = {{.input = "input_ids", .field = "input_ids"}};
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { Feed(*sets.train, graph, binding, {{.value = labels}}); }),
              HasSubstr("labels [6] for a batch of 2 samples"));
}

// Axes as long as a sample's tokens are cut where the model wants it, and stay where it doesn't.
TEST_F(FeedTest, OnlyTheSequenceIsCut) {
  std::vector<float> numbers;
  for (int i = 0; i < 9; ++i) numbers.push_back(static_cast<float>(i));
  const auto x = npy(npy_description("<f4", "(1, 3, 3)"), bytes_of(numbers));
  const DataSets sets = open_data(write_file(folder / "a.npz", zip({{"x.npy", x}})), "m.onnx", "uint16");
  const ValueId cut = add("x", DType::float32, {1, 2, 3});
  binding.fed = {{.input = "x", .field = "x"}};
  binding.sequence = 3;
  binding.length_names = {"tokens"};
  Feed feed(*sets.train, graph, binding, {}, 2);
  const int64_t samples[] = {0};
  filled(feed, samples);
  EXPECT_EQ(values<float>(cut), (std::vector<float>{0, 1, 2, 3, 4, 5}));
}

TEST(Arrays, AreUnpackedWhenTheyAreRead) {
  TestFolder folder;
  const auto x = npy(npy_description("<i8", "(2, 2)"), bytes_of(std::vector<int64_t>{1, 2, 3, 4}));
  const DataSets sets =
      open_data(write_file(folder / "a.npz", zip({{.name = "input_ids.npy", .content = x, .deflate = true}})), "m.onnx", "uint16");
  EXPECT_EQ(tokens_of(*sets.train, 1), (std::vector<int64_t>{3, 4}));
  sets.train->unload();
  EXPECT_EQ(tokens_of(*sets.train, 0), (std::vector<int64_t>{1, 2}));
}

// What else a file has of its data: a seed, names of classes, means.
TEST(Arrays, WhatNobodyReadsIsNoObstacle) {
  TestFolder folder;
  const auto floats = [](const char* shape, size_t count) { return npy(npy_description("<f4", shape), std::string(4 * count, '\0')); };
  for (const bool deflate : {false, true}) {
    const std::string path =
        write_file(folder / "a.npz", zip({{"seed.npy", npy(npy_description("<i8", "()"), std::string(8, '\0')), deflate},
                                          {"names.npy", npy(npy_description("<U5", "(2,)"), std::string(40, '\0')), deflate},
                                          {"objects.npy", npy(npy_description("|O", "(2,)"), "a pickle of some length", 1), deflate},
                                          {"mean.npy", floats("(3,)", 3), deflate},
                                          {"x.npy", floats("(2, 4)", 8), deflate},
                                          {"y.npy", floats("(2,)", 2), deflate}}));
    const DataSets sets = open_data(path, "m.onnx", "uint16");
    DataSet& data = *sets.train;
    data.use({"x", "y", "not there"});
    EXPECT_EQ(data.samples(), 2);
    EXPECT_EQ(data.memory_bytes(), deflate ? 32 + 8 : 0);
    EXPECT_EQ(data.unpacked_bytes(), data.memory_bytes());
    data.load();
    std::vector<float> sample(4, 1.0f);
    data.read(static_cast<size_t>(data.find("x")), 1, std::as_writable_bytes(std::span(sample)));
    EXPECT_EQ(sample, std::vector<float>(4));
    EXPECT_EQ(data.find("none"), -1);
    const auto asked = [&](const std::string& name) { return error_of(ErrorCode::data, [&] { data.find(name); }); };
    EXPECT_THAT(asked("seed"), HasSubstr("array 'seed' is a single number"));
    EXPECT_THAT(asked("names"), HasSubstr("'<U5' can't be read"));
    EXPECT_THAT(asked("objects"), HasSubstr("'|O' can't be read"));
    EXPECT_THAT(error_of(ErrorCode::data, [&] { data.use({"x", "mean"}); }), HasSubstr("array 'mean' has 3 samples, 'x' has 2"));
    EXPECT_THAT(error_of(ErrorCode::data, [&] { data.use({"x", "seed"}); }), HasSubstr("single number"));
  }
}

TEST_F(FeedTest, TruthIsZeroOrOne) {
  const auto x = npy(npy_description("|b1", "(1, 3)"), std::string("\0\1\xff", 3));
  const DataSets sets = open_data(write_file(folder / "a.npz", zip({{"x.npy", x}})), "m.onnx", "uint16");
  add("x", DType::boolean, {1, 3});
  binding.fed = {{.input = "x", .field = "x"}};
  Feed feed(*sets.train, graph, binding, {});
  const int64_t samples[] = {0};
  EXPECT_THAT(error_of(ErrorCode::data, [&] { filled(feed, samples); }), HasSubstr("element 2 of array 'x'"));
}

TEST_F(FeedTest, WrongArraysAreNamed) {
  const auto x = npy(npy_description("<f4", "(1, 3)"), std::string(12, '\0'));
  const auto y = npy(npy_description("<i8", "(1,)"), bytes_of(std::vector<int64_t>{5}));
  const DataSets sets = open_data(write_file(folder / "a.npz", zip({{"x.npy", x}, {"y.npy", y}})), "m.onnx", "uint16");
  add("x", DType::float32, {1, 3});
  const ValueId labels = add("labels", DType::int64, {1});
  binding.fed = {{.input = "x", .field = "x"}};
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Feed(*sets.train, graph, binding, {{.value = labels}}); }), HasSubstr("no array 'labels'"));
  Feed feed(*sets.train, graph, binding, {{.value = labels, .field = "y", .class_count = 5}});
  const int64_t samples[] = {0};
  EXPECT_THAT(error_of(ErrorCode::data, [&] { filled(feed, samples); }), HasSubstr("label 5 is outside the 5 classes"));
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Feed(*sets.train, graph, binding, {{.value = labels, .field = "x"}}); }),
              HasSubstr("samples of shape [3]"));
  const ValueId turned = add("turned", DType::int64, {2});
  EXPECT_THAT(error_of(ErrorCode::unsupported, [&] { Feed(*sets.train, graph, binding, {{.value = turned, .field = "y"}}); }),
              HasSubstr("labels [2] for a batch of 1 samples"));
  const ValueId whole = add("z", DType::int64, {1, 3});
  binding.fed = {{.input = "z", .field = "x"}};
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Feed(*sets.train, graph, binding, {{.value = whole}}); }), HasSubstr("is float32"));
}

TEST(Shuffle, IsAPermutationThatDependsOnSeedAndEpoch) {
  for (const int64_t n : {1, 2, 3, 5, 64, 65, 1000, 4097}) {
    std::set<int64_t> seen;
    const Shuffle shuffle(42, 0, n);
    for (int64_t i = 0; i < n; ++i) {
      const int64_t at = shuffle(i);
      ASSERT_GE(at, 0);
      ASSERT_LT(at, n);
      seen.insert(at);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), n);
  }
  const Shuffle first(42, 0, 1000), again(42, 0, 1000), later(42, 1, 1000), other(43, 0, 1000);
  int64_t same_epoch = 0, same_seed = 0, fixed = 0, order = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    EXPECT_EQ(first(i), again(i));
    same_epoch += first(i) == later(i);
    same_seed += first(i) == other(i);
    fixed += first(i) == i;
    order += i > 0 && first(i) > first(i - 1);
  }
  // Of two unrelated permutations one place in a thousand agrees; half of the neighbours are in order.
  EXPECT_LE(same_epoch, 8);
  EXPECT_LE(same_seed, 8);
  EXPECT_LE(fixed, 8);
  EXPECT_NEAR(static_cast<double>(order), 500, 60);
}

}  // namespace
}  // namespace ort_train
