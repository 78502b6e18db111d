"""Wrappers of environments: the functions of conf/wrappers, which are in `shipped`, shields, managers and automata."""
