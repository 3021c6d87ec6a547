#include "proto/name_suggestion.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"

namespace ebb {

// Optimal string alignment: three rows of the usual table.
int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> before(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1,
                         last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

std::string NearestName(absl::string_view name,
                        std::span<const std::string> names) {
  // Long texts are no misspelt names, and the table is quadratic.
  if (name.size() > 64) return "";
  std::string folded = absl::AsciiStrToLower(name);
  std::replace(folded.begin(), folded.end(), '-', '_');
  std::string nearest;
  int fewest = 0;
  for (const std::string& candidate : names) {
    const int edits = EditDistance(folded, absl::AsciiStrToLower(candidate));
    const size_t longer = std::max(folded.size(), candidate.size());
    if (edits * 2 > static_cast<int>(longer)) continue;
    if (nearest.empty() || edits < fewest) {
      nearest = candidate;
      fewest = edits;
    }
  }
  return nearest;
}

}  // namespace ebb
