// Memory that is there when it is handed out, limits that are kept, and what
// libraries take outside the arenas.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>
#include <omp.h>
#include <sched.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_memory.h"
#include "kernels/device.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/op_def.h"

namespace ebb {
namespace {

using ::testing::HasSubstr;

// Sanitizers keep memory of their own for every page.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kIsSanitized = true;
#else
constexpr bool kIsSanitized = false;
#endif

std::unique_ptr<Device> MakeDevice(int threads) {
  auto device = MakeCpuDevice(DescribeCpu(threads));
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

TEST(CpuDevice, PopulatesWhatItAllocates) {
  if (kIsSanitized) GTEST_SKIP() << "resident memory is the sanitizer's too";
  const auto device = MakeDevice(2);
  constexpr int64_t kBytes = (int64_t{37} << 20) + 12345;
  (void)cpu::ResidentBytes();
  const int64_t before = cpu::ResidentBytes();
  auto memory = device->Allocate(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const int64_t grown = cpu::ResidentBytes() - before;
  // Whole pages of 4 KiB; page tables and the team's stacks are not counted
  // as much as a hundredth.
  EXPECT_GE(grown, kBytes);
  EXPECT_LE(grown, kBytes + (int64_t{256} << 10));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(*memory) % kAlignment, 0u);
  const auto* bytes = static_cast<const char*>(*memory);
  for (int64_t i = 0; i < kBytes; i += 511) ASSERT_EQ(bytes[i], 0);
  std::vector<unsigned char> resident(kBytes / 4096 + 1);
  ASSERT_EQ(mincore(*memory, kBytes, resident.data()), 0);
  for (const unsigned char page : resident) EXPECT_EQ(page & 1, 1);
  device->Free(*memory, kBytes);
  EXPECT_LE(cpu::ResidentBytes() - before, int64_t{256} << 10);
}

TEST(CpuDevice, ShrinksInPlace) {
  const auto device = MakeDevice(1);
  constexpr int64_t kBytes = int64_t{32} << 20;
  constexpr int64_t kKept = (int64_t{5} << 20) + 100;
  auto memory = device->Allocate(kBytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  auto* const bytes = static_cast<char*>(*memory);
  bytes[0] = 1;
  bytes[kKept - 1] = 2;
  const int64_t before = cpu::ResidentBytes();
  device->Shrink(bytes, kBytes, kKept);
  if (!kIsSanitized) {
    EXPECT_NEAR(before - cpu::ResidentBytes(), kBytes - kKept, 256 << 10);
  }
  EXPECT_EQ(bytes[0], 1);
  EXPECT_EQ(bytes[kKept - 1], 2);
  device->Shrink(bytes, kKept, kKept - 1);
  EXPECT_EQ(bytes[0], 1) << "less than a page stays";
  device->Free(bytes, kKept - 1);
}

// The calling thread keeps its choice: threads that it starts inherit it.
TEST(CpuDevice, BindsATeamOfAllProcessors) {
  cpu_set_t allowed;
  ASSERT_EQ(sched_getaffinity(0, sizeof(allowed), &allowed), 0);
  const int threads = CPU_COUNT(&allowed);
  if (omp_get_thread_limit() < threads) {
    GTEST_SKIP() << "OMP_THREAD_LIMIT allows no such team";
  }
  const auto device = MakeDevice(threads);
  std::vector<cpu_set_t> bound(threads);
#pragma omp parallel num_threads(threads)
  {
    cpu_set_t& own = bound[omp_get_thread_num()];
    (void)sched_getaffinity(0, sizeof(own), &own);
  }
  EXPECT_EQ(CPU_COUNT(&bound[0]), threads);
  cpu_set_t all;
  CPU_ZERO(&all);
  for (int thread = 1; thread < threads; ++thread) {
    EXPECT_EQ(CPU_COUNT(&bound[thread]), 1);
    CPU_OR(&all, &all, &bound[thread]);
  }
  EXPECT_EQ(CPU_COUNT(&all), threads - 1) << "two threads on one processor";
}

TEST(CpuDevice, RefusesWhatDoesNotFit) {
  const auto device = MakeDevice(1);
  const auto memory = device->Allocate(int64_t{1} << 50);
  EXPECT_EQ(memory.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(memory.status().message()),
              HasSubstr("need 1125899906842624 bytes, have "));
}

TEST(CpuDevice, CopiesAndFills) {
  const auto device = MakeDevice(1);
  const std::string text = "some bytes";
  auto memory = device->Allocate(64);
  ASSERT_TRUE(memory.ok());
  device->CopyToDevice(*memory, text.data(), text.size(), nullptr);
  std::string back(text.size(), ' ');
  device->CopyToHost(back.data(), *memory, back.size(), nullptr);
  EXPECT_EQ(back, text);
  device->Fill(*memory, 0xff, 64, nullptr);
  EXPECT_EQ(static_cast<unsigned char*>(*memory)[63], 0xff);
  EXPECT_TRUE(device->Synchronize().ok());
  device->Free(*memory, 64);
}

TEST(CpuDevice, DescribesTheMachine) {
  const Backend backend = DescribeCpu(0);
  EXPECT_EQ(backend.kind, "cpu");
  EXPECT_GE(backend.threads, 1);
  EXPECT_FALSE(backend.device_model.empty());
  EXPECT_THAT(backend.libraries, HasSubstr("onednn 2."));
  EXPECT_THAT(backend.libraries, HasSubstr("highway 1."));
  EXPECT_FALSE(backend.built_in);
  EXPECT_EQ(backend, DescribeCpu(backend.threads));
}

TEST(CpuDevice, RefusesAnotherInstructionSet) {
  Backend backend = DescribeCpu(1);
  backend.instruction_set = "avx512_mic";
  EXPECT_EQ(MakeCpuDevice(backend).status().code(),
            absl::StatusCode::kFailedPrecondition);
  backend.instruction_set = "abacus";
  EXPECT_EQ(MakeCpuDevice(backend).status().code(),
            absl::StatusCode::kInvalidArgument);
  backend = DescribeCpu(1);
  backend.threads = 0;
  EXPECT_EQ(MakeCpuDevice(backend).status().code(),
            absl::StatusCode::kInvalidArgument);
}

// A backend stored with a job may be narrower than the machine. In a process
// of its own, since the set is fixed at the first look.
TEST(CpuDeviceDeathTest, UsesANarrowerInstructionSet) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        Backend backend;
        backend.instruction_set = "sse41";
        const auto device = MakeCpuDevice(backend);
        std::exit(device.ok() && DescribeCpu(1).instruction_set == "sse41" ? 0
                                                                           : 1);
      },
      testing::ExitedWithCode(0), "");
}

// Chosen at the first call within a team, one thread's kernel could be of a
// wider set than another's.
TEST(CpuDevice, TheKernelsSetIsChosenBeforeATeamRuns) {
  DescribeCpu(2);
  EXPECT_TRUE(hwy::GetChosenTarget().IsInitialized());
}

// Runs all products of one linear.
void RunLinear(Device& device, int64_t rows, int64_t inputs, int64_t outputs) {
  std::vector<TensorType> types = {{DType::kF32, rows, inputs},
                                   {DType::kF32, outputs, inputs},
                                   {DType::kF32, outputs},
                                   {DType::kF32, rows, outputs}};
  const OpDef& def = GetOpDef(Op::kLinear);
  const uint32_t bound = Reads(linear::kX, linear::kWeight, linear::kBias);
  const int64_t workspace_bytes =
      std::max(def.workspace_bytes({}, types, 0, device.backend()),
               def.workspace_bytes({}, types, bound, device.backend()));
  int64_t bytes = workspace_bytes;
  for (const TensorType& type : types) bytes += 2 * AlignUp(type.bytes());
  auto memory = device.Allocate(bytes);
  ASSERT_TRUE(memory.ok()) << memory.status();
  char* next = static_cast<char*>(*memory) + workspace_bytes;
  std::vector<Tensor> slots, grads;
  for (const TensorType& type : types) {
    for (std::vector<Tensor>* tensors : {&slots, &grads}) {
      tensors->push_back({next, type, type.row_elements()});
      next += AlignUp(type.bytes());
    }
  }
  const OpAttrs attrs;
  OpCall call = {.attrs = &attrs,
                 .slots = slots.data(),
                 .workspace = *memory,
                 .workspace_bytes = workspace_bytes};
  const KernelRow* row =
      FindKernels(device.kernels(), Op::kLinear, DType::kF32);
  EXPECT_TRUE(device.Launch(row->forward, call, nullptr).ok());
  call.grads = grads.data();
  EXPECT_TRUE(device.Launch(row->backward, call, nullptr).ok());
  device.Free(*memory, bytes);
}

// The figure that plans count must hold what a decoder's products really add.
TEST(CpuDevice, RuntimeBytesHoldWhatLibrariesTake) {
  if (kIsSanitized) GTEST_SKIP() << "resident memory is the sanitizer's too";
  const auto device = MakeDevice(2);
  (void)cpu::ResidentBytes();
  const int64_t before = cpu::ResidentBytes();
  RunLinear(*device, 256, 192, 576);
  RunLinear(*device, 256, 192, 192);
  RunLinear(*device, 256, 192, 768);
  RunLinear(*device, 256, 768, 192);
  RunLinear(*device, 64, 192, 257);
  const int64_t grown = cpu::ResidentBytes() - before;
  EXPECT_LE(grown, device->backend().runtime_bytes);
  EXPECT_GE(grown, 0);
  EXPECT_LE(device->backend().runtime_bytes, grown + (int64_t{2} << 20));
}

// A tree of /proc and control groups for the reader.
class CpuMemory : public testing::Test {
 protected:
  void SetUp() override {
    root_ = testing::TempDir() + "/cpu_memory_" +
            testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }

