// .npz, .safetensors and vocabularies: what they hold comes out, and what is broken or hostile ends in an Error.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "frontend/data_set.h"
#include "frontend/element.h"
#include "frontend/npz.h"
#include "frontend/safetensors.h"
#include "graph/utf8.h"
#include "tests/failures.h"
#include "tests/test_files.h"

namespace ort_train {
namespace {

using testing::HasSubstr;

template <typename T> std::vector<T> field_of(DataSet& data, const std::string& name, int64_t sample) {
  const size_t field = static_cast<size_t>(data.find(name));
  std::vector<T> values(static_cast<size_t>(element_count(data.fields()[field].shape)));
  data.read(field, sample, std::as_writable_bytes(std::span(values)));
  return values;
}

const std::string kX = npy(npy_description("<f4", "(3, 2)"), bytes_of(std::vector<float>{0, 1, 2, 3, 4, 5}));
const std::string kY = npy(npy_description("<i8", "(3,)"), bytes_of(std::vector<int64_t>{7, -8, 9}), 2);

TEST(Npz, StoredAndDeflatedArraysAreRead) {
  TestFolder folder;
  for (const bool deflate : {false, true}) {
    const std::string path =
        write_file(folder / "data.npz", zip({{"x.npy", kX, deflate}, {"notes.txt", "hello", deflate}, {"y.npy", kY, deflate}}));
    const DataSets sets = open_data(path, "m.onnx", "uint16");
    DataSet& data = *sets.train;
    ASSERT_EQ(data.fields().size(), 2u);
    EXPECT_EQ(data.samples(), 3);
    EXPECT_EQ(data.memory_bytes(), deflate ? 24 + 24 : 0);
    data.load();
    EXPECT_EQ(field_of<float>(data, "x", 1), (std::vector<float>{2, 3}));
    EXPECT_EQ(field_of<int64_t>(data, "y", 1), std::vector<int64_t>{-8});
  }
}

TEST(Npz, EveryVersionAndTypeOfHeader) {
  TestFolder folder;
  const std::pair<const char*, Element> types[] = {{"<f2", Element::float16}, {"<f8", Element::float64}, {"|i1", Element::int8},
                                                   {"<u2", Element::uint16},  {"<u4", Element::uint32},  {"<u8", Element::uint64},
                                                   {"|b1", Element::boolean}, {"|u1", Element::uint8}};
  for (const int version : {1, 2, 3}) {
    for (const auto& [text, element] : types) {
      const std::string content =
          npy(npy_description(text, "(2, 1, 3)"), std::string(static_cast<size_t>(6 * size_of(element)), '\1'), version);
      const File file = File::open(write_file(folder / "data.npz", zip({{"a.npy", content}})));
      const auto arrays = read_npz_directory(file);
      ASSERT_EQ(arrays.size(), 1u);
      EXPECT_EQ(arrays[0].element, element);
      EXPECT_EQ(arrays[0].shape, (Shape{2, 1, 3}));
    }
  }
}

TEST(Npz, WhatCantBeReadIsNamed) {
  TestFolder folder;
  const auto refusal = [&](const std::string& content) {
    const std::string path = write_file(folder / "data.npz", zip({{"a.npy", content}}));
    return error_of(ErrorCode::data, [&] { read_npz_directory(File::open(path)); });
  };
  // Whole, and of a kind that can't be read: until somebody asks for it, that is no harm.
  const auto reason = [&](const std::string& content) {
    const File file = File::open(write_file(folder / "data.npz", zip({{"a.npy", content}})));
    const std::vector<NpyArray> arrays = read_npz_directory(file);
    EXPECT_EQ(arrays.size(), 1u);
    EXPECT_EQ(error_of(ErrorCode::data, [&] { unpack(file, arrays.at(0)); }), arrays.at(0).unreadable);
    const std::string alone = write_file(folder / "a.npy", content);
    EXPECT_THAT(error_of(ErrorCode::data, [&] { read_npy(File::open(alone)); }), testing::StartsWith(alone + ": "));
    return arrays.at(0).unreadable;
  };
  EXPECT_THAT(reason(npy("{'descr': '<f4', 'fortran_order': True, 'shape': (1, 2), }", std::string(8, '\0'))), HasSubstr("Fortran order"));
  EXPECT_THAT(reason(npy(npy_description(">f4", "(2,)"), std::string(8, '\0'))), HasSubstr("big-endian"));
  EXPECT_THAT(reason(npy(npy_description("<U4", "(2,)"), std::string(32, '\0'))), HasSubstr("'<U4'"));
  EXPECT_THAT(reason(npy("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }", std::string(4, '\0'))),
              HasSubstr("structured"));
  EXPECT_THAT(refusal(npy(npy_description("<f4", "(3,)"), std::string(8, '\0'))), HasSubstr("float32 [3]"));
  EXPECT_THAT(refusal(npy(npy_description("<f4", "(4611686018427387904, 4)"), std::string(8, '\0'))), HasSubstr("not those of"));
  EXPECT_THAT(refusal(npy(npy_description("<f4", "(-1,)"), "")), HasSubstr("shape"));
  EXPECT_THAT(refusal("no array"), HasSubstr("shorter"));
  EXPECT_THAT(refusal("no array at all"), HasSubstr("not a .npy array"));
  EXPECT_THAT(error_of(ErrorCode::data, [&] { read_npz_directory(File::open(write_file(folder / "data.npz", "PK"))); }),
              HasSubstr("shorter than a zip"));
}

// Every truncation, and every byte changed: an Error or the true values, never a crash. Sanitizers watch.
TEST(Npz, DamageIsNeverMoreThanAnError) {
  TestFolder folder;
  for (const bool deflate : {false, true}) {
    const std::string whole = zip({{"x.npy", kX, deflate}, {"y.npy", kY, deflate}});
    const auto attempt = [&](const std::string& bytes) {
      const File file = File::open(write_file(folder / "data.npz", bytes));
      try {
        for (const NpyArray& array : read_npz_directory(file)) {
          if (array.deflated)
            unpack(file, array);
          else {
            std::vector<std::byte> elements(static_cast<size_t>(array.bytes));
            file.read(array.offset, elements);
          }
        }
        return true;
      } catch (const Error&) {
        return false;
      }
    };
    EXPECT_TRUE(attempt(whole));
    for (size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(attempt(whole.substr(0, length))) << length;
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const int change : {1, 128, 255}) {
        std::string bytes = whole;
        bytes[at] = static_cast<char>(bytes[at] ^ change);
        attempt(bytes);
      }
    }
  }
}

TEST(Npz, ACompressedArrayThatLiesAboutItsContentIsRefused) {
  TestFolder folder;
  std::string bytes = zip({{"x.npy", kX, true}});
  const size_t crc = bytes.find("PK\1\2") + 16;
  bytes[crc] = static_cast<char>(bytes[crc] ^ 1);
  const File file = File::open(write_file(folder / "data.npz", bytes));
  const auto arrays = read_npz_directory(file);
  EXPECT_THAT(error_of(ErrorCode::data, [&] { unpack(file, arrays.at(0)); }), HasSubstr("checksum"));
}

TEST(Safetensors, WritesWhatItReads) {
  TestFolder folder;
  const std::string path = folder / "t.safetensors";
  {
    File written = File::create(path);
    SafetensorsWriter writer(written, {{"b", Element::float32, {2, 1}}, {"none", Element::int64, {0, 3}}, {"a", Element::uint8, {3}}},
                             {{"k", "v"}});
    writer.write(2, std::as_bytes(std::span("xyz", 3)));
    const std::vector<float> numbers{1.5f, -2};
    writer.write(0, std::as_bytes(std::span(numbers)).subspan(4), 4);
    writer.write(0, std::as_bytes(std::span(numbers)).first(4), 0);
  }
  const File file = File::open(path);
  const SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);
  ASSERT_EQ(header.entries.size(), 3u);
  EXPECT_EQ(header.metadata.at("k"), "v");
  const SafetensorsEntry* b = header.find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (Shape{2, 1}));
  std::vector<float> numbers(2);
  file.read(b->offset, std::as_writable_bytes(std::span(numbers)));
  EXPECT_EQ(numbers, (std::vector<float>{1.5f, -2}));
  EXPECT_EQ(read_file(path).substr(static_cast<size_t>(header.find("a")->offset)), "xyz");
}

