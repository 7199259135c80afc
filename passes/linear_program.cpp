#include "passes/linear_program.h"

#include <ClpPresolve.hpp>
#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <algorithm>
#include <cmath>

namespace ort_train {
namespace {

constexpr int kMaxIterations = 200'000;
constexpr double kTolerance = 1e-8;  // of rows, while the program is made smaller

}  // namespace

struct LinearProgram::Impl {
  ClpSimplex model;
  // What was added since the last solution.
  std::vector<double> cost, lower, upper;
  std::vector<double> row_lower, row_upper, factors;
  std::vector<CoinBigIndex> row_starts{0};
  std::vector<int> row_columns;

  int columns() const { return model.numberColumns() + static_cast<int>(cost.size()); }

  void hand_over() {
    const auto count = static_cast<int>(cost.size());
    if (count > 0) model.addColumns(count, lower.data(), upper.data(), cost.data(), nullptr, nullptr, nullptr);
    if (!row_lower.empty()) {
      model.addRows(static_cast<int>(row_lower.size()), row_lower.data(), row_upper.data(), row_starts.data(), row_columns.data(),
                    factors.data());
    }
    for (auto* values : {&cost, &lower, &upper, &row_lower, &row_upper, &factors}) values->clear();
    row_starts.assign(1, 0);
    row_columns.clear();
  }
};

LinearProgram::LinearProgram() : impl_(std::make_unique<Impl>()) {
  impl_->model.setLogLevel(0);
  impl_->model.setMaximumIterations(kMaxIterations);
}
LinearProgram::~LinearProgram() = default;

int32_t LinearProgram::add_column(double cost, double lower, double upper) {
  impl_->cost.push_back(cost);
  impl_->lower.push_back(lower);
  impl_->upper.push_back(upper);
  return impl_->columns() - 1;
}

void LinearProgram::add_row(double lower, double upper, const std::vector<LinearTerm>& terms) {
  Impl& my = *impl_;
  my.row_lower.push_back(std::isinf(lower) ? -COIN_DBL_MAX : lower);
  my.row_upper.push_back(std::isinf(upper) ? COIN_DBL_MAX : upper);
  for (const LinearTerm& term : terms) {
    my.row_columns.push_back(term.column);
    my.factors.push_back(term.factor);
  }
  my.row_starts.push_back(static_cast<CoinBigIndex>(my.row_columns.size()));
}

void LinearProgram::set_cost(int32_t column, double cost) {
  impl_->hand_over();
  impl_->model.setObjectiveCoefficient(column, cost);
}

void LinearProgram::set_upper(int32_t column, double upper) {
  impl_->hand_over();
  impl_->model.setColumnUpper(column, upper);
}

bool LinearProgram::solve(bool is_near) {
  impl_->hand_over();
  // Not initialSolve(), which does the same: it installs a handler for SIGINT.
  ClpPresolve presolve;
  presolve.setDoImpliedFree(false);  // CoinUtils 2.11 loses memory there
  const std::unique_ptr<ClpSimplex> smaller(is_near ? nullptr : presolve.presolvedModel(impl_->model, kTolerance));
  if (smaller) {
    smaller->primal();
    presolve.postsolve(true);
  }
  impl_->model.dual();  // from there
  return impl_->model.status() == 0;
}

double LinearProgram::value(int32_t column) const { return impl_->model.primalColumnSolution()[column]; }

bool LinearProgram::has_value(int32_t column) const { return column < impl_->model.numberColumns(); }

// Of an element: by row and by column, in the smaller program that is solved first, and in its factors.
int64_t LinearProgram::bytes() const {
  constexpr int64_t kElement = 128, kLine = 640;
  const Impl& my = *impl_;
  const int64_t handed_over = my.model.matrix() ? my.model.getNumElements() : 0;
  const int64_t elements = handed_over + static_cast<int64_t>(my.factors.size());
  return kElement * elements + kLine * (my.columns() + my.model.numberRows() + static_cast<int64_t>(my.row_lower.size()));
}

double LinearProgram::bound() const {
  const ClpSimplex& model = impl_->model;
  const int rows = model.numberRows(), columns = model.numberColumns();
  std::vector<double> dual(model.dualRowSolution(), model.dualRowSolution() + rows);
  double bound = 0;
  for (int i = 0; i < rows; ++i) {
    const double at = dual[static_cast<size_t>(i)] > 0 ? model.rowLower()[i] : model.rowUpper()[i];
    if (std::abs(at) >= COIN_DBL_MAX)
      dual[static_cast<size_t>(i)] = 0;  // of the wrong sign, by a tolerance
    else
      bound += dual[static_cast<size_t>(i)] * at;
  }
  std::vector<double> reduced(model.objective(), model.objective() + columns);
  std::vector<double> sums(static_cast<size_t>(columns));
  model.matrix()->transposeTimes(dual.data(), sums.data());
  for (int j = 0; j < columns; ++j) {
    reduced[static_cast<size_t>(j)] -= sums[static_cast<size_t>(j)];
    bound += reduced[static_cast<size_t>(j)] * (reduced[static_cast<size_t>(j)] > 0 ? model.columnLower()[j] : model.columnUpper()[j]);
  }
  return bound;
}

}  // namespace ort_train
