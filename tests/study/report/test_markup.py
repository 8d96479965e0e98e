"""HTML and SVG as text."""

from deepshare.study.report.markup import grow, node, to_text


def test_text_and_attributes_are_escaped() -> None:
    made = grow(node("p", "a<b", title='"<&'), node("br"), "c&d", None)
    assert to_text(made) == '<p title="&quot;<&amp;">a&lt;b<br>c&amp;d</p>'
    assert to_text(node("i", class_=None, x=0.3333, stroke_width=2.0)) == '<i x="0.33" stroke-width="2"></i>'
