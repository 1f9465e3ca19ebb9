"""Who may be heard where: the sources of clips and scenes (one animal, one recordist, one upload) are dealt
to the sides of a split by their hash, and a recording draws only from the sides its role allows.

`site_and_date` holds recordings of held-out dates and sites apart from all others. `four_ways` is the world as
an ecologist meets it: the pool holds animals that the expert never labelled (35 % of the sources), later dates
have some that were not there before (15 %, beside the labelled 25 %), and every unseen or development site has
its own (25 %, in equal parts). Scenes are dealt to the sites there, so no two sites share a background.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np

from mast_ray.soundscapes.clips import Clip, read_clips, side_of
from mast_ray.soundscapes.plan import RecordingPlan, SoundscapeSpec, site_name, site_role

ALL_SIDES: frozenset[str] = frozenset(("seen", "temporal", "site"))
# cumulative shares of the sources; what lies beyond belongs to unseen and development sites
FOUR_WAYS: tuple[tuple[float, str], ...] = ((0.25, "labelled"), (0.60, "pool"), (0.75, "date"))


def sides_of(plan: RecordingPlan) -> frozenset[str]:
    """The sources a recording may use: recordings that are split from each other share none."""
    match plan.spec.source_groups:
        case "none":
            return ALL_SIDES
        case "site":
            is_unseen = plan.role in ("site_ood", "site_pool", "ood_dev")
            return frozenset(("site",)) if is_unseen else frozenset(("seen", "temporal"))
        case "site_and_date":
            held_out = {
                "site_ood": "site",
                "site_pool": "site",
                "ood_dev": "site",
                "temporal_ood": "temporal",
            }
            return frozenset((held_out.get(plan.role, "seen"),))
        case "four_ways":
            return _four_way_sides(plan.role, plan.site_name)


def scene_sides_of(plan: RecordingPlan) -> frozenset[str]:
    """The scenes a recording may use: as its clips, or those of its site alone."""
    return frozenset((plan.site_name,)) if plan.spec.source_groups == "four_ways" else sides_of(plan)


def _four_way_sides(role: str, site: str) -> frozenset[str]:
    match role:
        case "labelled":
            return frozenset(("labelled",))
        case "temporal_ood":
            return frozenset(("labelled", "date"))
        case "pool":
            return frozenset(("labelled", "pool"))
        case _:
            return frozenset((site,))


def side_of_clip(source: str, spec: SoundscapeSpec) -> str:
    """The one side a clip's source belongs to."""
    if spec.source_groups != "four_ways":
        return side_of(source, spec.seed)
    place = _place(source, spec.seed)
    for limit, side in FOUR_WAYS:
        if place < limit:
            return side
    last = FOUR_WAYS[-1][0]
    num_apart = spec.num_held_out_sites + spec.num_dev_sites
    number = int((place - last) / (1.0 - last) * num_apart)
    return site_name(spec.num_sites - num_apart + number)


def side_of_scene(source: str, spec: SoundscapeSpec) -> str:
    """The one side, or the one site, a scene's source belongs to."""
    if spec.source_groups != "four_ways":
        return side_of(source, spec.seed)
    return site_name(int(_place(source, spec.seed) * spec.num_sites))


def _place(source: str, seed: int) -> float:
    """A number in [0, 1) that depends on source and seed alone."""
    digest = hashlib.sha256(f"{seed}:{source}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


@lru_cache(maxsize=64)
def clips_by_label(spec: SoundscapeSpec, sides: frozenset[str]) -> dict[str, tuple[Clip, ...]]:
    """Clips of each label whose source is on one of the sides."""
    assert spec.clips_dir is not None
    chosen: dict[str, list[Clip]] = {}
    for clip in read_clips(spec.clips_dir):
        if side_of_clip(clip.source, spec) in sides:
            chosen.setdefault(clip.label, []).append(clip)
    return {label: tuple(clips) for label, clips in chosen.items()}


@lru_cache(maxsize=64)
def world_labels(spec: SoundscapeSpec) -> tuple[str, ...]:
    """The labels of a world made of clips, in the order of its species.

    Where sites have their own sources every label takes part; otherwise those on every side do.
    """
    if spec.source_groups == "four_ways":
        assert spec.clips_dir is not None
        labels = sorted({clip.label for clip in read_clips(spec.clips_dir)})
    else:
        sides = [clips_by_label(spec, frozenset((side,))) for side in sorted(ALL_SIDES)]
        labels = sorted(set.intersection(*(set(side) for side in sides)))
        if spec.source_groups == "none" or not labels:
            labels = sorted(clips_by_label(spec, ALL_SIDES))
    order = np.random.default_rng([spec.seed, 5]).permutation(len(labels))[: spec.num_species]
    return tuple(labels[int(index)] for index in order)


@lru_cache(maxsize=4096)
def can_live_at(spec: SoundscapeSpec, site_index: int) -> tuple[bool, ...]:
    """Which species a site can have: those whose clips every one of its recordings may use."""
    if spec.clips_dir is None or spec.source_groups != "four_ways":
        return (True,) * spec.num_species
    own = clips_by_label(spec, _four_way_sides(site_role(spec, site_index), site_name(site_index)))
    labels = world_labels(spec)
    return tuple(index < len(labels) and labels[index] in own for index in range(spec.num_species))
