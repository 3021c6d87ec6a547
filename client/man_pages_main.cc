// Writes the manual pages when the tree is built:
//   ebb_man_pages ebb TEMPLATE OUT
//   ebb_man_pages spec TEMPLATE OUT DESCRIPTOR_SET   (of spec.proto, comments
//                                                     in it)
//   ebb_man_pages program TEMPLATE OUT PROGRAM       (asked for its --help)
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>

#include "client/command_line.h"
#include "client/exit_code.h"
#include "client/man_page.h"
#include "client/version.h"
#include "google/protobuf/descriptor.pb.h"

namespace ebb {
namespace {

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// What a program prints.
std::string Ask(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  std::string text;
  if (pipe == nullptr) return text;
  char block[4096];
  while (const size_t n = std::fread(block, 1, sizeof(block), pipe)) {
    text.append(block, n);
  }
  return pclose(pipe) == 0 ? text : "";
}

std::string SpecFields(const std::string& descriptor_set) {
  google::protobuf::FileDescriptorSet files;
  if (!files.ParseFromString(ReadFile(descriptor_set))) return "";
  google::protobuf::DescriptorPool pool;
  for (const auto& file : files.file()) pool.BuildFile(file);
  return FieldsRoff(pool);
}

int Main(int argc, char** argv) {
  const std::string kind = argc > 1 ? argv[1] : "";
  if (argc != (kind == "ebb" ? 4 : 5)) {
    std::cerr << "usage: ebb_man_pages ebb|spec|program TEMPLATE OUT "
                 "[DESCRIPTOR_SET|PROGRAM]\n";
    return 2;
  }
  std::map<std::string, std::string> texts = {{"VERSION", kVersion}};
  std::string made;
  if (kind == "ebb") {
    const ProgramDescription program = DescribeProgram();
    texts["OPTIONS"] = OptionsRoff(program.options);
    made = texts["COMMANDS"] = CommandsRoff(program);
    texts["EXIT_CODES"] = LiteralRoff(ExitCodeHelp());
  } else if (kind == "spec") {
    made = texts["FIELDS"] = SpecFields(argv[4]);
  } else if (kind == "program") {
    made = texts["OPTIONS"] =
        OptionsRoff(ParseHelp(Ask(std::string(argv[4]) + " --help")));
  }
  const std::string page = ReadFile(argv[2]);
  if (made.empty() || page.empty()) {
    std::cerr << "ebb_man_pages: nothing to write into " << argv[3] << "\n";
    return 1;
  }
  std::ofstream out(argv[3], std::ios::binary);
  out << FillTemplate(page, texts);
  return out.flush() ? 0 : 1;
}

}  // namespace
}  // namespace ebb

int main(int argc, char** argv) { return ebb::Main(argc, argv); }
