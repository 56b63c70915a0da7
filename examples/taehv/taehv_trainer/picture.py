"""The picture of a run: videos beside their reconstructions, and the PSNR on unseen frames over time."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

_MARGIN = 16
_TILE = 128  # height of a frame, in pixels
_FRAMES = 3  # of each clip
_CURVE_HEIGHT = 220
_INK, _PALE, _BLUE = (32, 32, 32), (214, 214, 214), (31, 98, 178)


def draw(
    pairs: list[tuple[Tensor, Tensor]], curve: list[tuple[int, float]], mean_colour_psnr: float
) -> Image.Image:
    """Return a picture.

    ``pairs``: (video, reconstruction), each (T, 3, H, W) in [0, 1]; ``curve``: (step, dB).
    """
    rows = [[_tiles(side) for side in pair] for pair in pairs]
    width = sum(side.width for side in rows[0]) + 3 * _MARGIN
    top = _MARGIN + 20
    height = top + len(rows) * (_TILE + 6) + 34 + _CURVE_HEIGHT + _MARGIN
    canvas = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(13)
    half = _MARGIN * 2 + rows[0][0].width
    pen.text((_MARGIN, 10), "input (unseen frames)", _INK, font)
    pen.text((half, 10), "reconstruction", _INK, font)
    for number, (left, right) in enumerate(rows):
        y = top + number * (_TILE + 6)
        canvas.paste(left, (_MARGIN, y))
        canvas.paste(right, (half, y))
    box = (_MARGIN + 34, height - _CURVE_HEIGHT - _MARGIN, width - _MARGIN, height - _MARGIN - 18)
    pen.text((_MARGIN, box[1] - 24), "PSNR on unseen frames, dB, over steps", _INK, font)
    if curve:
        _draw_curve(pen, box, curve, mean_colour_psnr, font)
    return canvas


def _tiles(frames: Tensor) -> Image.Image:
    """Lay some frames of one clip side by side."""
    chosen = frames[np.linspace(0, len(frames) - 1, _FRAMES).round().astype(int)]
    pixels = (chosen.float().cpu().permute(0, 2, 3, 1).numpy() * 255).round().astype(np.uint8)
    strip = Image.fromarray(np.concatenate(list(pixels), axis=1))
    return strip.resize((round(strip.width * _TILE / strip.height), _TILE), Image.Resampling.BICUBIC)


def _draw_curve(
    pen: ImageDraw.ImageDraw,
    box: tuple[int, int, int, int],
    curve: list[tuple[int, float]],
    mean_colour_psnr: float,
    font: ImageFont.ImageFont | ImageFont.FreeTypeFont,
) -> None:
    left, top, right, bottom = box
    levels = [psnr for _, psnr in curve] + [mean_colour_psnr]
    low, high = int(min(levels) // 5 * 5), int(max(levels) // 5 * 5 + 5)
    last = max(1, curve[-1][0])

    def at(step: float, psnr: float) -> tuple[float, float]:
        return (
            left + (right - left) * step / last,
            bottom - (bottom - top) * (psnr - low) / (high - low),
        )

    for level in range(low, high + 1, 5):
        y = at(0, level)[1]
        pen.line((left, y, right, y), _PALE)
        pen.text((left - 28, y - 8), str(level), _INK, font)
    for step in (0, last // 2, last):
        pen.text((at(step, low)[0], bottom + 4), str(step), _INK, font, anchor="ma")
    baseline = at(0, mean_colour_psnr)[1]
    for dash in range(left, right, 8):
        pen.line((dash, baseline, dash + 4, baseline), _INK)
    pen.text((right - 4, baseline - 4), f"mean colour {mean_colour_psnr:.1f}", _INK, font, anchor="rd")
    points = [at(step, psnr) for step, psnr in curve]
    pen.line(points, _BLUE, width=2, joint="curve")
    for x, y in points:
        pen.ellipse((x - 3, y - 3, x + 3, y + 3), _BLUE)
    pen.text((points[-1][0] - 4, points[-1][1] - 6), f"{curve[-1][1]:.1f}", _BLUE, font, anchor="rd")
