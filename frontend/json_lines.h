// JsonLines: samples from a file of JSON objects, one a line: {"input_ids": [5, 9, 2], "labels": [-100, 9, 2]}.
//
// Each key is a field: one number, or a list of numbers (or of lists of one shape). Fields of whole numbers are int64, others float32.
// Samples of tokens may have any length: their lists are padded on the right to the longest sample, or to LineOptions::length, to which
// longer ones are cut. A field 'attention_mask' that the file doesn't have says where padding is. A field that is no such thing in some
// line is unusable (Field::unusable), which is no obstacle where nobody reads it.
//
// The file is parsed once when it is opened, and again line by line as samples are read. In memory are where every 16th line begins, 8
// bytes each, and a line.

#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/data_set.h"
#include "graph/error_type.h"

namespace ort_train {

struct LineValue;

class JsonLines : public FileData {
 public:
  // Throws Error(data) for what is no file of objects, or has no field that can be used.
  JsonLines(const std::string& path, LineOptions options);
  // Samples of both get the same lengths.
  static void match(JsonLines& a, JsonLines& b);

  void use(const std::set<std::string>& fields) override;
  void read(size_t field, int64_t sample, std::span<std::byte> to) override;
  int64_t memory_bytes() const override;
  bool has_plain_numbers() const override { return true; }
  std::string note() const override;

 private:
  // What lines have behind one key.
  struct Column {
    std::string name;
    Shape shape{};                      // in line 1
    int64_t shortest = 0, longest = 0;  // the first axis
    int64_t here = 0;                   // that of the last line
    bool has_fractions = false;
    int64_t line = 0;         // the last one that has it
    int64_t unlike_line = 0;  // the first one in which it isn't as long as the tokens, and both lengths
    int64_t unlike = 0, unlike_tokens = 0;
    std::string unusable{};

    bool is_list() const { return unusable.empty() && !shape.empty(); }
    bool varies() const { return shortest != longest; }
  };

  void scan();
  void add_line(const std::vector<LineValue>& values, size_t count);
  void add_value(Column& column, const LineValue& value);
  size_t column_of(const std::string& key, size_t place);
  void compare_lengths();
  void refuse_text() const;
  const Column* list_named(std::string_view name) const;
  bool is_of_decoder(const std::string& name) const;
  // Makes the fields. `beside`: another file whose samples have to get the same lengths, or null.
  void settle(const JsonLines* beside);
  void settle_length(Column& column, const JsonLines* beside, int64_t tokens, Field& field) const;
  std::string_view line_at(int64_t sample);
  Error changed() const;

  const LineOptions options_;
  int64_t bytes_ = 0;
  std::vector<int64_t> offsets_{};  // of every kLinesApart-th line
  std::vector<Column> columns_{};   // as the fields; behind them there may be a mask that the file doesn't have
  std::map<std::string, size_t> by_name_{};
  int64_t cut_ = 0;  // samples
  int64_t longest_line_ = 0, longest_text_ = 0;
  std::string buffer_{};
};

}  // namespace ort_train
