"""Rendered recordings: equal seeds give equal bytes, boxes are tight, knobs do what they say."""

from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from rendered import render_recording

from mast_ray.config.errors import ConfigError
from mast_ray.soundscapes.boxes import CallBox, measured_box
from mast_ray.soundscapes.callers import Calling, callings_of
from mast_ray.soundscapes.render import (
    Event,
    RecordingPlan,
    SoundscapeSpec,
    plan_archive,
    received_call,
    render_blocks,
    spec_for_hours,
)
from mast_ray.soundscapes.sites import draw_day, draw_site, species_of

SPEC = SoundscapeSpec(num_sites=3, num_days=3, recordings_per_day=2, recording_s=10.0, density_per_min=40.0)


def energy_inside(wave: np.ndarray, rate: int, box: CallBox) -> float:
    """Share of a call's energy that survives cutting it to a box, by brute force."""
    padded = 1 << (2 * len(wave) - 1).bit_length()
    spectrum = np.fft.rfft(wave.astype(np.float64), padded)
    hertz = np.fft.rfftfreq(padded, 1.0 / rate)
    spectrum[(hertz < box.low_hz) | (hertz > box.high_hz)] = 0.0
    kept = np.fft.irfft(spectrum, padded)[: len(wave)]
    seconds = np.arange(len(wave)) / rate
    inside = (seconds >= box.begin_s) & (seconds <= box.end_s)
    return float(np.square(kept[inside]).sum() / np.square(wave, dtype=np.float64).sum())


def mean_spectrum_db(plan: RecordingPlan) -> np.ndarray:
    """Level in 32 bands without animals."""
    quiet = replace(plan, spec=replace(plan.spec, density_per_min=0.0, distractors_per_min=0.0))
    wave, events = render_recording(quiet)
    assert events == []
    power = np.square(np.abs(np.fft.rfft(wave.reshape(-1, 1600)))).mean(axis=0)[1:801]
    return 10.0 * np.log10(power.reshape(32, 25).mean(axis=1))


def test_equal_plans_give_equal_samples_and_events_in_any_order():
    plans = plan_archive(SPEC)
    forward = {plan.path: render_recording(plan) for plan in plans[:4]}
    for plan in reversed(plans[:4]):
        wave, events = render_recording(plan)
        assert np.array_equal(wave, forward[plan.path][0])
        assert events == forward[plan.path][1]


def test_a_recording_does_not_depend_on_how_many_others_there_are():
    alone = next(p for p in plan_archive(replace(SPEC, num_sites=8)) if (p.site_index, p.day_index) == (1, 1))
    usual = next(p for p in plan_archive(SPEC) if (p.site_index, p.day_index) == (1, 1))
    assert np.array_equal(render_recording(alone)[0], render_recording(usual)[0])


def test_another_seed_gives_another_recording():
    first, second = (plan_archive(replace(SPEC, seed=seed))[0] for seed in (0, 1))
    assert not np.array_equal(render_recording(first)[0], render_recording(second)[0])


def test_boxes_hold_95_percent_of_the_clean_call_and_10_percent_less_on_any_side_loses_some():
    plan = plan_archive(SPEC)[0]
    for species in range(SPEC.num_species):
        call = received_call(plan, Calling(0.0, species, 10.0, 1, 1000 + species))
        assert call is not None
        box, rate = call.box, plan.sample_rate_hz
        whole = energy_inside(call.wave, rate, box)
        assert whole >= 0.95
        time, band = 0.1 * (box.end_s - box.begin_s), 0.1 * (box.high_hz - box.low_hz)
        for smaller in (
            box._replace(begin_s=box.begin_s + time),
            box._replace(end_s=box.end_s - time),
            box._replace(low_hz=box.low_hz + band),
            box._replace(high_hz=box.high_hz - band),
        ):
            assert energy_inside(call.wave, rate, smaller) < whole - 1e-3, call.label


def test_the_box_of_a_tone_burst_is_where_the_tone_is():
    rate = 16_000
    wave = np.zeros(rate)
    wave[4800:9600] = np.sin(2 * np.pi * 2000.0 * np.arange(4800) / rate)  # 0.3 to 0.6 s
    box = measured_box(wave, rate)
    assert box.begin_s == pytest.approx(0.3, abs=0.004)
    assert box.end_s == pytest.approx(0.6, abs=0.004)
    assert 1950.0 < box.low_hz < 2000.0 < box.high_hz < 2050.0


