"""A cluster that does not answer is said at once, before Ray begins to ask again and again."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import ray
from ray._private import services

from marlflow.base.errors import ConfigInvalid
from marlflow.runtime.ray.cluster import join
from tests.sentences import refusals


def closed_port() -> int:
    """An address without a listener."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_at_which_nobody_answers_is_named(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was asked to join it"))
    address = f"{scheme}127.0.0.1:{closed_port()}"
    with pytest.raises(ConfigInvalid, match=f"runtime.address={address}: no Ray cluster answers there"):
        join(address)


@contextmanager
def server(answer: bytes) -> Iterator[str]:
    """The address of a server that sends this to every client, or nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(30)

        def serve() -> None:
            try:
                connection, _ = listening.accept()
            except TimeoutError:
                return  # no client came, which the test will notice
            with connection:
                connection.sendall(answer)
                connection.recv(1 << 10)
                with suppress(OSError):  # the other side has closed it already
                    connection.shutdown(socket.SHUT_WR)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses that Ray itself was asked to join; it then raises what a cluster of other versions raises."""
    addresses: list[str] = []

    def refuses(address: str, **_: object) -> None:
        addresses.append(address)
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 1.2.3")

    monkeypatch.setattr(ray, "init", refuses)
    monkeypatch.setattr(ray, "shutdown", lambda: None)  # other tests of the session may have a Ray
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return addresses


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> list[Exception]:
    """The error of a control service at its identification; it accepts all clients while this is empty."""
    raised: list[Exception] = []

    def ask(address: str) -> None:
        if raised:
            os.write(2, b"gcs_client.cc:210: Failed to get cluster ID from GCS server: Unauthenticated\n")
            raise raised[0]

    monkeypatch.setattr("marlflow.runtime.ray.private_api.GcsClient", ask)
    return raised


def refusal(address: str) -> str:
    (problem,) = refusals(ConfigInvalid, join, address)
    return problem


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""], ids=["http", "silent"])
def test_another_server_is_said_to_be_none_of_rays(answer: bytes, asked: list[str]) -> None:
    with server(answer) as address:
        assert refusal(address).startswith(f"runtime.address={address}: what answers there is not Ray; start one with ")
    assert asked == []


SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def test_a_cluster_that_wants_a_token_is_one_error_and_no_noise(
    asked: list[str], gcs: list[Exception], capfd: pytest.CaptureFixture[str]
) -> None:
    gcs.append(ray.exceptions.AuthenticationError("RPC error: InvalidAuthToken"))
    with server(SETTINGS) as address:
        assert refusal(address).startswith(
            f"runtime.address={address}: this Ray cluster asks for a token, and does not know ours; "
            "set RAY_AUTH_MODE=token here, "
        )
    assert asked == []
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("gcs")
def test_a_cluster_that_ray_cannot_join_is_one_error_with_rays_reason(asked: list[str]) -> None:
    with server(SETTINGS) as address:
        assert refusal(address).startswith(
            f"runtime.address={address}: this Ray cluster could not be joined: Version mismatch: The cluster was "
            "started with: Ray: 1.2.3; all its machines need the same versions of Ray and Python"
        )
    assert asked == [address]


@pytest.mark.usefixtures("gcs")
def test_auto_joins_what_ray_start_has_made_and_not_whatever_runs(
    asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[str] = []
    monkeypatch.setattr(services, "find_gcs_addresses", lambda: frozenset(running))
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _: None)
    assert refusal("auto").startswith("runtime.address=auto: no Ray cluster is running on this machine; start one with")
    running.append("10.0.0.9:1234")
    problem = refusal("auto")
    assert "what runs at 10.0.0.9:1234 belongs to another program, with which it ends; start one with" in problem
    assert problem.endswith("to join it all the same, set runtime.address=10.0.0.9:1234")
    assert asked == []
    with server(SETTINGS) as address:
        monkeypatch.setattr(services, "find_bootstrap_address", lambda _: address)
        assert refusal("auto").startswith(f"runtime.address=auto ({address}): this Ray cluster could not be joined")
    with server(SETTINGS) as named:
        monkeypatch.setenv("RAY_ADDRESS", named)
        refusal("auto")
    assert asked == [address, named]
