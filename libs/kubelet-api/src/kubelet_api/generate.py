"""Write the Python code of the .proto files: `python -m kubelet_api.generate [FOLDER]`.

FOLDER is the source root to write under, by default the one this file lies in. grpcio-tools and mypy-protobuf are
needed only here.
"""

import sys
from importlib.resources import files
from pathlib import Path

from grpc_tools import protoc

SOURCE_ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = Path(sys.executable).parent
"""Where the environment's programs lie: protoc itself looks for its plugins on PATH only."""
PROTO_FILES = ("kubelet_api/deviceplugin_v1beta1.proto", "kubelet_api/podresources_v1.proto")


def generate(target: Path, source_root: Path = SOURCE_ROOT) -> list[Path]:
    """Generate under `target` and return the files written. Raises RuntimeError when protoc refuses."""
    before = set(target.rglob("*_pb2*"))
    status: int = protoc.main(
        [
            "protoc",
            f"--proto_path={source_root}",
            f"--proto_path={files('grpc_tools') / '_proto'}",
            f"--python_out={target}",
            f"--grpc_python_out={target}",
            *(f"--plugin={name}={PROGRAMS / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
            f"--mypy_out=quiet:{target}",
            f"--mypy_grpc_out=quiet:{target}",
            *PROTO_FILES,
        ]
    )
    if status != 0:
        raise RuntimeError(f"protoc ended with status {status}; its message is above")
    return sorted(before | set(target.rglob("*_pb2*")))


if __name__ == "__main__":
    generate(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE_ROOT)
