"""The page's own small web server, for this machine alone."""

import io
import json
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from deepshare.errors import DeepShareError, EngineError
from deepshare.private.remote.ask import Connection
from deepshare.private.ui.views import PartyViews

LARGEST_PICTURE = 16 << 20
FILES = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
HEADERS = {
    # Everything is from here, and nothing goes elsewhere.
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def bound(port: int) -> socket.socket:
    """A socket for the page, on this machine alone.

    Raises:
        EngineError: The port is taken, or none.
    """
    try:
        # It listens once the page can answer: until then a browser is refused and does not wait.
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise EngineError(f"no page on port {port} ({error}): give another one with --port, or 0 for any") from error
    return listener


def serve_page(
    remote: Connection, server: str, listener: socket.socket, samples: Sequence[bytes], ready: Callable[[str], None]
) -> None:
    """Serve the page until Ctrl-C.

    Args:
        remote: The client's connection.
        server: What the page says of the server.
        listener: See `bound`.
        samples: Pictures to try, as PNG.
        ready: Gets the address of the page.

    Raises:
        EngineError: The network classifies pixels.
    """
    if remote.classifies_pixels:
        raise EngineError("the server's network classifies pixels, which the page does not show: use private ask --out")
    port = listener.getsockname()[1]
    listener.listen()
    ready(f"http://127.0.0.1:{port}")
    config = uvicorn.Config(application(remote, server, port, samples), log_level="warning", server_header=False)
    uvicorn.Server(config).run([listener])


class Picture(io.BytesIO):
    """A picture that was handed in, by its name in errors."""

    def __str__(self) -> str:
        return "the picture"

    __repr__ = __str__


def application(remote: Connection, server: str, port: int, samples: Sequence[bytes]) -> Starlette:
    """The page and what it asks for.

    Args:
        remote: The client's connection.
        server: What the page says of the server.
        port: The page's own, for the addresses that it answers to.
        samples: Pictures to try, as PNG.
    """
    names = [f"{host}:{port}" for host in ("127.0.0.1", "localhost")]

    def guarded(answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            response = _stranger(request, names) or await answer(request)
            response.headers.update(HEADERS)
            return response

        return checked

    async def page(request: Request) -> Response:
        name, kind = FILES[request.url.path]
        return Response(files(__package__).joinpath(name).read_bytes(), media_type=kind)

    async def about(_: Request) -> Response:
        try:
            left = await run_in_threadpool(remote.left)
        except DeepShareError as error:
            return _refusal(502, str(error))
        known = remote.about
        return JSONResponse(
            {"server": server, "size": known.size, "classes": len(known.classes), "left": left, "samples": len(samples)}
        )

    async def sample(request: Request) -> Response:
        with suppress(IndexError):
            return Response(samples[request.path_params["number"]], media_type="image/png")
        return _refusal(404, "there is no such picture")

    async def ask(request: Request) -> Response:
        picture = Picture()
        async for part in request.stream():
            picture.write(part)
            if picture.tell() > LARGEST_PICTURE:
                return _refusal(413, f"the picture has more than {LARGEST_PICTURE >> 20} MB: make it smaller")
        try:
            return JSONResponse(await run_in_threadpool(classified, remote, picture))
        except DeepShareError as error:
            return _refusal(400, str(error))

    return Starlette(
        routes=[
            *(Route(path, guarded(page)) for path in FILES),
            Route("/about", guarded(about)),
            Route("/samples/{number:int}.png", guarded(sample)),
            Route("/ask", guarded(ask), methods=["POST"]),
        ]
    )


def classified(remote: Connection, picture: Picture) -> dict[str, Any]:
    """Ask for the class of a picture, and watch.

    Raises:
        DeepShareError: It is no picture, or the server does not answer.
    """
    batch, views = remote.about.read([picture], fit=True), PartyViews()
    return views.account(remote.about, batch, remote.ask(batch, watch=views))


def _stranger(request: Request, names: Sequence[str]) -> Response | None:
    """The refusal of a page of someone else: by a name that was made to point here, or by a form on another site."""
    if request.headers.get("host") not in names:
        return _refusal(421, f"this page answers to {names[0]} alone")
    if request.method == "POST" and request.headers.get("origin") not in [f"http://{name}" for name in names]:
        return _refusal(403, "pictures are taken from this page alone")
    return None


def _refusal(status: int, why: str) -> Response:
    return Response(json.dumps({"error": " ".join(why.split())}), status, media_type="application/json")
