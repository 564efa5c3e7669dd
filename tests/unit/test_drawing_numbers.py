# SPDX-License-Identifier: Apache-2.0
"""Numbers at the x axis of pictures have room."""

from __future__ import annotations

import itertools

import pytest

from tcpkmon.formats.drawing import fit_numbers, new_figure, styled


@pytest.mark.parametrize("low, high", [
    (2.62665, 2.6289), (2.9382, 2.9388), (0, 8.5), (1e6, 1e6 + 0.001), (-8, 0),
])  # fmt: skip
def test_numbers_do_not_run_into_each_other(low: float, high: float) -> None:
    with styled():
        figure = new_figure()
        figure.set_size_inches(5.0, 2.7)
        axes = figure.subplots()
        axes.set_xlim(low, high)
        fit_numbers(axes, low, high, 50)
        figure.canvas.draw()
        labels = [one for one in axes.get_xticklabels() if one.get_text()]
        boxes = [one.get_window_extent() for one in labels]
        left, right = axes.bbox.x0 - 1, axes.bbox.x1 + 1
        inside = [box for box in boxes if left <= (box.x0 + box.x1) / 2 <= right]
        assert len(inside) >= 2
        for one, other in itertools.pairwise(inside):
            assert other.x0 > one.x1 + 3, [label.get_text() for label in labels]
