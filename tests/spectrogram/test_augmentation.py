"""Spectrogram and boxes move together."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from augmentations import EVERY_AUGMENTATION
from hypothesis import given, settings
from hypothesis import strategies as st

from mast_ray.boxes.batch import ChunkBatch, pad_boxes
from mast_ray.config.loading import apply_overrides
from mast_ray.config.recipes import field
from mast_ray.config.stage_knobs import AugmentConfig
from mast_ray.spectrogram.augmentation import (
    AugmentStrength,
    Draws,
    augment,
    draw_augmentation,
    equaliser_curve,
    mix_style,
)
from mast_ray.spectrogram.mixing import MixDraw, mix_background
from mast_ray.spectrogram.normalisation import Normalisation

T, F = 256, 64
NORMALISATION = Normalisation(mean=-6.0, std=3.0)
SILENCE = NORMALISATION.silence
ALL = AugmentStrength(shift_edges="silence", zoom=1.0, reverse=0.0)


def painted(*calls: tuple[int, int, int, int], num_chunks: int = 1) -> ChunkBatch:
    """Chunks of zeros in which every call is a rectangle of 5 with its exact box."""
    logmel = torch.zeros(num_chunks, 1, T, F)
    for t0, f0, t1, f1 in calls:
        logmel[:, :, t0:t1, f0:f1] = 5.0
    boxes = torch.tensor(calls, dtype=torch.float32).reshape(-1, 4)
    return ChunkBatch(logmel, pad_boxes([boxes] * num_chunks), torch.ones(num_chunks))


def draws(num_chunks: int = 1, **changes: object) -> Draws:
    zeros = torch.zeros(num_chunks)
    nowhere = torch.zeros(num_chunks, 2)
    neutral = Draws(zeros, zeros + 1, zeros.long(), nowhere, nowhere, zeros, None, None, None, None)
    return neutral._replace(**changes)


def applied(batch: ChunkBatch, drawn: Draws, **options: object) -> ChunkBatch:
    return augment(batch, drawn, ALL, NORMALISATION, **options)


def objects(batch: ChunkBatch, row: int = 0) -> list[list[float]]:
    return batch.boxes.corners[row][batch.boxes.is_object[row]].tolist()


def measured_box(logmel: torch.Tensor) -> list[int]:
    """Smallest rectangle around all values of (T, F) above 2.5."""
    loud = (logmel > 2.5).nonzero()
    low, high = loud.min(dim=0).values, loud.max(dim=0).values + 1
    return [*low.tolist(), *high.tolist()]


def test_neutral_draws_change_nothing() -> None:
    batch = painted((50, 10, 90, 30))
    result = applied(batch, draws())
    assert torch.equal(result.logmel, batch.logmel)
    assert torch.equal(result.boxes.corners, batch.boxes.corners)


@settings(max_examples=40, deadline=None)
@given(st.integers(-100, 100), st.integers(-4, 4), st.floats(0.9, 1.1))
def test_a_call_lies_in_its_box_after_shift_and_warp(frames: int, bins: int, stretch: float) -> None:
    batch = painted((110, 20, 150, 40))
    drawn = draws(
        shift_frames=torch.tensor([float(frames)]),
        shift_bins=torch.tensor([bins]),
        stretch=torch.tensor([stretch]),
    )
    result = applied(batch, drawn)
    if not objects(result):
        assert (result.logmel > 2.5).sum() < 10 * F  # under 100 ms is left
        return
    box = objects(result)[0]
    assert np.abs(np.array(measured_box(result.logmel[0, 0])) - box).max() <= 1.0
    assert box[1::2] == [20 + bins, 40 + bins]


@pytest.mark.parametrize("factors", [(2.0, 0.5), (0.5, 1.5), (1.0, 1.0), (1.7, 2.0)])
@pytest.mark.parametrize("about", [(128.0, 32.0), (90.0, 20.0)])
def test_a_call_lies_in_its_box_after_a_zoom_about_any_place(
    factors: tuple[float, float], about: tuple[float, float]
) -> None:
    batch = painted((100, 24, 140, 36))
    zoomed = applied(batch, draws(zoom=torch.tensor([factors]), zoom_about=torch.tensor([about])))
    (box,) = objects(zoomed)
    expected = [
        min(max((x - m) * z + m, 0), size)
        for x, z, m, size in zip((100, 24, 140, 36), factors * 2, about * 2, (T, F) * 2, strict=True)
    ]
    assert box == pytest.approx(expected, abs=1e-3)
    assert measured_box(zoomed.logmel[0, 0]) == pytest.approx(box, abs=1.01)


def test_a_pressed_chunk_is_padded_with_silence_in_time_and_its_edge_in_frequency() -> None:
    batch = painted((0, 0, T, 4))
    pressed = applied(batch, draws(zoom=torch.tensor([[0.5, 0.5]]), zoom_about=torch.tensor([[128.0, 32.0]])))
    logmel = pressed.logmel[0, 0]
    assert torch.all(logmel[:63] == SILENCE) and torch.all(logmel[-63:] == SILENCE)
    assert torch.all(logmel[66:-66, :15] == 5.0) and torch.all(logmel[66:-66, 20:] == 0.0)


def test_played_backwards_a_call_begins_where_it_ended() -> None:
    batch = painted((30, 24, 50, 36))
    turned = applied(batch, draws(is_reversed=torch.tensor([True])))
    assert objects(turned) == [[T - 50, 24, T - 30, 36]]
    assert measured_box(turned.logmel[0, 0]) == [T - 50, 24, T - 30, 36]
    unturned = applied(batch, draws(is_reversed=torch.tensor([False])))
    assert objects(unturned) == [[30, 24, 50, 36]] and torch.equal(unturned.logmel, batch.logmel)


def test_so_many_of_the_augmented_are_played_backwards() -> None:
    drawn = drawn_many(replace(ALL, reverse=0.25), 0.8)
    assert drawn.is_reversed.float().mean() == pytest.approx(0.2, abs=0.04)
    without = drawn_many(ALL, 0.8)
    assert torch.equal(drawn.shift_frames, without.shift_frames) and without.is_reversed is None


def test_what_a_zoom_pushed_out_is_not_shifted_back_as_an_empty_box() -> None:
    batch = painted((200, 24, 220, 36))
    out = draws(
        zoom=torch.tensor([[4.0, 1.0]]),
        zoom_about=torch.tensor([[0.0, 0.0]]),
        shift_frames=torch.tensor([-100.0]),
    )
    assert objects(applied(batch, out)) == []


BENDS = st.tuples(st.floats(0, 0.8), st.floats(0.5, 4), st.floats(0, 6.3))  # strength, waves, phase


@settings(max_examples=60, deadline=None)
@given(BENDS, BENDS)
def test_a_call_lies_in_its_box_after_a_bend(time: tuple[float, ...], frequency: tuple[float, ...]) -> None:
    batch = painted((110, 26, 150, 38))
    bent = applied(batch, draws(bends=torch.tensor([[time, frequency]])))
    if not objects(bent):
        return  # moved out of the chunk
    assert measured_box(bent.logmel[0, 0]) == pytest.approx(objects(bent)[0], abs=1.51)


def test_a_bend_after_a_zoom_by_hand() -> None:
    """Half a wave over the chunk: sound comes from `place + 0.5 * T / pi * sin(pi * place / T)`."""
    batch = painted((64, 16, 192, 32))
    half_wave = torch.tensor([[[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]])
    result = applied(
        batch, draws(zoom=torch.tensor([[0.5, 2.0]]), zoom_about=torch.tensor([[0.0, 16.0]]), bends=half_wave)
    )
    (box,) = objects(result)
    for before, after in ((32.0, box[0]), (96.0, box[2])):  # where the zoom alone puts the call
        assert after + 0.5 * T / np.pi * np.sin(np.pi * after / T) == pytest.approx(before, abs=1e-3)
    assert box[1::2] == [16.0, 48.0]


def test_half_of_the_augmented_are_bent_and_the_other_draws_stay_as_they_were() -> None:
    drawn, without = drawn_many(replace(ALL, bend=0.6), 0.8), drawn_many(ALL, 0.8)
    strength, waves, phase = drawn.bends.unbind(2)
    assert (strength > 0).all(dim=1).float().mean() == pytest.approx(0.4, abs=0.05)
    assert 0.5 < strength.max() <= 0.6 and (waves >= 0.5).all() and (phase < 6.3).all()
    assert waves.amax(dim=0).tolist() == pytest.approx([4.0, 2.0], abs=0.1)
    assert torch.equal(drawn.shift_frames, without.shift_frames) and without.bends is None


def test_half_of_the_augmented_are_zoomed_by_factors_as_often_above_one_as_below() -> None:
    drawn = drawn_many(replace(ALL, zoom=2.0), 0.8)
    is_zoomed = (drawn.zoom != 1).any(dim=1)
    assert is_zoomed.float().mean() == pytest.approx(0.4, abs=0.05)
    assert 0.5 <= drawn.zoom.min() < 0.55 and 1.9 < drawn.zoom.max() <= 2.0
    assert drawn.zoom[is_zoomed].log().mean() == pytest.approx(0.0, abs=0.05)
    without = drawn_many(ALL, 0.8)
    assert torch.equal(drawn.shift_frames, without.shift_frames) and without.zoom is None


def test_what_moves_in_from_outside_is_silence() -> None:
    result = applied(painted(), draws(shift_frames=torch.tensor([30.0]), shift_bins=torch.tensor([-3])))
    logmel = result.logmel[0, 0]
    assert (logmel[:30] == SILENCE).all() and (logmel[:, -3:] == SILENCE).all()
    assert (logmel[30:, :-3] == 0).all()
    squeezed = applied(painted(), draws(stretch=torch.tensor([0.5]))).logmel[0, 0, :, 0]
    assert (
        (squeezed[:63] == SILENCE).all()
        and (squeezed[65:191] == 0).all()
        and (squeezed[193:] == SILENCE).all()
    )


def test_a_box_shifted_to_the_border_is_clipped_and_a_remnant_under_100_ms_is_dropped() -> None:
    batch = painted((0, 10, 40, 30), (100, 10, 105, 12))
    assert objects(applied(batch, draws(shift_frames=torch.tensor([-25.0])))) == [
        [0, 10, 15, 30],
        [75, 10, 80, 12],
    ]
    assert objects(applied(batch, draws(shift_frames=torch.tensor([-31.0])))) == [[69, 10, 74, 12]]
    assert objects(applied(batch, draws(shift_frames=torch.tensor([-200.0])))) == []


@pytest.mark.parametrize("hidden_boxes", ["ignore", "remove"])
def test_a_mostly_masked_box_becomes_an_ignore_region_in_field_and_goes_in_paper(hidden_boxes: str) -> None:
    batch = painted((50, 10, 90, 20), (50, 30, 90, 50))
    drawn = draws(band=torch.tensor([[14.0, 36.0]]))  # hides 6 of 10 bins, and 6 of 20
    result = applied(batch, drawn, hidden_boxes=hidden_boxes)
    assert objects(result) == [[50, 30, 90, 50]]
    assert (result.logmel[..., 14:36] == 0).all() and (result.logmel[0, 0, 60, 36:50] == 5).all()
    ignored = result.boxes.corners[result.boxes.is_ignored].tolist()
    assert ignored == ([[50, 10, 90, 20]] if hidden_boxes == "ignore" else [])


def test_time_and_frequency_masks_together_hide_more_than_each() -> None:
    batch = painted((50, 10, 90, 20))
    band, span = torch.tensor([[10.0, 14.0]]), torch.tensor([[50.0, 66.0]])  # 0.4 each, 0.64 together
    assert objects(applied(batch, draws(band=band))) and objects(applied(batch, draws(span=span)))
    assert objects(applied(batch, draws(band=band, span=span))) == []


def test_gain_and_noise_leave_boxes_alone() -> None:
    batch = painted((50, 10, 90, 20))
    noise = torch.full((1, 1, T, F), 0.25)
    result = applied(batch, draws(gain=torch.tensor([0.5]), noise=noise))
    assert torch.equal(result.logmel, batch.logmel + 0.75) and objects(result) == objects(batch)


def test_background_is_added_in_power() -> None:
    batch = painted(num_chunks=2)
    bank = torch.stack((torch.full((T, F), -1.0), torch.full((T, F), 0.5)))
    drawn = draws(2, background_index=torch.tensor([1, 0]), background_power=torch.tensor([0.3, 0.0]))
    result = applied(batch, drawn, noise_bank=bank).logmel
    power = np.exp(-6.0) + 0.3 * np.exp(0.5 * (3 + 1e-6) - 6.0)
    torch.testing.assert_close(result[0], torch.full((1, T, F), (np.log(power) + 6.0) / (3 + 1e-6)).float())
    torch.testing.assert_close(result[1], batch.logmel[1])


def test_mixup_adds_both_sounds_and_keeps_both_boxes() -> None:
    one, other = painted((20, 10, 60, 20)), painted((100, 30, 140, 40))
    batch = ChunkBatch(
        torch.cat((one.logmel, other.logmel)),
        pad_boxes([torch.tensor(objects(one)), torch.tensor(objects(other))]),
        torch.tensor([1.0, 0.5]),
    )
    mixing = MixDraw(torch.tensor([0.4, 0.0]), torch.zeros(2), torch.full((2,), float(T)))
    result = applied(batch, draws(2, mixing=mixing))
    assert objects(result, 0) == [[20, 10, 60, 20], [100, 30, 140, 40]]
    assert objects(result, 1) == [[100, 30, 140, 40]]
    expected = np.log(0.6 * np.exp(15.0) + 0.4) / 3.0
    assert result.logmel[0, 0, 30, 15].item() == pytest.approx(expected, abs=1e-4)
    torch.testing.assert_close(result.logmel[1], other.logmel[0], atol=1e-5, rtol=0)
    assert result.weight.tolist() == [0.75, 0.5]


def test_a_chunk_mixed_with_a_pseudo_labelled_one_is_pseudo_labelled_too() -> None:
    chunks = [painted((20, 10, 60, 20)) for _ in range(4)]
    batch = ChunkBatch(
        torch.cat([chunk.logmel for chunk in chunks]),
        pad_boxes([torch.tensor(objects(chunk)) for chunk in chunks]),
        torch.ones(4),
        is_pseudo=torch.tensor([False, False, True, False]),
    )
    # mixup of the first two with their neighbours, cutmix of the third, nothing of the last
    own_end = torch.tensor([float(T), T, 100.0, T])
    mixing = MixDraw(torch.tensor([0.4, 0.4, 0.0, 0.0]), torch.zeros(4), own_end)
    result = applied(batch, draws(4, mixing=mixing))
    assert result.is_pseudo is not None
    assert result.is_pseudo.tolist() == [False, True, True, False]


def test_cutmix_takes_one_side_of_the_seam_from_the_partner_and_clips_boxes_there() -> None:
    one, other = painted((80, 10, 120, 20), (10, 40, 50, 50)), painted((95, 30, 200, 40), (20, 5, 60, 9))
    batch = ChunkBatch(
        torch.cat((one.logmel, other.logmel)),
        pad_boxes([torch.tensor(objects(one)), torch.tensor(objects(other))]),
        torch.ones(2),
    )
    first_stays = MixDraw(torch.zeros(2), torch.zeros(2), torch.tensor([100.0, 256.0]))
    result = applied(batch, draws(2, mixing=first_stays))
    assert objects(result, 0) == [[80, 10, 100, 20], [10, 40, 50, 50], [100, 30, 200, 40]]
    torch.testing.assert_close(result.logmel[0, :, :100], one.logmel[0, :, :100], atol=1e-5, rtol=0)
    torch.testing.assert_close(result.logmel[0, :, 100:], other.logmel[0, :, 100:], atol=1e-5, rtol=0)
    end_stays = MixDraw(torch.zeros(2), torch.tensor([100.0, 0.0]), torch.full((2,), 256.0))
    result = applied(batch, draws(2, mixing=end_stays))
    # 5 frames of the partner's long call lie before the seam: under 100 ms, dropped
    assert objects(result, 0) == [[100, 10, 120, 20], [20, 5, 60, 9]]


def drawn_many(strength: AugmentStrength, probability: float, num_chunks: int = 2000, bank: int = 4) -> Draws:
    batch = ChunkBatch(
        torch.zeros(num_chunks, 1, 16, 16), pad_boxes([torch.zeros(0, 4)] * num_chunks), torch.ones(1)
    )
    return draw_augmentation(batch, strength, probability, torch.Generator().manual_seed(0), bank)


def kinds_used(drawn: Draws) -> torch.Tensor:
    return torch.stack(
        [
            drawn.shift_frames != 0,
            drawn.stretch != 1,
            drawn.shift_bins != 0,
            drawn.band[:, 1] > 0,
            drawn.span[:, 1] > 0,
            drawn.gain != 0,
            drawn.noise.flatten(1).any(1),
            drawn.background_power > 0,
        ],
        dim=1,
    )


def test_one_to_three_kinds_are_drawn_per_example_and_about_ten_percent_stay_as_they_are() -> None:
    used = kinds_used(drawn_many(ALL, 0.9))
    assert used.sum(1).max() == 3
    assert (used.sum(1) == 0).float().mean().item() == pytest.approx(
        0.1, abs=0.04
    )  # a drawn shift may round to 0
    share = used.float().mean(0)
    assert share.min() > 0.15 and share.max() < 0.3  # 0.9 x 2 / 8 = 0.225 each


def test_probability_zero_and_strength_zero_leave_everything_alone() -> None:
    assert not kinds_used(drawn_many(ALL, 0.0, 100)).any()
    off = AugmentStrength(time_shift_frames=0, time_warp=0, noise=0, background=0)
    drawn = drawn_many(off, 1.0, 500)
    assert drawn.noise is None and drawn.background_power is None
    assert (drawn.shift_frames == 0).all() and (drawn.stretch == 1).all() and (drawn.gain != 0).any()


def test_strengths_are_never_exceeded() -> None:
    drawn = drawn_many(AugmentStrength(frequency_mask_bins=5, time_mask_frames=9), 1.0)
    assert drawn.shift_frames.abs().max() <= 100 and drawn.shift_bins.abs().max() == 16
    assert (drawn.stretch - 1).abs().max() <= 0.1 and drawn.gain.abs().max() <= 0.3
    assert (drawn.band[:, 1] - drawn.band[:, 0]).max() == 5 and drawn.band.max() <= 16
    assert (drawn.span[:, 1] - drawn.span[:, 0]).max() == 9 and drawn.span.max() <= 16
    assert drawn.background_index.unique().tolist() == [0, 1, 2, 3]


def test_the_same_seed_gives_the_same_batch_and_another_seed_another() -> None:
    batch = painted((50, 10, 90, 30), num_chunks=8)
    strength = AugmentStrength(mixup=0.3, cutmix=0.3)
    bank = torch.randn(3, T, F, generator=torch.Generator().manual_seed(1))

    def once(seed: int) -> ChunkBatch:
        drawn = draw_augmentation(batch, strength, 1.0, torch.Generator().manual_seed(seed), 3)
        return augment(batch, drawn, strength, NORMALISATION, bank)

    assert torch.equal(once(1).logmel, once(1).logmel)
    assert torch.equal(once(1).boxes.corners, once(1).boxes.corners)
    assert not torch.equal(once(1).logmel, once(2).logmel)


def test_a_single_chunk_has_no_partner_to_mix_with() -> None:
    strength = AugmentStrength(mixup=1.0)
    assert draw_augmentation(painted(), strength, 1.0, torch.Generator().manual_seed(0)).mixing is None


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10_000))
def test_boxes_stay_inside_the_chunk_and_empty_slots_stay_empty(seed: int) -> None:
    batch = painted((0, 0, 30, 10), (100, 20, 256, 64), (120, 30, 125, 32), num_chunks=6)
    strength = AugmentStrength(mixup=0.3, cutmix=0.3, time_shift_frames=200)
    drawn = draw_augmentation(batch, strength, 1.0, torch.Generator().manual_seed(seed))
    boxes = augment(batch, drawn, strength, NORMALISATION).boxes
    t0, f0, t1, f1 = boxes.corners.unbind(-1)
    used = boxes.is_object | boxes.is_ignored
    assert ((t0 >= 0) & (t1 <= T) & (f0 >= 0) & (f1 <= F)).all()
    assert ((t1 > t0) & (f1 > f0))[used].all() and (boxes.corners[~used] == 0).all()
    assert not (boxes.is_object & boxes.is_ignored).any()


def test_strengths_come_from_the_config_with_seconds_in_frames() -> None:
    assert AugmentStrength.of_config(AugmentConfig()) == AugmentStrength()
    assert AugmentStrength.of_config(AugmentConfig(time_shift_s=0.29, mixup=0.2)).time_shift_frames == 29


def noisy(num_chunks: int = 1, level: float = 0.0, seed: int = 0) -> torch.Tensor:
    """(B, T, F) noise as log-mel has it: the logarithm of exponentially distributed power."""
    generator = torch.Generator().manual_seed(seed)
    power = -torch.rand(num_chunks, T, F, generator=generator).clamp(min=1e-6).log()
    return power.log() / NORMALISATION.denominator + level


def test_kinds_that_did_not_help_are_off_by_default_and_draw_nothing() -> None:
    batch = painted((110, 20, 150, 40), num_chunks=5)
    old = AugmentStrength.of_config(AugmentConfig())
    drawn = draw_augmentation(batch, old, 1.0, torch.Generator().manual_seed(3), noise_bank_size=4)
    assert (drawn.equaliser_db, drawn.style_share, drawn.style_index) == (None,) * 3


def test_gain_in_decibels_is_a_tenth_of_a_factor_of_ten_in_power() -> None:
    batch = painted((50, 10, 90, 30))
    strength = replace(ALL, gain_db=12.0)
    result = augment(batch, draws(gain=torch.tensor([10.0])), strength, NORMALISATION)
    step = (result.logmel - batch.logmel) * NORMALISATION.denominator
    assert torch.allclose(step, torch.full_like(step, math.log(10.0)), atol=1e-4)
    drawn = draw_augmentation(painted(num_chunks=400), strength, 1.0, torch.Generator().manual_seed(0))
    assert 11 < float(drawn.gain.abs().max()) <= 12


def test_the_equaliser_is_straight_between_five_points_and_the_same_in_every_frame() -> None:
    points = torch.tensor([[0.0, 10.0, -10.0, 0.0, 5.0]])
    curve = equaliser_curve(points, 65)  # a point every 16 bins
    assert curve[0, [0, 16, 32, 48, 64]].tolist() == points[0].tolist()
    assert curve[0, 8] == pytest.approx(5.0) and curve[0, 20] == pytest.approx(5.0)
    batch = painted((50, 10, 90, 30))
    result = applied(batch, draws(equaliser_db=torch.full((1, 5), 10.0)))
    step = (result.logmel - batch.logmel) * NORMALISATION.denominator
    assert torch.allclose(step, torch.full_like(step, math.log(10.0)), atol=1e-4)


def test_repeated_edges_carry_the_outermost_bin_into_what_a_shift_opens() -> None:
    batch = painted((50, 10, 90, 30))
    batch.logmel[..., 0] = 1.5
    drawn = draws(shift_bins=torch.tensor([16]))
    result = augment(batch, drawn, replace(ALL, shift_edges="repeat"), NORMALISATION)
    assert (result.logmel[..., :17] == 1.5).all()
    assert objects(result) == [[50, 26, 90, 46]]


@pytest.mark.parametrize("band", [(0, 12), (F - 12, F), (0, F), (20, 40)])
@pytest.mark.parametrize("bins", [-4, 0, 5])
@pytest.mark.parametrize("factor", [0.5, 1.0, 1.2])
def test_what_reaches_the_edge_of_the_band_is_repeated_and_its_box_with_it(
    band: tuple[int, int], bins: int, factor: float
) -> None:
    """A copy of the call beside its box would be taught as background, as would be what nobody listened to."""
    batch = painted((50, band[0], 90, band[1]))
    drawn = draws(
        shift_bins=torch.tensor([bins]),
        zoom=torch.tensor([[1.0, factor]]),
        zoom_about=torch.tensor([[0.0, 30.0]]),
    )
    result = augment(batch, drawn, replace(ALL, shift_edges="repeat"), NORMALISATION)
    (box,) = objects(result)
    assert measured_box(result.logmel[0, 0]) == pytest.approx(box, abs=1.01)


@pytest.mark.parametrize(
    ("band", "bins", "factor"), [((0.4, 12), 5, 0.5), ((52, F - 0.3), -4, 0.5), ((52, F - 0.3), -4, 1.0)]
)
def test_a_box_that_ends_within_the_outermost_bin_reaches_the_edge_of_the_band(
    band: tuple[float, float], bins: int, factor: float
) -> None:
    """A teacher's boxes and those of a label in Hz end between two edges of bins: the bin is as loud, and repeated as well."""
    batch = painted((50, math.floor(band[0]), 90, math.ceil(band[1])))
    batch.boxes.corners[0, 0] = torch.tensor([50.0, band[0], 90.0, band[1]])
    zoom = {"zoom": torch.tensor([[1.0, factor]]), "zoom_about": torch.tensor([[0.0, 30.0]])}
    drawn = draws(shift_bins=torch.tensor([bins]), **zoom)
    result = augment(batch, drawn, replace(ALL, shift_edges="repeat"), NORMALISATION)
    (box,) = objects(result)
    assert measured_box(result.logmel[0, 0]) == pytest.approx(box, abs=1.01)


