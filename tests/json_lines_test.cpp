// JSON lines as data: what lines become samples, how they are padded, read and refused, and that training on them leaves the bits of
// training on the same samples in arrays.

#include "frontend/json_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "frontend/feed.h"
#include "tests/arrays.h"
#include "tests/failures.h"
#include "tests/masked_model.h"
#include "tests/onnx_models.h"
#include "tests/trainer_runs.h"

namespace ort_train {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

struct JsonLinesFile : testing::Test {
  TestFolder folder;
  const std::string path = folder / "d.jsonl";

  DataSets opened(const std::string& content, const LineOptions& lines = {}) const {
    return open_data(write_file(path, content), "m.onnx", "uint16", ValidFile::needed, lines);
  }
  // The sentence without the file's name.
  std::string refusal(const std::string& content) const {
    const std::string message = error_of(ErrorCode::data, [&] { opened(content); });
    return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
  }
  // Where somebody reads the field.
  std::string refusal_of(const std::string& field, const std::string& content) const {
    const DataSets sets = opened(content);
    const std::string message = error_of(ErrorCode::data, [&] { sets.train->use({field}); });
    EXPECT_EQ(error_of(ErrorCode::data, [&] { sets.train->find(field); }), message);
    return message.starts_with(path + ": ") ? message.substr(path.size() + 2) : message;
  }
  template <typename T> static std::vector<T> numbers(DataSet& data, const std::string& name, int64_t sample) {
    const auto field = static_cast<size_t>(data.find(name));
    const Element expected = std::is_same_v<T, float> ? Element::float32 : Element::int64;
    EXPECT_EQ(data.fields()[field].element, expected) << name;
    std::vector<T> values(static_cast<size_t>(element_count(data.fields()[field].shape)), T(7));
    data.read(field, sample, std::as_writable_bytes(std::span(values)));
    return values;
  }
  static Shape shape(const DataSet& data, const std::string& name) { return data.fields()[static_cast<size_t>(data.find(name))].shape; }
};

// --- fields -----------------------------------------------------------------------------------------------------------------------------

TEST_F(JsonLinesFile, SamplesArePaddedToTheLongest) {
  const DataSets sets = opened(
      "{\"input_ids\": [5, 9, 2], \"labels\": [-100, 9, 2], \"token_type_ids\": [1, 1, 1], \"importance\": [0.5, 1, 2]}\n"
      "{\"labels\": [4], \"input_ids\": [3], \"importance\": [2], \"token_type_ids\": [1]}\r\n"
      "  {\"input_ids\":[1,2,3,4],\"labels\":[1,2,3,4],\"token_type_ids\":[0,0,0,0],\"importance\":[1,1,1,1e-1]}\n\n \n");
  DataSet& data = *sets.train;
  EXPECT_EQ(data.samples(), 3);
  EXPECT_FALSE(data.is_row());
  for (const char* name : {"input_ids", "labels", "token_type_ids", "importance", "attention_mask"}) EXPECT_EQ(shape(data, name), Shape{4});
  EXPECT_THAT(numbers<int64_t>(data, "input_ids", 0), ElementsAre(5, 9, 2, 0));
  EXPECT_THAT(numbers<int64_t>(data, "labels", 0), ElementsAre(-100, 9, 2, -100));
  EXPECT_THAT(numbers<int64_t>(data, "labels", 1), ElementsAre(4, -100, -100, -100));
  EXPECT_THAT(numbers<int64_t>(data, "token_type_ids", 1), ElementsAre(1, 0, 0, 0));
  EXPECT_THAT(numbers<float>(data, "importance", 1), ElementsAre(2, 0, 0, 0));
  EXPECT_THAT(numbers<float>(data, "importance", 2), ElementsAre(1, 1, 1, 0.1f));
  EXPECT_THAT(numbers<int64_t>(data, "attention_mask", 0), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(numbers<int64_t>(data, "attention_mask", 2), ElementsAre(1, 1, 1, 1));
  EXPECT_EQ(data.note(), path + ": samples have 1 to 4 tokens, and are padded to 4");
  EXPECT_EQ(data.find("weights"), -1);
}

TEST_F(JsonLinesFile, NumbersAndListsOfListsAreFields) {
  const DataSets sets = opened(
      "{\"x\": [[1, 2, 3], [4, 5, 6]], \"label\": 3, \"weight\": 1, \"is_new\": true, \"flags\": [false, true], \"big\": "
      "9223372036854775807}\n"
      "{\"x\": [[-1, -2, -3], [0, 0, 0]], \"label\": -9223372036854775808, \"weight\": 0.25, \"is_new\": false, \"flags\": [1, 0], "
      "\"big\": 0}");
  DataSet& data = *sets.train;
  EXPECT_EQ(data.samples(), 2);
  EXPECT_EQ(shape(data, "x"), (Shape{2, 3}));
  EXPECT_THAT(numbers<int64_t>(data, "x", 1), ElementsAre(-1, -2, -3, 0, 0, 0));
  EXPECT_EQ(shape(data, "label"), Shape{});
  EXPECT_THAT(numbers<int64_t>(data, "label", 0), ElementsAre(3));
  EXPECT_THAT(numbers<int64_t>(data, "label", 1), ElementsAre(INT64_MIN));
  EXPECT_THAT(numbers<float>(data, "weight", 0), ElementsAre(1)) << "another line has a fraction";
  EXPECT_THAT(numbers<int64_t>(data, "is_new", 0), ElementsAre(1));
  EXPECT_THAT(numbers<int64_t>(data, "flags", 0), ElementsAre(0, 1));
  EXPECT_THAT(numbers<int64_t>(data, "big", 0), ElementsAre(INT64_MAX));
  EXPECT_EQ(data.find("attention_mask"), -1) << "there are no tokens";
  EXPECT_EQ(data.note(), "");
}

TEST_F(JsonLinesFile, ListsOfListsArePaddedByWholeOnes) {
  const DataSets sets = opened("{\"codes\": [[1, 2]]}\n{\"codes\": [[3, 4], [5, 6], [7, 8]]}\n");
  EXPECT_EQ(shape(*sets.train, "codes"), (Shape{3, 2}));
  EXPECT_THAT(numbers<int64_t>(*sets.train, "codes", 0), ElementsAre(1, 2, 0, 0, 0, 0));
  EXPECT_THAT(numbers<int64_t>(*sets.train, "codes", 1), ElementsAre(3, 4, 5, 6, 7, 8));
}

TEST_F(JsonLinesFile, LabelsArePaddedByWhatTheLossIgnores) {
  const std::string content =
      "{\"input_ids\": [5, 9], \"targets\": [1, 2], \"labels\": [1, 2]}\n{\"input_ids\": [5], \"targets\": [3], \"labels\": [4]}\n";
  const DataSets sets = opened(content, {.labels = {{"targets", -1}}});
  EXPECT_THAT(numbers<int64_t>(*sets.train, "targets", 1), ElementsAre(3, -1));
  EXPECT_THAT(numbers<int64_t>(*sets.train, "labels", 1), ElementsAre(4, 0)) << "no loss reads it";
}

TEST_F(JsonLinesFile, AMaskIsMadeWhereTheFileHasNone) {
  const std::string equal = "{\"input_ids\": [5, 9]}\n{\"input_ids\": [5, 0]}\n", ragged = equal + "{\"input_ids\": [5]}\n";
  EXPECT_THAT(numbers<int64_t>(*opened(equal).train, "attention_mask", 1), ElementsAre(1, 1));
  EXPECT_EQ(opened(equal).train->note(), "");
  EXPECT_EQ(opened(equal, {.always_masks = false}).train->find("attention_mask"), -1);
  EXPECT_THAT(numbers<int64_t>(*opened(ragged, {.always_masks = false}).train, "attention_mask", 2), ElementsAre(1, 0));
  EXPECT_THAT(numbers<int64_t>(*opened(equal, {.length = 3, .always_masks = false}).train, "attention_mask", 0), ElementsAre(1, 1, 0));
  const DataSets own = opened("{\"input_ids\": [5, 9], \"attention_mask\": [0, 1]}\n{\"input_ids\": [5], \"attention_mask\": [1]}\n");
  EXPECT_EQ(own.train->fields().size(), 2u);
  EXPECT_THAT(numbers<int64_t>(*own.train, "attention_mask", 0), ElementsAre(0, 1));
  EXPECT_THAT(numbers<int64_t>(*own.train, "attention_mask", 1), ElementsAre(1, 0));
}

TEST_F(JsonLinesFile, ALengthPadsAndCuts) {
  const std::string content =
      "{\"input_ids\": [1, 2, 3, 4], \"labels\": [1, 2, 3, 4], \"classes\": [1, 0, 1]}\n"
      "{\"input_ids\": [5], \"labels\": [5], \"classes\": [0, 0, 0]}\n{\"input_ids\": [6, 7, 8], \"labels\": [6, 7, 8], \"classes\": [1, "
      "1, 1]}\n";
  const DataSets longer = opened(content, {.length = 5});
  EXPECT_THAT(numbers<int64_t>(*longer.train, "input_ids", 0), ElementsAre(1, 2, 3, 4, 0));
  EXPECT_EQ(shape(*longer.train, "classes"), Shape{3}) << "is no sequence of tokens";
  EXPECT_EQ(longer.train->note(), path + ": samples have 1 to 4 tokens, and are padded to 5");
  const DataSets shorter = opened(content, {.length = 2});
  EXPECT_THAT(numbers<int64_t>(*shorter.train, "input_ids", 0), ElementsAre(1, 2));
  EXPECT_THAT(numbers<int64_t>(*shorter.train, "labels", 1), ElementsAre(5, -100));
  EXPECT_THAT(numbers<int64_t>(*shorter.train, "labels", 2), ElementsAre(6, 7));
  EXPECT_THAT(numbers<int64_t>(*shorter.train, "attention_mask", 2), ElementsAre(1, 1));
  EXPECT_EQ(shorter.train->note(), path + ": 2 of 3 samples are longer than 2 tokens, and are cut to it");
}

// Of a model with an encoder and a decoder, whose labels are as long as what the decoder reads.
TEST_F(JsonLinesFile, ADecoderHasALengthOfItsOwn) {
  const DataSets sets = opened(
      "{\"input_ids\": [1, 2, 3], \"decoder_input_ids\": [4, 5], \"labels\": [5, 6]}\n"
      "{\"input_ids\": [1], \"decoder_input_ids\": [4], \"labels\": [5]}\n",
      {.length = 6});
  EXPECT_EQ(shape(*sets.train, "input_ids"), Shape{6});
  EXPECT_THAT(numbers<int64_t>(*sets.train, "decoder_input_ids", 1), ElementsAre(4, 0));
  EXPECT_THAT(numbers<int64_t>(*sets.train, "labels", 1), ElementsAre(5, -100));
}

TEST_F(JsonLinesFile, FilesOfAFolderGetOneLength) {
  write_file(folder / "train.jsonl", "{\"input_ids\": [1, 2], \"x\": [1, 2]}\n");
  write_file(folder / "valid.ndjson", "{\"input_ids\": [3, 4, 5], \"x\": [1, 2]}\n{\"input_ids\": [3], \"x\": [1, 2]}\n");
  const DataSets sets = open_data(folder.path.string(), "m.onnx", "uint16", ValidFile::needed, {.always_masks = false});
  EXPECT_THAT(numbers<int64_t>(*sets.train, "input_ids", 0), ElementsAre(1, 2, 0));
  EXPECT_THAT(numbers<int64_t>(*sets.train, "attention_mask", 0), ElementsAre(1, 1, 0));
  EXPECT_THAT(numbers<int64_t>(*sets.valid, "input_ids", 1), ElementsAre(3, 0, 0));
  EXPECT_EQ(shape(*sets.valid, "x"), Shape{2});
  const DataSets alone = open_data(folder.path.string(), "m.onnx", "uint16", ValidFile::ignored, {.always_masks = false});
  EXPECT_THAT(numbers<int64_t>(*alone.train, "input_ids", 0), ElementsAre(1, 2));
  EXPECT_EQ(alone.train->find("attention_mask"), -1);
  write_file(folder / "train.ndjson", "{\"input_ids\": [1]}\n");
  EXPECT_THAT(error_of(ErrorCode::data, [&] { open_data(folder.path.string(), "m.onnx", "uint16"); }), HasSubstr("both there"));
}

// --- what is refused --------------------------------------------------------------------------------------------------------------------

TEST_F(JsonLinesFile, WhatIsNoLineOfJsonIsRefused) {
  const std::string good = "{\"input_ids\": [1]}\n";
  EXPECT_EQ(refusal(""), "has no samples");
  EXPECT_EQ(refusal("\n \n"), "has no samples");
  EXPECT_EQ(refusal("{}\n"), "line 1: has no keys; it is an object such as {\"input_ids\": [5, 9, 2]}");
  EXPECT_EQ(refusal("[1, 2]\n"), "line 1: is a list; a line is an object such as {\"input_ids\": [5, 9, 2]}");
  EXPECT_EQ(refusal("7\n"), "line 1: is no object; a line is one such as {\"input_ids\": [5, 9, 2]}");
  EXPECT_EQ(refusal(good + "{\"input_ids\": [1, 2\n" + good), "line 2: is not JSON: see its character 19");
  EXPECT_EQ(refusal(good + "{\"input_ids\": [1]} {}\n"), "line 2: is not JSON: see its character 20");
  EXPECT_EQ(refusal(good + "{\"input_ids\": [1, NaN]}"), "line 2: has NaN or Infinity at its character 19, which JSON doesn't know");
  EXPECT_EQ(refusal("{\"input_ids\": [-Infinity]}"), "line 1: has NaN or Infinity at its character 17, which JSON doesn't know");
  EXPECT_EQ(refusal("{\"x\": 1e999}"), "line 1: has a number that is too large: see its character 11");
  EXPECT_EQ(refusal(good + "\n" + good), "line 2: is blank; only the last ones may be");
  EXPECT_EQ(refusal(good + "{\"input_ids\": [1], \"input_ids\": [1]}"), "line 2: has 'input_ids' twice");
  EXPECT_EQ(refusal(std::string("{\"input_ids\": [1]}\0\0", 20)), "line 1: is not JSON: see its character 19");
  EXPECT_THAT(refusal("{\"input_ids\": [1], \"\xff\": 2}\n"), HasSubstr("line 1: is not JSON: see its character 21"));
}

TEST_F(JsonLinesFile, TextIsSentToTheTokenizer) {
  const std::string advice = " is text; models/tokenize_text.py makes token ids of it with the model's own tokenizer";
  EXPECT_EQ(refusal("{\"text\": \"To be\"}\n"), "line 1: 'text'" + advice);
  EXPECT_EQ(refusal("{\"id\": 3, \"prompt\": \"2 + 2 = \", \"completion\": \"4\"}\n"), "line 1: 'prompt'" + advice);
  EXPECT_EQ(refusal("{\"messages\": [{\"role\": \"user\", \"content\": \"Hello\"}]}\n"), "line 1: 'messages'" + advice);
  EXPECT_EQ(refusal("{\"name\": \"a\"}\n"), "line 1: 'name' is text, where numbers are wanted");
}

// A field that nobody reads may be whatever it is.
TEST_F(JsonLinesFile, FieldsAreRefusedWhereTheyAreRead) {
  const std::string ids = "\"input_ids\": [1, 2]";
  const auto lines = [&](const std::string& one, const std::string& two = {}) {
    std::string content = "{" + ids + one + "}\n";
    return two.empty() ? content : content + "{" + ids + two + "}\n";
  };
  EXPECT_EQ(refusal_of("text", lines(", \"text\": \"a\"")),
            "line 1: 'text' is text; models/tokenize_text.py makes token ids of it with the model's own tokenizer");
  EXPECT_EQ(refusal_of("label", lines(", \"label\": \"good\"")), "line 1: 'label' is text, where numbers are wanted");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": {\"a\": [1]}")), "line 1: 'x' is an object, where numbers are wanted");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [1, {}]")), "line 1: 'x' has objects in it, where numbers are wanted");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [1, null]")), "line 1: 'x' is null or has a null, where numbers are wanted");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": []")), "line 1: 'x' has an empty list");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [[1, 2], [3]]")), "line 1: 'x' has lists of 2 and of 1 elements inside one sample");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [1, [2]]")), "line 1: 'x' has numbers and lists side by side");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [[1], 2]")), "line 1: 'x' has numbers and lists side by side");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [[[[[[[[[1]]]]]]]]]")), "line 1: 'x' has lists more than 8 deep");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": 9223372036854775808")), "line 1: 'x' has 9223372036854775808, which int64 can't hold");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [-9223372036854775809]")), "line 1: 'x' has -9223372036854775809, which int64 can't hold");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [1e39]")), "line 1: 'x' has 1e39, which float32 can't hold");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": 1", ", \"y\": 1")), "line 2: has no 'x', which line 1 has");
  EXPECT_EQ(refusal_of("y", lines(", \"x\": 1", ", \"y\": 1")), "line 2: has 'y', which line 1 doesn't have");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": 1", ", \"x\": [1]")),
            "line 2: 'x' has numbers of shape [1], in line 1 it has one number; only the first axis may differ");
  EXPECT_EQ(refusal_of("x", lines(", \"x\": [[1]]", ", \"x\": [[1, 2]]")),
            "line 2: 'x' has numbers of shape [1, 2], in line 1 it has numbers of shape [1, 1]; only the first axis may differ");
  EXPECT_EQ(refusal_of("labels", lines(", \"labels\": [1, 2]", ", \"labels\": [1, 2, 3]")),
            "line 2: 'labels' has 3 elements, 'input_ids' has 2");
  EXPECT_EQ(refusal_of("attention_mask", lines(", \"attention_mask\": [1]")), "line 1: 'attention_mask' has 1 elements, 'input_ids' has 2");
  EXPECT_EQ(refusal_of("labels", lines(", \"labels\": [1, \"a\"]", ", \"labels\": [1, 2]")),
            "line 1: 'labels' is text, where numbers are wanted");
  const DataSets sets = opened(lines(", \"text\": \"a [1, 2] \\\"\", \"meta\": {\"labels\": [1]}", ", \"text\": null, \"meta\": []"));
  EXPECT_NO_THROW(sets.train->use({"input_ids", "not there"}));
  EXPECT_THAT(numbers<int64_t>(*sets.train, "input_ids", 1), ElementsAre(1, 2));
}

