// ort-train-conformance CASES.safetensors: imports models, runs them with the processor's kernels and compares their outputs with what they
// should be. Prints a line of JSON for each case; tests/conformance.py writes the cases, from the standard's own node tests, and judges.
//
// For a case NAME the file has NAME/model (the bytes of an ONNX file), NAME/tolerance (rtol and atol, float64), NAME/input/INPUT for each
// input of the model, by its name, and NAME/output/OUTPUT.
//
// A case is tried with all inputs fed; where the importer refuses that, with its integers and booleans known at import (they are axes,
// shapes, masks), then with all inputs known, when folding computes what comes out. An input without elements is known in any case: a
// file's dimension 0 stands for one that isn't known. The first that is imported and runs is compared; `known` says which it was.

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "frontend/file.h"
#include "frontend/safetensors.h"
#include "tests/run_imported.h"

namespace ort_train {
namespace {

using Tensors = std::map<std::string, Tensor>;

struct Case {
  Tensors inputs, outputs;
  double rtol = 0, atol = 0;
};

const SafetensorsEntry& entry_of(const SafetensorsHeader& header, const std::string& name) {
  const SafetensorsEntry* const entry = header.find(name);
  if (!entry) throw error(ErrorCode::data, "the file has no array '{}'", name);
  return *entry;
}

Tensor tensor_of(const File& file, const SafetensorsEntry& entry) {
  for (int i = 0; i <= static_cast<int>(DType::boolean); ++i) {
    const DType dtype = static_cast<DType>(i);
    if (element_of(dtype) != entry.element) continue;
    Tensor tensor(dtype, entry.shape);
    file.read(entry.offset, tensor.bytes);
    return tensor;
  }
  throw error(ErrorCode::data, "'{}' is {}, which no tensor is", entry.name, to_string(entry.element));
}

Case read_case(const File& file, const SafetensorsHeader& header, const std::string& name) {
  Case read;
  for (const auto& [side, tensors] : {std::pair{"/input/", &read.inputs}, {"/output/", &read.outputs}}) {
    const std::string prefix = name + side;
    for (const SafetensorsEntry& entry : header.entries) {
      if (entry.name.starts_with(prefix)) tensors->emplace(entry.name.substr(prefix.size()), tensor_of(file, entry));
    }
  }
  const std::vector<double> tolerance = tensor_of(file, entry_of(header, name + "/tolerance")).to_double();
  read.rtol = tolerance.at(0);
  read.atol = tolerance.at(1);
  return read;
}

// What is wrong with an output; empty where nothing is. A model of 16-bit numbers is computed in float32 (frontend/import.h), so a float32
// result may stand for one of 16 bits, to which it is rounded here.
std::string difference(Tensor actual, const Tensor& wanted, double rtol, double atol) {
  if (is_half(wanted.dtype) && actual.dtype == DType::float32) {
    Tensor rounded(wanted.dtype, actual.shape);
    convert(Element::float32, actual.bytes, wanted.dtype, rounded.bytes);
    actual = std::move(rounded);
  }
  if (wanted.dtype == DType::bfloat16) rtol = std::max(rtol, 0x1p-6);  // two units in the last place, as the standard's own runner has it
  if (actual.type() != wanted.type()) return fmt::format("it is {} instead of {}", to_string(actual.type()), to_string(wanted.type()));
  if (!is_floating(wanted.dtype) && actual.bytes == wanted.bytes) return "";
  const std::vector<double> a = actual.to_double(), b = wanted.to_double();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i]))) continue;
    if (std::abs(a[i] - b[i]) <= atol + rtol * std::abs(b[i]) && std::isfinite(b[i]) && is_floating(wanted.dtype)) continue;
    return fmt::format("element {} is {} instead of {}", i, a[i], b[i]);
  }
  return "";
}

// One attempt: what refuses the case, or its outputs.
struct Attempt {
  std::string refusal;
  Tensors outputs;
};

Attempt attempt(const std::string& path, const Case& given, bool (*known)(const Tensor&)) {
  Workers workers(1);
  ImportOptions options;
  Tensors fed;
  for (const auto& [name, tensor] : given.inputs) (tensor.size() == 0 || known(tensor) ? options.bound_inputs : fed)[name] = tensor;
  Attempt made;
  try {
    const Imported imported = import_model(path, options, workers);
    for (const Obstacle& obstacle : imported.obstacles) {
      made.refusal += fmt::format("{}{}: {}", made.refusal.empty() ? "" : "; ", obstacle.node, obstacle.reason);
    }
    if (made.refusal.empty()) made.outputs = fixtures::run_imported(imported, fed);
  } catch (const Error& e) {
    made.refusal = e.what();
  }
  return made;
}

nlohmann::json judge(const std::string& path, const std::string& name, const Case& given) {
  struct Mode {
    const char* known;
    bool (*of)(const Tensor&);
  };
  constexpr Mode kModes[] = {{"", [](const Tensor&) { return false; }},
                             {"integers", [](const Tensor& tensor) { return !is_floating(tensor.dtype); }},
                             {"all", [](const Tensor&) { return true; }}};
  std::string refusal;
  for (const Mode& mode : kModes) {
    const Attempt made = attempt(path, given, mode.of);
    if (!made.refusal.empty()) {
      if (refusal.empty()) refusal = made.refusal;
      continue;
    }
    std::string wrong;
    for (const auto& [output, wanted] : given.outputs) {
      const auto found = made.outputs.find(output);
      const std::string here = found == made.outputs.end() ? "it is missing" : difference(found->second, wanted, given.rtol, given.atol);
      if (!here.empty()) wrong += fmt::format("{}'{}': {}", wrong.empty() ? "" : "; ", output, here);
    }
    return {{"case", name}, {"result", wrong.empty() ? "passed" : "wrong"}, {"known", mode.known}, {"reason", wrong}};
  }
  return {{"case", name}, {"result", "refused"}, {"known", ""}, {"reason", refusal}};
}

void run(const std::string& cases) {
  const File file = File::open(cases);
  const SafetensorsHeader header = read_safetensors_header(file, ErrorCode::data);
  std::set<std::string> names;
  for (const SafetensorsEntry& entry : header.entries) names.insert(entry.name.substr(0, entry.name.find('/')));
  const std::string path = (std::filesystem::temp_directory_path() / fmt::format("ort-train-conformance-{}.onnx", ::getpid())).string();
  for (const std::string& name : names) {
    const SafetensorsEntry& model = entry_of(header, name + "/model");
    std::vector<std::byte> bytes(static_cast<size_t>(model.bytes));
    file.read(model.offset, bytes);
    std::filesystem::remove(path);
    {
      File written = File::create(path);
      written.write(0, bytes);
    }
    // The paths of this machine don't belong in a result.
    std::string line = judge(path, name, read_case(file, header, name)).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    for (size_t at; (at = line.find(path)) != std::string::npos;) line.replace(at, path.size(), "model.onnx");
    std::puts(line.c_str());
    std::fflush(stdout);
  }
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace ort_train

int main(int count, char** arguments) {
  if (count != 2) {
    std::fputs("usage: ort-train-conformance CASES.safetensors\n", stderr);
    return 2;
  }
  try {
    ort_train::run(arguments[1]);
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "error: %s\n", e.what());
    return 1;
  }
}
