// Tools for the verifier's mutation tests: changes of a program that keep its statements about itself true, and a proof of another kind.

#pragma once

#include <string>
#include <vector>

#include "exec/program.h"

namespace ort_train::fixtures {

// Of programs with one entry.
namespace mutations {

Entry& entry(Program& program);
Instruction& at(Program& program, int32_t i);
// Of a copy to or from the file.
Place& memory_place(Instruction& copy);
Place& file_place(Instruction& copy);

// Whether the instruction uses memory of the storage.
bool touches(const Storage& storage, const Instruction& instruction);

// Makes the program's statements of its peaks those of its code, so that only what it does can be wrong with it.
void restate_peaks(Program& program);
// Gives the instructions the order `order` (old numbers); those that it hasn't are dropped. Lives and peaks follow.
void reorder(Program& program, const Graph& graph, const std::vector<int32_t>& order);
std::vector<int32_t> own_order(const Program& program);
void drop(Program& program, const Graph& graph, const std::vector<int32_t>& instructions);
// `from` runs right before (or, moved forwards, right behind) what is at `to` now.
void move(Program& program, const Graph& graph, int32_t from, int32_t to);
void swap_instructions(Program& program, const Graph& graph, int32_t one, int32_t two);
// Nobody waits for it any more.
void forget(Program& program, int32_t instruction);

}  // namespace mutations

// What verify() proves, again and in another way: the whole of the relation "is complete before … begins", each pair of instructions, and
// what is in each cell of 64 bytes. Empty: whatever the order in which the queues run it, `program` leaves what `right` leaves in the order
// of its list.
std::string brute_force_difference(const Program& program, const Program& right, const Graph& graph);

}  // namespace ort_train::fixtures
