"""Pure loss functions and estimators on tensors; train through the arguments "with gradient".

Suffixes give the time of a quantity: `_tm1` before an action, `_t` after it.
"""
