"""The reply while it is still being written: finds the text of `assistant_message` in a JSON that isn't complete."""

import json
import re

_KEY = re.compile(r'"assistant_message"\s*:\s*"')
_ESCAPE = re.compile(r'\\(u[0-9a-fA-F]{4}|["\\/bfnrt])')


class MessageStream:
    """Feed it the pieces of an output; it returns the pieces of the message in it, decoded.

    A step's other blocks come first and hold text of their own, so the key is only looked for outside of strings.
    """

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        """How far the text was read: outside of the message a token at a time, inside a character at a time."""
        self._inside = False
        self._ended = False

    def feed(self, piece: str) -> str:
        """Take in a piece; what it adds to the message, which may be nothing."""
        self._text += piece
        if not self._inside and not self._ended:
            self._seek()
        return self._read() if self._inside else ""

    def _seek(self) -> None:
        """Skip whole strings until the key is reached."""
        while self._at < len(self._text):
            if self._text[self._at] != '"':
                self._at += 1
                continue
            key = _KEY.match(self._text, self._at)
            if key is not None:
                self._at, self._inside = key.end(), True
                return
            end = _end_of_string(self._text, self._at)
            if end is None or _may_become_key(self._text, self._at, end):
                return
            self._at = end

    def _read(self) -> str:
        """Decode what is complete: no half escape, and no half of a surrogate pair."""
        said: list[str] = []
        while self._at < len(self._text):
            char = self._text[self._at]
            if char == '"':
                self._inside, self._ended = False, True
                break
            if char != "\\":
                said.append(char)
                self._at += 1
                continue
            escaped = _escaped(self._text, self._at)
            if escaped is None:
                break
            said.append(json.loads(f'"{escaped}"'))
            self._at += len(escaped)
        return "".join(said)


def _end_of_string(text: str, start: int) -> int | None:
    """The place after the closing quote of the string that begins at `start`; None if it isn't closed yet."""
    place = start + 1
    while place < len(text):
        if text[place] == "\\":
            place += 2
        elif text[place] == '"':
            return place + 1
        else:
            place += 1
    return None


def _may_become_key(text: str, start: int, end: int) -> bool:
    """Is this the key, with its colon and opening quote still to come?"""
    return text[start:end] == '"assistant_message"' and not text[end:].strip(" \t\r\n:")


def _escaped(text: str, place: int) -> str | None:
    """The whole escape at `place`, both halves of a surrogate pair together; None if it isn't complete yet."""
    found = _ESCAPE.match(text, place)
    if found is None:
        return None
    escaped = found[0]
    if not escaped.lower().startswith(("\\ud8", "\\ud9", "\\uda", "\\udb")):
        return escaped
    rest = text[found.end() :]
    if not rest or (rest.startswith("\\") and len(rest) < 6 and rest[1:2] in ("", "u")):
        return None  # the other half may still come
    second = _ESCAPE.match(text, found.end())
    paired = second is not None and second[0].lower().startswith(("\\udc", "\\udd", "\\ude", "\\udf"))
    return escaped + (second[0] if second is not None and paired else "")
