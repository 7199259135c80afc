// Fuzzing: a function for each format that is read. It is given any bytes, and may end in an Error of ours, in nothing else.
//
// `ort-train-fuzz --target=NAME` (main.cpp) searches for bytes that break one; tests/fuzz_test.cpp replays what is in corpus/NAME in every
// test run, whatever the compiler. To add one: a file here with its function, a line below, a line in targets.cpp, a few inputs in
// corpus/NAME. What was found stays there as crash-*, so that it is replayed.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ort_train::fuzz {

using Bytes = std::span<const uint8_t>;

struct Target {
  std::string_view name{};
  void (*run)(Bytes) = nullptr;
  size_t longest = 4096;  // bytes that an input may have
};
const std::vector<Target>& targets();
// Null where there is none of that name.
const Target* find_target(std::string_view name);
// Runs it. Errors of ours are fine; any other exception, and an Error that reports a mistake of our own, leaves as std::logic_error.
void run(const Target& target, Bytes bytes);

void fuzz_model(Bytes bytes);        // an ONNX file
void fuzz_nodes(Bytes bytes);        // a valid ONNX file of nodes that the bytes choose: op, opset, inputs, attributes, shapes
void fuzz_npz(Bytes bytes);          // an archive of arrays
void fuzz_safetensors(Bytes bytes);  // a file of tensors
void fuzz_checkpoint(Bytes bytes);   // the manifest of a checkpoint, with tables of files or slots
void fuzz_json_lines(Bytes bytes);   // samples as JSON objects, one a line
void fuzz_vocabulary(Bytes bytes);   // the tokens of a text model
void fuzz_profile(Bytes bytes);      // the profile of a machine

// --- for the functions ----------------------------------------------------------------------------------------------------------------

// A folder of the process, in memory where there is such a file system.
const std::string& folder();
// Writes a file there; returns its path.
std::string write(const std::string& name, Bytes bytes);
inline std::string write(const std::string& name, std::string_view text) {
  return write(name, Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size()));
}
// A model in `folder()`: what it is made to do here without a crash is all that `check` and a plan of it do, and a step on zeros where it
// is small.
void exercise_model(const std::string& path);

}  // namespace ort_train::fuzz
