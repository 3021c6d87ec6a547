// `ebb`: people's way to the coordinator.
#include <cstdlib>
#include <string>
#include <vector>

#include "client/command_line.h"
#include "client/environment.h"

int main(int argc, char** argv) {
  // gRPC's own log lines are for its developers; errors come as statuses.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  ebb::Environment environment = ebb::SystemEnvironment();
  return ebb::RunEbb(std::vector<std::string>(argv + 1, argv + argc),
                     environment);
}