def test_energy_stands_out_inside_the_boxes_of_the_mixture_and_not_beside_them():
    plan = replace(
        plan_archive(SPEC)[1], spec=replace(SPEC, snr_db=20.0, snr_spread_db=0.0, distractors_per_min=0.0)
    )
    wave, events = render_recording(plan)
    lonely = [
        e for e in events
        if not any(o is not e and o.begin_s < e.end_s + 1.0 and o.end_s > e.begin_s - 1.0 for o in events)
        and e.begin_s > 1.0
    ]  # fmt: skip
    assert lonely
    for event in lonely:
        length = round((event.end_s - event.begin_s) * 16_000)
        start = round(event.begin_s * 16_000)
        levels = []
        for first in (start, max(start - length - 1600, 0)):
            spectrum = np.square(np.abs(np.fft.rfft(wave[first : first + length])))
            hertz = np.fft.rfftfreq(length, 1.0 / 16_000)
            levels.append(spectrum[(hertz >= event.low_hz) & (hertz <= event.high_hz)].sum())
        assert 10.0 * np.log10(levels[0] / levels[1]) > 6.0


@pytest.mark.slow
def test_the_snr_in_the_truth_follows_its_knob_in_dry_weather_and_falls_in_rain():
    def snrs_db(snr_db: float, weather: Literal["dry", "rain"]) -> list[float]:
        spec = replace(SPEC, snr_db=snr_db, snr_spread_db=1.0, distractors_per_min=0.0, recording_s=30.0)
        spec = replace(spec, recordings_per_day=12, density_per_min=80.0)
        plans = [p for p in plan_archive(spec) if p.site_index == 0]
        rain = [draw_day(spec, p.day_index).rain_at(p.start_second / 3600.0) for p in plans]
        chosen = [p for p, r in zip(plans, rain, strict=True) if (r > 0.5 if weather == "rain" else r == 0.0)]
        return [e.snr_db for plan in chosen[:3] for e in render_recording(plan)[1]]

    quiet, loud, wet = snrs_db(8.0, "dry"), snrs_db(20.0, "dry"), snrs_db(20.0, "rain")
    assert min(len(quiet), len(loud), len(wet)) >= 10
    assert np.median(quiet) == pytest.approx(8.0, abs=1.5)
    assert np.median(loud) == pytest.approx(20.0, abs=1.5)
    assert np.median(wet) < np.median(loud) - 4.0  # measured against what is really there


def test_events_lie_inside_the_recording_below_nyquist_and_above_the_least_snr():
    events = [e for plan in plan_archive(SPEC)[:6] for e in render_recording(plan)[1]]
    assert len(events) > 10
    for event in events:
        assert 0.0 <= event.begin_s < event.end_s <= SPEC.recording_s
        assert 0.0 <= event.low_hz < event.high_hz <= 8000.0
        assert event.snr_db >= SPEC.min_snr_db


def test_calls_overlap_but_never_so_that_two_could_pass_for_one():
    plan = replace(plan_archive(SPEC)[0], spec=replace(SPEC, density_per_min=400.0))
    events = render_recording(plan)[1]

    def overlap(a: Event, b: Event) -> float:
        width = min(a.end_s, b.end_s) - max(a.begin_s, b.begin_s)
        height = min(a.high_hz, b.high_hz) - max(a.low_hz, b.low_hz)
        shared = max(width, 0.0) * max(height, 0.0)
        areas = [(e.end_s - e.begin_s) * (e.high_hz - e.low_hz) for e in (a, b)]
        return shared / (sum(areas) - shared)

    overlaps = [overlap(a, b) for i, a in enumerate(events) for b in events[:i]]
    assert 0.0 < max(overlaps) <= 0.5


def test_without_site_shift_all_sites_have_the_same_parameters():
    still = replace(SPEC, site_shift=0.0)
    sites = [replace(draw_site(still, i), name="", latitude=0.0, longitude=0.0) for i in range(5)]
    assert all(site == sites[0] for site in sites)


def test_without_temporal_shift_all_days_are_the_first_day():
    still = replace(SPEC, temporal_shift=0.0)
    assert all(draw_day(still, index) == draw_day(still, 0) for index in range(5))
    assert draw_day(SPEC, 1) != draw_day(SPEC, 0)


def test_sites_sound_more_different_with_more_site_shift():
    def distance_db(shift: float) -> float:
        plans = [p for p in plan_archive(replace(SPEC, site_shift=shift)) if p.day_index == 0][::2]
        spectra = [mean_spectrum_db(p) for p in plans]
        return float(np.mean([np.abs(a - b).mean() for i, a in enumerate(spectra) for b in spectra[:i]]))

    none, usual, hard = distance_db(0.0), distance_db(1.0), distance_db(2.0)
    assert none + 1.0 < usual < hard


