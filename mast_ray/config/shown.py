"""Texts from outside as they may be shown: without the keys that people put into addresses, and without the control
characters by which a file's name could steer a terminal.
"""

from __future__ import annotations

import logging
import re
from typing import Any

HIDDEN = "***"
# user:password@ of an address; a secret key may hold slashes, a path before a colon may not
_KEYS_IN_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*://)[^\s'\"@/]*:[^\s'\"@]*@", re.IGNORECASE)
_SIGNATURES = re.compile(
    r"([?&](?:x-amz-[a-z-]+|x-goog-[a-z-]+|awsaccesskeyid|signature|sig|se|sp|token|access_token|key|secret|password)=)[^&\s'\"]+",
    re.IGNORECASE,
)
_KEY_IDS = re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b")
# all controls but line feed and tab, and the marks that turn the direction of writing
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def shown(text: object) -> str:
    """A text for people: keys hidden, controls written out (an escape becomes \\x1b)."""
    plain = _KEYS_IN_ADDRESS.sub(rf"\g<1>{HIDDEN}@", str(text))
    plain = _KEY_IDS.sub(HIDDEN, _SIGNATURES.sub(rf"\g<1>{HIDDEN}", plain))
    return _CONTROLS.sub(lambda odd: odd[0].encode("unicode_escape").decode(), plain)


def shown_record(*args: Any, **options: Any) -> logging.LogRecord:
    """A line of a log, as it may be shown."""
    record = logging.LogRecord(*args, **options)
    record.msg, record.args = shown(record.getMessage()), ()
    return record


def guard_logs() -> None:
    """From here on every line that this process logs, by whatever handler, is fit to be shown."""
    logging.setLogRecordFactory(shown_record)
