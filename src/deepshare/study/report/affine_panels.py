"""Section of affine parameters: alpha over beta, one small panel per site."""

import torch

from deepshare.study.affine.parameters import LINEAR, NetworkAffine, SiteAffine
from deepshare.study.report.chart import AxisScale, Point, dots, legend, svg, text
from deepshare.study.report.markup import Node, node, section

SIDE, TOP, LEFT = 200.0, 36.0, 4.0


def affine_section(affine: NetworkAffine | str) -> Node:
    """Section of panels, or the reason why there are none."""
    title = "Affine parameters"
    if isinstance(affine, str):
        return section(title, affine)
    limit = max(1.1 * max(float(torch.cat([s.alpha, s.beta]).abs().max()) for s in affine.sites), 0.1)
    about = (
        "Alpha upwards, beta to the right: a channel multiplies its input by alpha + beta where its gate is open and "
        f"by beta where it is closed. All panels reach from \N{MINUS SIGN}{limit:.2g} to {limit:.2g}. In the grey area "
        f"the gate hardly matters: {affine.linear_said.removeprefix('linear-like: ')} are there."
    )
    marks = legend(("affine prototype", "prototype"), ("affine replicate", "replicate"), ("relu", "a ReLU"))
    drawn = node("div", *(_panel(site, limit) for site in affine.sites), class_="panels")
    return section(title, about, marks, drawn)


def _panel(site: SiteAffine, limit: float) -> Node:
    x, y = AxisScale(-limit, limit, LEFT, LEFT + SIDE), AxisScale(-limit, limit, TOP + SIDE, TOP)
    p = site.prototypes
    points = list(zip(site.beta.tolist(), site.alpha.tolist(), strict=True))
    counts = ((p, "prototype"), (len(points) - p, "replicate"))
    said = ", ".join(f"{count} {name}{'s' * (count > 1)}" for count, name in counts if count)
    drawn = svg(TOP + SIDE + 4, f"alpha over beta of {site.site}", width=SIDE + 2 * LEFT, class_="affine")
    drawn.append(text(site.site, LEFT, 14, "start", "site"))
    drawn.append(text(said, LEFT, 29, "start", "count"))
    drawn.append(node("rect", x=LEFT, y=TOP, width=SIDE, height=SIDE, class_="frame"))
    drawn.append(_linear_area(x, y, limit))
    drawn.append(node("path", d=f"M{LEFT} {y.at(0):g}h{SIDE}M{x.at(0):g} {TOP}v{SIDE}", class_="axis"))
    if limit >= 1:
        drawn.append(node("circle", cx=x.at(0), cy=y.at(1), r=5.0, class_="relu"))
    for part, kind in ((points[p:], "affine replicate"), (points[:p], "affine prototype")):
        if (marks := dots(((x.at(beta), y.at(alpha)) for beta, alpha in part), kind)) is not None:
            drawn.append(marks)
    return drawn


def _linear_area(x: AxisScale, y: AxisScale, limit: float) -> Node:
    # The larger factor is beta where alpha and beta differ in sign, and alpha + beta where they agree.
    apart, alike = LINEAR * limit, LINEAR / (1 - LINEAR) * limit
    corners: list[Point] = [(-limit, apart), (0, 0), (limit, alike), (limit, -apart), (0, 0), (-limit, -alike)]
    path = "M" + "L".join(f"{x.at(beta):.1f} {y.at(alpha):.1f}" for beta, alpha in corners) + "z"
    return node("path", d=path, class_="linear")
