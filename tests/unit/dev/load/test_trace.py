import gzip
import pathlib

import pytest

from balancer.load.trace import read_trace


def written(path: pathlib.Path, text: str) -> pathlib.Path:
    path.write_text(text)
    return path


def test_an_azure_trace_is_read_as_it_comes(tmp_path: pathlib.Path) -> None:
    lines = "2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n2023-11-16 18:18:04,1,1\n"
    trace = read_trace(written(tmp_path / "t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n" + lines))
    assert trace.time_s == pytest.approx([0, 0.052, 60.02004], abs=1e-5)
    assert trace.models == ()
    assert len(trace.rows) == 0


def test_model_rows_and_key_are_read_and_sorted_by_time(tmp_path: pathlib.Path) -> None:
    trace = read_trace(written(tmp_path / "t.csv", "time_s,model,size,key\n2.5,b,4,y\n2,a,1,x\n"))
    assert trace.time_s.tolist() == [0, 0.5]
    assert trace.models == ("a", "b")
    assert trace.rows.tolist() == [1, 4]
    assert trace.keys == ("x", "y")


def test_further_columns_are_read_where_asked_for_gzipped_too(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"time_s,ContextTokens\n2,7\n1,3.5\n"))
    assert read_trace(path, ["contexttokens"]).numbers["contexttokens"].tolist() == [3.5, 7]
    with pytest.raises(ValueError, match="has no column 'tokens': name one of"):
        read_trace(path, ["tokens"])
    with pytest.raises(ValueError, match="line 2: b is 'x': give a number"):
        read_trace(written(tmp_path / "t.csv", "time_s,b\n1,x\n"), ["b"])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("when\n1\n", "name the one with the time"),
        ("time_s\n", "has no arrivals"),
        ("time_s\n1\nsoon\n", "line 3: time is 'soon'"),
        ("time_s,rows\n1,0\n", "line 2: rows is '0'"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_line(tmp_path: pathlib.Path, text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        read_trace(written(tmp_path / "t.csv", text))
