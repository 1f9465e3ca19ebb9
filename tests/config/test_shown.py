"""What is printed holds no key and moves no cursor."""

import logging

import pytest

from mast_ray.config.errors import DataError
from mast_ray.config.shown import shown, shown_record
from mast_ray.storage.storage import open_storage
from mast_ray.verbs.main import main

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
LINK = (
    f"https://data.org/a.wav?X-Amz-Credential=AKIAIOSFODNN7EXAMPLE%2F2024&X-Amz-Signature={'ab12' * 8}&part=3"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"cannot read s3://AKIAIOSFODNN7EXAMPLE:{SECRET}@field/audio", "cannot read s3://***@field/audio"),
        ("https://me:pass@host/x", "https://***@host/x"),
        ("key AKIAIOSFODNN7EXAMPLE is unknown", "key *** is unknown"),
        (LINK, "https://data.org/a.wav?X-Amz-Credential=***&X-Amz-Signature=***&part=3"),
        ("s3://field/day 1/a:b@c.wav", "s3://field/day 1/a:b@c.wav"),  # no key: a file's name
        ("s3://field/ridge@dawn/x.wav", "s3://field/ridge@dawn/x.wav"),
        ("site \x1b[31mred\x1b[0m\r", "site \\x1b[31mred\\x1b[0m\\r"),
        ("tab\tand\nline ป่า é", "tab\tand\nline ป่า é"),
        ("wav.\u202egpj", "wav.\\u202egpj"),
    ],
)
def test_keys_are_hidden_controls_written_out_and_names_left_alone(text, expected):
    assert shown(text) == expected


def test_an_address_with_keys_in_it_is_refused_before_anything_is_written():
    for address in (f"s3://AKIAIOSFODNN7EXAMPLE:{SECRET}@field/audio", "s3://user@field"):
        with pytest.raises(DataError, match="AWS_ACCESS_KEY_ID"):
            open_storage(address)


@pytest.mark.parametrize(
    "argv",
    [
        ["inventory", f"s3://AKIAIOSFODNN7EXAMPLE:{SECRET}@field/audio"],
        ["inventory", LINK],
        ["inventory", "/nowhere", f"--archive={LINK}"],
        ["inventory", "/no\x1b[2Jwhere"],
        ["config", "--config", f"s3://AKIAIOSFODNN7EXAMPLE:{SECRET}@field/x.yaml"],
        ["config", "--set", f"split.ood_sites=['{LINK}']"],
        ["listen", f"s3://AKIAIOSFODNN7EXAMPLE:{SECRET}@field/audio", "--out", "x"],
        ["listen", LINK, "--out", "x"],
        ["synth", "--out", LINK],
    ],
)
def test_no_verb_prints_a_key_or_an_escape_it_was_given(argv, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(argv)
    except SystemExit as stop:
        code = stop.code
    printed = "".join(capsys.readouterr())
    assert code in (2, 3) and printed
    assert (
        "AKIA" not in printed
        and SECRET not in printed
        and "ab12ab12" not in printed
        and "\x1b" not in printed
    )


def test_log_lines_are_shown_the_same_way():
    record = shown_record("x", logging.WARNING, "", 0, "cannot list %s", ("s3://a:b@c/\x07",), None)
    assert record.getMessage() == "cannot list s3://***@c/\\x07"
