"""Synthetic chunks for overfitting tests: bright rectangles on noise, and the F1 of detections against them.

A chunk is (1, 1024, 128); boxes are (t0, f0, t1, f1) in frames and bins and do not overlap.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torchvision.ops import box_iou

from mast_ray.boxes.batch import ChunkBatch, Detections, pad_boxes


def rectangle_chunks(num_chunks: int = 8, boxes_per_chunk: int = 3, seed: int = 0) -> ChunkBatch:
    """Chunks with up to `boxes_per_chunk` calls each, one lane of time per call; the last chunk is empty."""
    generator = torch.Generator().manual_seed(seed)

    def between(low: float, high: float) -> float:
        return float(low + (high - low) * torch.rand((), generator=generator))

    logmel = 0.3 * torch.randn((num_chunks, 1, 1024, 128), generator=generator)
    boxes = []
    for chunk in range(num_chunks):
        rows = []
        for lane in range(boxes_per_chunk if chunk < num_chunks - 1 else 0):
            lane_length = 1024 / boxes_per_chunk
            t0 = lane * lane_length + between(0, lane_length * 0.3)
            f0 = between(4, 70)
            box = [
                round(t0),
                round(f0),
                round(t0 + between(60, lane_length * 0.65)),
                round(f0 + between(20, 50)),
            ]
            logmel[chunk, 0, box[0] : box[2], box[1] : box[3]] += 2.0
            rows.append(box)
        boxes.append(torch.tensor(rows, dtype=torch.float32).reshape(-1, 4))
    return ChunkBatch(logmel, pad_boxes(boxes), torch.ones(num_chunks))


def best_f1(detections: Detections, batch: ChunkBatch, iou: float = 0.5) -> float:
    """Largest F1 over score thresholds; score-ordered greedy matching, chunk by chunk."""
    hits: list[tuple[float, bool]] = []
    num_truths = int(batch.boxes.is_object.sum())
    for row in range(len(batch.logmel)):
        truth = batch.boxes.corners[row][batch.boxes.is_object[row]]
        valid = detections.is_valid[row]
        found, scores = detections.corners[row][valid], detections.score[row][valid]
        taken: set[int] = set()
        overlaps: Tensor = box_iou(found, truth)
        for index in range(len(found)):
            free = [(float(overlaps[index, t]), t) for t in range(len(truth)) if t not in taken]
            best = max(free, default=(0.0, -1))
            hits.append((float(scores[index]), best[0] >= iou))
            if best[0] >= iou:
                taken.add(best[1])
    hits.sort(reverse=True)
    right, best_value = 0, 0.0
    for count, (_, is_hit) in enumerate(hits, start=1):
        right += is_hit
        best_value = max(best_value, 2 * right / (count + num_truths))
    return best_value
