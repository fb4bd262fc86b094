from pathlib import Path

import kubelet_api
from kubelet_api.generate import generate

COMMITTED = Path(kubelet_api.__file__).parent


def test_committed_code_is_what_the_generator_writes(tmp_path):
    generated = {path.name: path.read_text() for path in generate(tmp_path)}

    committed = {path.name: path.read_text() for path in COMMITTED.glob("*_pb2*.py*")}
    assert generated == committed, "run `.venv/bin/python -m kubelet_api.generate` and commit the result"
