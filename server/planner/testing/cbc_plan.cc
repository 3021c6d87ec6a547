// See cbc_plan.h.
#include "server/planner/testing/cbc_plan.h"

#include <Cbc_C_Interface.h>

#include <string>
#include <utility>
#include <vector>

namespace ebb {
namespace {

constexpr int kNoColumn = -1;

// A sum of columns, with what is constant apart.
class Terms {
 public:
  void Add(int column, double factor) {
    if (column == kNoColumn) return;
    columns_.push_back(column);
    factors_.push_back(factor);
  }
  // sum <= most.
  void AddRow(Cbc_Model* model, double most) const {
    Cbc_addRow(model, "", static_cast<int>(columns_.size()), columns_.data(),
               factors_.data(), 'L', most);
  }

 private:
  std::vector<int> columns_;
  std::vector<double> factors_;
};

class Program {
 public:
  Program(const GraphProblem& problem, int64_t budget_bytes)
      : problem_(problem),
        num_nodes_(static_cast<int>(problem.nodes.size())),
        budget_(static_cast<double>(budget_bytes - problem.resident_bytes)),
        model_(Cbc_newModel()),
        runs_(num_nodes_, std::vector<int>(num_nodes_, kNoColumn)),
        kept_(num_nodes_ + 1, std::vector<int>(num_nodes_, kNoColumn)) {
    AddRuns();
    for (int stage = 0; stage < num_nodes_; ++stage) AddMemory(stage);
  }
  ~Program() { Cbc_deleteModel(model_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  CbcPlan Solve(double time_limit_seconds) {
    Cbc_setLogLevel(model_, 0);
    Cbc_setParameter(model_, "seconds",
                     std::to_string(time_limit_seconds).c_str());
    Cbc_solve(model_);
    CbcPlan plan;
    plan.found = Cbc_bestSolution(model_) != nullptr;
    plan.optimal = Cbc_isProvenOptimal(model_) != 0 && plan.found;
    plan.feasible = Cbc_isProvenInfeasible(model_) == 0;
    if (plan.found) plan.seconds = Cbc_getObjValue(model_);
    return plan;
  }

 private:
  int AddColumn(double least, double most, double cost, bool whole) {
    Cbc_addCol(model_, "", least, most, cost, whole ? 1 : 0, 0, nullptr,
               nullptr);
    return num_columns_++;
  }

  double Bytes(int node) const {
    return static_cast<double>(problem_.nodes[node].bytes);
  }

  // What runs in each stage, what is kept into it: computations find their
  // inputs, and what is kept was there.
  void AddRuns() {
    for (int stage = 0; stage < num_nodes_; ++stage) {
      for (int node = 0; node <= stage; ++node) {
        runs_[stage][node] = AddColumn(node == stage ? 1 : 0, 1,
                                       problem_.nodes[node].seconds, true);
        if (node < stage) kept_[stage][node] = AddColumn(0, 1, 0, true);
      }
    }
    // At the end the outputs are.
    for (const int output : problem_.outputs) {
      kept_[num_nodes_][output] = AddColumn(1, 1, 0, true);
    }
    for (int stage = 0; stage <= num_nodes_; ++stage) {
      for (int node = 0; node < num_nodes_; ++node) {
        if (stage < num_nodes_ && runs_[stage][node] != kNoColumn) {
          for (const int input : problem_.nodes[node].inputs) {
            Terms terms;
            terms.Add(runs_[stage][node], 1);
            terms.Add(runs_[stage][input], -1);
            terms.Add(kept_[stage][input], -1);
            terms.AddRow(model_, 0);
          }
        }
        if (kept_[stage][node] != kNoColumn) {
          Terms terms;
          terms.Add(kept_[stage][node], 1);
          terms.Add(runs_[stage - 1][node], -1);
          terms.Add(kept_[stage - 1][node], -1);
          terms.AddRow(model_, 0);
        }
      }
    }
  }

  // Bytes after each node of a stage, before anything is freed.
  void AddMemory(int stage) {
    int before = kNoColumn;
    for (int node = 0; node <= stage; ++node) {
      const int used = AddColumn(0, budget_, 0, false);
      // used >= what was there + what is computed.
      Terms terms;
      terms.Add(used, -1);
      terms.Add(runs_[stage][node], Bytes(node));
      if (node == 0) {
        for (int value = 0; value < num_nodes_; ++value) {
          terms.Add(kept_[stage][value], Bytes(value));
        }
      } else {
        terms.Add(before, 1);
        for (const int freed : problem_.nodes[node - 1].inputs) {
          terms.Add(AddFree(stage, freed, node - 1), -Bytes(freed));
        }
        terms.Add(AddFree(stage, node - 1, node - 1), -Bytes(node - 1));
      }
      terms.AddRow(model_, 0);
      Terms workspace;
      workspace.Add(used, 1);
      workspace.Add(runs_[stage][node],
                    static_cast<double>(problem_.nodes[node].workspace_bytes));
      workspace.AddRow(model_, budget_);
      before = used;
    }
  }

  // 1 only if `node` runs in the stage, the value is not kept into the next one
  // and no later node of the stage reads it.
  int AddFree(int stage, int value, int node) {
    const int free = AddColumn(0, 1, 0, true);
    // hazards <= most * (1 - free), where hazards counts what speaks against.
    Terms terms;
    double most = 1;
    terms.Add(runs_[stage][node], -1);
    if (kept_[stage + 1][value] != kNoColumn) {
      terms.Add(kept_[stage + 1][value], 1);
      most += 1;
    }
    for (int reader = node + 1; reader <= stage; ++reader) {
      for (const int input : problem_.nodes[reader].inputs) {
        if (input != value) continue;
        terms.Add(runs_[stage][reader], 1);
        most += 1;
      }
    }
    terms.Add(free, most);
    terms.AddRow(model_, most - 1);
    return free;
  }

  const GraphProblem& problem_;
  const int num_nodes_;
  const double budget_;
  Cbc_Model* const model_;
  int num_columns_ = 0;
  std::vector<std::vector<int>> runs_;  // by stage and node
  std::vector<std::vector<int>> kept_;  // from the stage before
};

}  // namespace

CbcPlan SolveWithCbc(const GraphProblem& problem, int64_t budget_bytes,
                     double time_limit_seconds) {
  return Program(problem, budget_bytes).Solve(time_limit_seconds);
}

}  // namespace ebb
