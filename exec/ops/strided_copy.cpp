// Moving elements: copies between strided layouts (rows, blocked transposes, single elements), framed copies, fills.

#include <immintrin.h>

#include <cstring>

#include "exec/gemm_micro.h"
#include "exec/strided.h"
#include "exec/transpose8.h"

ORT_TRAIN_OPS_BEGIN

namespace {

constexpr int64_t kSquare = 256;

// out[r * out_pitch + c] = in[r + c * in_pitch], element by element.
template <typename T> void transpose_elements(T* out, int64_t out_pitch, const T* in, int64_t in_pitch, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) out[r * out_pitch + c] = in[r + c * in_pitch];
  }
}

// Squares in registers: kSide vectors of words of 4 bytes. A word is one element, or two that are neighbours in `out`.
constexpr int64_t kSide = gemm::kWidth;
template <typename T> constexpr int64_t kBlockColumns = kSide* static_cast<int64_t>(sizeof(float) / sizeof(T));

// kSide rows of kBlockColumns elements.
void transpose_block(uint32_t* out, int64_t out_pitch, const uint32_t* in, int64_t in_pitch) {
  gemm::Vector words[kSide];
#pragma GCC unroll 16
  for (int64_t c = 0; c < kSide; ++c) words[c] = gemm::load(reinterpret_cast<const float*>(in + c * in_pitch));
  transpose_square(words, reinterpret_cast<float*>(out), out_pitch);
}
void transpose_block(uint16_t* out, int64_t out_pitch, const uint16_t* in, int64_t in_pitch) {
  gemm::Vector words[kSide];
#pragma GCC unroll 16
  for (int64_t c = 0; c < kSide; ++c) words[c] = gemm::PackingPairs<Element::bfloat16>::load(in + 2 * c * in_pitch, 2 * in_pitch, 0);
  float rows[kSide * kSide];  // on the way: out_pitch may be odd
  transpose_square(words, rows, kSide);
  for (int64_t r = 0; r < kSide; ++r) std::memcpy(out + r * out_pitch, rows + r * kSide, kSide * sizeof(float));
}

// block(top, left) of so many rows and columns each; the last ones begin earlier, so that they are whole. Rows of blocks: `out` is written
// in lines, which costs more than reading them.
template <typename Block> void for_blocks(int64_t rows, int64_t columns, int64_t of_rows, int64_t of_columns, const Block& block) {
  for (int64_t r = 0; r < rows; r += of_rows) {
    for (int64_t c = 0; c < columns; c += of_columns) block(std::min(r, rows - of_rows), std::min(c, columns - of_columns));
  }
}

template <typename T> void transpose_blocks(T* out, int64_t out_pitch, const T* in, int64_t in_pitch, int64_t rows, int64_t columns) {
  if constexpr (sizeof(T) == 2 || sizeof(T) == 4) {
    if (rows >= kSide && columns >= kBlockColumns<T>) {
      return for_blocks(rows, columns, kSide, kBlockColumns<T>, [&](int64_t top, int64_t left) {
        transpose_block(out + top * out_pitch + left, out_pitch, in + top + left * in_pitch, in_pitch);
      });
    }
  }
  if constexpr (sizeof(T) == 4) {
    if (rows >= 8 && columns >= 8) {
      return for_blocks(rows, columns, 8, 8, [&](int64_t top, int64_t left) {
        transpose8(reinterpret_cast<const float*>(in + top + left * in_pitch), in_pitch,
                   reinterpret_cast<float*>(out + top * out_pitch + left), out_pitch);
      });
    }
  }
  transpose_elements(out, out_pitch, in, in_pitch, rows, columns);
}

int64_t blocks_of(int64_t n, int64_t block) { return (n + block - 1) / block; }

}  // namespace

StridedCopy::StridedCopy(const CopyLayout& layout)
    : element_bytes_(layout.element_bytes),
      out_offset_(layout.out_offset),
      in_offset_(layout.in_offset),
      loop_(layout.dims, {layout.out_strides, layout.in_strides}) {
  if (loop_.count == 0) return;
  choose_kind();
  choose_tasks();
}

