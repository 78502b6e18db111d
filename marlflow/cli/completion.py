"""Tab completion: marlflow completes the name of the command, and Hydra everything after it.

eval "$(marlflow --shell-completion install=bash)"        in bash; zsh likewise
marlflow --shell-completion install=fish | source         in fish

Bash uses Hydra's own script. The scripts of zsh and fish call `marlflow -sc query=fish`, which prints one completion
per line, and offer files if there are none.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.arguments import COMMANDS, DECLARED
from marlflow.config.comments import names

SHELLS: Final = ("bash", "zsh", "fish")

_ZSH = """\
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_marlflow() {
    local -a found
    found=("${(@f)$(COMP_LINE="${(j: :)words[1,CURRENT]}" "$words[1]" -sc query=fish 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then
        compadd -Q -S '' -- $found
    else
        _files
    fi
}
compdef _marlflow marlflow
"""
_FISH = """\
function __marlflow_complete
    set -lx COMP_LINE (commandline -cp)
    set -l program (commandline -cpo)[1]
    set -l found ($program -sc query=fish 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c marlflow -e
complete -c marlflow -f -a '(__marlflow_complete)'
"""
SCRIPTS: Final[Mapping[str, str]] = {
    "install=zsh": _ZSH,
    "install=fish": _FISH,
    "uninstall=zsh": "compdef -d marlflow\nunfunction _marlflow\n",
    "uninstall=fish": "complete -c marlflow -e\nfunctions -e __marlflow_complete\n",
}
"""The output of `marlflow --shell-completion <key>`."""


def complete(words: Sequence[str]) -> int:
    """Install completion, remove it, or print the completions of COMP_LINE; return 0."""
    request = words[1] if len(words) > 1 else ""
    if request in SCRIPTS:
        print(SCRIPTS[request], end="")
        return 0
    if request.partition("=")[2] not in SHELLS:
        raise ConfigInvalid([f"{words[0]} needs a shell: install=bash, install=zsh or install=fish, not {request!r}"])
    if not (request.startswith("query=") and _answered(request)):
        from marlflow.config.compose import hand_to_hydra

        hand_to_hydra(words, lambda _: None)
    return 0


def _answered(request: str) -> bool:
    """Print the completions that Hydra does not know, and return whether there is nothing left for it to do."""
    line, between = os.environ.get("COMP_LINE", ""), " " if request.endswith("=bash") else "\n"
    typed = line.split()
    if len(typed) < 2 or (len(typed) == 2 and not line.endswith(" ")):
        print(between.join(command for command in COMMANDS if command.startswith("".join(typed[1:]))))
        return True
    rest = typed[2:]
    if typed[1] in DECLARED:
        # Directories and files are the shell's.
        print(*_options(typed[1], rest, "" if line.endswith(" ") else rest[-1], between), end="")
        return True
    if typed[1] == "resume":
        if len(rest) < 2 and not line.endswith(" "):
            return True  # the run's directory, which the shell knows
        rest = rest[1:]
    if typed[1] == "check-env":
        named = [word for word in rest if _names_env(word)][:1]
        if named == rest[-1:] and not line.endswith(" "):
            print(between.join(name for name in names("env") if name.startswith(named[0])))
            return True
        # To Hydra, an environment is an override.
        rest = [f"env={word}" if word in named else word for word in rest]
    # Hydra knows the choices of a package only once the package exists.
    if not line.endswith(" ") and (chosen := re.fullmatch(r"(\+?(policy|learner)@[^=]+=)(\w*)", rest[-1])):
        print(between.join(f"{chosen[1]}{name}" for name in names(chosen[2]) if name.startswith(chosen[3])))
        return True
    # Hydra completes overrides of a program without commands, so the command is removed from the line.
    os.environ["COMP_LINE"] = " ".join([typed[0], *_to_hydra_overrides(rest, line)])
    return False


def _options(command: str, typed: Sequence[str], under_way: str, between: str) -> Iterator[str]:
    """Yield the line with the options of a command that begin as the word that is being typed, if there are any."""
    from marlflow.cli.options import declared

    given = {word.partition("=")[0].removeprefix("--").replace("-", "_") for word in typed if word != under_way}
    names = [option.name for option in declared(command).options if option.name not in given]
    dashed = [f"--{name.replace('_', '-')}" for name in names]
    written = dashed if under_way.startswith("-") else [f"{name}=" for name in names] if under_way else []
    if found := [one for one in written if one.startswith(under_way)]:
        yield f"{between.join(found)}\n"


def _names_env(word: str) -> bool:
    return "=" not in word and not word.startswith(("-", "+", "~"))


def _to_hydra_overrides(typed: Sequence[str], line: str) -> list[str]:
    """Return the overrides before the one being typed in Hydra's form, and that one."""
    from marlflow.config.compose import composing
    from marlflow.config.overrides import prepare

    done, under_way = (list(typed), "") if line.endswith(" ") else (list(typed[:-1]), typed[-1])
    overrides = [word for word in done if not word.startswith("-")]
    try:
        with composing():
            overrides = prepare(overrides, multirun=True).overrides
    except ConfigInvalid:
        # The error comes when the line is run; until then the line is completed as typed.
        overrides = [word for word in done if not word.startswith("-")]
    return [*overrides, under_way]
