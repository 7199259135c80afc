// `export`: an adapter is added to the weights of the model that it was trained beside, without data or training.

#include <fmt/ranges.h>

#include "frontend/adapters.h"
#include "frontend/binding.h"
#include "frontend/boundary.h"
#include "frontend/check_options.h"
#include "frontend/check_shapes.h"
#include "frontend/export.h"
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
    const std::vector<Adapter> adapters = adapt(model, settings, {});
    std::vector<Weight> weights = model.weights;
    for (Weight& weight : weights) weight.dtype = DType::float32;  // as they are handed over
    const auto numbers = [&](const std::string& name, const ByteSink& sink) {
      if (sink) read_rows(weight_named(weights, name).places.at(0), sink);
      return true;
    };
    make_folders(options.output_dir);
    return export_model(model.info, weights, merged(adapters, settings.scale, weights, numbers), options.output_dir);
  });
}

}  // namespace ort_train