TEST_F(JsonLinesFile, HostileLinesAreRefused) {
  const std::string depth(1'000'000, '['), ends(1'000'000, ']');
  EXPECT_EQ(refusal_of("x", "{\"input_ids\": [1], \"x\": " + depth + "1" + ends + "}\n"), "line 1: 'x' has lists more than 8 deep");
  EXPECT_THAT(refusal("{\"x\": " + depth + "\n"), HasSubstr("line 1: is not JSON"));
  EXPECT_EQ(refusal(depth), "line 1: is a list; a line is an object such as {\"input_ids\": [5, 9, 2]}");
  std::string keys = "{\"k\": 1";
  for (int i = 0; i < 1000; ++i) keys += fmt::format(", \"{}\": 1", i);
  EXPECT_EQ(refusal(keys + "}"), "line 1: has more than 1000 keys");
  std::string more;
  for (int i = 0; i < 1001; ++i) more += fmt::format("{{\"{}\": 1}}\n", i);
  EXPECT_EQ(refusal(more), "line 1001: its keys and those before are more than 1000");
  EXPECT_EQ(refusal_of("x", "{\"y\": 1, \"x\": " + std::string(500, '9') + ".5e-300}\n"),
            "line 1: 'x' has " + std::string(60, '9') + ", which float32 can't hold");
  EXPECT_EQ(refusal("{\"a\\u001b[31m\": \"b\"}\n"), "line 1: 'a?[31m' is text, where numbers are wanted");
  write_file(path, "{\"x\": 1}\n{\"x\": ");
  std::filesystem::resize_file(path, 70 << 20);
  EXPECT_EQ(error_of(ErrorCode::data, [&] { open_data(path, "m.onnx", "uint16"); }), path + ": line 2: is longer than 64 MiB");
}

