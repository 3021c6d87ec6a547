// Where the cursor is, what is wanted there, and scripts for three shells.
#include "client/completion.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/commands/job_text.h"
#include "proto/field_rules.h"

namespace ebb {
namespace {

constexpr char kFiles[] = ":files";

// The rest of the line is written by its shell; what differs is how a shell
// asks for the words before the cursor and takes candidates.
constexpr char kBash[] = R"(# Completion of ebb for bash:
#   source <(ebb completion bash)
_ebb() {
  local -a words
  local line candidate current
  # The words as they were typed: bash itself would cut them at '=' and ':'.
  read -ra words <<< "${COMP_LINE:0:COMP_POINT}"
  [[ ${COMP_LINE:0:COMP_POINT} == *[[:space:]] ]] && words+=("")
  current="${words[-1]}"
  # Of a word that bash cut only the last piece is replaced.
  local cut="${current%"${current##*[=:]}"}"
  COMPREPLY=()
  while IFS= read -r line; do
    if [[ $line == :files ]]; then
      compopt -o filenames 2>/dev/null
      while IFS= read -r candidate; do
        COMPREPLY+=("$candidate")
      done < <(compgen -f -- "${current#"$cut"}")
      continue
    fi
    candidate="${line%%$'\t'*}"
    [[ $candidate == *= ]] && compopt -o nospace 2>/dev/null
    COMPREPLY+=("${candidate#"$cut"}")
  done < <("${words[0]/#\~/$HOME}" completion candidates "${words[@]:1}" 2>/dev/null)
}
complete -F _ebb ebb
)";

constexpr char kZsh[] = R"(#compdef ebb
# Completion of ebb for zsh: a file _ebb in a directory of $fpath, or
#   source <(ebb completion zsh)
_ebb() {
  local -a lines whole open
  local line word description
  lines=("${(@f)$(${~words[1]} completion candidates "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
  for line in "${lines[@]}"; do
    [[ -z $line ]] && continue
    if [[ $line == :files ]]; then
      # A field's value: the path begins behind '='.
      compset -P '*='
      _files
      continue
    fi
    word="${line%%$'\t'*}"
    description="${line#*$'\t'}"
    word="${word//:/\\:}"
    if [[ $word == *= ]]; then
      open+=("$word:$description")
    else
      whole+=("$word:$description")
    fi
  done
  (( $#whole )) && _describe -V ebb whole
  (( $#open )) && _describe -V ebb open -S ''
  return 0
}
if [[ $funcstack[1] == _ebb ]]; then
  _ebb "$@"
else
  compdef _ebb ebb
fi
)";

constexpr char kFish[] = R"(# Completion of ebb for fish:
#   ebb completion fish > ~/.config/fish/completions/ebb.fish
function __ebb_completion
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    set -l program $words[1]
    set -e words[1]
    $program completion candidates $words "$current" 2>/dev/null
end
function __ebb_wants_files
    __ebb_completion | string match -q ':files'
end
complete -c ebb -f -a '(__ebb_completion | string match -v ":files")'
complete -c ebb -n __ebb_wants_files -F
)";

const OptionDescription* FindOption(
    const std::vector<OptionDescription>& options, const std::string& name) {
  for (const OptionDescription& option : options) {
    if (!option.is_argument && option.name == name) return &option;
  }
  return nullptr;
}

// Fields of a spec as "model.layers=", or the values of the field that is
// written already.
// `prefix`: only fields of this section ("memory.").
Completion CompleteField(const std::string& current,
                         const std::string& prefix) {
  Completion completion;
  const size_t equals = current.find('=');
  VisitFields(
      v1::JobSpec::default_instance(), "",
      [&](const std::string& path, const google::protobuf::Message&,
          const google::protobuf::FieldDescriptor& field) {
        if (!absl::StartsWith(path, prefix)) return;
        if (equals == std::string::npos) {
          completion.candidates.push_back({absl::StrCat(path, "="), ""});
          return;
        }
        if (path != current.substr(0, equals)) return;
        std::vector<std::string> values;
        if (field.enum_type() != nullptr) {
          values = ChoiceWords(*field.enum_type());
        } else if (field.type() ==
                   google::protobuf::FieldDescriptor::TYPE_BOOL) {
          values = {"true", "false"};
        }
        completion.files = RuleOf(field).path();
        for (const std::string& value : values) {
          completion.candidates.push_back({absl::StrCat(path, "=", value), ""});
        }
      });
  return completion;
}

// What a value of this name may be.
Completion CompleteValue(
    const ProgramDescription& program, const std::string& value,
    const std::string& current,
    const std::function<std::vector<Candidate>()>& list_jobs) {
  Completion completion;
  const auto add = [&](const std::vector<std::string>& words) {
    for (const std::string& word : words) {
      completion.candidates.push_back({word, ""});
    }
  };
  if (value == "JOB") {
    completion.candidates = list_jobs();
  } else if (value == "SPEC" || value == "FILE" || value == "DIR") {
    completion.files = true;
  } else if (value == "FORMAT") {
    add({"table", "json", "jsonl"});
  } else if (value == "ACCOUNTING") {
    add({"paper"});
  } else if (value == "STATE") {
    add(StateWords());
  } else if (value == "SHELL") {
    add({"bash", "zsh", "fish"});
  } else if (value == "FIELD=VALUE") {
    completion = CompleteField(current, "");
  } else if (value == "memory.FIELD=VALUE") {
    completion = CompleteField(current, "memory.");
  } else if (value == "POLICY") {
    add(ChoiceWords(*v1::Policy_descriptor()));
  } else if (value == "TOPIC") {
    for (const CommandDescription& command : program.commands) {
      completion.candidates.push_back({command.name, command.description});
    }
    completion.candidates.push_back({"exit-codes", "What ebb ends with"});
  }
  return completion;
}

// What the words before the cursor say.
struct Place {
  const CommandDescription* command = nullptr;
  bool unknown_command = false;
  int num_arguments = 0;
  // Whose value the word at the cursor is; null: none's.
  const OptionDescription* option = nullptr;
};

Place FindPlace(const ProgramDescription& program,
                const std::vector<std::string>& words) {
  Place place;
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (place.option != nullptr) {
      place.option = nullptr;  // its value
    } else if (absl::StartsWith(word, "-") && word != "-") {
      if (place.command != nullptr) {
        place.option = FindOption(place.command->options, word);
      }
      if (place.option == nullptr) {
        place.option = FindOption(program.options, word);
      }
      if (place.option != nullptr && place.option->value.empty()) {
        place.option = nullptr;
      }
    } else if (place.command == nullptr && !place.unknown_command) {
      for (const CommandDescription& command : program.commands) {
        if (command.name == word) place.command = &command;
      }
      place.unknown_command = place.command == nullptr;
    } else {
      ++place.num_arguments;
    }
  }
  return place;
}

void AddOptions(const std::vector<OptionDescription>& options,
                Completion* completion) {
  for (const OptionDescription& option : options) {
    if (option.is_argument) continue;
    completion->candidates.push_back({option.name, option.description});
  }
}

Completion CompleteArgument(
    const ProgramDescription& program, const Place& place,
    const std::string& current,
    const std::function<std::vector<Candidate>()>& list_jobs) {
  int number = 0;
  for (const OptionDescription& option : place.command->options) {
    if (!option.is_argument) continue;
    if (option.repeated || number == place.num_arguments) {
      return CompleteValue(program, option.value, current, list_jobs);
    }
    ++number;
  }
  return {};
}

}  // namespace

Completion CompleteLine(
    const ProgramDescription& program, const std::vector<std::string>& words,
    const std::function<std::vector<Candidate>()>& list_jobs) {
  const std::string current = words.empty() ? "" : words.back();
  const Place place = FindPlace(program, words);
  Completion completion;
  if (place.option != nullptr) {
    completion =
        CompleteValue(program, place.option->value, current, list_jobs);
  } else if (absl::StartsWith(current, "-")) {
    if (place.command != nullptr) {
      AddOptions(place.command->options, &completion);
    }
    AddOptions(program.options, &completion);
  } else if (place.command != nullptr) {
    completion = CompleteArgument(program, place, current, list_jobs);
  } else if (!place.unknown_command) {
    for (const CommandDescription& command : program.commands) {
      completion.candidates.push_back({command.name, command.description});
    }
  }
  std::erase_if(completion.candidates, [&](const Candidate& candidate) {
    return !absl::StartsWith(candidate.word, current);
  });
  return completion;
}

std::string CompletionScript(const std::string& shell) {
  if (shell == "bash") return kBash;
  if (shell == "zsh") return kZsh;
  if (shell == "fish") return kFish;
  return "";
}

std::string PrintCompletion(const Completion& completion) {
  std::string text;
  for (const Candidate& candidate : completion.candidates) {
    absl::StrAppend(&text, candidate.word, "\t", candidate.description, "\n");
  }
  if (completion.files) absl::StrAppend(&text, kFiles, "\n");
  return text;
}

}  // namespace ebb
