"""A page as a browser reads it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

VOID = {"meta", "br", "link", "img", "hr", "input"}


class ParsedPage(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self._open: list[str] = []
        self._ids: list[str] = []
        self._links: list[str] = []
        self._text: list[str] = []
        self.feed(html)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self._text))

    def assert_it_is_whole(self) -> None:
        """Check that it is well-formed and needs nothing else."""
        assert self._open == []
        assert len(self._ids) == len(set(self._ids)) > 0
        assert all(link.startswith("#") and link[1:] in self._ids for link in self._links)
        assert not self.tags & {"script", "link", "iframe", "img"}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.tags.add(tag)
        if tag not in VOID:
            self._open.append(tag)
        self._ids += [values["id"] or ""] if "id" in values else []
        self._links += [
            values[name] or "" for name in ("href", "src", "xlink:href") if name in values
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self._text.append(data)
