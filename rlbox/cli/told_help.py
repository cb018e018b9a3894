"""Help in the language of who reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click

from rlbox.messages.language import Tell
from rlbox.messages.layout import paragraphs, wrapped

_NARROWEST = 20


class ToldFormatter(click.HelpFormatter):
    """Tells each paragraph before it is broken into lines, which count what letters are wide."""

    def __init__(self, tell: Tell, *, width: int | None, max_width: int | None) -> None:
        super().__init__(width=width, max_width=max_width)
        self._tell = tell

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        """As click's."""
        super().write_usage(prog, args, prefix=self._tell(prefix or "Usage:").strip().replace(":", ": "))

    def write_heading(self, heading: str) -> None:
        """As click's."""
        self.write(f"{'':>{self.current_indent}}{self._tell(f'{heading}:')}\n")

    def write_text(self, text: str) -> None:
        """As click's."""
        for at, (kept, lines) in enumerate(paragraphs(text)):
            self.write("\n" if at else "")
            told = [self._tell(line) for line in lines] if kept else self._wrapped(" ".join(lines), self.current_indent)
            self.write("".join(f"{'':>{self.current_indent}}{line}\n" for line in told))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """As click's, of two columns."""
        rows = list(rows)
        first = min(max((len(name) for name, _ in rows), default=0), col_max) + col_spacing
        for line in self._rows(rows, first, col_spacing):
            self.write(f"{'':>{self.current_indent}}{line}".rstrip() + "\n")

    def _rows(self, rows: Iterable[tuple[str, str]], first: int, spacing: int) -> Iterator[str]:
        for name, text in rows:
            lines = self._wrapped(text, self.current_indent + first)
            beside = len(name) <= first - spacing
            yield f"{name:<{first}}{lines[0]}" if beside and lines else name
            yield from (f"{'':>{first}}{line}" for line in lines[beside:])

    def _wrapped(self, text: str, indent: int) -> list[str]:
        parts = [self._tell(part) for part in " ".join(text.split(" ")).split("  ")]
        return wrapped("  ".join(parts), max(self.width - indent, _NARROWEST))
