// Weights of test jobs: read from checkpoints, changed, and written as
// checkpoints that a job starts from.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "worker/checkpoint/native.h"
#include "worker/model/job_spec.h"

namespace ebb {

// A directory that is removed with the object.
class TestDirectory {
 public:
  TestDirectory();
  ~TestDirectory();
  TestDirectory(const TestDirectory&) = delete;
  TestDirectory& operator=(const TestDirectory&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Tensors of one role in a checkpoint, by name.
using TensorMap = std::map<std::string, std::vector<float>>;
TensorMap ReadTensors(const std::string& directory, CheckpointRole role);

// Writes the first weights of the spec's job below `parent`, each changed by
// `change`, and returns the directory for checkpoint.init_from.
std::string CraftWeights(
    const JobSpec& spec, const std::string& parent,
    const std::function<void(const std::string& name,
                             std::vector<float>& values)>& change);

}  // namespace ebb
