// `./run bench`: how fast training steps are, as a share of the rate of the
// model's own matrix products and next to a peer on the same work.
//
// All is measured in one run, since machines differ and are shared: steps under
// each policy in turn, then each product of the linears alone, then the peer.
// - share: FLOPs of the model's matrix products (attention counts the full
//   square) per second of a step, over the FLOP-weighted rate of the products
//   of its linears alone.
// - recompute: FLOPs computed again over the model's; its time: seconds of the
//   recomputed ops over those of all others, within one step.
// - cost of a policy: its step over that of `none`; the policies take turns.
// - error: seconds of a step as predicted from what `ebb plan --profile`
//   measures, done just before, over the median measured. A process that shares
//   the machine makes it larger.
// `auto` has the mean of the peaks of `none` and `full` as its budget; so have
// `auto-host` and `auto-disk`, which may offload to host memory and to disk.
// A shipped spec, client/examples/offload.yaml, under its own budget: what
// offloading gains where recompute is the other way to fit.
// Beside them the planner: seconds to plan the largest model, and to lower one
// candidate.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "integration_tests/bench/planner_bench.h"
#include "integration_tests/bench/product_rates.h"
#include "integration_tests/bench/shapes.h"
#include "integration_tests/bench/step_bench.h"
#include "kernels/device.h"
#include "kernels/status.h"
#include "nlohmann/json.hpp"
#include "server/planner/plan_job.h"
#include "worker/model/job_spec.h"
#include "worker/profiling.h"

