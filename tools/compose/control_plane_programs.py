"""Gathers the programs of the control plane into the folder that their image is built from."""

from __future__ import annotations

import shutil
from pathlib import Path

from engine import Progress
from hami_sim.binaries import obtain_binaries

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "out" / "control-plane"
PROBE = ROOT / "images" / "probe.py"


def gather(progress: Progress) -> None:
    """Raises BinariesUnavailableError. What has not changed is left as it is, so that the image's layer holds."""
    binaries = obtain_binaries(progress)
    FOLDER.mkdir(parents=True, exist_ok=True)
    wanted = {
        "etcd": binaries.etcd,
        "kube-apiserver": binaries.kube_apiserver,
        "kube-controller-manager": binaries.kube_controller_manager,
        "kube-scheduler": binaries.kube_scheduler,
        "kubectl": binaries.kubectl,
        "probe": PROBE,
    }
    kept = set()
    for name, path in wanted.items():
        # Several names may be links to one program.
        program = path.resolve()
        target = FOLDER / (name if program == PROBE else program.name)
        _copy(program, target)
        kept |= {name, target.name}
        if target.name != name:
            link = FOLDER / name
            link.unlink(missing_ok=True)
            link.symlink_to(target.name)
    for stale in FOLDER.iterdir():
        if stale.name not in kept:
            stale.unlink()


def _copy(program: Path, target: Path) -> None:
    new, old = program.stat(), target.stat() if target.exists() else None
    if old is not None and (new.st_size, new.st_mtime_ns) == (old.st_size, old.st_mtime_ns):
        return
    shutil.copy2(program, target)
