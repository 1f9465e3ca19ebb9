"""Soundscapes of real clips and scenes: syllables are cut free, sources keep to one side of a split."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soundfile
from rendered import render_recording

from mast_ray.config.errors import DataError
from mast_ray.soundscapes.archive import write_archive
from mast_ray.soundscapes.boxes import measured_box
from mast_ray.soundscapes.clips import isolate, isolated_calls, read_clips, side_of
from mast_ray.soundscapes.render import SoundscapeSpec, plan_archive
from mast_ray.soundscapes.scenes import has_voices, measured_density, scene_bed, scenes_of
from mast_ray.soundscapes.sites import draw_site
from mast_ray.soundscapes.sources import ALL_SIDES, clips_by_label, side_of_scene, sides_of, world_labels

RATE = 16_000


def clip_with_chirps(gap_s: float, noise: float = 0.003) -> np.ndarray:
    """Two chirps of 0.2 s from 3 to 4 kHz, a gap between them, noise and a loud rumble all along."""
    rng = np.random.default_rng(0)
    wave = noise * rng.standard_normal(3 * RATE)
    seconds = np.arange(len(wave)) / RATE
    wave += 0.05 * np.sin(2 * np.pi * 60.0 * seconds)
    u = np.arange(int(0.2 * RATE)) / RATE
    chirp = 0.3 * np.sin(2 * np.pi * (3000.0 * u + 2500.0 * u**2)) * np.hanning(len(u)) ** 0.5
    for start_s in (1.0, 1.2 + gap_s):
        wave[int(start_s * RATE) : int(start_s * RATE) + len(u)] += chirp
    return wave.astype(np.float32)


def write_clips(folder: Path) -> None:
    """Eight labels from forty sources with two clips each, every clip the chirps at another pitch."""
    (folder / "audio").mkdir(parents=True)
    rows = ["file,label,freesound_id"]
    clip = clip_with_chirps(0.6)
    for source in range(40):
        for take in range(2):
            name = f"audio/{source}_{take}.wav"
            soundfile.write(folder / name, clip, RATE)
            rows.append(f"{name},label{source % 4},{source}")
    (folder / "recordings.csv").write_text("\n".join(rows) + "\n")


def test_silence_of_300_ms_parts_two_syllables_and_less_does_not():
    assert len(isolate(clip_with_chirps(gap_s=0.5))) == 2
    assert len(isolate(clip_with_chirps(gap_s=0.15))) == 1


def test_a_cut_call_holds_its_own_seconds_and_hertz_and_neither_rumble_nor_noise():
    for call in isolate(clip_with_chirps(gap_s=0.6)):
        box = measured_box(call, RATE)
        assert box.end_s - box.begin_s == pytest.approx(0.2, abs=0.03)
        assert box.low_hz == pytest.approx(3000.0, abs=120.0)
        assert box.high_hz == pytest.approx(4000.0, abs=120.0)
        spectrum = np.square(np.abs(np.fft.rfft(call)))
        hertz = np.fft.rfftfreq(len(call), 1.0 / RATE)
        outside = spectrum[(hertz < box.low_hz - 100) | (hertz > box.high_hz + 100)].sum()
        assert outside < 0.01 * spectrum.sum()


def test_noise_alone_gives_no_call():
    rng = np.random.default_rng(1)
    assert isolate(0.01 * rng.standard_normal(2 * RATE).astype(np.float32)) == []
    assert isolate(np.zeros(2 * RATE, np.float32)) == []


def test_sources_are_told_by_freesound_id_then_recordist_then_name_of_the_series(tmp_path):
    for name, header, row in (
        ("a", "file,label,freesound_id", "x_1.wav,frog,77"),
        ("b", "file,label,recordist", "y_1.wav,tit, Ann Lee "),
        ("c", "file,label", "Gryllus_Berlin_231.wav,cricket"),
        ("d", "file,label", "Gryllus_Berlin_232.wav,cricket"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "recordings.csv").write_text(f"{header}\n{row}\n")
    sources = [clip.source for clip in read_clips(str(tmp_path))]
    assert sources == ["freesound:77", "recordist:ann lee", "file:gryllus_berlin", "file:gryllus_berlin"]


def test_no_source_serves_two_sides_and_each_recording_uses_its_own_side(tmp_path):
    write_clips(tmp_path / "clips")
    clips = read_clips(str(tmp_path / "clips"))
    spec = SoundscapeSpec(clips_dir=str(tmp_path / "clips"), num_sites=3, num_days=3, recordings_per_day=1)
    used = {
        plan.role: {clip.source for own in clips_by_label(spec, sides_of(plan)).values() for clip in own}
        for plan in plan_archive(spec)
    }
    assert not used["labelled"] & used["site_ood"]
    assert not used["labelled"] & used["temporal_ood"]
    assert not used["temporal_ood"] & used["site_ood"]
    assert used["pool"] == used["labelled"]
    assert set.union(*used.values()) == {clip.source for clip in clips}


def test_source_groups_can_be_held_apart_by_site_only_or_not_at_all():
    plans = {plan.role: plan for plan in plan_archive(SoundscapeSpec(source_groups="site"))}
    assert sides_of(plans["labelled"]) == sides_of(plans["temporal_ood"]) == {"seen", "temporal"}
    assert sides_of(plans["site_ood"]) == {"site"}
    assert sides_of(plan_archive(SoundscapeSpec(source_groups="none"))[0]) == ALL_SIDES


def four_ways(clips_dir: Path) -> SoundscapeSpec:
    """SITE01 labelled, SITE02 pool, SITE03 development, SITE04 and SITE05 unseen, the last with days in the pool."""
    return SoundscapeSpec(
        clips_dir=str(clips_dir), num_sites=5, num_days=4, recordings_per_day=1, num_held_out_sites=2, num_dev_sites=1,
        num_test_days=2, num_site_pool_sites=1, source_groups="four_ways", num_species=4, species_per_site=2,
        recording_s=20.0, density_per_min=60.0,
    )  # fmt: skip


def test_four_ways_give_the_pool_animals_that_nobody_labelled_and_every_unseen_site_its_own(tmp_path):
    write_clips(tmp_path / "clips")
    spec = four_ways(tmp_path / "clips")
    used: dict[str, set[str]] = {}
    for plan in plan_archive(spec):
        clips = clips_by_label(spec, sides_of(plan))
        key = plan.role if plan.role in ("labelled", "pool", "temporal_ood") else plan.site_name
        used.setdefault(key, set()).update(clip.source for own in clips.values() for clip in own)
    assert used["labelled"] < used["pool"] and used["labelled"] < used["temporal_ood"]
    assert used["pool"] & used["temporal_ood"] == used["labelled"]
    apart = [used["SITE03"], used["SITE04"], used["SITE05"], used["pool"] | used["temporal_ood"]]
    assert sum(len(sources) for sources in apart) == len(set.union(*apart)) == 40


def test_days_of_four_ways_are_tested_pooled_or_not_recorded(tmp_path):
    write_clips(tmp_path / "clips")
    roles = {
        (plan.site_name, plan.day_index): plan.role for plan in plan_archive(four_ways(tmp_path / "clips"))
    }
    assert [roles.get(("SITE01", day)) for day in range(4)] == ["labelled", "pool", "pool", "temporal_ood"]
    assert [roles.get(("SITE02", day)) for day in range(4)] == ["pool"] * 4
    assert [roles.get(("SITE03", day)) for day in range(4)] == ["ood_dev", None, None, None]
    assert [roles.get(("SITE04", day)) for day in range(4)] == [None, None, "site_ood", "site_ood"]
    assert [roles.get(("SITE05", day)) for day in range(4)] == [
        "site_pool",
        "site_pool",
        "site_ood",
        "site_ood",
    ]
    annotated = {plan.role for plan in plan_archive(four_ways(tmp_path / "clips")) if plan.is_annotated}
    assert annotated == {"labelled", "temporal_ood", "ood_dev", "site_ood"}


def test_a_site_has_only_species_whose_clips_it_may_use_and_all_labels_take_part(tmp_path):
    write_clips(tmp_path / "clips")
    spec = four_ways(tmp_path / "clips")
    assert sorted(world_labels(spec)) == ["label0", "label1", "label2", "label3"]
    for plan in plan_archive(spec):
        here = {
            label
            for label, share in zip(
                world_labels(spec), draw_site(spec, plan.site_index).abundance, strict=True
            )
            if share
        }
        assert 1 <= len(here) <= 2 and here <= set(clips_by_label(spec, sides_of(plan)))
        assert {event.label for event in render_recording(plan)[1]} <= here


def test_every_scene_belongs_to_one_site_of_four_ways(tmp_path):
    sites = {side_of_scene(f"freesound:{n}", four_ways(tmp_path)) for n in range(200)}
    assert sites == {"SITE01", "SITE02", "SITE03", "SITE04", "SITE05"}


def test_processes_that_share_cut_calls_write_the_same_bytes_as_one_that_cuts_its_own(tmp_path):
    write_clips(tmp_path / "clips")
    spec = replace(four_ways(tmp_path / "clips"), recording_s=6.0)
    for name, num_processes in (("one", 1), ("two", 2)):
        write_archive(spec, tmp_path / name, num_processes=num_processes)
    files = sorted(
        path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file()
    )
    assert files == sorted(
        path.relative_to(tmp_path / "two") for path in (tmp_path / "two").rglob("*") if path.is_file()
    )
    assert all(
        (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files
    )


def test_recordings_made_of_clips_carry_their_labels_and_tight_boxes(tmp_path):
    write_clips(tmp_path / "clips")
    spec = SoundscapeSpec(
        clips_dir=str(tmp_path / "clips"), recording_s=20.0, density_per_min=30.0, site_shift=0.0
    )
    wave, events = render_recording(plan_archive(spec)[0])
    again = render_recording(plan_archive(spec)[0])
    assert np.array_equal(wave, again[0]) and events == again[1]
    assert events
    for event in events:
        assert event.label in {"label0", "label1", "label2", "label3"}
        assert event.end_s - event.begin_s == pytest.approx(0.2, abs=0.04)
        assert 2850.0 < event.low_hz < event.high_hz < 4150.0


def test_a_folder_without_a_table_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"recordings\.csv"):
        read_clips(str(tmp_path))


def test_a_bird_in_a_scene_is_noticed_and_plain_noise_is_not():
    rng = np.random.default_rng(2)
    noise = rng.standard_normal(5 * RATE).astype(np.float32)
    assert not has_voices(noise, RATE, 0.004)
    seconds = np.arange(RATE) / RATE
    noise[RATE : 2 * RATE] += 3.0 * np.sin(2 * np.pi * (3000.0 * seconds + 400.0 * np.sin(12.0 * seconds)))
    assert has_voices(noise, RATE, 0.004)


def test_measured_density_integrates_to_the_power_of_the_wave():
    wave = np.random.default_rng(3).standard_normal(20 * RATE).astype(np.float32)
    density = measured_density(wave, RATE)
    assert np.trapezoid(density, np.linspace(0, RATE / 2, len(density))) == pytest.approx(1.0, rel=0.02)


@pytest.mark.slow
def test_every_real_clip_set_gives_calls_and_its_sources_keep_apart(shared_data):
    clips = read_clips(str(shared_data / "clips"))
    by_freesound = {c.source for c in clips if "esc50" in c.path} & {
        c.source for c in clips if "fsc22" in c.path
    }
    assert by_freesound  # the two sets share uploads: their clips fall on the same side by construction
    # Measured over every fourth clip: 0.97, 0.55, 0.78, 0.55. The floors are well
    # below, the samples span all labels.
    for name, least in (("birds", 0.7), ("insects", 0.25), ("esc50_animals", 0.5), ("fsc22_animals", 0.25)):
        own = [clip for clip in clips if f"/{name}/" in clip.path]
        some = own[:: len(own) // 12]
        assert np.mean([bool(isolated_calls(clip.path)) for clip in some]) >= least, name
    sides = {clip.source: side_of(clip.source, 0) for clip in clips}
    assert set(sides.values()) == ALL_SIDES


def test_real_scenes_make_a_bed_of_unit_power(shared_data):
    calm = scenes_of(SoundscapeSpec(scenes_dir=str(shared_data / "scenes")), "calm", frozenset(("site",)))
    bed = scene_bed(calm, (0, 1), 0, 20 * RATE, RATE, np.random.default_rng(0))
    assert bed.std() == pytest.approx(1.0, rel=0.5)
