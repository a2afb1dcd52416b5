"""Pictures with curves: a value over something that grows, a curve for each series."""

import html
import math

WIDTH, HEIGHT, LEFT, RIGHT, BOTTOM = 760, 380, 64, 24, 46
LEGEND_ROW, LEGEND_TOP = 18, 66

STYLE = """
    text { font: 13px system-ui, sans-serif; fill: #1f2430; }
    .title { font-size: 15px; font-weight: 600; }
    .small { font-size: 11px; fill: #5a6374; }
    .right { text-anchor: end; }
    .middle { text-anchor: middle; }
    .page { fill: #ffffff; }
    .grid { stroke: #dde2ea; }
    .curve { fill: none; stroke-width: 2; }
    .hollow { fill: #ffffff; stroke-width: 2; }
    .c0 { stroke: #2563b0; } .d0 { fill: #2563b0; }
    .c1 { stroke: #b7791f; } .d1 { fill: #b7791f; }
    .c2 { stroke: #2f855a; } .d2 { fill: #2f855a; }
    .c3 { stroke: #a83f6b; } .d3 { fill: #a83f6b; }
    .c4 { stroke: #6b5bb5; } .d4 { fill: #6b5bb5; }
    .limit { stroke: #8a93a5; stroke-dasharray: 4 4; } .dlimit { fill: #8a93a5; }
    @media (prefers-color-scheme: dark) {
      text { fill: #d7dde8; }
      .small { fill: #9aa5b8; }
      .page { fill: #161a22; }
      .grid { stroke: #2b3342; }
      .hollow { fill: #161a22; }
      .c0 { stroke: #7fb0ee; } .d0 { fill: #7fb0ee; }
      .c1 { stroke: #f6c667; } .d1 { fill: #f6c667; }
      .c2 { stroke: #68d391; } .d2 { fill: #68d391; }
      .c3 { stroke: #f08db5; } .d3 { fill: #f08db5; }
      .c4 { stroke: #b0a3f0; } .d4 { fill: #b0a3f0; }
    }
"""


# Kinds without a curve, and how large their points are.
DOTS = {"points": 4, "published": 5}


class Series:
    """A curve: values by place, `None` where there is none; `kind` is `curve`, `points`, `limit` (dashed) or `published`
    (hollow points)."""

    def __init__(self, name, values, kind="curve"):
        self.name, self.values, self.kind = name, values, kind


class Scale:
    """Where values are drawn, and which of them have a line."""

    def __init__(self, values, is_log, top, bottom):
        self.is_log, self.top, self.bottom = is_log, top, bottom
        if is_log:
            self.low, self.high = 10 ** math.floor(math.log10(min(values))), max(values) * 1.3
        else:
            self.low, self.high = 0, max(values) * 1.05

    def y(self, value):
        if self.is_log:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.bottom - (self.bottom - self.top) * part

    def ticks(self):
        if self.is_log:
            first = round(math.log10(self.low))
            ticks = [10.0**power for power in range(first, math.ceil(math.log10(self.high)) + 1)]
        else:
            step = 10 ** math.floor(math.log10(self.high / 4))
            step *= next(factor for factor in (1, 2, 5, 10) if self.high / (step * factor) <= 6)
            ticks = [step * count for count in range(int(self.high / step) + 1)]
        return [tick for tick in ticks if self.low <= tick <= self.high]


def legend(series, classes):
    """A row of names for each few series; returns its lines and its height."""
    lines, x, y = [], 16, LEGEND_TOP
    for one, name in zip(series, classes):
        width = 34 + 6.4 * len(one.name)
        if x > 16 and x + width > WIDTH - RIGHT:
            x, y = 16, y + LEGEND_ROW
        if one.kind in DOTS:
            lines.append(f'  <circle class="{dot_class(one, name)}" cx="{x + 9}" cy="{y}" r="{DOTS[one.kind]}"/>')
        else:
            lines.append(f'  <path class="curve {curve_class(one, name)}" d="M{x} {y}h18"/>')
        lines.append(f'  <text class="small" x="{x + 24}" y="{y + 4}">{html.escape(one.name)}</text>')
        x += width
    return lines, y + LEGEND_ROW


def dot_class(one, name):
    return f"hollow c{name}" if one.kind == "published" else f"d{name}"


def curve_class(one, name):
    return "limit" if one.kind == "limit" else f"c{name}"


def draw(title, note, axis, places, series, is_log=False):
    """A picture as SVG. `places` name the values of each series; `axis` says what they are."""
    colours = iter(range(5))
    classes = ["limit" if one.kind == "limit" else next(colours) for one in series]
    shown, top = legend(series, classes)
    bottom = top + HEIGHT - BOTTOM - LEGEND_TOP
    scale = Scale([value for one in series for value in one.values if value is not None], is_log, top, bottom)
    step = (WIDTH - LEFT - RIGHT - 24) / max(len(places) - 1, 1)
    at = [LEFT + 12 + step * place for place in range(len(places))]
    lines = list(shown)
    for tick in scale.ticks():
        y = scale.y(tick)
        lines.append(f'  <path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        lines.append(f'  <text class="small right" x="{LEFT - 8}" y="{y + 4:.1f}">{tick:g}</text>')
    for x, place in zip(at, places):
        lines.append(f'  <text class="small middle" x="{x:.1f}" y="{bottom + 18}">{html.escape(place)}</text>')
    lines.append(f'  <text class="small middle" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{bottom + 36}">{html.escape(axis)}</text>')
    for one, name in zip(series, classes):
        dots = [(x, scale.y(value)) for x, value in zip(at, one.values) if value is not None]
        if one.kind not in DOTS:
            path = "L".join(f"{x:.1f} {y:.1f}" for x, y in dots)
            lines.append(f'  <path class="curve {curve_class(one, name)}" d="M{path}"/>')
        dot, radius = dot_class(one, name), DOTS.get(one.kind, 3)
        lines += [f'  <circle class="{dot}" cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in dots]
    return framed(title, note, bottom + BOTTOM, lines)


def framed(title, note, height, lines, style=STYLE):
    """A whole picture of the lines below its title and its note."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" role="img" '
        f'aria-labelledby="title">\n  <title id="title">{html.escape(title)}</title>\n  <style>{style}  </style>\n'
        f'  <rect class="page" width="{WIDTH}" height="{height}" rx="8"/>\n'
        f'  <text class="title" x="16" y="26">{html.escape(title)}</text>\n  <text class="small" x="16" y="46">{html.escape(note)}</text>\n'
    )
    return head + "\n".join(lines) + "\n</svg>\n"
