#include "passes/problem_dump.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "graph/error.h"

namespace ort_train::planning {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kVersion = 2;

// Step, reads, changes; and how many steps, where these are several.
Json to_json(const Use& use) {
  Json json{use.step, int{use.reads}, int{use.changes}};
  if (use.steps > 1) json.push_back(use.steps);
  return json;
}

Json to_json(const StreamRates& rates) {
  return {{"read", rates.read},
          {"write", rates.write},
          {"together", rates.duplex},
          {"beside", rates.while_computing},
          {"slowed", rates.compute_lost},
          {"read_latency", rates.read_latency},
          {"write_latency", rates.write_latency}};
}

StreamRates rates_from(const Json& json) {
  const StreamRates rates{.read = json.at("read"),
                          .write = json.at("write"),
                          .duplex = json.value("together", 1.0),
                          .while_computing = json.at("beside"),
                          .compute_lost = json.at("slowed"),
                          .read_latency = json.at("read_latency"),
                          .write_latency = json.at("write_latency")};
  if (!(rates.read > 0 && rates.write > 0)) throw error(ErrorCode::data, "its disk has no rates");
  if (!(rates.duplex >= 1 && rates.duplex <= 2))
    throw error(ErrorCode::data, "its disk reads and writes at once at {} of its rates, which is not from 1 to 2", rates.duplex);
  return rates;
}

Json to_json(const Run& run) {
  Json json{{"name", run.name}, {"weight", run.runs_per_step}, {"seconds", run.seconds}};
  Json& blocks = json["blocks"] = Json::array();  // bytes, first, last
  for (const Block& block : run.blocks) blocks.push_back({block.bytes, block.first, block.last});
  Json& pieces = json["pieces"] = Json::array();
  for (const Piece& piece : run.pieces) {
    Json uses = Json::array();
    for (const Use& use : piece.uses) uses.push_back(to_json(use));
    Json& of =
        pieces.emplace_back(Json{{"name", piece.name}, {"bytes", piece.bytes}, {"lasting", piece.lasting}, {"uses", std::move(uses)}});
    if (run.backing_seconds.empty()) continue;
    of.update({{"value", piece.value_number},
               {"comes", piece.starts_in_store},
               {"leaves", piece.used_in_store_later},
               {"from", piece.first_readable_step},
               {"until", piece.written_by_step}});
  }
  for (size_t b = 0; b < run.blocks.size(); ++b) {
    if (run.blocks[b].fed) json["fed"].push_back(b);
  }
  if (run.backing_seconds.empty()) return json;
  Json behind{{"seconds", run.backing_seconds}, {"uses", Json::array()}, {"blocks", Json::array()}};
  for (const BackingUse& of : run.backing_uses)
    behind["uses"].push_back({{"value", of.value_number}, {"bytes", of.bytes}, {"lasting", of.lasting}, {"use", to_json(of.use)}});
  for (const Block& block : run.backing_blocks) behind["blocks"].push_back({block.bytes, block.first, block.last});
  json["behind"] = std::move(behind);
  return json;
}

// A list of `n` numbers.
const Json& numbers(const Json& json, size_t n) {
  if (!json.is_array() || json.size() != n) throw error(ErrorCode::data, "{} is no list of {} numbers", json.dump(), n);
  return json;
}

Block block_from(const Json& json, int32_t steps) {
  numbers(json, 3);
  const Block block{.bytes = json[0], .first = json[1], .last = json[2]};
  if (block.bytes < 0 || block.first < 0 || block.last < block.first || block.last >= std::max(steps, 1))
    throw error(ErrorCode::data, "{} is no block of {} steps", json.dump(), steps);
  return block;
}

Use use_from(const Json& json, int32_t before, int32_t steps) {
  numbers(json, json.size() == 4 ? 4 : 3);
  const Use use{.step = json[0], .reads = json[1] != 0, .changes = json[2] != 0, .steps = json.size() == 4 ? json[3].get<int32_t>() : 1};
  if (use.step <= before || use.steps < 1 || use.steps > steps || use.step > steps - use.steps)
    throw error(ErrorCode::data, "{} is no use in the order of {} steps", json.dump(), steps);
  return use;
}

int32_t lasting_from(const Json& json, int64_t bytes, const Problem& problem) {
  const int32_t lasting = json;
  if (bytes < 0 || lasting < -1 || lasting >= static_cast<int32_t>(problem.lasting.size()) ||
      (lasting >= 0 && problem.lasting[static_cast<size_t>(lasting)].bytes != bytes))
    throw error(ErrorCode::data, "{} bytes are not those of what lasts", bytes);
  return lasting;
}

// A step or the end of a run.
int32_t moment_from(const Json& json, int32_t least, int32_t steps) {
  const int32_t moment = json;
  if (moment < least || moment > steps) throw error(ErrorCode::data, "{} is no step of {}", moment, steps);
  return moment;
}

void read_backing(const Json& json, Run& run, const Problem& problem) {
  const auto steps = static_cast<int32_t>(run.steps());
  run.backing_seconds = json.at("seconds").get<std::vector<double>>();
  if (run.backing_seconds.size() != run.steps())
    throw error(ErrorCode::data, "seconds of {} steps in the backing memory, of {} in all", run.backing_seconds.size(), steps);
  for (const Json& of : json.at("uses")) {
    const int64_t bytes = of.at("bytes");
    if (of.at("value") < 0) throw error(ErrorCode::data, "what a step uses in the backing memory has no number");
    run.backing_uses.push_back({.value_number = of.at("value"),
                                .bytes = bytes,
                                .lasting = lasting_from(of.at("lasting"), bytes, problem),
                                .use = use_from(of.at("use"), -1, steps)});
  }
  for (const Json& of : json.at("blocks")) run.backing_blocks.push_back(block_from(of, steps + 1));
}

Run run_from(const Json& json, const Problem& problem) {
  Run run{.name = json.at("name"), .runs_per_step = json.at("weight"), .seconds = json.at("seconds")};
  const auto steps = static_cast<int32_t>(run.steps());
  for (const Json& of : json.at("blocks")) run.blocks.push_back(block_from(of, steps));
  for (const Json& number : json.value("fed", Json::array())) run.blocks.at(number.get<size_t>()).fed = true;
  for (const Json& of : json.at("pieces")) {
    Piece piece{.name = of.at("name"), .bytes = of.at("bytes")};
    piece.lasting = lasting_from(of.at("lasting"), piece.bytes, problem);
    for (const Json& use : of.at("uses")) piece.uses.push_back(use_from(use, piece.uses.empty() ? -1 : piece.uses.back().last(), steps));
    if (piece.uses.empty()) throw error(ErrorCode::data, "piece '{}' has no use", piece.name);
    piece.value_number = of.value("value", -1);
    piece.starts_in_store = of.value("comes", false);
    piece.used_in_store_later = of.value("leaves", false);
    piece.first_readable_step = moment_from(of.value("from", 0), 0, piece.uses.front().step);
    piece.written_by_step = moment_from(of.value("until", -1), -1, steps);
    if (piece.written_by_step >= 0 && piece.written_by_step <= piece.uses.back().last())
      throw error(ErrorCode::data, "piece '{}' is used behind its end", piece.name);
    run.pieces.push_back(std::move(piece));
  }
  if (json.contains("behind")) read_backing(json.at("behind"), run, problem);
  return run;
}

}  // namespace

