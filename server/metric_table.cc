// Families by name, series by label values, one lock.
#include "server/metric_table.h"

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status.h"

namespace ebb {
namespace {

constexpr char kSeries[] = "ebb_metrics_series";
constexpr char kDropped[] = "ebb_metrics_series_dropped_total";

absl::StatusOr<MetricEntry> ParseEntry(const YAML::Node& node) {
  MetricEntry entry;
  entry.name = node["name"].as<std::string>("");
  if (entry.name.empty()) {
    return absl::InvalidArgumentError("catalogue: an entry has no name");
  }
  const auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("catalogue: ", entry.name, ": ", what));
  };
  const std::string type = node["type"].as<std::string>("");
  if (type == "counter") {
    entry.type = MetricType::kCounter;
  } else if (type == "gauge") {
    entry.type = MetricType::kGauge;
  } else if (type == "histogram") {
    entry.type = MetricType::kHistogram;
  } else {
    return wrong(
        absl::StrCat("type is '", type, "', not counter, gauge or histogram"));
  }
  entry.unit = node["unit"].as<std::string>("");
  entry.help = node["help"].as<std::string>("");
  entry.bound = node["bound"].as<std::string>("");
  if (entry.help.empty()) return wrong("no help");
  if (entry.bound.empty()) return wrong("no bound");
  for (const YAML::Node& label : node["labels"]) {
    entry.labels.push_back(label.as<std::string>());
  }
  for (const YAML::Node& bucket : node["buckets"]) {
    entry.buckets.push_back(bucket.as<double>());
  }
  if (entry.buckets.empty() == (entry.type == MetricType::kHistogram)) {
    return wrong("buckets belong to histograms, and each has them");
  }
  if (!std::is_sorted(entry.buckets.begin(), entry.buckets.end())) {
    return wrong("buckets do not rise");
  }
  return entry;
}

struct Series {
  double value = 0;  // histograms: the sum
  uint64_t count = 0;
  std::vector<uint64_t> buckets;  // not cumulative
};

struct FamilyState {
  MetricEntry entry;
  std::map<std::vector<std::string>, Series> series;
};

prometheus::MetricType TypeOf(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return prometheus::MetricType::Counter;
    case MetricType::kGauge:
      return prometheus::MetricType::Gauge;
    case MetricType::kHistogram:
      return prometheus::MetricType::Histogram;
  }
  return prometheus::MetricType::Untyped;
}

prometheus::ClientMetric MetricOf(const MetricEntry& entry,
                                  const std::vector<std::string>& labels,
                                  const Series& series) {
  prometheus::ClientMetric metric;
  for (size_t i = 0; i < labels.size(); ++i) {
    metric.label.push_back({entry.labels[i], labels[i]});
  }
  switch (entry.type) {
    case MetricType::kCounter:
      metric.counter.value = series.value;
      break;
    case MetricType::kGauge:
      metric.gauge.value = series.value;
      break;
    case MetricType::kHistogram: {
      metric.histogram.sample_count = series.count;
      metric.histogram.sample_sum = series.value;
      uint64_t cumulative = 0;
      for (size_t b = 0; b < entry.buckets.size(); ++b) {
        cumulative += series.buckets[b];
        metric.histogram.bucket.push_back({cumulative, entry.buckets[b]});
      }
      metric.histogram.bucket.push_back(
          {series.count, std::numeric_limits<double>::infinity()});
      break;
    }
  }
  return metric;
}

}  // namespace

absl::StatusOr<std::vector<MetricEntry>> ParseCatalogue(
    absl::string_view yaml) {
  std::vector<MetricEntry> entries;
  try {
    const YAML::Node root = YAML::Load(std::string(yaml));
    for (const YAML::Node& node : root) {
      EBB_ASSIGN_OR_RETURN(MetricEntry entry, ParseEntry(node));
      for (const MetricEntry& other : entries) {
        if (other.name == entry.name) {
          return absl::InvalidArgumentError(
              absl::StrCat("catalogue: ", entry.name, " stands twice"));
        }
      }
      entries.push_back(std::move(entry));
    }
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("catalogue: ", error.what()));
  }
  return entries;
}

struct MetricTable::State : prometheus::Collectable {
  int max_series = 0;
  mutable absl::Mutex mutex;
  std::map<std::string, FamilyState> families ABSL_GUARDED_BY(mutex);
  int num_series ABSL_GUARDED_BY(mutex) = 0;
  double num_dropped ABSL_GUARDED_BY(mutex) = 0;

