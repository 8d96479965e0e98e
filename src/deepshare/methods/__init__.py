"""DeepShare and the methods it is compared with: one file each, behind one interface.

A file of this room registers its method, and nothing else has to know it:

    @register("autorep")
    @dataclass
    class AutoReP(Method):
        ...

The base class says what a method may declare (`deepshare.methods.base`); docs/guides/add-a-method.md adds one from an
empty file.
"""

from deepshare.methods.base import get, names, register

__all__ = ["get", "names", "register"]