// --- reading ----------------------------------------------------------------------------------------------------------------------------

TEST_F(JsonLinesFile, TenThousandLinesAreReadInAnyOrder) {
  constexpr int64_t kLines = 10'000, kLong = 12'000;  // the long ones are longer than what is read at a time
  const auto length_of = [](int64_t line) { return line % 2500 == 7 ? kLong : 1 + line * 37 % 23; };
  const auto token = [](int64_t line, int64_t i) { return 100'000 + (line * 131 + i * 7) % 900'000; };
  std::string content;
  size_t longest = 0;
  for (int64_t line = 0; line < kLines; ++line) {
    std::string text = fmt::format("{{\"number\": {}, \"input_ids\": [", line);
    for (int64_t i = 0; i < length_of(line); ++i) text += fmt::format("{}{}", i > 0 ? "," : "", token(line, i));
    text += "]}";
    longest = std::max(longest, text.size());
    content += text + "\n";
  }
  ASSERT_GT(longest, size_t{64} << 10);
  const DataSets sets = opened(content);
  DataSet& data = *sets.train;
  ASSERT_EQ(data.samples(), kLines);
  EXPECT_EQ(data.memory_bytes(), 8 * kLines / 16 + static_cast<int64_t>(longest) + 1 + 4 * 9) << "an index, a line, a key";
  EXPECT_EQ(data.unpacked_bytes(), 0);
  for (int64_t i = 0; i < 500; ++i) {
    const int64_t line = i < 40 ? kLines - 1 - i : i < 44 ? 7 + 2500 * (i - 40) : i * 7919 % kLines;
    EXPECT_THAT(numbers<int64_t>(data, "number", line), ElementsAre(line));
    const std::vector<int64_t> ids = numbers<int64_t>(data, "input_ids", line);
    ASSERT_EQ(static_cast<int64_t>(ids.size()), kLong);
    bool is_right = true;
    for (int64_t at = 0; at < kLong; ++at)
      is_right = is_right && ids[static_cast<size_t>(at)] == (at < length_of(line) ? token(line, at) : 0);
    EXPECT_TRUE(is_right) << line;
    const std::vector<int64_t> mask = numbers<int64_t>(data, "attention_mask", line);
    EXPECT_EQ(std::count(mask.begin(), mask.begin() + length_of(line), 1), length_of(line));
    EXPECT_EQ(std::count(mask.begin(), mask.end(), 0), kLong - length_of(line));
  }
}

