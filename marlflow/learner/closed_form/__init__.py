"""Losses with hand-written gradients, for small networks on a CPU; the tests hold them against autograd."""
