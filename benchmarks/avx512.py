"""A benchmark and its parties without AVX-512, for libraries that check for it at run time.

With AVX-512 torch multiplies int64 matrices some twenty times faster, by a kernel of FBGEMM, and CrypTen's shares are
such matrices. FBGEMM queries the processor and has no switch, so a preloaded library answers in its place. torch's own
kernels, MKL, oneDNN and numpy have environment variables; MKL honours its own on Intel only. SPU's engines compile
their code while they run, and keep AVX-512.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

_ANSWER = "namespace fbgemm { bool fbgemmHasAvx512Support() { return false; } }"
_VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512_ICL AVX512_SPR",  # numpy ignores names that it does not have
}


def hide(wanted: bool) -> None:
    """Where AVX-512 is to be hidden and is there, run this command once more without it, and exit as that does."""
    if not wanted or not torch.backends.cpu.get_cpu_capability().startswith("AVX512"):
        return
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise SystemExit("--without-avx512 needs a C++ compiler: install g++")
    with TemporaryDirectory() as folder:
        library = Path(folder) / "answer.so"
        command = [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
        subprocess.run(command, input=_ANSWER, text=True, check=True)
        preloaded = f"{library} {os.environ.get('LD_PRELOAD', '')}".strip()
        again = [sys.executable, *sys.argv]
        raise SystemExit(subprocess.run(again, env={**os.environ, **_VARIABLES, "LD_PRELOAD": preloaded}).returncode)