TEST_F(JsonLinesFile, AFileThatIsWrittenToIsNoticed) {
  std::string content;
  for (int i = 0; i < 40; ++i) content += "{\"input_ids\": [1, 2, 3]}\n";
  const DataSets sets = opened(content);
  DataSet& data = *sets.train;
  const std::string hash = data.content_hash();
  const auto read_last = [&] { numbers<int64_t>(data, "input_ids", 39); };
  const auto with_last = [&](std::string last) {
    last.resize(24, ' ');
    write_file(path, content.substr(0, content.size() - 25) + last + "\n");
  };
  read_last();
  EXPECT_FALSE(data.was_written_to());
  for (const char* other :
       {"{\"input_ids\": [1, 2, 3, 4", "{\"input_ids\": [1, 2, .5", "{\"input_ids\": [1, 2]}", "{\"input_id\": [1, 2, 3]}",
        "{\"input_ids\": \"[1, 2\"}", "{\"input_ids\": [1,2,3,4]}", "{\"input_ids\": [1,2,3.5]}", "", "\n\n\n"}) {
    with_last(other);
    EXPECT_EQ(error_of(ErrorCode::data, read_last), path + ": was changed while it was read") << other;
  }
  EXPECT_TRUE(data.was_written_to());
  EXPECT_NE(data.content_hash(), hash);
  with_last("{\"input_ids\": [7, 8, 9]}");
  EXPECT_THAT(numbers<int64_t>(data, "input_ids", 39), ElementsAre(7, 8, 9));
  write_file(path, content.substr(0, content.size() - 40));
  EXPECT_THAT(error_of(ErrorCode::io, read_last), HasSubstr("bytes are missing"));
}

