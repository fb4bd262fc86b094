"""Compares our declarations of the ABI, and the tables of symbols, with NVIDIA's own headers where they are installed.

The headers come in wheels from PyPI (`nvidia-cuda-runtime`, `nvidia-nvml-dev`) and are read at test time only. Where
they are not installed the test is skipped by name: status 77.
"""

import argparse
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections import defaultdict
from pathlib import Path

SKIPPED = 77

# Where the wheels of each major version put their headers, below site-packages.
PLACES = {
    ("cuda", 12): "nvidia/cuda_runtime/include/cuda.h",
    ("cuda", 13): "nvidia/cu13/include/cuda.h",
    ("nvml", 12): "nvidia/nvml_dev/include/nvml.h",
    ("nvml", 13): "nvidia/cu13/include/nvml.h",
}
FAMILIES = ("cuda", "cudaGL", "cudaEGL", "cudaVDPAU", "cudaProfiler")
OLD_VERSIONS = "-D__CUDA_API_VERSION_INTERNAL"  # declares what newer versions replaced, too
# Named in our headers, of our own making or newer than the newest header here.
OURS_ALONE = re.compile(r"^(VG_|CU_STREAM_LEGACY$|CU_STREAM_PER_THREAD$)")
# Newer versions put members into the room that older ones reserved.
RESERVED = re.compile(r"reserved|unused")

ROW = re.compile(
    r"^CUDA_(?:HOOK|CALL)\((\w+), (\w+), \w+, (\d+), (\w+), \w+\)|^CUDA_NAME\((\w+), (\w+), (\d+), (\w+)\)"
)
NVML_ROW = re.compile(r"^NVML_(?:HOOK|CALL)\((\w+), (\w+), \w+\)|^NVML_NAME\((\w+)\)")

Row = tuple[str, int, str]  # base, first version, streams


def find_header(roots: list[Path], library: str, major: int) -> Path | None:
    for root in roots:
        for pattern in (PLACES[library, major], "lib/python3*/site-packages/" + PLACES[library, major]):
            for found in root.glob(pattern):
                return found
    return None


class Compiler:
    def __init__(self, command: str, ours: Path, theirs: Path) -> None:
        self._base = [command, "-std=gnu11", f"-I{ours}", f"-isystem{theirs}", OLD_VERSIONS,
                      "-DNVML_NO_UNVERSIONED_FUNC_DEFS"]  # fmt: skip

    def problems(self, text: str) -> list[str]:
        """What the compiler objects to."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "parity.c"
            source.write_text(text)
            strict = ["-Werror=incompatible-pointer-types", "-Werror=implicit-function-declaration"]
            command = [*self._base, *strict, "-fsyntax-only", "-fmax-errors=0", str(source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            return [line.split("parity.c:")[-1] for line in done.stderr.splitlines() if "error:" in line]

    def run(self, text: str) -> str:
        with tempfile.TemporaryDirectory() as folder:
            source, program = Path(folder) / "print.c", Path(folder) / "print"
            source.write_text(text)
            subprocess.run([*self._base, "-w", str(source), "-o", str(program)], check=True)
            return subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout

    def expand(self, header: Path) -> str:
        command = [*self._base, "-w", "-E", "-P", "-x", "c", str(header)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def without_comments(text: str) -> str:
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)


def enumerators(text: str) -> list[str]:
    return [
        name
        for body in re.findall(r"\benum\s+\w*\s*\{(.*?)\}", text, re.DOTALL)
        for name in re.findall(r"^\s*(\w+)\s*(?:=|,|$)", body, re.MULTILINE)
    ]


def outermost(body: str) -> str:
    """The body with the members of nested structs taken out."""
    while re.search(r"\{[^{}]*\}", body):
        body = re.sub(r"\{[^{}]*\}", " ", body)
    return body


def structs(text: str) -> dict[str, list[str]]:
    """Typedef'd structs and unions with the names of their direct members."""
    found = {}
    for match in re.finditer(
        r"typedef\s+(?:struct|union)\s+\w*\s*(\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\})\s*(\w+)\s*;", text
    ):
        body = outermost(match[1][1:-1])
        found[match[2]] = re.findall(r"(\w+)\s*(?:\[[^\]]*\])*\s*;", body)
    return found