TEST(Safetensors, ReadsArraysAsData) {
  TestFolder folder;
  const std::string path = write_file(folder / "d.safetensors",
                                      safetensors(R"({"x":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]}})", std::string(8, '\0')));
  const DataSets sets = open_data(path, "m.onnx", "uint16");
  EXPECT_EQ(sets.train->samples(), 2);
  EXPECT_EQ(sets.train->fields()[0].element, Element::bfloat16);
}

TEST(Safetensors, RefusesWhatTheFormatForbids) {
  TestFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    const std::string path = write_file(folder / "t.safetensors", bytes);
    return error_of(ErrorCode::corrupt, [&] { read_safetensors_header(File::open(path), ErrorCode::corrupt); });
  };
  const auto tensor = [](const std::string& name, const std::string& shape, int begin, int end) {
    return "\"" + name + "\":{\"dtype\":\"F32\",\"shape\":" + shape + ",\"data_offsets\":[" + std::to_string(begin) + "," +
           std::to_string(end) + "]}";
  };
  const std::string eight(8, '\0');
  EXPECT_THAT(refusal("1234567"), HasSubstr("7 bytes"));
  EXPECT_THAT(refusal(bytes_of(uint64_t{1} << 40)), HasSubstr("100 MB"));
  EXPECT_THAT(refusal(bytes_of(uint64_t{9}) + "{}"), HasSubstr("beyond"));
  EXPECT_THAT(refusal(safetensors("[]", "")), HasSubstr("begin"));
  EXPECT_THAT(refusal(safetensors("{", "")), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(safetensors("{" + tensor("a", "[2]", 0, 8) + "}", eight + "x")), HasSubstr("1 bytes follow"));
  EXPECT_THAT(refusal(safetensors("{" + tensor("a", "[2]", 0, 8) + "}", "1234")), HasSubstr("beyond"));
  EXPECT_THAT(refusal(safetensors("{" + tensor("a", "[1]", 0, 8) + "}", eight)), HasSubstr("not those of float32 [1]"));
  EXPECT_THAT(refusal(safetensors("{" + tensor("a", "[1]", 0, 4) + "," + tensor("b", "[1]", 0, 4) + "}", "1234")),
              HasSubstr("begins at 0, not at 4"));
  EXPECT_THAT(refusal(safetensors("{" + tensor("a", "[1]", 4, 8) + "}", eight)), HasSubstr("begins at 4"));
  EXPECT_THAT(refusal(safetensors("{" + tensor("a", "[1]", 0, 4) + "," + tensor("a", "[1]", 4, 8) + "}", eight)), HasSubstr("twice"));
  EXPECT_THAT(refusal(safetensors("{" + tensor("a", "[-1]", 0, 4) + "}", "1234")), HasSubstr("negative"));
  EXPECT_THAT(refusal(safetensors("{" + tensor("a", "[4611686018427387904,4]", 0, 4) + "}", "1234")), HasSubstr("4 bytes"));
  EXPECT_THAT(refusal(safetensors(R"({"a":{"dtype":"F31","shape":[],"data_offsets":[0,4]}})", "1234")), HasSubstr("F31"));
  EXPECT_THAT(refusal(safetensors(R"({"a":{"dtype":"F32","shape":[]}})", "1234")), HasSubstr("incomplete"));
  EXPECT_THAT(refusal(safetensors(R"({"a":5})", "")), HasSubstr("number"));
  EXPECT_THAT(refusal(safetensors(R"({"a":{"dtype":{"x":1},"shape":[],"data_offsets":[0,4]}})", "1234")), HasSubstr("nested"));
}

