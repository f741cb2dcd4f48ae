"""The look of all pictures, and how they are written: the same data, the same bytes.

Colours are those of Okabe and Ito and the map cividis, which people with any colour vision tell apart. Sizes are in
inches, as papers set columns: pictures are 3.5 or 7 wide. Text from files is drawn as it is, never read as a formula.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextToPath
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from evolve.output.files import save
from simulator.common.text import visible

COLUMN, PAGE = 3.5, 7.0  # widths in inches
BLACK, ORANGE, SKY, GREEN = "#000000", "#e69f00", "#56b4e9", "#009e73"
YELLOW, BLUE, VERMILION, PURPLE = "#f0e442", "#0072b2", "#d55e00", "#cc79a7"
HUES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY, YELLOW)  # in the order in which lines take them
GREY, PALE = "#767676", "#b8b8b8"  # for what is not the point of a picture
SMALL = 7  # points; the smallest text
LINE_POINTS = 9  # from one line of the smallest text to the next
SHADES = colormaps["cividis"].resampled(24)  # matplotlib would embed a scale of 50 shades and more as a bitmap
FONT = "DejaVu Sans"  # comes with matplotlib
CREATOR = "evolve-latency"
ROOM = 235  # points; the width of a picture of 3.5 inches without its margins
LONGEST, LEAST = 120, 7  # characters of a text in a picture
NO_GLYPH = "Glyph .* missing from"  # a warning
STYLE: Any = {  # matplotlib types it by all of its keys
    "axes.edgecolor": "#404040",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 8,
    "figure.constrained_layout.use": True,
    "figure.dpi": 100,
    "font.family": "sans-serif",
    # The first is drawn with. A reader of an SVG who lacks it gets Verdana, which is as wide,
    # or a narrower font, so that no text grows into another one.
    "font.sans-serif": [FONT, "Verdana", "Arial", "Helvetica"],
    "font.size": 8,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "legend.fontsize": SMALL,
    "legend.frameon": False,
    "legend.handlelength": 1.4,
    "lines.linewidth": 1.2,
    "pdf.fonttype": 42,  # as publishers ask for; the default cannot be searched
    "savefig.dpi": 200,
    "savefig.facecolor": "white",  # pages may be dark
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": CREATOR,
    "text.parse_math": False,
    "text.usetex": False,
    "xtick.labelsize": SMALL,
    "xtick.major.width": 0.6,
    "ytick.labelsize": SMALL,
    "ytick.major.width": 0.6,
}


@contextmanager
def styled() -> Iterator[None]:
    """A context, or a decorator, in which figures have this look, whatever the user's settings of matplotlib are."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def write(figure: Figure, path: Path, kind: str, title: str) -> None:
    """Write the figure, whole or not at all, in the format `kind`: svg, png or pdf.

    `title`: what is seen, for programs that read pictures out. Raises InputError if the file cannot be written.
    """
    stamps: dict[str, dict[str, str | None]] = {
        "svg": {"Date": None, "Creator": CREATOR},
        "pdf": {"CreationDate": None, "Creator": CREATOR},
        "png": {"Software": CREATOR},
    }
    about = {**stamps[kind], "Title": visible(title)}
    with styled(), warnings.catch_warnings():
        # A character that the font lacks becomes a box, or in an SVG what the reader's fonts have.
        warnings.filterwarnings("ignore", NO_GLYPH, UserWarning)
        save(path, "--out", lambda draft: figure.savefig(draft, format=kind, metadata=about))


def label(text: str, room: float = ROOM) -> str:
    """The text as one line without control characters; if it is wider than `room` points, its beginning and its end.

    >>> label("seeds/champion"), label("a" * 99 + "z" * 99, 40)
    ('seeds/champion', 'aaaa…zzzz')
    """
    whole = visible(text)
    cuts = (_cut(whole, most) for most in range(LONGEST, LEAST, -1))
    return next((cut for cut in cuts if _width(cut) <= room), _cut(whole, LEAST))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most // 2]}…{text[len(text) - (most - most // 2 - 1) :]}"


def _width(text: str) -> float:
    font = FontProperties(family=FONT, size=SMALL)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", NO_GLYPH, UserWarning)
        width: float = TextToPath().get_text_width_height_descent(text, font, False)[0]
    return width


