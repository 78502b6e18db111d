"""Losses with hand-written gradients, faster than autograd for small networks on a CPU."""
