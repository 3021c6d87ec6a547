// The series behind /metrics, by the catalogue monitoring/metrics.yaml, which
// is part of the program: a family that is not in it cannot be filled.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace prometheus {
class Collectable;
struct MetricFamily;
}  // namespace prometheus

namespace ebb {

enum class MetricType : uint8_t { kCounter, kGauge, kHistogram };

// One entry of the catalogue.
struct MetricEntry {
  std::string name;
  MetricType type = MetricType::kGauge;
  std::string unit;  // "seconds", "bytes", ...; empty: a plain number
  std::vector<std::string> labels;
  std::string help;
  // Largest number of series, in words: "jobs that live * 10".
  std::string bound;
  std::vector<double> buckets;  // histograms: upper bounds, rising
};

// Errors: INVALID_ARGUMENT with the entry and what is wrong.
absl::StatusOr<std::vector<MetricEntry>> ParseCatalogue(absl::string_view yaml);

// The catalogue that this program was built with.
absl::string_view BuiltInCatalogue();

// Thread-safe. Collecting takes one copy under the lock: a page shows one
// moment, and a slow reader holds nobody up.
class MetricTable {
 public:
  // Label values in the order of the entry's labels.
  using Labels = std::vector<std::string>;

  // New series beyond max_series are dropped and counted.
  MetricTable(std::vector<MetricEntry> catalogue, int max_series);
  ~MetricTable();

  // The family must be in the catalogue and the number of labels right:
  // anything else is a mistake of the program and ends it.
  void Set(const char* family, const Labels& labels, double value);  // gauges
  void Add(const char* family, const Labels& labels,
           double amount);  // counters
  void Observe(const char* family, const Labels& labels,
               double value);  // histograms

  // In one moment: drops all series of the family with this value of `label`,
  // then sets one.
  void Replace(const char* family, const char* label, const std::string& value,
               const Labels& labels);

  // Drops all series of the family whose labels begin with these.
  void RemoveFrom(const char* family, const Labels& first);

  // Drops the series of all families that have this value of `label`.
  void Remove(const char* label, const std::string& value);

  // For an exposer; stays valid after the table.
  std::shared_ptr<prometheus::Collectable> collectable() const;

  // The page as text.
  std::string Text() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ebb
