// See command_line.h.
#include "client/command_line.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/output.h"
#include "client/version.h"
#include "proto/name_suggestion.h"
#include "proto/utf8.h"
#include "proto/violations.h"

namespace ebb {
namespace {

// Designed, not built: named, so that nobody looks for a typing mistake.
constexpr const char* kCommandsNotBuilt[] = {"resume"};

// Columns of a table that is still one.
constexpr int kMaxComparedJobs = 16;
// The coordinator takes no more.
constexpr int kMaxSampleTokens = 65536;

// Everything that a command line can say.
struct ParsedLine {
  std::string output = "table";
  std::string server;
  PlanOptions plan;
  SubmitOptions submit;
  ListOptions list;
  StepsOptions steps;
  LogsOptions logs;
  ExportOptions export_job;
  SampleOptions sample;
  PolicyOptions policy;
  std::vector<std::string> jobs;  // of compare
  // Of the commands that name one job.
  std::string job;
  bool now = false;
  bool cancel = false;
  std::string topic;
  std::string shell;
};

using Command =
    std::function<absl::StatusOr<int>(const CommandContext&, ParsedLine&)>;

// The parser and the command that it found.
struct Parser {
  CLI::App app{"Ebb trains transformers within a memory budget.", "ebb"};
  ParsedLine line;
  Command command;
};

std::vector<std::string> CommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

// Null if there is no such command.
const CLI::App* FindCommand(const CLI::App& app, const std::string& name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

CLI::App* AddCommand(Parser* parser, const char* name, const char* description,
                     Command command) {
  CLI::App* const app = parser->app.add_subcommand(name, description);
  app->fallthrough();
  app->callback(
      [parser, command = std::move(command)] { parser->command = command; });
  return app;
}

// What goes to the coordinator as text must be UTF-8.
const CLI::Validator& Utf8() {
  static const CLI::Validator validator(
      [](const std::string& text) {
        return FindInvalidUtf8(text) == absl::string_view::npos
                   ? std::string()
                   : std::string("must be UTF-8 text");
      },
      "");
  return validator;
}

// An option that is given is not taken as left out.
const CLI::Validator& NotEmpty() {
  static const CLI::Validator validator(
      [](const std::string& text) {
        return text.empty() ? std::string("must not be empty") : std::string();
      },
      "");
  return validator;
}

void AddJob(CLI::App* command, std::string* job) {
  command->add_option("JOB", *job, "The job's id, as submit prints it")
      ->required()
      ->check(Utf8());
}

CLI::Option* AddSpec(CLI::App* command, std::string* spec,
                     std::vector<std::string>* sets) {
  CLI::Option* const option = command->add_option(
      "SPEC", *spec, "A job spec's file; -: standard input");
  command
      ->add_option("--set", *sets,
                   "Sets a field over the spec's: optimizer.lr=1e-4")
      ->type_name("FIELD=VALUE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  return option;
}

// Of `ebb plan`: any graph instead of a job.
void AddGraphOptions(CLI::App* command, GraphOptions* options) {
  command
      ->add_option("--graph", options->graph,
                   "Schedules a computation graph instead: its JSON file")
      ->type_name("FILE");
  command
      ->add_option("--budget", options->budget,
                   "Of --graph: bytes that may be resident, as in 2GiB")
      ->type_name("SIZE");
  command
      ->add_option("--time-limit", options->time_limit,
                   "Of --graph: how long to search, up to 1h (60s)")
      ->type_name("DURATION");
  command
      ->add_option("--check", options->check,
                   "Replays a schedule, as --graph --output json prints it")
      ->type_name("FILE");
}

void AddPolicyOptions(CLI::App* command, PolicyOptions* options) {
  command
      ->add_option("POLICY", options->policy,
                   "none, selective, cheap, full, ...: see memory.policy")
      ->required()
      ->check(Utf8());
  command
      ->add_option("--budget", options->budget,
                   "Device memory of a rank, as in 2GiB (as before)")
      ->type_name("SIZE");
  command
      ->add_option("--set", options->sets,
                   "Sets a field of memory: memory.group=2")
      ->type_name("memory.FIELD=VALUE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  CLI::Option* const at_step =
      command
          ->add_option("--at-step", options->at_step,
                       "First step under it (the next one)")
          ->type_name("N")
          ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
  command
      ->add_flag("--next-run", options->next_run,
                 "From the next attempt on; what trains now goes on as it is")
      ->excludes(at_step);
}

CLI::Option* AddNumber(CLI::App* command, const char* name, int* number,
                       const char* description) {
  return command->add_option(name, *number, description)
      ->type_name("N")
      ->check(CLI::Range(0, std::numeric_limits<int>::max()));
}

void AddSampleOptions(CLI::App* command, SampleOptions* options) {
  command
      ->add_option("--prompt", options->prompt,
                   "Text to go on from (a model of text); empty: a new file "
                   "begins")
      ->type_name("TEXT");
  command
      ->add_option("--prompt-tokens", options->prompt_tokens,
                   "Token ids to go on from: 1,2,3 (any model)")
      ->type_name("IDS");
  command->add_option("--tokens", options->tokens, "Tokens to make (100)")
      ->type_name("N")
      ->check(CLI::Range(1, kMaxSampleTokens));
  command
      ->add_option("--temperature", options->temperature,
                   "Divides the logits (1); 0: always the likeliest token")
      ->type_name("T");
  command
      ->add_option("--top-k", options->top_k,
                   "Considers the K likeliest tokens alone (0: all)")
      ->type_name("K")
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--seed", options->seed, "Equal seeds give equal tokens (0)")
      ->type_name("S");
  command
      ->add_option("--step", options->step,
                   "Of the checkpoint of this step (the newest)")
      ->type_name("N")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
}

void AddCommands(Parser* parser) {
  ParsedLine& line = parser->line;
  CLI::App& app = parser->app;
  app.require_subcommand(1);
  app.footer("`ebb help exit-codes` lists the exit codes.");
  app.add_option("--output", line.output, "table, json or jsonl")
      ->type_name("FORMAT");
  app.add_option("--server", line.server,
                 "unix:PATH of a coordinator's socket (else $EBB_SERVER, else "
                 "the local coordinator, started if none runs)")
      ->type_name("ADDRESS");

  CLI::App* command =
      AddCommand(parser, "plan",
                 "Shows what a job or a graph would take, and changes nothing",
                 [](const auto& context, auto& line) {
                   return RunPlan(context, line.plan);
                 });
  AddSpec(command, &line.plan.spec, &line.plan.sets);
  CLI::Option* const dump =
      command->add_flag("--dump", line.plan.dump, "Prints a rank's program");
  AddNumber(command, "--rank", &line.plan.rank, "The rank of --dump")
      ->needs(dump);
  command->add_flag("--profile", line.plan.profile,
                    "First measures what the job's ops take on this machine");
  command
      ->add_option("--accounting", line.plan.accounting,
                   "paper: also what Korthikanti et al. 2022 would count")
      ->type_name("ACCOUNTING")
      ->check(NotEmpty());
  command
      ->add_option("--svg", line.plan.svg,
                   "Draws the memory of a step into this file; -: standard "
                   "output, instead of the plan")
      ->type_name("FILE")
      ->check(NotEmpty());
  AddGraphOptions(command, &line.plan.graph);

  command = AddCommand(parser, "submit", "Makes a job and prints its id",
                       [](const auto& context, auto& line) {
                         return RunSubmit(context, line.submit);
                       });
  AddSpec(command, &line.submit.spec, &line.submit.sets)->required();
  command->add_flag("--watch", line.submit.watch,
                    "Follows the job to its end with a live display");
  command->add_flag("--wait", line.submit.wait,
                    "Waits for the job's end in silence");
  command
      ->add_option("--request-id", line.submit.request_id,
                   "Repeating a submit with the same id makes one job")
      ->type_name("ID")
      ->check(Utf8());

  command = AddCommand(parser, "list", "Lists jobs, newest first",
                       [](const auto& context, auto& line) {
                         return RunList(context, line.list);
                       });
  command
      ->add_option("--state", line.list.states,
                   "Only jobs in this state: queued, running, ...")
      ->type_name("STATE")
      ->expected(1)
      ->take_all()
      ->allow_extra_args(false);
  command->add_flag("--all", line.list.all, "Older jobs, too");

  command = AddCommand(parser, "get",
                       "Shows one job; as json with its effective spec",
                       [](const auto& context, auto& line) {
                         return RunGet(context, line.job);
                       });
  AddJob(command, &line.job);

  command = AddCommand(parser, "describe", "Tells all about one job",
                       [](const auto& context, auto& line) {
                         return RunDescribe(context, line.job);
                       });
  AddJob(command, &line.job);

  command = AddCommand(parser, "watch",
                       "Follows a job to its end with a live display",
                       [](const auto& context, auto& line) {
                         return RunWatch(context, line.job);
                       });
  AddJob(command, &line.job);

  command = AddCommand(parser, "steps", "Shows what every step did",
                       [](const auto& context, auto& line) {
                         return RunSteps(context, line.steps);
                       });
  AddJob(command, &line.steps.job);
  command->add_flag("--follow", line.steps.follow,
                    "Goes on with live steps until the job ends");

  command = AddCommand(parser, "logs", "Shows what a rank said",
                       [](const auto& context, auto& line) {
                         return RunLogs(context, line.logs);
                       });
  AddJob(command, &line.logs.job);
  AddNumber(command, "--rank", &line.logs.rank, "Of this rank (0)");
  command->add_flag("--follow", line.logs.follow, "Goes on until the job ends");
  AddNumber(command, "--tail", &line.logs.tail, "The last N lines only");

  command = AddCommand(parser, "export",
                       "Writes a job's checkpoint as Hugging Face files",
                       [](const auto& context, auto& line) {
                         return RunExport(context, line.export_job);
                       });
  AddJob(command, &line.export_job.job);
  command
      ->add_option("DIR", line.export_job.directory,
                   "Directory to write; must not exist, or be empty")
      ->required()
      ->check(Utf8());
  command
      ->add_option("--step", line.export_job.step,
                   "Of this checkpoint (the newest)")
      ->type_name("N")
      ->check(CLI::PositiveNumber);
  command
      ->add_option("--shard-size", line.export_job.shard_size,
                   "Largest file of weights, as in 2GiB (5 GB)")
      ->type_name("SIZE");

  command = AddCommand(parser, "compare",
                       "Shows jobs side by side: memory, FLOPs, speed, losses",
                       [](const auto& context, auto& line) {
                         return RunCompare(context, line.jobs);
                       });
  command->add_option("JOB", line.jobs, "The jobs' ids, as submit prints them")
      ->required()
      ->expected(1, kMaxComparedJobs)
      ->check(Utf8());

  command = AddCommand(parser, "sample",
                       "Makes text with the weights of a job's checkpoint",
                       [](const auto& context, auto& line) {
                         return RunSample(context, line.sample);
                       });
  AddJob(command, &line.sample.job);
  AddSampleOptions(command, &line.sample);

  command = AddCommand(parser, "policy",
                       "Switches the policy or budget of a job that lives",
                       [](const auto& context, auto& line) {
                         return RunPolicy(context, line.policy);
                       });
  AddJob(command, &line.policy.job);
  AddPolicyOptions(command, &line.policy);

  command = AddCommand(parser, "cancel", "Asks a job to end",
                       [](const auto& context, auto& line) {
                         return RunCancel(context, line.job, line.now);
                       });
  AddJob(command, &line.job);
  command->add_flag(
      "--now", line.now,
      "Kills its processes instead of waiting for the step's end");

  command =
      AddCommand(parser, "stop", "Ends the local coordinator; jobs train on",
                 [](const auto& context, auto& line) {
                   return RunStop(context, line.cancel);
                 });
  command->add_flag("--cancel", line.cancel, "Cancels all jobs first");

  command = AddCommand(parser, "delete",
                       "Removes a job that has ended, and its directory",
                       [](const auto& context, auto& line) {
                         return RunDelete(context, line.job);
                       });
  AddJob(command, &line.job);

  command = AddCommand(parser, "completion",
                       "Prints a shell's script that completes command lines",
                       [](const auto& context, auto& line) {
                         return RunCompletion(context, line.shell);
                       });
  command->add_option("SHELL", line.shell, "bash, zsh or fish")->required();

  AddCommand(parser, "doctor", "Looks for what could be in the way",
             [](const auto& context, auto&) { return RunDoctor(context); });
  AddCommand(parser, "version", "Prints the version",
             [](const auto& context, auto&) { return RunVersion(context); });

  command = AddCommand(parser, "help", "Explains a command, or exit-codes",
                       [parser](const CommandContext& context,
                                ParsedLine& line) -> absl::StatusOr<int> {
                         std::ostream& out = *context.environment.out;
                         if (line.topic.empty()) {
                           // Of another parser: this one would explain its own
                           // command.
                           Parser whole;
                           AddCommands(&whole);
                           out << whole.app.help();
                           return kExitOk;
                         }
                         if (line.topic == "exit-codes") {
                           out << ExitCodeHelp();
                           return kExitOk;
                         }
                         const CLI::App* topic =
                             FindCommand(parser->app, line.topic);
                         if (topic == nullptr) {
                           return absl::InvalidArgumentError(
                               absl::StrCat("no help on ", OneLine(line.topic),
                                            ": name a command or exit-codes"));
                         }
                         out << topic->help("ebb");
                         return kExitOk;
                       });
  command->add_option("TOPIC", line.topic, "A command, or exit-codes");
}

// The format for errors that come before the line is understood.
OutputFormat ErrorFormat(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    absl::string_view value;
    if (absl::StartsWith(arguments[i], "--output=")) {
      value = absl::string_view(arguments[i]).substr(9);
    } else if (arguments[i] == "--output" && i + 1 < arguments.size()) {
      value = arguments[i + 1];
    }
    const absl::StatusOr<OutputFormat> format = ParseOutputFormat(value);
    if (format.ok()) return *format;
  }
  return OutputFormat::kTable;
}

// The first argument that is no option and no option's value: the command.
std::string CommandWord(const std::vector<std::string>& arguments) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i] == "--output" || arguments[i] == "--server") {
      ++i;
    } else if (!absl::StartsWith(arguments[i], "-")) {
      return arguments[i];
    }
  }
  return "";
}

