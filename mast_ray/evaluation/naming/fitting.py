"""Fitting names: prototypes or a linear classifier, with or without the box's own shape, whichever names held-out
boxes best; then the chance that a name is right.

Boxes are kept apart by recording: calls of one recording repeat themselves. The confidence is fitted on boxes that were
not trained on, of which some have labels that were left out of the training in turn: so it knows what a call
looks like that nobody trained.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GroupKFold

from mast_ray.config.errors import DataError
from mast_ray.evaluation.intervals import Interval
from mast_ray.evaluation.naming.names import Evidence, Examples, Kind, Names, box_numbers, confidence_of
from mast_ray.evaluation.naming.shares import share_interval
from mast_ray.evaluation.similarity.neighbours import unit_vectors

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
RARE = 5  # labels with fewer boxes are named, and said
FOLDS = 4
LEAST_VALIDATION = 20  # held-out boxes of trained labels; fewer are no judge between classifiers
COSINE_SCALES = (5.0, 10.0, 20.0, 40.0)
EVEN_CHANCE = 0.5  # below, a name is more likely wrong than right
UNTRAINED_SHARE = 0.25  # of the calls of an archive: labels that nobody trained
LEAST_NAMED = 10  # held-out boxes that must get a name before their share of right ones is believed


@dataclass(frozen=True)
class Way:
    """One way to make names."""

    kind: Kind
    uses_shape: bool


WAYS = tuple(Way(kind, shape) for kind in ("prototype", "linear") for shape in (False, True))  # type: ignore[arg-type]


@dataclass(frozen=True)
class FittedNames:
    """Names, and how well they did on boxes they were not trained on."""

    names: Names
    counts: dict[str, int]  # training boxes of every label
    judged_on: str  # "validation boxes" or "training boxes, recordings kept apart"
    num_judged: int
    top_1: dict[str, float]  # way -> share of held-out boxes whose likeliest label is right
    accuracy: Interval  # of the names that are given
    given: Interval  # share of boxes of trained labels that get a name
    rejected: Interval  # share of boxes of labels left out that are called unknown; NaN: too few labels
    misses_precision: bool = False  # no limit gives names that are right as often as was asked for

    @property
    def rare(self) -> dict[str, int]:
        return {label: count for label, count in self.counts.items() if count < RARE}


def fit_names(
    train: Examples,
    validation: Examples | None,
    unknown_below: float = EVEN_CHANCE,
    precision: float | None = None,
) -> FittedNames:
    """Choose on validation where that holds enough boxes, else on folds of the training boxes. With `precision` the
    limit below which a box is unknown lies where that share of the names given to held-out boxes is right, those of
    labels left out among them.
    """
    counts = Counter(train.label.tolist())
    if len(counts) < 2:
        raise DataError(
            f"the training boxes have {len(counts)} label{'s' if len(counts) != 1 else ''}: a name is a choice between at least two\n"
            "name more boxes (column label of the annotations), and prepare the archive again"
        )
    known = validation.take(np.isin(validation.label, list(counts))) if validation is not None else None
    has_validation = known is not None and len(known.label) >= LEAST_VALIDATION
    folds = _folds(train)
    if not folds and not has_validation:
        raise DataError(
            "no label has boxes in two recordings: nothing says how well names would do elsewhere\n"
            "name boxes of the same labels in more recordings, and prepare the archive again"
        )
    top_1, held = {}, {}
    for way in WAYS:
        held[way] = _Held.of([(train, known)] if has_validation else folds, way)  # type: ignore[list-item]
        top_1[f"{way.kind}{', with shape' if way.uses_shape else ''}"] = float(held[way].is_right.mean())
    best = max(WAYS, key=lambda way: (round(float(held[way].is_right.mean()), 6), -WAYS.index(way)))
    known_held = held[best] if not has_validation else held[best].joined(_Held.of(folds, best))
    untrained = _Held.of(_label_folds(train), best, is_untrained=True)
    knobs = _fitted_confidence(known_held, untrained)
    limit = None
    if precision is not None:
        both = known_held.joined(untrained)
        weight = _weights(known_held, untrained)
        limit = limit_for_precision(confidence_of(both.evidence, knobs), both.is_right, weight, precision)
        unknown_below = EVEN_CHANCE if limit is None else limit
    names = replace(fit_way(train, best), confidence=knobs, unknown_below=unknown_below)
    sure = confidence_of(held[best].evidence, knobs) >= unknown_below
    alien = confidence_of(untrained.evidence, knobs) < unknown_below
    right = held[best].is_right
    return FittedNames(
        names, dict(sorted(counts.items())),
        "validation boxes" if has_validation else "training boxes, recordings kept apart",
        len(right), top_1,
        share_interval(right[sure], held[best].group[sure]),
        share_interval(sure, held[best].group),
        share_interval(alien, untrained.group),
        precision is not None and limit is None,
    )  # fmt: skip


class _Held(NamedTuple):
    """Answers for boxes that were not trained on."""

    evidence: Evidence
    is_right: Bools
    group: NDArray[np.object_]

    @staticmethod
    def of(parts: list[tuple[Examples, Examples]], way: Way, is_untrained: bool = False) -> _Held:
        found, right, group = [], [], []
        for taught, asked in parts:
            names = fit_way(taught, way)
            one = names.evidence(asked.embedding, asked.boxes)
            given = np.array(names.labels, object)[one.label]
            found.append(one)
            right.append((given == asked.label) & (not is_untrained))
            group.append(asked.group)
        if not parts:
            nothing = np.zeros(0)
            return _Held(
                Evidence(nothing.astype(int), nothing, nothing), nothing.astype(bool), nothing.astype(object)
            )
        evidence = Evidence(*(np.concatenate(columns) for columns in zip(*found, strict=True)))
        return _Held(evidence, np.concatenate(right), np.concatenate(group))

    def joined(self, other: _Held) -> _Held:
        evidence = Evidence(
            *(np.concatenate(pair) for pair in zip(self.evidence, other.evidence, strict=True))
        )
        return _Held(evidence, np.append(self.is_right, other.is_right), np.append(self.group, other.group))


def _folds(train: Examples) -> list[tuple[Examples, Examples]]:
    """(taught, asked) pairs; a box whose label only its own recordings have cannot be asked for: none where all are so."""
    groups = np.unique(train.group.astype(str))
    by = train.group.astype(str) if len(groups) >= 2 else np.arange(len(train.label)).astype(str)
    count = min(FOLDS, len(np.unique(by)))
    parts = []
    for taught, asked in GroupKFold(count).split(train.boxes, groups=by):
        asked = asked[np.isin(train.label[asked], train.label[taught])]
        if len(asked) and len(set(train.label[taught].tolist())) >= 2:
            parts.append((train.take(taught), train.take(asked)))
    return parts


def _label_folds(train: Examples) -> list[tuple[Examples, Examples]]:
    """Labels left out of the training in turn, and their boxes asked for."""
    labels = sorted(set(train.label.tolist()))
    count = min(FOLDS, len(labels))
    parts = []
    for number in range(count):
        left_out = np.isin(train.label, labels[number::count])
        if len(set(train.label[~left_out].tolist())) >= 2:
            parts.append((train.take(~left_out), train.take(left_out)))
    return parts


def fit_way(train: Examples, way: Way) -> Names:
    """A classifier without its confidence."""
    labels = tuple(sorted(set(train.label.tolist())))
    code = np.searchsorted(np.array(labels, object), train.label)
    numbers = box_numbers(train.embedding, train.boxes, way.uses_shape)
    mean, scale = numbers.mean(axis=0), numbers.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    if way.uses_shape:  # four numbers beside dozens: they weigh as much as a quarter of the embedding
        scale[train.embedding.shape[1] :] /= np.sqrt(max(train.embedding.shape[1] / 16, 1.0))
    standard = (numbers - mean) / scale
    direction = unit_vectors(standard).astype(np.float64)
    member = np.eye(len(labels))[code]  # (N, L)
    prototypes = unit_vectors(member.T @ direction).astype(np.float64)
    if way.kind == "prototype":
        similar = direction @ prototypes.T
        weights, bias = prototypes * _likeliest_scale(similar, code), np.zeros(len(labels))
    else:
        weights, bias = _discriminant(standard, code, len(labels))
    return Names(
        labels, way.kind, way.uses_shape, mean, scale, weights, bias, prototypes, np.zeros(3), EVEN_CHANCE
    )


def _likeliest_scale(similar: Floats, code: NDArray[np.int64]) -> float:
    """How sharply cosines become chances: the scale under which the examples' own labels are likeliest."""

    def likelihood(scale: float) -> float:
        logits = similar * scale
        highest = logits.max(axis=1)
        total = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
        return float((logits[np.arange(len(code)), code] - total).sum())

    return max(COSINE_SCALES, key=likelihood)


