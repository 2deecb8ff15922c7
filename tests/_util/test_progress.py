"""Progress without a terminal: a line with times now and then, and nothing for short work."""

import pytest

from sourceward._util import progress


@pytest.mark.parametrize(("seconds", "lines"), [(0.0, 3), (60.0, 0)])
def test_lines_with_times(seconds: float, lines: int, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LINE_SECONDS", seconds)
    with progress.progress_bar(3, "reading") as advance:
        for done in (1, 2, 3):
            advance(done, "loss 0.5")
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == lines
    assert all(line.startswith("reading: ") and "s left loss 0.5" in line for line in printed)


def test_the_end_of_work_that_took_a_while_is_a_line(monkeypatch, capsys):
    monkeypatch.setattr(progress, "SHORT_SECONDS", 0.0)
    with progress.progress_bar(2, "reading") as advance:
        advance(1)
        advance(2)
    assert capsys.readouterr().err == "reading: 2 of 2, 0 s\n"