def one_in(every: int) -> str:
    """The note of a legend if only some points, evenly spaced, are drawn.

    >>> one_in(8), one_in(1)
    (', 1 in 8 drawn', '')
    """
    return f", 1 in {every} drawn" if every > 1 else ""


def explain(figure: Figure, parts: Sequence[Artist], names: Sequence[str], side: str, columns: int) -> None:
    """Name the parts of a figure below it, on the `side` left or center."""
    place: Any = f"outside lower {side}"
    legend = figure.legend(list(parts), ["-"] * len(parts), loc=place, ncols=columns)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(name)  # only here: releases before 3.10 leave out a name that begins with an underscore


def heading(figure: Figure, text: str) -> None:
    """Write a grey line above the figure that names its content."""
    figure.suptitle(text, x=0.01, ha="left", fontsize=SMALL, color=GREY)


def beside(figure: Figure, axes: Axes, ends: Sequence[tuple[float, str, str]]) -> None:
    """Name lines at their right ends, (value, name, colour), above one another where they end close together."""
    low, high = axes.get_ylim()
    figure.draw_without_rendering()  # for the height of the axes
    least = LINE_POINTS / (axes.get_position().height * figure.get_figheight() * 72)
    heights = [math.log(value / low) / math.log(high / low) for value, _, _ in ends]
    place = -math.inf
    for i in sorted(range(len(ends)), key=lambda i: heights[i]):
        place = max(heights[i], place + least)
        _, name, colour = ends[i]
        axes.annotate(name, (1.02, place), xycoords="axes fraction", color=colour, fontsize=SMALL, va="center")


def shades_between(low: float, high: float) -> Normalize:
    """The scale of colours from `low` to `high`, logarithmic where that is possible."""
    return LogNorm(low, high) if 0.0 < low < high else Normalize(low, high)


def scale_of(
    figure: Figure, axes: Axes, coloured: Collection, ends: tuple[float, float], title: str, more: bool
) -> None:
    """Draw the scale of colours between these ends beside the axes. `more`: there are values above the upper one."""
    low, high = ends
    bar = figure.colorbar(coloured, ax=axes, pad=0.02, extend="max" if more else "neither")
    ticks: Any = round_numbers(low, high) if 0.0 < low < high else [low]
    bar.set_ticks(ticks, labels=[f"{x:g}" for x in ticks])
    bar.minorticks_off()
    bar.ax.spines[:].set_visible(False)
    for shades in bar.ax.collections:
        shades.set_edgecolor("face")  # no seams between the shades
    bar.set_label(title)


def log_axis(axis: Axis, low: float, high: float, spelled: Callable[[float], str] = lambda x: f"{x:,g}") -> None:
    """Make an axis logarithmic from `low` to `high`, with a few round numbers on it, in plain digits."""
    axes: Axes = axis.axes
    if axis is axes.xaxis:
        axes.set_xscale("log")
        axes.set_xlim(low, high)
    else:
        axes.set_yscale("log")
        axes.set_ylim(low, high)
    axis.set_major_locator(FixedLocator(round_numbers(low, high)))
    axis.set_major_formatter(FuncFormatter(lambda x, _: spelled(x)))
    axis.set_minor_locator(NullLocator())


def round_numbers(low: float, high: float) -> list[float]:
    """Four to eight round numbers from `low` to `high`, spread over a logarithmic axis; more over many decades.

    >>> round_numbers(0.5, 2000.0), round_numbers(2.4, 16.0), round_numbers(2.4, 2.9)
    ([1.0, 10.0, 100.0, 1000.0], [3.0, 5.0, 7.0, 10.0, 15.0], [2.4, 2.5, 2.6, 2.7, 2.8, 2.9])
    """
    decades = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    for digits in ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)):
        numbers = [x for d in decades for m in digits if low <= (x := float(f"{m}e{d}")) <= high]
        if len(numbers) >= 4:
            return numbers
    # hardly curved: as on a linear axis
    step = next(x for d in range(-300, 300) for m in (1, 2, 5) if (high - low) / (x := float(f"{m}e{d}")) <= 8)
    multiples = (float(f"{i * step:.12g}") for i in range(math.floor(low / step), math.ceil(high / step) + 1))
    return [x for x in multiples if low <= x <= high]
