"""Colours, text, boxes and arrows of all pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from typing import Final, NamedTuple

from scripts.docs.pages import NOTICE


class Colour(NamedTuple):
    """A colour, as one value for light pages and one for dark pages."""

    light: str
    dark: str


COLOURS: Final[Mapping[str, Colour]] = {
    "card": Colour("#f8fafc", "#171b26"),
    "edge": Colour("#dbe2ea", "#333b4d"),
    "ink": Colour("#1e293b", "#e5e9f0"),
    "dim": Colour("#526075", "#a3adbd"),
    "line": Colour("#64748b", "#8492a6"),
    "main": Colour("#4338ca", "#b4bcff"),
    "main-fill": Colour("#e0e7ff", "#2c3160"),
    "good": Colour("#0f6b5f", "#6ee7d0"),
    "good-fill": Colour("#cdf3ea", "#14443f"),
    "bad": Colour("#b3261e", "#ffaaa2"),
    "bad-fill": Colour("#fde3e0", "#571d1a"),
    "warn": Colour("#8a4b00", "#fcd077"),
    "warn-fill": Colour("#fdf0cf", "#49350f"),
}
"""The colours by name. Text in ``ink``, in ``dim`` or in a colour with a fill has a contrast of at least 4.5 on
``card``. Text in a colour with a fill, such as ``main``, also has it on this fill (``main-fill``)."""
_SANS: Final = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif"
_MONO: Final = "ui-monospace, 'SF Mono', Menlo, Consolas, 'DejaVu Sans Mono', monospace"


def picture(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Return a whole SVG picture with these parts on a card."""
    frame = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
    lines = [
        NOTICE,
        f'<svg xmlns="http://www.w3.org/2000/svg" {frame}>',
        f"<title>{escape(title)}</title>",
        f"<style>{_style()}</style>",
        f"<defs>{''.join(map(_marker, COLOURS))}</defs>",
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10" class="f-card s-edge"/>',
        *parts,
        "</svg>",
        "",
    ]
    used = "\n".join(lines)
    # Arrowheads that no arrow has are left out.
    for name in COLOURS:
        if f"url(#head-{name})" not in used:
            used = used.replace(_marker(name), "")
    return used


def _style() -> str:
    light, dark = (
        "".join(f"--{name}:{getattr(colour, scheme)};" for name, colour in COLOURS.items())
        for scheme in ("light", "dark")
    )
    classes = "".join(
        f".f-{name}{{fill:var(--{name})}}.s-{name}{{stroke:var(--{name})}}" for name in COLOURS
    )
    return (
        f"svg{{{light}font-family:{_SANS}}}"
        f"@media (prefers-color-scheme:dark){{svg{{{dark}}}}}"
        f"{classes}.mono{{font-family:{_MONO};white-space:pre}}.b{{font-weight:600}}.none{{fill:none}}"
    )


def _marker(name: str) -> str:
    size = 'viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" orient="auto-start-reverse"'
    return f'<marker id="head-{name}" {size}><path d="M0 0L10 5L0 10z" class="f-{name}"/></marker>'


def text(
    x: float, y: float, words: str, colour: str = "ink", *, size: float = 14, anchor: str = "start",
    bold: bool = False, mono: bool = False, halo: bool = False,
) -> str:  # fmt: skip
    """Return one or more lines of text as SVG. ``y``: the baseline of the first line.

    ``halo``: draw a rim around the letters, so that arrows do not cross them.
    """
    classes = f"f-{colour}{' b' if bold else ''}{' mono' if mono else ''}"
    around = ""
    if halo:
        classes += " s-card"
        around = ' stroke-width="4" paint-order="stroke"'
    head = f'<text x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}" class="{classes}"{around}>'
    first, *others = words.split("\n")
    spans = "".join(
        f'<tspan x="{x:g}" dy="{size * 1.25:g}">{escape(each)}</tspan>' for each in others
    )
    return f"{head}{escape(first)}{spans}</text>"


def box(
    x: float, y: float, width: float, height: float, colour: str = "main", words: str = "", *,
    size: float = 14, mono: bool = False, dashed: bool = False, below: str = "", radius: float = 8,
) -> str:  # fmt: skip
    """Return a box with words in its centre, and a line of smaller words below them."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    classes = f"f-{colour}-fill s-{colour}"
    extent = f'width="{width:g}" height="{height:g}" rx="{radius:g}"'
    parts = [f'<rect x="{x:g}" y="{y:g}" {extent} class="{classes}" stroke-width="1.4"{dashes}/>']
    middle, base = x + width / 2, y + height / 2 + size * 0.35
    if below:
        parts.append(text(middle, base + 9, below, colour, size=12, anchor="middle"))
        base -= 8
    if words:
        parts.append(
            text(middle, base, words, colour, size=size, anchor="middle", bold=True, mono=mono)
        )
    return "\n".join(parts)


def frame(x: float, y: float, width: float, height: float, words: str) -> str:
    """Return a dashed frame around other parts, with a name at the top, as SVG."""
    extent = f'width="{width:g}" height="{height:g}" rx="10"'
    return (
        f'<rect x="{x:g}" y="{y:g}" {extent} class="none s-line" stroke-dasharray="5 4"/>\n'
        + text(x + width * 0.39, y + 21, words, "dim", size=13, anchor="middle", bold=True)
    )


def arrow(
    path: str, colour: str = "line", *, dashed: bool = False, head: bool = True, width: float = 1.5
) -> str:
    """Return a line along an SVG path. With ``head``, it ends in an arrow head."""
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    end = f' marker-end="url(#head-{colour})"' if head else ""
    return f'<path d="{path}" class="none s-{colour}" stroke-width="{width:g}"{dashes}{end}/>'


def dot(x: float, y: float, colour: str = "main", *, filled: bool = True, radius: float = 6) -> str:
    """Return a filled or empty dot as SVG."""
    fill = f"f-{colour}" if filled else "f-card"
    return f'<circle cx="{x:g}" cy="{y:g}" r="{radius:g}" class="{fill} s-{colour}" stroke-width="1.8"/>'


def cross(x: float, y: float, colour: str = "dim", *, radius: float = 5) -> str:
    """Return a cross as SVG."""
    r = radius
    path = f"M{x - r:g} {y - r:g}L{x + r:g} {y + r:g}M{x - r:g} {y + r:g}L{x + r:g} {y - r:g}"
    return f'<path d="{path}" class="none s-{colour}" stroke-width="2.2"/>'
