// `export`: an adapter is added to the weights of the model that it was trained beside, without data or training.

#include <algorithm>

#include "frontend/adapters.h"
#include "frontend/binding.h"
#include "frontend/boundary.h"
#include "frontend/check_options.h"
#include "frontend/check_shapes.h"
#include "frontend/export.h"
#include "frontend/file.h"
#include "frontend/importer.h"
#include "frontend/ort_train.h"
#include "frontend/weight_file.h"
#include "graph/error.h"
#include "offload/file_system.h"

namespace ort_train {

std::string export_merged(const Options& options) {
  return in_library([&] {
    check_options(options);
    if (options.adapter.empty()) throw error(ErrorCode::usage, "no adapter is given: `adapter` is a folder that PEFT or a run wrote");
    const AdapterSettings settings = adapter_settings(options);
    const onnx::ModelDef file = importing::open_model(options.model);
    std::vector<OpenDimension> open;
    Workers workers(1);
    Imported model = import_with_some_sizes(file.graph, options, import_options(options).outputs, open, workers);
    const std::vector<Adapter> adapters = adapt(model, settings, {.read = outputs_read_of(model.graph, import_options(options).outputs)});
    // The rest of the file is copied; copies that `untie` makes are new.
    std::vector<Weight> weights = model.weights, changed;
    for (Weight& weight : weights) {
      const bool is_adapted = std::any_of(adapters.begin(), adapters.end(), [&](const Adapter& a) { return a.weight == weight.parameter; });
      weight.dtype = weight.places.at(0).dtype;
      if (is_adapted) weight.dtype = DType::float32;
      const bool is_new = std::any_of(weight.places.begin(), weight.places.end(), [](const WeightPlace& place) { return place.added; });
      if (is_adapted || is_new) changed.push_back(weight);
    }
    const auto numbers = [&](const std::string& name, const ByteSink& sink) {
      const Weight& weight = weight_named(weights, name);
      if (sink) read_rows(weight.places[0], weight.dtype, sink);
      return true;
    };
    make_folders(options.output_dir);
    const FolderLock lock(options.output_dir);
    return export_model(model.info, changed, merged(adapters, settings.scale, weights, numbers), options.output_dir);
  });
}

}  // namespace ort_train
