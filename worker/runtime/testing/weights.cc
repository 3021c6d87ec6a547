// Checkpoints as a way to look at weights and to set them.
#include "worker/runtime/testing/weights.h"

#include <cstdlib>
#include <filesystem>
#include <utility>

#include "kernels/status.h"
#include "worker/runtime/testing/test_job.h"

namespace ebb {

TestDirectory::TestDirectory() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "ebb-test-XXXXXX").string();
  EBB_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TestDirectory::~TestDirectory() { std::filesystem::remove_all(path_); }

TensorMap ReadTensors(const std::string& directory, CheckpointRole role) {
  auto reader = CheckpointReader::Open(directory);
  EBB_CHECK(reader.ok());
  TensorMap tensors;
  for (const CheckpointReader::Entry& entry : reader->entries()) {
    if (entry.role != role) continue;
    std::vector<float> values(entry.type.num_elements());
    EBB_CHECK(reader->Read(entry.name, role, entry.type, values.data()).ok());
    tensors[entry.name] = std::move(values);
  }
  return tensors;
}

std::string CraftWeights(
    const JobSpec& spec, const std::string& parent,
    const std::function<void(const std::string&, std::vector<float>&)>&
        change) {
  // A checkpoint before the first step holds the first weights.
  const TestDirectory scratch;
  const JobRun run = RunJob(spec, {.checkpoint_directory = scratch.path(),
                                   .orders = {{0, TrainerOrder::kCheckpoint},
                                              {0, TrainerOrder::kCancel}}});
  EBB_CHECK(run.checkpoints.size() == 1 && run.checkpoints[0].status.ok());
  const std::string& source = run.checkpoints[0].directory;
  TensorMap weights = ReadTensors(source, CheckpointRole::kParameter);
  auto reader = CheckpointReader::Open(source);
  EBB_CHECK(reader.ok());
  std::vector<CheckpointTensor> tensors;
  for (auto& [name, values] : weights) {
    change(name, values);
    const auto* entry = reader->Find(name, CheckpointRole::kParameter);
    tensors.push_back(
        {name, CheckpointRole::kParameter, entry->type, values.data()});
  }
  EBB_CHECK(WriteCheckpoint(parent, reader->meta(), tensors).ok());
  return parent + "/" + CheckpointName(0);
}

}  // namespace ebb
