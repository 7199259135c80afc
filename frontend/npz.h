// .npz and .npy (NumPy's enhancement proposal 1, format versions 1 to 3): the arrays of a zip archive, located without reading them.
//
// Stored members are read in place; deflated ones (numpy.savez_compressed) have to be unpacked to memory. What can't be read (Fortran
// order, texts, objects, big-endian and structured types, encrypted members) is located all the same, with the reason: nothing may need it.
// Refused is what is damaged: ranges outside the file, sizes that disagree.

#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "frontend/element.h"
#include "frontend/file.h"

namespace ort_train {

struct NpyArray {
  std::string name;  // without ".npy"
  Element element = Element::float32;
  Shape shape;
  int64_t bytes = 0;   // of its elements
  int64_t offset = 0;  // stored: where in the file its elements begin
  bool deflated = false;
  int64_t packed_offset = 0, packed_bytes = 0;  // deflated: the member's data
  int64_t header_bytes = 0;                     // deflated: the .npy header in front of the elements
  uint32_t crc = 0;                             // deflated: of header and elements
  std::string unreadable{};                     // why its elements can't be read, as a sentence: then it has no type and no shape
};

// All arrays, in the archive's order. Throws Error(data) naming the file, the member and what is wrong.
std::vector<NpyArray> read_npz_directory(const File& file);

// The array of a .npy file. Throws Error(data), also where it can't be read.
NpyArray read_npy(const File& file);

// The elements of a deflated array; checks length and CRC.
std::vector<std::byte> unpack(const File& file, const NpyArray& array);

}  // namespace ort_train
