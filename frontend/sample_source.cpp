#include "frontend/sample_source.h"

#include <algorithm>
#include <memory>
#include <set>
#include <utility>

#include "graph/error.h"
#include "graph/onnx/reader.h"

namespace ort_train {
namespace {

// `option`: the field of Options that gives it, by which messages call it.
class SourceData : public DataSet {
 public:
  SourceData(std::shared_ptr<SampleSource> source, const std::string& option) : DataSet("`" + option + "`"), source_(std::move(source)) {
    std::set<std::string> names;
    for (const SampleField& field : source_->fields()) {
      const std::string shown = onnx::printable(field.name);
      if (!names.insert(field.name).second) throw error(ErrorCode::data, "{}: has two arrays '{}'", name(), shown);
      const auto element = element_named(field.type);
      if (!element)
        throw error(ErrorCode::data, "{}: array '{}' is of type '{}', which is not known: it is one of NumPy's, such as int64 or float32",
                    name(), shown, onnx::printable(field.type));
      const Shape shape = field.shape;
      if (shape.size() >= kMaxRank || std::any_of(shape.begin(), shape.end(), [](int64_t size) { return size <= 0; }))
        throw error(ErrorCode::data, "{}: array '{}' has samples of shape {}: each of fewer than {} axes has one element at least", name(),
                    shown, to_string(shape), kMaxRank);
      element_count(shape);  // refuses more than fits
      fields_.push_back({.name = field.name, .element = *element, .shape = shape});
    }
    if (fields_.empty()) throw error(ErrorCode::data, "{}: has no arrays", name());
    samples_ = source_->size();
    if (samples_ <= 0) throw error(ErrorCode::data, "{}: has {} samples", name(), samples_);
  }

  void read(size_t field, int64_t sample, std::span<std::byte> to) override { source_->read(field, sample, to); }

  // Where the source says nothing, how many samples there are, and their arrays.
  std::string content_hash() const override {
    std::string content = source_->content_hash();
    if (content.empty()) {
      content = fmt::format("{}", samples_);
      for (const Field& field : fields_) content += fmt::format(" {} {} {}", field.name, to_string(field.element), to_string(field.shape));
    }
    return hex16(hash_bytes(std::as_bytes(std::span(content))));
  }

 private:
  const std::shared_ptr<SampleSource> source_;
};

}  // namespace

DataSets source_data_sets(const Options& options) {
  DataSets sets;
  sets.train = std::make_unique<SourceData>(options.train_samples, "train_samples");
  sets.name = sets.train->name();
  if (options.eval_samples) sets.valid = std::make_unique<SourceData>(options.eval_samples, "eval_samples");
  return sets;
}

}  // namespace ort_train