TEST(Safetensors, DamageIsNeverMoreThanAnError) {
  TestFolder folder;
  const std::string whole =
      safetensors(R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", std::string(8, '\0'));
  const auto attempt = [&](const std::string& bytes) {
    try {
      read_safetensors_header(File::open(write_file(folder / "t.safetensors", bytes)), ErrorCode::corrupt);
      return true;
    } catch (const Error& problem) {
      EXPECT_EQ(problem.code(), ErrorCode::corrupt);
      return false;
    }
  };
  EXPECT_TRUE(attempt(whole));
  for (size_t length = 0; length < whole.size(); ++length) EXPECT_FALSE(attempt(whole.substr(0, length))) << length;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
      attempt(bytes);
    }
  }
}

TEST(Element, ConvertsWithinWhatFits) {
  const auto converted = [](Element from, const auto& values, DType to, auto result) {
    std::vector<decltype(result)> results(values.size());
    const int64_t bad = convert(from, std::as_bytes(std::span(values)), to, std::as_writable_bytes(std::span(results)));
    return std::pair(bad, results);
  };
  EXPECT_EQ(converted(Element::int64, std::vector<int64_t>{-128, 127}, DType::int8, int8_t{}),
            std::pair(int64_t{-1}, std::vector<int8_t>{-128, 127}));
  EXPECT_EQ(converted(Element::int64, std::vector<int64_t>{1, 128}, DType::int8, int8_t{}).first, 1);
  EXPECT_EQ(converted(Element::uint64, std::vector<uint64_t>{~uint64_t{0}}, DType::int64, int64_t{}).first, 0);
  EXPECT_EQ(converted(Element::uint16, std::vector<uint16_t>{65535}, DType::int64, int64_t{}).second[0], 65535);
  EXPECT_EQ(converted(Element::int32, std::vector<int32_t>{0, 1, 2}, DType::boolean, uint8_t{}).first, 2);
  EXPECT_EQ(converted(Element::int16, std::vector<int16_t>{-1}, DType::uint8, uint8_t{}).first, 0);
  // float16: one, the smallest subnormal, minus infinity
  const auto half = converted(Element::float16, std::vector<uint16_t>{0x3c00, 0x0001, 0xfc00}, DType::float32, float{});
  EXPECT_EQ(half.second, (std::vector<float>{1.0f, 0x1p-24f, -INFINITY}));
  EXPECT_EQ(converted(Element::bfloat16, std::vector<uint16_t>{0xc040}, DType::float64, double{}).second[0], -3.0);
  EXPECT_FALSE(converts(Element::int32, DType::float32));
  EXPECT_FALSE(converts(Element::float32, DType::int64));
  EXPECT_TRUE(converts(Element::boolean, DType::int64));
}

