// Bound: how fast a job could run at best in a given memory with a given disk, whatever moves when; and what such a run would hold.
//
// What may be chosen, relaxed to shares: of a piece between two uses any share of its bytes may be held, of what lasts any share may be
// resident. A linear program minimises the time, of which this is asked:
//
//   memory     at each step what it uses, and the shares that are held then, fit into the limit
//   disk       what is not held is read and (where it was changed) written between its uses; reads and writes at once take at least their
//              sum divided by `duplex`
//   room       between any two steps as much passes as the transfers take that are wanted between them, less what was read ahead when the
//              first ended and what is yet to be written when the second begins: either takes memory beside what these steps use
//
// Where computing and transfers slow each other (StreamRates), a transfer that takes s seconds alone costs
// compute_lost / while_computing * s / duplex seconds of computing in any case (its price), because waiting for it would cost more. The
// rows above are about the remaining seconds, which computing can hide.
//
// Only rows that a solution violates are made, until there are none or the bound no longer rises: each row is true, so fewer of them make a
// lower bound as well. Every plan satisfies all of it, so none is faster. A real plan is slower by about the time of the first read
// and the last write, because a piece is in memory as a whole and its transfer must be over before it is used. In docs/planning.md, "The
// lower bound", memory is row 1, the disk rows 2 to 4, room row 5, the price row 6.
//
// The bound is for the given runs: with their order of steps, and what they recompute. Rare ones (min_counted_runs_per_step()) don't count.

#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

#include "passes/linear_program.h"
#include "passes/plan/problem.h"

namespace ort_train::planning {

class Bound {
 public:
  // The memory is at least the floor. The problem must outlive it. It stops when the bound is above `enough_seconds`. The linear program
  // takes at most `max_bytes`: rows for which there is no room aren't made.
  explicit Bound(const Problem& problem, double enough_seconds = std::numeric_limits<double>::infinity(),
                 int64_t max_bytes = std::numeric_limits<int64_t>::max());

  // No plan takes less, for an optimizer step.
  double seconds() const { return seconds_; }

  int64_t bytes() const { return program_.bytes(); }

  // Finds the shares of a best solution in the limit less `bytes`, with the rows of room that there are. False where the solver has
  // none.
  bool solve_with_free(int64_t bytes);
  double resident(size_t lasting) const { return share(resident_[lasting]); }
  double held(size_t run, uint32_t piece, size_t use) const { return share(held_[run][piece][use]); }  // from this use to the next

 private:
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  static constexpr double kUnit = 1e6;        // bytes of a row of memory
  static constexpr double kTolerance = 3e-4;  // of a run's time or of the limit, that a row of room or of memory may be violated

  // Seconds of transfer between two moments, the beginnings of steps, that may be waited for: constant + terms.
  struct Transfer {
    int32_t begin = 0, end = 0;
    int32_t released = -1;  // of a write: the moment from which its memory is wanted back; -1: a read
    double constant = 0;
    std::vector<LinearTerm> terms{};
    double max_seconds() const;
    int32_t deadline() const { return released < 0 ? end : released; }  // reads when they are wanted, writes when their memory is
  };
  struct Row {  // of memory, at a step, with what is under way or without
    int32_t column = 0;
    int64_t room = 0;  // bytes above what the step uses
  };
  // Seconds of transfers until a moment, as columns that go from one to the next.
  struct Sum {
    std::vector<const Transfer*> transfers;  // in the order in which they count
    std::map<int32_t, int32_t> columns;      // by moment
  };
  struct RunRows {
    double computing = 0;       // seconds
    std::vector<double> begin;  // seconds of transfers that steps before each can hide
    std::vector<Transfer> transfers;
    std::vector<int64_t> room;         // bytes above what each step uses, and
    std::map<int32_t, Row> memory_at;  // rows of some
    std::vector<Row> underway;
    Sum reads, writes;
    std::map<int32_t, int32_t> waited;               // column of the seconds waited until a moment and at it
    double work = 0;                                 // seconds of all transfers at most
    std::vector<std::map<int32_t, double>> changes;  // of the load, by step and column
    bool is_end(int32_t moment) const { return moment == static_cast<int32_t>(room.size()); }
  };

  struct Stretch {  // between two moments
    double violation = 0;
    int32_t begin = 0, end = 0;
  };

  double share(int32_t column) const { return column < 0 ? 1 : program_.value(column); }
  void add_pieces(size_t run);
  void add_piece(size_t run, uint32_t piece);
  // What is left out of memory between two uses, 1 - the column's share.
  struct Gap {
    int32_t held = 0;            // column
    int32_t begin = 0, end = 0;  // moments
  };
  void add_writes(RunRows& rows, int32_t changed, double seconds, const std::vector<Gap>& gaps);
  void occupy(RunRows& rows, int32_t from, int32_t to, int32_t column, double bytes) const;
  void add_memory(size_t run);
  Row memory_row(RunRows& rows, int32_t step);
  double most_load(int64_t room) const;
  std::vector<double> free_memory(const RunRows& rows) const;
  static std::vector<Stretch> worst(std::vector<Stretch> all);
  bool add_violated_memory_rows(RunRows& rows);
  bool solve(bool is_near, double least_runs);
  int32_t waited_until(RunRows& rows, int32_t moment);
  void sort_transfers(RunRows& rows);
  int32_t sum_until(RunRows& rows, Sum& sum, int32_t moment);
  int32_t add_sum(RunRows& rows, const std::vector<const Transfer*>& transfers, std::vector<LinearTerm> terms, bool all);
  int32_t add_underway(RunRows& rows, const std::vector<const Transfer*>& transfers, int32_t step, double rate);
  void add_room(RunRows& rows, int32_t begin, int32_t end);
  bool add_violated_room_rows(RunRows& rows);
  double value_of(const Transfer& transfer) const;  // in the last solution
  void set_costs(double least_runs, double of_transfers);
  void find_seconds(double enough_seconds);
  bool is_full() const { return bytes() > max_bytes_; }

  const Problem& problem_;
  const std::vector<Run>& runs_;
  const int64_t limit_;
  const int64_t max_bytes_;
  const double least_runs_;  // of runs that count
  double price_;             // of a second of what can be waited for
  double rate_[2];           // bytes read, written, in such a second
  LinearProgram program_;
  // Columns of the shares; -1: nothing to choose.
  std::vector<int32_t> resident_;                        // by number in Problem::lasting
  std::vector<std::vector<std::vector<int32_t>>> held_;  // by run, piece, use
  std::vector<RunRows> rows_;
  double seconds_ = 0;
  bool too_large_ = false;  // to be solved
  int64_t free_ = 0;        // bytes of the limit that are left alone
};

}  // namespace ort_train::planning