def test_style_takes_mean_and_spread_of_every_bin_from_the_lender() -> None:
    own, lender = noisy(2, seed=1), noisy(2, level=1.0, seed=2) * 0.5
    full = mix_style(own, lender, torch.tensor([1.0, 0.0]), SILENCE)
    assert torch.allclose(full[0].mean(0), lender[0].mean(0), atol=1e-4)
    assert torch.allclose(full[0].std(0), lender[0].std(0), rtol=1e-3)
    assert torch.equal(full[1], own[1])
    half = mix_style(own, lender, torch.tensor([0.5, 0.0]), SILENCE)
    assert torch.allclose(half[0].mean(0), (own[0].mean(0) + lender[0].mean(0)) / 2, atol=1e-4)


def test_style_leaves_padding_alone_and_does_not_count_it() -> None:
    own, lender = noisy(1, seed=1), noisy(1, level=1.0, seed=2)
    own[:, 100:] = SILENCE
    styled = mix_style(own, lender, torch.ones(1), SILENCE)
    assert (styled[:, 100:] == SILENCE).all()
    assert torch.allclose(styled[0, :100].mean(0), lender[0].mean(0), atol=1e-4)


def test_style_does_not_count_the_padding_of_a_lender_in_half_precision() -> None:
    """Backgrounds of the pool are kept so: -5.4545 becomes -5.4531, which is no sound."""
    silence = Normalisation(0.0, 1.1, background="median").silence
    own, lender = noisy(1, seed=1), noisy(1, level=1.0, seed=2)
    lender[:, 100:] = silence
    styled = mix_style(own, lender.half().float(), torch.ones(1), silence)
    assert torch.allclose(styled[0].mean(0), lender[0, :100].mean(0), atol=1e-2)


def test_mixing_values_above_a_background_keeps_the_background_where_it_was() -> None:
    above = Normalisation(0.0, 1.0, eps=0.0, background="median")
    flat = torch.zeros(1, T, F)
    assert torch.allclose(mix_background(flat, flat, torch.tensor([0.5]), above), flat, atol=1e-6)
    plain = mix_background(flat, flat, torch.tensor([0.5]), replace(above, background="none"))
    assert torch.allclose(plain, flat + math.log(1.5), atol=1e-6)


def test_all_new_kinds_together_keep_shapes_and_are_finite() -> None:
    strength = AugmentStrength.of_config(apply_overrides(field(), EVERY_AUGMENTATION).augment)
    batch = painted((110, 20, 150, 40), (10, 5, 60, 15), num_chunks=8)
    bank = noisy(6).half()
    for seed in range(3):
        drawn = draw_augmentation(batch, strength, 1.0, torch.Generator().manual_seed(seed), len(bank))
        result = augment(batch, drawn, strength, NORMALISATION, bank)
        assert result.logmel.shape == batch.logmel.shape and result.logmel.dtype == torch.float32
        assert result.boxes.corners.shape == batch.boxes.corners.shape
        assert bool(result.logmel.isfinite().all())
