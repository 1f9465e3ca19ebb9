"""Augmentation of normalised chunks and their boxes together, batched and without waiting for the device.

Legend: B chunks, M box slots, T frames, F bins. First `draw_augmentation` makes every random number of a
batch, then `augment` applies them and is a pure function: the same draws give the same result, and it can
be compiled. One to three kinds are drawn per example. Values are normalised log-mel, so a shift of level is
an addition. What makes a site is level, colour and background: gain, equaliser, the statistics of another
site's chunk, its sound mixed in. What makes an animal is how high, how long and how wide it calls, and its melody: shifts,
and besides the zoom, which half of the augmented examples get, and time reversed.

Where a shift or a warp moves in from outside, the value is that of silence, as in padded chunks (the
paper's minimum-value padding). In frequency it may be the outermost bin again: boxes that reach the edge then reach it
still. A mask is filled with 0, the mean of the data, as in SpecAugment: silence would be a sharp edge.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mast_ray.boxes.batch import ChunkBatch, PaddedBoxes
from mast_ray.boxes.geometry import area, clip
from mast_ray.spectrogram.grid import fractional_frames
from mast_ray.spectrogram.mixing import MixDraw, draw_mixing, mix_background, mix_examples
from mast_ray.spectrogram.normalisation import Normalisation
from mast_ray.spectrogram.stretching import stretched, stretched_corners

if TYPE_CHECKING:
    from mast_ray.config.stage_knobs import AugmentConfig

HiddenBoxes = Literal["ignore", "remove"]

SHORTEST_REMNANT_FRAMES = 10.0  # 100 ms: a box that is cut to less is dropped, a naturally short one is not
LOWEST_REMNANT_BINS = 2.0
MOSTLY_HIDDEN = 0.5
LOG_PER_DB = 0.1 * math.log(10.0)  # log-mel is the natural logarithm of power
EQUALISER_POINTS = 5
ZOOMED_SHARE = 0.5  # of the examples that are augmented
BENT_SHARE = 0.5
FEWEST_WAVES, MOST_WAVES = 0.5, (4.0, 2.0)  # of a bend in a chunk, in time and in frequency
NEARLY_SILENT = 0.01  # above silence: backgrounds in half precision are rounded by half as much
LEAST_SPREAD = 0.05  # a bin that stays the same all the time has no spread to divide by


@dataclass(frozen=True)
class AugmentStrength:
    """Largest strengths; 0 switches a kind off. Levels are in normalised units."""

    most_per_example: int = 3
    time_shift_frames: int = 100
    frequency_shift_bins: int = 16
    time_warp: float = 0.1
    frequency_mask_bins: int = 12
    time_mask_frames: int = 50
    noise: float = 0.1
    gain: float = 0.3
    background: float = 0.3
    mixup: float = 0.0
    cutmix: float = 0.0
    gain_db: float = 0.0  # in place of gain
    equaliser_db: float = 0.0
    mix_style: float = 0.0
    shift_edges: Literal["silence", "repeat"] = "repeat"
    zoom: float = 2.0  # a factor: 1 switches it off
    reverse: float = 0.5  # share of the augmented examples
    bend: float = 0.0

    @property
    def needs_bank(self) -> bool:
        return self.background > 0 or self.mix_style > 0

    @classmethod
    def of_config(cls, config: AugmentConfig) -> AugmentStrength:
        """The knobs of `augment` with seconds turned into frames."""
        return cls(
            most_per_example=config.most_per_example,
            time_shift_frames=round(float(fractional_frames(config.time_shift_s))),
            frequency_shift_bins=config.frequency_shift_bins,
            time_warp=config.time_warp,
            frequency_mask_bins=config.frequency_mask_bins,
            time_mask_frames=round(float(fractional_frames(config.time_mask_s))),
            noise=config.noise,
            gain=config.gain,
            background=config.background,
            mixup=config.mixup,
            cutmix=config.cutmix,
            gain_db=config.gain_db,
            equaliser_db=config.equaliser_db,
            mix_style=config.mix_style,
            shift_edges=config.shift_edges,
            zoom=config.zoom,
            reverse=config.reverse,
            bend=config.bend,
        )


class Draws(NamedTuple):
    """Every random number of one batch. Kinds that were not chosen hold their neutral value."""

    shift_frames: Tensor  # (B,) integral float, neutral 0
    stretch: Tensor  # (B,) neutral 1
    shift_bins: Tensor  # (B,) int64, neutral 0
    band: Tensor  # (B, 2) masked [low, high) bins, neutral (0, 0)
    span: Tensor  # (B, 2) masked [begin, end) frames, neutral (0, 0)
    gain: Tensor  # (B,) in normalised units, or in decibels where the strength is; neutral 0
    noise: Tensor | None  # (B, 1, T, F), already scaled
    background_index: Tensor | None  # (B,) int64 into the noise bank
    background_power: Tensor | None  # (B,) power of the background, neutral 0
    mixing: MixDraw | None
    equaliser_db: Tensor | None = None  # (B, points), neutral 0
    style_share: Tensor | None = None  # (B,) neutral 0
    style_index: Tensor | None = None  # (B,) int64 into the noise bank; None: the next example lends its own
    zoom: Tensor | None = None  # (B, 2) factors of time and frequency, neutral 1
    zoom_about: Tensor | None = None  # (B, 2) frame and bin that stay where they are
    is_reversed: Tensor | None = None  # (B,) bool
    bends: Tensor | None = (
        None  # (B, 2, 3) strength, waves and phase in time and in frequency, neutral strength 0
    )


def draw_augmentation(
    batch: ChunkBatch,
    strength: AugmentStrength,
    probability: float,
    generator: torch.Generator,
    noise_bank_size: int = 0,
) -> Draws:
    """Random numbers for a batch, from a generator on its device. `probability`: share augmented at all."""
    num_chunks, _, num_frames, num_bins = batch.logmel.shape
    device = batch.logmel.device

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, device=device)

    size = {
        "shift": strength.time_shift_frames,
        "warp": strength.time_warp,
        "bins": strength.frequency_shift_bins,
        "band": strength.frequency_mask_bins,
        "span": strength.time_mask_frames,
        "gain": strength.gain_db or strength.gain,
        "noise": strength.noise,
        "background": strength.background if noise_bank_size else 0.0,
        "equaliser": strength.equaliser_db,
        "style": strength.mix_style,
    }
    kinds = [kind for kind, largest in size.items() if largest > 0]
    order = uniform(num_chunks, max(len(kinds), 1)).argsort(dim=1).argsort(dim=1)  # rank of every kind
    count = 1 + (uniform(num_chunks) * strength.most_per_example).floor()
    is_augmented = uniform(num_chunks) < probability
    chosen = (order < count[:, None]) & is_augmented[:, None]
    use = {kind: chosen[:, place].float() for place, kind in enumerate(kinds)}
    never = torch.zeros(num_chunks, device=device)

    def signed(kind: str) -> Tensor:
        return (uniform(num_chunks) * 2 - 1) * size[kind] * use.get(kind, never)

    def interval(kind: str, length: int) -> Tensor:
        width = (uniform(num_chunks) * size[kind]).ceil() * use.get(kind, never)
        begin = (uniform(num_chunks) * (length - width)).floor() * (width > 0)
        return torch.stack((begin, begin + width), dim=1)

    def place_in_bank() -> Tensor:
        return (uniform(num_chunks) * noise_bank_size).long().clamp(max=noise_bank_size - 1)

    noise = None
    if size["noise"] > 0:
        level = uniform(num_chunks) * size["noise"] * use["noise"]
        noise = (
            torch.randn(batch.logmel.shape, generator=generator, device=device) * level[:, None, None, None]
        )
    index = power = None
    if size["background"] > 0:
        index = place_in_bank()
        power = uniform(num_chunks) * size["background"] * use["background"]
    drawn = Draws(
        shift_frames=signed("shift").round(),
        stretch=1 + signed("warp"),
        shift_bins=signed("bins").round().long(),
        band=interval("band", num_bins),
        span=interval("span", num_frames),
        gain=signed("gain"),
        noise=noise,
        background_index=index,
        background_power=power,
        mixing=draw_mixing(batch, strength.mixup, strength.cutmix, generator),
    )
    # Drawn last, and only where switched on: the numbers of all other kinds stay what they were.
    if strength.equaliser_db > 0:
        points = (uniform(num_chunks, EQUALISER_POINTS) * 2 - 1) * strength.equaliser_db
        drawn = drawn._replace(equaliser_db=points * use["equaliser"][:, None])
    if strength.mix_style > 0:
        share = uniform(num_chunks) * strength.mix_style * use["style"]
        drawn = drawn._replace(style_share=share, style_index=place_in_bank() if noise_bank_size else None)
    if strength.zoom > 1:
        is_zoomed = is_augmented & (uniform(num_chunks) < ZOOMED_SHARE)
        power = (uniform(num_chunks, 2) * 2 - 1) * is_zoomed[:, None]
        about = torch.stack((uniform(num_chunks) * num_frames, uniform(num_chunks) * num_bins), dim=1)
        drawn = drawn._replace(zoom=strength.zoom**power, zoom_about=about)
    if strength.reverse > 0:
        drawn = drawn._replace(is_reversed=is_augmented & (uniform(num_chunks) < strength.reverse))
    if strength.bend > 0:
        is_bent = is_augmented & (uniform(num_chunks) < BENT_SHARE)
        power, waves, phase = uniform(num_chunks, 2, 3).unbind(2)
        ranges = [most - FEWEST_WAVES for most in MOST_WAVES]
        waves = FEWEST_WAVES + torch.stack([waves[:, axis] * ranges[axis] for axis in (0, 1)], dim=1)
        bends = (power * strength.bend * is_bent[:, None], waves, phase * 2 * math.pi)
        drawn = drawn._replace(bends=torch.stack(bends, dim=2))
    return drawn


def augment(
    batch: ChunkBatch,
    draws: Draws,
    strength: AugmentStrength,
    normalisation: Normalisation,
    noise_bank: Tensor | None = None,
    hidden_boxes: HiddenBoxes = "ignore",
) -> ChunkBatch:
    """Apply draws to (B, 1, T, F) chunks and their boxes. `noise_bank`: (K, T, F) normalised log-mel, any float.

    With Mixup or CutMix switched on, boxes come back in 2 M slots: those of both examples.
    """
    if draws.mixing is not None:
        batch = mix_examples(batch, draws.mixing, normalisation)
    logmel, boxes = batch.logmel.squeeze(1), batch.boxes
    num_frames, num_bins = logmel.shape[1:]
    bank = None if noise_bank is None else noise_bank.reshape(-1, num_frames, num_bins)
    if draws.is_reversed is not None:
        logmel = torch.where(draws.is_reversed[:, None, None], logmel.flip(1), logmel)
        back = torch.stack([num_frames - boxes.corners[..., 2], num_frames - boxes.corners[..., 0]], dim=-1)
        turned = torch.stack(
            [back[..., 0], boxes.corners[..., 1], back[..., 1], boxes.corners[..., 3]], dim=-1
        )
        boxes = replace(boxes, corners=torch.where(draws.is_reversed[:, None, None], turned, boxes.corners))
    if draws.zoom is not None or draws.bends is not None:
        still = torch.ones(len(logmel), 2, device=logmel.device)
        factors, about = (still if draw is None else draw for draw in (draws.zoom, draws.zoom_about))
        corners = stretched_corners(boxes.corners, factors, about, draws.bends, (num_frames, num_bins))
        logmel = stretched(logmel, factors, about, draws.bends, normalisation.silence)
        boxes = _to_the_edges(boxes, replace(boxes, corners=corners), num_bins)
        boxes = clip_boxes(boxes, num_frames, num_bins)  # what left the chunk is not there to be shifted back
    if strength.time_shift_frames > 0 or strength.time_warp > 0:
        logmel = _resample_time(logmel, draws, strength, normalisation.silence)
        middle = num_frames / 2
        scale, move = draws.stretch[:, None, None], draws.shift_frames[:, None, None]
        boxes = _move_boxes(boxes, 0, lambda time: (time - middle) * scale + middle + move)
    if strength.frequency_shift_bins > 0:
        fill = normalisation.silence if strength.shift_edges == "silence" else None
        logmel = _shift_bins(logmel, draws.shift_bins, fill)
        moved = _move_boxes(boxes, 1, lambda bins: bins + draws.shift_bins[:, None, None])
        boxes = moved if fill is not None else _to_the_edges(boxes, moved, num_bins)
    boxes = clip_boxes(boxes, num_frames, num_bins)
    if draws.style_share is not None:
        lender = logmel.roll(-1, dims=0)
        if bank is not None and draws.style_index is not None:
            lender = bank[draws.style_index].to(logmel.dtype)
        logmel = mix_style(logmel, lender, draws.style_share, normalisation.silence)
    if bank is not None and draws.background_index is not None and draws.background_power is not None:
        background = bank[draws.background_index].to(logmel.dtype)
        logmel = mix_background(logmel, background, draws.background_power, normalisation)
    per_db = LOG_PER_DB / normalisation.denominator
    logmel = logmel + draws.gain[:, None, None] * (per_db if strength.gain_db > 0 else 1.0)
    if draws.equaliser_db is not None:
        logmel = logmel + equaliser_curve(draws.equaliser_db, num_bins)[:, None, :] * per_db
    if draws.noise is not None:
        logmel = logmel + draws.noise.squeeze(1)
    logmel = logmel.masked_fill(_inside(draws.span, num_frames)[:, :, None], 0.0)
    logmel = logmel.masked_fill(_inside(draws.band, num_bins)[:, None, :], 0.0)
    boxes = _hide_boxes(boxes, draws, hidden_boxes)
    return replace(batch, logmel=logmel.unsqueeze(1), boxes=boxes)


def clip_boxes(boxes: PaddedBoxes, num_frames: float, num_bins: float) -> PaddedBoxes:
    """Boxes cut at the border of the chunk; remnants under 100 ms or 2 bins go, small calls are kept."""
    corners = clip(boxes.corners, num_frames, num_bins)
    before, after = boxes.corners[..., 2:] - boxes.corners[..., :2], corners[..., 2:] - corners[..., :2]
    is_long_enough = after[..., 0] >= before[..., 0].clamp(max=SHORTEST_REMNANT_FRAMES) - 1e-3
    is_high_enough = after[..., 1] >= before[..., 1].clamp(max=LOWEST_REMNANT_BINS) - 1e-3
    is_large_enough = is_long_enough & is_high_enough & (area(corners) > 0)
    return _keep(PaddedBoxes(corners, boxes.is_object, boxes.is_ignored), is_large_enough)


def _keep(boxes: PaddedBoxes, keep: Tensor) -> PaddedBoxes:
    return PaddedBoxes(
        boxes.corners * (keep & (boxes.is_object | boxes.is_ignored))[..., None],
        boxes.is_object & keep,
        boxes.is_ignored & keep,
    )


def _move_boxes(boxes: PaddedBoxes, axis: int, move: Callable[[Tensor], Tensor]) -> PaddedBoxes:
    corners = boxes.corners.clone()
    corners[..., axis::2] = move(boxes.corners[..., axis::2])
    return replace(boxes, corners=corners)


def _to_the_edges(boxes: PaddedBoxes, moved: PaddedBoxes, num_bins: int) -> PaddedBoxes:
    """Moved boxes of which those that reached the middle of the lowest or highest bin reach the edge: where this bin is
    repeated, so is what is in it.
    """
    t0, f0, t1, f1 = moved.corners.unbind(-1)
    low = torch.where(boxes.corners[..., 1] < 0.5, f0.clamp(max=0), f0)
    high = torch.where(boxes.corners[..., 3] > num_bins - 0.5, f1.clamp(min=num_bins), f1)
    return replace(moved, corners=torch.stack((t0, low, t1, high), dim=-1))


def _resample_time(logmel: Tensor, draws: Draws, strength: AugmentStrength, silence: float) -> Tensor:
    """(B, T, F) shifted and stretched about its middle; frames from outside are silence."""
    num_chunks, num_frames, num_bins = logmel.shape
    middle = num_frames / 2
    frame = torch.arange(num_frames, device=logmel.device)[None, :] + 0.5
    wanted = (frame - middle - draws.shift_frames[:, None]) / draws.stretch[:, None] + middle - 0.5  # (B, T)
    below = wanted.floor()
    first_row = torch.arange(num_chunks, device=logmel.device)[:, None] * num_frames
    rows = logmel.reshape(-1, num_bins)

    def take(index: Tensor) -> Tensor:
        flat = (index.long().clamp(0, num_frames - 1) + first_row).flatten()
        return rows.index_select(0, flat).view(num_chunks, num_frames, num_bins)

    out = take(below)
    if strength.time_warp > 0:
        out = torch.lerp(out, take(below + 1), (wanted - below)[..., None].to(out.dtype))
    outside = (wanted < -0.5) | (wanted > num_frames - 0.5)
    return out.masked_fill(outside[..., None], silence)


def equaliser_curve(points: Tensor, num_bins: int) -> Tensor:
    """(B, points) levels, evenly spread from the lowest bin to the highest -> (B, F), straight between them."""
    return functional.interpolate(points[:, None], size=num_bins, mode="linear", align_corners=True)[:, 0]


def mix_style(logmel: Tensor, lender: Tensor, share: Tensor, silence: float) -> Tensor:
    """(B, T, F) chunks with the mean and spread over time of every bin moved by (B,) shares towards the lender's.

    Freq-MixStyle (Kim et al. 2022). Padded frames neither count nor change.
    """
    is_sound = (logmel > silence + NEARLY_SILENT).any(dim=2, keepdim=True)  # (B, T, 1)
    mean, spread = _statistics(logmel, is_sound)
    their_mean, their_spread = _statistics(
        lender, (lender > silence + NEARLY_SILENT).any(dim=2, keepdim=True)
    )
    weight = share[:, None, None]
    new_spread = torch.lerp(spread, their_spread, weight)
    styled = (logmel - mean) * (new_spread / spread) + torch.lerp(mean, their_mean, weight)
    return torch.where(is_sound & (weight > 0), styled, logmel)


def _statistics(logmel: Tensor, is_sound: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T, F) -> (B, 1, F) mean and standard deviation over the frames that sound"""
    weight = is_sound.to(logmel.dtype)
    count = weight.sum(dim=1, keepdim=True).clamp(min=1)
    mean = (logmel * weight).sum(dim=1, keepdim=True) / count
    square = ((logmel - mean).square() * weight).sum(dim=1, keepdim=True) / count
    return mean, square.sqrt().clamp(min=LEAST_SPREAD)


