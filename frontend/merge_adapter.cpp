// What becomes of an adapter in the end: part of the weights of the model that it was trained beside, after training, or by `export`
// without data or training.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <optional>

#include "exec/ops/dora.h"
#include "frontend/adapters.h"
#include "frontend/binding.h"
#include "frontend/boundary.h"
#include "frontend/check_options.h"
#include "frontend/check_shapes.h"
#include "frontend/element.h"
#include "frontend/export.h"
#include "frontend/file.h"
#include "frontend/importer.h"
#include "frontend/ort_train.h"
#include "frontend/weight_file.h"
#include "graph/error.h"
#include "offload/file_system.h"

namespace ort_train {
namespace {

// scale * L R, of which L has `rows` rows and R `columns` columns.
struct LowRankSum {
  std::vector<float> left{}, right{};  // [rows, rank] and [rank, columns]
  int64_t rank = 0, columns = 0;
  double scale = 1;

  // Adds some rows of it, from `first` on.
  void add(int64_t first, std::span<float> rows) const {
    std::vector<float> sum(static_cast<size_t>(columns));
    const auto factor = static_cast<float>(scale);
    for (size_t r = 0; r < rows.size() / sum.size(); ++r) {
      std::fill(sum.begin(), sum.end(), 0.0f);
      const float* const l = left.data() + (first + static_cast<int64_t>(r)) * rank;
      for (int64_t k = 0; k < rank; ++k) {
        const float* const from = right.data() + k * columns;
        for (int64_t c = 0; c < columns; ++c) sum[static_cast<size_t>(c)] += l[k] * from[c];
      }
      float* const to = rows.data() + r * sum.size();
      for (size_t c = 0; c < sum.size(); ++c) to[c] += factor * sum[c];
    }
  }
};

std::vector<float> transposed(const std::vector<float>& m, int64_t rows, int64_t columns) {
  std::vector<float> result(m.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) result[static_cast<size_t>(c * rows + r)] = m[static_cast<size_t>(r * columns + c)];
  }
  return result;
}

LowRankSum low_rank_sum(const Adapter& adapter, double scale, const std::vector<Weight>& weights, const WeightBytes& bytes_of) {
  const Weight &a = weight_named(weights, adapter.a), &b = weight_named(weights, adapter.b);
  const int64_t rank = a.places[0].shape[0], in = element_count(a.places[0].shape) / rank, out = b.places[0].shape[0];
  LowRankSum sum{.left = numbers_of(b, bytes_of), .right = numbers_of(a, bytes_of), .rank = rank, .columns = in, .scale = scale};
  if (adapter.use == AdaptedUse::transposed_product || adapter.use == AdaptedUse::lookup) {
    std::vector<float> left = transposed(sum.right, rank, in);
    sum.right = transposed(sum.left, out, rank);
    sum.left = std::move(left);
    sum.columns = out;
  }
  return sum;
}

// What becomes of a weight's rows: first the sum, then rows and columns are multiplied.
struct Merge {
  int64_t columns = 1;
  std::optional<LowRankSum> low_rank{};
  std::vector<float> of_rows{}, of_columns{};  // none: 1

