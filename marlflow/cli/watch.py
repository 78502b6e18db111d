"""`marlflow watch`: follow runs on a page of their own."""

from __future__ import annotations

import os
import secrets
import sys
from pathlib import Path

from marlflow.base.errors import ConfigInvalid
from marlflow.cli.options import Arguments, Command, Option


def run_watch(arguments: Arguments) -> int:
    """Serve the page until interrupted; return 0. Raises ConfigInvalid."""
    from marlflow.html_report.runs import find_runs

    try:
        from marlflow.watch.followed import FollowedRun
        from marlflow.watch.server import WatchServer, serve
    except ModuleNotFoundError as error:
        raise ConfigInvalid([f"marlflow watch needs {error.name}; pip install 'marlflow[watch]'"]) from error
    folders = find_runs([Path(word) for word in arguments.operands])
    base = Path(os.path.commonpath([folder.resolve().parent for folder in folders]))
    runs = []
    for folder in folders:
        try:
            runs.append(FollowedRun(folder, str(folder.resolve().relative_to(base))))
        except ConfigInvalid as error:
            # One of a folder's runs; the others can be watched.
            if len(folders) == 1:
                raise
            print(f"note: {error}; the run is left out", file=sys.stderr)
    if not runs:
        raise ConfigInvalid(["there is no run to watch: each was left out"])

    def say(address: str) -> None:
        print(f"watching {len(runs)} run{'' if len(runs) == 1 else 's'}; open {address}\nend with Ctrl+C", flush=True)

    serve(WatchServer(runs, secrets.token_urlsafe(16), control=arguments["control"]), arguments["port"], say)
    return 0


_ABOUT = """
RUN is the folder of a run, or a folder with runs in it, such as the folder of a sweep. Runs may be in progress, and
new reports appear on the page as they are written (log.every_env_steps).

It shows the plan of a run with what each stage does: items and rows per second, the shares of time that it works,
waits for input, and waits for room, and how full queues are; curves of returns, of numbers in infos and of losses;
the newest film in the run's folder (marlflow play RUN --video RUN/film.mp4); faults, the end of the log, and the
configuration. Of several runs it shows a table, and their returns side by side.

The page is served on this machine only, needs no network, and is behind a token in the address. It reads the folders
and changes nothing; with control=true it has a button that asks a run to stop and save. From another machine: ssh -L
8765:127.0.0.1:8765 HOST. A run that serves its own page while it trains: marlflow train ... sinks=page.
"""

COMMAND = Command(
    "watch",
    run_watch,
    (
        Option("port", "port on loopback; 0 is any free one", "whole number", "N", default=0, low=0, high=65535),
        Option("control", "whether the page has a button that asks a run to stop and save", "switch"),
    ),
    _ABOUT,
    ("runs/carts", "runs/rates port=8765", "runs/carts --control"),
    most=None,
)
