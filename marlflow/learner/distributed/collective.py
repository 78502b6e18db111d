"""Communication in a group of learner processes: trees to and from the leader, and sums over all processes.

torch's one default group is not used: a group is an object here, so that each policy has its own. The leader's port is
whichever one is free when it opens the group; the other processes are given its address. Trees
(see `base.serialization`) and vectors are sent by gloo, and gradients by NCCL if each process has a GPU of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed

from marlflow.base.errors import ActorLost
from marlflow.base.serialization import Tree, from_bytes, to_bytes

_dist: Any = distributed  # its stubs do not know what stores and backends can do
MEETING_TIMEOUT_S = 60.0
"""How long the leader and its followers wait for each other at the beginning."""
ANSWER_TIMEOUT_S = 600.0
"""How long the leader waits for a follower that does not answer. One whose process ended is seen at once."""
_FOLLOWERS_WAIT = timedelta(days=365)  # a leader that is there may have no work for long


class Collective:
    """The end that one process has of a group of `world_size`; rank 0 leads.

    leader = Collective.open("hunter", "10.0.0.1", world_size=2), leader.meet(device); leader.send(tree)
    follower = Collective("hunter", leader.address, rank=1, world_size=2), follower.meet(device); follower.receive()

    Every method raises ActorLost once a process of the group has ended; the group can then not be used any more.
    """

    def __init__(self, policy: str, address: str, rank: int, world_size: int) -> None:
        self.rank, self.world_size, self.address, self._policy = rank, world_size, address, policy
        self.met = False
        """Whether all processes have been there."""
        self._host, _, port = address.rpartition(":")
        self._gloo: Any = None
        self._nccl: Any = None
        wait = timedelta(seconds=MEETING_TIMEOUT_S)
        with self._all_there():
            # Without a socket of its own the store of the leader would listen on all interfaces.
            listening = _listening_socket(self._host, int(port)) if rank == 0 else None
            self._store = _dist.TCPStore(
                self._host,
                int(port) if listening is None else listening.getsockname()[1],
                is_master=rank == 0,
                timeout=wait,
                wait_for_workers=False,
                master_listen_fd=None if listening is None else listening.detach(),
            )

    @classmethod
    def open(cls, policy: str, host: str, world_size: int) -> Collective:
        """Opens a group as its leader; `host` is the address of this machine by which the others reach it."""
        opened = cls(policy, f"{host}:0", 0, world_size)
        opened.address = f"{host}:{opened._store.port}"
        return opened

    @property
    def leads(self) -> bool:
        """Whether this process leads."""
        return self.rank == 0

    def meet(self, device: torch.device) -> None:
        """Waits until all processes are there, each with the device of its gradients."""
        wait = timedelta(seconds=MEETING_TIMEOUT_S)
        seats = [f"device/{rank}" for rank in range(self.world_size)]
        with self._all_there():
            self._store.set(seats[self.rank], _unit(device))
            self._store.wait(seats, wait)
            units = [self._store.get(seat).decode() for seat in seats]
            self._gloo = self._gloo_group()
            if all(units) and len(set(units)) == len(units) and _dist.is_nccl_available():
                self._nccl = self._nccl_group()
        self.met = True

    def send(self, tree: Tree) -> None:
        """Sends a tree to all followers; each has to `receive` it."""
        data = torch.frombuffer(bytearray(to_bytes(tree)), dtype=torch.uint8)
        with self._all_there():
            self._group.broadcast([torch.tensor([len(data)])]).wait()
            self._group.broadcast([data]).wait()

    def receive(self) -> Tree:
        """The next tree that the leader sends; waits for it without limit."""
        size = torch.zeros(1, dtype=torch.int64)
        with self._all_there():
            self._group.broadcast([size]).wait()
            data = torch.empty(int(size), dtype=torch.uint8)
            self._group.broadcast([data]).wait()
        return _tree(data)

    def report(self, tree: Tree) -> None:
        """Sends a tree to the leader, which has to ask for `reports`."""
        data = torch.frombuffer(bytearray(to_bytes(tree)), dtype=torch.uint8)
        with self._all_there():
            self._group.send([torch.tensor([len(data)])], 0, 0).wait()
            self._group.send([data], 0, 0).wait()

    def reports(self) -> list[Tree]:
        """The tree that each follower reports, by rank."""
        found, size = [], torch.zeros(1, dtype=torch.int64)
        with self._all_there():
            for rank in range(1, self.world_size):
                self._group.recv([size], rank, 0).wait()
                data = torch.empty(int(size), dtype=torch.uint8)
                self._group.recv([data], rank, 0).wait()
                found.append(_tree(data))
        return found

    def add_up(self, vector: Tensor) -> None:
        """Replaces `vector` by the sum over all processes, the same bits for all; on a GPU without waiting for it."""
        with self._all_there():
            (self._nccl or self._group).allreduce([vector]).wait()

    def leave(self) -> None:
        """Closes this process's connections; others that wait for it get an error. May be called twice."""
        self._gloo = self._nccl = None

    @contextmanager
    def staying(self) -> Iterator[None]:
        """Leaves if what is inside raises: the others must not wait for a process that is out of step."""
        try:
            yield
        except BaseException:
            self.leave()
            raise

    @property
    def _group(self) -> Any:
        if self._gloo is None:
            raise RuntimeError("this one has left")
        return self._gloo

    @contextmanager
    def _all_there(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            self.leave()  # so that processes that wait for this one get the error too
            raise ActorLost(
                f"the learners of policy {self._policy!r} work as a group of {self.world_size}, and one of them was "
                f"lost (seen by the one of rank {self.rank}): {error}"
            ) from error

    def _gloo_group(self) -> Any:
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=self._own_host())]
        options._timeout = timedelta(seconds=ANSWER_TIMEOUT_S) if self.leads else _FOLLOWERS_WAIT
        return _dist.ProcessGroupGloo(_dist.PrefixStore("gloo", self._store), self.rank, self.world_size, options)

    def _nccl_group(self) -> Any:
        options = _dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=ANSWER_TIMEOUT_S)
        return _dist.ProcessGroupNCCL(_dist.PrefixStore("nccl", self._store), self.rank, self.world_size, options)

    def _own_host(self) -> str:
        """This machine's address on the way to the leader: gloo's own choice may be one that others cannot reach."""
        if self.leads:
            return self._host
        family, kind, protocol, _, leader = socket.getaddrinfo(self._host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as way:
            way.connect(leader)  # sends nothing
            return str(way.getsockname()[0])


def _listening_socket(host: str, port: int) -> socket.socket:
    """Listen at `host` alone, at a free port if `port` is 0."""
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.bind(address)
    listening.listen(128)
    return listening


def _unit(device: torch.device) -> str:
    """The unique id of a GPU; empty for a CPU."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""


def _tree(data: Tensor) -> Tree:
    array: np.ndarray[tuple[int], np.dtype[np.uint8]] = data.numpy()
    return from_bytes(array.data)
