// LinearProgram: minimises a linear function of columns under bounds on columns and on rows, sums of columns. The one place that knows the
// solver (Clp, by the simplex method).
//
// Columns and rows are named by the number that adding them returns. Both may be added, and costs and bounds changed, after a solution: the
// next one starts from there. Deterministic; prints nothing and installs no signal handler. One thread at a time.

#pragma once

#include <cstdint>
#include <memory>
#include <vector>

namespace ort_train {

struct LinearTerm {
  int32_t column = 0;
  double factor = 0;
};

class LinearProgram {
 public:
  LinearProgram();
  ~LinearProgram();
  LinearProgram(const LinearProgram&) = delete;
  LinearProgram& operator=(const LinearProgram&) = delete;

  // Bounds are finite.
  int32_t add_column(double cost, double lower, double upper);
  // lower <= sum of terms, of different columns, <= upper; either may be infinite.
  void add_row(double lower, double upper, const std::vector<LinearTerm>& terms);
  void set_cost(int32_t column, double cost);
  void set_upper(int32_t column, double upper);

  // False where there is no solution, or the solver did not find it within its iterations. `is_near`: goes on from the last solution, which
  // is faster where only few rows were added since.
  bool solve(bool is_near = false);
  double value(int32_t column) const;    // of the last solution
  bool has_value(int32_t column) const;  // it was there when that was found
  // What it takes while it is solved, by its size: no less than was measured (the test has both).
  int64_t bytes() const;
  // No solution costs less, whatever the tolerances are with which the last one was found: follows from its dual values.
  double bound() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ort_train