def layout_assertions(compiler: Compiler, header: str, text: str) -> list[tuple[str, str]]:
    """Our values of sizes, offsets and enumerators, each as (name, assertion)."""
    facts = []
    for name, members in structs(text).items():
        facts.append((name, f"sizeof({name})"))
        facts += [(name, f"offsetof({name}, {member})") for member in members if not RESERVED.fullmatch(member)]
    facts += [(name, name) for name in enumerators(text)]
    lines = [f'    printf("{name} {fact} == %lld\\n", (long long){fact});' for name, fact in facts]
    includes = f'#include <stddef.h>\n#include <stdio.h>\n#include "{header}"\n'
    program = includes + "int main(void) {\n" + "\n".join(lines) + "\n}\n"
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in compiler.run(program).splitlines()]


def check_layout(compiler: Compiler, ours: str, theirs: str, text: str, known: set[str]) -> tuple[list[str], int]:
    assertions = [(name, fact) for name, fact in layout_assertions(compiler, ours, text) if name in known]
    source = f'#include <stddef.h>\n#include "{theirs}"\n'
    source += "\n".join(f'_Static_assert({fact}, "{fact}");' for _, fact in assertions)
    return compiler.problems(source), len(assertions)


def split_symbol(symbol: str) -> tuple[str, int, str]:
    match = re.fullmatch(r"(.*?)(?:_v(\d+))?(_ptsz|_ptds)?", symbol)
    assert match is not None
    return match[1], int(match[2] or 1), match[3] or ""


def cuda_rows(compiler: Compiler, folder: Path) -> dict[str, Row]:
    """Every exported symbol that the headers know, with the question cuGetProcAddress is asked for it.

    The typedefs give base and version, the prototypes the symbols: the n-th version of a base is its n-th symbol.
    """
    questions: dict[tuple[str, str], list[int]] = defaultdict(list)
    symbols: set[str] = set()
    for family in FAMILIES:
        typedefs, header = folder / f"{family}Typedefs.h", folder / f"{family}.h"
        for base, version, twin in re.findall(r"PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)\s*\(", typedefs.read_text()):
            questions[base, twin].append(int(version))
            if not header.exists():
                symbols.add(base)
        if family == "cuda":
            symbols |= set(re.findall(r"\bCUresult\s+(cu[A-Z]\w+)\s*\(", compiler.expand(header)))
        elif header.exists():
            text = header.read_text()
            declared = set(re.findall(r"\bCUresult\s+CUDAAPI\s+(cu[A-Z]\w+)\s*\(", text))
            symbols |= declared
            defines = re.findall(r"#define\s+(cu[A-Z]\w+)\s+(cu[A-Z]\w+)\s*$", text, re.MULTILINE)
            symbols |= {new for old, new in defines if old in declared}
            twins = re.findall(r"__CUDA_API(_PTSZ|_PTDS)\((cu\w+)\)", text)
            symbols |= {name + twin.lower() for twin, name in twins}
    by_name: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for symbol in symbols:
        base, number, twin = split_symbol(symbol)
        by_name[base, twin].append((number, symbol))
    rows: dict[str, Row] = {}
    for (base, twin), versions in questions.items():
        for (_, symbol), version in zip(sorted(by_name[base, twin]), sorted(versions), strict=False):
            rows[symbol] = (base, version, "per_thread" if twin else "legacy")
    return rows


def table_rows(hooks: Path) -> dict[str, Row]:
    rows: dict[str, Row] = {}
    for name in ("cuda.def", "cuda_names.def"):
        for line in (hooks / name).read_text().splitlines():
            if (match := ROW.match(line)) is not None:
                symbol, base, version, streams = match.groups()[:4] if match[1] else match.groups()[4:]
                rows[symbol] = (base, int(version), streams)
    return rows