std::string to_json(const Problem& problem) {
  Json json{{"version", kVersion}};
  if (!problem.name.empty()) json["name"] = problem.name;
  json.update({{"memory", problem.memory}, {"always", problem.immovable}, {"disk", to_json(problem.store)}});
  for (const BackingMemory& memory : problem.backing)
    json["behind"].push_back(
        {{"name", memory.name}, {"bytes", memory.bytes}, {"between_runs", memory.between_runs}, {"store", to_json(memory.store)}});
  Json& lasting = json["lasting"] = Json::array();
  for (const Lasting& value : problem.lasting) {
    lasting.push_back({{"name", value.name}, {"bytes", value.bytes}, {"held", value.held}});
    if (!value.may_be_resident) lasting.back()["stays"] = false;
  }
  Json& runs = json["runs"] = Json::array();
  for (const Run& run : problem.runs) runs.push_back(to_json(run));
  return json.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

Problem problem_from_json(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    if (json.at("version") != kVersion) throw error(ErrorCode::data, "it is of version {}, not {}", json.at("version").dump(), kVersion);
    Problem problem{
        .name = json.value("name", ""), .memory = json.at("memory"), .immovable = json.at("always"), .store = rates_from(json.at("disk"))};
    for (const Json& of : json.value("behind", Json::array()))
      problem.backing.push_back(
          {.name = of.at("name"), .bytes = of.at("bytes"), .between_runs = of.at("between_runs"), .store = rates_from(of.at("store"))});
    for (const Json& value : json.at("lasting"))
      problem.lasting.push_back(
          {.name = value.at("name"), .bytes = value.at("bytes"), .held = value.at("held"), .may_be_resident = value.value("stays", true)});
    for (const Json& run : json.at("runs")) problem.runs.push_back(run_from(run, problem));
    return problem;
  } catch (const Json::exception& e) {
    throw error(ErrorCode::data, "no problem of a plan: {}", e.what());
  } catch (const std::out_of_range&) {
    throw error(ErrorCode::data, "no problem of a plan: a block that isn't there is fed");
  }
}

std::vector<Problem> problems_from_json(const std::string& text) {
  std::vector<Problem> problems;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) problems.push_back(problem_from_json(line));
  if (problems.empty()) throw error(ErrorCode::data, "no problem of a plan: it is empty");
  return problems;
}

}  // namespace ort_train::planning
