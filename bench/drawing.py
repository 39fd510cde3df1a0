"""The suite's figure; needs matplotlib, which is imported when something is drawn."""

import statistics
from collections.abc import Iterable
from pathlib import Path
from typing import Any

COLOURS = ("#9ecae1", "#4292c6", "#084594", "#bdbdbd", "#737373", "#fdae6b", "#e6550d", "#8c2d04")
"""Three for the rungs, two for DebugMode, three for msprobe."""

LEAST_PERCENT = 0.1
"""The axis of an overhead begins here; what the noise makes less is drawn as this."""


def draw_medians(axis: Any, points: Iterable[tuple[int, float]]) -> None:
    """Draw the median of the values at each place, and every value as a dot."""
    values: dict[int, list[float]] = {}
    for place, value in points:
        values.setdefault(place, []).append(value)
    places = sorted(values)
    axis.plot(places, [statistics.median(values[place]) for place in places], color=COLOURS[1])
    for place in places:
        axis.plot([place] * len(values[place]), values[place], ".", color=COLOURS[2])
    axis.set_xticks(places, [f"{place:,}" for place in places])
    axis.set_ylim(0, 1.1 * max(max(each) for each in values.values()))
    axis.grid(alpha=0.3)


def draw_overheads(axis: Any, groups: dict[str, list[Any]]) -> None:
    """Draw what conditions add to a step, `overhead.Measured` by size, and the limits of rungs."""
    names = list(dict.fromkeys(each.condition for found in groups.values() for each in found))
    width = 0.8 / len(names)
    for group, found in enumerate(groups.values()):
        for each in found:
            place = group + width * (names.index(each.condition) - (len(names) - 1) / 2)
            low, middle, high = (_percent(f(each.ratios)) for f in (min, statistics.median, max))
            colour = COLOURS[names.index(each.condition)]
            label = each.condition if not group else None
            axis.bar(place, middle, width * 0.9, color=colour, label=label)
            axis.plot([place] * 2, [low, high], color="black", linewidth=0.8)
            axis.annotate(
                f"{middle:.1f}" if middle < 100 else f"{middle:.0f}",
                (place, high),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                fontsize=7,
            )
            if each.limit:
                limit = _percent(statistics.median(each.limit_ratios))
                half = width * 0.45
                is_first = not group and each is found[0]
                axis.plot(
                    [place - half, place + half],
                    [limit] * 2,
                    color="red",
                    linewidth=2,
                    label="the same bytes digested once" if is_first else None,
                )
    axis.set_yscale("log")
    axis.margins(y=0.1)
    axis.yaxis.set_major_formatter("{x:g}")
    axis.set_ylim(bottom=LEAST_PERCENT)
    axis.set_xticks(range(len(groups)), [f"{size} parameters" for size in groups])
    axis.set_ylabel("added to a step, %, log scale")
    axis.grid(axis="y", alpha=0.3)


def _percent(ratio: float) -> float:
    return max(100 * (ratio - 1), LEAST_PERCENT)


def draw_suite(
    path: Path, overheads: dict[str, list[Any]], curves: dict[str, list[tuple[int, float]]]
) -> None:
    """Write the figure: overheads by size above, seconds of comparisons below.

    Args:
        path: of the picture.
        overheads: see `draw_overheads`.
        curves: what is varied, and the seconds of comparisons by it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure: Any = Figure(figsize=(11, 8), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subfigures(2, 1, height_ratios=(3, 2))
    axis = above.subplots()
    draw_overheads(axis, overheads)
    above.legend(loc="outside lower center", ncols=5, fontsize=8)
    axis.set_title("Recording a training step: median of rounds, smallest to largest")
    axes = below.subplots(1, len(curves))
    for axis, (name, points) in zip(axes, curves.items(), strict=True):
        draw_medians(axis, points)
        axis.set_xlabel(name)
    axes[0].set_ylabel("seconds to the verdict")
    below.suptitle("Comparing two runs")
    figure.savefig(path, dpi=120)
