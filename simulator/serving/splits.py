"""The split of recorded data by time: to train on, to choose by, and to judge by in the end."""

from itertools import accumulate, pairwise

SPLITS = TRAIN, VALID, TEST = "train", "valid", "test"
SHARES = {TRAIN: 0.6, VALID: 0.2, TEST: 0.2}  # of the data, in order of time
SPANS = dict(zip(SPLITS, pairwise((0.0, *accumulate(SHARES.values()))), strict=True))  # from which share to which