def _shift_bins(logmel: Tensor, shift_bins: Tensor, silence: float | None) -> Tensor:
    """(B, T, F) moved up by (B,) bins; bins from outside are silence, or (None) the outermost bin again."""
    num_bins = logmel.shape[2]
    source = torch.arange(num_bins, device=logmel.device)[None, :] - shift_bins[:, None]  # (B, F)
    out = logmel.gather(2, source.clamp(0, num_bins - 1)[:, None, :].expand_as(logmel))
    if silence is None:
        return out
    return out.masked_fill(((source < 0) | (source >= num_bins))[:, None, :], silence)


def _inside(interval: Tensor, length: int) -> Tensor:
    """(B, 2) intervals -> (B, length) whether a place lies in it."""
    place = torch.arange(length, device=interval.device)[None, :]
    return (place >= interval[:, :1]) & (place < interval[:, 1:])


def _hide_boxes(boxes: PaddedBoxes, draws: Draws, hidden_boxes: HiddenBoxes) -> PaddedBoxes:
    """Boxes mostly under the masks become ignore regions or are removed."""
    visible = torch.ones_like(boxes.is_object, dtype=torch.float32)
    for axis, interval in ((0, draws.span), (1, draws.band)):
        low, high = boxes.corners[..., axis], boxes.corners[..., axis + 2]
        shared = torch.minimum(high, interval[:, 1:]) - torch.maximum(low, interval[:, :1])
        visible = visible * (1 - shared.clamp(min=0) / (high - low).clamp(min=1e-6))
    hidden = boxes.is_object & (1 - visible > MOSTLY_HIDDEN)
    match hidden_boxes:
        case "ignore":
            return PaddedBoxes(boxes.corners, boxes.is_object & ~hidden, boxes.is_ignored | hidden)
        case "remove":
            return _keep(boxes, ~hidden)
