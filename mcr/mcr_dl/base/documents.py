# SPDX-License-Identifier: Apache-2.0
"""Reads files and texts from others: with a limit on their size and depth, and one clear error.

Every reader of JSON uses this module (docs/security.md lists them). The readers check what the values mean.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
import stat
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcr_dl.base import schemas
from mcr_dl.base.errors import InvalidArgumentError

MIB = 1 << 20
DEPTH = 64
"""Lists and objects inside each other, at most."""
_LINE = 118
_LONGEST = 200  # characters of a fault
_LOCK_SECONDS = 5.0


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"expected each key once, got {twice!r} twice in an object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):  # NaN, Infinity, 1e999
        raise ValueError(f"expected a finite number, got {text}")
    return value


def _check_depth(document: Any) -> None:
    level: list[Any] = [document]
    for _ in range(DEPTH + 1):
        nested = [part.values() if isinstance(part, dict) else part for part in level if isinstance(part, (dict, list))]
        level = [each for part in nested for each in part if isinstance(each, (dict, list))]
        if not level:
            return
    raise RecursionError


def parse(text: str | bytes, what: str, *, limit: int = MIB, again: str = "") -> Any:
    """Parse a JSON text of at most ``limit`` bytes; repeated keys and numbers that are not finite are rejected.

    Raises InvalidArgumentError, in one line that begins with ``what`` and ends with ``again``, the advice.
    """
    advice = f"; {again}" if again else ""
    correct = f"; correct it or {again}" if again else ""
    if len(text) > limit:
        raise InvalidArgumentError(f"{what}: expected at most {limit} bytes, got {len(text)}{advice}")
    try:
        text = text.decode() if isinstance(text, bytes) else text
        document = json.loads(text, object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)
        _check_depth(document)
        if "\\u" in text:
            json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        code = f"\\u{ord(error.object[error.start]):04x}"
        message = f"{what}: expected valid Unicode, got the lone surrogate {code}{advice}"
        raise InvalidArgumentError(message) from error
    except UnicodeDecodeError as error:
        message = f"{what}: expected JSON in UTF-8, got an invalid byte at offset {error.start}{advice}"
        raise InvalidArgumentError(message) from error
    except json.JSONDecodeError as error:
        got = f"{error.msg.lower()} in column {error.colno}"
        rest = text[error.pos :].strip()  # of a number or a word, if the file ends in it
        inside = error.msg != "Extra data" and "\n" not in rest and text.rstrip()[-1:] not in ("]", "}")
        if not rest or error.msg.startswith("Unterminated") or inside:
            got = "the end of the file (truncated)"
        message = f"{what}: line {error.lineno}: expected a complete JSON document, got {got}{advice}"
        raise InvalidArgumentError(message) from error
    except RecursionError as error:
        message = f"{what}: expected at most {DEPTH} lists and objects inside each other, got more{correct}"
        raise InvalidArgumentError(message) from error
    except ValueError as error:  # a repeated key, a number that is not finite or has thousands of digits
        raise InvalidArgumentError(f"{what}: {_one_line(error)}{correct}") from error
    return document


def dumps(value: Any) -> str:
    """Encode a value for ``parse``. Its texts may come from anywhere: bytes that are not UTF-8 become ``?``."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode(errors="replace").decode()


def hash_of(value: Any) -> str:
    """SHA-256 (hex) of a value as ``dumps`` encodes it; equal contents have equal hashes."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


def rows(value: Any) -> str:
    """Encode a value for people and for ``git diff``: a line for each part that fits into one, and for each row.

    A row is a list or object without others in it, or an element of a list that has no list of objects in it.
    """
    return _rows(json.loads(json.dumps(value)), "")


def _parts(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []


def _has_rows(value: Any) -> bool:
    """Whether a list of objects is in the value."""
    parts = _parts(value)
    return (isinstance(value, list) and any(isinstance(part, dict) for part in parts)) or any(map(_has_rows, parts))


def _rows(value: Any, indent: str, *, element: bool = False) -> str:
    """``element``: of a list."""
    flat = json.dumps(value, ensure_ascii=False)
    parts = _parts(value)
    fits = len(indent) + len(flat) <= _LINE or not any(isinstance(part, (dict, list)) for part in parts)
    if fits or (element and not _has_rows(value)):
        return flat
    deeper = indent + "  "
    heads = [""] * len(parts)
    if isinstance(value, dict):
        heads = [f"{json.dumps(key, ensure_ascii=False)}: " for key in value]
    texts = [_rows(part, deeper, element=isinstance(value, list)) for part in parts]
    lines = ",\n".join(deeper + head + text for head, text in zip(heads, texts, strict=True))
    return f"{flat[0]}\n{lines}\n{indent}{flat[-1]}"


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Raise an OSError that names the file for one of the block: Python's does not, where a disk is full."""
    try:
        yield
    except BrokenPipeError:  # the file is a pipe whose reader has seen enough
        raise
    except OSError as error:
        raise OSError(f"cannot write {os.fspath(path)}: {(error.strerror or str(error)).lower()}") from error


