"""A Ray of the tests: its workers are forks, as those of a run, and it has no daemons that no test needs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from marlflow.runtime.forked.template import Template
from marlflow.runtime.ray.private_api import forking, without_daemons


@contextmanager
def forked_workers(template: Template) -> Iterator[None]:
    """A Ray that is started within, or a machine of it, has its workers forked from the template."""
    with forking(template), without_daemons(("start_monitor", "start_log_monitor", "start_api_server")):
        yield


@contextmanager
def closed_template() -> Iterator[Template]:
    """A template, and its end."""
    template = Template()
    try:
        yield template
    finally:
        template.close()
