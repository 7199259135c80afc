// The formats of data: .npz, .safetensors, JSON lines, vocabularies.

#include "frontend/json_lines.h"
#include "frontend/npz.h"
#include "frontend/safetensors.h"
#include "frontend/vocabulary.h"
#include "graph/error.h"
#include "tests/fuzz/fuzz.h"

namespace ort_train::fuzz {

void fuzz_npz(Bytes bytes) {
  const File file = File::open(write("data.npz", bytes));
  constexpr int64_t kMost = int64_t{1} << 22;  // to be unpacked in one go
  for (const NpyArray& array : read_npz_directory(file)) {
    if (array.deflated && array.bytes <= kMost) unpack(file, array);
    if (!array.deflated && array.bytes > 0) {
      std::byte last{};
      file.read(array.offset + array.bytes - 1, {&last, 1});  // a located array is inside the file
    }
  }
}

void fuzz_safetensors(Bytes bytes) {
  const File file = File::open(write("data.safetensors", bytes));
  for (const SafetensorsEntry& entry : read_safetensors_header(file, ErrorCode::data).entries) {
    std::byte last{};
    if (entry.bytes > 0) file.read(entry.offset + entry.bytes - 1, {&last, 1});
  }
}

// What was parsed when the file was opened can be read.
void fuzz_json_lines(Bytes bytes) {
  const std::string path = write("data.jsonl", bytes);
  for (const int64_t length : {0, 3}) {
    JsonLines data(path, {.length = length});
    data.note();
    for (size_t field = 0; field < data.fields().size(); ++field) {
      if (!data.fields()[field].unusable.empty()) continue;
      std::vector<std::byte> sample(static_cast<size_t>(data.fields()[field].bytes()));
      try {
        for (int64_t at = 0; at < data.samples(); ++at) data.read(field, at, sample);
      } catch (const Error& problem) {
        throw std::logic_error(problem.what());
      }
    }
  }
}

void fuzz_vocabulary(Bytes bytes) {
  const Vocabulary vocabulary = Vocabulary::read(write("vocab.json", bytes));
  for (const char32_t character : {U'a', U'\n', U'\u00e9', U'\U0001f600'}) {
    const int64_t id = vocabulary.id_of(character);
    if (id >= vocabulary.size()) throw std::logic_error("an id beyond the vocabulary");
    vocabulary.text_of(id);
  }
}

}  // namespace ort_train::fuzz
