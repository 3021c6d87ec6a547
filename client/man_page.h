// Manual pages: a template of prose (client/man/) whose places are filled from
// what the programs really take, so that neither drifts from the other. Pure.
#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "client/command_description.h"
#include "google/protobuf/descriptor.h"

namespace ebb {

// Text as roff takes it: nothing in it is a command.
std::string RoffText(absl::string_view text);

// Replaces every @NAME@ of the template by its text.
// REQUIRES: every such place of the template is among the texts.
std::string FillTemplate(absl::string_view page,
                         const std::map<std::string, std::string>& texts);

// The options that every command takes, and a section a command.
std::string OptionsRoff(const std::vector<OptionDescription>& options);
std::string CommandsRoff(const ProgramDescription& program);

// The options of a program from the text of its --help (CLI11's).
std::vector<OptionDescription> ParseHelp(absl::string_view help);

// A section for each message of the spec and an entry for each field: its
// comment, and what it may be. `commented`: holds ebb.v1.JobSpec with comments,
// which the program's own descriptors have lost.
std::string FieldsRoff(const google::protobuf::DescriptorPool& commented);

// Every line as it is.
std::string LiteralRoff(absl::string_view text);

}  // namespace ebb
