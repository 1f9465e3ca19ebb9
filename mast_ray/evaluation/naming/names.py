"""Names of boxes: a light classifier over box embeddings that says `unknown` where it is not sure.

Legend: N boxes, D numbers of a box, L labels. A box is described by its embedding and, where that helped on
validation, by its own size and band: a species keeps to both. Every label has a direction in the standardised
space; its logit is linear in the box (`linear`) or its cosine to the label's mean (`prototype`).

The confidence of a name is the calibrated chance that it is right. It is read from two things: how much likelier the
first label is than the others together, and how near the box lies to the label's own examples. The second
tells a call that nobody trained, which the first alone does not.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mast_ray.evaluation.similarity.neighbours import unit_vectors

UNKNOWN = "unknown"  # how a box is called whose name is not sure; other tools read it so too
Kind = Literal["prototype", "linear"]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
TENSORS = ("mean", "scale", "weights", "bias", "prototypes", "confidence")


class Examples(NamedTuple):
    """N boxes with their labels."""

    embedding: NDArray[np.float32]  # (N, C)
    boxes: Floats  # (N, 4) frames and bins
    label: NDArray[np.object_]  # (N,)
    group: NDArray[np.object_]  # (N,) recordings: what no fold parts

    def take(self, rows: NDArray[np.generic]) -> Examples:
        return Examples(*(column[rows] for column in self))


class Named(NamedTuple):
    """What boxes are called."""

    label: tuple[str, ...]  # (N,) UNKNOWN where the confidence is too low
    nearest: tuple[str, ...]  # (N,) the likeliest label, also where it is not given
    confidence: Floats  # (N,) chance that the nearest label is right


class Evidence(NamedTuple):
    """What speaks for the likeliest label of every box."""

    label: Ints  # (N,)
    log_odds: Floats  # (N,) of the likeliest label against all others together
    similarity: Floats  # (N,) cosine to the mean of that label's examples

    @property
    def columns(self) -> Floats:
        return np.stack([self.log_odds, self.similarity], axis=1)


@dataclass(frozen=True, eq=False)
class Names:
    """A fitted classifier: what is stored beside a detector's weights."""

    labels: tuple[str, ...]
    kind: Kind
    uses_shape: bool
    mean: Floats  # (D,) of the training boxes
    scale: Floats  # (D,)
    weights: Floats  # (L, D)
    bias: Floats  # (L,)
    prototypes: Floats  # (L, D) unit means of every label
    confidence: Floats  # (3,) intercept, weight of the log-odds, weight of the similarity
    unknown_below: float

    def evidence(self, embedding: ArrayLike, boxes: ArrayLike) -> Evidence:
        """(N, C) embeddings and (N, 4) boxes in frames and bins -> what speaks for a label"""
        standard = (box_numbers(embedding, boxes, self.uses_shape) - self.mean) / self.scale
        direction = unit_vectors(standard).astype(np.float64)
        logits = (direction if self.kind == "prototype" else standard) @ self.weights.T + self.bias
        rows, label = np.arange(len(logits)), logits.argmax(axis=1)
        similarity = (direction * self.prototypes[label]).sum(axis=1)
        return Evidence(label, _log_odds(logits, label, rows), similarity)

    def named(self, embedding: ArrayLike, boxes: ArrayLike) -> Named:
        """The label of every box with its confidence."""
        found = self.evidence(embedding, boxes)
        chance = confidence_of(found, self.confidence)
        nearest = tuple(self.labels[row] for row in found.label.tolist())
        sure = chance >= self.unknown_below
        label = tuple(name if is_sure else UNKNOWN for name, is_sure in zip(nearest, sure, strict=True))
        return Named(label, nearest, chance)

    def tensors(self) -> dict[str, NDArray[np.float32]]:
        return {name: np.ascontiguousarray(getattr(self, name), np.float32) for name in TENSORS}

    def settings(self) -> dict[str, Any]:
        own = [field.name for field in fields(self) if field.name not in TENSORS]
        return {name: getattr(self, name) for name in own} | {"labels": list(self.labels)}

    @staticmethod
    def of(settings: dict[str, Any], tensors: dict[str, NDArray[np.float32]]) -> Names:
        """From what `settings` and `tensors` gave; ValueError where they do not fit each other."""
        labels = tuple(str(name) for name in settings["labels"])
        arrays = {name: np.asarray(tensors[name], np.float64) for name in TENSORS}
        numbers = len(arrays["mean"])
        wanted = {"scale": (numbers,), "weights": (len(labels), numbers), "bias": (len(labels),),
                  "prototypes": (len(labels), numbers), "confidence": (3,)}  # fmt: skip
        for name, shape in wanted.items():
            if arrays[name].shape != shape:
                raise ValueError(f"{name} of shape {arrays[name].shape}, not {shape}")
        if not all(np.isfinite(array).all() for array in arrays.values()):
            raise ValueError("numbers that are not finite")
        if settings["kind"] not in ("prototype", "linear") or not labels or len(set(labels)) < len(labels):
            raise ValueError(f"kind {str(settings['kind'])[:20]!r} with {len(labels)} labels")
        if not isinstance(settings["uses_shape"], bool):
            raise ValueError(f"uses_shape {str(settings['uses_shape'])[:20]!r} is neither true nor false")
        limit = float(settings["unknown_below"])
        if not 0 <= limit <= 1:
            raise ValueError(f"unknown_below {limit} is no chance from 0 to 1")
        return Names(labels, settings["kind"], settings["uses_shape"], **arrays, unknown_below=limit)


def box_numbers(embedding: ArrayLike, boxes: ArrayLike, uses_shape: bool) -> Floats:
    """(N, D) an embedding as it is, then the logarithms of the length and the height, and the two edges of the band"""
    vectors = np.asarray(embedding, np.float64)
    if not uses_shape:
        return vectors
    t0, f0, t1, f1 = np.asarray(boxes, np.float64).reshape(-1, 4).T
    shape = (np.log(np.maximum(t1 - t0, 1.0)), np.log(np.maximum(f1 - f0, 0.5)), f0, f1)
    return np.concatenate([vectors, np.stack(shape, axis=1)], axis=1)


def confidence_of(found: Evidence, knobs: Floats) -> Floats:
    """(N,) the chance that a label is right, by the logistic curve that was fitted on boxes kept apart."""
    return 1.0 / (1.0 + np.exp(-np.clip(knobs[0] + found.columns @ knobs[1:], -40, 40)))


def _log_odds(logits: Floats, label: Ints, rows: Ints) -> Floats:
    """(N,) log p / (1 - p) of one label each under the softmax; bounded where nothing else is possible."""
    best = logits[rows, label]
    others = logits.copy()
    others[rows, label] = -np.inf
    highest = others.max(axis=1)
    with np.errstate(invalid="ignore"):
        rest = highest + np.log(np.exp(others - highest[:, None]).sum(axis=1))
    return np.clip(np.where(np.isfinite(highest), best - rest, 30.0), -30.0, 30.0)
