"""What PyTorch sees of a slice: `pytorch_checks.py LIMIT_BYTES`, started under libvgpu by tests/gpu/run.sh."""

from __future__ import annotations

import sys

import torch

MIB = 1024 * 1024


def main() -> None:
    limit = int(sys.argv[1])
    free, total = torch.cuda.mem_get_info()
    assert total == limit, f"PyTorch sees {total} bytes, not {limit}"
    assert torch.cuda.get_device_properties(0).total_memory == limit

    left = torch.ones(1024, 1024, device="cuda")
    assert (left @ left)[0, 0].item() == 1024, "a product is wrong"

    kept = torch.empty(free // 2, dtype=torch.uint8, device="cuda")
    try:
        torch.empty(limit, dtype=torch.uint8, device="cuda")
    except torch.cuda.OutOfMemoryError:
        pass
    else:
        raise AssertionError("as much as the whole slice was given beside what is held")
    assert kept.numel() == free // 2
    assert torch.cuda.mem_get_info()[0] <= free - free // 2

    del kept
    torch.cuda.empty_cache()
    torch.empty(free // 2, dtype=torch.uint8, device="cuda")


if __name__ == "__main__":
    main()
