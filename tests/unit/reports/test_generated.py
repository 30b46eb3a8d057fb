import sys
from pathlib import Path

import pytest

from balancer.reports import report_pb2

COMMITTED = Path(report_pb2.__file__).parent


@pytest.mark.parametrize("name", ["report_pb2.py", "report_pb2.pyi"])
def test_committed_code_is_what_the_proto_generates(name: str, tmp_path: Path) -> None:
    protoc = pytest.importorskip("grpc_tools.protoc", reason="grpcio-tools is of the extra dev")
    root = COMMITTED.parents[1]
    arguments = ["protoc", f"-I{root}", f"--python_out={tmp_path}", f"--pyi_out={tmp_path}"]
    assert protoc.main([*arguments, str(COMMITTED / "report.proto")]) == 0, sys.stderr
    generated = (tmp_path / "balancer" / "reports" / name).read_text()
    assert generated == (COMMITTED / name).read_text(), "run the command at the top of report.proto"