// --- what feeds a model -----------------------------------------------------------------------------------------------------------------

// JSON doesn't say of 3 whether it is a floating-point number.
TEST_F(JsonLinesFile, WholeNumbersFeedFloatingPointInputs) {
  const DataSets sets = opened("{\"x\": [1, -2, 16777217]}\n{\"x\": [4, 5, 6]}\n");
  for (const DType type : {DType::float32, DType::float64, DType::int32}) {
    Graph graph;
    const ValueId x = graph.add_value({.name = "x", .dtype = type, .shape = {2, 3}, .kind = ValueKind::input});
    graph.inputs.push_back(x);
    Binding binding;
    binding.fed = {{.input = "x", .field = "x"}};
    Feed feed(*sets.train, graph, binding, {});
    std::vector<std::byte> memory(static_cast<size_t>(graph.value(x).bytes()));
    const int64_t samples[] = {1, 0};
    feed.fill(samples, [&](ValueId) { return std::span(memory); }, {});
    const auto are = [&]<typename T>(const std::vector<T>& expected) {
      return bytes_of(expected) == std::string(reinterpret_cast<const char*>(memory.data()), memory.size());
    };
    EXPECT_TRUE(type == DType::float32   ? are(std::vector<float>{4, 5, 6, 1, -2, 16777216})
                : type == DType::float64 ? are(std::vector<double>{4, 5, 6, 1, -2, 16777217})
                                         : are(std::vector<int32_t>{4, 5, 6, 1, -2, 16777217}));
  }
}

