"""Actions of a column become actions of the space, for any integer dtype, and others are refused."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from marlflow.base.errors import MarlflowError
from marlflow.sampling.acting_policy import ActionDecoder


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.int8])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_actions_are_counted_from_the_spaces_start_and_others_are_refused(dtype: type, wrong: int) -> None:
    decoder = ActionDecoder("prey", Discrete(3, start=5))
    assert decoder.values(np.array([0, 2], dtype)).tolist() == [5, 7]
    with pytest.raises(MarlflowError, match=rf"policy 'prey' chose action {wrong}, counted from 0, of Discrete\(3"):
        decoder.values(np.array([0, wrong], dtype))
