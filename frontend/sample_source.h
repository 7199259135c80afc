// What the program that embeds the library gives as data: an ort_train::SampleSource as a DataSet. Each of its arrays is a field, as one of
// a .npz file is. It takes no memory of the library's.

#pragma once

#include <memory>
#include <string>

#include "frontend/data_set.h"
#include "frontend/ort_train.h"

namespace ort_train {

// `option`: the field of Options that gives it, by which messages call it. Throws Error(data) where its fields can't be those of samples.
std::unique_ptr<DataSet> source_data(std::shared_ptr<SampleSource> source, const std::string& option);

// Options::train_samples and Options::eval_samples.
DataSets source_data_sets(const Options& options);

}  // namespace ort_train