struct JsonLinesRuns : TrainerRuns {
  static constexpr int64_t kSamples = 22, kTokens = 32, kWidth = 24;
  using Samples = std::vector<std::vector<int64_t>>;
  Samples ids, labels;

  JsonLinesRuns() {
    for (int64_t sample = 0; sample < kSamples; ++sample) {
      ids.emplace_back();
      labels.emplace_back();
      for (int64_t i = 0; i < length_of(sample); ++i) {
        ids.back().push_back((sample * 31 + i * 7) % kTokens);
        labels.back().push_back(i < 1 ? -100 : ids.back().back());
      }
    }
  }
  static int64_t length_of(int64_t sample) { return sample % 7 == 3 ? 12 - sample % 2 : 2 + sample * 5 % 6; }

  std::string model() const {
    auto proto = fixtures::masked_model(kTokens);
    const auto add = [&](const char* name, const std::vector<int64_t>& dims, int64_t step) {
      *proto.mutable_graph()->add_initializer() = fixtures::tensor_of(name, dims, numbers(dims[0] * dims[1], step));
    };
    add("embedding", {kTokens, kWidth}, 7919);
    add("w", {kWidth, kWidth}, 613);
    add("v", {kWidth, kTokens}, 619);
    return fixtures::write_model(folder, proto);
  }
  Options options(const std::string& data) const {
    Options o{.model = model(), .data = data, .task = "causal-lm"};
    o.batch_size = 3;
    o.learning_rate = 1e-2;
    o.max_steps = 12;
    o.eval_steps = 5;
    o.threads = 2;
    o.profile = profile;
    return o;
  }
  // Samples [begin, end), as lines and as arrays of one length.
  std::string lines(const std::string& name, bool with_labels, int64_t begin = 0, int64_t end = kSamples) const {
    std::string content;
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      content += fmt::format("{{\"input_ids\": [{}]", fmt::join(ids[i], ", "));
      if (with_labels) content += fmt::format(", \"labels\": [{}]", fmt::join(labels[i], ", "));
      content += fmt::format(", \"source\": \"{}\"}}\n", i);
    }
    return write_file(folder / name, content);
  }
  std::string arrays(const std::string& name, bool with_labels, int64_t length, int64_t begin = 0, int64_t end = kSamples) const {
    std::vector<int64_t> tokens, targets;
    std::vector<float> mask;
    for (auto sample = static_cast<size_t>(begin); sample < static_cast<size_t>(end); ++sample) {
      for (size_t i = 0; i < static_cast<size_t>(length); ++i) {
        const bool counts = i < ids[sample].size();
        tokens.push_back(counts ? ids[sample][i] : 0);
        targets.push_back(counts ? labels[sample][i] : -100);
        mask.push_back(counts ? 1.0f : 0.0f);
      }
    }
    Arrays arrays;
    arrays.add("input_ids", {end - begin, length}, tokens).add("attention_mask", {end - begin, length}, mask);
    if (with_labels) arrays.add("labels", {end - begin, length}, targets);
    return arrays.write(folder / name);
  }
  std::vector<std::string> notes_of(const Options& o) const {
    std::vector<std::string> notes;
    const Trainer trainer(o, {.on_note = [&](const std::string& text) { notes.push_back(text); }});
    return notes;
  }
  void expect_same(const Options& o, const Options& other) {
    const Run run = train(o), expected = train(other);
    EXPECT_EQ(run.losses.size(), 2 * static_cast<size_t>(o.max_steps));
    EXPECT_EQ(run.losses, expected.losses);
    EXPECT_EQ(run.summary.eval_loss, expected.summary.eval_loss);
    EXPECT_EQ(run.summary.weights_hash, expected.summary.weights_hash);
  }
};

