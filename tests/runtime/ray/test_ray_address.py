"""A run joins the cluster that RAY_ADDRESS names, unless it says otherwise, and shows a dashboard only if asked."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import marlflow as mf
from marlflow.checks.validation import ready
from marlflow.config.placement import cluster_address, cluster_setting
from marlflow.runtime.forked.template import SWITCH_VARIABLE
from marlflow.runtime.ray import local_ray as local
from marlflow.runtime.ray import private_api
from marlflow.runtime.ray.cluster import join
from tests.runtime.ray.processes import printed_by
from tests.runtime.ray.test_cluster import closed_port
from tests.runtime.small_runs import small_run

pytestmark = pytest.mark.slow

ADDRESS = "10.0.0.1:6379"


@pytest.mark.parametrize(
    ("set_to", "runtime", "joins"),
    [
        (None, mf.RuntimeConfig(), None),
        ("", mf.RuntimeConfig(), None),
        ("local", mf.RuntimeConfig(), None),
        (ADDRESS, mf.RuntimeConfig(), ADDRESS),
        ("auto", mf.RuntimeConfig(), "auto"),
        (ADDRESS, mf.RuntimeConfig(address="local"), None),
        (ADDRESS, mf.RuntimeConfig(address="10.0.0.2:6379"), "10.0.0.2:6379"),
        (ADDRESS, mf.RuntimeConfig("inline"), None),
        (None, mf.RuntimeConfig(address="auto"), "auto"),
    ],
)
def test_the_configuration_comes_before_the_environment_variable(
    set_to: str | None, runtime: mf.RuntimeConfig, joins: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if set_to is not None:
        monkeypatch.setenv("RAY_ADDRESS", set_to)
    assert cluster_address(runtime) == joins


def test_what_named_the_cluster_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ADDRESS)
    assert cluster_setting(mf.RuntimeConfig()) == f"RAY_ADDRESS={ADDRESS}"
    assert cluster_setting(mf.RuntimeConfig(address="auto")) == "runtime.address=auto"
    gone = f"127.0.0.1:{closed_port()}"
    monkeypatch.setenv("RAY_ADDRESS", gone)
    with pytest.raises(
        mf.ConfigInvalid, match=rf"RAY_ADDRESS={gone}: no Ray cluster answers .* set runtime\.address=local"
    ):
        join(gone)


@pytest.mark.parametrize(
    ("own", "key"),
    [
        ({"object_store_bytes": 100 * 2**20}, "object_store_bytes"),
        ({"node_ip_address": "127.0.0.1"}, "node_ip_address=127.0.0.1"),
        ({"dashboard": True}, "dashboard"),
    ],
)
def test_settings_of_a_ray_of_its_own_are_refused_with_a_cluster(
    own: dict[str, Any], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ADDRESS)
    for address, named in ((None, f"RAY_ADDRESS={ADDRESS}"), ("auto", "runtime.address=auto")):
        with pytest.raises(mf.ConfigInvalid) as caught:
            ready(replace(small_run(), runtime=mf.RuntimeConfig(address=address, **own)))
        expected = f"runtime.{key} is for a Ray that is started here, but {named} joins one that is running"
        assert expected in str(caught.value)
    ready(replace(small_run(), runtime=mf.RuntimeConfig(address="local", **own)))


def test_a_run_joins_the_cluster_that_ray_address_names() -> None:
    printed = json.loads(printed_by("joined_by_environment"))
    assert (printed["planned"], printed["env_steps"]) == (4.0, 160)


@pytest.mark.parametrize("missing", [None, ModuleNotFoundError("No module named 'aiohttp'")])
def test_a_dashboard_is_started_if_asked_for_and_can_be(
    missing: Exception | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    monkeypatch.setenv(SWITCH_VARIABLE, "0")  # no workers come
    monkeypatch.setattr(private_api.utils, "get_dashboard_dependency_error", lambda: missing)
    monkeypatch.setattr(local.ray, "init", lambda **settings: asked.append(settings))
    local.start_local(include_dashboard=False)
    if missing is None:
        local.start_local(include_dashboard=True)
    else:
        with pytest.raises(mf.ConfigInvalid, match=r"'aiohttp'; pip install 'ray\[default\]'"):
            local.start_local(include_dashboard=True)
    assert [one["include_dashboard"] for one in asked] == ([False, True] if missing is None else [False])
