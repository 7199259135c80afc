// DataSet: samples by index, read when asked for: from a file, or from the program that embeds the library (sample_source.h).
//
// A sample has fields, one an array of numbers: "input_ids" of text and token files, one field an array of .npz and .safetensors files, one
// a key of JSON lines (json_lines.h). Such files may have others, too, which can't be samples: nobody has to read them. Nothing is held in
// memory but an index, 8 bytes a 4,096 characters of text or 16 lines of JSON, and compressed arrays that are used, which are unpacked. A
// DataSet belongs to one thread at a time.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "frontend/element.h"
#include "frontend/file.h"
#include "frontend/vocabulary.h"
#include "graph/types.h"

namespace ort_train {

struct Field {
  std::string name;
  Element element = Element::int64;
  Shape shape;             // of one sample
  std::string unusable{};  // why it has no samples that could be read, as a sentence; empty: it has
  bool is_padded = false;  // some samples are shorter, and end with padding that the file doesn't have
  int64_t bytes() const { return element_count(shape) * size_of(element); }
};

class DataSet {
 public:
  virtual ~DataSet() = default;

  // As messages call it: a file's path.
  const std::string& name() const { return name_; }
  int64_t samples() const { return samples_; }
  const std::vector<Field>& fields() const { return fields_; }
  // Index of a field, -1 where there is none. Throws Error(data) for one that is unusable.
  int find(std::string_view field) const;
  // The same, as the field itself; null where there is none.
  const Field* field(std::string_view name) const;
  // From now on only these fields are read, of those that there are. All must have the same number of samples, which samples() then is.
  // Throws Error(data) where they differ in that, or there are none.
  virtual void use(const std::set<std::string>& /*fields*/) {}
  // Text and tokens: a long row that has to be cut into samples. Throws Error(data) where not even one comes out.
  virtual bool is_row() const { return false; }
  virtual void cut(int64_t /*sample_length*/) {}

  // Whether int64 fields may stand for floating-point numbers, because the file writes both alike.
  virtual bool has_plain_numbers() const { return false; }
  // What was done to samples of other lengths, as a sentence; empty: nothing.
  virtual std::string note() const { return {}; }

  // One field of one sample, as the bytes of its elements.
  virtual void read(size_t field, int64_t sample, std::span<std::byte> to) = 0;

  // What it takes from memory once loaded. Reading a compressed field unpacks it.
  virtual int64_t memory_bytes() const { return 0; }
  // What of that are arrays that the file has compressed.
  virtual int64_t unpacked_bytes() const { return 0; }
  virtual void load() {}
  virtual void unload() {}  // frees what was unpacked

  // 16 hex digits that change with the samples.
  virtual std::string content_hash() const = 0;
  // Whether what is read is no longer what was opened.
  virtual bool was_written_to() const { return false; }

 protected:
  explicit DataSet(std::string name) : name_(std::move(name)) {}
  int64_t samples_ = 0;
  std::vector<Field> fields_;

 private:
  std::string name_;
};

// A DataSet that is a file.
class FileData : public DataSet {
 public:
  // A hash of the file, and of what else its samples follow from. Of a file of more than 64 MiB only 64 pieces of 1 MiB, evenly spread, are
  // read.
  std::string content_hash() const override { return hex16(hash_sampled(file_)); }
  bool was_written_to() const override { return !file_.stamp().has_content_of(opened_); }

 protected:
  explicit FileData(const std::string& path) : DataSet(path), file_(File::open(path)), opened_(file_.stamp()) {}
  File file_;

 private:
  FileStamp opened_;
};

struct DataSets {
  std::string name;  // of all together, as messages call them: the path of a file or a folder
  std::unique_ptr<DataSet> train;
  std::unique_ptr<DataSet> valid;          // null where there is only a single file
  std::unique_ptr<Vocabulary> vocabulary;  // of text, else null
  std::string valid_problem;               // why `valid` is null though the folder has it, as a sentence

  std::string content_hash() const;  // of both
  bool was_written_to() const;       // one of them
};

// How lines of JSON become samples.
struct LineOptions {
  std::map<std::string, int64_t> labels{{"labels", -100}};  // of each field of labels, what its padding is
  int64_t length = 0;                                       // of samples of tokens: longer ones are cut; 0: as long as the longest
  bool always_masks = true;                                 // a field 'attention_mask' of ones also where no sample is padded
};

enum class ValidFile : uint8_t {
  needed,
  optional,  // one that can't be opened is left out (DataSets::valid_problem)
  ignored,
};

// Opens a file, or a folder with train.* and valid.* (val.*, validation.*). `model` says where the vocabulary of text lies; `token_type` is
// uint16 or uint32. Throws Error(data).
DataSets open_data(const std::string& path, const std::string& model, const std::string& token_type, ValidFile valid = ValidFile::needed,
                   const LineOptions& lines = {});

}  // namespace ort_train
