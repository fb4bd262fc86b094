"""Fuzzes one Python target, guided by coverage: `fuzz_one.py NAME [libFuzzer's arguments]`. Run by `run_fuzz.py`."""

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parent))

with atheris.instrument_imports(
    include=["hami_model", "hami_scheduler.core", "hami_webhook.core", "hami_monitor.core", "hami_node_agent.core",
             "kubelet_api.checkpoint"]
):  # fmt: skip
    import python_targets

if __name__ == "__main__":
    name = sys.argv.pop(1)
    atheris.Setup(sys.argv, lambda data: python_targets.run(name, data))
    atheris.Fuzz()
