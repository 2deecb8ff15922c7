import json

import pytest

from sourceward._util.errors import InputError
from sourceward.data import open_dataset


def test_threads(put, tmp_path):
    put("p/ferguson/rumours/1/source-tweet/1.json", json.dumps({"text": "they say"}).encode())
    put(
        "p/ferguson/non-rumours/2/source-tweet/2.json",
        json.dumps({"full_text": "it is", "text": "i"}).encode(),
    )
    put("p/ferguson/rumours/3/source-tweet/3.json", b"{ torn")
    put("p/gurlitt/rumours/4/source-tweet/4.json", json.dumps({"text": "art"}).encode())
    data = open_dataset(f"pheme:{tmp_path / 'p'}")
    assert dict(zip(data.items, data.labels)) == {"it is": 0, "they say": 1}
    assert data.classes == ("non-rumour", "rumour")
    assert data.ids == ("ferguson/non-rumours/2", "ferguson/rumours/1")
    assert [p.kind for p in data.problems] == ["unreadable"] + ["missing_domain"] * 4
    assert open_dataset(f"pheme:{tmp_path / 'p'}", events="all").domain_names == ("ferguson", "gurlitt")


def test_none_of_the_five_events(put, tmp_path):
    put("p/gurlitt/rumours/4/source-tweet/4.json", json.dumps({"text": "art"}).encode())
    with pytest.raises(InputError, match='Pass events="all"'):
        open_dataset(f"pheme:{tmp_path / 'p'}")


def test_a_table_with_other_labels(put):
    path = put("p.csv", b"event,label,tweet_id,text\nferguson,maybe,1,hello\n")
    with pytest.raises(InputError, match="Expected labels 0 and 1"):
        open_dataset(f"pheme:{path}")


def test_the_real_table(shared):
    data = open_dataset(f"pheme:{shared / 'data/pheme/pheme.csv'}")
    assert len(data) == 5_624
    assert len(data.domain_names) == 5
    assert data.counts().sum(axis=0).tolist() == [3_652, 1_972]
    assert data.problems == ()
