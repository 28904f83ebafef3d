"""`skillwire completion`: print a script that completes commands, options and references in a shell.

The script contains the commands. For references it calls the program again,
which prints what was listed last in the folder and starts no server:
see `skillwire.cli.references`.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, TypeAlias

import typer

from skillwire.cli.app import COMMANDS, load_command
from skillwire.cli.command import Json, MisuseError, Verbose, command_output, new_app

# Completion scripts for bash, zsh and fish, generated from the commands.


Kind: TypeAlias = str
"""The kind of a word: `references`, `targets`, `files`, `nothing`, or the words to choose from."""

_KINDS: Final = {"REF": "references", "TARGET": "targets", "DIR": "files", "FILE": "files"}
_CHOICES: Final = {
    "cache ACTION": "list clear gc",
    "completion SHELL": "bash zsh fish",
    "token ACTION": "new list revoke",
}


@dataclass(frozen=True, slots=True)
class Option:
    flags: tuple[str, ...]
    kind: Kind | None
    """The kind of its value; None when it takes none."""
    help: str


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The options and arguments of one command; with `is_repeated` the last argument may be repeated."""

    name: str
    help: str
    options: tuple[Option, ...]
    arguments: tuple[Kind, ...]
    is_repeated: bool


def print_script(shell: str | None, *, json: bool, verbose: bool) -> None:
    """Print the completion script for a shell."""
    with command_output("completion", json=json, verbose=verbose) as output:
        if shell is None:
            raise MisuseError("no shell was named", fix="use bash, zsh or fish")
        script = script_for(shell)
        if json:
            output.document({"shell": str(shell), "script": script})
        else:
            typer.echo(script, nl=False)


