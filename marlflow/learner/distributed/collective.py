"""Collective communication of learner processes: broadcast, gather and all-reduce over gloo and NCCL."""

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

# Its one default group is not used, because every learner needs its own. The type stubs lack most methods of stores and
# backends.
_dist: Any = distributed
MEETING_TIMEOUT_S = 60.0
"""Seconds that the processes wait for each other to join."""
ANSWER_TIMEOUT_S = 600.0
"""Seconds that the leader waits for a follower to answer. A follower whose process ended is noticed at once."""
# Practically unlimited: a leader may wait for rows for a long time.
_FOLLOWERS_WAIT = timedelta(days=365)


class Collective:
    """One process's connection to a group of `world_size` data-parallel learners; rank 0 is the leader.

    Uses gloo for trees (`base.serialization`), and NCCL for the all-reduce if each process has its own GPU.

    leader = Collective.open("hunter", "10.0.0.1", world_size=2), leader.meet(device); leader.broadcast(tree)
    follower = Collective("hunter", leader.address, rank=1, world_size=2), follower.meet(device); follower.receive()

    Every method raises ActorLost once a process of the group has ended; the group is then unusable.
    """

    def __init__(self, policy: str, address: str, rank: int, world_size: int) -> None:
        self.rank, self.world_size = rank, world_size
        self.address = address
        self._policy = policy
        self.is_connected = False
        """Whether `meet` has returned."""
        self._host, _, port = address.rpartition(":")
        self._gloo: Any = None
        self._nccl: Any = None
        wait = timedelta(seconds=MEETING_TIMEOUT_S)
        with self._raising_actor_lost():
            # Given no socket, the leader's store would listen on all network interfaces.
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
        """Open a group as its leader, on a free port; other processes reach this machine at `host`."""
        collective = cls(policy, f"{host}:0", 0, world_size)
        # The port is known only once the store listens.
        collective.address = f"{host}:{collective._store.port}"
        return collective

    @property
    def is_leader(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def meet(self, device: torch.device) -> None:
        """Wait until all processes have joined; `device` is where this one computes its gradients."""
        wait = timedelta(seconds=MEETING_TIMEOUT_S)
        keys = [f"device/{rank}" for rank in range(self.world_size)]
        with self._raising_actor_lost():
            gpu = str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else ""
            self._store.set(keys[self.rank], gpu)
            self._store.wait(keys, wait)
            gpus = [self._store.get(key).decode() for key in keys]
            self._gloo = self._gloo_group()
            # NCCL fails if two processes share one GPU.
            if all(gpus) and len(set(gpus)) == len(gpus) and _dist.is_nccl_available():
                self._nccl = self._nccl_group()
        self.is_connected = True

    def broadcast(self, tree: Tree) -> None:
        """Send a tree from the leader to all followers, which call `receive`."""
        data = torch.frombuffer(bytearray(to_bytes(tree)), dtype=torch.uint8)
        with self._raising_actor_lost():
            # The length goes first, so that followers can allocate the buffer.
            self._group.broadcast([torch.tensor([len(data)])]).wait()
            self._group.broadcast([data]).wait()

    def receive(self) -> Tree:
        """Return the next tree that the leader broadcasts; waits without a timeout."""
        size = torch.zeros(1, dtype=torch.int64)
        with self._raising_actor_lost():
            self._group.broadcast([size]).wait()
            data = torch.empty(int(size), dtype=torch.uint8)
            self._group.broadcast([data]).wait()
        return _tree(data)

    def send_to_leader(self, tree: Tree) -> None:
        """Send a tree to the leader, which calls `gather`."""
        data = torch.frombuffer(bytearray(to_bytes(tree)), dtype=torch.uint8)
        with self._raising_actor_lost():
            self._group.send([torch.tensor([len(data)])], 0, 0).wait()
            self._group.send([data], 0, 0).wait()

    def gather(self) -> list[Tree]:
        """Return the tree that each follower sent to the leader, ordered by rank."""
        trees, size = [], torch.zeros(1, dtype=torch.int64)
        with self._raising_actor_lost():
            for rank in range(1, self.world_size):
                self._group.recv([size], rank, 0).wait()
                data = torch.empty(int(size), dtype=torch.uint8)
                self._group.recv([data], rank, 0).wait()
                trees.append(_tree(data))
        return trees

    def all_reduce(self, vector: Tensor) -> None:
        """Replace `vector` by its sum over all processes, bit-identical on each; on a GPU, asynchronously."""
        with self._raising_actor_lost():
            (self._nccl or self._group).allreduce([vector]).wait()

    def sum(self, numbers: list[float]) -> list[float]:
        """Return the sums of each process's numbers over all processes."""
        sums = torch.tensor(numbers, dtype=torch.float64)
        with self._raising_actor_lost():
            self._group.allreduce([sums]).wait()
        return [float(each) for each in sums.tolist()]

    def leave(self) -> None:
        """Close the connections, so that processes waiting for this one get an error. May be called twice."""
        self._gloo = self._nccl = None

    @contextmanager
    def leaving_on_error(self) -> Iterator[None]:
        """Leave the group if the block raises."""
        try:
            yield
        except BaseException:
            # The others must not wait for a process that is out of step.
            self.leave()
            raise

    @property
    def _group(self) -> Any:
        if self._gloo is None:
            raise RuntimeError("this one has left")
        return self._gloo

    @contextmanager
    def _raising_actor_lost(self) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, OSError) as error:
            # Processes that wait for this one then get the error too.
            self.leave()
            raise ActorLost(
                f"the learners of policy {self._policy!r} work as a group of {self.world_size}, and one of them was "
                f"lost (seen by the one of rank {self.rank}): {error}"
            ) from error

    def _gloo_group(self) -> Any:
        options = _dist.ProcessGroupGloo._Options()
        options._devices = [_dist.ProcessGroupGloo.create_device(hostname=self._own_host())]
        options._timeout = timedelta(seconds=ANSWER_TIMEOUT_S) if self.is_leader else _FOLLOWERS_WAIT
        return _dist.ProcessGroupGloo(_dist.PrefixStore("gloo", self._store), self.rank, self.world_size, options)

    def _nccl_group(self) -> Any:
        options = _dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=ANSWER_TIMEOUT_S)
        return _dist.ProcessGroupNCCL(_dist.PrefixStore("nccl", self._store), self.rank, self.world_size, options)

    def _own_host(self) -> str:
        if self.is_leader:
            return self._host
        # The address of the interface that routes to the leader; gloo's default may be one that others cannot reach.
        family, kind, protocol, _, leader = socket.getaddrinfo(self._host, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # Connecting a UDP socket sends nothing; it only picks the route.
            probe.connect(leader)
            return str(probe.getsockname()[0])


def _listening_socket(host: str, port: int) -> socket.socket:
    family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.bind(address)
    listening.listen(128)
    return listening


def _tree(data: Tensor) -> Tree:
    array: np.ndarray[tuple[int], np.dtype[np.uint8]] = data.numpy()
    return from_bytes(array.data)
