// What the program that embeds the library gives as data: an ort_train::SampleSource as a DataSet. Each of its arrays is a field, as one of
// a .npz file is. It takes no memory of the library's.

#pragma once

#include "frontend/data_set.h"
#include "frontend/ort_train.h"

namespace ort_train {

// Options::train_samples and Options::eval_samples. Throws Error(data) where the fields can't be those of samples.
DataSets source_data_sets(const Options& options);

}  // namespace ort_train