  std::string root_;
};

TEST_F(CpuMemory, IsTheMachinesWithoutGroups) {
  Write("/proc/meminfo", "MemTotal: 9 kB\nMemAvailable:   1000 kB\n");
  EXPECT_EQ(cpu::AvailableMemory(root_), 1024000);
  EXPECT_GT(cpu::AllowedProcessors(root_), 1e6);
}

TEST_F(CpuMemory, KeepsToTheNarrowestGroupOfVersion2) {
  Write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("/proc/self/cgroup", "0::/jobs/one\n");
  Write("/proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw\n");
  Write("/sys/fs/cgroup/jobs/one/memory.max", "max\n");
  Write("/sys/fs/cgroup/jobs/one/memory.current", "100\n");
  Write("/sys/fs/cgroup/jobs/memory.max", "5000\n");
  Write("/sys/fs/cgroup/jobs/memory.current", "2000\n");
  Write("/sys/fs/cgroup/jobs/memory.stat", "anon 1\ninactive_file 500\n");
  Write("/sys/fs/cgroup/jobs/one/cpu.max", "max 100000\n");
  Write("/sys/fs/cgroup/jobs/cpu.max", "150000 100000\n");
  EXPECT_EQ(cpu::AvailableMemory(root_), 3500);
  EXPECT_EQ(cpu::AllowedProcessors(root_), 1.5);
}

TEST_F(CpuMemory, KeepsToTheGroupOfVersion1) {
  Write("/proc/meminfo", "MemAvailable: 1000 kB\n");
  Write("/proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/container/x\n0::/\n");
  Write("/proc/self/mountinfo",
        "33 31 0:29 / /cg/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
        "35 31 0:32 /container /cg/memory rw - cgroup cgroup rw,memory\n");
  Write("/cg/memory/x/memory.limit_in_bytes", "9000\n");
  Write("/cg/memory/x/memory.usage_in_bytes", "4000\n");
  Write("/cg/memory/x/memory.stat", "total_inactive_file 1000\n");
  Write("/cg/cpu/a/cpu.cfs_quota_us", "-1\n");
  Write("/cg/cpu/a/cpu.cfs_period_us", "100000\n");
  Write("/cg/cpu/cpu.cfs_quota_us", "300000\n");
  Write("/cg/cpu/cpu.cfs_period_us", "100000\n");
  EXPECT_EQ(cpu::AvailableMemory(root_), 6000);
  EXPECT_EQ(cpu::AllowedProcessors(root_), 3);
}

TEST_F(CpuMemory, ReadsThisMachine) {
  EXPECT_GT(cpu::AvailableMemory(), 0);
  EXPECT_GT(cpu::AllowedProcessors(), 0);
  EXPECT_GT(cpu::ResidentBytes(), 0);
}

}  // namespace
}  // namespace ebb
