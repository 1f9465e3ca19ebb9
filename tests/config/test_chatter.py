"""What libraries write past Python is kept from people, and named where it may explain an error."""

import io
import os
import re
import sys
from pathlib import Path

import numpy as np
import soundfile

from mast_ray.config.chatter import chatter_apart, chatter_file, keep
from mast_ray.config.errors import DATA
from mast_ray.verbs.main import main


def test_what_is_written_past_python_does_not_reach_people_and_is_named(capfd):
    with chatter_apart():
        assert chatter_file() == ""
        os.write(2, b"[decoder.c:12] error: bad frame\n")
        keep("a line of Ray's")
        print("for people", file=sys.stderr)
        named = Path(chatter_file())
    assert capfd.readouterr().err == "for people\n"
    assert named.read_text() == "[decoder.c:12] error: bad frame\na line of Ray's\n"
    named.unlink()
    os.write(2, b"afterwards as before\n")
    assert capfd.readouterr().err == "afterwards as before\n"
    assert chatter_file() == ""


def test_a_decoders_complaints_are_in_the_file_that_the_error_names(tmp_path, capfd):
    sound = (0.1 * np.random.default_rng(0).standard_normal(16_000 * 6)).astype(np.float32)
    encoded = io.BytesIO()
    soundfile.write(encoded, sound, 16_000, format="MP3")
    rng = np.random.default_rng(1)
    (tmp_path / "audio").mkdir()
    for name in "ab":
        damaged = bytearray(encoded.getvalue())
        for place in rng.integers(600, len(damaged), 400):
            damaged[place] = rng.integers(256)
        (tmp_path / "audio" / f"{name}.mp3").write_bytes(damaged)
    command = ["prepare", str(tmp_path / "audio"), "--out", str(tmp_path / "out"), "--runner", "here"]
    assert main(command) == DATA
    said = capfd.readouterr().err
    assert "mpg123" not in said
    assert len(said[said.index("error: ") :].strip().splitlines()) <= 3
    (named,) = re.findall(r"what libraries said: (.*\.log)\)", said)
    assert "libmpg123" in Path(named).read_text()
    Path(named).unlink()
