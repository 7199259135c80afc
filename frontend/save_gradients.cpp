#include <algorithm>
#include <array>
#include <cstring>

#include "exec/loss_scale.h"
#include "frontend/export.h"
#include "frontend/save_tensors.h"
#include "graph/error.h"

namespace ort_train {
namespace {

// body<T>() for the type that gradients have: float32, or what the weight itself has of float64 and bfloat16.
template <typename Body> void for_gradient(DType dtype, const Body& body) {
  if (dtype == DType::float64) return body.template operator()<double>();
  if (dtype == DType::bfloat16) return body.template operator()<bfloat16>();
  require(dtype == DType::float32, "gradients of another type");
  body.template operator()<float>();
}

template <typename T> void write_divided(std::span<const std::byte> bytes, float inverse, int64_t offset, const ByteSink& sink) {
  std::array<T, 4096> buffer;
  for (size_t done = 0; done < bytes.size();) {
    const size_t count = std::min(bytes.size() - done, sizeof(buffer));
    std::memcpy(buffer.data(), bytes.data() + done, count);
    for (T& number : buffer) number = ort_train::store<T>(load(number) * inverse);
    sink(offset + static_cast<int64_t>(done), std::as_bytes(std::span(buffer)).first(count));
    done += count;
  }
}

// Gradients without the loss scale.
void write_unscaled(std::span<const std::byte> bytes, DType dtype, float loss_scale, int64_t offset, const ByteSink& sink) {
  if (loss_scale == 1) return sink(offset, bytes);
  for_gradient(dtype, [&]<typename T>() { write_divided<T>(bytes, inverse_loss_scale(loss_scale), offset, sink); });
}

// sum += more
void add_up(DType dtype, std::span<std::byte> sum, std::span<const std::byte> more) {
  for_gradient(dtype, [&]<typename T>() {
    T* const to = reinterpret_cast<T*>(sum.data());
    const T* const from = reinterpret_cast<const T*>(more.data());
    for (size_t i = 0; i < sum.size() / sizeof(T); ++i) to[i] = ort_train::store<T>(load(to[i]) + load(from[i]));
  });
}

}  // namespace

void write_gradients(const Job& job, const PlannedJob& planned, Runtime& runtime, size_t index, float loss_scale) {
  const JobEntry& entry = planned.set.entries[index];
  const Graph& graph = entry.built.graph;
  std::map<std::string, ValueId> gradients;
  std::map<std::string, std::string> accumulated;  // parameter -> accumulator
  for (const auto& [parameter, whole] : entry.built.gradients) {
    if (entry.built.accumulators.empty()) gradients[graph.value(parameter).name] = whole;
  }
  for (const auto& [parameter, uses] : entry.built.accumulators) {
    // Added up where they are: the first holds the sum, the others zero, which leaves the sum that the update makes what it is.
    const std::string& first = graph.value(uses[0]).name;
    for (size_t use = 1; use < uses.size(); ++use) {
      const std::string& other = graph.value(uses[use]).name;
      const auto sum = runtime.persistent(first), from = runtime.persistent(other, 1);
      add_up(graph.value(uses[0]).dtype, sum, from);
      std::memset(from.data(), 0, from.size());
      runtime.changed(first);
      runtime.changed(other, 1);
    }
    accumulated[graph.value(parameter).name] = first;
  }
  std::vector<Weight> as_summed = job.model.weights;  // of the types that the gradients have
  const auto type_of = [&](const std::string& slice) {
    const auto sum = accumulated.find(slice);
    const auto found = gradients.find(slice);
    return sum != accumulated.end()   ? graph.value(graph.find_value(sum->second)).dtype
           : found != gradients.end() ? graph.value(found->second).dtype
                                      : DType::float32;
  };
  for (Weight& weight : as_summed) {
    if (const std::vector<Slice> slices = runtime.slices_of(weight.parameter); !slices.empty()) weight.dtype = type_of(slices[0].name);
  }
  write_layouts(job.options.save_gradients, as_summed, [&](const std::string& name, const ByteSink& sink) {
    int64_t offset = 0;
    const std::vector<Slice> slices = runtime.slices_of(name);
    const auto weight =
        std::find_if(job.model.weights.begin(), job.model.weights.end(), [&](const Weight& w) { return w.parameter == name; });
    for (const Slice& slice : slices) {
      const auto sum = accumulated.find(slice.name);
      const auto found = gradients.find(slice.name);
      if (sum == accumulated.end() && found == gradients.end()) return false;
      if (!sink) continue;
      const DType dtype = type_of(slice.name);
      const auto in_gradient = [&](int64_t bytes) { return static_cast<size_t>(bytes / size_of(weight->dtype) * size_of(dtype)); };
      const std::span<const std::byte> bytes =
          sum != accumulated.end() ? runtime.persistent(sum->second) : runtime.bytes(index, found->second);
      write_unscaled(bytes.subspan(in_gradient(slice.offset), in_gradient(slice.bytes)), dtype, loss_scale, offset, sink);
      offset += static_cast<int64_t>(in_gradient(slice.bytes));
    }
    return !slices.empty();
  });
}

}  // namespace ort_train