TEST_F(JsonLinesRuns, LeaveTheBitsOfArrays) {
  for (const bool with_labels : {false, true}) {
    const Options o = options(lines("data.jsonl", with_labels));
    expect_same(o, options(arrays("data.safetensors", with_labels, 12)));
    const std::vector<std::string> notes = notes_of(o);
    const auto has = [&](const std::string& text) { return std::count(notes.begin(), notes.end(), text); };
    EXPECT_EQ(has(o.data + ": samples have 2 to 12 tokens, and are padded to 12"), 1);
    EXPECT_EQ(has("labels are 'input_ids', shifted; labels of padded positions don't count ('attention_mask')"), with_labels ? 0 : 1);
  }
}

TEST_F(JsonLinesRuns, AreCutToLengthBuckets) {
  Options o = options(lines("data.jsonl", true)), other = options(arrays("data.safetensors", true, 12));
  o.length_buckets = other.length_buckets = {4, 8};
  expect_same(o, other);
  EXPECT_EQ(Trainer(o).plan().lengths.size(), 3u);
}

TEST_F(JsonLinesRuns, AreAsLongAsSeqLengthSays) {
  for (const int64_t length : {5, 16}) {
    Options o = options(lines("data.jsonl", true));
    o.seq_length = length;
    expect_same(o, options(arrays("data.safetensors", true, length)));
    const int64_t longer = std::count_if(ids.begin(), ids.end(), [](const auto& sample) { return sample.size() > 5; });
    EXPECT_THAT(notes_of(o), testing::Contains(length == 5 ? fmt::format("{}: {} of 22 samples are longer than 5 tokens, and are cut to it",
                                                                         o.data, longer)
                                                           : o.data + ": samples have 2 to 12 tokens, and are padded to 16"));
  }
}

