#include "passes/plan/problem.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "exec/program.h"
#include "graph/error.h"

namespace ort_train::planning {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 2;

Json to_json(const Run& run) {
  Json json{{"name", run.name}, {"weight", run.weight}, {"seconds", run.seconds}};
  Json& blocks = json["blocks"] = Json::array();  // bytes, first, last
  for (const Block& block : run.blocks) blocks.push_back({block.bytes, block.first, block.last});
  Json& pieces = json["pieces"] = Json::array();
  for (const Piece& piece : run.pieces) {
    Json uses = Json::array();  // step, reads, changes
    for (const Use& use : piece.uses) uses.push_back({use.step, int{use.reads}, int{use.changes}});
    pieces.push_back({{"name", piece.name}, {"bytes", piece.bytes}, {"lasting", piece.lasting}, {"uses", std::move(uses)}});
  }
  return json;
}

// A list of `n` numbers.
const Json& numbers(const Json& json, size_t n) {
  if (!json.is_array() || json.size() != n) throw error(ErrorCode::data, "{} is no list of {} numbers", json.dump(), n);
  return json;
}

Run run_from(const Json& json, const Problem& problem) {
  Run run{.name = json.at("name"), .weight = json.at("weight"), .seconds = json.at("seconds")};
  const auto steps = static_cast<int32_t>(run.steps());
  for (const Json& of : json.at("blocks")) {
    numbers(of, 3);
    const Block block{.bytes = of[0], .first = of[1], .last = of[2]};
    if (block.bytes < 0 || block.first < 0 || block.last < block.first || block.last >= std::max(steps, 1))
      throw error(ErrorCode::data, "{} is no block of {} steps", of.dump(), steps);
    run.blocks.push_back(block);
  }
  for (const Json& of : json.at("pieces")) {
    Piece piece{.name = of.at("name"), .bytes = of.at("bytes"), .lasting = of.at("lasting")};
    for (const Json& use : of.at("uses")) {
      numbers(use, 3);
      piece.uses.push_back({.step = use[0], .reads = use[1] != 0, .changes = use[2] != 0});
      const int32_t before = piece.uses.size() < 2 ? -1 : piece.uses[piece.uses.size() - 2].step;
      if (piece.uses.back().step <= before || piece.uses.back().step >= steps)
        throw error(ErrorCode::data, "piece '{}' has uses that aren't in the order of {} steps", piece.name, steps);
    }
    const bool lasts = piece.lasting >= 0;
    if (piece.bytes < 0 || piece.uses.empty() || piece.lasting < -1 || piece.lasting >= static_cast<int32_t>(problem.lasting.size()) ||
        (lasts && problem.lasting[static_cast<size_t>(piece.lasting)].bytes != piece.bytes))
      throw error(ErrorCode::data, "piece '{}' has no use, or other bytes than what lasts", piece.name);
    run.pieces.push_back(std::move(piece));
  }
  return run;
}

}  // namespace

std::vector<int64_t> fixed_load(const Problem& problem, const Run& run) {
  std::vector<int64_t> load(run.steps(), whole_sectors(problem.always));
  for (const Block& block : run.blocks) {
    for (int32_t t = block.first; t <= block.last; ++t) load[static_cast<size_t>(t)] += block.bytes;
  }
  return load;
}

std::vector<int64_t> least_load(const Problem& problem, const Run& run) {
  std::vector<int64_t> load = fixed_load(problem, run);
  for (const Piece& piece : run.pieces) {
    for (const Use& use : piece.uses) load[static_cast<size_t>(use.step)] += piece.bytes;
  }
  return load;
}

int64_t floor_bytes(const Problem& problem) {
  int64_t floor = 0;
  for (const Run& run : problem.runs) {
    for (const int64_t bytes : least_load(problem, run)) floor = std::max(floor, bytes);
  }
  return floor;
}

double step_seconds(const Problem& problem, const std::vector<double>& seconds) {
  double sum = 0;
  for (size_t r = 0; r < problem.runs.size(); ++r) sum += problem.runs[r].weight < kRarely ? 0 : problem.runs[r].weight * seconds[r];
  return sum;
}

double computing(const Run& run) { return std::accumulate(run.seconds.begin(), run.seconds.end(), 0.0); }

std::string to_json(const Problem& problem) {
  const StreamRates& disk = problem.disk;
  Json json{{"version", kVersion}, {"memory", problem.memory}, {"always", problem.always}};
  json["disk"] = {{"read", disk.read},
                  {"write", disk.write},
                  {"beside", disk.beside},
                  {"slowed", disk.slowed},
                  {"read_latency", disk.read_latency},
                  {"write_latency", disk.write_latency}};
  Json& lasting = json["lasting"] = Json::array();
  for (const Lasting& value : problem.lasting) lasting.push_back({{"name", value.name}, {"bytes", value.bytes}, {"held", value.held}});
  Json& runs = json["runs"] = Json::array();
  for (const Run& run : problem.runs) runs.push_back(to_json(run));
  return json.dump() + "\n";
}

Problem problem_from_json(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version") != kVersion) throw error(ErrorCode::data, "it is of version {}, not {}", json.at("version").dump(), kVersion);
    Problem problem{.memory = json.at("memory"), .always = json.at("always")};
    const Json& disk = json.at("disk");
    problem.disk = {.read = disk.at("read"),
                    .write = disk.at("write"),
                    .beside = disk.at("beside"),
                    .slowed = disk.at("slowed"),
                    .read_latency = disk.at("read_latency"),
                    .write_latency = disk.at("write_latency")};
    if (!(problem.disk.read > 0 && problem.disk.write > 0)) throw error(ErrorCode::data, "its disk has no rates");
    for (const Json& value : json.at("lasting"))
      problem.lasting.push_back({.name = value.at("name"), .bytes = value.at("bytes"), .held = value.at("held")});
    for (const Json& run : json.at("runs")) problem.runs.push_back(run_from(run, problem));
    return problem;
  } catch (const nlohmann::json::exception& e) {
    throw error(ErrorCode::data, "no problem of a plan: {}", e.what());
  }
}

}  // namespace ort_train::planning
