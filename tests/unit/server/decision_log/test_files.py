"""The files of a decision log: rotation, bounds, what cannot be written, and what becomes of a full queue."""

import gzip
from collections import Counter
from pathlib import Path

import pytest

from balancer.server.decision_log import files as files_module
from balancer.server.decision_log.files import DecisionFiles, number_of


def text(file: Path) -> str:
    with gzip.open(file, "rt") as lines:
        return lines.read()


def written(folder: Path, lines: list[bytes], **sizes: int) -> tuple[list[Path], Counter[str]]:
    counts: Counter[str] = Counter()
    files = DecisionFiles(
        folder,
        "0",
        sizes.get("max_file_bytes", 2**30),
        sizes.get("max_files", 10),
        lambda result, lines: counts.update({result: lines}),
    )
    for line in lines:
        files.put(line)
    files.close(wait_s=30)
    return sorted(folder.iterdir()), counts


def test_all_lines_in_order(tmp_path: Path) -> None:
    lines = [b"%d\n" % number for number in range(1000)]
    (file,), counts = written(tmp_path / "made", lines)
    assert file.name == "decisions-0-000001.jsonl.gz"
    assert text(file).encode() == b"".join(lines)
    assert counts == {"written": 1000}


def test_a_start_takes_the_next_file_and_leaves_those_of_others(tmp_path: Path) -> None:
    (tmp_path / "decisions-00-000009.jsonl.gz").write_bytes(b"another process")
    for _ in range(3):
        written(tmp_path, [b"x\n"])
    assert [file.name for file in sorted(tmp_path.iterdir())] == [
        "decisions-0-000001.jsonl.gz",
        "decisions-0-000002.jsonl.gz",
        "decisions-0-000003.jsonl.gz",
        "decisions-00-000009.jsonl.gz",
    ]


def test_files_are_rotated_bounded_and_each_begins_with_what_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_MEMBER_BYTES", 1)  # every line alone
    files = DecisionFiles(tmp_path, "7", max_file_bytes=1, max_files=3)
    files.put(b"header\n", "header")
    files.put(b"old\n", "workers")
    files.put(b"1\n")
    files.put(b"new\n", "workers")
    files.put(b"2\n")
    files.put(b"3\n")
    files.close(wait_s=30)
    kept = sorted(tmp_path.iterdir())
    assert [number_of(file) for file in kept] == [4, 5, 6]
    assert [text(file) for file in kept] == ["header\nold\nnew\n", "header\nnew\n2\n", "header\nnew\n3\n"]


def test_a_full_queue_drops_and_counts_but_keeps_what_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_MOST_WAITING_BYTES", -1)
    counts: Counter[str] = Counter()
    files = DecisionFiles(tmp_path, "0", 2**20, 3, lambda result, lines: counts.update({result: lines}))
    for _ in range(5):
        files.put(b"dropped\n")
    files.put(b"kept\n", "header")
    files.close(wait_s=30)
    (file,) = tmp_path.iterdir()
    assert text(file) == "kept\n"
    assert counts == {"dropped": 5, "written": 1}


def test_what_cannot_be_written_is_counted_logged_once_and_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_module, "_MEMBER_BYTES", 1)
    (tmp_path / "file").write_text("in the way")
    counts: Counter[str] = Counter()
    files = DecisionFiles(tmp_path / "file", "0", 2**20, 3, lambda result, lines: counts.update({result: lines}))
    files.put(b"header\n", "header")
    files.put(b"1\n")
    files.close(wait_s=30)
    assert counts == {"dropped": 2}
    (record,) = caplog.records
    assert "decision_log.folder must name a folder with room" in record.getMessage()
    assert str(tmp_path / "file") in record.getMessage()


def test_after_a_failure_a_file_begins_with_what_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_MEMBER_BYTES", 1)
    folder, counts = tmp_path / "folder", Counter[str]()
    folder.write_text("in the way")

    def count(result: str, lines: int) -> None:
        counts[result] += lines
        folder.unlink(missing_ok=True) if counts["dropped"] == 2 and folder.is_file() else None

    files = DecisionFiles(folder, "0", 2**20, 3, count)
    for line, name in ((b"header\n", "header"), (b"lost\n", ""), (b"kept\n", "")):
        files.put(line, name)
    files.close(wait_s=30)
    (file,) = folder.iterdir()
    assert text(file) == "header\nkept\n"
