"""Scripts that make a shell complete the command line of marlflow: zsh and fish; bash has Hydra's own.

Both ask `marlflow -sc query=fish`, which prints one completion in each line, and offer files if there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

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
"""What `marlflow --shell-completion <key>` prints."""