void StridedCopy::choose_kind() {
  kind_ = Kind::elements;
  if (loop_.inner_stride(0) != 1) return;
  if (loop_.inner_stride(1) == 1) kind_ = Kind::rows;
  if (loop_.inner_stride(1) <= 1) return;
  for (int axis = 0; axis + 1 < loop_.rank; ++axis) {
    if (loop_.strides[axis][1] != 1 || loop_.strides[axis][0] < 0) continue;
    // The two axes of the matrix leave the loop; what remains runs around it.
    kind_ = Kind::transpose;
    rows_ = loop_.dims[axis];
    out_pitch_ = loop_.strides[axis][0];
    columns_ = loop_.inner();
    in_pitch_ = loop_.inner_stride(1);
    Shape around;
    std::vector<int64_t> out_around, in_around;
    for (int other = 0; other + 1 < loop_.rank; ++other) {
      if (other == axis) continue;
      around.push_back(loop_.dims[other]);
      out_around.push_back(loop_.strides[other][0]);
      in_around.push_back(loop_.strides[other][1]);
    }
    loop_ = StridedLoop<2>(around, {out_around, in_around});
    return;
  }
}

void StridedCopy::choose_tasks() {
  units_ = loop_.count;
  if (kind_ == Kind::transpose) {  // a square is few enough pages for the address translation
    units_ *= blocks_of(rows_, kSquare) * blocks_of(columns_, kSquare);
    units_of_task_ = per_task(kTaskBytes, std::min(rows_, kSquare) * std::min(columns_, kSquare) * element_bytes_);
  } else {
    units_of_task_ = kind_ == Kind::rows ? per_task(kTaskBytes, element_bytes_) : kTaskElements;
  }
}

template <typename T> void StridedCopy::transpose(int64_t begin, int64_t end, T* out, const T* in) const {
  const int64_t across = blocks_of(columns_, kSquare), squares = blocks_of(rows_, kSquare) * across;
  walk(loop_, begin / squares, (end - 1) / squares + 1, [&](const std::array<int64_t, 2>& offsets, int64_t first, int64_t run) {
    for (int64_t i = 0; i < run; ++i) {
      T* const to = out + offsets[0] + i * loop_.inner_stride(0);
      const T* const from = in + offsets[1] + i * loop_.inner_stride(1);
      const int64_t matrix = (first + i) * squares;  // its first unit
      for (int64_t unit = std::max(begin, matrix) - matrix; unit < std::min(end - matrix, squares); ++unit) {
        const int64_t top = unit / across * kSquare, left = unit % across * kSquare;
        const int64_t bottom = std::min(rows_, top + kSquare), right = std::min(columns_, left + kSquare);
        transpose_blocks(to + top * out_pitch_ + left, out_pitch_, from + top + left * in_pitch_, in_pitch_, bottom - top, right - left);
      }
    }
  });
}

template <typename T> void StridedCopy::copy_elements(int64_t begin, int64_t end, T* out, const T* in) const {
  const int64_t to_step = loop_.inner_stride(0), from_step = loop_.inner_stride(1);
  walk(loop_, begin, end, [&](const std::array<int64_t, 2>& offsets, int64_t, int64_t run) {
    T* const to = out + offsets[0];
    const T* const from = in + offsets[1];
    if (to_step == 1 && from_step == 0) {
      std::fill_n(to, run, *from);
    } else {
      for (int64_t i = 0; i < run; ++i) to[i * to_step] = from[i * from_step];
    }
  });
}

void StridedCopy::run(Workers& workers, void* out, const void* in) const {
  workers.parallel_for(tasks(), [&](int64_t task, int) { run_task(task, out, in); });
}

void StridedCopy::run_task(int64_t task, void* out, const void* in) const {
  const int64_t begin = task * units_of_task_, end = std::min(begin + units_of_task_, units_);
  std::byte* const to = static_cast<std::byte*>(out) + out_offset_ * element_bytes_;
  const std::byte* const from = static_cast<const std::byte*>(in) + in_offset_ * element_bytes_;
  switch (kind_) {
    case Kind::nothing:
      break;
    case Kind::rows:
      walk(loop_, begin, end, [&](const std::array<int64_t, 2>& offsets, int64_t, int64_t run) {
        std::memcpy(to + offsets[0] * element_bytes_, from + offsets[1] * element_bytes_, static_cast<size_t>(run * element_bytes_));
      });
      break;
    case Kind::transpose:
      for_word(element_bytes_, [&]<typename T>() { transpose(begin, end, reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from)); });
      break;
    case Kind::elements:
      for_word(element_bytes_,
               [&]<typename T>() { copy_elements(begin, end, reinterpret_cast<T*>(to), reinterpret_cast<const T*>(from)); });
      break;
  }
}

