// See environment.h.
#include "client/environment.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>

#include "absl/strings/str_cat.h"

extern char** environ;

namespace ebb {
namespace {

int TerminalColumns() {
  winsize size{};
  for (const int descriptor : {STDERR_FILENO, STDOUT_FILENO}) {
    if (ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
      return size.ws_col;
    }
  }
  return 80;
}

}  // namespace

std::string Environment::Variable(absl::string_view name) const {
  const auto it = variables.find(std::string(name));
  return it == variables.end() ? "" : it->second;
}

bool Environment::CanRedraw() const {
  return err_is_terminal && Variable("TERM") != "dumb";
}

bool Environment::CanColor() const {
  const std::string force = Variable("CLICOLOR_FORCE");
  if (!Variable("NO_COLOR").empty()) return false;
  if (!force.empty() && force != "0") return true;
  return out_is_terminal && Variable("TERM") != "dumb";
}

std::string Environment::AbsolutePath(absl::string_view path) const {
  if (!path.empty() && path[0] == '/') return std::string(path);
  return std::filesystem::path(absl::StrCat(working_directory, "/", path))
      .lexically_normal()
      .string();
}

Environment SystemEnvironment() {
  Environment environment;
  environment.in = &std::cin;
  environment.out = &std::cout;
  environment.err = &std::cerr;
  environment.out_is_terminal = isatty(STDOUT_FILENO) != 0;
  environment.err_is_terminal = isatty(STDERR_FILENO) != 0;
  environment.columns = TerminalColumns;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const absl::string_view text = *entry;
    const size_t equals = text.find('=');
    if (equals == absl::string_view::npos) continue;
    environment.variables.emplace(text.substr(0, equals),
                                  text.substr(equals + 1));
  }
  std::error_code ignored;
  environment.working_directory =
      std::filesystem::current_path(ignored).string();
  environment.program_directory =
      std::filesystem::read_symlink("/proc/self/exe", ignored)
          .parent_path()
          .string();
  environment.zone = absl::LocalTimeZone();
  return environment;
}

}  // namespace ebb
