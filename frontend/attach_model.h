// Models beside the one that is trained, which its losses read: a teacher, or a loss as an ONNX graph. They become part of the job's
// forward graph, with weights that stay as they are.

#pragma once

#include <string>
#include <vector>

#include "frontend/binding.h"
#include "frontend/import.h"

namespace ort_train {

struct Attachment {
  std::string path;
  std::string prefix;    // of the names of its tensors
  bool is_loss = false;  // its inputs may be outputs of the trained model
  Declared model{};
};

// What the data feeds to a graph: so many samples, of that length (Binding::import_options).
struct BatchShape {
  const Binding& binding;
  int64_t samples = 0, length = 0;
};

// The other models that the options name.
std::vector<Attachment> attachments(const Options& options);

// Adds to the binding the arrays that only an attached model reads. Throws Error(usage | data) where one of its inputs comes from nowhere.
void bind_attachment(const Attachment& attachment, const Declared& trained, const DataSet& data, Binding& binding);

// Imports an attached model for `batch` samples with the `options` of the trained model, and adds it to that model's graph: its
// weights to the weights, its outputs after the outputs. Throws Error(unsupported) with all that can't be imported.
void attach_model(Imported& trained, const Attachment& attachment, const BatchShape& batch, const ImportOptions& options,
                  const DataSet& data, Workers& workers);

}  // namespace ort_train