def write_rows(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value to a file, as ``rows`` encodes it; characters that are not Unicode become question marks."""
    text = rows(value) + "\n"
    with writing(path):
        Path(path).write_text(text, encoding="utf-8", errors="replace")


def require_writable(path: str | os.PathLike[str], what: str = "", *, kind: str = "file", makes: bool = False) -> str:
    """Return the name of a file, or a "folder", that can be written; ``makes``: missing folders are made then.

    Raises InvalidArgumentError, in one line that begins with ``what``, if it cannot.
    """
    given = Path(path)
    try:
        if given.exists():
            usable = given.is_dir() == (kind == "folder") and os.access(given, os.W_OK)
        else:
            near = next(each for each in given.parents if each.exists() or not makes)
            usable = near.is_dir() and os.access(near, os.W_OK)
    except (OSError, ValueError):  # a name that is too long, or with a null byte
        usable = False
    if not usable:
        head = f"{what}: " if what else ""
        raise InvalidArgumentError(f"{head}expected a {kind} that can be written, got {os.fspath(path)!r}")
    return os.fspath(path)


def replace_file(path: Path, text: str) -> None:
    """Write the file, or the one that a link names, atomically: a concurrent reader gets the old or the new content.

    A device or a pipe gets the text; it is not replaced.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    # Processes of several hosts or containers may have equal numbers.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing a file between this one's reading and writing it.

    Without effect where the file system has no locks, or if another process keeps its lock for longer than
    ``_LOCK_SECONDS``.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f".{path.name}.lock").open("w", encoding="utf-8")
    except OSError:
        yield
        return
    with lock:
        deadline = time.monotonic() + _LOCK_SECONDS
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
        yield


def _one_line(error: Exception) -> str:
    """Drop the advice to the program's author that ends Python's text on a number that is too long."""
    text = str(error)
    return text if text.startswith("expected") else f"expected numbers of fewer digits, got {text.partition(';')[0]}"


def read_bytes(path: str | os.PathLike[str], what: str, *, limit: int, make: str = "") -> bytes:
    """The content of a regular file of at most ``limit`` bytes; a larger file is not read further.

    Raises InvalidArgumentError, in one line that begins with ``what`` and gives advice: name another file, or
    ``make`` it.
    """
    file = Path(path)
    or_make = f", or {make}" if make else ""
    another = f"name another{or_make}"
    try:
        mode = file.stat().st_mode
        if stat.S_ISDIR(mode):
            raise InvalidArgumentError(f"{what}: expected a file, got a folder; name a file in it{or_make}")
        if not stat.S_ISREG(mode):
            raise InvalidArgumentError(f"{what}: expected a regular file, got a device, socket or pipe; {another}")
        with file.open("rb") as stream:
            content = stream.read(limit + 1)
    except InvalidArgumentError:
        raise
    except FileNotFoundError as error:
        raise InvalidArgumentError(f"{what}: expected a file, got no such file; {another}") from error
    except ValueError as error:  # a name with a null byte
        raise InvalidArgumentError(f"{what}: expected the name of a file, got {error}; {another}") from error
    except OSError as error:
        got = (error.strerror or str(error)).lower()
        message = f"{what}: expected a file that can be read, got {got}; name another, or change its permissions"
        raise InvalidArgumentError(message) from error
    if len(content) > limit:
        size = file.stat().st_size or "more"
        raise InvalidArgumentError(f"{what}: expected at most {limit} bytes, got {size}; {another}")
    return content


def read(path: str | os.PathLike[str], what: str, *, limit: int, make: str = "", again: str = "") -> Any:
    """Read the JSON document in a file: ``read_bytes``, then ``parse``."""
    return parse(read_bytes(path, what, limit=limit, make=make), what, limit=limit, again=again)


def check(document: Any, schema: dict[str, Any], what: str) -> dict[str, Any]:
    """Return the document if it conforms to a JSON schema. Raises InvalidArgumentError with the path of the wrong part,
    in one line that begins with ``what``.
    """
    message = schemas.violation(document, schema)
    if message is not None:
        message = message if len(message) <= _LONGEST else f"{message[: _LONGEST - 3]}..."
        raise InvalidArgumentError(f"{what}: {message}")
    found: dict[str, Any] = document
    return found