TEST_F(JsonLinesRuns, AFolderHasSamplesOfOneLength) {
  for (const char* name : {"lines", "arrays"}) std::filesystem::create_directory(folder / name);
  lines("lines/train.jsonl", false, 0, 3);
  lines("lines/valid.jsonl", false, 3, kSamples);
  arrays("arrays/train.safetensors", false, 12, 0, 3);
  arrays("arrays/valid.safetensors", false, 12, 3, kSamples);
  expect_same(options(folder / "lines"), options(folder / "arrays"));
}

TEST_F(JsonLinesRuns, AreGoneOnWith) {
  Options o = options(lines("data.jsonl", true));
  const Run whole = train(o);
  o.output_dir = folder / "resumed";
  EXPECT_EQ(train_in_two(o, 7).weights_hash, whole.summary.weights_hash);
}

// Samples of one length have no padding: a language model's mask is filled in.
TEST_F(JsonLinesRuns, SamplesOfOneLengthNeedNoMask) {
  std::vector<int64_t> tokens, targets;
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i].resize(6, static_cast<int64_t>(i));
    labels[i].resize(6, 1);
    tokens.insert(tokens.end(), ids[i].begin(), ids[i].end());
    targets.insert(targets.end(), labels[i].begin(), labels[i].end());
  }
  const Options o = options(lines("data.jsonl", true));
  expect_same(
      o, options(Arrays().add("input_ids", {kSamples, 6}, tokens).add("labels", {kSamples, 6}, targets).write(folder / "a.safetensors")));
  for (const std::string& note : notes_of(o)) EXPECT_THAT(note, testing::Not(HasSubstr("padded")));
}

TEST_F(JsonLinesRuns, ClassifyNumbers) {
  auto proto = fixtures::model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (float[batch, 3] x) => (float[batch, 4] logits) { logits = MatMul (x, w) })");
  *proto.mutable_graph()->add_initializer() = fixtures::tensor_of("w", {3, 4}, numbers(12, 613));
  const std::string model = fixtures::write_model(folder, proto, "classifier.onnx");
  std::string content;
  std::vector<float> x;
  std::vector<int64_t> classes;
  for (int64_t i = 0; i < 20; ++i) {
    content += fmt::format("{{\"x\": [{}, {}, {}], \"label\": {}}}\n", i, i % 3, -i, i % 4);
    for (const int64_t number : {i, i % 3, -i}) x.push_back(static_cast<float>(number));
    classes.push_back(i % 4);
  }
  Options o = options(write_file(folder / "x.jsonl", content));
  o.model = model;
  o.task.clear();
  o.labels = "label";
  Options other = o;
  other.data = Arrays().add("x", {20, 3}, x).add("label", {20}, classes).write(folder / "x.safetensors");
  expect_same(o, other);
}

TEST_F(JsonLinesRuns, PaddingOfNumbersWouldCount) {
  Options o =
      options(write_file(folder / "d.jsonl", "{\"input_ids\": [1, 2], \"labels\": [0.5, 1]}\n{\"input_ids\": [1], \"labels\": [0.5]}\n"));
  o.task.clear();
  o.eval_steps = 0;
  o.loss = "mse";
  auto proto = fixtures::model_of(R"(<ir_version: 8, opset_import: ["" : 17]>
      g (int64[batch, seq] input_ids) => (float[batch, seq] y) { last = Constant <value_ints = [2]> ()
         e = Gather (embedding, input_ids) y = ReduceSum <keepdims = 0> (e, last) })");
  *proto.mutable_graph()->add_initializer() = fixtures::tensor_of("embedding", {4, 3}, numbers(12, 613));
  o.model = fixtures::write_model(folder, proto, "numbers.onnx");
  EXPECT_EQ(error_of(ErrorCode::data, [&] { Trainer{o}; }),
            o.data + ": array 'labels' has samples of several lengths, and padding would count in a loss of numbers: give them one length");
}

}  // namespace
}  // namespace ort_train