FramedCopy::FramedCopy(int64_t element_bytes, const Shape& in, const std::vector<int64_t>& before, const std::vector<int64_t>& after)
    : element_bytes_(element_bytes) {
  // Axes without a frame below the last one with a frame belong to the row.
  size_t last = in.size();
  while (last > 1 && before[last - 1] == 0 && after[last - 1] == 0) --last;
  int64_t unit = 1;  // elements of one step along the last framed axis
  for (size_t axis = last; axis < in.size(); ++axis) unit *= in[axis];
  rows_ = 1;
  const std::vector<int64_t> strides = strides_of(in);
  for (size_t axis = 0; axis + 1 < last; ++axis) {
    const int64_t dim = in[axis] + before[axis] + after[axis];
    const bool whole = before[axis] == 0 && after[axis] == 0;
    rows_ *= dim;
    if (whole && axis > 0 && before[axis - 1] == 0 && after[axis - 1] == 0) {  // one axis with the one before
      dims_.back() *= dim;
      last_.back() *= dim;
      in_strides_.back() = strides[axis];
      continue;
    }
    dims_.push_back(dim);
    first_.push_back(before[axis]);
    last_.push_back(before[axis] + in[axis]);
    in_strides_.push_back(strides[axis]);
  }
  const int64_t inner = in.empty() ? 1 : in[last - 1], head = in.empty() ? 0 : before[last - 1], tail = in.empty() ? 0 : after[last - 1];
  row_ = (inner + head + tail) * unit;
  left_ = std::max<int64_t>(head, 0) * unit;
  skip_ = std::max<int64_t>(-head, 0) * unit;
  middle_ = std::max<int64_t>(inner - std::max<int64_t>(-head, 0) - std::max<int64_t>(-tail, 0), 0) * unit;
  if (static_cast<int>(dims_.size()) > kMaxAxes)
    throw error(ErrorCode::unsupported, "the shape {} has more axes than are supported", to_string(in));
}

void FramedCopy::run(Workers& workers, void* out, const void* in, const void* value) const {
  if (rows_ == 0 || row_ == 0) return;
  std::byte* const to = static_cast<std::byte*>(out);
  const std::byte* const from = static_cast<const std::byte*>(in);
  workers.parallel_blocks(rows_, per_task(kTaskBytes, row_ * element_bytes_), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      bool inside = middle_ > 0;
      int64_t offset = skip_, rest = row;
      for (size_t axis = dims_.size(); axis-- > 0;) {
        const int64_t index = rest % dims_[axis];
        rest /= dims_[axis];
        inside = inside && index >= first_[axis] && index < last_[axis];
        offset += (index - first_[axis]) * in_strides_[axis];
      }
      std::byte* const line = to + row * row_ * element_bytes_;
      if (!inside) {
        fill_elements(line, row_, value, element_bytes_);
        continue;
      }
      fill_elements(line, left_, value, element_bytes_);
      std::memcpy(line + left_ * element_bytes_, from + offset * element_bytes_, static_cast<size_t>(middle_ * element_bytes_));
      fill_elements(line + (left_ + middle_) * element_bytes_, row_ - left_ - middle_, value, element_bytes_);
    }
  });
}

void fill_elements(void* out, int64_t count, const void* value, int64_t element_bytes) {
  if (count == 0) return;
  if (!value) {
    std::memset(out, 0, static_cast<size_t>(count * element_bytes));
    return;
  }
  for_word(element_bytes, [&]<typename T>() {
    T element;
    std::memcpy(&element, value, sizeof element);
    std::fill_n(static_cast<T*>(out), count, element);
  });
}

void fill_parallel(Workers& workers, void* out, int64_t count, const void* value, int64_t element_bytes) {
  workers.parallel_blocks(count, kTaskBytes / element_bytes, [&](int64_t begin, int64_t end) {
    fill_elements(static_cast<std::byte*>(out) + begin * element_bytes, end - begin, value, element_bytes);
  });
}

void stream_zeros(void* out, int64_t bytes) {
  std::byte* to = static_cast<std::byte*>(out);
  std::byte* const end = to + bytes;
  const int64_t head = std::min<int64_t>(bytes, -reinterpret_cast<intptr_t>(to) & 31);
  std::memset(to, 0, static_cast<size_t>(head));
  for (to += head; to + 32 <= end; to += 32) _mm256_stream_si256(reinterpret_cast<__m256i*>(to), _mm256_setzero_si256());
  std::memset(to, 0, static_cast<size_t>(end - to));
  _mm_sfence();
}

void copy_parallel(Workers& workers, void* out, const void* in, int64_t bytes) {
  workers.parallel_blocks(bytes, kTaskBytes, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<std::byte*>(out) + begin, static_cast<const std::byte*>(in) + begin, static_cast<size_t>(end - begin));
  });
}

ORT_TRAIN_OPS_END
