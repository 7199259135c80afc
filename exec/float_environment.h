// How a thread rounds floating-point numbers while it computes for us: to nearest, denormal numbers kept, nothing trapped. A program that
// has set something else (flush to zero, say) gets the same bits, and finds its own setting again.
//
// The setting is a thread's own: whoever starts work on another thread makes one there.

#pragma once

#include <xmmintrin.h>

#include <cstdint>

namespace ort_train {

class FloatEnvironment {
 public:
  struct Setting {
    uint32_t vector = 0x1f80;  // MXCSR: what vector and scalar SSE instructions do
    uint16_t x87 = 0x37f;      // the old unit's control word, which libm uses here and there
    static Setting present() {
      Setting now{.vector = _mm_getcsr(), .x87 = 0};
      __asm__ volatile("fnstcw %0" : "=m"(now.x87));
      return now;
    }
    void use() const {
      _mm_setcsr(vector);
      if (present().x87 != x87) __asm__ volatile("fldcw %0" : : "m"(x87));
    }
  };

  FloatEnvironment() { Setting{}.use(); }
  explicit FloatEnvironment(const Setting& wanted) { wanted.use(); }
  ~FloatEnvironment() { before_.use(); }
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  const Setting& before() const { return before_; }

 private:
  const Setting before_ = Setting::present();
};

}  // namespace ort_train
