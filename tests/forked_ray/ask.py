"""Asks for a worker to be forked: what Ray runs instead of a new Python; see session.py."""

import json
import os
import socket
import sys

with socket.socket(socket.AF_UNIX) as there:
    there.connect(os.environ["FORKED_RAY_SOCKET"])
    socket.send_fds(there, [b"."], [0, 1, 2])
    asked = {"words": sys.argv[1:], "environment": dict(os.environ), "folder": os.getcwd()}
    there.sendall(json.dumps(asked).encode())
    there.shutdown(socket.SHUT_WR)
    there.recv(1)  # until it is forked
