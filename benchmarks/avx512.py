"""Processes without AVX-512, for libraries that check for it at run time.

With AVX-512 torch multiplies int64 matrices some twenty times faster, by a kernel of FBGEMM, and CrypTen's shares are
such matrices. FBGEMM queries the processor and has no switch, so a preloaded library answers in its place. torch's own
kernels, MKL and oneDNN have environment variables; MKL honours its own on Intel only.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

_ANSWER = "namespace fbgemm { bool fbgemmHasAvx512Support() { return false; } }"
_VARIABLES = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
}


@contextmanager
def without() -> Iterator[None]:
    """Hide AVX-512 from processes started within the context."""
    compiler = shutil.which("c++") or shutil.which("g++")
    if compiler is None:
        raise SystemExit("--without-avx512 needs a C++ compiler: install g++")
    before = dict(os.environ)
    with TemporaryDirectory() as folder:
        library = Path(folder) / "answer.so"
        command = [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
        subprocess.run(command, input=_ANSWER, text=True, check=True)
        os.environ.update(_VARIABLES, LD_PRELOAD=f"{library} {before.get('LD_PRELOAD', '')}".strip())
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
