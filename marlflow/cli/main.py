"""The entry point: dispatches to a command and prints errors.

Exit codes: 0, success; 1, a run failed; 2, bad input, found before anything started; 129, the terminal was closed; 130,
interrupted; 143, terminated.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from bdb import BdbQuit
from collections.abc import Callable, Sequence
from functools import partial

from marlflow import __version__
from marlflow.base.errors import DEBUGGER_QUIT, InvalidInput, MarlflowError
from marlflow.base.sentences import shortened
from marlflow.cli import arguments
from marlflow.cli.failures import failure
from marlflow.cli.helptext import command_help, main_help
from marlflow.driver.graceful_shutdown import HungUp, Terminated

_STORAGE = {
    errno.ENOSPC: "the disk is full: {}; free space there",
    errno.EDQUOT: "the disk quota is used up: {}; free space there",
    errno.EROFS: "nothing can be written: {}; make the file system writable, or name another folder",
}
_FAILED, _BAD_INPUT, _HUNG_UP, _INTERRUPTED, _TERMINATED = 1, 2, 129, 130, 143


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; `argv` is without the program's name."""
    words = list(sys.argv[1:] if argv is None else argv)
    own_process = argv is None
    if own_process:
        # Imports make a million objects that live as long as the process; to search them for garbage takes a second.
        gc.disable()
    # If the process runs this command alone, workers' imports begin at the same time as the driver's.
    if own_process and words[:1] in (["train"], ["resume"]) and "runtime=inline" not in words:
        from marlflow.runtime.forked import template

        template.begin()
    # Otherwise pygame's banner is printed above the plan of each of its environments.
    os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    if os.getcwd() not in sys.path:  # a user's modules are importable from the current folder, as with `python -m`
        sys.path.insert(0, os.getcwd())
    code = _exit_code(words, own_process)
    try:
        sys.stdout.flush()
    except OSError:  # the reader has closed the pipe, and Python would try to flush again at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code


def _exit_code(words: list[str], own_process: bool) -> int:
    try:
        try:
            run = _imported(words)
        finally:
            if own_process:
                gc.freeze()
                gc.enable()
        return run()
    except InvalidInput as error:
        print(f"error: {error}", file=sys.stderr)
        return _BAD_INPUT
    except MarlflowError as error:
        print(failure(error), file=sys.stderr)
        return _FAILED
    except BrokenPipeError:  # the reader of our output has closed the pipe
        return _FAILED
    except HungUp:
        return _HUNG_UP
    except OSError as error:
        return _system_error(error)
    except Terminated:
        print("terminated", file=sys.stderr)
        return _TERMINATED
    except (KeyboardInterrupt, BdbQuit) as ended:
        why = (DEBUGGER_QUIT,) if isinstance(ended, BdbQuit) else ended.args
        print(": ".join(["interrupted", *map(str, why)]), file=sys.stderr)
        return _INTERRUPTED


def _system_error(error: OSError) -> int:
    """Print an error that the user can mend, and return the exit code; raise any other error."""
    # A word was taken for a path.
    if error.errno == errno.ENAMETOOLONG:
        print(f"error: {shortened(f'{error.strerror}: {error.filename!r}')}", file=sys.stderr)
        return _BAD_INPUT
    if error.errno not in _STORAGE:
        raise error
    print(f"error: {_STORAGE[error.errno].format(error)}", file=sys.stderr)
    return _FAILED


def _imported(words: list[str]) -> Callable[[], int]:
    """Return the function that runs the command of these words, with most of its imports done."""
    if not words or words[0] in ("-h", "--help", "help"):
        return partial(_print, main_help())
    if words[0] == "--version":
        return partial(_print, f"marlflow {__version__}\n")
    if words[0] in arguments.COMPLETION:
        from marlflow.cli.completion import complete

        return partial(complete, words)
    if words[0] in arguments.COMMANDS and any(word in ("-h", "--help") for word in words):
        return partial(_print, command_help(words[0]))
    if words[0] in arguments.DECLARED:
        from marlflow.cli.options import declared, parse

        command = declared(words[0])
        return partial(command.run, parse(command, words[1:]))
    return partial(_command(words[0]), words[1:])


def _print(text: str) -> int:
    print(text, end="")
    return 0


# Imported on demand: `marlflow --help` need not load torch.
def _command(name: str) -> Callable[[list[str]], int]:
    if name == "train":
        from marlflow.cli.train import run_train

        return run_train
    if name == "resume":
        from marlflow.cli.resume import run_resume

        return run_resume
    if name == "plan":
        from marlflow.cli.plan import run_plan

        return run_plan
    if name == "check-env":
        from marlflow.cli.check_env import run_check_env

        return run_check_env
    raise arguments.unknown_command(name)
