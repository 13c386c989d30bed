"""Tables and pages."""

from hessence.papers.page import Picture, Table, page
from hessence.plotting.axes import new_figure


def test_tables_line_up_for_terminals():
    table = Table(("name", "value"), [("a", "1"), ("longer", "22")], numeric=frozenset({1}))
    lines = table.to_text().splitlines()
    assert lines[0] == "name    value"
    assert lines[2:] == ["a           1", "longer     22"]
    assert lines[1] == "──────  ─────"


def test_pages_escape_what_they_are_given():
    figure, _ = new_figure()
    picture = Picture("p", "<title>", "a & b", figure)
    html = page("<t>", "lead", [("<h>", Table(("<c>",), [("<d>",)])), ("x", picture)])
    for raw in ("<t>", "<h>", "<c>", "<d>", "<title>&"):
        assert raw not in html.replace("<title>&lt;t&gt;</title>", "")
    assert html.count("data:image/png;base64,") == 1
    assert "a &amp; b" in html