// Refuses what is designed but not built, and names that are no command.
absl::Status CheckCommandWord(const std::vector<std::string>& arguments,
                              const CLI::App& app) {
  const std::string word = CommandWord(arguments);
  if (word.empty()) return absl::OkStatus();
  if (std::find(std::begin(kCommandsNotBuilt), std::end(kCommandsNotBuilt),
                word) != std::end(kCommandsNotBuilt)) {
    return absl::UnimplementedError(
        absl::StrCat("the command ", word, " is not built yet"));
  }
  const std::vector<std::string> names = CommandNames(app);
  if (std::find(names.begin(), names.end(), word) != names.end()) {
    return absl::OkStatus();
  }
  const std::string nearest = NearestName(word, names);
  return absl::InvalidArgumentError(absl::StrCat(
      "no such command: ", OneLine(word), "; ",
      nearest.empty() ? "`ebb help` lists the commands"
                      : absl::StrCat("did you mean ", nearest, "?")));
}

// The parser's complaint with the nearest option's name.
absl::Status UsageError(const CLI::ParseError& error,
                        const std::vector<std::string>& arguments,
                        const Parser& parser) {
  const CLI::App* const command =
      FindCommand(parser.app, CommandWord(arguments));
  std::string hint = "`ebb help` lists the commands";
  if (command != nullptr) {
    hint = absl::StrCat("see `ebb help ", command->get_name(), "`");
    std::vector<std::string> names;
    for (const CLI::App* app : {command, &parser.app}) {
      for (const CLI::Option* option : app->get_options()) {
        for (const std::string& name : option->get_lnames()) {
          names.push_back(absl::StrCat("--", name));
        }
      }
    }
    for (const std::string& argument : arguments) {
      const std::string name = argument.substr(0, argument.find('='));
      if (!absl::StartsWith(name, "--") || name == "--" ||
          std::find(names.begin(), names.end(), name) != names.end()) {
        continue;
      }
      const std::string nearest = NearestName(name, names);
      if (!nearest.empty()) {
        hint = absl::StrCat("did you mean ", nearest, "?");
      }
      break;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(OneLine(error.what(), 1000), "; ", hint));
}

}  // namespace