// As Feed does: to the buffer that it is read from.
TEST(Element, ACornerIsPackedInPlace) {
  const Shape from{3, 4, 5};
  for (const Shape& to : {Shape{3, 4, 4}, Shape{2, 3, 4}, Shape{3, 4, 1}, Shape{3, 3, 5}, Shape{2, 4, 5}, from}) {
    std::vector<int16_t> values(static_cast<size_t>(element_count(from)));
    std::iota(values.begin(), values.end(), int16_t{0});
    std::vector<int16_t> expected;
    for (int64_t i = 0; i < to[0]; ++i) {
      for (int64_t j = 0; j < to[1]; ++j) {
        for (int64_t k = 0; k < to[2]; ++k) expected.push_back(static_cast<int16_t>((i * from[1] + j) * from[2] + k));
      }
    }
    auto* const begin = reinterpret_cast<std::byte*>(values.data());
    const std::byte* const end = take_corner(begin, begin, from, to, size_of(Element::int16));
    EXPECT_EQ(end - begin, element_count(to) * size_of(Element::int16));
    values.resize(expected.size());
    EXPECT_EQ(values, expected) << testing::PrintToString(to);
  }
}

TEST(Vocabulary, BothForms) {
  TestFolder folder;
  for (const char* text : {R"({"tokens": ["a", "ä", "<s>", "€", "𝄞"]})", R"({"a": 0, "ä": 1, "<s>": 2, "€": 3, "𝄞": 4})"}) {
    const Vocabulary vocabulary = Vocabulary::read(write_file(folder / "v.json", text));
    EXPECT_EQ(vocabulary.size(), 5);
    EXPECT_EQ(vocabulary.id_of(U'a'), 0);
    EXPECT_EQ(vocabulary.id_of(U'ä'), 1);
    EXPECT_EQ(vocabulary.id_of(U'𝄞'), 4);
    EXPECT_EQ(vocabulary.id_of(U'<'), -1);
    EXPECT_EQ(vocabulary.text_of(2), "<s>");
    EXPECT_EQ(vocabulary.text_of(9), "");
  }
  for (const char* text : {"", "[]", "{}", R"({"tokens": [1]})", R"({"a": -1})", R"({"a": 0, "b": 0})", R"({"tokens": ["a", "a"]})",
                           R"({"a": 99999999999})"}) {
    error_of(ErrorCode::data, [&] { Vocabulary::read(write_file(folder / "v.json", text)); });
  }
}

TEST(Vocabulary, LiesBesideTheModel) {
  TestFolder folder;
  EXPECT_THAT(error_of(ErrorCode::data, [&] { Vocabulary::beside(folder / "m.onnx"); }), HasSubstr("m.vocab.json"));
  write_file(folder / "vocab.json", R"({"tokens": ["x"]})");
  EXPECT_EQ(Vocabulary::beside(folder / "m.onnx").id_of(U'x'), 0);
  write_file(folder / "m.vocab.json", R"({"tokens": ["y"]})");
  EXPECT_EQ(Vocabulary::beside(folder / "m.onnx").id_of(U'y'), 0);
}

TEST(Utf8, RefusesWhatIsNot) {
  const auto decoded = [](std::string_view text) {
    char32_t character = 0;
    const int length = decode_utf8(text, character);
    return std::pair(length, static_cast<uint32_t>(character));
  };
  EXPECT_EQ(decoded("a"), std::pair(1, 0x61u));
  EXPECT_EQ(decoded("\xc3\xa4"), std::pair(2, 0xe4u));
  EXPECT_EQ(decoded("\xf4\x8f\xbf\xbf"), std::pair(4, 0x10ffffu));
  for (const char* bad :
       {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80", "\xc3\x28"})
    EXPECT_EQ(decoded(bad).first, -1);
  for (const char* cut : {"", "\xc3", "\xe2\x82", "\xf0\x9d\x84"}) EXPECT_EQ(decoded(cut).first, 0);
}

}  // namespace
}  // namespace ort_train
