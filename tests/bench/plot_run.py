#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws the curves of a run directory as an SVG: training and validation accuracy, learning rate.

Usage: plot_run.py RUN_DIR OUT.svg [TITLE]
Needs only Python 3.
"""
import csv
import sys
from pathlib import Path

WIDTH, HEIGHT = 812, 340
LEFT, RIGHT, TOP, BOTTOM = 56, 76, 44, 44
TRAIN, VALID, RATE, INK, GRID = "#7a8aa0", "#0b6bcb", "#c9853a", "#24303c", "#d8dee6"


def column(path: Path, name: str) -> list[float]:
    with path.open() as file:
        return [float(row[name]) for row in csv.DictReader(file)]


class Axes:
    """Maps epochs and percentages to pixels."""

    def __init__(self, epochs: float, low: float, high: float) -> None:
        self.epochs, self.low, self.high = epochs, low, high

    def x(self, epoch: float) -> float:
        return LEFT + epoch / self.epochs * (WIDTH - LEFT - RIGHT)

    def y(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return HEIGHT - BOTTOM - min(max(share, 0.0), 1.0) * (HEIGHT - TOP - BOTTOM)

    def line(self, xs: list[float], ys: list[float], colour: str, width: float, dash: str = "") -> str:
        points = " ".join(f"{self.x(x):.1f},{self.y(y):.1f}" for x, y in zip(xs, ys))
        style = f' stroke-dasharray="{dash}"' if dash else ""
        return (f'<polyline points="{points}" fill="none" stroke="{colour}" '
                f'stroke-width="{width}"{style}/>')


def text(x: float, y: float, words: str, anchor: str = "middle", colour: str = INK, size: int = 12) -> str:
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" '
            f'font-size="{size}">{words}</text>')


def grid(axes: Axes) -> list[str]:
    parts = []
    for value in range(int(axes.low), int(axes.high) + 1, 10):
        y = axes.y(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(text(LEFT - 8, y + 4, f"{value} %", "end"))
    step = 5 if axes.epochs > 12 else 1
    for epoch in range(0, int(axes.epochs) + 1, step):
        parts.append(text(axes.x(epoch), HEIGHT - BOTTOM + 18, str(epoch)))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "epoch"))
    return parts


def draw(run: Path, title: str) -> str:
    training, validation = run / "training.csv", run / "validation.csv"
    epochs = column(training, "epoch")
    rates = column(training, "lr")
    valid_epochs, valid = column(validation, "epoch"), column(validation, "val_acc")
    axes = Axes(max(epochs), 30.0, 100.0)
    span = axes.high - axes.low
    scaled = [axes.low + rate / max(rates) * span for rate in rates]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 22, title, "start", size=15),
        *grid(axes),
        axes.line(epochs, scaled, RATE, 1.2, "4 3"),
        axes.line(epochs, column(training, "train_acc_batch"), TRAIN, 1.2),
        axes.line(valid_epochs, valid, VALID, 2.4),
        text(axes.x(valid_epochs[-1]) + 8, axes.y(valid[-1]) + 4, f"{valid[-1]:.2f} %", "start", VALID, 13),
        text(WIDTH - RIGHT, 22, "validation top-1", "end", VALID),
        text(WIDTH - RIGHT - 112, 22, "training top-1", "end", TRAIN),
        text(WIDTH - RIGHT - 212, 22, f"learning rate (peak {max(rates):.3g})", "end", RATE),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def main() -> None:
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    run = Path(sys.argv[1])
    title = sys.argv[3] if len(sys.argv) == 4 else run.name
    Path(sys.argv[2]).write_text(draw(run, title))


if __name__ == "__main__":
    main()
