"""The order of an epoch by itself: what it holds, and what a set that is no whole number of batches leaves out."""

import numpy as np
import pytest

from mast_ray.tables.reading.sample_order import EpochOrder, lanes_of

EPOCHS = 40


def taken(num_chunks, batch_size, block, epoch):
    """(steps, B) chunks of one epoch of a set in blocks of so many, lane by lane."""
    starts = np.append(np.arange(0, num_chunks, block), num_chunks)
    lanes = lanes_of(batch_size, 32)
    order = EpochOrder(starts, batch_size, lanes, seed=0, epoch=epoch)
    rows = [np.concatenate([window.chunks for window in order.windows(lane)]) for lane in range(lanes)]
    return np.stack(rows)


@pytest.mark.parametrize("block", [100, 50, 9])
def test_every_chunk_of_a_set_that_is_no_whole_number_of_batches_comes_as_often_as_the_others(block):
    times = np.zeros(100, int)
    for epoch in range(EPOCHS):
        own = taken(100, 64, block, epoch).ravel()
        assert len(own) == len(set(own)) == 64
        times[own] += 1
    # 40 times with a chance of 0.64: 25.6 on average, five deviations of sqrt(40 x 0.64 x 0.36) = 3.0 to either side
    assert times.min() >= 10 and times.max() <= 40 and times.sum() == EPOCHS * 64


def test_of_a_set_smaller_than_a_batch_others_come_twice_in_every_epoch():
    times = np.zeros(40, int)
    for epoch in range(EPOCHS):
        own = np.bincount(taken(40, 64, 40, epoch).ravel(), minlength=40)
        assert set(own) == {1, 2} and own.sum() == 64
        times += own == 2
    # 24 of 40 twice, 40 times: 24 on average, five deviations of 3.1 to either side
    assert times.min() >= 9 and times.max() <= 39


def test_of_whole_batches_nothing_is_left_out():
    assert sorted(taken(128, 64, 24, 3).ravel()) == list(range(128))
