"""`deepshare private ui`: a web page on the client's own machine."""

import os
import signal
import sys
import webbrowser
from contextlib import suppress
from importlib.util import find_spec

from deepshare.cli.options import Flag, PoolFolder, TlsFolder, importing
from deepshare.errors import EngineError


def ui(
    *,
    server: str | None = None,
    network: str | None = None,
    tls: TlsFolder = None,
    pool: PoolFolder = None,
    insecure: Flag = False,
    port: int = 8080,
    no_browser: Flag = False,
) -> None:
    """Open a page on this machine: a picture goes in, its class comes out, and the page shows who saw what.

    The page is the client: pictures are resized and cropped here, and the server gets a share of them, which is noise.
    It answers on 127.0.0.1 alone. Without --server it starts a dealer and a server of the bundled digits here.

    Args:
        server: HOST:PORT of deepshare private serve, with engine gateshare.
        network: Name of the network, if the server has several.
        insecure: Ask another machine without TLS: everyone between can read and change what is sent.
        port: Port of the page; 0 for any.
        no_browser: Only print the address of the page.
    """
    given = {"--network": network, "--tls": tls, "--pool": pool, "--insecure": insecure}
    if server is None and (without := [name for name, value in given.items() if value]):
        raise EngineError(f"{', '.join(without)} without --server: say which server, or leave it out for the demo")
    if server is not None and pool is None:
        raise EngineError("the page uses what was dealt beforehand: give your pool with --pool")
    if any(find_spec(name) is None for name in ("starlette", "uvicorn")):
        raise EngineError("the page needs starlette and uvicorn: pip install 'deepshare[ui]'")
    with importing():
        from deepshare.private.remote.ask import connect
        from deepshare.private.ui.app import bound, serve_page
        from deepshare.private.ui.demo import sample_digits, serving_digits

    def ready(address: str) -> None:
        print(f"the page is {address}; Ctrl-C ends it", file=sys.stderr)
        if not no_browser and _has_screen():
            webbrowser.open(address)

    with bound(port) as listener, suppress(KeyboardInterrupt):
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        if server is not None and pool is not None:
            with connect(server, pool=pool, tls=tls, network=network, insecure=insecure) as remote:
                serve_page(remote, f"Server {server}", listener, [], ready)
            return
        print("a demo: starting a dealer and a server of handwritten digits on this machine", file=sys.stderr)
        with serving_digits() as (address, dealt, keys), connect(address, pool=dealt, tls=keys) as remote:
            serve_page(remote, f"A demo with digits on {address}", listener, sample_digits(), ready)


def _has_screen() -> bool:
    """Return True if a browser has a window to open in; on a terminal it would take the terminal."""
    return sys.platform in ("darwin", "win32") or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
