"""Let torchvision from PyPI work beside a CPU build of torch, in the development environment only.

PyPI's torchvision is linked against the CUDA build of torch. Beside a CPU build its C++ library cannot be loaded, and
`import torchvision` then fails, because it registers a fake kernel for an operator that does not exist. Nothing here
uses those operators, so it is enough to declare them. `make` copies this file and its .pth into the site-packages of
.venv; the .pth imports it when Python starts, which sets a hook and costs nothing until torchvision is imported.
"""

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import Any

_declared: list[Any] = []  # torch forgets the operators of a library that is no longer referenced


def _declare_missing_operators(folder: Path) -> None:
    import torch

    try:
        for library in sorted(folder.glob("_C.*")):
            torch.ops.load_library(library)
    except OSError:
        fragment = torch.library.Library("torchvision", "FRAGMENT")
        fragment.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        fragment.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _declared.append(fragment)


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        _declare_missing_operators(Path(self.path).parent)
        super().exec_module(module)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target) if name == "torchvision" else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder)
