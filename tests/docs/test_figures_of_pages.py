"""What counts as a figure."""

from tests.docs.figures_of_pages import numbers, sentences


def test_figures_are_numbers_outside_names_sizes_and_code() -> None:
    text = "ResNet-18 at 32x32 has 122,880 ReLUs and 30.63 ± 1.69% [of 3](x-9.md). In `a = 5`, torch 2.13.0, 4."
    text += "\n\n| a | 7% |\n"
    found = list(sentences(text))
    assert [numbers(sentence) for sentence in found] == [["122,880", "30.63", "1.69", "3"], ["4"], ["7"]]
