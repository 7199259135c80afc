// TfIdfVectorizer(x ([N,] C)) -> ([N,] columns), float32: how often each n-gram of a pool of integers is in a row, in order and with up to
// max_skip_count elements between neighbours; or whether it is (IDF), or how often, times its weight (TFIDF).
//
// For each length and distance: the windows of a row, compared with all n-grams of that length at once.

#include "exec/ops/ngrams.h"

#include <string>
#include <vector>

#include "exec/ops/onnx_type.h"
#include "graph/builder.h"
#include "graph/error.h"
#include "graph/op_def.h"

ORT_TRAIN_OPS_BEGIN

void lower_tf_idf(Lowering& l) {
  const Attributes& given = l.node.attributes;
  const auto list = [&](const char* name) { return given.get(name, std::vector<int64_t>{}); };
  const std::vector<int64_t> pool = list("pool_int64s"), begins = list("ngram_counts"), columns = list("ngram_indexes");
  const std::vector<float> weights = float_list(given, "weights");
  const std::string mode = given.get("mode", "");
  const int64_t shortest = given.get("min_gram_length", int64_t{1}), longest = given.get("max_gram_length", int64_t{1}),
                skips = given.get("max_skip_count", int64_t{0});
  const Shape shape = l.shape(l.input(0));
  if (is_floating(l.dtype(l.input(0))) || pool.empty()) l.fail("counts n-grams of text; those of integers are supported");
  if (shape.empty() || shape.size() > 2) l.fail(fmt::format("rows of {} have one axis or two", to_string(shape)));
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF") l.fail(fmt::format("its mode '{}' is not known", mode));
  constexpr int64_t kMost = 1 << 16;
  if (shortest < 1 || longest < shortest || longest > static_cast<int64_t>(begins.size()) || skips < 0 || skips > kMost)
    l.fail(fmt::format("n-grams of {} to {} numbers with {} between them are not those of a pool of {} lengths", shortest, longest, skips,
                       begins.size()));
  int64_t width = 0;
  for (const int64_t column : columns) {
    if (column < 0 || column >= kMost) l.fail(fmt::format("column {} can't be", column));
    width = std::max(width, column + 1);
  }
  if (!weights.empty() && weights.size() != columns.size())
    l.fail(fmt::format("it has {} weights for {} n-grams", weights.size(), columns.size()));
  const int64_t rows = shape.size() == 2 ? shape[0] : 1, length = shape.back();
  const ValueId x = l.cast(l.reshape(l.input(0), {rows, length}), DType::int64);
  ValueId counts = l.constant(Tensor(DType::float32, {1, width}));
  size_t first = 0;  // n-gram of this length
  for (int64_t n = 1; n <= longest; ++n) {
    const int64_t begin = begins[static_cast<size_t>(n - 1)],
                  end = n < static_cast<int64_t>(begins.size()) ? begins[static_cast<size_t>(n)] : static_cast<int64_t>(pool.size());
    if (begin < 0 || end < begin || end > static_cast<int64_t>(pool.size()) || (end - begin) % n != 0)
      l.fail("its ngram_counts do not divide its pool");
    const int64_t grams = (end - begin) / n;
    if (first + static_cast<size_t>(grams) > columns.size()) l.fail(fmt::format("it has {} columns for more n-grams", columns.size()));
    if (n >= shortest && grams > 0) {
      const ValueId known = l.constant(make_tensor({1, 1, grams, n}, std::vector<int64_t>(pool.begin() + begin, pool.begin() + end)));
      Tensor places(DType::float32, {grams, width});
      for (int64_t gram = 0; gram < grams; ++gram) {
        const size_t at = first + static_cast<size_t>(gram);
        places.data<float>()[static_cast<size_t>(gram * width + columns[at])] = mode == "TF" || weights.empty() ? 1 : weights[at];
      }
      ValueId found = kNone;
      for (int64_t distance = 1; distance <= (n == 1 ? 1 : skips + 1); ++distance) {
        const int64_t windows = length - (n - 1) * distance;
        if (windows < 1) break;
        std::vector<int64_t> read;
        for (int64_t window = 0; window < windows; ++window) {
          for (int64_t i = 0; i < n; ++i) read.push_back(window + i * distance);
        }
        const ValueId taken =
            l.reshape(l.emit("Gather", {x, l.constant(make_tensor({windows, n}, read))}, {{"axis", int64_t{1}}}), {rows, windows, 1, n});
        const ValueId same = l.cast(l.emit("Equal", {taken, known}), DType::float32);
        const ValueId whole = l.emit("ReduceMin", {same}, {{"axes", std::vector<int64_t>{3}}, {"keepdims", int64_t{0}}});
        const ValueId here = l.emit("ReduceSum", {whole}, {{"axes", std::vector<int64_t>{1}}, {"keepdims", int64_t{0}}});
        found = found == kNone ? here : l.emit("Add", {found, here});
      }
      if (found != kNone) {
        if (mode == "IDF") found = l.emit("Min", {found, l.scalar_like(found, 1)});
        Attributes in_float32;  // counts are whole numbers
        set_runs_in(in_float32, Precision::float32);
        counts = l.emit("Add", {counts, l.emit("MatMul", {found, l.constant(std::move(places))}, in_float32)});
      }
    }
    first += static_cast<size_t>(grams);
  }
  if (l.shape(counts)[0] != rows) counts = l.emit("Expand", {counts}, {{"shape", std::vector<int64_t>{rows, width}}});
  l.output(0, l.reshape(counts, shape.size() == 2 ? Shape{rows, width} : Shape{width}));
}

ORT_TRAIN_OPS_END
