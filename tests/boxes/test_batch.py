"""Packing boxes into rectangular tensors."""

from dataclasses import replace

import torch

from mast_ray.boxes.batch import ChunkBatch, pad_boxes


def test_boxes_and_ignore_regions_share_the_slots_of_their_chunk() -> None:
    one = torch.tensor([[1.0, 2, 3, 4], [5, 6, 7, 8]])
    region = torch.tensor([[0.0, 0, 9, 9]])
    packed = pad_boxes([one, one[:0]], [region, region])
    assert packed.corners.shape == (2, 8, 4)
    assert packed.is_object.sum(1).tolist() == [2, 0] and packed.is_ignored.sum(1).tolist() == [1, 1]
    assert torch.equal(packed.corners[0][packed.is_object[0]], one)
    assert torch.equal(packed.corners[1][packed.is_ignored[1]], region)
    assert not (packed.is_object & packed.is_ignored).any()
    assert (packed.corners[~(packed.is_object | packed.is_ignored)] == 0).all()


def test_slots_are_rounded_up_so_that_few_shapes_occur() -> None:
    assert pad_boxes([torch.ones(9, 4)]).corners.shape == (1, 16, 4)
    assert pad_boxes([torch.ones(8, 4)], slot_multiple=4).corners.shape == (1, 8, 4)
    assert pad_boxes([torch.ones(5, 4)], [torch.ones(4, 4)]).corners.shape == (1, 16, 4)
    assert pad_boxes([torch.zeros(0, 4)]).corners.shape == (1, 8, 4)


def test_a_batch_moves_with_all_its_tensors() -> None:
    batch = ChunkBatch(torch.zeros(1, 1, 16, 8), pad_boxes([torch.ones(1, 4)]), torch.ones(1), ("a:0",))
    assert batch.to("meta").is_pseudo is None
    batch = replace(batch, is_pseudo=torch.ones(1, dtype=torch.bool))
    moved = batch.to("meta")
    tensors = (moved.logmel, moved.weight, moved.is_pseudo, *vars(moved.boxes).values())
    assert {tensor.device.type for tensor in tensors} == {"meta"} and moved.chunk_ids == ("a:0",)