def check_cuda(compiler: Compiler, header: Path, ours: Path, hooks: Path, major: int) -> list[str]:
    types = without_comments((ours / "vgpu/abi/cuda_types.h").read_text())
    functions = without_comments((ours / "vgpu/abi/cuda_fn.h").read_text())
    theirs = "".join((header.parent / f"{f}Typedefs.h").read_text() for f in FAMILIES) + compiler.expand(header)
    known = set(re.findall(r"\w+", theirs))

    # Equal typedefs may be repeated, different ones are refused.
    includes = "".join(f'#include "{name}"\n' for name in ("cuda.h", "cudaTypedefs.h", "vgpu/abi/cuda_fn.h"))
    problems = compiler.problems(includes)
    layout, facts = check_layout(compiler, "vgpu/abi/cuda_types.h", "cuda.h", types, known)
    problems += layout
    pointers = set(re.findall(r"PFN_\w+", functions))
    if major == max(m for _, m in PLACES):
        problems += [f"{name}: no such function in NVIDIA's headers" for name in sorted(pointers - known)]
        ours_alone = [n for n in enumerators(types) if n not in known and not OURS_ALONE.match(n)]
        problems += [f"{name}: no such name in NVIDIA's headers" for name in ours_alone]

    table, wanted = table_rows(hooks), cuda_rows(compiler, header.parent)
    for symbol, row in sorted(wanted.items()):
        if symbol not in table:
            problems.append(f"{symbol}: {row} is in no table of hooks/")
        elif table[symbol] != row:
            problems.append(f"{symbol}: the table says {table[symbol]}, the headers say {row}")
    print(f"{len(pointers & known)} function types, {facts} facts of layout, {len(wanted)} symbols compared")
    return problems


def check_nvml(compiler: Compiler, header: Path, ours: Path, hooks: Path) -> list[str]:
    types = without_comments((ours / "vgpu/abi/nvml_types.h").read_text())
    text = compiler.expand(header)
    known = set(re.findall(r"\w+", text))
    declared = set(re.findall(r"\b(nvml[A-Z]\w+)\s*\(", text))
    problems, facts = check_layout(compiler, "vgpu/abi/nvml_types.h", "nvml.h", types, known)
    typed, named = {}, set()
    for line in (hooks / "nvml.def").read_text().splitlines():
        if (match := NVML_ROW.match(line)) is not None:
            named.add(match[1] or match[3])
            if match[1] in declared:
                typed[match[1]] = match[2]
    lines = [f"{pointer} parity_{symbol} = &{symbol};" for symbol, pointer in typed.items()]
    problems += compiler.problems('#include "nvml.h"\n#include "vgpu/abi/nvml_fn.h"\n' + "\n".join(lines))
    process_lists = {name for name in declared if re.search(r"Process|MemoryInfo", name)}
    problems += [f"{name}: of processes or memory, and in no table of hooks/" for name in sorted(process_lists - named)]
    print(f"{len(typed)} functions, {facts} facts of layout compared")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["cuda", "nvml"])
    parser.add_argument("major", type=int, choices=[12, 13])
    parser.add_argument("--compiler", default="cc")
    parser.add_argument("--project", type=Path, default=Path(__file__).resolve().parents[2])
    parser.add_argument("--look-in", type=Path, action="append", default=[])
    options = parser.parse_args()
    roots = [*options.look_in, Path(sysconfig.get_path("purelib")), options.project.parent / ".venv"]
    header = find_header(roots, options.library, options.major)
    if header is None:
        print(f"SKIPPED: no {options.library} header of CUDA {options.major} in {', '.join(map(str, roots))}")
        return SKIPPED
    ours, hooks = options.project / "include", options.project / "hooks"
    compiler = Compiler(options.compiler, ours, header.parent)
    if options.library == "cuda":
        problems = check_cuda(compiler, header, ours, hooks, options.major)
    else:
        problems = check_nvml(compiler, header, ours, hooks)
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
