"""`sourceward reproduce` and `report`, as they are typed."""

import json
import subprocess
import sys

from tests.bench.experiments.test_experiments import feature_file


def sourceward(*arguments):
    return subprocess.run([sys.executable, "-m", "sourceward", *arguments], capture_output=True, text=True)


def test_an_experiment_and_its_page(tmp_path):
    one, two = (feature_file(tmp_path / f"{name}.npz") for name in ("one", "two"))
    quick = [f"--set={k}" for k in ("max_iter=3", "batch_size=8", "train.num_steps=2", "train.chains=4")]
    out = tmp_path / "out"
    done = sourceward(
        *("reproduce", "aggregation", "--data", one, two, "--targets", "a"),
        *("--out", str(out), "--num-steps", "2", "--device", "cpu", *quick),
    )
    assert done.returncode == 0, done.stderr
    assert "closest" in done.stdout
    assert "one/a" in done.stdout
    assert "two/a" in done.stdout
    assert "1 figure (.svg, .png)" in done.stdout
    done = sourceward("report", str(out))
    assert done.returncode == 0, done.stderr
    html = (out / "report.html").read_text()
    assert "sourceward reproduce aggregation" in html
    assert "ORACLE: best source" in html
    assert "http:" not in html
    assert "https:" not in html
    page = tmp_path / "deep" / "er" / "r.html"
    done = sourceward("report", str(out), "--out", str(page))
    assert (done.returncode, page.read_text()) == (0, html), done.stderr


def test_unknown_experiments_get_the_nearest_names(tmp_path):
    done = sourceward("reproduce", "ablations", "--data", str(tmp_path / "x.npz"))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "Unknown experiment 'ablations'. Did you mean 'ablation'" in done.stderr


def test_several_experiments_share_their_models(tmp_path):
    """One call for two experiments: each in a folder of its own, the models trained once."""
    quick = [f"--set={k}" for k in ("max_iter=3", "batch_size=8", "train.num_steps=2", "train.chains=4")]
    data, out = feature_file(tmp_path / "one.npz"), tmp_path / "out"
    options = ("--data", data, "--targets", "a", "--num-steps", "2", "--device", "cpu", *quick)
    done = sourceward("reproduce", "per-source,aggregation", *options, "--out", str(out), "-q")
    assert done.returncode == 0, done.stderr
    alone = sourceward("reproduce", "aggregation", *options, "--out", str(tmp_path / "alone"), "-q")
    assert alone.returncode == 0, alone.stderr
    assert {folder.name for folder in out.iterdir()} == {"per-source", "aggregation", "models"}
    assert len(list((out / "models").iterdir())) == 1
    first, second = (
        json.loads((folder / "results.json").read_text())
        for folder in (out / "aggregation", tmp_path / "alone")
    )
    assert first["tables"] == second["tables"]
    wrong = sourceward("reproduce", "aggregation,stepps", *options, "--out", str(tmp_path / "no"))
    assert (wrong.returncode, (tmp_path / "no").exists()) == (2, False)