def test_days_sound_more_different_with_temporal_shift():
    def distance_db(shift: float) -> float:
        plans = [p for p in plan_archive(replace(SPEC, temporal_shift=shift)) if p.site_index == 0][::2]
        first, *others = [mean_spectrum_db(p) for p in plans]
        return float(np.mean([np.abs(other - first).mean() for other in others]))

    assert distance_db(2.0) > distance_db(0.0) + 1.0


def test_species_pools_are_shared_without_site_shift_and_partly_with_it():
    def pools(shift: float) -> list[set[int]]:
        spec = replace(SPEC, site_shift=shift)
        return [set(np.flatnonzero(draw_site(spec, i).abundance)) for i in range(3)]

    same = pools(0.0)
    assert same[0] == same[1] == same[2]
    differing = pools(1.0)
    assert all(len(pool) == SPEC.species_per_site for pool in differing)
    assert len(set.intersection(*differing)) >= SPEC.species_per_site // 2
    assert differing[0] != differing[1]


def test_dawn_holds_more_bird_calls_than_midnight():
    plan, birds = plan_archive(SPEC)[0], ("chirp", "arch", "warble", "phrase")
    rng = np.random.default_rng(0)
    counts = [
        sum(species_of(SPEC)[c.species].family in birds for c in callings_of(plan, hour, 600.0, rng))
        for hour in (6.0, 0.0)
    ]
    assert counts[0] > 2 * counts[1]


def test_a_long_recording_is_the_chain_of_its_minutes_without_clicks_between_them():
    spec = replace(SPEC, recording_s=90.0, density_per_min=0.0, distractors_per_min=0.0)
    plan = plan_archive(spec)[0]
    blocks = [wave for wave, _ in render_blocks(plan)]
    assert [len(block) for block in blocks] == [60 * 16_000, 30 * 16_000]
    wave = render_recording(plan)[0]
    steps = np.abs(np.diff(wave))
    assert steps[60 * 16_000 - 5 : 60 * 16_000 + 5].max() < steps.max()
    assert wave[59 * 16_000 : 60 * 16_000].std() == pytest.approx(
        wave[60 * 16_000 : 61 * 16_000].std(), rel=0.4
    )


@pytest.mark.parametrize("rate", [24_000, 32_000, 48_000])
def test_other_sample_rates_hold_the_same_kind_of_calls(rate):
    plan = plan_archive(replace(SPEC, sample_rates_hz=(rate,)))[0]
    wave, events = render_recording(plan)
    assert len(wave) == 10 * rate
    assert events
    assert max(e.high_hz for e in events) < 8200.0


def test_roles_follow_the_papers_setting():
    roles = {(p.site_index, p.day_index): p.role for p in plan_archive(SPEC)}
    assert roles[0, 0] == "labelled"
    assert roles[0, 1] == roles[1, 0] == roles[1, 2] == "pool"
    assert roles[0, 2] == "temporal_ood"
    assert {roles[2, day] for day in range(3)} == {"site_ood"}


def test_names_carry_site_and_local_time():
    plan = plan_archive(replace(SPEC, hours_of_day=(5.5,), recordings_per_day=1))[0]
    assert plan.path == "audio/SITE01/SITE01_20240506_053000.wav"
    assert plan.start_time.isoformat() == "2024-05-06T05:30:00+02:00"


def test_hours_are_kept_and_a_quarter_is_labelled():
    spec = spec_for_hours(1.0, SoundscapeSpec())
    plans = plan_archive(spec)
    assert len(plans) == 60
    assert sum(p.role == "labelled" for p in plans) == 15
    starts = {(p.site_index, p.day_index, p.start_second) for p in plans}
    assert len(starts) == 60


def test_a_small_archive_gives_the_labelled_day_at_least_its_share():
    plans = plan_archive(spec_for_hours(0.5, SoundscapeSpec()))
    assert len(plans) == 30
    assert sum(p.role == "labelled" for p in plans) >= 0.25 * 30


def test_impossible_plans_are_refused_with_a_remedy():
    with pytest.raises(ConfigError, match="--days"):
        SoundscapeSpec(recordings_per_day=2000, recording_s=60.0)
    with pytest.raises(ConfigError, match="--sites 2"):
        SoundscapeSpec(num_sites=1)
