"""What is told of a training, and when."""

from sourceward.training.loop import train
from sourceward.training.monitor import Watch
from tests.training.test_loop import FEED, SHORT, loop, make_network


def test_a_watch_looks_now_and_then_and_tells_where_a_resumed_training_begins(tmp_path):
    notes, starts = [], []

    class Log:
        start = starts.append

        def write(self, iteration, line):
            assert line["loss"]["energy_gap"] == -line["loss"]["contrast"]
            assert line["per_second"] > 0
            notes.append((iteration, f" gap {line['loss']['energy_gap']:.3f} "))

    shown, log = {}, Log()
    for kept in (None, tmp_path / "checkpoint", tmp_path / "checkpoint"):
        watch = Watch(45, 48, shown.__setitem__, log)
        train(
            make_network(),
            FEED,
            loop(max_iter=45),
            SHORT,
            checkpoint=kept,
            on_start=watch.start,
            on_iteration=watch,
        )
    assert starts == [0, 0, 45]
    assert [iteration for iteration, _ in notes] == [20, 40, 45] * 2
    assert shown[19] == ""
    for iteration, note in notes[3:]:
        assert shown[iteration].startswith("loss ")
        assert note in shown[iteration]
        assert shown[iteration].endswith("/s")
    assert shown[44] == shown[40]  # between looks the last one stays