int RunEbb(const std::vector<std::string>& arguments, Environment& environment,
           const CallTiming& timing) {
  const auto fail = [&](const absl::Status& status) {
    environment.out->flush();
    PrintError(status, ErrorFormat(arguments), *environment.err);
    return static_cast<int>(ExitCodeOf(status.code()));
  };
  Parser parser;
  AddCommands(&parser);
  if (arguments.empty()) {
    *environment.err << parser.app.help();
    return kExitUsage;
  }
  if (arguments[0] == "--version") {
    *environment.out << "ebb " << kVersion << "\n";
    return kExitOk;
  }
  if (arguments.size() > 1 && arguments[0] == "completion" &&
      arguments[1] == "candidates") {
    // A line that is being written: not for the parser.
    return RunCandidates({environment, OutputFormat::kTable, "", timing},
                         DescribeProgram(),
                         {arguments.begin() + 2, arguments.end()});
  }
  if (absl::Status status = CheckCommandWord(arguments, parser.app);
      !status.ok()) {
    return fail(status);
  }
  try {
    parser.app.parse(
        std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::CallForHelp&) {
    *environment.out << parser.app.help();
    return kExitOk;
  } catch (const CLI::ParseError& error) {
    return fail(UsageError(error, arguments, parser));
  }
  const absl::StatusOr<OutputFormat> output =
      ParseOutputFormat(parser.line.output);
  if (!output.ok()) return fail(output.status());
  const CommandContext context{environment, *output, parser.line.server,
                               timing};
  const absl::StatusOr<int> exit_code = parser.command(context, parser.line);
  environment.out->flush();
  if (exit_code.ok() && !environment.out->good()) {
    return fail(absl::InternalError("cannot write the output"));
  }
  return exit_code.ok() ? *exit_code : fail(exit_code.status());
}

namespace {

std::vector<OptionDescription> DescribeOptions(const CLI::App& app) {
  std::vector<OptionDescription> arguments;
  std::vector<OptionDescription> options;
  for (const CLI::Option* option : app.get_options()) {
    OptionDescription description;
    description.name = option->get_name();
    description.description = option->get_description();
    description.is_argument = option->get_positional();
    description.required = option->get_required();
    description.repeated =
        option->get_items_expected_max() > 1 ||
        option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
    if (description.is_argument) {
      description.value = description.name;
      arguments.push_back(std::move(description));
      continue;
    }
    // A flag takes no items.
    if (option->get_items_expected_max() > 0) {
      description.value = option->get_type_name();
    }
    options.push_back(std::move(description));
  }
  arguments.insert(arguments.end(), options.begin(), options.end());
  return arguments;
}

}  // namespace

ProgramDescription DescribeProgram() {
  Parser parser;
  AddCommands(&parser);
  ProgramDescription program;
  program.description = parser.app.get_description();
  program.options = DescribeOptions(parser.app);
  std::erase_if(program.options, [](const OptionDescription& option) {
    return option.name == "--help";  // every command has it
  });
  for (const CLI::App* command : parser.app.get_subcommands({})) {
    program.commands.push_back({command->get_name(), command->get_description(),
                                DescribeOptions(*command)});
  }
  return program;
}

std::string CommandSurface() {
  Parser parser;
  AddCommands(&parser);
  const auto words = [](const CLI::App& app) {
    std::string text;
    for (const CLI::Option* option : app.get_options()) {
      absl::StrAppend(&text, " ", option->get_name());
    }
    return text;
  };
  std::string text = absl::StrCat("ebb", words(parser.app), "\n");
  for (const CLI::App* command : parser.app.get_subcommands({})) {
    absl::StrAppend(&text, command->get_name(), words(*command), "\n");
  }
  return text;
}

}  // namespace ebb