  // Null: dropped, the table is full.
  Series* Find(const char* name, MetricType type, const Labels& labels)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto found = families.find(name);
    EBB_CHECK(found != families.end());
    FamilyState& family = found->second;
    EBB_CHECK(family.entry.type == type);
    EBB_CHECK(family.entry.labels.size() == labels.size());
    const auto series = family.series.find(labels);
    if (series != family.series.end()) return &series->second;
    if (num_series >= max_series) {
      ++num_dropped;
      return nullptr;
    }
    ++num_series;
    Series& fresh = family.series[labels];
    fresh.buckets.assign(family.entry.buckets.size(), 0);
    return &fresh;
  }

  void RemoveFrom(FamilyState& family, absl::string_view label,
                  const std::string& value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    const auto& labels = family.entry.labels;
    const auto at = std::find(labels.begin(), labels.end(), label);
    if (at == labels.end()) return;
    const size_t index = static_cast<size_t>(at - labels.begin());
    num_series -=
        static_cast<int>(std::erase_if(family.series, [&](const auto& series) {
          return series.first[index] == value;
        }));
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    absl::MutexLock lock(&mutex);
    std::vector<prometheus::MetricFamily> page;
    page.reserve(families.size());
    for (const auto& [name, family] : families) {
      prometheus::MetricFamily out;
      out.name = name;
      out.help = family.entry.help;
      out.type = TypeOf(family.entry.type);
      for (const auto& [labels, series] : family.series) {
        out.metric.push_back(MetricOf(family.entry, labels, series));
      }
      // The table watches itself: these two are not stored as series.
      if (name == kSeries) {
        out.metric.emplace_back().gauge.value = num_series + 2;
      } else if (name == kDropped) {
        out.metric.emplace_back().counter.value = num_dropped;
      }
      if (!out.metric.empty()) page.push_back(std::move(out));
    }
    return page;
  }
};

MetricTable::MetricTable(std::vector<MetricEntry> catalogue, int max_series)
    : state_(std::make_shared<State>()) {
  state_->max_series = max_series;
  absl::MutexLock lock(&state_->mutex);
  for (MetricEntry& entry : catalogue) {
    const std::string name = entry.name;
    const bool unlabelled = entry.labels.empty() && name != kSeries &&
                            name != kDropped &&
                            entry.type != MetricType::kGauge;
    const MetricType type = entry.type;
    state_->families[name].entry = std::move(entry);
    // Counters and histograms without labels start at 0.
    if (unlabelled) state_->Find(name.c_str(), type, {});
  }
}

MetricTable::~MetricTable() = default;

void MetricTable::Set(const char* family, const Labels& labels, double value) {
  absl::MutexLock lock(&state_->mutex);
  Series* series = state_->Find(family, MetricType::kGauge, labels);
  if (series != nullptr) series->value = value;
}

void MetricTable::Add(const char* family, const Labels& labels, double amount) {
  absl::MutexLock lock(&state_->mutex);
  Series* series = state_->Find(family, MetricType::kCounter, labels);
  // A counter never falls; the condition also refuses what is not a number.
  if (series != nullptr && amount > 0 &&
      amount < std::numeric_limits<double>::infinity()) {
    series->value += amount;
  }
}

void MetricTable::Observe(const char* family, const Labels& labels,
                          double value) {
  absl::MutexLock lock(&state_->mutex);
  Series* series = state_->Find(family, MetricType::kHistogram, labels);
  if (series == nullptr || !(value >= 0) ||
      value == std::numeric_limits<double>::infinity()) {
    return;
  }
  series->value += value;
  ++series->count;
  const auto& bounds = state_->families.find(family)->second.entry.buckets;
  const auto bound = std::lower_bound(bounds.begin(), bounds.end(), value);
  if (bound != bounds.end()) ++series->buckets[bound - bounds.begin()];
}

void MetricTable::Replace(const char* family, const char* label,
                          const std::string& value, const Labels& labels) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->families.find(family);
  EBB_CHECK(found != state_->families.end());
  state_->RemoveFrom(found->second, label, value);
  Series* series = state_->Find(family, MetricType::kGauge, labels);
  if (series != nullptr) series->value = 1;
}

void MetricTable::RemoveFrom(const char* family, const Labels& first) {
  absl::MutexLock lock(&state_->mutex);
  const auto found = state_->families.find(family);
  EBB_CHECK(found != state_->families.end());
  EBB_CHECK(first.size() <= found->second.entry.labels.size());
  state_->num_series -= static_cast<int>(
      std::erase_if(found->second.series, [&](const auto& series) {
        return std::equal(first.begin(), first.end(), series.first.begin());
      }));
}

void MetricTable::Remove(const char* label, const std::string& value) {
  absl::MutexLock lock(&state_->mutex);
  for (auto& [name, family] : state_->families) {
    state_->RemoveFrom(family, label, value);
  }
}

std::shared_ptr<prometheus::Collectable> MetricTable::collectable() const {
  return state_;
}

std::string MetricTable::Text() const {
  return prometheus::TextSerializer().Serialize(state_->Collect());
}

}  // namespace ebb
