// Wildcard matching and expansion, one part of a path at a time.
#include "worker/data/glob.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace ebb {
namespace {

constexpr int64_t kMaxNames = 1'000'000;

bool HasWildcards(absl::string_view text) {
  return text.find_first_of("*?[\\") != absl::string_view::npos;
}

// Reads the element of a pattern at `*position` ('*' excluded) and steps over
// it; returns whether it matches `c`.
bool MatchesOne(absl::string_view pattern, size_t* position, char c) {
  const char first = pattern[(*position)++];
  if (first == '?') return true;
  if (first == '\\' && *position < pattern.size()) {
    return pattern[(*position)++] == c;
  }
  if (first != '[') return first == c;
  size_t at = *position;
  const bool inverted =
      at < pattern.size() && (pattern[at] == '!' || pattern[at] == '^');
  if (inverted) ++at;
  bool found = false;
  // A ']' right after the opening is one of the set.
  for (const size_t begin = at; at < pattern.size(); ++at) {
    if (pattern[at] == ']' && at > begin) {
      *position = at + 1;
      return found != inverted;
    }
    const unsigned char low = pattern[at];
    unsigned char high = low;
    if (at + 2 < pattern.size() && pattern[at + 1] == '-' &&
        pattern[at + 2] != ']') {
      high = pattern[at + 2];
      at += 2;
    }
    const unsigned char byte = c;
    if (low <= byte && byte <= high) found = true;
  }
  return c == '[';  // no closing bracket
}

struct CloseDirectory {
  void operator()(DIR* directory) const { closedir(directory); }
};

}  // namespace

bool MatchesWildcards(absl::string_view pattern, absl::string_view name) {
  if (!name.empty() && name[0] == '.' && !absl::StartsWith(pattern, ".")) {
    return false;
  }
  size_t p = 0;
  size_t n = 0;
  // Where to go on if what follows the last star does not match: the star then
  // takes one character more. Earlier stars need no second try.
  std::optional<size_t> star;
  size_t star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = ++p;
      star_name = n;
      continue;
    }
    if (p < pattern.size() && MatchesOne(pattern, &p, name[n])) {
      ++n;
      continue;
    }
    if (!star) return false;
    p = *star;
    n = ++star_name;
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

absl::StatusOr<std::vector<std::string>> ExpandGlob(absl::string_view pattern) {
  if (pattern.empty()) return absl::InvalidArgumentError("empty path");
  if (absl::StrContains(pattern, '\0')) {
    return absl::InvalidArgumentError("path with a NUL character");
  }
  if (pattern.size() >= PATH_MAX) {
    return absl::InvalidArgumentError(absl::StrCat(
        "path of ", pattern.size(), " bytes: expected fewer than ", PATH_MAX));
  }
  struct stat info;
  if (stat(std::string(pattern).c_str(), &info) == 0) {
    return std::vector<std::string>{std::string(pattern)};
  }
  if (!HasWildcards(pattern)) {
    if (errno == ENOENT || errno == ENOTDIR) return std::vector<std::string>();
    return std::vector<std::string>{std::string(pattern)};  // says why, opened
  }

  const std::vector<absl::string_view> parts = absl::StrSplit(pattern, '/');
  std::vector<std::string> found = {""};
  int64_t num_names = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    const absl::string_view separator = i + 1 < parts.size() ? "/" : "";
    if (!HasWildcards(parts[i])) {
      for (std::string& path : found)
        absl::StrAppend(&path, parts[i], separator);
      continue;
    }
    std::vector<std::string> next;
    for (const std::string& path : found) {
      std::unique_ptr<DIR, CloseDirectory> directory(
          opendir(path.empty() ? "." : path.c_str()));
      if (!directory) {
        if (errno == ENOENT || errno == ENOTDIR) continue;
        return absl::InvalidArgumentError(absl::StrCat(
            "cannot read directory: ", std::strerror(errno), ": ", path));
      }
      errno = 0;
      while (const dirent* entry = readdir(directory.get())) {
        const absl::string_view name = entry->d_name;
        if (++num_names > kMaxNames) {
          return absl::InvalidArgumentError(absl::StrCat(
              "more than ", kMaxNames, " names to look at: ", pattern));
        }
        if (name == "." || name == "..") continue;
        if (MatchesWildcards(parts[i], name)) {
          next.push_back(absl::StrCat(path, name, separator));
        }
      }
      if (errno != 0) {
        return absl::InvalidArgumentError(absl::StrCat(
            "cannot read directory: ", std::strerror(errno), ": ", path));
      }
    }
    found = std::move(next);
  }
  // Parts after the last wildcard were only appended.
  if (!HasWildcards(parts.back())) {
    std::erase_if(found, [](const std::string& path) {
      struct stat ignored;
      return lstat(path.c_str(), &ignored) != 0;
    });
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace ebb
