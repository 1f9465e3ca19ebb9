"""What a folder holds, to see that nothing in it was changed."""

import hashlib


def content(folder):
    """Path below the folder -> sha256 of every file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