def _discriminant(standard: Floats, code: NDArray[np.int64], num_labels: int) -> tuple[Floats, Floats]:
    """(L, D) weights and (L,) biases of a linear discriminant with equal chances of all labels: how often a species was
    labelled says little about how often it calls elsewhere.

    One covariance for all labels, of the boxes around the means of theirs, shrunk as Ledoit and Wolf do it: a label with
    one box adds nothing to it.
    """
    means = np.stack([standard[code == number].mean(axis=0) for number in range(num_labels)])
    around = standard - means[code]
    spread = len(code) - num_labels  # degrees of freedom that the means leave
    if spread <= 0:  # one box each: nothing is known about their spread
        return means, -0.5 * np.square(means).sum(axis=1)
    covariance = ledoit_wolf(around, assume_centered=True)[0] * (len(code) / spread)
    covariance[np.diag_indices_from(covariance)] += 1e-6
    weights = np.linalg.solve(covariance, means.T).T
    return weights, -0.5 * (weights * means).sum(axis=1)


def limit_for_precision(
    confidence: Floats, is_right: Bools, weight: Floats, precision: float
) -> float | None:
    """The lowest confidence from which names are right as often as asked for; None: there is none."""
    order = np.argsort(-confidence, kind="stable")
    heavy = np.cumsum(weight[order])
    share = np.cumsum((weight * is_right)[order]) / np.maximum(heavy, 1e-12)
    ends = np.append(np.diff(confidence[order]) < 0, True)  # equal confidences stand or fall together
    good = np.flatnonzero((share >= precision) & ends & (np.arange(len(order)) + 1 >= LEAST_NAMED))
    return float(confidence[order][good[-1]]) if len(good) else None