def script_for(shell: str) -> str:
    """Return the completion script for a shell."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell]([_line_of(name) for name in COMMANDS])


def _line_of(name: str) -> CommandLine:
    options: list[Option] = []
    arguments: list[Kind] = []
    is_repeated = False
    command = load_command(name)
    inner: dict[str, Any] = getattr(command, "commands", {})
    if inner:
        # The commands of a group are completed like one, whose first argument is their name.
        arguments.append(" ".join(inner))
    parameters = {one.name: one for each in (command, *inner.values()) for one in each.params}
    for parameter in parameters.values():
        if getattr(parameter, "hidden", False):
            continue
        if parameter.param_type_name == "argument":
            arguments.append(_kind_of(name, parameter))
            is_repeated = parameter.nargs == -1
        else:
            flags = (*parameter.opts, *parameter.secondary_opts)
            kind = None if parameter.is_flag else _kind_of(name, parameter)
            options.append(Option(flags, kind, _words(parameter.help or "")))
    options.append(Option(("--help", "-h"), None, "Show the help."))
    return CommandLine(name, _words(COMMANDS[name]), tuple(options), tuple(arguments), is_repeated)


def _kind_of(name: str, parameter: Any) -> Kind:
    metavar = (parameter.metavar or "").strip("[].")
    return _KINDS.get(metavar) or _CHOICES.get(f"{name} {metavar}") or "nothing"


def _words(text: str) -> str:
    """Return the first sentence of a help text without characters that are special to a shell."""
    first = text.partition(". ")[0].rstrip(".").replace("\n", " ")
    return "".join(character for character in first if character not in "'\"`$\\[]:()!")


_BASH = """\
# Completes skillwire in bash. Made by: skillwire completion bash
_skillwire_lines() {{
    local line
    while IFS= read -r line; do
        [[ $line == "$cur"* ]] && COMPREPLY+=("$line")
    done
}}
_skillwire_offer() {{
    local word
    case $1 in
        references) _skillwire_lines < <(command "$program" completion --references="$cur" 2>/dev/null) ;;
        targets)
            _skillwire_lines < <(command "$program" completion --labels="$cur" 2>/dev/null)
            _skillwire_lines < <(compgen -d -- "$cur") ;;
        files) _skillwire_lines < <(compgen -f -- "$cur") ;;
        nothing) ;;
        *) for word in $1; do [[ $word == "$cur"* ]] && COMPREPLY+=("$word"); done ;;
    esac
}}
_skillwire() {{
    local program=$1 line=${{COMP_LINE:0:COMP_POINT}} cur="" before="" command="" kind="" count=0 word
    local -a words=()
    COMPREPLY=()
    # Not COMP_WORDS: bash splits those at colons, which references have.
    read -ra words <<< "$line"
    if [[ $line == *[![:space:]] ]]; then
        cur=${{words[${{#words[@]}}-1]}}
        unset "words[${{#words[@]}}-1]"
    fi
    for word in "${{words[@]:1}}"; do
        [[ $word == -- ]] && return
        if [[ -z $command ]]; then
            [[ $word == -* ]] || command=$word
        elif [[ $word != -* ]] && ! _skillwire_takes_value "$command" "$before"; then
            count=$((count + 1))
        fi
        before=$word
    done
    if [[ -z $command ]]; then
        _skillwire_offer "{commands} --help --version"
    elif _skillwire_takes_value "$command" "$before"; then
        _skillwire_offer "$kind"
    else
        case $command in
{cases}
        esac
    fi
    if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then
        local known=${{cur%"${{cur##*:}}"}} index
        for index in "${{!COMPREPLY[@]}}"; do COMPREPLY[index]=${{COMPREPLY[index]#"$known"}}; done
    fi
}}
_skillwire_takes_value() {{
    case "$1 $2" in
{values}
        *) return 1 ;;
    esac
}}
complete -o nosort -F _skillwire skillwire 2>/dev/null || complete -F _skillwire skillwire
"""


def _bash(lines: list[CommandLine]) -> str:
    cases: list[str] = []
    values: list[str] = []
    for line in lines:
        flags = " ".join(flag for option in line.options for flag in option.flags)
        cases.append(f"            {line.name})")
        cases.append(f'                if [[ $cur == -* ]]; then _skillwire_offer "{flags}"')
        for number, kind in enumerate(line.arguments):
            is_last = line.is_repeated and number == len(line.arguments) - 1
            test = f"((count {'>=' if is_last else '=='} {number}))"
            cases.append(f'                elif {test}; then _skillwire_offer "{kind}"')
        cases.append("                fi ;;")
        for option in line.options:
            if option.kind is not None:
                patterns = " | ".join(f'"{line.name} {flag}"' for flag in option.flags)
                values.append(f'        {patterns}) kind="{option.kind}" ;;')
    names = " ".join(line.name for line in lines)
    return _BASH.format(commands=names, cases="\n".join(cases), values="\n".join(values))


_ZSH = """\
#compdef skillwire
# Completes skillwire in zsh. Made by: skillwire completion zsh
_skillwire_references() {{
    local -a found
    found=("${{(@f)$(command skillwire completion --references="$PREFIX" 2>/dev/null)}}")
    compadd -- ${{found:#}}
}}
_skillwire_targets() {{
    local -a found
    found=("${{(@f)$(command skillwire completion --labels="$PREFIX" 2>/dev/null)}}")
    compadd -- ${{found:#}}
    _files -/
}}
_skillwire() {{
    local curcontext=$curcontext state line
    typeset -A opt_args
    _arguments -C '--help[Show the help]' '--version[Print the version]' \\
        '1:command:->command' '*::argument:->rest'
    case $state in
        command)
            local -a commands
            commands=(
{commands}
            )
            _describe command commands ;;
        rest)
            case $line[1] in
{cases}
            esac ;;
    esac
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _skillwire "$@"
else
    compdef _skillwire skillwire
fi
"""


def _zsh(lines: list[CommandLine]) -> str:
    commands = [f"                '{line.name}:{line.help}'" for line in lines]
    cases: list[str] = []
    for line in lines:
        words = [word for option in line.options for word in _zsh_option(option)]
        for number, kind in enumerate(line.arguments):
            is_last = line.is_repeated and number == len(line.arguments) - 1
            words.append(f"'{'*' if is_last else number + 1}:argument:{_zsh_action(kind)}'")
        cases.append(f"                {line.name}) _arguments {' '.join(words)} ;;")
    return _ZSH.format(commands="\n".join(commands), cases="\n".join(cases))


def _zsh_option(option: Option) -> list[str]:
    value = "" if option.kind is None else f":value:{_zsh_action(option.kind)}"
    return [f"'*{flag}[{option.help}]{value}'" for flag in option.flags]


def _zsh_action(kind: Kind) -> str:
    known = {"references": "_skillwire_references", "targets": "_skillwire_targets", "files": "_files"}
    return " " if kind == "nothing" else known.get(kind) or f"({kind})"


_FISH = """\
# Completes skillwire in fish. Made by: skillwire completion fish
function __skillwire_argument
    set -l words (commandline -opc)
    set -e words[1]
    set -l count 0
    for word in $words
        string match -q -- '-*' $word; or set count (math $count + 1)
    end
    test $count -eq $argv[1]; or begin; test (count $argv) -gt 1; and test $count -ge $argv[1]; end
end
function __skillwire_references
    command skillwire completion --references=(commandline -ct) 2>/dev/null
end
function __skillwire_targets
    command skillwire completion --labels=(commandline -ct) 2>/dev/null
    __fish_complete_directories (commandline -ct)
end
complete -c skillwire -f
complete -c skillwire -n __fish_use_subcommand -l help -d 'Show the help'
complete -c skillwire -n __fish_use_subcommand -l version -d 'Print the version'
{lines}
"""


def _fish(lines: list[CommandLine]) -> str:
    words: list[str] = []
    for line in lines:
        words.append(f"complete -c skillwire -n __fish_use_subcommand -a {line.name} -d '{line.help}'")
        seen = f"-n '__fish_seen_subcommand_from {line.name}'"
        for option in line.options:
            flags = " ".join(
                f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags
            )
            value = "" if option.kind is None else f" -r{_fish_action(option.kind) or ' -f'}"
            words.append(f"complete -c skillwire {seen} {flags}{value} -d '{option.help}'")
        for number, kind in enumerate(line.arguments):
            more = " more" if line.is_repeated and number == len(line.arguments) - 1 else ""
            here = f"__skillwire_argument {number + 1}{more}"
            condition = f"-n '__fish_seen_subcommand_from {line.name}; and {here}'"
            if kind != "nothing":
                words.append(f"complete -c skillwire {condition}{_fish_action(kind)}")
    return _FISH.format(lines="\n".join(words))


def _fish_action(kind: Kind) -> str:
    if kind == "nothing":
        return ""
    if kind == "files":
        return " -F"
    known = {"references": "(__skillwire_references)", "targets": "(__skillwire_targets)"}
    return f" -a '{known.get(kind, kind)}'"


app = new_app()


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


@app.command()
def completion(
    shell: Annotated[
        Shell | None, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", show_default=False)
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Print a script that completes commands and references.

    For bash: skillwire completion bash > ~/.local/share/bash-completion/completions/skillwire

    For zsh: skillwire completion zsh > a file called _skillwire in a folder of $fpath

    For fish: skillwire completion fish > ~/.config/fish/completions/skillwire.fish

    References are those that `skillwire list` last showed in a folder.
    Completing them starts no server.
    """
    print_script(shell, json=json, verbose=verbose)
