// Binding: which of a model's inputs the data feeds, which are constants of the job, and what every dynamic dimension is.
//
// The first axis of what the data feeds is the batch, the second axis of token inputs the sequence. What the model's file fixes wins;
// then --shape, --batch-size, --seq-length, the shapes of the data's arrays; two sources that disagree are an Error.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "frontend/data_set.h"
#include "frontend/import.h"
#include "frontend/ort_train.h"

namespace ort_train {

// The array whose samples end with zeros after what counts.
inline constexpr const char* kLengthField = "attention_mask";

inline constexpr int64_t kDefaultBatch = 8;  // samples, where neither the model nor an option says

// The size of a dimension of DeclaredInput::dims that the file fixes.
std::optional<int64_t> fixed_size(const std::string& dim);
// What the file, or `shapes`, says of a dimension of an input.
std::optional<int64_t> asked_size(const DeclaredInput& input, size_t axis, const std::map<std::string, int64_t>& shapes);

// The batch that a job is likely to have, where its data aren't known yet: the first size that the file or `shapes` gives an input that
// data may feed; else `batch_size`, or 8.
int64_t likely_batch(const Declared& declared, const Options& options);

// The importer's options, without bound inputs.
ImportOptions import_options(const Options& options);

struct FedInput {
  std::string input;  // of the model
  std::string field;  // of the data set
};

// An input that the data don't feed: what Options::bind gives, or where text doesn't: attention_mask ones, position_ids 0..T-1,
// token_type_ids zeros.
struct ConstantInput {
  enum class Kind { ones, positions, zeros, given };
  std::string name;
  Kind kind = Kind::ones;
  DType dtype = DType::int64;
  Shape shape;                       // with the batch of the binding
  std::vector<std::string> names{};  // of its dimensions, by which they are bound; empty where the file fixes one
  bool first_is_batch = false;
  std::string text{};  // given: see bound_value()
};

struct Binding {
  int64_t batch = 0;
  int64_t sequence = 0;         // 0 where the job knows none
  bool batch_is_fixed = false;  // by the model's file: no other batch can be bound
  std::vector<FedInput> fed;
  std::vector<ConstantInput> constants;
  std::map<std::string, int64_t> shapes;  // without the batch
  std::vector<std::string> batch_names;   // dimensions that are the batch
  std::vector<std::string> length_names;  // dimensions that are the sequence, which Options::length_buckets cut

  bool is_length(const std::string& name) const;
  // Of a sample of an array, where samples are cut to `length`: axes as long as a sample are.
  Shape cut(Shape sample, int64_t length) const;
  // What import needs for a batch of this size, and samples of this length (of a job without lengths: `sequence`).
  ImportOptions import_options(int64_t batch, int64_t length, const Options& options) const;
};

// Cuts `data` into samples where it is one long row. Throws Error(usage) or Error(data).
Binding bind_inputs(const Declared& declared, const Options& options, DataSet& data);

}  // namespace ort_train
