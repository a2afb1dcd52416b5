"""Pictures of the steps of a view change: a lane for each member, a bar from each step to the next one."""

import html

from .curves import LEFT, RIGHT, STYLE, WIDTH, framed

STEPS = ("suspected", "wedged", "proposed", "echoed", "decided", "installed")
LANE, TOP, LABEL = 34, 92, 40
# One colour more than curves have.
SIXTH = """    .d5 { fill: #2b8a9e; }
    @media (prefers-color-scheme: dark) { .d5 { fill: #6fd0e0; } }
"""


def steps_of(trace, view):
    """The slices of a trace that lead to a view, by the names of the members; times in ms since the first one."""
    names = {event["pid"]: event["args"]["name"] for event in trace if event["ph"] == "M"}
    slices = [event for event in trace if event["ph"] == "X" and event["args"]["what"] == f"view {view}"]
    begin = min(event["ts"] for event in slices)
    lanes = {}
    for event in slices:
        at = (event["ts"] - begin) / 1e3
        lanes.setdefault(names[event["pid"]], []).append((event["name"], at, at + event["dur"] / 1e3))
    return lanes


def draw(title, note, trace, view):
    """A picture as SVG of how the members of a trace came to `view`."""
    lanes = steps_of(trace, view)
    shown = [step for step in STEPS if any(step == name for slices in lanes.values() for name, _, _ in slices)]
    most = max(end for slices in lanes.values() for _, _, end in slices)
    left = LEFT + LABEL
    bottom = TOP + LANE * len(lanes)
    height = bottom + 46

    def x(at):
        return left + (WIDTH - left - RIGHT) * at / most

    lines, at = [], 16
    for step in shown:
        lines.append(f'  <rect class="d{STEPS.index(step)}" x="{at}" y="59" width="14" height="10"/>')
        lines.append(f'  <text class="small" x="{at + 19}" y="68">{step}</text>')
        at += 34 + 6.4 * len(step)
    step_ms = next(step for step in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if most / step <= 10)
    for count in range(int(most / step_ms) + 1):
        where = x(count * step_ms)
        lines.append(f'  <path class="grid" d="M{where:.1f} {TOP - 8}V{bottom}"/>')
        lines.append(f'  <text class="small middle" x="{where:.1f}" y="{bottom + 18}">{count * step_ms:g}</text>')
    lines.append(f'  <text class="small middle" x="{(left + WIDTH - RIGHT) / 2:.1f}" y="{bottom + 36}">ms since the first step</text>')
    for lane, (name, slices) in enumerate(sorted(lanes.items())):
        y = TOP + LANE * lane
        lines.append(f'  <text class="small" x="16" y="{y + 16}">{html.escape(name)}</text>')
        for step, begin, end in slices:
            lines.append(f'  <rect class="d{STEPS.index(step)}" x="{x(begin):.1f}" y="{y + 4}" width="{x(end) - x(begin):.1f}" height="{LANE - 16}"/>')
        # A step that the next one follows at once is a mark.
        for step, begin, end in slices:
            if begin == end:
                lines.append(f'  <rect class="d{STEPS.index(step)}" x="{x(begin) - 1:.1f}" y="{y}" width="3" height="{LANE - 8}"/>')
    return framed(title, note, height, lines, STYLE + SIXTH)
