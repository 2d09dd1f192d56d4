"""A report made of blocks: what is in them is in the file, as text, and nothing of it is taken for HTML."""

from __future__ import annotations

import re

from atoll.observe.sheet import Bar, Block, Code, Heading, Plot, Series, Sheet, Table, Text, html
from atoll.observe.ticks import log_ticks
from atoll.units import say_short

LOOSE = Series(label="drawn", x=[1, 10, 100], y=[1, 3, 9], low=[0.5, 2, 8], high=[2, 4, 10], joined=False)
FIRM = Series(label="by formula", x=[1, 10, 100], y=[1, 3.1, 9.2])


def a_plot(*series: Series, log: bool = False) -> Plot:
    return Plot(title="Both", x="peers", y="slowdown", series=series, log_x=log, log_y=log, caption="They agree.")


def test_every_block_is_in_the_file_in_its_order() -> None:
    blocks: list[Block] = [
        Heading("First"),
        Text("A line.", "found"),
        Table(["a", "b"], [["1", "2"]]),
        Code("atoll limits"),
    ]
    said = html(Sheet("A title", blocks))
    places = [said.index(each) for each in ("<h1>A title", "<h2>First", "A line.", "<td>2</td>", "<pre>atoll limits")]
    assert places == sorted(places)


def test_text_is_never_taken_for_html() -> None:
    said = html(Sheet("<b>", [Text("<i>"), Table(["<u>"], [["<s>"]]), a_plot(FIRM)]))
    assert not re.search("<(b|i|u|s)>", said)
    assert "&lt;s&gt;" in said


def test_a_curve_and_its_marks_have_a_key_each_and_their_axes_a_name() -> None:
    said = html(Sheet("t", [a_plot(FIRM, LOOSE, log=True)]))
    assert said.count("<svg") == 3
    assert all(name in said for name in ("by formula", "drawn", "peers", "slowdown", "They agree."))


def test_plots_in_a_row_share_a_line() -> None:
    assert html(Sheet("t", [a_plot(FIRM), a_plot(LOOSE), Text("x"), a_plot(FIRM)])).count('<div class="plots">') == 2


def test_what_a_logarithmic_axis_cannot_show_is_left_out() -> None:
    zero = Series(label="from nothing", x=[0, 1, 10], y=[0, 1, 2], low=[0, 0.5, 1], high=[1, 2, 3])
    assert html(Sheet("t", [a_plot(zero, log=True)]))


def test_bars_say_their_number_or_what_they_are_told_to() -> None:
    bars = [Bar(label="price", value=12.345, low=10, high=15), Bar(label="heat", value=2, say="two of them")]
    said = html(Sheet("t", [Plot(title="Money", x="$", bars=bars)]))
    assert all(each in said for each in ("price", "12.3", "two of them"))


def test_the_same_blocks_make_the_same_file() -> None:
    sheet = Sheet("t", [a_plot(FIRM, LOOSE)])
    assert html(sheet) == html(sheet)


def test_small_numbers_keep_their_places_on_an_axis() -> None:
    assert [tick.label for tick in log_ticks(0.01, 100, say_short)] == ["0.01", "0.1", "1", "10", "100"]
    assert [say_short(value) for value in (0.02, 15, 1500, 2.5e6)] == ["0.02", "15", "1.5k", "2.5M"]
