#include "passes/background.h"

#include <algorithm>
#include <deque>
#include <set>

#include "exec/workers.h"
#include "passes/cost.h"

namespace ort_train {
namespace {

// A product and the steps in the background that wait for it.
struct Group {
  std::vector<uint32_t> steps;  // in the order
  int32_t limit = 0;            // position of the first other step that waits for one of them
};

class ProductsLast {
 public:
  ProductsLast(const MemoryModel& model, const StepOrder& order, const std::vector<bool>& background, const std::vector<double>& seconds,
               double share)
      : model_(model), order_(order), background_(background), seconds_(seconds), alone_(1 - share), position_(order.size()) {
    for (size_t at = 0; at < order.size(); ++at) position_[order[at]] = static_cast<int32_t>(at);
  }

  StepOrder run() {
    double lacking = 0;  // seconds of products, beside the updates at the end
    const int32_t begin = begin_of_end(lacking);
    std::set<int32_t> moved;  // positions
    for (int32_t at = begin - 1; at >= 0 && lacking > 0; --at) {
      const uint32_t step = order_[static_cast<size_t>(at)];
      if (background_[step] || seconds_[step] == 0) continue;
      Group group = group_of(step, begin);
      const auto is_moved = [&](uint32_t s) { return moved.contains(position_[s]); };  // with another product
      if (group.steps.size() == 1 || group.limit <= begin || std::any_of(group.steps.begin(), group.steps.end(), is_moved)) continue;
      double gained = 0;
      for (const uint32_t s : group.steps) gained += background_[s] ? (position_[s] < begin ? -alone_ * seconds_[s] : 0) : seconds_[s];
      if (gained <= 0) continue;
      lacking -= gained;
      for (const uint32_t s : group.steps) moved.insert(position_[s]);
      put_off_.push_front(std::move(group));
    }
    return put_off_.empty() ? order_ : ordered(moved);
  }

 private:
  // Where the stretch to the end begins whose updates lack most to run beside.
  int32_t begin_of_end(double& lacking) const {
    auto begin = static_cast<int32_t>(order_.size());
    double here = 0;
    for (int32_t at = begin - 1; at >= 0; --at) {
      const uint32_t step = order_[static_cast<size_t>(at)];
      here += background_[step] ? alone_ * seconds_[step] : -seconds_[step];
      if (here <= lacking) continue;
      lacking = here;
      begin = at;
    }
    return begin;
  }

  // Steps in the background are of it that wait for nothing else from `begin` on.
  Group group_of(uint32_t step, int32_t begin) const {
    Group group{.steps = {step}, .limit = static_cast<int32_t>(order_.size())};
    const auto is_of_group = [&](uint32_t s) { return std::find(group.steps.begin(), group.steps.end(), s) != group.steps.end(); };
    for (size_t i = 0; i < group.steps.size(); ++i) {
      for (const uint32_t next : model_.steps[group.steps[i]].after) {
        if (is_of_group(next)) continue;
        const std::vector<uint32_t>& before = model_.steps[next].before;
        const bool goes_along = background_[next] && std::all_of(before.begin(), before.end(),
                                                                 [&](uint32_t s) { return position_[s] < begin || is_of_group(s); });
        if (goes_along)
          group.steps.push_back(next);
        else
          group.limit = std::min(group.limit, position_[next]);
      }
    }
    std::sort(group.steps.begin(), group.steps.end(), [&](uint32_t a, uint32_t b) { return position_[a] < position_[b]; });
    return group;
  }

  // A product that was put off comes where it is waited for, or as soon as there is as much to run beside it as it takes.
  StepOrder ordered(const std::set<int32_t>& moved) {
    StepOrder result;
    result.reserve(order_.size());
    double waiting = 0;  // seconds of work beside
    const auto put = [&](uint32_t step) {
      result.push_back(step);
      waiting = background_[step] ? waiting + seconds_[step] : std::max(0.0, waiting - seconds_[step] / alone_);
    };
    const auto put_group = [&](std::deque<Group>::iterator group) {
      for (const uint32_t step : group->steps) put(step);
      return put_off_.erase(group);
    };
    for (int32_t at = 0; at < static_cast<int32_t>(order_.size()); ++at) {
      if (moved.contains(at)) continue;
      for (auto group = put_off_.begin(); group != put_off_.end();) group = group->limit <= at ? put_group(group) : std::next(group);
      const bool is_end = at > *moved.rbegin();
      while (is_end && !put_off_.empty() && waiting >= seconds_[put_off_.front().steps.front()] / alone_) put_group(put_off_.begin());
      put(order_[static_cast<size_t>(at)]);
    }
    while (!put_off_.empty()) put_group(put_off_.begin());
    return result;
  }

  const MemoryModel& model_;
  const StepOrder& order_;
  const std::vector<bool>& background_;
  const std::vector<double>& seconds_;
  const double alone_;  // of the threads, those that do what isn't in the background
  std::vector<int32_t> position_;
  std::deque<Group> put_off_;
};

void keep_for_background(const MemoryModel& model, const StepOrder& order, const std::vector<bool>& background,
                         std::vector<Buffer>& buffers) {
  constexpr size_t kBehind = 4;  // updates that may be under way: with 2, half of the work of GPT-2's was waited for
  std::vector<Buffer*> buffer_of(model.classes.size());
  for (Buffer& buffer : buffers) {
    for (const uint32_t c : buffer.classes) buffer_of[c] = &buffer;
  }
  std::deque<std::set<Buffer*>> read;  // by the last steps, those that follow one another and read the same together
  for (size_t at = 0; at < order.size(); ++at) {
    if (!background[order[at]]) continue;
    std::set<Buffer*> here;
    for (const uint32_t c : model.steps[order[at]].reads) here.insert(buffer_of[c]);
    const auto is_read = [&](Buffer* buffer) { return read.back().count(buffer) > 0; };
    if (read.empty() || std::none_of(here.begin(), here.end(), is_read)) read.emplace_back();
    read.back().insert(here.begin(), here.end());
    if (read.size() > kBehind) read.pop_front();
    for (const std::set<Buffer*>& group : read) {
      for (Buffer* const buffer : group) buffer->last = std::max(buffer->last, static_cast<int32_t>(at));
    }
  }
}

}  // namespace

StepOrder with_products_last(const MemoryModel& model, const StepOrder& order, const std::vector<bool>& background,
                             const std::vector<double>& seconds, double share) {
  return ProductsLast(model, order, background, seconds, share).run();
}

void overlap_updates_of(Draft& draft, int threads) {
  std::vector<double> seconds;
  for (const MemoryStep& step : draft.model.steps) seconds.push_back(nominal_seconds(*draft.graph, draft.graph->node(step.node)));
  const double share = Workers::aside_share(threads);
  if (share > 0) draft.order = with_products_last(draft.model, draft.order, draft.background, seconds, share);
  draft.buffers.clear();
  simulate(draft.model, draft.order, &draft.buffers);
  keep_for_background(draft.model, draft.order, draft.background, draft.buffers);
}

}  // namespace ort_train