def _weights(known: _Held, untrained: _Held) -> Floats:
    """Of boxes of known labels, then of labels left out, which weigh a quarter of all; the mean is 1."""
    share = UNTRAINED_SHARE if len(untrained.is_right) else 0.0
    numbers = len(known.is_right), len(untrained.is_right)
    parts = [np.full(num, part / max(num, 1)) for num, part in zip(numbers, (1 - share, share), strict=True)]
    return np.concatenate(parts) * sum(numbers)


def _fitted_confidence(known: _Held, untrained: _Held) -> Floats:
    """(3,) logistic curve over log-odds and similarity; boxes of labels left out weigh a quarter of all."""
    columns = np.concatenate([known.evidence.columns, untrained.evidence.columns])
    right = np.concatenate([known.is_right, untrained.is_right])
    weight = _weights(known, untrained)
    if right.all() or not right.any():
        return np.array([np.log(0.5 + right.sum()) - np.log(0.5 + (~right).sum()), 0.0, 0.0])
    spread = columns.std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    model = LogisticRegression(C=10.0).fit(columns / spread, right, sample_weight=weight)
    slopes = np.maximum(model.coef_[0], 0.0) / spread  # more evidence never speaks against a name
    if (model.coef_[0] >= 0).all():
        return np.array([float(model.intercept_[0]), *slopes])
    kept = LogisticRegression(C=10.0).fit((columns @ slopes)[:, None], right, sample_weight=weight)
    return np.array([float(kept.intercept_[0]), *(slopes * max(float(kept.coef_[0, 0]), 0.0))])
