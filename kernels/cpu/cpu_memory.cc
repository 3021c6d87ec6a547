// Reads /proc and the control groups' files.
#include "kernels/cpu/cpu_memory.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>
#include <vector>

namespace ebb::cpu {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

// Value after `key` in lines of "key value"; -1 if there is none.
int64_t ReadField(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string word;
  for (std::string line; std::getline(file, line);) {
    std::istringstream words(line);
    int64_t value = 0;
    if (words >> word >> value && word == key) return value;
  }
  return -1;
}

// The number in a file of one number; -1 if there is none ("max").
int64_t ReadNumber(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  return file >> value ? value : -1;
}

// Directories of the control groups of one controller that hold this process,
// innermost first.
struct ControlGroups {
  bool unified = false;  // version 2
  std::vector<std::string> directories;
};

bool Contains(const std::string& list, const std::string& item) {
  return ("," + list + ",").find("," + item + ",") != std::string::npos;
}

// Path of the process's group in the hierarchy of `controller` ("": version
// 2), or "" if it is in none.
std::string GroupPath(const std::string& root, const std::string& controller) {
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool found = controller.empty() ? controllers.empty()
                                          : Contains(controllers, controller);
    if (found) return line.substr(second + 1);
  }
  return "";
}

ControlGroups FindControlGroups(const std::string& root,
                                const std::string& controller, bool unified) {
  ControlGroups groups;
  groups.unified = unified;
  std::string path = GroupPath(root, unified ? "" : controller);
  if (path.empty()) return groups;
  std::ifstream file(root + "/proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // id parent major:minor root mount-point options [fields] - type source
    // options
    std::istringstream words(line);
    std::string skipped, mount_root, mount_point, word, type, source, options;
    words >> skipped >> skipped >> skipped >> mount_root >> mount_point;
    while (words >> word && word != "-") {
    }
    words >> type >> source >> options;
    const bool matches =
        unified ? type == "cgroup2"
                : type == "cgroup" && Contains(options, controller);
    if (!matches) continue;
    if (mount_root != "/" && path.starts_with(mount_root)) {
      path.erase(0, mount_root.size());
    }
    for (;;) {
      if (path == "/") path.clear();
      groups.directories.push_back(root + mount_point + path);
      if (path.empty()) return groups;
      path.erase(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
    }
  }
  return groups;
}

int64_t MemoryLeft(const std::string& directory, bool unified) {
  const int64_t limit = ReadNumber(
      directory + (unified ? "/memory.max" : "/memory.limit_in_bytes"));
  const int64_t used = ReadNumber(
      directory + (unified ? "/memory.current" : "/memory.usage_in_bytes"));
  if (limit < 0 || used < 0) return kUnlimited;
  const int64_t droppable =
      ReadField(directory + "/memory.stat",
                unified ? "inactive_file" : "total_inactive_file");
  return std::max<int64_t>(
      0, limit - std::max<int64_t>(0, used - std::max<int64_t>(0, droppable)));
}

}  // namespace

int64_t AvailableMemory(const std::string& root) {
  const int64_t kib = ReadField(root + "/proc/meminfo", "MemAvailable:");
  int64_t available = kib < 0 ? kUnlimited : kib * 1024;
  for (const bool unified : {false, true}) {
    const ControlGroups groups = FindControlGroups(root, "memory", unified);
    for (const std::string& directory : groups.directories) {
      available = std::min(available, MemoryLeft(directory, unified));
    }
  }
  return available;
}

double AllowedProcessors(const std::string& root) {
  double allowed = std::numeric_limits<int>::max();
  for (const bool unified : {false, true}) {
    const ControlGroups groups = FindControlGroups(root, "cpu", unified);
    for (const std::string& directory : groups.directories) {
      double quota = -1;
      double period = -1;
      if (unified) {
        std::ifstream file(directory + "/cpu.max");
        if (!(file >> quota >> period)) continue;  // "max 100000"
      } else {
        quota =
            static_cast<double>(ReadNumber(directory + "/cpu.cfs_quota_us"));
        period =
            static_cast<double>(ReadNumber(directory + "/cpu.cfs_period_us"));
      }
      if (quota > 0 && period > 0) allowed = std::min(allowed, quota / period);
    }
  }
  return allowed;
}

int64_t ResidentBytes() {
  const std::string path = "/proc/self/status";
  return (std::max<int64_t>(0, ReadField(path, "RssAnon:")) +
          std::max<int64_t>(0, ReadField(path, "RssShmem:"))) *
         1024;
}

}  // namespace ebb::cpu