namespace ebb::bench {
namespace {

using Json = nlohmann::ordered_json;

// Of the shipped spec.
const std::vector<std::string> kOffloadPolicies = {"none", "full", "auto",
                                                   "auto-host", "auto-disk"};

struct Options {
  std::vector<std::string> sections = {"planner", "steps", "offload"};
  std::vector<std::string> shapes = {"gpt2-124m", "llama"};
  std::vector<std::string> precisions = {"fp32", "bf16"};
  std::vector<std::string> policies = {"none", "cheap", "full", "auto",
                                       "auto-host"};
  int steps = 3;
  int threads = 2;
  bool profile = false;
  std::string json;  // file
  std::string peer;  // program that measures the peer
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle]
                                : (values[middle - 1] + values[middle]) / 2;
}

// How much longer steps take than those of `base`, compared round by round:
// what slows the machine down for a while slows both.
double MedianCost(const std::vector<double>& measured,
                  const std::vector<double>& base) {
  std::vector<double> costs;
  for (size_t n = 0; n < measured.size(); ++n) {
    costs.push_back(measured[n] / base[n] - 1);
  }
  return Median(std::move(costs));
}

// Time of what was computed again over the time of all else, within one step:
// no slow spell comes between.
double RecomputeTime(const StepMeasurement& measured) {
  double recompute = 0, rest = 0;
  for (const ProfileEntry& entry : measured.profile) {
    (entry.phase == "recompute" ? recompute : rest) += entry.seconds;
  }
  return recompute / rest;
}

Offload OffloadOf(const std::string& name) {
  if (name == "auto-host") return Offload::kHost;
  return name == "auto-disk" ? Offload::kDisk : Offload::kNone;
}

Policy PolicyOf(const std::string& name) {
  for (const Policy policy : {Policy::kNone, Policy::kSelective, Policy::kCheap,
                              Policy::kFull, Policy::kSqrt, Policy::kAuto}) {
    if (name == PolicyName(policy)) return policy;
  }
  EBB_CHECK(OffloadOf(name) != Offload::kNone);
  return Policy::kAuto;
}

Json MachineJson(const Backend& backend) {
  Json machine = {{"device_model", backend.device_model},
                  {"instruction_set", backend.instruction_set},
                  {"threads", backend.threads},
                  {"libraries", backend.libraries}};
  std::ifstream load("/proc/loadavg");
  std::string average;
  load >> average;
  machine["load_average_at_start"] = average;
  for (const char* name : {"OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE"}) {
    const char* value = std::getenv(name);
    machine[name] = value == nullptr ? "" : value;
  }
  return machine;
}

Json PolicyJson(const StepMeasurement& measured, double product_rate) {
  const double seconds = Median(measured.step_seconds);
  Json json = {
      {"step_seconds", seconds},
      {"all_step_seconds", measured.step_seconds},
      {"all_cpu_seconds", measured.cpu_seconds},
      {"layers_seconds", measured.layers_seconds},
      {"tokens_per_second", static_cast<double>(measured.tokens) / seconds},
      {"model_flops", measured.model_flops},
      {"recompute_flops", measured.recompute_flops},
      {"model_product_flops", measured.model_product_flops},
      {"recompute_product_flops", measured.recompute_product_flops},
      {"peak_bytes", measured.peak_bytes},
      {"host_bytes", measured.host_bytes},
      {"disk_bytes", measured.disk_bytes},
      {"loss", measured.loss},
      {"share_of_product_rate",
       measured.model_product_flops / seconds / product_rate}};
  for (const ProfileEntry& entry : measured.profile) {
    json["profile"].push_back({{"op", entry.op},
                               {"phase", entry.phase},
                               {"calls", entry.calls},
                               {"seconds", entry.seconds},
                               {"product_flops", entry.product_flops}});
  }
  return json;
}

const char* KindName(ProductShape::Kind kind) {
  switch (kind) {
    case ProductShape::Kind::kForward:
      return "forward";
    case ProductShape::Kind::kInputGradient:
      return "input gradient";
    case ProductShape::Kind::kWeightGradient:
      return "weight gradient";
  }
  return "?";
}

Json ProductsJson(const std::vector<ProductRate>& rates) {
  Json json = Json::array();
  for (const ProductRate& rate : rates) {
    const double giga = rate.shape.flops() * 1e-9;
    json.push_back(
        {{"kind", KindName(rate.shape.kind)},
         {"rows", rate.shape.rows},
         {"inputs", rate.shape.inputs},
         {"outputs", rate.shape.outputs},
         {"calls", rate.count},
         {"kernel_gflops", giga / rate.kernel_seconds},
         {"library_gflops",
          rate.library_seconds > 0 ? giga / rate.library_seconds : 0}});
  }
  return json;
}

// Runs the peer's program and returns the object that it prints.
absl::StatusOr<Json> RunPeer(const Options& options, const std::string& shape,
                             const std::string& precision) {
  const std::string command =
      absl::StrCat(options.peer, " --shape ", shape, " --precision ", precision,
                   " --threads ", options.threads, " --steps ", options.steps);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return absl::InternalError("the peer does not start");
  std::string output;
  char buffer[4096];
  while (const size_t read = std::fread(buffer, 1, sizeof(buffer), pipe)) {
    output.append(buffer, read);
  }
  const int status = pclose(pipe);
  Json json = Json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (status != 0 || json.is_discarded()) {
    return absl::InternalError(absl::StrCat("the peer failed: ", command));
  }
  return json;
}

void PrintProducts(const std::vector<ProductRate>& rates) {
  absl::PrintF("  %-16s %6s %6s %6s %6s %14s %14s\n", "product", "rows", "in",
               "out", "calls", "kernel GF/s", "library GF/s");
  for (const ProductRate& rate : rates) {
    const double giga = rate.shape.flops() * 1e-9;
    absl::PrintF("  %-16s %6d %6d %6d %6d %14.1f %14.1f\n",
                 KindName(rate.shape.kind), rate.shape.rows, rate.shape.inputs,
                 rate.shape.outputs, rate.count, giga / rate.kernel_seconds,
                 rate.library_seconds > 0 ? giga / rate.library_seconds : 0);
  }
}

void PrintProfile(const StepMeasurement& measured) {
  double total = 0;
  for (const ProfileEntry& entry : measured.profile) total += entry.seconds;
  absl::PrintF("    %-36s %-10s %6s %9s %6s %8s\n", "op", "phase", "calls",
               "seconds", "share", "GFLOP/s");
  for (const ProfileEntry& entry : measured.profile) {
    if (entry.seconds < 0.002 * total) break;
    absl::PrintF("    %-36s %-10s %6d %9.4f %5.1f%% %8.1f\n", entry.op,
                 entry.phase, entry.calls, entry.seconds,
                 100 * entry.seconds / total,
                 entry.product_flops * 1e-9 / entry.seconds);
  }
}

// Of `auto` the mean of the peaks of `none` and `full`; the others take what
// they need.
absl::StatusOr<int64_t> BudgetOf(JobSpec spec, const CostProfile& profile) {
  constexpr int64_t kUnlimited = int64_t{1} << 50;
  spec.memory.offload = Offload::kNone;
  if (spec.memory.policy != Policy::kAuto) return kUnlimited;
  spec.memory.budget_bytes = kUnlimited;
  int64_t peaks = 0;
  for (const Policy policy : {Policy::kNone, Policy::kFull}) {
    spec.memory.policy = policy;
    EBB_ASSIGN_OR_RETURN(const Plan plan,
                         PlanJob(spec, DescribeCpu(spec.threads), profile));
    peaks += plan.ranks[0].peak_bytes;
  }
  return peaks / 2;
}

// Says by how much one policy is faster than another, round by round, if both
// ran.
void Compare(const std::string& name, const std::string& other,
             const std::vector<std::string>& policies,
             const std::vector<std::unique_ptr<StepBench>>& benches,
             Json& json) {
  const StepMeasurement* fast = nullptr;
  const StepMeasurement* slow = nullptr;
  for (size_t n = 0; n < benches.size(); ++n) {
    if (policies[n] == name) fast = &benches[n]->measured();
    if (policies[n] == other) slow = &benches[n]->measured();
  }
  if (fast == nullptr || slow == nullptr) return;
  const double faster = MedianCost(slow->step_seconds, fast->step_seconds);
  const double cpu = MedianCost(slow->cpu_seconds, fast->cpu_seconds);
  json[absl::StrCat(name, "_faster_than_", other)] = faster;
  json[absl::StrCat(name, "_cpu_less_than_", other)] = cpu;
  const auto than = [](double more, const char* word, const char* opposite) {
    return absl::StrFormat("%.1f%% %s", 100 * std::abs(more),
                           more < 0 ? opposite : word);
  };
  absl::PrintF("  %s is %s than %s, which takes %s of the processor\n", name,
               than(faster, "faster", "slower"), other,
               than(cpu, "more", "less"));
}

// One job under policies that take turns: returns its part of the results.
// `budget_bytes` of `auto`; 0: as BudgetOf.
absl::StatusOr<Json> BenchJob(const Options& options, JobSpec spec,
                              const std::vector<std::string>& policies,
                              int64_t budget_bytes) {
  const std::string shape = spec.name;
  const DType precision = spec.precision;
  Json json = {{"shape", shape}, {"precision", DTypeName(precision)}};
  absl::PrintF("\n%s %s, sequences of %d, micro %d, global %d\n", shape,
               DTypeName(precision), spec.model.seq_len, spec.micro_batch,
               spec.global_batch);
  std::vector<std::unique_ptr<StepBench>> benches;
  CostProfile profile = RooflineProfile(DescribeCpu(options.threads));
  EBB_ASSIGN_OR_RETURN(auto op_seconds, ProfileJob(spec, DiskDirectory(spec),
                                                   [] { return false; }));
  profile.TakeMeasured(std::move(op_seconds), spec.memory.offload_dir);
  for (const std::string& name : policies) {
    spec.memory.policy = PolicyOf(name);
    spec.memory.offload = OffloadOf(name);
    EBB_ASSIGN_OR_RETURN(spec.memory.budget_bytes, BudgetOf(spec, profile));
    if (budget_bytes > 0 && spec.memory.policy == Policy::kAuto) {
      spec.memory.budget_bytes = budget_bytes;
    }
    EBB_ASSIGN_OR_RETURN(std::unique_ptr<StepBench> bench,
                         StepBench::Create(spec, profile));
    EBB_RETURN_IF_ERROR(bench->WarmUp());
    benches.push_back(std::move(bench));
  }
  for (int round = 0; round < options.steps; ++round) {
    for (const auto& bench : benches) EBB_RETURN_IF_ERROR(bench->Step());
  }
  const StepMeasurement& first = benches.front()->measured();
  const std::vector<ProductRate> rates =
      MeasureProducts(first.products, precision, options.threads);
  const double product_rate = WeightedRate(rates);
  json["product_gflops"] = product_rate * 1e-9;
  json["products"] = ProductsJson(rates);
  PrintProducts(rates);
  absl::PrintF("  weighted rate of the products: %.1f GFLOP/s\n",
               product_rate * 1e-9);
  absl::PrintF("  %-9s %9s %9s %10s %8s %10s %10s %10s %10s %7s\n", "policy",
               "tokens/s", "step s", "peak MiB", "share", "recompute",
               "its time", "step cost", "predicted", "error");
  for (size_t n = 0; n < benches.size(); ++n) {
    const std::string& name = policies[n];
    EBB_RETURN_IF_ERROR(benches[n]->Profile());
    const StepMeasurement& measured = benches[n]->measured();
    const double seconds = Median(measured.step_seconds);
    const double cost = MedianCost(measured.step_seconds, first.step_seconds);
    const double recompute_time = RecomputeTime(measured);
    const double predicted = benches[n]->Predict(profile);
    const double error = predicted / seconds - 1;
    absl::PrintF(
        "  %-9s %9.1f %9.3f %10.1f %7.1f%% %9.1f%% %9.1f%% %9.1f%% %10.3f "
        "%6.1f%%\n",
        name, static_cast<double>(measured.tokens) / seconds, seconds,
        static_cast<double>(measured.peak_bytes) / (1 << 20),
        100 * measured.model_product_flops / seconds / product_rate,
        100 * measured.recompute_flops / measured.model_flops,
        100 * recompute_time, 100 * cost, predicted, 100 * error);
    if (options.profile) PrintProfile(measured);
    json["policies"][name] = PolicyJson(measured, product_rate);
    json["policies"][name]["step_cost"] = cost;
    json["policies"][name]["recompute_time"] = recompute_time;
    json["policies"][name]["predicted_seconds"] = predicted;
    json["policies"][name]["prediction_error"] = error;
  }
  Compare("auto", "full", policies, benches, json);
  for (const char* name : {"auto-host", "auto-disk"}) {
    Compare(name, "auto", policies, benches, json);
  }
  for (const auto& [place, rate] :
       {std::pair{"host memory", profile.host}, {"disk", profile.disk}}) {
    json["copies"][place] = {{"bytes_per_second", rate.bytes_per_second},
                             {"share", rate.share}};
    absl::PrintF(
        "  copies to %s beside ops: %.2f GB/s, a second of them takes %.2f s "
        "from those\n",
        place, rate.bytes_per_second * 1e-9, rate.share);
  }
  if (options.peer.empty() || budget_bytes > 0) return json;
  const StepMeasurement measured = first;
  benches.clear();  // their memory is the peer's now
  EBB_ASSIGN_OR_RETURN(const Json peer,
                       RunPeer(options, shape, DTypeName(precision)));
  json["peer"] = peer;
  const double peer_seconds = peer["step_seconds"];
  const double peer_layers = peer["layers_seconds"];
  const double seconds = Median(measured.step_seconds);
  absl::PrintF(
      "  %s (%s): %.1f tokens/s, step %.3f s, layers alone %.3f s; Ebb's rate "
      "is %.2f times that, of the layers alone %.2f times\n",
      std::string(peer["name"]), std::string(peer["blas"]),
      static_cast<double>(measured.tokens) / peer_seconds, peer_seconds,
      peer_layers, peer_seconds / seconds,
      peer_layers / measured.layers_seconds);
  return json;
}

// Prints how long planning takes and returns its part of the results.
absl::StatusOr<Json> BenchPlanner() {
  EBB_ASSIGN_OR_RETURN(const PlannerMeasurement measured, MeasurePlanner());
  Json json;
  absl::PrintF("\nplanner\n  %-9s %-10s %7s %13s %10s\n", "shape", "policy",
               "layers", "microbatches", "plan s");
  for (const PlanTime& plan : measured.plans) {
    absl::PrintF("  %-9s %-10s %7d %13d %10.4f\n", plan.shape, plan.policy,
                 plan.layers, plan.num_microbatches, plan.seconds);
    json["plans"].push_back({{"shape", plan.shape},
                             {"policy", plan.policy},
                             {"layers", plan.layers},
                             {"microbatches", plan.num_microbatches},
                             {"seconds", plan.seconds}});
  }
  absl::PrintF("  %-9s %10s %10s\n", "layers", "segments", "lower ms");
  for (const LoweringTime& lowering : measured.lowerings) {
    absl::PrintF("  %-9d %10d %10.3f\n", lowering.layers, lowering.segments,
                 1e3 * lowering.seconds);
    json["lowerings"].push_back({{"layers", lowering.layers},
                                 {"segments", lowering.segments},
                                 {"seconds", lowering.seconds}});
  }
  return json;
}

bool HasSection(const Options& options, const char* name) {
  return std::find(options.sections.begin(), options.sections.end(), name) !=
         options.sections.end();
}

int Run(Options options) {
  auto device = MakeCpuDevice(DescribeCpu(options.threads));
  if (!device.ok()) {
    std::cerr << device.status().message() << "\n";
    return 1;
  }
  Json results = {{"machine", MachineJson((*device)->backend())}};
  std::cout << "machine: " << results["machine"].dump() << "\n"
            << "FLOPs of attention count the full square.\n";
  if (HasSection(options, "planner")) {
    const absl::StatusOr<Json> planner = BenchPlanner();
    if (!planner.ok()) {
      std::cerr << "planner: " << planner.status().message() << "\n";
      return 1;
    }
    results["planner"] = *planner;
  }
  if (!HasSection(options, "steps")) options.shapes.clear();
  std::vector<double> errors;
  const auto bench = [&](const absl::StatusOr<Json>& job,
                         const std::string& name) {
    if (!job.ok()) {
      std::cerr << name << ": " << job.status().message() << "\n";
      return false;
    }
    for (const auto& policy : (*job)["policies"]) {
      errors.push_back(std::abs(policy["prediction_error"].get<double>()));
    }
    results["jobs"].push_back(*job);
    std::cout << std::flush;
    return true;
  };
  for (const std::string& shape : options.shapes) {
    for (const std::string& precision : options.precisions) {
      const DType dtype = precision == "bf16" ? DType::kBf16 : DType::kF32;
      if (!bench(BenchJob(options, MakeJob(shape, dtype, options.threads),
                          options.policies, 0),
                 shape)) {
        return 1;
      }
    }
  }
  if (HasSection(options, "offload")) {
    const std::string path = EBB_SOURCE_DIR "/client/examples/offload.yaml";
    const absl::StatusOr<JobSpec> spec = ReadJob(path, options.threads);
    if (!bench(spec.ok() ? BenchJob(options, *spec, kOffloadPolicies,
                                    spec->memory.budget_bytes)
                         : spec.status(),
               path)) {
      return 1;
    }
  }
  if (!errors.empty()) {
    results["median_prediction_error"] = Median(errors);
    absl::PrintF("\nmedian error of predicted step times: %.1f%%\n",
                 100 * Median(errors));
  }
  if (!options.json.empty()) {
    std::ofstream file(options.json);
    file << results.dump(2) << "\n";
    if (!file.flush()) {
      std::cerr << options.json << ": cannot be written\n";
      return 1;
    }
    std::cout << "\nresults: " << options.json << "\n";
  }
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Measures training steps against the machine's products.",
               "ebb-bench");
  app.add_option("--section", options.sections, "planner, steps, offload")
      ->check(CLI::IsMember({"planner", "steps", "offload"}))
      ->delimiter(',');
  app.add_option("--shape", options.shapes, "models")
      ->check(CLI::IsMember(ShapeNames()))
      ->delimiter(',');
  app.add_option("--precision", options.precisions, "fp32, bf16")
      ->check(CLI::IsMember({"fp32", "bf16"}))
      ->delimiter(',');
  app.add_option("--policy", options.policies,
                 "the first is what the others are compared with")
      ->check(CLI::IsMember({"none", "selective", "cheap", "full", "sqrt",
                             "auto", "auto-host", "auto-disk"}))
      ->delimiter(',');
  app.add_option("--steps", options.steps, "timed steps")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
  app.add_flag("--profile", options.profile, "where a step's time goes");
  app.add_option("--json", options.json, "file for all figures");
  app.add_option("--peer-program", options.peer,
                 "program that measures the same work elsewhere");
  CLI11_PARSE(app, argc, argv);
  // Lines appear as they are measured, through a pipe too.
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  return Run(options);
}

}  // namespace
}  // namespace ebb::bench

int main(int argc, char** argv) { return ebb::bench::Main(argc, argv); }
