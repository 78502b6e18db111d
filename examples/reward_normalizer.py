"""Rewards divided by the running deviation of discounted returns, as Gymnasium's NormalizeReward does, as a part."""

import numpy as np

import marlflow as mf


class NormalizedRewards(mf.Part):
    """Divides rewards when learning; those in metrics stay the environment's."""

    def state(self):
        return ReturnMoments()

    def stages(self, algorithm):
        return {"fresh": [self.normalize]}

    def normalize(self, batch: mf.Batch, learner) -> mf.Batch:
        moments = learner.part_state("return_moments")
        returns, starts = np.zeros(batch.rows + 1), batch.ends() + 1
        for row, reward in enumerate(batch["reward"]):
            returns[row] = reward + 0.99 * returns[row - 1] * (row not in starts)
        moments.value = np.add(moments.value, [batch.rows, returns.sum(), np.square(returns).sum()])
        mean, square = moments.value[1:] / moments.value[0]
        return batch.with_columns(reward=batch["reward"] / np.sqrt(max(square - mean**2, 1e-8)))


class ReturnMoments(mf.PartState):
    """The count, sum, and sum of squares of returns within segments, float64 [3], in every checkpoint."""

    name, value = "return_moments", np.array([1.0, 0.0, 1.0])
