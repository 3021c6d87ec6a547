#include "server/planner/auto_search.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "worker/program/policy.h"

namespace ebb {
namespace {

// Steps of the sum of saved bytes that are told apart.
constexpr int kBuckets = 2048;
constexpr int kBucketsOfDeep = 512;
// From so many layers on one choice more or less in a layer is little.
constexpr int kDeepLayers = 32;
constexpr double kNever = std::numeric_limits<double>::infinity();

// The best known way to cover some layers with some bytes saved.
struct Cell {
  double seconds = kNever;
  int64_t saved = 0;
  int32_t last = -1;  // its last group, in Search::groups_
};

// A group of a way, and the one before it. Kept apart from the cells, which
// change while ways that went through them stay.
struct PlacedGroup {
  int32_t option;
  int32_t before;  // -1: the first
};

class Search {
 public:
  Search(const GroupOptions& options, int num_layers)
      : options_(options),
        num_layers_(num_layers),
        num_buckets_(num_layers < kDeepLayers ? kBuckets : kBucketsOfDeep),
        order_(Order(options, num_layers)) {
    std::stable_sort(order_.begin(), order_.end(), [&](int a, int b) {
      return options.options[a].working_bytes >
             options.options[b].working_bytes;
    });
  }

  // Empty: nothing fits.
  std::vector<OptionRun> Fastest(int64_t size) {
    const int64_t most_saved = size - options_.head_bytes;
    if (most_saved <= 0) return {};
    const int64_t quantum = most_saved / num_buckets_ + 1;
    cells_.assign((num_layers_ + 1) * num_buckets_, Cell());
    At(0, 0) = {0, 0, -1};
    groups_.clear();
    for (const int o : order_) {
      const GroupOption& option = options_.options[o];
      for (int layer = 0; layer + option.num_layers() <= num_layers_; ++layer) {
        for (int bucket = 0; bucket < num_buckets_; ++bucket) {
          const Cell& from = At(layer, bucket);
          if (from.seconds == kNever) continue;
          const int64_t saved = from.saved + option.saved_bytes;
          if (saved > most_saved || saved + option.working_bytes > size) break;
          Cell& to = At(layer + option.num_layers(),
                        static_cast<int>(saved / quantum));
          const double seconds = from.seconds + option.seconds;
          if (seconds < to.seconds ||
              (seconds == to.seconds && saved < to.saved)) {
            to = {seconds, saved, static_cast<int32_t>(groups_.size())};
            groups_.push_back({o, from.last});
          }
        }
      }
    }
    return ReadBack();
  }

 private:
  // The options to look at: in deep models, of those of one layer, the ones
  // that no mixture of two others beats (the lower convex hull): with so many
  // layers, mixtures come near every size.
  static std::vector<int> Order(const GroupOptions& options, int num_layers) {
    std::vector<int> order;
    std::vector<int> hull;  // by bytes, as the options are
    const auto& all = options.options;
    for (int o = 0; o < static_cast<int>(all.size()); ++o) {
      if (all[o].num_layers() > 1 || num_layers < kDeepLayers) {
        order.push_back(o);
        continue;
      }
      const auto slope = [&](int a, int b) {
        return (all[a].seconds - all[b].seconds) /
               static_cast<double>(all[b].saved_bytes - all[a].saved_bytes);
      };
      while (hull.size() >= 2 && slope(hull[hull.size() - 2], hull.back()) <=
                                     slope(hull[hull.size() - 2], o)) {
        hull.pop_back();
      }
      hull.push_back(o);
    }
    order.insert(order.end(), hull.begin(), hull.end());
    return order;
  }

  Cell& At(int layer, int bucket) {
    return cells_[layer * num_buckets_ + bucket];
  }

  std::vector<OptionRun> ReadBack() {
    const Cell* best = &At(num_layers_, 0);
    for (int bucket = 1; bucket < num_buckets_; ++bucket) {
      const Cell& cell = At(num_layers_, bucket);
      if (cell.seconds < best->seconds) best = &cell;
    }
    std::vector<OptionRun> runs;
    for (int32_t g = best->last; g >= 0; g = groups_[g].before) {
      const int option = groups_[g].option;
      if (runs.empty() || runs.back().option != option) {
        runs.push_back({option, 0});
      }
      ++runs.back().num_groups;
    }
    std::reverse(runs.begin(), runs.end());
    return runs;
  }

  const GroupOptions& options_;
  const int num_layers_;
  const int num_buckets_;
  std::vector<int> order_;
  std::vector<Cell> cells_;  // [layers covered][bucket]
  std::vector<PlacedGroup> groups_;
};

}  // namespace

std::vector<std::vector<OptionRun>> FindCandidates(const GroupOptions& options,
                                                   int num_layers,
                                                   int num_sizes) {
  // No way fits less than its first group and its work, or than the least that
  // can be saved and the head.
  int64_t least = std::numeric_limits<int64_t>::max();
  int64_t most = 0;
  for (const GroupOption& option : options.options) {
    const int64_t groups =
        (num_layers + option.num_layers() - 1) / option.num_layers();
    const int64_t saved = groups * option.saved_bytes;
    least = std::min(least, std::max(option.saved_bytes + option.working_bytes,
                                     option.saved_bytes + options.head_bytes));
    if (option.num_layers() == 1) {
      most = std::max(
          most, saved + std::max(option.working_bytes, options.head_bytes));
    }
  }
  Search search(options, num_layers);
  // The smallest size that anything fits, to a thousandth.
  int64_t too_small = least - 1;
  int64_t fits = most;
  while (fits - too_small > fits / 1000 + 1) {
    const int64_t middle = too_small + (fits - too_small) / 2;
    (search.Fastest(middle).empty() ? too_small : fits) = middle;
  }
  std::vector<std::vector<OptionRun>> candidates;
  for (int i = 0; i < num_sizes; ++i) {
    const auto share = static_cast<double>(i) / std::max(1, num_sizes - 1);
    const auto size =
        fits + static_cast<int64_t>(share * static_cast<double>(most - fits));
    std::vector<OptionRun> runs = search.Fastest(size);
    if (!runs.empty() && std::find(candidates.begin(), candidates.end(),
                                   runs) == candidates.end()) {
      candidates.push_back(std::move(runs));
    }
  }
  return candidates;
}

std::vector<Decision> DecisionsOf(const Graph& graph,
                                  const GroupOptions& options,
                                  const std::vector<OptionRun>& runs) {
  std::vector<const std::vector<ActivationDecision>*> layers;
  for (const OptionRun& run : runs) {
    for (int g = 0; g < run.num_groups; ++g) {
      for (const auto& layer : options.options[run.option].decisions) {
        layers.push_back(&layer);
      }
    }
  }
  return DecideEach(graph, [&layers](int value, int layer) {
    return (*layers[layer])[value];
  });
}

}  // namespace ebb