  void apply(int64_t first, std::span<float> rows) const {
    if (low_rank) low_rank->add(first, rows);
    const auto width = static_cast<size_t>(columns);
    for (size_t i = 0; i < rows.size(); ++i) {
      if (!of_rows.empty()) rows[i] *= of_rows[static_cast<size_t>(first) + i / width];
      if (!of_columns.empty()) rows[i] *= of_columns[i % width];
    }
  }
};

constexpr int64_t kBlock = int64_t{1} << 18;  // elements

// The weight's numbers as they become, some rows at a time.
bool merge_rows(const Merge& merge, const std::string& name, const WeightBytes& bytes_of,
                const std::function<void(int64_t first, std::span<const float>)>& sink) {
  const int64_t row = merge.columns * int64_t{sizeof(float)}, block = std::max<int64_t>(1, kBlock / merge.columns) * row;
  std::vector<float> buffer;
  return bytes_of(name, [&](int64_t first, std::span<const std::byte> piece) {
    require(first % row == 0 && static_cast<int64_t>(piece.size()) % row == 0, "a piece of a weight that isn't whole rows");
    for (int64_t at = 0; at < static_cast<int64_t>(piece.size()); at += block) {
      const auto part =
          piece.subspan(static_cast<size_t>(at), static_cast<size_t>(std::min<int64_t>(block, static_cast<int64_t>(piece.size()) - at)));
      buffer.resize(part.size() / sizeof(float));
      std::memcpy(buffer.data(), part.data(), part.size());
      merge.apply((first + at) / row, buffer);
      sink((first + at) / row, buffer);
    }
  });
}

// DoRA's magnitudes, each divided by the norm that its output has in the sum so far.
std::vector<float> norm_factors(const Merge& merge, const Adapter& adapter, const std::vector<Weight>& weights,
                                const WeightBytes& bytes_of) {
  std::vector<float> factors = numbers_of(weight_named(weights, adapter.magnitude), bytes_of);
  const bool is_turned = adapter.use == AdaptedUse::transposed_product;
  std::vector<double> squares(factors.size());
  merge_rows(merge, adapter.weight, bytes_of, [&](int64_t first, std::span<const float> rows) {
    const auto width = static_cast<size_t>(merge.columns);
    for (size_t i = 0; i < rows.size(); ++i)
      squares[is_turned ? i % width : static_cast<size_t>(first) + i / width] += double{rows[i]} * double{rows[i]};
  });
  for (size_t i = 0; i < factors.size(); ++i)
    factors[i] = static_cast<float>(double{factors[i]} / std::sqrt(std::max(squares[i], kLeastSquares)));
  return factors;
}

Merge merge_of(const Adapter& adapter, const std::string& name, double scale, const std::vector<Weight>& weights,
               const WeightBytes& bytes_of) {
  Merge merge;
  if (name != adapter.weight) {  // a bias, whose rows are its numbers
    merge.of_rows = numbers_of(weight_named(weights, adapter.factors), bytes_of);
    return merge;
  }
  const Shape& shape = weight_named(weights, name).places[0].shape;
  merge.columns = element_count(shape.from(1));
  const bool is_turned = adapter.use == AdaptedUse::transposed_product;
  if (adapter.factors.empty()) {
    merge.low_rank = low_rank_sum(adapter, scale, weights, bytes_of);
    if (!adapter.magnitude.empty()) (is_turned ? merge.of_columns : merge.of_rows) = norm_factors(merge, adapter, weights, bytes_of);
    return merge;
  }
  const std::vector<float> numbers = numbers_of(weight_named(weights, adapter.factors), bytes_of);
  if (adapter.scales_inputs == is_turned) {
    merge.of_rows = numbers;
    return merge;
  }
  const size_t each = static_cast<size_t>(merge.columns) / numbers.size();  // of a kernel's channel
  for (const float number : numbers) merge.of_columns.insert(merge.of_columns.end(), each, number);
  return merge;
}

bool changes(const Adapter& adapter, const std::string& weight) {
  return adapter.weight == weight || std::find(adapter.biases.begin(), adapter.biases.end(), weight) != adapter.biases.end();
}

}  // namespace

std::vector<float> numbers_of(const Weight& weight, const WeightBytes& bytes_of) {
  std::vector<float> numbers(static_cast<size_t>(element_count(weight.places[0].shape)));
  const auto to = std::as_writable_bytes(std::span(numbers));
  const int64_t size = size_of(weight.dtype);
  bytes_of(weight.parameter, [&](int64_t first, std::span<const std::byte> piece) {
    const auto count = piece.size() / static_cast<size_t>(size);
    convert(element_of(weight.dtype), piece, DType::float32,
            to.subspan(static_cast<size_t>(first / size) * sizeof(float), count * sizeof(float)));
  });
  return numbers;
}

bool is_merged(const std::vector<Adapter>& adapters, const std::string& weight) {
  return std::any_of(adapters.begin(), adapters.end(), [&](const Adapter& adapter) { return changes(adapter, weight); });
}

WeightBytes merged(const std::vector<Adapter>& adapters, double scale, const std::vector<Weight>& weights, WeightBytes bytes_of) {
  return [&adapters, scale, &weights, bytes_of = std::move(bytes_of)](const std::string& name, const ByteSink& sink) {
    const auto adapter = std::find_if(adapters.begin(), adapters.end(), [&](const Adapter& a) { return changes(a, name); });
    if (adapter == adapters.end() || !sink) return bytes_of(name, sink);
    require(weight_named(weights, name).dtype == DType::float32, "an adapter of a weight that isn't float32");
    const Merge merge = merge_of(*adapter, name, scale, weights, bytes_of);
    return merge_rows(merge, name, bytes_of, [&](int64_t first, std::span<const float> rows) {
      sink(first * merge.columns * int64_t{sizeof(float)}, std::as_bytes(rows));
    });
  };
}

int64_t merging_bytes(const std::vector<Adapter>& adapters, const std::vector<Weight>& weights) {
  int64_t most = 0;
  for (const Adapter& adapter : adapters) {
    int64_t elements = 0;
    for (const std::string& name : adapter.trained()) elements += element_count(weight_named(weights, name).places[0].shape);
    if (!adapter.factors.empty()) elements += element_count(weight_named(weights, adapter.weight).places[0].shape.from(1));
    most = std::max(most, 2 * elements * int64_t{sizeof(float)});  // each is there transposed, or in double, too
  }
  return most;
}

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
      const bool is_adapted = is_merged(adapters, weight.parameter);
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
    if (const std::string path = options.output_dir + "/model.onnx"; exists(path) && !options.overwrite)
      throw error(ErrorCode::usage, "{}: is there already: replace it (`overwrite`), or choose another `output_dir`", path);
    return export_model(model.info, changed, merged(adapters, settings.scale, weights, numbers), options.output_dir, "export it again");
  });
}

}  // namespace ort_train
