"""TOML with the line of every value, so that an error can say where it is.

tomllib reads; it keeps no positions, so a second pass over the text, which is valid by then, finds the lines.
"""

import re
import tomllib
from pathlib import Path

from .runbook.yamlfile import Document, Keys

__all__ = ["parse"]

_AT_LINE = re.compile(r"\(at (?:line (\d+), column \d+|end of document)\)")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}' r"|'''(?:[^']|'{1,2}(?!'))*'{3,5}" r'|"(?:[^"\\\n]|\\.)*"' r"|'[^'\n]*'",
    re.DOTALL,
)
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PLAIN = re.compile(r"[^,\]}#\n]*")  # a number, a date, true or false


def parse(file: Path, label: str) -> Document:
    """Read `file`; what is wrong with it as TOML is in `problems`. label: how messages call it."""
    document = Document(file=label)
    try:
        text = file.read_bytes().decode()
        document.data = tomllib.loads(text)
    except UnicodeDecodeError as error:
        document.problem((), f"byte {error.start} is not UTF-8", "text in UTF-8")
    except tomllib.TOMLDecodeError as error:
        _report(document, text, str(error))
    else:
        _Places(text, document).find()
    return document


def _report(document: Document, text: str, message: str) -> None:
    at = _AT_LINE.search(message)
    line = int(at[1]) if at and at[1] else text.count("\n") + 1
    document.places[()] = f"{document.file}:{line}"
    written = text.splitlines()[line - 1 : line]
    key = written[0].partition("=")[0].strip() if written and "=" in written[0] else ""
    said = _AT_LINE.sub("", message).strip()
    document.problem((), f"{said} in the value of {key}" if key else said, "TOML")


class _Places:
    """Where the values of a valid TOML text stand."""

    def __init__(self, text: str, document: Document) -> None:
        self.text, self.document, self.at = text, document, 0
        self.lengths: dict[Keys, int] = {}  # how many tables of an array of tables there were so far

    def find(self) -> None:
        """Fill the document's places."""
        table: Keys = ()
        self._note(())
        while self._skip() < len(self.text):
            if self.text[self.at] == "[":
                table = self._header()
            else:
                self._pair(table)

    def _header(self) -> Keys:
        start, is_array = self.at, self.text.startswith("[[", self.at)
        self.at += 2 if is_array else 1
        path = self._inside(self._key())
        self.at = self.text.index("]", self.at) + (2 if is_array else 1)
        if is_array:
            index = self.lengths.get(path, 0)
            self.lengths[path] = index + 1
            self._note(path, start)
            path = (*path, index)
        self._note(path, start)
        return path

    def _inside(self, key: Keys) -> Keys:
        # [a.b] after [[a]] means the table b of the last a.
        path: Keys = ()
        for position, part in enumerate(key):
            path = (*path, part)
            if path in self.lengths and position < len(key) - 1:
                path = (*path, self.lengths[path] - 1)
        return path

    def _pair(self, table: Keys) -> None:
        start, key = self.at, self._key()
        for end in range(1, len(key) + 1):
            self._note((*table, *key[:end]), start)
        self._skip()
        self.at += 1  # the "="
        self._value((*table, *key))

    def _key(self) -> Keys:
        parts: list[str] = []
        while True:
            self._skip()
            if match := _BARE_KEY.match(self.text, self.at):
                parts.append(match[0])
            elif match := _STRING.match(self.text, self.at):
                parts.append(next(iter(tomllib.loads(f"{match[0]} = 0"))))
            self.at = match.end() if match else self.at + 1
            self._skip()
            if not self.text.startswith(".", self.at):
                return tuple(parts)
            self.at += 1

    def _value(self, path: Keys) -> None:
        self._skip()
        self._note(path)
        if self.text[self.at] in "[{":
            self._several(path, is_array=self.text[self.at] == "[")
        else:
            match = _STRING.match(self.text, self.at) or _PLAIN.match(self.text, self.at)
            self.at = match.end() if match else self.at

    def _several(self, path: Keys, *, is_array: bool) -> None:
        self.at += 1
        index = 0
        while self.text[self._skip()] not in "]}":
            if self.text[self.at] == ",":
                self.at += 1
            elif is_array:
                self._value((*path, index))
                index += 1
            else:
                self._pair(path)
        self.at += 1

    def _skip(self) -> int:
        match = _BLANK.match(self.text, self.at)
        self.at = match.end() if match else self.at
        return self.at

    def _note(self, path: Keys, at: int | None = None) -> None:
        line = self.text.count("\n", 0, self.at if at is None else at) + 1
        self.document.places.setdefault(path, f"{self.document.file}:{line}")
