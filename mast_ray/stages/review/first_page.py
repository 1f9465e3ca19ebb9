"""What the page will ask for first, told to the browser with the page itself: it loads while the scripts do.

Addresses are those that page/ask.js and page/review.js make, to the last digit; one that is not asked for is only loaded
in vain.
"""

from __future__ import annotations

import html
import math
from urllib.parse import urlencode

from mast_ray.spectrogram.grid import CHUNK_S
from mast_ray.stages.review.asked import AskedQueues

MARK = "<!-- first -->"
PAGE_OF_ROWS = 200  # page/list.js
MARGIN = 1.3  # a window is so much longer than its box
LONGEST_S = 120.0


def with_first_answers(page: str, asked: AskedQueues) -> str:
    """The page with links to what the first queue and its first window need."""
    name = asked.available()[0]
    questions = [
        "run?",
        f"next?{urlencode({'name': name, 'part': 0, 'after': -1})}",
        f"queue?{urlencode({'name': name, 'part': 0, 'first': 0, 'count': PAGE_OF_ROWS})}",
    ]
    index = max(asked.next_open(name, 0, -1), 0)
    items = asked.items(name, 0, index, 1)["items"]
    links = [
        f'<link rel="preload" as="fetch" crossorigin="anonymous" href="{html.escape(q)}">' for q in questions
    ]
    if items:
        window = window_of(items[0], asked.found.recordings[items[0]["recording"]].duration_s)
        links.append(f'<link rel="preload" as="image" href="picture?{html.escape(window)}">')
    return page.replace(MARK, "\n".join(links))


def window_of(box: dict[str, float], duration_s: float) -> str:
    """The query of the window around a box, as the page makes it."""
    seconds = min(max(CHUNK_S, (box["end_s"] - box["begin_s"]) * MARGIN), LONGEST_S)
    begin_s = max(0.0, min((box["begin_s"] + box["end_s"]) / 2 - seconds / 2, duration_s - seconds))
    values = {
        "recording": int(box["recording"]),
        "begin_s": f"{_two_digits(begin_s):.3f}",
        "seconds": f"{seconds:.3f}",
    }
    return urlencode(values)


def _two_digits(value: float) -> float:
    """Rounded as JavaScript does it: halves go up."""
    return math.floor(value * 100 + 0.5) / 100
