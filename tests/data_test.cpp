// Data sets as a job sees them: rows of tokens, binding of dimensions, feeding, shuffling.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

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
  Feed feed(*sets.train, graph, binding, {{.value = labels, .causal = true, .class_count = 7}});
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
  Feed feed(*sets.train, graph, binding, {{.value = labels, .causal = true, .class_count = 7}});
  const int64_t samples[] = {0};
  EXPECT_EQ(filled(feed, samples), 4);
  EXPECT_EQ(values<int64_t>(labels), (std::vector<int64_t>{3, 4, 5, 6, -100, -100}));
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
